/* night.c - the loop: claim, plan a wave, run it, commit it, repeat.
 *
 * WHAT   ns_night_run opens queue and model and calls the loop; ns_night_run_model is the loop on any machine.
 * WHY    Everything that must survive a crash is in the commit at the end of a wave; so the loop has no state of its own
 *        worth saving, and a killed run is the same as a run that has not begun its wave.
 * INVARIANTS
 *   1. Nothing of a wave that failed or was given up reaches the queue.               (night_test: lost_wave_leaves_no_trace)
 *   2. Whatever way the loop ends, claimed requests are given back or the row is closed by the successor.
 *                                                                                     (night_test: stop_gives_back)
 * THREADS  One driving thread; compute and I/O threads belong to kernels and sys. */
#include "night/night_impl.h"

#include "sys/sys.h"

#include <stdio.h>
#include <string.h>

static const uint64_t sleep_ms = 500;
static const uint64_t remind_ns = (uint64_t)10 * 60 * 1000000000;   /* between warnings of a disk that stays full */
static const uint64_t snapshot_ns = (uint64_t)15 * 60 * 1000000000; /* between snapshots of a running night */

/* ---- a full disk --------------------------------------------------------------------------------------------------- */

bool ns_night_wait_for_room(struct ns_night *night, const char *what)
{
    uint64_t now = ns_clock_mono_ns();
    if (ns_signal_count() > 0)
        return false;
    if (!night->waits || now - night->warned_ns > remind_ns) {
        char reason[128], size[32];
        snprintf(size, sizeof size, "%.1f MB", (double)ns_host_free_disk(night->options->db_path) / 1e6);
        snprintf(reason, sizeof reason, "no space left %s (%s free); waiting for room", what, size);
        ns_log(NS_LOG_WARN, "%s", reason);
        night->warned_ns = now;
        /* told where people look, if there is room for that */
        struct ns_error why = {0};
        if (!night->waits && ns_runner_set_state(night->runner, "sleeping", reason, &why) != NS_OK)
            ns_log(NS_LOG_DEBUG, "the runner's row stays as it is: %s", why.message);
    }
    night->waits = true;
    ns_sleep_ms(sleep_ms);
    ns_runner_relieve(night->runner);
    return true;
}

void ns_night_go_on(struct ns_night *night)
{
    struct ns_error why = {0};
    if (!night->waits)
        return;
    night->waits = false;
    ns_log(NS_LOG_INFO, "there is room again");
    if (ns_runner_set_state(night->runner, "running", NULL, &why) != NS_OK) /* what comes next meets it too */
        ns_log(NS_LOG_WARN, "%s", why.message);
}

/* Who asks a run to stop gets that, and its exit code, though the disk is full: what could not be written costs time. */
static enum ns_code stopped_anyway(enum ns_code rc, const char *loss, struct ns_error *err)
{
    if (rc != NS_FULL || ns_signal_count() == 0)
        return rc;
    ns_log(NS_LOG_WARN, "the disk is full: %s", loss);
    ns_error_clear(err);
    return NS_OK;
}

/* ---- one wave ------------------------------------------------------------------------------------------------------ */

enum ns_code ns_night_step(struct ns_night *night, struct ns_wave *wave, bool *gave_up, struct ns_error *err)
{
    const struct ns_machine *m = &night->model->machine;
    *gave_up = false;
    night->steps = 0;
    for (bool done = false; !done; night->steps++) {
        if (ns_signal_count() > 0) {
            *gave_up = true;
            return NS_OK;
        }
        enum ns_code rc = m->wave_step(m->self, wave, &done, err);
        if (rc != NS_OK)
            return rc;
    }
    return NS_OK;
}

void ns_night_count(struct ns_night *night, const struct ns_wave_stats *stats)
{
    struct ns_night_report *r = night->report;
    for (size_t i = 0; i < night->roster.n; i++)
        night->roster.rider[i]->facts.waves++;
    r->waves++;
    r->rows += stats->rows;
    r->experts_requested += stats->experts_requested;
    r->experts_distinct += stats->experts_distinct;
    r->experts_read += stats->store.experts_read;
    r->experts_kept += stats->store.experts_kept;
    r->bytes_read +=
        stats->store.trunk_bytes + stats->store.head_bytes + stats->store.embed_bytes + stats->store.expert_bytes;
    r->bytes_spilled += stats->spill_written_bytes;
    r->compute_ns += stats->compute_ns;
    r->disk_ns += stats->store.disk_ns;
    r->stall_ns += stats->store.stall_ns;
    r->last_wave_ns = stats->wall_ns;
}

