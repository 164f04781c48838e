/* expected_test.c - every checkpoint against the float64 values that came with it: tokens and routed experts exactly,
 * numbers within the tolerance that each file states. With a folder as argument, that checkpoint and no other. */
#include "wave_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/json.h"
#include "sys/sys.h"

struct prompt {
    const struct ns_json *json;
    uint32_t *id;
    uint32_t n;
};

struct expected {
    struct ns_budget budget;
    char *text;
    struct ns_json *doc;
    struct prompt prompt[32];
    size_t n_prompts;
    double logits_atol, logprob_atol, router_atol, residual_rel;
    struct rig rig;
};

static double number(const struct ns_json *v)
{
    double x = NAN;
    assert_true(ns_json_number(v, &x));
    return x;
}

static uint32_t integer(const struct ns_json *v)
{
    int64_t x = -1;
    assert_true(ns_json_int(v, &x) && x >= 0);
    return (uint32_t)x;
}

static double tolerance(const struct ns_json *t, const char *key, double otherwise)
{
    const struct ns_json *v = ns_json_find(t, key);
    return v ? number(v) : otherwise;
}

static void load(struct expected *e, const char *checkpoint)
{
    char path[600];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/expected.json", rig_path(checkpoint));
    ns_budget_init(&e->budget, "expected", 64u << 20);
    assert_int_equal(ns_file_slurp(path, 32u << 20, &e->budget, &e->text, &n, NULL), NS_OK);
    assert_int_equal(ns_json_parse(e->text, n, &e->doc, NULL), NS_OK);
    const struct ns_json *t = ns_json_find(e->doc, "tolerance"), *f = ns_json_find(t, "recommended_f32");
    if (!f)
        f = t;
    e->logits_atol = tolerance(f, "logits_atol", tolerance(f, "recommended_logits_atol", NAN));
    e->logprob_atol = tolerance(f, "logprob_atol", tolerance(f, "recommended_logprob_atol", NAN));
    e->router_atol = tolerance(f, "router_weight_atol", NAN);
    e->residual_rel = tolerance(f, "residual_rel", NAN);
    assert_true(e->logits_atol > 0 && e->logprob_atol > 0);
    const struct ns_json *prompts = ns_json_find(e->doc, "prompts");
    e->n_prompts = ns_json_count(prompts);
    assert_in_range(e->n_prompts, 1, NS_COUNT(e->prompt));
    for (size_t i = 0; i < e->n_prompts; i++) {
        struct prompt *p = &e->prompt[i];
        p->json = ns_json_item(prompts, i);
        const struct ns_json *ids = ns_json_find(p->json, "ids");
        p->n = (uint32_t)ns_json_count(ids);
        p->id = malloc(p->n * sizeof *p->id);
        for (uint32_t t2 = 0; t2 < p->n; t2++)
            p->id[t2] = integer(ns_json_item(ids, t2));
    }
    struct ns_engine_options o = rig_options();
    rig_open(&e->rig, rig_path(checkpoint), &o, 256u << 20);
}

static void unload(struct expected *e)
{
    rig_close(&e->rig);
    for (size_t i = 0; i < e->n_prompts; i++)
        free(e->prompt[i].id);
    ns_json_free(e->doc);
    ns_budget_give(&e->budget, e->text);
    ns_budget_fini(&e->budget);
}

static bool contains(const struct ns_json *list, uint32_t v)
{
    for (size_t i = 0; i < ns_json_count(list); i++)
        if (integer(ns_json_item(list, i)) == v)
            return true;
    return false;
}

/* ---- all positions of all prompts, in one wave ------------------------------------------------------------------------------ */

struct logits_look {
    const struct expected *e;
    uint32_t last_row[32];
    size_t seen;
};

/* All logits after the last token of a prompt, or those of the best 16. */
static void check_logits(void *arg, uint32_t layer, const char *name, uint32_t row, const float *v, const uint32_t *ids,
                         size_t n)
{
    struct logits_look *look = arg;
    (void)layer;
    (void)ids;
    if (strcmp(name, "logits") != 0)
        return;
    for (size_t i = 0; i < look->e->n_prompts; i++) {
        if (look->last_row[i] != row)
            continue;
        const struct ns_json *json = look->e->prompt[i].json, *all = ns_json_find(json, "final_logits");
        const struct ns_json *top = ns_json_find(json, "final_top16");
        if (all)
            assert_int_equal(ns_json_count(all), n);
        for (size_t j = 0; j < ns_json_count(all); j++)
            if (!(fabs(number(ns_json_item(all, j)) - (double)v[j]) <= look->e->logits_atol))
                fail_msg("prompt %zu: logit %zu is %.7g, %.7g expected", i, j, (double)v[j],
                         number(ns_json_item(all, j)));
        for (size_t j = 0; j < ns_json_count(top); j++) {
            const struct ns_json *pair = ns_json_item(top, j);
            uint32_t id = integer(ns_json_item(pair, 0));
            assert_true(fabs(number(ns_json_item(pair, 1)) - (double)v[id]) <= look->e->logits_atol);
        }
        look->seen += ns_json_count(all) + ns_json_count(top);
    }
}

