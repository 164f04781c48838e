/* pitfalls_test.c - mistakes that give fluent but wrong text, one test each (specification of the model, section 8),
 * and the small vectors of its appendix. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

static struct ns_kernels k;

static int select_reference(void **state)
{
    (void)state;
    k = ns_kernels_select(0, 2);
    return 0;
}

static void close_to(float got, double want)
{
    if (!(fabs((double)got - want) <= 1e-6 + 2e-6 * fabs(want)))
        fail_msg("got %.9g, want %.9g", (double)got, want);
}

static float situ(float g, float u)
{
    struct ns_act act = {true, 4.0f, 25.0f};
    ns_activate(&k, &g, 1, &g, 1, &u, 1, 1, 1, &act);
    return g;
}

static void situ_reaches_its_caps(void **state)
{
    (void)state;
    close_to(situ(0.5f, -0.25f), -0.0774021063);
    close_to(situ(3, -40), -55.7633862);
    close_to(situ(-8, 10), -0.0122832475);
    assert_true(situ(1000, 1000) == 100.0f && situ(1000, -1000) == -100.0f);
    assert_true(situ(-1000, 5) == 0.0f && situ(-1000, -1000) == 0.0f);
}

static float alpha_of(float f, float dt, float a_log, bool bounded)
{
    float a = ns_vm_exp(a_log), alpha;
    ns_kda_decay(&k, &alpha, 1, &f, 1, &dt, &a, bounded, -5.0f, 1, 1, 1);
    return alpha;
}

static void both_decay_gates_differ(void **state)
{
    (void)state;
    const float ln3 = 1.0986123f;
    close_to(alpha_of(0.2f, 0.1f, ln3, true), 0.0285885922);
    close_to(alpha_of(0.2f, 0.1f, ln3, false), 0.0770681076);
    close_to(alpha_of(-2, 0.5f, ln3, true), exp(-0.0549347132));
    close_to(alpha_of(-2, 0.5f, ln3, false), exp(-0.604239834));
    close_to(alpha_of(4, -1, ln3, true), exp(-4.99938303));
    close_to(alpha_of(4, -1, ln3, false), exp(-9.14576205));
}

static void a_log_is_per_head(void **state)
{
    (void)state;

    enum { HEADS = 3, D = 4 };

    float a[HEADS + 5], f[HEADS * D], dt[HEADS * D] = {0}, alpha[HEADS * D];
    for (size_t h = 0; h < HEADS; h++)
        a[h] = ns_vm_exp((float)h - 1.0f);
    for (size_t h = HEADS; h < HEADS + 5; h++)
        a[h] = NAN; /* the padding of the stored vector */
    for (size_t i = 0; i < HEADS * D; i++)
        f[i] = 0.5f;
    ns_kda_decay(&k, alpha, HEADS * D, f, HEADS * D, dt, a, true, -5.0f, 1, HEADS, D);
    for (size_t h = 0; h < HEADS; h++)
        for (size_t i = 0; i < D; i++)
            close_to(alpha[h * D + i], exp(-5.0 / (1.0 + exp(-exp((double)h - 1.0) * 0.5))));
}

static void dt_bias_comes_before_the_factor(void **state)
{
    (void)state;
    close_to(alpha_of(0.25f, 3.0f, -2.0f, true), exp(-5.0 / (1.0 + exp(-exp(-2.0) * 3.25))));
}

static void zero_key_stays_zero(void **state)
{
    (void)state;
    float x[8] = {0}, tiny[8] = {1e-20f};
    ns_l2norm_heads(&k, x, 8, x, 8, 1, 1, 8, 1.0f);
    for (size_t i = 0; i < 8; i++)
        assert_true(x[i] == 0.0f);
    ns_l2norm_heads(&k, tiny, 8, tiny, 8, 1, 1, 8, 1.0f);
    close_to(tiny[0] * 1e17f, 1.0);
}

