/* commit.c - one wave, one transaction.
 *
 * WHAT   Fence, token chunks, scores, results, attempts, batch states, side files and the wave's own row, all under one
 *        BEGIN IMMEDIATE; then what people asked for meanwhile is read from the same snapshot.
 * WHY    A crash loses at most the wave in progress: before COMMIT nothing of it exists, after it everything does.
 *        A result is inserted in the transaction that makes its request terminal, that transaction is refused to a
 *        fenced runner, and only a waiting request can be claimed. There is no third case, so results are exactly once.
 * INVARIANTS
 *   1. n_out of a sequence is guarded by its old value: tokens never repeat or leave a gap.  (commit_test: guards_n_out)
 *   2. A failed commit leaves nothing behind and may be repeated.                 (commit_test: failed_commit_is_clean)
 *   3. A result is written once.                                                  (commit_test: results_are_final) */
#include "queue/queue_impl.h"

#include <assert.h>
#include <string.h>

#define BACKOFF_MS INT64_C(30000)

/* ---- bytes ------------------------------------------------------------------------------------------------------------- */

static uint8_t *bytes_of_u32(struct ns_runner *r, const uint32_t *v, size_t n, struct ns_error *err)
{
    uint8_t *bytes = ns_budget_take_raw(r->budget, n * 4, 64, err);
    for (size_t i = 0; bytes && i < n; i++)
        ns_put_le32(bytes + 4 * i, v[i]);
    return bytes;
}

static uint8_t *bytes_of_f32(struct ns_runner *r, const float *v, size_t n, struct ns_error *err)
{
    uint8_t *bytes = ns_budget_take_raw(r->budget, n * 4, 64, err);
    for (size_t i = 0; bytes && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], 4);
        ns_put_le32(bytes + 4 * i, bits);
    }
    return bytes;
}

/* Per token k ids, then k values. */
static uint8_t *bytes_of_top(struct ns_runner *r, const uint32_t *id, const float *value, size_t n, size_t k,
                             struct ns_error *err)
{
    uint8_t *bytes = ns_budget_take_raw(r->budget, n * k * 8, 64, err);
    for (size_t i = 0; bytes && i < n; i++)
        for (size_t j = 0; j < k; j++) {
            uint32_t bits;
            memcpy(&bits, &value[i * k + j], 4);
            ns_put_le32(bytes + 4 * (i * 2 * k + j), id[i * k + j]);
            ns_put_le32(bytes + 4 * (i * 2 * k + k + j), bits);
        }
    return bytes;
}

/* ---- sequences ----------------------------------------------------------------------------------------------------------- */

static enum ns_code put_chunk(struct ns_runner *r, const struct ns_seq_update *u, int64_t wave_id, struct ns_error *err)
{
    bool has_top = u->top_id && u->top_logprob && u->n_top > 0;
    uint8_t *tokens = bytes_of_u32(r, u->token, u->n, err);
    uint8_t *lps = u->logprob ? bytes_of_f32(r, u->logprob, u->n, err) : NULL;
    uint8_t *top = has_top ? bytes_of_top(r, u->top_id, u->top_logprob, u->n, u->n_top, err) : NULL;
    enum ns_code rc = tokens && (lps || !u->logprob) && (top || !has_top) ? NS_OK : NS_BUDGET;
    if (rc == NS_OK)
        rc =
            ns_sql_run(r->q, err,
                       "INSERT INTO seq_chunks(seq_id, pos, n, tokens, logprobs, top_logprobs, wave_id)"
                       " VALUES (?, ?, ?, ?, ?, ?, ?)",
                       "iiibbbi", u->seq_id, (int64_t)u->n_out_before, (int64_t)u->n, tokens, (size_t)u->n * 4, lps,
                       lps ? (size_t)u->n * 4 : (size_t)0, top, top ? (size_t)u->n * u->n_top * 8 : (size_t)0, wave_id);
    ns_budget_give(r->budget, tokens);
    ns_budget_give(r->budget, lps);
    ns_budget_give(r->budget, top);
    return rc;
}

