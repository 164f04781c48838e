/* reply.c - when a generation is over, and what its text is.
 *
 * WHAT   judge decides after each token whether the generation ends; read turns the tokens of a finished (or cut off)
 *        generation into text, for chat into reasoning and answer.
 * WHY    Both are functions of the tokens alone. A run that resumes from committed tokens therefore decides exactly as
 *        the one that was killed would have, with no stop-matching state to save.
 * HOW    Stop strings are searched in the raw bytes of the tokens: a stop string is whole UTF-8 and UTF-8 never has
 *        one character's bytes inside another's, so bytes and characters agree. Only matches that end inside the last
 *        token are new; earlier ones would have ended the generation earlier.
 *        Chat structure is read from marker ids, never from text, so an answer may spell a marker without being cut.
 *        A marker without its whole tag (the limit came between them, or the model never finished it) is text, spelled
 *        out and counted like any other: nothing a model said is hidden from its reader.
 * INVARIANTS
 *   1. An end met on the last allowed token is a stop.                     (reply_test: c91_end_exactly_at_the_limit)
 *   2. Text is whole UTF-8 wherever the tokens are cut.                    (reply_test: c88_limit_inside_a_character)
 *   3. A marker spelled in ordinary text changes nothing.                  (reply_test: spelled_marker_is_text)
 *   4. Without a closed thinking part a finished stream is the answer.     (reply_test: c23_answer_without_thinking)
 *   5. Structure that is cut off or malformed is text.                     (reply_test: broken_structure_is_text) */
#include "job/job_impl.h"

#include <string.h>

const char *ns_finish_name(enum ns_finish finish)
{
    return finish == NS_FINISH_STOP ? "stop" : finish == NS_FINISH_LENGTH ? "length" : NULL;
}

uint32_t ns_request_n_top(const struct ns_request *request)
{
    return request->wants_logprobs && request->n_logprobs > 0 ? request->n_logprobs : 1;
}

bool ns_request_wants_prompt_logprobs(const struct ns_request *request)
{
    return request->echo && request->wants_logprobs;
}

/* Bytes a token adds to the text; special ids add none, nor does any id without a tokenizer. */
static size_t token_bytes(const struct ns_job_model *model, uint32_t id, const uint8_t **bytes)
{
    size_t n;
    bool special;
    *bytes = NULL;
    if (!model->tok || ns_tokenizer_bytes(model->tok, id, bytes, &n, &special, NULL) != NS_OK || special)
        return 0;
    return n;
}

/* ---- stop strings -------------------------------------------------------------------------------------------------------- */

/* Where the earliest stop string begins that ends within the last token, as bytes back from the end of the stream;
 * 0: none. */
static size_t stop_bytes_back(const struct ns_request *r, const struct ns_job_model *model, const uint32_t *token,
                              size_t n)
{
    if (r->n_stops == 0 || !model->tok)
        return 0;
    const uint8_t *bytes;
    size_t last = n > 0 ? token_bytes(model, token[n - 1], &bytes) : 0;
    if (last == 0)
        return 0;
    size_t best = 0;
    for (size_t s = 0; s < r->n_stops; s++) {
        struct ns_slice stop = r->stop[s];
        /* try every end inside the last token: cut bytes after the match, compare backwards over earlier tokens */
        for (size_t cut = 0; cut < last; cut++) {
            size_t left = stop.n, skip = cut, i = n;
            bool same = true;
            while (left > 0 && i > 0 && same) {
                size_t have = token_bytes(model, token[--i], &bytes);
                if (have <= skip) {
                    skip -= have;
                    continue;
                }
                have -= skip;
                skip = 0;
                size_t take = have < left ? have : left;
                same = memcmp(bytes + have - take, stop.s + left - take, take) == 0;
                left -= take;
            }
            if (left == 0 && same && stop.n + cut > best)
                best = stop.n + cut;
        }
    }
    return best;
}

