/* vectors_test.c - the published id vectors of the released vocabulary (specification, appendices C and D, 6.7).
 * They need the released tiktoken.model, which is not part of this project: NIGHTSHIFT_RELEASED_TOKENIZER is the path of
 * that file. Without it the test says so and is skipped. */
#include "checkpoint.h"

#include "format/tokenizer_impl.h"
#include "json/json.h"

#define SKIPPED 77

static struct ns_budget budget;
static struct ns_tokenizer *tok;

enum { O = 163587, C = 163588, S = 163589, E = 163586, VOCAB = 163840, MAX_IDS = 160 };

#define END_OF_LIST 0xFFFFFFFFu

static const char names[] =
    "{\"added_tokens_decoder\":{\"163584\":{\"content\":\"[BOS]\"},\"163585\":{\"content\":\"[EOS]\"},"
    "\"163586\":{\"content\":\"<|end_of_msg|>\"},\"163587\":{\"content\":\"<|open|>\"},"
    "\"163588\":{\"content\":\"<|close|>\"},\"163589\":{\"content\":\"<|sep|>\"},"
    "\"163590\":{\"content\":\"[start_header_id]\"},\"163591\":{\"content\":\"[end_header_id]\"},"
    "\"163593\":{\"content\":\"[EOT]\"},\"163602\":{\"content\":\"<|media_begin|>\"},"
    "\"163603\":{\"content\":\"<|media_content|>\"},\"163604\":{\"content\":\"<|media_end|>\"},"
    "\"163605\":{\"content\":\"<|media_pad|>\"},\"163649\":{\"content\":\"<osagent_mode>\"},"
    "\"163838\":{\"content\":\"[UNK]\"},\"163839\":{\"content\":\"[PAD]\"}}}";

static void expect(const char *what, const struct ns_ids *ids, const uint32_t *want)
{
    size_t n = 0;
    while (want[n] != END_OF_LIST)
        n++;
    for (size_t i = 0; i < n && i < ids->n; i++)
        if (ids->id[i] != want[i])
            fail_msg("'%s': id %zu is %" PRIu32 ", %" PRIu32 " is published", what, i, ids->id[i], want[i]);
    if (ids->n != n)
        fail_msg("'%s': %zu ids, %zu are published", what, ids->n, n);
}

