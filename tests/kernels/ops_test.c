/* ops_test.c - the operators against the vectors of tests/data/fixtures/ops.json and the small vectors of the model's
 * specification. Tolerance of a float32 implementation: rtol 2e-6, atol 1e-6; decoding is bit exact. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "json/json.h"
#include "kernels/kernels.h"

enum { MOST = 4096 };

struct fixture {
    struct ns_json *doc;
    const struct ns_json *ops;
    struct ns_kernels k;
};

static int open_fixture(void **state)
{
    FILE *f = fopen(NS_TEST_DATA "/fixtures/ops.json", "rb");
    assert_non_null(f);
    static char text[1 << 20];
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    struct fixture *s = test_malloc(sizeof *s);
    struct ns_error err = {0};
    if (ns_json_parse(text, n, &s->doc, &err) != NS_OK)
        fail_msg("%s", err.message);
    s->ops = ns_json_find(s->doc, "ops");
    s->k = ns_kernels_select(0, 2);
    *state = s;
    return 0;
}

static int close_fixture(void **state)
{
    struct fixture *s = *state;
    ns_json_free(s->doc);
    test_free(s);
    return 0;
}

static float number(const struct ns_json *v)
{
    double d = NAN;
    const char *s = NULL;
    size_t n = 0;
    if (ns_json_string(v, &s, &n))
        return strncmp(s, "inf", n) == 0 ? INFINITY : strncmp(s, "-inf", n) == 0 ? -INFINITY : NAN;
    assert_true(ns_json_number(v, &d));
    return (float)d;
}

static float scalar(const struct ns_json *c, const char *key)
{
    return number(ns_json_find(c, key));
}

static size_t count(const struct ns_json *c, const char *key)
{
    int64_t v = 0;
    assert_true(ns_json_int(ns_json_find(c, key), &v));
    return (size_t)v;
}

/* fills out[MOST], returns how many */
static size_t floats(const struct ns_json *c, const char *key, float *out)
{
    const struct ns_json *a = ns_json_find(c, key);
    size_t n = ns_json_count(a);
    assert_non_null(a);
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++)
        out[i] = number(ns_json_item(a, i));
    return n;
}

static const struct ns_json *cases(struct fixture *s, const char *op)
{
    const struct ns_json *c = ns_json_find(ns_json_find(s->ops, op), "cases");
    assert_true(ns_json_count(c) > 0);
    return c;
}

/* scale: 0 elementwise, else the tolerance is relative to it */
static void expect(const float *got, const struct ns_json *c, const char *key, bool of_largest)
{
    static float want[MOST];
    size_t n = floats(c, key, want);
    float largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(want[i]));
    for (size_t i = 0; i < n; i++) {
        float tolerance = 1e-6f + 2e-6f * (of_largest ? largest : fabsf(want[i]));
        if (!(fabsf(got[i] - want[i]) <= tolerance) && !(isinf(want[i]) && got[i] == want[i]))
            fail_msg("%s[%zu]: got %.9g, want %.9g", key, i, (double)got[i], (double)want[i]);
    }
}

static float x[MOST], w[MOST], g[MOST], y[MOST], v[MOST], s2[MOST];

static void rmsnorm_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "rmsnorm");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t n = floats(c, "x", x);
        floats(c, "w", w);
        ns_rmsnorm(&s->k, y, n, x, n, w, 1, n, scalar(c, "eps"));
        expect(y, c, "y", false);
        ns_rmsnorm(&s->k, x, n, x, n, w, 1, n, scalar(c, "eps")); /* in place */
        assert_memory_equal(x, y, n * sizeof *x);
    }
}

static void gated_norm_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "rmsnorm_gated");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t n = floats(c, "x", x);
        floats(c, "w", w);
        floats(c, "gate", g);
        ns_gated_norm_heads(&s->k, y, n, x, n, g, n, w, 1, count(c, "H"), count(c, "D"), scalar(c, "eps"));
        expect(y, c, "y", false);
    }
}

static void l2norm_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "l2norm");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t n = floats(c, "x", x);
        assert_true(scalar(c, "eps") == 1e-6f);
        ns_l2norm_heads(&s->k, y, n, x, n, 1, 1, n, 1.0f);
        expect(y, c, "y", false);
    }
}

