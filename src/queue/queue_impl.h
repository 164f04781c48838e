/* queue_impl.h - private to queue/: a connection, its statements and transactions, and what the files share. */
#ifndef NS_QUEUE_IMPL_H
#define NS_QUEUE_IMPL_H

#include <sqlite3.h>

#include "queue/queue.h"
#include "sys/sys.h"

extern const unsigned char ns_schema_0001[]; /* generated from schema/0001.sql, terminated */

#define NS_APPLICATION_ID 0x4E534854 /* "NSHT" */
#define NS_PATH_SIZE      4096
#define NS_WAL_CHECKPOINT ((int64_t)16 << 20)
#define NS_WAL_WARNING    ((int64_t)256 << 20)
#define NS_SQL_CACHE      96
#define NS_RUNNER_WAIT_MS 60000
#define NS_WRITE_WAIT_MS  30000
#define NS_READ_WAIT_MS   5000
/* A row when the next runner would get the number of an earlier one: numbers are what fences runners off. */
#define NS_SQL_FENCE_LOST                                                                                              \
    "SELECT n FROM (SELECT MAX(id) AS n FROM runners)"                                                                 \
    " WHERE n > IFNULL((SELECT seq FROM sqlite_sequence WHERE name = 'runners'), 0)"

struct ns_queue {
    struct ns_budget *budget;
    sqlite3 *db;
    bool reads_only, in_write;
    struct ns_still *still; /* read without locks; NULL: with them */
    int n_cached;

    struct {
        const char *sql; /* static text: compared by address */
        sqlite3_stmt *stmt;
    } cached[NS_SQL_CACHE];

    int64_t wal_pages; /* after the last commit of this connection */
    char path[NS_PATH_SIZE];
};

/* ---- still.c: reading where nothing may be written ---------------------------------------------------------------------- */

struct ns_still; /* what the file was when reading began */
/* *out is NULL when the library can read path with locks. path is the real one, without symbolic links. NS_IO when there is
 * a log that cannot be read here. */
NS_MUST_CHECK enum ns_code ns_still_open(const char *path, struct ns_budget *budget, struct ns_still **out,
                                         struct ns_error *err);
void ns_still_close(struct ns_still *still); /* NULL is fine */
/* NS_BUSY when the queue is not what it was. NULL: fine. */
NS_MUST_CHECK enum ns_code ns_still_check(const struct ns_still *still, const char *path, struct ns_error *err);
/* The name under which the library opens path without locks. */
NS_MUST_CHECK enum ns_code ns_still_uri(const char *path, struct ns_text *out, struct ns_error *err);

/* ---- sql.c: statements and transactions ------------------------------------------------------------------------------ */

/* fmt names the arguments: i int64_t, t const char * (NULL: null), b const void * and size_t (NULL: null), r double,
 * n nothing (null). The statement text must be a string constant. A statement that writes outside a write transaction is
 * refused (NS_INTERNAL): a deferred transaction cannot be upgraded safely. */
NS_MUST_CHECK enum ns_code ns_sql_run(struct ns_queue *q, struct ns_error *err, const char *sql, const char *fmt, ...);
int64_t ns_sql_changes(struct ns_queue *q); /* of the last run */
/* A query: its rows by ns_sql_next until *row is false, or by `while (ns_sql_more(q, stmt, &rc, err))`, which goes on
 * while *rc is NS_OK and has ended the statement when it says no. ns_sql_end to leave early. stmt may be NULL when *rc
 * is an error. */
NS_MUST_CHECK enum ns_code ns_sql_rows(struct ns_queue *q, sqlite3_stmt **stmt, struct ns_error *err, const char *sql,
                                       const char *fmt, ...);
NS_MUST_CHECK enum ns_code ns_sql_next(struct ns_queue *q, sqlite3_stmt *stmt, bool *row, struct ns_error *err);
bool ns_sql_more(struct ns_queue *q, sqlite3_stmt *stmt, enum ns_code *rc, struct ns_error *err);
void ns_sql_end(sqlite3_stmt *stmt);
/* First column of the first row; *out is untouched when there is none (or it is null), and *found tells (may be NULL). */
NS_MUST_CHECK enum ns_code ns_sql_value(struct ns_queue *q, int64_t *out, bool *found, struct ns_error *err,
                                        const char *sql, const char *fmt, ...);
/* The code and message of a failed call of the library. */
enum ns_code ns_sql_fail(struct ns_queue *q, int rc, const char *what, struct ns_error *err);
const char *ns_sql_text(sqlite3_stmt *stmt, int column); /* NULL stays NULL; borrowed until the next step */
/* Fetching a text or blob may need memory and then gives NULL as if the column were null: ask after the last fetch of a
 * row. NS_BUDGET when one failed. */
NS_MUST_CHECK enum ns_code ns_sql_fetched(struct ns_queue *q, struct ns_error *err);

