/* reply_test.c - when a generation ends and what its text is, from scripted tokens. */
#include "words.h"

#define PLAIN "{\"custom_id\":\"x\",\"prompt\":\"p\"}"
#define CHAT  "{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
#define EOM   "<|end_of_msg|>"
#define NO_THINKING                                                                                                    \
    "{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"                                      \
    "\"chat_template_kwargs\":{\"thinking\":false}}"

struct said {
    enum ns_finish finish;
    size_t n; /* tokens until the end */
    struct ns_reply reply;
};

/* Plays the tokens of text one by one until the judge ends it, as a run would. */
static struct said play(struct words *w, const char *line, const char *text, uint32_t max_new)
{
    struct said s = {.finish = NS_FINISH_NONE};
    struct ns_request r;
    words_request(w, line, &r);
    words_say(w, text);
    while (s.finish == NS_FINISH_NONE && s.n < w->ids.n)
        s.finish = ns_reply_judge(&r, &w->model, max_new, w->ids.id, ++s.n);
    assert_int_equal(ns_reply_read(&r, &w->model, w->ids.id, s.n, s.finish, &w->budget, &s.reply, NULL), NS_OK);
    ns_request_fini(&r);
    return s;
}

static void expect(struct words *w, const char *line, const char *text, uint32_t max_new, enum ns_finish finish,
                   const char *content, const char *reasoning)
{
    struct said s = play(w, line, text, max_new);
    assert_string_equal(s.reply.content.data, content);
    assert_string_equal(s.reply.reasoning.data, reasoning);
    assert_int_equal(s.finish, finish);
    ns_reply_fini(&s.reply);
}

static void c91_end_exactly_at_the_limit(void **state)
{
    struct words *w = *state;
    words_say(w, " a b c d e f g h i j k" EOM);
    assert_int_equal(w->ids.n, 12);
    expect(w, PLAIN, " a b c d e f g h i j k" EOM, 11, NS_FINISH_LENGTH, " a b c d e f g h i j k", "");
    expect(w, PLAIN, " a b c d e f g h i j k" EOM, 12, NS_FINISH_STOP, " a b c d e f g h i j k", "");
    expect(w, PLAIN, " a b c d e f g h i j k" EOM, 13, NS_FINISH_STOP, " a b c d e f g h i j k", "");
}

static void c20_every_end_id_stops(void **state)
{
    struct words *w = *state;
    assert_int_equal(w->model.n_stop, 2); /* one listed, one only known by its name: each once */
    expect(w, PLAIN, "one[EOS]two", 20, NS_FINISH_STOP, "one", "");
    expect(w, PLAIN, "one" EOM "two", 20, NS_FINISH_STOP, "one", "");
    struct ns_job_model m;
    assert_int_equal(ns_job_model_init(&m, w->tok, "f", "c", VOCAB, 64, -1, NULL, 0, NULL), NS_OK);
    assert_int_equal(m.n_stop, 2);
    assert_int_equal(ns_job_model_init(&m, NULL, "f", "c", VOCAB, 64, 7, "{\"eos_token_id\":9}", 18, NULL), NS_OK);
    assert_true(m.n_stop == 2 && m.stop[0] == 7 && m.stop[1] == 9);
    static const char *const bad[] = {"{", "{\"eos_token_id\":\"9\"}", "{\"eos_token_id\":[9,null]}",
                                      "{\"eos_token_id\":9.5}"};
    for (size_t i = 0; i < NS_COUNT(bad); i++)
        assert_int_equal(ns_job_model_init(&m, NULL, "f", "c", VOCAB, 64, 7, bad[i], strlen(bad[i]), NULL), NS_INPUT);
    assert_int_equal(ns_job_model_init(&m, NULL, "f", "c", VOCAB, 64, 7, "{\"eos_token_id\":null}", 21, NULL), NS_OK);
}

static void keep_line(void *arg, enum ns_log_level level, const char *line)
{
    assert_int_equal(level, NS_LOG_WARN);
    snprintf(arg, 200, "%s", line);
}

