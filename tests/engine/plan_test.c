/* plan_test.c - the division of memory: it adds up, it has a sharp floor, and more memory never gives less. */
#include "wave_rig.h"

#include <stdio.h>
#include <string.h>

static enum ns_code plan_of(const char *checkpoint, size_t memory, uint32_t rows_max, struct ns_plan *plan,
                            struct ns_error *err)
{
    struct ns_engine_options o = rig_options();
    struct ns_budget budget;
    struct ns_work work;
    o.rows_max = rows_max;
    o.context = 2048;
    ns_budget_init(&budget, "plan", memory);
    enum ns_code rc = ns_plan_read(rig_path(checkpoint), &o, &budget, plan, &work, err);
    assert_int_equal(ns_budget_used(&budget), 0);
    return rc;
}

static void shares_sum_below_the_budget(void **state)
{
    (void)state;
    static const size_t memory[] = {12u << 20, 16u << 20, 64u << 20, 1000u << 20, (size_t)16 << 30};
    for (size_t c = 0; c < NS_COUNT(rig_checkpoints); c++)
        for (size_t m = 0; m < NS_COUNT(memory); m++) {
            struct ns_plan plan = {0};
            assert_int_equal(plan_of(rig_checkpoints[c], memory[m], 0, &plan, NULL), NS_OK);
            size_t sum = plan.used_bytes;
            for (int i = 0; i < NS_SHARES; i++)
                sum += plan.share[i];
            assert_true(sum <= memory[m]);
            assert_true(plan.floor_bytes <= memory[m]);
            assert_in_range(plan.rows_max, plan.floor_rows, 4096);
        }
}

static void monotonic(void **state)
{
    (void)state;
    struct ns_plan before = {0};
    for (size_t memory = 12u << 20; memory < (size_t)8 << 30; memory += memory / 3) {
        struct ns_plan plan = {0};
        assert_int_equal(plan_of("k3-tiny", memory, 0, &plan, NULL), NS_OK);
        assert_true(plan.rows_max >= before.rows_max);
        assert_true(plan.store.resident_bytes >= before.store.resident_bytes);
        assert_true(plan.share[NS_SHARE_STATES] >= before.share[NS_SHARE_STATES]);
        before = plan;
    }
    /* C73: the cache grows, and stops at the size of the model */
    assert_int_equal(before.rows_max, 4096);
    assert_true(before.store.resident_bytes >= before.trunk_bytes + before.head_bytes + before.expert_total_bytes);
    assert_int_equal(before.keep.trunk_bytes, before.trunk_bytes);
    assert_int_equal(before.keep.head_bytes, before.head_bytes);
    assert_int_equal(before.keep.experts, before.n_moe_layers * before.n_experts);
    struct ns_plan more = {0};
    assert_int_equal(plan_of("k3-tiny", (size_t)20 << 30, 0, &more, NULL), NS_OK);
    assert_int_equal(more.store.resident_bytes, before.store.resident_bytes);
}

static void floor_is_sharp(void **state)
{
    (void)state;
    for (size_t c = 0; c < NS_COUNT(rig_checkpoints); c++) {
        struct ns_plan plan = {0}, at = {0}, below = {0};
        struct ns_error err = {0};
        assert_int_equal(plan_of(rig_checkpoints[c], 64u << 20, 0, &plan, NULL), NS_OK);
        assert_int_equal(plan_of(rig_checkpoints[c], plan.floor_bytes, 0, &at, NULL), NS_OK);
        assert_true(at.rows_max >= at.floor_rows);
        assert_int_equal(plan_of(rig_checkpoints[c], plan.floor_bytes - 1, 0, &below, &err), NS_BUDGET);
        assert_int_equal(below.floor_bytes, plan.floor_bytes);
        char number[32];
        snprintf(number, sizeof number, "%zu", plan.floor_bytes);
        assert_non_null(strstr(err.message, number));
    }
}

