/* result_test.c - encoding, response bodies, output lines: their exact bytes. */
#include "words.h"

#include <math.h>

static const struct ns_run_facts facts = {.request_id = 12, .created_at_ms = 1700000000123, .attempts = 1, .waves = 3};

static void build(struct words *w, const struct ns_request *r, const struct ns_outcome *o, size_t n,
                  struct ns_result *out)
{
    struct ns_error err = {0};
    if (ns_result_build(r, &w->model, o, n, &facts, &w->budget, out, &err) != NS_OK)
        fail_msg("%s", err.message);
    char again[NS_SHA256_HEX];
    assert_int_equal(ns_result_content_hash(out->response.data, &w->budget, again, &err), NS_OK);
    assert_string_equal(again, out->content_sha256); /* a reader can compute it from the body */
}

/* Each allocation fails in turn: there is no result then, or the same one; never one with a word cut. */
static void same_without_memory(struct words *w, const struct ns_request *r, const struct ns_outcome *o,
                                const struct ns_result *whole)
{
    uint64_t n_refused = 0;
    for (uint64_t nth = 1, left = 0; left == 0; nth++) {
        struct ns_result x;
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        enum ns_code rc = ns_result_build(r, &w->model, o, 1, &facts, &w->budget, &x, NULL);
        left = ns_fault_left(NS_FAULT_ALLOC);
        ns_fault_disarm();
        n_refused += rc == NS_BUDGET;
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        if (rc == NS_OK) {
            assert_string_equal(x.content_sha256, whole->content_sha256);
            assert_string_equal(x.response.data, whole->response.data);
            assert_string_equal(x.local.data, whole->local.data);
        }
        ns_result_fini(&x);
    }
    assert_true(n_refused > 5);
}

static void a_completion_body(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;
    words_request(
        w, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"model\":\"M\",\"expected\":\"paris\",\"return_token_ids\":true}",
        &r);
    words_say(w, " Paris.<|end_of_msg|>");
    uint32_t prompt[] = {5, 6};
    struct ns_outcome o = {
        .prompt = prompt, .n_prompt = 2, .token = w->ids.id, .n_out = w->ids.n, .finish = NS_FINISH_STOP};
    build(w, &r, &o, 1, &x);
    char expected[700], ids[200] = "";
    for (size_t i = 0; i < w->ids.n; i++)
        snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%u", i ? "," : "", w->ids.id[i]);
    snprintf(
        expected, sizeof expected,
        "{\"id\":\"cmpl-12\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"M\",\"choices\":[{"
        "\"index\":0,\"text\":\" Paris.\",\"logprobs\":null,\"finish_reason\":\"stop\",\"token_ids\":[%s],"
        "\"prompt_token_ids\":[5,6]}],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":%zu,\"total_tokens\":%zu}}",
        ids, w->ids.n, w->ids.n + 2);
    assert_string_equal(x.response.data, expected);
    assert_int_equal(x.correct, 1);
    assert_int_equal(x.status, 200);
    ns_result_fini(&x);
    ns_request_fini(&r);
}

static void echo_and_logprobs(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\" a\",\"logprobs\":2,\"echo\":true,\"max_tokens\":1}", &r);
    words_say(w, " a b");
    assert_int_equal(w->ids.n, 2);
    uint32_t a = w->ids.id[0], b = w->ids.id[1], top[] = {b, 2306}, none[] = {0, 0};
    float lp[] = {-0.25f}, top_lp[] = {-0.25f, -INFINITY}, unused[] = {NAN, NAN};
    struct ns_outcome o = {.prompt = &a,
                           .n_prompt = 1,
                           .token = &b,
                           .n_out = 1,
                           .logprob = lp,
                           .top_id = top,
                           .top_logprob = top_lp,
                           .n_top = 2,
                           .prompt_logprob = unused,
                           .prompt_top_id = none,
                           .prompt_top_logprob = unused,
                           .finish = NS_FINISH_LENGTH};
    build(w, &r, &o, 1, &x);
    same_without_memory(w, &r, &o, &x);
    assert_non_null(strstr(x.response.data, "\"text\":\" a b\",\"logprobs\":{\"tokens\":[\" a\",\" b\"],"
                                            "\"token_logprobs\":[null,-0.25],\"top_logprobs\":[null,{\" b\":-0.25,"
                                            "\"<|end_of_msg|>\":-9999.0}],\"text_offset\":[0,2]},"
                                            "\"finish_reason\":\"length\""));
    assert_non_null(strstr(x.response.data, "\"model\":\"nightshift-0123456789ab\""));
    ns_result_fini(&x);
    ns_request_fini(&r);
}