static void kda_keeps_its_order(void **state)
{
    (void)state;
    float state_[4] = {0}, q[4] = {1, 2, -1, 1}, key[4] = {3, -1, 1, 1}, v[4] = {0.5f, -1.5f, 2, 1};
    float alpha[4] = {0.9f, 0.5f, 0.8f, 0.25f}, beta[2] = {0.75f, 0.5f}, o[4], scratch[8];
    static const double want_o[4] = {0.0374999944, -0.112499983, -0.157125624, 0.471376872};
    static const double want_s[4] = {0.927971956, -0.309042751, 0.613720629, 0.633711229};
    /* d is 2 here: the vector forms need 4, the definition does not */
    ns_l2norm_heads(&k, q, 2, q, 2, 2, 1, 2, 1.0f / sqrtf(2.0f));
    ns_l2norm_heads(&k, key, 2, key, 2, 2, 1, 2, 1.0f);
    ns_kda_run(&k, state_, o, 2, q, 2, key, 2, v, 2, alpha, 2, beta, 1, 2, 2, scratch);
    for (size_t i = 0; i < 4; i++) {
        close_to(o[i], want_o[i]);
        close_to(state_[i], want_s[i]);
    }
}

static void convolution_is_causal_and_keeps_raw_inputs(void **state)
{
    (void)state;
    float w[4] = {0.1f, -0.2f, 0.3f, 0.5f}, x[5] = {1, 2, -1, 0.5f, 3}, history[3] = {0}, y[5];
    static const double want[5] = {0.311229666, 1.02158548, -0.0475020813, -0.144683847, 1.81619262};
    ns_short_conv(&k, y, 1, x, 1, w, 4, history, 1, 5, 1);
    for (size_t i = 0; i < 5; i++)
        close_to(y[i], want[i]);
    assert_true(history[0] == -1.0f && history[1] == 0.5f && history[2] == 3.0f);
    float again[3] = {0}, z[5];
    for (size_t i = 0; i < 5; i++) /* one position at a time gives the same bits */
        ns_short_conv(&k, &z[i], 1, &x[i], 1, w, 4, again, 1, 1, 1);
    assert_memory_equal(y, z, sizeof y);
    assert_memory_equal(history, again, sizeof history);
}

static void epsilon_is_not_negligible(void **state)
{
    (void)state;
    float x[4] = {0.01f, -0.02f, 0.005f, 0.015f}, one[4] = {1, 1, 1, 1}, y[4];
    ns_rmsnorm(&k, y, 4, x, 4, one, 1, 4, 1e-5f);
    close_to(y[0], 0.711568067);
    ns_rmsnorm(&k, y, 4, x, 4, one, 1, 4, 1e-6f);
    close_to(y[0], 0.728357041);
    float o[2] = {0.3f, -0.4f}, w[2] = {1.5f, 0.5f}, g[2] = {2, -1};
    ns_gated_norm_heads(&k, o, 2, o, 2, g, 2, w, 1, 1, 2, 1e-5f);
    close_to(o[0], 1.12102682);
    close_to(o[1], -0.152130157);
}

static void mix_may_write_over_its_last_source(void **state)
{
    (void)state;
    float b0[4] = {0.1f, -0.2f, 0.05f, 0.3f}, b1[4] = {2, 1, -1, 0.5f}, x[4] = {-1, 0.5f, 4, 1}, y[4];
    float norm[4] = {1, 2, 0.5f, 1}, proj[4] = {0.3f, -0.1f, 0.2f, 0.4f}, w[4];
    const float *block[2] = {b0, b1};
    static const double want[4] = {0.37380778, 0.278344503, 0.630524529, 0.507459824};
    for (size_t i = 0; i < 4; i++)
        w[i] = norm[i] * proj[i];
    ns_attn_res_mix(&k, y, 4, block, 4, 2, x, 4, w, 1, 4, 1e-5f);
    for (size_t i = 0; i < 4; i++)
        close_to(y[i], want[i]);
    ns_attn_res_mix(&k, x, 4, block, 4, 2, x, 4, w, 1, 4, 1e-5f);
    assert_memory_equal(x, y, sizeof y);
}

