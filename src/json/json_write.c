/* json_write.c - JSON text, written directly: no tree, stable order, exact numbers.
 * A float is the shortest decimal that reads back as the same float, in the form the Python reference prints (1.0,
 * 2.5, 1e-05, 1e+16), because tool arguments in a chat prompt are tokens and every byte of them counts. */
#include "json/json.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ns_json_begin(struct ns_json_writer *w, struct ns_text *out)
{
    memset(w, 0, sizeof *w);
    w->out = out;
}

static void before_value(struct ns_json_writer *w)
{
    if (!w->after_key && w->comma[w->depth])
        ns_text_add(w->out, ",", 1);
    w->after_key = false;
    w->comma[w->depth] = true;
}

static void open_with(struct ns_json_writer *w, const char *bracket)
{
    before_value(w);
    ns_text_add(w->out, bracket, 1);
    assert(w->depth + 1 < NS_COUNT(w->comma));
    w->comma[++w->depth] = false;
}

static void close_with(struct ns_json_writer *w, const char *bracket)
{
    assert(w->depth > 0 && !w->after_key);
    w->depth--;
    ns_text_add(w->out, bracket, 1);
}

void ns_json_open_object(struct ns_json_writer *w)
{
    open_with(w, "{");
}

void ns_json_close_object(struct ns_json_writer *w)
{
    close_with(w, "}");
}

void ns_json_open_array(struct ns_json_writer *w)
{
    open_with(w, "[");
}

void ns_json_close_array(struct ns_json_writer *w)
{
    close_with(w, "]");
}

static void write_string(struct ns_text *out, const char *s, size_t n)
{
    assert(ns_utf8_valid(s, n));
    ns_text_add(out, "\"", 1);
    size_t plain = 0; /* start of the run that needs no escape */
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        ns_text_add(out, s + plain, i - plain);
        plain = i + 1;
        static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
        const char *name = NULL;
        for (const char *p = named; *p; p += 2)
            if ((unsigned char)*p == c)
                name = p + 1;
        if (name)
            ns_text_format(out, "\\%c", *name);
        else
            ns_text_format(out, "\\u%04x", (unsigned)c);
    }
    ns_text_add(out, s + plain, n - plain);
    ns_text_add(out, "\"", 1);
}

void ns_json_put_key(struct ns_json_writer *w, const char *key)
{
    before_value(w);
    write_string(w->out, key, strlen(key));
    ns_text_add(w->out, ":", 1);
    w->after_key = true;
}

void ns_json_put_string(struct ns_json_writer *w, const char *s, size_t n)
{
    before_value(w);
    write_string(w->out, s, n);
}

void ns_json_put_cstring(struct ns_json_writer *w, const char *s)
{
    if (s)
        ns_json_put_string(w, s, strlen(s));
    else
        ns_json_put_null(w);
}

void ns_json_put_int(struct ns_json_writer *w, int64_t v)
{
    before_value(w);
    ns_text_format(w->out, "%" PRId64, v);
}

/* scientific is d.ddde[+-]xx, the shortest digits that read back. Fixed notation for exponents -4..15. */
static void write_digits(struct ns_text *out, const char *scientific)
{
    const char *p = scientific;
    if (*p == '-')
        ns_text_add(out, p++, 1);
    char digit[32];
    size_t n = 0;
    for (; *p && *p != 'e'; p++)
        if (*p != '.')
            digit[n++] = *p;
    long exponent = strtol(p + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        ns_text_add(out, digit, 1);
        if (n > 1)
            ns_text_format(out, ".%.*s", (int)(n - 1), digit + 1);
        ns_text_format(out, "e%c%02ld", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
    } else if (exponent < 0) {
        ns_text_format(out, "0.%.*s%.*s", (int)(-exponent - 1), "0000", (int)n, digit);
    } else {
        size_t whole = (size_t)exponent + 1;
        for (size_t i = 0; i < whole; i++)
            ns_text_add(out, i < n ? &digit[i] : "0", 1);
        ns_text_format(out, ".%.*s", n > whole ? (int)(n - whole) : 1, n > whole ? digit + whole : "0");
    }
}

static void write_double(struct ns_text *out, double v)
{
    char text[40];
    if (!isfinite(v)) {
        ns_text_puts(out, "null");
        return;
    }
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, v);
        if (strtod(text, NULL) == v)
            break;
    }
    write_digits(out, text);
}

