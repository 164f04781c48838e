/* chat_fuzz.c - however hostile the messages, the markers are the encoder's own: they are balanced, every message is
 * closed, and no other segment yields a control id. Input: one JSON object {"messages", "tools", "tool_choice",
 * "response_format", "effort", "thinking"}. */
#include "fuzz.h"

#include "format/format.h"
#include "json/json.h"

static struct ns_budget budget;
static struct ns_tokenizer *tok;

struct seen {
    size_t n_open, n_close, n_sep, n_end;
};

static enum ns_code check(void *arg, const char *text, size_t n, bool is_marker, bool is_assistant,
                          struct ns_error *err)
{
    struct seen *s = arg;
    (void)is_assistant;
    MUST(n > 0 && ns_utf8_valid(text, n));
    if (is_marker) {
        s->n_open += strcmp(text, "<|open|>") == 0;
        s->n_close += strcmp(text, "<|close|>") == 0;
        s->n_sep += strcmp(text, "<|sep|>") == 0;
        s->n_end += strcmp(text, "<|end_of_msg|>") == 0;
        return NS_OK;
    }
    struct ns_ids ids;
    ns_ids_init(&ids, &budget);
    MUST(ns_tokenizer_encode(tok, text, n, false, &ids, err) == NS_OK);
    for (size_t i = 0; i < ids.n; i++)
        MUST(ids.id[i] < ns_tokenizer_base(tok));
    ns_ids_fini(&ids);
    return NS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_error err = {0};
    if (!tok) {
        ns_json_init();
        ns_budget_init(&budget, "fuzz", 512u << 20);
        MUST(ns_tokenizer_open(NS_SOURCE_DIR "/tests/data/fixtures/k3-tiny", 768, &budget, &tok, &err) == NS_OK);
    }
    struct ns_json *doc = NULL;
    if (ns_json_parse((const char *)data, size, &doc, NULL) != NS_OK)
        return 0;
    size_t used = ns_budget_used(&budget), n;
    struct ns_chat_options o = {.tools = ns_json_find(doc, "tools"),
                                .tool_choice = ns_json_find(doc, "tool_choice"),
                                .response_format = ns_json_find(doc, "response_format")};
    (void)ns_json_bool(ns_json_find(doc, "thinking"), &o.thinking);
    (void)ns_json_string(ns_json_find(doc, "effort"), &o.effort, &n);
    struct seen seen = {0};
    enum ns_code rc = ns_chat_render(ns_json_find(doc, "messages"), &o, &budget, check, &seen, &err);
    must_explain(rc, &err);
    if (rc == NS_OK) {
        MUST(seen.n_open == seen.n_close && seen.n_sep == seen.n_open + seen.n_close);
        /* dynamic tool messages with an empty list say nothing, all others end with a mark */
        MUST(seen.n_end > 0 || seen.n_open == 0);
    }
    ns_json_free(doc);
    MUST(ns_budget_used(&budget) == used);
    return 0;
}
