/* checkkernels.c - every kernel of every instruction set against the reference, bit for bit.
 *
 * WHAT   Each case draws shapes, strides, offsets, threads and a class of data, runs the reference and the form under test
 *        from the same inputs into buffers with the same fill, and compares the whole buffers: a guard that was written is
 *        a difference too. Inputs end where their allocation ends, so a sanitizer sees a read past them.
 * DATA   ordinary; subnormal; huge (sums overflow); signed zeros and underflow to -0; any bit pattern, infinities and
 *        not-a-numbers among them. Not-a-number is compared as a class: payloads are not promised.
 * FAULTS the_data_tells_faults_apart plants mistakes in the definition and demands that the data shows them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "cpu_features.h"

/* ---- numbers ------------------------------------------------------------------------------------------------------------ */

static uint64_t seed = 88172645463325252u;

static uint32_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}

static size_t between(size_t low, size_t high)
{
    return low + draw() % (high - low + 1);
}

enum data { ORDINARY, SUBNORMAL, HUGE_VALUES, ZEROS, WILD, DATA_CLASSES };

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float value(enum data class)
{
    uint32_t u = draw();
    switch (class) {
    case SUBNORMAL:
        return float_of((u & 0x807fffffu) | (u % 5 == 0 ? 0x3f800000u : 0));
    case HUGE_VALUES:
        return float_of((u & 0x807fffffu) | (0x72u + u % 13) << 24);
    case ZEROS:
        return u % 3 == 0 ? 0.0f : u % 3 == 1 ? -0.0f : float_of(0x80000001u | (u & 0x1fffffu));
    case WILD:
        return u % 11 == 0 ? INFINITY : u % 13 == 0 ? NAN : float_of(draw());
    default:
        return (float)(u % 65536) / 16384.0f - 2.0f;
    }
}

/* n floats that end with their allocation, at an odd place; freed by drop_all */
static void *kept[128];
static size_t n_kept;

static void *keep(size_t bytes, size_t align_off)
{
    assert_true(n_kept < NS_COUNT(kept));
    uint8_t *p = malloc(bytes + align_off + 1);
    assert_non_null(p);
    kept[n_kept++] = p;
    p = realloc(p, bytes + align_off ? bytes + align_off : 1);
    kept[n_kept - 1] = p;
    return p + align_off;
}

static void *keep_aligned(size_t bytes)
{
    assert_true(n_kept < NS_COUNT(kept));
    kept[n_kept] = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(kept[n_kept]);
    memset(kept[n_kept], 0xA5, (bytes + 63) / 64 * 64 + 64);
    return kept[n_kept++];
}

static void drop_all(void)
{
    while (n_kept > 0)
        free(kept[--n_kept]);
}

static float *floats(enum data class, size_t n)
{
    float *p = keep(n * sizeof(float), 4 * between(0, 3));
    for (size_t i = 0; i < n; i++)
        p[i] = value(class);
    return p;
}

/* an output: the same fill for both, guards included */
static float *output(size_t n)
{
    float *p = keep(n * sizeof(float), 4 * between(0, 3));
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(i % 97) + 0.5f;
    return p;
}

static float *copy_of(const float *from, size_t n)
{
    float *p = keep(n * sizeof(float), 4 * between(0, 3));
    memcpy(p, from, n * sizeof(float));
    return p;
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static size_t differing(const float *a, const float *b, size_t n)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += !same(a[i], b[i]);
    return bad;
}

static const char *under_test; /* instruction set */

static void equal(const char *what, const float *want, const float *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same(want[i], got[i]))
            fail_msg("%s %s: [%zu] of %zu: reference %a, got %a (%zu differ)", under_test, what, i, n, (double)want[i],
                     (double)got[i], differing(want, got, n));
}

/* ---- the two sides --------------------------------------------------------------------------------------------------------- */

static struct ns_kernels ref, isa;

static void choose_threads(void)
{
    isa.n_threads = (unsigned)between(1, 4);
    isa.least_ns = 0; /* all of them, for a few rows too */
    ref.n_threads = 1;
}

