/* mla.c - full attention over a latent cache, without rotary positions (specification 3.7).
 *
 * WHAT   A position is cached as one row: the normalised latent, then the key part that all heads share. Queries are
 *        moved into the latent space (qa = Uk^T q), attend there, and the attended latent is moved out (o = Uv ol).
 * WHY    This absorbed form is the definition for prefill and decode alike: the cache is 43 times smaller than expanded
 *        keys and values, and one definition means that a chunk boundary cannot be seen. Uk is stored [n][latent], so its
 *        transpose makes qa an ordinary product over n; its rows are used by all rows of the wave, so the transposition
 *        is paid once per wave and head. Heads are worked on in groups for the same reason as in kda.c.
 * INVARIANTS
 *   1. A query sees positions 0 .. its own, wherever they are stored, walked from 0 upward.      (wave_test: from_and_into)
 *   2. Blocks of queries, groups of heads and pages do not change a bit.                          (wave_test: chunks_give_the_same_bits)
 * THREADS  Units of (head, block of queries) are independent; each worker has its own scratch. */
#include "model/model_impl.h"

#include <math.h>
#include <string.h>

static const float latent_eps = 1e-6f; /* the two low-rank norms do not take the config's eps */

struct mla_buffers {
    float *o;        /* [rows][heads * d_v] */
    float *q_low;    /* [rows][q_lora] */
    void *q_packed;  /* of q_low */
    float *c;        /* [rows][kv_lora + d_rope] */
    float *q;        /* [rows][group * dq] */
    float *qk;       /* [rows][group * d_key] queries in the latent space, then the shared part */
    float *ol;       /* [rows][group * kv_lora] */
    float *gate;     /* [rows][group * d_v] */
    void *packed;    /* of one head of q, then of ol */
    uint16_t *kv_b;  /* [group][d_nope + d_v][kv_lora] */
    uint16_t *uk_t;  /* [kv_lora][d_nope] of one head */
    uint8_t *worker; /* scratch of the attention kernel, per thread */
    size_t worker_bytes;
};

static const struct ns_matrix *query_matrix(const struct ns_mla_weights *w)
{
    return w->q_b.tensor ? &w->q_b : &w->q;
}

enum ns_code ns_mla_list(struct ns_model *model, uint32_t layer, struct ns_error *err)
{
    const struct ns_mla_weights *w = &model->layer[layer].mla;
    const struct ns_config *c = model->config;
    enum ns_code rc = ns_tiles_add(model, &w->kv_a, layer, 0, w->kv_a.rows, err);
    if (rc == NS_OK && w->q_a.tensor)
        rc = ns_tiles_add(model, &w->q_a, layer, 0, w->q_a.rows, err);
    uint32_t dq = c->d_nope + c->d_rope, dkv = c->d_nope + c->d_v;
    for (uint32_t h = 0; rc == NS_OK && h < c->n_heads; h += model->mla_group) {
        uint32_t heads = c->n_heads - h < model->mla_group ? c->n_heads - h : model->mla_group;
        rc = ns_tiles_add(model, query_matrix(w), layer, h * dq, heads * dq, err);
        if (rc == NS_OK)
            rc = ns_tiles_add(model, &w->kv_b, layer, h * dkv, heads * dkv, err);
        if (rc == NS_OK && w->g.tensor)
            rc = ns_tiles_add(model, &w->g, layer, h * c->d_v, heads * c->d_v, err);
    }
    if (rc == NS_OK)
        rc = ns_tiles_add(model, &w->o, layer, 0, w->o.rows, err);
    return rc;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void carve(struct ns_pass *pass, struct mla_buffers *b)
{
    const struct ns_config *c = pass->model->config;
    size_t group = pass->model->mla_group, key = ns_mla_key_floats(c);
    if (c->q_lora) {
        b->q_low = ns_pass_take_rows(pass, c->q_lora);
        b->q_packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, c->q_lora));
    }
    b->c = ns_pass_take_rows(pass, key);
    b->q = ns_pass_take_rows(pass, group * (c->d_nope + c->d_rope));
    b->qk = ns_pass_take_rows(pass, group * key);
    b->ol = ns_pass_take_rows(pass, group * c->kv_lora);
    if (c->mla_gate)
        b->gate = ns_pass_take_rows(pass, group * c->d_v);
    b->packed =
        ns_arena_take(pass->arena, larger(ns_pass_pack_bytes(pass, c->d_nope), ns_pass_pack_bytes(pass, c->kv_lora)));
    b->kv_b = (uint16_t *)ns_arena_take(pass->arena, group * (c->d_nope + c->d_v) * c->kv_lora * sizeof(uint16_t));
    b->uk_t = (uint16_t *)ns_arena_take(pass->arena, (size_t)c->kv_lora * c->d_nope * sizeof(uint16_t));
    b->worker_bytes = ns_attend_scratch(pass->kernels, pass->n_block_rows, pass->n_positions, key);
    b->worker_bytes = (b->worker_bytes + 63) & ~(size_t)63;
    b->worker = (uint8_t *)ns_arena_take(pass->arena, pass->kernels->n_threads * b->worker_bytes);
}