static void check_positions(const struct prompt *p, const struct ns_answer *a, double atol)
{
    const struct ns_json *argmax = ns_json_find(p->json, "argmax"), *logprobs = ns_json_find(p->json, "logprobs");
    const struct ns_json *fragile = ns_json_find(p->json, "fragile_positions");
    double sum = 0;
    for (uint32_t t = 0; t < p->n; t++) {
        assert_true(a[t].ok);
        if (argmax && !contains(fragile, t))
            assert_int_equal(a[t].best, integer(ns_json_item(argmax, t)));
        if (t + 1 < p->n) {
            double want = number(ns_json_item(logprobs, t + 1));
            if (!(fabs((double)a[t].target_logprob - want) <= atol))
                fail_msg("position %u: log-probability %.7g, %.7g expected", t, (double)a[t].target_logprob, want);
            sum += (double)a[t].target_logprob;
        }
    }
    const struct ns_json *total = ns_json_find(p->json, "loglikelihood");
    if (total)
        assert_true(fabs(sum - number(total)) <= atol * p->n);
    const struct ns_json *greedy = ns_json_find(p->json, "is_greedy");
    for (size_t t = 0; t < ns_json_count(greedy); t++) {
        bool want = false;
        assert_true(ns_json_bool(ns_json_item(greedy, t), &want));
        if (!contains(fragile, (uint32_t)t))
            assert_int_equal(want, a[t].best == p->id[t + 1]);
    }
}

static void all_positions(const char *checkpoint)
{
    struct expected e = {0};
    struct ns_segment segment[32];
    struct ns_ask *ask = NULL;
    struct logits_look look = {.e = &e};
    size_t n_asks = 0;
    load(&e, checkpoint);
    for (size_t i = 0; i < e.n_prompts; i++) {
        struct prompt *p = &e.prompt[i];
        segment[i] = (struct ns_segment){.token = p->id, .n = p->n, .parent = NS_NO_PARENT};
        ask = realloc(ask, (n_asks + p->n) * sizeof *ask);
        rig_ask_all(ask + n_asks, (uint32_t)i, p->id, p->n);
        n_asks += p->n;
        look.last_row[i] = (uint32_t)n_asks - 1;
    }
    struct ns_wave_desc desc = {.segment = segment, .n_segments = e.n_prompts, .ask = ask, .n_asks = n_asks};
    struct ns_probe probe = {.row = check_logits, .arg = &look, .logits = true};
    struct ns_wave *wave = NULL;
    assert_int_equal(ns_wave_open(e.rig.engine, &desc, &probe, &wave, NULL), NS_OK);
    for (bool done = false; !done;)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    const struct ns_answer *a = ns_wave_answers(wave);
    for (size_t i = 0; i < e.n_prompts; i++) {
        check_positions(&e.prompt[i], a, e.logprob_atol);
        a += e.prompt[i].n;
    }
    assert_true(look.seen > 0);
    ns_wave_close(wave);
    free(ask);
    unload(&e);
}

/* ---- greedy continuation: prompts in one wave, then one token of each a wave -------------------------------------------------- */

