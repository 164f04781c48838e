/* request.c - one JSONL line becomes a checked, defaulted request.
 *
 * WHAT   Four shapes share one set of members: endpoint lines ({custom_id, method, url, body}), plain prompts, plain
 *        chats and choice items. Every member of an object is looked up in one table, members[]: taken, refused by
 *        name unless it has its neutral value, or listed as ignored.
 * WHY    A table walk over what is really in the line (rather than asking for what we know) is what makes it
 *        impossible to drop a member silently: a misspelt limit shows up in the result.
 * INVARIANTS
 *   1. Every member is taken, refused or listed.                      (request_test: c11_unknown_members_are_listed)
 *   2. A parameter that would change the answer is never ignored.     (request_test: refusals_name_the_parameter)
 *   3. The same line always gives the same request: submit and admission both parse it. */
#include "job/job_impl.h"

#include <stdio.h>
#include <string.h>

void ns_refusal_set(struct ns_refusal *refusal, int status, const char *code, const char *param, const char *fmt, ...)
{
    *refusal = (struct ns_refusal){.status = status};
    snprintf(refusal->code, sizeof refusal->code, "%s", code);
    snprintf(refusal->param, sizeof refusal->param, "%s", param ? param : "");
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(refusal->message, sizeof refusal->message, fmt, args);
    va_end(args);
    if (n < 0)
        refusal->message[0] = '\0';
    ns_text_repair(refusal->param);
    ns_text_repair(refusal->message);
}

void ns_text_repair(char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = ns_utf8_next((uint8_t *)s + i, n - i, &cp);
        if (k > 0) {
            i += (size_t)k;
        } else if (k == 0) { /* cut in the middle of a character */
            s[i] = '\0';
            return;
        } else {
            for (; k < 0; k++)
                s[i++] = '?';
        }
    }
}

const char *ns_kind_name(enum ns_kind kind)
{
    static const char *const name[] = {"completion", "chat", "plain", "choice"};
    return name[kind];
}

bool ns_line_is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n')
            return false;
    return true;
}

static void ignore(struct ns_parse *p, const char *prefix, const char *key)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, key);
    ns_text_repair(name);
    ns_json_put_cstring(&p->ignored, name);
}

/* ---- members ------------------------------------------------------------------------------------------------------- */

enum {
    COMPLETION = 1u << NS_KIND_COMPLETION,
    CHAT = 1u << NS_KIND_CHAT,
    PLAIN = 1u << NS_KIND_PLAIN,
    CHOICE = 1u << NS_KIND_CHOICE,
    TEXT = COMPLETION | PLAIN,
    GENERATE = TEXT | CHAT,
    ANY = GENERATE | CHOICE
};

/* What a parameter must be so that leaving it out changes nothing; null always is. */
enum neutral {
    NO_RULE,
    ONLY_NULL,
    ONLY_ZERO,
    ONLY_ONE,
    ONLY_FALSE,
    ONLY_TRUE,
    ONLY_EMPTY,
    ONLY_TOP_ONE,
    ONLY_TEXT,
    ONLY_NO_TOOL
};

struct member {
    const char *key;
    unsigned kinds;
    bool (*take)(struct ns_parse *p, const char *key, const struct ns_json *value);
    enum neutral neutral;
};