static void short_conv_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "short_conv");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t n_ch = count(c, "C"), n = count(c, "T"), taps = count(c, "kernel");
        floats(c, "x", x);
        floats(c, "w", w);
        floats(c, "history_in", g);
        ns_short_conv(&s->k, y, n_ch, x, n_ch, w, taps, g, n_ch, n, n_ch);
        expect(y, c, "y", false);
        expect(g, c, "history_out", false);
    }
}

/* alpha [T][H*D] of a case with z, A_log, dt_bias */
static void decay_of(struct fixture *s, const struct ns_json *c, size_t rows, size_t heads, size_t d, float *alpha)
{
    static float z[MOST], a_log[MOST], dt[MOST];
    floats(c, "z", z);
    floats(c, "A_log", a_log);
    floats(c, "dt_bias", dt);
    for (size_t h = 0; h < heads; h++)
        a_log[h] = ns_vm_exp(a_log[h]);
    bool bounded = !ns_json_is_null(ns_json_find(c, "lower_bound"));
    ns_kda_decay(&s->k, alpha, heads * d, z, heads * d, dt, a_log, bounded, bounded ? scalar(c, "lower_bound") : 0,
                 rows, heads, d);
}

static void decay_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "kda_gate");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t rows = count(c, "T"), heads = count(c, "H"), d = count(c, "D");
        decay_of(s, c, rows, heads, d, y);
        if (ns_json_find(c, "decay")) {
            expect(y, c, "decay", false);
            continue;
        }
        size_t n = floats(c, "g", g);
        for (size_t j = 0; j < n; j++)
            assert_true(fabs((double)y[j] - exp((double)g[j])) <= 1e-6 + 2e-6 * exp((double)g[j]));
    }
}

/* One case of kda_step: T positions of H heads, normalised, decayed and run. */
static void kda_case(struct fixture *s, const struct ns_json *c)
{
    size_t n = count(c, "T"), heads = count(c, "H"), d = count(c, "D"), ld = heads * d;
    static float q[MOST], key[MOST], beta[MOST], alpha[MOST], scratch[MOST];
    floats(c, "q", q);
    floats(c, "k", key);
    floats(c, "v", v);
    floats(c, "beta_logit", beta);
    floats(c, "state_in", s2);
    decay_of(s, c, n, heads, d, alpha);
    ns_l2norm_heads(&s->k, q, ld, q, ld, n, heads, d, 1.0f / sqrtf((float)d));
    ns_l2norm_heads(&s->k, key, ld, key, ld, n, heads, d, 1.0f);
    ns_sigmoid_rows(&s->k, beta, heads, beta, heads, n, heads);
    for (size_t h = 0; h < heads; h++) /* o over v */
        ns_kda_run(&s->k, s2 + h * d * d, v + h * d, ld, q + h * d, ld, key + h * d, ld, v + h * d, ld, alpha + h * d,
                   ld, beta + h, heads, n, d, scratch);
    expect(v, c, "o", true);
    expect(s2, c, "state_out", true);
}

static void kda_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "kda_step");
    for (size_t i = 0; i < ns_json_count(all); i++)
        kda_case(s, ns_json_item(all, i));
}

static void activations_match(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "situ");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t n = floats(c, "gate", g);
        floats(c, "up", x);
        bool capped = !ns_json_is_null(ns_json_find(c, "linear_beta"));
        struct ns_act act = {true, scalar(c, "beta"), capped ? scalar(c, "linear_beta") : 0.0f};
        ns_activate(&s->k, y, n, g, n, x, n, 1, n, &act);
        expect(y, c, "y", false);
    }
    all = cases(s, "silu_mul");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t n = floats(c, "gate", g);
        floats(c, "up", x);
        struct ns_act act = {false, 0, 0};
        ns_activate(&s->k, y, n, g, n, x, n, 1, n, &act);
        expect(y, c, "y", false);
    }
}

static void attn_res_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "attn_res");
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        size_t n_blocks = count(c, "n_blocks"), d = count(c, "h");
        const float *block[16];
        floats(c, "blocks", g);
        floats(c, "prefix", x);
        floats(c, "norm_w", w);
        floats(c, "proj_w", v);
        for (size_t j = 0; j < d; j++)
            w[j] = w[j] * v[j];
        for (size_t b = 0; b < n_blocks; b++)
            block[b] = g + b * d;
        ns_attn_res_mix(&s->k, y, d, block, d, n_blocks, x, d, w, 1, d, scalar(c, "eps"));
        expect(y, c, "y", false);
    }
}

