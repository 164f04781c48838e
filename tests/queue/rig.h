/* rig.h - a queue in a scratch folder, and a fake run over it: token p of request c is a hash of (c, p). For tests. */
#ifndef NS_TESTS_RIG_H
#define NS_TESTS_RIG_H

#include "../scratch.h"
#include "queue/queue.h"
#include "queue/queue_impl.h"

struct rig {
    struct scratch scratch;
    struct ns_budget budget;
    char db[512];
    struct ns_queue *q; /* a writing connection */
    struct ns_runner *r;
    struct ns_job_model model;
    bool states;        /* waves write side files */
    const char *poison; /* a wave with this request aborts the process */
};

#define FAKE_FINGERPRINT "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define RIG_OK(call)                                                                                                   \
    do {                                                                                                               \
        struct ns_error rig_err = {0};                                                                                 \
        struct ns_error *err = &rig_err;                                                                               \
        if ((call) != NS_OK) {                                                                                         \
            char rig_text[4500];                                                                                       \
            ns_error_text(err, rig_text, sizeof rig_text);                                                             \
            fail_msg("%s: %s", #call, rig_text);                                                                       \
        }                                                                                                              \
    } while (0)

static inline void rig_open(struct rig *g)
{
    memset(g, 0, sizeof *g);
    ns_host_init();
    ns_budget_init(&g->budget, "test", (size_t)512 << 20);
    scratch_open(&g->scratch);
    snprintf(g->db, sizeof g->db, "%s/queue.db", g->scratch.dir);
    RIG_OK(ns_queue_create(g->db, err));
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
    RIG_OK(ns_job_model_init(&g->model, NULL, FAKE_FINGERPRINT, "f32x16.1", 1000, 64, 7, NULL, 0, err));
}

static inline void rig_close(struct rig *g)
{
    ns_runner_abandon(g->r);
    ns_queue_close(g->q);
    assert_int_equal(ns_budget_used(&g->budget), 0);
    scratch_close(&g->scratch);
}

static inline enum ns_code rig_submit_as(struct rig *g, const char *name, const char *text,
                                         const struct ns_submit_options *o, struct ns_submit_report *report,
                                         struct ns_error *why)
{
    scratch_write(&g->scratch, name, text, strlen(text));
    return ns_queue_submit(g->q, scratch_path(&g->scratch, name), o, report, why);
}

/* Lines of ids, as many as asked: {"custom_id":"r0","prompt":[..],"max_tokens":..}. Returns the batch. */
static inline int64_t rig_submit(struct rig *g, const char *name, const char *text)
{
    struct ns_submit_options o = {.priority = 5};
    struct ns_submit_report report;
    int64_t id = 0;
    RIG_OK(rig_submit_as(g, name, text, &o, &report, err));
    RIG_OK(ns_queue_find_batch(g->q, report.batch_id, &id, err));
    ns_submit_report_fini(&report);
    return id;
}

static inline void rig_start(struct rig *g)
{
    struct ns_runner_options o = {.no_ballast = true};
    struct ns_runner_start_report report;
    RIG_OK(ns_runner_start(g->db, &o, &g->budget, &g->r, &report, err));
    RIG_OK(ns_runner_bind_model(g->r, g->scratch.dir, &g->model, "tok", err));
}

static inline void rig_stop(struct rig *g)
{
    RIG_OK(ns_runner_stop(g->r, "done", err));
    g->r = NULL;
}

static inline int64_t rig_int(struct rig *g, const char *sql)
{
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(g->q->db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return v;
}

static inline void rig_sql(struct rig *g, const char *sql)
{
    char *message = NULL;
    if (sqlite3_exec(g->q->db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
}

static inline void rig_finding(void *arg, const char *invariant, bool is_note, int64_t ref, const char *text)
{
    (void)arg;
    if (!is_note)
        print_message("doctor: %s: %lld: %s\n", invariant, (long long)ref, text);
}

static inline void rig_doctor(struct rig *g)
{
    int64_t n = -1;
    RIG_OK(ns_queue_doctor(g->q, &(struct ns_doctor_options){.deep = true}, rig_finding, NULL, &n, err));
    assert_int_equal(n, 0);
}

/* ---- a fake engine over the queue's calls --------------------------------------------------------------------------- */

struct rig_work {
    struct ns_claim **claim;
    struct ns_request *request;
    size_t n;
    bool alone;
};

static inline uint32_t rig_token(const struct ns_request *r, uint32_t pos)
{
    uint32_t h = ns_crc32c(pos, r->custom_id.s, r->custom_id.n);
    return h % 17 == 3 && pos > 0 ? 7 : 20 + h % 900; /* 7 ends it */
}

/* Claims at most n requests and admits them. */
static inline void rig_claim(struct rig *g, size_t n, struct rig_work *w)
{
    struct ns_claim_limits limits = {.requests = n};
    RIG_OK(ns_runner_claim(g->r, &limits, &g->budget, &w->claim, &w->n, &w->alone, err));
    w->request = calloc(w->n + 1, sizeof *w->request);
    struct ns_admission *a = calloc(w->n + 1, sizeof *a);
    struct ns_encoded *encoded = calloc(w->n + 1, sizeof *encoded);
    struct ns_result *failed = calloc(w->n + 1, sizeof *failed);
    for (size_t i = 0; i < w->n; i++) {
        struct ns_refusal refusal;
        struct ns_run_facts facts = {.request_id = w->claim[i]->request_id};
        RIG_OK(ns_request_parse(w->claim[i]->body, w->claim[i]->body_n, &g->budget, &w->request[i], &refusal, err));
        a[i] = (struct ns_admission){.claim = w->claim[i], .n_top = w->request[i].n_logprobs};
        if (w->claim[i]->n_seqs > 0)
            continue;
        enum ns_code rc = ns_request_encode(&w->request[i], &g->model, &g->budget, &encoded[i], &refusal, NULL);
        if (rc == NS_OK) {
            a[i].encoded = &encoded[i];
        } else {
            assert_int_equal(rc, NS_INPUT);
            RIG_OK(ns_result_fail(&w->request[i], &g->model, &refusal, NULL, &facts, &g->budget, &failed[i], err));
            a[i].failed = &failed[i];
        }
    }
    RIG_OK(ns_runner_admit(g->r, a, w->n, err));
    size_t kept = 0;
    for (size_t i = 0; i < w->n; i++) {
        ns_encoded_fini(&encoded[i]);
        ns_result_fini(&failed[i]);
        if (a[i].failed) {
            ns_claim_close(w->claim[i]);
            ns_request_fini(&w->request[i]);
            continue;
        }
        w->claim[kept] = w->claim[i];
        w->request[kept++] = w->request[i];
    }
    w->n = kept;
    free(a);
    free(encoded);
    free(failed);
}

static inline void rig_drop(struct rig *g, struct rig_work *w)
{
    for (size_t i = 0; i < w->n; i++) {
        ns_claim_close(w->claim[i]);
        ns_request_fini(&w->request[i]);
    }
    ns_budget_give(&g->budget, w->claim);
    free(w->request);
    memset(w, 0, sizeof *w);
}

/* One wave: one token for every generating sequence, a score for every scoring one; finished requests end. Returns the
 * code of the commit. Claims that ended are closed. */
static inline enum ns_code rig_wave(struct rig *g, struct rig_work *w, struct ns_control *control, struct ns_error *why)
{
    size_t n_seqs = 0;
    for (size_t i = 0; i < w->n; i++)
        n_seqs += w->claim[i]->n_seqs;
    struct ns_seq_update *u = calloc(n_seqs + 1, sizeof *u);
    struct ns_request_end *end = calloc(w->n + 1, sizeof *end);
    struct ns_result *result = calloc(w->n + 1, sizeof *result);
    int64_t *progressed = calloc(w->n + 1, sizeof *progressed);
    size_t k = 0, n_ends = 0;
    enum ns_code rc = NS_OK; /* memory may be made to fail here too */
    for (size_t i = 0; rc == NS_OK && i < w->n; i++) {
        struct ns_claim *c = w->claim[i];
        struct ns_request *r = &w->request[i];
        struct ns_outcome *out = calloc(c->n_seqs, sizeof *out);
        bool over = true;
        progressed[i] = c->request_id;
        for (size_t j = 0; rc == NS_OK && j < c->n_seqs; j++, k++) {
            struct ns_claim_seq *s = &c->seq[j];
            u[k] = (struct ns_seq_update){.seq_id = s->seq_id, .n_out_before = s->n_out};
            if (s->prompt.is_score) {
                s->score = -1.0 - (double)(ns_crc32c((uint32_t)j, r->custom_id.s, r->custom_id.n) % 1000) / 8;
                u[k].has_score = true;
                u[k].score = s->score;
                out[j] = (struct ns_outcome){.prompt = s->prompt.id,
                                             .n_prompt = s->prompt.n,
                                             .score = s->score,
                                             .n_scored = s->prompt.n - s->prompt.score_from};
                continue;
            }
            uint32_t *token = ns_budget_resize(&g->budget, s->token, (s->n_out + 1) * sizeof *s->token, NULL);
            s->token = token ? token : s->token;
            float *logprob = ns_budget_resize(&g->budget, s->logprob, (s->n_out + 1) * sizeof *s->logprob, NULL);
            s->logprob = logprob ? logprob : s->logprob;
            if (!token || !logprob) {
                rc = NS_BUDGET;
                break;
            }
            s->token[s->n_out] = rig_token(r, s->n_out);
            s->logprob[s->n_out] = -0.5f - (float)s->n_out;
            u[k].n = 1;
            u[k].token = &s->token[s->n_out];
            u[k].logprob = &s->logprob[s->n_out];
            enum ns_finish finish = ns_reply_judge(r, &g->model, s->prompt.max_new, s->token, s->n_out + 1);
            u[k].finish = finish;
            over = over && finish != NS_FINISH_NONE;
            out[j] = (struct ns_outcome){.prompt = s->prompt.id,
                                         .n_prompt = s->prompt.n,
                                         .token = s->token,
                                         .logprob = s->logprob,
                                         .n_out = s->n_out + 1,
                                         .finish = finish};
        }
        if (rc == NS_OK && over) {
            struct ns_run_facts facts = {.request_id = c->request_id, .created_at_ms = c->created_at_ms};
            rc = ns_result_build(r, &g->model, out, c->n_seqs, &facts, &g->budget, &result[n_ends], why);
            if (rc != NS_OK) {
                free(out);
                break;
            }
            end[n_ends] = (struct ns_request_end){.request_id = c->request_id,
                                                  .attempt_id = c->attempt_id,
                                                  .end = NS_END_DONE,
                                                  .result = &result[n_ends]};
            n_ends++;
        }
        free(out);
    }
    struct ns_state_file *state = calloc(n_seqs + 1, sizeof *state);
    char(*name)[64] = calloc(n_seqs + 1, sizeof *name);
    size_t n_states = 0;
    for (size_t i = 0; rc == NS_OK && i < w->n; i++) {
        if (g->poison && strcmp(w->claim[i]->custom_id, g->poison) == 0)
            abort();
        for (size_t j = 0; g->states && j < w->claim[i]->n_seqs; j++) {
            struct ns_claim_seq *s = &w->claim[i]->seq[j];
            char path[NS_PATH_SIZE + 128];
            bool over = false;
            for (size_t e = 0; e < n_ends; e++)
                over = over || end[e].request_id == w->claim[i]->request_id;
            if (s->prompt.is_score || over)
                continue;
            snprintf(name[n_states], sizeof name[0], "%" PRId64 "-%u-%" PRId64 ".st", s->seq_id, s->n_out + 1,
                     ns_runner_id(g->r));
            snprintf(path, sizeof path, "%s/%s", ns_runner_state_dir(g->r), name[n_states]);
            RIG_OK(ns_file_replace(path, "state", 5, err));
            state[n_states] = (struct ns_state_file){.seq_id = s->seq_id,
                                                     .to_pos = s->n_out + 1,
                                                     .rel_path = name[n_states],
                                                     .bytes = 5,
                                                     .checksum = "c",
                                                     .fingerprint = FAKE_FINGERPRINT,
                                                     .engine_abi = 1};
            n_states++;
        }
    }
    struct ns_wave_record wave = {.kind = "mixed",
                                  .began_at_ms = ns_clock_wall_ms(),
                                  .ended_at_ms = ns_clock_wall_ms(),
                                  .n_seqs = (uint32_t)n_seqs,
                                  .n_tokens_out = (uint32_t)k};
    struct ns_wave_commit commit = {.wave = &wave,
                                    .seq = u,
                                    .n_seqs = k,
                                    .end = end,
                                    .n_ends = n_ends,
                                    .progressed = progressed,
                                    .n_progressed = w->n,
                                    .state = state,
                                    .n_states = n_states};
    if (rc == NS_OK)
        rc = ns_runner_commit(g->r, &commit, NULL, control, why);
    size_t kept = 0, ended = 0;
    for (size_t i = 0; rc == NS_OK && i < w->n; i++) {
        for (size_t j = 0; j < w->claim[i]->n_seqs; j++)
            if (!w->claim[i]->seq[j].prompt.is_score)
                w->claim[i]->seq[j].n_out++;
        if (ended < n_ends && end[ended].request_id == w->claim[i]->request_id) {
            ended++;
            ns_claim_close(w->claim[i]);
            ns_request_fini(&w->request[i]);
            continue;
        }
        w->claim[kept] = w->claim[i];
        w->request[kept++] = w->request[i];
    }
    if (rc == NS_OK)
        w->n = kept;
    for (size_t i = 0; i < n_ends; i++)
        ns_result_fini(&result[i]);
    free(u);
    free(end);
    free(result);
    free(progressed);
    free(state);
    free(name);
    return rc;
}

/* I4: every committed token is the one an undisturbed run has at its place. */
static inline void rig_check_tokens(struct rig *g)
{
    sqlite3_stmt *stmt = NULL;
    static const char sql[] =
        "SELECT r.custom_id, c.pos, c.n, c.tokens FROM seq_chunks c JOIN sequences s ON s.id = c.seq_id"
        " JOIN requests r ON r.id = s.request_id";
    assert_int_equal(sqlite3_prepare_v2(g->q->db, sql, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        const char *id = (const char *)sqlite3_column_text(stmt, 0);
        struct ns_request r = {.custom_id = {id, strlen(id)}};
        for (int i = 0; i < sqlite3_column_int(stmt, 2); i++)
            assert_int_equal(ns_le32((const uint8_t *)sqlite3_column_blob(stmt, 3) + 4 * i),
                             rig_token(&r, (uint32_t)(sqlite3_column_int(stmt, 1) + i)));
    }
    sqlite3_finalize(stmt);
}

/* One hash over all results, in the order of their ids: the same for every run of the same file. */
static inline void rig_digest(struct rig *g, char hex[NS_SHA256_HEX])
{
    sqlite3_stmt *stmt = NULL;
    struct ns_sha256 *hash = ns_sha256_open();
    uint8_t sum[NS_SHA256_BYTES];
    assert_int_equal(sqlite3_prepare_v2(g->q->db,
                                        "SELECT r.custom_id || r.state || x.content_sha256 || x.completion_tokens FROM"
                                        " requests r JOIN results x ON x.request_id = r.id ORDER BY r.custom_id",
                                        -1, &stmt, NULL),
                     SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW)
        ns_sha256_add(hash, sqlite3_column_text(stmt, 0), (size_t)sqlite3_column_bytes(stmt, 0));
    sqlite3_finalize(stmt);
    ns_sha256_close(hash, sum);
    ns_hex(sum, sizeof sum, hex);
}

/* Everything that is queued, at most n at a time. */
static inline void rig_run(struct rig *g, size_t n)
{
    for (;;) {
        struct rig_work w = {0};
        rig_claim(g, n, &w);
        bool idle = w.n == 0;
        while (w.n > 0) {
            struct ns_control control;
            RIG_OK(rig_wave(g, &w, &control, err));
            ns_control_fini(&control);
        }
        rig_drop(g, &w);
        if (idle && rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'queued'") == 0)
            return;
    }
}

#endif
