/* bulk_test.c - blocks for bulk data: their pages, and the thread that makes them present. */
#define _GNU_SOURCE
#include "../scratch.h"
#include "sys/sys.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#define PAGE  ((size_t)4096)
#define LARGE ((size_t)2 << 20)

static int teardown(void **state)
{
    (void)state;
    ns_fault_disarm();
    ns_signal_reset();
    return 0;
}

static size_t pages_present(const uint8_t *block, size_t bytes)
{
    size_t n = 0;
    for (size_t at = 0; at < bytes; at += PAGE) {
        unsigned char there = 0;
        assert_int_equal(mincore((void *)(uintptr_t)(block + at), PAGE, &there), 0);
        n += there & 1;
    }
    return n;
}

static void no_page_beyond_the_end(void **state)
{
    (void)state;
    struct ns_budget b;
    ns_budget_init(&b, "test", (size_t)64 << 20);
    uint8_t *block[8];
    for (size_t i = 0; i < NS_COUNT(block); i++) {
        block[i] = ns_bulk_take(&b, LARGE + PAGE, NULL);
        assert_non_null(block[i]);
        assert_int_equal((uintptr_t)block[i] % LARGE, 0);
        assert_int_equal(ns_budget_used(&b), (i + 1) * (LARGE + PAGE));
        memset(block[i], 0xAA, LARGE + PAGE);
    }
    for (size_t i = 0; i < NS_COUNT(block); i++) {
        unsigned char there = 0;
        assert_int_equal(pages_present(block[i], LARGE + PAGE), LARGE / PAGE + 1);
        /* what aligned the block leaves a page behind it */
        if (mincore(block[i] + LARGE + PAGE, PAGE, &there) == 0)
            assert_int_equal(there & 1, 0);
        ns_budget_give(&b, block[i]);
    }
    uint8_t *small = ns_bulk_take(&b, 1, NULL);
    assert_non_null(small);
    assert_int_equal((uintptr_t)small % PAGE, 0);
    ns_budget_give(&b, small);
    ns_fault_arm(NS_FAULT_ALLOC, 1);
    assert_null(ns_bulk_take(&b, LARGE, NULL));
    ns_fault_disarm();
    ns_budget_fini(&b);
}

static void span_gives_back(void **state)
{
    (void)state;
    struct ns_budget b;
    struct ns_span s;
    ns_budget_init(&b, "test", 8 * LARGE);
    assert_int_equal(ns_span_open(&s, &b, SIZE_MAX, NULL), NS_BUDGET);
    assert_int_equal(ns_span_open(&s, &b, SIZE_MAX / 2, NULL), NS_BUDGET); /* more than there are addresses */
    ns_span_close(&s);
    assert_int_equal(ns_span_open(&s, &b, 16 * LARGE, NULL), NS_OK);
    assert_int_equal(ns_budget_used(&b), 0);
    assert_int_equal(ns_span_grow(&s, 3 * LARGE - 5, NULL), NS_OK);
    assert_int_equal(s.bytes, 3 * LARGE);
    assert_int_equal(ns_budget_used(&b), 3 * LARGE);
    assert_int_equal((uintptr_t)s.base % LARGE, 0);
    uint8_t *base = s.base;
    memset(base, 0xAA, s.bytes);
    assert_int_equal(ns_span_grow(&s, 9 * LARGE, NULL), NS_BUDGET);
    assert_int_equal(ns_span_grow(&s, 17 * LARGE, NULL), NS_BUDGET);
    ns_fault_arm(NS_FAULT_ALLOC, 1);
    assert_int_equal(ns_span_grow(&s, 4 * LARGE, NULL), NS_BUDGET);
    ns_fault_disarm();
    assert_int_equal(s.bytes, 3 * LARGE);
    assert_int_equal(ns_span_grow(&s, LARGE, NULL), NS_OK); /* it is no smaller for it */
    assert_int_equal(s.bytes, 3 * LARGE);
    ns_span_shrink(&s, 4 * LARGE);
    assert_int_equal(s.bytes, 3 * LARGE);
    size_t less = LARGE + 3 * PAGE; /* into a large page */
    ns_span_shrink(&s, less);
    assert_int_equal(ns_budget_used(&b), less);
    assert_int_equal(pages_present(base, less), less / PAGE);
    assert_int_equal(pages_present(base + less, 3 * LARGE - less), 0);
    assert_int_equal(ns_span_grow(&s, 5 * LARGE, NULL), NS_OK);
    assert_ptr_equal(s.base, base);
    for (size_t at = 0; at < 5 * LARGE; at++) /* what was given back is empty */
        if (base[at] != (at < less ? 0xAA : 0))
            fail_msg("byte %zu is %d", at, base[at]);
    ns_span_close(&s);
    ns_span_close(&s);
    ns_budget_fini(&b);
}

