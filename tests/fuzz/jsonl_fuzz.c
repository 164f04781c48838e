/* jsonl_fuzz.c - one line of a batch file: a request that is whole, or a refusal that says why. What was accepted can be
 * encoded, within the context, to ids of the vocabulary. */
#include "fuzz.h"

#include "job/job.h"

static struct ns_budget budget;
static struct ns_tokenizer *tok;
static struct ns_job_model model;

enum { VOCAB = 768, CONTEXT = 4096 };

static void must_be_a_refusal(const struct ns_refusal *r)
{
    MUST(r->status >= 400 && r->code[0] != '\0' && r->message[0] != '\0');
    MUST(ns_utf8_valid(r->message, strlen(r->message)) && ns_utf8_valid(r->param, strlen(r->param)));
}

static void check_encoded(const struct ns_request *request)
{
    struct ns_encoded encoded = {0};
    struct ns_refusal refusal = {0};
    struct ns_error err = {0};
    enum ns_code rc = ns_request_encode(request, &model, &budget, &encoded, &refusal, &err);
    MUST(rc == NS_OK || rc == NS_INPUT);
    if (rc == NS_INPUT)
        must_be_a_refusal(&refusal);
    for (size_t i = 0; rc == NS_OK && i < encoded.n; i++) {
        const struct ns_prompt *p = &encoded.prompt[i];
        MUST(p->n >= 1 && (uint64_t)p->n + p->max_new <= CONTEXT);
        MUST(!p->is_score || (p->score_from >= 1 && p->score_from < p->n));
        for (uint32_t k = 0; k < p->n; k++)
            MUST(p->id[k] < VOCAB);
    }
    ns_encoded_fini(&encoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_error err = {0};
    if (!tok) {
        ns_json_init();
        ns_budget_init(&budget, "fuzz", 512u << 20);
        MUST(ns_tokenizer_open(NS_SOURCE_DIR "/tests/data/fixtures/k3-tiny", VOCAB, &budget, &tok, &err) == NS_OK);
        MUST(ns_job_model_init(&model, tok, "0123456789abcdef", "f32x16.1", VOCAB, CONTEXT, 514, NULL, 0, &err) ==
             NS_OK);
    }
    size_t used = ns_budget_used(&budget);
    struct ns_request request = {0};
    struct ns_refusal refusal = {0};
    enum ns_code rc = ns_request_parse((const char *)data, size, &budget, &request, &refusal, &err);
    MUST(rc == NS_OK || rc == NS_INPUT);
    if (rc == NS_INPUT) {
        must_be_a_refusal(&refusal);
    } else {
        MUST(request.custom_id.n >= 1 && request.custom_id.n <= NS_CUSTOM_ID_MAX);
        MUST(request.n_logprobs <= NS_LOGPROBS_MAX && request.n_choices <= NS_CHOICES_MAX);
        check_encoded(&request);
    }
    ns_request_fini(&request);
    MUST(ns_budget_used(&budget) == used);
    return 0;
}
