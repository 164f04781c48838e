/* pending.c - see the header. Bodies are read page by page by the queue; one request is held at a time. */
#include "cli/pending.h"

#include "format/format.h"

#include <string.h>

struct walk {
    struct ns_cli *cli;
    struct ns_job_model model;
    ns_pending_fn each;
    void *arg;
};

static enum ns_code take_request(void *arg, const struct ns_request_info *r, struct ns_error *err)
{
    struct walk *w = arg;
    struct ns_request request = {0};
    struct ns_encoded encoded = {0};
    struct ns_refusal refusal;
    if (!r->body)
        return NS_OK;
    enum ns_code rc = ns_request_parse(r->body, strlen(r->body), &w->cli->budget, &request, &refusal, err);
    if (rc == NS_OK)
        rc = ns_request_encode(&request, &w->model, &w->cli->budget, &encoded, &refusal, err);
    if (rc == NS_OK)
        rc = w->each(w->arg, &request, &encoded, err);
    else if (rc == NS_INPUT)
        rc = NS_OK; /* it will fail at admission */
    ns_encoded_fini(&encoded);
    ns_request_fini(&request);
    return rc;
}

enum ns_code ns_pending_each(struct ns_cli *cli, const char *dir, uint32_t context, struct ns_queue *queue,
                             ns_pending_fn each, void *arg, struct ns_error *err)
{
    static const char *const states[] = {"queued", "running"};
    struct walk walk = {.cli = cli, .each = each, .arg = arg};
    struct ns_config config;
    struct ns_tokenizer *tok = NULL;
    enum ns_code rc = ns_config_read(dir, &cli->budget, &config, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_tokenizer_open(dir, config.vocab, &cli->budget, &tok, err);
    if (rc == NS_OK)
        rc = ns_job_model_init(&walk.model, tok, "", "", config.vocab, context, config.eos, NULL, 0, err);
    for (size_t i = 0; rc == NS_OK && i < NS_COUNT(states); i++) {
        struct ns_selection which = {.state = states[i]};
        rc = ns_queue_each_request(queue, &which, true, take_request, &walk, err);
    }
    ns_tokenizer_close(tok);
    ns_config_fini(&config);
    return rc;
}
