/* job.h - what a request and a result say; mirrors schema/.
 *
 * One JSONL line becomes a struct ns_request (request.c), a request becomes sequences of token ids (encode.c), generated
 * tokens are judged one by one (reply.c) and finished sequences become a result (result.c). No SQL, no files, no clock:
 * everything here is a function of its arguments, so it gives the same bytes after a crash, on another day, anywhere.
 * Threads: nothing shared; every value belongs to its caller. */
#ifndef NS_JOB_H
#define NS_JOB_H

#include "base/base.h"
#include "format/format.h"
#include "json/json.h"

#define NS_JOB_LINE_MAX      ((size_t)64 << 20) /* a longer line is refused: line_too_long */
#define NS_CUSTOM_ID_MAX     512                /* bytes */
#define NS_LOGPROBS_MAX      20
#define NS_CHOICES_MAX       1024
#define NS_STOPS_MAX         64
#define NS_LOGPROB_MINUS_INF (-9999.0f) /* what minus infinity is written as: JSON has no infinity */

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* Why a line or request cannot be run; becomes the OpenAI error object {message, type, param, code}.
 * Codes of lines: invalid_json_line, line_too_long, missing_required_parameter, invalid_type, invalid_value,
 * unsupported_parameter, duplicate_custom_id, url_mismatch, model_mismatch, empty_file.
 * Codes at admission: empty_prompt, empty_choice, context_length_exceeded, token_out_of_range, no_tokenizer.
 * Codes of runs: non_finite, corrupt, worker_crashed, internal, cancelled, batch_expired. */
struct ns_refusal {
    int status; /* 400; 500 for failures that are not the request's fault */
    char code[40];
    char param[64];    /* "" is null */
    char message[640]; /* the fact, with both numbers where there are two; always valid UTF-8 */
    int64_t line;      /* of the file that was submitted; 0: not a matter of a line */
};

void ns_refusal_set(struct ns_refusal *refusal, int status, const char *code, const char *param, const char *fmt, ...)
    NS_PRINTF(5, 6);

/* ---- requests (request.c) ---------------------------------------------------------------------------------------- */

enum ns_kind {
    NS_KIND_COMPLETION, /* /v1/completions */
    NS_KIND_CHAT,       /* /v1/chat/completions, or a plain line with messages */
    NS_KIND_PLAIN,      /* {custom_id, prompt, ...} */
    NS_KIND_CHOICE      /* {custom_id, prompt, choices, ...} */
};

const char *ns_kind_name(enum ns_kind kind); /* as in requests.kind: "completion" "chat" "plain" "choice" */

struct ns_slice {
    const char *s; /* borrowed, UTF-8, not terminated */
    size_t n;
};

struct ns_input { /* a prompt or a choice: text, or ids */
    bool is_ids;
    struct ns_slice text;
    uint32_t *id; /* owned by the request */
    size_t n_ids;
};

struct ns_request {
    struct ns_budget *budget;
    struct ns_json *doc; /* owned; every slice below is borrowed from it */
    enum ns_kind kind;
    struct ns_slice custom_id;      /* 1..512 bytes, not blank */
    struct ns_slice model;          /* n 0: the line names none */
    struct ns_input prompt;         /* not for chat */
    const struct ns_json *messages; /* chat: an array with at least one item */
    struct ns_input *choice;        /* [n_choices], NS_KIND_CHOICE only */
    size_t n_choices;
    struct ns_slice *stop; /* [n_stops], none empty */
    size_t n_stops;
    uint32_t max_tokens; /* default 16, chat 4096; 0 only with echo */
    bool wants_logprobs;
    uint32_t n_logprobs; /* 0..20 alternatives per token */
    bool echo, ignore_eos, return_token_ids;
    bool thinking;      /* chat; default true */
    const char *effort; /* chat: "low" "high" "max", static; NULL with thinking off */
    bool has_expected, has_answer;
    struct ns_slice expected;
    uint32_t answer;        /* index of the right choice */
    struct ns_text ignored; /* JSON array of members that had no effect, "[]" when none; x_local shows it */
};

/* Parses, checks and defaults one line. NS_OK: *out is filled, free with ns_request_fini. NS_INPUT: *refusal says why;
 * *out keeps custom_id and doc when they could be read (fini all the same). NS_BUDGET: err. Strict UTF-8, no duplicate
 * keys. Not checked here, because they need the file: duplicate_custom_id, model_mismatch. */
NS_MUST_CHECK enum ns_code ns_request_parse(const char *line, size_t n, struct ns_budget *budget,
                                            struct ns_request *out, struct ns_refusal *refusal, struct ns_error *err);
void ns_request_fini(struct ns_request *request); /* zeroed or half-built is fine */
/* White space only (such a line is skipped), after a byte order mark on line 1 was passed by. */
bool ns_line_is_blank(const char *line, size_t n);

/* ---- the model, as requests see it (encode.c) ---------------------------------------------------------------------- */

#define NS_STOP_IDS_MAX 32

