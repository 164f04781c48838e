/* settle.c - what follows from a change, inside the transaction that made it: results of requests that end without
 * running, and the states of batches.
 * Every terminal request gets its result row in the same transaction that makes it terminal; that is the whole of
 * "exactly once". */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

enum ns_code ns_event_insert(struct ns_queue *q, const char *level, const char *kind, int64_t runner_id,
                             int64_t batch_id, int64_t request_id, const char *detail, struct ns_error *err)
{
    return ns_sql_run(q, err,
                      "INSERT INTO events(at, level, kind, runner_id, batch_id, request_id, detail)"
                      " VALUES (?, ?, ?, NULLIF(?, 0), NULLIF(?, 0), NULLIF(?, 0), ?)",
                      "ittiiit", ns_clock_wall_ms(), level, kind, runner_id, batch_id, request_id,
                      detail ? detail : "{}");
}

static const char *text_of(const struct ns_text *text)
{
    return text->n > 0 ? text->data : NULL;
}

enum ns_code ns_result_insert(struct ns_queue *q, int64_t request_id, int64_t attempt_id,
                              const struct ns_result *result, int64_t now_ms, struct ns_error *err)
{
    return ns_sql_run(
        q, err,
        "INSERT INTO results(request_id, attempt_id, status_code, response, error, prompt_tokens, completion_tokens,"
        " replays, correct, content_sha256, local, written_at) VALUES (?1, NULLIF(?2, 0), ?3, ?4, ?5, ?6, ?7,"
        " (SELECT COUNT(*) FROM attempts WHERE request_id = ?1 AND resume_kind = 'replay'), NULLIF(?8, -1), ?9, ?10, "
        "?11)",
        "iiissiiitsi", request_id, attempt_id, (int64_t)result->status, text_of(&result->response), result->response.n,
        text_of(&result->error), result->error.n, (int64_t)result->prompt_tokens, (int64_t)result->completion_tokens,
        (int64_t)result->correct, result->content_sha256, result->local.n > 0 ? result->local.data : "{}",
        result->local.n > 0 ? result->local.n : (size_t)2, now_ms);
}

enum ns_code ns_end_waiting(struct ns_queue *q, int64_t request_id, const char *state, int64_t now_ms,
                            struct ns_error *err)
{
    bool expired = strcmp(state, "expired") == 0;
    struct ns_result result;
    enum ns_code rc = ns_result_ended(NULL, NULL, expired ? "batch_expired" : "cancelled",
                                      expired ? "the deadline passed before the request was finished"
                                              : "the request was cancelled before it was finished",
                                      NULL, NULL, q->budget, &result, err);
    if (rc != NS_OK)
        return rc;
    result.status = expired ? 408 : 499;
    rc = ns_sql_run(q, err, "UPDATE requests SET state = ?, finished_at = ? WHERE id = ? AND state = 'queued'", "tii",
                    state, now_ms, request_id);
    if (rc == NS_OK && ns_sql_changes(q) == 1)
        rc = ns_result_insert(q, request_id, 0, &result, now_ms, err);
    ns_result_fini(&result);
    return rc;
}

/* The waiting requests that must end, a few at a time so that no list of them is needed in memory. */
static enum ns_code end_waiting(struct ns_queue *q, const char *state, const char *sql, int64_t now_ms,
                                struct ns_error *err)
{
    for (;;) {
        int64_t id[256];
        size_t n = 0;
        sqlite3_stmt *stmt = NULL;
        enum ns_code rc = ns_sql_rows(q, &stmt, err, sql, "i", now_ms);
        while (ns_sql_more(q, stmt, &rc, err))
            if (n < NS_COUNT(id))
                id[n++] = sqlite3_column_int64(stmt, 0);
        for (size_t i = 0; rc == NS_OK && i < n; i++)
            rc = ns_end_waiting(q, id[i], state, now_ms, err);
        if (rc != NS_OK || n == 0)
            return rc;
    }
}

enum ns_code ns_settle(struct ns_queue *q, int64_t now_ms, struct ns_error *err)
{
    enum ns_code rc =
        end_waiting(q, "cancelled",
                    "SELECT r.id FROM batches b JOIN requests r ON r.batch_id = b.id AND r.state = 'queued'"
                    " WHERE b.status IN ('in_progress', 'cancelling') AND ?1 > 0"
                    " AND (b.status = 'cancelling' OR r.cancel_asked = 1) LIMIT 256",
                    now_ms, err);
    if (rc == NS_OK)
        rc = end_waiting(q, "expired",
                         "SELECT r.id FROM batches b JOIN requests r ON r.batch_id = b.id AND r.state = 'queued'"
                         " WHERE b.status = 'in_progress' AND b.deadline_at <= ?1 LIMIT 256",
                         now_ms, err);
    /* finalizing lasts no longer than this statement: there are no files to write for it */
    if (rc == NS_OK)
        rc = ns_sql_run(
            q, err,
            "UPDATE batches SET finalizing_at = ?1,"
            " completed_at = CASE WHEN status = 'in_progress' AND (deadline_at IS NULL OR deadline_at > ?1 OR"
            "   NOT EXISTS (SELECT 1 FROM requests r WHERE r.batch_id = batches.id AND r.state = 'expired'))"
            "   THEN ?1 ELSE completed_at END,"
            " expired_at = CASE WHEN status = 'in_progress' AND deadline_at <= ?1 AND"
            "   EXISTS (SELECT 1 FROM requests r WHERE r.batch_id = batches.id AND r.state = 'expired')"
            "   THEN ?1 ELSE expired_at END,"
            " cancelled_at = CASE WHEN status = 'cancelling' THEN ?1 ELSE cancelled_at END,"
            " status = CASE WHEN status = 'cancelling' THEN 'cancelled'"
            "   WHEN deadline_at <= ?1 AND"
            "   EXISTS (SELECT 1 FROM requests r WHERE r.batch_id = batches.id AND r.state = 'expired')"
            "   THEN 'expired' ELSE 'completed' END"
            " WHERE status IN ('in_progress', 'cancelling')"
            " AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.batch_id = batches.id AND r.state = 'queued')"
            " AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.batch_id = batches.id AND r.state = 'running')",
            "i", now_ms);
    return rc;
}
