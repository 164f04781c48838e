/* subjects.c - what `bench kernels` runs: every kernel in the shapes of the released model, with weights that change from
 * run to run so that they come from memory as they do in a wave.
 * A run counts the multiply-adds that the definition demands and the bytes that must move at least once. */
#include "kernels/measure_impl.h"

#include <string.h>

#define EXPERT_CODES  ((size_t)3 * INNER * LATENT / 2)
#define EXPERT_SCALES ((size_t)3 * INNER * LATENT / 32)

enum { N_EXPERTS = 12 };

const size_t ns_bench_weight_bytes = (size_t)N_EXPERTS * 3 * INNER * LATENT / 2; /* 198 MB; bf16 takes 176 of it */
const size_t ns_bench_scale_bytes = (size_t)N_EXPERTS * 3 * INNER * LATENT / 32;
const size_t ns_bench_x_floats = (size_t)1024 * (WIDE + 64);

/* one expert of a call, as its weights lie in the bench */
static struct ns_expert_weights expert_at(const struct ns_bench *b, size_t i)
{
    size_t third = (size_t)INNER * LATENT;
    const uint8_t *codes = b->weights + i * EXPERT_CODES, *scales = b->scales + i * EXPERT_SCALES;
    return (struct ns_expert_weights){{NS_W_MXFP4, codes, scales, INNER, LATENT},
                                      {NS_W_MXFP4, codes + third / 2, scales + third / 32, INNER, LATENT},
                                      {NS_W_MXFP4, codes + third, scales + third / 16, LATENT, INNER}};
}

enum { MOST_ROWS = 1024 };

size_t ns_bench_scratch_bytes(const struct ns_bench *b)
{
    const size_t other = (size_t)96 << 20;
    const struct ns_expert_weights w = {{NS_W_MXFP4, NULL, NULL, INNER, LATENT},
                                        {NS_W_MXFP4, NULL, NULL, INNER, LATENT},
                                        {NS_W_MXFP4, NULL, NULL, LATENT, INNER}}; /* shapes alone count here */
    size_t experts = ns_experts_scratch(&b->k, &w, JOBS, MOST_ROWS);
    return experts > other ? experts : other;
}

/* ---- products ------------------------------------------------------------------------------------------------------------------ */

static struct ns_run product(struct ns_bench *b, struct ns_weights w)
{
    static const double bytes_of[] = {[NS_W_BF16] = 2, [NS_W_F32] = 4, [NS_W_MXFP4] = 17.0 / 32};
    size_t all = w.rows;
    if (b->few)
        w.rows = 256 / b->rows + 1;
    ns_pack_rows(&b->k, w.type, b->packed, b->x, w.cols, NULL, b->rows, w.cols);
    ns_gemm(&b->k, b->y, all, &w, b->packed, b->rows, NS_SET, b->scratch);
    double weights = (double)w.rows * (double)w.cols;
    return (struct ns_run){weights * (double)b->rows, weights * bytes_of[w.type]};
}

static struct ns_run bf16_dense(struct ns_bench *b)
{
    return product(b, (struct ns_weights){NS_W_BF16, b->weights, NULL, WIDE, HIDDEN});
}

static struct ns_run bf16_out(struct ns_bench *b)
{
    return product(b, (struct ns_weights){NS_W_BF16, b->weights, NULL, HIDDEN, WIDE});
}

static struct ns_run f32_product(struct ns_bench *b)
{
    const size_t bytes = sizeof(float) * EXPERTS * HIDDEN, turn = b->turn % (ns_bench_weight_bytes / bytes);
    return product(b, (struct ns_weights){NS_W_F32, b->weights + turn * bytes, NULL, EXPERTS, HIDDEN});
}

static struct ns_run mxfp4_product(struct ns_bench *b)
{
    size_t i = b->turn % N_EXPERTS;
    return product(b, (struct ns_weights){NS_W_MXFP4, b->weights + i * EXPERT_CODES, b->scales + i * EXPERT_SCALES,
                                          INNER, LATENT});
}

/* n_jobs experts in one call; they take the same rows. */
static struct ns_run run_experts(struct ns_bench *b, size_t n_jobs)
{
    struct ns_act act = {true, 4.0f, 25.0f};
    struct ns_expert_job job[JOBS];
    double all = 3.0 * INNER * LATENT * (double)n_jobs;
    for (uint32_t i = 0; i < b->rows; i++)
        b->index[i] = i;
    for (size_t j = 0; j < n_jobs; j++)
        job[j] = (struct ns_expert_job){
            .w = expert_at(b, (b->turn * n_jobs + j) % N_EXPERTS), .index = b->index, .weight = b->aux, .n = b->rows};
    ns_experts(&b->k, job, n_jobs, &act, b->x, LATENT, b->y, LATENT, b->scratch);
    return (struct ns_run){all * (double)b->rows, all * 17 / 32};
}

static struct ns_run mxfp4_expert(struct ns_bench *b)
{
    return run_experts(b, 1);
}

