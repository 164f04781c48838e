/* json_scan.c - walking JSON text without building a tree.
 * The reader of checkpoint headers: half a million members in 80 MB would cost a tree of a gigabyte. State is a position,
 * one unescaped string and a depth; whether a comma is due is known from the innermost bracket alone, because a bracket
 * that was just closed is itself a value. */
#include "json/json.h"

#include <string.h>

void ns_json_scan_init(struct ns_json_scan *s, const char *text, size_t n, struct ns_budget *budget)
{
    memset(s, 0, sizeof *s);
    s->text = text;
    s->n = n;
    ns_text_init(&s->word, budget);
}

void ns_json_scan_fini(struct ns_json_scan *s)
{
    ns_text_fini(&s->word);
}

static enum ns_code refuse(const struct ns_json_scan *s, const char *expected, struct ns_error *err)
{
    if (s->at >= s->n)
        return ns_error_set(err, NS_INPUT, "byte %zu: the JSON ends where %s was expected", s->at + 1, expected);
    unsigned char c = (unsigned char)s->text[s->at];
    if (c >= 0x20 && c < 0x7F)
        return ns_error_set(err, NS_INPUT, "byte %zu: '%c' where %s was expected", s->at + 1, c, expected);
    return ns_error_set(err, NS_INPUT, "byte %zu: byte 0x%02X where %s was expected", s->at + 1, c, expected);
}

/* The next byte that is not white space, or -1 at the end. */
static int peek(struct ns_json_scan *s)
{
    while (s->at < s->n &&
           (s->text[s->at] == ' ' || s->text[s->at] == '\n' || s->text[s->at] == '\r' || s->text[s->at] == '\t'))
        s->at++;
    return s->at < s->n ? (unsigned char)s->text[s->at] : -1;
}

enum ns_code ns_json_scan_open(struct ns_json_scan *s, char bracket, struct ns_error *err)
{
    if (peek(s) != bracket)
        return refuse(s, bracket == '{' ? "an object" : "an array", err);
    if (s->depth >= NS_JSON_MAX_DEPTH)
        return ns_error_set(err, NS_INPUT, "byte %zu: JSON nests deeper than %d levels", s->at + 1, NS_JSON_MAX_DEPTH);
    s->at++;
    s->depth++;
    s->comma = false;
    return NS_OK;
}

/* Steps to the next member or element: true when one follows, false when the bracket closed. */
static enum ns_code step(struct ns_json_scan *s, char closing, bool *more, struct ns_error *err)
{
    int c = peek(s);
    if (c == closing) {
        s->at++;
        s->depth--;
        s->comma = true; /* the closed bracket was a value of the outer one */
        *more = false;
        return NS_OK;
    }
    if (s->comma) {
        if (c != ',')
            return refuse(s, closing == '}' ? "',' or '}'" : "',' or ']'", err);
        s->at++;
        if (peek(s) == closing)
            return refuse(s, closing == '}' ? "a key" : "a value", err);
    }
    s->comma = true;
    *more = true;
    return NS_OK;
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* \uXXXX at s->at (the backslash), surrogate pairs joined. */
static enum ns_code unicode_escape(struct ns_json_scan *s, struct ns_error *err)
{
    size_t left = s->n - s->at;
    const char *p = s->text + s->at;
    int high = left >= 6 ? hex4(p + 2) : -1;
    uint32_t cp = (uint32_t)high;
    if (high < 0)
        return refuse(s, "four hexadecimal digits", err);
    if (high == 0)
        return ns_error_set(err, NS_INPUT, "byte %zu: NUL in a string", s->at + 1);
    size_t used = 6;
    if (high >= 0xD800 && high < 0xE000) {
        int low = high < 0xDC00 && left >= 12 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return ns_error_set(err, NS_INPUT, "byte %zu: half of a surrogate pair", s->at + 1);
        cp = 0x10000 + (((uint32_t)high - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
        used = 12;
    }
    char utf8[4];
    ns_text_add(&s->word, utf8, ns_utf8_put(cp, utf8));
    s->at += used;
    return NS_OK;
}

static enum ns_code escape(struct ns_json_scan *s, struct ns_error *err)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = s->at + 1 < s->n ? s->text[s->at + 1] : '\0';
    if (c == 'u')
        return unicode_escape(s, err);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found)
        return refuse(s, "a known escape", err);
    ns_text_add(&s->word, to + (found - from), 1);
    s->at += 2;
    return NS_OK;
}

enum ns_code ns_json_scan_string(struct ns_json_scan *s, const char **out, size_t *n, struct ns_error *err)
{
    if (peek(s) != '"')
        return refuse(s, "a string", err);
    s->at++;
    ns_text_clear(&s->word);
    ns_text_add(&s->word, "", 0);
    for (;;) {
        size_t run = s->at;
        while (run < s->n && (unsigned char)s->text[run] >= 0x20 && s->text[run] != '"' && s->text[run] != '\\')
            run++;
        ns_text_add(&s->word, s->text + s->at, run - s->at);
        s->at = run;
        if (run >= s->n || (unsigned char)s->text[run] < 0x20)
            return refuse(s, "the end of a string", err);
        if (s->text[run] == '"')
            break;
        enum ns_code rc = escape(s, err);
        if (rc != NS_OK)
            return rc;
    }
    if (!ns_text_ok(&s->word))
        return ns_error_set(err, NS_BUDGET, "byte %zu: no memory for a string", s->at);
    if (!ns_utf8_valid(s->word.data, s->word.n))
        return ns_error_set(err, NS_INPUT, "byte %zu: a string that is not UTF-8 ends here", s->at + 1);
    s->at++;
    *out = s->word.data;
    *n = s->word.n;
    return NS_OK;
}

enum ns_code ns_json_scan_key(struct ns_json_scan *s, const char **key, size_t *n, struct ns_error *err)
{
    bool more = false;
    enum ns_code rc = step(s, '}', &more, err);
    if (rc != NS_OK)
        return rc;
    if (!more) {
        *key = NULL;
        *n = 0;
        return NS_OK;
    }
    rc = ns_json_scan_string(s, key, n, err);
    if (rc != NS_OK)
        return rc;
    if (peek(s) != ':')
        return refuse(s, "':'", err);
    s->at++;
    return NS_OK;
}

enum ns_code ns_json_scan_element(struct ns_json_scan *s, bool *more, struct ns_error *err)
{
    return step(s, ']', more, err);
}

static bool is_digit(const struct ns_json_scan *s)
{
    return s->at < s->n && s->text[s->at] >= '0' && s->text[s->at] <= '9';
}

enum ns_code ns_json_scan_u64(struct ns_json_scan *s, uint64_t *out, struct ns_error *err)
{
    int c = peek(s);
    if (c < '0' || c > '9')
        return refuse(s, "a count", err);
    uint64_t v = 0;
    size_t start = s->at;
    while (is_digit(s)) {
        uint64_t digit = (uint64_t)(s->text[s->at] - '0');
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) || __builtin_add_overflow(v, digit, &v))
            return ns_error_set(err, NS_INPUT, "byte %zu: the number does not fit 64 bits", start + 1);
        s->at++;
    }
    if (s->text[start] == '0' && s->at > start + 1)
        return ns_error_set(err, NS_INPUT, "byte %zu: a number with a leading zero", start + 1);
    if (s->at < s->n && (s->text[s->at] == '.' || s->text[s->at] == 'e' || s->text[s->at] == 'E'))
        return refuse(s, "a whole number", err);
    *out = v;
    return NS_OK;
}