void ns_json_put_float(struct ns_json_writer *w, float v)
{
    before_value(w);
    char text[40];
    if (!isfinite(v)) {
        ns_text_puts(w->out, "null");
        return;
    }
    for (int precision = 0; precision <= 8; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    write_digits(w->out, text);
}

void ns_json_put_double(struct ns_json_writer *w, double v)
{
    before_value(w);
    write_double(w->out, v);
}

void ns_json_put_bool(struct ns_json_writer *w, bool v)
{
    before_value(w);
    ns_text_puts(w->out, v ? "true" : "false");
}

void ns_json_put_null(struct ns_json_writer *w)
{
    before_value(w);
    ns_text_puts(w->out, "null");
}

void ns_json_put_raw(struct ns_json_writer *w, const char *json, size_t n)
{
    before_value(w);
    ns_text_add(w->out, json, n);
}

/* ---- parsed values ----------------------------------------------------------------------------------------------- */

struct style {
    const char *comma, *colon;
    bool sorted;
};

static void write_value(struct ns_text *out, const struct ns_json *value, const struct style *style);

static int by_key(const void *a, const void *b)
{
    /* bytes of UTF-8 sort as code points do */
    return strcmp(ns_json_key(*(void *const *)a), ns_json_key(*(void *const *)b));
}

static void write_member(struct ns_text *out, void *it, bool first, const struct style *style)
{
    if (!first)
        ns_text_puts(out, style->comma);
    write_string(out, ns_json_key(it), strlen(ns_json_key(it)));
    ns_text_puts(out, style->colon);
    write_value(out, ns_json_value(it), style);
}

static void write_object(struct ns_text *out, const struct ns_json *object, const struct style *style)
{
    size_t n = ns_json_count(object), i = 0, bytes;
    void **member = NULL;
    if (style->sorted && n > 0) {
        member = ns_size_mul(n, sizeof *member, &bytes) ? ns_budget_take(out->budget, bytes, NULL) : NULL;
        if (!member) {
            out->failed = true;
            return;
        }
    }
    ns_text_add(out, "{", 1);
    for (void *it = ns_json_first(object); it; it = ns_json_next(object, it), i++) {
        if (member)
            member[i] = it;
        else
            write_member(out, it, i == 0, style);
    }
    if (member) {
        qsort(member, n, sizeof *member, by_key);
        for (i = 0; i < n; i++)
            write_member(out, member[i], i == 0, style);
    }
    ns_budget_give(out->budget, member);
    ns_text_add(out, "}", 1);
}

/* Recursion is bounded by NS_JSON_MAX_DEPTH, which the reader enforces. */
static void write_value(struct ns_text *out, const struct ns_json *value, const struct style *style)
{
    int64_t whole;
    double number;
    bool flag;
    const char *s;
    size_t n;
    switch (ns_json_type(value)) {
    case NS_JSON_NULL:
        ns_text_puts(out, "null");
        return;
    case NS_JSON_BOOL:
        ns_text_puts(out, ns_json_bool(value, &flag) && flag ? "true" : "false");
        return;
    case NS_JSON_INT:
        if (ns_json_int(value, &whole))
            ns_text_format(out, "%" PRId64, whole);
        return;
    case NS_JSON_REAL:
        if (ns_json_number(value, &number))
            write_double(out, number);
        return;
    case NS_JSON_STRING:
        if (ns_json_string(value, &s, &n))
            write_string(out, s, n);
        return;
    case NS_JSON_ARRAY:
        ns_text_add(out, "[", 1);
        for (size_t i = 0; i < ns_json_count(value); i++) {
            if (i > 0)
                ns_text_puts(out, style->comma);
            write_value(out, ns_json_item(value, i), style);
        }
        ns_text_add(out, "]", 1);
        return;
    case NS_JSON_OBJECT:
        write_object(out, value, style);
        return;
    }
}

void ns_json_put_value(struct ns_json_writer *w, const struct ns_json *value)
{
    before_value(w);
    write_value(w->out, value, &(struct style){",", ":", false});
}

void ns_json_put_sorted(struct ns_json_writer *w, const struct ns_json *value)
{
    before_value(w);
    write_value(w->out, value, &(struct style){",", ":", true});
}

void ns_json_put_spaced(struct ns_json_writer *w, const struct ns_json *value)
{
    before_value(w);
    write_value(w->out, value, &(struct style){", ", ": ", false});
}
