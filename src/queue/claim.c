/* claim.c - requests become a runner's: claimed, loaded with everything committed so far, admitted, given back. */
#include "queue/queue_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static_assert(sizeof(float) == 4, "log-probabilities are stored as 32-bit floats");

/* ---- loading ------------------------------------------------------------------------------------------------------------- */

static char *copy_text(struct ns_budget *budget, const char *s, size_t n, struct ns_error *err)
{
    char *copy = ns_budget_take(budget, n + 1, err);
    if (copy && n > 0)
        memcpy(copy, s, n);
    return copy;
}

/* n 32-bit values from little-endian bytes; the column must hold exactly that. NULL column: *out NULL. */
static enum ns_code load_u32(struct ns_queue *q, sqlite3_stmt *stmt, int column, size_t n, uint32_t **out,
                             struct ns_error *err)
{
    const uint8_t *bytes = sqlite3_column_blob(stmt, column);
    size_t have = (size_t)sqlite3_column_bytes(stmt, column);
    *out = NULL;
    if (!bytes && n > 0)
        return ns_sql_fetched(q, err); /* a null column, or no memory */
    if (have != n * 4)
        return ns_error_set(err, NS_CORRUPT, "%s: a list of numbers has %zu bytes instead of %zu", q->path, have,
                            n * 4);
    *out = ns_budget_take(q->budget, n * 4, err);
    if (!*out)
        return NS_BUDGET;
    for (size_t i = 0; i < n; i++)
        (*out)[i] = ns_le32(bytes + 4 * i);
    return NS_OK;
}

static void split_top(const uint8_t *bytes, size_t n, size_t k, uint32_t *id, float *value)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++) {
            uint32_t bits = ns_le32(bytes + 4 * (i * 2 * k + k + j));
            id[i * k + j] = ns_le32(bytes + 4 * (i * 2 * k + j));
            memcpy(&value[i * k + j], &bits, 4);
        }
}

/* n rows of k ids and k values. */
static enum ns_code load_top(struct ns_queue *q, sqlite3_stmt *stmt, int column, size_t n, size_t k, uint32_t **id,
                             float **value, struct ns_error *err)
{
    const uint8_t *bytes = sqlite3_column_blob(stmt, column);
    size_t have = (size_t)sqlite3_column_bytes(stmt, column);
    if (!bytes || k == 0)
        return ns_sql_fetched(q, err);
    if (have != n * k * 8)
        return ns_error_set(err, NS_CORRUPT, "%s: alternatives have %zu bytes instead of %zu", q->path, have,
                            n * k * 8);
    *id = ns_budget_take(q->budget, n * k * 4, err);
    *value = ns_budget_take(q->budget, n * k * 4, err);
    if (!*id || !*value)
        return NS_BUDGET;
    split_top(bytes, n, k, *id, *value);
    return NS_OK;
}

static enum ns_code take_outputs(struct ns_queue *q, struct ns_claim_seq *s, struct ns_error *err)
{
    size_t n = s->n_out;
    if (n == 0)
        return NS_OK;
    s->token = ns_budget_take(q->budget, n * 4, err);
    s->logprob = ns_budget_take(q->budget, n * 4, err);
    if (s->n_top > 0) {
        s->top_id = ns_budget_take(q->budget, n * s->n_top * 4, err);
        s->top_logprob = ns_budget_take(q->budget, n * s->n_top * 4, err);
    }
    return s->token && s->logprob && (s->n_top == 0 || (s->top_id && s->top_logprob)) ? NS_OK : NS_BUDGET;
}

