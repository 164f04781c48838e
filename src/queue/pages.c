/* pages.c - whether the pages of the database are sound, before a run builds on them.
 *
 * WHAT   SQLite's integrity check of the whole file. A database above large_bytes is checked only when the last run did not
 *        come to its end (killed, or stopped by an error), and otherwise once a day; an event remembers when.
 * WHY    The check reads every page: nothing for a small queue, but a queue of gigabytes on a slow disk would keep each
 *        stop and start of a night waiting for minutes. After a clean end the same pages were in use a moment ago; what is
 *        damaged later and met by a statement ends the run as well, with the same code.
 *                                       (damage_test: t13_no_damaged_page_passes, a_large_queue_is_checked_when_it_matters) */
#include "queue/queue_impl.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t large_usual = (uint64_t)256 << 20;
static const int64_t day_ms = (int64_t)24 * 3600 * 1000;
static const char checked[] = "pages checked";

static enum ns_code check(struct ns_queue *q, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    enum ns_code rc = ns_sql_rows(q, &stmt, err, "PRAGMA integrity_check(1)", "");
    if (rc == NS_OK)
        rc = ns_sql_next(q, stmt, &row, err);
    if (rc == NS_OK && !row)
        return ns_error_set(err, NS_CORRUPT, "%s: the check of its pages said nothing", q->path);
    if (rc != NS_OK)
        return rc;
    const char *said = ns_sql_text(stmt, 0);
    rc = ns_sql_fetched(q, err);
    /* a page that could not be read is no damage: the check only says so in words */
    const char *number = said ? strstr(said, "error code=") : NULL;
    if (rc == NS_OK && number)
        rc = ns_sql_fail(q, (int)strtol(number + strlen("error code="), NULL, 10), "checking the pages", err);
    if (rc == NS_OK && (!said || strcmp(said, "ok") != 0))
        rc = ns_error_set(err, NS_CORRUPT, "%s is damaged: %.300s; restore a backup, or see nightshift doctor", q->path,
                          said ? said : "?");
    ns_sql_end(stmt);
    return rc;
}

static enum ns_code is_due(struct ns_queue *q, bool *due, struct ns_error *err)
{
    int64_t unclean = 0, recent = 0, now = ns_clock_wall_ms();
    enum ns_code rc = ns_sql_value(q, &unclean, NULL, err,
                                   "SELECT EXISTS (SELECT 1 FROM runners WHERE ended_at IS NULL) OR EXISTS (SELECT 1"
                                   " FROM runners WHERE id = (SELECT MAX(id) FROM runners) AND (state = 'lost' OR"
                                   " end_reason LIKE 'error%'))",
                                   "");
    if (rc == NS_OK)
        rc = ns_sql_value(q, &recent, NULL, err,
                          "SELECT EXISTS (SELECT 1 FROM events WHERE at BETWEEN ? AND ? AND kind = ?)", "iit",
                          now - day_ms, now, checked);
    *due = unclean || !recent;
    return rc;
}

static enum ns_code remember(struct ns_queue *q, struct ns_error *err)
{
    enum ns_code rc = ns_write_begin(q, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_event_insert(q, "info", checked, 0, 0, 0, NULL, err);
    return ns_write_end(q, rc, err);
}

enum ns_code ns_pages_check(struct ns_queue *q, uint64_t large_bytes, struct ns_error *err)
{
    int64_t bytes = 0;
    bool due = true;
    enum ns_code rc = ns_sql_value(q, &bytes, NULL, err,
                                   "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size", "");
    bool is_large = rc == NS_OK && (uint64_t)bytes > (large_bytes ? large_bytes : large_usual);
    if (is_large)
        rc = is_due(q, &due, err);
    if (rc == NS_OK && due)
        rc = check(q, err);
    return rc == NS_OK && due && is_large ? remember(q, err) : rc;
}
