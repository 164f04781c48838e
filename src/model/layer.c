/* layer.c - the block diagram.
 *
 *     u = mix(blocks, x)            attention residual; u = x in models without
 *     at a boundary: blocks += x, x = nothing
 *     x = x + attention(norm(u))    an assignment after a boundary
 *     u = mix(blocks, x)
 *     x = x + ffn(norm(u))          dense, or experts + shared
 *
 * Memory: the arena holds, from the bottom, what the pass keeps (x, finished blocks: a boundary turns the accumulator's
 * memory into a source and takes fresh memory for the next) and above it the scratch of the layer at work. */
#include "model/model_impl.h"

#include <string.h>

static void add_rows(struct ns_pass *pass, const float *v)
{
    size_t d = pass->model->config->hidden;
    ns_add_rows(pass->kernels, pass->x, d, pass->x, d, v, d, pass->n_rows, d);
}

static enum ns_code attention_half(struct ns_pass *pass, uint32_t layer, const struct ns_kda_work *kda,
                                   const struct ns_mla_work *mla, struct ns_error *err)
{
    const struct ns_layer *l = &pass->model->layer[layer];
    size_t d = pass->model->config->hidden;
    bool boundary = ns_residual_is_boundary(pass->model, layer);
    float *fresh = boundary ? ns_residual_reserve(pass) : NULL;
    size_t mark = pass->arena->used;
    float *in = ns_pass_take_rows(pass, d);
    void *packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, d));
    ns_residual_input(pass, in, l->attn_mix, l->attn_norm);
    ns_pass_tap(pass, layer, "attn_in", in, d);
    if (boundary)
        ns_residual_close_block(pass, fresh);
    ns_pass_pack(pass, packed, in, d, d);
    float *out = in;
    enum ns_code rc = l->is_kda ? ns_kda_attend(pass, layer, kda, packed, out, err)
                                : ns_mla_attend(pass, layer, mla, packed, out, err);
    if (rc == NS_OK) {
        ns_pass_check(pass, layer, out, "attention output");
        ns_pass_tap(pass, layer, "attn_out", out, d);
        if (boundary)
            memcpy(pass->x, out, pass->n_rows * d * sizeof *out);
        else
            add_rows(pass, out);
    }
    pass->arena->used = mark;
    return rc;
}

static enum ns_code ffn_half(struct ns_pass *pass, uint32_t layer, struct ns_error *err)
{
    const struct ns_layer *l = &pass->model->layer[layer];
    size_t d = pass->model->config->hidden, mark = pass->arena->used;
    float *in = ns_pass_take_rows(pass, d), *out = in;
    void *packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, d));
    ns_residual_input(pass, in, l->ffn_mix, l->ffn_norm);
    ns_pass_tap(pass, layer, "ffn_in", in, d);
    ns_pass_pack(pass, packed, in, d, d);
    enum ns_code rc =
        l->is_moe ? ns_moe_run(pass, layer, in, packed, &out, err) : ns_mlp_run(pass, &l->dense, packed, out, err);
    if (rc == NS_OK) {
        ns_pass_tap(pass, layer, "ffn_out", out, d);
        add_rows(pass, out);
        ns_pass_check(pass, layer, pass->x, "residual");
        ns_pass_tap(pass, layer, "residual", pass->x, d);
    }
    pass->arena->used = mark;
    return rc;
}

enum ns_code ns_pass_layer(struct ns_pass *pass, uint32_t layer, const struct ns_kda_work *kda,
                           const struct ns_mla_work *mla, struct ns_error *err)
{
    enum ns_code rc = attention_half(pass, layer, kda, mla, err);
    if (rc == NS_OK)
        rc = ffn_half(pass, layer, err);
    return rc == NS_OK ? rc : ns_error_wrap(err, rc, "layer %" PRIu32, layer);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct scratch_need {
    const struct ns_pass *pass;
    size_t bytes;
};

static void need_matrix(void *arg, const struct ns_matrix *m)
{
    struct scratch_need *need = (struct scratch_need *)arg;
    need->bytes =
        larger(need->bytes, ns_gemm_scratch(need->pass->kernels, NS_W_BF16, need->pass->n_rows, m->tile_rows, m->cols));
}

/* Every product of a pass shares one scratch. */
static size_t gemm_scratch_bytes(const struct ns_pass *pass)
{
    const struct ns_config *c = pass->model->config;
    struct scratch_need need = {.pass = pass};
    need.bytes = larger(ns_gemm_scratch(pass->kernels, NS_W_BF16, pass->n_rows, c->kv_lora, c->d_nope),
                        ns_gemm_scratch(pass->kernels, NS_W_BF16, pass->n_rows, c->d_v, c->kv_lora));
    need_matrix(&need, &pass->model->lm_head);
    ns_model_each_matrix(pass->model, need_matrix, &need);
    return need.bytes;
}

void ns_pass_begin(struct ns_pass *pass)
{
    pass->ok = (uint8_t *)ns_arena_take(pass->arena, pass->n_rows);
    pass->gemm_scratch = ns_arena_take(pass->arena, gemm_scratch_bytes(pass));
    pass->x = ns_residual_reserve(pass);
    pass->n_blocks = 0;
    pass->next_tile = 0;
    pass->experts_requested = pass->experts_distinct = 0;
}

void ns_pass_resume(struct ns_pass *pass, uint32_t layer)
{
    for (uint32_t i = 0; i < layer; i++)
        if (ns_residual_is_boundary(pass->model, i))
            ns_residual_close_block(pass, ns_residual_reserve(pass));
    pass->next_tile = pass->model->first_tile[layer];
}

size_t ns_pass_arena_bytes(const struct ns_pass *shape)
{
    struct ns_arena measure = {0};
    struct ns_pass p = *shape;
    p.arena = &measure;
    ns_pass_begin(&p);
    ns_embed_measure(&p);
    for (uint32_t i = 0; i < p.model->n_layers; i++) {
        const struct ns_layer *l = &p.model->layer[i];
        if (ns_residual_is_boundary(p.model, i))
            ns_residual_reserve(&p);
        size_t mark = measure.used;
        ns_pass_take_rows(&p, p.model->config->hidden);
        ns_arena_take(&measure, ns_pass_pack_bytes(&p, p.model->config->hidden));
        if (l->is_kda)
            ns_kda_measure(&p);
        else
            ns_mla_measure(&p);
        if (l->is_moe)
            ns_moe_measure(&p, i);
        else
            ns_mlp_measure(&p, &l->dense);
        measure.used = mark;
    }
    ns_head_measure(&p);
    return measure.peak;
}
