/* state.c - side files: sequence states and suspended waves. The database names them; this file keeps names and files
 * in step.
 *
 * RULES  A row never names a file that is not durable: files are written, synced and renamed before the transaction that
 *        names them. A file is unlinked only when no durable row names it: after the commit that dropped its row. A crash
 *        between steps leaves unnamed files only; the next start sweeps them, once the old runner is known to be dead. */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

static enum ns_code note_gone(struct ns_runner *r, const char *name, struct ns_error *err)
{
    ns_text_add(&r->gone, name, strlen(name) + 1);
    return ns_text_ok(&r->gone) ? NS_OK : ns_error_set(err, NS_BUDGET, "no memory for the name of a file");
}

/* Collects the names of rows that are about to go. */
static enum ns_code note_rows(struct ns_runner *r, struct ns_error *err, sqlite3_stmt *stmt)
{
    enum ns_code rc = NS_OK;
    while (ns_sql_more(r->q, stmt, &rc, err)) {
        const char *name = ns_sql_text(stmt, 0);
        if (name)
            rc = note_gone(r, name, err);
    }
    return rc;
}

static enum ns_code unlink_state(struct ns_runner *r, const char *name, struct ns_error *err)
{
    char path[NS_PATH_SIZE + 128];
    if (strchr(name, '/') || strcmp(name, "..") == 0) /* a row may come from someone else's file */
        return ns_error_set(err, NS_CORRUPT, "%s: the side file name \"%.80s\" is not a plain name", r->q->path, name);
    snprintf(path, sizeof path, "%s/%s", r->state_dir, name);
    return ns_file_unlink(path, err);
}

void ns_state_swap_done(struct ns_runner *r, bool committed)
{
    if (committed && r->gone.n > 0)
        ns_crash_point("unlink.before");
    for (size_t at = 0; committed && at < r->gone.n; at += strlen(r->gone.data + at) + 1) {
        struct ns_error err = {0};
        if (unlink_state(r, r->gone.data + at, &err) != NS_OK)
            ns_log(NS_LOG_WARN, "%s", err.message); /* swept at the next start */
    }
    ns_text_clear(&r->gone);
}

enum ns_code ns_state_swap(struct ns_runner *r, const struct ns_state_file *f, int64_t wave_id, int64_t now_ms,
                           struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = NS_OK;
    if (!f->is_delta) { /* a base replaces all that its sequence has */
        rc = ns_sql_rows(r->q, &stmt, err, "SELECT rel_path FROM state_files WHERE seq_id = ? AND rel_path <> ?", "it",
                         f->seq_id, f->rel_path);
        if (rc == NS_OK)
            rc = note_rows(r, err, stmt);
        if (rc == NS_OK)
            rc = ns_sql_run(r->q, err, "DELETE FROM state_files WHERE seq_id = ?", "i", f->seq_id);
    }
    if (rc == NS_OK)
        rc =
            ns_sql_run(r->q, err,
                       "INSERT INTO state_files(seq_id, part, from_pos, to_pos, rel_path, bytes, checksum,"
                       " model_fingerprint, engine_abi, wave_id, made_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       "itiititt"
                       "iii",
                       f->seq_id, f->is_delta ? "delta" : "base", (int64_t)f->from_pos, (int64_t)f->to_pos, f->rel_path,
                       (int64_t)f->bytes, f->checksum, f->fingerprint, (int64_t)f->engine_abi, wave_id, now_ms);
    return rc;
}

enum ns_code ns_state_forget(struct ns_runner *r, int64_t request_id, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(r->q, &stmt, err,
                                  "SELECT f.rel_path FROM sequences s JOIN state_files f ON f.seq_id = s.id"
                                  " WHERE s.request_id = ?",
                                  "i", request_id);
    if (rc == NS_OK)
        rc = note_rows(r, err, stmt);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "DELETE FROM state_files WHERE seq_id IN (SELECT id FROM sequences WHERE request_id = ?)", "i",
                        request_id);
    return rc;
}

