/* cmd_wait.c - wait until batches are finished; the exit status tells how. */
#include "cli/commands.h"

#include "cli/batches.h"
#include "sys/sys.h"

enum { LOOK_MS = 500, STEP_MS = 50 };

struct tally {
    int64_t open, done, failed, failures; /* failures: with files that were refused */
};

static enum ns_code add_batch(void *arg, const struct ns_batch_info *b, struct ns_error *err)
{
    (void)err;
    struct tally *t = arg;
    t->open += b->queued + b->running;
    t->done += b->done;
    t->failed += b->failed + b->cancelled + b->expired;
    t->failures += ns_batch_failures(b);
    return NS_OK;
}

/* The names are looked up once: @last means the batch that is the last one now. */
static enum ns_code find_batches(struct ns_cli *cli, struct ns_queue *queue, int64_t *batch, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < cli->args.n_operands; i++)
        rc = ns_queue_find_batch(queue, cli->args.operand[i], &batch[i], err);
    return rc;
}

static enum ns_code wait_for(struct ns_cli *cli, struct ns_queue *queue, const int64_t *batch, struct tally *tally,
                             struct ns_error *err)
{
    for (;;) {
        *tally = (struct tally){0};
        for (size_t i = 0; i < cli->args.n_operands; i++) {
            enum ns_code rc = ns_queue_each_batch(queue, batch[i], add_batch, tally, err);
            if (rc != NS_OK)
                return rc;
        }
        if (tally->open == 0)
            return NS_OK;
        for (int ms = 0; ms < LOOK_MS; ms += STEP_MS) {
            ns_sleep_ms(STEP_MS);
            if (ns_signal_count() > 0)
                return NS_STOPPED;
        }
    }
}

enum ns_code ns_cmd_wait(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    struct tally tally;
    int64_t *batch = ns_budget_take(&cli->budget, cli->args.n_operands * sizeof *batch, err);
    enum ns_code rc = batch ? ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err) : NS_BUDGET;
    if (rc == NS_OK)
        rc = find_batches(cli, queue, batch, err);
    if (rc == NS_OK)
        rc = wait_for(cli, queue, batch, &tally, err);
    ns_budget_give(&cli->budget, batch);
    ns_queue_close(queue);
    if (rc != NS_OK)
        return rc;
    cli->status = ns_outcome_status(tally.done, tally.failures);
    if (!cli->json)
        return NS_OK;
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_int(&a, "completed", tally.done);
    ns_answer_int(&a, "failed", tally.failed);
    return ns_answer_end(&a, cli, err);
}
