/* cmd_events.c - what happened beside the work: takeovers, retries, side files lost, pages checked. */
#include "cli/commands.h"

#include "cli/batches.h"
#include "sys/sys.h"

#include <string.h>

enum { LOOK_MS = 1000, STEP_MS = 50 };

struct reader {
    struct ns_cli *cli;
    int64_t skip; /* events before the newest --limit */
    int64_t last; /* the newest that was read */
};

static enum ns_code count_event(void *arg, const struct ns_event_info *event, struct ns_error *err)
{
    (void)event;
    (void)err;
    ++*(int64_t *)arg;
    return NS_OK;
}

static enum ns_code say_event(void *arg, const struct ns_event_info *e, struct ns_error *err)
{
    struct reader *r = arg;
    char at[24];
    r->last = e->id;
    if (r->skip > 0) {
        r->skip--;
        return NS_OK;
    }
    ns_clock_utc_text(e->at_ms, at);
    if (r->cli->json) { /* one object a line, so that it can be followed */
        struct ns_answer_json a;
        ns_answer_begin(&a, r->cli);
        ns_answer_text(&a, "type", "event");
        ns_answer_text(&a, "time", at);
        ns_answer_int(&a, "id", e->id);
        ns_answer_text(&a, "level", e->level);
        ns_answer_text(&a, "kind", e->kind);
        ns_answer_int(&a, "runner", e->runner_id);
        ns_answer_int(&a, "batch", e->batch_id);
        ns_answer_int(&a, "request", e->request_id);
        ns_answer_raw(&a, "detail", e->detail);
        return ns_answer_end(&a, r->cli, err);
    }
    ns_say(r->cli, "%s %-5s ", at, e->level);
    ns_say_text(r->cli, e->kind, strlen(e->kind), false);
    if (e->runner_id > 0)
        ns_say(r->cli, " runner %" PRId64, e->runner_id);
    if (e->request_id > 0)
        ns_say(r->cli, " #%" PRId64, e->request_id);
    if (e->detail && strcmp(e->detail, "{}") != 0) {
        ns_say(r->cli, " ");
        ns_say_text(r->cli, e->detail, strlen(e->detail), false);
    }
    ns_say(r->cli, "\n");
    return NS_OK;
}

enum ns_code ns_cmd_events(struct ns_cli *cli, struct ns_error *err)
{
    struct reader reader = {.cli = cli};
    struct ns_queue *queue = NULL;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc == NS_OK && ns_given(cli, NS_OPT_LIMIT)) {
        rc = ns_queue_each_event(queue, 0, count_event, &reader.skip, err);
        reader.skip -= (int64_t)cli->args.number[NS_OPT_LIMIT];
    }
    while (rc == NS_OK) {
        rc = ns_queue_each_event(queue, reader.last, say_event, &reader, err);
        if (rc != NS_OK || !ns_given(cli, NS_OPT_FOLLOW) || fflush(stdout) != 0)
            break;
        for (int ms = 0; ms < LOOK_MS && ns_signal_count() == 0; ms += STEP_MS)
            ns_sleep_ms(STEP_MS);
        if (ns_signal_count() > 0)
            break;
    }
    ns_queue_close(queue);
    return rc;
}