enum ns_finish ns_reply_judge(const struct ns_request *request, const struct ns_job_model *model, uint32_t max_new,
                              const uint32_t *token, size_t n)
{
    if (n > 0 && !request->ignore_eos && ns_is_stop_id(model, token[n - 1]))
        return NS_FINISH_STOP;
    if (stop_bytes_back(request, model, token, n) > 0)
        return NS_FINISH_STOP;
    return n >= max_new ? NS_FINISH_LENGTH : NS_FINISH_NONE;
}

/* ---- chat structure -------------------------------------------------------------------------------------------------------- */

enum { NOTHING = 0, REASONING = 1, CONTENT = 2 };

#define TAG_TOKENS_MAX 64 /* a name, its attributes and the separator; what is longer is no tag */

static bool has_structure(const struct ns_request *r, const struct ns_job_model *model)
{
    return r->kind == NS_KIND_CHAT && model->close != NS_NO_TOKEN && model->sep != NS_NO_TOKEN;
}

/* Bytes of a marker that is text, because it belongs to no whole tag: its spelling. */
static size_t marker_bytes(const struct ns_job_model *model, uint32_t id, const uint8_t **bytes)
{
    size_t n;
    bool special;
    bool is_marker = id == model->open || id == model->close || id == model->sep;
    return is_marker && ns_tokenizer_bytes(model->tok, id, bytes, &n, &special, NULL) == NS_OK ? n : 0;
}

