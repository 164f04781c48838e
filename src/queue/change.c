/* change.c - what people ask for: cancel, retry, hold, priority, deadline, pause. Every call that changed something
 * leaves a row in actions, in the same transaction. */
#include "queue/select_impl.h"

#include <stdio.h>
#include <string.h>

#define CHUNK 2000 /* rows per transaction: the runner must not wait long for the lock */

static enum ns_code note_action(struct ns_queue *q, const char *verb, const struct ns_selection *s, int64_t number,
                                int64_t changed, struct ns_error *err)
{
    struct ns_text args;
    struct ns_json_writer w;
    ns_text_init(&args, q->budget);
    ns_json_begin(&w, &args);
    ns_json_open_object(&w);

    const struct {
        const char *key;
        int64_t v;
    } numbers[] = {{"batch", s ? s->batch_id : 0},
                   {"first", s ? s->first_id : 0},
                   {"last", s ? s->last_id : 0},
                   {"value", number}};

    for (size_t i = 0; i < NS_COUNT(numbers); i++)
        if (numbers[i].v) {
            ns_json_put_key(&w, numbers[i].key);
            ns_json_put_int(&w, numbers[i].v);
        }
    const char *const texts[][2] = {{"state", s ? s->state : NULL}, {"custom_id", s ? s->custom_id : NULL}};
    for (size_t i = 0; i < NS_COUNT(texts); i++)
        if (texts[i][1] && ns_utf8_valid(texts[i][1], strlen(texts[i][1]))) {
            ns_json_put_key(&w, texts[i][0]);
            ns_json_put_cstring(&w, texts[i][1]);
        }
    ns_json_close_object(&w);
    enum ns_code rc = NS_BUDGET;
    if (ns_text_ok(&args))
        rc = ns_sql_run(
            q, err, "INSERT INTO actions(at, uid, who, host, verb, args, rows_changed) VALUES (?, ?, ?, ?, ?, ?, ?)",
            "iittt"
            "ti",
            ns_clock_wall_ms(), ns_host_uid(), ns_host_user(), ns_host_name(), verb, args.data, changed);
    else
        rc = ns_error_set(err, NS_BUDGET, "no memory for an action");
    ns_text_fini(&args);
    return rc;
}

/* ---- walking a selection, some rows per transaction ------------------------------------------------------------------------ */

struct target {
    int64_t id, batch_id;
    char state[12];
    bool refused;
};
typedef enum ns_code (*target_fn)(struct ns_queue *q, const struct target *t, int64_t value, struct ns_change *change,
                                  struct ns_error *err);

#define TARGET_COLUMNS "SELECT r.id, r.batch_id, r.state, r.refused FROM requests r WHERE "
#define TARGET_TAIL    " AND r.id > ?6 ORDER BY r.id LIMIT 2000"

static enum ns_code read_targets(struct ns_queue *q, const struct ns_selection *s, int64_t after, struct target *out,
                                 size_t *n, struct ns_error *err)
{
    static const char of_batch[] = TARGET_COLUMNS NS_SELECT_OF_BATCH TARGET_TAIL;
    static const char of_ids[] = TARGET_COLUMNS NS_SELECT_OF_IDS TARGET_TAIL;
    static const char of_all[] = TARGET_COLUMNS NS_SELECT_OF_ALL TARGET_TAIL;
    sqlite3_stmt *stmt = NULL;
    *n = 0;
    enum ns_code rc = ns_sql_rows(q, &stmt, err,
                                  s->batch_id   ? of_batch
                                  : s->first_id ? of_ids
                                                : of_all,
                                  "iiitti", s->batch_id, s->first_id, s->last_id, s->state, s->custom_id, after);
    while (ns_sql_more(q, stmt, &rc, err)) {
        if (*n == CHUNK) { /* the query's own limit */
            ns_sql_end(stmt);
            break;
        }
        struct target *t = &out[(*n)++];
        *t = (struct target){.id = sqlite3_column_int64(stmt, 0),
                             .batch_id = sqlite3_column_int64(stmt, 1),
                             .refused = sqlite3_column_int64(stmt, 3) != 0};
        const char *state = ns_sql_text(stmt, 2);
        rc = ns_sql_fetched(q, err);
        if (rc == NS_OK && state)
            snprintf(t->state, sizeof t->state, "%s", state);
    }
    return rc;
}

