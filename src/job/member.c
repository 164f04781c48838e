/* member.c - the members of a request body, one function each: type, range, default. */
#include "job/job_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool ns_parse_refuse(struct ns_parse *p, const char *code, const char *param, const char *fmt, ...)
{
    char text[sizeof p->refusal->message];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    ns_refusal_set(p->refusal, 400, code, param, "%s", n < 0 ? code : text);
    return false;
}

static bool refuse_type(struct ns_parse *p, const char *key, const char *wanted, const struct ns_json *value)
{
    return ns_parse_refuse(p, "invalid_type", key, "%s must be %s, not %s", key, wanted,
                           ns_json_type_name(ns_json_type(value)));
}

static void *take_memory(struct ns_parse *p, size_t count, size_t each)
{
    size_t bytes;
    void *block = NULL;
    if (ns_size_mul(count, each, &bytes))
        block = ns_budget_take(p->r->budget, bytes, p->err);
    if (!block)
        p->code = NS_BUDGET;
    return block;
}

bool ns_take_model(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    struct ns_slice *m = &p->r->model;
    if (!ns_json_string(value, &m->s, &m->n))
        return refuse_type(p, key, "a string", value);
    return true;
}

/* ---- prompts --------------------------------------------------------------------------------------------------------- */

static bool take_ids(struct ns_parse *p, const char *key, const struct ns_json *array, struct ns_input *out)
{
    size_t n = ns_json_count(array);
    uint32_t *id = take_memory(p, n, sizeof *id);
    if (!id)
        return false;
    out->is_ids = true;
    out->id = id;
    out->n_ids = n;
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        const struct ns_json *item = ns_json_item(array, i);
        if (!ns_json_int(item, &v))
            return ns_parse_refuse(p, "invalid_type", key, "%s[%zu] must be a token id, not %s", key, i,
                                   ns_json_type_name(ns_json_type(item)));
        if (v < 0 || v > INT32_MAX)
            return ns_parse_refuse(p, "token_out_of_range", key, "%s[%zu] is %" PRId64 ", not a token id", key, i, v);
        id[i] = (uint32_t)v;
    }
    return true;
}

static bool take_input(struct ns_parse *p, const char *key, const struct ns_json *value, struct ns_input *out)
{
    if (ns_json_type(value) == NS_JSON_ARRAY)
        return take_ids(p, key, value, out);
    if (!ns_json_string(value, &out->text.s, &out->text.n))
        return refuse_type(p, key, "text or an array of token ids", value);
    return true;
}

bool ns_take_prompt(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    const struct ns_json *first = ns_json_type(value) == NS_JSON_ARRAY ? ns_json_item(value, 0) : NULL;
    if (ns_json_type(first) == NS_JSON_STRING || ns_json_type(first) == NS_JSON_ARRAY) {
        if (ns_json_count(value) != 1) /* ["text"] is a list of one prompt, as clients like to send it */
            return ns_parse_refuse(p, "unsupported_parameter", key,
                                   "prompt holds %zu prompts: one prompt per line is supported", ns_json_count(value));
        value = first;
    }
    p->has_prompt = true;
    if (!take_input(p, key, value, &p->r->prompt))
        return false;
    if (p->r->prompt.text.n == 0 && p->r->prompt.n_ids == 0)
        return ns_parse_refuse(p, "empty_prompt", key, "the prompt is empty");
    return true;
}

bool ns_take_choices(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    size_t n = ns_json_count(value);
    if (ns_json_type(value) != NS_JSON_ARRAY)
        return refuse_type(p, key, "an array of texts or token id arrays", value);
    if (n == 0 || n > NS_CHOICES_MAX)
        return ns_parse_refuse(p, "invalid_value", key, "choices has %zu items, 1 to %d are allowed", n,
                               NS_CHOICES_MAX);
    p->has_choices = true;
    p->r->choice = take_memory(p, n, sizeof *p->r->choice);
    if (!p->r->choice)
        return false;
    p->r->n_choices = n;
    for (size_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "choices[%zu]", i);
        struct ns_input *c = &p->r->choice[i];
        if (!take_input(p, name, ns_json_item(value, i), c))
            return false;
        if (c->text.n == 0 && c->n_ids == 0)
            return ns_parse_refuse(p, "empty_choice", name, "%s is empty: there is nothing to score", name);
    }
    return true;
}