/* ---- sweep -------------------------------------------------------------------------------------------------------------- */

struct sweep {
    struct ns_runner *r;
    int64_t n;
};

static enum ns_code sweep_one(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    (void)bytes;
    struct sweep *s = arg;
    int64_t named = 0;
    if (strncmp(name, "crash-", 6) == 0) /* marks, not state: read by the takeover, useless afterwards */
        return unlink_state(s->r, name, err);
    enum ns_code rc = ns_sql_value(s->r->q, &named, NULL, err,
                                   "SELECT EXISTS (SELECT 1 FROM state_files WHERE rel_path = ?1) OR"
                                   " EXISTS (SELECT 1 FROM suspends WHERE rel_path = ?1)",
                                   "t", name);
    if (rc == NS_OK && !named) {
        rc = unlink_state(s->r, name, err);
        s->n++;
    }
    return rc;
}

enum ns_code ns_state_sweep(struct ns_runner *r, int64_t *n_files, struct ns_error *err)
{
    struct sweep s = {.r = r};
    int64_t others = 0; /* another lane's runner may be about to name its files */
    enum ns_code rc = ns_sql_value(r->q, &others, NULL, err,
                                   "SELECT COUNT(*) FROM runners WHERE ended_at IS NULL AND id <> ?", "i", r->id);
    if (rc == NS_OK && others == 0)
        rc = ns_dir_each(r->state_dir, sweep_one, &s, err);
    *n_files = s.n;
    return rc;
}

/* ---- states of one sequence ------------------------------------------------------------------------------------------------ */

const char *ns_runner_state_dir(const struct ns_runner *runner)
{
    return runner->state_dir;
}

static void copy_column(sqlite3_stmt *stmt, int column, char *out, size_t size)
{
    const char *text = ns_sql_text(stmt, column);
    snprintf(out, size, "%s", text ? text : "");
}

enum ns_code ns_runner_find_states(struct ns_runner *runner, int64_t seq_id, struct ns_state_row *out, size_t max,
                                   size_t *n, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    *n = 0;
    enum ns_code rc =
        ns_sql_rows(runner->q, &stmt, err,
                    "SELECT from_pos, to_pos, part = 'delta', rel_path, bytes, checksum, model_fingerprint,"
                    " engine_abi FROM state_files WHERE seq_id = ? ORDER BY part, from_pos",
                    "i", seq_id);
    while (ns_sql_more(runner->q, stmt, &rc, err)) {
        if (*n == max) {
            ns_sql_end(stmt);
            break;
        }
        struct ns_state_row *s = &out[(*n)++];
        *s = (struct ns_state_row){.from_pos = (uint32_t)sqlite3_column_int64(stmt, 0),
                                   .to_pos = (uint32_t)sqlite3_column_int64(stmt, 1),
                                   .is_delta = sqlite3_column_int64(stmt, 2) != 0,
                                   .bytes = (uint64_t)sqlite3_column_int64(stmt, 4),
                                   .engine_abi = (uint32_t)sqlite3_column_int64(stmt, 7)};
        copy_column(stmt, 3, s->rel_path, sizeof s->rel_path);
        copy_column(stmt, 5, s->checksum, sizeof s->checksum);
        copy_column(stmt, 6, s->fingerprint, sizeof s->fingerprint);
    }
    return rc;
}

/* An event about a dropped file, with why as JSON. */
static enum ns_code say_dropped(struct ns_runner *r, const char *kind, const char *why, struct ns_error *err)
{
    struct ns_text detail;
    struct ns_json_writer w;
    ns_text_init(&detail, r->budget);
    ns_json_begin(&w, &detail);
    ns_json_open_object(&w);
    ns_json_put_key(&w, "why");
    ns_json_put_cstring(&w, why);
    ns_json_close_object(&w);
    enum ns_code rc = ns_text_ok(&detail) ? ns_event_insert(r->q, "warn", kind, r->id, 0, 0, detail.data, err)
                                          : ns_error_set(err, NS_BUDGET, "no memory for an event");
    ns_text_fini(&detail);
    return rc;
}