static float *carve_output(struct ns_pass *pass)
{
    const struct ns_config *c = pass->model->config;
    return ns_pass_take_rows(pass, (size_t)c->n_heads * c->d_v);
}

void ns_mla_measure(struct ns_pass *pass)
{
    const struct ns_config *c = pass->model->config;
    struct mla_buffers b = {0};
    size_t start = pass->arena->used;
    b.o = carve_output(pass);
    size_t mark = pass->arena->used;
    carve(pass, &b);
    pass->arena->used = mark;
    ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, (size_t)c->n_heads * c->d_v));
    pass->arena->used = start;
}

/* The latent rows of this wave: what every later position will see of these. */
static enum ns_code make_latent(struct ns_pass *pass, const struct ns_mla_weights *w, const struct ns_mla_work *work,
                                const void *packed, struct mla_buffers *b, struct ns_error *err)
{
    const struct ns_config *c = pass->model->config;
    size_t key = ns_mla_key_floats(c);
    enum ns_code rc = ns_feed_product(pass, &w->kv_a, 0, w->kv_a.rows, b->c, key, packed, NS_SET, err);
    if (rc != NS_OK)
        return rc;
    ns_rmsnorm(pass->kernels, work->latent, key, b->c, key, w->kv_norm, pass->n_rows, c->kv_lora, latent_eps);
    for (size_t i = 0; i < pass->n_rows; i++)
        memcpy(work->latent + i * key + c->kv_lora, b->c + i * key + c->kv_lora, c->d_rope * sizeof(float));
    if (work->stored)
        work->stored(work->arg);
    return NS_OK;
}

static enum ns_code make_low_query(struct ns_pass *pass, const struct ns_mla_weights *w, const void *packed,
                                   struct mla_buffers *b, struct ns_error *err)
{
    size_t n = pass->model->config->q_lora;
    enum ns_code rc = ns_feed_product(pass, &w->q_a, 0, w->q_a.rows, b->q_low, n, packed, NS_SET, err);
    if (rc != NS_OK)
        return rc;
    ns_rmsnorm(pass->kernels, b->q_low, n, b->q_low, n, w->q_norm, pass->n_rows, n, latent_eps);
    ns_pass_pack(pass, b->q_packed, b->q_low, n, n);
    return NS_OK;
}

static enum ns_code copy_rows(struct ns_pass *pass, const struct ns_matrix *m, uint32_t first, uint32_t n,
                              uint16_t *out, struct ns_error *err)
{
    for (uint32_t at = first; at < first + n;) {
        struct ns_tile_view view = {0};
        enum ns_code rc = ns_feed_take(pass, m, &view, err);
        if (rc != NS_OK)
            return rc;
        memcpy(out + (size_t)(at - first) * m->cols, view.data, (size_t)view.n * m->cols * sizeof *out);
        at += view.n;
        ns_store_tile_release(pass->store, &view);
    }
    return NS_OK;
}

/* qk[head] = (Uk^T q_nope, q_rope) for the i-th head of the group. */
static void absorb_query(struct ns_pass *pass, const struct mla_buffers *b, size_t i)
{
    const struct ns_config *c = pass->model->config;
    size_t group = pass->model->mla_group, key = ns_mla_key_floats(c), dq = (size_t)c->d_nope + c->d_rope;
    const uint16_t *uk = b->kv_b + i * (c->d_nope + c->d_v) * c->kv_lora;
    ns_transpose_bf16(b->uk_t, uk, c->d_nope, c->kv_lora);
    struct ns_weights w = {.type = NS_W_BF16, .data = b->uk_t, .rows = c->kv_lora, .cols = c->d_nope};
    const float *q = b->q + i * dq;
    float *qk = b->qk + i * key;
    ns_pass_pack(pass, b->packed, q, group * dq, c->d_nope);
    ns_gemm(pass->kernels, qk, group * key, &w, b->packed, pass->n_rows, NS_SET, pass->gemm_scratch);
    for (size_t r = 0; r < pass->n_rows; r++)
        memcpy(qk + r * group * key + c->kv_lora, q + r * group * dq + c->d_nope, c->d_rope * sizeof *qk);
}

struct mla_job {
    const struct ns_pass *pass;
    const struct ns_mla_work *work;
    const struct mla_buffers *b;
    struct ns_kernels one;
    float scale;
};