/* runs test for every instruction set but the reference that this processor and this build have */
static void each_isa(void (*test)(void))
{
    static const char *const names[] = {"avx2", "avx512", "neon"};
    size_t n = 0;
    ref = ns_kernels_select(0, 1);
    for (size_t i = 0; i < NS_COUNT(names); i++) {
        uint32_t bits;
        if (!ns_kernels_isa_bits(names[i], cpu_features(), &bits))
            continue;
        isa = ns_kernels_select(bits, 1);
        assert_string_equal(isa.isa, names[i]);
        under_test = names[i];
        test();
        n++;
    }
    if (n == 0)
        print_message("NOTHING COMPARED: this processor or build has the reference only\n");
}

/* ---- products ----------------------------------------------------------------------------------------------------------------- */

static struct ns_weights weights(enum ns_weight_type type, enum data class, size_t rows, size_t cols)
{
    struct ns_weights w = {type, NULL, NULL, rows, cols};
    if (type == NS_W_F32) {
        w.data = floats(class, rows * cols);
    } else if (type == NS_W_BF16) {
        uint8_t *p = keep(rows * cols * 2, 2 * between(0, 7)); /* shards promise no alignment, bf16 rows keep theirs */
        for (size_t i = 0; i < rows * cols; i++) {
            float f = value(class);
            memcpy(p + 2 * i, (const uint8_t *)&f + 2, 2);
        }
        w.data = p;
    } else {
        uint8_t *p = keep(rows * cols / 2, between(0, 7)), *s = keep(rows * cols / 32, between(0, 7));
        for (size_t i = 0; i < rows * cols / 2; i++)
            p[i] = class == ZEROS ? (uint8_t)(draw() & 0x99) : (uint8_t)draw();
        for (size_t i = 0; i < rows * cols / 32; i++)
            s[i] = (uint8_t)(class == ORDINARY      ? 118 + draw() % 8
                             : class == SUBNORMAL   ? draw() % 4
                             : class == HUGE_VALUES ? 240 + draw() % 13
                             : class == ZEROS       ? 1 + draw() % 4
                                                    : draw());
        w.data = p;
        w.scale = s;
    }
    return w;
}

static void product(const struct ns_kernels *k, float *y, size_t ld_y, const struct ns_weights *w, const float *x,
                    size_t ld_x, const uint32_t *index, size_t n_rows, enum ns_store_mode mode)
{
    void *packed = keep_aligned(ns_pack_bytes(k, w->type, n_rows, w->cols));
    void *scratch = keep_aligned(ns_gemm_scratch(k, w->type, n_rows, w->rows, w->cols));
    ns_pack_rows(k, w->type, packed, x, ld_x, index, n_rows, w->cols);
    ns_gemm(k, y, ld_y, w, packed, n_rows, mode, scratch);
}

static void gemm_case(enum ns_weight_type type, size_t n_rows, size_t w_rows, size_t cols)
{
    enum data class = draw() % DATA_CLASSES;
    enum ns_store_mode mode = draw() % 2 ? NS_ADD : NS_SET;
    size_t ld_x = cols + between(0, 5), ld_y = w_rows + between(0, 5), n_source = n_rows + between(0, 3);
    choose_threads();
    struct ns_weights w = weights(type, class, w_rows, cols);
    float *x = floats(draw() % 3 ? class : ORDINARY, n_source * ld_x);
    uint32_t *index = keep(n_rows * sizeof *index, 0);
    for (size_t i = 0; i < n_rows; i++)
        index[i] = draw() % (uint32_t)n_source;
    const uint32_t *gather = draw() % 2 ? index : NULL;
    float *want = output(n_rows * ld_y), *got = output(n_rows * ld_y);
    product(&ref, want, ld_y, &w, x, ld_x, gather, n_rows, mode);
    product(&isa, got, ld_y, &w, x, ld_x, gather, n_rows, mode);
    char what[160];
    snprintf(what, sizeof what, "gemm type %d rows %zu, %zu x %zu, data %d, mode %d, threads %u", (int)type, n_rows,
             w_rows, cols, (int)class, (int)mode, isa.n_threads);
    equal(what, want, got, n_rows * ld_y);
    drop_all();
}