/* C20, second fixture: two special ids change places between tokenizer_config.json and the configuration. The turn format
 * of the tokenizer decides, and the disagreement is reported. */
static void c20_swapped_ids_follow_the_tokenizer(void **state)
{
    struct words *w = *state;
    struct scratch s;
    scratch_open(&s);
    char command[900];
    snprintf(command, sizeof command,
             "ln -s '%s/jobs/demo/tiktoken.model' '%s' && sed -e 's/<|open|>/<|x|>/; s/<|end_of_msg|>/<|open|>/;"
             " s/<|x|>/<|end_of_msg|>/' '%s/jobs/demo/tokenizer_config.json' >'%s/tokenizer_config.json'",
             NS_SOURCE_DIR, s.dir, NS_SOURCE_DIR, s.dir);
    assert_int_equal(system(command), 0);
    struct ns_tokenizer *tok = NULL;
    assert_int_equal(ns_tokenizer_open(s.dir, VOCAB, &w->budget, &tok, NULL), NS_OK);
    assert_int_equal(ns_tokenizer_special(tok, "<|open|>"), 2306);
    assert_int_equal(ns_tokenizer_special(tok, "<|end_of_msg|>"), 2307);
    char said[200] = "";
    struct ns_job_model m;
    ns_log_set_sink(keep_line, said, NS_LOG_WARN);
    enum ns_code rc = ns_job_model_init(&m, tok, "f", "c", VOCAB, 64, 2306, "{\"eos_token_id\":2305}", 21, NULL);
    ns_log_set_sink(NULL, NULL, NS_LOG_WARN);
    assert_int_equal(rc, NS_OK);
    assert_true(m.n_stop == 2 && m.stop[0] == 2307 && m.stop[1] == 2305);
    assert_string_equal(said,
                        "config.json ends a reply at id 2306, which the tokenizer calls <|open|>: it is not taken "
                        "for an end");
    ns_tokenizer_close(tok);
    scratch_close(&s);
}

static void ignore_eos_runs_on(void **state)
{
    expect(*state, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"ignore_eos\":true}", "one" EOM "two", 5, NS_FINISH_NONE,
           "onetwo", "");
}

static void stop_strings_cut_the_text_and_keep_the_tokens(void **state)
{
    struct words *w = *state;
    const char *line = "{\"custom_id\":\"x\",\"prompt\":\"p\",\"stop\":[\"\\n\\n\",\"ree f\"]}";
    struct said s = play(w, line, "one two three four five", 50);
    assert_int_equal(s.finish, NS_FINISH_STOP);
    assert_string_equal(s.reply.content.data, "one two th"); /* the match straddles tokens */
    assert_true(s.n < w->ids.n && s.n > 2);
    ns_reply_fini(&s.reply);
    expect(w, line, "one\n\ntwo", 50, NS_FINISH_STOP, "one", "");
    expect(w, line, "one\n two", 50, NS_FINISH_NONE, "one\n two", "");
    /* of several matches ending in one token the one that begins first counts */
    expect(w, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"stop\":[\"e\",\" twe\"]}", "a twe", 50, NS_FINISH_STOP, "a", "");
}

/* Judging a whole stream once, as after a resume, agrees with judging it token by token. */
static void judging_needs_no_memory(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    words_request(w, "{\"custom_id\":\"x\",\"prompt\":\"p\",\"stop\":\"four\"}", &r);
    words_say(w, "one two three four");
    size_t n = 0;
    while (ns_reply_judge(&r, &w->model, 99, w->ids.id, n) == NS_FINISH_NONE)
        n++;
    assert_int_equal(n, w->ids.n);
    assert_int_equal(ns_reply_judge(&r, &w->model, 99, w->ids.id, w->ids.n), NS_FINISH_STOP);
    assert_int_equal(ns_reply_judge(&r, &w->model, 0, NULL, 0), NS_FINISH_LENGTH);
    ns_request_fini(&r);
}

