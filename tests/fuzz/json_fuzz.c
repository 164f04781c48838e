/* json_fuzz.c - what the tree reader accepts, the walker accepts; and a value that is written reads back as itself. */
#include "fuzz.h"

#include "json/json.h"

static void must_read_back(const struct ns_json *doc, void (*put)(struct ns_json_writer *, const struct ns_json *),
                           struct ns_budget *budget)
{
    struct ns_text text;
    struct ns_json_writer w;
    struct ns_json *back = NULL;
    struct ns_error err = {0};
    ns_text_init(&text, budget);
    ns_json_begin(&w, &text);
    put(&w, doc);
    MUST(ns_text_ok(&text));
    MUST(ns_json_parse(text.data, text.n, &back, &err) == NS_OK);
    MUST(ns_json_equal(doc, back));
    ns_json_free(back);
    ns_text_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_budget budget;
    struct ns_json *doc = NULL;
    struct ns_json_scan scan;
    struct ns_error err = {0}, walk_err = {0};
    ns_budget_init(&budget, "fuzz", 256u << 20);
    enum ns_code tree = ns_json_parse((const char *)data, size, &doc, &err);
    must_explain(tree, &err);
    ns_json_scan_init(&scan, (const char *)data, size, &budget);
    enum ns_code walk = ns_json_scan_skip(&scan, &walk_err);
    if (walk == NS_OK)
        walk = ns_json_scan_end(&scan, &walk_err);
    must_explain(walk, &walk_err);
    ns_json_scan_fini(&scan);
    MUST(tree != NS_OK || walk == NS_OK);
    if (tree == NS_OK) {
        must_read_back(doc, ns_json_put_value, &budget);
        must_read_back(doc, ns_json_put_sorted, &budget);
        must_read_back(doc, ns_json_put_spaced, &budget);
    }
    ns_json_free(doc);
    MUST(ns_budget_used(&budget) == 0);
    return 0;
}
