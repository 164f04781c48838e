/* measure_test.c - what the measuring says, not how fast the machine is: names, rows, threads and sane shares. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/measure_impl.h"

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

/* shares of a wave: times add up to it, and what is inside another part is counted once */
static void parts_make_up_the_wave(void **state)
{
    (void)state;
    double row_ns[NS_PARTS_MOST], share[NS_PARTS_MOST], more[NS_PARTS_MOST], sum = 0, products = 0;
    assert_true(ns_part_count <= NS_PARTS_MOST);
    for (size_t i = 0; i < ns_part_count; i++) {
        size_t s = 0;
        while (s < ns_subject_count && strcmp(ns_subjects[s].name, ns_parts[i].subject) != 0)
            s++;
        assert_true(s < ns_subject_count && ns_parts[i].most <= ns_subjects[s].most);
        row_ns[i] = ns_parts[i].product ? 1e6 : 1e3;
    }
    ns_parts_weigh(row_ns, share);
    for (size_t i = 0; i < ns_part_count; i++) {
        assert_true(share[i] > 0 && ns_parts[i].apart > 0 && ns_parts[i].apart <= 1);
        sum += share[i] * ns_parts[i].apart;
        products += ns_parts[i].product ? share[i] : 0;
    }
    assert_true(sum > 0.999999 && sum < 1.000001 && products > 0.9);
    row_ns[2] *= 2; /* the first that is no product */
    ns_parts_weigh(row_ns, more);
    double odds = share[2] / (1 - share[2]), twice = more[2] / (1 - more[2]);
    assert_true(!ns_parts[2].product && twice > 1.99999 * odds && twice < 2.00001 * odds);
    /* 55 G multiply-adds of bf16 and 49 of experts a row, as the model says of itself */
    double bf16 = ns_parts[0].times * WIDE * HIDDEN, experts = ns_parts[1].times * JOBS * 3 * INNER * LATENT;
    assert_true(bf16 > 54e9 && bf16 < 57e9 && experts > 48e9 && experts < 50e9);
}

static void the_reference_is_no_wave(void **state)
{
    (void)state;
    struct ns_budget budget;
    struct ns_error err = {0};
    struct ns_measure what = {.isa = "ref", .n_threads = 1, .take = take};
    ns_budget_init(&budget, "test", (size_t)1 << 30);
    assert_int_equal(ns_kernels_measure_wave(&what, &budget, NULL, NULL, &err), NS_USAGE);
    assert_int_equal(ns_budget_used(&budget), 0);
    ns_budget_fini(&budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_count_is_reported_and_memory_given_back),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(parts_make_up_the_wave),
        cmocka_unit_test(the_reference_is_no_wave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
