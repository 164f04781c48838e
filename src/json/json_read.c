/* json_read.c - strict reading of JSON text into a tree.
 * The library checks grammar, UTF-8, duplicate keys and numbers; this file adds the nesting limit before it recurses
 * and turns a failed allocation inside the library into NS_BUDGET instead of a damaged heap. */
#include "json/json.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* While it gathers a token the library ignores a failed allocation and later copies past the buffer it thinks it has.
 * So it never sees one: a failure is noted, the block is asked for again so that the parse can end in order, and the
 * result is thrown away. A machine that refuses twice stops the process, which is safe at any instant; a damaged heap is
 * not. One flag per thread is enough, because a parse never leaves its thread. */
static _Thread_local bool alloc_failed;

static void *hook_alloc(size_t bytes)
{
    void *block = ns_heap_alloc(bytes);
    if (!block) {
        alloc_failed = true;
        block = ns_heap_alloc(bytes);
    }
    if (!block) {
        ns_log(NS_LOG_ERROR, "the machine refused %zu bytes while reading JSON", bytes);
        abort();
    }
    return block;
}

void ns_json_init(void)
{
    json_set_alloc_funcs(hook_alloc, ns_heap_free);
    json_object_seed(0);
}

/* Byte position of the bracket that nests too deep, or n. Strings are skipped with their escapes; text that is not JSON
 * is the parser's business. */
static size_t too_deep(const char *text, size_t n)
{
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"') {
            for (i++; i < n && text[i] != '"'; i++)
                i += text[i] == '\\';
        } else if (c == '[' || c == '{') {
            if (++depth > NS_JSON_MAX_DEPTH)
                return i;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return n;
}

/* Byte position of the first \u0000 in a string, or n. */
static size_t nul_escape(const char *text, size_t n)
{
    static const char escape[] = "\\u0000";
    const size_t width = sizeof escape - 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') {
            in_string = !in_string;
        } else if (in_string && text[i] == '\\') {
            if (n - i >= width && memcmp(text + i, escape, width) == 0)
                return i;
            i++;
        }
    }
    return n;
}

/* The escape is sound JSON, but neither C nor the database has a string with a NUL in it. The library's words for that
 * are of its own options. */
static bool is_nul_escape(const json_error_t *fault)
{
    return json_error_code(fault) == json_error_null_character || json_error_code(fault) == json_error_null_byte_in_key;
}

enum ns_code ns_json_parse(const char *text, size_t n, struct ns_json **out, struct ns_error *err)
{
    const char *nul = n > 0 ? memchr(text, '\0', n) : NULL;
    if (nul) /* the library would pass over it */
        return ns_error_set(err, NS_INPUT, "byte %zu: a NUL byte in JSON", (size_t)(nul - text) + 1);
    size_t deep = too_deep(text, n);
    if (deep < n)
        return ns_error_set(err, NS_INPUT, "byte %zu: JSON nests deeper than %d levels", deep + 1, NS_JSON_MAX_DEPTH);
    json_error_t fault;
    memset(&fault, 0, sizeof fault);
    alloc_failed = false;
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
    json_t *doc = json_loadb(text, n, flags, &fault);
    /* an integer beyond 64 bits (tokenizer files write "no limit" so): all numbers of the document are then reals */
    if (!doc && !alloc_failed && json_error_code(&fault) == json_error_numeric_overflow)
        doc = json_loadb(text, n, flags | JSON_DECODE_INT_AS_REAL, &fault);
    if (alloc_failed || (!doc && (fault.text[0] == '\0' || json_error_code(&fault) == json_error_out_of_memory))) {
        json_decref(doc);
        return ns_error_set(err, NS_BUDGET, "no memory to read %zu bytes of JSON", n);
    }
    size_t nul_at = !doc && is_nul_escape(&fault) ? nul_escape(text, n) : n;
    if (nul_at < n)
        return ns_error_set(err, NS_INPUT, "byte %zu: \\u0000 in a string: text cannot hold a NUL character",
                            nul_at + 1);
    if (!doc) {
        for (char *p = fault.text; *p; p++) /* the quoted token may hold anything */
            if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7F)
                *p = '?';
        return ns_error_set(err, NS_INPUT, "byte %d: %s", fault.position < 0 ? 0 : fault.position, fault.text);
    }
    *out = (struct ns_json *)doc;
    return NS_OK;
}