static enum ns_code change_chunk(struct ns_queue *q, const struct ns_selection *s, target_fn each, int64_t value,
                                 struct ns_change *change, struct target *targets, int64_t *after, bool *more,
                                 struct ns_error *err)
{
    size_t n = 0;
    enum ns_code rc = change->dry_run ? NS_OK : ns_write_begin(q, err);
    if (rc != NS_OK)
        return rc;
    rc = read_targets(q, s, *after, targets, &n, err);
    for (size_t i = 0; rc == NS_OK && i < n; i++) {
        rc = each(q, &targets[i], value, change, err);
        *after = targets[i].id;
    }
    *more = n == CHUNK;
    if (change->dry_run)
        return rc;
    return ns_write_end(q, rc, err);
}

static enum ns_code change_each(struct ns_queue *q, const char *verb, const struct ns_selection *s, target_fn each,
                                int64_t value, struct ns_change *change, struct ns_error *err)
{
    change->changed = 0;
    change->already = 0;
    change->refused = 0;
    struct target *targets = ns_budget_take(q->budget, CHUNK * sizeof *targets, err);
    if (!targets)
        return NS_BUDGET;
    int64_t after = 0;
    enum ns_code rc = NS_OK;
    for (bool more = true; rc == NS_OK && more;)
        rc = change_chunk(q, s, each, value, change, targets, &after, &more, err);
    ns_budget_give(q->budget, targets);
    if (rc != NS_OK || change->dry_run)
        return rc;
    rc = ns_write_begin(q, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_settle(q, ns_clock_wall_ms(), err);
    if (rc == NS_OK)
        rc = note_action(q, verb, s, value, change->changed, err);
    return ns_write_end(q, rc, err);
}

/* ---- cancel -------------------------------------------------------------------------------------------------------------- */

static enum ns_code cancel_one(struct ns_queue *q, const struct target *t, int64_t value, struct ns_change *change,
                               struct ns_error *err)
{
    (void)value;
    bool is_queued = strcmp(t->state, "queued") == 0, is_running = strcmp(t->state, "running") == 0;
    if (!is_queued && !is_running) {
        change->already++;
        return NS_OK;
    }
    change->changed++;
    if (change->dry_run)
        return NS_OK;
    if (is_queued)
        return ns_end_waiting(q, t->id, "cancelled", ns_clock_wall_ms(), err);
    return ns_sql_run(q, err, "UPDATE requests SET cancel_asked = 1 WHERE id = ? AND state = 'running'", "i", t->id);
}

static enum ns_code cancel_batch(struct ns_queue *q, int64_t batch_id, struct ns_error *err)
{
    enum ns_code rc = ns_write_begin(q, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_run(
        q, err, "UPDATE batches SET status = 'cancelling', cancelling_at = ? WHERE id = ? AND status = 'in_progress'",
        "ii", ns_clock_wall_ms(), batch_id);
    return ns_write_end(q, rc, err);
}

enum ns_code ns_queue_cancel(struct ns_queue *queue, const struct ns_selection *which, struct ns_change *change,
                             struct ns_error *err)
{
    bool whole = which->batch_id && !which->first_id && !which->state && !which->custom_id;
    enum ns_code rc = NS_OK;
    if (whole && !change->dry_run) /* from now on nothing of it is claimed */
        rc = cancel_batch(queue, which->batch_id, err);
    return rc == NS_OK ? change_each(queue, "cancel", which, cancel_one, 0, change, err) : rc;
}

/* ---- retry ----------------------------------------------------------------------------------------------------------------- */

static enum ns_code retry_one(struct ns_queue *q, const struct target *t, int64_t value, struct ns_change *change,
                              struct ns_error *err)
{
    (void)value;
    bool is_over =
        strcmp(t->state, "failed") == 0 || strcmp(t->state, "cancelled") == 0 || strcmp(t->state, "expired") == 0;
    if (!is_over || t->refused) {
        change->already++;
        change->refused += t->refused;
        return NS_OK;
    }
    change->changed++;
    if (change->dry_run)
        return NS_OK;
    enum ns_code rc = ns_sql_run(q, err,
                                 "INSERT INTO events(at, level, kind, batch_id, request_id, detail) SELECT ?2, 'info',"
                                 " 'retry', ?3, ?1, json_object('state', ?4, 'status_code', status_code, 'response',"
                                 " json(response), 'error', json(error), 'x_local', json(local)) FROM results"
                                 " WHERE request_id = ?1",
                                 "iiit", t->id, ns_clock_wall_ms(), t->batch_id, t->state);
    if (rc == NS_OK)
        rc = ns_sql_run(q, err, "DELETE FROM results WHERE request_id = ?", "i", t->id);
    if (rc == NS_OK)
        rc = ns_sql_run(q, err,
                        "UPDATE requests SET state = 'queued', finished_at = NULL, not_before = 0, cancel_asked = 0,"
                        " extra_tries = extra_tries + 1, suspect = 0, alone = 0, skips = 0 WHERE id = ?",
                        "i", t->id);
    if (rc == NS_OK)
        rc = ns_sql_run(q, err,
                        "UPDATE batches SET status = 'in_progress', completed_at = NULL, expired_at = NULL,"
                        " cancelling_at = NULL, cancelled_at = NULL, finalizing_at = NULL,"
                        " deadline_at = CASE WHEN deadline_at <= ?2 THEN NULL ELSE deadline_at END WHERE id = ?1"
                        " AND status IN ('completed', 'expired', 'cancelled', 'in_progress')",
                        "ii", t->batch_id, ns_clock_wall_ms());
    return rc;
}

enum ns_code ns_queue_retry(struct ns_queue *queue, const struct ns_selection *which, struct ns_change *change,
                            struct ns_error *err)
{
    return change_each(queue, "retry", which, retry_one, 0, change, err);
}

/* ---- the others ------------------------------------------------------------------------------------------------------------- */

static enum ns_code set_priority_one(struct ns_queue *q, const struct target *t, int64_t value,
                                     struct ns_change *change, struct ns_error *err)
{
    if (strcmp(t->state, "queued") != 0 && strcmp(t->state, "running") != 0) {
        change->already++;
        return NS_OK;
    }
    change->changed++;
    if (change->dry_run)
        return NS_OK;
    return ns_sql_run(q, err, "UPDATE requests SET priority = ? WHERE id = ?", "ii", value, t->id);
}

enum ns_code ns_queue_set_priority(struct ns_queue *queue, const struct ns_selection *which, int priority,
                                   struct ns_change *change, struct ns_error *err)
{
    if (priority < 0 || priority > 9)
        return ns_error_set(err, NS_USAGE, "priority is %d, 0 to 9 are allowed", priority);
    return change_each(queue, "priority", which, set_priority_one, priority, change, err);
}

/* One statement over a batch, with its action. */
static enum ns_code change_batch(struct ns_queue *q, const char *verb, const char *sql, int64_t batch_id, int64_t value,
                                 struct ns_change *change, struct ns_error *err)
{
    change->already = 0;
    enum ns_code rc = ns_write_begin(q, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_run(q, err, sql, "ii", batch_id, value);
    change->changed = ns_sql_changes(q);
    change->already = change->changed == 0;
    struct ns_selection s = {.batch_id = batch_id};
    if (rc == NS_OK)
        rc = ns_settle(q, ns_clock_wall_ms(), err);
    if (rc == NS_OK)
        rc = note_action(q, verb, &s, value, change->changed, err);
    if (change->dry_run && rc == NS_OK) {
        ns_write_abort(q);
        return NS_OK;
    }
    return ns_write_end(q, rc, err);
}

enum ns_code ns_queue_hold(struct ns_queue *queue, int64_t batch_id, bool held, struct ns_change *change,
                           struct ns_error *err)
{
    static const char sql[] = "UPDATE batches SET held = ?2 WHERE id = ?1 AND held <> ?2 AND"
                              " status IN ('validating', 'in_progress')";
    return change_batch(queue, held ? "hold" : "release", sql, batch_id, held, change, err);
}

enum ns_code ns_queue_set_deadline(struct ns_queue *queue, int64_t batch_id, int64_t deadline_at_ms,
                                   struct ns_change *change, struct ns_error *err)
{
    static const char sql[] = "UPDATE batches SET deadline_at = NULLIF(?2, 0) WHERE id = ?1 AND"
                              " status IN ('validating', 'in_progress')";
    return change_batch(queue, "deadline", sql, batch_id, deadline_at_ms, change, err);
}

enum ns_code ns_queue_set_control(struct ns_queue *queue, enum ns_control_verb verb, const char *reason,
                                  struct ns_error *err)
{
    static const char *const name[] = {"pause", "resume", "drain"};
    enum ns_code rc = ns_write_begin(queue, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_run(queue, err, "UPDATE control SET paused = ?, drain = ?, reason = ?, changed_at = ? WHERE id = 1",
                    "iiti", (int64_t)(verb == NS_CONTROL_PAUSE), (int64_t)(verb == NS_CONTROL_DRAIN),
                    verb == NS_CONTROL_RESUME ? NULL : reason, ns_clock_wall_ms());
    if (rc == NS_OK)
        rc = note_action(queue, name[verb], NULL, 0, 1, err);
    return ns_write_end(queue, rc, err);
}