static void c89_minus_infinity(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;
    struct ns_error err = {0};
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\" a\",\"logprobs\":0}", &r);
    words_say(w, " b");
    float lp[] = {-INFINITY};
    struct ns_outcome o = {
        .prompt = w->ids.id, .n_prompt = 1, .token = w->ids.id, .n_out = 1, .logprob = lp, .finish = NS_FINISH_LENGTH};
    build(w, &r, &o, 1, &x);
    assert_non_null(strstr(x.response.data, "\"token_logprobs\":[-9999.0],\"top_logprobs\":null"));
    ns_result_fini(&x);
    lp[0] = NAN;
    assert_int_equal(ns_result_build(&r, &w->model, &o, 1, &facts, &w->budget, &x, &err), NS_NONFINITE);
    struct ns_refusal refusal;
    ns_refusal_of_error(&err, &refusal);
    assert_int_equal(refusal.status, 500);
    assert_string_equal(refusal.code, "non_finite");
    assert_int_equal(ns_result_fail(&r, &w->model, &refusal, "layer 3", &facts, &w->budget, &x, NULL), NS_OK);
    assert_non_null(strstr(x.response.data, "{\"error\":{\"message\":"));
    assert_non_null(strstr(x.response.data, "\"type\":\"server_error\",\"param\":null,\"code\":\"non_finite\"}}"));
    assert_non_null(strstr(x.local.data, "\"context\":\"layer 3\",\"retry\":\"never\""));
    ns_result_fini(&x);
    refusal.line = 12;
    assert_int_equal(ns_result_fail(NULL, NULL, &refusal, NULL, NULL, &w->budget, &x, NULL), NS_OK);
    assert_non_null(strstr(x.local.data, "\"line\":12,\"retry\":\"never\""));
    ns_result_fini(&x);
    ns_request_fini(&r);
}

static void a_chat_body(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;
    words_request(
        w, "{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"expected\":\"oslo\"}", &r);
    words_say(w,
              "I think<|close|>think<|sep|><|open|>response<|sep|>It is Oslo.<|close|>response<|sep|><|end_of_msg|>");
    uint32_t prompt[] = {5};
    struct ns_outcome o = {
        .prompt = prompt, .n_prompt = 1, .token = w->ids.id, .n_out = w->ids.n, .finish = NS_FINISH_STOP};
    build(w, &r, &o, 1, &x);
    assert_non_null(strstr(x.response.data, "\"object\":\"chat.completion\""));
    assert_non_null(strstr(x.response.data,
                           "\"message\":{\"role\":\"assistant\",\"content\":\"It is Oslo.\","
                           "\"reasoning_content\":\"I think\"},\"logprobs\":null,\"finish_reason\":\"stop\""));
    assert_non_null(strstr(x.response.data, "\"completion_tokens_details\":{\"reasoning_tokens\":"));
    assert_int_equal(x.correct, 1);
    struct ns_text text;
    ns_text_init(&text, &w->budget);
    assert_int_equal(ns_result_text(x.response.data, NULL, &text, NULL), NS_OK);
    assert_string_equal(text.data, "It is Oslo.");
    ns_text_fini(&text);
    ns_result_fini(&x);
    ns_request_fini(&r);
}