static enum ns_code load_chunk(struct ns_queue *q, sqlite3_stmt *stmt, struct ns_claim_seq *s, uint32_t at,
                               struct ns_error *err)
{
    int64_t pos = sqlite3_column_int64(stmt, 0), n = sqlite3_column_int64(stmt, 1);
    const uint8_t *tokens = sqlite3_column_blob(stmt, 2), *lps = sqlite3_column_blob(stmt, 3);
    const uint8_t *top = sqlite3_column_blob(stmt, 4);
    enum ns_code fetched = ns_sql_fetched(q, err);
    if (fetched != NS_OK)
        return fetched;
    if (!tokens || pos != at || n <= 0 || n > s->n_out - at || sqlite3_column_bytes(stmt, 2) != 4 * n ||
        (lps && sqlite3_column_bytes(stmt, 3) != 4 * n) ||
        (top && s->n_top > 0 && sqlite3_column_bytes(stmt, 4) != 8 * n * s->n_top))
        return ns_error_set(err, NS_CORRUPT, "%s: sequence %" PRId64 ": tokens at %" PRId64 " do not follow %" PRIu32,
                            q->path, s->seq_id, pos, at);
    for (int64_t i = 0; i < n; i++) {
        s->token[at + i] = ns_le32(tokens + 4 * i);
        uint32_t bits = lps ? ns_le32(lps + 4 * i) : 0;
        memcpy(&s->logprob[at + i], &bits, 4);
    }
    if (top && s->n_top > 0)
        split_top(top, (size_t)n, s->n_top, s->top_id + (size_t)at * s->n_top, s->top_logprob + (size_t)at * s->n_top);
    return NS_OK;
}

static enum ns_code load_outputs(struct ns_queue *q, struct ns_claim_seq *s, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = take_outputs(q, s, err);
    if (rc == NS_OK)
        rc = ns_sql_rows(q, &stmt, err,
                         "SELECT pos, n, tokens, logprobs, top_logprobs FROM seq_chunks WHERE seq_id = ? ORDER BY pos",
                         "i", s->seq_id);
    uint32_t at = 0;
    bool has_lps = false, has_top = false;
    while (ns_sql_more(q, stmt, &rc, err)) {
        has_lps = has_lps || sqlite3_column_type(stmt, 3) != SQLITE_NULL;
        has_top = has_top || sqlite3_column_type(stmt, 4) != SQLITE_NULL;
        rc = load_chunk(q, stmt, s, at, err);
        at += (uint32_t)sqlite3_column_int64(stmt, 1);
    }
    if (rc == NS_OK && at != s->n_out)
        rc = ns_error_set(err, NS_CORRUPT, "%s: sequence %" PRId64 " has %" PRIu32 " tokens instead of %" PRIu32,
                          q->path, s->seq_id, at, s->n_out);
    if (rc == NS_OK && !has_lps) {
        ns_budget_give(q->budget, s->logprob);
        s->logprob = NULL;
    }
    if (rc == NS_OK && !has_top) {
        ns_budget_give(q->budget, s->top_id);
        ns_budget_give(q->budget, s->top_logprob);
        s->top_id = NULL;
        s->top_logprob = NULL;
    }
    return rc;
}

static enum ns_code load_sequence(struct ns_queue *q, sqlite3_stmt *stmt, uint32_t max_new, struct ns_claim_seq *s,
                                  struct ns_error *err)
{
    s->seq_id = sqlite3_column_int64(stmt, 0);
    s->prompt.is_score = sqlite3_column_int64(stmt, 1) != 0;
    s->prompt.score_from = (uint32_t)sqlite3_column_int64(stmt, 2);
    s->prompt.n = (uint32_t)sqlite3_column_int64(stmt, 4);
    s->prompt.max_new = s->prompt.is_score ? 0 : max_new;
    s->n_out = (uint32_t)sqlite3_column_int64(stmt, 5);
    s->n_top = (uint32_t)sqlite3_column_int64(stmt, 6);
    s->has_score = sqlite3_column_type(stmt, 7) != SQLITE_NULL;
    s->score = sqlite3_column_double(stmt, 7);
    s->is_greedy = sqlite3_column_int64(stmt, 8) != 0;
    const char *finish = ns_sql_text(stmt, 11);
    enum ns_code fetched = ns_sql_fetched(q, err);
    if (fetched != NS_OK)
        return fetched;
    s->finished = finish != NULL;
    s->finish = !finish ? NS_FINISH_NONE : strcmp(finish, "stop") == 0 ? NS_FINISH_STOP : NS_FINISH_LENGTH;
    if (s->n_top > NS_LOGPROBS_MAX || s->n_out > INT32_MAX)
        return ns_error_set(err, NS_CORRUPT, "%s: sequence %" PRId64 " has impossible counts", q->path, s->seq_id);
    enum ns_code rc = load_u32(q, stmt, 3, s->prompt.n, &s->prompt.id, err);
    uint32_t *bits = NULL;
    if (rc == NS_OK)
        rc = load_u32(q, stmt, 9, s->prompt.n, &bits, err);
    s->prompt_logprob = (float *)(void *)bits;
    if (rc == NS_OK)
        rc = load_top(q, stmt, 10, s->prompt.n, s->n_top, &s->prompt_top_id, &s->prompt_top_logprob, err);
    return rc;
}

