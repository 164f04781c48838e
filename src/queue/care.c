/* care.c - copies, and a reserve of space. A copy is made from one read snapshot while others work, checked, made durable, and only then named. */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

static enum ns_code vacuum_into(struct ns_queue *q, const char *path, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(q->db, "VACUUM INTO ?", -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(stmt, 1, path, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(stmt);
    enum ns_code code = NS_OK;
    if ((rc & 0xff) == SQLITE_CANTOPEN)
        code = ns_error_set(err, NS_CANTCREAT, "%s cannot be created: %s", path, sqlite3_errmsg(q->db));
    else if (rc != SQLITE_DONE)
        code = ns_sql_fail(q, rc, "copying", err);
    sqlite3_finalize(stmt);
    return code;
}

/* The copy becomes a queue like any other: WAL mode (which also syncs it on close), and sound. */
static enum ns_code prepare_copy(const char *path, struct ns_budget *budget, struct ns_error *err)
{
    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL;", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        enum ns_code code = ns_error_set(err, NS_IO, "%s: %s", path, db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
        sqlite3_close(db);
        return code;
    }
    sqlite3_close(db);
    struct ns_queue *copy = NULL;
    enum ns_code code = ns_queue_connect(path, NS_USE_WRITE, false, budget, &copy, err);
    if (code != NS_OK)
        return code;
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    code = ns_sql_rows(copy, &stmt, err, "PRAGMA integrity_check(1)", "");
    if (code == NS_OK)
        code = ns_sql_next(copy, stmt, &row, err);
    const char *said = row ? ns_sql_text(stmt, 0) : NULL;
    if (code == NS_OK && (!said || strcmp(said, "ok") != 0))
        code = ns_error_set(err, NS_CORRUPT, "the copy is not sound: %.300s", said ? said : "no answer");
    if (row)
        ns_sql_end(stmt);
    ns_queue_close(copy);
    return code;
}

static enum ns_code sync_copy(const char *path, struct ns_error *err)
{
    struct ns_file *file = NULL;
    enum ns_code rc = ns_file_open(path, NS_FILE_WRITE, &file, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_file_sync(file, err);
    enum ns_code closed = ns_file_close(file, rc == NS_OK ? err : NULL);
    return rc == NS_OK ? closed : rc;
}

enum ns_code ns_queue_backup(struct ns_queue *queue, const char *path, struct ns_error *err)
{
    char temp[NS_PATH_SIZE];
    enum ns_code rc = ns_path_format(temp, sizeof temp, NS_USAGE, err, "%s.part-%" PRId64, path, ns_host_pid());
    if (rc == NS_OK && ns_path_exists(path))
        return ns_error_set(err, NS_CANTCREAT, "%s exists already", path);
    if (rc == NS_OK)
        rc = ns_file_unlink(temp, err);
    if (rc == NS_OK)
        rc = vacuum_into(queue, temp, err);
    if (rc == NS_OK)
        rc = prepare_copy(temp, queue->budget, err);
    if (rc == NS_OK)
        rc = sync_copy(temp, err);
    if (rc == NS_OK)
        rc = ns_file_rename(temp, path, err);
    if (rc != NS_OK && ns_file_unlink(temp, NULL) != NS_OK)
        ns_log(NS_LOG_WARN, "%s could not be removed", temp);
    return rc == NS_OK ? NS_OK : ns_error_wrap(err, rc, "backup");
}

/* ---- ballast ------------------------------------------------------------------------------------------------------------- */

#define BALLAST_BYTES ((uint64_t)16 << 20) /* some commits' worth */
#define PLENTY        8                    /* made only when that many times its size is free ... */
#define ENOUGH        2                    /* ... and again, after it was given up, when that many times */

static bool ballast_path(const struct ns_runner *r, char out[NS_PATH_SIZE])
{
    int n = snprintf(out, NS_PATH_SIZE, "%s.ballast", r->q->path);
    return n > 0 && n < NS_PATH_SIZE;
}

static enum ns_code write_ballast(const char *path, struct ns_budget *budget, struct ns_error *err)
{
    const size_t chunk = (size_t)1 << 20;
    struct ns_file *file = NULL;
    void *zeros = ns_budget_take(budget, chunk, err);
    if (!zeros)
        return NS_BUDGET;
    enum ns_code rc = ns_file_open(path, NS_FILE_CREATE, &file, err);
    for (uint64_t at = 0; rc == NS_OK && at < BALLAST_BYTES; at += chunk)
        rc = ns_file_write(file, zeros, chunk, at, err);
    enum ns_code closed = ns_file_close(file, rc == NS_OK ? err : NULL);
    ns_budget_give(budget, zeros);
    return rc == NS_OK ? closed : rc;
}

void ns_ballast_keep(struct ns_runner *r)
{
    char path[NS_PATH_SIZE];
    struct ns_error err = {0};
    if (r->no_ballast || !ballast_path(r, path))
        return;
    if (ns_path_exists(path)) {
        r->had_ballast = true;
        return;
    }
    if (ns_host_free_disk(r->state_dir) < (r->had_ballast ? ENOUGH : PLENTY) * BALLAST_BYTES)
        return;
    if (write_ballast(path, r->budget, &err) == NS_OK) {
        r->had_ballast = true;
        return;
    }
    ns_log(NS_LOG_WARN, "no reserve on the disk: %s", err.message);
    if (ns_file_unlink(path, NULL) != NS_OK)
        ns_log(NS_LOG_WARN, "%s could not be removed", path);
}

bool ns_runner_has_reserve(struct ns_runner *runner)
{
    char path[NS_PATH_SIZE];
    ns_ballast_keep(runner);
    return !runner->had_ballast || !ballast_path(runner, path) || ns_path_exists(path);
}

bool ns_ballast_drop(const struct ns_runner *r)
{
    char path[NS_PATH_SIZE];
    struct ns_error err = {0};
    if (!ballast_path(r, path) || !ns_path_exists(path))
        return false;
    if (ns_file_unlink(path, &err) == NS_OK)
        return true;
    ns_log(NS_LOG_WARN, "%s", err.message);
    return false;
}