struct ns_job_model {
    const struct ns_tokenizer *tok; /* borrowed; NULL: ids only, text fields are empty */
    char name[80];                  /* "model" of a result whose request names none: from the fingerprint */
    char fingerprint[NS_SHA256_HEX];
    char contract[32];              /* numeric contract, "f32x16.1" */
    uint32_t vocab, context;        /* ids below vocab; prompt + output at most context positions */
    uint32_t stop[NS_STOP_IDS_MAX]; /* ids that end a generation */
    uint32_t n_stop;
    uint32_t open, close, sep; /* <|open|> <|close|> <|sep|>, NS_NO_TOKEN when the tokenizer has none */
};

/* Fills *out. Stop ids: eos (config, -1: none), the markers <|end_of_msg|> [EOS] <|im_end|> where the tokenizer has
 * them, and eos_token_id (number or list) of generation_config text (NULL: no such file; unreadable: NS_INPUT). A listed
 * id that the tokenizer names as another part of the turn format is left out, with a warning. */
NS_MUST_CHECK enum ns_code ns_job_model_init(struct ns_job_model *out, const struct ns_tokenizer *tok,
                                             const char *fingerprint, const char *contract, uint32_t vocab,
                                             uint32_t context, int32_t eos, const char *generation_config, size_t n,
                                             struct ns_error *err);

/* ---- encoding: request -> sequences (encode.c) -------------------------------------------------------------------- */

struct ns_prompt { /* one sequence to run */
    bool is_score; /* score ids[score_from..n) ; else generate after ids */
    uint32_t *id;  /* [n], owned, n >= 1 */
    uint32_t n;
    uint32_t score_from; /* 1 .. n-1 when is_score */
    uint32_t max_new;    /* generate: limit, already cut to what the context leaves; 0 only for echo without output */
};

struct ns_encoded {
    struct ns_budget *budget;
    struct ns_prompt *prompt; /* [n] one per choice; 1 for the other kinds */
    size_t n;
    uint32_t prompt_tokens; /* for usage: ids of the prompt alone */
};
/* NS_INPUT with *refusal: empty, too long (both numbers), an id outside the vocabulary, text without a tokenizer.
 * Markers written in text never become control ids. Choices: encode(prompt + choice), scored from the end of
 * encode(prompt); when either side is ids, the two parts are encoded apart. */
NS_MUST_CHECK enum ns_code ns_request_encode(const struct ns_request *request, const struct ns_job_model *model,
                                             struct ns_budget *budget, struct ns_encoded *out,
                                             struct ns_refusal *refusal, struct ns_error *err);
void ns_encoded_fini(struct ns_encoded *encoded);

/* ---- judging a generation (reply.c) -------------------------------------------------------------------------------- */

enum ns_finish { NS_FINISH_NONE, NS_FINISH_STOP, NS_FINISH_LENGTH };

const char *ns_finish_name(enum ns_finish finish); /* "stop" "length", NULL for none */

/* Is a generation over after token[0..n)? A pure function of its arguments: call it after every token (n rising by
 * one), or once after a resume with all committed tokens. An end id or a stop string that just completed is STOP even
 * on the last allowed token; else n == max_new is LENGTH. n may be 0 (over at once when max_new is 0).
 * Looks at the last few tokens only, so it may be called for every token. */
enum ns_finish ns_reply_judge(const struct ns_request *request, const struct ns_job_model *model, uint32_t max_new,
                              const uint32_t *token, size_t n);

/* What is asked of the engine for each generated or echoed token: at least 1, at most NS_LOGPROBS_MAX. */
uint32_t ns_request_n_top(const struct ns_request *request);
bool ns_request_wants_prompt_logprobs(const struct ns_request *request); /* echo with logprobs */

/* The text of a generation as it is shown: end markers and the stop string left out, UTF-8 whole (an unfinished
 * character at the end becomes U+FFFD). Chat splits it: reasoning and content apart; other kinds: content only. A chat's
 * structure that is cut off or malformed is text, its markers spelled out. */
struct ns_reply {
    struct ns_text content, reasoning;
    uint32_t content_tokens, reasoning_tokens; /* whole tags are counted in neither */
    bool in_reasoning;                         /* the stream ended inside the thinking part */
    /* parts of the token stream, for log-probabilities: 0 none (marker or end), 1 reasoning, 2 content */
    uint8_t *part; /* [n] */
    struct ns_budget *budget;
};
NS_MUST_CHECK enum ns_code ns_reply_read(const struct ns_request *request, const struct ns_job_model *model,
                                         const uint32_t *token, size_t n, enum ns_finish finish,
                                         struct ns_budget *budget, struct ns_reply *out, struct ns_error *err);
void ns_reply_fini(struct ns_reply *reply);

/* ---- scoring (choice.c) ---------------------------------------------------------------------------------------------- */