static enum ns_code load_sequences(struct ns_queue *q, struct ns_claim *c, struct ns_error *err)
{
    int64_t count = 0, max_new = 0;
    enum ns_code rc =
        ns_sql_value(q, &count, NULL, err, "SELECT COUNT(*) FROM sequences WHERE request_id = ?", "i", c->request_id);
    if (rc != NS_OK || count == 0)
        return rc;
    rc = ns_sql_value(q, &max_new, NULL, err, "SELECT max_new FROM requests WHERE id = ?", "i", c->request_id);
    if (rc == NS_OK)
        c->seq = ns_budget_take(q->budget, (size_t)count * sizeof *c->seq, err);
    if (rc == NS_OK && !c->seq)
        rc = NS_BUDGET;
    sqlite3_stmt *stmt = NULL;
    if (rc == NS_OK)
        rc = ns_sql_rows(q, &stmt, err,
                         "SELECT id, mode = 'score', IFNULL(score_from, 0), prompt_tokens, n_prompt, n_out,"
                         " IFNULL(sampler ->> '$.n_top', 0), score, is_greedy, prompt_logprobs, prompt_top_logprobs,"
                         " finish_reason FROM sequences WHERE request_id = ? ORDER BY choice",
                         "i", c->request_id);
    while (ns_sql_more(q, stmt, &rc, err)) {
        if (c->n_seqs == (size_t)count)
            rc =
                ns_error_set(err, NS_CORRUPT, "%s: request %" PRId64 " has more than the %" PRId64 " sequences counted",
                             q->path, c->request_id, count);
        else
            rc = load_sequence(q, stmt, (uint32_t)max_new, &c->seq[c->n_seqs++], err);
    }
    for (size_t i = 0; rc == NS_OK && i < c->n_seqs; i++)
        rc = load_outputs(q, &c->seq[i], err);
    return rc;
}

static enum ns_code load_claim(struct ns_queue *q, int64_t id, int64_t now, struct ns_claim **out, struct ns_error *err)
{
    struct ns_claim *c = ns_budget_take(q->budget, sizeof *c, err);
    if (!c)
        return NS_BUDGET;
    *out = c; /* the caller closes it whatever happens */
    c->budget = q->budget;
    c->request_id = id;
    c->claimed_at_ms = now;
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    enum ns_code rc = ns_sql_rows(q, &stmt, err,
                                  "SELECT r.batch_id, r.line_no, r.priority, r.tries, r.suspect, r.enqueued_at,"
                                  " r.custom_id, r.body, b.created_at, (SELECT a.id FROM attempts a WHERE"
                                  " a.request_id = r.id AND a.ended_at IS NULL)"
                                  " FROM requests r JOIN batches b ON b.id = r.batch_id WHERE r.id = ?",
                                  "i", id);
    if (rc == NS_OK)
        rc = ns_sql_next(q, stmt, &row, err);
    if (rc != NS_OK || !row)
        return rc == NS_OK ? ns_error_set(err, NS_INTERNAL, "request %" PRId64 " vanished", id) : rc;
    c->batch_id = sqlite3_column_int64(stmt, 0);
    c->line_no = sqlite3_column_int64(stmt, 1);
    c->priority = (int)sqlite3_column_int64(stmt, 2);
    c->tries = (uint32_t)sqlite3_column_int64(stmt, 3);
    c->suspect = (uint32_t)sqlite3_column_int64(stmt, 4);
    c->enqueued_at_ms = sqlite3_column_int64(stmt, 5);
    const char *custom_id = ns_sql_text(stmt, 6), *body = ns_sql_text(stmt, 7);
    c->body_n = (size_t)sqlite3_column_bytes(stmt, 7);
    c->custom_id = copy_text(q->budget, custom_id, custom_id ? strlen(custom_id) : 0, err);
    c->body = copy_text(q->budget, body, body ? c->body_n : 0, err);
    c->created_at_ms = sqlite3_column_int64(stmt, 8);
    c->attempt_id = sqlite3_column_int64(stmt, 9);
    rc = ns_sql_fetched(q, err);
    ns_sql_end(stmt);
    if (rc != NS_OK)
        return rc;
    return c->custom_id && c->body ? load_sequences(q, c, err) : NS_BUDGET;
}