static void c88_limit_inside_a_character(void **state)
{
    struct words *w = *state;
    /* a four-byte character as byte tokens, cut after each */
    static const uint8_t bytes[] = {'a', 0xF0, 0x9F, 0x8C, 0x99};
    uint32_t id[5];
    for (size_t i = 0; i < 5; i++)
        for (id[i] = 0; id[i] < 2304; id[i]++) {
            const uint8_t *b;
            size_t n;
            bool special;
            assert_int_equal(ns_tokenizer_bytes(w->tok, id[i], &b, &n, &special, NULL), NS_OK);
            if (n == 1 && b[0] == bytes[i])
                break;
        }
    struct ns_request r;
    words_request(w, PLAIN, &r);
    for (size_t n = 1; n <= 5; n++) {
        struct ns_reply reply;
        assert_int_equal(ns_reply_read(&r, &w->model, id, n, NS_FINISH_LENGTH, &w->budget, &reply, NULL), NS_OK);
        assert_true(ns_utf8_valid(reply.content.data, reply.content.n));
        assert_string_equal(reply.content.data, n == 1 ? "a" : n == 5 ? "a\xF0\x9F\x8C\x99" : "a\xEF\xBF\xBD");
        ns_reply_fini(&reply);
    }
    ns_request_fini(&r);
}

#define CLOSE_THINK "<|close|>think<|sep|><|open|>response<|sep|>"
#define CLOSE_ALL   "<|close|>response<|sep|><|close|>message<|sep|>" EOM

static void c23_answer_without_thinking(void **state)
{
    struct words *w = *state;
    expect(w, CHAT, "I think" CLOSE_THINK "Paris" CLOSE_ALL, 90, NS_FINISH_STOP, "Paris", "I think");
    expect(w, CHAT, "Paris" CLOSE_ALL, 90, NS_FINISH_STOP, "Paris", "");
    expect(w, CHAT, "Paris" EOM, 90, NS_FINISH_STOP, "Paris", "");
    expect(w, CHAT, " a a a", 2, NS_FINISH_LENGTH, "", " a a");
    words_say(w, "I think<|close|>");
    expect(w, CHAT, "I think<|close|>think<|sep|>", (uint32_t)w->ids.n, NS_FINISH_LENGTH, "", "I think<|close|>");
    expect(w, CHAT, "I think" CLOSE_THINK, 90, NS_FINISH_NONE, "", "I think");
    expect(w, NO_THINKING, "Paris" CLOSE_ALL, 90, NS_FINISH_STOP, "Paris", "");
}