static bool is_sigmoid(const struct ns_json *c)
{
    const char *func = NULL;
    size_t n = 0;
    assert_true(ns_json_string(ns_json_find(c, "func"), &func, &n));
    return n == 7 && memcmp(func, "sigmoid", 7) == 0;
}

static void router_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "router");
    size_t n_run = 0;
    for (size_t i = 0; i < ns_json_count(all); i++) {
        const struct ns_json *c = ns_json_item(all, i);
        if (!is_sigmoid(c))
            continue; /* no released model uses the other one, and the configuration refuses it */
        uint32_t ids[16];
        uint8_t ok = 1;
        bool renormalize = false;
        size_t n = floats(c, "logits", x), top_k = count(c, "top_k");
        floats(c, "bias", w);
        assert_true(ns_json_bool(ns_json_find(c, "renormalize"), &renormalize));
        struct ns_router router = {
            n, top_k, count(c, "n_group"), count(c, "topk_group"), renormalize, scalar(c, "scale"), w};
        ns_route(&s->k, ids, y, x, n, 1, &router, &ok);
        assert_true(ok);
        floats(c, "ids", g);
        floats(c, "weights", v);
        for (size_t j = 0; j < top_k; j++) {
            size_t at = 0;
            assert_true(j == 0 || ids[j - 1] < ids[j]);
            while (at < top_k && (float)ids[at] != g[j])
                at++;
            assert_true(at < top_k);
            assert_true(fabsf(y[at] - v[j]) <= 1e-6f + 2e-6f * fabsf(v[j]));
        }
        n_run++;
    }
    assert_true(n_run >= 11);
}

