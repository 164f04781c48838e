/* status.c - batches, the runner, waves and totals, for people. Every total is computed from all rows, so a resumed job
 * counts its first half too. */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

static void copy_column(sqlite3_stmt *stmt, int column, char *out, size_t size)
{
    const char *text = ns_sql_text(stmt, column);
    snprintf(out, size, "%s", text ? text : "");
}

/* ---- batches ---------------------------------------------------------------------------------------------------------- */

static void read_batch(sqlite3_stmt *s, struct ns_batch_info *b)
{
    *b = (struct ns_batch_info){0};
    int c = 0;
    b->id = sqlite3_column_int64(s, c++);
    copy_column(s, c++, b->public_id, sizeof b->public_id);
    b->name = ns_sql_text(s, c++);
    b->endpoint = ns_sql_text(s, c++);
    b->status = ns_sql_text(s, c++);
    b->model = ns_sql_text(s, c++);
    b->fingerprint = ns_sql_text(s, c++);
    b->input_name = ns_sql_text(s, c++);
    b->validation_errors = ns_sql_text(s, c++);
    b->metadata = ns_sql_text(s, c++);
    b->held = sqlite3_column_int64(s, c++) != 0;
    b->priority = (int)sqlite3_column_int64(s, c++);
    int64_t *const number[] = {&b->total,
                               &b->queued,
                               &b->running,
                               &b->done,
                               &b->failed,
                               &b->cancelled,
                               &b->expired,
                               &b->refused,
                               &b->judged,
                               &b->correct,
                               &b->prompt_tokens,
                               &b->completion_tokens,
                               &b->created_at_ms,
                               &b->in_progress_at_ms,
                               &b->finalizing_at_ms,
                               &b->completed_at_ms,
                               &b->failed_at_ms,
                               &b->expired_at_ms,
                               &b->cancelling_at_ms,
                               &b->cancelled_at_ms,
                               &b->deadline_at_ms};
    for (size_t i = 0; i < NS_COUNT(number); i++)
        *number[i] = sqlite3_column_int64(s, c++);
}

enum ns_code ns_queue_each_batch(struct ns_queue *queue, int64_t batch_id, ns_batch_each_fn each, void *arg,
                                 struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(
        queue, &stmt, err,
        "SELECT b.id, b.public_id, b.name, b.endpoint, b.status, m.name, m.fingerprint, b.input_name, "
        "b.validation_errors,"
        " b.metadata, b.held, b.priority, COUNT(r.id), SUM(r.state = 'queued'), SUM(r.state = 'running'),"
        " SUM(r.state = 'done'), SUM(r.state = 'failed'), SUM(r.state = 'cancelled'), SUM(r.state = 'expired'),"
        " SUM(r.refused), COUNT(x.correct), SUM(x.correct), SUM(x.prompt_tokens), SUM(x.completion_tokens), "
        "b.created_at,"
        " b.in_progress_at, b.finalizing_at, b.completed_at, b.failed_at, b.expired_at, b.cancelling_at, "
        "b.cancelled_at,"
        " b.deadline_at FROM batches b LEFT JOIN models m ON m.id = b.model_id LEFT JOIN requests r ON r.batch_id = "
        "b.id"
        " LEFT JOIN results x ON x.request_id = r.id WHERE ?1 = 0 OR b.id = ?1 GROUP BY b.id ORDER BY b.id",
        "i", batch_id);
    while (ns_sql_more(queue, stmt, &rc, err)) {
        struct ns_batch_info info;
        read_batch(stmt, &info);
        rc = ns_sql_fetched(queue, err);
        if (rc == NS_OK)
            rc = each(arg, &info, err);
    }
    return rc;
}

enum ns_code ns_queue_find_batch(struct ns_queue *queue, const char *name, int64_t *batch_id, struct ns_error *err)
{
    if (strcmp(name, "@last") == 0) {
        bool found;
        enum ns_code rc =
            ns_sql_value(queue, batch_id, &found, err, "SELECT MAX(id) FROM batches WHERE status <> 'failed'", "");
        return rc == NS_OK && !found ? ns_error_set(err, NS_NOINPUT, "there is no batch yet") : rc;
    }
    char prefix[NS_BATCH_ID_SIZE];
    snprintf(prefix, sizeof prefix, "%s%.32s", strncmp(name, "batch_", 6) == 0 ? "" : "batch_", name);
    if (strlen(name) >= NS_BATCH_ID_SIZE || strlen(prefix) <= 6)
        return ns_error_set(err, NS_NOINPUT, "there is no batch \"%.80s\"", name);
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(
        queue, &stmt, err, "SELECT id, public_id FROM batches WHERE substr(public_id, 1, length(?1)) = ?1 LIMIT 9", "t",
        prefix);
    int64_t id = 0;
    size_t n = 0, used = 0;
    char several[9 * NS_BATCH_ID_SIZE] = "";
    while (ns_sql_more(queue, stmt, &rc, err)) {
        id = sqlite3_column_int64(stmt, 0);
        int k = snprintf(several + used, sizeof several - used, " %.32s", ns_sql_text(stmt, 1));
        used += k > 0 && (size_t)k < sizeof several - used ? (size_t)k : 0;
        n++;
    }
    if (rc != NS_OK)
        return rc;
    if (n == 0)
        return ns_error_set(err, NS_NOINPUT, "there is no batch \"%.80s\"", name);
    if (n > 1)
        return ns_error_set(err, NS_USAGE, "\"%.80s\" begins several batches:%s", name, several);
    *batch_id = id;
    return NS_OK;
}