static void low_nibble_comes_first(void **state)
{
    (void)state;

    static const struct {
        uint8_t byte, scale;
        float even, odd;
    } golden[] = {
        {0x21, 127, 0.5f, 1}, {0x9F, 125, -1.5f, -0.125f}, {0x7E, 130, -32, 48}, {0x21, 0, 0x1p-128f, 0x1p-127f}};

    for (size_t i = 0; i < NS_COUNT(golden); i++) {
        uint8_t packed[32] = {0}, scale[2] = {1, golden[i].scale}; /* the second group, to see the group stride */
        float out[64];
        packed[16] = golden[i].byte;
        struct ns_weights w = {NS_W_MXFP4, packed, scale, 1, 64};
        ns_decode_row(&w, 0, out);
        assert_true(out[32] == golden[i].even && out[33] == golden[i].odd);
    }
}

static void corrupt_scales_are_seen(void **state)
{
    (void)state;
    uint8_t packed[64] = {0}, scale[4] = {0, 1, 252, 127};
    struct ns_weights w = {NS_W_MXFP4, packed, scale, 2, 64};
    memset(packed, 0x77, sizeof packed);
    assert_true(ns_mxfp4_sound(&k, &w));
    scale[3] = 253; /* 6 * 2^126 overflows */
    assert_false(ns_mxfp4_sound(&k, &w));
    memset(packed + 48, 0x5D, 16); /* 3 * 2^126 does not */
    assert_true(ns_mxfp4_sound(&k, &w));
    scale[3] = 254;
    assert_false(ns_mxfp4_sound(&k, &w));
    memset(packed + 48, 0x3B, 16);
    assert_true(ns_mxfp4_sound(&k, &w));
    scale[3] = 255;
    assert_false(ns_mxfp4_sound(&k, &w));
}

static void biased_scores_choose_and_unbiased_ones_weigh(void **state)
{
    (void)state;
    float logits[6] = {0, 2, -1, 1, 0, -3}, bias[6] = {0.30f, -0.45f, 0.20f, 0, 0.30f, 0}, weights[3];
    uint32_t ids[3];
    uint8_t ok = 1;
    struct ns_router router = {6, 3, 1, 1, true, 2.446f, bias};
    ns_route(&k, ids, weights, logits, 6, 1, &router, &ok);
    assert_true(ok && ids[0] == 0 && ids[1] == 3 && ids[2] == 4);
    close_to(weights[0], 0.70650411);
    close_to(weights[1], 1.03299178);
    close_to(weights[2], 0.70650411);
}

static void broken_router_scores_are_reported(void **state)
{
    (void)state;
    float logits[8] = {0, NAN, 1, 2, 0, 1, 2, 3}, bias[4] = {0}, weights[4];
    uint32_t ids[4];
    uint8_t ok[2] = {1, 1};
    struct ns_router router = {4, 2, 1, 1, true, 1.0f, bias};
    ns_route(&k, ids, weights, logits, 4, 2, &router, ok);
    assert_true(!ok[0] && ok[1]);
    assert_true(ids[0] == 0 && ids[1] == 1 && weights[0] == 0 && weights[1] == 0);
    assert_true(ids[2] == 2 && ids[3] == 3);
}

