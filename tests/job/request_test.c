/* request_test.c - what a line may say, and by which code it is refused when it says something else. */
#include "../scratch.h"
#include "job/job.h"

static struct ns_budget budget;
static struct ns_request request;
static struct ns_refusal refusal;

static int setup(void **state)
{
    (void)state;
    ns_json_init();
    ns_budget_init(&budget, "test", (size_t)64 << 20);
    memset(&request, 0, sizeof request);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ns_request_fini(&request);
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

static enum ns_code parse(const char *line)
{
    struct ns_error err = {0};
    ns_request_fini(&request);
    return ns_request_parse(line, strlen(line), &budget, &request, &refusal, &err);
}

static void accept(const char *line)
{
    if (parse(line) != NS_OK)
        fail_msg("%s: refused: %s: %s", line, refusal.code, refusal.message);
}

struct bad {
    const char *line, *code, *param;
};

static void refuse(const struct bad *bad)
{
    if (parse(bad->line) != NS_INPUT)
        fail_msg("accepted: %s", bad->line);
    if (strcmp(refusal.code, bad->code) != 0 || strcmp(refusal.param, bad->param) != 0)
        fail_msg("%s: %s of \"%s\" instead of %s of \"%s\"", bad->line, refusal.code, refusal.param, bad->code,
                 bad->param);
    assert_int_equal(refusal.status, 400);
    assert_true(refusal.message[0] != '\0' && ns_utf8_valid(refusal.message, strlen(refusal.message)));
}

#define LINE(body)                                                                                                     \
    "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"p\"" body "}}"
#define CHAT(body)                                                                                                     \
    "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/chat/"                                                     \
    "completions\",\"body\":{\"messages\":[{\"role\":\"user\","                                                        \
    "\"content\":\"hi\"}]" body "}}"

static void four_shapes_and_their_defaults(void **state)
{
    (void)state;
    accept(LINE(""));
    assert_int_equal(request.kind, NS_KIND_COMPLETION);
    assert_int_equal(request.max_tokens, 16);
    assert_false(request.wants_logprobs || request.echo || request.ignore_eos || request.return_token_ids);
    accept(CHAT(""));
    assert_int_equal(request.kind, NS_KIND_CHAT);
    assert_int_equal(request.max_tokens, 4096);
    assert_true(request.thinking);
    assert_string_equal(request.effort, "max");
    accept("{\"custom_id\":\"x\",\"prompt\":\"p\",\"expected\":\"e\",\"max_tokens\":3}");
    assert_int_equal(request.kind, NS_KIND_PLAIN);
    assert_int_equal(request.max_tokens, 3);
    assert_true(request.has_expected);
    accept("{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"expected\":\"e\"}");
    assert_int_equal(request.kind, NS_KIND_CHAT);
    assert_true(request.has_expected);
    accept("{\"custom_id\":\"x\",\"prompt\":\"p\",\"choices\":[\" a\",[1,2]],\"answer\":1}");
    assert_int_equal(request.kind, NS_KIND_CHOICE);
    assert_int_equal(request.n_choices, 2);
    assert_true(request.choice[1].is_ids && request.choice[1].n_ids == 2 && request.answer == 1);
    assert_string_equal(request.ignored.data, "[]");
}

static void members_are_taken(void **state)
{
    (void)state;
    accept(LINE(
        ",\"max_tokens\":9,\"stop\":[\"a\",\"bc\"],\"logprobs\":20,\"echo\":true,\"ignore_eos\":true,"
        "\"return_token_ids\":true,\"model\":\"M\",\"temperature\":0,\"top_p\":1,\"n\":1,\"seed\":7,\"stream\":false"));
    assert_int_equal(request.n_stops, 2);
    assert_int_equal(request.stop[1].n, 2);
    assert_int_equal(request.n_logprobs, 20);
    assert_true(request.echo && request.ignore_eos && request.return_token_ids && request.wants_logprobs);
    assert_int_equal(request.model.n, 1);
    assert_string_equal(request.ignored.data, "[]");
    accept(LINE(",\"stop\":\"x\",\"logprobs\":null,\"temperature\":null,\"max_tokens\":null"));
    assert_int_equal(request.n_stops, 1);
    assert_int_equal(request.max_tokens, 16);
    accept("{\"custom_id\":\"x\",\"prompt\":[5,0,7]}");
    assert_true(request.prompt.is_ids && request.prompt.n_ids == 3 && request.prompt.id[2] == 7);
    accept("{\"custom_id\":\"x\",\"prompt\":[\"one\"]}");
    assert_int_equal(request.prompt.text.n, 3);
    accept("{\"custom_id\":\"x\",\"prompt\":[[4]]}");
    assert_int_equal(request.prompt.n_ids, 1);
    accept(LINE(",\"max_tokens\":0,\"echo\":true"));
    assert_int_equal(request.max_tokens, 0);
    accept(CHAT(",\"max_completion_tokens\":5,\"max_tokens\":5,\"reasoning_effort\":\"low\",\"logprobs\":true,"
                "\"top_logprobs\":3,\"tools\":[],\"tool_choice\":\"none\",\"response_format\":{\"type\":\"text\"}"));
    assert_int_equal(request.max_tokens, 5);
    assert_string_equal(request.effort, "low");
    assert_int_equal(request.n_logprobs, 3);
    accept(CHAT(",\"chat_template_kwargs\":{\"thinking\":false},\"reasoning_effort\":\"high\""));
    assert_false(request.thinking);
    assert_null(request.effort);
}

/* C08: one code per fault. C04: a line that is cut. C19: bytes and escapes that are not text. C07: ids. */
static void every_fault_has_its_code(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"{\"custom_id\":\"p3\",\"body\":", "invalid_json_line", ""},
        {"[1]", "invalid_json_line", ""},
        {"\"text\"", "invalid_json_line", ""},
        {"{\"custom_id\":\"x\",\"custom_id\":\"y\",\"prompt\":\"p\"}", "invalid_json_line", ""},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\"} trailing", "invalid_json_line", ""},
        {"{\"custom_id\":\"x\",\"prompt\":\"\\u0000\"}", "invalid_json_line", ""},
        {"{\"custom_id\":\"x\",\"prompt\":\"\xE2\x82\"}", "invalid_json_line", ""},
        {"{\"custom_id\":\"x\",\"prompt\":\"\\ud800\"}", "invalid_json_line", ""},
        {"{\"custom_id\":\"x\",\"prompt\":\"\xC0\xAF\"}", "invalid_json_line", ""},
        {"{\"prompt\":\"p\"}", "missing_required_parameter", "custom_id"},
        {"{\"custom_id\":null,\"prompt\":\"p\"}", "missing_required_parameter", "custom_id"},
        {"{\"custom_id\":\"\",\"prompt\":\"p\"}", "missing_required_parameter", "custom_id"},
        {"{\"custom_id\":\"  \",\"prompt\":\"p\"}", "missing_required_parameter", "custom_id"},
        {"{\"custom_id\":7,\"prompt\":\"p\"}", "invalid_type", "custom_id"},
        {"{\"custom_id\":\"x\"}", "missing_required_parameter", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":null}", "missing_required_parameter", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":\"\"}", "empty_prompt", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":[]}", "empty_prompt", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":{}}", "invalid_type", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":[1,\"a\"]}", "invalid_type", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":[1,-1]}", "token_out_of_range", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":[\"a\",\"b\"]}", "unsupported_parameter", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\",\"expected\":5}", "invalid_type", "expected"},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\",\"expected\":\" \"}", "invalid_value", "expected"},
        {"{\"custom_id\":\"x\",\"url\":\"/v1/completions\",\"body\":{}}", "missing_required_parameter", "method"},
        {"{\"custom_id\":\"x\",\"method\":\"GET\",\"url\":\"/v1/completions\",\"body\":{}}", "invalid_value", "method"},
        {"{\"custom_id\":\"x\",\"method\":\"POST\",\"body\":{}}", "missing_required_parameter", "url"},
        {"{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{}}", "url_mismatch", "url"},
        {"{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\"}", "missing_required_parameter", "body"},
        {"{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":[]}", "invalid_type", "body"},
        {"{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}",
         "missing_required_parameter", "prompt"},
        {"{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{}}",
         "missing_required_parameter", "messages"},
        {LINE(",\"max_tokens\":0"), "invalid_value", "max_tokens"},
        {LINE(",\"max_tokens\":-4"), "invalid_value", "max_tokens"},
        {LINE(",\"max_tokens\":\"9\""), "invalid_type", "max_tokens"},
        {LINE(",\"max_tokens\":1.5"), "invalid_type", "max_tokens"},
        {LINE(",\"logprobs\":21"), "invalid_value", "logprobs"},
        {LINE(",\"logprobs\":true"), "invalid_type", "logprobs"},
        {LINE(",\"echo\":1"), "invalid_type", "echo"},
        {LINE(",\"stop\":[\"\"]"), "invalid_value", "stop"},
        {LINE(",\"stop\":5"), "invalid_type", "stop"},
        {LINE(",\"model\":5"), "invalid_type", "model"},
        {CHAT(",\"logprobs\":3"), "invalid_type", "logprobs"},
        {CHAT(",\"top_logprobs\":3"), "invalid_value", "top_logprobs"},
        {CHAT(",\"reasoning_effort\":\"medium\""), "invalid_value", "reasoning_effort"},
        {CHAT(",\"max_tokens\":5,\"max_completion_tokens\":6"), "invalid_value", "max_completion_tokens"},
        {CHAT(",\"chat_template_kwargs\":{\"thinking\":\"no\"}"), "invalid_type", "chat_template_kwargs.thinking"},
        {"{\"custom_id\":\"x\",\"messages\":[]}", "empty_prompt", "messages"},
        {"{\"custom_id\":\"x\",\"messages\":[5]}", "invalid_type", "messages[0]"},
        {"{\"custom_id\":\"x\",\"messages\":[{\"content\":\"a\"}]}", "missing_required_parameter", "messages[0]"},
        {"{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "unsupported_parameter", "messages[0].content[0]"},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\",\"choices\":[]}", "invalid_value", "choices"},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\",\"choices\":[\"a\",\"\"]}", "empty_choice", "choices[1]"},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\",\"choices\":[\"a\",4]}", "invalid_type", "choices[1]"},
        {"{\"custom_id\":\"x\",\"choices\":[\"a\"]}", "missing_required_parameter", "prompt"},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\",\"choices\":[\"a\"],\"answer\":1}", "invalid_value", "answer"},
        {"{\"custom_id\":\"x\",\"prompt\":\"p\",\"choices\":[\"a\"],\"answer\":\"a\"}", "invalid_type", "answer"},
    };
    for (size_t i = 0; i < NS_COUNT(bad); i++)
        refuse(&bad[i]);
}

