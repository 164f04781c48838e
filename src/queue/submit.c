/* submit.c - a file becomes a batch: which batch it is, whether it is there already, and when it becomes visible.
 * The lines themselves are import.c's.
 *
 * WHY    Idempotent by (SHA-256 of the input, name): the same file under the same name gives the existing id, so a
 *        script may submit again after any failure. An interrupted submit left a batch that is still validating; the
 *        same file continues it after its last line. The runner sees a batch only when its status flips in the last
 *        transaction, so there is no half-visible batch.
 * INVARIANTS
 *   1. The same file and name never make a second batch, unless asked.          (submit_test: c47_same_file_twice)
 *   2. Killed at any line and submitted again: every line exactly once.         (submit_test: continues_after_a_kill) */
#include "queue/import_impl.h"

#include <stdio.h>
#include <string.h>

#define HASH_CHUNK ((size_t)1 << 20)

/* ---- ids ------------------------------------------------------------------------------------------------------------- */

static void make_public_id(const struct ns_queue *q, const char *sha256, char out[NS_BATCH_ID_SIZE])
{
    static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"; /* sorts like the numbers; no I, L, O, U */
    char seed[512];
    uint8_t random[NS_SHA256_BYTES];
    uint64_t now = (uint64_t)ns_clock_wall_ms();
    int n = snprintf(seed, sizeof seed, "%s %" PRId64 " %" PRId64 " %" PRIu64 " %s %.200s", ns_host_boot_id(),
                     ns_host_pid(), ns_host_pid_start(ns_host_pid()), ns_clock_mono_ns(), sha256, q->path);
    ns_sha256_of(seed, n > 0 ? strlen(seed) : 0, random);
    memcpy(out, "batch_", 6);
    for (int i = 0; i < 10; i++)
        out[6 + i] = digits[now >> (45 - 5 * i) & 31];
    for (int i = 0; i < 16; i++)
        out[16 + i] = digits[random[i] & 31];
    out[32] = '\0';
}

/* ---- the input ------------------------------------------------------------------------------------------------------- */

static enum ns_code hash_input(const char *path, struct ns_budget *budget, char hex[NS_SHA256_HEX],
                               struct ns_error *err)
{
    struct ns_file *file = NULL;
    enum ns_code rc = ns_file_open(path, NS_FILE_READ, &file, err);
    if (rc != NS_OK)
        return rc;
    uint8_t *chunk = ns_budget_take_raw(budget, HASH_CHUNK, 64, err);
    struct ns_sha256 *hash = ns_sha256_open();
    if (!chunk || !hash)
        rc = ns_error_set(err, NS_BUDGET, "no memory to read %s", path);
    uint64_t at = 0;
    for (size_t got = 1; rc == NS_OK && got > 0; at += got) {
        rc = ns_file_read_some(file, chunk, HASH_CHUNK, at, &got, err);
        if (rc == NS_OK)
            ns_sha256_add(hash, chunk, got);
    }
    uint8_t sum[NS_SHA256_BYTES];
    if (hash)
        ns_sha256_close(hash, sum);
    if (rc == NS_OK)
        ns_hex(sum, sizeof sum, hex);
    ns_budget_give(budget, chunk);
    enum ns_code closed = ns_file_close(file, rc == NS_OK ? err : NULL);
    return rc == NS_OK ? closed : rc;
}

