/* fuzz.h - what the fuzz targets share. A broken property aborts, so that it is a finding in every build. */
#ifndef NS_TESTS_FUZZ_H
#define NS_TESTS_FUZZ_H

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A refusal says why, in text that can be written anywhere. */
static inline void must_explain(enum ns_code rc, const struct ns_error *err)
{
    MUST(rc == NS_OK || (err->code == rc && err->message[0] != '\0'));
    MUST(ns_utf8_valid(err->message, strlen(err->message)));
    MUST(ns_utf8_valid(err->context, strlen(err->context)));
}

static inline void no_log(void *arg, enum ns_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

#endif
