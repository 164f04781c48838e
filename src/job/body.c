/* body.c - the response bodies, one writer per kind, member by member in one fixed order.
 * Called twice per result, with and without id and created (see result.c). */
#include "job/job_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What is written from a text that is not whole is not whole either; the text itself forgets it when it is used again. */
static void need_whole(struct ns_json_writer *w, const struct ns_text *text)
{
    if (!ns_text_ok(text))
        w->out->failed = true;
}

void ns_put_text(struct ns_json_writer *w, const struct ns_text *text)
{
    need_whole(w, text);
    ns_json_put_string(w, text->data ? text->data : "", text->n);
}

static void put_logprob(struct ns_json_writer *w, float v)
{
    ns_json_put_float(w, isinf(v) ? NS_LOGPROB_MINUS_INF : v);
}

void ns_put_ids(struct ns_json_writer *w, const char *key, const uint32_t *id, size_t n)
{
    ns_json_put_key(w, key);
    ns_json_open_array(w);
    for (size_t i = 0; i < n; i++)
        ns_json_put_int(w, id[i]);
    ns_json_close_array(w);
}

void ns_token_text(const struct ns_job_model *model, uint32_t id, struct ns_text *out)
{
    const uint8_t *bytes;
    size_t n;
    bool special;
    ns_text_clear(out);
    if (!model->tok || ns_tokenizer_bytes(model->tok, id, &bytes, &n, &special, NULL) != NS_OK) {
        ns_text_format(out, "token_id:%" PRIu32, id);
    } else if (ns_utf8_valid(bytes, n) && !memchr(bytes, 0, n)) {
        ns_text_add(out, bytes, n);
    } else {
        ns_text_puts(out, "bytes:");
        for (size_t i = 0; i < n; i++)
            ns_text_format(out, "\\x%02x", bytes[i]);
    }
}

static void put_token(struct ns_body *b, uint32_t id)
{
    ns_token_text(b->model, id, b->scratch);
    ns_put_text(&b->w, b->scratch);
}

/* ---- log-probabilities of completions: four parallel arrays ------------------------------------------------------------ */

/* The echoed prompt and the output as one list. */
struct token_row {
    uint32_t id;
    bool has_logprob;
    float logprob;
    const uint32_t *top_id;
    const float *top_logprob;
};

static struct token_row row_of(const struct ns_body *b, size_t i)
{
    const struct ns_outcome *o = b->outcome;
    size_t n_prompt = b->request->echo ? o->n_prompt : 0;
    if (i >= n_prompt) {
        i -= n_prompt;
        return (struct token_row){o->token[i], o->logprob != NULL, o->logprob ? o->logprob[i] : 0,
                                  o->top_id ? o->top_id + i * o->n_top : NULL,
                                  o->top_logprob ? o->top_logprob + i * o->n_top : NULL};
    }
    bool known = i > 0 && o->prompt_logprob; /* nothing comes before the first token */
    return (struct token_row){o->prompt[i], known, known ? o->prompt_logprob[i] : 0,
                              known && o->prompt_top_id ? o->prompt_top_id + i * o->n_top : NULL,
                              known && o->prompt_top_logprob ? o->prompt_top_logprob + i * o->n_top : NULL};
}

static size_t count_rows(const struct ns_body *b)
{
    return (b->request->echo ? b->outcome->n_prompt : 0) + b->outcome->n_out;
}

static size_t count_points(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)s[i] & 0xC0) != 0x80;
    return count;
}

