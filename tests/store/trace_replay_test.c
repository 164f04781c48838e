/* trace_replay_test.c - policies on recorded routing of three real models, and on traces small enough to work out by hand. */
#include "../scratch.h"
#include "store/store.h"

struct loaded {
    struct ns_budget budget;
    struct ns_trace trace;
    uint32_t *id;
};

static uint32_t number_after(const char *text, const char *key)
{
    const char *p = strstr(text, key);
    assert_non_null(p);
    return (uint32_t)strtoul(p + strlen(key), NULL, 10);
}

/* The format of tests/data/traces/README.md: a header line, then one token a line with one list of ids per layer. */
static void load(struct loaded *l, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/traces/%s", NS_TEST_DATA, name);
    ns_budget_init(&l->budget, "test", (size_t)256 << 20);
    struct ns_line_reader *r = NULL;
    const char *line;
    size_t n, at = 0;
    bool cut;
    assert_int_equal(ns_lines_open(path, 1 << 20, &l->budget, &r, NULL), NS_OK);
    assert_int_equal(ns_lines_next(r, &line, &n, &cut, NULL), NS_OK);
    l->trace = (struct ns_trace){.n_layers = number_after(line, "\"n_layer\":"),
                                 .n_experts = number_after(line, "\"n_expert\":"),
                                 .top_k = number_after(line, "\"top_k\":"),
                                 .n_tokens = number_after(line, "\"n_token\":")};
    size_t per_token = (size_t)l->trace.n_layers * l->trace.top_k;
    l->id = ns_budget_take(&l->budget, l->trace.n_tokens * per_token * sizeof *l->id, NULL);
    assert_non_null(l->id);
    for (;;) {
        assert_int_equal(ns_lines_next(r, &line, &n, &cut, NULL), NS_OK);
        if (!line)
            break;
        const char *p = strstr(line, "\"e\":");
        assert_non_null(p);
        size_t before = at;
        while (*p) {
            char *end;
            if (*p >= '0' && *p <= '9') {
                assert_true(at < l->trace.n_tokens * per_token);
                l->id[at++] = (uint32_t)strtoul(p, &end, 10);
                p = end;
            } else {
                p++;
            }
        }
        assert_int_equal(at - before, per_token);
    }
    assert_int_equal(at, l->trace.n_tokens * per_token);
    ns_lines_close(r);
    l->trace.id = l->id;
}

static void unload(struct loaded *l)
{
    ns_budget_give(&l->budget, l->id);
    ns_budget_fini(&l->budget);
}

static double hit_percent(struct loaded *l, enum ns_policy policy, uint32_t wave, double share)
{
    struct ns_replay_result r;
    uint32_t capacity = (uint32_t)(share * l->trace.n_layers * l->trace.n_experts);
    assert_int_equal(ns_replay(&l->trace, policy, wave, capacity, &l->budget, &r, NULL), NS_OK);
    assert_true(r.requests > 0);
    return 100.0 * (double)r.hits / (double)r.requests;
}

static const double sizes[] = {0.03, 0.06, 0.12, 0.25, 0.5};

static void compare(const char *name, const uint32_t *wave, size_t n_waves)
{
    struct loaded l;
    load(&l, name);
    for (size_t w = 0; w < n_waves; w++)
        for (size_t s = 0; s < NS_COUNT(sizes); s++) {
            double lru = hit_percent(&l, NS_POLICY_LRU, wave[w], sizes[s]);
            double lfu = hit_percent(&l, NS_POLICY_LFU, wave[w], sizes[s]);
            double ranked = hit_percent(&l, NS_POLICY_RANKED, wave[w], sizes[s]);
            double belady = hit_percent(&l, NS_POLICY_BELADY, wave[w], sizes[s]);
            print_message("%-22s wave %2u, %4.0f %% kept: lru %5.1f lfu %5.1f ranked %5.1f belady %5.1f\n", name,
                          (unsigned)wave[w], 100 * sizes[s], lru, lfu, ranked, belady);
            assert_true(lru <= belady + 1e-9 && lfu <= belady + 1e-9 && ranked <= belady + 1e-9);
            /* once everything fits, all are the same: the first use of each is all that misses */
            assert_true(ranked > lru || (lru == belady && ranked == belady));
            if (sizes[s] == 0.25)
                assert_true(belady - ranked <= 15.0);
        }
    unload(&l);
}

static void ranked_beats_lru_and_nears_the_bound(void **state)
{
    (void)state;
    static const uint32_t waves[] = {1, 8, 32};
    static const uint32_t short_waves[] = {1, 2, 4};
    compare("kimi_linear_300.jsonl", waves, NS_COUNT(waves));
    compare("olmoe_299.jsonl", waves, NS_COUNT(waves));
    compare("kimi_k3_12.jsonl", short_waves, NS_COUNT(short_waves));
}

/* One layer of four experts, one choice a token: 0 1 2 0 1 2 ... with two places. */
static void a_cycle_by_hand(void **state)
{
    (void)state;
    struct loaded l = {.trace = {.n_layers = 1, .n_experts = 4, .top_k = 1, .n_tokens = 9}};
    uint32_t ids[9] = {0, 1, 2, 0, 1, 2, 0, 1, 2};
    l.trace.id = ids;
    ns_budget_init(&l.budget, "test", 1 << 20);
    struct ns_replay_result r;
    assert_int_equal(ns_replay(&l.trace, NS_POLICY_LRU, 1, 2, &l.budget, &r, NULL), NS_OK);
    assert_int_equal(r.requests, 9);
    assert_int_equal(r.hits, 0);
    assert_int_equal(ns_replay(&l.trace, NS_POLICY_BELADY, 1, 2, &l.budget, &r, NULL), NS_OK);
    assert_int_equal(r.hits, 4); /* 0 1 stay: hits at 3, 4, 6, 7 */
    assert_int_equal(ns_replay(&l.trace, NS_POLICY_LRU, 1, 3, &l.budget, &r, NULL), NS_OK);
    assert_int_equal(r.hits, 6);
    /* waves of three tokens ask once for each of the union */
    assert_int_equal(ns_replay(&l.trace, NS_POLICY_RANKED, 3, 3, &l.budget, &r, NULL), NS_OK);
    assert_int_equal(r.requests, 9);
    assert_int_equal(r.hits, 6);
    assert_int_equal(ns_replay(&l.trace, NS_POLICY_RANKED, 3, 0, &l.budget, &r, NULL), NS_OK);
    assert_int_equal(r.hits, 0);
    ns_budget_fini(&l.budget);
}

static void bad_traces_are_refused(void **state)
{
    (void)state;
    struct loaded l = {.trace = {.n_layers = 1, .n_experts = 4, .top_k = 1, .n_tokens = 2}};
    uint32_t ids[2] = {0, 4};
    l.trace.id = ids;
    ns_budget_init(&l.budget, "test", 1 << 20);
    struct ns_replay_result r;
    struct ns_error err = {0};
    assert_int_equal(ns_replay(&l.trace, NS_POLICY_LRU, 1, 2, &l.budget, &r, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "expert 4"));
    l.trace.n_tokens = 1;
    assert_int_equal(ns_replay(&l.trace, NS_POLICY_LRU, 0, 2, &l.budget, &r, NULL), NS_INPUT);
    ns_budget_fini(&l.budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cycle_by_hand),
        cmocka_unit_test(bad_traces_are_refused),
        cmocka_unit_test(ranked_beats_lru_and_nears_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