/* A parameter that would change the answer is refused by its name. */
static void refusals_name_the_parameter(void **state)
{
    (void)state;
    static const char *const member[][2] = {
        {"temperature", "0.7"},
        {"temperature", "-1"},
        {"top_p", "0.9"},
        {"top_k", "40"},
        {"min_p", "0.1"},
        {"n", "2"},
        {"best_of", "3"},
        {"presence_penalty", "1"},
        {"frequency_penalty", "0.5"},
        {"repetition_penalty", "1.2"},
        {"logit_bias", "{\"5\":1}"},
        {"stream", "true"},
        {"tools", "[{}]"},
        {"tool_choice", "\"required\""},
        {"functions", "[{}]"},
        {"response_format", "{\"type\":\"json_object\"}"},
        {"guided_json", "{}"},
        {"suffix", "\"s\""},
        {"modalities", "[\"audio\"]"},
        {"images", "[1]"},
        {"min_tokens", "2"},
        {"stop_token_ids", "[1]"},
        {"prompt_logprobs", "0"},
        {"skip_special_tokens", "false"},
        {"use_beam_search", "true"},
        {"temperature", "\"hot\""},
    };
    for (size_t i = 0; i < NS_COUNT(member); i++) {
        char line[400];
        snprintf(line, sizeof line, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"%s\":%s}", member[i][0], member[i][1]);
        refuse(&(struct bad){line, "unsupported_parameter", member[i][0]});
        assert_non_null(strstr(refusal.message, member[i][0]));
        snprintf(line, sizeof line, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"%s\":null}", member[i][0]);
        accept(line);
    }
    refuse(&(struct bad){CHAT(",\"echo\":true"), "unsupported_parameter", "echo"});
    refuse(&(struct bad){LINE(",\"messages\":[]"), "unsupported_parameter", "messages"});
}

