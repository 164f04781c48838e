/* parallel_test.c - who gets a second thread, and that every index is met once. The rule knows work and not time, so this is
 * the same on every machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels_impl.h"

static void threads_follow_the_work(void **state)
{
    (void)state;
    struct ns_kernels one = ns_kernels_select(0, 1), two = ns_kernels_select(0, 2), eight = ns_kernels_select(0, 8);
    const double least = two.least_ns;
    assert_true(least > 0);
    assert_int_equal(ns_threads_for(&two, 0), 1);
    assert_int_equal(ns_threads_for(&two, 1.99 * least), 1);
    assert_int_equal(ns_threads_for(&two, 2 * least), 2);
    assert_int_equal(ns_threads_for(&eight, 2 * least), 2);
    assert_int_equal(ns_threads_for(&eight, 6.9 * least), 6);
    assert_int_equal(ns_threads_for(&eight, 1e12), 8);
    assert_int_equal(ns_threads_for(&one, 1e12), 1);
    eight.least_ns = 0;
    assert_int_equal(ns_threads_for(&eight, 0), 8);
}

/* rows of the released model, by what was measured: the first of the two counts loses with two threads, the second gains */
static void few_rows_stay_on_one_thread(void **state)
{
    (void)state;

    enum { HIDDEN = 7 << 10, HEADS = 96, HEAD = 128, INNER = 3 << 10 };

    static const struct {
        enum ns_row_op op;
        struct ns_rows shape;
        size_t one, two;
    } c[] = {
        {NS_ROW_RMSNORM, {.n = HIDDEN}, 64, 256},
        {NS_ROW_MIX, {.n = HIDDEN, .n_blocks = 8}, 4, 16},
        {NS_ROW_SITU_MUL, {.n = INNER}, 16, 64},
        {NS_ROW_DECAY, {.n = HEAD, .n_heads = HEADS}, 4, 16},
        {NS_ROW_GATED_NORM, {.n = HEAD, .n_heads = HEADS}, 4, 16},
        {NS_ROW_ADD, {.n = HIDDEN}, 64, 256},
    };

    struct ns_kernels k = ns_kernels_select(0, 2);
    for (size_t i = 0; i < NS_COUNT(c); i++) {
        assert_int_equal(ns_rows_threads(&k, c[i].op, &c[i].shape, c[i].one), 1);
        assert_int_equal(ns_rows_threads(&k, c[i].op, &c[i].shape, c[i].two), 2);
    }
}

enum { N = 100, THREADS = 3 };

struct met {
    uint8_t first[N], second[N];
    bool wrong; /* a second index before all the first ones, or a thread too many; read after the threads have ended */
};

static void meet_first(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct met *m = arg;
    for (size_t i = begin; i < end; i++)
        m->first[i]++;
    if (thread >= THREADS)
        __atomic_store_n(&m->wrong, true, __ATOMIC_RELAXED);
}

static void meet_second(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct met *m = arg;
    for (size_t i = 0; i < N; i++)
        if (m->first[i] != 1 || thread >= THREADS)
            __atomic_store_n(&m->wrong, true, __ATOMIC_RELAXED);
    for (size_t i = begin; i < end; i++)
        m->second[i]++;
}

static void steps_follow_each_other(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= THREADS; threads++) {
        struct met m = {0};
        ns_parallel_steps(threads, N, meet_first, N, meet_second, &m);
        assert_false(m.wrong);
        for (size_t i = 0; i < N; i++)
            assert_true(m.first[i] == 1 && m.second[i] == 1);
    }
    struct met none = {0};
    ns_parallel_steps(2, 0, meet_first, 0, meet_second, &none);
    assert_int_equal(none.first[0] + none.second[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_follow_the_work),
        cmocka_unit_test(few_rows_stay_on_one_thread),
        cmocka_unit_test(steps_follow_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
