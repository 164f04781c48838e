/* chat.c - messages to segments to ids, in the markup the model was trained on.
 *
 * WHAT   A conversation becomes a row of segments: the four control markers, and everything else as ordinary text.
 *            OPEN(tag, a="v")  =  <|open|> tag ' a' '="' v '"' ... <|sep|>        CLOSE(tag)  =  <|close|> tag <|sep|>
 *        Order: declared tools, thinking effort, the messages, tool choice, response format, the opened reply.
 * WHY    Each segment is tokenised on its own: that is how the ids came about in training, and it is also the whole
 *        defence against injection, because a marker segment is mapped to its id by name and no other segment is ever
 *        read in marker mode. Whatever a user, a tool or a schema spells stays text.
 * INVARIANTS
 *   1. Only the four markers are marker segments.                              (chat_test: c16_no_marker_from_any_field)
 *   2. Reasoning of every past assistant turn is kept verbatim, unless it is white space.   (chat_test: c25_history)
 *   3. Nothing is dropped silently: what cannot be rendered is refused with the message's index.
 *                                                                              (chat_test: bad_messages_are_refused)
 * READING  Specification of the model, section 6 and appendix B; the strings below are wire constants. */
#include "format/chat_impl.h"

#include <stdio.h>
#include <string.h>

static const char open_marker[] = "<|open|>", close_marker[] = "<|close|>", sep_marker[] = "<|sep|>",
                  end_marker[] = "<|end_of_msg|>";

/* ---- segments ------------------------------------------------------------------------------------------------------------ */

static void emit(struct ns_chat_out *o, const char *text, size_t n, bool is_marker)
{
    if (o->rc == NS_OK && n > 0)
        o->rc = o->each(o->arg, text, n, is_marker, o->assistant, o->err);
}

void ns_chat_text(struct ns_chat_out *o, const char *text, size_t n)
{
    emit(o, text, n, false);
}

static void emit_word(struct ns_chat_out *o, const char *word)
{
    emit(o, word, strlen(word), false);
}

static void emit_marker(struct ns_chat_out *o, const char *marker)
{
    emit(o, marker, strlen(marker), true);
}

void ns_chat_refuse(struct ns_chat_out *o, const char *fmt, ...)
{
    if (o->rc != NS_OK)
        return;
    char text[400];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    o->rc = ns_error_set(o->err, NS_INPUT, "%s", n < 0 ? "a bad message" : text);
}

void ns_chat_refuse_memory(struct ns_chat_out *o)
{
    if (o->rc == NS_OK)
        o->rc = ns_error_set(o->err, NS_BUDGET, "no memory for a message");
}

/* An attribute's value: & and " are escaped, angle brackets are not. */
static void emit_escaped(struct ns_chat_out *o, const char *s, size_t n)
{
    struct ns_text escaped;
    ns_text_init(&escaped, o->budget);
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '&')
            ns_text_puts(&escaped, "&amp;");
        else if (s[i] == '"')
            ns_text_puts(&escaped, "&quot;");
        else
            ns_text_add(&escaped, &s[i], 1);
    }
    if (!ns_text_ok(&escaped))
        ns_chat_refuse_memory(o);
    emit(o, escaped.data, escaped.n, false);
    ns_text_fini(&escaped);
}

void ns_chat_open(struct ns_chat_out *o, const char *tag, const struct ns_chat_attribute *attributes)
{
    emit_marker(o, open_marker);
    emit_word(o, tag);
    for (const struct ns_chat_attribute *a = attributes; a && a->name; a++) {
        char name[32];
        snprintf(name, sizeof name, " %s", a->name);
        emit_word(o, name);
        emit_word(o, "=\"");
        emit_escaped(o, a->value, a->n);
        emit_word(o, "\"");
    }
    emit_marker(o, sep_marker);
}

void ns_chat_close(struct ns_chat_out *o, const char *tag)
{
    emit_marker(o, close_marker);
    emit_word(o, tag);
    emit_marker(o, sep_marker);
}

void ns_chat_end(struct ns_chat_out *o)
{
    ns_chat_close(o, "message");
    emit_marker(o, end_marker);
}

/* ---- messages of the system that the encoder writes itself --------------------------------------------------------------- */

