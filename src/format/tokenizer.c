/* tokenizer.c - text to ids and back.
 *
 * WHAT   encode: invalid UTF-8 is replaced, the text is cut by length, in marker mode the markers' spellings become their
 *        ids, the rest is split into pieces (pretokenize.c) and each piece merged (bpe.c). decode: bytes of the tokens,
 *        joined, with what is not UTF-8 replaced.
 * WHY    Text that a user, a file or a tool wrote is never read in marker mode: then no control id can come out of it,
 *        whatever it spells. The markers are found by name, because their ids depend on the vocabulary's size.
 * INVARIANTS
 *   1. Without markers every id of encode is below base.            (tokenizer_test: c16_markers_stay_text_without_markers)
 *   2. decode(encode(text)) is text, for valid text.                 (tokenizer_test: decode_gives_the_text_back)
 *   3. What the decoder emits is valid UTF-8 at every moment; it holds back at most 3 bytes.
 *                                                                   (tokenizer_test: c88_stream_never_breaks_a_character)
 * THREADS  Immutable after open; each call has its own scratch.
 * READING  Specification of the model, section 5. */
#include "format/tokenizer_impl.h"

#include <string.h>

#define MAX_FILE ((size_t)256 << 20)

static const char reserved_name[] = "<|reserved_token_";

/* ---- ids ---------------------------------------------------------------------------------------------------------------- */

void ns_ids_init(struct ns_ids *ids, struct ns_budget *budget)
{
    *ids = (struct ns_ids){.budget = budget};
}

void ns_ids_fini(struct ns_ids *ids)
{
    ns_budget_give(ids->budget, ids->id);
    ns_ids_init(ids, ids->budget);
}