/* clang-format off */
static const struct member members[] = {
    {"model",                 ANY,        ns_take_model,       NO_RULE},
    {"prompt",                TEXT|CHOICE,ns_take_prompt,      NO_RULE},
    {"messages",              CHAT,       ns_take_messages,    NO_RULE},
    {"choices",               CHOICE,     ns_take_choices,     NO_RULE},
    {"answer",                CHOICE,     ns_take_answer,      NO_RULE},
    {"max_tokens",            GENERATE,   ns_take_max_tokens,  NO_RULE},
    {"max_completion_tokens", CHAT,       ns_take_max_tokens,  NO_RULE},
    {"stop",                  GENERATE,   ns_take_stop,        NO_RULE},
    {"logprobs",              GENERATE,   ns_take_logprobs,    NO_RULE},
    {"top_logprobs",          CHAT,       ns_take_top_logprobs,NO_RULE},
    {"echo",                  TEXT,       ns_take_flag,        NO_RULE},
    {"ignore_eos",            GENERATE,   ns_take_flag,        NO_RULE},
    {"return_token_ids",      GENERATE,   ns_take_flag,        NO_RULE},
    {"reasoning_effort",      CHAT,       ns_take_effort,      NO_RULE},
    {"chat_template_kwargs",  CHAT,       ns_take_kwargs,      NO_RULE},
    /* greedy only, for now */
    {"temperature",           ANY,        NULL, ONLY_ZERO},
    {"top_p",                 ANY,        NULL, ONLY_ONE},
    {"top_k",                 ANY,        NULL, ONLY_TOP_ONE},
    {"min_p",                 ANY,        NULL, ONLY_ZERO},
    {"typical_p",             ANY,        NULL, ONLY_ONE},
    {"n",                     ANY,        NULL, ONLY_ONE},
    {"best_of",               ANY,        NULL, ONLY_ONE},
    {"presence_penalty",      ANY,        NULL, ONLY_ZERO},
    {"frequency_penalty",     ANY,        NULL, ONLY_ZERO},
    {"repetition_penalty",    ANY,        NULL, ONLY_ONE},
    {"length_penalty",        ANY,        NULL, ONLY_ONE},
    {"logit_bias",            ANY,        NULL, ONLY_EMPTY},
    {"use_beam_search",       ANY,        NULL, ONLY_FALSE},
    {"do_sample",             ANY,        NULL, ONLY_FALSE},
    {"logits_processors",     ANY,        NULL, ONLY_EMPTY},
    {"allowed_token_ids",     ANY,        NULL, ONLY_EMPTY},
    {"bad_words",             ANY,        NULL, ONLY_EMPTY},
    {"min_tokens",            ANY,        NULL, ONLY_ZERO},
    {"seed",                  ANY,        ns_take_seed, NO_RULE},
    /* answers of another form */
    {"stream",                ANY,        NULL, ONLY_FALSE},
    {"tools",                 ANY,        NULL, ONLY_EMPTY},
    {"tool_choice",           ANY,        NULL, ONLY_NO_TOOL},
    {"functions",             ANY,        NULL, ONLY_EMPTY},
    {"function_call",         ANY,        NULL, ONLY_NO_TOOL},
    {"response_format",       ANY,        NULL, ONLY_TEXT},
    {"structured_outputs",    ANY,        NULL, ONLY_EMPTY},
    {"guided_json",           ANY,        NULL, ONLY_NULL},
    {"guided_regex",          ANY,        NULL, ONLY_NULL},
    {"guided_choice",         ANY,        NULL, ONLY_EMPTY},
    {"guided_grammar",        ANY,        NULL, ONLY_NULL},
    {"modalities",            ANY,        NULL, ONLY_TEXT},
    {"audio",                 ANY,        NULL, ONLY_NULL},
    {"images",                ANY,        NULL, ONLY_EMPTY},
    {"web_search_options",    ANY,        NULL, ONLY_NULL},
    {"suffix",                ANY,        NULL, ONLY_EMPTY},
    {"prompt_embeds",         ANY,        NULL, ONLY_NULL},
    {"prompt_logprobs",       ANY,        NULL, ONLY_NULL},
    {"stop_token_ids",        ANY,        NULL, ONLY_EMPTY},
    {"include_stop_str_in_output", ANY,   NULL, ONLY_FALSE},
    {"skip_special_tokens",   ANY,        NULL, ONLY_TRUE},
    {"add_special_tokens",    ANY,        NULL, ONLY_FALSE},
    {"add_generation_prompt", ANY,        NULL, ONLY_TRUE},
    {"continue_final_message",ANY,        NULL, ONLY_FALSE},
    {"truncate_prompt_tokens",ANY,        NULL, ONLY_NULL},
    {"chat_template",         ANY,        NULL, ONLY_NULL},
    {"documents",             ANY,        NULL, ONLY_EMPTY},
    {"include_reasoning",     ANY,        NULL, ONLY_TRUE},
    /* known under another kind: a member that has no meaning here must not pass as ignored */
    {"messages",              TEXT|CHOICE,NULL, ONLY_NULL},
    {"prompt",                CHAT,       NULL, ONLY_NULL},
    {"choices",               GENERATE,   NULL, ONLY_NULL},
    {"echo",                  CHAT|CHOICE,NULL, ONLY_FALSE},
    {"reasoning_effort",      TEXT|CHOICE,NULL, ONLY_NULL},
    {"top_logprobs",          TEXT|CHOICE,NULL, ONLY_NULL},
};

