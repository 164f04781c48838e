/* doctor.c - is the queue what it says it is? Invariants I1 to I9 as queries; a sound queue gives no finding. */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

struct check {
    const char *invariant, *text, *sql;
    bool deep;
};

/* Each query gives the row ids that offend. */
static const struct check checks[] = {
    {"I1", "a finished request has no result",
     "SELECT r.id FROM requests r WHERE r.state IN ('done', 'failed', 'cancelled', 'expired') AND NOT EXISTS"
     " (SELECT 1 FROM results x WHERE x.request_id = r.id)",
     false},
    {"I1", "an unfinished request has a result",
     "SELECT r.id FROM requests r JOIN results x ON x.request_id = r.id WHERE r.state IN ('queued', 'running')", false},
    {"I1", "a done request has no successful response",
     "SELECT r.id FROM requests r JOIN results x ON x.request_id = r.id WHERE r.state = 'done' AND"
     " (x.response IS NULL OR x.status_code <> 200)",
     false},
    {"I3", "the tokens of a sequence do not add up",
     "SELECT s.id FROM sequences s WHERE s.n_out <> IFNULL((SELECT SUM(n) FROM seq_chunks c WHERE c.seq_id = s.id), 0)",
     false},
    {"I3", "the tokens of a sequence have a gap or an overlap",
     "SELECT c.seq_id FROM seq_chunks c WHERE c.pos <> IFNULL((SELECT SUM(n) FROM seq_chunks d WHERE d.seq_id = "
     "c.seq_id"
     " AND d.pos < c.pos), 0)",
     false},
    {"I3", "the lists of a token chunk have different lengths",
     "SELECT seq_id FROM seq_chunks WHERE length(tokens) <> 4 * n OR (logprobs IS NOT NULL AND length(logprobs) <> 4 * "
     "n)",
     false},
    {"I5", "a request runs under a runner that has ended",
     "SELECT r.id FROM requests r JOIN runners u ON u.id = r.runner_id WHERE r.state = 'running' AND"
     " u.ended_at IS NOT NULL",
     false},
    {"I5", "a request that does not run has an open attempt",
     "SELECT a.request_id FROM attempts a JOIN requests r ON r.id = a.request_id WHERE a.ended_at IS NULL AND"
     " r.state <> 'running'",
     false},
    {"I5", "a running request has no open attempt",
     "SELECT r.id FROM requests r WHERE r.state = 'running' AND NOT EXISTS (SELECT 1 FROM attempts a WHERE"
     " a.request_id = r.id AND a.ended_at IS NULL)",
     false},
    {"I6", "a lane has two open runners",
     "SELECT MAX(id) FROM runners WHERE ended_at IS NULL GROUP BY lane HAVING COUNT(*) > 1", false},
    {"I6", "the number of a runner would be given again", NS_SQL_FENCE_LOST, false},
    {"I9", "the row of wishes is not what it was", /* a reading connection does not know the CHECKs of the schema */
     "SELECT id FROM control WHERE id <> 1 UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM control WHERE id = 1)",
     false},
    {"I8", "a closed batch has open requests",
     "SELECT b.id FROM batches b WHERE b.status IN ('completed', 'expired', 'cancelled') AND EXISTS (SELECT 1 FROM"
     " requests r WHERE r.batch_id = b.id AND r.state IN ('queued', 'running'))",
     false},
    {"I8", "an open batch has no open request",
     "SELECT b.id FROM batches b WHERE b.status IN ('in_progress', 'cancelling') AND NOT EXISTS (SELECT 1 FROM"
     " requests r WHERE r.batch_id = b.id AND r.state IN ('queued', 'running'))",
     false},
    {"json", "a stored result is not JSON",
     "SELECT request_id FROM results WHERE NOT json_valid(IFNULL(response, error)) OR NOT json_valid(local)", true},
    {"json", "the detail of a wave is not JSON", "SELECT id FROM waves WHERE NOT json_valid(detail)", true},
    {"json", "the detail of an event is not JSON", "SELECT id FROM events WHERE NOT json_valid(detail)", true},
    {"json", "the sampler of a sequence is not JSON", "SELECT id FROM sequences WHERE NOT json_valid(sampler)", true},
    {"json", "the metadata of a batch is not JSON", "SELECT id FROM batches WHERE NOT json_valid(metadata)", true},
};

struct examination {
    ns_finding_fn each;
    void *arg;
    int64_t n;
};

static void report(struct examination *x, const char *invariant, int64_t ref, const char *text)
{
    x->n++;
    x->each(x->arg, invariant, false, ref, text);
}

static enum ns_code run_check(struct ns_queue *q, const struct check *c, struct examination *x, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(q, &stmt, err, c->sql, "");
    while (ns_sql_more(q, stmt, &rc, err))
        report(x, c->invariant, sqlite3_column_int64(stmt, 0), c->text);
    return rc;
}