static const struct vector {
    const char *text;
    uint32_t ids[12];
} vectors[] = {

#define V(text, ...)                                                                                                   \
    {                                                                                                                  \
        text,                                                                                                          \
        {                                                                                                              \
            __VA_ARGS__, END_OF_LIST                                                                                   \
        }                                                                                                              \
    }
    V("The capital of France is", 1008, 10484, 318, 15383, 387),
    V("a b", 64, 291),
    V("a  b", 64, 220, 291),
    V("a    b", 64, 274, 291),
    V("a         b", 64, 282, 291),
    V("hello   ", 22931, 274),
    V("hello ", 22931, 220),
    V("   hello", 256, 40493),
    V("     ", 535),
    V("a\t\t\tb", 64, 353, 3214),
    V("a \t \t b", 64, 220, 7304, 197, 291),
    V("a    !", 64, 274, 1282),
    V("a    7", 64, 274, 220, 22),
    V("a    \xE4\xBD\xA0\xE5\xA5\xBD", 64, 274, 220, 33845),
    V("line1\nline2", 1611, 16, 198, 1611, 17),
    V("line1\r\nline2", 1611, 16, 462, 1611, 17),
    V("line1\r\n\r\nline3", 1611, 16, 2298, 1611, 18),
    V("text\r\n", 3501, 462),
    V("text   \n   more", 3501, 15403, 256, 1070),
    V("a\n\n\n\nb", 64, 13099, 65),
    V("\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xB8\x96\xE7\x95\x8C", 33845, 2243),
    V("\xE4\xBD\xA0\xE5\xA5\xBDhello", 33845, 22931),
    V("hello\xE4\xBD\xA0\xE5\xA5\xBDworld", 22931, 33845, 23617),
    V("\xE4\xBD\xA0"
      "a\xE5\xA5\xBD"
      "b\xE4\xB8\x96"
      "c",
      633, 64, 628, 65, 1395, 66),
    V("\xE4\xBD\xA0\xE5\xA5\xBD \xE4\xB8\x96\xE7\x95\x8C", 33845, 220, 2243),
    V("\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82\xE4\xB8\x96\xE7\x95\x8C\xEF\xBC\x81", 33845, 292, 2243, 856),
    V("\xE3\x81\x93\xE3\x82\x93\xE3\x81\xAB\xE3\x81\xA1\xE3\x81\xAF", 16444, 29194, 6880, 43566, 8831),
    V("\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xAE\xE3\x83\x86\xE3\x82\xAD\xE3\x82\xB9\xE3\x83\x88", 4546, 63011,
      4663, 25875, 32045, 33360),
    V("1234", 6694, 19),
    V("1234567890", 6694, 12972, 16242, 15),
    V("1,234,567", 16, 11, 18697, 11, 31344),
    V("3.14159", 18, 13, 18702, 6276),
    V("in 2026 the model shipped", 259, 220, 2975, 21, 276, 3125, 32657),
    V("it's", 64072),
    V("IT'S", 1380, 34480),
    V("don't", 88709),
    V("DON'T", 35, 1034, 64833),
    V("we're", 1352, 4746),
    V("WE'RE", 24386, 6, 1046),
    V("I'll", 65447),
    V("I'LL", 40, 6, 5847),
    V("HE'D", 2873, 75231),
    V("it\xE2\x80\x99s", 277, 824),
    V("HELLO", 95218, 2359),
    V("helloWorld", 22931, 14350),
    V("McDonald", 40346, 43610),
    V("ABCdef", 55335, 1166),
    V("THIS IS FINE", 68293, 5097, 537, 6341),
    V("na\xC3\xAFve caf\xC3\xA9 \xC3\xBC"
      "ber",
      4768, 44187, 367, 70591, 41513),
    V("\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 \xD0\xBC\xD0\xB8\xD1\x80", 159025, 63694, 5993, 17898),
    V("\xD9\x85\xD8\xB1\xD8\xAD\xD8\xA8\xD8\xA7 \xD8\xA8\xD8\xA7\xD9\x84\xD8\xB9\xD8\xA7\xD9\x84\xD9\x85", 40011, 7570,
      4265, 1063, 47116, 5042, 52137),
    V("\xF0\x9F\x9A\x80\xF0\x9F\x94\xA5", 5885, 40101, 66957, 98),
    V("<|reserved_token_163592|>", 163592),
    V("<|reserved_token_163839|>", 27, 91, 64345, 14147, 62, 18752, 56284, 91, 29),
    V("<|not_a_real_token|>", 27, 91, 2976, 7794, 22357, 14147, 91, 29),
    V("<| |>", 27, 91, 43587),
    V("before<|sep|>after", 14435, S, 14306),
};

static void texts_have_their_published_ids(void **state)
{
    (void)state;
    struct ns_ids ids;
    for (size_t i = 0; i < NS_COUNT(vectors); i++) {
        ns_ids_init(&ids, &budget);
        assert_int_equal(ns_tokenizer_encode(tok, vectors[i].text, strlen(vectors[i].text), true, &ids, NULL), NS_OK);
        expect(vectors[i].text, &ids, vectors[i].ids);
        ns_ids_fini(&ids);
    }
    ns_ids_init(&ids, &budget);
    assert_int_equal(ns_tokenizer_encode(tok, "a\0b\1c", 5, true, &ids, NULL), NS_OK);
    expect("a NUL b SOH c", &ids, (const uint32_t[]){64, 188, 65, 189, 66, END_OF_LIST});
    ns_ids_fini(&ids);
}

static enum ns_code encode_cut(void *arg, const char *text, size_t n, struct ns_error *err)
{
    return ns_tokenizer_encode(tok, text, n, true, arg, err);
}

static void expect_cut(const char *text, size_t run, const uint32_t *want)
{
    struct ns_ids ids;
    ns_ids_init(&ids, &budget);
    assert_int_equal(ns_text_cut(text, strlen(text), NS_BLOCK_CHARACTERS, run, encode_cut, &ids, NULL), NS_OK);
    expect(text, &ids, want);
    ns_ids_fini(&ids);
}