static void c11_unknown_members_are_listed(void **state)
{
    (void)state;
    accept(CHAT(
        ",\"max_token\":9,\"thinking\":{\"type\":\"disabled\"},\"chat_template_kwargs\":{\"enable_thinking\":false},"
        "\"user\":\"u\""));
    assert_string_equal(request.ignored.data,
                        "[\"max_token\",\"thinking\",\"chat_template_kwargs.enable_thinking\",\"user\"]");
    assert_true(request.thinking);
    accept("{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/"
           "completions\",\"body\":{\"prompt\":\"p\"},\"extra\":1}");
    assert_string_equal(request.ignored.data, "[\"line.extra\"]");
}

/* The range is said, not only its lower end; a number beyond 64 bits is still one. */
static void too_many_tokens_are_refused_with_the_limit(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {LINE(",\"max_tokens\":3000000000"), "max_tokens is 3000000000, 1 to 2147483647 are allowed"},
        {LINE(",\"max_tokens\":-4"), "max_tokens is -4, 1 to 2147483647 are allowed"},
        {LINE(",\"max_tokens\":99999999999999999999"), "max_tokens is 1e+20, 1 to 2147483647 are allowed"},
    };
    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        refuse(&(struct bad){bad[i][0], "invalid_value", "max_tokens"});
        assert_string_equal(refusal.message, bad[i][1]);
    }
    accept(LINE(",\"max_tokens\":2147483647"));
    assert_int_equal(request.max_tokens, 2147483647);
}

