/* simulate_test.c - the plan without the model, and what the account says about it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hash_machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 64, LONGEST = 600 };

struct job_set {
    uint32_t token[MANY][LONGEST];
    struct ns_sched_item item[MANY];
    size_t n;
};

static struct ns_sim_options k3_like(void)
{
    return (struct ns_sim_options){
        .model = {.trunk_bytes = 108810000000,
                  .head_bytes = 2350000000,
                  .expert_bytes = 17547000,
                  .n_moe_layers = 92,
                  .n_experts = 896,
                  .top_k = 16,
                  .fma_row = 103.5e9,
                  .fma_head = 1.17e9,
                  .fma_past = 2.5e6,
                  .memory_bytes = 2000000000,
                  .read_rate = 3.5e9,
                  .fma_rate = 8 * 14e9},
        .seed = 7,
        .state_bytes = 40000000000,
        .seq_bytes = 464600000,
        .seq_bytes_position = 55300,
        .rows_max = 4096,
        .context = 4096,
        .vocab = 160000,
    };
}

/* n items of length tokens of which the first are shared by all of a group of so many. */
static struct job_set *jobs(size_t n, uint32_t length, uint32_t shared, uint32_t group, uint32_t max_new)
{
    struct job_set *set = calloc(1, sizeof *set);
    assert_non_null(set);
    struct rng rng = {99};
    set->n = n;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < length; k++)
            set->token[i][k] = k < shared ? (uint32_t)(i / group * 1000 + k) : rng_below(&rng, 160000);
        set->item[i] = (struct ns_sched_item){.token = set->token[i],
                                              .n = length,
                                              .score_from = max_new > 0 ? 0 : length - 2,
                                              .max_new = max_new,
                                              .n_top = 1,
                                              .priority = 5};
    }
    return set;
}

static struct ns_sched_account simulate(const struct ns_sim_options *o, enum ns_sim_mode mode,
                                        const struct job_set *set)
{
    struct ns_budget budget;
    ns_budget_init(&budget, "test", 1u << 30);
    struct ns_sim_result result;
    struct ns_error err = {0};
    if (ns_sim_run(o, mode, set->item, set->n, &budget, &result, &err) != NS_OK)
        fail_msg("%s", err.message);
    assert_int_equal(ns_budget_used(&budget), 0);
    const struct ns_sched_account *a = &result.account;
    print_message("%-18s %5u waves %7u rows %8.1f GB %8.2f h  experts %8.0f  achieved %.2f  bound by %s\n",
                  ns_sim_mode_name(mode), (unsigned)a->waves, (unsigned)a->rows,
                  (double)(a->trunk_bytes + a->head_bytes + a->expert_bytes) / 1e9, result.hours,
                  (double)a->experts_distinct / (double)a->waves, a->achieved, ns_sched_bound_name(a->bound));
    return result.account;
}

static uint64_t bytes_of(const struct ns_sched_account *a)
{
    return a->trunk_bytes + a->head_bytes + a->expert_bytes;
}

static void sharing_saves_rows_and_bytes(void **state)
{
    (void)state;
    struct ns_sim_options o = k3_like();
    struct job_set *set = jobs(MANY, 420, 400, 16, 0);
    struct ns_sched_account one = simulate(&o, NS_SIM_ONE_BY_ONE, set), file = simulate(&o, NS_SIM_FILE_ORDER, set),
                            prefix = simulate(&o, NS_SIM_PREFIX, set);
    assert_int_equal(one.waves, MANY);
    assert_int_equal(one.rows, MANY * 419);
    assert_int_equal(file.rows, MANY * 419);
    assert_int_equal(prefix.rows, 4 * 400 + MANY * 19);
    assert_int_equal(prefix.rows + prefix.rows_prefix, one.rows);
    assert_int_equal(prefix.alone_rows, one.rows);
    assert_true(bytes_of(&file) * 3 < bytes_of(&one) * 2 && bytes_of(&prefix) * 5 < bytes_of(&file));
    /* what it would have cost alone is forecast by a formula of even choices: at least what was simulated */
    assert_true(prefix.alone_bytes > bytes_of(&one) && prefix.alone_bytes < 3 * bytes_of(&one));
    free(set);
}

