/* progress.c - how a run shows on standard error while it works.
 * On a terminal a block of at most three lines is drawn again at most five times a second and is cleared at the end;
 * elsewhere a plain line after a wave, at least 30 s apart, with a time stamp and no carriage return ever. */
#include "cli/progress.h"

#include "night/night.h"

#include "sys/sys.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TICK_MS = 200, LINE_APART_MS = 30000, BLOCK_LINES = 3, LINE_BYTES = 512 };

enum form { FORM_SILENT, FORM_BLOCK, FORM_LINES, FORM_JSON };

struct ns_progress {
    /* fixed after init */
    struct ns_cli *cli;
    enum form form;
    struct ns_mutex *mu;
    struct ns_cond *end;
    struct ns_thread *thread;
    uint64_t began_ns;
    /* guarded by mu */
    struct ns_night_report report;
    bool closing, has_report;
    unsigned drawn; /* lines of the block that are on the screen */
    int64_t line_at_ms;
};

static unsigned terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    const char *columns = getenv("COLUMNS");
    long n = columns ? strtol(columns, NULL, 10) : 0;
    return n > 0 && n < 10000 ? (unsigned)n : 80;
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static double rate(uint64_t n, uint64_t ns)
{
    return ns > 0 ? (double)n / seconds(ns) : 0;
}

/* ---- the block (mu is held) --------------------------------------------------------------------------------------------- */

static void clear_block(struct ns_progress *p)
{
    if (p->drawn == 0)
        return;
    fprintf(stderr, "\r\033[%uA\033[J", p->drawn);
    p->drawn = 0;
}

static void draw_block(struct ns_progress *p)
{
    const struct ns_night_report *r = &p->report;
    uint64_t ns = ns_clock_mono_ns() - p->began_ns;
    char line[BLOCK_LINES][LINE_BYTES], elapsed[24], wave[24], size[16], per_s[16];
    ns_span_text(seconds(ns), elapsed);
    ns_span_text(seconds(r->last_wave_ns), wave);
    ns_size_text(r->bytes_read, size);
    ns_size_text((uint64_t)rate(r->bytes_read, r->wall_ns), per_s);
    snprintf(line[0], LINE_BYTES, "%" PRIu64 " done, %" PRIu64 " failed, %" PRIu64 " left", r->requests_done,
             r->requests_failed, r->requests_left);
    snprintf(line[1], LINE_BYTES, "wave %" PRIu64 ": last took %s, %" PRIu64 " row%s so far, %s since the start",
             r->waves + 1, wave, r->rows, NS_PLURAL(r->rows), elapsed);
    snprintf(line[2], LINE_BYTES, "%" PRIu64 " token%s (%.1f/s), %s read (%s/s)", r->tokens_out,
             NS_PLURAL(r->tokens_out), rate(r->tokens_out, r->wall_ns), size, per_s);
    unsigned width = terminal_width();
    clear_block(p);
    for (unsigned i = 0; i < BLOCK_LINES; i++)
        fprintf(stderr, "%.*s\n", (int)(width > 1 ? width - 1 : 1), line[i]);
    p->drawn = BLOCK_LINES;
}

static void say_line(struct ns_progress *p)
{
    const struct ns_night_report *r = &p->report;
    char now[24], size[16];
    ns_clock_utc_text(ns_clock_wall_ms(), now);
    ns_size_text(r->bytes_read, size);
    clear_block(p);
    fprintf(stderr,
            "%s wave %" PRIu64 ": %" PRIu64 " done, %" PRIu64 " failed, %" PRIu64 " left; %" PRIu64
            " token%s (%.1f/s), %s read\n",
            now, r->waves, r->requests_done, r->requests_failed, r->requests_left, r->tokens_out,
            NS_PLURAL(r->tokens_out), rate(r->tokens_out, r->wall_ns), size);
}

void ns_progress_begin(struct ns_answer_json *a, struct ns_cli *cli, const char *type)
{
    char now[24];
    ns_clock_utc_text(ns_clock_wall_ms(), now);
    ns_answer_begin(a, cli);
    ns_answer_text(a, "type", type);
    ns_answer_text(a, "time", now);
}

static void send(struct ns_progress *p, struct ns_answer_json *a)
{
    if (ns_answer_end(a, p->cli, NULL) != NS_OK || fflush(stdout) != 0)
        clearerr(stdout), p->form = FORM_SILENT; /* nobody reads; the run goes on */
}