/* ---- runners -------------------------------------------------------------------------------------------------------------- */

#define RUNNER_COLUMNS                                                                                                 \
    "SELECT id, pid, started_at, heartbeat_at, IFNULL(progress_at, 0), lane, host, state, IFNULL(note, end_reason),"   \
    " boot_id, pid_start, ended_at IS NULL FROM runners "

static void read_runner(sqlite3_stmt *s, struct ns_runner_info *out)
{
    *out = (struct ns_runner_info){.present = sqlite3_column_int64(s, 11) != 0,
                                   .id = sqlite3_column_int64(s, 0),
                                   .pid = sqlite3_column_int64(s, 1),
                                   .started_at_ms = sqlite3_column_int64(s, 2),
                                   .heartbeat_at_ms = sqlite3_column_int64(s, 3),
                                   .progress_at_ms = sqlite3_column_int64(s, 4),
                                   .pid_start = sqlite3_column_int64(s, 10)};
    copy_column(s, 5, out->lane, sizeof out->lane);
    copy_column(s, 6, out->host, sizeof out->host);
    copy_column(s, 7, out->state, sizeof out->state);
    copy_column(s, 8, out->reason, sizeof out->reason);
    out->alive = out->present && ns_host_is_alive(out->host, ns_sql_text(s, 9), out->pid, out->pid_start);
    out->halted = out->alive && ns_host_pid_stopped(out->pid);
}

static enum ns_code one_runner(struct ns_queue *q, sqlite3_stmt *stmt, struct ns_runner_info *out, struct ns_error *err)
{
    bool row = false;
    *out = (struct ns_runner_info){0};
    enum ns_code rc = ns_sql_next(q, stmt, &row, err);
    if (rc == NS_OK && row) {
        read_runner(stmt, out);
        ns_sql_end(stmt);
    }
    return rc;
}

enum ns_code ns_queue_read_runner(struct ns_queue *queue, int64_t runner_id, struct ns_runner_info *out,
                                  struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(queue, &stmt, err, RUNNER_COLUMNS "WHERE id = ?", "i", runner_id);
    if (rc == NS_OK)
        rc = one_runner(queue, stmt, out, err);
    return rc == NS_OK && out->id == 0 ? ns_error_set(err, NS_NOINPUT, "there is no runner %" PRId64, runner_id) : rc;
}

/* ---- totals ----------------------------------------------------------------------------------------------------------------- */

/* The columns of one row into numbers, in order; a query without a row leaves them. */
static enum ns_code read_numbers(struct ns_queue *q, sqlite3_stmt *stmt, int64_t *const *out, size_t n,
                                 struct ns_error *err)
{
    bool row = false;
    enum ns_code rc = ns_sql_next(q, stmt, &row, err);
    for (size_t i = 0; rc == NS_OK && row && i < n; i++)
        *out[i] = sqlite3_column_int64(stmt, (int)i);
    if (row)
        ns_sql_end(stmt);
    return rc;
}