/* Nothing is in memory before the first wave has read it. */
static void what_memory_keeps_is_read_once(void **state)
{
    (void)state;
    struct ns_sim_options o = k3_like();
    o.model.memory_bytes = 1ull << 50;
    struct job_set *set = jobs(MANY, 40, 0, 1, 0);
    for (enum ns_sim_mode mode = 0; mode < NS_SIM_MODES; mode++) {
        struct ns_sched_account a = simulate(&o, mode, set);
        assert_int_equal(a.trunk_bytes, o.model.trunk_bytes);
        assert_int_equal(a.head_bytes, o.model.head_bytes);
        assert_true(a.expert_bytes > 0);
    }
    free(set);
}

/* Without sharing, every waiting item has its tokens for itself: those that no wave can take yet stay outside. */
static void file_order_needs_little_memory(void **state)
{
    (void)state;
    struct ns_sim_options o = k3_like();
    o.rows_max = 8;
    struct job_set *set = jobs(MANY, LONGEST, 0, 1, 0);
    struct ns_budget budget;
    ns_budget_init(&budget, "test", sizeof set->token / 2);
    struct ns_sim_result result;
    assert_int_equal(ns_sim_run(&o, NS_SIM_FILE_ORDER, set->item, set->n, &budget, &result, NULL), NS_OK);
    assert_int_equal(result.account.rows, MANY * (LONGEST - 1));
    free(set);
}

static void same_seed_same_result(void **state)
{
    (void)state;
    struct ns_sim_options o = k3_like();
    struct job_set *set = jobs(15, 64, 0, 1, 5);
    struct ns_sched_account a = simulate(&o, NS_SIM_EXPERTS, set), b = simulate(&o, NS_SIM_EXPERTS, set);
    assert_int_equal(a.experts_distinct, b.experts_distinct);
    assert_int_equal(a.wall_ns, b.wall_ns);
    assert_int_equal(a.rows, 15 * (64 + 4));
    assert_int_equal(a.waves, 5);
    o.seed++;
    b = simulate(&o, NS_SIM_EXPERTS, set);
    assert_int_not_equal(a.experts_distinct, b.experts_distinct);
    free(set);
}

static void topics_go_together(void **state)
{
    (void)state;
    for (uint32_t rows = 8; rows <= 16; rows *= 2) {
        struct ns_sim_options o = k3_like();
        o.sched.rows = rows;
        o.model.n_experts = 256;
        o.model.top_k = 8;
        struct job_set *set = jobs(MANY, 12, 0, 1, 40);
        for (uint32_t i = 0; i < MANY; i++)
            set->token[i][0] = i % 7; /* seven topics, one after the other */
        print_message("many topics, waves of %u rows\n", rows);
        struct ns_sched_account file = simulate(&o, NS_SIM_FILE_ORDER, set);
        struct ns_sched_account grouped = simulate(&o, NS_SIM_EXPERTS, set);
        assert_true(grouped.experts_distinct * 100 < file.experts_distinct * 50);
        free(set);
    }
}

/* Reads a trace of the moe-route-v1 kind with as little as it takes; expert is [tokens][layers][k]. */
static uint16_t *trace_read(const char *path, uint32_t n_layers, uint32_t top_k, uint32_t *n_tokens)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t per = (size_t)n_layers * top_k, n = 0;
    uint16_t *expert = calloc(400 * per, sizeof *expert);
    assert_non_null(expert);
    static char line[1 << 17];
    assert_non_null(fgets(line, sizeof line, f));
    for (*n_tokens = 0; fgets(line, sizeof line, f) && *n_tokens < 400; ++*n_tokens) {
        char *at = strstr(line, "\"e\":");
        assert_non_null(at);
        size_t here = 0;
        for (at += 4; *at && here < per;)
            if (*at >= '0' && *at <= '9') {
                expert[n++] = (uint16_t)strtoul(at, &at, 10);
                here++;
            } else {
                at++;
            }
        assert_int_equal(here, per);
    }
    assert_int_equal(fclose(f), 0);
    return expert;
}