/* Offsets in code points of the shown text; a token that only finishes a character begins where that character does. */
static void put_offsets(struct ns_body *b, size_t n_points)
{
    struct ns_decoder decoder = {0};
    size_t at = 0;
    ns_json_put_key(&b->w, "text_offset");
    ns_json_open_array(&b->w);
    for (size_t i = 0; i < count_rows(b); i++) {
        const uint8_t *bytes = NULL;
        size_t n = 0;
        bool special = true;
        uint32_t id = row_of(b, i).id;
        ns_json_put_int(&b->w, (int64_t)(at < n_points ? at : n_points));
        if (!b->model->tok || ns_tokenizer_bytes(b->model->tok, id, &bytes, &n, &special, NULL) != NS_OK || special)
            continue;
        ns_text_clear(b->scratch);
        ns_decoder_add(&decoder, bytes, n, b->scratch);
        need_whole(&b->w, b->scratch);
        at += count_points(b->scratch->data, b->scratch->n);
    }
    ns_json_close_array(&b->w);
}

static void put_completion_logprobs(struct ns_body *b, size_t n_points)
{
    struct ns_json_writer *w = &b->w;
    size_t n = count_rows(b), k = b->request->n_logprobs;
    ns_json_open_object(w);
    ns_json_put_key(w, "tokens");
    ns_json_open_array(w);
    for (size_t i = 0; i < n; i++)
        put_token(b, row_of(b, i).id);
    ns_json_close_array(w);
    ns_json_put_key(w, "token_logprobs");
    ns_json_open_array(w);
    for (size_t i = 0; i < n; i++) {
        struct token_row row = row_of(b, i);
        if (row.has_logprob)
            put_logprob(w, row.logprob);
        else
            ns_json_put_null(w);
    }
    ns_json_close_array(w);
    ns_json_put_key(w, "top_logprobs");
    if (k == 0)
        ns_json_put_null(w);
    else
        ns_json_open_array(w);
    for (size_t i = 0; k > 0 && i < n; i++) {
        struct token_row row = row_of(b, i);
        if (!row.top_id || !row.top_logprob) {
            ns_json_put_null(w);
            continue;
        }
        ns_json_open_object(w);
        for (size_t j = 0; j < k && j < b->outcome->n_top; j++) {
            ns_token_text(b->model, row.top_id[j], b->scratch);
            need_whole(w, b->scratch);
            ns_json_put_key(w, b->scratch->data ? b->scratch->data : "");
            put_logprob(w, row.top_logprob[j]);
        }
        ns_json_close_object(w);
    }
    if (k > 0)
        ns_json_close_array(w);
    put_offsets(b, n_points);
    ns_json_close_object(w);
}

/* ---- log-probabilities of chats: one object per token -------------------------------------------------------------------- */

static void put_chat_token(struct ns_body *b, uint32_t id, float logprob)
{
    const uint8_t *bytes = NULL;
    size_t n = 0;
    bool special;
    ns_json_put_key(&b->w, "token");
    put_token(b, id);
    ns_json_put_key(&b->w, "logprob");
    put_logprob(&b->w, logprob);
    ns_json_put_key(&b->w, "bytes");
    if (!b->model->tok || ns_tokenizer_bytes(b->model->tok, id, &bytes, &n, &special, NULL) != NS_OK) {
        ns_json_put_null(&b->w);
        return;
    }
    ns_json_open_array(&b->w);
    for (size_t i = 0; i < n; i++)
        ns_json_put_int(&b->w, bytes[i]);
    ns_json_close_array(&b->w);
}

static void put_chat_part(struct ns_body *b, const char *key, uint8_t part)
{
    const struct ns_outcome *o = b->outcome;
    ns_json_put_key(&b->w, key);
    ns_json_open_array(&b->w);
    for (size_t i = 0; i < o->n_out && o->logprob; i++) {
        if (b->reply->part[i] != part)
            continue;
        ns_json_open_object(&b->w);
        put_chat_token(b, o->token[i], o->logprob[i]);
        ns_json_put_key(&b->w, "top_logprobs");
        ns_json_open_array(&b->w);
        for (size_t j = 0; o->top_id && j < b->request->n_logprobs && j < o->n_top; j++) {
            ns_json_open_object(&b->w);
            put_chat_token(b, o->top_id[i * o->n_top + j], o->top_logprob[i * o->n_top + j]);
            ns_json_close_object(&b->w);
        }
        ns_json_close_array(&b->w);
        ns_json_close_object(&b->w);
    }
    ns_json_close_array(&b->w);
}

