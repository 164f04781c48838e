/* sizing_test.c - the division of memory that serves a queue best. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "night/ceiling_impl.h"

static const size_t mb = 1000000;

/* A model of 10 GB in a gigabyte: rows 0.13 MB, a sequence 13.5 MB. */
static struct ns_plan usual(void)
{
    struct ns_plan p = {.rows_max = 2560,
                        .rows_most = 4096,
                        .floor_rows = 16,
                        .context = 131072,
                        .block_positions = 64,
                        .row_bytes = 125000,
                        .wave_bytes = 5000000,
                        .seq_bytes = 13500000,
                        .position_bytes = 9200,
                        .expert_bytes = 1700000,
                        .n_moe_layers = 15,
                        .n_experts = 320,
                        .top_k = 16,
                        .trunk_bytes = 1100 * mb,
                        .head_bytes = 268 * mb,
                        .embed_row_bytes = 4096,
                        .expert_total_bytes = 8160 * mb};
    p.store.expert_slots = 32;
    p.share[NS_SHARE_EXPERTS] = 32 * p.expert_bytes;
    p.share[NS_SHARE_ROWS] = 333 * mb;
    p.share[NS_SHARE_STATES] = 180 * mb;
    p.share[NS_SHARE_RESIDENT] = p.store.resident_bytes = 160 * mb;
    return p;
}

static const struct ns_work work = {.trunk = 550000000, .experts = 800000000, .head = 134000000, .attend = 70000};

static struct ns_engine_options size(const struct ns_appetite *a, uint32_t wave_rows)
{
    struct ns_plan plan = usual();
    struct ns_night_options options = {.wave_rows = wave_rows, .read_rate = 5e8, .fma_rate = 1e11};
    struct ns_engine_options out = {.rows_max = wave_rows};
    ns_size_memory(&plan, &work, a, &options, &out);
    return out;
}

static void generations_get_their_states(void **state)
{
    (void)state;
    struct ns_appetite a = {
        .generations = 64, .prompt_rows = 4096, .new_tokens = 2048, .longest_new = 32, .longest_body = 500};
    struct ns_engine_options o = size(&a, 0);
    uint32_t rows = o.rows_max > 0 ? o.rows_max : usual().rows_max;
    assert_in_range(rows, 512, 2560); /* many prompts in the first waves, few beside the last states */
    assert_true(o.state_bytes == 0 || o.state_bytes >= 600 * mb);
    a.generations = 8; /* all fit */
    a.prompt_rows = 512;
    a.new_tokens = 256;
    o = size(&a, 0);
    assert_true(o.state_bytes == 0 || o.state_bytes >= 8 * 13 * mb);
    assert_true(o.rows_max == 0 || o.rows_max >= 64);
    assert_int_equal(o.store.expert_slots, 0);
}

/* A step takes as many passes as there are groups of states: with a few experts less in flight 46 and 47 find room at once,
 * and the reading that this makes slower weighs less than a second group. */
static void slots_are_given_for_states(void **state)
{
    (void)state;
    const struct ns_plan plan = usual();
    const size_t pool =
        plan.share[NS_SHARE_ROWS] + plan.share[NS_SHARE_STATES] + plan.share[NS_SHARE_RESIDENT] - plan.wave_bytes;
    const size_t each = plan.seq_bytes + 2 * (64 * plan.position_bytes + 256) + plan.row_bytes;
    for (size_t n = 46; n <= 47; n++) {
        struct ns_appetite a = {.longest_new = 32, .longest_body = 500};
        a.generations = (double)n;
        a.prompt_rows = 64 * a.generations;
        a.new_tokens = 32 * a.generations;
        struct ns_engine_options o = size(&a, 0);
        assert_true(n * each > pool);
        assert_in_range(o.store.expert_slots, 4, 31);
        assert_true(n * each <= pool + (32 - o.store.expert_slots) * plan.expert_bytes);
    }
}

/* Prompts of many times the tokens that follow: states leave rows for those that are to join. */
static void long_prompts_keep_rows_beside_states(void **state)
{
    (void)state;
    struct ns_appetite a = {.generations = 2000,
                            .prompt_rows = 2000 * 2000,
                            .new_tokens = 2000 * 32,
                            .longest_new = 32,
                            .longest_body = 10000};
    struct ns_engine_options o = size(&a, 0);
    uint32_t rows = o.rows_max > 0 ? o.rows_max : usual().rows_max;
    assert_true(rows >= 1000);
    assert_true(o.state_bytes == 0 || 673 * mb - o.state_bytes >= (size_t)250 * 125000);
}

static void scoring_keeps_its_rows(void **state)
{
    (void)state;
    struct ns_appetite a = {.score_rows = 16384, .longest_body = 500};
    struct ns_engine_options o = size(&a, 0);
    assert_true(o.rows_max == 0 || o.rows_max > 1500);
    assert_int_equal(o.store.expert_slots, 0); /* large waves use many experts at a time */
}

/* Half the usual states, and twice the longest sequence, however small the rest would be. */
static void nothing_is_refused_for_it(void **state)
{
    (void)state;
    struct ns_appetite a = {.score_rows = 200, .longest_body = 500};
    struct ns_engine_options o = size(&a, 0);
    assert_true(o.state_bytes == 0 || o.state_bytes >= 90 * mb);
    a.longest_body = 12000; /* bytes: at most as many tokens, 124 MB */
    o = size(&a, 0);
    assert_true(o.state_bytes == 0 || o.state_bytes >= 240 * mb);
    o = size(&a, 2560); /* rows that were asked for stay */
    assert_int_equal(o.rows_max, 2560);
}

/* However little is left, and even if nothing is known of it. */
static void a_wave_that_was_put_aside_fits(void **state)
{
    (void)state;
    struct ns_appetite little = {.score_rows = 20, .longest_body = 500};
    assert_true(size(&little, 0).rows_max < 2600);
    little.aside = (struct ns_suspend_size){.rows = 2600};
    assert_true(size(&little, 0).rows_max >= 2600);
    little.aside.n_seqs = 20; /* 270 MB of states and 325 MB of rows */
    struct ns_engine_options o = size(&little, 0);
    assert_true(o.rows_max >= 2600);
    assert_true(o.state_bytes == 0 || o.state_bytes >= 270 * mb);
    assert_int_equal(o.store.expert_slots, 0);
    little.aside.n_seqs = 28; /* 378 MB: more room beside the experts is needed */
    o = size(&little, 0);
    assert_true(o.rows_max >= 2600);
    assert_int_equal(o.state_bytes, 0);
    assert_in_range(o.store.expert_slots, 1, 31);
    struct ns_appetite unknown = {.aside.rows = 2600};
    assert_int_equal(size(&unknown, 0).rows_max, 2600);
    unknown.aside.rows = 2000;
    assert_int_equal(size(&unknown, 0).rows_max, 0);
}

static void an_empty_queue_changes_nothing(void **state)
{
    (void)state;
    struct ns_appetite a = {0};
    struct ns_engine_options o = size(&a, 0);
    assert_int_equal(o.rows_max, 0);
    assert_int_equal(o.state_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generations_get_their_states),
        cmocka_unit_test(slots_are_given_for_states),
        cmocka_unit_test(long_prompts_keep_rows_beside_states),
        cmocka_unit_test(scoring_keeps_its_rows),
        cmocka_unit_test(nothing_is_refused_for_it),
        cmocka_unit_test(an_empty_queue_changes_nothing),
        cmocka_unit_test(a_wave_that_was_put_aside_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
