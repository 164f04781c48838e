/* poison.c - requests that kill the runner.
 *
 * WHAT   A death makes everything that was running more suspect; pick.c then runs half of the suspects at a time, with
 *        nobody innocent, until the culprit is alone. A request that is alone in deaths ALONE_CRASHED times in a row
 *        ends as failed with worker_crashed. A committed wave clears whoever was in it.
 * WHY    The process that died cannot tell. But committed tokens survive, so a deterministic culprit kills again in its
 *        first wave, and halving finds it in about log2 of the set. Power cuts blame nobody: another boot, no suspicion.
 *        A crash leaves a mark (sys), a SIGKILL does not: that is nearly always an impatient person or scheduler, whose
 *        kills say nothing of the request, so it takes ALONE_KILLED of them in a row without one committed wave. They
 *        count at all because a death without a mark may also be the machine's defence of its memory, or a crash that
 *        could not leave one, and a culprit must not be tried for ever.
 * INVARIANTS
 *   1. A deterministic culprit ends alone, everybody else finishes.          (poison_test: t11_culprits_are_found)
 *   2. Whoever was in a committed wave is innocent again.                    (runner_test: c44_killed_runner_is_taken_over) */
#include "queue/queue_impl.h"

#include <stdio.h>

#define ALONE_CRASHED 2
#define ALONE_KILLED  30

static enum ns_code mark_path(const struct ns_runner *r, int64_t runner_id, char out[NS_PATH_SIZE],
                              struct ns_error *err)
{
    return ns_path_format(out, NS_PATH_SIZE, NS_USAGE, err, "%s/crash-%" PRId64, r->state_dir, runner_id);
}

static bool has_crashed(const struct ns_runner *r, int64_t runner_id)
{
    char path[NS_PATH_SIZE];
    struct ns_file *file = NULL;
    if (mark_path(r, runner_id, path, NULL) != NS_OK || ns_file_open(path, NS_FILE_READ, &file, NULL) != NS_OK)
        return false;
    bool marked = ns_file_bytes(file) > 0;
    return ns_file_close(file, NULL) == NS_OK && marked;
}

enum ns_code ns_mark_begin(struct ns_runner *r, struct ns_error *err)
{
    char path[NS_PATH_SIZE];
    enum ns_code rc = mark_path(r, r->id, path, err);
    return rc == NS_OK ? ns_crash_mark_open(path, err) : rc;
}

void ns_mark_end(struct ns_runner *r)
{
    char path[NS_PATH_SIZE];
    struct ns_error err = {0};
    ns_crash_mark_close();
    if (mark_path(r, r->id, path, &err) == NS_OK && ns_file_unlink(path, &err) != NS_OK)
        ns_log(NS_LOG_WARN, "%s", err.message); /* swept at the next start */
}

enum ns_code ns_blame(struct ns_runner *r, int64_t dead, struct ns_error *err)
{
    /* alone counts in units of 1/ALONE_KILLED of a sentence, so that both kinds of death add up */
    int64_t weight = has_crashed(r, dead) ? ALONE_KILLED / ALONE_CRASHED : 1;
    enum ns_code rc = ns_sql_run(r->q, err,
                                 "UPDATE requests SET alone = alone + ?2 WHERE runner_id = ?1 AND state = 'running' AND"
                                 " suspect >= 2 AND 1 = (SELECT COUNT(*) FROM requests WHERE runner_id = ?1 AND"
                                 " state = 'running')",
                                 "ii", dead, weight);
    if (rc == NS_OK)
        rc =
            ns_sql_run(r->q, err, "UPDATE requests SET suspect = suspect + 1 WHERE runner_id = ? AND state = 'running'",
                       "i", dead);
    return rc;
}

static enum ns_code condemn_one(struct ns_runner *r, int64_t runner_id, int64_t request_id, int64_t now_ms,
                                struct ns_error *err)
{
    struct ns_refusal refusal;
    struct ns_result result;
    ns_refusal_set(&refusal, 500, "worker_crashed", NULL,
                   "the runner died again and again while only this request was running; it was set aside");
    enum ns_code rc = ns_result_fail(NULL, NULL, &refusal, NULL, NULL, r->budget, &result, err);
    if (rc != NS_OK)
        return rc;
    rc =
        ns_sql_run(r->q, err, "UPDATE requests SET state = 'failed', finished_at = ? WHERE id = ? AND state = 'queued'",
                   "ii", now_ms, request_id);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE attempts SET error = 'worker_crashed' WHERE id ="
                        " (SELECT MAX(id) FROM attempts WHERE request_id = ?)",
                        "i", request_id);
    if (rc == NS_OK)
        rc = ns_result_insert(r->q, request_id, 0, &result, now_ms, err);
    if (rc == NS_OK)
        rc = ns_event_insert(r->q, "error", "worker_crashed", runner_id, 0, request_id, NULL, err);
    ns_result_fini(&result);
    ns_log(NS_LOG_ERROR, "request %" PRId64 " kills the runner and was set aside (worker_crashed)", request_id);
    return rc;
}

enum ns_code ns_condemn(struct ns_runner *r, int64_t runner_id, int64_t now_ms, struct ns_error *err)
{
    for (;;) {
        int64_t id = 0;
        bool found = false;
        enum ns_code rc = ns_sql_value(r->q, &id, &found, err,
                                       "SELECT id FROM requests WHERE suspect >= 2 AND state = 'queued' AND alone >= ?"
                                       " LIMIT 1",
                                       "i", (int64_t)ALONE_KILLED);
        if (rc != NS_OK || !found)
            return rc;
        rc = condemn_one(r, runner_id, id, now_ms, err);
        if (rc != NS_OK)
            return rc;
    }
}
