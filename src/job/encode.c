/* encode.c - a request and a model become sequences of token ids; what cannot fit is refused with both numbers. */
#include "job/job_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- the model, as requests see it ------------------------------------------------------------------------------------ */

static void add_stop(struct ns_job_model *m, int64_t id)
{
    if (id < 0 || id >= m->vocab || m->n_stop == NS_STOP_IDS_MAX || ns_is_stop_id(m, (uint32_t)id))
        return;
    m->stop[m->n_stop++] = (uint32_t)id;
}

bool ns_is_stop_id(const struct ns_job_model *model, uint32_t id)
{
    for (uint32_t i = 0; i < model->n_stop; i++)
        if (model->stop[i] == id)
            return true;
    return false;
}

static uint32_t marker(const struct ns_tokenizer *tok, const char *name)
{
    return tok ? ns_tokenizer_special(tok, name) : NS_NO_TOKEN;
}

/* An end id as a configuration lists it. What the tokenizer names as something that begins or parts a message is none,
 * whatever is listed: the files disagree, and a reply would end at its first tag. */
static void add_listed_stop(struct ns_job_model *m, const char *file, int64_t id)
{
    static const char *const others[] = {"<|open|>", "<|close|>", "<|sep|>", "<|im_middle|>", "[BOS]", "[PAD]"};
    for (size_t i = 0; i < NS_COUNT(others); i++) {
        uint32_t other = marker(m->tok, others[i]);
        if (other == NS_NO_TOKEN || id != (int64_t)other)
            continue;
        ns_log(NS_LOG_WARN,
               "%s ends a reply at id %" PRId64 ", which the tokenizer calls %s: it is not taken for an end", file, id,
               others[i]);
        return;
    }
    add_stop(m, id);
}

static enum ns_code add_generation_stops(struct ns_job_model *m, const char *text, size_t n, struct ns_error *err)
{
    struct ns_json *doc = NULL;
    enum ns_code rc = ns_json_parse(text, n, &doc, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "generation_config.json");
    const struct ns_json *eos = ns_json_find(doc, "eos_token_id");
    int64_t id;
    bool is_known = ns_json_type(eos) == NS_JSON_NULL || ns_json_type(eos) == NS_JSON_ARRAY;
    if (ns_json_int(eos, &id)) {
        add_listed_stop(m, "generation_config.json", id);
        is_known = true;
    }
    for (size_t i = 0; i < ns_json_count(eos) && is_known; i++) {
        is_known = ns_json_int(ns_json_item(eos, i), &id);
        if (is_known)
            add_listed_stop(m, "generation_config.json", id);
    }
    ns_json_free(doc);
    return is_known ? NS_OK
                    : ns_error_set(err, NS_INPUT,
                                   "generation_config.json: eos_token_id is neither a token id nor a list of them");
}

enum ns_code ns_job_model_init(struct ns_job_model *out, const struct ns_tokenizer *tok, const char *fingerprint,
                               const char *contract, uint32_t vocab, uint32_t context, int32_t eos,
                               const char *generation_config, size_t n, struct ns_error *err)
{
    struct ns_job_model m = {.tok = tok, .vocab = vocab, .context = context};
    snprintf(m.name, sizeof m.name, "nightshift-%.12s", fingerprint);
    snprintf(m.fingerprint, sizeof m.fingerprint, "%s", fingerprint);
    snprintf(m.contract, sizeof m.contract, "%s", contract);
    add_listed_stop(&m, "config.json", eos);
    /* the model's own turn format ends a turn with either, whatever its configuration lists */
    static const char *const ends[] = {"<|end_of_msg|>", "[EOS]", "<|im_end|>"};
    for (size_t i = 0; i < NS_COUNT(ends); i++) {
        uint32_t id = marker(tok, ends[i]);
        if (id != NS_NO_TOKEN)
            add_stop(&m, id);
    }
    m.open = marker(tok, "<|open|>");
    m.close = marker(tok, "<|close|>");
    m.sep = marker(tok, "<|sep|>");
    if (generation_config) {
        enum ns_code rc = add_generation_stops(&m, generation_config, n, err);
        if (rc != NS_OK)
            return rc;
    }
    *out = m;
    return NS_OK;
}

/* ---- encoding ----------------------------------------------------------------------------------------------------------- */

enum { LARGE_TEXT = 65536 };

