/* runner.c - the lease: one live runner per lane, named so that a successor can tell the dead from the slow.
 *
 * WHAT   start takes a lock that the kernel drops with the process, closes what dead runners left, and inserts a row
 *        whose id is the fencing token. Every later write transaction begins by asking whether that row is still open.
 * WHY    Nothing expires. On one host the lock is exact, however the holder died, and the boot id settles reboots; a
 *        timeout would either run a slow wave twice or cost an hour after a crash. Heartbeats are for people.
 * INVARIANTS
 *   1. At most one open runner per lane.                              (runner_test: second_runner_names_the_holder)
 *   2. A fenced runner writes nothing.                                (runner_test: fenced_runner_writes_nothing)
 *   3. What a dead runner had claimed is queued again, tokens kept.   (runner_test: c44_killed_runner_is_taken_over)
 * THREADS  The heartbeat thread opens its own connection; stopping is guarded by mu. */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEARTBEAT_MS 10000
#define STALE_BEATS  6
#define KILL_WAIT_MS 10000

enum ns_code ns_fenced_begin(struct ns_runner *r, struct ns_error *err)
{
    enum ns_code rc = ns_write_begin(r->q, err);
    if (rc != NS_OK)
        return rc;
    int64_t open = 0, version = 0;
    rc = ns_sql_value(r->q, &open, NULL, err, "SELECT ended_at IS NULL FROM runners WHERE id = ?", "i", r->id);
    if (rc == NS_OK)
        rc = ns_sql_value(r->q, &version, NULL, err, "PRAGMA user_version", "");
    if (rc == NS_OK && !open)
        rc =
            ns_error_set(err, NS_FENCED, "runner %" PRId64 " was closed by another runner; nothing was written", r->id);
    if (rc == NS_OK && version != NS_SCHEMA_VERSION)
        rc = ns_error_set(err, NS_FENCED, "the schema became version %" PRId64 " meanwhile; nothing was written",
                          version);
    if (rc != NS_OK)
        ns_write_abort(r->q);
    return rc;
}

/* ---- the holder ---------------------------------------------------------------------------------------------------------- */

struct holder {
    bool found, is_here, is_elsewhere, is_stopped; /* is_here: the named process lives on this host since this boot */
    int64_t id, pid, pid_start, heartbeat_boot_ms, progress_at, started_at;
};

static enum ns_code read_holder(struct ns_queue *q, const char *lane, struct holder *h, struct ns_error *err)
{
    *h = (struct holder){0};
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(q, &stmt, err,
                                  "SELECT id, pid, pid_start, heartbeat_boot_ms, progress_at, started_at, host, boot_id"
                                  " FROM runners WHERE lane = ? AND ended_at IS NULL",
                                  "t", lane);
    if (rc == NS_OK)
        rc = ns_sql_next(q, stmt, &h->found, err);
    if (rc != NS_OK || !h->found)
        return rc;
    h->id = sqlite3_column_int64(stmt, 0);
    h->pid = sqlite3_column_int64(stmt, 1);
    h->pid_start = sqlite3_column_int64(stmt, 2);
    h->heartbeat_boot_ms = sqlite3_column_int64(stmt, 3);
    h->progress_at = sqlite3_column_int64(stmt, 4);
    h->started_at = sqlite3_column_int64(stmt, 5);
    const char *host = ns_sql_text(stmt, 6);
    h->is_here = ns_host_is_alive(host, ns_sql_text(stmt, 7), h->pid, h->pid_start);
    h->is_elsewhere = host && strcmp(host, ns_host_name()) != 0;
    h->is_stopped = h->is_here && ns_host_pid_stopped(h->pid);
    ns_sql_end(stmt);
    return NS_OK;
}

static void ago_text(int64_t ms, char out[32])
{
    int64_t s = ms < 0 ? 0 : ms / 1000;
    if (s < 120)
        snprintf(out, 32, "%" PRId64 " s ago", s);
    else if (s < 7200)
        snprintf(out, 32, "%" PRId64 " min ago", s / 60);
    else
        snprintf(out, 32, "%" PRId64 " h ago", s / 3600);
}

static enum ns_code refuse_held(const struct holder *h, const char *lane, struct ns_error *err)
{
    if (!h->found ||
        !(h->is_here || h->is_elsewhere)) /* a row left by the dead names nobody, whoever has its pid now */
        return ns_error_set(err, NS_BUSY,
                            "another process holds the lock of lane %s and has not registered yet; try again", lane);
    char ago[32];
    ago_text(ns_clock_wall_ms() - (h->progress_at ? h->progress_at : h->started_at), ago);
    return ns_error_set(err, NS_BUSY, "cannot start: runner %" PRId64 " (pid %" PRId64 ") holds lane %s; %s %s%s",
                        h->id, h->pid, lane, h->progress_at ? "last progress" : "no progress yet, started", ago,
                        h->is_stopped ? "; it is stopped by a signal" : "");
}

