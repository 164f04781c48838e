/* cmd_show.c - one batch, request or runner, with everything that is known of it. */
#include "cli/commands.h"

#include "cli/batches.h"

#include <stdlib.h>
#include <string.h>

struct shown {
    struct ns_cli *cli;
    struct ns_queue *queue;
    int64_t count;
};

static void say_time(struct ns_cli *cli, const char *what, int64_t wall_ms)
{
    if (wall_ms <= 0)
        return;
    char text[24];
    ns_clock_utc_text(wall_ms, text);
    ns_say(cli, "  %-12s %s\n", what, text);
}

static void say_line(struct ns_cli *cli, const char *what, const char *text)
{
    if (!text)
        return;
    ns_say(cli, "  %-12s ", what);
    ns_say_text(cli, text, strlen(text), false);
    ns_say(cli, "\n");
}

/* ---- a batch ---------------------------------------------------------------------------------------------------------------- */

static void say_batch(struct ns_cli *cli, const struct ns_batch_info *b)
{
    ns_say(cli, "%s\n", b->public_id);
    say_line(cli, "name", b->name);
    say_line(cli, "status", b->status);
    if (b->held)
        say_line(cli, "held", "yes: nothing of it starts before \"nightshift release\"");
    say_line(cli, "input", b->input_name);
    say_line(cli, "model", b->model);
    ns_say(cli, "  %-12s %d\n", "priority", b->priority);
    ns_say(cli,
           "  %-12s %" PRId64 ": %" PRId64 " queued, %" PRId64 " running, %" PRId64 " done, %" PRId64
           " failed (%" PRId64 " refused), %" PRId64 " cancelled, %" PRId64 " expired\n",
           "requests", b->total, b->queued, b->running, b->done, b->failed, b->refused, b->cancelled, b->expired);
    if (b->judged > 0)
        ns_say(cli, "  %-12s %" PRId64 " of %" PRId64 " (%.1f %%)\n", "right", b->correct, b->judged,
               100.0 * (double)b->correct / (double)b->judged);
    ns_say(cli, "  %-12s %" PRId64 " in, %" PRId64 " out\n", "tokens", b->prompt_tokens, b->completion_tokens);
    say_time(cli, "created", b->created_at_ms);
    say_time(cli, "in progress", b->in_progress_at_ms);
    say_time(cli, "completed", b->completed_at_ms);
    say_time(cli, "failed", b->failed_at_ms);
    say_time(cli, "cancelled", b->cancelled_at_ms);
    say_time(cli, "deadline", b->deadline_at_ms);
    say_line(cli, "bad lines", b->validation_errors);
}

static enum ns_code show_batch(void *arg, const struct ns_batch_info *b, struct ns_error *err)
{
    struct shown *s = arg;
    s->count++;
    if (!s->cli->json) {
        say_batch(s->cli, b);
        return NS_OK;
    }
    struct ns_text text;
    ns_text_init(&text, &s->cli->budget);
    struct ns_answer_json a = {.text = text};
    ns_json_begin(&a.w, &a.text);
    ns_batch_json(&a, b);
    ns_text_puts(&a.text, "\n");
    enum ns_code rc = ns_say_built(s->cli, &a.text, err);
    ns_text_fini(&a.text);
    return rc;
}

/* ---- a request -------------------------------------------------------------------------------------------------------------- */

static enum ns_code attempt_json(void *arg, const struct ns_attempt_info *t, struct ns_error *err)
{
    (void)err;
    struct ns_answer_json *a = arg;
    ns_json_open_object(&a->w);
    ns_answer_int(a, "try", t->try_no);
    ns_answer_int(a, "runner", t->runner_id);
    ns_answer_time(a, "began_at", t->began_at_ms);
    ns_answer_time(a, "ended_at", t->ended_at_ms);
    ns_answer_text(a, "outcome", t->outcome);
    ns_answer_text(a, "error", t->error);
    ns_answer_text(a, "resume", t->resume_kind);
    ns_answer_int(a, "resumed_from", t->resumed_from);
    ns_json_close_object(&a->w);
    return NS_OK;
}

static enum ns_code attempt_text(void *arg, const struct ns_attempt_info *t, struct ns_error *err)
{
    (void)err;
    struct ns_cli *cli = arg;
    char began[24];
    ns_clock_utc_text(t->began_at_ms, began);
    ns_say(cli, "  %-12s %" PRId64 " at %s by runner %" PRId64 ", %s: %s%s", "try", t->try_no, began, t->runner_id,
           t->resume_kind, t->outcome ? t->outcome : "open", t->error ? ": " : "");
    if (t->error)
        ns_say_text(cli, t->error, strlen(t->error), false);
    ns_say(cli, "\n");
    return NS_OK;
}

static enum ns_code request_json(struct shown *s, const struct ns_request_info *r, struct ns_error *err)
{
    struct ns_answer_json a;
    ns_answer_begin(&a, s->cli);
    ns_request_json(&a, r);
    ns_json_put_key(&a.w, "attempts");
    ns_json_open_array(&a.w);
    enum ns_code rc = ns_queue_each_attempt(s->queue, r->id, attempt_json, &a, err);
    ns_json_close_array(&a.w);
    if (rc == NS_OK) {
        ns_answer_raw(&a, "request", r->refused ? NULL : r->body); /* a bad line is not kept */
        ns_json_put_key(&a.w, "status_code");
        if (r->status_code > 0)
            ns_json_put_int(&a.w, r->status_code);
        else
            ns_json_put_null(&a.w);
        ns_answer_raw(&a, "response", r->response);
        ns_answer_raw(&a, "error", r->error);
        ns_answer_raw(&a, "x_local", r->local);
        return ns_answer_end(&a, s->cli, err);
    }
    ns_text_fini(&a.text);
    return rc;
}

