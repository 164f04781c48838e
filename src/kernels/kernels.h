/* kernels.h - arithmetic, nothing else. Every function here has one scalar definition (*_ref.c) and ISA forms with the
 * same bits; which one runs is in struct ns_kernels. Nothing allocates, logs or fails; scratch comes from the caller.
 *
 * THE CONTRACT f32x16.1. A dot product walks K in rising order, lane l = k mod 16 does acc[l] = fma(w[k], x[k], acc[l])
 * from +0, then lanes fold 8+8, 4+4, 2+2, 1+1. Norm sums, router scores, attention scores and softmax denominators use
 * that 16-lane form; KDA u and o, attention values, residual mixes and the expert sum are one fma chain in rising
 * index, vectorised across outputs. No doubles; rsqrt is sqrtf and a division; exp and friends are vmath.c. */
#ifndef NS_KERNELS_H
#define NS_KERNELS_H

#include "base/base.h"

#define NS_CONTRACT "f32x16.1"

/* ---- threads (parallel.c, the only OpenMP) --------------------------------------------------------------------------- */

/* Calls body(arg, begin, end) over disjoint ranges that cover [0, n), each at least grain long, on at most n_threads
 * threads. Only for independent outputs. thread: index of the calling worker, for per-thread scratch. */
typedef void (*ns_range_fn)(void *arg, size_t begin, size_t end, unsigned thread);
void ns_parallel(unsigned n_threads, size_t n, size_t grain, ns_range_fn body, void *arg);
/* The same with every index by itself: for a few large tasks of different length. Longest first ends earliest. */
void ns_parallel_each(unsigned n_threads, size_t n, ns_range_fn body, void *arg);
/* Both in one parallel region, index by index; nothing of the second begins before all of the first is done. */
void ns_parallel_steps(unsigned n_threads, size_t n_first, ns_range_fn first, size_t n_second, ns_range_fn second,
                       void *arg);

/* ---- dispatch (select.c) ------------------------------------------------------------------------------------------------ */

struct ns_kernel_table; /* private: kernels_impl.h */

/* What went into products (packing, ns_gemm, ns_experts), added up by the thread that calls them. */
struct ns_product_time {
    uint64_t ns;
};

struct ns_kernels {
    const struct ns_kernel_table *table;
    const char *isa;              /* "ref", "avx2", "avx512", "neon" */
    unsigned n_threads;           /* at least 1 */
    double least_ns;              /* of work for each thread more than one; 0: all of them always, for tests */
    struct ns_product_time *time; /* borrowed; NULL: nobody asks */
};
/* The best table that the bits allow. cpu 0 gives the reference. */
struct ns_kernels ns_kernels_select(uint32_t cpu, unsigned n_threads);
/* As many of k's threads as work_ns, roughly the time of one fast core, is worth: each has to be woken. For ns_parallel. */
unsigned ns_threads_for(const struct ns_kernels *k, double work_ns);
/* Feature bits for --isa NAME, narrowed to what have offers; false: unknown name or not on this processor. */
bool ns_kernels_isa_bits(const char *name, uint32_t have, uint32_t *bits);

/* ---- weights and rows ------------------------------------------------------------------------------------------------- */

enum ns_weight_type {
    NS_W_BF16,
    NS_W_F32,
    NS_W_MXFP4 /* data: cols/2 bytes a row, low nibble first; scale: cols/32 E8M0 bytes a row; cols % 32 == 0 */
};

/* A matrix or a run of its rows, row-major [rows][cols], rows contiguous. Borrowed. No alignment is assumed. */
struct ns_weights {
    enum ns_weight_type type;
    const void *data;
    const uint8_t *scale; /* MXFP4 only */
    size_t rows, cols;
};

/* Activation rows packed once for many products with weights of one type (the layout belongs to the ISA). */
size_t ns_pack_bytes(const struct ns_kernels *k, enum ns_weight_type type, size_t n_rows, size_t cols);
/* packed <- rows x[index[i]] (or x[i] when index is NULL), i < n_rows; x [..][cols] with row stride ld_x floats.
 * packed is 64-byte aligned. Threads inside. */
void ns_pack_rows(const struct ns_kernels *k, enum ns_weight_type type, void *packed, const float *x, size_t ld_x,
                  const uint32_t *index, size_t n_rows, size_t cols);

enum ns_store_mode { NS_SET, NS_ADD }; /* y = v, or y = y + v (one addition after the whole dot) */

/* y[i][o] (=|+=) dot(w[o], x[i]) for all packed rows i and all rows o of w. y [n_rows][..] with stride ld_y; the column
 * o of y is the row o of w (pass y + first for a tile). scratch: ns_gemm_scratch bytes, 64-byte aligned. Threads over
 * weight rows inside; bits depend on nothing but w and x. */