/* Spec 6.5: truncated or malformed structure is text. Every cut of a whole reply shows all that was said so far. */
static void broken_structure_is_text(void **state)
{
    struct words *w = *state;

    static const struct {
        const char *said, *content, *reasoning;
        bool is_cut; /* by the limit, else by an end */
    } cases[] = {
        {"I think<|close|>", "", "I think<|close|>", true},
        {"I think<|close|>think", "", "I think<|close|>think", true},
        {"I think<|close|>think<|sep|><|open|>", "<|open|>", "I think", true},
        {"I think<|close|>think<|sep|><|open|>response", "<|open|>response", "I think", true},
        {"I think" CLOSE_THINK "Paris<|close|>", "Paris<|close|>", "I think", true},
        {"I think" CLOSE_THINK "Paris<|close|>resp", "Paris<|close|>resp", "I think", true},
        {"I think" CLOSE_THINK "Paris<|close|>" EOM, "Paris<|close|>", "I think", false},
        {"I think" CLOSE_THINK "a<|sep|>b" CLOSE_ALL, "a<|sep|>b", "I think", false},
        {"I think" CLOSE_THINK "a<|open|>bold<|sep|>b" CLOSE_ALL, "a<|open|>bold<|sep|>b", "I think", false},
        {"I think" CLOSE_THINK "a<|close|><|close|>response<|sep|>" EOM, "a<|close|>", "I think", false},
        {"I think" CLOSE_THINK "a" CLOSE_ALL, "a", "I think", false},
        {"I<|sep|>think" CLOSE_THINK "a" CLOSE_ALL, "a", "I<|sep|>think", false},
        {"I think<|close|>thinking<|sep|> so" CLOSE_THINK "a" CLOSE_ALL, "a", "I think<|close|>thinking<|sep|> so",
         false},
    };

    for (size_t i = 0; i < NS_COUNT(cases); i++) {
        words_say(w, cases[i].said);
        expect(w, CHAT, cases[i].said, cases[i].is_cut ? (uint32_t)w->ids.n : 90,
               cases[i].is_cut ? NS_FINISH_LENGTH : NS_FINISH_STOP, cases[i].content, cases[i].reasoning);
    }
    expect(w, NO_THINKING, "Par<|close|>is" EOM, 90, NS_FINISH_STOP, "Par<|close|>is", "");
    /* a stop string ends the text before a marker that follows its beginning */
    expect(w,
           "{\"custom_id\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
           "\"chat_template_kwargs\":{\"thinking\":false},\"stop\":\"ris\"}",
           "<|sep|>Paris<|close|>", 90, NS_FINISH_STOP, "<|sep|>Pa", "");
    /* outside of chats a marker is a control id like any other */
    expect(w, PLAIN, "one<|close|>two" EOM, 90, NS_FINISH_STOP, "onetwo", "");
}

/* What is counted is what is shown: text, broken tags with it; whole tags are structure. */
static void counts_follow_the_text(void **state)
{
    struct words *w = *state;
    words_say(w, "I think" CLOSE_THINK "Paris<|close|>");
    size_t n = w->ids.n;
    struct said s = play(w, CHAT, "I think" CLOSE_THINK "Paris<|close|>", (uint32_t)n);
    words_say(w, "<|close|>think<|sep|><|open|>response<|sep|>");
    assert_true(w->ids.n >= 6);
    assert_int_equal(s.reply.reasoning_tokens + s.reply.content_tokens, n - w->ids.n);
    words_say(w, "Paris");
    assert_int_equal(s.reply.content_tokens, w->ids.n + 1);
    ns_reply_fini(&s.reply);
}

static void c22_limits_around_the_thinking(void **state)
{
    struct words *w = *state;
    char text[600] = "";
    words_say(w, " a");
    assert_int_equal(w->ids.n, 1);
    for (int i = 0; i < 40; i++)
        strcat(text, " a");
    strcat(text, CLOSE_THINK " yes" CLOSE_ALL);

    static const struct {
        uint32_t limit, thought, answered;
        enum ns_finish finish;
        bool in_reasoning;
    } cases[] = {{16, 16, 0, NS_FINISH_LENGTH, true},
                 {40, 40, 0, NS_FINISH_LENGTH, true},
                 {41, 41, 0, NS_FINISH_LENGTH, true}, /* the marker alone is no end of thinking */
                 {80, 40, 1, NS_FINISH_STOP, false}};

    for (size_t i = 0; i < NS_COUNT(cases); i++) {
        struct said s = play(w, CHAT, text, cases[i].limit);
        assert_int_equal(s.reply.reasoning_tokens, cases[i].thought);
        if (cases[i].answered)
            assert_string_equal(s.reply.content.data, " yes");
        else
            assert_int_equal(s.reply.content_tokens, 0);
        assert_int_equal(s.finish, cases[i].finish);
        assert_int_equal(s.reply.in_reasoning, cases[i].in_reasoning);
        ns_reply_fini(&s.reply);
    }
}

static void spelled_marker_is_text(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_reply reply;
    words_request(w, CHAT, &r);
    const char *text = "see <|close|>think<|sep|> here";
    w->ids.n = 0;
    assert_int_equal(ns_tokenizer_encode(w->tok, text, strlen(text), false, &w->ids, NULL), NS_OK);
    assert_int_equal(ns_reply_read(&r, &w->model, w->ids.id, w->ids.n, NS_FINISH_LENGTH, &w->budget, &reply, NULL),
                     NS_OK);
    assert_string_equal(reply.reasoning.data, text);
    assert_string_equal(reply.content.data, "");
    ns_reply_fini(&reply);
    ns_request_fini(&r);
}

