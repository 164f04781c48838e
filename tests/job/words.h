/* words.h - the demo model's tokenizer and a job model around it. For tests. */
#ifndef NS_TESTS_WORDS_H
#define NS_TESTS_WORDS_H

#include "../scratch.h"
#include "job/job.h"

#define VOCAB 2560

struct words {
    struct ns_budget budget;
    struct ns_tokenizer *tok;
    struct ns_job_model model;
    struct ns_ids ids; /* of the last say */
};

static inline int words_open(void **state)
{
    struct words *w = calloc(1, sizeof *w);
    struct ns_error err = {0};
    ns_json_init();
    ns_budget_init(&w->budget, "test", (size_t)256 << 20);
    if (ns_tokenizer_open(NS_SOURCE_DIR "/jobs/demo", VOCAB, &w->budget, &w->tok, &err) != NS_OK)
        fail_msg("%s", err.message);
    static const char generation[] = "{\"eos_token_id\":[2306,2305]}";
    assert_int_equal(ns_job_model_init(&w->model, w->tok, "0123456789abcdef", "f32x16.1", VOCAB, 64, 2306, generation,
                                       sizeof generation - 1, &err),
                     NS_OK);
    ns_ids_init(&w->ids, &w->budget);
    *state = w;
    return 0;
}

static inline int words_close(void **state)
{
    struct words *w = *state;
    ns_ids_fini(&w->ids);
    ns_tokenizer_close(w->tok);
    assert_int_equal(ns_budget_used(&w->budget), 0);
    free(w);
    return 0;
}

/* The ids of text with markers as control ids, kept in w->ids. */
static inline void words_say(struct words *w, const char *text)
{
    w->ids.n = 0;
    assert_int_equal(ns_tokenizer_encode(w->tok, text, strlen(text), true, &w->ids, NULL), NS_OK);
}

static inline void words_request(struct words *w, const char *line, struct ns_request *out)
{
    struct ns_refusal refusal;
    if (ns_request_parse(line, strlen(line), &w->budget, out, &refusal, NULL) != NS_OK)
        fail_msg("%s: %s", line, refusal.message);
}

#endif