static void system_message(struct ns_chat_out *o, const char *type, const char *body, size_t n)
{
    const struct ns_chat_attribute attributes[] = {
        {"role", "system", 6}, {"type", type, strlen(type)}, {NULL, NULL, 0}};
    ns_chat_open(o, "message", attributes);
    ns_chat_text(o, body, n);
    ns_chat_end(o);
}

/* before, then value as sorted JSON in a fence. */
static void system_json(struct ns_chat_out *o, const char *type, const char *before, const struct ns_json *value)
{
    struct ns_text body;
    struct ns_json_writer w;
    ns_text_init(&body, o->budget);
    ns_text_puts(&body, before);
    ns_text_puts(&body, "```json\n");
    ns_json_begin(&w, &body);
    ns_json_put_sorted(&w, value);
    ns_text_puts(&body, "\n```");
    if (!ns_text_ok(&body))
        ns_chat_refuse_memory(o);
    system_message(o, type, body.data, body.n);
    ns_text_fini(&body);
}

static void render_tools(struct ns_chat_out *o, const struct ns_json *tools, bool later)
{
    static const char first[] = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
    static const char more[] = "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
                               "You have access to all existing and extended tools.\n"
                               "Here are the specs for the extended tools.\n\n";
    if (ns_json_is_null(tools))
        return;
    if (ns_json_type(tools) != NS_JSON_ARRAY)
        ns_chat_refuse(o, "tools is %s, a list was expected", ns_json_type_name(ns_json_type(tools)));
    else if (ns_json_count(tools) > 0)
        system_json(o, "tool-declare", later ? more : first, tools);
}

static void render_effort(struct ns_chat_out *o, const struct ns_chat_options *options)
{
    const char *effort = options->effort;
    if (!options->thinking || !effort)
        return;
    if (strcmp(effort, "low") != 0 && strcmp(effort, "high") != 0 && strcmp(effort, "max") != 0) {
        ns_chat_refuse(o, "reasoning effort \"%.40s\": low, high and max are known", effort);
        return;
    }
    char body[400];
    int n =
        snprintf(body, sizeof body,
                 "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
                 "channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked "
                 "with `thinking_effort=%s`.",
                 effort);
    system_message(o, "thinking-effort", body, (size_t)n);
}

/* The string value of v, or NULL when it is none. Strings have no NUL in them: the JSON reader refuses it. */
static const char *string_of(const struct ns_json *v)
{
    const char *s = NULL;
    size_t n;
    return ns_json_string(v, &s, &n) ? s : NULL;
}

static void render_tool_choice(struct ns_chat_out *o, const struct ns_json *choice)
{
    static const char required[] = "The system is invoked with `tool_choice=required`.\n"
                                   "You MUST call tools in the next message.";
    static const char none[] = "The system is invoked with `tool_choice=none`.\n"
                               "You MUST NOT call any tools in the next message.";
    const char *s = string_of(choice);
    if (ns_json_is_null(choice) || (s && strcmp(s, "auto") == 0))
        return;
    if (s && strcmp(s, "required") == 0)
        system_message(o, "tool-choice", required, sizeof required - 1);
    else if (s && strcmp(s, "none") == 0)
        system_message(o, "tool-choice", none, sizeof none - 1);
    else
        ns_chat_refuse(o, "tool_choice: only \"auto\", \"none\" and \"required\" are known");
}

static void render_response_format(struct ns_chat_out *o, const struct ns_json *format)
{
#define RAW_JSON                                                                                                       \
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
    static const char object[] = "The system is invoked with `response_format=json_object`.\n" RAW_JSON;
    static const char schema[] = "The system is invoked with `response_format=json_schema`.\n" RAW_JSON
                                 "\nThe JSON data must match the following schema:\n";
    if (ns_json_is_null(format))
        return;
    const char *type = string_of(ns_json_find(format, "type"));
    const struct ns_json *value = ns_json_find(ns_json_find(format, "json_schema"), "schema");
    if (type && strcmp(type, "text") == 0)
        return;
    if (type && strcmp(type, "json_object") == 0)
        system_message(o, "response-format", object, sizeof object - 1);
    else if (type && strcmp(type, "json_schema") == 0 && ns_json_type(value) == NS_JSON_OBJECT)
        system_json(o, "response-format", schema, value);
    else if (type && strcmp(type, "json_schema") == 0)
        ns_chat_refuse(o, "response_format: json_schema.schema is not an object");
    else
        ns_chat_refuse(o, "response_format.type: only \"text\", \"json_object\" and \"json_schema\" are known");
}