/* Kills a holder that is verified to be the process of its row and is stopped or silent. */
static enum ns_code remove_holder(const struct holder *h, const char *lane, uint64_t heartbeat_ms, struct ns_error *err)
{
    bool is_stale = ns_clock_boot_ms() - h->heartbeat_boot_ms > (int64_t)(STALE_BEATS * heartbeat_ms);
    if (!h->found || !h->is_here || !(is_stale || h->is_stopped))
        return refuse_held(h, lane, err);
    ns_log(NS_LOG_WARN, "taking over from runner %" PRId64 " (pid %" PRId64 ")", h->id, h->pid);
    return ns_host_kill(h->pid, h->pid_start, KILL_WAIT_MS, err);
}

static enum ns_code take_lane(struct ns_runner *r, const struct ns_runner_options *o, struct ns_error *err)
{
    char path[NS_PATH_SIZE];
    snprintf(path, sizeof path, "%.*s.lock", NS_PATH_SIZE - 8, r->q->path);
    uint64_t byte = strcmp(r->lane, "main") == 0 ? 0 : 1 + (uint64_t)ns_crc32c(0, r->lane, strlen(r->lane));
    struct ns_error first = {0};
    enum ns_code rc = ns_lock_take(path, byte, &r->lock, &first);
    if (rc != NS_BUSY)
        return rc == NS_OK ? rc : ns_error_set(err, rc, "%s", first.message);
    struct holder h;
    rc = read_holder(r->q, r->lane, &h, err);
    if (rc != NS_OK)
        return rc;
    if (!o->takeover)
        return refuse_held(&h, r->lane, err);
    rc = remove_holder(&h, r->lane, r->heartbeat_ms, err);
    if (rc == NS_OK)
        rc = ns_lock_take(path, byte, &r->lock, err);
    return rc;
}

/* ---- registering ------------------------------------------------------------------------------------------------------------ */

static enum ns_code take_back(struct ns_runner *r, int64_t dead, bool blame, int64_t now, int64_t *n,
                              struct ns_error *err)
{
    enum ns_code rc =
        ns_sql_run(r->q, err,
                   "UPDATE attempts SET ended_at = ?, outcome = 'lost' WHERE ended_at IS NULL AND request_id"
                   " IN (SELECT id FROM requests WHERE runner_id = ? AND state = 'running')",
                   "ii", now, dead);
    if (rc == NS_OK && blame)
        rc = ns_blame(r, dead, err);
    if (rc == NS_OK)
        rc = ns_sql_run(
            r->q, err,
            "UPDATE requests SET state = 'queued', runner_id = NULL WHERE runner_id = ? AND state = 'running'", "i",
            dead);
    if (rc == NS_OK)
        *n += ns_sql_changes(r->q);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err, "UPDATE runners SET state = 'lost', ended_at = ?, end_reason = 'lost' WHERE id = ?",
                        "ii", now, dead);
    return rc;
}

static enum ns_code register_runner(struct ns_runner *r, struct ns_runner_start_report *report, struct ns_error *err)
{
    int64_t now = ns_clock_wall_ms();
    enum ns_code rc = ns_write_begin(r->q, err);
    if (rc != NS_OK)
        return rc;
    for (bool more = true; rc == NS_OK && more;) { /* the index allows one; a damaged file may hold more */
        int64_t dead = 0, same_boot = 0;
        rc = ns_sql_value(r->q, &dead, &more, err, "SELECT id FROM runners WHERE lane = ? AND ended_at IS NULL", "t",
                          r->lane);
        if (rc != NS_OK || !more)
            break;
        rc = ns_sql_value(r->q, &same_boot, NULL, err, "SELECT boot_id = ? FROM runners WHERE id = ?", "ti",
                          ns_host_boot_id(), dead);
        if (rc == NS_OK)
            rc = take_back(r, dead, same_boot != 0, now, &report->taken_back, err);
        report->lost_runners++;
    }
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "INSERT INTO runners(lane, host, boot_id, pid, pid_start, version, state, heartbeat_boot_ms,"
                        " heartbeat_at, started_at) VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?, ?)",
                        "tttiitiii", r->lane, ns_host_name(), ns_host_boot_id(), ns_host_pid(),
                        ns_host_pid_start(ns_host_pid()), NS_VERSION, ns_clock_boot_ms(), now, now);
    int64_t id = sqlite3_last_insert_rowid(r->q->db);
    if (rc == NS_OK)
        rc = ns_condemn(r, id, now, err);
    if (rc == NS_OK)
        rc = ns_settle(r->q, now, err);
    if (rc == NS_OK && report->lost_runners > 0) {
        char detail[96];
        snprintf(detail, sizeof detail, "{\"lost_runners\":%" PRId64 ",\"taken_back\":%" PRId64 "}",
                 report->lost_runners, report->taken_back);
        rc = ns_event_insert(r->q, "warn", "takeover", id, 0, 0, detail, err);
    }
    ns_crash_point("start.before_commit");
    rc = ns_write_end(r->q, rc, err);
    if (rc == NS_OK) {
        r->id = id;
        report->runner_id = id;
        ns_crash_point("start.after_commit");
    }
    return rc;
}