static enum ns_code read_totals(struct ns_queue *q, int64_t batch_id, struct ns_queue_status *o, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int64_t *const batches[] = {&o->batches, &o->open_batches};
    enum ns_code rc = ns_sql_rows(q, &stmt, err,
                                  "SELECT COUNT(*), SUM(status IN ('in_progress', 'cancelling')) FROM batches"
                                  " WHERE ?1 = 0 OR id = ?1",
                                  "i", batch_id);
    if (rc == NS_OK)
        rc = read_numbers(q, stmt, batches, NS_COUNT(batches), err);
    int64_t *const requests[] = {&o->total,   &o->queued,        &o->running,          &o->done,
                                 &o->failed,  &o->cancelled,     &o->expired,          &o->judged,
                                 &o->correct, &o->prompt_tokens, &o->completion_tokens};
    if (rc == NS_OK)
        rc = ns_sql_rows(
            q, &stmt, err,
            "SELECT COUNT(*), SUM(r.state = 'queued'), SUM(r.state = 'running'), SUM(r.state = 'done'),"
            " SUM(r.state = 'failed'), SUM(r.state = 'cancelled'), SUM(r.state = 'expired'), COUNT(x.correct),"
            " SUM(x.correct), SUM(x.prompt_tokens), SUM(x.completion_tokens) FROM requests r"
            " LEFT JOIN results x ON x.request_id = r.id WHERE ?1 = 0 OR r.batch_id = ?1",
            "i", batch_id);
    if (rc == NS_OK)
        rc = read_numbers(q, stmt, requests, NS_COUNT(requests), err);
    int64_t *const unfinished[] = {&o->unfinished_tokens};
    if (rc == NS_OK)
        rc = ns_sql_rows(q, &stmt, err,
                         "SELECT SUM(s.n_out) FROM requests r JOIN sequences s ON s.request_id = r.id"
                         " WHERE r.state IN ('queued', 'running') AND (?1 = 0 OR r.batch_id = ?1)",
                         "i", batch_id);
    return rc == NS_OK ? read_numbers(q, stmt, unfinished, NS_COUNT(unfinished), err) : rc;
}

static enum ns_code read_run(struct ns_queue *q, int64_t runner_id, struct ns_queue_status *o, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int64_t *const last[] = {&o->waves,          &o->wave_rows, &o->wave_tokens_out, &o->bytes_read, &o->experts_hit,
                             &o->experts_missed, &o->io_ms,     &o->compute_ms,      &o->wall_ms,    &o->bytes_spilled};
    enum ns_code rc =
        ns_sql_rows(q, &stmt, err,
                    "SELECT COUNT(*), SUM(n_tokens_in), SUM(n_tokens_out), SUM(bytes_read), SUM(cache_hits),"
                    " SUM(cache_misses), SUM(io_ms), SUM(compute_ms), SUM(ended_at - began_at),"
                    " SUM(json_extract(detail, '$.spill_written_bytes')) FROM waves"
                    " WHERE runner_id = ?",
                    "i", runner_id);
    return rc == NS_OK ? read_numbers(q, stmt, last, NS_COUNT(last), err) : rc;
}

/* A run serves one model, which the batches of its requests are bound to. */
enum ns_code ns_queue_read_past(struct ns_queue *queue, const char *fingerprint, const char *contract,
                                struct ns_queue_status *out, struct ns_error *err)
{
    int64_t runner_id = 0;
    enum ns_code rc = ns_sql_value(
        queue, &runner_id, NULL, err,
        "SELECT MAX(a.runner_id) FROM attempts a JOIN requests r ON r.id = a.request_id JOIN batches b ON"
        " b.id = r.batch_id JOIN models m ON m.id = b.model_id WHERE m.fingerprint = ?1 AND"
        " json_extract(m.info, '$.contract') = ?2 AND EXISTS (SELECT 1 FROM waves w WHERE w.runner_id = a.runner_id)",
        "tt", fingerprint, contract);
    return rc == NS_OK ? read_run(queue, runner_id, out, err) : rc;
}

static enum ns_code read_waves(struct ns_queue *q, struct ns_queue_status *o, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int64_t runner_id = 0;
    enum ns_code rc =
        ns_sql_value(q, &runner_id, NULL, err, "SELECT runner_id FROM waves ORDER BY id DESC LIMIT 1", "");
    if (rc == NS_OK)
        rc = read_run(q, runner_id, o, err);
    int64_t *const recent[] = {&o->recent_waves, &o->recent_tokens_out, &o->recent_ms, &o->recent_bytes};
    if (rc == NS_OK)
        rc = ns_sql_rows(q, &stmt, err,
                         "SELECT COUNT(*), SUM(n_tokens_out), SUM(ended_at - began_at), SUM(bytes_read)"
                         " FROM (SELECT * FROM waves ORDER BY id DESC LIMIT 10)",
                         "");
    return rc == NS_OK ? read_numbers(q, stmt, recent, NS_COUNT(recent), err) : rc;
}

static enum ns_code read_control(struct ns_queue *q, struct ns_queue_status *o, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    enum ns_code rc = ns_sql_rows(q, &stmt, err, "SELECT paused, drain, reason FROM control WHERE id = 1", "");
    if (rc == NS_OK)
        rc = ns_sql_next(q, stmt, &row, err);
    if (rc != NS_OK || !row)
        return rc;
    o->paused = sqlite3_column_int64(stmt, 0) != 0;
    o->drain = sqlite3_column_int64(stmt, 1) != 0;
    copy_column(stmt, 2, o->control_reason, sizeof o->control_reason);
    ns_sql_end(stmt);
    return NS_OK;
}

