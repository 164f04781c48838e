/* tokenizer_read.c - the vocabulary and the names of the markers, from tiktoken.model and tokenizer_config.json.
 *
 * FORMAT  tiktoken.model: lines "<base64 of the token's bytes> <rank>", ranks 0..n-1 in any order, each once; a CR at the
 *         end of a line and blank lines are fine. tokenizer_config.json: {"added_tokens_decoder": {"<id>": {"content":
 *         "<spelling>", ...}, ...}, ...}; a slot from n to the vocabulary's end that it does not name is spelt
 *         <|reserved_token_ID|>.
 * WHY     A token's bytes are the key, many are not UTF-8; all 256 single bytes must be there, because then any text
 *         can be encoded and there is no unknown token. */
#include "format/tokenizer_impl.h"

#include "json/json.h"

#include <string.h>

static uint64_t hash_bytes(const uint8_t *bytes, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 33;
}

/* The slot where these bytes are, or the empty one where they belong. */
static size_t slot_of(const struct ns_tokenizer *tok, const uint8_t *bytes, size_t n)
{
    size_t at = (size_t)hash_bytes(bytes, n) & (tok->n_slots - 1);
    for (; tok->slot[at]; at = (at + 1) & (tok->n_slots - 1)) {
        const struct ns_token_span *t = &tok->token[tok->slot[at] - 1];
        if (t->n == n && memcmp(tok->pool + t->at, bytes, n) == 0)
            break;
    }
    return at;
}

