/* chat_impl.h - private to the room: the emitter that the parts of the chat encoder write to. */
#ifndef NS_CHAT_IMPL_H
#define NS_CHAT_IMPL_H

#include "format/tokenizer_impl.h"
#include "json/json.h"

/* Segments go out in order; after the first error nothing does. */
struct ns_chat_out {
    ns_chat_segment_fn each;
    void *arg;
    struct ns_budget *budget;
    struct ns_error *err;
    enum ns_code rc;
    bool assistant; /* what follows was written by the assistant */
};

struct ns_chat_attribute {
    const char *name; /* NULL ends a list */
    const char *value;
    size_t n;
};

void ns_chat_text(struct ns_chat_out *o, const char *text, size_t n); /* one ordinary segment; empty: none */
void ns_chat_open(struct ns_chat_out *o, const char *tag, const struct ns_chat_attribute *attributes);
void ns_chat_close(struct ns_chat_out *o, const char *tag);
void ns_chat_end(struct ns_chat_out *o); /* CLOSE(message) and the end-of-message marker */
void ns_chat_refuse(struct ns_chat_out *o, const char *fmt, ...) NS_PRINTF(2, 3);
void ns_chat_refuse_memory(struct ns_chat_out *o);

/* chat_tools.c: what calls and their results look like. */
#define NS_CHAT_MAX_CALLS 1024
/* The tools part of an assistant message: calls is a list with at least one item. */
void ns_chat_tool_calls(struct ns_chat_out *o, const struct ns_json *calls);
/* The run of tool messages at messages[from..to); calls: of the last assistant message, or NULL; *index counts results
 * since then. */
void ns_chat_tool_results(struct ns_chat_out *o, const struct ns_json *messages, size_t from, size_t to,
                          const struct ns_json *calls, uint32_t *index);
/* The content of a message: a string, a list of text parts, or null where that is allowed. */
void ns_chat_content(struct ns_chat_out *o, const struct ns_json *message, bool may_be_null);

#endif