static void gemm_cases(void)
{
    static const size_t many[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 26, 33, 66, 67, 71};
    for (size_t cols = 1; cols <= 200; cols++)
        for (size_t i = 0; i < 8; i++) {
            gemm_case(NS_W_BF16, many[draw() % NS_COUNT(many)], between(1, 13), cols);
            gemm_case(NS_W_F32, many[draw() % NS_COUNT(many)], between(1, 13), cols);
            if (cols % 8 == 0)
                gemm_case(NS_W_MXFP4, many[draw() % NS_COUNT(many)], between(1, 13), 32 * (1 + cols % 10));
        }
    for (size_t i = 0; i < NS_COUNT(many); i++) { /* chunks, K blocks, every tile shape */
        gemm_case(NS_W_BF16, many[i], 101, 2100 + draw() % 40);
        gemm_case(NS_W_F32, many[i], 21, 1024 + draw() % 40);
        gemm_case(NS_W_MXFP4, many[i], 141, 224);
        gemm_case(NS_W_MXFP4, many[i], 64, 3072);
    }
    gemm_case(NS_W_BF16, 140, 37, 1100);
    gemm_case(NS_W_MXFP4, 140, 37, 96);
}

static void gemm_matches(void **state)
{
    (void)state;
    each_isa(gemm_cases);
}

/* one group of 32 under every scale byte */
static void scale_cases(void)
{
    for (size_t s = 0; s < 256; s++)
        for (size_t n_rows = 1; n_rows < 11; n_rows += 3) {
            struct ns_weights w = weights(NS_W_MXFP4, ORDINARY, 8, 64);
            uint8_t *scale = keep(16, 0);
            memset(scale, (int)s, 16);
            w.scale = scale;
            float *x = floats(s < 64 ? HUGE_VALUES : s > 190 ? SUBNORMAL : ORDINARY, n_rows * 64);
            float *want = output(n_rows * 8), *got = output(n_rows * 8);
            product(&ref, want, 8, &w, x, 64, NULL, n_rows, NS_SET);
            product(&isa, got, 8, &w, x, 64, NULL, n_rows, NS_SET);
            equal("every scale", want, got, n_rows * 8);
            drop_all();
        }
}

static void every_scale_matches(void **state)
{
    (void)state;
    each_isa(scale_cases);
}

/* Several experts in one call with some threads, against one after the other with one thread and the reference: every
 * way of cutting gives the same sums. Rows have several experts, each row once in each. */
static void expert_case(enum ns_weight_type type, size_t n_jobs, size_t n, size_t d, size_t inner)
{
    enum { MOST = 8 };

    enum data class = draw() % 4 ? ORDINARY : draw() % DATA_CLASSES;
    size_t n_source = n + 3, ld_z = d + between(0, 3), ld_acc = d + between(0, 3), n_rows = 0;
    choose_threads();
    struct ns_expert_job want_job[MOST], got_job[MOST];
    struct ns_act act = {draw() % 2, 4.0f, draw() % 2 ? 25.0f : 0.0f};
    float *z = floats(class, n_source * ld_z);
    float *want = output(n_source * ld_acc), *got = output(n_source * ld_acc);
    assert_true(n_jobs <= MOST);
    for (size_t j = 0; j < n_jobs; j++) {
        struct ns_expert_job job = {
            .w = {weights(type, class, inner, d), weights(type, class, inner, d), weights(type, class, d, inner)},
            .n = j == 0 ? n : between(0, n)};
        uint32_t *index = keep((job.n + 1) * sizeof *index, 0);
        size_t first = between(0, n_source - job.n);
        for (size_t i = 0; i < job.n; i++) /* distinct rows, as a router gives them; not always ascending */
            index[i] = (uint32_t)(j % 2 ? first + job.n - 1 - i : first + i);
        job.index = index;
        job.weight = floats(ORDINARY, job.n + 1);
        want_job[j] = got_job[j] = job;
        want_job[j].finite = memset(keep(job.n + 1, 0), 1, job.n);
        got_job[j].finite = memset(keep(job.n + 1, 0), 1, job.n);
        ns_experts(&ref, &want_job[j], 1, &act, z, ld_z, want, ld_acc,
                   keep_aligned(ns_experts_scratch(&ref, &job.w, 1, job.n)));
        n_rows += job.n;
    }
    ns_experts(&isa, got_job, n_jobs, &act, z, ld_z, got, ld_acc,
               keep_aligned(ns_experts_scratch(&isa, &got_job->w, n_jobs, n_rows)));
    equal("expert", want, got, n_source * ld_acc);
    for (size_t j = 0; j < n_jobs; j++) {
        assert_int_equal(want_job[j].sound, got_job[j].sound);
        assert_memory_equal(want_job[j].finite, got_job[j].finite, got_job[j].n);
    }
    drop_all();
}