static void say_json(struct ns_progress *p)
{
    const struct ns_night_report *r = &p->report;
    struct ns_answer_json a;
    ns_progress_begin(&a, p->cli, "wave");
    ns_answer_int(&a, "waves", (int64_t)r->waves);
    ns_answer_int(&a, "rows", (int64_t)r->rows);
    ns_answer_int(&a, "tokens_out", (int64_t)r->tokens_out);
    ns_answer_int(&a, "done", (int64_t)r->requests_done);
    ns_answer_int(&a, "failed", (int64_t)r->requests_failed);
    ns_answer_int(&a, "left", (int64_t)r->requests_left);
    ns_answer_int(&a, "bytes_read", (int64_t)r->bytes_read);
    ns_answer_number(&a, "wave_s", seconds(r->last_wave_ns));
    send(p, &a);
}

/* ---- the thread ------------------------------------------------------------------------------------------------------------ */

static void tick(void *arg)
{
    struct ns_progress *p = arg;
    ns_mutex_lock(p->mu);
    while (!p->closing) {
        if (ns_signal_take_usr1())
            say_line(p);
        if (p->form == FORM_BLOCK && p->has_report)
            draw_block(p);
        (void)ns_cond_wait_ms(p->end, p->mu, TICK_MS);
    }
    ns_mutex_unlock(p->mu);
}

static enum form form_of(const struct ns_cli *cli)
{
    if (cli->quiet || ns_given(cli, NS_OPT_NO_PROGRESS))
        return FORM_SILENT;
    if (cli->json)
        return FORM_JSON;
    const char *term = getenv("TERM");
    return cli->term_err && !(term && strcmp(term, "dumb") == 0) ? FORM_BLOCK : FORM_LINES;
}

enum ns_code ns_progress_open(struct ns_cli *cli, struct ns_progress **out, struct ns_error *err)
{
    struct ns_progress *p = ns_budget_take(&cli->budget, sizeof *p, err);
    if (!p)
        return NS_BUDGET;
    p->cli = cli;
    p->form = form_of(cli);
    p->began_ns = ns_clock_mono_ns();
    p->line_at_ms = ns_clock_boot_ms();
    p->mu = ns_mutex_open();
    p->end = ns_cond_open();
    enum ns_code rc = NS_OK;
    if (!p->mu || !p->end)
        rc = ns_error_set(err, NS_BUDGET, "no memory for the progress display");
    if (rc == NS_OK)
        rc = ns_thread_start(tick, p, &p->thread, err);
    if (rc != NS_OK) {
        ns_progress_close(p);
        return rc;
    }
    cli->progress = p;
    *out = p;
    return NS_OK;
}

void ns_progress_update(struct ns_progress *p, const struct ns_night_report *report)
{
    ns_mutex_lock(p->mu);
    bool new_wave = report->waves != p->report.waves;
    p->report = *report;
    p->has_report = true;
    int64_t now = ns_clock_boot_ms();
    if (p->form == FORM_LINES && new_wave && now - p->line_at_ms >= LINE_APART_MS) {
        p->line_at_ms = now;
        say_line(p);
    } else if (p->form == FORM_JSON && new_wave)
        say_json(p);
    ns_mutex_unlock(p->mu);
}

void ns_progress_ended(struct ns_progress *p, const struct ns_night_ended *ended)
{
    ns_mutex_lock(p->mu);
    if (p->form == FORM_JSON) {
        struct ns_answer_json a;
        ns_progress_begin(&a, p->cli, "request_done");
        ns_answer_int(&a, "id", ended->request_id);
        ns_answer_text(&a, "custom_id", ended->custom_id);
        ns_answer_text(&a, "state", ended->state);
        ns_answer_int(&a, "prompt_tokens", ended->prompt_tokens);
        ns_answer_int(&a, "completion_tokens", ended->completion_tokens);
        send(p, &a);
    }
    ns_mutex_unlock(p->mu);
}

void ns_progress_hide(struct ns_progress *p)
{
    if (!p)
        return;
    ns_mutex_lock(p->mu);
    clear_block(p);
}

void ns_progress_unhide(struct ns_progress *p)
{
    if (p)
        ns_mutex_unlock(p->mu);
}

void ns_progress_close(struct ns_progress *p)
{
    if (!p)
        return;
    p->cli->progress = NULL;
    if (p->thread) {
        ns_mutex_lock(p->mu);
        p->closing = true;
        ns_cond_signal(p->end);
        ns_mutex_unlock(p->mu);
        ns_thread_join(p->thread);
    }
    clear_block(p);
    ns_cond_close(p->end);
    ns_mutex_close(p->mu);
    ns_budget_give(&p->cli->budget, p);
}
