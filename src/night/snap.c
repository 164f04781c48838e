/* snap.c - snapshots of long sequences: side files that spare a later run the replay.
 *
 * WHAT   At a polite stop, and now and then during a run, the kept states of generations whose replay would cost more than
 *        their file are written beside the queue; a later run loads them when the sequence comes back.
 * WHY    Tokens are enough to rebuild a state, bit for bit; the file only saves time. So a file that is lost, torn or of
 *        another model is dropped with a warning and nothing else happens.
 * INVARIANTS
 *   1. A row never names a file that is not durable: write, sync, rename, sync the folder, row.  (demo_kill_test)
 *   2. A state is used only for the tokens it was made from: it holds fewer positions than the sequence has tokens, and the
 *      tokens of a sequence never change.                                                         (demo_kill_test) */
#include "night/night_impl.h"

#include "sys/sys.h"

#include <stdio.h>
#include <string.h>

enum { FILES_MOST = 9 }; /* a base and eight deltas */

static const double write_rate =
    500e6; /* bytes/s that a drive keeps up when its cache is full; a guess, on the low side */
static const double worth_factor = 2; /* a file is written when the replay costs this many times more */

static uint32_t known_tokens(const struct ns_ride *ride)
{
    return ride->row->prompt.n + ride->n_out;
}

static bool is_worth_it(const struct ns_night *night, const struct ns_ride *ride, uint32_t positions)
{
    const struct ns_night_report *r = night->report;
    if (r->rows == 0 || positions <= ride->n_snapshot)
        return false;
    double replay_s = (double)r->compute_ns * 1e-9 / (double)r->rows * (positions - ride->n_snapshot);
    double file_s = (double)ns_seq_bytes(night->model->engine, positions) / write_rate;
    return replay_s > worth_factor * file_s;
}

static enum ns_code full_path(const struct ns_night *night, const char *rel_path, char path[4096], struct ns_error *err)
{
    return ns_path_format(path, 4096, NS_CONFIG, err, "%s/%s", ns_runner_state_dir(night->runner), rel_path);
}

/* One file, synced and renamed; its row is added to night->snap. */
static enum ns_code save_one(struct ns_night *night, struct ns_ride *ride, const struct ns_seq *seq, uint32_t positions,
                             struct ns_error *err)
{
    struct ns_snap *snap = &night->snap[night->n_snaps];
    *snap = (struct ns_snap){.ride = ride};
    snprintf(snap->rel_path, sizeof snap->rel_path, "%" PRId64 "-%" PRIu32 "-%" PRId64 ".st", ride->row->seq_id,
             positions, ns_runner_id(night->runner));
    char part[4096], path[4096], part_name[112];
    snprintf(part_name, sizeof part_name, "%s.part", snap->rel_path);
    enum ns_code rc = full_path(night, part_name, part, err);
    if (rc == NS_OK)
        rc = full_path(night, snap->rel_path, path, err);
    if (rc == NS_OK)
        rc = ns_seq_save(seq, part, (uint64_t)ride->row->seq_id, (uint64_t)ns_runner_id(night->runner), 0, &snap->made,
                         err);
    ns_crash_point("state.synced");
    if (rc == NS_OK)
        rc = ns_file_rename(part, path, err);
    ns_crash_point("state.renamed");
    if (rc == NS_OK)
        night->n_snaps++;
    return rc;
}

static enum ns_code save_all(struct ns_night *night, struct ns_error *err)
{
    for (size_t r = 0; r < night->roster.n && ns_signal_count() <= 1; r++) {
        struct ns_rider *rider = night->roster.rider[r];
        for (size_t i = 0; i < rider->n && !rider->ending; i++) {
            struct ns_ride *ride = &rider->ride[i];
            if (!ride->in_sched || ride->row->prompt.is_score)
                continue;
            uint32_t positions = 0;
            const struct ns_seq *seq = ns_sched_state(night->sched, ride->sched_item, &positions);
            /* a shared prefix is not this sequence's own */
            if (!seq || positions + 1 != known_tokens(ride) || !is_worth_it(night, ride, positions))
                continue;
            enum ns_code rc = save_one(night, ride, seq, positions, err);
            if (rc != NS_OK)
                return rc;
        }
    }
    return NS_OK;
}