static void prefill_changes_nothing(void **state)
{
    (void)state;
    struct ns_budget b;
    ns_budget_init(&b, "test", (size_t)128 << 20);
    struct ns_bulk part[4];
    for (size_t i = 0; i < NS_COUNT(part); i++) {
        part[i].bytes = ((size_t)1 << 20) * (1 + 4 * i) + 100 * i;
        part[i].block = ns_bulk_take(&b, part[i].bytes, NULL);
        assert_non_null(part[i].block);
    }
    struct ns_prefill *p = ns_prefill_start(&b, part, NS_COUNT(part));
    assert_non_null(p);
    for (size_t i = NS_COUNT(part); i-- > 0;) /* from the other end, so that the two meet */
        memset(part[i].block, (int)i + 1, part[i].bytes);
    for (size_t i = 0; i < NS_COUNT(part); i++)
        for (size_t at = 0; at < part[i].bytes; at++)
            if (((uint8_t *)part[i].block)[at] != i + 1)
                fail_msg("block %zu is changed at %zu", i, at);
    ns_prefill_end(p);
    for (size_t i = 0; i < NS_COUNT(part); i++)
        ns_budget_give(&b, part[i].block);
    ns_budget_fini(&b);
}

static void prefill_makes_present(void **state)
{
    (void)state;
#ifdef MADV_POPULATE_WRITE
    struct ns_budget b;
    size_t bytes = (size_t)40 << 20;
    ns_budget_init(&b, "test", (size_t)64 << 20);
    struct ns_bulk part = {ns_bulk_take(&b, bytes, NULL), bytes};
    assert_non_null(part.block);
    if (madvise(part.block, PAGE, MADV_POPULATE_WRITE) != 0) {
        assert_int_equal(errno, EINVAL); /* a kernel before 5.14 does not know the advice */
        ns_budget_give(&b, part.block);
        print_message("SKIPPED: this kernel makes no pages present\n");
        skip();
    }
    struct ns_prefill *p = ns_prefill_start(&b, &part, 1);
    assert_non_null(p);
    for (int i = 0; i < 10000 && pages_present(part.block, bytes) < bytes / PAGE; i++)
        ns_sleep_ms(2);
    assert_int_equal(pages_present(part.block, bytes), bytes / PAGE);
    assert_true(ns_prefill_wait(p, 600000));
    assert_true(ns_prefill_has(p, 0));
    ns_prefill_end(p);
    ns_budget_give(&b, part.block);
    ns_budget_fini(&b);
#else
    print_message("SKIPPED: built without MADV_POPULATE_WRITE\n");
    skip();
#endif
}

static void prefill_may_end_early_or_never_begin(void **state)
{
    (void)state;
    struct ns_budget b;
    size_t bytes = (size_t)40 << 20;
    ns_budget_init(&b, "test", (size_t)64 << 20);
    struct ns_bulk part = {ns_bulk_take(&b, bytes, NULL), bytes};
    assert_non_null(part.block);
    ns_prefill_end(ns_prefill_start(&b, &part, 1));
    assert_int_equal(ns_budget_used(&b), bytes);
    struct ns_prefill *p = ns_prefill_start(&b, &part, 1);
    assert_non_null(p);
    bool all = ns_prefill_wait(p, 0); /* as fast as it may be, it does not say so before */
    assert_true(!all || ns_prefill_has(p, 0));
    ns_prefill_end(p);
    for (uint64_t nth = 1; nth <= 4; nth++) { /* its own memory, mutex, condition, the thread's */
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        assert_null(ns_prefill_start(&b, &part, 1));
        ns_fault_disarm();
        assert_int_equal(ns_budget_used(&b), bytes);
    }
    ns_prefill_end(NULL);
    ns_budget_give(&b, part.block);
    ns_budget_fini(&b);
}

static void prefill_ends_by_signal(void **state)
{
    (void)state;
    struct ns_budget b;
    size_t bytes = (size_t)256 << 20;
    ns_budget_init(&b, "test", (size_t)300 << 20);
    struct ns_bulk part = {ns_bulk_take(&b, bytes, NULL), bytes};
    assert_non_null(part.block);
    ns_signal_install();
    raise(SIGTERM);
    struct ns_prefill *p = ns_prefill_start(&b, &part, 1);
    assert_non_null(p);
    assert_false(ns_prefill_wait(p, 3600000)); /* an hour: longer than any test may take */
    assert_false(ns_prefill_has(p, 0));
    assert_true(pages_present(part.block, bytes) < bytes / PAGE);
    ns_prefill_end(p);
    ns_budget_give(&b, part.block);
    ns_budget_fini(&b);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(no_page_beyond_the_end, teardown),
        cmocka_unit_test_teardown(span_gives_back, teardown),
        cmocka_unit_test_teardown(prefill_changes_nothing, teardown),
        cmocka_unit_test_teardown(prefill_makes_present, teardown),
        cmocka_unit_test_teardown(prefill_ends_by_signal, teardown),
        cmocka_unit_test_teardown(prefill_may_end_early_or_never_begin, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