struct encoding {
    const struct ns_request *request;
    const struct ns_job_model *model;
    struct ns_refusal *refusal;
    struct ns_error *err;
    struct ns_encoded *out;
};

/* A refusal set by the caller, or the error of the tokenizer. A large text that is too long whatever its tokens are takes
 * neither time nor memory. */
static enum ns_code encode_text(struct encoding *e, const char *text, size_t n, const char *param, struct ns_ids *ids)
{
    if (!e->model->tok) {
        ns_refusal_set(e->refusal, 400, "no_tokenizer", param,
                       "%s is text, and this model has no tokenizer files: give token ids", param);
        return NS_INPUT;
    }
    size_t least = n / ns_tokenizer_longest(e->model->tok); /* it knows every single byte */
    if (n > LARGE_TEXT && least > e->model->context) {
        ns_refusal_set(e->refusal, 400, "context_length_exceeded", param,
                       "%s of %zu bytes has at least %zu tokens, the context of this run is %" PRIu32, param, n, least,
                       e->model->context);
        return NS_INPUT;
    }
    struct ns_error why = {0};
    enum ns_code rc = ns_tokenizer_encode(e->model->tok, text, n, false, ids, &why);
    if (rc == NS_INPUT)
        ns_refusal_set(e->refusal, 400, "invalid_value", param, "%.600s", why.message);
    return rc == NS_INPUT ? rc : rc == NS_OK ? NS_OK : ns_error_set(e->err, rc, "%s", why.message);
}

static enum ns_code encode_ids(struct encoding *e, const struct ns_input *in, const char *param, struct ns_ids *ids)
{
    for (size_t i = 0; i < in->n_ids; i++)
        if (in->id[i] >= e->model->vocab) {
            ns_refusal_set(e->refusal, 400, "token_out_of_range", param,
                           "%s[%zu] is %" PRIu32 ", the vocabulary has %" PRIu32 " tokens", param, i, in->id[i],
                           e->model->vocab);
            return NS_INPUT;
        }
    return ns_ids_add(ids, in->id, in->n_ids, e->err);
}

static enum ns_code encode_input(struct encoding *e, const struct ns_input *in, const char *param, struct ns_ids *ids)
{
    return in->is_ids ? encode_ids(e, in, param, ids) : encode_text(e, in->text.s, in->text.n, param, ids);
}

static enum ns_code encode_chat(struct encoding *e, struct ns_ids *ids)
{
    const struct ns_request *r = e->request;
    if (!e->model->tok) {
        ns_refusal_set(e->refusal, 400, "no_tokenizer", "messages",
                       "this model has no tokenizer files: chat needs them");
        return NS_INPUT;
    }
    struct ns_chat_options options = {.add_generation_prompt = true, .thinking = r->thinking, .effort = r->effort};
    struct ns_error why = {0};
    enum ns_code rc = ns_chat_encode(e->model->tok, r->messages, &options, ids, &why);
    if (rc == NS_INPUT)
        ns_refusal_set(e->refusal, 400, "invalid_value", "messages", "%.600s", why.message);
    return rc == NS_INPUT ? rc : rc == NS_OK ? NS_OK : ns_error_set(e->err, rc, "%s", why.message);
}

/* Takes ids over on success. */
static enum ns_code add_prompt(struct encoding *e, struct ns_ids *ids, uint32_t score_from, const char *param)
{
    uint32_t context = e->model->context;
    bool is_score = score_from > 0;
    uint32_t needed = is_score || e->request->max_tokens == 0 ? 0 : 1;
    if (ids->n == 0) {
        ns_refusal_set(e->refusal, 400, "empty_prompt", param, "%s has no tokens", param);
        return NS_INPUT;
    }
    if (ids->n > context || context - ids->n < needed) {
        ns_refusal_set(e->refusal, 400, "context_length_exceeded", param,
                       "%s has %zu token%s%s, the context of this run is %" PRIu32, param, ids->n, NS_PLURAL(ids->n),
                       needed ? " and at least one more is to be generated" : "", context);
        return NS_INPUT;
    }
    uint32_t n = (uint32_t)ids->n, room = context - n;
    uint32_t max_new = is_score ? 0 : e->request->max_tokens < room ? e->request->max_tokens : room;
    e->out->prompt[e->out->n++] =
        (struct ns_prompt){.is_score = is_score, .id = ids->id, .n = n, .score_from = score_from, .max_new = max_new};
    *ids = (struct ns_ids){.budget = ids->budget};
    return NS_OK;
}

