/* job_account.h - the account of a whole job: of all runs of a queue together. */
#ifndef NS_CLI_JOB_ACCOUNT_H
#define NS_CLI_JOB_ACCOUNT_H

#include "cli/cli.h"
#include "queue/queue.h"

enum { NS_ACCOUNT_MEMBERS = 64, NS_ACCOUNT_NAME = 32 };

/* Zeroed: no wave yet. */
struct ns_account {
    size_t n;

    struct {
        char name[NS_ACCOUNT_NAME];
        double sum;
        bool is_whole; /* a count, not a real */
    } member[NS_ACCOUNT_MEMBERS];
};

/* Adds what one run after the other did. What a run that was killed did after its last wave nobody knows. */
NS_MUST_CHECK enum ns_code ns_account_read(struct ns_queue *queue, struct ns_account *out, struct ns_error *err);
double ns_account_sum(const struct ns_account *account, const char *name); /* 0: it has no such member */
double ns_account_achieved(const struct ns_account *account);              /* bound / wall */
/* The members of "job" in waves.detail, or null. */
void ns_account_json(struct ns_answer_json *answer, const char *key, const struct ns_account *account);

#endif
