/* claim_test.c - who is next: priorities, fair shares, bounded overtaking, suspects. */
#include "rig.h"

static int setup(void **state)
{
    struct rig *g = calloc(1, sizeof *g);
    rig_open(g);
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    rig_close(*state);
    free(*state);
    return 0;
}

/* n lines whose ids begin with prefix; each line in one of groups groups by its first tokens. */
static int64_t submit_many(struct rig *g, const char *prefix, int n, int groups, int max_tokens, int priority)
{
    char *text = malloc((size_t)n * 80 + 1), *p = text;
    for (int i = 0; i < n; i++)
        p += sprintf(p, "{\"custom_id\":\"%s%d\",\"prompt\":[%d],\"max_tokens\":%d}\n", prefix, i, 1 + i % groups,
                     max_tokens);
    struct ns_submit_options o = {.priority = priority};
    struct ns_submit_report report;
    int64_t id = 0;
    RIG_OK(rig_submit_as(g, prefix, text, &o, &report, err));
    RIG_OK(ns_queue_find_batch(g->q, report.batch_id, &id, err));
    ns_submit_report_fini(&report);
    free(text);
    return id;
}

/* Picks n, ends them without running, and notes the ids in order. */
static size_t take(struct rig *g, size_t n, int64_t *id, bool *alone)
{
    struct ns_claim_limits limits = {.requests = n};
    struct ns_claim **claim;
    size_t got;
    RIG_OK(ns_runner_claim(g->r, &limits, &g->budget, &claim, &got, alone, err));
    for (size_t i = 0; i < got; i++) {
        id[i] = claim[i]->request_id;
        ns_claim_close(claim[i]);
    }
    ns_budget_give(&g->budget, claim);
    return got;
}

static void urgent_first(void **state)
{
    struct rig *g = *state;
    int64_t id[40], low = submit_many(g, "l", 10, 10, 4, 8), high = submit_many(g, "h", 10, 10, 4, 2);
    bool alone;
    rig_start(g);
    assert_int_equal(take(g, 20, id, &alone), 20);
    assert_false(alone);
    int early = 0;
    char sql[80];
    for (int i = 0; i < 10; i++) {
        snprintf(sql, sizeof sql, "SELECT batch_id FROM requests WHERE id = %lld", (long long)id[i]);
        early += rig_int(g, sql) == high;
    }
    assert_true(early >= 8); /* one place in eight is for the oldest of all */
    (void)low;
    assert_int_equal(take(g, 20, id, &alone), 0);
    rig_stop(g);
}

static void age_raises_a_class(void **state)
{
    struct rig *g = *state;
    int64_t id[40], old = submit_many(g, "o", 8, 8, 4, 8);
    submit_many(g, "n", 8, 8, 4, 5);
    rig_sql(g, "UPDATE requests SET enqueued_at = enqueued_at - 5 * 86400000 WHERE batch_id = 1");
    bool alone;
    rig_start(g);
    assert_int_equal(take(g, 8, id, &alone), 8);
    char sql[80];
    for (int i = 0; i < 8; i++) {
        snprintf(sql, sizeof sql, "SELECT batch_id FROM requests WHERE id = %lld", (long long)id[i]);
        assert_int_equal(rig_int(g, sql), old);
    }
    rig_stop(g);
}

/* One batch of long requests, one of short ones: each gets about half of the tokens. */
static void shares_are_fair(void **state)
{
    struct rig *g = *state;
    int64_t id[440], longs = submit_many(g, "long", 400, 400, 1000, 5);
    submit_many(g, "short", 400, 400, 10, 5);
    bool alone;
    rig_start(g);
    assert_int_equal(take(g, 440, id, &alone), 440);
    int n_long = 0;
    char sql[80];
    for (int i = 0; i < 440; i++) {
        snprintf(sql, sizeof sql, "SELECT batch_id FROM requests WHERE id = %lld", (long long)id[i]);
        n_long += rig_int(g, sql) == longs;
    }
    assert_true(n_long < 120); /* plain order would have taken 400 */
    rig_stop(g);
}

static void overtaking_is_bounded(void **state)
{
    struct rig *g = *state;

    enum { N = 600 };

    submit_many(g, "r", N, 7, 4, 5);
    bool alone;
    int64_t id[N];
    size_t n = 0;
    rig_start(g);
    while (n < N)
        n += take(g, 13, id + n, &alone);
    for (size_t i = 0; i < N; i++) {
        size_t overtakers = 0; /* later lines that came first */
        for (size_t k = 0; k < i; k++)
            overtakers += id[k] > id[i];
        assert_true(overtakers <= 64);
    }
    size_t changes = 0; /* neighbours of different groups: plain order would have 599 */
    for (size_t i = 1; i < N; i++)
        changes += (id[i] - id[i - 1]) % 7 != 0;
    assert_true(changes < N / 2);
    rig_stop(g);
}

static void held_and_waiting_are_passed_by(void **state)
{
    struct rig *g = *state;
    int64_t id[40], held = submit_many(g, "h", 5, 5, 4, 5);
    submit_many(g, "w", 5, 5, 4, 5);
    bool alone;
    struct ns_change change = {0};
    RIG_OK(ns_queue_hold(g->q, held, true, &change, err));
    assert_int_equal(change.changed, 1);
    rig_sql(g, "UPDATE requests SET not_before = 9000000000000 WHERE id = 6");
    rig_start(g);
    assert_int_equal(take(g, 40, id, &alone), 4);
    RIG_OK(ns_queue_hold(g->q, held, false, &change, err));
    assert_int_equal(take(g, 40, id, &alone), 5);
    rig_stop(g);
}

static void batches_wait_for_others(void **state)
{
    struct rig *g = *state;
    int64_t id[40];
    submit_many(g, "first", 2, 2, 1, 5);
    submit_many(g, "then", 2, 2, 1, 5);
    rig_sql(g, "UPDATE batches SET after_batch = 1, after_rule = 'ok' WHERE id = 2");
    bool alone;
    rig_start(g);
    assert_int_equal(take(g, 40, id, &alone), 2);
    RIG_OK(ns_runner_yield(g->r, id, 2, err));
    rig_run(g, 40);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'done'"), 4);
    rig_stop(g);
}

static void suspects_are_halved(void **state)
{
    struct rig *g = *state;
    int64_t id[200];
    submit_many(g, "r", 100, 1, 4, 5);
    rig_sql(g, "UPDATE requests SET suspect = 2 WHERE id <= 40");
    rig_sql(g, "UPDATE requests SET suspect = 3 WHERE id <= 9");
    bool alone;
    rig_start(g);
    assert_int_equal(take(g, 200, id, &alone), 5); /* half of the nine, and nobody else */
    assert_true(alone);
    for (int i = 0; i < 5; i++)
        assert_true(id[i] <= 9);
    rig_stop(g);
}

static void many_at_once(void **state)
{
    struct rig *g = *state;
    submit_many(g, "r", 5000, 50, 4, 5);
    int64_t *id = calloc(5000, sizeof *id);
    bool alone;
    rig_start(g);
    uint64_t began = ns_clock_mono_ns();
    assert_int_equal(take(g, 4096, id, &alone), 4096);
    print_message("4,096 requests claimed in %.0f ms\n", (double)(ns_clock_mono_ns() - began) / 1e6);
    free(id);
    rig_stop(g);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(urgent_first),
                                       T(age_raises_a_class),
                                       T(shares_are_fair),
                                       T(overtaking_is_bounded),
                                       T(held_and_waiting_are_passed_by),
                                       T(batches_wait_for_others),
                                       T(suspects_are_halved),
                                       T(many_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