static void expert_cases(void)
{
    for (size_t n = 1; n <= 34; n++) {
        expert_case(NS_W_MXFP4, between(1, 8), n, 32 * between(1, 4), 32 * between(1, 5));
        expert_case(NS_W_BF16, between(1, 3), n, between(1, 70), between(1, 150));
    }
    expert_case(NS_W_MXFP4, 1, 257, 32, 64);
    expert_case(NS_W_MXFP4, 8, 257, 32, 64);
    expert_case(NS_W_BF16, 1, 300, 17, 70);
    expert_case(NS_W_BF16, 5, 300, 17, 70);
}

static void expert_matches(void **state)
{
    (void)state;
    each_isa(expert_cases);
}

/* ---- rows ---------------------------------------------------------------------------------------------------------------------- */

/* one call of every row-wise kernel with rows of n; heads of n */
static void rows_case(size_t n)
{
    enum data class = draw() % DATA_CLASSES;
    size_t rows = between(1, 5), heads = between(1, 3), wide = heads * n;
    size_t ld = wide + between(0, 4), total = rows * ld;
    choose_threads();
    float *x = floats(class, total), *g = floats(class, total), *w = floats(class, wide), *a = floats(ORDINARY, heads);
    float *want = output(total), *got = output(total);
    struct ns_act silu = {false, 0, 0}, situ = {true, 4.0f, draw() % 2 ? 25.0f : 0.0f};
    bool bounded = draw() % 2;
#define BOTH(what, call)                                                                                               \
    do {                                                                                                               \
        const struct ns_kernels *k = &ref;                                                                             \
        float *y = want;                                                                                               \
        call;                                                                                                          \
        k = &isa;                                                                                                      \
        y = got;                                                                                                       \
        call;                                                                                                          \
        equal(what, want, got, total);                                                                                 \
    } while (0)
    BOTH("rmsnorm", ns_rmsnorm(k, y, ld, x, ld, w, rows, n, 1e-5f));
    BOTH("l2norm", ns_l2norm_heads(k, y, ld, x, ld, rows, heads, n, 0.25f));
    BOTH("gated norm", ns_gated_norm_heads(k, y, ld, x, ld, g, ld, w, rows, heads, n, 1e-5f));
    BOTH("sigmoid", ns_sigmoid_rows(k, y, ld, x, ld, rows, n));
    BOTH("sigmoid gate", ns_sigmoid_gate(k, y, ld, x, ld, g, ld, rows, n));
    BOTH("silu", ns_activate(k, y, ld, x, ld, g, ld, rows, n, &silu));
    BOTH("situ", ns_activate(k, y, ld, x, ld, g, ld, rows, n, &situ));
    BOTH("add", ns_add_rows(k, y, ld, x, ld, g, ld, rows, n));
    BOTH("decay", ns_kda_decay(k, y, ld, x, ld, w, a, bounded, -5.0f, rows, heads, n));
    BOTH("in place", ns_rmsnorm(k, y, ld, y, ld, w, rows, n, 1e-6f));
    BOTH("in place", ns_activate(k, y, ld, y, ld, g, ld, rows, n, &situ));
#undef BOTH
    uint8_t ok_want[5] = {1, 1, 1, 1, 1}, ok_got[5] = {1, 1, 1, 1, 1};
    if (class != WILD && draw() % 2 && n > 0)
        x[(rows - 1) * ld + draw() % n] = draw() % 2 ? NAN : -INFINITY;
    ns_finite_rows(&ref, ok_want, x, ld, rows, n);
    ns_finite_rows(&isa, ok_got, x, ld, rows, n);
    assert_memory_equal(ok_want, ok_got, sizeof ok_got);
    drop_all();
}

static void mix_case(size_t n)
{
    enum data class = draw() % DATA_CLASSES;
    size_t rows = between(1, 4), n_blocks = draw() % 7 ? between(0, 9) : between(10, 20), ld = n + between(0, 4);
    const float *block[20];
    choose_threads();
    for (size_t b = 0; b < n_blocks; b++)
        block[b] = floats(class, rows * ld);
    float *x = floats(class, rows * ld), *w = floats(draw() % 2 ? class : ORDINARY, n);
    float *want = output(rows * ld), *got = output(rows * ld);
    ns_attn_res_mix(&ref, want, ld, block, ld, n_blocks, x, ld, w, rows, n, 1e-5f);
    ns_attn_res_mix(&isa, got, ld, block, ld, n_blocks, x, ld, w, rows, n, 1e-5f);
    equal("mix", want, got, rows * ld);
    ns_attn_res_mix(&isa, x, ld, block, ld, n_blocks, x, ld, w, rows, n, 1e-5f); /* over its last source */
    for (size_t i = 0; i < rows; i++)
        equal("mix in place", want + i * ld, x + i * ld, n);
    drop_all();
}