/* as a wave has them */
static struct ns_run mxfp4_experts(struct ns_bench *b)
{
    return run_experts(b, MOST_ROWS / b->rows < JOBS ? MOST_ROWS / b->rows : JOBS);
}

/* ---- recurrence and attention ---------------------------------------------------------------------------------------------------- */

struct heads_call {
    struct ns_bench *b;
    size_t n;
};

/* one sequence: every position of a head, heads over threads */
static void kda_heads(void *arg, size_t begin, size_t end, unsigned thread)
{
    (void)thread;
    struct heads_call *c = arg;
    struct ns_bench *b = c->b;
    float *states = b->scratch, work[4 * HEAD];
    const float *key = b->packed, *alpha = states + (size_t)HEADS * HEAD * HEAD;
    for (size_t h = begin; h < end; h++)
        ns_kda_run(&b->k, states + h * HEAD * HEAD, b->y + h * HEAD, WIDE, key + h * HEAD, WIDE, key + h * HEAD, WIDE,
                   b->x + h * HEAD, WIDE, alpha + h * HEAD, WIDE, alpha, HEADS, c->n, HEAD, work);
}

/* unit keys, and decays of 0.9 that also serve as beta, keep the state bounded */
static void prepare_kda(struct ns_bench *b)
{
    float *states = b->scratch, *alpha = states + (size_t)HEADS * HEAD * HEAD;
    memset(states, 0, sizeof *states * HEADS * HEAD * HEAD);
    for (size_t i = 0; i < b->rows * WIDE; i++)
        alpha[i] = 0.9f;
    ns_l2norm_heads(&b->k, b->packed, WIDE, b->x, WIDE, b->rows, HEADS, HEAD, 1.0f);
}

static struct ns_run kda_recurrence(struct ns_bench *b)
{
    struct heads_call c = {b, b->rows};
    double n = (double)HEADS * HEAD * HEAD;
    if (b->fresh)
        prepare_kda(b);
    b->fresh = false;
    ns_parallel(b->k.n_threads, HEADS, 4, kda_heads, &c);
    return (struct ns_run){3.0 * n * (double)b->rows, 8.0 * n};
}

static void attend_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct heads_call *c = arg;
    struct ns_bench *b = c->b;
    uint32_t visible[HEADS];
    struct ns_key_run keys = {b->aux, KEY, CONTEXT};
    size_t bytes = ns_round_up(ns_attend_scratch(&b->k, HEADS, CONTEXT, KEY), NS_ALIGN);
    for (size_t h = 0; h < HEADS; h++)
        visible[h] = CONTEXT;
    /* queries and outputs of a position lie head after head; what a thread puts out is written over by what it does next */
    float *out = b->y + thread % (ns_bench_x_floats / (HEADS * VALUE)) * HEADS * VALUE;
    for (size_t i = begin; i < end; i++)
        ns_attend(&b->k, out, VALUE, b->x, KEY, HEADS, visible, &keys, 1, KEY, VALUE, 0.07f,
                  (uint8_t *)b->scratch + thread * bytes);
}

static struct ns_run mla_attend(struct ns_bench *b)
{
    struct heads_call c = {b, 0};
    ns_parallel(b->k.n_threads, b->rows, 1, attend_rows, &c);
    double pairs = (double)b->rows * HEADS * CONTEXT;
    return (struct ns_run){pairs * (KEY + VALUE), 4.0 * CONTEXT * KEY};
}

static void conv_channels(void *arg, size_t begin, size_t end, unsigned thread)
{
    (void)thread;
    struct heads_call *c = arg;
    struct ns_bench *b = c->b;
    float *history = b->scratch;
    ns_short_conv(&b->k, b->y + begin, WIDE, b->x + begin, WIDE, b->aux + begin * 4, 4, history + begin, WIDE, c->n,
                  end - begin);
}

static struct ns_run short_conv(struct ns_bench *b)
{
    struct heads_call c = {b, b->rows};
    ns_parallel(ns_threads_for(&b->k, 2.5 * WIDE * (double)b->rows), WIDE, 1024, conv_channels, &c);
    return (struct ns_run){4.0 * WIDE * (double)b->rows, 8.0 * WIDE * (double)b->rows};
}

