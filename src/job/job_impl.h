/* job_impl.h - private to job/: the state of parsing one line, and what its files share. */
#ifndef NS_JOB_IMPL_H
#define NS_JOB_IMPL_H

#include "job/job.h"

struct ns_parse {
    struct ns_request *r;
    struct ns_refusal *refusal;
    struct ns_json_writer ignored;
    struct ns_error *err;
    enum ns_code code; /* not NS_OK: memory ran out, which is not the line's fault */
    bool has_max, has_top_logprobs, has_prompt, has_choices;
};

/* Bad bytes become '?', a cut character at the end goes. */
void ns_text_repair(char *s);
/* Sets the refusal, returns false. */
bool ns_parse_refuse(struct ns_parse *p, const char *code, const char *param, const char *fmt, ...) NS_PRINTF(4, 5);

/* Members (member.c): false when refused or out of memory. value is never null. */
bool ns_take_model(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_prompt(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_messages(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_choices(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_answer(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_max_tokens(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_stop(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_logprobs(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_top_logprobs(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_flag(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_effort(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_kwargs(struct ns_parse *p, const char *key, const struct ns_json *value);
bool ns_take_seed(struct ns_parse *p, const char *key, const struct ns_json *value);
/* What only all members together can tell. */
bool ns_parse_check_whole(struct ns_parse *p);

/* Bytes of a token as text for log-probabilities: its spelling, "bytes:\xe2\x82" when that is not UTF-8, "token_id:7"
 * without a tokenizer. */
void ns_token_text(const struct ns_job_model *model, uint32_t id, struct ns_text *out);
void ns_text_drop_nul(struct ns_text *text); /* NUL, which JSON readers refuse, becomes U+FFFD */

/* One response body being written (body.c). All pointers are borrowed. */
struct ns_body {
    struct ns_json_writer w;
    const struct ns_request *request;
    const struct ns_job_model *model;
    const struct ns_outcome *outcome;
    size_t n;
    const struct ns_run_facts *facts;
    const struct ns_reply *reply;
    const struct ns_result *result;
    struct ns_text *scratch;
    bool identity; /* with id and created */
};

void ns_put_text(struct ns_json_writer *w, const struct ns_text *text);
void ns_put_ids(struct ns_json_writer *w, const char *key, const uint32_t *id, size_t n);
/* The whole body into out; best is the chosen choice. */
NS_MUST_CHECK enum ns_code ns_body_write(struct ns_body *b, size_t best, struct ns_text *out, struct ns_error *err);

bool ns_is_stop_id(const struct ns_job_model *model, uint32_t id);

#endif
