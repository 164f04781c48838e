/* show.c - requests, attempts and events, one row at a time. */
#include "queue/select_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- selections ---------------------------------------------------------------------------------------------------------- */

static bool read_number(const char **p, int64_t *out)
{
    if (**p != '#')
        return false;
    (*p)++;
    *out = 0;
    const char *start = *p;
    for (; **p >= '0' && **p <= '9'; (*p)++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, **p - '0', out))
            return false;
    return *p > start && *out > 0;
}

enum ns_code ns_queue_select(struct ns_queue *queue, const char *text, struct ns_selection *out, struct ns_error *err)
{
    struct ns_selection s = {0};
    const char *p = text;
    if (*p == '#') {
        bool good = read_number(&p, &s.first_id);
        s.last_id = s.first_id;
        if (good && *p == '-') {
            p++;
            good = read_number(&p, &s.last_id);
        }
        if (!good || *p != '\0' || s.last_id < s.first_id)
            return ns_error_set(err, NS_USAGE, "\"%.80s\" is not a request: #12 or #12-#20", text);
        *out = s;
        return NS_OK;
    }
    char batch[NS_BATCH_ID_SIZE];
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    snprintf(batch, sizeof batch, "%.*s", (int)(n < sizeof batch ? n : sizeof batch - 1), text);
    if (n >= sizeof batch)
        return ns_error_set(err, NS_NOINPUT, "there is no batch \"%.80s\"", text);
    enum ns_code rc = ns_queue_find_batch(queue, batch, &s.batch_id, err);
    if (rc != NS_OK)
        return rc;
    s.custom_id = slash ? slash + 1 : NULL;
    *out = s;
    return NS_OK;
}

/* ---- requests --------------------------------------------------------------------------------------------------------------- */

#define REQUEST_COLUMNS                                                                                                \
    "SELECT r.id, r.batch_id, r.line_no, b.public_id, r.custom_id, r.kind, r.state, r.priority, r.refused,"            \
    " r.cancel_asked, r.tries, r.suspect, r.skips, IFNULL(r.n_prompt, 0), IFNULL(r.max_new, 0),"                       \
    " (SELECT IFNULL(SUM(n_out), 0) FROM sequences s WHERE s.request_id = r.id), IFNULL(r.runner_id, 0),"              \
    " r.enqueued_at, IFNULL(r.started_at, 0), IFNULL(r.finished_at, 0), r.not_before, IFNULL(x.correct, -1),"          \
    " IFNULL(x.status_code, 0), x.response, x.error, x.local, r.body FROM requests r"                                  \
    " JOIN batches b ON b.id = r.batch_id LEFT JOIN results x ON x.request_id = r.id WHERE "
#define REQUEST_TAIL " ORDER BY r.batch_id, r.line_no LIMIT CASE WHEN ?6 = 0 THEN -1 ELSE ?6 END"

static void read_request(sqlite3_stmt *s, bool want_text, struct ns_request_info *r)
{
    *r = (struct ns_request_info){.id = sqlite3_column_int64(s, 0),
                                  .batch_id = sqlite3_column_int64(s, 1),
                                  .line_no = sqlite3_column_int64(s, 2),
                                  .batch = ns_sql_text(s, 3),
                                  .custom_id = ns_sql_text(s, 4),
                                  .kind = ns_sql_text(s, 5),
                                  .state = ns_sql_text(s, 6),
                                  .priority = (int)sqlite3_column_int64(s, 7),
                                  .refused = sqlite3_column_int64(s, 8) != 0,
                                  .cancel_asked = sqlite3_column_int64(s, 9) != 0,
                                  .correct = (int)sqlite3_column_int64(s, 21),
                                  .status_code = (int)sqlite3_column_int64(s, 22)};
    int64_t *const number[] = {&r->tries,         &r->suspect,        &r->skips,        &r->n_prompt,
                               &r->max_new,       &r->n_out,          &r->runner_id,    &r->enqueued_at_ms,
                               &r->started_at_ms, &r->finished_at_ms, &r->not_before_ms};
    for (size_t i = 0; i < NS_COUNT(number); i++)
        *number[i] = sqlite3_column_int64(s, 10 + (int)i);
    if (!want_text)
        return;
    r->response = ns_sql_text(s, 23);
    r->error = ns_sql_text(s, 24);
    r->local = ns_sql_text(s, 25);
    r->body = ns_sql_text(s, 26);
}