static void row_cases(void)
{
    for (size_t n = 1; n <= 200; n++)
        for (size_t i = 0; i < 4; i++) {
            rows_case(n);
            mix_case(n);
        }
    rows_case(4000);
    mix_case(4001);
}

static void rows_match(void **state)
{
    (void)state;
    each_isa(row_cases);
}

/* ---- KDA ----------------------------------------------------------------------------------------------------------------------- */

static void conv_case(size_t n_ch)
{
    enum data class = draw() % DATA_CLASSES;
    size_t taps = between(2, 8), n = between(1, 10), ld = n_ch + between(0, 4);
    float *x = floats(class, n * ld), *w = floats(class, n_ch * taps);
    float *history = floats(class, (taps - 1) * ld), *again = copy_of(history, (taps - 1) * ld);
    float *want = output(n * ld), *got = output(n * ld);
    ns_short_conv(&ref, want, ld, x, ld, w, taps, history, ld, n, n_ch);
    ns_short_conv(&isa, got, ld, x, ld, w, taps, again, ld, n, n_ch);
    equal("short conv", want, got, n * ld);
    equal("short conv history", history, again, (taps - 1) * ld);
    drop_all();
}

static void kda_case(size_t d, size_t n)
{
    enum data class = draw() % 2 ? ORDINARY : draw() % DATA_CLASSES;
    size_t ld = d + between(0, 4);
    float *q = floats(class, n * ld), *key = floats(class, n * ld), *alpha = floats(class, n * ld);
    float *beta = floats(ORDINARY, n * 3), *s_want = floats(class, d * d), *s_got = copy_of(s_want, d * d);
    float *v_want = floats(class, n * ld), *v_got = copy_of(v_want, n * ld), *scratch = output(4 * d);
    bool in_place = draw() % 2;
    float *want = in_place ? v_want : output(n * ld), *got = in_place ? v_got : output(n * ld);
    ns_kda_run(&ref, s_want, want, ld, q, ld, key, ld, v_want, ld, alpha, ld, beta, 3, n, d, scratch);
    ns_kda_run(&isa, s_got, got, ld, q, ld, key, ld, v_got, ld, alpha, ld, beta, 3, n, d, scratch);
    equal("kda o", want, got, n * ld);
    equal("kda state", s_want, s_got, d * d);
    drop_all();
}

/* one run of n positions is n runs of one */
static void kda_split_case(void)
{
    size_t d = 4 * between(1, 33), n = between(2, 9);
    float *q = floats(ORDINARY, n * d), *key = floats(ORDINARY, n * d), *alpha = floats(ORDINARY, n * d);
    float *beta = floats(ORDINARY, n), *v = floats(ORDINARY, n * d), *whole = output(n * d), *parts = output(n * d);
    float *s = floats(ORDINARY, d * d), *s2 = copy_of(s, d * d), *scratch = output(4 * d);
    ns_kda_run(&isa, s, whole, d, q, d, key, d, v, d, alpha, d, beta, 1, n, d, scratch);
    for (size_t t = 0; t < n; t++)
        ns_kda_run(&isa, s2, parts + t * d, d, q + t * d, d, key + t * d, d, v + t * d, d, alpha + t * d, d, beta + t,
                   1, 1, d, scratch);
    equal("kda in parts", whole, parts, n * d);
    equal("kda state in parts", s, s2, d * d);
    drop_all();
}

static void kda_cases(void)
{
    for (size_t n_ch = 1; n_ch <= 200; n_ch++)
        conv_case(n_ch);
    for (size_t d = 4; d <= 200; d += 4)
        for (size_t i = 0; i < 4; i++)
            kda_case(d, between(1, 6));
    for (size_t n = 1; n <= 20; n++)
        kda_case(128, n);
    kda_case(256, 4);
    kda_case(264, 3);
    for (size_t i = 0; i < 20; i++)
        kda_split_case();
}