/* clang-format on */

static bool number_is(const struct ns_json *value, double wanted)
{
    double v;
    return ns_json_number(value, &v) && v >= wanted && v <= wanted;
}

static bool string_is(const struct ns_json *value, const char *wanted)
{
    const char *s;
    size_t n;
    return ns_json_string(value, &s, &n) && n == strlen(wanted) && memcmp(s, wanted, n) == 0;
}

static bool is_neutral(enum neutral rule, const struct ns_json *value)
{
    if (ns_json_is_null(value))
        return true;
    bool flag;
    const char *s;
    size_t n;
    switch (rule) {
    case NO_RULE:
        return true;
    case ONLY_NULL:
        return false;
    case ONLY_ZERO:
        return number_is(value, 0);
    case ONLY_ONE:
        return number_is(value, 1);
    case ONLY_TOP_ONE: /* 0 and -1 switch it off; 1 is greedy */
        return number_is(value, 0) || number_is(value, -1) || number_is(value, 1);
    case ONLY_FALSE:
        return ns_json_bool(value, &flag) && !flag;
    case ONLY_TRUE:
        return ns_json_bool(value, &flag) && flag;
    case ONLY_EMPTY:
        if (ns_json_string(value, &s, &n))
            return n == 0;
        return (ns_json_type(value) == NS_JSON_ARRAY || ns_json_type(value) == NS_JSON_OBJECT) &&
               ns_json_count(value) == 0;
    case ONLY_TEXT: /* {"type":"text"} or ["text"] */
        return string_is(ns_json_find(value, "type"), "text") ||
               (ns_json_count(value) == 1 && string_is(ns_json_item(value, 0), "text"));
    case ONLY_NO_TOOL:
        return string_is(value, "none") || string_is(value, "auto");
    }
    return false;
}

static bool refuse_parameter(struct ns_parse *p, const char *key, enum neutral rule)
{
    static const char *const may[] = {
        [ONLY_NULL] = "is not supported",
        [ONLY_ZERO] = "is not supported other than 0 (greedy decoding only)",
        [ONLY_ONE] = "is not supported other than 1 (one greedy answer only)",
        [ONLY_FALSE] = "is not supported other than false",
        [ONLY_TRUE] = "is not supported other than true",
        [ONLY_EMPTY] = "is not supported",
        [ONLY_TOP_ONE] = "is not supported (greedy decoding only)",
        [ONLY_TEXT] = "is not supported other than text",
        [ONLY_NO_TOOL] = "is not supported: requests with tools are refused",
    };
    return ns_parse_refuse(p, "unsupported_parameter", key, "%s %s", key, may[rule] ? may[rule] : "is not supported");
}

static const struct member *find_member(const char *key, unsigned kind)
{
    for (size_t i = 0; i < NS_COUNT(members); i++)
        if ((members[i].kinds & kind) && strcmp(members[i].key, key) == 0)
            return &members[i];
    return NULL;
}