static enum ns_code check_pages(struct ns_queue *q, struct examination *x, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(q, &stmt, err, "PRAGMA integrity_check", "");
    while (ns_sql_more(q, stmt, &rc, err)) {
        const char *said = ns_sql_text(stmt, 0);
        if (said && strcmp(said, "ok") != 0)
            report(x, "integrity", 0, said);
    }
    if (rc == NS_OK)
        rc = ns_sql_rows(q, &stmt, err, "PRAGMA foreign_key_check", "");
    while (ns_sql_more(q, stmt, &rc, err)) {
        char text[128];
        snprintf(text, sizeof text, "a row of %.40s points to a missing row of %.40s", ns_sql_text(stmt, 0),
                 ns_sql_text(stmt, 2));
        report(x, "foreign keys", sqlite3_column_int64(stmt, 1), text);
    }
    return rc;
}

/* What is wrong with a side file; false: nothing. */
static bool is_side_wrong(struct ns_queue *q, const struct ns_doctor_options *o, const char *path, uint64_t bytes,
                          const char *checksum, char *text, size_t size)
{
    struct ns_file *file = NULL;
    struct ns_error why = {0};
    bool there = ns_file_open(path, NS_FILE_READ, &file, NULL) == NS_OK;
    uint64_t found = there ? ns_file_bytes(file) : 0;
    ns_code_ignore(ns_file_close(file, NULL));
    if (!there)
        snprintf(text, size, "missing");
    else if (found != bytes)
        snprintf(text, size, "%" PRIu64 " bytes long, not %" PRIu64, found, bytes);
    else if (o->check_side && o->check_side(path, checksum, o->deep, q->budget, &why) != NS_OK)
        snprintf(text, size, "damaged (%.120s)", why.message);
    else
        return false;
    return true;
}

/* I7: every named side file is there with its size, and is what its row says when somebody can tell. */
static enum ns_code check_files(struct ns_queue *q, const struct ns_doctor_options *o, struct examination *x,
                                struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int64_t n_unread = 0;
    enum ns_code rc = ns_sql_rows(q, &stmt, err,
                                  "SELECT id, rel_path, bytes, checksum FROM state_files UNION ALL"
                                  " SELECT id, rel_path, bytes, checksum FROM suspends",
                                  "");
    while (ns_sql_more(q, stmt, &rc, err)) {
        char path[NS_PATH_SIZE + 160], text[320], wrong[160];
        const char *name = ns_sql_text(stmt, 1), *checksum = ns_sql_text(stmt, 3);
        snprintf(path, sizeof path, "%.*s.state/%.100s", NS_PATH_SIZE - 8, q->path, name ? name : "");
        if (!is_side_wrong(q, o, path, (uint64_t)sqlite3_column_int64(stmt, 2), checksum ? checksum : "", wrong,
                           sizeof wrong)) {
            n_unread += !o->deep;
            continue;
        }
        snprintf(text, sizeof text, "side file %.100s is %s; it will be rebuilt from tokens", name ? name : "", wrong);
        report(x, "I7", sqlite3_column_int64(stmt, 0), text);
    }
    if (rc == NS_OK && n_unread > 0) {
        char text[160];
        snprintf(text, sizeof text, "of %" PRId64 " side file%s head, size and final sum were checked; --deep reads %s",
                 n_unread, NS_PLURAL(n_unread), n_unread == 1 ? "all of it" : "all of them");
        x->each(x->arg, "I7", true, 0, text);
    }
    return rc;
}

/* I2: a response still has the hash it was written with. */
static enum ns_code check_hashes(struct ns_queue *q, struct examination *x, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc =
        ns_sql_rows(q, &stmt, err, "SELECT request_id, IFNULL(response, error), content_sha256 FROM results", "");
    while (ns_sql_more(q, stmt, &rc, err)) {
        char hex[NS_SHA256_HEX];
        const char *stored = ns_sql_text(stmt, 1), *expected = ns_sql_text(stmt, 2);
        enum ns_code hashed = ns_sql_fetched(q, err);
        if (hashed == NS_OK)
            hashed = ns_result_content_hash(stored ? stored : "", q->budget, hex, NULL);
        if (hashed == NS_BUDGET) {
            ns_sql_end(stmt);
            return ns_error_set(err, NS_BUDGET, "no memory to check a result");
        }
        if (hashed != NS_OK || !expected || strcmp(hex, expected) != 0)
            report(x, "I2", sqlite3_column_int64(stmt, 0), "a result does not have the hash it was written with");
    }
    return rc;
}

enum ns_code ns_queue_doctor(struct ns_queue *queue, const struct ns_doctor_options *options, ns_finding_fn each,
                             void *arg, int64_t *n_findings, struct ns_error *err)
{
    bool deep = options->deep;
    struct examination x = {.each = each, .arg = arg};
    char note[200];
    snprintf(note, sizeof note, "SQLite %s%s", sqlite3_libversion(),
             sqlite3_libversion_number() < 3051003 ? ": checkpoints of two processes at one moment can harm the log; "
                                                     "nightshift lets only the runner checkpoint"
                                                   : "");
    each(arg, "library", true, 0, note);
    enum ns_code rc = check_pages(queue, &x, err);
    for (size_t i = 0; rc == NS_OK && i < NS_COUNT(checks); i++)
        if (deep || !checks[i].deep)
            rc = run_check(queue, &checks[i], &x, err);
    if (rc == NS_OK)
        rc = check_files(queue, options, &x, err);
    if (rc == NS_OK && deep)
        rc = check_hashes(queue, &x, err);
    *n_findings = x.n;
    return rc;
}
