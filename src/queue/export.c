/* export.c - results on their way out: streamed, paged, checked, and never over the input.
 * Each page is a short read transaction, so that an export of a million lines does not pin the write-ahead log. Every
 * line is read back by the JSON reader before it is written: a damaged row is skipped and counted, not passed on. */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

#define PAGE_ROWS 10000

struct sink {         /* opened at its first line: a file without lines is not made */
    const char *path; /* NULL: lines are only counted */
    struct ns_out_file *file;
};

struct exporting {
    struct ns_queue *q;
    int64_t batch_id;
    const struct ns_export_options *o;
    struct ns_export_report *report;
    struct sink output, errors;
    struct ns_text line;
    int64_t last_key, last_id;
};

/* ---- refusals ----------------------------------------------------------------------------------------------------------- */

static enum ns_code refuse_same(const char *output, const char *other, const char *what, struct ns_error *err)
{
    if (!output || !other || strcmp(output, "-") == 0 || strcmp(other, "-") == 0)
        return NS_OK;
    if (strcmp(output, other) != 0 && !ns_path_same(output, other))
        return NS_OK;
    return ns_error_set(err, NS_CANTCREAT, "%s is %s (%s): nothing was written", output, what, other);
}

/* Files that other batches of this queue were read from are somebody's input too. */
static enum ns_code refuse_inputs(struct exporting *e, const char *target, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    if (!target || !ns_path_exists(target))
        return NS_OK;
    enum ns_code rc =
        ns_sql_rows(e->q, &stmt, err, "SELECT DISTINCT input_name FROM batches WHERE id <> ?", "i", e->batch_id);
    while (ns_sql_more(e->q, stmt, &rc, err)) {
        const char *input = ns_sql_text(stmt, 0);
        if (input && ns_path_same(target, input))
            rc = refuse_same(target, input, "the input of another batch", err);
    }
    return rc;
}

static enum ns_code check_targets(struct exporting *e, const char *input, struct ns_error *err)
{
    const struct ns_export_options *o = e->o;
    const char *const targets[] = {o->output, o->errors};
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < NS_COUNT(targets); i++) {
        rc = refuse_same(targets[i], input, "the input of this batch", err);
        if (rc == NS_OK)
            rc = refuse_inputs(e, targets[i], err);
        if (rc == NS_OK)
            rc = refuse_same(targets[i], e->q->path, "the queue itself", err);
    }
    if (rc == NS_OK && o->output && o->errors &&
        (strcmp(o->output, o->errors) == 0 || ns_path_same(o->output, o->errors)))
        rc =
            ns_error_set(err, NS_USAGE, "results and errors cannot both go to %s; --merged writes one file", o->output);
    return rc;
}

static enum ns_code check_batch(struct exporting *e, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    int64_t waiting = 0, running = 0;
    enum ns_code rc =
        ns_sql_value(e->q, &waiting, NULL, err, "SELECT COUNT(*) FROM requests WHERE batch_id = ? AND state = 'queued'",
                     "i", e->batch_id);
    if (rc == NS_OK)
        rc = ns_sql_value(e->q, &running, NULL, err,
                          "SELECT COUNT(*) FROM requests WHERE batch_id = ? AND state = 'running'", "i", e->batch_id);
    if (rc == NS_OK)
        rc = ns_sql_rows(e->q, &stmt, err, "SELECT public_id, input_name, status FROM batches WHERE id = ?", "i",
                         e->batch_id);
    if (rc == NS_OK)
        rc = ns_sql_next(e->q, stmt, &row, err);
    if (rc != NS_OK || !row)
        return rc == NS_OK ? ns_error_set(err, NS_NOINPUT, "there is no batch %" PRId64, e->batch_id) : rc;
    const char *status = ns_sql_text(stmt, 2);
    if (status && strcmp(status, "validating") == 0)
        rc = ns_error_set(err, NS_BUSY, "%s is still being submitted", ns_sql_text(stmt, 0));
    else if (status && strcmp(status, "failed") == 0)
        rc = ns_error_set(err, NS_INPUT, "%s was refused when it was submitted and has no results; show tells why",
                          ns_sql_text(stmt, 0));
    else if (waiting + running > 0 && !e->o->partial) {
        e->report->missing = waiting + running;
        rc = ns_error_set(err, NS_BUSY,
                          "%s is not finished: %" PRId64 " of its requests %s waiting and %" PRId64 " running",
                          ns_sql_text(stmt, 0), waiting, waiting == 1 ? "is" : "are", running);
    } else
        rc = check_targets(e, ns_sql_text(stmt, 1), err);
    ns_sql_end(stmt);
    return rc;
}

/* ---- lines ---------------------------------------------------------------------------------------------------------------- */

static enum ns_code write_line(struct sink *s, const struct ns_text *line, struct ns_error *err)
{
    enum ns_code rc = s->file ? NS_OK : ns_out_open(s->path, &s->file, err);
    return rc == NS_OK ? ns_out_write(s->file, line->data, line->n, err) : rc;
}