/* ---- messages ------------------------------------------------------------------------------------------------------------- */

void ns_chat_content(struct ns_chat_out *o, const struct ns_json *message, bool may_be_null)
{
    const struct ns_json *content = ns_json_find(message, "content");
    const char *s;
    size_t n;
    if (ns_json_string(content, &s, &n)) {
        ns_chat_text(o, s, n);
        return;
    }
    if (ns_json_is_null(content) && may_be_null)
        return;
    if (ns_json_type(content) != NS_JSON_ARRAY) {
        ns_chat_refuse(o, "content is %s, text or a list of parts was expected",
                       content ? ns_json_type_name(ns_json_type(content)) : "missing");
        return;
    }
    for (size_t i = 0; i < ns_json_count(content); i++) {
        const struct ns_json *part = ns_json_item(content, i);
        const char *type = string_of(ns_json_find(part, "type"));
        if (!type || strcmp(type, "text") != 0)
            ns_chat_refuse(o, "content part %zu has type \"%.40s\": only text is understood", i, type ? type : "");
        else if (!ns_json_string(ns_json_find(part, "text"), &s, &n))
            ns_chat_refuse(o, "content part %zu has no text", i);
        else
            ns_chat_text(o, s, n);
    }
}

/* OPEN(message, role=..., name=...) */
static void open_message(struct ns_chat_out *o, const struct ns_json *message, const char *role)
{
    const struct ns_json *name = ns_json_find(message, "name");
    struct ns_chat_attribute attributes[3] = {{"role", role, strlen(role)}};
    if (!ns_json_is_null(name) && !ns_json_string(name, &attributes[1].value, &attributes[1].n))
        ns_chat_refuse(o, "name is %s, text was expected", ns_json_type_name(ns_json_type(name)));
    if (attributes[1].n > 0)
        attributes[1].name = "name";
    ns_chat_open(o, "message", attributes);
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int k = ns_utf8_next((const uint8_t *)s + i, n - i, &c);
        if (k <= 0 || !ns_char_is_space(c))
            return false;
        i += (size_t)k;
    }
    return true;
}

/* The thinking channel is there whenever thinking is on, with or without reasoning. */
static void render_reasoning(struct ns_chat_out *o, const struct ns_json *message)
{
    const struct ns_json *reasoning = ns_json_find(message, "reasoning_content");
    if (ns_json_is_null(reasoning))
        reasoning = ns_json_find(message, "reasoning");
    const char *s = NULL;
    size_t n = 0;
    if (!ns_json_is_null(reasoning) && !ns_json_string(reasoning, &s, &n))
        ns_chat_refuse(o, "reasoning_content is %s, text was expected", ns_json_type_name(ns_json_type(reasoning)));
    ns_chat_open(o, "think", NULL);
    if (!is_blank(s, n))
        ns_chat_text(o, s, n);
    ns_chat_close(o, "think");
}

/* Returns the message's calls, NULL when it has none. */
static const struct ns_json *render_assistant(struct ns_chat_out *o, const struct ns_json *message, bool thinking)
{
    const struct ns_json *calls = ns_json_find(message, "tool_calls");
    if (!ns_json_is_null(calls) && ns_json_type(calls) != NS_JSON_ARRAY)
        ns_chat_refuse(o, "tool_calls is %s, a list was expected", ns_json_type_name(ns_json_type(calls)));
    if (ns_json_count(calls) == 0)
        calls = NULL;
    open_message(o, message, "assistant");
    o->assistant = true;
    if (thinking)
        render_reasoning(o, message);
    ns_chat_open(o, "response", NULL);
    ns_chat_content(o, message, true);
    ns_chat_close(o, "response");
    if (calls)
        ns_chat_tool_calls(o, calls);
    ns_chat_end(o);
    o->assistant = false;
    return calls;
}