/* ---- heartbeat ---------------------------------------------------------------------------------------------------------------- */

static void beat(struct ns_runner *r, struct ns_queue *q)
{
    struct ns_error err = {0};
    enum ns_code rc = ns_write_begin(q, &err);
    if (rc == NS_OK) {
        rc = ns_sql_run(q, &err,
                        "UPDATE runners SET heartbeat_boot_ms = ?, heartbeat_at = ? WHERE id = ? AND ended_at IS NULL",
                        "iii", ns_clock_boot_ms(), ns_clock_wall_ms(), r->id);
        rc = ns_write_end(q, rc, &err);
    }
    if (rc != NS_OK) /* the runner's own writes will meet the same trouble and deal with it */
        ns_log(NS_LOG_DEBUG, "heartbeat: %s", err.message);
}

static void run_heartbeat(void *arg)
{
    struct ns_runner *r = arg;
    struct ns_error err = {0};
    struct ns_queue *q = NULL;
    if (ns_queue_connect(r->q->path, NS_USE_HEARTBEAT, false, r->budget, &q, &err) != NS_OK) {
        ns_log(NS_LOG_WARN, "no heartbeat: %s", err.message);
        return;
    }
    ns_mutex_lock(r->mu);
    while (!r->stopping) {
        if (ns_cond_wait_ms(r->wake, r->mu, r->heartbeat_ms) || r->stopping)
            continue;
        ns_mutex_unlock(r->mu);
        beat(r, q);
        ns_mutex_lock(r->mu);
    }
    ns_mutex_unlock(r->mu);
    ns_queue_close(q);
}

static void stop_heartbeat(struct ns_runner *r)
{
    if (!r->thread)
        return;
    ns_mutex_lock(r->mu);
    r->stopping = true;
    ns_cond_signal(r->wake);
    ns_mutex_unlock(r->mu);
    ns_thread_join(r->thread);
    r->thread = NULL;
}

/* ---- start and stop ------------------------------------------------------------------------------------------------------------ */

static enum ns_code check_numbers(struct ns_queue *q, struct ns_error *err)
{
    bool lost = false;
    int64_t last = 0;
    enum ns_code rc = ns_sql_value(q, &last, &lost, err, NS_SQL_FENCE_LOST, "");
    if (rc == NS_OK && lost)
        rc = ns_error_set(err, NS_CORRUPT, "%s is damaged: the number of runner %" PRId64 " would be given again",
                          q->path, last);
    return rc;
}

static enum ns_code start(struct ns_runner *r, const struct ns_runner_options *o, struct ns_runner_start_report *report,
                          struct ns_error *err)
{
    enum ns_code rc = take_lane(r, o, err);
    if (rc == NS_OK)
        rc = ns_pages_check(r->q, o->large_bytes, err);
    if (rc == NS_OK)
        rc = check_numbers(r->q, err);
    if (rc == NS_OK)
        rc = ns_dir_make(r->state_dir, err);
    if (rc == NS_OK)
        rc = register_runner(r, report, err);
    if (rc == NS_OK)
        rc = ns_state_sweep(r, &report->swept_files, err);
    if (rc == NS_OK)
        rc = ns_mark_begin(r, err);
    if (rc == NS_OK)
        ns_ballast_keep(r);
    if (rc == NS_OK && !o->single_owner) {
        r->mu = ns_mutex_open();
        r->wake = ns_cond_open();
        rc = r->mu && r->wake ? ns_thread_start(run_heartbeat, r, &r->thread, err)
                              : ns_error_set(err, NS_BUDGET, "no memory for the heartbeat");
    }
    return rc;
}

