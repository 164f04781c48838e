/* result.c - finished sequences become response bodies.
 *
 * WHAT   One writer per kind of body. The text is stored as it is and never parsed again on its way out; x_local is a
 *        separate text that export splices in as the last member.
 * WHY    content_sha256 must mean "the same answer", so each body is written twice: once with id and created, to be
 *        stored, and once without, to be hashed. Both come from one function, in one member order.
 * INVARIANTS
 *   1. The same tokens give the same bytes apart from id and created.           (result_test: bodies_are_deterministic)
 *   2. Every body is JSON that a strict reader takes, whatever the model said.  (result_test: c98_any_text_is_written)
 *   3. A not-a-number never becomes a value; minus infinity is -9999.           (result_test: c89_minus_infinity) */
#include "job/job_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- x_local ------------------------------------------------------------------------------------------------------------- */

static void put_number(struct ns_json_writer *w, const char *key, int64_t v)
{
    ns_json_put_key(w, key);
    ns_json_put_int(w, v);
}

static void open_local(struct ns_json_writer *w, struct ns_result *out, const struct ns_request *request,
                       const struct ns_job_model *model, const struct ns_run_facts *facts)
{
    ns_json_begin(w, &out->local);
    ns_json_open_object(w);
    ns_json_put_key(w, "content_sha256");
    ns_json_put_cstring(w, out->content_sha256);
    if (model) {
        ns_json_put_key(w, "contract");
        ns_json_put_cstring(w, model->contract);
        ns_json_put_key(w, "model");
        ns_json_put_cstring(w, model->fingerprint);
    }
    if (facts) {
        put_number(w, "runner", facts->runner_id);
        put_number(w, "attempts", facts->attempts);
        put_number(w, "waves", facts->waves);
        put_number(w, "replays", facts->replays);
        put_number(w, "restored", (int64_t)facts->restored_tokens);
        put_number(w, "recomputed", (int64_t)facts->recomputed_tokens);
        put_number(w, "queued_ms", facts->queued_ms);
        put_number(w, "run_ms", facts->run_ms);
    }
    if (request && request->ignored.n > 2) {
        ns_json_put_key(w, "ignored");
        ns_json_put_raw(w, request->ignored.data, request->ignored.n);
    }
}

/* ---- building ------------------------------------------------------------------------------------------------------------ */

static void init_result(struct ns_result *out, struct ns_budget *budget)
{
    *out = (struct ns_result){.budget = budget, .correct = -1};
    ns_text_init(&out->response, budget);
    ns_text_init(&out->error, budget);
    ns_text_init(&out->local, budget);
}

void ns_result_fini(struct ns_result *result)
{
    if (!result->budget)
        return;
    ns_text_fini(&result->response);
    ns_text_fini(&result->error);
    ns_text_fini(&result->local);
    *result = (struct ns_result){.budget = result->budget};
}

static enum ns_code finish_result(struct ns_result *out, enum ns_code rc, struct ns_error *err)
{
    if (rc == NS_OK && !(ns_text_ok(&out->response) && ns_text_ok(&out->error) && ns_text_ok(&out->local)))
        rc = ns_error_set(err, NS_BUDGET, "no memory for a result");
    if (rc != NS_OK)
        ns_result_fini(out);
    return rc;
}

static void hash_text(const struct ns_text *text, char hex[NS_SHA256_HEX])
{
    uint8_t sum[NS_SHA256_BYTES];
    ns_sha256_of(text->data, text->n, sum);
    ns_hex(sum, sizeof sum, hex);
}

static bool is_bad(const float *v, size_t n)
{
    for (size_t i = 0; v && i < n; i++)
        if (isnan(v[i]) || (isinf(v[i]) && v[i] > 0))
            return true;
    return false;
}

static enum ns_code check_values(const struct ns_request *request, const struct ns_outcome *o, size_t n,
                                 struct ns_error *err)
{
    for (size_t i = 0; i < n; i++) {
        float score = request->kind == NS_KIND_CHOICE ? (float)o[i].score : 0;
        size_t from = o[i].n_prompt > 0; /* the first prompt token has no value */
        if (is_bad(&score, 1) || is_bad(o[i].logprob, o[i].n_out) ||
            is_bad(o[i].top_logprob, o[i].n_out * o[i].n_top) ||
            (o[i].prompt_logprob && is_bad(o[i].prompt_logprob + from, o[i].n_prompt - from)) ||
            (o[i].prompt_top_logprob &&
             is_bad(o[i].prompt_top_logprob + from * o[i].n_top, (o[i].n_prompt - from) * o[i].n_top)))
            return ns_error_set(err, NS_NONFINITE, "a log-probability of sequence %zu is not a number", i);
    }
    return NS_OK;
}