/* z in blocks equals a plain log-softmax; the best tokens fall, ties with the lower id first; tiles do not matter */
static void head_keeps_the_best(void **state)
{
    (void)state;

    enum { V = 2 * NS_HEAD_BLOCK + 100, BLOCKS = 3 };

    static float logits[V];
    float max[2][BLOCKS], sum[2][BLOCKS], m, log_z;
    struct ns_head_row row[2] = {{.n_top = 5, .finite = true}, {.n_top = 5, .finite = true}};
    double z = 0;
    for (size_t i = 0; i < V; i++)
        logits[i] = (float)((i * 7919) % 1000) / 100.0f;
    logits[2000] = logits[1500] = logits[40] = 11.0f;
    logits[7] = 12.0f;
    for (size_t i = 0; i < V; i++)
        z += exp((double)logits[i]);
    ns_head_blocks(&k, &row[0], max[0], sum[0], BLOCKS, logits, V, 1, 0, V);
    for (size_t b = 0; b < V; b += NS_HEAD_BLOCK)
        ns_head_blocks(&k, &row[1], max[1], sum[1], BLOCKS, logits + b, V, 1, b,
                       V - b < NS_HEAD_BLOCK ? V - b : NS_HEAD_BLOCK);
    assert_memory_equal(max[0], max[1], sizeof max[0]);
    assert_memory_equal(sum[0], sum[1], sizeof sum[0]);
    ns_head_finish(&k, max[0], sum[0], BLOCKS, &m, &log_z);
    close_to(m + log_z, log(z));
    static const uint32_t want[4] = {7, 40, 1500, 2000};
    for (size_t r = 0; r < 2; r++) {
        assert_true(row[r].finite && row[r].n_kept == 5);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(row[r].top_id[i], want[i]);
        assert_true(row[r].top_logit[4] == 9.99f);
    }
    logits[3] = NAN;
    ns_head_blocks(&k, &row[0], max[0], sum[0], BLOCKS, logits, V, 1, 0, V);
    assert_false(row[0].finite);
}

/* A row whose expert output overflows is reported and left alone; its neighbours are added. */
static void broken_expert_row_is_left_out(void **state)
{
    (void)state;

    enum { D = 32, M = 32, N = 3 };

    static float gate[M * D], up[M * D], down[D * M], z[N * D], acc[N * D];
    static _Alignas(64) uint8_t scratch[1 << 18];
    uint32_t index[N] = {2, 0, 1};
    float weight[N] = {0.5f, 0.25f, 2.0f};
    uint8_t finite[N] = {1, 1, 1};
    for (size_t i = 0; i < M * D; i++)
        gate[i] = up[i] = down[i] = (i % (D + 1)) == 0 ? 1.0f : 0.0f;
    for (size_t i = 0; i < N * D; i++)
        z[i] = 1.0f;
    z[0] = 3e38f; /* row 0, which is the second in the list: silu(g) u overflows */
    struct ns_expert_weights e = {
        {NS_W_F32, gate, NULL, M, D}, {NS_W_F32, up, NULL, M, D}, {NS_W_F32, down, NULL, D, M}};
    struct ns_act act = {false, 0, 0};
    assert_true(ns_experts_scratch(&k, &e, 1, N) <= sizeof scratch);
    for (size_t i = 0; i < N * D; i++)
        acc[i] = 10.0f;
    struct ns_expert_job job = {.w = e, .index = index, .weight = weight, .finite = finite, .n = N};
    ns_experts(&k, &job, 1, &act, z, D, acc, D, scratch);
    assert_true(job.sound);
    assert_true(finite[0] && !finite[1] && finite[2]);
    const double silu1 = 1.0 / (1.0 + exp(-1.0));
    for (size_t j = 0; j < D; j++) {
        assert_true(acc[j] == 10.0f);
        close_to(acc[D + j], 10.0 + 2.0 * silu1);
        close_to(acc[2 * D + j], 10.0 + 0.5 * silu1);
    }
}

