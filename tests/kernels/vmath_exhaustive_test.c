/* vmath_exhaustive_test.c - every one of the 2^32 floats: the scalar definitions against double precision, and the vector
 * forms against the scalar ones, bit for bit. Minutes; label slow. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_features.h"
#include "kernels/kernels.h"
#include "vmath_judge.h"

enum { THREADS = 2, PIECES = 1 << 12, PIECE = 1 << 20 };

struct walk {
    const struct judged *f;
    struct judgement worst[THREADS];
    const struct ns_kernels *k;
    uint64_t differing[THREADS];
};

static void judge_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct walk *w = arg;
    struct judgement j = judge(w->f, (uint64_t)begin * PIECE, (uint64_t)end * PIECE, 1);
    if (!(j.worst_ulp <= w->worst[thread].worst_ulp))
        w->worst[thread] = j;
}

static void stated_errors_hold_everywhere(void **state)
{
    (void)state;
    for (size_t f = 0; f < judged_count; f++) {
        struct walk w = {.f = &judged[f]};
        ns_parallel(THREADS, PIECES, 16, judge_range, &w);
        struct judgement j = w.worst[0].worst_ulp > w.worst[1].worst_ulp ? w.worst[0] : w.worst[1];
        print_message("%s: worst %.3f ulp at %a\n", judged[f].name, j.worst_ulp, (double)j.at);
        if (!(j.worst_ulp <= judged[f].limit_ulp))
            fail_msg("%s: stated %.2f ulp", judged[f].name, judged[f].limit_ulp);
    }
}

enum { ROW = 4096 };

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* sigmoid, silu, tanh (inside SiTU) and exp of softplus (the decay) of one row, by the kernels */
static uint64_t row_differs(const struct ns_kernels *k, const float *x)
{
    static const float one[ROW] = {0}; /* dt of the decay */
    const float a = 1.0f, *up = x;
    float y[ROW];
    uint64_t bad = 0;
    ns_sigmoid_rows(k, y, ROW, x, ROW, 1, ROW);
    for (size_t i = 0; i < ROW; i++)
        bad += !same(y[i], ns_vm_sigmoid(x[i]));
    struct ns_act silu = {false, 0, 0}, situ = {true, 4.0f, 25.0f};
    ns_activate(k, y, ROW, x, ROW, up, ROW, 1, ROW, &silu);
    for (size_t i = 0; i < ROW; i++)
        bad += !same(y[i], ns_vm_silu(x[i]) * x[i]);
    ns_activate(k, y, ROW, x, ROW, up, ROW, 1, ROW, &situ);
    for (size_t i = 0; i < ROW; i++)
        bad +=
            !same(y[i], ((4.0f * ns_vm_tanh(x[i] / 4.0f)) * ns_vm_sigmoid(x[i])) * (25.0f * ns_vm_tanh(x[i] / 25.0f)));
    ns_kda_decay(k, y, ROW, x, ROW, one, &a, false, 0.0f, 1, 1, ROW);
    for (size_t i = 0; i < ROW; i++)
        bad += !same(y[i], ns_vm_exp(-ns_vm_softplus(x[i] + 0.0f)));
    return bad;
}

static void compare_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct walk *w = arg;
    float x[ROW];
    for (uint64_t b = (uint64_t)begin * PIECE; b < (uint64_t)end * PIECE; b += ROW) {
        for (uint32_t i = 0; i < ROW; i++) {
            uint32_t bits = (uint32_t)b + i;
            memcpy(&x[i], &bits, sizeof bits);
        }
        w->differing[thread] += row_differs(w->k, x);
    }
}

static void vector_forms_equal_scalar_ones_everywhere(void **state)
{
    (void)state;
    static const char *const names[] = {"avx2", "avx512", "neon"};
    for (size_t i = 0; i < NS_COUNT(names); i++) {
        uint32_t bits;
        if (!ns_kernels_isa_bits(names[i], cpu_features(), &bits))
            continue;
        struct ns_kernels k = ns_kernels_select(bits, 1);
        struct walk w = {.k = &k};
        ns_parallel(THREADS, PIECES, 16, compare_range, &w);
        if (w.differing[0] + w.differing[1] > 0)
            fail_msg("%s: %llu values differ", names[i], (unsigned long long)(w.differing[0] + w.differing[1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stated_errors_hold_everywhere),
        cmocka_unit_test(vector_forms_equal_scalar_ones_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