static const char *kind_of(const struct ns_sched_plan *plan)
{
    uint32_t others = plan->rows - plan->rows_decode;
    return plan->rows_decode == 0 ? "prefill" : others == 0 ? "decode" : "mixed";
}

struct ns_wave_record ns_night_record(const struct ns_night *night, const struct ns_wave_stats *stats, const char *kind,
                                      int64_t began_at_ms, uint32_t n_seqs, uint32_t n_tokens, const char *detail)
{
    return (struct ns_wave_record){
        .kind = kind,
        .began_at_ms = began_at_ms,
        .ended_at_ms = ns_clock_wall_ms(),
        .n_seqs = n_seqs,
        .n_tokens_in = stats->rows,
        .n_tokens_out = n_tokens,
        .bytes_read =
            stats->store.trunk_bytes + stats->store.head_bytes + stats->store.embed_bytes + stats->store.expert_bytes,
        .cache_hits = stats->store.experts_kept,
        .cache_misses = stats->store.experts_read,
        .io_ms = stats->store.disk_ns / 1000000,
        .compute_ms = stats->compute_ns / 1000000,
        .rss_bytes = ns_host_rss(),
        .free_bytes = ns_host_free_disk(night->options->db_path),
        .detail = detail,
    };
}

static enum ns_code commit_wave(struct ns_night *night, const struct ns_sched_plan *plan,
                                const struct ns_wave_stats *stats, int64_t began_at_ms, uint32_t n_tokens,
                                struct ns_error *err)
{
    struct ns_sched_account account, job;
    ns_sched_account_wave(night->sched, &account);
    ns_sched_account_all(night->sched, &job);
    struct ns_text detail;
    ns_text_init(&detail, night->budget);
    ns_wave_detail(&detail, &account, &job, plan);
    struct ns_wave_record record = ns_night_record(night, stats, kind_of(plan), began_at_ms, plan->items, n_tokens,
                                                   ns_text_ok(&detail) ? detail.data : NULL);
    record.state_bytes = account.state_bytes;
    ns_crash_point("wave.computed");
    enum ns_code rc = ns_night_commit(night, &record, err);
    /* no room is no reason to lose a wave: wait for it, unless somebody wants the run to end */
    while (rc == NS_FULL && ns_night_wait_for_room(night, "to commit a wave")) {
        ns_error_clear(err);
        rc = ns_night_commit(night, &record, err);
    }
    if (rc == NS_OK && ns_runner_has_reserve(night->runner))
        ns_night_go_on(night);
    ns_text_fini(&detail);
    return rc;
}

/* The engine says what a row chose: the scheduler groups later waves by it. */
static void hear_row(void *arg, uint32_t layer, const char *name, uint32_t row, const float *v, const uint32_t *ids,
                     size_t n)
{
    (void)name, (void)v;
    if (ids)
        ns_sched_routing(arg, row, layer, ids, n);
}

/* Runs a planned wave and commits it. */
static enum ns_code run_wave(struct ns_night *night, const struct ns_sched_plan *plan, bool *gave_up,
                             struct ns_error *err)
{
    const struct ns_machine *m = &night->model->machine;
    int64_t began_at_ms = ns_clock_wall_ms();
    struct ns_wave *wave = NULL;
    struct ns_probe listener = {.row = hear_row, .arg = night->sched};
    bool listens = ns_sched_wants_routing(night->sched);
    enum ns_code rc = m->wave_open(m->self, &plan->desc, listens ? &listener : NULL, &wave, err);
    if (rc == NS_OK)
        rc = ns_night_step(night, wave, gave_up, err);
    if (rc != NS_OK || *gave_up) {
        if (rc == NS_OK)
            ns_night_halt(night, wave, plan);
        if (wave)
            m->wave_close(m->self, wave);
        ns_sched_wave_lost(night->sched);
        return rc;
    }
    struct ns_wave_stats stats;
    m->wave_stats(m->self, wave, &stats);
    struct ns_sched_outcome outcome;
    uint32_t n_tokens = 0;
    ns_night_count(night, &stats);
    rc = ns_sched_take(night->sched, wave, &outcome, err);
    if (rc == NS_OK)
        rc = ns_night_harvest(night, &outcome, &n_tokens, err);
    if (rc == NS_OK)
        ns_sched_observe(night->sched, &stats);
    m->wave_close(m->self, wave);
    if (rc == NS_OK)
        rc = commit_wave(night, plan, &stats, began_at_ms, n_tokens, err);
    if (rc == NS_FULL && ns_signal_count() > 0) { /* a stop is a stop, on a full disk too */
        night->is_ahead = true;
        *gave_up = true;
    }
    return stopped_anyway(rc, "the wave under way is not in the queue and will be computed again", err);
}