static uint32_t hex(const struct ns_json *item)
{
    const char *text = NULL;
    size_t n = 0;
    char copy[16] = {0};
    assert_true(ns_json_string(item, &text, &n) && n < sizeof copy);
    memcpy(copy, text, n);
    return (uint32_t)strtoul(copy, NULL, 16);
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void decoding_is_bit_exact(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *table = ns_json_find(ns_json_find(s->ops, "mxfp4"), "table");
    assert_true(ns_json_count(table) > 0);
    for (size_t i = 0; i < ns_json_count(table); i++) {
        const struct ns_json *c = ns_json_item(table, i);
        uint8_t scale = (uint8_t)count(c, "scale"), packed[16];
        for (size_t b = 0; b < 16; b++)
            packed[b] = (uint8_t)((2 * b % 16) | ((2 * b + 1) % 16) << 4);
        struct ns_weights m = {NS_W_MXFP4, packed, &scale, 1, 32};
        ns_decode_row(&m, 0, y);
        const struct ns_json *want = ns_json_find(c, "f32_bits");
        for (size_t code = 0; code < 16; code++) {
            if (scale == 255) /* no bits are given for what is not a number */
                assert_true(isnan(y[code]));
            else
                assert_int_equal(bits(y[code]), hex(ns_json_item(want, code)));
        }
    }
    const struct ns_json *bf = ns_json_find(s->ops, "bf16_to_f32");
    const struct ns_json *from = ns_json_find(bf, "bf16_bits"), *to = ns_json_find(bf, "f32_bits");
    assert_true(ns_json_count(from) > 8);
    for (size_t i = 0; i < ns_json_count(from); i++) {
        uint32_t b = hex(ns_json_item(from, i));
        uint8_t bytes[2] = {(uint8_t)b, (uint8_t)(b >> 8)};
        ns_widen_bf16(y, bytes, 1);
        assert_int_equal(bits(y[0]), hex(ns_json_item(to, i)));
    }
}

static void mxfp4_matrix_decodes(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *c = ns_json_find(ns_json_find(s->ops, "mxfp4"), "matrix");
    static uint8_t packed[MOST], scale[MOST];
    size_t rows = count(c, "rows"), cols = count(c, "cols");
    size_t n = floats(c, "packed", x);
    for (size_t i = 0; i < n; i++)
        packed[i] = (uint8_t)x[i];
    n = floats(c, "scale", x);
    for (size_t i = 0; i < n; i++)
        scale[i] = (uint8_t)x[i];
    struct ns_weights m = {NS_W_MXFP4, packed, scale, rows, cols};
    static _Alignas(64) float packed_x[MOST], scratch[MOST];
    n = floats(c, "weight", w);
    assert_int_equal(n, rows * cols);
    for (size_t r = 0; r < rows; r++) {
        ns_decode_row(&m, r, y);
        for (size_t j = 0; j < cols; j++)
            assert_int_equal(bits(y[j]), bits(w[r * cols + j]));
    }
    floats(c, "x", x);
    assert_true(ns_pack_bytes(&s->k, NS_W_MXFP4, 1, cols) <= sizeof packed_x);
    assert_true(ns_gemm_scratch(&s->k, NS_W_MXFP4, 1, rows, cols) <= sizeof scratch);
    ns_pack_rows(&s->k, NS_W_MXFP4, packed_x, x, cols, NULL, 1, cols);
    ns_gemm(&s->k, y, rows, &m, packed_x, 1, NS_SET, scratch);
    expect(y, c, "weight_times_x", true);
}

/* The absorbed form: q through the key half of kv_b, attention over [latent | rope], the value half afterwards. */
static void mla_case(struct fixture *s, const struct ns_json *c)
{
    size_t n = count(c, "T"), len = count(c, "S"), heads = count(c, "heads");
    size_t dn = count(c, "nope"), dr = count(c, "rope"), dv = count(c, "v"), rank = count(c, "kv_lora_rank");
    size_t d_key = rank + dr;
    static float q[MOST], kv_b[MOST], latent[MOST], rope[MOST], keys[MOST], qa[64], out[64];
    static _Alignas(64) float scratch[MOST];
    bool gated = false;
    floats(c, "q", q);
    floats(c, "kv_b", kv_b);
    floats(c, "latent_normed", latent);
    floats(c, "k_rope", rope);
    floats(c, "gate_logit", g);
    assert_true(ns_json_bool(ns_json_find(c, "output_gate"), &gated));
    for (size_t i = 0; i < len; i++) {
        memcpy(keys + i * d_key, latent + i * rank, rank * sizeof *keys);
        memcpy(keys + i * d_key + rank, rope + i * dr, dr * sizeof *keys);
    }
    struct ns_key_run span[2] = {{keys, d_key, 1}, {keys + d_key, d_key, len - 1}};
    assert_true(ns_attend_scratch(&s->k, 1, len, d_key) <= sizeof scratch);
    for (size_t t = 0; t < n; t++)
        for (size_t h = 0; h < heads; h++) {
            const float *qh = q + (t * heads + h) * (dn + dr), *b = kv_b + h * (dn + dv) * rank;
            uint32_t visible = (uint32_t)(len - n + t + 1);
            for (size_t r = 0; r < rank; r++) {
                qa[r] = 0;
                for (size_t i = 0; i < dn; i++)
                    qa[r] += qh[i] * b[i * rank + r];
            }
            memcpy(qa + rank, qh + dn, dr * sizeof *qa);
            ns_attend(&s->k, out, rank, qa, d_key, 1, &visible, span, 2, d_key, rank, 1.0f / sqrtf((float)(dn + dr)),
                      scratch);
            for (size_t j = 0; j < dv; j++)
                y[(t * heads + h) * dv + j] = ns_dot_f32(b + (dn + j) * rank, out, rank);
        }
    if (gated)
        ns_sigmoid_gate(&s->k, y, heads * dv, y, heads * dv, g, heads * dv, n, heads * dv);
    expect(y, c, "y", true);
}

static void mla_matches(void **state)
{
    struct fixture *s = *state;
    const struct ns_json *all = cases(s, "mla");
    for (size_t i = 0; i < ns_json_count(all); i++)
        mla_case(s, ns_json_item(all, i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_matches),      cmocka_unit_test(gated_norm_matches),
        cmocka_unit_test(l2norm_matches),       cmocka_unit_test(short_conv_matches),
        cmocka_unit_test(decay_matches),        cmocka_unit_test(kda_matches),
        cmocka_unit_test(activations_match),    cmocka_unit_test(attn_res_matches),
        cmocka_unit_test(router_matches),       cmocka_unit_test(decoding_is_bit_exact),
        cmocka_unit_test(mxfp4_matrix_decodes), cmocka_unit_test(mla_matches),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