/* Standard input and pipes can be read once only, so they become a file beside the database first. */
static enum ns_code spool(const char *path, const char *to, struct ns_budget *budget, struct ns_error *err)
{
    struct ns_line_reader *lines = NULL;
    struct ns_out_file *out = NULL;
    enum ns_code rc = ns_lines_open(path, NS_JOB_LINE_MAX + 1, budget, &lines, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_out_open(to, &out, err);
    while (rc == NS_OK) {
        const char *line;
        size_t n;
        bool cut;
        rc = ns_lines_next(lines, &line, &n, &cut, err); /* one byte over the limit: the import will see it cut */
        if (rc != NS_OK || !line)
            break;
        rc = ns_out_write(out, line, n, err);
        if (rc == NS_OK)
            rc = ns_out_write(out, "\n", 1, err);
    }
    ns_lines_close(lines);
    if (rc == NS_OK)
        return ns_out_commit(out, err);
    ns_out_abort(out);
    return rc;
}

static bool must_spool(const char *path)
{
    return strcmp(path, "-") == 0 || ns_path_is_stream(path) || strncmp(path, "/dev/", 5) == 0 ||
           strncmp(path, "/proc/", 6) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strcmp(path, "-") == 0 ? "stdin" : slash ? slash + 1 : path;
}

/* ---- the batch ------------------------------------------------------------------------------------------------------- */

static enum ns_code find_batch(struct ns_import *im, const struct ns_submit_options *o, bool *finished,
                               struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    enum ns_code rc = ns_sql_rows(im->q, &stmt, err,
                                  "SELECT id, public_id, status = 'validating' FROM batches WHERE input_sha256 = ?1"
                                  " AND name = ?2 AND again = ?3 AND (?3 = 0 OR status = 'validating')"
                                  " AND status <> 'failed' ORDER BY id LIMIT 1",
                                  "tti", im->sha256, im->name, (int64_t)o->again);
    if (rc == NS_OK)
        rc = ns_sql_next(im->q, stmt, &row, err);
    if (rc != NS_OK || !row)
        return rc;
    im->batch_id = sqlite3_column_int64(stmt, 0);
    const char *public_id = ns_sql_text(stmt, 1);
    snprintf(im->report->batch_id, NS_BATCH_ID_SIZE, "%s", public_id ? public_id : "");
    *finished = sqlite3_column_int64(stmt, 2) == 0;
    rc = ns_sql_fetched(im->q, err);
    ns_sql_end(stmt);
    if (*finished || rc != NS_OK)
        return rc;
    im->report->continued = true;
    rc = ns_sql_value(im->q, &im->last_line, NULL, err, "SELECT MAX(line_no) FROM requests WHERE batch_id = ?", "i",
                      im->batch_id);
    if (rc == NS_OK)
        rc = ns_sql_value(im->q, &im->report->bad, NULL, err,
                          "SELECT COUNT(*) FROM requests WHERE batch_id = ? AND refused = 1", "i", im->batch_id);
    if (rc == NS_OK)
        rc = ns_sql_value(im->q, &im->report->good, NULL, err,
                          "SELECT COUNT(*) FROM requests WHERE batch_id = ? AND refused = 0", "i", im->batch_id);
    im->report->lines = im->report->bad + im->report->good;
    return rc;
}

static enum ns_code new_batch(struct ns_import *im, const char *path, const struct ns_submit_options *o,
                              struct ns_error *err)
{
    char real[4096] = "";
    if (!must_spool(path) && ns_path_real(path, real, NULL) != NS_OK)
        real[0] = '\0';
    make_public_id(im->q, im->sha256, im->report->batch_id);
    enum ns_code rc = ns_sql_run(
        im->q, err,
        "INSERT INTO batches(public_id, name, endpoint, held, priority, input_name, input_sha256, max_attempts,"
        " created_at, again) VALUES (?, ?, 'plain', ?, ?, ?, ?, ?, ?, ?)",
        "ttiittiii", im->report->batch_id, im->name, (int64_t)o->hold, (int64_t)o->priority, real[0] ? real : NULL,
        im->sha256, (int64_t)(o->max_attempts ? o->max_attempts : 3), im->now_ms, (int64_t)o->again);
    if (rc == NS_OK)
        im->batch_id = sqlite3_last_insert_rowid(im->q->db);
    return rc;
}

static enum ns_code open_batch(struct ns_import *im, const char *path, const struct ns_submit_options *o,
                               struct ns_error *err)
{
    bool finished = false;
    enum ns_code rc = ns_write_begin(im->q, err);
    if (rc != NS_OK)
        return rc;
    rc = find_batch(im, o, &finished, err);
    if (rc == NS_OK && im->batch_id == 0)
        rc = new_batch(im, path, o, err);
    im->report->existed = finished;
    return ns_write_end(im->q, rc, err);
}

/* ---- the end ---------------------------------------------------------------------------------------------------------- */

/* The reasons first and durable, then the lines go, some at a time. */
static enum ns_code refuse_batch(struct ns_import *im, struct ns_error *err)
{
    struct ns_text list;
    struct ns_json_writer w;
    ns_text_init(&list, im->q->budget);
    ns_json_begin(&w, &list);
    ns_json_open_object(&w);
    ns_json_put_key(&w, "object");
    ns_json_put_cstring(&w, "list");
    ns_json_put_key(&w, "data");
    ns_json_open_array(&w);
    for (size_t i = 0; i < im->report->n_errors; i++)
        ns_refusal_json(&w, &im->report->error[i].refusal, im->report->error[i].line);
    ns_json_close_array(&w);
    ns_json_close_object(&w);
    enum ns_code rc = ns_text_ok(&list) ? ns_write_begin(im->q, err) : ns_error_set(err, NS_BUDGET, "no memory");
    if (rc == NS_OK) {
        rc = ns_sql_run(im->q, err,
                        "UPDATE batches SET status = 'failed', failed_at = ?, validation_errors = ? WHERE id = ?",
                        "iti", im->now_ms, list.data, im->batch_id);
        rc = ns_write_end(im->q, rc, err);
    }
    ns_text_fini(&list);
    for (int64_t changed = 1; rc == NS_OK && changed > 0;) {
        rc = ns_write_begin(im->q, err);
        if (rc != NS_OK)
            break;
        rc = ns_sql_run(im->q, err,
                        "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE batch_id = ? LIMIT 5000)", "i",
                        im->batch_id);
        changed = ns_sql_changes(im->q);
        rc = ns_write_end(im->q, rc, err);
    }
    return rc;
}

static enum ns_code refuse_one(struct ns_import *im, const char *code, const char *message, struct ns_error *err)
{
    struct ns_refusal refusal;
    ns_refusal_set(&refusal, 400, code, NULL, "%s", message);
    enum ns_code rc = ns_import_note_error(im, 0, &refusal, err);
    if (rc == NS_OK)
        rc = refuse_batch(im, err);
    return rc == NS_OK ? ns_error_set(err, NS_INPUT, "%s: %s", code, message) : rc;
}

static enum ns_code refuse_changed(struct ns_import *im, struct ns_error *err)
{
    im->report->n_errors = 0;
    return refuse_one(im, "input_changed", "the file changed while it was read", err);
}

static enum ns_code accept_batch(struct ns_import *im, struct ns_error *err)
{
    enum ns_code rc = ns_write_begin(im->q, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_run(
        im->q, err,
        "UPDATE batches SET status = 'in_progress', in_progress_at = ?2, endpoint = CASE"
        " WHEN NOT EXISTS (SELECT 1 FROM requests WHERE batch_id = ?1 AND kind <> 'chat')"
        "  AND EXISTS (SELECT 1 FROM requests WHERE batch_id = ?1 AND kind = 'chat') THEN '/v1/chat/completions'"
        " WHEN NOT EXISTS (SELECT 1 FROM requests WHERE batch_id = ?1 AND kind <> 'completion')"
        "  AND EXISTS (SELECT 1 FROM requests WHERE batch_id = ?1 AND kind = 'completion') THEN '/v1/completions'"
        " ELSE 'plain' END WHERE id = ?1 AND status = 'validating'",
        "ii", im->batch_id, im->now_ms);
    if (rc == NS_OK)
        rc = ns_settle(im->q, im->now_ms, err); /* a file of bad lines only is complete at once */
    return ns_write_end(im->q, rc, err);
}

static enum ns_code finish_batch(struct ns_import *im, const struct ns_submit_options *o, struct ns_error *err)
{
    struct ns_submit_report *r = im->report;
    if (r->lines == 0)
        return refuse_one(im, "empty_file", "the file has no lines", err);
    if (!o->strict || r->bad == 0)
        return accept_batch(im, err);
    enum ns_code rc = ns_import_reread_errors(im, err);
    if (rc == NS_OK)
        rc = refuse_batch(im, err);
    if (rc == NS_OK)
        rc = ns_error_set(err, NS_INPUT,
                          "%" PRId64 " of %" PRId64 " line%s %s bad; the first is line %" PRId64 ": %s: %s", r->bad,
                          r->lines, NS_PLURAL(r->lines), r->bad == 1 ? "is" : "are", r->n_errors ? r->error[0].line : 0,
                          r->n_errors ? r->error[0].refusal.code : "", r->n_errors ? r->error[0].refusal.message : "");
    return rc;
}

/* ---- submit ------------------------------------------------------------------------------------------------------------- */

static enum ns_code submit_file(struct ns_import *im, const char *path, const char *shown,
                                const struct ns_submit_options *o, const char *lock_path, struct ns_error *err)
{
    enum ns_code rc = hash_input(path, im->q->budget, im->sha256, err);
    if (rc == NS_OK)
        rc = open_batch(im, shown, o, err);
    if (rc != NS_OK || im->report->existed)
        return rc;
    /* two processes must not continue the same batch: one byte of the lock file per batch, far from the lanes */
    struct ns_lock *lock = NULL;
    if (lock_path) {
        rc = ns_lock_take(lock_path, ((uint64_t)1 << 40) + (uint64_t)im->batch_id, &lock, err);
        if (rc != NS_OK)
            return ns_error_wrap(err, rc, "another submit of the same file is at work (%s)", im->report->batch_id);
    }
    ns_crash_point("submit.batch");
    rc = ns_import_lines(im, path, err);
    char again[NS_SHA256_HEX] = "";
    if (rc == NS_OK)
        rc = hash_input(path, im->q->budget, again, err);
    if (rc == NS_OK)
        rc = strcmp(again, im->sha256) == 0 ? finish_batch(im, o, err) : refuse_changed(im, err);
    ns_lock_give(lock);
    return rc;
}

static enum ns_code submit_spooled(struct ns_import *im, const char *path, const struct ns_submit_options *o,
                                   const char *near, const char *lock_path, struct ns_error *err)
{
    if (!must_spool(path))
        return submit_file(im, path, path, o, lock_path, err);
    char temp[NS_PATH_SIZE];
    enum ns_code rc = ns_path_format(temp, sizeof temp, NS_USAGE, err, "%s.input-%" PRId64, near, ns_host_pid());
    if (rc == NS_OK)
        rc = spool(path, temp, im->q->budget, err);
    if (rc == NS_OK)
        rc = submit_file(im, temp, path, o, lock_path, err);
    enum ns_code gone = ns_file_unlink(temp, rc == NS_OK ? err : NULL);
    return rc == NS_OK ? gone : rc;
}

enum ns_code ns_queue_submit(struct ns_queue *queue, const char *path, const struct ns_submit_options *options,
                             struct ns_submit_report *report, struct ns_error *err)
{
    *report = (struct ns_submit_report){.budget = queue->budget};
    if (options->priority < 0 || options->priority > 9)
        return ns_error_set(err, NS_USAGE, "priority is %d, 0 to 9 are allowed", options->priority);
    if (options->max_attempts < 0 || options->max_attempts > 100)
        return ns_error_set(err, NS_USAGE, "max attempts is %d, 1 to 100 are allowed", options->max_attempts);
    char name[256], lock_path[NS_PATH_SIZE];
    if (options->name && strlen(options->name) >= sizeof name)
        return ns_error_set(err, NS_USAGE, "the name of the batch has %zu bytes, at most %zu are allowed",
                            strlen(options->name), sizeof name - 1);
    snprintf(name, sizeof name, "%s", options->name ? options->name : base_name(path));
    if (!ns_utf8_valid(name, strlen(name)) && options->name)
        return ns_error_set(err, NS_USAGE, "the name of the batch is not UTF-8");
    for (char *p = name; !ns_utf8_valid(name, strlen(name)) && *p; p++) /* a file may be called anything */
        *p = (uint8_t)*p < 0x80 ? *p : '?';
    snprintf(lock_path, sizeof lock_path, "%.*s.lock", NS_PATH_SIZE - 8, queue->path);
    struct ns_import im = {
        .q = queue, .report = report, .name = name, .priority = options->priority, .now_ms = ns_clock_wall_ms()};
    if (options->dry_run) {
        enum ns_code rc = ns_queue_scratch(queue->budget, &im.q, err);
        if (rc != NS_OK)
            return rc;
    }
    enum ns_code rc = submit_spooled(&im, path, options, queue->path, options->dry_run ? NULL : lock_path, err);
    if (options->dry_run) {
        ns_queue_close(im.q);
        report->batch_id[0] = '\0';
    }
    return rc == NS_OK ? NS_OK : ns_error_wrap(err, rc, "%s", path);
}

void ns_submit_report_fini(struct ns_submit_report *report)
{
    if (!report->budget)
        return;
    ns_budget_give(report->budget, report->error);
    *report = (struct ns_submit_report){0};
}