static void greedy_tokens(const char *checkpoint)
{
    struct expected e = {0};
    struct ns_segment segment[32];
    struct ns_ask ask[32];
    struct rig_result result[32];
    struct ns_seq *seq[32];
    uint32_t next[32];
    load(&e, checkpoint);
    uint32_t n = (uint32_t)e.n_prompts;
    size_t steps = ns_json_count(ns_json_find(e.prompt[0].json, "greedy"));
    assert_true(steps >= 16);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(ns_seq_open(e.rig.engine, &seq[i], NULL), NS_OK);
        segment[i] =
            (struct ns_segment){.token = e.prompt[i].id, .n = e.prompt[i].n, .parent = NS_NO_PARENT, .into = seq[i]};
        ask[i] = (struct ns_ask){.segment = i, .offset = e.prompt[i].n - 1, .target = NS_NO_TOKEN, .n_top = 1};
    }
    for (size_t t = 0; t < steps; t++) {
        rig_wave(&e.rig, segment, n, ask, n, result);
        for (uint32_t i = 0; i < n; i++) {
            next[i] = result[i].answer.best;
            assert_int_equal(next[i], integer(ns_json_item(ns_json_find(e.prompt[i].json, "greedy"), t)));
            segment[i] =
                (struct ns_segment){.token = &next[i], .n = 1, .parent = NS_NO_PARENT, .from = seq[i], .into = seq[i]};
            ask[i].offset = 0;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        ns_seq_close(seq[i]);
    unload(&e);
}

/* ---- scoring: (context, continuation) pairs, the context as a parent segment ------------------------------------------------ */

static void score(struct expected *e, const struct prompt *p, const struct ns_json *s)
{
    const struct ns_json *list = ns_json_find(s, "continuation");
    uint32_t context = integer(ns_json_find(s, "context_len")), n = (uint32_t)ns_json_count(list);
    uint32_t *id = malloc(n * sizeof *id);
    struct ns_ask *ask = malloc(n * sizeof *ask);
    struct rig_result *result = malloc(n * sizeof *result);
    for (uint32_t t = 0; t < n; t++) {
        id[t] = integer(ns_json_item(list, t));
        ask[t] = (struct ns_ask){.segment = 1, .offset = t - 1, .target = id[t], .n_top = 1};
    }
    ask[0].segment = 0;
    ask[0].offset = context - 1;
    struct ns_segment segment[2] = {{.token = p->id, .n = context, .parent = NS_NO_PARENT},
                                    {.token = id, .n = n, .parent = 0}};
    rig_wave(&e->rig, segment, 2, ask, n, result);
    double sum = 0;
    bool greedy = true, want = false;
    for (uint32_t t = 0; t < n; t++) {
        sum += (double)result[t].answer.target_logprob;
        greedy = greedy && result[t].answer.best == id[t];
    }
    assert_true(fabs(sum - number(ns_json_find(s, "logprob"))) <= e->logprob_atol * n);
    assert_true(ns_json_bool(ns_json_find(s, "is_greedy"), &want));
    assert_int_equal(greedy, want);
    free(id);
    free(ask);
    free(result);
}

static void scoring(const char *checkpoint)
{
    struct expected e = {0};
    size_t n = 0;
    load(&e, checkpoint);
    for (size_t i = 0; i < e.n_prompts; i++) {
        const struct ns_json *list = ns_json_find(e.prompt[i].json, "scoring");
        for (size_t j = 0; j < ns_json_count(list); j++, n++)
            score(&e, &e.prompt[i], ns_json_item(list, j));
    }
    assert_true(n > 0);
    unload(&e);
}

/* ---- traces ------------------------------------------------------------------------------------------------------------------------- */

struct trace_look {
    const struct expected *e;
    const struct ns_json *trace;
    uint32_t n;
    size_t checks;
    size_t layers;
};

/* [sum, L2 norm, v0, v1, v2, v3], each element within rel of the largest. */
static void check_vector(struct trace_look *look, const struct ns_json *want, const float *v, size_t n, double rel,
                         const char *what, uint32_t layer, uint32_t row)
{
    double sum = 0, square = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)v[i];
        square += (double)v[i] * (double)v[i];
        most = fmax(most, fabs((double)v[i]));
    }
    double got[6] = {sum, sqrt(square), (double)v[0], (double)v[1], (double)v[2], (double)v[3]};
    double scale[6] = {(double)n, sqrt((double)n), 1, 1, 1, 1};
    assert_int_equal(ns_json_count(want), 6);
    for (size_t i = 0; i < 6; i++) {
        double w = number(ns_json_item(want, i));
        if (!(fabs(got[i] - w) <= rel * most * scale[i] + 1e-7))
            fail_msg("layer %u row %u %s: value %zu is %.8g, %.8g expected", layer, row, what, i, got[i], w);
    }
    look->checks++;
}

static void check_routing(struct trace_look *look, const struct ns_json *layer_json, uint32_t layer, uint32_t row,
                          const float *v, const uint32_t *ids, size_t n)
{
    const struct ns_json *want_ids = ns_json_item(ns_json_find(layer_json, "routed_ids"), row);
    const struct ns_json *want = ns_json_item(ns_json_find(layer_json, "routed_weights"), row);
    assert_int_equal(ns_json_count(want_ids), n);
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        while (j < n && integer(ns_json_item(want_ids, j)) != ids[i])
            j++;
        if (j == n)
            fail_msg("layer %u row %u: expert %u was not expected", layer, row, ids[i]);
        if (!(fabs(number(ns_json_item(want, j)) - (double)v[i]) <= look->e->router_atol))
            fail_msg("layer %u row %u: expert %u has weight %.8g, %.8g expected", layer, row, ids[i], (double)v[i],
                     number(ns_json_item(want, j)));
    }
    look->checks++;
}

