/* harvest.c - from answers to rows and results.
 *
 * WHAT   Notes what a wave made known of each sequence, ends generations, builds results, and commits all of it with the
 *        wave in one transaction.
 * INVARIANTS (kill_test: killed_runs_end_like_undisturbed_ones)
 *   1. What is committed is a prefix of what is known; n_committed moves only after COMMIT.
 *   2. A request's result goes into the transaction that makes it terminal. */
#include "night/night_impl.h"

#include <math.h>
#include <string.h>

static void leave_sched(struct ns_night *night, struct ns_ride *ride)
{
    if (ride->in_sched)
        ns_sched_remove(night->sched, ride->sched_item);
    ride->in_sched = false;
}

static void end_rider(struct ns_night *night, struct ns_rider *rider, enum ns_end end)
{
    for (size_t i = 0; i < rider->n; i++)
        leave_sched(night, &rider->ride[i]);
    rider->ending = true;
    rider->has_result = true;
    rider->end = end;
}

static void fill_outcome(const struct ns_ride *ride, bool wants_logprobs, struct ns_outcome *out)
{
    const struct ns_prompt *p = &ride->row->prompt;
    *out = (struct ns_outcome){
        .prompt = p->id,
        .n_prompt = p->n,
        .token = ride->token,
        .n_out = ride->n_out,
        .n_top = ride->n_top,
        .finish = ride->finish,
        .score = ride->score,
        .is_greedy = ride->is_greedy,
        .n_scored = p->is_score ? ride->n_to_score : 0,
    };
    if (wants_logprobs) {
        out->logprob = ride->logprob;
        out->top_id = ride->n_top > 0 ? ride->top_id : NULL;
        out->top_logprob = ride->n_top > 0 ? ride->top_logprob : NULL;
    }
    if (!p->is_score && ride->prompt_logprob) {
        out->prompt_logprob = ride->prompt_logprob;
        out->prompt_top_id = ride->n_top > 0 ? ride->prompt_top_id : NULL;
        out->prompt_top_logprob = ride->n_top > 0 ? ride->prompt_top_logprob : NULL;
    }
}

static enum ns_code fill_outcomes(struct ns_night *night, struct ns_rider *rider, struct ns_outcome **out,
                                  struct ns_error *err)
{
    *out = ns_budget_take(night->budget, rider->n * sizeof **out, err);
    if (!*out)
        return NS_BUDGET;
    for (size_t i = 0; i < rider->n; i++)
        fill_outcome(&rider->ride[i], rider->request.wants_logprobs, &(*out)[i]);
    return NS_OK;
}

static void stamp_facts(struct ns_rider *rider)
{
    rider->facts.run_ms = ns_clock_wall_ms() - rider->claim->claimed_at_ms;
}

enum ns_code ns_night_fail(struct ns_night *night, struct ns_rider *rider, const struct ns_refusal *refusal,
                           const char *context, struct ns_error *err)
{
    stamp_facts(rider);
    enum ns_code rc = ns_result_fail(rider->request.doc ? &rider->request : NULL, night->model->job, refusal, context,
                                     &rider->facts, night->budget, &rider->result, err);
    if (rc != NS_OK)
        return rc;
    end_rider(night, rider, NS_END_FAILED);
    size_t n = strnlen(refusal->message, sizeof rider->error - 1);
    memcpy(rider->error, refusal->message, n);
    rider->error[n] = '\0';
    return NS_OK;
}

enum ns_code ns_night_conclude(struct ns_night *night, struct ns_rider *rider, struct ns_error *err)
{
    struct ns_outcome *outcome = NULL;
    enum ns_code rc = fill_outcomes(night, rider, &outcome, err);
    if (rc != NS_OK)
        return rc;
    stamp_facts(rider);
    struct ns_error why = {0};
    rc = ns_result_build(&rider->request, night->model->job, outcome, rider->n, &rider->facts, night->budget,
                         &rider->result, &why);
    ns_budget_give(night->budget, outcome);
    if (rc == NS_OK) {
        end_rider(night, rider, NS_END_DONE);
        return NS_OK;
    }
    if (rc == NS_BUDGET)
        return ns_error_set(err, rc, "%s", why.message);
    struct ns_refusal refusal;
    ns_refusal_of_error(&why, &refusal);
    return ns_night_fail(night, rider, &refusal, why.context, err);
}