/* ---- bodies ---------------------------------------------------------------------------------------------------------------- */

static void put_head(struct ns_body *b, const char *prefix, const char *object)
{
    if (b->identity) {
        char id[48];
        snprintf(id, sizeof id, "%s-%" PRId64, prefix, b->facts->request_id);
        ns_json_put_key(&b->w, "id");
        ns_json_put_cstring(&b->w, id);
    }
    ns_json_put_key(&b->w, "object");
    ns_json_put_cstring(&b->w, object);
    if (b->identity) {
        ns_json_put_key(&b->w, "created");
        ns_json_put_int(&b->w, b->facts->created_at_ms / 1000);
    }
    ns_json_put_key(&b->w, "model");
    if (b->request->model.n > 0)
        ns_json_put_string(&b->w, b->request->model.s, b->request->model.n);
    else
        ns_json_put_cstring(&b->w, b->model->name);
    ns_json_put_key(&b->w, "choices");
    ns_json_open_array(&b->w);
    ns_json_open_object(&b->w);
    ns_json_put_key(&b->w, "index");
    ns_json_put_int(&b->w, 0);
}

static void put_tail(struct ns_body *b)
{
    const struct ns_outcome *o = b->outcome;
    ns_json_put_key(&b->w, "finish_reason");
    ns_json_put_cstring(&b->w, ns_finish_name(o->finish));
    if (b->request->return_token_ids) {
        ns_put_ids(&b->w, "token_ids", o->token, o->n_out);
        ns_put_ids(&b->w, "prompt_token_ids", o->prompt, o->n_prompt);
    }
    ns_json_close_object(&b->w);
    ns_json_close_array(&b->w);
    ns_json_put_key(&b->w, "usage");
    ns_json_open_object(&b->w);
    ns_json_put_key(&b->w, "prompt_tokens");
    ns_json_put_int(&b->w, b->result->prompt_tokens);
    ns_json_put_key(&b->w, "completion_tokens");
    ns_json_put_int(&b->w, b->result->completion_tokens);
    ns_json_put_key(&b->w, "total_tokens");
    ns_json_put_int(&b->w, (int64_t)b->result->prompt_tokens + b->result->completion_tokens);
    if (b->request->kind == NS_KIND_CHAT) {
        ns_json_put_key(&b->w, "completion_tokens_details");
        ns_json_open_object(&b->w);
        ns_json_put_key(&b->w, "reasoning_tokens");
        ns_json_put_int(&b->w, b->reply->reasoning_tokens);
        ns_json_put_key(&b->w, "content_tokens");
        ns_json_put_int(&b->w, b->reply->content_tokens);
        ns_json_close_object(&b->w);
    }
    ns_json_close_object(&b->w);
}

static enum ns_code put_completion(struct ns_body *b, struct ns_error *err)
{
    struct ns_text text;
    ns_text_init(&text, b->result->budget);
    enum ns_code rc = NS_OK;
    if (b->request->echo && !b->request->prompt.is_ids)
        ns_text_add(&text, b->request->prompt.text.s, b->request->prompt.text.n);
    else if (b->request->echo && b->model->tok)
        rc = ns_tokenizer_decode(b->model->tok, b->outcome->prompt, b->outcome->n_prompt, true, &text, err);
    ns_text_add(&text, b->reply->content.data, b->reply->content.n);
    ns_text_drop_nul(&text);
    if (rc == NS_OK && !ns_text_ok(&text))
        rc = ns_error_set(err, NS_BUDGET, "no memory for the text of a result");
    if (rc == NS_OK) {
        put_head(b, "cmpl", "text_completion");
        ns_json_put_key(&b->w, "text");
        ns_put_text(&b->w, &text);
        ns_json_put_key(&b->w, "logprobs");
        if (b->request->wants_logprobs)
            put_completion_logprobs(b, count_points(text.data, text.n));
        else
            ns_json_put_null(&b->w);
        put_tail(b);
    }
    ns_text_fini(&text);
    return rc;
}