/* ---- the loop --------------------------------------------------------------------------------------------------------- */

static enum ns_code look(struct ns_night *night, struct ns_error *err)
{
    ns_control_fini(&night->control);
    return ns_runner_look(night->runner, &night->control, err);
}

/* After the reserve was given up no wave begins before it is there again: the next commit would have nothing. */
static enum ns_code guard_disk(struct ns_night *night, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    while (rc == NS_OK && !ns_runner_has_reserve(night->runner) && ns_night_wait_for_room(night, "for the next wave"))
        rc = look(night, err);
    if (rc == NS_OK && ns_signal_count() == 0)
        ns_night_go_on(night);
    return rc;
}

static void show_progress(struct ns_night *night, uint64_t began_ns)
{
    night->report->wall_ns = ns_clock_mono_ns() - began_ns;
    night->report->requests_left = (uint64_t)night->control.queued_now + night->roster.n;
    if (night->options->progress)
        night->options->progress(night->options->progress_arg, night->report);
}

static bool has_endings(const struct ns_night *night)
{
    for (size_t i = 0; i < night->roster.n; i++)
        if (night->roster.rider[i]->ending)
            return true;
    return false;
}

static enum ns_code wait_paused(struct ns_night *night, struct ns_error *err)
{
    if (!night->said_paused)
        ns_log(NS_LOG_WARN, "the queue is paused: \"nightshift resume\" lets it go on");
    night->said_paused = true;
    ns_sleep_ms(sleep_ms);
    return look(night, err);
}

/* Nothing to run: wait for work or for the end of a pause. *over: the night is done. */
static enum ns_code idle(struct ns_night *night, bool *over, struct ns_error *err)
{
    if (has_endings(night))
        return ns_night_commit(night, NULL, err);
    bool paused = night->control.paused && !night->draining;
    *over = night->draining || (!paused && !night->options->keep && night->control.queued_now == 0);
    if (*over)
        return NS_OK;
    if (paused)
        return wait_paused(night, err);
    night->said_paused = false;
    ns_sleep_ms(sleep_ms);
    return look(night, err);
}

/* What was under way comes back first, and with it the wave that an earlier run put aside: not before somebody may claim the
 * requests that it serves, for its answers would be nobody's. */
static enum ns_code begin(struct ns_night *night, bool *gave_up, struct ns_error *err)
{
    size_t n_claimed = 0;
    enum ns_code rc = NS_OK;
    while (rc == NS_OK && night->control.paused && ns_signal_count() == 0)
        rc = wait_paused(night, err);
    if (rc != NS_OK || night->control.drain || ns_signal_count() > 0)
        return rc;
    rc = ns_night_admit(night, &n_claimed, err);
    return rc == NS_OK ? ns_night_thaw(night, gave_up, err) : rc;
}

bool ns_night_divides_anew(const struct ns_night *night)
{
    return night->model->division && night->model->division->anew;
}

static enum ns_code loop(struct ns_night *night, struct ns_error *err)
{
    uint64_t began_ns = ns_clock_mono_ns() - night->report->wall_ns;
    night->snapped_ns = ns_clock_mono_ns();
    bool over = false, gave_up = false;
    enum ns_code rc = look(night, err);
    if (rc == NS_OK)
        rc = begin(night, &gave_up, err);
    while (rc == NS_OK && !over && !gave_up && !ns_night_divides_anew(night)) {
        if (ns_signal_count() > 0)
            break;
        size_t n_claimed = 0;
        struct ns_sched_plan plan = {0};
        rc = guard_disk(night, err);
        if (rc == NS_OK && ns_signal_count() > 0)
            break;
        if (rc == NS_OK)
            rc = ns_night_obey(night, err);
        if (rc == NS_OK)
            rc = ns_night_admit(night, &n_claimed, err);
        if (rc == NS_OK)
            rc = ns_night_board(night, err);
        if (rc == NS_OK && ns_night_divides_anew(night))
            break;
        bool paused = night->control.paused && !night->draining;
        if (rc == NS_OK && !paused)
            rc = ns_sched_next(night->sched, ns_clock_wall_ms(), &plan, err);
        if (rc != NS_OK)
            break;
        if (plan.desc.n_segments == 0) {
            rc = idle(night, &over, err);
        } else {
            rc = run_wave(night, &plan, &gave_up, err);
            over = night->options->once;
        }
        if (rc == NS_OK && !over && !gave_up && ns_clock_mono_ns() - night->snapped_ns > snapshot_ns) {
            rc = ns_night_snapshot(night, err);
            night->snapped_ns = ns_clock_mono_ns();
        }
        show_progress(night, began_ns);
    }
    night->report->stopped = ns_signal_count() > 0;
    if (rc == NS_OK && ns_night_divides_anew(night) && has_endings(night))
        rc = ns_night_commit(night, NULL, err);
    if (rc == NS_OK && ns_signal_count() == 1 && !night->is_ahead)
        rc = stopped_anyway(ns_night_snapshot(night, err), "no states were saved; they will be computed again", err);
    night->report->wall_ns = ns_clock_mono_ns() - began_ns;
    return rc;
}