enum ns_code ns_runner_start(const char *path, const struct ns_runner_options *options, struct ns_budget *budget,
                             struct ns_runner **out, struct ns_runner_start_report *report, struct ns_error *err)
{
    *report = (struct ns_runner_start_report){0};
    const char *lane = options->lane ? options->lane : "main";
    if (lane[0] == '\0' || strlen(lane) >= sizeof(*out)->lane)
        return ns_error_set(err, NS_USAGE, "a lane's name has 1 to %zu bytes", sizeof(*out)->lane - 1);
    struct ns_runner *r = ns_budget_take(budget, sizeof *r, err);
    if (!r)
        return NS_BUDGET;
    r->budget = budget;
    ns_text_init(&r->gone, budget);
    r->no_ballast = options->no_ballast;
    r->heartbeat_ms = options->heartbeat_ms ? options->heartbeat_ms : HEARTBEAT_MS;
    snprintf(r->lane, sizeof r->lane, "%s", lane);
    snprintf(r->state_dir, sizeof r->state_dir, "%.*s.state", NS_PATH_SIZE - 8, path);
    enum ns_code rc = ns_queue_connect(path, NS_USE_RUNNER, options->single_owner, budget, &r->q, err);
    if (rc == NS_OK)
        rc = start(r, options, report, err);
    if (rc != NS_OK) {
        ns_runner_abandon(r);
        return ns_error_wrap(err, rc, "runner");
    }
    *out = r;
    return NS_OK;
}

void ns_runner_abandon(struct ns_runner *runner)
{
    if (!runner)
        return;
    stop_heartbeat(runner);
    ns_crash_mark_close();
    ns_cond_close(runner->wake);
    ns_mutex_close(runner->mu);
    ns_queue_close(runner->q);
    ns_lock_give(runner->lock);
    ns_budget_give(runner->budget, runner->share);
    ns_text_fini(&runner->gone);
    ns_budget_give(runner->budget, runner);
}

static enum ns_code yield_one(struct ns_runner *r, int64_t request_id, int64_t now, struct ns_error *err)
{
    enum ns_code rc = ns_sql_run(r->q, err,
                                 "UPDATE attempts SET ended_at = ?, outcome = 'yielded' WHERE request_id = ? AND"
                                 " ended_at IS NULL",
                                 "ii", now, request_id);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE requests SET state = 'queued', runner_id = NULL, tries = MAX(tries - 1, 0)"
                        " WHERE id = ? AND runner_id = ? AND state = 'running'",
                        "ii", request_id, r->id);
    return rc;
}

enum ns_code ns_runner_yield(struct ns_runner *runner, const int64_t *request_id, size_t n, struct ns_error *err)
{
    int64_t now = ns_clock_wall_ms();
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    for (size_t i = 0; rc == NS_OK && i < n; i++)
        rc = yield_one(runner, request_id[i], now, err);
    if (rc == NS_OK)
        rc = ns_settle(runner->q, now, err);
    return ns_write_end(runner->q, rc, err);
}

static enum ns_code close_row(struct ns_runner *r, const char *reason, struct ns_error *err)
{
    int64_t now = ns_clock_wall_ms();
    enum ns_code rc = ns_fenced_begin(r, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_run(r->q, err,
                    "UPDATE attempts SET ended_at = ?, outcome = 'yielded' WHERE ended_at IS NULL AND request_id IN"
                    " (SELECT id FROM requests WHERE runner_id = ? AND state = 'running')",
                    "ii", now, r->id);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE requests SET state = 'queued', runner_id = NULL, tries = MAX(tries - 1, 0)"
                        " WHERE runner_id = ? AND state = 'running'",
                        "i", r->id);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE runners SET state = 'stopped', ended_at = ?, end_reason = ?, note = NULL WHERE id = ?",
                        "iti", now, reason, r->id);
    if (rc == NS_OK)
        rc = ns_settle(r->q, now, err);
    ns_crash_point("stop.before_commit");
    rc = ns_write_end(r->q, rc, err);
    ns_crash_point("stop.after_commit");
    if (rc == NS_OK)
        ns_mark_end(r);
    return rc;
}

