/* sql.c - statements and transactions: the library's calls in one place, with its result codes turned into ours.
 * Statements are prepared once per connection and found again by the address of their text. */
#include "queue/queue_impl.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static enum ns_code code_of(struct ns_queue *q, int rc)
{
    int os = q->db ? sqlite3_system_errno(q->db) : 0;
    switch (rc & 0xFF) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return NS_OK;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return NS_BUSY;
    case SQLITE_FULL:
        return NS_FULL;
    case SQLITE_IOERR:
        if (rc == SQLITE_IOERR_NOMEM)
            return NS_BUDGET;
        return os == ENOSPC || os == EDQUOT ? NS_FULL : NS_IO;
    case SQLITE_NOMEM:
        return NS_BUDGET;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return NS_CORRUPT;
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
        return NS_IO;
    case SQLITE_INTERRUPT:
        return NS_STOPPED;
    default:
        return NS_INTERNAL;
    }
}

enum ns_code ns_sql_fail(struct ns_queue *q, int rc, const char *what, struct ns_error *err)
{
    enum ns_code code = code_of(q, rc);
    if (code == NS_OK)
        code = NS_INTERNAL;
    int os = q->db ? sqlite3_system_errno(q->db) : 0;
    const char *why = sqlite3_errstr(rc & 0xFF), *more = q->db ? sqlite3_errmsg(q->db) : "";
    if (strcmp(why, more) == 0) /* the library often has one text for both */
        more = "";
    const char *system = os && (rc & 0xFF) == SQLITE_IOERR ? strerror(os) : "";
    const char *comma = *more && *system ? "; " : "";
    if ((rc & 0xFF) == SQLITE_READONLY)
        return ns_error_set(
            err, code, "%s cannot be written by this process: the file or its folder is read-only for it", q->path);
    if ((rc & 0xFF) == SQLITE_NOTADB)
        return ns_error_set(err, code, "%s is not a queue: it is no database, or its beginning is damaged", q->path);
    return ns_error_set(err, code, *more || *system ? "%s: %s: %s (%s%s%s)" : "%s: %s: %s%s%s%s", q->path, what, why,
                        more, comma, system);
}

/* ---- statements --------------------------------------------------------------------------------------------------- */

static enum ns_code find_statement(struct ns_queue *q, const char *sql, sqlite3_stmt **out, struct ns_error *err)
{
    for (int i = 0; i < q->n_cached; i++)
        if (q->cached[i].sql == sql) {
            *out = q->cached[i].stmt;
            assert(!sqlite3_stmt_busy(*out));
            return NS_OK;
        }
    if (q->n_cached == NS_SQL_CACHE)
        return ns_error_set(err, NS_INTERNAL, "more than %d statements", NS_SQL_CACHE);
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v3(q->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL);
    if (rc != SQLITE_OK)
        return ns_sql_fail(q, rc, "preparing a statement", err);
    q->cached[q->n_cached].sql = sql;
    q->cached[q->n_cached++].stmt = stmt;
    *out = stmt;
    return NS_OK;
}

static int bind_all(sqlite3_stmt *stmt, const char *fmt, va_list args)
{
    int rc = SQLITE_OK;
    for (int i = 1; rc == SQLITE_OK && *fmt; i++, fmt++) {
        if (*fmt == 'i') {
            rc = sqlite3_bind_int64(stmt, i, va_arg(args, int64_t));
        } else if (*fmt == 'r') {
            rc = sqlite3_bind_double(stmt, i, va_arg(args, double));
        } else if (*fmt == 't') {
            const char *text = va_arg(args, const char *);
            rc = sqlite3_bind_text64(stmt, i, text, text ? strlen(text) : 0, SQLITE_STATIC, SQLITE_UTF8);
        } else if (*fmt == 's') {
            const char *text = va_arg(args, const char *);
            size_t n = va_arg(args, size_t);
            rc = sqlite3_bind_text64(stmt, i, text, n, SQLITE_STATIC, SQLITE_UTF8);
        } else if (*fmt == 'b') {
            const void *blob = va_arg(args, const void *);
            size_t n = va_arg(args, size_t);
            rc = sqlite3_bind_blob64(stmt, i, blob, n, SQLITE_STATIC);
        } else {
            assert(*fmt == 'n');
            rc = sqlite3_bind_null(stmt, i);
        }
    }
    return rc;
}

static enum ns_code open_statement(struct ns_queue *q, sqlite3_stmt **stmt, struct ns_error *err, const char *sql,
                                   const char *fmt, va_list args)
{
    enum ns_code code = find_statement(q, sql, stmt, err);
    if (code != NS_OK)
        return code;
    if (!q->in_write && !sqlite3_stmt_readonly(*stmt))
        return ns_error_set(err, NS_INTERNAL, "a statement would write outside a write transaction: %.200s", sql);
    int rc = bind_all(*stmt, fmt, args);
    if (rc == SQLITE_OK)
        return NS_OK;
    code = ns_sql_fail(q, rc, "binding a value", err);
    ns_sql_end(*stmt);
    return code;
}

