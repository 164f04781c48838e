/* kernels_impl.h - the table behind struct ns_kernels, private to the room.
 *
 * WHAT   One table per instruction set. Every slot is a single-threaded function over a range of independent outputs;
 *        gemm.c, expert.c, rows.c, route.c and head.c cut the ranges and hand them to threads.
 * WHY    Threads, scratch and shapes are then written once, and an instruction set is only loops over numbers.
 * RULE   A table names every slot; one that an instruction set has nothing better for names the reference. */
#ifndef NS_KERNELS_IMPL_H
#define NS_KERNELS_IMPL_H

#include "kernels/kernels.h"

#define NS_LANES 16
#define NS_ALIGN 64 /* bytes; a cache line and a vector */

/* Before a loop over vectors whose count is a constant. It must be gone before registers are given out; with a mere number
 * Clang unrolls too late for that, and every accumulator goes through memory. */
#ifdef __clang__
#define V_UNROLL _Pragma("clang loop unroll(full)")
#else
#define V_UNROLL _Pragma("GCC unroll 8")
#endif

/* ---- products ---------------------------------------------------------------------------------------------------------- */

/* Sizes are functions of the shape alone, so that packing and product agree without a header. */
struct ns_gemm_ops {
    /* rows are packed in n_units independent pieces */
    size_t (*pack_units)(size_t n_rows, size_t cols);
    size_t (*pack_bytes)(size_t n_rows, size_t cols);
    void (*pack)(float *packed, const float *x, size_t ld_x, const uint32_t *index, size_t n_rows, size_t cols,
                 size_t begin, size_t end);
    /* weight rows that one task should take at least, and the work memory of one thread */
    size_t (*task_rows)(size_t n_rows, size_t cols);
    size_t (*scratch_bytes)(size_t n_rows, size_t cols);
    /* y[i][o - begin] (=|+=) dot for o in [begin, end) */
    void (*run)(float *y, size_t ld_y, const struct ns_weights *w, size_t begin, size_t end, const float *packed,
                size_t n_rows, enum ns_store_mode mode, void *scratch);
};

/* About what a product with n_rows packed rows takes for each weight: fetching or decoding it, and its multiply-adds. */
static inline double ns_weight_ns(size_t n_rows)
{
    return 0.1 + 0.012 * (double)n_rows;
}

/* Around what counts as product time; nothing when nobody asks. */
uint64_t ns_product_begin(const struct ns_kernels *k);
void ns_product_end(const struct ns_kernels *k, uint64_t began);

/* ---- row-wise vectors ---------------------------------------------------------------------------------------------------- */

enum ns_row_op {
    NS_ROW_RMSNORM,
    NS_ROW_L2NORM,
    NS_ROW_GATED_NORM,
    NS_ROW_SIGMOID,
    NS_ROW_SIGMOID_GATE,
    NS_ROW_SILU_MUL,
    NS_ROW_SITU_MUL,
    NS_ROW_ADD,
    NS_ROW_FINITE,
    NS_ROW_MIX,
    NS_ROW_DECAY,
    NS_ROW_EXPERT_ADD,
    NS_ROW_OPS
};

/* The arguments of every row kernel; each reads what its line in rows_ref.c names. */
struct ns_rows {
    float *y;
    const float *x, *g; /* g: gate, up or the second addend */
    const float *w;     /* norm weight, folded mix weight, or dt */
    const float *a;     /* exp(A_log) by head, or expert weight by row */
    const uint32_t *index;
    const float *const *block;
    uint8_t *ok;
    size_t ld_y, ld_x, ld_g, ld_block;
    size_t n, n_heads, n_blocks; /* n: floats a row, or a head when n_heads > 0 */
    float eps, scale;            /* scale: l2 factor, or the decay's bound */
    float beta, linear_beta;
    bool has_bound;
};

/* Threads with different outputs of one row may find out at once; the mark only falls and is read after them, so no order
 * is needed. */
static inline void ns_row_fails(uint8_t *ok)
{
    __atomic_store_n(ok, 0, __ATOMIC_RELAXED);
}