static void note_top(const struct ns_ride *ride, const struct ns_answer *a, uint32_t *id, float *logprob, size_t row)
{
    for (uint32_t i = 0; i < ride->n_top; i++) {
        bool known = i < a->n_top;
        id[row * ride->n_top + i] = known ? a->top_id[i] : NS_NO_TOKEN;
        logprob[row * ride->n_top + i] = known ? a->top_logprob[i] : -INFINITY;
    }
}

static void note_score(struct ns_ride *ride, const struct ns_sched_result *r)
{
    uint32_t at = r->position + 1;
    if (at >= ride->row->prompt.n || !ride->known || ride->known[at])
        return; /* a token of an earlier run, scored in passing */
    ride->known[at] = 1;
    ride->prompt_logprob[at] = r->answer->target_logprob;
    if (!ride->row->prompt.is_score)
        note_top(ride, r->answer, ride->prompt_top_id, ride->prompt_top_logprob, at);
    ride->is_greedy = ride->is_greedy && r->answer->best == r->target;
    ride->n_scored++;
    if (ride->n_scored == ride->n_to_score) {
        const struct ns_prompt *p = &ride->row->prompt;
        ride->touched = true;
        if (p->is_score)
            ride->score = ns_score_sum(ride->prompt_logprob + p->score_from, ride->n_to_score);
    }
}

static void note_token(struct ns_night *night, struct ns_ride *ride, const struct ns_sched_result *r)
{
    uint32_t at = ride->n_out;
    ride->token[at] = r->answer->best;
    ride->logprob[at] = r->answer->best_logprob;
    note_top(ride, r->answer, ride->top_id, ride->top_logprob, at);
    ride->n_out++;
    ride->touched = true;
    ride->finish =
        ns_reply_judge(&ride->rider->request, night->model->job, ride->row->prompt.max_new, ride->token, ride->n_out);
}

enum ns_code ns_night_note(struct ns_night *night, const struct ns_sched_result *r, uint32_t *n_tokens,
                           struct ns_error *err)
{
    struct ns_ride *ride = (struct ns_ride *)(uintptr_t)r->id;
    if (ride->rider->ending)
        return NS_OK; /* another of its sequences failed in this wave */
    if (ride->over)
        return NS_OK; /* complete since an earlier answer of this wave: a resumed wave had told the later ones already */
    if (r->target != NS_NO_TOKEN) {
        note_score(ride, r);
    } else {
        note_token(night, ride, r);
        (*n_tokens)++;
        if (ride->finish == NS_FINISH_NONE) {
            struct ns_error why = {0};
            if (ride->in_sched && ns_sched_append(night->sched, ride->sched_item, r->answer->best, &why) != NS_OK)
                leave_sched(night, ride); /* it boards again, from its tokens, when there is room */
            return NS_OK;
        }
    }
    bool done = ride->n_scored == ride->n_to_score && (ride->row->prompt.is_score || ride->finish != NS_FINISH_NONE);
    if (!done)
        return NS_OK;
    leave_sched(night, ride);
    if (!ride->boarded) /* nothing but a wave that was put aside answers one that was not in any wave of this run */
        ns_night_count_back(night, ride, ride->row->prompt.n + ride->n_out - 1, 0);
    ride->over = true;
    ride->rider->n_over++;
    return ride->rider->n_over == ride->rider->n ? ns_night_conclude(night, ride->rider, err) : NS_OK;
}

enum ns_code ns_night_harvest(struct ns_night *night, const struct ns_sched_outcome *outcome, uint32_t *n_tokens,
                              struct ns_error *err)
{
    *n_tokens = 0;
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < outcome->n_failures; i++) {
        struct ns_ride *ride = (struct ns_ride *)(uintptr_t)outcome->failure[i].id;
        struct ns_rider *rider = ride->rider;
        if (rider->ending)
            continue; /* the first failure of a request is the one that counts */
        struct ns_refusal refusal;
        ns_refusal_of_error(outcome->failure[i].error, &refusal);
        char text[512];
        ns_error_text(outcome->failure[i].error, text, sizeof text);
        ns_log(NS_LOG_ERROR, "request %" PRId64 ": %s", rider->claim->request_id, text);
        rc = ns_night_fail(night, rider, &refusal, outcome->failure[i].error->context, err);
    }
    for (size_t i = 0; rc == NS_OK && i < outcome->n_results; i++)
        rc = ns_night_note(night, &outcome->result[i], n_tokens, err);
    return rc;
}