/* Real routing, generations in small waves: those that share experts go together. The constants of group.c were chosen
 * on the whole traces; each half by itself, with the other half never seen, must show the gain as well. */
static void grouping_touches_fewer_experts(void **state)
{
    (void)state;
    static const char *const parts[] = {"whole", "first half", "second half"};

    static const struct {
        const char *name;
        uint32_t layers, experts, top_k;
    } trace[] = {{"kimi_linear_300", 26, 256, 8}, {"olmoe_299", 16, 64, 8}};

    for (size_t t = 0; t < NS_COUNT(trace); t++) {
        char path[512];
        snprintf(path, sizeof path, "%s/traces/%s.jsonl", NS_TEST_DATA, trace[t].name);
        struct ns_sim_routing routing = {
            .n_layers = trace[t].layers, .n_experts = trace[t].experts, .top_k = trace[t].top_k};
        uint16_t *expert = trace_read(path, routing.n_layers, routing.top_k, &routing.n_tokens);
        uint32_t all = routing.n_tokens, half = all / 2;
        for (uint32_t run = 0; run < 2 * NS_COUNT(parts); run++) {
            uint32_t part = run / 2, rows = run % 2 ? 16 : 8;
            routing.n_tokens = part == 0 ? all : half;
            routing.expert = expert + (part == 2 ? (size_t)half * routing.n_layers * routing.top_k : 0);
            struct ns_sim_options o = k3_like();
            o.routing = &routing;
            o.model.n_moe_layers = routing.n_layers;
            o.model.n_experts = routing.n_experts;
            o.model.top_k = routing.top_k;
            o.sched.rows = rows;
            struct job_set *set = jobs(MANY, 12, 0, 1, 40);
            print_message("%s, %s, waves of %u rows\n", trace[t].name, parts[part], rows);
            struct ns_sched_account file = simulate(&o, NS_SIM_FILE_ORDER, set);
            simulate(&o, NS_SIM_PREFIX, set);
            struct ns_sched_account grouped = simulate(&o, NS_SIM_EXPERTS, set);
            assert_true(grouped.experts_distinct * 100 < file.experts_distinct * 92);
            assert_true(grouped.waves <= file.waves);
            free(set);
        }
        free(expert);
    }
}

static void bound_is_below_what_was_done(void **state)
{
    (void)state;
    struct ns_sim_options o = k3_like();
    struct job_set *score = jobs(MANY, 64, 0, 1, 0), *generate = jobs(MANY, 64, 0, 1, 16);
    struct ns_sched_account s = simulate(&o, NS_SIM_EXPERTS, score), g = simulate(&o, NS_SIM_EXPERTS, generate);
    assert_true(s.achieved > 0.5 && s.achieved <= 1);
    assert_true(g.achieved > 0.5 && g.achieved <= 1);
    assert_true(fabs(s.bound_compute_s * o.model.fma_rate / ((double)s.rows * 103.5e9) - 1) < 0.05);
    assert_int_equal(g.rows_decode, MANY * 15);
    assert_int_equal(g.rows_prefill, MANY * 64);
    assert_int_equal(g.waves, 16); /* one for all prompts: where rates are known the first wave is as large as may be */
    free(score);
    free(generate);
}