static void drop_sequences(struct ns_claim *claim)
{
    struct ns_budget *b = claim->budget;
    for (size_t i = 0; i < claim->n_seqs; i++) {
        struct ns_claim_seq *s = &claim->seq[i];
        ns_budget_give(b, s->prompt.id);
        ns_budget_give(b, s->token);
        ns_budget_give(b, s->logprob);
        ns_budget_give(b, s->top_id);
        ns_budget_give(b, s->top_logprob);
        ns_budget_give(b, s->prompt_logprob);
        ns_budget_give(b, s->prompt_top_id);
        ns_budget_give(b, s->prompt_top_logprob);
    }
    ns_budget_give(b, claim->seq);
    claim->seq = NULL;
    claim->n_seqs = 0;
}

void ns_claim_close(struct ns_claim *claim)
{
    if (!claim)
        return;
    struct ns_budget *b = claim->budget;
    drop_sequences(claim);
    ns_budget_give(b, (void *)(uintptr_t)claim->custom_id);
    ns_budget_give(b, (void *)(uintptr_t)claim->body);
    ns_budget_give(b, claim);
}

/* ---- claiming -------------------------------------------------------------------------------------------------------------- */

static enum ns_code own_request(struct ns_runner *r, int64_t id, int64_t now, struct ns_error *err)
{
    enum ns_code rc = ns_sql_run(r->q, err,
                                 "UPDATE requests SET state = 'running', runner_id = ?, tries = tries + 1,"
                                 " started_at = IFNULL(started_at, ?) WHERE id = ? AND state = 'queued'",
                                 "iii", r->id, now, id);
    if (rc == NS_OK && ns_sql_changes(r->q) != 1)
        return ns_error_set(err, NS_INTERNAL, "request %" PRId64 " was chosen but is not waiting", id);
    if (rc == NS_OK)
        rc = ns_sql_run(
            r->q, err,
            "INSERT INTO attempts(request_id, try_no, runner_id, began_at, resumed_from, resume_kind)"
            " SELECT r.id, r.tries, ?2, ?3, (SELECT IFNULL(SUM(n_out), 0) FROM sequences WHERE request_id = ?1),"
            " CASE WHEN EXISTS (SELECT 1 FROM sequences WHERE request_id = ?1 AND n_out > 0)"
            " THEN 'replay' ELSE 'fresh' END FROM requests r WHERE r.id = ?1",
            "iii", id, r->id, now);
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err,
                        "UPDATE batches SET model_id = ?1 WHERE model_id IS NULL AND"
                        " id = (SELECT batch_id FROM requests WHERE id = ?2)",
                        "ii", r->model_id, id);
    return rc;
}