/* An engine with exactly the floor runs the waves and the sequence that the floor promises. */
static void the_floor_works(void **state)
{
    (void)state;
    struct ns_plan plan = {0};
    struct ns_engine_options o = rig_options();
    struct rig rig;
    uint32_t id[16];
    struct ns_seq *seq = NULL;
    o.rows_max = 0;
    o.context = 2048;
    assert_int_equal(plan_of("k3-tiny", 64u << 20, 0, &plan, NULL), NS_OK);
    rig_open(&rig, rig_path("k3-tiny"), &o, plan.floor_bytes);
    assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
    rig_prompt(id, 16, ns_engine_config(rig.engine)->vocab, 1);
    for (uint32_t i = 0; i < 64; i++) {
        struct ns_segment s = {.token = id, .n = 16, .parent = NS_NO_PARENT, .from = i ? seq : NULL, .into = seq};
        rig_wave(&rig, &s, 1, NULL, 0, NULL);
    }
    assert_int_equal(ns_seq_positions(seq), 1024);
    assert_true(ns_budget_peak(&rig.budget) <= plan.floor_bytes);
    ns_seq_close(seq);
    rig_close(&rig);
}

static void too_many_rows_are_refused(void **state)
{
    (void)state;
    struct ns_plan plan = {0};
    struct ns_error err = {0};
    assert_int_equal(plan_of("k3-tiny", 32u << 20, 1000000, &plan, &err), NS_BUDGET);
    assert_non_null(strstr(err.message, "fit"));
}

static void forecast(void **state)
{
    (void)state;
    struct ns_plan plan = {.n_experts = 896,
                           .top_k = 16,
                           .n_moe_layers = 92,
                           .expert_bytes = 17547264,
                           .trunk_bytes = 108811877376,
                           .head_bytes = 2348810240,
                           .embed_row_bytes = 14336};
    struct ns_work work = {.trunk = 54, .experts = 48, .head = 1, .attend = 2};
    struct ns_forecast f;

    static const struct {
        uint32_t rows;
        double union_size;
    } want[] = {{1, 16.0}, {4, 62.3}, {16, 224.4}, {64, 613.2}, {256, 887.1}}; /* the specification's table */

    for (size_t i = 0; i < NS_COUNT(want); i++) {
        struct ns_load_shape one = {.rows = want[i].rows, .head_rows = 1};
        ns_plan_forecast(&plan, &work, &one, &f);
        double got = (double)f.experts_distinct / 92;
        assert_true(got > want[i].union_size - 0.06 && got < want[i].union_size + 0.06);
    }
    struct ns_load_shape ten = {.rows = 10, .distinct = 100, .mean_context = 7};
    ns_plan_forecast(&plan, &work, &ten, &f);
    assert_int_equal(f.experts_distinct, 9200);
    assert_int_equal(f.head_bytes, 0);
    assert_int_equal(f.trunk_bytes, plan.trunk_bytes);
    assert_true(f.multiply_adds == 10 * (54 + 48 + 7 * 2.0));
    /* a tenth of all experts stays, and with them tiles; then states take all but 6 GB of the room */
    plan.keep = (struct ns_keep){.trunk_bytes = 5000000000, .head_bytes = 2000000000, .experts = 92 * 896 / 10};
    plan.share[NS_SHARE_STATES] = 1000000000;
    plan.share[NS_SHARE_RESIDENT] = 160000000000;
    struct ns_load_shape one = {.rows = 1, .head_rows = 1, .distinct = 16};
    ns_plan_forecast(&plan, &work, &one, &f);
    assert_int_equal(f.trunk_bytes, plan.trunk_bytes - 5000000000);
    assert_int_equal(f.head_bytes, plan.head_bytes - 2000000000);
    assert_int_equal(f.expert_bytes, (92 * 16 - 147) * plan.expert_bytes);
    assert_int_equal(f.kept_bytes, 7000000000 + 147 * plan.expert_bytes);
    one.state_bytes = 155000000000;
    ns_plan_forecast(&plan, &work, &one, &f);
    assert_int_equal(f.trunk_bytes, plan.trunk_bytes - 5000000000);
    assert_int_equal(f.head_bytes, plan.head_bytes - 1000000000);
    assert_int_equal(f.expert_bytes, 92 * 16 * plan.expert_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_sum_below_the_budget),
        cmocka_unit_test(monotonic),
        cmocka_unit_test(floor_is_sharp),
        cmocka_unit_test(the_floor_works),
        cmocka_unit_test(too_many_rows_are_refused),
        cmocka_unit_test(forecast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