static void kda_matches(void **state)
{
    (void)state;
    each_isa(kda_cases);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------ */

static void attend_case(size_t d_key, size_t positions)
{
    enum data class = draw() % 2 ? ORDINARY : draw() % DATA_CLASSES;
    size_t n_q = between(1, 30), d_value = between(1, d_key), ld_q = d_key + between(0, 3),
           ld_out = d_value + between(0, 3);
    struct ns_key_run span[8];
    size_t n_spans = 0;
    for (size_t at = 0; at < positions; n_spans++) { /* cut anywhere, empty runs included */
        size_t n = n_spans == 7 ? positions - at : draw() % 9 == 0 ? 0 : between(1, positions - at);
        size_t ld = d_key + between(0, 4);
        span[n_spans] = (struct ns_key_run){floats(class, n * ld), ld, n};
        at += n;
    }
    float *q = floats(class, n_q * ld_q), *want = output(n_q * ld_out), *got = output(n_q * ld_out);
    uint32_t *visible = keep(n_q * sizeof *visible, 0);
    bool causal = draw() % 2;
    for (size_t i = 0; i < n_q; i++)
        visible[i] =
            (uint32_t)(causal ? (positions > n_q ? positions - n_q : 0) + i % positions + 1 : between(1, positions));
    for (size_t i = 0; i < n_q; i++)
        visible[i] = visible[i] > positions ? (uint32_t)positions : visible[i];
    ns_attend(&ref, want, ld_out, q, ld_q, n_q, visible, span, n_spans, d_key, d_value, 0.1f,
              keep_aligned(ns_attend_scratch(&ref, n_q, positions, d_key)));
    ns_attend(&isa, got, ld_out, q, ld_q, n_q, visible, span, n_spans, d_key, d_value, 0.1f,
              keep_aligned(ns_attend_scratch(&isa, n_q, positions, d_key)));
    equal("attend", want, got, n_q * ld_out);
    drop_all();
}

static void attend_cases(void)
{
    for (size_t n = 1; n <= 200; n++) {
        attend_case(between(1, 40), n);
        attend_case(n, between(1, 40));
    }
    for (size_t i = 0; i < 6; i++)
        attend_case(576, between(100, 400));
}

static void attend_matches(void **state)
{
    (void)state;
    each_isa(attend_cases);
}

/* ---- router and head --------------------------------------------------------------------------------------------------------------- */

static void route_case(size_t n_experts)
{
    size_t rows = between(1, 4), groups = n_experts % 4 == 0 && draw() % 2 ? 4 : 1, ld = n_experts + 1;
    size_t open = groups == 4 ? between(1, 4) : 1, most = n_experts / groups * open;
    size_t top_k = between(1, most < 16 ? most : 16);
    enum data class = draw() % 5 ? ORDINARY : draw() % DATA_CLASSES;
    float *l_want = floats(class, rows * ld), *l_got = copy_of(l_want, rows * ld), *bias = floats(ORDINARY, n_experts);
    float *w_want = output(rows * top_k), *w_got = output(rows * top_k);
    uint32_t *id_want = keep(rows * top_k * 4, 0), *id_got = keep(rows * top_k * 4, 0);
    uint8_t ok_want[4] = {1, 1, 1, 1}, ok_got[4] = {1, 1, 1, 1};
    struct ns_router router = {n_experts, top_k, groups, open, draw() % 2, 2.5f, bias};
    choose_threads();
    ns_route(&ref, id_want, w_want, l_want, ld, rows, &router, ok_want);
    ns_route(&isa, id_got, w_got, l_got, ld, rows, &router, ok_got);
    equal("route weights", w_want, w_got, rows * top_k);
    equal("route scores", l_want, l_got, rows * ld);
    assert_memory_equal(id_want, id_got, rows * top_k * 4);
    assert_memory_equal(ok_want, ok_got, sizeof ok_got);
    drop_all();
}

static void head_case(size_t n)
{
    enum data class = draw() % 2 ? ORDINARY : draw() % DATA_CLASSES;
    size_t rows = between(1, 3), ld = n + between(0, 3), blocks = (n + NS_HEAD_BLOCK - 1) / NS_HEAD_BLOCK;
    float *logits = floats(class, rows * ld);
    float *max[2] = {output(rows * blocks), output(rows * blocks)},
          *sum[2] = {output(rows * blocks), output(rows * blocks)};
    struct ns_head_row row[2][3];
    memset(row, 0, sizeof row);
    choose_threads();
    for (size_t s = 0; s < 2; s++) {
        for (size_t i = 0; i < rows; i++)
            row[s][i] = (struct ns_head_row){.n_top = (uint32_t)(1 + i * 9), .finite = true};
        ns_head_blocks(s ? &isa : &ref, row[s], max[s], sum[s], blocks, logits, ld, rows, 0, n);
    }
    equal("head max", max[0], max[1], rows * blocks);
    equal("head sum", sum[0], sum[1], rows * blocks);
    for (size_t i = 0; i < rows; i++) {
        assert_int_equal(row[0][i].finite, row[1][i].finite);
        if (!row[0][i].finite)
            continue; /* the kept tokens mean nothing then */
        assert_int_equal(row[0][i].n_kept, row[1][i].n_kept);
        assert_memory_equal(row[0][i].top_id, row[1][i].top_id, sizeof row[0][i].top_id);
        equal("head top", row[0][i].top_logit, row[1][i].top_logit, row[0][i].n_kept);
    }
    drop_all();
}

static void head_cases(void)
{
    for (size_t n = 1; n <= 200; n++) {
        route_case(n);
        head_case(n);
    }
    for (size_t i = 0; i < 10; i++)
        head_case(between(1000, 5000));
    route_case(400);
}

static void router_and_head_match(void **state)
{
    (void)state;
    each_isa(head_cases);
}

/* ---- the check checked -------------------------------------------------------------------------------------------------------------- */

enum fault { FOLD_RISING, NOT_FUSED, TAIL_APART, NEGATIVE_ZERO_LOST, FAULTS };

static float faulty_dot(enum fault fault, const float *a, const float *b, size_t n)
{
    float lane[16] = {0}, apart = 0;
    size_t whole = fault == TAIL_APART ? n / 16 * 16 : n;
    for (size_t i = 0; i < whole; i++)
        lane[i % 16] = fault == NOT_FUSED ? a[i] * b[i] + lane[i % 16]
                                          : fmaf(fault == NEGATIVE_ZERO_LOST ? a[i] + 0.0f : a[i], b[i], lane[i % 16]);
    for (size_t i = whole; i < n; i++)
        apart = fmaf(a[i], b[i], apart);
    if (fault == FOLD_RISING) {
        for (size_t half = 1; half < 16; half *= 2)
            for (size_t l = 0; l < 16; l += 2 * half)
                lane[l] += lane[l + half];
    } else {
        for (size_t half = 8; half > 0; half /= 2)
            for (size_t l = 0; l < half; l++)
                lane[l] += lane[l + half];
    }
    return lane[0] + apart;
}

static void the_data_tells_faults_apart(void **state)
{
    (void)state;
    for (enum fault fault = 0; fault < FAULTS; fault++) {
        size_t seen = 0;
        for (size_t i = 0; i < 4000; i++) {
            size_t n = between(17, 100);
            enum data class = i % DATA_CLASSES;
            float *a = floats(class, n), *b = floats(class, n);
            if (class == ZEROS && i % 2) /* an accumulator that underflowed to -0 meets zeros */
                for (size_t j = 0; j < n; j++) {
                    a[j] = j < 16 ? -0x1p-149f : -0.0f;
                    b[j] = j < 16 ? 0x1p-149f : 1.0f;
                }
            seen += !same(faulty_dot(fault, a, b, n), ns_dot_f32(a, b, n));
            drop_all();
        }
        if (seen < 100)
            fail_msg("fault %d shows in %zu of 4000 products only", (int)fault, seen);
    }
}

static void a_written_guard_is_a_difference(void **state)
{
    (void)state;
    float *a = output(100), *b = output(100);
    assert_int_equal(differing(a, b, 100), 0);
    b[99] = nextafterf(b[99], 1000.0f);
    assert_int_equal(differing(a, b, 100), 1);
    a[3] = 0.0f;
    b[3] = -0.0f;
    assert_int_equal(differing(a, b, 100), 2);
    drop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_guard_is_a_difference),
        cmocka_unit_test(the_data_tells_faults_apart),
        cmocka_unit_test(gemm_matches),
        cmocka_unit_test(every_scale_matches),
        cmocka_unit_test(expert_matches),
        cmocka_unit_test(rows_match),
        cmocka_unit_test(kda_matches),
        cmocka_unit_test(attend_matches),
        cmocka_unit_test(router_and_head_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