static const char *reason_of(const struct ns_night *night, enum ns_code rc, const struct ns_error *err, char *text,
                             size_t size)
{
    if (rc != NS_OK) {
        int n = snprintf(text, size, "error %s: %.200s", ns_code_name(rc), err ? err->message : "");
        return n > 0 ? text : "error";
    }
    return night->report->stopped         ? "stopped"
           : night->draining              ? "drained"
           : ns_night_divides_anew(night) ? "divides memory anew"
                                          : "done";
}

static enum ns_code read_left(struct ns_night *night, struct ns_error *err)
{
    struct ns_queue_status status;
    enum ns_code rc = ns_queue_status_read(ns_runner_queue(night->runner), 0, &status, err);
    if (rc == NS_OK)
        night->report->requests_left = (uint64_t)(status.queued + status.running);
    return rc;
}

static enum ns_code finish(struct ns_night *night, enum ns_code rc, struct ns_error *err)
{
    char text[256];
    ns_sched_close(night->sched);
    ns_roster_fini(&night->roster);
    ns_control_fini(&night->control);
    if (!night->runner)
        return rc;
    struct ns_error late = {0};
    if (rc == NS_FENCED) {
        ns_runner_abandon(night->runner);
        return rc;
    }
    enum ns_code late_rc = rc == NS_OK ? read_left(night, &late) : NS_OK;
    enum ns_code stop_rc = ns_runner_stop(night->runner, reason_of(night, rc, err, text, sizeof text), &late);
    stop_rc = stopped_anyway(stop_rc, "the next run will say that this one ended without saying so", &late);
    if (late_rc == NS_OK)
        late_rc = stop_rc;
    if (rc == NS_OK && late_rc != NS_OK) {
        if (err)
            *err = late;
        return late_rc;
    }
    return rc;
}

static struct ns_sched_options sched_options_of(const struct ns_night_options *options)
{
    bool as_it_comes = options->order == NS_ORDER_FILE || options->order == NS_ORDER_SINGLE;
    return (struct ns_sched_options){
        .rows = options->wave_rows,
        .alone = as_it_comes,
        .in_order = as_it_comes,
        .experts = options->order == NS_ORDER_AUTO      ? NS_SCHED_EXPERTS_AUTO
                   : options->order == NS_ORDER_EXPERTS ? NS_SCHED_EXPERTS_ALWAYS
                                                        : NS_SCHED_EXPERTS_NEVER,
        .overtake_most = options->overtake,
    };
}

enum ns_code ns_night_run_part(const struct ns_night_options *options, const struct ns_night_model *model,
                               struct ns_budget *budget, struct ns_night_report *report, struct ns_error *err)
{
    struct ns_night night = {.options = options, .model = model, .budget = budget, .report = report};
    ns_roster_init(&night.roster, budget);
    struct ns_runner_options runner_options = {
        .lane = options->lane,
        .takeover = options->takeover,
        .single_owner = options->single_owner,
    };
    struct ns_runner_start_report started = {0};
    enum ns_code rc = ns_runner_start(options->db_path, &runner_options, budget, &night.runner, &started, err);
    if (rc != NS_OK)
        return rc;
    if (started.lost_runners > 0)
        ns_log(NS_LOG_WARN, "the last run ended without saying so; %" PRId64 " request%s taken back",
               started.taken_back, NS_PLURAL(started.taken_back));
    rc = ns_runner_bind_model(night.runner, model->dir, model->job, model->tokenizer_fingerprint, err);
    struct ns_sched_options sched_options = sched_options_of(options);
    if (rc == NS_OK)
        rc = ns_sched_open(&sched_options, &model->machine, budget, &night.sched, err);
    if (rc == NS_OK)
        ns_sched_set_model(night.sched, &model->numbers);
    if (rc == NS_OK)
        rc = loop(&night, err);
    if (night.draining && model->division)
        model->division->anew = false; /* whoever goes on later divides for it */
    return finish(&night, rc, err);
}

enum ns_code ns_night_run_model(const struct ns_night_options *options, const struct ns_night_model *model,
                                struct ns_budget *budget, struct ns_night_report *report, struct ns_error *err)
{
    *report = (struct ns_night_report){0};
    return ns_night_run_part(options, model, budget, report, err);
}