size_t ns_gemm_scratch(const struct ns_kernels *k, enum ns_weight_type type, size_t n_rows, size_t w_rows, size_t cols);
void ns_gemm(const struct ns_kernels *k, float *y, size_t ld_y, const struct ns_weights *w, const void *packed,
             size_t n_rows, enum ns_store_mode mode, void *scratch);

/* True when every scale byte is 1..252 or decodes to finite weights only; false: the expert is corrupt (scale 255, or
 * an infinite weight under 253 and 254). Scale 0 is 2^-127 and fine. */
bool ns_mxfp4_sound(const struct ns_kernels *k, const struct ns_weights *w);
/* out[cols] = the exact f32 weights of row r, any type. */
void ns_decode_row(const struct ns_weights *w, size_t r, float *out);

/* Experts of one layer, each for the rows routed to it. For job 0, 1, ... and each of its rows i < n:
 *   h = act(gate z, up z);  y = down h;  acc[index[i]][o] = fma(weight[i], y[o], acc[index[i]][o])
 * where z is z[index[i]]. z [..][gate.cols] stride ld_z; acc [..][down.rows] stride ld_acc. A row's additions come in the
 * order of the jobs; so jobs in ascending id of experts, over one call or several, give the contract's expert sum.
 * finite[i] (may be NULL) is set to 0 when y has a non-finite value; such a value is not added, nor is anything of a job
 * whose gate or up is not sound. Threads inside. */
struct ns_act {
    bool situ;
    float beta, linear_beta; /* linear_beta 0: up not capped */
};

struct ns_expert_weights {
    struct ns_weights gate, up, down;
};

struct ns_expert_job {
    struct ns_expert_weights w; /* shapes and types are the same in all jobs of a call */
    const uint32_t *index;      /* [n], each row once */
    const float *weight;
    uint8_t *finite;
    size_t n;
    bool sound; /* written: ns_mxfp4_sound of the three; true for other types and without rows */
};

/* Bytes for up to n_jobs jobs with up to n_rows rows altogether; w gives types and shapes. 64-byte aligned. */
size_t ns_experts_scratch(const struct ns_kernels *k, const struct ns_expert_weights *w, size_t n_jobs, size_t n_rows);
void ns_experts(const struct ns_kernels *k, struct ns_expert_job *job, size_t n_jobs, const struct ns_act *act,
                const float *z, size_t ld_z, float *acc, size_t ld_acc, void *scratch);

/* ---- row-wise vectors (threads over rows inside; all strides in floats) ------------------------------------------------ */

/* y = x / sqrt(mean(x^2) + eps) * w: sum in 16 lanes; r = 1 / sqrtf(sum / n + eps); y = (x * r) * w. y may be x. */
void ns_rmsnorm(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, const float *w,
                size_t n_rows, size_t n, float eps);
/* Head-wise: x [n_rows][n_heads*d]; y = x / sqrt(sum(x^2) + 1e-6) * scale per head of d. In place allowed. */
void ns_l2norm_heads(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, size_t n_rows,
                     size_t n_heads, size_t d, float scale);
/* Head-wise: y = (rmsnorm(o; w, eps)) * sigmoid(gate); o, gate, y [n_rows][n_heads*d]; w [d]. y may be o. */
void ns_gated_norm_heads(const struct ns_kernels *k, float *y, size_t ld_y, const float *o, size_t ld_o,
                         const float *gate, size_t ld_gate, const float *w, size_t n_rows, size_t n_heads, size_t d,
                         float eps);
/* y = x * sigmoid(gate), elementwise. */
void ns_sigmoid_gate(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, const float *gate,
                     size_t ld_gate, size_t n_rows, size_t n);
/* h = act(g, u), elementwise; h may be g. */
void ns_activate(const struct ns_kernels *k, float *h, size_t ld_h, const float *g, size_t ld_g, const float *u,
                 size_t ld_u, size_t n_rows, size_t n, const struct ns_act *act);
/* y = a + b elementwise; y may be a. */
void ns_add_rows(const struct ns_kernels *k, float *y, size_t ld_y, const float *a, size_t ld_a, const float *b,
                 size_t ld_b, size_t n_rows, size_t n);
/* ok[i] = 0 when row i has a non-finite value (other entries are left alone). */
void ns_finite_rows(const struct ns_kernels *k, uint8_t *ok, const float *x, size_t ld_x, size_t n_rows, size_t n);
/* f32 from stored values, exact. */
void ns_widen_bf16(float *out, const uint8_t *bf16, size_t n);

/* Attention residual: sources v[0..n_src-1] are pointers to row 0 of each source, all with stride ld (the last one is
 * the current accumulator, with stride ld_x). w = norm * proj folded. s_b = dot(v_b, w) * r_b in the order of the ref
 * file, p = softmax(s), y = chain over b of p_b v_b. y overlaps none of them. n_src <= 65. */