/* The ids of one choice in its context; the boundary is where the prompt alone ends. */
static enum ns_code encode_choice(struct encoding *e, size_t i, size_t boundary, struct ns_text *joined)
{
    const struct ns_input *prompt = &e->request->prompt, *choice = &e->request->choice[i];
    char param[32];
    snprintf(param, sizeof param, "choices[%zu]", i);
    struct ns_ids ids;
    ns_ids_init(&ids, e->out->budget);
    enum ns_code rc;
    if (!prompt->is_ids && !choice->is_ids) {
        ns_text_clear(joined);
        ns_text_add(joined, prompt->text.s, prompt->text.n);
        ns_text_add(joined, choice->text.s, choice->text.n);
        rc = ns_text_ok(joined)
                 ? encode_text(e, joined->data, joined->n, param, &ids)
                 : ns_error_set(e->err, NS_BUDGET, "no memory for a choice of %zu bytes", choice->text.n);
    } else {
        rc = encode_input(e, prompt, "prompt", &ids);
        if (rc == NS_OK)
            rc = encode_input(e, choice, param, &ids);
    }
    if (rc == NS_OK && ids.n <= boundary) {
        ns_refusal_set(e->refusal, 400, "empty_choice", param,
                       "%s adds no token to the prompt: with it there are %zu, without %zu", param, ids.n, boundary);
        rc = NS_INPUT;
    }
    if (rc == NS_OK)
        rc = add_prompt(e, &ids, (uint32_t)(boundary < UINT32_MAX ? boundary : UINT32_MAX), param);
    ns_ids_fini(&ids);
    return rc;
}

static enum ns_code encode_all(struct encoding *e)
{
    const struct ns_request *r = e->request;
    struct ns_ids ids;
    ns_ids_init(&ids, e->out->budget);
    bool is_chat = r->kind == NS_KIND_CHAT;
    const char *param = is_chat ? "messages" : "prompt";
    enum ns_code rc = is_chat ? encode_chat(e, &ids) : encode_input(e, &r->prompt, param, &ids);
    if (rc == NS_OK && ids.n == 0) {
        ns_refusal_set(e->refusal, 400, "empty_prompt", param, "%s has no tokens", param);
        rc = NS_INPUT;
    }
    size_t boundary = ids.n;
    if (rc == NS_OK)
        e->out->prompt_tokens = (uint32_t)(boundary < UINT32_MAX ? boundary : UINT32_MAX);
    if (rc == NS_OK && r->kind != NS_KIND_CHOICE)
        rc = add_prompt(e, &ids, 0, param);
    ns_ids_fini(&ids);
    struct ns_text joined;
    ns_text_init(&joined, e->out->budget);
    for (size_t i = 0; rc == NS_OK && i < r->n_choices; i++)
        rc = encode_choice(e, i, boundary, &joined);
    ns_text_fini(&joined);
    return rc;
}

enum ns_code ns_request_encode(const struct ns_request *request, const struct ns_job_model *model,
                               struct ns_budget *budget, struct ns_encoded *out, struct ns_refusal *refusal,
                               struct ns_error *err)
{
    *out = (struct ns_encoded){.budget = budget};
    *refusal = (struct ns_refusal){0};
    size_t n = request->kind == NS_KIND_CHOICE ? request->n_choices : 1;
    out->prompt = ns_budget_take(budget, n * sizeof *out->prompt, err); /* n <= NS_CHOICES_MAX */
    if (!out->prompt)
        return NS_BUDGET;
    struct encoding e = {.request = request, .model = model, .refusal = refusal, .err = err, .out = out};
    enum ns_code rc = encode_all(&e);
    if (rc != NS_OK)
        ns_encoded_fini(out);
    return rc;
}

void ns_encoded_fini(struct ns_encoded *encoded)
{
    if (!encoded->budget)
        return;
    for (size_t i = 0; i < encoded->n; i++)
        ns_budget_give(encoded->budget, encoded->prompt[i].id);
    ns_budget_give(encoded->budget, encoded->prompt);
    *encoded = (struct ns_encoded){.budget = encoded->budget};
}