enum ns_code ns_queue_each_request(struct ns_queue *queue, const struct ns_selection *which, bool want_text,
                                   ns_request_each_fn each, void *arg, struct ns_error *err)
{
    static const char of_batch[] = REQUEST_COLUMNS NS_SELECT_OF_BATCH REQUEST_TAIL;
    static const char of_ids[] = REQUEST_COLUMNS NS_SELECT_OF_IDS REQUEST_TAIL;
    static const char of_all[] = REQUEST_COLUMNS NS_SELECT_OF_ALL REQUEST_TAIL;
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(queue, &stmt, err,
                                  which->batch_id   ? of_batch
                                  : which->first_id ? of_ids
                                                    : of_all,
                                  "iiitti", which->batch_id, which->first_id, which->last_id, which->state,
                                  which->custom_id, which->limit);
    while (ns_sql_more(queue, stmt, &rc, err)) {
        struct ns_request_info info;
        read_request(stmt, want_text, &info);
        rc = ns_sql_fetched(queue, err);
        if (rc == NS_OK)
            rc = each(arg, &info, err);
    }
    return rc;
}

enum ns_code ns_queue_each_attempt(struct ns_queue *queue, int64_t request_id, ns_attempt_each_fn each, void *arg,
                                   struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc =
        ns_sql_rows(queue, &stmt, err,
                    "SELECT try_no, runner_id, began_at, IFNULL(ended_at, 0), resumed_from, outcome, error,"
                    " resume_kind FROM attempts WHERE request_id = ? ORDER BY id",
                    "i", request_id);
    while (ns_sql_more(queue, stmt, &rc, err)) {
        struct ns_attempt_info info = {.try_no = sqlite3_column_int64(stmt, 0),
                                       .runner_id = sqlite3_column_int64(stmt, 1),
                                       .began_at_ms = sqlite3_column_int64(stmt, 2),
                                       .ended_at_ms = sqlite3_column_int64(stmt, 3),
                                       .resumed_from = sqlite3_column_int64(stmt, 4),
                                       .outcome = ns_sql_text(stmt, 5),
                                       .error = ns_sql_text(stmt, 6),
                                       .resume_kind = ns_sql_text(stmt, 7)};
        rc = ns_sql_fetched(queue, err);
        if (rc == NS_OK)
            rc = each(arg, &info, err);
    }
    return rc;
}

enum ns_code ns_queue_each_event(struct ns_queue *queue, int64_t after_id, ns_event_each_fn each, void *arg,
                                 struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc =
        ns_sql_rows(queue, &stmt, err,
                    "SELECT id, at, IFNULL(runner_id, 0), IFNULL(batch_id, 0), IFNULL(request_id, 0), level,"
                    " kind, detail FROM events WHERE id > ? ORDER BY id",
                    "i", after_id);
    while (ns_sql_more(queue, stmt, &rc, err)) {
        struct ns_event_info info = {.id = sqlite3_column_int64(stmt, 0),
                                     .at_ms = sqlite3_column_int64(stmt, 1),
                                     .runner_id = sqlite3_column_int64(stmt, 2),
                                     .batch_id = sqlite3_column_int64(stmt, 3),
                                     .request_id = sqlite3_column_int64(stmt, 4),
                                     .level = ns_sql_text(stmt, 5),
                                     .kind = ns_sql_text(stmt, 6),
                                     .detail = ns_sql_text(stmt, 7)};
        rc = ns_sql_fetched(queue, err);
        if (rc == NS_OK)
            rc = each(arg, &info, err);
    }
    return rc;
}