/* prefix: "" or "body." for the list of ignored members. skip: members of the line itself, read elsewhere. */
static bool take_members(struct ns_parse *p, const struct ns_json *object, const char *const *skip)
{
    unsigned kind = 1u << p->r->kind;
    for (void *it = ns_json_first(object); it; it = ns_json_next(object, it)) {
        const char *key = ns_json_key(it);
        const struct ns_json *value = ns_json_value(it);
        bool skipped = false;
        for (size_t i = 0; skip[i]; i++)
            skipped = skipped || strcmp(skip[i], key) == 0;
        if (skipped)
            continue;
        const struct member *m = find_member(key, kind);
        if (!m) {
            ignore(p, "", key);
        } else if (m->take) {
            if (!ns_json_is_null(value) && !m->take(p, key, value))
                return false;
        } else if (!is_neutral(m->neutral, value)) {
            return refuse_parameter(p, key, m->neutral);
        }
    }
    return true;
}

/* ---- the line -------------------------------------------------------------------------------------------------------- */

static bool take_custom_id(struct ns_parse *p, const struct ns_json *line)
{
    const struct ns_json *v = ns_json_find(line, "custom_id");
    const char *s;
    size_t n;
    if (ns_json_is_null(v))
        return ns_parse_refuse(p, "missing_required_parameter", "custom_id", "custom_id is missing");
    if (!ns_json_string(v, &s, &n))
        return ns_parse_refuse(p, "invalid_type", "custom_id", "custom_id must be a string, not %s",
                               ns_json_type_name(ns_json_type(v)));
    if (ns_line_is_blank(s, n))
        return ns_parse_refuse(p, "missing_required_parameter", "custom_id", "custom_id is blank");
    if (n > NS_CUSTOM_ID_MAX)
        return ns_parse_refuse(p, "invalid_value", "custom_id", "custom_id has %zu bytes, at most %d are allowed", n,
                               NS_CUSTOM_ID_MAX);
    p->r->custom_id = (struct ns_slice){s, n};
    return true;
}

static bool take_expected(struct ns_parse *p, const struct ns_json *line)
{
    const struct ns_json *v = ns_json_find(line, "expected");
    if (ns_json_is_null(v))
        return true;
    const char *s;
    size_t n;
    if (!ns_json_string(v, &s, &n))
        return ns_parse_refuse(p, "invalid_type", "expected", "expected must be a string, not %s",
                               ns_json_type_name(ns_json_type(v)));
    if (ns_line_is_blank(s, n))
        return ns_parse_refuse(p, "invalid_value", "expected", "expected is blank: everything would match");
    p->r->has_expected = true;
    p->r->expected = (struct ns_slice){s, n};
    return true;
}

static bool take_endpoint_line(struct ns_parse *p, const struct ns_json *line, const struct ns_json **body)
{
    const struct ns_json *method = ns_json_find(line, "method"), *url = ns_json_find(line, "url");
    const char *s;
    size_t n;
    if (ns_json_is_null(method))
        return ns_parse_refuse(p, "missing_required_parameter", "method", "method is missing, it must be \"POST\"");
    if (!string_is(method, "POST"))
        return ns_parse_refuse(p, "invalid_value", "method", "method must be \"POST\"");
    if (ns_json_is_null(url))
        return ns_parse_refuse(p, "missing_required_parameter", "url", "url is missing");
    if (!ns_json_string(url, &s, &n))
        return ns_parse_refuse(p, "invalid_type", "url", "url must be a string, not %s",
                               ns_json_type_name(ns_json_type(url)));
    if (string_is(url, "/v1/completions"))
        p->r->kind = NS_KIND_COMPLETION;
    else if (string_is(url, "/v1/chat/completions"))
        p->r->kind = NS_KIND_CHAT;
    else
        return ns_parse_refuse(p, "url_mismatch", "url",
                               "url \"%.*s\" is not served; /v1/completions and /v1/chat/completions are",
                               (int)(n < 200 ? n : 200), s);
    *body = ns_json_find(line, "body");
    if (ns_json_is_null(*body))
        return ns_parse_refuse(p, "missing_required_parameter", "body", "body is missing");
    if (ns_json_type(*body) != NS_JSON_OBJECT)
        return ns_parse_refuse(p, "invalid_type", "body", "body must be an object, not %s",
                               ns_json_type_name(ns_json_type(*body)));
    static const char *const known[] = {"custom_id", "method", "url", "body", "expected"};
    for (void *it = ns_json_first(line); it; it = ns_json_next(line, it)) {
        bool is_known = false;
        for (size_t i = 0; i < NS_COUNT(known); i++)
            is_known = is_known || strcmp(known[i], ns_json_key(it)) == 0;
        if (!is_known)
            ignore(p, "line.", ns_json_key(it));
    }
    return true;
}