static enum ns_code end_asked(struct ns_night *night, struct ns_rider *rider, bool expired, struct ns_error *err)
{
    struct ns_outcome *outcome = NULL;
    enum ns_code rc = rider->n > 0 ? fill_outcomes(night, rider, &outcome, err) : NS_OK;
    if (rc != NS_OK)
        return rc;
    stamp_facts(rider);
    rc = ns_result_ended(&rider->request, night->model->job, expired ? "batch_expired" : "cancelled",
                         expired ? "the batch ran out of time" : "cancelled on request", outcome, &rider->facts,
                         night->budget, &rider->result, err);
    ns_budget_give(night->budget, outcome);
    if (rc == NS_OK)
        end_rider(night, rider, expired ? NS_END_EXPIRED : NS_END_CANCELLED);
    return rc;
}

enum ns_code ns_night_obey(struct ns_night *night, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < night->control.n_asked; i++) {
        struct ns_rider *rider = ns_roster_find(&night->roster, night->control.asked[i].request_id);
        if (!rider || rider->ending)
            continue;
        if (night->control.asked[i].what == NS_ASKED_YIELD) {
            rc = ns_runner_yield(night->runner, &rider->claim->request_id, 1, err);
            if (rc == NS_OK) {
                for (size_t k = 0; k < rider->n; k++)
                    leave_sched(night, &rider->ride[k]);
                ns_roster_remove(&night->roster, rider);
            }
        } else {
            rc = end_asked(night, rider, night->control.asked[i].what == NS_ASKED_EXPIRE, err);
        }
    }
    night->draining = night->draining || night->control.drain;
    return rc;
}

static void fill_update(const struct ns_ride *ride, bool wants_logprobs, struct ns_seq_update *out)
{
    const struct ns_prompt *p = &ride->row->prompt;
    uint32_t from = ride->n_committed, n = ride->n_out - ride->n_committed;
    *out = (struct ns_seq_update){
        .seq_id = ride->row->seq_id,
        .n_out_before = from,
        .n = n,
        .n_top = ride->n_top,
        .n_prompt = p->n,
        .finish = ride->finish,
    };
    if (n > 0) {
        out->token = ride->token + from;
        if (wants_logprobs)
            out->logprob = ride->logprob + from;
        if (ride->n_top > 0) {
            out->top_id = ride->top_id + (size_t)from * ride->n_top;
            out->top_logprob = ride->top_logprob + (size_t)from * ride->n_top;
        }
    }
    bool scored = ride->n_to_score > 0 && ride->n_scored == ride->n_to_score;
    if (scored && p->is_score) {
        out->has_score = true;
        out->score = ride->score;
        out->is_greedy = ride->is_greedy;
    } else if (scored && !ride->prompt_committed) {
        out->prompt_logprob = ride->prompt_logprob;
        out->prompt_top_id = ride->n_top > 0 ? ride->prompt_top_id : NULL;
        out->prompt_top_logprob = ride->n_top > 0 ? ride->prompt_top_logprob : NULL;
    }
}

struct lists {
    struct ns_seq_update *update;
    struct ns_request_end *end;
    int64_t *progressed, *restored;
    struct ns_state_file *state;
    size_t n_updates, n_ends, n_progressed, n_restored;
};