enum ns_code ns_night_snapshot(struct ns_night *night, struct ns_error *err)
{
    if (!night->model->engine)
        return NS_OK;
    size_t n_rides = 0;
    for (size_t r = 0; r < night->roster.n; r++)
        n_rides += night->roster.rider[r]->n;
    night->snap = ns_budget_take(night->budget, n_rides * sizeof *night->snap, err);
    night->n_snaps = 0;
    if (!night->snap)
        return NS_BUDGET;
    struct ns_error why = {0};
    /* what was saved before a failure is good: only the rest is computed again */
    if (save_all(night, &why) != NS_OK)
        ns_log(NS_LOG_WARN, "not all states were saved; those sequences will be computed again: %s", why.message);
    enum ns_code rc = NS_OK;
    if (night->n_snaps > 0) {
        rc = ns_dir_sync(ns_runner_state_dir(night->runner), err);
        ns_crash_point("state.dir_synced");
        if (rc == NS_OK)
            rc = ns_night_commit(night, NULL, err);
    }
    ns_budget_give(night->budget, night->snap);
    night->snap = NULL;
    night->n_snaps = 0;
    return rc;
}

void ns_snap_rows(const struct ns_night *night, struct ns_state_file *out)
{
    for (size_t i = 0; i < night->n_snaps; i++) {
        const struct ns_snap *snap = &night->snap[i];
        out[i] = (struct ns_state_file){
            .seq_id = snap->ride->row->seq_id,
            .from_pos = snap->made.from_pos,
            .to_pos = snap->made.to_pos,
            .rel_path = snap->rel_path,
            .bytes = snap->made.bytes,
            .checksum = snap->made.checksum,
            .fingerprint = night->model->job->fingerprint,
            .engine_abi = NS_ENGINE_ABI,
        };
        snap->ride->n_snapshot = snap->made.to_pos;
    }
}

/* ---- coming back ----------------------------------------------------------------------------------------------------- */

static enum ns_code load_files(struct ns_night *night, int64_t seq_id, const struct ns_state_row *row, size_t n,
                               struct ns_seq *seq, struct ns_error *err)
{
    struct ns_snapshot want[FILES_MOST];
    const char *path[FILES_MOST];
    char *text = ns_budget_take(night->budget, n * 4096, err);
    if (!text)
        return NS_BUDGET;
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < n; i++) {
        want[i] = (struct ns_snapshot){
            .seq_id = (uint64_t)seq_id, .from_pos = row[i].from_pos, .to_pos = row[i].to_pos, .bytes = row[i].bytes};
        snprintf(want[i].checksum, sizeof want[i].checksum, "%s", row[i].checksum);
        path[i] = text + i * 4096;
        rc = full_path(night, row[i].rel_path, text + i * 4096, err);
        if (rc == NS_OK && row[i].engine_abi != NS_ENGINE_ABI)
            rc = ns_error_set(err, NS_CORRUPT, "state of engine %u, this is %u", row[i].engine_abi, NS_ENGINE_ABI);
    }
    if (rc == NS_OK)
        rc = ns_seq_load(seq, path, want, n, err);
    ns_budget_give(night->budget, text);
    return rc;
}

enum ns_code ns_night_restore(struct ns_night *night, struct ns_ride *ride, struct ns_error *err)
{
    if (!night->model->engine || ride->boarded || ride->state || ride->row->n_out == 0)
        return NS_OK;
    struct ns_state_row row[FILES_MOST];
    size_t n = 0;
    enum ns_code rc = ns_runner_find_states(night->runner, ride->row->seq_id, row, FILES_MOST, &n, err);
    if (rc != NS_OK || n == 0)
        return rc;
    struct ns_seq *seq = NULL;
    rc = ns_seq_open(night->model->engine, &seq, err);
    if (rc != NS_OK)
        return rc;
    struct ns_error why = {0};
    rc = load_files(night, ride->row->seq_id, row, n, seq, &why);
    uint32_t positions = rc == NS_OK ? ns_seq_positions(seq) : 0;
    if (rc == NS_OK && positions < known_tokens(ride)) {
        ride->state = seq;
        ride->n_snapshot = positions;
        return NS_OK;
    }
    ns_seq_close(seq);
    if (rc == NS_BUDGET)
        return NS_OK; /* no room now: it is computed again */
    const char *reason = rc == NS_OK ? "more positions than tokens" : why.message;
    ns_log(NS_LOG_WARN, "the saved state of request %" PRId64 " is of no use and will be computed again: %s",
           ride->rider->claim->request_id, reason);
    return ns_runner_drop_states(night->runner, ride->row->seq_id, reason, err);
}
