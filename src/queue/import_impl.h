/* import_impl.h - private to queue/: one submit in progress. */
#ifndef NS_QUEUE_IMPORT_IMPL_H
#define NS_QUEUE_IMPORT_IMPL_H

#include "queue/queue_impl.h"

struct ns_import {
    struct ns_queue *q; /* the queue, or a scratch database for a dry run */
    struct ns_submit_report *report;
    const char *name;
    int priority;
    int64_t now_ms, batch_id;
    int64_t last_line; /* lines up to this one are stored already */
    char sha256[NS_SHA256_HEX];
    struct ns_text model; /* the first model a line names; the others must agree */
    bool has_model;
};

/* Reads every line and stores it, some thousand per transaction. */
NS_MUST_CHECK enum ns_code ns_import_lines(struct ns_import *im, const char *path, struct ns_error *err);
/* Adds to the report's list while it has room. */
NS_MUST_CHECK enum ns_code ns_import_note_error(struct ns_import *im, int64_t line, const struct ns_refusal *refusal,
                                                struct ns_error *err);
/* After a continued submit the report lacks the errors of the first part: read them from the results. */
NS_MUST_CHECK enum ns_code ns_import_reread_errors(struct ns_import *im, struct ns_error *err);

#endif