/* Unit u: head u / blocks of the group, block u mod blocks. */
static void attend_units(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct mla_job *job = (const struct mla_job *)arg;
    const struct ns_config *c = job->pass->model->config;
    size_t group = job->pass->model->mla_group, key = ns_mla_key_floats(c), n_blocks = job->work->n_blocks;
    for (size_t u = begin; u < end; u++) {
        size_t head = u / n_blocks;
        const struct ns_mla_block *block = &job->work->block[u % n_blocks];
        ns_attend(&job->one, job->b->ol + (block->row * group + head) * c->kv_lora, group * c->kv_lora,
                  job->b->qk + (block->row * group + head) * key, group * key, block->n,
                  job->work->n_visible + block->row, job->work->span + block->first_span, block->n_spans, key,
                  c->kv_lora, job->scale, job->b->worker + thread * job->b->worker_bytes);
    }
}

/* Roughly what a query takes for a float of a position, of its score and of its values. */
static unsigned threads_of(const struct ns_pass *pass, const struct ns_mla_work *work, uint32_t heads)
{
    const double float_ns = 0.02;
    const struct ns_config *c = pass->model->config;
    double pairs = 0;
    for (size_t r = 0; r < pass->n_rows; r++)
        pairs += work->n_visible[r];
    return ns_threads_for(pass->kernels, float_ns * pairs * heads * (double)(ns_mla_key_floats(c) + c->kv_lora));
}

static enum ns_code run_group(struct ns_pass *pass, const struct ns_mla_weights *w, const struct ns_mla_work *work,
                              const void *packed, const struct mla_buffers *b, uint32_t head, struct ns_error *err)
{
    const struct ns_config *c = pass->model->config;
    uint32_t group = pass->model->mla_group, heads = c->n_heads - head < group ? c->n_heads - head : group;
    uint32_t dq = c->d_nope + c->d_rope, dkv = c->d_nope + c->d_v;
    size_t width = (size_t)c->n_heads * c->d_v;
    enum ns_code rc = ns_feed_product(pass, query_matrix(w), head * dq, heads * dq, b->q, (size_t)group * dq,
                                      c->q_lora ? b->q_packed : packed, NS_SET, err);
    if (rc == NS_OK)
        rc = copy_rows(pass, &w->kv_b, head * dkv, heads * dkv, b->kv_b, err);
    if (rc == NS_OK && c->mla_gate)
        rc = ns_feed_product(pass, &w->g, head * c->d_v, heads * c->d_v, b->gate, (size_t)group * c->d_v, packed,
                             NS_SET, err);
    if (rc != NS_OK)
        return rc;
    for (size_t i = 0; i < heads; i++)
        absorb_query(pass, b, i);
    struct mla_job job = {.pass = pass, .work = work, .b = b, .one = *pass->kernels, .scale = 1.0f / sqrtf((float)dq)};
    job.one.n_threads = 1;
    ns_parallel(threads_of(pass, work, heads), heads * work->n_blocks, 1, attend_units, &job);
    float *o = b->o + (size_t)head * c->d_v;
    for (size_t i = 0; i < heads; i++) {
        const uint16_t *uv = b->kv_b + (i * dkv + c->d_nope) * c->kv_lora;
        struct ns_weights v = {.type = NS_W_BF16, .data = uv, .rows = c->d_v, .cols = c->kv_lora};
        ns_pass_pack(pass, b->packed, b->ol + i * c->kv_lora, (size_t)group * c->kv_lora, c->kv_lora);
        ns_gemm(pass->kernels, o + i * c->d_v, width, &v, b->packed, pass->n_rows, NS_SET, pass->gemm_scratch);
    }
    if (c->mla_gate)
        ns_sigmoid_gate(pass->kernels, o, width, o, width, b->gate, (size_t)group * c->d_v, pass->n_rows,
                        (size_t)heads * c->d_v);
    return NS_OK;
}

enum ns_code ns_mla_attend(struct ns_pass *pass, uint32_t layer, const struct ns_mla_work *work, const void *packed,
                           float *out, struct ns_error *err)
{
    const struct ns_mla_weights *w = &pass->model->layer[layer].mla;
    const struct ns_config *c = pass->model->config;
    size_t start = pass->arena->used, width = (size_t)c->n_heads * c->d_v;
    struct mla_buffers b = {.o = carve_output(pass)};
    size_t mark = pass->arena->used;
    carve(pass, &b);
    enum ns_code rc = make_latent(pass, w, work, packed, &b, err);
    if (rc == NS_OK && c->q_lora)
        rc = make_low_query(pass, w, packed, &b, err);
    for (uint32_t h = 0; rc == NS_OK && h < c->n_heads; h += pass->model->mla_group)
        rc = run_group(pass, w, work, packed, &b, h, err);
    pass->arena->used = mark;
    if (rc == NS_OK) {
        void *o_packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, width));
        ns_pass_pack(pass, o_packed, b.o, width, width);
        rc = ns_feed_product(pass, &w->o, 0, w->o.rows, out, c->hidden, o_packed, NS_SET, err);
    }
    pass->arena->used = start;
    return rc;
}