enum ns_code ns_runner_drop_states(struct ns_runner *runner, int64_t seq_id, const char *why, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_rows(runner->q, &stmt, err, "SELECT rel_path FROM state_files WHERE seq_id = ?", "i", seq_id);
    if (rc == NS_OK)
        rc = note_rows(runner, err, stmt);
    if (rc == NS_OK)
        rc = ns_sql_run(runner->q, err, "DELETE FROM state_files WHERE seq_id = ?", "i", seq_id);
    if (rc == NS_OK && why)
        rc = say_dropped(runner, "state dropped", why, err);
    rc = ns_write_end(runner->q, rc, err);
    ns_state_swap_done(runner, rc == NS_OK);
    return rc;
}

/* ---- suspended waves --------------------------------------------------------------------------------------------------------- */

enum ns_code ns_runner_suspend(struct ns_runner *runner, const struct ns_suspend_row *row, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    ns_crash_point("suspend.before");
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_rows(runner->q, &stmt, err, "SELECT rel_path FROM suspends WHERE rel_path <> ?", "t", row->rel_path);
    if (rc == NS_OK)
        rc = note_rows(runner, err, stmt);
    if (rc == NS_OK)
        rc = ns_sql_run(runner->q, err, "DELETE FROM suspends", "");
    if (rc == NS_OK)
        rc = ns_sql_run(
            runner->q, err,
            "INSERT INTO suspends(runner_id, rel_path, bytes, checksum, model_fingerprint, contract, next_layer,"
            " made_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            "ititttii", runner->id, row->rel_path, (int64_t)row->bytes, row->checksum, row->fingerprint, row->contract,
            (int64_t)row->next_layer, ns_clock_wall_ms());
    rc = ns_write_end(runner->q, rc, err);
    ns_state_swap_done(runner, rc == NS_OK);
    if (rc == NS_OK)
        ns_crash_point("suspend.after");
    return rc;
}

enum ns_code ns_queue_find_suspend(struct ns_queue *queue, struct ns_suspend_row *out, bool *found,
                                   struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc =
        ns_sql_rows(queue, &stmt, err,
                    "SELECT id, rel_path, bytes, checksum, model_fingerprint, contract, next_layer, made_at"
                    " FROM suspends ORDER BY id DESC LIMIT 1",
                    "");
    *found = false;
    if (rc == NS_OK)
        rc = ns_sql_next(queue, stmt, found, err);
    if (rc != NS_OK || !*found)
        return rc;
    *out = (struct ns_suspend_row){.id = sqlite3_column_int64(stmt, 0),
                                   .bytes = (uint64_t)sqlite3_column_int64(stmt, 2),
                                   .next_layer = (uint32_t)sqlite3_column_int64(stmt, 6),
                                   .made_at_ms = sqlite3_column_int64(stmt, 7)};
    copy_column(stmt, 1, out->rel_path, sizeof out->rel_path);
    copy_column(stmt, 3, out->checksum, sizeof out->checksum);
    copy_column(stmt, 4, out->fingerprint, sizeof out->fingerprint);
    copy_column(stmt, 5, out->contract, sizeof out->contract);
    ns_sql_end(stmt);
    return NS_OK;
}

enum ns_code ns_runner_drop_suspend(struct ns_runner *runner, int64_t id, const char *why, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_rows(runner->q, &stmt, err, "SELECT rel_path FROM suspends WHERE id = ?", "i", id);
    if (rc == NS_OK)
        rc = note_rows(runner, err, stmt);
    if (rc == NS_OK)
        rc = ns_sql_run(runner->q, err, "DELETE FROM suspends WHERE id = ?", "i", id);
    if (rc == NS_OK && why)
        rc = say_dropped(runner, "suspend dropped", why, err);
    rc = ns_write_end(runner->q, rc, err);
    ns_state_swap_done(runner, rc == NS_OK);
    return rc;
}