bool ns_take_answer(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    int64_t v;
    if (!ns_json_int(value, &v))
        return refuse_type(p, key, "the index of the right choice", value);
    if (v < 0 || v >= NS_CHOICES_MAX)
        return ns_parse_refuse(p, "invalid_value", key, "answer is %" PRId64 ", not the index of a choice", v);
    p->r->has_answer = true;
    p->r->answer = (uint32_t)v;
    return true;
}

/* Light checks only, so that what can never run is refused at submit; the chat encoder judges the rest at admission. */
static bool check_part(struct ns_parse *p, const struct ns_json *part, size_t message, size_t i)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].content[%zu]", message, i);
    const char *type;
    size_t n;
    if (ns_json_type(part) != NS_JSON_OBJECT || !ns_json_string(ns_json_find(part, "type"), &type, &n))
        return ns_parse_refuse(p, "invalid_type", param, "%s must be an object with a type", param);
    if (strcmp(type, "text") != 0)
        return ns_parse_refuse(p, "unsupported_parameter", param, "%s is of type \"%.100s\"; only text is supported",
                               param, type);
    return true;
}

bool ns_take_messages(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    if (ns_json_type(value) != NS_JSON_ARRAY)
        return refuse_type(p, key, "an array", value);
    if (ns_json_count(value) == 0)
        return ns_parse_refuse(p, "empty_prompt", key, "messages is empty");
    for (size_t i = 0; i < ns_json_count(value); i++) {
        const struct ns_json *message = ns_json_item(value, i), *role = ns_json_find(message, "role");
        char param[48];
        snprintf(param, sizeof param, "messages[%zu]", i);
        if (ns_json_type(message) != NS_JSON_OBJECT)
            return ns_parse_refuse(p, "invalid_type", param, "%s must be an object, not %s", param,
                                   ns_json_type_name(ns_json_type(message)));
        if (ns_json_type(role) != NS_JSON_STRING)
            return ns_parse_refuse(p, "missing_required_parameter", param, "%s has no role", param);
        const struct ns_json *content = ns_json_find(message, "content");
        if (ns_json_type(content) != NS_JSON_ARRAY)
            continue;
        for (size_t k = 0; k < ns_json_count(content); k++)
            if (!check_part(p, ns_json_item(content, k), i, k))
                return false;
    }
    p->r->messages = value;
    return true;
}

/* ---- limits and switches ------------------------------------------------------------------------------------------------ */

bool ns_take_max_tokens(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    double v; /* whole, and perhaps beyond every integer */
    if (!ns_json_number(value, &v) || v != floor(v))
        return refuse_type(p, key, "an integer", value);
    if (v < 0 || v > INT32_MAX)
        return ns_parse_refuse(p, "invalid_value", key, "%s is %.15g, 1 to %d are allowed", key, v, INT32_MAX);
    if (p->has_max && p->r->max_tokens != (uint32_t)v)
        return ns_parse_refuse(p, "invalid_value", key,
                               "max_tokens and max_completion_tokens differ: %" PRIu32 " and %" PRIu32,
                               p->r->max_tokens, (uint32_t)v);
    p->has_max = true;
    p->r->max_tokens = (uint32_t)v;
    return true;
}

bool ns_take_stop(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    bool is_array = ns_json_type(value) == NS_JSON_ARRAY;
    size_t n = is_array ? ns_json_count(value) : 1;
    if (n > NS_STOPS_MAX)
        return ns_parse_refuse(p, "invalid_value", key, "stop has %zu strings, at most %d are allowed", n,
                               NS_STOPS_MAX);
    p->r->stop = take_memory(p, n, sizeof *p->r->stop);
    if (!p->r->stop)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct ns_json *item = is_array ? ns_json_item(value, i) : value;
        struct ns_slice *s = &p->r->stop[i];
        if (!ns_json_string(item, &s->s, &s->n))
            return refuse_type(p, key, "a string or an array of strings", item);
        if (s->n == 0)
            return ns_parse_refuse(p, "invalid_value", key, "a stop string is empty");
    }
    p->r->n_stops = n;
    return true;
}

static bool take_count(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    int64_t v;
    if (!ns_json_int(value, &v))
        return refuse_type(p, key, "an integer", value);
    if (v < 0 || v > NS_LOGPROBS_MAX)
        return ns_parse_refuse(p, "invalid_value", key, "%s is %" PRId64 ", 0 to %d are allowed", key, v,
                               NS_LOGPROBS_MAX);
    p->r->n_logprobs = (uint32_t)v;
    return true;
}

