/* tokenizer_fuzz.c - a vocabulary that is accepted can encode any text, and decoding gives it back.
 * Input: ranks, 0xFF, names, 0xFF, text (no file has that byte). */
#include "fuzz.h"

#include "format/tokenizer_impl.h"
#include "json/json.h"

static struct ns_splitter *splitter; /* compiled once; the budget below is its own */
static struct ns_budget splitter_budget;

static void must_round_trip(struct ns_tokenizer *tok, const char *text, size_t n, bool markers)
{
    struct ns_ids ids;
    struct ns_text back;
    struct ns_error err = {0};
    ns_ids_init(&ids, tok->budget);
    ns_text_init(&back, tok->budget);
    MUST(ns_tokenizer_encode(tok, text, n, markers, &ids, &err) == NS_OK);
    for (size_t i = 0; i < ids.n; i++)
        MUST(ids.id[i] < (markers ? tok->vocab : tok->base));
    MUST(ns_tokenizer_decode(tok, ids.id, ids.n, false, &back, &err) == NS_OK);
    MUST(!ns_utf8_valid(text, n) || (back.n == n && (n == 0 || memcmp(back.data, text, n) == 0)));
    ns_text_fini(&back);
    ns_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_budget budget;
    struct ns_error err = {0};
    if (!splitter) {
        ns_json_init();
        ns_budget_init(&splitter_budget, "splitter", 16u << 20);
        MUST(ns_splitter_open(&splitter, &splitter_budget, &err) == NS_OK);
    }
    const uint8_t *end = data + size, *a = size ? memchr(data, 0xFF, size) : NULL;
    const uint8_t *b = a ? memchr(a + 1, 0xFF, (size_t)(end - a - 1)) : NULL;
    if (!b)
        return 0;
    ns_budget_init(&budget, "fuzz", 256u << 20);
    struct ns_tokenizer *tok = ns_budget_take(&budget, sizeof *tok, NULL);
    MUST(tok);
    tok->budget = &budget;
    tok->vocab = 2048;
    enum ns_code rc = ns_tokenizer_read_ranks(tok, (const char *)data, (size_t)(a - data), &err);
    if (rc == NS_OK)
        rc = ns_tokenizer_read_names(tok, (const char *)a + 1, (size_t)(b - a - 1), &err);
    must_explain(rc, &err);
    if (rc == NS_OK) {
        tok->splitter = splitter;
        must_round_trip(tok, (const char *)b + 1, (size_t)(end - b - 1), false);
        must_round_trip(tok, (const char *)b + 1, (size_t)(end - b - 1), true);
        tok->splitter = NULL;
    }
    ns_tokenizer_close(tok);
    MUST(ns_budget_used(&budget) == 0);
    return 0;
}
