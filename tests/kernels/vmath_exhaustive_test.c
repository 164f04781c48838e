/* vmath_exhaustive_test.c - every one of the 2^32 floats: the scalar definitions against double precision, and the vector
 * forms against the scalar ones, bit for bit. Minutes; label slow. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_features.h"
#include "kernels/kernels.h"
#include "vmath_judge.h"

enum { THREADS = 2, PIECES = 1 << 12, PIECE = 1 << 20 };

struct walk {
    const struct judged *f;
    struct judgement worst[THREADS];
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

/* Every vector form is reached through the kernels that the product runs, with the other arguments such that nothing can
 * hide a difference: silu times 1; tanh as the capped half of SiTU whose gate is 1; softplus inside the decay's exp, under
 * a power of two that makes it 16 to 32, where one bit of it is many of the result; and exp itself under the power of two
 * that leads there from a number between 32 and 64, which is its own softplus. */
enum { ROW = 4096, SETS = 3 }; /* consecutive bit patterns, which share sign and exponent */

enum form { SIGMOID, SILU, TANH, SOFTPLUS, EXP, FORMS };

static const char *const form_names[FORMS] = {"sigmoid", "silu", "tanh", "softplus", "exp"};

struct compared {
    struct ns_kernels k[SETS];
    size_t n;
    uint64_t differing[THREADS][SETS][FORMS];
    uint64_t walked[THREADS];
};

struct row {
    float x[ROW], mantissa[ROW], want[FORMS][ROW];
    float factor, power; /* of softplus; of exp, 0 without one */
};

static float power_of_two(int exponent)
{
    return ldexpf(1.0f, exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
}

static void make_row(struct row *r, uint32_t first)
{
    const int exponent = (int)(first >> 23 & 0xff);
    for (uint32_t i = 0; i < ROW; i++) {
        uint32_t bits = first + i, mantissa = (bits & 0x7fffff) | (127 + 5) << 23;
        memcpy(&r->x[i], &bits, sizeof bits);
        memcpy(&r->mantissa[i], &mantissa, sizeof mantissa);
    }
    float s = ns_vm_softplus(r->x[0]);
    int s_exponent = 0;
    if (isfinite(s))
        (void)frexpf(s, &s_exponent);
    r->factor = isfinite(s) ? power_of_two(5 - s_exponent) : 1.0f;
    /* -a * softplus is to be x; not numbers have no such power, and what is below them all is 1 like its neighbours */
    bool has_power = exponent >= 6 && exponent < 255;
    r->power = !has_power ? 0.0f : (first >> 31 ? 1.0f : -1.0f) * power_of_two(exponent - 127 - 5);
    for (size_t i = 0; i < ROW; i++) {
        r->want[SIGMOID][i] = ns_vm_sigmoid(r->x[i]);
        r->want[SILU][i] = ns_vm_silu(r->x[i]);
        r->want[TANH][i] = ns_vm_tanh(r->x[i]);
        r->want[SOFTPLUS][i] = ns_vm_exp(-r->factor * ns_vm_softplus(r->x[i]));
        r->want[EXP][i] = ns_vm_exp(r->x[i]);
    }
}

static uint64_t count_differing(const float *want, const float *got)
{
    uint64_t n = 0;
    if (memcmp(want, got, ROW * sizeof *want) == 0)
        return 0;
    for (size_t i = 0; i < ROW; i++)
        n += memcmp(&want[i], &got[i], sizeof *want) != 0 && !(isnan(want[i]) && isnan(got[i]));
    return n;
}

static void compare_row(const struct ns_kernels *k, const struct row *r, const float *ones, const float *infinities,
                        uint64_t differing[FORMS])
{
    static const float zero[ROW]; /* dt of the decay */
    const struct ns_act silu = {false, 0, 0}, situ = {true, 1.0f, 1.0f};
    float y[ROW];
    ns_sigmoid_rows(k, y, ROW, r->x, ROW, 1, ROW);
    differing[SIGMOID] += count_differing(r->want[SIGMOID], y);
    ns_activate(k, y, ROW, r->x, ROW, ones, ROW, 1, ROW, &silu);
    differing[SILU] += count_differing(r->want[SILU], y);
    ns_activate(k, y, ROW, infinities, ROW, r->x, ROW, 1, ROW, &situ);
    differing[TANH] += count_differing(r->want[TANH], y);
    ns_kda_decay(k, y, ROW, r->x, ROW, zero, &r->factor, false, 0.0f, 1, 1, ROW);
    differing[SOFTPLUS] += count_differing(r->want[SOFTPLUS], y);
    if (r->power == 0.0f)
        return;
    ns_kda_decay(k, y, ROW, r->mantissa, ROW, zero, &r->power, false, 0.0f, 1, 1, ROW);
    differing[EXP] += count_differing(r->want[EXP], y);
}

static void compare_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct compared *c = arg;
    struct row r;
    float ones[ROW], infinities[ROW];
    for (size_t i = 0; i < ROW; i++) {
        ones[i] = 1.0f;
        infinities[i] = INFINITY;
    }
    for (uint64_t b = (uint64_t)begin * PIECE; b < (uint64_t)end * PIECE; b += ROW) {
        make_row(&r, (uint32_t)b);
        for (size_t i = 0; i < c->n; i++)
            compare_row(&c->k[i], &r, ones, infinities, c->differing[thread][i]);
        c->walked[thread] += ROW;
    }
}

static void vector_forms_equal_scalar_ones_everywhere(void **state)
{
    (void)state;
    static const char *const names[SETS] = {"avx2", "avx512", "neon"};
    static struct compared c;
    for (size_t i = 0; i < SETS; i++) {
        uint32_t bits;
        if (ns_kernels_isa_bits(names[i], cpu_features(), &bits))
            c.k[c.n++] = ns_kernels_select(bits, 1);
    }
    if (c.n == 0) {
        print_message("SKIPPED: this processor has no vector forms, the scalar ones are all there is\n");
        skip();
    }
    ns_parallel(THREADS, PIECES, 16, compare_range, &c);
    assert_true(c.walked[0] + c.walked[1] == (uint64_t)1 << 32);
    uint64_t all = 0;
    for (size_t i = 0; i < c.n; i++)
        for (size_t f = 0; f < FORMS; f++) {
            uint64_t n = c.differing[0][i][f] + c.differing[1][i][f];
            print_message("%s, %s: %llu values differ\n", c.k[i].isa, form_names[f], (unsigned long long)n);
            all += n;
        }
    assert_true(all == 0);
}

/* An argument picks one of the two parts by the beginning of its name. */
int main(int argc, char **argv)
{
    char filter[64];
    if (argc > 1) {
        (void)snprintf(filter, sizeof filter, "%s*", argv[1]);
        cmocka_set_test_filter(filter);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stated_errors_hold_everywhere),
        cmocka_unit_test(vector_forms_equal_scalar_ones_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