/* States that memory cannot hold have to be read, or the weights more often. */
static void bound_counts_states(void **state)
{
    (void)state;
    struct ns_sim_options o = k3_like();
    o.model.read_rate = 1e9; /* the disk is the limit */
    struct job_set *generate = jobs(MANY, 64, 0, 1, 16);
    struct ns_sched_account none = simulate(&o, NS_SIM_EXPERTS, generate);
    o.model.state_bytes = o.seq_bytes; /* 64 of them: 29.7 GB, 27.7 more than memory */
    struct ns_sched_account all = simulate(&o, NS_SIM_EXPERTS, generate);
    double more = (all.bound_disk_s - none.bound_disk_s) * o.model.read_rate;
    double steps = 15 * (MANY * (double)o.seq_bytes - (double)o.model.memory_bytes);
    assert_true(fabs(more / steps - 1) < 1e-6);
    o.model.memory_bytes = 120000000000; /* the dense weights and all states find room */
    double roomy = simulate(&o, NS_SIM_EXPERTS, generate).bound_disk_s;
    o.model.state_bytes = 0;
    assert_true(fabs(simulate(&o, NS_SIM_EXPERTS, generate).bound_disk_s / roomy - 1) < 1e-9);
    /* four at a time: states are never read, at the price of passes; that is no less than the bound */
    o = k3_like();
    o.model.state_bytes = o.seq_bytes;
    o.state_bytes = o.model.memory_bytes;
    struct ns_sched_account few = simulate(&o, NS_SIM_EXPERTS, generate);
    assert_true(few.waves > 100 && few.achieved <= 1);
    free(generate);
}

/* What a run does: rows that prompts do not need any more become states, and weights stay in what both leave. */
static void rows_and_states_share_memory(void **state)
{
    (void)state;
    struct ns_sim_options o = k3_like();
    struct job_set *generate = jobs(MANY, 64, 0, 1, 16), *score = jobs(MANY, 64, 0, 1, 0);
    const uint64_t row = 300000, all = MANY * (o.seq_bytes + 80 * o.seq_bytes_position) + 3 * MANY * row;
    o.state_bytes = all - o.rows_max * row; /* room for 61, whatever the rows are */
    struct ns_sched_account split = simulate(&o, NS_SIM_PREFIX, generate);
    o.state_bytes = UINT64_MAX;
    o.room_bytes = all;
    o.row_bytes = row;
    struct ns_sched_account shared = simulate(&o, NS_SIM_PREFIX, generate);
    assert_true(split.waves >= 2 * 16 - 1);
    /* the last prompts find few rows left beside the states, but they need not wait until others have ended */
    assert_true(shared.waves > 16 && shared.waves < 16 + 8);
    assert_int_equal(shared.trunk_kept_bytes, 0);
    /* scoring has no states: all but its rows keeps weights, once they were read */
    o.sched.rows = 16 * 64;
    o.keep_bytes = all;
    struct ns_sched_account kept = simulate(&o, NS_SIM_PREFIX, score);
    assert_int_equal(kept.waves, 4);
    assert_int_equal(kept.trunk_kept_bytes, 3 * (all - 16 * 63 * row));
    assert_int_equal(kept.trunk_bytes + kept.trunk_kept_bytes, 4 * o.model.trunk_bytes);
    free(generate);
    free(score);
}

static void impossible_models_are_refused(void **state)
{
    (void)state;
    struct ns_budget budget;
    ns_budget_init(&budget, "test", 1u << 20);
    struct ns_sim_result result;
    struct ns_sim_options o = k3_like();
    o.model.read_rate = 0;
    assert_int_equal(ns_sim_run(&o, NS_SIM_PREFIX, NULL, 0, &budget, &result, NULL), NS_USAGE);
    o = k3_like();
    uint16_t expert[16] = {[3] = 896};
    struct ns_sim_routing routing = {.n_layers = 1, .n_experts = 896, .top_k = 16, .n_tokens = 1, .expert = expert};
    o.routing = &routing;
    assert_int_equal(ns_sim_run(&o, NS_SIM_PREFIX, NULL, 0, &budget, &result, NULL), NS_INPUT);
    routing.top_k = 8;
    assert_int_equal(ns_sim_run(&o, NS_SIM_PREFIX, NULL, 0, &budget, &result, NULL), NS_INPUT);
    assert_int_equal(ns_budget_used(&budget), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_order_needs_little_memory),
        cmocka_unit_test(sharing_saves_rows_and_bytes),
        cmocka_unit_test(same_seed_same_result),
        cmocka_unit_test(grouping_touches_fewer_experts),
        cmocka_unit_test(topics_go_together),
        cmocka_unit_test(bound_is_below_what_was_done),
        cmocka_unit_test(bound_counts_states),
        cmocka_unit_test(rows_and_states_share_memory),
        cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(what_memory_keeps_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