static void chat_logprobs_follow_the_parts(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;
    words_request(w,
                  "{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logprobs\":true,"
                  "\"top_logprobs\":1,\"chat_template_kwargs\":{\"thinking\":false}}",
                  &r);
    words_say(w, " b<|end_of_msg|>");
    float lp[] = {-0.5f, -1}, top_lp[] = {-0.5f, -1};
    struct ns_outcome o = {.prompt = w->ids.id,
                           .n_prompt = 1,
                           .token = w->ids.id,
                           .n_out = 2,
                           .logprob = lp,
                           .top_id = w->ids.id,
                           .top_logprob = top_lp,
                           .n_top = 1,
                           .finish = NS_FINISH_STOP};
    build(w, &r, &o, 1, &x);
    assert_non_null(strstr(x.response.data,
                           "\"logprobs\":{\"content\":[{\"token\":\" b\",\"logprob\":-0.5,\"bytes\":[32,98],"
                           "\"top_logprobs\":[{\"token\":\" b\",\"logprob\":-0.5,\"bytes\":[32,98]}]}]}"));
    ns_result_fini(&x);
    ns_request_fini(&r);
}

static void a_choice_body(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"choices\":[\" a\",\" b\",\" c\"],\"answer\":1}", &r);
    struct ns_outcome o[3] = {{.n_prompt = 3, .n_scored = 2, .score = -9.1},
                              {.n_prompt = 2, .n_scored = 1, .score = -2.5, .is_greedy = true},
                              {.n_prompt = 2, .n_scored = 1, .score = -2.5}};
    build(w, &r, o, 3, &x);
    assert_string_equal(x.response.data,
                        "{\"object\":\"nightshift.choice\",\"best\":1,\"choices\":["
                        "{\"index\":0,\"text\":\" a\",\"logprob\":-9.1,\"n_tokens\":2,\"is_greedy\":false},"
                        "{\"index\":1,\"text\":\" b\",\"logprob\":-2.5,\"n_tokens\":1,\"is_greedy\":true},"
                        "{\"index\":2,\"text\":\" c\",\"logprob\":-2.5,\"n_tokens\":1,\"is_greedy\":false}],"
                        "\"answer\":1,\"correct\":true}");
    assert_int_equal(x.correct, 1);
    assert_int_equal(x.prompt_tokens, 1 + 2 + 1 + 1); /* choices are read */
    assert_int_equal(x.completion_tokens, 0);
    ns_result_fini(&x);
    o[2].score = NAN;
    assert_int_equal(ns_result_build(&r, &w->model, o, 3, &facts, &w->budget, &x, NULL), NS_NONFINITE);
    ns_request_fini(&r);
}

static void bodies_are_deterministic(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x, y;
    struct ns_run_facts other = {.request_id = 99, .created_at_ms = 5, .attempts = 7};
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"zzz\":1}", &r);
    words_say(w, " b");
    struct ns_outcome o = {
        .prompt = w->ids.id, .n_prompt = 1, .token = w->ids.id, .n_out = 1, .finish = NS_FINISH_LENGTH};
    build(w, &r, &o, 1, &x);
    assert_int_equal(ns_result_build(&r, &w->model, &o, 1, &other, &w->budget, &y, NULL), NS_OK);
    assert_string_equal(x.content_sha256, y.content_sha256);
    assert_string_not_equal(x.response.data, y.response.data);
    assert_non_null(strstr(x.local.data, "\"ignored\":[\"zzz\"]"));
    assert_non_null(strstr(x.local.data, "\"contract\":\"f32x16.1\",\"model\":\"0123456789abcdef\""));
    ns_result_fini(&x);
    ns_result_fini(&y);
    ns_request_fini(&r);
}