static enum ns_code skip_number(struct ns_json_scan *s, struct ns_error *err)
{
    if (s->text[s->at] == '-')
        s->at++;
    size_t start = s->at;
    while (is_digit(s))
        s->at++;
    if (s->at == start || (s->text[start] == '0' && s->at > start + 1))
        return refuse(s, "a number", err);
    if (s->at < s->n && s->text[s->at] == '.') {
        s->at++;
        if (!is_digit(s))
            return refuse(s, "a digit", err);
        while (is_digit(s))
            s->at++;
    }
    if (s->at < s->n && (s->text[s->at] == 'e' || s->text[s->at] == 'E')) {
        s->at++;
        if (s->at < s->n && (s->text[s->at] == '+' || s->text[s->at] == '-'))
            s->at++;
        if (!is_digit(s))
            return refuse(s, "a digit", err);
        while (is_digit(s))
            s->at++;
    }
    return NS_OK;
}

static enum ns_code skip_word(struct ns_json_scan *s, struct ns_error *err)
{
    static const char *const word[] = {"true", "false", "null"};
    for (size_t i = 0; i < NS_COUNT(word); i++) {
        size_t n = strlen(word[i]);
        if (s->n - s->at >= n && memcmp(s->text + s->at, word[i], n) == 0) {
            s->at += n;
            return NS_OK;
        }
    }
    return refuse(s, "a value", err);
}

/* Recursion is bounded by NS_JSON_MAX_DEPTH in ns_json_scan_open. */
enum ns_code ns_json_scan_skip(struct ns_json_scan *s, struct ns_error *err)
{
    const char *text;
    size_t n;
    bool more = true;
    int c = peek(s);
    if (c == '"')
        return ns_json_scan_string(s, &text, &n, err);
    if (c == '-' || (c >= '0' && c <= '9'))
        return skip_number(s, err);
    if (c != '{' && c != '[')
        return skip_word(s, err);
    enum ns_code rc = ns_json_scan_open(s, (char)c, err);
    while (rc == NS_OK) {
        if (c == '{') {
            rc = ns_json_scan_key(s, &text, &n, err);
            more = text != NULL;
        } else {
            rc = ns_json_scan_element(s, &more, err);
        }
        if (rc != NS_OK || !more)
            break;
        rc = ns_json_scan_skip(s, err);
    }
    return rc;
}

enum ns_code ns_json_scan_end(struct ns_json_scan *s, struct ns_error *err)
{
    return peek(s) < 0 ? NS_OK : refuse(s, "the end", err);
}
