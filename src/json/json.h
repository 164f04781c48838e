/* json.h - the only room that knows the JSON library. Reading is strict (duplicate keys, bad UTF-8, lone surrogates,
 * NUL in strings and deep nesting are refused); writing keeps key order and exact numbers. */
#ifndef NS_JSON_H
#define NS_JSON_H

#include "base/base.h"

struct ns_json; /* one value; documents own their values */

enum ns_json_type {
    NS_JSON_NULL,
    NS_JSON_BOOL,
    NS_JSON_INT,  /* fits int64 */
    NS_JSON_REAL, /* everything else that is a number */
    NS_JSON_STRING,
    NS_JSON_ARRAY,
    NS_JSON_OBJECT
};

/* ---- reading (json_read.c) --------------------------------------------------------------------------------------- */

/* Integers beyond int64, deeper nesting than this and NUL in strings are refused. */
#define NS_JSON_MAX_DEPTH 48

/* An integer beyond 64 bits makes every number of the document a real (ns_json_int still gives those that are integral).
 * Errors: NS_INPUT with byte position and what was expected; NS_BUDGET. Free with ns_json_free. */
NS_MUST_CHECK enum ns_code ns_json_parse(const char *text, size_t n, struct ns_json **out, struct ns_error *err);
void ns_json_free(struct ns_json *doc); /* NULL is fine; the document only, never a part of it */

enum ns_json_type ns_json_type(const struct ns_json *value); /* NULL value: NS_JSON_NULL */
const char *ns_json_type_name(enum ns_json_type type);
const struct ns_json *ns_json_find(const struct ns_json *object, const char *key); /* NULL: absent or not an object */
size_t ns_json_count(const struct ns_json *value);                                 /* members or items, else 0 */
const struct ns_json *ns_json_item(const struct ns_json *array, size_t i);         /* NULL: out of range */
/* The i-th member in file order is reached by iteration: it = ns_json_first(o); it; it = ns_json_next(o, it). */
void *ns_json_first(const struct ns_json *object);
void *ns_json_next(const struct ns_json *object, void *it);
const char *ns_json_key(void *it);
const struct ns_json *ns_json_value(void *it);

bool ns_json_bool(const struct ns_json *value, bool *out);
bool ns_json_int(const struct ns_json *value, int64_t *out);   /* an integer, or a real with an integral value */
bool ns_json_number(const struct ns_json *value, double *out); /* integer or real */
bool ns_json_string(const struct ns_json *value, const char **s, size_t *n); /* borrowed from the document */
bool ns_json_is_null(const struct ns_json *value);
bool ns_json_equal(const struct ns_json *a, const struct ns_json *b);

/* ---- walking large texts without a tree (json_scan.c) -------------------------------------------------------------- */

/* For objects of half a million members (checkpoint headers and indexes): the caller says what it expects next, memory
 * is one string. Same grammar and the same strictness as ns_json_parse, but repeated keys are the caller's to notice.
 *
 *     ns_json_scan_open(&s, '{', err);
 *     while ((rc = ns_json_scan_key(&s, &key, &n, err)) == NS_OK && key) ... read one value ...
 *
 * Arrays: ns_json_scan_open(&s, '[', err), then ns_json_scan_element says whether a value follows. */
struct ns_json_scan {
    const char *text;
    size_t n, at;
    struct ns_text word; /* the last string, unescaped */
    uint32_t depth;
    bool comma; /* a member or element of the innermost bracket was read */
};

/* text is borrowed until fini. Errors of all calls: NS_INPUT with the byte position, NS_BUDGET. */
void ns_json_scan_init(struct ns_json_scan *s, const char *text, size_t n, struct ns_budget *budget);
void ns_json_scan_fini(struct ns_json_scan *s);
NS_MUST_CHECK enum ns_code ns_json_scan_open(struct ns_json_scan *s, char bracket, struct ns_error *err);
/* The next key with its colon, or *key = NULL with the closing brace consumed. Borrowed until the next call. */
NS_MUST_CHECK enum ns_code ns_json_scan_key(struct ns_json_scan *s, const char **key, size_t *n, struct ns_error *err);
/* *more false: the closing bracket was consumed. */
NS_MUST_CHECK enum ns_code ns_json_scan_element(struct ns_json_scan *s, bool *more, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_json_scan_string(struct ns_json_scan *s, const char **out, size_t *n,
                                               struct ns_error *err); /* borrowed until the next call */
NS_MUST_CHECK enum ns_code ns_json_scan_u64(struct ns_json_scan *s, uint64_t *out, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_json_scan_skip(struct ns_json_scan *s, struct ns_error *err); /* any one value */
NS_MUST_CHECK enum ns_code ns_json_scan_end(struct ns_json_scan *s, struct ns_error *err);  /* only spaces are left */

/* ---- building and writing (json_write.c) --------------------------------------------------------------------------- */

/* Writes text directly; commas and nesting are kept by the writer. Strings must be UTF-8 (asserted); numbers: integers
 * as they are, floats with the shortest form that reads back as the same float, non-finite as null. */
struct ns_json_writer {
    struct ns_text *out;
    uint32_t depth;
    bool comma[64];
    bool after_key;
};

void ns_json_begin(struct ns_json_writer *w, struct ns_text *out);
void ns_json_open_object(struct ns_json_writer *w);
void ns_json_close_object(struct ns_json_writer *w);
void ns_json_open_array(struct ns_json_writer *w);
void ns_json_close_array(struct ns_json_writer *w);
void ns_json_put_key(struct ns_json_writer *w, const char *key);
void ns_json_put_string(struct ns_json_writer *w, const char *s, size_t n);
void ns_json_put_cstring(struct ns_json_writer *w, const char *s); /* NULL writes null */
void ns_json_put_int(struct ns_json_writer *w, int64_t v);
void ns_json_put_float(struct ns_json_writer *w, float v);
void ns_json_put_double(struct ns_json_writer *w, double v);
void ns_json_put_bool(struct ns_json_writer *w, bool v);
void ns_json_put_null(struct ns_json_writer *w);
/* A parsed value, compact, member order kept. */
void ns_json_put_value(struct ns_json_writer *w, const struct ns_json *value);
/* The same with all object keys sorted recursively, for hashing and for schemas in chat. */
void ns_json_put_sorted(struct ns_json_writer *w, const struct ns_json *value);
/* Text that is JSON already. */
void ns_json_put_raw(struct ns_json_writer *w, const char *json, size_t n);
/* JSON with ", " and ": " separators and non-ASCII kept (chat encoding of tool arguments). */
void ns_json_put_spaced(struct ns_json_writer *w, const struct ns_json *value);

/* The library's allocations through hooks that know the fault countdown. Call once from main. */
void ns_json_init(void);

#endif
