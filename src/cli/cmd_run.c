/* cmd_run.c - run the queue through a model until it is empty. */
#include "cli/commands.h"

#include "cli/forecast.h"
#include "cli/plan_text.h"
#include "cli/progress.h"

#include "night/night.h"
#include "sys/sys.h"

#include <string.h>

struct watching {
    struct ns_cli *cli;
    struct ns_progress *progress;
};

static void show_plan(void *arg, const struct ns_night_plan *plan)
{
    const struct watching *w = arg;
    ns_plan_note(w->cli, plan);
    uint64_t wanted = w->cli->args.number[NS_OPT_LAYERS];
    if (wanted > 0 && wanted <= plan->engine.layers)
        ns_log(NS_LOG_WARN, "only the first %" PRIu64 " layer%s: the answers are not the model's", wanted,
               wanted == 1 ? " runs" : "s run");
    else if (wanted > 0)
        ns_note(w->cli, "--layers %" PRIu64 ": the model has %" PRIu32 ", and all of them run", wanted,
                plan->engine.layers);
}

static void show_progress(void *arg, const struct ns_night_report *report)
{
    const struct watching *w = arg;
    ns_progress_update(w->progress, report);
}

static void show_end(void *arg, const struct ns_night_ended *ended)
{
    const struct watching *w = arg;
    ns_progress_ended(w->progress, ended);
}

static enum ns_code answer_json(struct ns_cli *cli, const struct ns_night_report *r, struct ns_error *err)
{
    struct ns_answer_json a;
    ns_progress_begin(&a, cli, "summary");
    ns_answer_int(&a, "done", (int64_t)r->requests_done);
    ns_answer_int(&a, "failed", (int64_t)r->requests_failed);
    ns_answer_int(&a, "left", (int64_t)r->requests_left);
    ns_json_put_key(&a.w, "stopped");
    ns_json_put_bool(&a.w, r->stopped);
    ns_answer_int(&a, "waves", (int64_t)r->waves);
    ns_answer_int(&a, "rows", (int64_t)r->rows);
    ns_answer_int(&a, "tokens_out", (int64_t)r->tokens_out);
    ns_answer_int(&a, "experts_requested", (int64_t)r->experts_requested);
    ns_answer_int(&a, "experts_distinct", (int64_t)r->experts_distinct);
    ns_answer_int(&a, "experts_kept", (int64_t)r->experts_kept);
    ns_answer_int(&a, "experts_read", (int64_t)r->experts_read);
    ns_answer_int(&a, "bytes_read", (int64_t)r->bytes_read);
    ns_answer_int(&a, "bytes_spilled", (int64_t)r->bytes_spilled);
    ns_answer_int(&a, "tokens_restored", (int64_t)r->tokens_restored);
    ns_answer_int(&a, "tokens_recomputed", (int64_t)r->tokens_recomputed);
    ns_answer_number(&a, "compute_s", (double)r->compute_ns / 1e9);
    ns_answer_number(&a, "disk_s", (double)r->disk_ns / 1e9);
    ns_answer_number(&a, "stall_s", (double)r->stall_ns / 1e9);
    ns_answer_number(&a, "wall_s", (double)r->wall_ns / 1e9);
    return ns_answer_end(&a, cli, err);
}

