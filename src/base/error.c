/* error.c - the catalogue of codes and the error that lives on a caller's stack. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

struct code_row {
    const char *name;
    int exit_status;
    enum ns_retry retry;
    const char *people;
};

static const struct code_row code_rows[NS_CODE_COUNT] = {
#define NS_CODE_ROW(name, json, exit_status, retry, people) [NS_##name] = {json, exit_status, retry, people},
    NS_CODES(NS_CODE_ROW)
#undef NS_CODE_ROW
};

static const struct code_row *row_of(enum ns_code code)
{
    return &code_rows[(unsigned)code < NS_CODE_COUNT ? code : NS_INTERNAL];
}

const char *ns_code_name(enum ns_code code)
{
    return row_of(code)->name;
}

const char *ns_code_people(enum ns_code code)
{
    return row_of(code)->people;
}

int ns_code_exit(enum ns_code code)
{
    return row_of(code)->exit_status;
}

enum ns_retry ns_code_retry(enum ns_code code)
{
    return row_of(code)->retry;
}

/* Messages quote names from files and are cut to size; what goes into a result must still be UTF-8. */
static void keep_utf8(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = ns_utf8_next((const uint8_t *)text + i, n - i, &cp);
        if (k <= 0)
            text[i] = '?';
        i += k > 0 ? (size_t)k : 1;
    }
}

enum ns_code ns_error_set(struct ns_error *err, enum ns_code code, const char *fmt, ...)
{
    if (!err || err->code != NS_OK)
        return code;
    err->code = code;
    err->context[0] = '\0';
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    if (n < 0)
        err->message[0] = '\0';
    keep_utf8(err->message);
    return code;
}

enum ns_code ns_error_wrap(struct ns_error *err, enum ns_code code, const char *fmt, ...)
{
    if (!err)
        return code;
    if (err->code == NS_OK)
        err->code = code;
    char what[sizeof err->context];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (n < 0)
        return code;
    keep_utf8(what);
    size_t used = strlen(what), old = strlen(err->context);
    if (old > 0 && used + 2 + old < sizeof what) {
        memcpy(what + used, ": ", 2);
        memcpy(what + used + 2, err->context, old + 1);
    }
    memcpy(err->context, what, sizeof what);
    return code;
}

void ns_error_clear(struct ns_error *err)
{
    if (err) {
        err->code = NS_OK;
        err->message[0] = '\0';
        err->context[0] = '\0';
    }
}

void ns_error_text(const struct ns_error *err, char *out, size_t size)
{
    if (size == 0)
        return;
    int n = snprintf(out, size, "%s%s%s (%s)", err->context, err->context[0] ? ": " : "", err->message,
                     ns_code_name(err->code));
    if (n < 0)
        out[0] = '\0';
}