NS_MUST_CHECK enum ns_code ns_write_begin(struct ns_queue *q, struct ns_error *err); /* BEGIN IMMEDIATE */
NS_MUST_CHECK enum ns_code ns_write_commit(struct ns_queue *q, struct ns_error *err);
void ns_write_abort(struct ns_queue *q);
/* Commits when rc is NS_OK, rolls back otherwise; returns the first failure. */
NS_MUST_CHECK enum ns_code ns_write_end(struct ns_queue *q, enum ns_code rc, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_read_begin(struct ns_queue *q,
                                         struct ns_error *err); /* one snapshot for several queries */
void ns_read_end(struct ns_queue *q);

/* ---- open.c ------------------------------------------------------------------------------------------------------------- */

enum ns_use { NS_USE_READ, NS_USE_WRITE, NS_USE_RUNNER, NS_USE_HEARTBEAT };
NS_MUST_CHECK enum ns_code ns_queue_connect(const char *path, enum ns_use use, bool single_owner,
                                            struct ns_budget *budget, struct ns_queue **out, struct ns_error *err);
/* A private empty queue that vanishes on close, for dry runs. */
NS_MUST_CHECK enum ns_code ns_queue_scratch(struct ns_budget *budget, struct ns_queue **out, struct ns_error *err);

/* ---- settle.c: what follows from a change ------------------------------------------------------------------------------------ */

/* Inside a write transaction: waiting requests that were cancelled or whose time is over get their result; batches
 * without open requests become completed, cancelled or expired. */
NS_MUST_CHECK enum ns_code ns_settle(struct ns_queue *q, int64_t now_ms, struct ns_error *err);
/* Ends one waiting request as "cancelled" or "expired" with a result row. */
NS_MUST_CHECK enum ns_code ns_end_waiting(struct ns_queue *q, int64_t request_id, const char *state, int64_t now_ms,
                                          struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_result_insert(struct ns_queue *q, int64_t request_id, int64_t attempt_id,
                                            const struct ns_result *result, int64_t now_ms, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_event_insert(struct ns_queue *q, const char *level, const char *kind, int64_t runner_id,
                                           int64_t batch_id, int64_t request_id, const char *detail,
                                           struct ns_error *err);

/* ---- pages.c -------------------------------------------------------------------------------------------------------------------- */

/* NS_CORRUPT with what is wrong. A database above large_bytes (0: 256 MiB) is not checked each time. */
NS_MUST_CHECK enum ns_code ns_pages_check(struct ns_queue *q, uint64_t large_bytes, struct ns_error *err);

/* ---- runner.c ------------------------------------------------------------------------------------------------------------------ */

struct ns_share { /* what a batch was given so far, in tokens per weight; kept for the life of a runner */
    int64_t batch_id;
    double served;
};

struct ns_runner {
    struct ns_budget *budget;
    struct ns_queue *q;
    struct ns_lock *lock;
    int64_t id;
    int64_t model_id; /* 0 until bound */
    struct ns_share *share;
    size_t n_shares, share_capacity;
    uint64_t picks;
    bool wal_warned, no_ballast;
    bool had_ballast;    /* in this run: no wave without it */
    struct ns_text gone; /* names of side files to unlink after the commit, each terminated */
    char lane[32];
    char state_dir[NS_PATH_SIZE];
    /* heartbeat */
    struct ns_thread *thread;
    struct ns_mutex *mu;
    struct ns_cond *wake;
    bool stopping; /* guarded by mu */
    uint64_t heartbeat_ms;
};
/* BEGIN IMMEDIATE and the fence. */
NS_MUST_CHECK enum ns_code ns_fenced_begin(struct ns_runner *r, struct ns_error *err);

/* ---- pick.c: who is next ---------------------------------------------------------------------------------------------- */

/* At most max request ids in the order of admission, inside a write transaction. estimate_bytes 0: no limit. */
NS_MUST_CHECK enum ns_code ns_pick(struct ns_runner *r, int64_t now_ms, size_t max, uint64_t estimate_bytes,
                                   int64_t *id, size_t *n, bool *alone, struct ns_error *err);

/* Ends a running request of this runner: attempt, state, result; inside a write transaction (commit.c). */
NS_MUST_CHECK enum ns_code ns_request_close(struct ns_runner *r, int64_t request_id, int64_t attempt_id,
                                            enum ns_end end, const struct ns_result *result, const char *error,
                                            int64_t now_ms, struct ns_error *err);

/* ---- poison.c: who kills runners ----------------------------------------------------------------------------------- */

/* Inside the takeover: what was running under a runner that died in this boot becomes more suspect. */
NS_MUST_CHECK enum ns_code ns_blame(struct ns_runner *r, int64_t dead, struct ns_error *err);
/* Requests that died alone too often end as worker_crashed. */
NS_MUST_CHECK enum ns_code ns_condemn(struct ns_runner *r, int64_t runner_id, int64_t now_ms, struct ns_error *err);
/* A file that shows whether this runner crashed or was killed. */
NS_MUST_CHECK enum ns_code ns_mark_begin(struct ns_runner *r, struct ns_error *err);
void ns_mark_end(struct ns_runner *r);

/* ---- care.c --------------------------------------------------------------------------------------------------------- */

/* A reserve of disk space, <db>.ballast: made when there is plenty, given up when a commit finds the disk full. keep
 * makes it if it is missing; drop says whether there was one. */
void ns_ballast_keep(struct ns_runner *r);
bool ns_ballast_drop(const struct ns_runner *r);

/* ---- state.c ------------------------------------------------------------------------------------------------------------ */

/* Inside the wave's transaction: the new row, and the rows it replaces go. Their files are unlinked by swap_done, after
 * the commit (or kept when it failed). */
NS_MUST_CHECK enum ns_code ns_state_swap(struct ns_runner *r, const struct ns_state_file *file, int64_t wave_id,
                                         int64_t now_ms, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_state_forget(struct ns_runner *r, int64_t request_id, struct ns_error *err);
void ns_state_swap_done(struct ns_runner *r, bool committed);
/* Removes side files that no row names and that a dead runner left (state.c). */
NS_MUST_CHECK enum ns_code ns_state_sweep(struct ns_runner *r, int64_t *n_files, struct ns_error *err);

#endif
