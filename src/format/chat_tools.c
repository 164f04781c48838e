/* chat_tools.c - tool calls of the assistant and the results of tools, in a rendered chat.
 * A call's arguments are written one by one with their JSON type; a string as it is, everything else as JSON with ", " and
 * ": ". Arguments that came as text which is no JSON object are passed on verbatim, since the model wrote them. Results
 * that follow each other are put into the order of the calls they answer, if every one of them answers one. */
#include "format/chat_impl.h"

#include <stdio.h>
#include <string.h>

static struct ns_chat_attribute attribute(const char *name, const char *value)
{
    return (struct ns_chat_attribute){name, value, strlen(value)};
}

/* The type's name in the markup: numbers are one type. */
static const char *type_name(const struct ns_json *value)
{
    enum ns_json_type type = ns_json_type(value);
    return type == NS_JSON_INT || type == NS_JSON_REAL ? "number" : ns_json_type_name(type);
}

static void render_argument(struct ns_chat_out *o, const char *key, const struct ns_json *value)
{
    const struct ns_chat_attribute attributes[] = {
        attribute("key", key), attribute("type", type_name(value)), {NULL, NULL, 0}};
    const char *s;
    size_t n;
    ns_chat_open(o, "argument", attributes);
    if (ns_json_string(value, &s, &n)) {
        ns_chat_text(o, s, n);
    } else {
        struct ns_text text;
        struct ns_json_writer w;
        ns_text_init(&text, o->budget);
        ns_json_begin(&w, &text);
        ns_json_put_spaced(&w, value);
        if (!ns_text_ok(&text))
            ns_chat_refuse_memory(o);
        ns_chat_text(o, text.data, text.n);
        ns_text_fini(&text);
    }
    ns_chat_close(o, "argument");
}

static void render_members(struct ns_chat_out *o, const struct ns_json *arguments)
{
    for (void *it = ns_json_first(arguments); it; it = ns_json_next(arguments, it))
        render_argument(o, ns_json_key(it), ns_json_value(it));
}

static void render_arguments(struct ns_chat_out *o, const struct ns_json *arguments)
{
    const char *s;
    size_t n;
    if (ns_json_is_null(arguments))
        return;
    if (ns_json_type(arguments) == NS_JSON_OBJECT) {
        render_members(o, arguments);
        return;
    }
    if (!ns_json_string(arguments, &s, &n)) {
        ns_chat_refuse(o, "arguments is %s, an object or text was expected", type_name(arguments));
        return;
    }
    struct ns_json *doc = NULL;
    enum ns_code rc = ns_json_parse(s, n, &doc, NULL);
    if (rc == NS_BUDGET)
        ns_chat_refuse_memory(o);
    if (rc == NS_OK && ns_json_type(doc) == NS_JSON_OBJECT) {
        render_members(o, doc);
    } else {
        const struct ns_chat_attribute attributes[] = {attribute("type", "object"), {NULL, NULL, 0}};
        ns_chat_open(o, "json", attributes);
        ns_chat_text(o, s, n);
        ns_chat_close(o, "json");
    }
    ns_json_free(doc);
}

static const char *name_of_call(const struct ns_json *call)
{
    const char *s = NULL;
    size_t n;
    return ns_json_string(ns_json_find(ns_json_find(call, "function"), "name"), &s, &n) ? s : NULL;
}

void ns_chat_tool_calls(struct ns_chat_out *o, const struct ns_json *calls)
{
    if (ns_json_count(calls) > NS_CHAT_MAX_CALLS) {
        ns_chat_refuse(o, "%zu tool calls, at most %d are understood", ns_json_count(calls), NS_CHAT_MAX_CALLS);
        return;
    }
    ns_chat_open(o, "tools", NULL);
    for (size_t i = 0; i < ns_json_count(calls); i++) {
        const struct ns_json *call = ns_json_item(calls, i);
        const char *name = name_of_call(call);
        char index[24];
        if (!name) {
            ns_chat_refuse(o, "tool call %zu has no function name", i);
            return;
        }
        snprintf(index, sizeof index, "%zu", i + 1);
        const struct ns_chat_attribute attributes[] = {
            attribute("tool", name), attribute("index", index), {NULL, NULL, 0}};
        ns_chat_open(o, "call", attributes);
        render_arguments(o, ns_json_find(ns_json_find(call, "function"), "arguments"));
        ns_chat_close(o, "call");
    }
    ns_chat_close(o, "tools");
}

/* Which of calls the tool message answers, or the number of calls. */
static size_t answered_call(const struct ns_json *message, const struct ns_json *calls)
{
    const struct ns_json *id = ns_json_find(message, "tool_call_id");
    size_t n = ns_json_count(calls), i = 0;
    if (ns_json_type(id) != NS_JSON_STRING)
        return n;
    while (i < n && !ns_json_equal(id, ns_json_find(ns_json_item(calls, i), "id")))
        i++;
    return i;
}

static void render_result(struct ns_chat_out *o, const struct ns_json *message, const struct ns_json *call,
                          uint32_t index)
{
    const char *name = NULL;
    size_t n;
    char number[16];
    if (!ns_json_string(ns_json_find(message, "name"), &name, &n) || n == 0)
        name = name_of_call(call);
    if (!name) {
        ns_chat_refuse(
            o, "a tool result without a name, and its tool_call_id is of no call of the last assistant message");
        return;
    }
    snprintf(number, sizeof number, "%" PRIu32, index);
    const struct ns_chat_attribute attributes[] = {
        attribute("role", "tool"), attribute("tool", name), attribute("index", number), {NULL, NULL, 0}};
    ns_chat_open(o, "message", attributes);
    ns_chat_content(o, message, false);
    ns_chat_end(o);
}

void ns_chat_tool_results(struct ns_chat_out *o, const struct ns_json *messages, size_t from, size_t to,
                          const struct ns_json *calls, uint32_t *index)
{
    size_t n_calls = ns_json_count(calls), n = to - from;
    size_t *answers = ns_budget_take(o->budget, n * sizeof *answers, o->err);
    if (!answers) {
        ns_chat_refuse_memory(o);
        return;
    }
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        answers[i] = answered_call(ns_json_item(messages, from + i), calls);
        all &= answers[i] < n_calls;
    }
    for (size_t turn = 0; turn < (all ? n_calls : 1); turn++)
        for (size_t i = 0; i < n && o->rc == NS_OK; i++)
            if (!all || answers[i] == turn)
                render_result(o, ns_json_item(messages, from + i),
                              answers[i] < n_calls ? ns_json_item(calls, answers[i]) : NULL, ++*index);
    ns_budget_give(o->budget, answers);
}
