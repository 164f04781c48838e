/* score_test.c - scoring through the whole path (queue, scheduler, engine, result) on a fixture with expected values. */
#define _GNU_SOURCE
#include "night_fixture.h"

#include "json/json.h"
#include "sys/sys.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FIXTURE NS_TEST_DATA "/fixtures/k3-odd"

static void put_ids(FILE *out, const struct ns_json *ids, size_t from, size_t to)
{
    fputc('[', out);
    for (size_t i = from; i < to; i++) {
        int64_t id = -1;
        assert_true(ns_json_int(ns_json_item(ids, i), &id));
        fprintf(out, "%s%d", i > from ? "," : "", (int)id);
    }
    fputc(']', out);
}

static void put_all(FILE *out, const struct ns_json *ids)
{
    put_ids(out, ids, 0, ns_json_count(ids));
}

/* One choice line per prompt: its scoring cases of one context length are the choices; and an echo line per case, whose
 * token log-probabilities are the hand calculation. */
static void put_case(FILE *out, size_t p, size_t c, const struct ns_json *ids, const struct ns_json *scored)
{
    int64_t context = 0;
    assert_true(ns_json_int(ns_json_find(scored, "context_len"), &context));
    const struct ns_json *continuation = ns_json_find(scored, "continuation");
    fprintf(out, "{\"custom_id\":\"c%zu-%zu\",\"prompt\":", p, c);
    put_ids(out, ids, 0, (size_t)context);
    fprintf(out, ",\"choices\":[");
    put_all(out, continuation);
    /* three others, so that a constant score would show */
    fprintf(out, ",[1],[2,3],[500]]}\n");
    fprintf(out, "{\"custom_id\":\"e%zu-%zu\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":", p,
            c);
    fputc('[', out);
    for (size_t i = 0; i < (size_t)context + ns_json_count(continuation); i++) {
        int64_t id = -1;
        const struct ns_json *item =
            i < (size_t)context ? ns_json_item(ids, i) : ns_json_item(continuation, i - (size_t)context);
        assert_true(ns_json_int(item, &id));
        fprintf(out, "%s%d", i ? "," : "", (int)id);
    }
    fprintf(out, "],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}}\n");
}

static double number(const struct ns_json *value)
{
    double v = NAN;
    assert_true(ns_json_number(value, &v));
    return v;
}

static struct ns_json *read_result(struct night_fixture *f, char kind, size_t p, size_t c)
{
    static char text[65536];
    char id[32];
    snprintf(id, sizeof id, "%c%zu-%zu", kind, p, c);
    night_fixture_result(f, id, text, sizeof text);
    struct ns_json *doc = NULL;
    struct ns_error err = {0};
    if (ns_json_parse(text, strlen(text), &doc, &err) != NS_OK)
        fail_msg("%s: %s: %s", id, err.message, text);
    return doc;
}

static void check_case(struct night_fixture *f, size_t p, size_t c, const struct ns_json *scored, double atol)
{
    struct ns_json *choice = read_result(f, 'c', p, c), *echo = read_result(f, 'e', p, c);
    const struct ns_json *choices = ns_json_find(choice, "choices");
    assert_int_equal(ns_json_count(choices), 4);
    double got[4];
    for (size_t i = 0; i < 4; i++) {
        got[i] = number(ns_json_find(ns_json_item(choices, i), "logprob"));
        assert_true(got[i] < 0);
        for (size_t k = 0; k < i; k++)
            assert_true(got[i] != got[k]);
    }
    size_t n = ns_json_count(ns_json_find(scored, "continuation"));
    assert_true(fabs(got[0] - number(ns_json_find(scored, "logprob"))) <= atol * (double)n);
    bool want_greedy = false, greedy = true;
    assert_true(ns_json_bool(ns_json_find(scored, "is_greedy"), &want_greedy));
    assert_true(ns_json_bool(ns_json_find(ns_json_item(choices, 0), "is_greedy"), &greedy));
    assert_int_equal(greedy, want_greedy);
    const struct ns_json *logprobs =
        ns_json_find(ns_json_find(ns_json_item(ns_json_find(echo, "choices"), 0), "logprobs"), "token_logprobs");
    size_t all = ns_json_count(logprobs);
    assert_true(all > n);
    assert_true(ns_json_is_null(ns_json_item(logprobs, 0)));
    double sum = 0;
    for (size_t i = all - n; i < all; i++)
        sum += number(ns_json_item(logprobs, i));
    assert_true(fabs(sum - got[0]) <= 1e-5 * fabs(sum)); /* the same numbers, written in decimal and added up */
    ns_json_free(choice);
    ns_json_free(echo);
}

static void c86_choices_have_scores_of_their_own(void **state)
{
    (void)state;
    struct night_fixture f;
    night_fixture_open(&f);
    char *text = NULL;
    size_t n = 0;
    struct ns_error err = {0};
    struct ns_json *expected = NULL;
    assert_int_equal(ns_file_slurp(FIXTURE "/expected.json", (size_t)8 << 20, &f.budget, &text, &n, &err), NS_OK);
    assert_int_equal(ns_json_parse(text, n, &expected, &err), NS_OK);
    ns_budget_give(&f.budget, text);
    const struct ns_json *prompts = ns_json_find(expected, "prompts");
    double atol =
        number(ns_json_find(ns_json_find(ns_json_find(expected, "tolerance"), "recommended_f32"), "logprob_atol"));
    FILE *out = fopen(f.jobs, "w");
    assert_non_null(out);
    size_t cases = 0;
    for (size_t p = 0; p < ns_json_count(prompts); p++) {
        const struct ns_json *prompt = ns_json_item(prompts, p), *scoring = ns_json_find(prompt, "scoring");
        for (size_t c = 0; c < ns_json_count(scoring); c++, cases++)
            put_case(out, p, c, ns_json_find(prompt, "ids"), ns_json_item(scoring, c));
    }
    assert_int_equal(fclose(out), 0);
    assert_true(cases > 5);
    night_fixture_submit_file(&f);
    struct ns_night_options options = {.db_path = f.db, .model_dir = FIXTURE, .memory_bytes = (uint64_t)512 << 20};
    struct ns_night_report report;
    if (ns_night_run(&options, &report, &err) != NS_OK)
        fail_msg("%s: %s", err.context, err.message);
    assert_int_equal(report.requests_failed, 0);
    for (size_t p = 0; p < ns_json_count(prompts); p++) {
        const struct ns_json *scoring = ns_json_find(ns_json_item(prompts, p), "scoring");
        for (size_t c = 0; c < ns_json_count(scoring); c++)
            check_case(&f, p, c, ns_json_item(scoring, c), atol);
    }
    ns_json_free(expected);
    night_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(c86_choices_have_scores_of_their_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