static bool reads_back(const struct ns_text *line)
{
    struct ns_json *doc = NULL;
    if (!ns_utf8_valid(line->data, line->n) || ns_json_parse(line->data, line->n, &doc, NULL) != NS_OK)
        return false;
    ns_json_free(doc);
    return true;
}

/* Columns: key, id, custom_id, state, status_code, response, error, local. */
static enum ns_code export_row(struct exporting *e, sqlite3_stmt *s, struct ns_error *err)
{
    const char *state = ns_sql_text(s, 3), *response = ns_sql_text(s, 5), *error = ns_sql_text(s, 6);
    const char *custom_id = ns_sql_text(s, 2), *stored = response ? response : error, *local = ns_sql_text(s, 7);
    enum ns_code rc = ns_sql_fetched(e->q, err);
    if (rc != NS_OK)
        return rc;
    e->last_key = sqlite3_column_int64(s, 0);
    e->last_id = sqlite3_column_int64(s, 1);
    if (!response && !error) {
        e->report->missing++;
        return NS_OK;
    }
    bool is_done = state && strcmp(state, "done") == 0;
    ns_text_clear(&e->line);
    bool sound = ns_utf8_valid(stored, strlen(stored)) && (!custom_id || ns_utf8_valid(custom_id, strlen(custom_id)));
    if (sound)
        ns_output_line(&e->line, e->last_id, custom_id, (int)sqlite3_column_int64(s, 4), response, error, local);
    if (!ns_text_ok(&e->line))
        return ns_error_set(err, NS_BUDGET, "no memory for the result of request %" PRId64, e->last_id);
    if (!sound || !reads_back(&e->line)) {
        e->report->damaged++;
        ns_log(NS_LOG_WARN, "request %" PRId64 ": the stored result is damaged and was left out", e->last_id);
        return NS_OK;
    }
    ns_text_add(&e->line, "\n", 1);
    if (!ns_text_ok(&e->line))
        return ns_error_set(err, NS_BUDGET, "no memory for the result of request %" PRId64, e->last_id);
    if (!is_done)
        e->report->failures++;
    struct sink *to = is_done || e->o->merged ? &e->output : &e->errors;
    if (!to->path)
        return NS_OK;
    if (to == &e->output)
        e->report->written++;
    return write_line(to, &e->line, err);
}

#define EXPORT_COLUMNS "r.id, r.custom_id, r.state, x.status_code, x.response, x.error, x.local FROM requests r "

static enum ns_code export_page(struct exporting *e, bool *more, struct ns_error *err)
{
    static const char by_input[] = "SELECT r.line_no, " EXPORT_COLUMNS
                                   "LEFT JOIN results x ON x.request_id = r.id WHERE r.batch_id = ?1 AND r.line_no > ?2"
                                   " AND ?3 >= 0 ORDER BY r.line_no LIMIT 10000";
    static const char by_finish[] = "SELECT IFNULL(r.finished_at, 9223372036854775807), " EXPORT_COLUMNS
                                    "LEFT JOIN results x ON x.request_id = r.id WHERE r.batch_id = ?1 AND"
                                    " (IFNULL(r.finished_at, 9223372036854775807), r.id) > (?2, ?3)"
                                    " ORDER BY 1, r.id LIMIT 10000";
    sqlite3_stmt *stmt = NULL;
    size_t n = 0;
    enum ns_code rc = ns_sql_rows(e->q, &stmt, err, e->o->by_finish ? by_finish : by_input, "iii", e->batch_id,
                                  e->last_key, e->last_id);
    while (ns_sql_more(e->q, stmt, &rc, err)) {
        n++;
        rc = export_row(e, stmt, err);
    }
    *more = n == PAGE_ROWS;
    return rc;
}

/* A file that has no lines is not made. */
static enum ns_code finish_sink(struct sink *s, bool *is_empty, struct ns_error *err)
{
    enum ns_code rc = s->file ? ns_out_commit(s->file, err) : NS_OK;
    *is_empty = s->path && !s->file;
    s->file = NULL;
    return rc;
}

/* Failures of an earlier export would be taken for those of this one. Results are not destroyed for nothing. */
static enum ns_code remove_old_errors(const char *path, bool *removed, struct ns_error *err)
{
    char real[NS_PATH_SIZE];
    if (strcmp(path, "-") == 0 || !ns_path_exists(path) || ns_path_is_stream(path))
        return NS_OK;
    enum ns_code rc = ns_path_real(path, real, err); /* of a link, what it points to */
    if (rc == NS_OK)
        rc = ns_file_unlink(real, err);
    *removed = rc == NS_OK;
    return rc;
}