enum ns_code ns_queue_status_read(struct ns_queue *queue, int64_t batch_id, struct ns_queue_status *out,
                                  struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    *out = (struct ns_queue_status){0};
    enum ns_code rc = ns_read_begin(queue, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_rows(queue, &stmt, err, RUNNER_COLUMNS "WHERE ended_at IS NULL ORDER BY id DESC LIMIT 1", "");
    if (rc == NS_OK)
        rc = one_runner(queue, stmt, &out->runner, err);
    if (rc == NS_OK)
        rc = read_control(queue, out, err);
    if (rc == NS_OK)
        rc = read_totals(queue, batch_id, out, err);
    if (rc == NS_OK)
        rc = read_waves(queue, out, err);
    ns_read_end(queue);
    char wal[NS_PATH_SIZE];
    snprintf(wal, sizeof wal, "%.*s-wal", NS_PATH_SIZE - 8, queue->path);
    struct ns_file *file = NULL;
    if (rc == NS_OK && ns_path_exists(wal) && ns_file_open(wal, NS_FILE_READ, &file, NULL) == NS_OK) {
        out->wal_bytes = (int64_t)ns_file_bytes(file);
        rc = ns_file_close(file, err);
    }
    return rc;
}

#define WAVE_COLUMNS                                                                                                   \
    "id, runner_id, kind, began_at, ended_at, n_seqs, n_tokens_in, n_tokens_out, bytes_read, cache_hits,"              \
    " cache_misses, io_ms, compute_ms, state_bytes, rss_bytes, free_bytes, detail"

/* stmt: rows of WAVE_COLUMNS; rc: how it was begun. */
static enum ns_code each_row(struct ns_queue *queue, sqlite3_stmt *stmt, enum ns_code rc, ns_wave_each_fn each,
                             void *arg, struct ns_error *err)
{
    while (ns_sql_more(queue, stmt, &rc, err)) {
        struct ns_wave_info w = {.id = sqlite3_column_int64(stmt, 0), .runner_id = sqlite3_column_int64(stmt, 1)};
        w.record = (struct ns_wave_record){.kind = ns_sql_text(stmt, 2),
                                           .began_at_ms = sqlite3_column_int64(stmt, 3),
                                           .ended_at_ms = sqlite3_column_int64(stmt, 4),
                                           .n_seqs = (uint32_t)sqlite3_column_int64(stmt, 5),
                                           .n_tokens_in = (uint32_t)sqlite3_column_int64(stmt, 6),
                                           .n_tokens_out = (uint32_t)sqlite3_column_int64(stmt, 7),
                                           .bytes_read = (uint64_t)sqlite3_column_int64(stmt, 8),
                                           .cache_hits = (uint64_t)sqlite3_column_int64(stmt, 9),
                                           .cache_misses = (uint64_t)sqlite3_column_int64(stmt, 10),
                                           .io_ms = (uint64_t)sqlite3_column_int64(stmt, 11),
                                           .compute_ms = (uint64_t)sqlite3_column_int64(stmt, 12),
                                           .state_bytes = (uint64_t)sqlite3_column_int64(stmt, 13),
                                           .rss_bytes = (uint64_t)sqlite3_column_int64(stmt, 14),
                                           .free_bytes = (uint64_t)sqlite3_column_int64(stmt, 15),
                                           .detail = ns_sql_text(stmt, 16)};
        rc = ns_sql_fetched(queue, err);
        if (rc == NS_OK)
            rc = each(arg, &w, err);
    }
    return rc;
}

enum ns_code ns_queue_each_wave(struct ns_queue *queue, int64_t runner_id, int64_t limit, ns_wave_each_fn each,
                                void *arg, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(queue, &stmt, err,
                                  "SELECT " WAVE_COLUMNS " FROM waves WHERE ?1 = 0 OR runner_id = ?1 ORDER BY id DESC"
                                  " LIMIT CASE WHEN ?2 = 0 THEN -1 ELSE ?2 END",
                                  "ii", runner_id, limit);
    return each_row(queue, stmt, rc, each, arg, err);
}

enum ns_code ns_queue_each_last_wave(struct ns_queue *queue, ns_wave_each_fn each, void *arg, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(queue, &stmt, err,
                                  "WITH counted AS (SELECT *, json_extract(detail, '$.job.waves') AS n FROM waves)"
                                  " SELECT " WAVE_COLUMNS " FROM (SELECT *, lead(n) OVER (ORDER BY id) AS after"
                                  " FROM counted WHERE n IS NOT NULL) WHERE after IS NULL OR after <= n ORDER BY id",
                                  "");
    return each_row(queue, stmt, rc, each, arg, err);
}