static enum ns_code put_prompt_logprobs(struct ns_runner *r, const struct ns_seq_update *u, struct ns_error *err)
{
    bool has_top = u->prompt_top_id && u->prompt_top_logprob && u->n_top > 0;
    uint8_t *lps = bytes_of_f32(r, u->prompt_logprob, u->n_prompt, err);
    uint8_t *top =
        has_top ? bytes_of_top(r, u->prompt_top_id, u->prompt_top_logprob, u->n_prompt, u->n_top, err) : NULL;
    enum ns_code rc = lps && (top || !has_top) ? NS_OK : NS_BUDGET;
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err, "UPDATE sequences SET prompt_logprobs = ?, prompt_top_logprobs = ? WHERE id = ?",
                        "bbi", lps, (size_t)u->n_prompt * 4, top, top ? (size_t)u->n_prompt * u->n_top * 8 : (size_t)0,
                        u->seq_id);
    ns_budget_give(r->budget, lps);
    ns_budget_give(r->budget, top);
    return rc;
}

static enum ns_code put_sequence(struct ns_runner *r, const struct ns_seq_update *u, int64_t wave_id,
                                 struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    if (u->n > 0)
        rc = put_chunk(r, u, wave_id, err);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE sequences SET n_out = n_out + ?, finish_reason = IFNULL(?, finish_reason)"
                        " WHERE id = ? AND n_out = ? AND finish_reason IS NULL",
                        "itii", (int64_t)u->n, ns_finish_name(u->finish), u->seq_id, (int64_t)u->n_out_before);
    if (rc == NS_OK && ns_sql_changes(r->q) != 1)
        rc = ns_error_set(err, NS_INTERNAL, "sequence %" PRId64 " does not have %" PRIu32 " tokens, or is finished",
                          u->seq_id, u->n_out_before);
    if (rc == NS_OK && u->has_score)
        rc = ns_sql_run(r->q, err, "UPDATE sequences SET score = ?, is_greedy = ? WHERE id = ?", "rii", u->score,
                        (int64_t)u->is_greedy, u->seq_id);
    if (rc == NS_OK && u->prompt_logprob)
        rc = put_prompt_logprobs(r, u, err);
    return rc;
}

/* ---- requests -------------------------------------------------------------------------------------------------------------- */

enum ns_code ns_request_close(struct ns_runner *r, int64_t request_id, int64_t attempt_id, enum ns_end end,
                              const struct ns_result *result, const char *error, int64_t now_ms, struct ns_error *err)
{
    static const char *const state[] = {"done", "failed", "cancelled", "expired"};
    static const char *const outcome[] = {"done", "error", "cancelled", "expired"};
    enum ns_code rc = ns_sql_run(
        r->q, err, "UPDATE attempts SET ended_at = ?, outcome = ?, error = ? WHERE id = ? AND ended_at IS NULL", "itti",
        now_ms, outcome[end], error, attempt_id);
    if (rc == NS_OK && ns_sql_changes(r->q) != 1)
        return ns_error_set(err, NS_INTERNAL, "request %" PRId64 " has no open attempt %" PRId64, request_id,
                            attempt_id);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE requests SET state = ?, runner_id = NULL, finished_at = ?, suspect = 0, alone = 0"
                        " WHERE id = ? AND runner_id = ? AND state = 'running'",
                        "tiii", state[end], now_ms, request_id, r->id);
    if (rc == NS_OK && ns_sql_changes(r->q) != 1)
        return ns_error_set(err, NS_INTERNAL, "request %" PRId64 " is not running under runner %" PRId64, request_id,
                            r->id);
    return rc == NS_OK ? ns_result_insert(r->q, request_id, attempt_id, result, now_ms, err) : rc;
}