void ns_attn_res_mix(const struct ns_kernels *k, float *y, size_t ld_y, const float *const *block, size_t ld,
                     size_t n_blocks, const float *x, size_t ld_x, const float *w, size_t n_rows, size_t d, float eps);

/* ---- KDA --------------------------------------------------------------------------------------------------------------- */

/* Depthwise causal convolution of kernel size n_taps (2..8) and silu over n consecutive positions of one sequence:
 * y[t][c] = silu(sum_j w[c][j] * in[t - (n_taps-1) + j][c]), the sum an fma chain in rising j from +0.
 * history [n_taps-1][n_ch], oldest first, is what came before x[0] and is replaced by what comes before x[n]
 * (history may have its own row stride ld_h). y overlaps neither. Single-threaded: callers split channels. */
void ns_short_conv(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, const float *w,
                   size_t n_taps, float *history, size_t ld_h, size_t n, size_t n_ch);
/* alpha = exp(g): bound given: g = bound * sigmoid(a * (f + dt)); else g = -a * softplus(f + dt).
 * a = exp(A_log[h]) precomputed [n_heads] by ns_vm_exp; f, alpha [n_rows][n_heads*d]; dt [n_heads*d]. In place ok. */
void ns_kda_decay(const struct ns_kernels *k, float *alpha, size_t ld_alpha, const float *f, size_t ld_f,
                  const float *dt, const float *a, bool has_bound, float bound, size_t n_rows, size_t n_heads,
                  size_t d);
/* y = sigmoid(x), for beta. */
void ns_sigmoid_rows(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, size_t n_rows,
                     size_t n);
/* One head, n consecutive positions, one position at a time. state [d][d] (key i, value j):
 *   S[i][j] = S[i][j] * alpha[i];  u[j] = chain_i fma(k[i], S[i][j], u);  c[j] = beta * (v[j] - u[j]);
 *   S[i][j] = fma(k[i], c[j], S[i][j]);  o[j] = chain_i fma(q[i], S[i][j], o).
 * q, k_, v, alpha, o: rows of d with strides; beta with stride ld_beta. o may be v. d % 4 == 0. scratch: 4*d floats.
 * Single-threaded. */
void ns_kda_run(const struct ns_kernels *k, float *state, float *o, size_t ld_o, const float *q, size_t ld_q,
                const float *key, size_t ld_k, const float *v, size_t ld_v, const float *alpha, size_t ld_alpha,
                const float *beta, size_t ld_beta, size_t n, size_t d, float *scratch);

/* ---- full attention, absorbed ------------------------------------------------------------------------------------------ */

/* Cached positions as runs: run r holds n positions, each a row of d_key floats (latent first, then the shared rope
 * key) with stride ld. Runs follow each other in rising position from 0. */
struct ns_key_run {
    const float *rows;
    size_t ld, n;
};

/* For each query i < n_q (all of one sequence), over positions 0 .. n_visible[i]-1:
 *   s = scale * dot16(q[i], key);  m = max s;  p = exp(s - m);  z = 16-lane sum of p (lane = position mod 16);
 *   out[i][c] = (chain over positions of fma(p, key[c], .)) / z    for c < d_value (the first d_value floats of a row).
 * q [n_q][d_key] stride ld_q, out [n_q][d_value] stride ld_out. scratch: ns_attend_scratch bytes. Single-threaded. */
size_t ns_attend_scratch(const struct ns_kernels *k, size_t n_q, size_t n_positions, size_t d_key);
void ns_attend(const struct ns_kernels *k, float *out, size_t ld_out, const float *q, size_t ld_q, size_t n_q,
               const uint32_t *n_visible, const struct ns_key_run *span, size_t n_spans, size_t d_key, size_t d_value,
               float scale, void *scratch);
/* out[c][r] = w[r][c], bf16 (for products with a transposed tile). */
void ns_transpose_bf16(uint16_t *out, const uint16_t *w, size_t rows, size_t cols);

/* ---- router and head ---------------------------------------------------------------------------------------------------- */

struct ns_router {
    size_t n_experts, top_k, n_groups, topk_groups;
    bool renormalize;
    float scale;
    const float *bias; /* [n_experts] selection only */
};

/* logits [n_rows][n_experts] (overwritten by sigmoid scores). For each row: ids [top_k] ascending, weights [top_k] of
 * the same order. The sum for renormalising is a chain in falling biased score (selection order). Ties: larger score,
 * then lower id. ok[i] = 0 when a biased score is not finite (its ids are then 0..top_k-1, weights 0). */
void ns_route(const struct ns_kernels *k, uint32_t *ids, float *weights, float *logits, size_t ld, size_t n_rows,
              const struct ns_router *router, uint8_t *ok);