static enum ns_code write_bodies(struct ns_body *b, struct ns_result *out, size_t best, struct ns_error *err)
{
    struct ns_text scratch, bare;
    ns_text_init(&scratch, out->budget);
    ns_text_init(&bare, out->budget);
    b->scratch = &scratch;
    b->identity = false;
    enum ns_code rc = ns_body_write(b, best, &bare, err);
    if (rc == NS_OK) {
        hash_text(&bare, out->content_sha256);
        b->identity = true;
        rc = ns_body_write(b, best, &out->response, err);
    }
    if (rc == NS_OK && !ns_text_ok(&scratch))
        rc = ns_error_set(err, NS_BUDGET, "no memory for a result");
    ns_text_fini(&scratch);
    ns_text_fini(&bare);
    return rc;
}

static size_t judge_choices(const struct ns_request *request, const struct ns_outcome *outcome, size_t n,
                            struct ns_result *out)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) /* what people see is the float: ties are ties there too */
        if ((float)outcome[i].score > (float)outcome[best].score)
            best = i;
    out->prompt_tokens = n > 0 ? (uint32_t)(outcome[0].n_prompt - outcome[0].n_scored) : 0;
    for (size_t i = 0; i < n; i++)
        out->prompt_tokens += outcome[i].n_scored; /* read, not written: nothing is generated */
    if (request->has_answer)
        out->correct = best == request->answer;
    return best;
}

enum ns_code ns_result_build(const struct ns_request *request, const struct ns_job_model *model,
                             const struct ns_outcome *outcome, size_t n, const struct ns_run_facts *facts,
                             struct ns_budget *budget, struct ns_result *out, struct ns_error *err)
{
    enum ns_code rc = check_values(request, outcome, n, err);
    if (rc != NS_OK)
        return rc;
    init_result(out, budget);
    out->status = 200;
    struct ns_reply reply = {0};
    size_t best = 0;
    if (request->kind == NS_KIND_CHOICE) {
        best = judge_choices(request, outcome, n, out);
    } else {
        rc = ns_reply_read(request, model, outcome->token, outcome->n_out, outcome->finish, budget, &reply, err);
        if (rc != NS_OK)
            return finish_result(out, rc, err);
        out->prompt_tokens = (uint32_t)outcome->n_prompt;
        out->completion_tokens = (uint32_t)outcome->n_out;
        struct ns_slice said = {reply.content.data, reply.content.n};
        if (request->has_expected)
            out->correct = request->kind == NS_KIND_CHAT ? ns_expected_within(said, request->expected)
                                                         : ns_expected_starts(said, request->expected);
    }
    struct ns_body b = {
        .request = request, .model = model, .outcome = outcome, .n = n, .facts = facts, .reply = &reply, .result = out};
    rc = write_bodies(&b, out, best, err);
    if (rc == NS_OK) {
        struct ns_json_writer w;
        open_local(&w, out, request, model, facts);
        if (out->correct >= 0) {
            ns_json_put_key(&w, "correct");
            ns_json_put_bool(&w, out->correct == 1);
        }
        if (reply.in_reasoning && outcome->finish == NS_FINISH_LENGTH) {
            ns_json_put_key(&w, "limit_in");
            ns_json_put_cstring(&w, "reasoning");
        }
        ns_json_close_object(&w);
    }
    ns_reply_fini(&reply);
    return finish_result(out, rc, err);
}

/* ---- failures -------------------------------------------------------------------------------------------------------------- */

void ns_refusal_of_error(const struct ns_error *error, struct ns_refusal *out)
{
    const char *code =
        error->code == NS_NONFINITE || error->code == NS_CORRUPT ? ns_code_name(error->code) : "internal";
    ns_refusal_set(out, 500, code, NULL, "%.600s", error->message);
}