static void gather(struct ns_night *night, struct lists *lists)
{
    for (size_t r = 0; r < night->roster.n; r++) {
        struct ns_rider *rider = night->roster.rider[r];
        bool progressed = false;
        for (size_t i = 0; i < rider->n; i++) {
            struct ns_ride *ride = &rider->ride[i];
            if (!ride->touched || isnan(ride->score))
                continue;
            fill_update(ride, rider->request.wants_logprobs, &lists->update[lists->n_updates++]);
            progressed = true;
        }
        if (rider->ending)
            lists->end[lists->n_ends++] = (struct ns_request_end){
                .request_id = rider->claim->request_id,
                .attempt_id = rider->claim->attempt_id,
                .end = rider->end,
                .result = &rider->result,
                .error = rider->error[0] ? rider->error : NULL,
            };
        if (rider->restored && !rider->restored_told)
            lists->restored[lists->n_restored++] = rider->claim->attempt_id;
        if (progressed)
            lists->progressed[lists->n_progressed++] = rider->claim->request_id;
    }
}

void ns_night_note_end(struct ns_night *night, const struct ns_rider *rider)
{
    static const char *const names[] = {
        [NS_END_DONE] = "done",
        [NS_END_FAILED] = "failed",
        [NS_END_CANCELLED] = "cancelled",
        [NS_END_EXPIRED] = "expired",
    };

    if (rider->end == NS_END_DONE)
        night->report->requests_done++;
    else
        night->report->requests_failed++;
    if (!night->options->ended)
        return;
    struct ns_night_ended ended = {
        .request_id = rider->claim->request_id,
        .custom_id = rider->claim->custom_id,
        .state = names[rider->end],
        .prompt_tokens = rider->result.prompt_tokens,
        .completion_tokens = rider->result.completion_tokens,
    };
    night->options->ended(night->options->progress_arg, &ended);
}

/* After COMMIT: what was new is now committed, and the finished leave. */
static void settle(struct ns_night *night)
{
    for (size_t r = night->roster.n; r-- > 0;) {
        struct ns_rider *rider = night->roster.rider[r];
        rider->restored_told = rider->restored;
        for (size_t i = 0; i < rider->n; i++) {
            struct ns_ride *ride = &rider->ride[i];
            if (!ride->touched)
                continue;
            night->report->tokens_out += ride->n_out - ride->n_committed;
            ride->n_committed = ride->n_out;
            ride->prompt_committed = ride->prompt_committed || ride->n_scored == ride->n_to_score;
            ride->touched = false;
        }
        if (!rider->ending)
            continue;
        ns_night_note_end(night, rider);
        ns_roster_remove(&night->roster, rider);
    }
}

enum ns_code ns_night_commit(struct ns_night *night, const struct ns_wave_record *wave, struct ns_error *err)
{
    size_t n_rides = 0;
    for (size_t r = 0; r < night->roster.n; r++)
        n_rides += night->roster.rider[r]->n;
    struct lists lists = {
        .update = ns_budget_take(night->budget, n_rides * sizeof *lists.update, err),
        .end = ns_budget_take(night->budget, night->roster.n * sizeof *lists.end, err),
        .progressed = ns_budget_take(night->budget, night->roster.n * sizeof *lists.progressed, err),
        .restored = ns_budget_take(night->budget, night->roster.n * sizeof *lists.restored, err),
        .state = ns_budget_take(night->budget, night->n_snaps * sizeof *lists.state, err),
    };
    enum ns_code rc =
        lists.update && lists.end && lists.progressed && lists.restored && lists.state ? NS_OK : NS_BUDGET;
    if (rc == NS_OK) {
        gather(night, &lists);
        ns_snap_rows(night, lists.state);
        struct ns_wave_commit commit = {
            .wave = wave,
            .seq = lists.update,
            .n_seqs = lists.n_updates,
            .end = lists.end,
            .n_ends = lists.n_ends,
            .progressed = lists.progressed,
            .n_progressed = lists.n_progressed,
            .restored = lists.restored,
            .n_restored = lists.n_restored,
            .state = lists.state,
            .n_states = night->n_snaps,
        };
        ns_control_fini(&night->control);
        rc = ns_runner_commit(night->runner, &commit, NULL, &night->control, err);
    }
    if (rc == NS_OK) {
        settle(night);
        night->alone = false;
    }
    ns_budget_give(night->budget, lists.update);
    ns_budget_give(night->budget, lists.end);
    ns_budget_give(night->budget, lists.progressed);
    ns_budget_give(night->budget, lists.restored);
    ns_budget_give(night->budget, lists.state);
    return rc;
}