enum ns_code ns_queue_export(struct ns_queue *queue, int64_t batch_id, const struct ns_export_options *options,
                             struct ns_export_report *report, struct ns_error *err)
{
    *report = (struct ns_export_report){0};
    struct exporting e = {.q = queue,
                          .batch_id = batch_id,
                          .o = options,
                          .report = report,
                          .output = {.path = options->output},
                          .errors = {.path = options->errors}};
    bool no_errors = false;
    enum ns_code rc = check_batch(&e, err);
    if (rc != NS_OK)
        return rc;
    ns_text_init(&e.line, queue->budget);
    for (bool more = true; rc == NS_OK && more;)
        rc = export_page(&e, &more, err);
    ns_text_fini(&e.line);
    if (rc == NS_OK)
        rc = finish_sink(&e.errors, &no_errors, err);
    if (rc == NS_OK)
        rc = finish_sink(&e.output, &report->output_untouched, err);
    if (rc == NS_OK && no_errors)
        rc = remove_old_errors(options->errors, &report->errors_removed, err);
    if (e.output.file)
        ns_out_abort(e.output.file);
    if (e.errors.file)
        ns_out_abort(e.errors.file);
    return rc;
}

/* ---- one result ------------------------------------------------------------------------------------------------------------- */

enum ns_code ns_queue_get(struct ns_queue *queue, int64_t batch_id, const char *custom_id, bool json,
                          struct ns_text *out, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    enum ns_code rc = ns_sql_rows(queue, &stmt, err,
                                  "SELECT r.id, r.state, x.status_code, x.response, x.error, x.local FROM requests r"
                                  " LEFT JOIN results x ON x.request_id = r.id WHERE r.batch_id = ? AND r.custom_id = ?"
                                  " ORDER BY r.refused, r.id LIMIT 1",
                                  "it", batch_id, custom_id);
    if (rc == NS_OK)
        rc = ns_sql_next(queue, stmt, &row, err);
    if (rc != NS_OK)
        return rc;
    if (!row)
        return ns_error_set(err, NS_NOINPUT, "there is no request \"%.200s\" in this batch", custom_id);
    const char *state = ns_sql_text(stmt, 1), *response = ns_sql_text(stmt, 3), *error = ns_sql_text(stmt, 4);
    const char *local = ns_sql_text(stmt, 5);
    rc = ns_sql_fetched(queue, err);
    if (rc != NS_OK) {
        ns_sql_end(stmt);
        return rc;
    }
    if (!response && !error)
        rc = ns_error_set(err, NS_BUSY, "request \"%.200s\" is still %s", custom_id, state);
    else if (json)
        ns_output_line(out, sqlite3_column_int64(stmt, 0), custom_id, (int)sqlite3_column_int64(stmt, 2), response,
                       error, local);
    else
        rc = ns_result_text(response, error, out, err);
    ns_sql_end(stmt);
    return rc == NS_OK && !ns_text_ok(out) ? ns_error_set(err, NS_BUDGET, "no memory for a result") : rc;
}

/* ---- reading an export ---------------------------------------------------------------------------------------------------------- */

static void count_line(const struct ns_json *doc, struct ns_export_summary *s)
{
    const struct ns_json *response = ns_json_find(doc, "response"), *body = ns_json_find(response, "body");
    int64_t status = 0, tokens = 0;
    bool correct = false;
    if (!ns_json_string(ns_json_find(doc, "custom_id"), &(const char *){NULL}, &(size_t){0}) ||
        (ns_json_is_null(response) && ns_json_is_null(ns_json_find(doc, "error")))) {
        s->damaged++;
        return;
    }
    if (ns_json_type(body) == NS_JSON_OBJECT && ns_json_int(ns_json_find(response, "status_code"), &status) &&
        status == 200)
        s->succeeded++;
    else
        s->failed++;
    if (ns_json_bool(ns_json_find(ns_json_find(body, "x_local"), "correct"), &correct) ||
        ns_json_bool(ns_json_find(body, "correct"), &correct)) {
        s->judged++;
        s->correct += correct;
    }
    const struct ns_json *usage = ns_json_find(body, "usage");
    if (ns_json_int(ns_json_find(usage, "prompt_tokens"), &tokens))
        s->prompt_tokens += tokens;
    if (ns_json_int(ns_json_find(usage, "completion_tokens"), &tokens))
        s->completion_tokens += tokens;
}

enum ns_code ns_export_read_summary(const char *path, struct ns_budget *budget, struct ns_export_summary *out,
                                    struct ns_error *err)
{
    struct ns_line_reader *lines = NULL;
    *out = (struct ns_export_summary){0};
    enum ns_code rc = ns_lines_open(path, NS_JOB_LINE_MAX, budget, &lines, err);
    if (rc != NS_OK)
        return rc;
    for (;;) {
        const char *line;
        size_t n;
        bool cut;
        rc = ns_lines_next(lines, &line, &n, &cut, err);
        if (rc != NS_OK || !line)
            break;
        struct ns_json *doc = NULL;
        out->lines++;
        if (cut || ns_json_parse(line, n, &doc, NULL) != NS_OK) {
            out->damaged++;
            continue;
        }
        count_line(doc, out);
        ns_json_free(doc);
    }
    ns_lines_close(lines);
    return rc;
}