static enum ns_code answer(struct ns_cli *cli, const struct ns_night_report *r, struct ns_error *err)
{
    if (cli->json)
        return answer_json(cli, r, err);
    if (r->waves == 0 && r->requests_done + r->requests_failed == 0 && r->requests_left == 0) {
        ns_note(cli, "nothing to do");
        return NS_OK;
    }
    char size[16], wall[24], compute[24], stall[24];
    ns_size_text(r->bytes_read, size);
    ns_span_text((double)r->wall_ns / 1e9, wall);
    ns_span_text((double)r->compute_ns / 1e9, compute);
    ns_span_text((double)r->stall_ns / 1e9, stall);
    const char *how = !r->stopped             ? ""
                      : ns_signal_count() > 1 ? " (stopped at once by a second signal)"
                                              : " (stopped on request)";
    ns_say(cli, "requests  %" PRIu64 " done, %" PRIu64 " failed, %" PRIu64 " left%s\n", r->requests_done,
           r->requests_failed, r->requests_left, how);
    ns_say(cli, "waves     %" PRIu64 " with %" PRIu64 " row%s, %" PRIu64 " token%s out\n", r->waves, r->rows,
           NS_PLURAL(r->rows), r->tokens_out, NS_PLURAL(r->tokens_out));
    ns_say(cli, "experts   %" PRIu64 " requested, %" PRIu64 " distinct, %" PRIu64 " kept, %" PRIu64 " read\n",
           r->experts_requested, r->experts_distinct, r->experts_kept, r->experts_read);
    ns_say(cli, "disk      %s read", size);
    if (r->bytes_spilled > 0) {
        ns_size_text(r->bytes_spilled, size);
        ns_say(cli, ", %s of states written", size);
    }
    ns_say(cli, "\n");
    ns_say(cli, "time      %s, %s computing, %s waiting for the disk\n", wall, compute, stall);
    if (r->tokens_restored + r->tokens_recomputed > 0)
        ns_say(cli, "resumed   %" PRIu64 " token%s restored, %" PRIu64 " computed again\n", r->tokens_restored,
               NS_PLURAL(r->tokens_restored), r->tokens_recomputed);
    return NS_OK;
}

static void set_status(struct ns_cli *cli, const struct ns_night_report *r)
{
    if (r->stopped && ns_signal_count() > 1)
        cli->status = NS_STATUS_INTERRUPTED;
    else if (ns_given(cli, NS_OPT_REQUIRE_DONE) && r->requests_left > 0)
        cli->status = ns_code_exit(NS_BUSY);
    else
        cli->status = r->requests_failed > 0;
}

static enum ns_night_order order_of(const char *word) /* one of the table's, or NULL */
{
    static const char *const names[] = {[NS_ORDER_AUTO] = "auto",
                                        [NS_ORDER_EXPERTS] = "experts",
                                        [NS_ORDER_PREFIX] = "prefix",
                                        [NS_ORDER_FILE] = "file",
                                        [NS_ORDER_SINGLE] = "single"};
    for (size_t i = 0; word && i < NS_COUNT(names); i++)
        if (strcmp(word, names[i]) == 0)
            return (enum ns_night_order)i;
    return NS_ORDER_AUTO;
}

/* A queue that is not there is told before a large model is measured and opened for nothing. */
static enum ns_code find_queue(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    if (ns_path_exists(cli->db_path))
        return NS_OK;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    ns_queue_close(queue);
    return rc;
}

enum ns_code ns_cmd_run(struct ns_cli *cli, struct ns_error *err)
{
    const struct ns_args *args = &cli->args;
    struct ns_night_options options;
    enum ns_code rc = ns_cli_read_night(cli, "run wants --model DIR", &options, err);
    options.once = ns_given(cli, NS_OPT_ONCE);
    options.keep = ns_given(cli, NS_OPT_KEEP);
    options.require_done = ns_given(cli, NS_OPT_REQUIRE_DONE);
    options.takeover = ns_given(cli, NS_OPT_TAKEOVER);
    options.single_owner = ns_given(cli, NS_OPT_SINGLE_OWNER);
    options.order = order_of(args->text[NS_OPT_WAVE_ORDER]);
    options.overtake = (uint32_t)args->number[NS_OPT_OVERTAKE];
    options.planned = show_plan;
    options.progress = show_progress;
    options.ended = show_end;
    struct ns_progress *progress = NULL;
    struct ns_night_report report = {0};
    if (rc == NS_OK)
        rc = find_queue(cli, err);
    if (rc == NS_OK)
        rc = ns_progress_open(cli, &progress, err);
    if (rc != NS_OK)
        return rc;
    struct ns_rates rates = {0};
    /* the model's own errors are better told by whoever opens it in earnest */
    ns_code_ignore(ns_rates_read(cli, false, &options, &rates, NULL));
    struct watching watching = {cli, progress};
    options.progress_arg = &watching;
    rc = ns_night_run(&options, &report, err);
    ns_progress_close(progress);
    if (rc == NS_STOPPED) {
        report.stopped = true;
        rc = NS_OK;
    }
    if (rc == NS_OK)
        rc = answer(cli, &report, err);
    if (rc == NS_OK)
        set_status(cli, &report);
    return rc;
}