static enum ns_code say_request(struct shown *s, const struct ns_request_info *r, struct ns_error *err)
{
    struct ns_cli *cli = s->cli;
    ns_say(cli, "#%" PRId64 "\n", r->id);
    say_line(cli, "batch", r->batch);
    ns_say(cli, "  %-12s %" PRId64 "\n", "line", r->line_no);
    say_line(cli, "custom_id", r->custom_id);
    say_line(cli, "kind", r->kind);
    ns_say(cli, "  %-12s %s%s%s\n", "state", r->state, r->refused ? ", refused at submit" : "",
           r->cancel_asked ? ", cancel asked" : "");
    ns_say(cli, "  %-12s %" PRId64 " in, %" PRId64 " out\n", "tokens", r->n_prompt, r->n_out);
    say_time(cli, "enqueued", r->enqueued_at_ms);
    say_time(cli, "started", r->started_at_ms);
    say_time(cli, "finished", r->finished_at_ms);
    if (r->correct >= 0)
        say_line(cli, "answer", r->correct ? "right" : "wrong");
    enum ns_code rc = ns_queue_each_attempt(s->queue, r->id, attempt_text, cli, err);
    if (rc != NS_OK)
        return rc;
    if (!r->refused)
        say_line(cli, "request", r->body);
    if (r->status_code == 0)
        return NS_OK;
    struct ns_text text;
    ns_text_init(&text, &cli->budget);
    rc = ns_result_text(r->response, r->error, &text, err);
    if (rc == NS_OK && ns_text_ok(&text)) {
        ns_say(cli, "  %-12s ", r->state);
        ns_say_text(cli, text.data ? text.data : "", text.n, true);
        ns_say(cli, "\n");
    }
    ns_text_fini(&text);
    return rc;
}

static enum ns_code show_request(void *arg, const struct ns_request_info *r, struct ns_error *err)
{
    struct shown *s = arg;
    s->count++;
    return s->cli->json ? request_json(s, r, err) : say_request(s, r, err);
}

/* ---- a runner --------------------------------------------------------------------------------------------------------------- */

static enum ns_code show_runner(struct shown *s, int64_t id, struct ns_error *err)
{
    struct ns_runner_info r;
    enum ns_code rc = ns_queue_read_runner(s->queue, id, &r, err);
    if (rc != NS_OK || r.id == 0)
        return rc;
    s->count++;
    if (s->cli->json) {
        struct ns_answer_json a;
        ns_answer_begin(&a, s->cli);
        ns_answer_int(&a, "id", r.id);
        ns_answer_text(&a, "lane", r.lane);
        ns_answer_text(&a, "host", r.host);
        ns_answer_int(&a, "pid", r.pid);
        ns_answer_text(&a, "state", r.state);
        ns_json_put_key(&a.w, "alive");
        ns_json_put_bool(&a.w, r.alive);
        ns_answer_text(&a, "reason", r.reason[0] ? r.reason : NULL);
        ns_answer_time(&a, "started_at", r.started_at_ms);
        ns_answer_time(&a, "heartbeat_at", r.heartbeat_at_ms);
        ns_answer_time(&a, "progress_at", r.progress_at_ms);
        return ns_answer_end(&a, s->cli, err);
    }
    ns_say(s->cli, "runner %" PRId64 "\n  %-12s %s\n  %-12s %s, pid %" PRId64 "%s\n  %-12s %s\n", r.id, "lane", r.lane,
           "host", r.host, r.pid, r.alive ? ", alive" : "", "state", r.state);
    say_line(s->cli, "reason", r.reason[0] ? r.reason : NULL);
    say_time(s->cli, "started", r.started_at_ms);
    say_time(s->cli, "heartbeat", r.heartbeat_at_ms);
    say_time(s->cli, "progress", r.progress_at_ms);
    return NS_OK;
}

static enum ns_code show(struct shown *s, const char *id, struct ns_error *err)
{
    static const char runner[] = "runner:";
    if (strncmp(id, runner, sizeof runner - 1) == 0) {
        char *end = NULL;
        int64_t number = strtoll(id + sizeof runner - 1, &end, 10);
        if (*end != '\0' || number <= 0)
            return ns_error_set(err, NS_USAGE, "\"%s\" is not a runner: runner:17 would be one", id);
        return show_runner(s, number, err);
    }
    struct ns_selection which = {0};
    enum ns_code rc = ns_queue_select(s->queue, id, &which, err);
    if (rc != NS_OK)
        return rc;
    if (which.first_id == 0 && !which.custom_id)
        return ns_queue_each_batch(s->queue, which.batch_id, show_batch, s, err);
    return ns_queue_each_request(s->queue, &which, true, show_request, s, err);
}

enum ns_code ns_cmd_show(struct ns_cli *cli, struct ns_error *err)
{
    struct shown s = {.cli = cli};
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &s.queue, err);
    if (rc == NS_OK)
        rc = show(&s, cli->args.operand[0], err);
    if (rc == NS_OK && s.count == 0)
        rc = ns_error_set(err, NS_NOINPUT, "there is no \"%s\" in %s", cli->args.operand[0], cli->db_path);
    ns_queue_close(s.queue);
    return rc;
}