typedef void (*ns_rows_fn)(const struct ns_rows *a, size_t begin, size_t end);

/* As many of k's threads as op over rows [0, n_rows) is worth; and runs it on them. */
unsigned ns_rows_threads(const struct ns_kernels *k, enum ns_row_op op, const struct ns_rows *a, size_t n_rows);
void ns_rows_run(const struct ns_kernels *k, enum ns_row_op op, const struct ns_rows *a, size_t n_rows);

/* ---- the table ------------------------------------------------------------------------------------------------------------ */

struct ns_kernel_table {
    const struct ns_gemm_ops *gemm[3]; /* by enum ns_weight_type */
    const ns_rows_fn *row;             /* by enum ns_row_op */
    void (*short_conv)(float *y, size_t ld_y, const float *x, size_t ld_x, const float *w, size_t n_taps,
                       const float *history, size_t ld_h, size_t n, size_t n_ch); /* history is left alone */
    void (*kda_run)(float *state, float *o, size_t ld_o, const float *q, size_t ld_q, const float *key, size_t ld_k,
                    const float *v, size_t ld_v, const float *alpha, size_t ld_alpha, const float *beta, size_t ld_beta,
                    size_t n, size_t d, float *scratch);
    size_t (*attend_scratch)(size_t n_q, size_t n_positions, size_t d_key);
    void (*attend)(float *out, size_t ld_out, const float *q, size_t ld_q, size_t n_q, const uint32_t *n_visible,
                   const struct ns_key_run *span, size_t n_spans, size_t d_key, size_t d_value, float scale,
                   void *scratch);
    /* maximum (never -0) and sum of exp(l - maximum) of one block; false when a logit is not finite */
    bool (*head_block)(const float *logits, size_t n, float *max, float *sum);
    /* for measuring: independent multiply-adds without memory, fma_step of them a step; a plain read of n floats */
    float (*fma_burst)(size_t steps);
    size_t fma_step;
    float (*read_burst)(const float *p, size_t n);
};

extern const struct ns_kernel_table ns_table_ref, ns_table_avx2, ns_table_avx512, ns_table_neon;

/* ---- definitions that several files of the room share (dot_ref.c) ---------------------------------------------------------- */

float ns_fold16(float lane[NS_LANES]); /* 8+8, 4+4, 2+2, 1+1; destroys lane */
float ns_e8m0(uint8_t scale);          /* 2^(scale - 127); 0 is 2^-127, 255 is not a number */
extern const float ns_e2m1[NS_LANES];  /* the sixteen MXFP4 codes */
size_t ns_weight_row_bytes(enum ns_weight_type type, size_t cols); /* without scales */

/* reference forms in the table (one file each) */
extern const struct ns_gemm_ops ns_gemm_ref;
extern const struct ns_gemm_ops ns_gemm_wide_avx512, ns_gemm_mxfp4_avx512, ns_gemm_avx2,
    ns_gemm_neon; /* wide: bf16 and f32 */
extern const ns_rows_fn ns_rows_ref[];
void ns_short_conv_ref(float *y, size_t ld_y, const float *x, size_t ld_x, const float *w, size_t n_taps,
                       const float *history, size_t ld_h, size_t n, size_t n_ch);
void ns_kda_run_ref(float *state, float *o, size_t ld_o, const float *q, size_t ld_q, const float *key, size_t ld_k,
                    const float *v, size_t ld_v, const float *alpha, size_t ld_alpha, const float *beta, size_t ld_beta,
                    size_t n, size_t d, float *scratch);
size_t ns_attend_scratch_ref(size_t n_q, size_t n_positions, size_t d_key);
void ns_attend_ref(float *out, size_t ld_out, const float *q, size_t ld_q, size_t n_q, const uint32_t *n_visible,
                   const struct ns_key_run *span, size_t n_spans, size_t d_key, size_t d_value, float scale,
                   void *scratch);
bool ns_head_block_ref(const float *logits, size_t n, float *max, float *sum);
float ns_fma_burst_ref(size_t steps); /* 16 a step */
float ns_read_burst_ref(const float *p, size_t n);

#endif