/* Every byte as a token, in text, token lists and alternatives: a strict reader takes the line. */
static void c98_any_text_is_written(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;

    enum { N = VOCAB };

    uint32_t *id = calloc(N, sizeof *id);
    float *lp = calloc(N, sizeof *lp);
    for (uint32_t i = 0; i < N; i++)
        id[i] = i;
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":[1],\"logprobs\":1,\"echo\":true,\"ignore_eos\":true}", &r);
    struct ns_outcome o = {.prompt = id,
                           .n_prompt = N,
                           .token = id,
                           .n_out = N,
                           .logprob = lp,
                           .top_id = id,
                           .top_logprob = lp,
                           .n_top = 1,
                           .prompt_logprob = lp,
                           .prompt_top_id = id,
                           .prompt_top_logprob = lp,
                           .finish = NS_FINISH_LENGTH};
    build(w, &r, &o, 1, &x);
    struct ns_text line;
    struct ns_json *doc = NULL;
    struct ns_error err = {0};
    ns_text_init(&line, &w->budget);
    ns_output_line(&line, 1, "any \xE2\x80\xA8 \xEF\xBF\xBF \x01\x1F\x7F \" \\", 200, x.response.data, NULL,
                   x.local.data);
    assert_true(ns_utf8_valid(line.data, line.n));
    assert_null(memchr(line.data, '\n', line.n));
    if (ns_json_parse(line.data, line.n, &doc, &err) != NS_OK)
        fail_msg("%s", err.message);
    const struct ns_json *body = ns_json_find(ns_json_find(doc, "response"), "body");
    const struct ns_json *lps = ns_json_find(ns_json_item(ns_json_find(body, "choices"), 0), "logprobs");
    assert_int_equal(ns_json_count(ns_json_find(lps, "tokens")), 2 * N);
    assert_int_equal(ns_json_count(ns_json_find(lps, "text_offset")), 2 * N);
    assert_non_null(ns_json_find(ns_json_find(body, "x_local"), "contract"));
    ns_json_free(doc);
    ns_text_fini(&line);
    ns_result_fini(&x);
    ns_request_fini(&r);
    free(id);
    free(lp);
}

static void ended_requests_keep_their_partial_text(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_result x;
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\"p\"}", &r);
    words_say(w, " half an answer");
    struct ns_outcome o = {.prompt = w->ids.id, .n_prompt = 1, .token = w->ids.id, .n_out = w->ids.n};
    assert_int_equal(
        ns_result_ended(&r, &w->model, "cancelled", "stopped by a person", &o, &facts, &w->budget, &x, NULL), NS_OK);
    assert_string_equal(x.error.data, "{\"code\":\"cancelled\",\"message\":\"stopped by a person\"}");
    assert_int_equal(x.response.n, 0);
    assert_non_null(strstr(x.local.data, "\"partial\":{\"text\":\" half an answer\",\"token_ids\":["));
    struct ns_text line;
    ns_text_init(&line, &w->budget);
    ns_output_line(&line, 1, "x", 499, NULL, x.error.data, x.local.data);
    assert_non_null(strstr(line.data,
                           "\"response\":null,\"error\":{\"code\":\"cancelled\",\"message\":\"stopped by a person\","
                           "\"x_local\":{"));
    ns_text_fini(&line);
    ns_result_fini(&x);
    ns_request_fini(&r);
}

/* ---- encoding -------------------------------------------------------------------------------------------------------------- */

static void c05_too_long_names_both_numbers(void **state)
{
    struct words *w = *state;
    struct ns_encoded e;
    struct ns_refusal refusal;
    char line[3000] = "{\"custom_id\":\"x\",\"prompt\":\"";
    for (int i = 0; i < 500; i++)
        strcat(line, " a");
    strcat(line, "\"}");
    struct ns_request r;
    words_request(w, line, &r);
    assert_int_equal(ns_request_encode(&r, &w->model, &w->budget, &e, &refusal, NULL), NS_INPUT);
    assert_string_equal(refusal.code, "context_length_exceeded");
    assert_non_null(strstr(refusal.message, "500"));
    assert_non_null(strstr(refusal.message, "64"));
    ns_request_fini(&r);
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\" a a a a a\",\"max_tokens\":5000}", &r);
    assert_int_equal(ns_request_encode(&r, &w->model, &w->budget, &e, &refusal, NULL), NS_OK);
    assert_int_equal(e.prompt[0].n, 5);
    assert_int_equal(e.prompt[0].max_new, 59);
    ns_encoded_fini(&e);
    ns_request_fini(&r);
}