static void small_caps_cut_as_published(void **state)
{
    (void)state;
    expect_cut("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 7,
               (const uint32_t[]){33642, 26713, 33642, 26713, 33642, 26713, 33642, 26713, 33642, 26713, 5629, 26713,
                                  END_OF_LIST});
    expect_cut("                    ", 6, (const uint32_t[]){1659, 1659, 1659, 256, END_OF_LIST});
    expect_cut("abcdefghij", 4, (const uint32_t[]){61858, 1183, 1050, 3694, END_OF_LIST});
}

#define HEAD(role)  O, 2778, 6244, 878, role, 1, S
#define TAIL        C, 2778, S, E
#define THINK_REPLY HEAD(69702), O, 39964, S
#define EFFORT(...)                                                                                                    \
    O, 2778, 6244, 878, 14062, 1, 1798, 878, 130400, 59991, 470, 1, S, 63, 130400, 123074, 470, 63, 28560, 418, 1632,  \
        2455, 308, 2704, 306, 651, 9545, 8491, 347, 2976, 3411, 276, 4503, 8491, 904, 9141, 4661, 3867, 1268, 1332,    \
        5713, 1268, 50004, 5713, 1268, 19421, 5713, 316, 1268, 5354, 16518, 10048, 276, 2403, 387, 42070, 472, 1268,   \
        130400, 123074, 470, __VA_ARGS__, 11369, TAIL

static const struct chat {
    const char *messages, *effort, *format;
    bool thinking, prompt;
    uint32_t ids[MAX_IDS];
} chats[] = {
    {"[{\"role\":\"user\",\"content\":\"Hi\"}]",
     NULL,
     NULL,
     true,
     true,
     {HEAD(2482), 18699, TAIL, THINK_REPLY, END_OF_LIST}},
    {"[{\"role\":\"user\",\"content\":\"Hi\"}]",
     "max",
     NULL,
     true,
     true,
     {EFFORT(105281), HEAD(2482), 18699, TAIL, THINK_REPLY, END_OF_LIST}},
    {"[{\"role\":\"user\",\"content\":\"Hi\"}]",
     "low",
     NULL,
     true,
     true,
     {EFFORT(28, 1332), HEAD(2482), 18699, TAIL, THINK_REPLY, END_OF_LIST}},
    {"[{\"role\":\"user\",\"content\":\"Hi\"}]",
     "max",
     NULL,
     false,
     true,
     {HEAD(2482), 18699, TAIL, HEAD(69702), O, 12092, S, END_OF_LIST}},
    {"[{\"role\":\"user\",\"content\":\"q1\"},{\"role\":\"assistant\",\"content\":\"a1\",\"reasoning_content\":"
     "\"because\"},"
     "{\"role\":\"user\",\"content\":\"q2\"}]",
     NULL,
     NULL,
     true,
     true,
     {HEAD(2482), 80, 16, TAIL, HEAD(69702), O, 39964, S,          47221, C,  39964, S,           O,          12092,
      S,          64, 16, C,    12092,       S, TAIL,  HEAD(2482), 80,    17, TAIL,  THINK_REPLY, END_OF_LIST}},
    {"[{\"role\":\"system\",\"content\":\"You are terse.\"},{\"role\":\"user\",\"content\":\"2+2?\"}]",
     NULL,
     NULL,
     true,
     true,
     {HEAD(14062), 3900, 554, 93330, 13, TAIL, HEAD(2482), 17, 10, 17, 30, TAIL, THINK_REPLY, END_OF_LIST}},
    {"[{\"role\":\"user\",\"content\":\"What does [EOS] mean vs [PAD] and [UNK]?\"}]",
     NULL,
     NULL,
     true,
     true,
     {HEAD(2482), 5376, 2354, 793, 85521, 60, 4992, 12583, 793, 54904, 60, 316, 793, 57780, 87795, TAIL, THINK_REPLY,
      END_OF_LIST}},
    {"[{\"role\":\"user\",\"content\":\"a&b \\\"q\\\" \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xF0\x9F\x8E\x89\\nsecond "
     "line\"}]",
     NULL,
     NULL,
     true,
     false,
     {HEAD(2482), 64, 5, 65, 414, 80, 1, 220, 4546, 63011, 17137, 236, 231, 198, 8959, 2470, TAIL, END_OF_LIST}},
    {"[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"call "
     "it\",\"tool_calls\":[{\"id\":\"c\",\"function\":"
     "{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Paris\",\"days\":3}}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"18C\"}]",
     NULL,
     NULL,
     true,
     false,
     {HEAD(69702), O,     39964, S,    10257, 483,   C,   39964, S,     O,     12092, S,    C,      12092,      S,
      O,           25385, S,     O,    10257, 4453,  878, 618,   21055, 2800,  1,     4002, 878,    16,         1,
      S,           O,     47185, 2355, 878,   37666, 1,   1798,  878,   2033,  1,     S,    113476, C,          47185,
      S,           O,     47185, 2355, 878,   21030, 1,   1798,  878,   10006, 1,     S,    18,     C,          47185,
      S,           C,     10257, S,    C,     25385, S,   TAIL,  O,     2778,  6244,  878,  20960,  1,          4453,
      878,         618,   21055, 2800, 1,     4002,  878, 16,    1,     S,     1428,  34,   TAIL,   END_OF_LIST}},
};