static void nul_becomes_a_replacement(void **state)
{
    struct words *w = *state;
    struct ns_request r;
    struct ns_reply reply;
    words_request(w, PLAIN, &r);
    w->ids.n = 0;
    assert_int_equal(ns_tokenizer_encode(w->tok, "a\0b", 3, false, &w->ids, NULL), NS_OK);
    assert_int_equal(ns_reply_read(&r, &w->model, w->ids.id, w->ids.n, NS_FINISH_LENGTH, &w->budget, &reply, NULL),
                     NS_OK);
    assert_string_equal(reply.content.data, "a\xEF\xBF\xBD"
                                            "b");
    ns_reply_fini(&reply);
    ns_request_fini(&r);
}

static void expected_texts(void **state)
{
    (void)state;

    static const struct {
        const char *text, *expected;
        bool starts, within;
    } cases[] = {
        {" Paris, of course", "paris", true, true},
        {"Parisian", "Paris", false, true},
        {"\nPARIS", "Paris", true, true},
        {"It is Paris", "Paris", false, true},
        {"Paris2", "Paris", false, true},
        {"Paris.", "Paris", true, true},
        {"Paris\xE2\x80\x99s", "Paris", true, true},
        {"Paris\xC3\xA9", "Paris", false, true},
        {"S\xC3\x83O TOM\xC3\x89", "S\xC3\xA3o Tom\xC3\xA9", true, true},
        {"", "Paris", false, false},
        {"Par", "Paris", false, false},
        {".dk", ".dk", true, true},
        {"\xE6\x9D\xB1\xE4\xBA\xAC\xE3\x80\x82", "\xE6\x9D\xB1\xE4\xBA\xAC", true, true},
        {"\xD0\x9C\xD0\x9E\xD0\xA1\xD0\x9A\xD0\x92\xD0\x90", "\xD0\xBC\xD0\xBE\xD1\x81\xD0\xBA\xD0\xB2\xD0\xB0", true,
         true},
    };

    for (size_t i = 0; i < NS_COUNT(cases); i++) {
        struct ns_slice t = {cases[i].text, strlen(cases[i].text)}, e = {cases[i].expected, strlen(cases[i].expected)};
        if (ns_expected_starts(t, e) != cases[i].starts || ns_expected_within(t, e) != cases[i].within)
            fail_msg("\"%s\" against \"%s\"", cases[i].text, cases[i].expected);
    }
}

static void best_choice_ties_go_low(void **state)
{
    (void)state;
    assert_int_equal(ns_choice_best((const double[]){-3, -1, -1, -2}, 4), 1);
    assert_int_equal(ns_choice_best((const double[]){-3}, 1), 0);
    assert_true(ns_score_sum((const float[]){-0.5f, -0.25f}, 2) < -0.7);
}

int main(void)
{
#define T(name) cmocka_unit_test(name)
    const struct CMUnitTest tests[] = {T(c91_end_exactly_at_the_limit),
                                       T(c20_every_end_id_stops),
                                       T(c20_swapped_ids_follow_the_tokenizer),
                                       T(ignore_eos_runs_on),
                                       T(stop_strings_cut_the_text_and_keep_the_tokens),
                                       T(judging_needs_no_memory),
                                       T(c88_limit_inside_a_character),
                                       T(c23_answer_without_thinking),
                                       T(broken_structure_is_text),
                                       T(counts_follow_the_text),
                                       T(c22_limits_around_the_thinking),
                                       T(spelled_marker_is_text),
                                       T(nul_becomes_a_replacement),
                                       T(expected_texts),
                                       T(best_choice_ties_go_low)};
    return cmocka_run_group_tests(tests, words_open, words_close);
}
