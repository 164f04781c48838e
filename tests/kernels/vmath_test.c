/* vmath_test.c - exp and friends over a stride through all floats, and their limits. vmath_exhaustive_test (slow) walks
 * every float. The judge is the double precision libm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "kernels/kernels.h"
#include "vmath_judge.h"

static void worst_error_holds(void **state)
{
    (void)state;
    for (size_t f = 0; f < judged_count; f++) {
        struct judgement j = judge(&judged[f], 0, (uint64_t)1 << 32, 4099);
        if (!(j.worst_ulp <= judged[f].limit_ulp))
            fail_msg("%s: %.3f ulp at %a, stated %.2f", judged[f].name, j.worst_ulp, (double)j.at, judged[f].limit_ulp);
    }
}

static void limits_are_exact(void **state)
{
    (void)state;
    assert_true(ns_vm_exp(INFINITY) == INFINITY && ns_vm_exp(-INFINITY) == 0.0f && ns_vm_exp(0.0f) == 1.0f);
    assert_true(ns_vm_exp(-0.0f) == 1.0f && ns_vm_exp(88.8f) == INFINITY && ns_vm_exp(-104.0f) == 0.0f);
    assert_true(ns_vm_exp(-103.9f) == 0x1p-149f); /* the smallest float */
    assert_true(ns_vm_log(0.0f) == -INFINITY && ns_vm_log(-0.0f) == -INFINITY && ns_vm_log(INFINITY) == INFINITY);
    assert_true(isnan(ns_vm_log(-1.0f)) && ns_vm_log(1.0f) == 0.0f);
    assert_true(ns_vm_log1p(-1.0f) == -INFINITY && isnan(ns_vm_log1p(-2.0f)) && ns_vm_log1p(INFINITY) == INFINITY);
    assert_true(signbit(ns_vm_log1p(-0.0f)) && ns_vm_log1p(0x1p-149f) == 0x1p-149f);
    assert_true(ns_vm_sigmoid(INFINITY) == 1.0f && ns_vm_sigmoid(-INFINITY) == 0.0f && ns_vm_sigmoid(0.0f) == 0.5f);
    assert_true(ns_vm_tanh(INFINITY) == 1.0f && ns_vm_tanh(-INFINITY) == -1.0f && signbit(ns_vm_tanh(-0.0f)));
    assert_true(ns_vm_tanh(0x1p-149f) == 0x1p-149f);
    assert_true(ns_vm_softplus(INFINITY) == INFINITY && ns_vm_softplus(-INFINITY) == 0.0f);
    assert_true(ns_vm_silu(INFINITY) == INFINITY && ns_vm_silu(-INFINITY) == 0.0f);
}

static void not_a_number_stays_one(void **state)
{
    (void)state;
    for (size_t f = 0; f < judged_count; f++)
        assert_true(isnan(judged[f].ours(NAN)) && isnan(judged[f].ours(-NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worst_error_holds),
        cmocka_unit_test(limits_are_exact),
        cmocka_unit_test(not_a_number_stays_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
