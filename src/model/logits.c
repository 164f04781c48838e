/* logits.c - final mix, norm and logits, for the rows that were asked about and no others.
 *
 * Logits are made one block of NS_HEAD_BLOCK vocabulary entries at a time and folded into each row's best list and
 * softmax sums at once: [rows][vocab] never exists (at K3 size it would be 2.7 GB for 4,096 rows). Targets are picked
 * up when their block passes. */
#include "model/model_impl.h"

#include <assert.h>
#include <string.h>

struct head_buffers {
    float *h; /* [n][hidden] */
    void *packed;
    float *logits;    /* [n][NS_HEAD_BLOCK] */
    float *max, *sum; /* [n][blocks of the vocabulary] */
};

static size_t block_count(const struct ns_config *c)
{
    return (c->vocab + NS_HEAD_BLOCK - 1) / NS_HEAD_BLOCK;
}

enum ns_code ns_head_list(struct ns_model *model, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    struct ns_matrix *m = &model->lm_head;
    for (uint32_t at = 0; rc == NS_OK && at < m->rows; at += NS_HEAD_BLOCK)
        rc = ns_tiles_add(model, m, UINT32_MAX, at, m->rows - at < NS_HEAD_BLOCK ? m->rows - at : NS_HEAD_BLOCK, err);
    return rc;
}

static void carve(struct ns_pass *pass, struct head_buffers *b)
{
    const struct ns_config *c = pass->model->config;
    size_t n = pass->n_head_rows;
    struct ns_arena *a = pass->arena;
    b->h = (float *)ns_arena_take(a, n * c->hidden * sizeof(float));
    b->packed = ns_arena_take(a, ns_pack_bytes(pass->kernels, NS_W_BF16, n, c->hidden));
    b->logits = (float *)ns_arena_take(a, n * NS_HEAD_BLOCK * sizeof(float));
    b->max = (float *)ns_arena_take(a, n * block_count(c) * sizeof(float));
    b->sum = (float *)ns_arena_take(a, n * block_count(c) * sizeof(float));
}

void ns_head_measure(struct ns_pass *pass)
{
    struct head_buffers b = {0};
    size_t mark = pass->arena->used;
    if (pass->n_head_rows)
        carve(pass, &b);
    pass->arena->used = mark;
}

/* The final hidden state of the rows asked: mixed run by run of neighbouring rows, then normalised together. */
static void final_hidden(struct ns_pass *pass, const uint32_t *row, float *h)
{
    const struct ns_config *c = pass->model->config;
    size_t d = c->hidden, n = pass->n_head_rows;
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && row[i + run] == row[i] + run;)
            run++;
        const float *x = pass->x + row[i] * d;
        if (!pass->model->out_mix) {
            memcpy(h + i * d, x, run * d * sizeof *h);
            continue;
        }
        const float *block[NS_MAX_BLOCKS];
        for (uint32_t b = 0; b < pass->n_blocks; b++)
            block[b] = pass->block[b] + row[i] * d;
        ns_attn_res_mix(pass->kernels, h + i * d, d, block, d, pass->n_blocks, x, d, pass->model->out_mix, run, d,
                        c->rms_eps);
    }
    ns_rmsnorm(pass->kernels, h, d, h, d, pass->model->out_norm, n, d, c->rms_eps);
    for (size_t i = 0; pass->tap.row && i < n; i++)
        pass->tap.row(pass->tap.arg, pass->model->n_layers, "final", row[i], h + i * d, NULL, d);
}

static enum ns_code block_logits(struct ns_pass *pass, uint32_t first, uint32_t n, struct head_buffers *b,
                                 struct ns_error *err)
{
    const struct ns_matrix *m = &pass->model->lm_head;
    for (uint32_t at = first; at < first + n;) {
        struct ns_tile_view view = {0};
        enum ns_code rc = ns_feed_take(pass, m, &view, err);
        if (rc != NS_OK)
            return ns_error_wrap(err, rc, "output head");
        struct ns_weights w = {.type = NS_W_BF16, .data = view.data, .rows = view.n, .cols = m->cols};
        ns_gemm(pass->kernels, b->logits + (at - first), NS_HEAD_BLOCK, &w, b->packed, pass->n_head_rows, NS_SET,
                pass->gemm_scratch);
        at += view.n;
        ns_store_tile_release(pass->store, &view);
    }
    return NS_OK;
}

enum ns_code ns_pass_head(struct ns_pass *pass, const uint32_t *row, struct ns_head_row *head,
                          struct ns_head_result *result, struct ns_head_target *target, size_t n_targets,
                          struct ns_error *err)
{
    const struct ns_config *c = pass->model->config;
    size_t n = pass->n_head_rows, n_blocks = block_count(c), mark = pass->arena->used, next = 0;
    struct head_buffers b = {0};
    enum ns_code rc = NS_OK;
    carve(pass, &b);
    final_hidden(pass, row, b.h);
    ns_pack_rows(pass->kernels, NS_W_BF16, b.packed, b.h, c->hidden, NULL, n, c->hidden);
    for (uint32_t first = 0; rc == NS_OK && first < c->vocab; first += NS_HEAD_BLOCK) {
        uint32_t n_block = c->vocab - first < NS_HEAD_BLOCK ? c->vocab - first : NS_HEAD_BLOCK;
        rc = block_logits(pass, first, n_block, &b, err);
        if (rc != NS_OK)
            break;
        ns_head_blocks(pass->kernels, head, b.max, b.sum, n_blocks, b.logits, NS_HEAD_BLOCK, n, first, n_block);
        for (; next < n_targets && target[next].token < first + n_block; next++)
            target[next].logit = b.logits[target[next].head * NS_HEAD_BLOCK + (target[next].token - first)];
        for (size_t i = 0; pass->seen_logits && i < n; i++)
            memcpy(pass->seen_logits + i * c->vocab + first, b.logits + i * NS_HEAD_BLOCK, n_block * sizeof(float));
    }
    for (size_t i = 0; rc == NS_OK && i < n; i++) {
        ns_head_finish(pass->kernels, b.max + i * n_blocks, b.sum + i * n_blocks, n_blocks, &result[i].max,
                       &result[i].log_sum);
        if (!head[i].finite && !pass->dead[row[i]])
            pass->fault(pass->fault_arg, NS_NONFINITE, pass->model->n_layers, row[i], NS_NO_EXPERT, "logits");
        if (pass->seen_logits)
            pass->tap.row(pass->tap.arg, pass->model->n_layers, "logits", row[i], pass->seen_logits + i * c->vocab,
                          NULL, c->vocab);
    }
    pass->arena->used = mark;
    return rc;
}