static bool is_tag(const char *name)
{
    static const char *const known[] = {"think", "response", "message", "tools", "call", "argument", "json"};
    for (size_t i = 0; i < NS_COUNT(known); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return false;
}

/* The name of the tag whose marker stands before at: what comes before the first blank or the separator. Returns the
 * index after the separator, or 0 when this is no tag of the format or its end is missing. */
static size_t tag_name(const struct ns_job_model *model, const uint32_t *token, size_t at, size_t n, char name[16])
{
    size_t used = 0;
    bool is_over = false;
    for (size_t i = at; i < n && i < at + TAG_TOKENS_MAX; i++) {
        if (token[i] == model->sep) {
            name[used] = '\0';
            return is_tag(name) ? i + 1 : 0;
        }
        const uint8_t *bytes;
        size_t k = token_bytes(model, token[i], &bytes);
        if (k == 0) /* a control id of any kind */
            return 0;
        for (size_t b = 0; b < k && !is_over; b++) {
            is_over = bytes[b] == ' ' || used == 15;
            if (!is_over)
                name[used++] = (char)bytes[b];
        }
    }
    return 0;
}

/* What a whole tag, name after a marker, makes of the text behind it. */
struct stream {
    uint8_t part;
    bool think_closed, answer_closed;
};

static void follow_tag(struct stream *s, bool closes, const char *name)
{
    bool is_think = strcmp(name, "think") == 0;
    s->think_closed = s->think_closed || (closes && is_think);
    s->answer_closed = s->answer_closed || (closes && (strcmp(name, "response") == 0 || strcmp(name, "message") == 0));
    if (!closes)
        s->part = is_think ? REASONING : CONTENT;
    else if (s->think_closed || s->answer_closed)
        s->part = CONTENT;
}

/* Marks each token as reasoning, content or structure; structure that is cut off or malformed is text. in_reasoning
 * tells where the stream ended. */
static void mark_parts(const struct ns_request *r, const struct ns_job_model *model, const uint32_t *token, size_t n,
                       enum ns_finish finish, struct ns_reply *out)
{
    bool is_chat = has_structure(r, model);
    struct stream s = {.part = is_chat && r->thinking ? REASONING : CONTENT};
    for (size_t i = 0; i < n;) {
        bool may_begin = is_chat && (token[i] == model->close || token[i] == model->open);
        char name[16];
        size_t next = may_begin ? tag_name(model, token, i + 1, n, name) : 0;
        if (next > 0) {
            follow_tag(&s, token[i] == model->close, name);
            i = next; /* the parts of a tag stay NOTHING */
            continue;
        }
        out->part[i] = ns_is_stop_id(model, token[i]) && i + 1 == n && finish == NS_FINISH_STOP ? NOTHING : s.part;
        i++;
    }
    bool whole_is_answer = is_chat && r->thinking && !s.think_closed && (s.answer_closed || finish == NS_FINISH_STOP);
    for (size_t i = 0; whole_is_answer && i < n; i++)
        if (out->part[i] == REASONING)
            out->part[i] = CONTENT;
    out->in_reasoning = s.part == REASONING && !whole_is_answer;
}

void ns_text_drop_nul(struct ns_text *text)
{
    if (text->n == 0 || !memchr(text->data, 0, text->n))
        return;
    struct ns_text clean;
    ns_text_init(&clean, text->budget);
    for (size_t i = 0; i < text->n; i++)
        if (text->data[i])
            ns_text_add(&clean, text->data + i, 1);
        else
            ns_text_puts(&clean, "\xEF\xBF\xBD");
    clean.failed = clean.failed || text->failed;
    ns_text_fini(text);
    *text = clean;
}

/* ---- text ---------------------------------------------------------------------------------------------------------------- */

static void add_texts(const struct ns_request *r, const struct ns_job_model *model, const uint32_t *token, size_t n,
                      size_t cut_back, struct ns_reply *out)
{
    struct ns_decoder decoder[3] = {0};
    size_t total = 0, at = 0;
    const uint8_t *bytes;
    for (size_t i = 0; i < n; i++)
        total += token_bytes(model, token[i], &bytes);
    size_t keep = total - cut_back;
    bool is_chat = has_structure(r, model);
    for (size_t i = 0; i < n && (at < keep || cut_back == 0); i++) {
        size_t k = token_bytes(model, token[i], &bytes);
        size_t shown = keep - at < k ? keep - at : k;
        at += k;
        if (k == 0 && is_chat)
            shown = marker_bytes(model, token[i], &bytes);
        if (out->part[i] == REASONING)
            ns_decoder_add(&decoder[REASONING], bytes, shown, &out->reasoning);
        else if (out->part[i] == CONTENT)
            ns_decoder_add(&decoder[CONTENT], bytes, shown, &out->content);
    }
    ns_decoder_flush(&decoder[REASONING], &out->reasoning);
    ns_decoder_flush(&decoder[CONTENT], &out->content);
}

enum ns_code ns_reply_read(const struct ns_request *request, const struct ns_job_model *model, const uint32_t *token,
                           size_t n, enum ns_finish finish, struct ns_budget *budget, struct ns_reply *out,
                           struct ns_error *err)
{
    *out = (struct ns_reply){.budget = budget};
    ns_text_init(&out->content, budget);
    ns_text_init(&out->reasoning, budget);
    out->part = ns_budget_take(budget, n, err);
    if (!out->part)
        return NS_BUDGET;
    mark_parts(request, model, token, n, finish, out);
    for (size_t i = 0; i < n; i++) {
        out->reasoning_tokens += out->part[i] == REASONING;
        out->content_tokens += out->part[i] == CONTENT;
    }
    size_t cut_back = finish == NS_FINISH_STOP ? stop_bytes_back(request, model, token, n) : 0;
    add_texts(request, model, token, n, cut_back, out);
    ns_text_drop_nul(&out->content);
    ns_text_drop_nul(&out->reasoning);
    ns_text_add(&out->content, "", 0); /* data is never NULL, even without a byte */
    ns_text_add(&out->reasoning, "", 0);
    if (ns_text_ok(&out->content) && ns_text_ok(&out->reasoning))
        return NS_OK;
    ns_reply_fini(out);
    return ns_error_set(err, NS_BUDGET, "no memory for the text of %zu tokens", n);
}

void ns_reply_fini(struct ns_reply *reply)
{
    if (!reply->budget)
        return;
    ns_text_fini(&reply->content);
    ns_text_fini(&reply->reasoning);
    ns_budget_give(reply->budget, reply->part);
    *reply = (struct ns_reply){.budget = reply->budget};
}