static const uint32_t json_object_ids[] = {
    O,     2778,  6244, 878,   14062, 1,      1798, 878,   12092, 46906, 1,    S,     1008,  2403,  387,
    42070, 472,   1268, 12092, 15764, 129392, 9318, 16518, 12080, 4503,  2746, 413,   10872, 11419, 1544,
    2932,  66661, 3253, 13825, 347,   3251,   5534, 8,     528,   1178,  6031, 44768, 13,    TAIL,  END_OF_LIST};

static void encode_chat(const struct chat *c, struct ns_ids *ids)
{
    struct ns_json *messages = NULL, *format = NULL;
    struct ns_error err = {0};
    ns_ids_init(ids, &budget);
    assert_int_equal(ns_json_parse(c->messages, strlen(c->messages), &messages, NULL), NS_OK);
    if (c->format)
        assert_int_equal(ns_json_parse(c->format, strlen(c->format), &format, NULL), NS_OK);
    struct ns_chat_options options = {
        .thinking = c->thinking, .add_generation_prompt = c->prompt, .effort = c->effort, .response_format = format};
    if (ns_chat_encode(tok, messages, &options, ids, &err) != NS_OK)
        fail_msg("%s: %s: %s", c->messages, err.context, err.message);
    ns_json_free(messages);
    ns_json_free(format);
}

static void chats_have_their_published_ids(void **state)
{
    (void)state;
    struct ns_ids ids;
    for (size_t i = 0; i < NS_COUNT(chats); i++) {
        encode_chat(&chats[i], &ids);
        expect(chats[i].messages, &ids, chats[i].ids);
        ns_ids_fini(&ids);
    }
    /* the response-format message stands behind the user's */
    struct chat c = {.messages = "[{\"role\":\"user\",\"content\":\"Hi\"}]",
                     .format = "{\"type\":\"json_object\"}",
                     .thinking = true};
    encode_chat(&c, &ids);
    assert_true(ids.n > 12);
    struct ns_ids tail = {.id = ids.id + 12, .n = ids.n - 12};
    expect("json_object", &tail, json_object_ids);
    ns_ids_fini(&ids);
}

int main(void)
{
    const char *path = getenv("NIGHTSHIFT_RELEASED_TOKENIZER");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_their_published_ids),
        cmocka_unit_test(small_caps_cut_as_published),
        cmocka_unit_test(chats_have_their_published_ids),
    };
    if (!path || !*path) {
        printf("SKIPPED: %zu published texts and %zu chats were not checked; set NIGHTSHIFT_RELEASED_TOKENIZER to the "
               "path of "
               "the released tiktoken.model\n",
               NS_COUNT(vectors) + 4, NS_COUNT(chats) + 1);
        return SKIPPED;
    }
    struct scratch s;
    struct ns_error err = {0};
    size_t n;
    ns_json_init();
    ns_budget_init(&budget, "test", 256u << 20);
    scratch_open(&s);
    char *ranks = whole_file(path, &n);
    scratch_write(&s, "tiktoken.model", ranks, n);
    scratch_write(&s, "tokenizer_config.json", names, sizeof names - 1);
    if (ns_tokenizer_open(s.dir, VOCAB, &budget, &tok, &err) != NS_OK) {
        printf("%s: %s\n", path, err.message);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ns_tokenizer_close(tok);
    free(ranks);
    scratch_close(&s);
    return failed;
}