/* Log-softmax over the vocabulary in blocks of NS_HEAD_BLOCK logits (the last one shorter), in rising order, whatever
 * tiles they arrive in: per block m_b = max, z_b = 16-lane sum of exp(l - m_b). At the end m = max m_b and
 * z = chain over b of fma(z_b, exp(m_b - m), z); logprob(l) = (l - m) - log(z). */
#define NS_HEAD_BLOCK 1024
#define NS_TOP_MAX    20

struct ns_head_row { /* running state of one row of logits */
    uint32_t n_top;  /* how many best to keep, 1 .. NS_TOP_MAX */
    uint32_t n_kept;
    uint32_t top_id[NS_TOP_MAX]; /* falling logit, ties lower id first */
    float top_logit[NS_TOP_MAX];
    bool finite;
};

/* logits [n_rows][n] for vocabulary entries first .. first+n-1; first is a multiple of NS_HEAD_BLOCK and n is too unless
 * it ends the vocabulary. block_max, block_sum [n_rows][ld_b]: entry first/NS_HEAD_BLOCK.. are filled. */
void ns_head_blocks(const struct ns_kernels *k, struct ns_head_row *row, float *block_max, float *block_sum,
                    size_t ld_b, const float *logits, size_t ld, size_t n_rows, size_t first, size_t n);
/* *max and *log_sum from n_blocks entries. */
void ns_head_finish(const struct ns_kernels *k, const float *block_max, const float *block_sum, size_t n_blocks,
                    float *max, float *log_sum);

/* ---- measuring (measure.c) --------------------------------------------------------------------------------------------- */

/* One figure. Rates of the machine itself have rows 0 and are called fma_peak and memory_read. The shares are medians of
 * ratios to a peak or a plain read taken right before each run, so a clock or a neighbour that changes cancels out. */
struct ns_rate {
    const char *kernel, *isa; /* static storage */
    size_t rows;
    unsigned threads;
    double gfma_s, share_of_peak;    /* multiply-adds that the definition demands; 0: not counted in them */
    double gb_s, share_of_bandwidth; /* bytes that must move at least once */
    double row_ns;                   /* time of one row */
};

/* false stops the measuring, which then succeeds */
typedef bool (*ns_rate_fn)(void *arg, const struct ns_rate *rate);

/* A block like those a wave works in, aligned to 64 bytes or more; ns_budget_give gives it back. */
typedef void *(*ns_take_fn)(struct ns_budget *budget, size_t bytes, struct ns_error *err);

struct ns_measure {
    uint32_t cpu;       /* features; every instruction set below them is measured */
    const char *isa;    /* this one only, or NULL */
    const char *kernel; /* kernels whose name contains this, or NULL */
    unsigned n_threads; /* measured with 1 and with this many */
    ns_take_fn take;
};
/* Measures the machine, then every kernel in the shapes of the released model with 1, 4, 16, 64, 256 and 1024 rows; the
 * reference up to 16 rows of its larger kernels. About 0.7 GB from budget, by what->take. Errors: NS_BUDGET; NS_USAGE when
 * no kernel has such a name. */
NS_MUST_CHECK enum ns_code ns_kernels_measure(const struct ns_measure *what, struct ns_budget *budget, ns_rate_fn each,
                                              void *arg, struct ns_error *err);

/* What one kernel takes of a wave at the proportions of the released model, every row asked for logits. */
struct ns_wave_part {
    const char *kernel, *isa;
    size_t rows, measured_rows; /* of the wave; of the runs that were timed */
    unsigned threads;
    double row_ns, share; /* of one row of the wave: its time in this kernel, and what part of all its time that is */
    bool product;
    size_t context, context_at_limit; /* positions attended to, and with how many the share is 5 %; else 0 */
};

typedef bool (*ns_wave_part_fn)(void *arg, const struct ns_wave_part *part);
/* Every part of waves of 256 and 1024 rows, with what->n_threads and one instruction set: what->isa, else the best; not
 * the reference. what->kernel is not asked. Errors: NS_BUDGET, NS_USAGE. */
NS_MUST_CHECK enum ns_code ns_kernels_measure_wave(const struct ns_measure *what, struct ns_budget *budget,
                                                   ns_wave_part_fn each, void *arg, struct ns_error *err);
/* The peak at this moment, with k's instruction set and threads, in multiply-adds a nanosecond: some milliseconds. */
double ns_kernels_peak(const struct ns_kernels *k);

/* ---- vmath (vmath.c): the scalar definitions, stated worst error in ulp in the .c file --------------------------------- */

float ns_vm_exp(float x);
float ns_vm_log(float x);
float ns_vm_log1p(float x);
float ns_vm_sigmoid(float x);
float ns_vm_tanh(float x);
float ns_vm_softplus(float x);
float ns_vm_silu(float x);
float ns_dot_f32(const float *a, const float *b, size_t n); /* the canonical dot product, reference form */

#endif
