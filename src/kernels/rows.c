/* rows.c - the row-wise kernels by name: fill in the arguments, cut the rows into tasks. */
#include "kernels/kernels_impl.h"

#include <assert.h>

struct rows_call {
    ns_rows_fn run;
    const struct ns_rows *a;
};

static void rows_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    (void)thread;
    const struct rows_call *c = arg;
    c->run(c->a, begin, end);
}

/* Roughly, of one float of one source, in memory nearby. */
static const double float_ns[NS_ROW_OPS] = {
    [NS_ROW_RMSNORM] = 0.2,       [NS_ROW_L2NORM] = 0.2,   [NS_ROW_GATED_NORM] = 0.55, [NS_ROW_SIGMOID] = 0.4,
    [NS_ROW_SIGMOID_GATE] = 0.45, [NS_ROW_SILU_MUL] = 0.5, [NS_ROW_SITU_MUL] = 1.0,    [NS_ROW_ADD] = 0.2,
    [NS_ROW_FINITE] = 0.1,        [NS_ROW_MIX] = 0.22,     [NS_ROW_DECAY] = 0.8,       [NS_ROW_EXPERT_ADD] = 0.2,
};

static size_t floats_of(const struct ns_rows *a)
{
    return a->n * (a->n_heads ? a->n_heads : 1) * (1 + a->n_blocks);
}

unsigned ns_rows_threads(const struct ns_kernels *k, enum ns_row_op op, const struct ns_rows *a, size_t n_rows)
{
    return ns_threads_for(k, (double)n_rows * (double)floats_of(a) * float_ns[op]);
}

void ns_rows_run(const struct ns_kernels *k, enum ns_row_op op, const struct ns_rows *a, size_t n_rows)
{
    struct rows_call c = {k->table->row[op], a};
    ns_parallel(ns_rows_threads(k, op, a, n_rows), n_rows, 1 + 16384 / (floats_of(a) + 1), rows_range, &c);
}

void ns_rmsnorm(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, const float *w,
                size_t n_rows, size_t n, float eps)
{
    struct ns_rows a = {.y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .w = w, .n = n, .eps = eps};
    ns_rows_run(k, NS_ROW_RMSNORM, &a, n_rows);
}

void ns_l2norm_heads(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, size_t n_rows,
                     size_t n_heads, size_t d, float scale)
{
    struct ns_rows a = {
        .y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .n = d, .n_heads = n_heads, .eps = 1e-6f, .scale = scale};
    ns_rows_run(k, NS_ROW_L2NORM, &a, n_rows);
}

void ns_gated_norm_heads(const struct ns_kernels *k, float *y, size_t ld_y, const float *o, size_t ld_o,
                         const float *gate, size_t ld_gate, const float *w, size_t n_rows, size_t n_heads, size_t d,
                         float eps)
{
    struct ns_rows a = {.y = y,
                        .ld_y = ld_y,
                        .x = o,
                        .ld_x = ld_o,
                        .g = gate,
                        .ld_g = ld_gate,
                        .w = w,
                        .n = d,
                        .n_heads = n_heads,
                        .eps = eps};
    ns_rows_run(k, NS_ROW_GATED_NORM, &a, n_rows);
}

void ns_sigmoid_gate(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, const float *gate,
                     size_t ld_gate, size_t n_rows, size_t n)
{
    struct ns_rows a = {.y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .g = gate, .ld_g = ld_gate, .n = n};
    ns_rows_run(k, NS_ROW_SIGMOID_GATE, &a, n_rows);
}

void ns_activate(const struct ns_kernels *k, float *h, size_t ld_h, const float *g, size_t ld_g, const float *u,
                 size_t ld_u, size_t n_rows, size_t n, const struct ns_act *act)
{
    struct ns_rows a = {.y = h,
                        .ld_y = ld_h,
                        .x = g,
                        .ld_x = ld_g,
                        .g = u,
                        .ld_g = ld_u,
                        .n = n,
                        .beta = act->beta,
                        .linear_beta = act->linear_beta};
    ns_rows_run(k, act->situ ? NS_ROW_SITU_MUL : NS_ROW_SILU_MUL, &a, n_rows);
}

void ns_add_rows(const struct ns_kernels *k, float *y, size_t ld_y, const float *a, size_t ld_a, const float *b,
                 size_t ld_b, size_t n_rows, size_t n)
{
    struct ns_rows r = {.y = y, .ld_y = ld_y, .x = a, .ld_x = ld_a, .g = b, .ld_g = ld_b, .n = n};
    ns_rows_run(k, NS_ROW_ADD, &r, n_rows);
}

void ns_finite_rows(const struct ns_kernels *k, uint8_t *ok, const float *x, size_t ld_x, size_t n_rows, size_t n)
{
    struct ns_rows a = {.x = x, .ld_x = ld_x, .n = n, .ok = ok};
    ns_rows_run(k, NS_ROW_FINITE, &a, n_rows);
}

void ns_attn_res_mix(const struct ns_kernels *k, float *y, size_t ld_y, const float *const *block, size_t ld,
                     size_t n_blocks, const float *x, size_t ld_x, const float *w, size_t n_rows, size_t d, float eps)
{
    assert(n_blocks < 65);
    struct ns_rows a = {.y = y,
                        .ld_y = ld_y,
                        .x = x,
                        .ld_x = ld_x,
                        .w = w,
                        .block = block,
                        .ld_block = ld,
                        .n_blocks = n_blocks,
                        .n = d,
                        .eps = eps};
    ns_rows_run(k, NS_ROW_MIX, &a, n_rows);
}

void ns_kda_decay(const struct ns_kernels *k, float *alpha, size_t ld_alpha, const float *f, size_t ld_f,
                  const float *dt, const float *a, bool has_bound, float bound, size_t n_rows, size_t n_heads, size_t d)
{
    struct ns_rows r = {.y = alpha,
                        .ld_y = ld_alpha,
                        .x = f,
                        .ld_x = ld_f,
                        .w = dt,
                        .a = a,
                        .n = d,
                        .n_heads = n_heads,
                        .has_bound = has_bound,
                        .scale = bound};
    ns_rows_run(k, NS_ROW_DECAY, &r, n_rows);
}

void ns_sigmoid_rows(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, size_t n_rows,
                     size_t n)
{
    struct ns_rows a = {.y = y, .ld_y = ld_y, .x = x, .ld_x = ld_x, .n = n};
    ns_rows_run(k, NS_ROW_SIGMOID, &a, n_rows);
}
