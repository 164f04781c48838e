/* measure_test.c - what the measuring says, not how fast the machine is: names, rows, threads and sane shares. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

struct seen {
    size_t n, n_machine, stop_after;
    size_t rows;
};

static bool note(void *arg, const struct ns_rate *r)
{
    struct seen *s = arg;
    s->n++;
    assert_true(r->threads == 1 && strcmp(r->isa, "ref") == 0);
    if (r->rows == 0) {
        s->n_machine++;
        assert_true(r->gfma_s > 0 || r->gb_s > 0);
    } else {
        assert_string_equal(r->kernel, "rmsnorm");
        assert_true(r->rows > s->rows && r->gb_s > 0 && r->share_of_bandwidth > 0);
        s->rows = r->rows;
    }
    return s->n != s->stop_after;
}

static void *take(struct ns_budget *budget, size_t bytes, struct ns_error *err)
{
    return ns_budget_take_raw(budget, bytes, 64, err);
}

static void every_row_count_is_reported_and_memory_given_back(void **state)
{
    (void)state;
    struct ns_budget budget;
    struct ns_error err = {0};
    struct seen s = {0}, cut = {.stop_after = 1};
    struct ns_measure what = {.cpu = 0, .isa = "ref", .kernel = "rmsnorm", .n_threads = 1, .take = take};
    ns_budget_init(&budget, "test", (size_t)1 << 30);
    assert_int_equal(ns_kernels_measure(&what, &budget, note, &s, &err), NS_OK);
    assert_int_equal(s.n_machine, 2);
    assert_int_equal(s.n, 2 + 3); /* 1, 4 and 16 rows: the reference stops there */
    assert_int_equal(ns_kernels_measure(&what, &budget, note, &cut, &err), NS_OK);
    assert_int_equal(cut.n, 1);
    assert_int_equal(ns_budget_used(&budget), 0);
    ns_budget_fini(&budget);
}

static void too_little_memory_is_refused(void **state)
{
    (void)state;
    struct ns_budget budget;
    struct ns_error err = {0};
    struct seen s = {0};
    struct ns_measure what = {.n_threads = 1, .take = take};
    ns_budget_init(&budget, "test", (size_t)300 << 20);
    assert_int_equal(ns_kernels_measure(&what, &budget, note, &s, &err), NS_BUDGET);
    assert_int_equal(s.n, 0);
    assert_int_equal(ns_budget_used(&budget), 0);
    ns_budget_fini(&budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_count_is_reported_and_memory_given_back),
        cmocka_unit_test(too_little_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