static void long_ids_are_refused_with_both_numbers(void **state)
{
    (void)state;
    char line[700], id[600];
    memset(id, 'a', sizeof id);
    id[512] = '\0';
    snprintf(line, sizeof line, "{\"custom_id\":\"%s\",\"prompt\":\"p\"}", id);
    accept(line);
    id[512] = 'a';
    id[513] = '\0';
    snprintf(line, sizeof line, "{\"custom_id\":\"%s\",\"prompt\":\"p\"}", id);
    refuse(&(struct bad){line, "invalid_value", "custom_id"});
    assert_non_null(strstr(refusal.message, "513"));
    assert_non_null(strstr(refusal.message, "512"));
}

static void messages_are_cut_at_whole_characters(void **state)
{
    (void)state;
    char line[2000] = "{\"custom_id\":\"x\",\"method\":\"POST\",\"body\":{},\"url\":\"";
    for (int i = 0; i < 400; i++)
        strcat(line, "\xC3\xA9");
    strcat(line, "\"}");
    refuse(&(struct bad){line, "url_mismatch", "url"});
    ns_refusal_set(&refusal, 400, "c", "bad\xFFparam", "bad \xE2\x82");
    assert_string_equal(refusal.param, "bad?param");
    assert_string_equal(refusal.message, "bad ");
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    const char *line = "{\"custom_id\":\"x\",\"prompt\":[1,2],\"choices\":[\"a\",[1]],\"zzz\":1}";
    enum ns_code rc = NS_BUDGET;
    for (uint64_t nth = 1; rc != NS_OK; nth++) {
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = parse(line);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(four_shapes_and_their_defaults),
                                       T(members_are_taken),
                                       T(every_fault_has_its_code),
                                       T(refusals_name_the_parameter),
                                       T(c11_unknown_members_are_listed),
                                       T(too_many_tokens_are_refused_with_the_limit),
                                       T(long_ids_are_refused_with_both_numbers),
                                       T(messages_are_cut_at_whole_characters),
                                       T(survives_every_failed_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
