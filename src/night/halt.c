/* halt.c - a wave that stops at a layer boundary and goes on in a later run.
 *
 * WHAT   On a polite stop the engine writes the half-done wave to a side file together with our notes: which sequence each
 *        answer will belong to, and how many tokens that sequence had. The next run finishes the wave first and gives the
 *        answers to those of its sequences that still stand where they stood.
 * WHY    A wave of a very large model lasts minutes and its bytes were read already. Losing the file costs that time and
 *        nothing else: whoever is not served by it is simply planned again.
 * FORMAT of the notes: magic, count, then per use: ask u32, position u32, known u32 (tokens of the sequence, prompt
 *        included), seq_id u64; little-endian.
 * INVARIANTS
 *   1. The row names the file only after it is durable: write, sync, rename, sync the folder, row.
 *                                                                           (side_file_test: every_crash_point_of_side_files)
 *   2. An answer is used only when the sequence has exactly the tokens it had.
 *                                                                           (halt_test: stop_at_every_boundary)
 *   3. The next run divides its memory so that the wave fits, whatever else is left to do.        (resume_test) */
#include "night/ceiling_impl.h"
#include "night/night_impl.h"

#include "sys/sys.h"

#include <stdio.h>
#include <string.h>

static const uint32_t notes_magic = 0x31534E4Eu; /* "NNS1" */

enum { NOTES_HEAD = 8, NOTES_USE = 20 };

static uint32_t known_tokens(const struct ns_ride *ride)
{
    return ride->row->prompt.n + ride->n_out;
}

static enum ns_code write_notes(struct ns_night *night, const struct ns_sched_plan *plan, uint8_t **out, size_t *n,
                                struct ns_error *err)
{
    *n = NOTES_HEAD + plan->n_uses * NOTES_USE;
    uint8_t *p = ns_budget_take(night->budget, *n, err);
    if (!p)
        return NS_BUDGET;
    *out = p;
    ns_put_le32(p, notes_magic);
    ns_put_le32(p + 4, (uint32_t)plan->n_uses);
    for (size_t i = 0; i < plan->n_uses; i++) {
        const struct ns_sched_use *use = &plan->use[i];
        const struct ns_ride *ride = (const struct ns_ride *)(uintptr_t)use->id;
        uint8_t *q = p + NOTES_HEAD + i * NOTES_USE;
        ns_put_le32(q, use->ask);
        ns_put_le32(q + 4, use->position);
        ns_put_le32(q + 8, known_tokens(ride));
        ns_put_le64(q + 12, (uint64_t)ride->row->seq_id);
    }
    return NS_OK;
}

static enum ns_code side_path(const char *folder, const char *rel_path, char path[4096], struct ns_error *err)
{
    return ns_path_format(path, 4096, NS_CONFIG, err, "%s/%s", folder, rel_path);
}

/* Suspend, sync, rename, sync the folder, then the row. */
static enum ns_code put_aside(struct ns_night *night, struct ns_wave *wave, const void *notes, size_t n_notes,
                              struct ns_error *err)
{
    const char *folder = ns_runner_state_dir(night->runner);
    struct ns_suspend_row row = {.made_at_ms = ns_clock_wall_ms()};
    snprintf(row.rel_path, sizeof row.rel_path, "wave-%" PRId64 ".suspend", ns_runner_id(night->runner));
    char part[4096], path[4096];
    struct ns_suspend made;
    enum ns_code rc = side_path(folder, row.rel_path, path, err);
    if (rc == NS_OK)
        rc = ns_path_format(part, sizeof part, NS_CONFIG, err, "%s.part", path);
    if (rc == NS_OK)
        rc = ns_wave_suspend(wave, part, notes, n_notes, &made, err);
    ns_crash_point("suspend.synced");
    if (rc == NS_OK)
        rc = ns_file_rename(part, path, err);
    ns_crash_point("suspend.renamed");
    if (rc == NS_OK)
        rc = ns_dir_sync(folder, err);
    if (rc != NS_OK)
        return rc;
    row.bytes = made.bytes;
    row.next_layer = made.next_layer;
    snprintf(row.checksum, sizeof row.checksum, "%s", made.checksum);
    snprintf(row.fingerprint, sizeof row.fingerprint, "%s", night->model->job->fingerprint);
    snprintf(row.contract, sizeof row.contract, "%s", night->model->job->contract);
    return ns_runner_suspend(night->runner, &row, err);
}

