/* gemm.c - products with any weights: packing and weight rows over threads.
 * Tasks are runs of weight rows, never parts of a dot product, so the threads cannot be seen in the result. */
#include "kernels/kernels_impl.h"

#include <assert.h>

static const struct ns_gemm_ops *ops_of(const struct ns_kernels *k, enum ns_weight_type type)
{
    return k->table->gemm[type];
}

size_t ns_pack_bytes(const struct ns_kernels *k, enum ns_weight_type type, size_t n_rows, size_t cols)
{
    return ns_round_up(ops_of(k, type)->pack_bytes(n_rows, cols), NS_ALIGN);
}

struct pack_call {
    const struct ns_gemm_ops *ops;
    float *packed;
    const float *x;
    size_t ld_x;
    const uint32_t *index;
    size_t n_rows, cols;
};

static void pack_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    (void)thread;
    const struct pack_call *c = arg;
    c->ops->pack(c->packed, c->x, c->ld_x, c->index, c->n_rows, c->cols, begin, end);
}

uint64_t ns_product_begin(const struct ns_kernels *k)
{
    return k->time ? ns_clock_mono_ns() : 0;
}

void ns_product_end(const struct ns_kernels *k, uint64_t began)
{
    if (k->time)
        k->time->ns += ns_clock_mono_ns() - began;
}

void ns_pack_rows(const struct ns_kernels *k, enum ns_weight_type type, void *packed, const float *x, size_t ld_x,
                  const uint32_t *index, size_t n_rows, size_t cols)
{
    uint64_t began = ns_product_begin(k);
    assert((uintptr_t)packed % NS_ALIGN == 0);
    struct pack_call c = {ops_of(k, type), packed, x, ld_x, index, n_rows, cols};
    size_t n_units = n_rows ? c.ops->pack_units(n_rows, cols) : 0;
    unsigned n_threads = ns_threads_for(k, 0.2 * (double)n_rows * (double)cols);
    size_t rows_a_task = 1 + 16384 / (cols + 1); /* of 64 KiB or more */
    ns_parallel(n_threads, n_units, 1 + rows_a_task * n_units / (n_rows + 1), pack_range, &c);
    ns_product_end(k, began);
}

size_t ns_gemm_scratch(const struct ns_kernels *k, enum ns_weight_type type, size_t n_rows, size_t w_rows, size_t cols)
{
    (void)w_rows;
    return k->n_threads * ns_round_up(ops_of(k, type)->scratch_bytes(n_rows, cols), NS_ALIGN);
}

struct gemm_call {
    const struct ns_gemm_ops *ops;
    float *y;
    size_t ld_y;
    const struct ns_weights *w;
    const float *packed;
    size_t n_rows;
    enum ns_store_mode mode;
    uint8_t *scratch;
    size_t scratch_bytes; /* of one thread */
    size_t n_pieces;      /* of weight rows */
};

enum { UNIT = 8 }; /* weight rows that stay together: what the widest tile takes */

static size_t units_of(const struct ns_weights *w)
{
    return (w->rows + UNIT - 1) / UNIT;
}

static void gemm_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct gemm_call *c = arg;
    size_t units = units_of(c->w), first = begin * units / c->n_pieces * UNIT, last = end * units / c->n_pieces * UNIT;
    if (last > c->w->rows)
        last = c->w->rows;
    c->ops->run(c->y + first, c->ld_y, c->w, first, last, c->packed, c->n_rows, c->mode,
                c->scratch + thread * c->scratch_bytes);
}

/* Pieces as long as the instruction set likes them and no longer, the same number for each thread; of a small matrix a
 * thread's share, as long as that is a million multiply-adds. */
static size_t pieces_of(const struct ns_kernels *k, const struct ns_weights *w, size_t n_rows)
{
    size_t likes = ops_of(k, w->type)->task_rows(n_rows, w->cols), units = units_of(w);
    size_t least = (((size_t)1 << 20) / (n_rows * w->cols + 1) + UNIT) / UNIT, most = units / least;
    size_t n = ns_round_up((w->rows + likes - 1) / likes, k->n_threads);
    return n < most ? n : most > 0 ? most : 1;
}

void ns_gemm(const struct ns_kernels *k, float *y, size_t ld_y, const struct ns_weights *w, const void *packed,
             size_t n_rows, enum ns_store_mode mode, void *scratch)
{
    assert((uintptr_t)scratch % NS_ALIGN == 0);
    assert(w->type != NS_W_MXFP4 || w->cols % 32 == 0);
    if (n_rows == 0 || w->rows == 0)
        return;
    uint64_t began = ns_product_begin(k);
    const struct ns_gemm_ops *ops = ops_of(k, w->type);
    unsigned n_threads = ns_threads_for(k, (double)w->rows * (double)w->cols * ns_weight_ns(n_rows));
    struct gemm_call c = {.ops = ops,
                          .y = y,
                          .ld_y = ld_y,
                          .w = w,
                          .packed = packed,
                          .n_rows = n_rows,
                          .mode = mode,
                          .scratch = scratch,
                          .scratch_bytes = ns_round_up(ops->scratch_bytes(n_rows, w->cols), NS_ALIGN),
                          .n_pieces = n_threads > 1 ? pieces_of(k, w, n_rows) : 1};
    ns_parallel_each(n_threads, c.n_pieces, gemm_range, &c);
    ns_product_end(k, began);
}