void ns_sql_end(sqlite3_stmt *stmt)
{
    if (!stmt)
        return;
    sqlite3_reset(stmt); /* repeats an error that was already reported */
    sqlite3_clear_bindings(stmt);
}

enum ns_code ns_sql_next(struct ns_queue *q, sqlite3_stmt *stmt, bool *row, struct ns_error *err)
{
    int rc = sqlite3_step(stmt);
    enum ns_code still = ns_still_check(q->still, q->path, err);
    *row = rc == SQLITE_ROW && still == NS_OK;
    if (still != NS_OK) {
        ns_sql_end(stmt);
        return still;
    }
    if (rc == SQLITE_ROW)
        return NS_OK;
    enum ns_code code = rc == SQLITE_DONE ? NS_OK : ns_sql_fail(q, rc, "a statement failed", err);
    ns_sql_end(stmt);
    return code;
}

bool ns_sql_more(struct ns_queue *q, sqlite3_stmt *stmt, enum ns_code *rc, struct ns_error *err)
{
    bool row = false;
    if (*rc == NS_OK)
        *rc = ns_sql_next(q, stmt, &row, err);
    else
        ns_sql_end(stmt);
    return row;
}

enum ns_code ns_sql_run(struct ns_queue *q, struct ns_error *err, const char *sql, const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    va_list args;
    va_start(args, fmt);
    enum ns_code rc = open_statement(q, &stmt, err, sql, fmt, args);
    va_end(args);
    bool row = rc == NS_OK;
    while (rc == NS_OK && row)
        rc = ns_sql_next(q, stmt, &row, err);
    return rc;
}

int64_t ns_sql_changes(struct ns_queue *q)
{
    return sqlite3_changes64(q->db);
}

enum ns_code ns_sql_rows(struct ns_queue *q, sqlite3_stmt **stmt, struct ns_error *err, const char *sql,
                         const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    enum ns_code rc = open_statement(q, stmt, err, sql, fmt, args);
    va_end(args);
    return rc;
}

enum ns_code ns_sql_value(struct ns_queue *q, int64_t *out, bool *found, struct ns_error *err, const char *sql,
                          const char *fmt, ...)
{
    sqlite3_stmt *stmt = NULL;
    va_list args;
    va_start(args, fmt);
    enum ns_code rc = open_statement(q, &stmt, err, sql, fmt, args);
    va_end(args);
    bool row = false;
    if (rc == NS_OK)
        rc = ns_sql_next(q, stmt, &row, err);
    bool has = row && sqlite3_column_type(stmt, 0) != SQLITE_NULL;
    if (has)
        *out = sqlite3_column_int64(stmt, 0);
    if (row)
        ns_sql_end(stmt);
    if (found)
        *found = has;
    return rc;
}

const char *ns_sql_text(sqlite3_stmt *stmt, int column)
{
    return (const char *)sqlite3_column_text(stmt, column);
}

enum ns_code ns_sql_fetched(struct ns_queue *q, struct ns_error *err)
{
    if ((sqlite3_errcode(q->db) & 0xFF) != SQLITE_NOMEM)
        return NS_OK;
    return ns_error_set(err, NS_BUDGET, "%s: no memory to read a row", q->path);
}

/* ---- transactions --------------------------------------------------------------------------------------------------- */

static enum ns_code plain(struct ns_queue *q, const char *sql, const char *what, struct ns_error *err)
{
    int rc = sqlite3_exec(q->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? NS_OK : ns_sql_fail(q, rc, what, err);
}

enum ns_code ns_write_begin(struct ns_queue *q, struct ns_error *err)
{
    assert(!q->in_write && sqlite3_get_autocommit(q->db));
    if (q->reads_only)
        return ns_error_set(err, NS_INTERNAL, "%s was opened for reading", q->path);
    enum ns_code rc = plain(q, "BEGIN IMMEDIATE", "waiting for the write lock", err);
    q->in_write = rc == NS_OK;
    return rc;
}

enum ns_code ns_write_commit(struct ns_queue *q, struct ns_error *err)
{
    assert(q->in_write);
    ns_crash_point("write.before");
    enum ns_code rc = plain(q, "COMMIT", "committing", err);
    ns_crash_point("write.after");
    if (rc != NS_OK)
        ns_write_abort(q);
    q->in_write = false;
    return rc;
}

void ns_write_abort(struct ns_queue *q)
{
    /* a full disk, an I/O error or missing memory may have rolled back already */
    if (!sqlite3_get_autocommit(q->db))
        sqlite3_exec(q->db, "ROLLBACK", NULL, NULL, NULL);
    q->in_write = false;
}

enum ns_code ns_write_end(struct ns_queue *q, enum ns_code rc, struct ns_error *err)
{
    if (rc == NS_OK)
        return ns_write_commit(q, err);
    ns_write_abort(q);
    return rc;
}

enum ns_code ns_read_begin(struct ns_queue *q, struct ns_error *err)
{
    return plain(q, "BEGIN", "beginning to read", err);
}

void ns_read_end(struct ns_queue *q)
{
    if (!sqlite3_get_autocommit(q->db))
        sqlite3_exec(q->db, "ROLLBACK", NULL, NULL, NULL); /* nothing was written */
}
