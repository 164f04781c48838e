/* gemm_ref.c - the product by its definition: one canonical dot product for each output, over exact weights. */
#include "kernels/kernels_impl.h"

#include <string.h>

static size_t pack_units(size_t n_rows, size_t cols)
{
    (void)cols;
    return n_rows;
}

static size_t pack_bytes(size_t n_rows, size_t cols)
{
    return n_rows * cols * sizeof(float);
}

static void pack(float *packed, const float *x, size_t ld_x, const uint32_t *index, size_t n_rows, size_t cols,
                 size_t begin, size_t end)
{
    (void)n_rows;
    for (size_t i = begin; i < end; i++)
        memcpy(packed + i * cols, x + (index ? index[i] : i) * ld_x, cols * sizeof *packed);
}

static size_t task_rows(size_t n_rows, size_t cols)
{
    size_t work = n_rows * cols;
    return 1 + 100000 / (work + 1);
}

static size_t scratch_bytes(size_t n_rows, size_t cols)
{
    (void)n_rows;
    return cols * sizeof(float);
}

static void run(float *y, size_t ld_y, const struct ns_weights *w, size_t begin, size_t end, const float *packed,
                size_t n_rows, enum ns_store_mode mode, void *scratch)
{
    float *row = scratch;
    for (size_t o = begin; o < end; o++) {
        ns_decode_row(w, o, row);
        for (size_t i = 0; i < n_rows; i++) {
            float v = ns_dot_f32(row, packed + i * w->cols, w->cols);
            float *out = &y[i * ld_y + (o - begin)];
            *out = mode == NS_ADD ? *out + v : v;
        }
    }
}

const struct ns_gemm_ops ns_gemm_ref = {pack_units, pack_bytes, pack, task_rows, scratch_bytes, run};