uint32_t ns_token_find(const struct ns_tokenizer *tok, const uint8_t *bytes, size_t n)
{
    if (n == 1)
        return tok->byte_id[bytes[0]];
    if (n > tok->max_token_bytes)
        return NS_NO_TOKEN;
    uint32_t slot = tok->slot[slot_of(tok, bytes, n)];
    return slot ? slot - 1 : NS_NO_TOKEN;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------ */

struct line {
    const char *s;
    size_t n, number;
};

/* The next line that is not blank, without its end. */
static bool next_line(const char **p, const char *end, struct line *line)
{
    while (*p < end) {
        const char *stop = memchr(*p, '\n', (size_t)(end - *p));
        line->s = *p;
        line->n = (size_t)((stop ? stop : end) - *p);
        line->number++;
        *p = stop ? stop + 1 : end;
        if (line->n > 0 && line->s[line->n - 1] == '\r')
            line->n--;
        if (line->n > 0)
            return true;
    }
    return false;
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes n characters into out (room for 3 n / 4). Returns the bytes, or 0 when it is not base64 or empty. */
static size_t base64_decode(const char *s, size_t n, uint8_t *out)
{
    size_t bytes = 0, pad = 0;
    if (n == 0 || n % 4 != 0)
        return 0;
    while (pad < 2 && s[n - 1 - pad] == '=')
        pad++;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t group = 0;
        size_t used = i + 4 == n ? 4 - pad : 4;
        for (size_t k = 0; k < 4; k++) {
            int v = k < used ? base64_value(s[i + k]) : 0;
            if (v < 0)
                return 0;
            group = group << 6 | (uint32_t)v;
        }
        for (size_t k = 0; k + 1 < used; k++)
            out[bytes++] = (uint8_t)(group >> (16 - 8 * k));
        if ((used == 2 && (group & 0xFFFF) != 0) || (used == 3 && (group & 0xFF) != 0))
            return 0; /* bits that belong to no byte */
    }
    return bytes;
}

static enum ns_code read_line(struct ns_tokenizer *tok, const struct line *line, size_t *pool_used,
                              struct ns_error *err)
{
    const char *space = memchr(line->s, ' ', line->n);
    if (!space || space + 1 == line->s + line->n)
        return ns_error_set(err, NS_INPUT, "line %zu has no rank", line->number);
    uint64_t rank = 0;
    for (const char *p = space + 1; p < line->s + line->n; p++) {
        if (*p < '0' || *p > '9')
            return ns_error_set(err, NS_INPUT, "line %zu: the rank is not a number", line->number);
        rank = rank > UINT32_MAX ? rank : rank * 10 + (uint64_t)(*p - '0');
    }
    if (rank >= tok->base)
        return ns_error_set(err, NS_INPUT, "line %zu: rank %" PRIu64 ", the %" PRIu32 " ranks are 0 to %" PRIu32,
                            line->number, rank, tok->base, tok->base - 1);
    struct ns_token_span *t = &tok->token[rank];
    if (t->n > 0)
        return ns_error_set(err, NS_INPUT, "line %zu: rank %" PRIu64 " stands twice", line->number, rank);
    uint8_t *bytes = tok->pool + *pool_used;
    size_t n = base64_decode(line->s, (size_t)(space - line->s), bytes);
    if (n == 0)
        return ns_error_set(err, NS_INPUT, "line %zu is not base64", line->number);
    *t = (struct ns_token_span){(uint32_t)*pool_used, (uint32_t)n};
    size_t at = slot_of(tok, bytes, n);
    if (tok->slot[at])
        return ns_error_set(err, NS_INPUT, "line %zu: ranks %" PRIu32 " and %" PRIu64 " have the same bytes",
                            line->number, tok->slot[at] - 1, rank);
    tok->slot[at] = (uint32_t)rank + 1;
    *pool_used += n;
    if (n > tok->max_token_bytes)
        tok->max_token_bytes = (uint32_t)n;
    if (n == 1)
        tok->byte_id[bytes[0]] = (uint32_t)rank;
    return NS_OK;
}

enum ns_code ns_tokenizer_read_ranks(struct ns_tokenizer *tok, const char *text, size_t n, struct ns_error *err)
{
    const char *p = text;
    struct line line = {0};
    while (next_line(&p, text + n, &line))
        tok->base++;
    if (tok->base == 0)
        return ns_error_set(err, NS_INPUT, "no tokens in it");
    if (tok->base > tok->vocab)
        return ns_error_set(err, NS_INPUT, "%" PRIu32 " tokens, the model's vocabulary has %" PRIu32, tok->base,
                            tok->vocab);
    for (tok->n_slots = 16; tok->n_slots < 2 * (size_t)tok->base;)
        tok->n_slots *= 2;
    memset(tok->byte_id, 0xFF, sizeof tok->byte_id);
    tok->pool = ns_budget_take(tok->budget, n, err); /* base64 is longer than what it says */
    tok->token = tok->pool ? ns_budget_take(tok->budget, tok->base * sizeof *tok->token, err) : NULL;
    tok->slot = tok->token ? ns_budget_take(tok->budget, tok->n_slots * sizeof *tok->slot, err) : NULL;
    if (!tok->slot)
        return NS_BUDGET;
    size_t used = 0;
    p = text;
    line.number = 0;
    while (next_line(&p, text + n, &line)) {
        enum ns_code rc = read_line(tok, &line, &used, err);
        if (rc != NS_OK)
            return rc;
    }
    for (size_t b = 0; b < 256; b++)
        if (tok->byte_id[b] == NS_NO_TOKEN)
            return ns_error_set(err, NS_INPUT, "no token for the single byte 0x%02zX", b);
    return NS_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------------ */

/* Keeps the value of "content" of one entry as the name of id. */
static enum ns_code read_name(struct ns_tokenizer *tok, const char *id_text, const struct ns_json *entry,
                              struct ns_error *err)
{
    uint64_t id = 0;
    for (const char *p = id_text; *p; p++) {
        if (*p < '0' || *p > '9' || p - id_text > 9)
            return ns_error_set(err, NS_INPUT, "added_tokens_decoder: \"%.40s\" is not a token id", id_text);
        id = id * 10 + (uint64_t)(*p - '0');
    }
    if (id < tok->base || id >= tok->vocab || id_text[0] == '\0')
        return ns_error_set(err, NS_INPUT,
                            "added_tokens_decoder names token %.40s, its places are %" PRIu32 " to %" PRIu32, id_text,
                            tok->base, tok->vocab - 1);
    const char *s;
    size_t n;
    if (!ns_json_string(ns_json_find(entry, "content"), &s, &n) || n == 0)
        return ns_error_set(err, NS_INPUT, "added_tokens_decoder: token %" PRIu64 " has no content", id);
    struct ns_token_span *name = &tok->name[id - tok->base];
    if (name->n > 0) /* "7" and "07" */
        return ns_error_set(err, NS_INPUT, "added_tokens_decoder names token %" PRIu64 " twice", id);
    for (uint32_t i = 0; i < tok->n_named; i++) {
        const struct ns_token_span *other = &tok->name[tok->named[i]];
        if (other->n == n && memcmp(tok->names.data + other->at, s, n) == 0)
            return ns_error_set(err, NS_INPUT, "tokens %" PRIu32 " and %" PRIu64 " have the same name",
                                tok->named[i] + tok->base, id);
    }
    *name = (struct ns_token_span){(uint32_t)tok->names.n, (uint32_t)n};
    ns_text_add(&tok->names, s, n);
    if (!ns_text_ok(&tok->names))
        return ns_error_set(err, NS_BUDGET, "no memory for the name of token %" PRIu64, id);
    tok->named[tok->n_named++] = (uint32_t)id - tok->base;
    return NS_OK;
}

/* The text of the member that matters, or *n = 0. The others are only walked over: published files say
 * "model_max_length": 1000000000000000019884624838656, which no integer of ours can hold. */
static enum ns_code find_added(struct ns_tokenizer *tok, const char **text, size_t *n, struct ns_error *err)
{
    static const char wanted[] = "added_tokens_decoder";
    struct ns_json_scan scan;
    const char *key, *found = NULL;
    size_t key_n, found_n = 0;
    ns_json_scan_init(&scan, *text, *n, tok->budget);
    enum ns_code rc = ns_json_scan_open(&scan, '{', err);
    while (rc == NS_OK && (rc = ns_json_scan_key(&scan, &key, &key_n, err)) == NS_OK && key) {
        bool is_it = key_n == sizeof wanted - 1 && memcmp(key, wanted, key_n) == 0;
        size_t begin = scan.at;
        rc = is_it && found ? ns_error_set(err, NS_INPUT, "%s is there twice", wanted) : ns_json_scan_skip(&scan, err);
        if (rc == NS_OK && is_it) {
            found = *text + begin;
            found_n = scan.at - begin;
        }
    }
    if (rc == NS_OK)
        rc = ns_json_scan_end(&scan, err);
    ns_json_scan_fini(&scan);
    if (rc == NS_OK) {
        *text = found;
        *n = found_n;
    }
    return rc;
}

static enum ns_code read_names(struct ns_tokenizer *tok, const char *text, size_t n, struct ns_error *err)
{
    struct ns_json *added = NULL;
    enum ns_code rc = find_added(tok, &text, &n, err);
    if (rc == NS_OK && n > 0)
        rc = ns_json_parse(text, n, &added, err);
    if (rc != NS_OK)
        return rc;
    if (added && ns_json_type(added) != NS_JSON_OBJECT)
        rc = ns_error_set(err, NS_INPUT, "added_tokens_decoder is not an object");
    tok->named = rc == NS_OK ? ns_budget_take(tok->budget, ns_json_count(added) * sizeof *tok->named, err) : NULL;
    if (rc == NS_OK && !tok->named)
        rc = NS_BUDGET;
    if (rc == NS_OK)
        for (void *it = ns_json_first(added); it && rc == NS_OK; it = ns_json_next(added, it))
            rc = read_name(tok, ns_json_key(it), ns_json_value(it), err);
    ns_json_free(added);
    return rc;
}

enum ns_code ns_tokenizer_read_names(struct ns_tokenizer *tok, const char *text, size_t n, struct ns_error *err)
{
    uint32_t slots = tok->vocab - tok->base;
    ns_text_init(&tok->names, tok->budget);
    tok->name = ns_budget_take(tok->budget, slots * sizeof *tok->name, err);
    if (!tok->name)
        return NS_BUDGET;
    enum ns_code rc = text ? read_names(tok, text, n, err) : NS_OK;
    if (rc != NS_OK)
        return rc;
    for (uint32_t i = 0; i < slots; i++) {
        if (tok->name[i].n > 0)
            continue;
        size_t at = tok->names.n;
        ns_text_format(&tok->names, "<|reserved_token_%" PRIu32 "|>", tok->base + i);
        tok->name[i] = (struct ns_token_span){(uint32_t)at, (uint32_t)(tok->names.n - at)};
    }
    if (!ns_text_ok(&tok->names))
        return ns_error_set(err, NS_BUDGET, "no memory for the names of %" PRIu32 " tokens", slots);
    for (uint32_t i = 0; i < slots; i++)
        tok->marker_start[(uint8_t)tok->names.data[tok->name[i].at]] = true;
    return NS_OK;
}
