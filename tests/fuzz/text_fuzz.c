/* text_fuzz.c - any text, one vocabulary: the pieces are the text, decoding gives it back however the stream is cut, and no
 * control id comes out without marker mode. The first byte says where the stream is cut. */
#include "fuzz.h"

#include "format/format.h"
#include "json/json.h"

static struct ns_budget budget;
static struct ns_tokenizer *tok;

static void add_piece(void *arg, const char *piece, size_t n)
{
    MUST(n > 0);
    ns_text_add(arg, piece, n);
}

/* text with what is not UTF-8 replaced, decoded in steps of step bytes. */
static void repair(const uint8_t *text, size_t n, size_t step, struct ns_text *out)
{
    struct ns_decoder d = {0};
    for (size_t i = 0; i < n; i += step) {
        ns_decoder_add(&d, text + i, step < n - i ? step : n - i, out);
        MUST(out->n == 0 || ns_utf8_valid(out->data, out->n));
        MUST(d.n_held <= 3);
    }
    ns_decoder_flush(&d, out);
}

static void must_be(const struct ns_text *a, const struct ns_text *b)
{
    MUST(ns_text_ok(a) && ns_text_ok(b) && a->n == b->n && (a->n == 0 || memcmp(a->data, b->data, a->n) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_error err = {0};
    if (!tok) {
        ns_json_init();
        ns_budget_init(&budget, "fuzz", 512u << 20);
        MUST(ns_tokenizer_open(NS_SOURCE_DIR "/tests/data/fixtures/k3-tiny", 768, &budget, &tok, &err) == NS_OK);
    }
    if (size < 1)
        return 0;
    size_t used = ns_budget_used(&budget), n = size - 1;
    const uint8_t *text = data + 1;
    struct ns_text whole, cut, out;
    ns_text_init(&whole, &budget);
    ns_text_init(&cut, &budget);
    ns_text_init(&out, &budget);
    repair(text, n, SIZE_MAX, &whole);
    repair(text, n, 1 + data[0] % 7, &cut);
    must_be(&whole, &cut);
    MUST(ns_tokenizer_split(tok, (const char *)text, n, add_piece, &out, &err) == NS_OK);
    must_be(&whole, &out);
    for (int markers = 0; markers < 2; markers++) {
        struct ns_ids ids;
        ns_ids_init(&ids, &budget);
        MUST(ns_tokenizer_encode(tok, (const char *)text, n, markers, &ids, &err) == NS_OK);
        for (size_t i = 0; i < ids.n; i++)
            MUST(ids.id[i] < (markers ? 768 : ns_tokenizer_base(tok)));
        ns_text_clear(&out);
        MUST(ns_tokenizer_decode(tok, ids.id, ids.n, false, &out, &err) == NS_OK);
        must_be(&whole, &out);
        ns_ids_fini(&ids);
    }
    ns_text_fini(&whole);
    ns_text_fini(&cut);
    ns_text_fini(&out);
    MUST(ns_budget_used(&budget) == used);
    return 0;
}