static void put_error(struct ns_json_writer *w, const struct ns_refusal *refusal)
{
    ns_json_put_key(w, "message");
    ns_json_put_cstring(w, refusal->message);
    ns_json_put_key(w, "type");
    ns_json_put_cstring(w, refusal->status < 500 ? "invalid_request_error" : "server_error");
    ns_json_put_key(w, "param");
    ns_json_put_cstring(w, refusal->param[0] ? refusal->param : NULL);
    ns_json_put_key(w, "code");
    ns_json_put_cstring(w, refusal->code);
}

void ns_refusal_json(struct ns_json_writer *w, const struct ns_refusal *refusal, int64_t line)
{
    ns_json_open_object(w);
    ns_json_put_key(w, "code");
    ns_json_put_cstring(w, refusal->code);
    ns_json_put_key(w, "message");
    ns_json_put_cstring(w, refusal->message);
    ns_json_put_key(w, "param");
    ns_json_put_cstring(w, refusal->param[0] ? refusal->param : NULL);
    put_number(w, "line", line);
    ns_json_close_object(w);
}

enum ns_code ns_result_fail(const struct ns_request *request, const struct ns_job_model *model,
                            const struct ns_refusal *refusal, const char *context, const struct ns_run_facts *facts,
                            struct ns_budget *budget, struct ns_result *out, struct ns_error *err)
{
    init_result(out, budget);
    out->status = refusal->status;
    struct ns_json_writer w;
    ns_json_begin(&w, &out->response);
    ns_json_open_object(&w);
    ns_json_put_key(&w, "error");
    ns_json_open_object(&w);
    put_error(&w, refusal);
    ns_json_close_object(&w);
    ns_json_close_object(&w);
    if (!ns_text_ok(&out->response))
        return finish_result(out, NS_OK, err);
    hash_text(&out->response, out->content_sha256);
    open_local(&w, out, request, model, facts);
    if (context && context[0]) {
        char text[256];
        snprintf(text, sizeof text, "%s", context);
        ns_text_repair(text);
        ns_json_put_key(&w, "context");
        ns_json_put_cstring(&w, text);
    }
    if (refusal->line > 0)
        put_number(&w, "line", refusal->line);
    ns_json_put_key(&w, "retry");
    ns_json_put_cstring(&w, "never");
    ns_json_close_object(&w);
    return finish_result(out, NS_OK, err);
}

/* The text and ids so far, as a member of x_local. */
static enum ns_code put_partial(struct ns_json_writer *w, const struct ns_request *request,
                                const struct ns_job_model *model, const struct ns_outcome *o, struct ns_budget *budget,
                                struct ns_error *err)
{
    struct ns_reply reply = {0};
    enum ns_code rc = NS_OK;
    if (request && model) {
        rc = ns_reply_read(request, model, o->token, o->n_out, NS_FINISH_NONE, budget, &reply, err);
        if (rc != NS_OK)
            return rc;
    }
    ns_json_put_key(w, "partial");
    ns_json_open_object(w);
    if (request && model) {
        ns_json_put_key(w, "text");
        ns_put_text(w, &reply.content);
        if (reply.reasoning.n > 0) {
            ns_json_put_key(w, "reasoning");
            ns_put_text(w, &reply.reasoning);
        }
    }
    ns_put_ids(w, "token_ids", o->token, o->n_out);
    ns_json_close_object(w);
    ns_reply_fini(&reply);
    return NS_OK;
}

enum ns_code ns_result_ended(const struct ns_request *request, const struct ns_job_model *model, const char *code,
                             const char *message, const struct ns_outcome *outcome, const struct ns_run_facts *facts,
                             struct ns_budget *budget, struct ns_result *out, struct ns_error *err)
{
    init_result(out, budget);
    struct ns_json_writer w;
    ns_json_begin(&w, &out->error);
    ns_json_open_object(&w);
    ns_json_put_key(&w, "code");
    ns_json_put_cstring(&w, code);
    ns_json_put_key(&w, "message");
    ns_json_put_cstring(&w, message);
    ns_json_close_object(&w);
    if (!ns_text_ok(&out->error))
        return finish_result(out, NS_OK, err);
    hash_text(&out->error, out->content_sha256);
    open_local(&w, out, request, model, facts);
    enum ns_code rc = NS_OK;
    if (outcome && outcome->n_out > 0) {
        out->prompt_tokens = (uint32_t)outcome->n_prompt;
        out->completion_tokens = (uint32_t)outcome->n_out;
        rc = put_partial(&w, request, model, outcome, budget, err);
    }
    ns_json_close_object(&w);
    return finish_result(out, rc, err);
}