static json_t *lib(const struct ns_json *value)
{
    return (json_t *)(uintptr_t)value;
}

void ns_json_free(struct ns_json *doc)
{
    json_decref(lib(doc));
}

enum ns_json_type ns_json_type(const struct ns_json *value)
{
    if (!value)
        return NS_JSON_NULL;
    switch (json_typeof(lib(value))) {
    case JSON_OBJECT:
        return NS_JSON_OBJECT;
    case JSON_ARRAY:
        return NS_JSON_ARRAY;
    case JSON_STRING:
        return NS_JSON_STRING;
    case JSON_INTEGER:
        return NS_JSON_INT;
    case JSON_REAL:
        return NS_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return NS_JSON_BOOL;
    case JSON_NULL:
        break;
    }
    return NS_JSON_NULL;
}

const char *ns_json_type_name(enum ns_json_type type)
{
    static const char *const name[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    return (unsigned)type < NS_COUNT(name) ? name[type] : "unknown";
}

const struct ns_json *ns_json_find(const struct ns_json *object, const char *key)
{
    return (const struct ns_json *)json_object_get(lib(object), key);
}

size_t ns_json_count(const struct ns_json *value)
{
    enum ns_json_type type = ns_json_type(value);
    return type == NS_JSON_OBJECT  ? json_object_size(lib(value))
           : type == NS_JSON_ARRAY ? json_array_size(lib(value))
                                   : 0;
}

const struct ns_json *ns_json_item(const struct ns_json *array, size_t i)
{
    return (const struct ns_json *)json_array_get(lib(array), i);
}

void *ns_json_first(const struct ns_json *object)
{
    return json_object_iter(lib(object));
}

void *ns_json_next(const struct ns_json *object, void *it)
{
    return json_object_iter_next(lib(object), it);
}

const char *ns_json_key(void *it)
{
    return json_object_iter_key(it);
}

const struct ns_json *ns_json_value(void *it)
{
    return (const struct ns_json *)json_object_iter_value(it);
}

bool ns_json_bool(const struct ns_json *value, bool *out)
{
    if (ns_json_type(value) != NS_JSON_BOOL)
        return false;
    *out = json_is_true(lib(value));
    return true;
}

bool ns_json_int(const struct ns_json *value, int64_t *out)
{
    if (ns_json_type(value) == NS_JSON_INT) {
        *out = json_integer_value(lib(value));
        return true;
    }
    if (ns_json_type(value) != NS_JSON_REAL)
        return false;
    double v = json_real_value(lib(value));
    if (!(v >= -0x1p63 && v < 0x1p63) || v != floor(v))
        return false;
    *out = (int64_t)v;
    return true;
}

bool ns_json_number(const struct ns_json *value, double *out)
{
    if (ns_json_type(value) == NS_JSON_INT)
        *out = (double)json_integer_value(lib(value));
    else if (ns_json_type(value) == NS_JSON_REAL)
        *out = json_real_value(lib(value));
    else
        return false;
    return true;
}

bool ns_json_string(const struct ns_json *value, const char **s, size_t *n)
{
    if (ns_json_type(value) != NS_JSON_STRING)
        return false;
    *s = json_string_value(lib(value));
    *n = json_string_length(lib(value));
    return true;
}

bool ns_json_is_null(const struct ns_json *value)
{
    return ns_json_type(value) == NS_JSON_NULL;
}

bool ns_json_equal(const struct ns_json *a, const struct ns_json *b)
{
    return json_equal(lib(a), lib(b)) != 0;
}