/* 30 s, 2 min, 8 min, +-25 % by the id, so that a thousand retries do not come back in one moment. */
static int64_t backoff_ms(int64_t request_id, int64_t tries)
{
    int64_t base = BACKOFF_MS;
    for (int64_t i = 1; i < tries && i < 6; i++)
        base *= 4;
    uint32_t spread = ns_crc32c((uint32_t)tries, &request_id, sizeof request_id) % 501; /* 0..500: 75.0 .. 125.0 % */
    return base * (750 + (int64_t)spread) / 1000;
}

static enum ns_code retry_later(struct ns_runner *r, const struct ns_retry_later *l, int64_t now, struct ns_error *err)
{
    int64_t tries = 0, left = 0;
    enum ns_code rc =
        ns_sql_value(r->q, &tries, NULL, err, "SELECT tries FROM requests WHERE id = ?", "i", l->request_id);
    if (rc == NS_OK)
        rc = ns_sql_value(r->q, &left, NULL, err,
                          "SELECT b.max_attempts + r.extra_tries - r.tries FROM requests r JOIN batches b"
                          " ON b.id = r.batch_id WHERE r.id = ?",
                          "i", l->request_id);
    if (rc == NS_OK && left <= 0)
        return ns_request_close(r, l->request_id, l->attempt_id, NS_END_FAILED, l->result_if_spent, l->error, now, err);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err, "UPDATE attempts SET ended_at = ?, outcome = 'error', error = ? WHERE id = ?", "iti",
                        now, l->error, l->attempt_id);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE requests SET state = 'queued', runner_id = NULL, not_before = ? WHERE id = ? AND"
                        " runner_id = ? AND state = 'running'",
                        "iii", now + backoff_ms(l->request_id, tries), l->request_id, r->id);
    return rc;
}

/* ---- the wave ---------------------------------------------------------------------------------------------------------------- */

static enum ns_code put_wave(struct ns_runner *r, const struct ns_wave_record *w, int64_t *wave_id,
                             struct ns_error *err)
{
    enum ns_code rc =
        ns_sql_run(r->q, err,
                   "INSERT INTO waves(runner_id, kind, began_at, ended_at, n_seqs, n_tokens_in, n_tokens_out, "
                   "bytes_read, cache_hits,"
                   " cache_misses, io_ms, compute_ms, state_bytes, rss_bytes, free_bytes, detail)"
                   " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   "itiiiiiiiiiiiiit", r->id, w->kind, w->began_at_ms, w->ended_at_ms, (int64_t)w->n_seqs,
                   (int64_t)w->n_tokens_in, (int64_t)w->n_tokens_out, (int64_t)w->bytes_read, (int64_t)w->cache_hits,
                   (int64_t)w->cache_misses, (int64_t)w->io_ms, (int64_t)w->compute_ms, (int64_t)w->state_bytes,
                   (int64_t)w->rss_bytes, (int64_t)w->free_bytes, w->detail ? w->detail : "{}");
    *wave_id = sqlite3_last_insert_rowid(r->q->db);
    return rc;
}