enum ns_code ns_runner_stop(struct ns_runner *runner, const char *reason, struct ns_error *err)
{
    stop_heartbeat(runner);
    struct ns_error full = {0};
    enum ns_code rc = close_row(runner, reason, &full);
    if (rc == NS_FULL && ns_ballast_drop(runner)) {
        ns_error_clear(&full);
        rc = close_row(runner, reason, &full);
    }
    if (rc != NS_OK)
        ns_error_set(err, rc, "%s", full.message);
    if (rc == NS_OK) {
        int ck = sqlite3_wal_checkpoint_v2(runner->q->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
        if (ck != SQLITE_OK && ck != SQLITE_BUSY) /* a reader may keep the log; the next start tries again */
            ns_log(NS_LOG_WARN, "%s: checkpoint: %s", runner->q->path, sqlite3_errstr(ck));
    }
    ns_runner_abandon(runner);
    return rc;
}

int64_t ns_runner_id(const struct ns_runner *runner)
{
    return runner->id;
}

struct ns_queue *ns_runner_queue(struct ns_runner *runner)
{
    return runner->q;
}

enum ns_code ns_runner_set_state(struct ns_runner *runner, const char *state, const char *reason, struct ns_error *err)
{
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_run(runner->q, err, "UPDATE runners SET state = ?, note = ? WHERE id = ?", "tti", state, reason,
                    runner->id);
    return ns_write_end(runner->q, rc, err);
}

enum ns_code ns_runner_event(struct ns_runner *runner, const char *level, const char *kind, int64_t request_id,
                             const char *detail, struct ns_error *err)
{
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_event_insert(runner->q, level, kind, runner->id, 0, request_id, detail, err);
    return ns_write_end(runner->q, rc, err);
}

/* ---- the model ------------------------------------------------------------------------------------------------------------------ */

/* What answers depend on besides the files of the fingerprint: the numeric contract, and the ids that end a reply, some of
 * which come from files that the fingerprint does not cover. */
static void info_of(const struct ns_job_model *model, char out[512])
{
    int n = snprintf(out, 512, "{\"contract\":\"%.40s\",\"stop\":[", model->contract);
    for (uint32_t i = 0; i < model->n_stop && n > 0 && n < 500; i++)
        n += snprintf(out + n, 512 - (size_t)n, "%s%" PRIu32, i ? "," : "", model->stop[i]);
    if (n > 0 && n < 510)
        (void)snprintf(out + n, 512 - (size_t)n, "]}");
}

enum ns_code ns_runner_bind_model(struct ns_runner *runner, const char *dir, const struct ns_job_model *model,
                                  const char *tokenizer_fingerprint, struct ns_error *err)
{
    char info[512], real[4096];
    info_of(model, info);
    enum ns_code rc = ns_path_real(dir, real, err);
    if (rc != NS_OK)
        return rc;
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    rc = ns_sql_rows(runner->q, &stmt, err,
                     "SELECT b.public_id, m.fingerprint, m.info FROM batches b JOIN models m ON m.id = b.model_id"
                     " WHERE b.status IN ('in_progress', 'cancelling') AND b.held = 0 AND m.lane = ?3 AND"
                     " (m.fingerprint <> ?1 OR m.info <> ?2) AND EXISTS"
                     " (SELECT 1 FROM requests r WHERE r.batch_id = b.id AND r.state = 'queued') LIMIT 1",
                     "ttt", model->fingerprint, info, runner->lane);
    if (rc == NS_OK)
        rc = ns_sql_next(runner->q, stmt, &row, err);
    if (rc != NS_OK)
        return rc;
    if (row) {
        rc = ns_error_set(
            err, NS_INPUT,
            "%s was begun with model %.16s %s; %s is %.16s %s. Run that model, or cancel or hold the batch",
            ns_sql_text(stmt, 0), ns_sql_text(stmt, 1), ns_sql_text(stmt, 2), dir, model->fingerprint, info);
        ns_sql_end(stmt);
        return rc;
    }
    rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    int64_t id = 0;
    static const char find[] = "SELECT id FROM models WHERE fingerprint = ? AND info = ? AND lane = ?";
    rc = ns_sql_value(runner->q, &id, NULL, err, find, "ttt", model->fingerprint, info, runner->lane);
    const char *slash = strrchr(real, '/');
    if (rc == NS_OK && id == 0)
        rc = ns_sql_run(
            runner->q, err,
            "INSERT INTO models(name, location, fingerprint, tokenizer_fingerprint, context_limit, lane, info,"
            " added_at) VALUES (CASE WHEN EXISTS (SELECT 1 FROM models WHERE name = ?1) THEN ?1 || '-' ||"
            " substr(?3, 1, 12) || '-' || (SELECT COUNT(*) FROM models) ELSE ?1 END, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            "ttttitti", slash && slash[1] ? slash + 1 : "model", real, model->fingerprint, tokenizer_fingerprint,
            (int64_t)model->context, runner->lane, info, ns_clock_wall_ms());
    if (rc == NS_OK && id == 0)
        rc = ns_sql_value(runner->q, &id, NULL, err, find, "ttt", model->fingerprint, info, runner->lane);
    rc = ns_write_end(runner->q, rc, err);
    if (rc == NS_OK)
        runner->model_id = id;
    return rc;
}
