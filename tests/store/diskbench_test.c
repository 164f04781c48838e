/* diskbench_test.c - the measurement of the disk reads what it says, and its failures are named. */
#include "fixture.h"

static void it_counts_what_it_reads(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_store_need need;
    assert_int_equal(ns_store_measure(&f.config, f.shards, NULL, &f.budget, &need, NULL), NS_OK);
    for (unsigned depth = 1; depth <= 8; depth *= 2) {
        struct ns_disk_rate r;
        struct ns_disk_test blocks = {.block_bytes = 100000, .depth = depth, .limit_ms = 20, .no_direct = depth == 4};
        assert_int_equal(ns_disk_measure(&f.config, f.shards, &blocks, &f.budget, &r, NULL), NS_OK);
        assert_true(r.reads >= depth && r.ns > 0);
        assert_true(r.bytes > 0 && r.bytes <= r.reads * (100000 + 8192));
        struct ns_disk_test experts = {.experts = true, .depth = depth, .limit_ms = 20, .no_direct = depth == 2};
        assert_int_equal(ns_disk_measure(&f.config, f.shards, &experts, &f.budget, &r, NULL), NS_OK);
        assert_true(r.reads >= depth);
        assert_true(2 * r.bytes >= r.reads * need.expert_bytes && /* one may lie in two shards */
                    r.bytes <= r.reads * need.slot_bytes);
        assert_true(!r.direct || depth != 2);
    }
    fixture_close(&f);
}

/* What was read before the clock ran, and what was still under way when it stopped, is no part of the rate. */
static void it_counts_between_two_reads(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    for (unsigned depth = 1; depth <= 8; depth *= 2) {
        struct ns_disk_rate r;
        struct ns_disk_test t = {.block_bytes = 100000, .depth = depth, .warm_ms = 20};
        uint64_t begin = ns_clock_mono_ns();
        assert_int_equal(ns_disk_measure(&f.config, f.shards, &t, &f.budget, &r, NULL), NS_OK);
        assert_true(r.ns + t.warm_ms * 1000000u <= ns_clock_mono_ns() - begin);
        assert_true(r.reads == depth); /* without a limit each place counts once */
        assert_true(r.reads_beside >= depth);
        assert_true(r.bytes > 0 && r.bytes <= r.reads * (100000 + 8192));
    }
    fixture_close(&f);
}

static void it_fails_by_name(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_disk_rate r;
    struct ns_disk_test t = {.block_bytes = 65536, .depth = 0, .limit_ms = 5};
    assert_int_equal(ns_disk_measure(&f.config, f.shards, &t, &f.budget, &r, NULL), NS_USAGE);
    t.depth = 2;
    t.block_bytes = SIZE_MAX - 1;
    assert_int_equal(ns_disk_measure(&f.config, f.shards, &t, &f.budget, &r, NULL), NS_USAGE);
    t.block_bytes = 65536;
    t.no_direct = true;
    struct ns_error err = {0};
    ns_fault_arm(NS_FAULT_READ, 2);
    assert_int_equal(ns_disk_measure(&f.config, f.shards, &t, &f.budget, &r, &err), NS_IO);
    assert_non_null(strstr(err.message, ".safetensors, offset "));
    fixture_close(&f);
}

/* A test that begins where another ended reads something else: the place in an error tells. */
static void it_goes_on(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    for (int experts = 0; experts < 2; experts++) {
        char place[3][256];
        for (uint64_t first = 0; first < NS_COUNT(place); first++) {
            struct ns_disk_test t = {.experts = experts != 0,
                                     .block_bytes = 65536,
                                     .depth = 1,
                                     .limit_ms = 5,
                                     .no_direct = true,
                                     .first = first};
            struct ns_disk_rate r;
            struct ns_error err = {0};
            ns_fault_arm(NS_FAULT_READ, 1);
            assert_int_equal(ns_disk_measure(&f.config, f.shards, &t, &f.budget, &r, &err), NS_IO);
            ns_fault_disarm();
            snprintf(place[first], sizeof place[first], "%.255s", err.message);
        }
        assert_string_not_equal(place[0], place[1]);
        assert_string_not_equal(place[1], place[2]);
        assert_string_not_equal(place[0], place[2]);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_counts_what_it_reads),
        cmocka_unit_test(it_counts_between_two_reads),
        cmocka_unit_test(it_fails_by_name),
        cmocka_unit_test(it_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