static bool take_line(struct ns_parse *p, const struct ns_json *line)
{
    if (ns_json_type(line) != NS_JSON_OBJECT)
        return ns_parse_refuse(p, "invalid_json_line", NULL, "the line must be a JSON object, not %s",
                               ns_json_type_name(ns_json_type(line)));
    if (!take_custom_id(p, line))
        return false;
    static const char *const of_line[] = {"custom_id", "expected", NULL};
    static const char *const of_body[] = {NULL};
    const char *const *skip = of_line;
    const struct ns_json *body = line;
    if (ns_json_find(line, "body") || ns_json_find(line, "url") || ns_json_find(line, "method")) {
        skip = of_body;
        if (!take_endpoint_line(p, line, &body))
            return false;
    } else if (ns_json_find(line, "choices")) {
        p->r->kind = NS_KIND_CHOICE;
    } else if (ns_json_find(line, "messages")) {
        p->r->kind = NS_KIND_CHAT;
    } else {
        p->r->kind = NS_KIND_PLAIN;
    }
    p->r->max_tokens = p->r->kind == NS_KIND_CHAT ? 4096 : 16;
    p->r->thinking = p->r->kind == NS_KIND_CHAT;
    return take_members(p, body, skip) && take_expected(p, line) && ns_parse_check_whole(p);
}

enum ns_code ns_request_parse(const char *line, size_t n, struct ns_budget *budget, struct ns_request *out,
                              struct ns_refusal *refusal, struct ns_error *err)
{
    *out = (struct ns_request){.budget = budget};
    *refusal = (struct ns_refusal){0};
    ns_text_init(&out->ignored, budget);
    struct ns_error why = {0};
    enum ns_code rc = ns_json_parse(line, n, &out->doc, &why);
    if (rc == NS_INPUT) {
        ns_refusal_set(refusal, 400, "invalid_json_line", NULL, "not valid JSON: %.500s", why.message);
        return NS_INPUT;
    }
    if (rc != NS_OK)
        return ns_error_set(err, rc, "%s", why.message);
    struct ns_parse p = {.r = out, .refusal = refusal, .err = err};
    ns_json_begin(&p.ignored, &out->ignored);
    ns_json_open_array(&p.ignored);
    bool good = take_line(&p, out->doc);
    ns_json_close_array(&p.ignored);
    if (p.code != NS_OK)
        return p.code;
    if (!good)
        return NS_INPUT;
    if (!ns_text_ok(&out->ignored))
        return ns_error_set(err, NS_BUDGET, "no memory for a request");
    return NS_OK;
}

void ns_request_fini(struct ns_request *request)
{
    if (!request->budget)
        return;
    for (size_t i = 0; i < request->n_choices; i++)
        ns_budget_give(request->budget, request->choice[i].id);
    ns_budget_give(request->budget, request->choice);
    ns_budget_give(request->budget, request->stop);
    ns_budget_give(request->budget, request->prompt.id);
    ns_text_fini(&request->ignored);
    ns_json_free(request->doc);
    *request = (struct ns_request){0};
}