bool ns_take_logprobs(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    if (p->r->kind != NS_KIND_CHAT) {
        p->r->wants_logprobs = take_count(p, key, value);
        return p->r->wants_logprobs;
    }
    if (!ns_json_bool(value, &p->r->wants_logprobs))
        return refuse_type(p, key, "true or false", value);
    return true;
}

bool ns_take_top_logprobs(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    p->has_top_logprobs = true;
    return take_count(p, key, value);
}

bool ns_take_flag(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    bool *flag = strcmp(key, "echo") == 0         ? &p->r->echo
                 : strcmp(key, "ignore_eos") == 0 ? &p->r->ignore_eos
                                                  : &p->r->return_token_ids;
    if (!ns_json_bool(value, flag))
        return refuse_type(p, key, "true or false", value);
    return true;
}

bool ns_take_seed(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    int64_t seed; /* greedy decoding draws nothing: any seed gives the same answer */
    if (!ns_json_int(value, &seed))
        return refuse_type(p, key, "an integer", value);
    return true;
}

bool ns_take_effort(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    static const char *const effort[] = {"low", "high", "max"};
    const char *s;
    size_t n;
    if (!ns_json_string(value, &s, &n))
        return refuse_type(p, key, "\"low\", \"high\" or \"max\"", value);
    for (size_t i = 0; i < NS_COUNT(effort); i++)
        if (strcmp(effort[i], s) == 0) {
            p->r->effort = effort[i];
            return true;
        }
    return ns_parse_refuse(p, "invalid_value", key,
                           "reasoning_effort \"%.60s\" is not supported: low, high and max are", s);
}

bool ns_take_kwargs(struct ns_parse *p, const char *key, const struct ns_json *value)
{
    if (ns_json_type(value) != NS_JSON_OBJECT)
        return refuse_type(p, key, "an object", value);
    for (void *it = ns_json_first(value); it; it = ns_json_next(value, it)) {
        char name[96];
        snprintf(name, sizeof name, "chat_template_kwargs.%s", ns_json_key(it));
        ns_text_repair(name);
        if (strcmp(ns_json_key(it), "thinking") != 0)
            ns_json_put_cstring(&p->ignored, name);
        else if (!ns_json_bool(ns_json_value(it), &p->r->thinking))
            return refuse_type(p, name, "true or false", ns_json_value(it));
    }
    return true;
}

/* ---- what only all members together can tell ------------------------------------------------------------------------------ */

bool ns_parse_check_whole(struct ns_parse *p)
{
    struct ns_request *r = p->r;
    if (r->kind == NS_KIND_CHAT && !r->messages)
        return ns_parse_refuse(p, "missing_required_parameter", "messages", "messages is missing");
    if (r->kind != NS_KIND_CHAT && !p->has_prompt)
        return ns_parse_refuse(p, "missing_required_parameter", "prompt", "prompt is missing");
    if (r->kind == NS_KIND_CHOICE && !p->has_choices)
        return ns_parse_refuse(p, "missing_required_parameter", "choices", "choices is missing");
    if (r->has_answer && r->answer >= r->n_choices)
        return ns_parse_refuse(p, "invalid_value", "answer", "answer is %" PRIu32 ", there %s %zu choice%s", r->answer,
                               r->n_choices == 1 ? "is" : "are", r->n_choices, NS_PLURAL(r->n_choices));
    if (r->has_expected && r->kind == NS_KIND_CHOICE)
        return ns_parse_refuse(p, "invalid_value", "expected", "a choice item has an answer, not an expected text");
    if (r->kind != NS_KIND_CHOICE && r->max_tokens == 0 && !r->echo)
        return ns_parse_refuse(p, "invalid_value", "max_tokens", "max_tokens is 0, it must be at least 1");
    if (p->has_top_logprobs && !r->wants_logprobs && r->n_logprobs > 0)
        return ns_parse_refuse(p, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true");
    if (r->kind == NS_KIND_CHAT && r->thinking && !r->effort)
        r->effort = "max"; /* as the release's tokenizer does when the caller says nothing */
    if (!r->thinking)
        r->effort = NULL;
    return true;
}