/* A wave that cannot be kept is given up: that costs time, never a token. */
static void keep_or_lose(struct ns_night *night, struct ns_wave *wave, const void *notes, size_t n_notes)
{
    struct ns_error err = {0};
    if (put_aside(night, wave, notes, n_notes, &err) == NS_OK)
        ns_log(NS_LOG_INFO, "the wave was put aside before layer %u", ns_wave_next_layer(wave));
    else
        ns_log(NS_LOG_WARN, "the wave could not be put aside and will be computed again: %s", err.message);
}

void ns_night_halt(struct ns_night *night, struct ns_wave *wave, const struct ns_sched_plan *plan)
{
    uint8_t *notes = NULL;
    size_t n = 0;
    struct ns_error err = {0};
    if (!night->model->engine || night->steps == 0 || ns_signal_count() > 1)
        return;
    ns_wave_leave(wave);
    if (write_notes(night, plan, &notes, &n, &err) == NS_OK)
        keep_or_lose(night, wave, notes, n);
    else
        ns_log(NS_LOG_WARN, "the wave could not be put aside and will be computed again: %s", err.message);
    ns_budget_give(night->budget, notes);
}

/* ---- the next run --------------------------------------------------------------------------------------------------- */

static struct ns_ride *find_ride(const struct ns_night *night, int64_t seq_id)
{
    for (size_t r = 0; r < night->roster.n; r++)
        for (size_t i = 0; i < night->roster.rider[r]->n; i++)
            if (night->roster.rider[r]->ride[i].row->seq_id == seq_id)
                return &night->roster.rider[r]->ride[i];
    return NULL;
}

static enum ns_code give_answer(struct ns_night *night, const struct ns_wave_desc *desc, const struct ns_wave *wave,
                                const uint8_t *note, uint32_t *n_tokens, struct ns_error *err)
{
    uint32_t ask = ns_le32(note);
    if (ask >= desc->n_asks)
        return NS_OK;
    const struct ns_answer *answer = &ns_wave_answers(wave)[ask];
    struct ns_ride *ride = find_ride(night, (int64_t)ns_le64(note + 12));
    uint32_t position = ns_le32(note + 4);
    /* one that failed is planned again and fails again, with its reason */
    if (!ride || !answer->ok || ride->rider->ending || ride->over || ns_le32(note + 8) != known_tokens(ride))
        return NS_OK;
    /* the next token of a generation may share its ask with somebody's target */
    bool is_next = !ride->row->prompt.is_score && position + 1 == known_tokens(ride);
    struct ns_sched_result result = {
        .id = (uint64_t)(uintptr_t)ride,
        .position = position,
        .target = is_next ? NS_NO_TOKEN : desc->ask[ask].target,
        .n_top = desc->ask[ask].n_top,
        .answer = answer,
    };
    ride->rider->restored = true;
    return ns_night_note(night, &result, n_tokens, err);
}

static enum ns_code give_answers(struct ns_night *night, const struct ns_suspended *suspended,
                                 const struct ns_wave *wave, uint32_t *n_tokens, struct ns_error *err)
{
    size_t n = 0;
    const uint8_t *notes = ns_suspended_notes(suspended, &n);
    if (n < NOTES_HEAD || ns_le32(notes) != notes_magic || (n - NOTES_HEAD) / NOTES_USE != ns_le32(notes + 4))
        return NS_OK;
    enum ns_code rc = NS_OK;
    /* tokens change what a sequence knows: answers about prompts first, as they lie in the notes by position */
    for (size_t at = NOTES_HEAD; rc == NS_OK && at + NOTES_USE <= n; at += NOTES_USE)
        rc = give_answer(night, ns_suspended_desc(suspended), wave, notes + at, n_tokens, err);
    return rc;
}

/* The state a segment left belongs to the sequence that had an answer at its end, when that goes on. */
static struct ns_ride *heir_of(const struct ns_night *night, const struct ns_suspended *suspended, size_t segment)
{
    const struct ns_wave_desc *desc = ns_suspended_desc(suspended);
    size_t n = 0;
    const uint8_t *notes = ns_suspended_notes(suspended, &n);
    for (size_t at = NOTES_HEAD; at + NOTES_USE <= n; at += NOTES_USE) {
        uint32_t ask = ns_le32(notes + at);
        if (ask >= desc->n_asks || desc->ask[ask].segment != segment ||
            desc->ask[ask].offset + 1 != desc->segment[segment].n)
            continue;
        struct ns_ride *ride = find_ride(night, (int64_t)ns_le64(notes + at + 12));
        if (ride && !ride->over && !ride->state && !ride->row->prompt.is_score &&
            ns_le32(notes + at + 4) + 1 == known_tokens(ride) - 1)
            return ride;
    }
    return NULL;
}

