/* cmd_status.c - how far the queue is, who works on it, how fast, and how long it may take. */
#include "cli/commands.h"

#include "cli/job_account.h"
#include "cli/batches.h"
#include "sys/sys.h"

#include <stdlib.h>
#include <string.h>

enum { FOLLOW_MS = 2000, RATE_WAVES = 20, RATE_LEAST = 3 };

static const uint64_t disk_low = 1000000; /* below it a commit may find no room */

/* How long a row took in each of the last waves. */
struct rates {
    double ms_per_row[RATE_WAVES];
    size_t n;
};

static enum ns_code add_rate(void *arg, const struct ns_wave_info *wave, struct ns_error *err)
{
    (void)err;
    struct rates *r = arg;
    int64_t ms = wave->record.ended_at_ms - wave->record.began_at_ms;
    if (r->n < RATE_WAVES && wave->record.n_tokens_in > 0 && ms >= 0)
        r->ms_per_row[r->n++] = (double)ms / (double)wave->record.n_tokens_in;
    return NS_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct eta {
    bool known;
    const char *why_not; /* when it is not known */
    double low_s, high_s;
};

/* Rows that are left, from the mean of the finished requests, times the quartiles of the time a row took. Unknown
 * before the third wave and before the first finished request. */
static enum ns_code read_eta(struct ns_queue *queue, const struct ns_queue_status *s, struct eta *eta,
                             struct ns_error *err)
{
    struct rates rates = {.n = 0};
    memset(eta, 0, sizeof *eta);
    enum ns_code rc = ns_queue_each_wave(queue, 0, RATE_WAVES, add_rate, &rates, err);
    eta->why_not = rates.n < RATE_LEAST ? "before the third wave" : "before the first request is done";
    if (rc != NS_OK || rates.n < RATE_LEAST || s->done == 0)
        return rc;
    qsort(rates.ms_per_row, rates.n, sizeof rates.ms_per_row[0], compare_doubles);
    double rows =
        (double)(s->queued + s->running) * (double)(s->prompt_tokens + s->completion_tokens) / (double)s->done;
    eta->known = true;
    eta->low_s = rows * rates.ms_per_row[rates.n / 4] / 1000;
    eta->high_s = rows * rates.ms_per_row[rates.n - 1 - rates.n / 4] / 1000;
    return NS_OK;
}

static double per_second(int64_t n, int64_t ms)
{
    return ms > 0 ? 1000.0 * (double)n / (double)ms : 0;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------ */

static void runner_json(struct ns_answer_json *a, const struct ns_runner_info *r)
{
    ns_json_put_key(&a->w, "runner");
    if (!r->present) {
        ns_json_put_null(&a->w);
        return;
    }
    ns_json_open_object(&a->w);
    ns_answer_int(a, "id", r->id);
    ns_answer_text(a, "lane", r->lane);
    ns_answer_text(a, "host", r->host);
    ns_answer_int(a, "pid", r->pid);
    ns_json_put_key(&a->w, "alive");
    ns_json_put_bool(&a->w, r->alive);
    ns_answer_text(a, "state", r->state);
    ns_answer_text(a, "reason", r->reason[0] ? r->reason : NULL);
    ns_answer_time(a, "started_at", r->started_at_ms);
    ns_answer_time(a, "heartbeat_at", r->heartbeat_at_ms);
    ns_answer_time(a, "progress_at", r->progress_at_ms);
    ns_json_close_object(&a->w);
}

static void waves_json(struct ns_answer_json *a, const struct ns_queue_status *s)
{
    ns_json_put_key(&a->w, "last_run");
    ns_json_open_object(&a->w);
    ns_answer_int(a, "waves", s->waves);
    ns_answer_int(a, "rows", s->wave_rows);
    ns_answer_int(a, "tokens_out", s->wave_tokens_out);
    ns_answer_int(a, "bytes_read", s->bytes_read);
    ns_answer_int(a, "bytes_spilled", s->bytes_spilled);
    ns_answer_int(a, "experts_hit", s->experts_hit);
    ns_answer_int(a, "experts_missed", s->experts_missed);
    ns_answer_int(a, "io_ms", s->io_ms);
    ns_answer_int(a, "compute_ms", s->compute_ms);
    ns_answer_int(a, "wall_ms", s->wall_ms);
    ns_json_close_object(&a->w);
    ns_json_put_key(&a->w, "recent");
    ns_json_open_object(&a->w);
    ns_answer_int(a, "waves", s->recent_waves);
    ns_answer_number(a, "tokens_per_s", per_second(s->recent_tokens_out, s->recent_ms));
    ns_answer_number(a, "bytes_per_s", per_second(s->recent_bytes, s->recent_ms));
    ns_json_close_object(&a->w);
}

static enum ns_code say_json(struct ns_cli *cli, const struct ns_queue_status *s, const struct eta *eta,
                             const struct ns_account *account, struct ns_error *err)
{
    struct ns_answer_json a;
    char now[24];
    ns_clock_utc_text(ns_clock_wall_ms(), now);
    ns_answer_begin(&a, cli);
    ns_answer_text(&a, "type", "status");
    ns_answer_text(&a, "time", now);
    runner_json(&a, &s->runner);
    ns_json_put_key(&a.w, "paused");
    ns_json_put_bool(&a.w, s->paused);
    ns_json_put_key(&a.w, "drain");
    ns_json_put_bool(&a.w, s->drain);
    ns_answer_text(&a, "control_reason", s->control_reason[0] ? s->control_reason : NULL);
    ns_answer_int(&a, "batches", s->batches);
    ns_answer_int(&a, "open_batches", s->open_batches);
    ns_json_put_key(&a.w, "requests");
    ns_json_open_object(&a.w);
    ns_answer_int(&a, "total", s->total);
    ns_answer_int(&a, "queued", s->queued);
    ns_answer_int(&a, "running", s->running);
    ns_answer_int(&a, "done", s->done);
    ns_answer_int(&a, "failed", s->failed);
    ns_answer_int(&a, "cancelled", s->cancelled);
    ns_answer_int(&a, "expired", s->expired);
    ns_json_close_object(&a.w);
    ns_accuracy_json(&a, s->correct, s->judged);
    ns_answer_int(&a, "prompt_tokens", s->prompt_tokens);
    ns_answer_int(&a, "completion_tokens", s->completion_tokens);
    ns_answer_int(&a, "unfinished_tokens", s->unfinished_tokens);
    waves_json(&a, s);
    ns_account_json(&a, "account", account);
    ns_json_put_key(&a.w, "eta_s");
    if (eta->known) {
        ns_json_open_array(&a.w);
        ns_json_put_double(&a.w, eta->low_s);
        ns_json_put_double(&a.w, eta->high_s);
        ns_json_close_array(&a.w);
    } else
        ns_json_put_null(&a.w);
    ns_answer_int(&a, "wal_bytes", s->wal_bytes);
    ns_answer_int(&a, "disk_free_bytes", (int64_t)ns_host_free_disk(cli->db_path));
    return ns_answer_end(&a, cli, err);
}

/* ---- text -------------------------------------------------------------------------------------------------------------------- */

static void ago(int64_t wall_ms, char out[40])
{
    char span[24];
    if (wall_ms <= 0) {
        snprintf(out, 40, "never");
        return;
    }
    int64_t ms = ns_clock_wall_ms() - wall_ms;
    ns_span_text(ms > 0 ? (double)ms / 1000 : 0, span);
    snprintf(out, 40, "%s ago", span);
}

/* A person wrote it. */
static void say_reason(struct ns_cli *cli, const char *reason)
{
    if (!reason[0])
        return;
    ns_say(cli, ": ");
    ns_say_text(cli, reason, strlen(reason), false);
}

static void say_runner(struct ns_cli *cli, const struct ns_queue_status *s)
{
    char progress[40];
    const struct ns_runner_info *r = &s->runner;
    ago(r->progress_at_ms, progress);
    ns_say(cli, "runner    ");
    if (!r->present)
        ns_say(cli, "none");
    else
        ns_say(cli, "%" PRId64 " (pid %" PRId64 " on %s) %s", r->id, r->pid, r->host, r->state);
    if (r->present) {
        say_reason(cli, r->reason);
        ns_say(cli, "%s; last progress %s", r->alive ? "" : ", but its process is gone", progress);
        if (r->halted)
            ns_say(cli, "; stopped by a signal: SIGCONT wakes it, \"nightshift run --takeover\" takes its place");
    }
    uint64_t free_bytes = ns_host_free_disk(cli->db_path);
    if (r->present && r->alive && free_bytes < disk_low) { /* the run may be unable to say so itself */
        char size[16];
        ns_size_text(free_bytes, size);
        ns_say(cli, "; the disk of the queue is full, %s free", size);
    }
    if (s->paused || s->drain) {
        ns_say(cli, "; %s", s->paused ? "paused" : "draining");
        say_reason(cli, s->control_reason);
    }
    ns_say(cli, "\n");
}

static void say_waves(struct ns_cli *cli, const struct ns_queue_status *s, const struct eta *eta)
{
    if (s->waves == 0)
        return;
    char size[16], rate[16], wall[24], low[24], high[24];
    ns_size_text((uint64_t)s->bytes_read, size);
    ns_size_text((uint64_t)per_second(s->recent_bytes, s->recent_ms), rate);
    ns_span_text((double)s->wall_ms / 1000, wall);
    ns_say(cli, "last run  %" PRId64 " wave%s, %" PRId64 " row%s, %" PRId64 " token%s, %s read in %s\n", s->waves,
           NS_PLURAL(s->waves), s->wave_rows, NS_PLURAL(s->wave_rows), s->wave_tokens_out,
           NS_PLURAL(s->wave_tokens_out), size, wall);
    if (s->bytes_spilled > 0) {
        ns_size_text((uint64_t)s->bytes_spilled, size);
        ns_say(cli, "          %s of states written to disk\n", size);
    }
    ns_say(cli, "          last %" PRId64 " wave%s: %.1f tokens/s, %s/s", s->recent_waves, NS_PLURAL(s->recent_waves),
           per_second(s->recent_tokens_out, s->recent_ms), rate);
    if (s->experts_hit + s->experts_missed > 0)
        ns_say(cli, ", %.1f %% of experts kept",
               100.0 * (double)s->experts_hit / (double)(s->experts_hit + s->experts_missed));
    ns_say(cli, "\n");
    if (s->queued + s->running == 0)
        return;
    if (eta->known) {
        ns_span_text(eta->low_s, low);
        ns_span_text(eta->high_s, high);
        ns_say(cli, "left      about %s to %s of work\n", low, high);
    } else
        ns_say(cli, "left      unknown %s\n", eta->why_not);
}

/* What the waves saved, and how near they came to what nobody could go below. */
static void say_account(struct ns_cli *cli, const struct ns_account *a)
{
    double rows = ns_account_sum(a, "rows"), alone = ns_account_sum(a, "alone_rows"),
           alone_bytes = ns_account_sum(a, "alone_bytes"), bound = ns_account_sum(a, "bound_s");
    double read = ns_account_sum(a, "trunk_bytes") + ns_account_sum(a, "head_bytes") +
                  ns_account_sum(a, "embed_bytes") + ns_account_sum(a, "expert_bytes");
    char size[16], span[24];
    if (rows <= 0)
        return;
    ns_say(cli, "saved     %.0f rows by prefixes, %.0f by equals; one prompt at a time: %.0f rows",
           ns_account_sum(a, "rows_saved_by_prefix"), ns_account_sum(a, "rows_saved_by_same"), alone);
    if (read > 0 && alone_bytes > 0) { /* none where the model stays in memory */
        ns_size_text((uint64_t)alone_bytes, size);
        ns_say(cli, " and %s, %.1f times the bytes", size, alone_bytes / read);
    }
    ns_say(cli, "\n");
    if (bound <= 0)
        return;
    ns_span_text(bound, span);
    ns_say(cli, "bound     %s (%s), achieved / bound %.2f\n", span,
           ns_account_sum(a, "bound_disk_s") > ns_account_sum(a, "bound_compute_s") ? "disk" : "compute",
           ns_account_achieved(a));
}

static void say_text(struct ns_cli *cli, const struct ns_queue_status *s, const struct eta *eta,
                     const struct ns_account *account)
{
    ns_say(cli, "requests  %" PRId64 ": ", s->total);
    ns_say(cli, "%" PRId64 " queued, %" PRId64 " running, ", s->queued, s->running);
    char count[48];
    snprintf(count, sizeof count, "%" PRId64 " done", s->done);
    ns_say_painted(cli, s->done > 0 ? NS_GREEN : NS_PLAIN, count);
    snprintf(count, sizeof count, "%" PRId64 " failed", s->failed);
    ns_say(cli, ", ");
    ns_say_painted(cli, s->failed > 0 ? NS_RED : NS_PLAIN, count);
    if (s->cancelled + s->expired > 0)
        ns_say(cli, ", %" PRId64 " cancelled, %" PRId64 " expired", s->cancelled, s->expired);
    ns_say(cli, "\n");
    if (s->judged > 0)
        ns_say(cli, "right     %" PRId64 " of %" PRId64 " (%.1f %%)\n", s->correct, s->judged,
               100.0 * (double)s->correct / (double)s->judged);
    ns_say(cli, "tokens    %" PRId64 " in, %" PRId64 " out", s->prompt_tokens, s->completion_tokens);
    if (s->unfinished_tokens > 0)
        ns_say(cli, "; %" PRId64 " so far for requests that have not ended", s->unfinished_tokens);
    ns_say(cli, "\n");
    say_runner(cli, s);
    say_waves(cli, s, eta);
    say_account(cli, account);
}

static enum ns_code add_row(void *arg, const struct ns_batch_info *b, struct ns_error *err)
{
    (void)err;
    struct ns_table *t = arg;
    ns_table_cell(t, "%s", b->public_id);
    ns_table_cell(t, "%s", b->name);
    ns_table_cell(t, "%s%s", b->status, b->held ? ", held" : "");
    ns_table_cell(t, "%" PRId64 "/%" PRId64, b->done + b->failed + b->cancelled + b->expired, b->total);
    ns_batch_accuracy(b, t);
    return NS_OK;
}

static enum ns_code say_batches(struct ns_cli *cli, struct ns_queue *queue, int64_t batch, struct ns_error *err)
{
    struct ns_table table;
    ns_table_init(&table, cli, 5, 1u << 3 | 1u << 4);
    static const char *const titles[] = {"batch", "name", "status", "ended", "right"};
    for (size_t i = 0; i < NS_COUNT(titles); i++)
        ns_table_cell(&table, "%s", titles[i]);
    enum ns_code rc = ns_queue_each_batch(queue, batch, add_row, &table, err);
    if (rc == NS_OK && table.n_cells > NS_COUNT(titles)) {
        ns_say(cli, "\n");
        rc = ns_table_say(&table, cli, err);
    }
    ns_table_fini(&table);
    return rc;
}

/* ---- following ------------------------------------------------------------------------------------------------------------------ */

/* One answer. A new read transaction each time, so that a follower never holds the log back. */
static enum ns_code say_once(struct ns_cli *cli, struct ns_queue *queue, int64_t batch, struct ns_queue_status *s,
                             struct ns_error *err)
{
    struct eta eta;
    struct ns_account account;
    enum ns_code rc = ns_queue_status_read(queue, batch, s, err);
    if (rc == NS_OK)
        rc = read_eta(queue, s, &eta, err);
    if (rc == NS_OK)
        rc = ns_account_read(queue, &account, err);
    if (rc == NS_OK && cli->json)
        rc = say_json(cli, s, &eta, &account, err);
    else if (rc == NS_OK)
        say_text(cli, s, &eta, &account);
    if (rc != NS_OK || cli->json)
        return rc;
    return ns_given(cli, NS_OPT_FOLLOW) ? NS_OK : say_batches(cli, queue, batch, err);
}

/* Is there something to show that was not shown before? What moves by itself, such as the time since, is no news. */
static bool is_news(const struct ns_queue_status *now, const struct ns_queue_status *shown)
{
    const struct ns_runner_info *r = &now->runner, *old = &shown->runner;
    return now->total != shown->total || now->queued != shown->queued || now->running != shown->running ||
           now->done != shown->done || now->failed != shown->failed || now->waves != shown->waves ||
           now->paused != shown->paused || now->drain != shown->drain ||
           strcmp(now->control_reason, shown->control_reason) != 0 || r->id != old->id || r->alive != old->alive ||
           r->halted != old->halted || strcmp(r->state, old->state) != 0 || strcmp(r->reason, old->reason) != 0;
}

static enum ns_code follow(struct ns_cli *cli, struct ns_queue *queue, int64_t batch, struct ns_error *err)
{
    struct ns_queue_status now, shown = {.total = -1};
    for (;;) {
        enum ns_code rc = ns_queue_status_read(queue, batch, &now, err);
        if (rc != NS_OK)
            return rc;
        if (is_news(&now, &shown)) {
            if (cli->term_out && !cli->json)
                ns_say(cli, "\033[H\033[2J"); /* a fresh page each time */
            rc = say_once(cli, queue, batch, &shown, err);
            if (rc != NS_OK)
                return rc;
            if (fflush(stdout) != 0)
                return NS_OK; /* the reader left; the end of the program says so */
        }
        if (now.queued + now.running == 0)
            return NS_OK;
        for (int ms = 0; ms < FOLLOW_MS; ms += 100) {
            if (ns_signal_count() > 0)
                return NS_OK;
            ns_sleep_ms(100);
        }
    }
}

enum ns_code ns_cmd_status(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    int64_t batch = 0;
    struct ns_queue_status status;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc == NS_OK && cli->args.n_operands > 0)
        rc = ns_queue_find_batch(queue, cli->args.operand[0], &batch, err);
    if (rc == NS_OK)
        rc = ns_given(cli, NS_OPT_FOLLOW) ? follow(cli, queue, batch, err) : say_once(cli, queue, batch, &status, err);
    ns_queue_close(queue);
    return rc;
}