static enum ns_code claim_ids(struct ns_runner *r, const struct ns_claim_limits *limits, int64_t now, int64_t *id,
                              size_t *n, bool *alone, struct ns_error *err)
{
    enum ns_code rc = ns_fenced_begin(r, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_settle(r->q, now, err);
    if (rc == NS_OK)
        rc = ns_pick(r, now, limits->requests, limits->body_bytes, id, n, alone, err);
    for (size_t i = 0; rc == NS_OK && i < *n; i++)
        rc = own_request(r, id[i], now, err);
    if (rc == NS_OK)
        ns_crash_point("claim.before");
    rc = ns_write_end(r->q, rc, err);
    if (rc == NS_OK)
        ns_crash_point("claim.after");
    return rc;
}

enum ns_code ns_runner_claim(struct ns_runner *runner, const struct ns_claim_limits *limits, struct ns_budget *budget,
                             struct ns_claim ***out, size_t *n, bool *alone, struct ns_error *err)
{
    (void)budget; /* claims are charged to the runner's */
    *n = 0;
    *alone = false;
    if (runner->model_id == 0)
        return ns_error_set(err, NS_INTERNAL, "claiming before a model was bound");
    size_t bytes;
    if (!ns_size_mul(limits->requests, sizeof(int64_t), &bytes))
        return ns_error_set(err, NS_USAGE, "claiming %zu requests at once", limits->requests);
    int64_t now = ns_clock_wall_ms();
    int64_t *id = ns_budget_take(runner->budget, bytes, err);
    struct ns_claim **claim = ns_budget_take(runner->budget, limits->requests * sizeof(struct ns_claim *), err);
    size_t count = 0;
    enum ns_code rc = id && claim ? claim_ids(runner, limits, now, id, &count, alone, err) : NS_BUDGET;
    /* they are ours now, so loading needs no transaction; if it fails the run stops and gives them back */
    for (size_t i = 0; rc == NS_OK && i < count; i++)
        rc = load_claim(runner->q, id[i], now, &claim[i], err);
    ns_budget_give(runner->budget, id);
    if (rc != NS_OK) {
        for (size_t i = 0; claim && i < count; i++)
            ns_claim_close(claim[i]);
        ns_budget_give(runner->budget, claim);
        return rc;
    }
    *out = claim;
    *n = count;
    return NS_OK;
}

/* ---- admitting --------------------------------------------------------------------------------------------------------------- */

static enum ns_code insert_sequence(struct ns_runner *r, int64_t request_id, size_t choice, const struct ns_prompt *p,
                                    uint32_t n_top, struct ns_claim_seq *s, struct ns_error *err)
{
    uint8_t *bytes = ns_budget_take_raw(r->budget, (size_t)p->n * 4, 64, err);
    s->prompt = *p;
    s->prompt.id = ns_budget_take(r->budget, (size_t)p->n * 4, err);
    s->n_top = n_top;
    if (!bytes || !s->prompt.id) {
        ns_budget_give(r->budget, bytes);
        return NS_BUDGET;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        ns_put_le32(bytes + 4 * (size_t)i, p->id[i]);
        s->prompt.id[i] = p->id[i];
    }
    char sampler[40];
    snprintf(sampler, sizeof sampler, "{\"n_top\":%" PRIu32 "}", n_top);
    enum ns_code rc = ns_sql_run(r->q, err,
                                 "INSERT INTO sequences(request_id, choice, mode, score_from, prompt_tokens, n_prompt,"
                                 " sampler) VALUES (?, ?, ?, NULLIF(?, 0), ?, ?, ?)",
                                 "iitibit", request_id, (int64_t)choice, p->is_score ? "score" : "generate",
                                 (int64_t)p->score_from, bytes, (size_t)p->n * 4, (int64_t)p->n, sampler);
    s->seq_id = sqlite3_last_insert_rowid(r->q->db);
    ns_budget_give(r->budget, bytes);
    return rc;
}

static enum ns_code admit_one(struct ns_runner *r, struct ns_admission *a, int64_t now, struct ns_error *err)
{
    struct ns_claim *c = a->claim;
    if (a->failed)
        return ns_request_close(r, c->request_id, c->attempt_id, NS_END_FAILED, a->failed, NULL, now, err);
    if (!a->encoded)
        return NS_OK;
    assert(c->n_seqs == 0);
    c->seq = ns_budget_take(r->budget, a->encoded->n * sizeof *c->seq, err);
    if (!c->seq)
        return NS_BUDGET;
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < a->encoded->n; i++) {
        c->n_seqs = i + 1; /* closing the claim frees what was made */
        rc = insert_sequence(r, c->request_id, i, &a->encoded->prompt[i], a->n_top, &c->seq[i], err);
    }
    if (rc == NS_OK)
        rc = ns_sql_run(r->q, err, "UPDATE requests SET n_prompt = ?, max_new = ? WHERE id = ?", "iii",
                        (int64_t)a->encoded->prompt_tokens, (int64_t)a->encoded->prompt[0].max_new, c->request_id);
    return rc;
}

enum ns_code ns_runner_admit(struct ns_runner *runner, struct ns_admission *admission, size_t n, struct ns_error *err)
{
    int64_t now = ns_clock_wall_ms();
    enum ns_code rc = ns_fenced_begin(runner, err);
    if (rc != NS_OK)
        return rc;
    for (size_t i = 0; rc == NS_OK && i < n; i++)
        rc = admit_one(runner, &admission[i], now, err);
    if (rc == NS_OK)
        rc = ns_settle(runner->q, now, err);
    if (rc == NS_OK)
        ns_crash_point("admit.before");
    rc = ns_write_end(runner->q, rc, err);
    if (rc == NS_OK)
        ns_crash_point("admit.after");
    for (size_t i = 0; rc != NS_OK && i < n; i++)
        if (admission[i].encoded)
            drop_sequences(admission[i].claim); /* rolled back: the same call may be made again */
    return rc;
}