static bool seen_before(const struct ns_wave_desc *desc, size_t segment, const struct ns_seq *seq)
{
    for (size_t t = 0; t < segment; t++)
        if (desc->segment[t].from == seq || desc->segment[t].into == seq)
            return true;
    return false;
}

/* done: the wave was finished, so the states it made are good and go to their sequences. */
static void close_suspended(struct ns_night *night, struct ns_suspended *suspended, bool done)
{
    const struct ns_wave_desc *desc = ns_suspended_desc(suspended);
    for (size_t s = 0; s < desc->n_segments; s++) {
        struct ns_seq *from = desc->segment[s].from, *into = desc->segment[s].into;
        struct ns_ride *heir = done && into ? heir_of(night, suspended, s) : NULL;
        if (heir)
            heir->state = into;
        if (from && from != into && !seen_before(desc, s, from))
            ns_seq_close(from);
        if (into && !heir && !seen_before(desc, s, into))
            ns_seq_close(into);
    }
    ns_suspended_close(suspended);
}

static enum ns_code finish_suspended(struct ns_night *night, struct ns_suspended *suspended, struct ns_wave *wave,
                                     int64_t began_at_ms, bool *gave_up, struct ns_error *err)
{
    enum ns_code rc = ns_night_step(night, wave, gave_up, err);
    if (rc != NS_OK)
        return rc;
    if (*gave_up) {
        size_t n = 0;
        const void *notes = ns_suspended_notes(suspended, &n);
        if (ns_signal_count() == 1)
            keep_or_lose(night, wave, notes, n);
        return NS_OK;
    }
    struct ns_wave_stats stats;
    ns_wave_stats_get(wave, &stats);
    uint32_t n_tokens = 0;
    ns_night_count(night, &stats);
    rc = give_answers(night, suspended, wave, &n_tokens, err);
    if (rc != NS_OK)
        return rc;
    struct ns_wave_record record =
        ns_night_record(night, &stats, "mixed", began_at_ms, (uint32_t)ns_suspended_desc(suspended)->n_segments,
                        n_tokens, "{\"resumed\":true}");
    return ns_night_commit(night, &record, err);
}

bool ns_night_aside(const char *db_path, struct ns_budget *budget, struct ns_suspend_size *out)
{
    struct ns_queue *queue = NULL;
    struct ns_suspend_row row;
    bool found = false;
    char folder[4096], path[4096];
    enum ns_code rc = ns_queue_open(db_path, NS_QUEUE_READ, false, budget, &queue, NULL);
    if (rc == NS_OK)
        rc = ns_queue_find_suspend(queue, &row, &found, NULL);
    ns_queue_close(queue);
    if (rc != NS_OK || !found)
        return false;
    if (ns_path_format(folder, sizeof folder, NS_CONFIG, NULL, "%s.state", db_path) != NS_OK ||
        side_path(folder, row.rel_path, path, NULL) != NS_OK)
        return false;
    return ns_suspend_measure(path, row.fingerprint, budget, out, NULL) == NS_OK;
}

enum ns_code ns_night_thaw(struct ns_night *night, bool *gave_up, struct ns_error *err)
{
    *gave_up = false;
    struct ns_suspend_row row;
    bool found = false;
    enum ns_code rc =
        night->model->engine ? ns_queue_find_suspend(ns_runner_queue(night->runner), &row, &found, err) : NS_OK;
    if (rc != NS_OK || !found)
        return rc;
    char path[4096];
    rc = side_path(ns_runner_state_dir(night->runner), row.rel_path, path, err);
    if (rc != NS_OK)
        return rc;
    struct ns_suspend want = {.bytes = row.bytes, .next_layer = row.next_layer};
    snprintf(want.checksum, sizeof want.checksum, "%s", row.checksum);
    struct ns_suspended *suspended = NULL;
    struct ns_wave *wave = NULL;
    struct ns_error why = {0};
    int64_t began_at_ms = ns_clock_wall_ms();
    rc = ns_wave_resume(night->model->engine, path, &want, NULL, &suspended, &wave, &why);
    if (rc != NS_OK) {
        ns_log(NS_LOG_WARN, "the wave that was put aside does not fit and will be computed again: %s", why.message);
        return ns_runner_drop_suspend(night->runner, row.id, why.message, err);
    }
    rc = finish_suspended(night, suspended, wave, began_at_ms, gave_up, err);
    ns_wave_close(wave);
    close_suspended(night, suspended, rc == NS_OK && !*gave_up);
    if (rc == NS_OK && !*gave_up)
        rc = ns_runner_drop_suspend(night->runner, row.id, NULL, err);
    return rc;
}