static struct ns_run kda_decay(struct ns_bench *b)
{
    ns_kda_decay(&b->k, b->y, WIDE, b->x, WIDE, b->aux, b->aux, true, -5.0f, b->rows, HEADS, HEAD);
    return (struct ns_run){0, 8.0 * WIDE * (double)b->rows};
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------ */

static struct ns_run rmsnorm(struct ns_bench *b)
{
    ns_rmsnorm(&b->k, b->y, HIDDEN, b->x, HIDDEN, b->aux, b->rows, HIDDEN, 1e-5f);
    return (struct ns_run){0, 8.0 * HIDDEN * (double)b->rows};
}

static struct ns_run gated_norm(struct ns_bench *b)
{
    ns_gated_norm_heads(&b->k, b->y, WIDE, b->x, WIDE, b->aux, WIDE, b->aux, b->rows, HEADS, HEAD, 1e-5f);
    return (struct ns_run){0, 12.0 * WIDE * (double)b->rows};
}

static struct ns_run attn_res_mix(struct ns_bench *b)
{
    const float *block[BLOCKS]; /* sources of their own, whose values do not matter: most from the weights */
    size_t size = b->rows * HIDDEN, in_weights = ns_bench_weight_bytes / (sizeof(float) * 1024 * HIDDEN);
    if (b->fresh)
        memcpy(b->packed, b->x, size * sizeof *b->x);
    b->fresh = false;
    for (size_t i = 0; i < BLOCKS; i++)
        block[i] = i < in_weights    ? (const float *)(const void *)b->weights + i * size
                   : i == in_weights ? b->packed
                                     : b->aux;
    ns_attn_res_mix(&b->k, b->y, HIDDEN, block, HIDDEN, BLOCKS, b->x, HIDDEN, b->aux, b->rows, HIDDEN, 1e-5f);
    return (struct ns_run){(3.0 * BLOCKS + 3) * (double)size, (4.0 * BLOCKS + 8) * (double)size};
}

static struct ns_run l2norm(struct ns_bench *b)
{
    ns_l2norm_heads(&b->k, b->y, WIDE, b->x, WIDE, b->rows, HEADS, HEAD, 1.0f);
    return (struct ns_run){0, 8.0 * WIDE * (double)b->rows};
}

static struct ns_run sigmoid_gate(struct ns_bench *b)
{
    ns_sigmoid_gate(&b->k, b->y, WIDE, b->x, WIDE, b->aux, WIDE, b->rows, WIDE);
    return (struct ns_run){0, 12.0 * WIDE * (double)b->rows};
}

static struct ns_run add_rows(struct ns_bench *b)
{
    ns_add_rows(&b->k, b->y, HIDDEN, b->x, HIDDEN, b->aux, HIDDEN, b->rows, HIDDEN);
    return (struct ns_run){0, 12.0 * HIDDEN * (double)b->rows};
}

static struct ns_run finite_rows(struct ns_bench *b)
{
    ns_finite_rows(&b->k, b->packed, b->x, HIDDEN, b->rows, HIDDEN);
    return (struct ns_run){0, 4.0 * HIDDEN * (double)b->rows};
}

static struct ns_run situ(struct ns_bench *b)
{
    struct ns_act act = {true, 4.0f, 25.0f};
    ns_activate(&b->k, b->y, INNER, b->x, INNER, b->aux, INNER, b->rows, INNER, &act);
    return (struct ns_run){0, 12.0 * INNER * (double)b->rows};
}

static struct ns_run router(struct ns_bench *b)
{
    float *weights = b->scratch;
    uint32_t *ids = (uint32_t *)b->packed;
    uint8_t *ok = (uint8_t *)(weights + b->rows * CHOSEN);
    struct ns_router r = {EXPERTS, CHOSEN, 1, 1, true, 1.0f, b->aux};
    memcpy(b->y, b->x + b->turn % 512, b->rows * EXPERTS * sizeof *b->y);
    ns_route(&b->k, ids, weights, b->y, EXPERTS, b->rows, &r, ok);
    return (struct ns_run){0, 4.0 * EXPERTS * (double)b->rows};
}

static struct ns_run log_softmax(struct ns_bench *b)
{
    struct ns_head_row *row = b->scratch;
    float *max = b->packed, *sum = b->y;
    for (size_t i = 0; i < b->rows; i++)
        row[i] = (struct ns_head_row){.n_top = 1, .finite = true};
    ns_head_blocks(&b->k, row, max, sum, VOCABULARY / NS_HEAD_BLOCK, b->x, VOCABULARY, b->rows, 0, VOCABULARY);
    return (struct ns_run){0, 4.0 * VOCABULARY * (double)b->rows};
}

const struct ns_subject ns_subjects[] = {
    {"bf16_dense", 1024, 16, bf16_dense},
    {"bf16_out", 1024, 16, bf16_out},
    {"f32_product", 1024, 16, f32_product},
    {"mxfp4_product", 1024, 16, mxfp4_product},
    {"mxfp4_expert", 1024, 1, mxfp4_expert},
    {"mxfp4_experts", 1024, 1, mxfp4_experts},
    {"kda_recurrence", 1024, 16, kda_recurrence},
    {"kda_decay", 1024, 16, kda_decay},
    {"short_conv", 1024, 16, short_conv},
    {"l2norm_heads", 1024, 16, l2norm},
    {"mla_attend", 1024, 1, mla_attend},
    {"attn_res_mix", 1024, 16, attn_res_mix},
    {"rmsnorm", 1024, 16, rmsnorm},
    {"gated_norm", 1024, 16, gated_norm},
    {"sigmoid_gate", 1024, 16, sigmoid_gate},
    {"add_rows", 1024, 16, add_rows},
    {"finite_rows", 1024, 16, finite_rows},
    {"situ_activation", 1024, 16, situ},
    {"router_topk", 1024, 16, router},
    {"log_softmax", 1024, 16, log_softmax},
};
const size_t ns_subject_count = NS_COUNT(ns_subjects);