static void render_system(struct ns_chat_out *o, const struct ns_json *message)
{
    const struct ns_json *tools = ns_json_find(message, "tools"), *content = ns_json_find(message, "content");
    if (ns_json_is_null(tools)) {
        open_message(o, message, "system");
        ns_chat_content(o, message, false);
        ns_chat_end(o);
        return;
    }
    const char *s = string_of(content);
    if (!ns_json_is_null(content) && !(s && *s == '\0'))
        ns_chat_refuse(o, "a system message carries tools or content, not both");
    render_tools(o, tools, true);
}

static bool has_role(const struct ns_json *message, const char *role)
{
    const char *s = string_of(ns_json_find(message, "role"));
    return s && strcmp(s, role) == 0;
}

static void render_messages(struct ns_chat_out *o, const struct ns_json *messages, bool thinking)
{
    const struct ns_json *calls = NULL; /* of the last assistant message */
    uint32_t n_results = 0;             /* since then */
    size_t n = ns_json_count(messages), next;
    for (size_t i = 0; i < n && o->rc == NS_OK; i = next) {
        const struct ns_json *message = ns_json_item(messages, i);
        next = i + 1;
        if (has_role(message, "user")) {
            open_message(o, message, "user");
            ns_chat_content(o, message, false);
            ns_chat_end(o);
        } else if (has_role(message, "system")) {
            render_system(o, message);
        } else if (has_role(message, "assistant")) {
            calls = render_assistant(o, message, thinking);
            n_results = 0;
        } else if (has_role(message, "tool")) {
            while (next < n && has_role(ns_json_item(messages, next), "tool"))
                next++;
            ns_chat_tool_results(o, messages, i, next, calls, &n_results);
        } else {
            const char *role = string_of(ns_json_find(message, "role"));
            ns_chat_refuse(o, "role \"%.40s\": user, system, assistant and tool are known", role ? role : "");
        }
        if (o->rc != NS_OK)
            ns_error_wrap(o->err, o->rc, "messages[%zu]", i);
    }
}

enum ns_code ns_chat_render(const struct ns_json *messages, const struct ns_chat_options *options,
                            struct ns_budget *budget, ns_chat_segment_fn each, void *arg, struct ns_error *err)
{
    struct ns_chat_out o = {.each = each, .arg = arg, .budget = budget, .err = err};
    if (ns_json_type(messages) != NS_JSON_ARRAY || ns_json_count(messages) == 0)
        return ns_error_set(err, NS_INPUT, "messages is not a list with at least one message");
    render_tools(&o, options->tools, false);
    render_effort(&o, options);
    if (o.rc == NS_OK)
        render_messages(&o, messages, options->thinking);
    render_tool_choice(&o, options->tool_choice);
    render_response_format(&o, options->response_format);
    if (options->add_generation_prompt) {
        const struct ns_chat_attribute attributes[] = {{"role", "assistant", 9}, {NULL, NULL, 0}};
        ns_chat_open(&o, "message", attributes);
        ns_chat_open(&o, options->thinking ? "think" : "response", NULL);
    }
    return o.rc;
}

/* ---- ids -------------------------------------------------------------------------------------------------------------------- */

struct encoding {
    const struct ns_tokenizer *tok;
    struct ns_ids *ids;
};

static enum ns_code encode_segment(void *arg, const char *text, size_t n, bool is_marker, bool is_assistant,
                                   struct ns_error *err)
{
    struct encoding *e = arg;
    (void)is_assistant;
    if (!is_marker)
        return ns_tokenizer_encode(e->tok, text, n, false, e->ids, err);
    uint32_t id = ns_tokenizer_special(e->tok, text);
    if (id == NS_NO_TOKEN)
        return ns_error_set(err, NS_INPUT, "the tokenizer has no %s: this model has another chat format", text);
    return ns_ids_add(e->ids, &id, 1, err);
}

enum ns_code ns_chat_encode(const struct ns_tokenizer *tok, const struct ns_json *messages,
                            const struct ns_chat_options *options, struct ns_ids *ids, struct ns_error *err)
{
    struct encoding e = {.tok = tok, .ids = ids};
    size_t before = ids->n;
    enum ns_code rc = ns_chat_render(messages, options, tok->budget, encode_segment, &e, err);
    if (rc != NS_OK)
        ids->n = before;
    return rc;
}
