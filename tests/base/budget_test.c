/* budget_test.c - a ceiling is a ceiling: sums, refusals, shares, alignment, resizing. */
#include "../scratch.h"
#include "base/base.h"

static int teardown(void **state)
{
    (void)state;
    ns_fault_disarm();
    return 0;
}

static void sums_hold(void **state)
{
    (void)state;
    struct ns_budget b, share;
    ns_budget_init(&b, "root", 10000);
    void *p = ns_budget_take(&b, 1000, NULL), *q = ns_budget_take(&b, 0, NULL);
    assert_non_null(p);
    assert_non_null(q);
    assert_int_equal(ns_budget_used(&b), 1000);
    assert_int_equal(ns_budget_share(&share, &b, "share", 4000, NULL), NS_OK);
    assert_int_equal(ns_budget_used(&b), 5000); /* the whole limit, used or not */
    void *r = ns_budget_take(&share, 3000, NULL);
    assert_non_null(r);
    assert_int_equal(ns_budget_used(&b), 5000);
    assert_int_equal(ns_budget_left(&share), 1000);
    ns_budget_give(&share, r);
    ns_budget_fini(&share);
    ns_budget_give(&b, p);
    ns_budget_give(&b, q);
    ns_budget_give(&b, NULL);
    assert_int_equal(ns_budget_used(&b), 0);
    assert_int_equal(ns_budget_peak(&b), 5000);
    ns_budget_fini(&b);
}

static void refusal_is_clean(void **state)
{
    (void)state;
    struct ns_budget b, share;
    struct ns_error err = {0};
    ns_budget_init(&b, "weight tiles", 1000);
    void *p = ns_budget_take(&b, 900, NULL);
    assert_non_null(p);
    assert_null(ns_budget_take(&b, 101, &err));
    assert_int_equal(err.code, NS_BUDGET);
    assert_non_null(strstr(err.message, "weight tiles"));
    assert_non_null(strstr(err.message, "101 bytes"));
    assert_non_null(strstr(err.message, "100 of 1000"));
    ns_error_clear(&err);
    assert_int_equal(ns_budget_share(&share, &b, "rows", 101, &err), NS_BUDGET);
    assert_non_null(strstr(err.message, "rows"));
    assert_null(ns_budget_take(&b, SIZE_MAX, NULL));
    assert_null(ns_budget_take_raw(&b, SIZE_MAX - 64, 4096, NULL));
    assert_null(ns_budget_resize(&b, p, 2000, NULL));
    assert_int_equal(ns_budget_used(&b), 900);
    void *q = ns_budget_take(&b, 100, NULL); /* to the last byte */
    assert_non_null(q);
    ns_fault_arm(NS_FAULT_ALLOC, 1);
    assert_null(ns_budget_take(&b, 0, NULL));
    ns_budget_give(&b, p);
    ns_budget_give(&b, q);
    ns_budget_fini(&b);
}

static void blocks_are_aligned_and_zeroed(void **state)
{
    (void)state;
    struct ns_budget b;
    ns_budget_init(&b, "test", (size_t)16 << 20);
    for (size_t align = 1; align <= (size_t)2 << 20; align *= 4) {
        uint8_t *p = ns_budget_take_raw(&b, 100, align, NULL);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (align < 64 ? 64 : align), 0);
        memset(p, 0xAA, 100);
        ns_budget_give(&b, p);
    }
    for (size_t n = 1; n < 5000; n += 311) {
        uint8_t *p = ns_budget_take(&b, n, NULL);
        assert_non_null(p);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xAA, n);
        ns_budget_give(&b, p);
    }
    ns_budget_fini(&b);
}

static void resizing_keeps_content(void **state)
{
    (void)state;
    struct ns_budget b;
    ns_budget_init(&b, "test", 100000);
    uint8_t *p = ns_budget_resize(&b, NULL, 10, NULL); /* from nothing */
    assert_non_null(p);
    memset(p, 7, 10);
    p = ns_budget_resize(&b, p, 1000, NULL);
    assert_non_null(p);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(p[i], i < 10 ? 7 : 0);
    p = ns_budget_resize(&b, p, 5, NULL);
    assert_non_null(p);
    assert_int_equal(p[4], 7);
    assert_int_equal(ns_budget_used(&b), 5);
    ns_budget_give(&b, p);
    ns_budget_fini(&b);
}

static void limits_move_between_shares(void **state)
{
    (void)state;
    struct ns_budget b, one, two;
    ns_budget_init(&b, "root", 1000);
    assert_int_equal(ns_budget_share(&one, &b, "one", 600, NULL), NS_OK);
    assert_int_equal(ns_budget_share(&two, &b, "two", 100, NULL), NS_OK);
    void *p = ns_budget_take(&one, 400, NULL);
    assert_non_null(p);
    assert_false(ns_budget_shift(&one, &two, 201)); /* in use */
    assert_int_equal(ns_budget_left(&one), 200);
    assert_int_equal(ns_budget_left(&two), 100);
    assert_true(ns_budget_shift(&one, &two, 200));
    assert_int_equal(ns_budget_left(&one), 0);
    assert_int_equal(ns_budget_left(&two), 300);
    assert_int_equal(ns_budget_used(&b), 700);
    ns_budget_give(&one, p);
    ns_budget_fini(&one);
    ns_budget_fini(&two);
    assert_int_equal(ns_budget_used(&b), 0);
    ns_budget_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(sums_hold, teardown),
        cmocka_unit_test_teardown(limits_move_between_shares, teardown),
        cmocka_unit_test_teardown(refusal_is_clean, teardown),
        cmocka_unit_test_teardown(blocks_are_aligned_and_zeroed, teardown),
        cmocka_unit_test_teardown(resizing_keeps_content, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