/* Sum in token order, in double. A not-a-number stays one: check with isnan before use. */
double ns_score_sum(const float *logprob, size_t n);
size_t ns_choice_best(const double *score, size_t n); /* greatest, ties lowest index; n > 0 */
/* The stripped text starts with expected, case ignored, and no letter or digit follows. */
bool ns_expected_starts(struct ns_slice text, struct ns_slice expected);
/* The text contains expected, case ignored. */
bool ns_expected_within(struct ns_slice text, struct ns_slice expected);

/* ---- results (result.c) ------------------------------------------------------------------------------------------------ */

/* What a finished (or cut off) sequence has to say. All arrays are borrowed. Strides: top arrays have n_top per token. */
struct ns_outcome {
    const uint32_t *prompt; /* [n_prompt] */
    size_t n_prompt;
    const uint32_t *token;  /* [n_out] */
    const float *logprob;   /* [n_out], NULL unless logprobs were asked for */
    const uint32_t *top_id; /* [n_out * n_top] */
    const float *top_logprob;
    const float *prompt_logprob;   /* echo: [n_prompt], [0] unused */
    const uint32_t *prompt_top_id; /* echo: [n_prompt * n_top], row 0 unused */
    const float *prompt_top_logprob;
    size_t n_out, n_top;
    enum ns_finish finish;
    double score; /* choices */
    bool is_greedy;
    uint32_t n_scored; /* choices: tokens of the continuation */
};

/* Facts of the run for x_local; zeros are shown as they are. */
struct ns_run_facts {
    int64_t batch_id, request_id; /* names in ids: cmpl-<request_id> */
    int64_t created_at_ms;        /* "created" */
    int64_t runner_id;
    uint32_t attempts, waves, replays;
    uint64_t restored_tokens, recomputed_tokens;
    int64_t queued_ms, run_ms;
};

struct ns_result {
    struct ns_budget *budget;
    int status;
    struct ns_text response; /* the body; n 0 when error is set */
    struct ns_text error;    /* {"code":..,"message":..}: never ran to its end (cancelled, expired) */
    struct ns_text local;    /* the x_local object */
    uint32_t prompt_tokens, completion_tokens;
    int correct;                        /* 0, 1; -1: nothing to compare with */
    char content_sha256[NS_SHA256_HEX]; /* of the body without id, created, request_id, x_local (or of error) */
};

/* The result of a request that ran to its end. outcome[n]: one per choice, else 1. NS_NONFINITE when a value is a
 * not-a-number (make a failure of it); NS_BUDGET. */
NS_MUST_CHECK enum ns_code ns_result_build(const struct ns_request *request, const struct ns_job_model *model,
                                           const struct ns_outcome *outcome, size_t n, const struct ns_run_facts *facts,
                                           struct ns_budget *budget, struct ns_result *out, struct ns_error *err);
/* A refused or failed request: {"error":{message,type,param,code}} with its status. context ("layer 7: expert 212"), the
 * refusal's line and "retry" go to x_local, with facts; request, model, context and facts may be NULL (a bad line has none). */
NS_MUST_CHECK enum ns_code ns_result_fail(const struct ns_request *request, const struct ns_job_model *model,
                                          const struct ns_refusal *refusal, const char *context,
                                          const struct ns_run_facts *facts, struct ns_budget *budget,
                                          struct ns_result *out, struct ns_error *err);
/* A request that was cancelled or ran out of time: response null, error {code, message}; the partial text and ids of
 * outcome (may be NULL, as may request and model) are kept in x_local. code: "cancelled" or "batch_expired". */
NS_MUST_CHECK enum ns_code ns_result_ended(const struct ns_request *request, const struct ns_job_model *model,
                                           const char *code, const char *message, const struct ns_outcome *outcome,
                                           const struct ns_run_facts *facts, struct ns_budget *budget,
                                           struct ns_result *out, struct ns_error *err);
/* From an error of the engine: NS_NONFINITE "non_finite", NS_CORRUPT "corrupt", others "internal"; status 500. */
void ns_refusal_of_error(const struct ns_error *error, struct ns_refusal *out);
void ns_result_fini(struct ns_result *result);

/* content_sha256 of a stored response or error, computed again. NS_INPUT when it does not parse. */
NS_MUST_CHECK enum ns_code ns_result_content_hash(const char *stored, struct ns_budget *budget, char hex[NS_SHA256_HEX],
                                                  struct ns_error *err);

/* One output line without its newline: {"id","custom_id","response":{"status_code","request_id","body":{..,"x_local"}},
 * "error"}. custom_id may be NULL (null). response or error: stored text, the other NULL. */
void ns_output_line(struct ns_text *out, int64_t request_id, const char *custom_id, int status, const char *response,
                    const char *error, const char *local);

/* {"code","message","param","line"} of one bad line, appended to a list that the caller opened. */
void ns_refusal_json(struct ns_json_writer *w, const struct ns_refusal *refusal, int64_t line);

/* The text a person wants of a stored result: content, text, best choice or error message. NS_INPUT when the stored
 * text does not parse. */
NS_MUST_CHECK enum ns_code ns_result_text(const char *response, const char *error, struct ns_text *out,
                                          struct ns_error *err);

#endif