static void put_chat(struct ns_body *b)
{
    put_head(b, "chatcmpl", "chat.completion");
    ns_json_put_key(&b->w, "message");
    ns_json_open_object(&b->w);
    ns_json_put_key(&b->w, "role");
    ns_json_put_cstring(&b->w, "assistant");
    ns_json_put_key(&b->w, "content");
    ns_put_text(&b->w, &b->reply->content);
    if (b->request->thinking) {
        ns_json_put_key(&b->w, "reasoning_content");
        ns_put_text(&b->w, &b->reply->reasoning);
    }
    ns_json_close_object(&b->w);
    ns_json_put_key(&b->w, "logprobs");
    if (b->request->wants_logprobs) {
        ns_json_open_object(&b->w);
        put_chat_part(b, "content", 2);
        if (b->request->thinking)
            put_chat_part(b, "reasoning_content", 1);
        ns_json_close_object(&b->w);
    } else {
        ns_json_put_null(&b->w);
    }
    put_tail(b);
}

static enum ns_code put_choice(struct ns_body *b, size_t best, struct ns_error *err)
{
    struct ns_json_writer *w = &b->w;
    ns_json_put_key(w, "object");
    ns_json_put_cstring(w, "nightshift.choice");
    ns_json_put_key(w, "best");
    ns_json_put_int(w, (int64_t)best);
    ns_json_put_key(w, "choices");
    ns_json_open_array(w);
    for (size_t i = 0; i < b->n; i++) {
        const struct ns_input *in = &b->request->choice[i];
        const struct ns_outcome *o = &b->outcome[i];
        ns_json_open_object(w);
        ns_json_put_key(w, "index");
        ns_json_put_int(w, (int64_t)i);
        ns_json_put_key(w, "text");
        if (in->is_ids) {
            ns_text_clear(b->scratch);
            if (b->model->tok) {
                enum ns_code rc = ns_tokenizer_decode(b->model->tok, in->id, in->n_ids, true, b->scratch, err);
                if (rc != NS_OK)
                    return rc;
                ns_text_drop_nul(b->scratch);
            }
            ns_put_text(w, b->scratch);
        } else {
            ns_json_put_string(w, in->text.s, in->text.n);
        }
        ns_json_put_key(w, "logprob");
        put_logprob(w, (float)o->score);
        ns_json_put_key(w, "n_tokens");
        ns_json_put_int(w, o->n_scored);
        ns_json_put_key(w, "is_greedy");
        ns_json_put_bool(w, o->is_greedy);
        ns_json_close_object(w);
    }
    ns_json_close_array(w);
    if (b->request->has_answer) {
        ns_json_put_key(w, "answer");
        ns_json_put_int(w, b->request->answer);
        ns_json_put_key(w, "correct");
        ns_json_put_bool(w, best == b->request->answer);
    }
    return NS_OK;
}

/* ---- one body, whole ------------------------------------------------------------------------------------------------- */

enum ns_code ns_body_write(struct ns_body *b, size_t best, struct ns_text *out, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    ns_json_begin(&b->w, out);
    ns_json_open_object(&b->w);
    if (b->request->kind == NS_KIND_CHOICE)
        rc = put_choice(b, best, err);
    else if (b->request->kind == NS_KIND_CHAT)
        put_chat(b);
    else
        rc = put_completion(b, err);
    ns_json_close_object(&b->w);
    return rc == NS_OK && !ns_text_ok(out) ? ns_error_set(err, NS_BUDGET, "no memory for a result") : rc;
}
