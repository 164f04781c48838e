/* import.c - the lines of a file become requests: constant memory, a bad line becomes a failed request.
 * Lines are parsed before the write transaction that stores them, so that the lock is held for the inserts only. */
#include "queue/import_impl.h"

#include <stdio.h>
#include <string.h>

#define CHUNK_LINES 5000
#define CHUNK_BYTES ((size_t)8 << 20)

struct row {
    int64_t line_no;
    size_t text_at, text_n; /* in chunk.text; 0 bytes for a refused line */
    size_t id_at, id_n;     /* custom_id, n 0: unknown */
    enum ns_kind kind;
    bool refused;
    int64_t cost, max_new, group_key;
    char sha256[NS_SHA256_HEX];
    struct ns_refusal *refusal; /* owned; NULL unless refused */
};

struct chunk {
    struct ns_text text;
    struct row *row;
    size_t n;
};

enum ns_code ns_import_note_error(struct ns_import *im, int64_t line, const struct ns_refusal *refusal,
                                  struct ns_error *err)
{
    struct ns_submit_report *r = im->report;
    if (r->n_errors == NS_SUBMIT_ERRORS_MAX)
        return NS_OK;
    if (!r->error)
        r->error = ns_budget_take(r->budget, NS_SUBMIT_ERRORS_MAX * sizeof *r->error, err);
    if (!r->error)
        return NS_BUDGET;
    r->error[r->n_errors++] = (struct ns_submit_error){.line = line, .refusal = *refusal};
    return NS_OK;
}

/* ---- one line ---------------------------------------------------------------------------------------------------------- */

static void check_model(struct ns_import *im, const struct ns_request *request, struct ns_refusal *refusal,
                        bool *refused)
{
    struct ns_slice m = request->model;
    if (m.n == 0)
        return;
    if (!im->has_model) {
        ns_text_add(&im->model, m.s, m.n);
        im->has_model = true;
    } else if (im->model.n != m.n || memcmp(im->model.data, m.s, m.n) != 0) {
        *refused = true;
        ns_refusal_set(refusal, 400, "model_mismatch", "model",
                       "model \"%.*s\" differs from \"%.200s\" of an earlier line", (int)(m.n < 200 ? m.n : 200), m.s,
                       im->model.data);
    }
}

/* Requests that begin alike get the same key; claims prefer to take those together. */
static int64_t group_of(const struct ns_request *r)
{
    if (r->kind == NS_KIND_CHAT) {
        const char *s = "";
        size_t n = 0;
        if (!ns_json_string(ns_json_find(ns_json_item(r->messages, 0), "content"), &s, &n))
            n = 0;
        return ns_crc32c(1, s, n < 96 ? n : 96);
    }
    if (r->prompt.is_ids)
        return ns_crc32c(2, r->prompt.id, (r->prompt.n_ids < 24 ? r->prompt.n_ids : 24) * sizeof *r->prompt.id);
    return ns_crc32c(3, r->prompt.text.s, r->prompt.text.n < 96 ? r->prompt.text.n : 96);
}

static enum ns_code parse_line(struct ns_import *im, const char *line, size_t n, bool cut, struct row *row,
                               struct chunk *c, struct ns_error *err)
{
    struct ns_request request = {0};
    struct ns_refusal refusal = {0};
    enum ns_code rc = NS_INPUT;
    if (cut)
        ns_refusal_set(&refusal, 400, "line_too_long", NULL, "the line is longer than %zu bytes", NS_JOB_LINE_MAX);
    else
        rc = ns_request_parse(line, n, im->q->budget, &request, &refusal, err);
    if (rc != NS_OK && rc != NS_INPUT) {
        ns_request_fini(&request);
        return rc;
    }
    row->refused = rc != NS_OK;
    if (!row->refused)
        check_model(im, &request, &refusal, &row->refused);
    row->kind = request.kind;
    row->id_at = c->text.n;
    row->id_n = request.custom_id.n;
    ns_text_add(&c->text, request.custom_id.s, request.custom_id.n);
    row->text_at = c->text.n;
    rc = NS_OK;
    if (row->refused) {
        row->refusal = ns_budget_take(im->q->budget, sizeof *row->refusal, err);
        if (row->refusal)
            *row->refusal = refusal;
        else
            rc = NS_BUDGET;
    } else {
        size_t factor = request.n_choices > 0 ? request.n_choices : 1;
        row->max_new = request.kind == NS_KIND_CHOICE ? 0 : request.max_tokens;
        row->cost = (int64_t)(n / 4 * factor) + row->max_new + 1;
        row->group_key = group_of(&request);
        row->text_n = n;
        ns_text_add(&c->text, line, n);
    }
    uint8_t sum[NS_SHA256_BYTES];
    ns_sha256_of(line, n, sum);
    ns_hex(sum, sizeof sum, row->sha256);
    ns_request_fini(&request);
    if (rc == NS_OK && !(ns_text_ok(&c->text) && ns_text_ok(&im->model)))
        rc = ns_error_set(err, NS_BUDGET, "no memory for a line of %zu bytes", n);
    return rc;
}