static void check_trace(void *arg, uint32_t layer, const char *name, uint32_t row, const float *v, const uint32_t *ids,
                        size_t n)
{
    struct trace_look *look = arg;
    double rel = look->e->residual_rel;
    const struct ns_json *l = ns_json_item(ns_json_find(look->trace, "layers"), layer);
    if (strcmp(name, "embed") == 0) {
        check_vector(look, ns_json_item(ns_json_find(look->trace, "embed"), row), v, n, 1e-7, name, layer, row);
    } else if (strcmp(name, "final") == 0) {
        check_vector(look, ns_json_item(ns_json_find(look->trace, "final_hidden"), row), v, n, rel, name, layer, row);
    } else if (strcmp(name, "residual") == 0) {
        check_vector(look, ns_json_item(ns_json_find(l, "residual"), row), v, n, rel, name, layer, row);
        look->layers = layer + 1;
    } else if (strcmp(name, "routed") == 0) {
        check_routing(look, l, layer, row, v, ids, n);
    } else if (row == look->n - 1 && strcmp(name, "logits") != 0) {
        char key[32];
        snprintf(key, sizeof key, "last_%s", name);
        check_vector(look, ns_json_find(l, key), v, n, rel, name, layer, row);
    }
}

static void traces(const char *checkpoint)
{
    struct expected e = {0};
    load(&e, checkpoint);
    const struct ns_json *all = ns_json_find(e.doc, "traces");
    size_t n_traces = 0;
    for (size_t i = 0; i < e.n_prompts; i++) {
        const struct prompt *p = &e.prompt[i];
        const char *name = NULL;
        size_t n_name = 0;
        char key[64];
        assert_true(ns_json_string(ns_json_find(p->json, "name"), &name, &n_name));
        snprintf(key, sizeof key, "%.*s", (int)n_name, name);
        struct trace_look look = {.e = &e, .trace = ns_json_find(all, key), .n = p->n};
        if (!look.trace)
            continue;
        struct ns_segment segment = {.token = p->id, .n = p->n, .parent = NS_NO_PARENT};
        struct ns_ask *ask = malloc(p->n * sizeof *ask);
        rig_ask_all(ask, 0, p->id, p->n);
        struct ns_wave_desc desc = {.segment = &segment, .n_segments = 1, .ask = ask, .n_asks = p->n};
        struct ns_probe probe = {.row = check_trace, .arg = &look};
        struct ns_wave *wave = NULL;
        assert_int_equal(ns_wave_open(e.rig.engine, &desc, &probe, &wave, NULL), NS_OK);
        for (bool done = false; !done;)
            assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
        ns_wave_close(wave);
        free(ask);
        assert_int_equal(look.layers, ns_json_count(ns_json_find(look.trace, "layers")));
        assert_true(look.checks > look.layers * p->n);
        n_traces++;
    }
    assert_int_equal(n_traces, 2);
    unload(&e);
}

static void k3_tiny(void **state)
{
    (void)state;
    all_positions("k3-tiny");
    greedy_tokens("k3-tiny");
    scoring("k3-tiny");
    traces("k3-tiny");
}

static void k3_odd(void **state)
{
    (void)state;
    all_positions("k3-odd");
    greedy_tokens("k3-odd");
    scoring("k3-odd");
    traces("k3-odd");
}

static void k3_realhead(void **state)
{
    (void)state;
    all_positions("k3-realhead");
    greedy_tokens("k3-realhead");
    scoring("k3-realhead");
    traces("k3-realhead");
}

static void kimi_linear_tiny(void **state)
{
    (void)state;
    all_positions("kimi-linear-tiny");
    greedy_tokens("kimi-linear-tiny");
    scoring("kimi-linear-tiny");
    traces("kimi-linear-tiny");
}

static void demo(void **state)
{
    (void)state;
    all_positions("demo");
    greedy_tokens("demo");
}

static const char *folder;

static void given(void **state)
{
    (void)state;
    all_positions(folder);
    greedy_tokens(folder);
    scoring(folder);
    traces(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest one[] = {cmocka_unit_test(given)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(k3_tiny),          cmocka_unit_test(k3_odd), cmocka_unit_test(k3_realhead),
        cmocka_unit_test(kimi_linear_tiny), cmocka_unit_test(demo),
    };
    folder = argc > 1 ? argv[1] : NULL;
    return folder ? cmocka_run_group_tests(one, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