static enum ns_code put_all(struct ns_runner *r, const struct ns_wave_commit *c, int64_t now, int64_t *wave_id,
                            struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    *wave_id = 0;
    if (c->wave)
        rc = put_wave(r, c->wave, wave_id, err);
    for (size_t i = 0; rc == NS_OK && i < c->n_seqs; i++)
        rc = put_sequence(r, &c->seq[i], *wave_id, err);
    for (size_t i = 0; rc == NS_OK && i < c->n_restored; i++)
        rc = ns_sql_run(r->q, err, "UPDATE attempts SET resume_kind = 'state' WHERE id = ?", "i", c->restored[i]);
    for (size_t i = 0; rc == NS_OK && i < c->n_states; i++)
        rc = ns_state_swap(r, &c->state[i], *wave_id, now, err);
    for (size_t i = 0; rc == NS_OK && i < c->n_ends; i++)
        rc = ns_request_close(r, c->end[i].request_id, c->end[i].attempt_id, c->end[i].end, c->end[i].result,
                              c->end[i].error, now, err);
    for (size_t i = 0; rc == NS_OK && i < c->n_ends; i++)
        rc = ns_state_forget(r, c->end[i].request_id, err);
    for (size_t i = 0; rc == NS_OK && i < c->n_retries; i++)
        rc = retry_later(r, &c->retry[i], now, err);
    for (size_t i = 0; rc == NS_OK && i < c->n_progressed; i++)
        rc = ns_sql_run(r->q, err,
                        "UPDATE requests SET suspect = 0, alone = 0 WHERE id = ? AND (suspect > 0 OR alone > 0)", "i",
                        c->progressed[i]);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err, "UPDATE runners SET progress_at = ? WHERE id = ?", "ii", now, r->id);
    if (rc == NS_OK)
        rc = ns_settle(r->q, now, err);
    return rc;
}

/* ---- what people asked for ------------------------------------------------------------------------------------------------------ */

static enum ns_code add_asked(struct ns_control *c, int64_t request_id, int what, size_t *capacity,
                              struct ns_error *err)
{
    if (c->n_asked == *capacity) {
        size_t grown = *capacity ? *capacity * 2 : 16;
        void *block = ns_budget_resize(c->budget, c->asked, grown * sizeof *c->asked, err);
        if (!block)
            return NS_BUDGET;
        c->asked = block;
        *capacity = grown;
    }
    c->asked[c->n_asked].request_id = request_id;
    c->asked[c->n_asked++].what = what == 0 ? NS_ASKED_CANCEL : what == 1 ? NS_ASKED_EXPIRE : NS_ASKED_YIELD;
    return NS_OK;
}

static enum ns_code look(struct ns_runner *r, int64_t now, struct ns_control *out, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    enum ns_code rc = ns_sql_rows(r->q, &stmt, err, "SELECT paused, drain FROM control WHERE id = 1", "");
    if (rc == NS_OK)
        rc = ns_sql_next(r->q, stmt, &row, err);
    if (rc != NS_OK)
        return rc;
    if (row) {
        out->paused = sqlite3_column_int64(stmt, 0) != 0;
        out->drain = sqlite3_column_int64(stmt, 1) != 0;
        ns_sql_end(stmt);
    }
    rc = ns_sql_value(r->q, &out->queued_now, NULL, err,
                      "SELECT COUNT(*) FROM batches b JOIN requests r ON r.batch_id = b.id AND r.state = 'queued' AND"
                      " r.not_before <= ?1 WHERE b.status = 'in_progress' AND b.held = 0 AND"
                      " (b.model_id IS NULL OR b.model_id = ?2)",
                      "ii", now, r->model_id);
    if (rc == NS_OK)
        rc = ns_sql_rows(r->q, &stmt, err,
                         "SELECT r.id, CASE WHEN r.cancel_asked = 1 OR b.status = 'cancelling' THEN 0"
                         " WHEN b.deadline_at <= ?2 THEN 1 ELSE 2 END"
                         " FROM requests r JOIN batches b ON b.id = r.batch_id WHERE r.runner_id = ?1 AND"
                         " r.state = 'running' AND (r.cancel_asked = 1 OR b.status = 'cancelling' OR b.held = 1 OR"
                         " b.deadline_at <= ?2)",
                         "ii", r->id, now);
    size_t capacity = 0;
    while (ns_sql_more(r->q, stmt, &rc, err))
        rc = add_asked(out, sqlite3_column_int64(stmt, 0), (int)sqlite3_column_int64(stmt, 1), &capacity, err);
    return rc;
}

void ns_control_fini(struct ns_control *control)
{
    if (!control->budget)
        return;
    ns_budget_give(control->budget, control->asked);
    *control = (struct ns_control){0};
}