/* ---- storing -------------------------------------------------------------------------------------------------------------- */

static enum ns_code store_refused(struct ns_import *im, const struct row *row, const char *custom_id,
                                  size_t custom_id_n, const struct ns_refusal *refusal, struct ns_error *err)
{
    struct ns_result result;
    struct ns_refusal where = *refusal;
    where.line = row->line_no;
    enum ns_code rc = ns_result_fail(NULL, NULL, &where, NULL, NULL, im->q->budget, &result, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_sql_run(
        im->q, err,
        "INSERT INTO requests(batch_id, line_no, custom_id, refused, body_sha256, state, priority, enqueued_at,"
        " finished_at) VALUES (?, ?, ?, 1, ?, 'failed', ?, ?, ?)",
        "iistiii", im->batch_id, row->line_no, custom_id_n > 0 ? custom_id : NULL, custom_id_n, row->sha256,
        (int64_t)im->priority, im->now_ms, im->now_ms);
    if (rc == NS_OK)
        rc = ns_result_insert(im->q, sqlite3_last_insert_rowid(im->q->db), 0, &result, im->now_ms, err);
    ns_result_fini(&result);
    if (rc == NS_OK)
        rc = ns_import_note_error(im, row->line_no, refusal, err);
    im->report->bad++;
    return rc;
}

static enum ns_code store_row(struct ns_import *im, const struct chunk *c, const struct row *row, struct ns_error *err)
{
    const char *id = c->text.data ? c->text.data + row->id_at : "";
    im->report->lines++;
    if (row->refused)
        return store_refused(im, row, id, row->id_n, row->refusal, err);
    enum ns_code rc = ns_sql_run(im->q, err,
                                 "INSERT INTO requests(batch_id, line_no, custom_id, kind, body, body_sha256, max_new, "
                                 "group_key, cost, priority,"
                                 " enqueued_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                                 " ON CONFLICT (batch_id, custom_id) WHERE refused = 0 DO NOTHING",
                                 "iiststiiiii", im->batch_id, row->line_no, id, row->id_n, ns_kind_name(row->kind),
                                 c->text.data + row->text_at, row->text_n, row->sha256, row->max_new, row->group_key,
                                 row->cost, (int64_t)im->priority, im->now_ms);
    if (rc != NS_OK)
        return rc;
    if (ns_sql_changes(im->q) == 1) {
        im->report->good++;
        return NS_OK;
    }
    int64_t first = 0;
    rc = ns_sql_value(im->q, &first, NULL, err,
                      "SELECT line_no FROM requests WHERE batch_id = ? AND custom_id = ? AND refused = 0", "is",
                      im->batch_id, id, row->id_n);
    if (rc != NS_OK)
        return rc;
    struct ns_refusal refusal;
    ns_refusal_set(&refusal, 400, "duplicate_custom_id", "custom_id",
                   "line %" PRId64 " has the custom_id \"%.*s\" of line %" PRId64, row->line_no,
                   (int)(row->id_n < 200 ? row->id_n : 200), id, first);
    return store_refused(im, row, id, row->id_n, &refusal, err);
}

static enum ns_code store_chunk(struct ns_import *im, struct chunk *c, struct ns_error *err)
{
    if (c->n == 0)
        return NS_OK;
    struct ns_submit_report before = *im->report;
    enum ns_code rc = ns_write_begin(im->q, err);
    if (rc == NS_OK) {
        for (size_t i = 0; rc == NS_OK && i < c->n; i++)
            rc = store_row(im, c, &c->row[i], err);
        rc = ns_write_end(im->q, rc, err);
    }
    if (rc != NS_OK) {
        before.error = im->report->error;
        *im->report = before; /* what was rolled back is not reported */
    } else {
        ns_crash_point("submit.chunk");
    }
    for (size_t i = 0; i < c->n; i++)
        ns_budget_give(im->q->budget, c->row[i].refusal);
    c->n = 0;
    ns_text_clear(&c->text);
    return rc;
}

/* ---- the file ------------------------------------------------------------------------------------------------------------- */

/* A line that an interrupted submit stored already: only its model name matters still. */
static enum ns_code pass_by(struct ns_import *im, const char *line, size_t n, struct ns_error *err)
{
    if (im->has_model)
        return NS_OK;
    struct ns_request request;
    struct ns_refusal refusal;
    bool refused = false;
    enum ns_code rc = ns_request_parse(line, n, im->q->budget, &request, &refusal, err);
    if (rc == NS_OK)
        check_model(im, &request, &refusal, &refused);
    ns_request_fini(&request);
    return rc == NS_INPUT ? NS_OK : rc;
}

static enum ns_code read_lines(struct ns_import *im, struct ns_line_reader *lines, struct chunk *c,
                               struct ns_error *err)
{
    for (int64_t line_no = 1;; line_no++) {
        const char *line;
        size_t n;
        bool cut;
        enum ns_code rc = ns_lines_next(lines, &line, &n, &cut, err);
        if (rc != NS_OK || !line)
            return rc == NS_OK ? store_chunk(im, c, err) : rc;
        if (line_no == 1 && n >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
            line += 3; /* a byte order mark */
            n -= 3;
        }
        while (n > 0 && line[n - 1] == '\r')
            n--;
        if (ns_line_is_blank(line, n) && !cut)
            continue;
        if (line_no <= im->last_line) {
            rc = pass_by(im, line, n, err);
        } else {
            struct row *row = &c->row[c->n++];
            *row = (struct row){.line_no = line_no};
            rc = parse_line(im, line, n, cut, row, c, err);
        }
        if (rc == NS_OK && (c->n == CHUNK_LINES || c->text.n >= CHUNK_BYTES))
            rc = store_chunk(im, c, err);
        if (rc != NS_OK)
            return rc;
    }
}

enum ns_code ns_import_lines(struct ns_import *im, const char *path, struct ns_error *err)
{
    struct ns_line_reader *lines = NULL;
    enum ns_code rc = ns_lines_open(path, NS_JOB_LINE_MAX, im->q->budget, &lines, err);
    if (rc != NS_OK)
        return rc;
    struct chunk c = {.row = ns_budget_take(im->q->budget, CHUNK_LINES * sizeof(struct row), err)};
    ns_text_init(&c.text, im->q->budget);
    ns_text_init(&im->model, im->q->budget);
    rc = c.row ? read_lines(im, lines, &c, err) : NS_BUDGET;
    for (size_t i = 0; i < c.n; i++)
        ns_budget_give(im->q->budget, c.row[i].refusal);
    ns_budget_give(im->q->budget, c.row);
    ns_text_fini(&c.text);
    ns_text_fini(&im->model);
    ns_lines_close(lines);
    return rc;
}

enum ns_code ns_import_reread_errors(struct ns_import *im, struct ns_error *err)
{
    if (!im->report->continued)
        return NS_OK;
    im->report->n_errors = 0;
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc =
        ns_sql_rows(im->q, &stmt, err,
                    "SELECT r.line_no, x.response ->> '$.error.code', x.response ->> '$.error.param',"
                    " x.response ->> '$.error.message' FROM requests r JOIN results x ON x.request_id = r.id"
                    " WHERE r.batch_id = ? AND r.refused = 1 ORDER BY r.line_no LIMIT 100",
                    "i", im->batch_id);
    while (ns_sql_more(im->q, stmt, &rc, err)) {
        struct ns_refusal refusal;
        const char *code = ns_sql_text(stmt, 1), *message = ns_sql_text(stmt, 3);
        ns_refusal_set(&refusal, 400, code ? code : "", ns_sql_text(stmt, 2), "%s", message ? message : "");
        rc = ns_import_note_error(im, sqlite3_column_int64(stmt, 0), &refusal, err);
    }
    return rc;
}