/* One output that overflows, and bad scales: only numbers are added, whoever computes which column. */
static void only_numbers_are_added(void **state)
{
    (void)state;

    enum { D = 32, N = 2, JOBS = 4 };

    enum { GOOD, BAD_GATE, BAD_DOWN, OVERFLOWS };

    /* identities: code 2 is 1, code 4 is 2, and 2 * 2^126 is no float's half */
    static uint8_t codes[JOBS][3][D * D / 2], scale[JOBS][3][D];
    static float z[N * D], acc[N * D];
    static _Alignas(64) uint8_t scratch[1 << 19];
    const uint32_t index[N] = {1, 0};
    const float weight[N] = {0.5f, 2.0f};
    uint8_t finite[JOBS][N];
    struct ns_expert_job job[JOBS];
    struct ns_act act = {true, 4.0f, 25.0f};
    memset(finite, 1, sizeof finite);
    memset(scale, 127, sizeof scale);
    for (size_t j = 0; j < JOBS; j++) {
        struct ns_weights w[3];
        for (size_t m = 0; m < 3; m++) {
            for (size_t i = 0; i < D; i++)
                codes[j][m][i * D / 2 + i / 2] = i % 2 ? 0x20 : 0x02;
            w[m] = (struct ns_weights){NS_W_MXFP4, codes[j][m], scale[j][m], D, D};
        }
        job[j] = (struct ns_expert_job){
            .w = {w[0], w[1], w[2]}, .index = index, .weight = weight, .finite = finite[j], .n = N};
    }
    scale[BAD_GATE][0][3] = 254; /* an infinite weight that the caps would hide */
    codes[BAD_GATE][0][3 * D / 2 + 1] = 0x40;
    scale[BAD_DOWN][2][5] = 255;  /* column 5 */
    scale[OVERFLOWS][2][7] = 252; /* column 7: 4 * 2^125 * h with h > 1 */
    codes[OVERFLOWS][2][7 * D / 2 + 3] = 0x60;
    for (size_t i = 0; i < N * D; i++) {
        z[i] = 1.0f;
        acc[i] = 10.0f;
    }
    z[7] = 3.0f; /* of row 0 alone */
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct ns_kernels two = ns_kernels_select(0, threads);
        two.least_ns = 0;
        assert_true(ns_experts_scratch(&two, &job->w, JOBS, JOBS * N) <= sizeof scratch);
        for (size_t i = 0; i < N * D; i++)
            acc[i] = 10.0f;
        memset(finite, 1, sizeof finite);
        ns_experts(&two, job, JOBS, &act, z, D, acc, D, scratch);
        assert_true(job[GOOD].sound && !job[BAD_GATE].sound && !job[BAD_DOWN].sound && job[OVERFLOWS].sound);
        assert_true(finite[GOOD][0] && finite[GOOD][1] && finite[BAD_GATE][0] && finite[BAD_GATE][1]);
        assert_false(finite[BAD_DOWN][0] || finite[BAD_DOWN][1]);
        assert_true(finite[OVERFLOWS][0] && !finite[OVERFLOWS][1]); /* the second row of the list is row 0 */
        const double h = (double)situ(1.0f, 1.0f), h7 = (double)situ(3.0f, 3.0f);
        for (size_t j = 0; j < D; j++) {
            const double jobs = j == 5 ? 2 : 3; /* that have a number for the column */
            if (j != 7) {
                close_to(acc[j], 10.0 + jobs * 2.0 * h);
                close_to(acc[D + j], 10.0 + jobs * 0.5 * h);
            }
        }
        close_to(acc[7], 10.0 + 2 * 2.0 * h7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(situ_reaches_its_caps),
        cmocka_unit_test(both_decay_gates_differ),
        cmocka_unit_test(a_log_is_per_head),
        cmocka_unit_test(dt_bias_comes_before_the_factor),
        cmocka_unit_test(zero_key_stays_zero),
        cmocka_unit_test(kda_keeps_its_order),
        cmocka_unit_test(convolution_is_causal_and_keeps_raw_inputs),
        cmocka_unit_test(epsilon_is_not_negligible),
        cmocka_unit_test(mix_may_write_over_its_last_source),
        cmocka_unit_test(low_nibble_comes_first),
        cmocka_unit_test(corrupt_scales_are_seen),
        cmocka_unit_test(biased_scores_choose_and_unbiased_ones_weigh),
        cmocka_unit_test(broken_router_scores_are_reported),
        cmocka_unit_test(head_keeps_the_best),
        cmocka_unit_test(broken_expert_row_is_left_out),
        cmocka_unit_test(only_numbers_are_added),
    };
    return cmocka_run_group_tests(tests, select_reference, NULL);
}