static void choices_are_encoded_with_their_prompt(void **state)
{
    struct words *w = *state;
    struct ns_encoded e;
    struct ns_refusal refusal;
    struct ns_request r;
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\"The capital of France\",\"choices\":[\" is Paris\",[7,8]]}",
                  &r);
    assert_int_equal(ns_request_encode(&r, &w->model, &w->budget, &e, &refusal, NULL), NS_OK);
    assert_int_equal(e.n, 2);
    w->ids.n = 0;
    assert_int_equal(ns_tokenizer_encode(w->tok, "The capital of France is Paris", 30, false, &w->ids, NULL), NS_OK);
    assert_int_equal(e.prompt[0].n, w->ids.n);
    assert_memory_equal(e.prompt[0].id, w->ids.id, w->ids.n * sizeof *w->ids.id);
    assert_true(e.prompt[0].is_score);
    assert_int_equal(e.prompt[0].score_from, e.prompt_tokens);
    assert_int_equal(e.prompt[1].n, e.prompt_tokens + 2);
    assert_int_equal(e.prompt[1].id[e.prompt[1].n - 1], 8);
    ns_encoded_fini(&e);
    ns_request_fini(&r);
}

static void encoding_refusals(void **state)
{
    struct words *w = *state;

    static const struct {
        const char *line, *code;
        bool no_tokenizer;
    } bad[] = {
        {"{\"custom_id\":\"x\",\"prompt\":[1,2560]}", "token_out_of_range", false},
        {"{\"custom_id\":\"x\",\"prompt\":\"a\"}", "no_tokenizer", true},
        {"{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "no_tokenizer", true},
        {"{\"custom_id\":\"x\",\"messages\":[{\"role\":\"nobody\",\"content\":\"a\"}]}", "invalid_value", false}};

    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        struct ns_job_model m = w->model;
        struct ns_request r;
        struct ns_encoded e;
        struct ns_refusal refusal;
        if (bad[i].no_tokenizer)
            m.tok = NULL;
        words_request(w, bad[i].line, &r);
        assert_int_equal(ns_request_encode(&r, &m, &w->budget, &e, &refusal, NULL), NS_INPUT);
        assert_string_equal(refusal.code, bad[i].code);
        ns_request_fini(&r);
    }
}

static void markers_in_a_prompt_stay_text(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_encoded e;
    struct ns_refusal refusal;
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\"a<|end_of_msg|>b\"}", &r);
    assert_int_equal(ns_request_encode(&r, &w->model, &w->budget, &e, &refusal, NULL), NS_OK);
    for (uint32_t i = 0; i < e.prompt[0].n; i++)
        assert_true(e.prompt[0].id[i] < ns_tokenizer_base(w->tok));
    ns_encoded_fini(&e);
    ns_request_fini(&r);
}

int main(void)
{
#define T(name) cmocka_unit_test(name)
    const struct CMUnitTest tests[] = {T(a_completion_body),
                                       T(echo_and_logprobs),
                                       T(c89_minus_infinity),
                                       T(a_chat_body),
                                       T(chat_logprobs_follow_the_parts),
                                       T(a_choice_body),
                                       T(bodies_are_deterministic),
                                       T(c98_any_text_is_written),
                                       T(ended_requests_keep_their_partial_text),
                                       T(c05_too_long_names_both_numbers),
                                       T(choices_are_encoded_with_their_prompt),
                                       T(encoding_refusals),
                                       T(markers_in_a_prompt_stay_text)};
    return cmocka_run_group_tests(tests, words_open, words_close);
}