enum ns_code ns_ids_add(struct ns_ids *ids, const uint32_t *id, size_t n, struct ns_error *err)
{
    size_t need, bytes, capacity = ids->capacity ? ids->capacity : 64;
    if (!ns_size_add(ids->n, n, &need))
        return ns_error_set(err, NS_BUDGET, "%zu ids cannot be counted", n);
    while (capacity < need && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    if (need > ids->capacity) {
        if (!ns_size_mul(capacity, sizeof *id, &bytes))
            return ns_error_set(err, NS_BUDGET, "%zu ids do not fit into memory", need);
        void *grown = ns_budget_resize(ids->budget, ids->id, bytes, err);
        if (!grown)
            return NS_BUDGET;
        ids->id = grown;
        ids->capacity = capacity;
    }
    if (n > 0)
        memcpy(ids->id + ids->n, id, n * sizeof *id);
    ids->n = need;
    return NS_OK;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

/* A file of the directory as text, NULL when it is not there. */
static enum ns_code slurp(const char *dir, const char *name, struct ns_budget *budget, char **text, size_t *n,
                          struct ns_error *err)
{
    char path[4096];
    enum ns_code rc = ns_path_join(dir, name, path, err);
    if (rc == NS_OK && ns_path_exists(path))
        rc = ns_file_slurp(path, MAX_FILE, budget, text, n, err);
    return rc;
}

static enum ns_code read_files(struct ns_tokenizer *tok, const char *ranks, size_t n_ranks, const char *names,
                               size_t n_names, struct ns_error *err)
{
    enum ns_code rc = ns_tokenizer_read_ranks(tok, ranks, n_ranks, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "tiktoken.model");
    rc = ns_tokenizer_read_names(tok, names, n_names, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "tokenizer_config.json");
    return ns_splitter_open(&tok->splitter, tok->budget, err);
}

enum ns_code ns_tokenizer_open(const char *dir, uint32_t vocab_size, struct ns_budget *budget,
                               struct ns_tokenizer **out, struct ns_error *err)
{
    char *ranks = NULL, *names = NULL;
    size_t n_ranks = 0, n_names = 0;
    struct ns_tokenizer *tok = NULL;
    enum ns_code rc = slurp(dir, "tiktoken.model", budget, &ranks, &n_ranks, err);
    if (rc == NS_OK && !ranks) {
        *out = NULL;
        return NS_OK;
    }
    if (rc == NS_OK)
        rc = slurp(dir, "tokenizer_config.json", budget, &names, &n_names, err);
    if (rc == NS_OK) {
        tok = ns_budget_take(budget, sizeof *tok, err);
        rc = tok ? NS_OK : NS_BUDGET;
    }
    if (rc == NS_OK) {
        tok->budget = budget;
        tok->vocab = vocab_size;
        if (!names)
            ns_log(NS_LOG_WARN, "%s has no tokenizer_config.json: its markers have no names", dir);
        rc = read_files(tok, ranks, n_ranks, names, n_names, err);
    }
    ns_budget_give(budget, ranks);
    ns_budget_give(budget, names);
    if (rc != NS_OK) {
        ns_tokenizer_close(tok);
        return ns_error_wrap(err, rc, "tokenizer %s", dir);
    }
    *out = tok;
    return NS_OK;
}

void ns_tokenizer_close(struct ns_tokenizer *tok)
{
    if (!tok)
        return;
    struct ns_budget *budget = tok->budget;
    ns_budget_give(budget, tok->pool);
    ns_budget_give(budget, tok->token);
    ns_budget_give(budget, tok->slot);
    if (tok->names.budget)
        ns_text_fini(&tok->names);
    ns_budget_give(budget, tok->name);
    ns_budget_give(budget, tok->named);
    ns_splitter_close(tok->splitter, budget);
    ns_budget_give(budget, tok);
}

uint32_t ns_tokenizer_longest(const struct ns_tokenizer *tok)
{
    return tok->max_token_bytes;
}

uint32_t ns_tokenizer_base(const struct ns_tokenizer *tok)
{
    return tok->base;
}

/* ---- markers ------------------------------------------------------------------------------------------------------------ */

/* The reserved slot spelt at s, if it is one without a name of its own. */
static uint32_t reserved_at(const struct ns_tokenizer *tok, const char *s, size_t n, size_t *length)
{
    size_t at = sizeof reserved_name - 1;
    if (n <= at || memcmp(s, reserved_name, at) != 0)
        return NS_NO_TOKEN;
    uint64_t id = 0;
    size_t first = at;
    for (; at < n && s[at] >= '0' && s[at] <= '9' && id < tok->vocab; at++)
        id = id * 10 + (uint64_t)(s[at] - '0');
    if (at == first || id < tok->base || id >= tok->vocab)
        return NS_NO_TOKEN;
    /* the slot's own spelling decides: it has no leading zeros, and a named slot has another one */
    const struct ns_token_span *name = &tok->name[id - tok->base];
    if (name->n > n || memcmp(tok->names.data + name->at, s, name->n) != 0)
        return NS_NO_TOKEN;
    *length = name->n;
    return (uint32_t)id;
}

/* The marker whose spelling begins at s, the longest when several do, or NS_NO_TOKEN. */
static uint32_t marker_at(const struct ns_tokenizer *tok, const char *s, size_t n, size_t *length)
{
    uint32_t found = NS_NO_TOKEN;
    size_t best = 0;
    if (!tok->marker_start[(uint8_t)*s])
        return NS_NO_TOKEN;
    for (uint32_t i = 0; i < tok->n_named; i++) {
        const struct ns_token_span *name = &tok->name[tok->named[i]];
        if (name->n > best && name->n <= n && memcmp(tok->names.data + name->at, s, name->n) == 0) {
            best = name->n;
            found = tok->base + tok->named[i];
        }
    }
    if (found == NS_NO_TOKEN)
        found = reserved_at(tok, s, n, &best);
    *length = best;
    return found;
}

uint32_t ns_tokenizer_special(const struct ns_tokenizer *tok, const char *name)
{
    size_t n = strlen(name), length = 0;
    uint32_t id = n > 0 ? marker_at(tok, name, n, &length) : NS_NO_TOKEN;
    return length == n ? id : NS_NO_TOKEN;
}

/* ---- encoding ------------------------------------------------------------------------------------------------------------ */

struct encoding {
    const struct ns_tokenizer *tok;
    struct ns_bpe bpe;
    struct ns_ids *ids;
    bool markers;
};

static enum ns_code encode_piece(void *arg, const char *piece, size_t n, struct ns_error *err)
{
    struct encoding *e = arg;
    return ns_bpe_encode(&e->bpe, e->tok, (const uint8_t *)piece, n, e->ids, err);
}

/* One cut of the text: markers first, the text between them through the pattern. */
static enum ns_code encode_cut(void *arg, const char *text, size_t n, struct ns_error *err)
{
    struct encoding *e = arg;
    size_t plain = 0;
    enum ns_code rc = NS_OK;
    for (size_t at = 0; e->markers && at < n && rc == NS_OK;) {
        size_t length;
        uint32_t id = marker_at(e->tok, text + at, n - at, &length);
        if (id == NS_NO_TOKEN) {
            at++;
            continue;
        }
        rc = ns_splitter_run(e->tok->splitter, text + plain, at - plain, encode_piece, e, err);
        if (rc == NS_OK)
            rc = ns_ids_add(e->ids, &id, 1, err);
        at += length;
        plain = at;
    }
    return rc == NS_OK ? ns_splitter_run(e->tok->splitter, text + plain, n - plain, encode_piece, e, err) : rc;
}

/* Calls each with text, or with a copy in which every invalid sequence is U+FFFD. */
static enum ns_code with_valid_text(const struct ns_tokenizer *tok, const char *text, size_t n, ns_part_fn each,
                                    void *arg, struct ns_error *err)
{
    if (ns_utf8_valid(text, n))
        return ns_text_cut(text, n, NS_BLOCK_CHARACTERS, NS_RUN_CHARACTERS, each, arg, err);
    struct ns_text valid;
    struct ns_decoder decoder = {0};
    ns_text_init(&valid, tok->budget);
    ns_decoder_add(&decoder, (const uint8_t *)text, n, &valid);
    ns_decoder_flush(&decoder, &valid);
    enum ns_code rc = ns_text_ok(&valid)
                          ? ns_text_cut(valid.data, valid.n, NS_BLOCK_CHARACTERS, NS_RUN_CHARACTERS, each, arg, err)
                          : ns_error_set(err, NS_BUDGET, "no memory for %zu bytes of text", n);
    ns_text_fini(&valid);
    return rc;
}

enum ns_code ns_tokenizer_encode(const struct ns_tokenizer *tok, const char *text, size_t n, bool markers,
                                 struct ns_ids *ids, struct ns_error *err)
{
    struct encoding e = {.tok = tok, .ids = ids, .markers = markers};
    size_t before = ids->n;
    ns_bpe_init(&e.bpe, tok->budget);
    enum ns_code rc = with_valid_text(tok, text, n, encode_cut, &e, err);
    ns_bpe_fini(&e.bpe);
    if (rc != NS_OK)
        ids->n = before;
    return rc;
}

struct splitting {
    const struct ns_tokenizer *tok;
    ns_piece_fn each;
    void *arg;
};

static enum ns_code show_piece(void *arg, const char *piece, size_t n, struct ns_error *err)
{
    struct splitting *s = arg;
    (void)err;
    s->each(s->arg, piece, n);
    return NS_OK;
}

static enum ns_code split_cut(void *arg, const char *text, size_t n, struct ns_error *err)
{
    struct splitting *s = arg;
    return ns_splitter_run(s->tok->splitter, text, n, show_piece, s, err);
}

enum ns_code ns_tokenizer_split(const struct ns_tokenizer *tok, const char *text, size_t n, ns_piece_fn each, void *arg,
                                struct ns_error *err)
{
    struct splitting s = {.tok = tok, .each = each, .arg = arg};
    return with_valid_text(tok, text, n, split_cut, &s, err);
}

/* ---- decoding ------------------------------------------------------------------------------------------------------------ */

enum ns_code ns_tokenizer_bytes(const struct ns_tokenizer *tok, uint32_t id, const uint8_t **bytes, size_t *n,
                                bool *special, struct ns_error *err)
{
    if (id >= tok->vocab)
        return ns_error_set(err, NS_INPUT, "token id %" PRIu32 ", the vocabulary has %" PRIu32, id, tok->vocab);
    *special = id >= tok->base;
    if (*special) {
        const struct ns_token_span *name = &tok->name[id - tok->base];
        *bytes = (const uint8_t *)tok->names.data + name->at;
        *n = name->n;
    } else {
        *bytes = tok->pool + tok->token[id].at;
        *n = tok->token[id].n;
    }
    return NS_OK;
}

static const char replacement[] = "\xEF\xBF\xBD";

void ns_decoder_add(struct ns_decoder *d, const uint8_t *bytes, size_t n, struct ns_text *out)
{
    for (size_t i = 0; i < n;) {
        size_t run = i; /* ASCII needs no thought */
        while (d->n_held == 0 && run < n && bytes[run] < 0x80)
            run++;
        ns_text_add(out, bytes + i, run - i);
        i = run;
        if (i < n)
            d->held[d->n_held++] = bytes[i++];
        while (d->n_held > 0) {
            uint32_t cp;
            int k = ns_utf8_next(d->held, d->n_held, &cp);
            if (k == 0)
                break; /* an unfinished character of at most 3 bytes */
            size_t used = (size_t)(k > 0 ? k : -k);
            if (k > 0)
                ns_text_add(out, d->held, used);
            else
                ns_text_add(out, replacement, sizeof replacement - 1);
            memmove(d->held, d->held + used, d->n_held - used);
            d->n_held -= (uint32_t)used;
        }
    }
}

void ns_decoder_flush(struct ns_decoder *d, struct ns_text *out)
{
    if (d->n_held > 0)
        ns_text_add(out, replacement, sizeof replacement - 1);
    d->n_held = 0;
}

enum ns_code ns_tokenizer_decode(const struct ns_tokenizer *tok, const uint32_t *id, size_t n, bool skip_special,
                                 struct ns_text *out, struct ns_error *err)
{
    struct ns_decoder decoder = {0};
    for (size_t i = 0; i < n; i++) {
        const uint8_t *bytes = NULL;
        size_t n_bytes = 0;
        bool special = false;
        enum ns_code rc = ns_tokenizer_bytes(tok, id[i], &bytes, &n_bytes, &special, err);
        if (rc != NS_OK)
            return rc;
        if (!special || !skip_special)
            ns_decoder_add(&decoder, bytes, n_bytes, out);
    }
    ns_decoder_flush(&decoder, out);
    return ns_text_ok(out) ? NS_OK : ns_error_set(err, NS_BUDGET, "no memory for the text of %zu tokens", n);
}