enum ns_code ns_runner_look(struct ns_runner *runner, struct ns_control *control, struct ns_error *err)
{
    *control = (struct ns_control){.budget = runner->budget};
    enum ns_code rc = ns_read_begin(runner->q, err);
    if (rc != NS_OK)
        return rc;
    rc = look(runner, ns_clock_wall_ms(), control, err);
    ns_read_end(runner->q);
    if (rc != NS_OK)
        ns_control_fini(control);
    return rc;
}

/* ---- the write-ahead log ------------------------------------------------------------------------------------------------------------ */

/* The log is moved into the database when it is large, and on a small disk while there is still room for that: a log that
 * took the last room could never be moved. */
static void checkpoint(struct ns_runner *r)
{
    int64_t bytes = r->q->wal_pages * 4096;
    if (bytes < NS_WAL_CHECKPOINT && (uint64_t)bytes < ns_host_free_disk(r->state_dir))
        return;
    int left = 0, done = 0;
    int rc = sqlite3_wal_checkpoint_v2(r->q->db, NULL, SQLITE_CHECKPOINT_PASSIVE, &left, &done);
    if (rc != SQLITE_OK && rc != SQLITE_BUSY)
        ns_log(NS_LOG_WARN, "%s: checkpoint: %s", r->q->path, sqlite3_errstr(rc));
    if (bytes > NS_WAL_WARNING && !r->wal_warned) {
        r->wal_warned = true;
        ns_log(NS_LOG_WARN, "%s-wal has grown to %" PRId64 " MB: some program keeps a read transaction open",
               r->q->path, bytes / 1000000);
    }
    if (bytes < NS_WAL_WARNING)
        r->wal_warned = false;
}

void ns_runner_relieve(struct ns_runner *runner)
{
    int rc = sqlite3_wal_checkpoint_v2(runner->q->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    if (rc != SQLITE_OK) /* no room even for that */
        ns_log(NS_LOG_DEBUG, "%s: checkpoint: %s", runner->q->path, sqlite3_errstr(rc));
}

static enum ns_code try_commit(struct ns_runner *runner, const struct ns_wave_commit *commit, int64_t *wave,
                               struct ns_control *control, struct ns_error *err)
{
    int64_t now = ns_clock_wall_ms();
    *control = (struct ns_control){.budget = runner->budget};
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    rc = put_all(runner, commit, now, wave, err);
    if (rc == NS_OK)
        rc = look(runner, now, control, err);
    if (rc == NS_OK)
        ns_crash_point("commit.before");
    rc = ns_write_end(runner->q, rc, err);
    if (rc == NS_OK)
        ns_crash_point("commit.after");
    else
        ns_control_fini(control);
    ns_state_swap_done(runner, rc == NS_OK);
    return rc;
}

enum ns_code ns_runner_commit(struct ns_runner *runner, const struct ns_wave_commit *commit, int64_t *wave_id,
                              struct ns_control *control, struct ns_error *err)
{
    int64_t wave = 0;
    struct ns_error full = {0};
    ns_crash_point("commit.begin");
    enum ns_code rc = try_commit(runner, commit, &wave, control, &full);
    if (rc == NS_FULL) {
        ns_runner_relieve(runner);
        ns_error_clear(&full);
        rc = try_commit(runner, commit, &wave, control, &full);
    }
    if (rc == NS_FULL && ns_ballast_drop(runner)) { /* this is what it was kept for */
        ns_log(NS_LOG_WARN, "the disk is full; the reserve was given up for this commit");
        ns_error_clear(&full);
        rc = try_commit(runner, commit, &wave, control, &full);
    }
    if (rc != NS_OK) {
        ns_error_set(err, rc, "%s", full.message);
        return rc;
    }
    if (wave_id)
        *wave_id = wave;
    checkpoint(runner);
    ns_ballast_keep(runner);
    return NS_OK;
}
