/* admit.c - from claimed lines to sequences in the scheduler.
 *
 * WHAT   Claims a handful of thousand requests, parses and encodes them, writes their sequences (or their failure) in one
 *        transaction, and hands every sequence that still wants something to the scheduler.
 * WHY    Text becomes ids here and nowhere else: the queue keeps the line as it came, the engine sees ids only. A request
 *        that was under way before a crash comes with its rows: its committed tokens simply count as part of the prompt.
 * INVARIANTS
 *   1. A rider is in the roster exactly while its request is claimed by this runner.  (night_test: stop_gives_back) */
#include "night/night_impl.h"

#include "sys/sys.h"

#include <string.h>

/* Enough to fill the largest waves many times over; the rest of the queue stays in the database. */
static const size_t riders_most = 8192;
static const size_t claim_most = 1024; /* a time: bounds what one admission can overshoot the budget by */

static bool take_array(struct ns_night *night, void *out, size_t n, size_t width, struct ns_error *err)
{
    size_t bytes;
    if (!ns_size_mul(n, width, &bytes))
        bytes = SIZE_MAX;
    void *block = ns_budget_take(night->budget, bytes, err);
    if (!block)
        return false;
    memcpy(out, &block, sizeof block);
    return true;
}

/* Copies what the rows already hold, so that all later code sees one array per kind. */
static enum ns_code make_ride(struct ns_night *night, struct ns_rider *rider, const struct ns_claim_seq *row,
                              struct ns_ride *ride, struct ns_error *err)
{
    const struct ns_prompt *p = &row->prompt;
    ride->rider = rider;
    ride->row = row;
    ride->n_top = rider->request.wants_logprobs ? rider->request.n_logprobs : 0;
    ride->is_greedy = true;
    size_t n_top = ride->n_top;
    if (p->max_new > 0 && (!take_array(night, &ride->token, p->max_new, sizeof(uint32_t), err) ||
                           !take_array(night, &ride->logprob, p->max_new, sizeof(float), err) ||
                           !take_array(night, &ride->top_id, p->max_new * n_top, sizeof(uint32_t), err) ||
                           !take_array(night, &ride->top_logprob, p->max_new * n_top, sizeof(float), err)))
        return NS_BUDGET;
    uint32_t n_out = row->n_out < p->max_new ? row->n_out : p->max_new;
    ride->n_out = ride->n_committed = n_out;
    if (n_out > 0) {
        memcpy(ride->token, row->token, n_out * sizeof(uint32_t));
        if (row->logprob)
            memcpy(ride->logprob, row->logprob, n_out * sizeof(float));
        if (row->top_id && row->n_top == n_top) {
            memcpy(ride->top_id, row->top_id, n_out * n_top * sizeof(uint32_t));
            memcpy(ride->top_logprob, row->top_logprob, n_out * n_top * sizeof(float));
        }
    }
    bool echo = !p->is_score && ns_request_wants_prompt_logprobs(&rider->request);
    if (p->is_score || echo) {
        ride->n_to_score = p->is_score ? p->n - p->score_from : p->n - 1;
        if (!take_array(night, &ride->known, p->n, 1, err) ||
            !take_array(night, &ride->prompt_logprob, p->n, sizeof(float), err) ||
            !take_array(night, &ride->prompt_top_id, echo ? p->n * n_top : 0, sizeof(uint32_t), err) ||
            !take_array(night, &ride->prompt_top_logprob, echo ? p->n * n_top : 0, sizeof(float), err))
            return NS_BUDGET;
        if (echo && row->prompt_logprob) {
            memcpy(ride->prompt_logprob, row->prompt_logprob, p->n * sizeof(float));
            if (n_top > 0 && row->prompt_top_id) {
                memcpy(ride->prompt_top_id, row->prompt_top_id, p->n * n_top * sizeof(uint32_t));
                memcpy(ride->prompt_top_logprob, row->prompt_top_logprob, p->n * n_top * sizeof(float));
            }
            ride->n_scored = ride->n_to_score;
            ride->prompt_committed = true;
        }
    }
    return NS_OK;
}

/* What is over already: committed scores, generations that ended with their last committed token, nothing to do. */
static void settle_ride(struct ns_night *night, struct ns_ride *ride)
{
    const struct ns_claim_seq *row = ride->row;
    if (row->prompt.is_score) {
        if (row->has_score) {
            ride->score = row->score;
            ride->is_greedy = row->is_greedy;
            ride->n_scored = ride->n_to_score;
            ride->over = true;
        }
        return;
    }
    ride->finish =
        ns_reply_judge(&ride->rider->request, night->model->job, row->prompt.max_new, ride->token, ride->n_out);
    ride->over = ride->finish != NS_FINISH_NONE && ride->n_scored == ride->n_to_score;
}

/* Nothing else is under way, and still there is no room: is that because memory was divided before this request came? Then
 * it waits for another division, which the queue is given back for. */
static bool divide_anew(struct ns_night *night, const struct ns_rider *rider, const struct ns_error *why)
{
    struct ns_night_division *d = night->model->division;
    uint64_t body = rider->claim->body_n, fresh = rider->request.max_tokens;
    if (!d || (!d->anew && body <= d->longest_body && fresh <= d->longest_new))
        return false;
    ns_log(NS_LOG_INFO, "request %" PRId64 " came after memory was divided, and needs more: %s; dividing it anew",
           rider->claim->request_id, why->message);
    d->longest_body = body > d->longest_body ? body : d->longest_body;
    d->longest_new = fresh > d->longest_new ? fresh : d->longest_new;
    d->anew = true;
    return true;
}

static enum ns_code make_rides(struct ns_night *night, struct ns_rider *rider, struct ns_error *err)
{
    struct ns_claim *claim = rider->claim;
    rider->ride = ns_budget_take(night->budget, claim->n_seqs * sizeof *rider->ride, err);
    if (!rider->ride)
        return NS_BUDGET;
    rider->n = claim->n_seqs;
    for (size_t i = 0; i < rider->n; i++) {
        enum ns_code rc = make_ride(night, rider, &claim->seq[i], &rider->ride[i], err);
        if (rc != NS_OK)
            return rc;
        settle_ride(night, &rider->ride[i]);
        rider->n_over += rider->ride[i].over ? 1 : 0;
    }
    return NS_OK;
}

/* Parses and encodes one claim. A refusal becomes rider->result with end FAILED; encoded is then empty. */
static enum ns_code prepare(struct ns_night *night, struct ns_rider *rider, struct ns_encoded *encoded,
                            bool *has_encoded, struct ns_error *err)
{
    struct ns_claim *claim = rider->claim;
    struct ns_refusal refusal = {0};
    *has_encoded = false;
    rider->facts = (struct ns_run_facts){
        .batch_id = claim->batch_id,
        .request_id = claim->request_id,
        .created_at_ms = claim->created_at_ms,
        .runner_id = ns_runner_id(night->runner),
        .attempts = claim->tries,
        .queued_ms = claim->claimed_at_ms - claim->enqueued_at_ms,
    };
    rider->parsed = true;
    enum ns_code rc = ns_request_parse(claim->body, claim->body_n, night->budget, &rider->request, &refusal, err);
    if (rc == NS_OK && claim->n_seqs == 0) {
        rc = ns_request_encode(&rider->request, night->model->job, night->budget, encoded, &refusal, err);
        *has_encoded = rc == NS_OK;
    }
    if (rc == NS_INPUT) {
        ns_error_clear(err);
        return ns_night_fail(night, rider, &refusal, NULL, err);
    }
    return rc;
}

/* What does not fit beside the others goes back to the queue for now: *gone. What does not fit alone, fails. */
static enum ns_code no_room(struct ns_night *night, struct ns_rider *rider, const struct ns_error *why,
                            const char *param, bool *gone, struct ns_error *err)
{
    struct ns_refusal refusal;
    *gone = night->roster.n > 1 || divide_anew(night, rider, why);
    if (*gone) {
        enum ns_code rc = ns_runner_yield(night->runner, &rider->claim->request_id, 1, err);
        ns_roster_remove(&night->roster, rider);
        return rc;
    }
    ns_refusal_set(&refusal, 500, ns_code_name(NS_BUDGET), param, "%s", why->message);
    return ns_night_fail(night, rider, &refusal, why->context, err);
}

/* Gives an admitted request its arrays. */
static enum ns_code seat(struct ns_night *night, struct ns_rider *rider, struct ns_error *err)
{
    if (rider->ending) {
        ns_night_note_end(night, rider);
        ns_roster_remove(&night->roster, rider);
        return NS_OK;
    }
    struct ns_error why = {0};
    enum ns_code rc = make_rides(night, rider, &why);
    bool gone;
    if (rc == NS_BUDGET)
        return no_room(night, rider, &why, "max_tokens", &gone, err);
    if (rc != NS_OK)
        return ns_error_set(err, rc, "%s", why.message);
    return rider->n_over == rider->n ? ns_night_conclude(night, rider, err) : NS_OK;
}

/* Prepares all; those that are left are the first *n of rider. */
static enum ns_code prepare_all(struct ns_night *night, struct ns_rider **rider, size_t *n,
                                struct ns_admission *admission, struct ns_encoded *encoded, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    size_t left = 0;
    for (size_t i = 0; rc == NS_OK && i < *n; i++) {
        struct ns_error why = {0};
        bool has_encoded, gone = false;
        rc = prepare(night, rider[i], &encoded[left], &has_encoded, &why);
        if (rc == NS_BUDGET)
            rc = no_room(night, rider[i], &why, "", &gone, err);
        else if (rc != NS_OK && err)
            *err = why;
        if (gone)
            continue;
        admission[left] = (struct ns_admission){
            .claim = rider[i]->claim,
            .encoded = has_encoded ? &encoded[left] : NULL,
            .n_top = rider[i]->request.wants_logprobs ? rider[i]->request.n_logprobs : 0,
            .failed = rider[i]->ending ? &rider[i]->result : NULL,
        };
        rider[left++] = rider[i];
    }
    *n = left;
    return rc;
}

static enum ns_code admit_claims(struct ns_night *night, struct ns_rider **rider, size_t n, struct ns_error *err)
{
    struct ns_admission *admission = ns_budget_take(night->budget, n * sizeof *admission, err);
    struct ns_encoded *encoded = ns_budget_take(night->budget, n * sizeof *encoded, err);
    enum ns_code rc = admission && encoded ? NS_OK : NS_BUDGET;
    size_t left = n;
    if (rc == NS_OK)
        rc = prepare_all(night, rider, &left, admission, encoded, err);
    if (rc == NS_OK)
        rc = ns_runner_admit(night->runner, admission, left, err);
    while (rc == NS_FULL && ns_night_wait_for_room(night, "to admit requests")) {
        ns_error_clear(err);
        rc = ns_runner_admit(night->runner, admission, left, err);
    }
    if (rc == NS_OK)
        ns_night_go_on(night);
    for (size_t i = 0; encoded && i < n; i++)
        ns_encoded_fini(&encoded[i]);
    for (size_t i = 0; rc == NS_OK && i < left; i++)
        rc = seat(night, rider[i], err);
    ns_budget_give(night->budget, admission);
    ns_budget_give(night->budget, encoded);
    return rc;
}

static enum ns_code take_claims(struct ns_night *night, struct ns_claim **claim, size_t n, struct ns_error *err)
{
    struct ns_rider **rider = ns_budget_take(night->budget, n * sizeof(struct ns_rider *), err);
    enum ns_code rc = rider ? NS_OK : NS_BUDGET;
    for (size_t i = 0; i < n; i++) {
        if (rc != NS_OK) {
            ns_claim_close(claim[i]);
            continue;
        }
        rc = ns_roster_add(&night->roster, claim[i], &rider[i], err);
    }
    if (rc == NS_OK)
        rc = admit_claims(night, rider, n, err);
    ns_budget_give(night->budget, rider);
    return rc;
}

static bool wants_more(const struct ns_night *night)
{
    if (night->alone || night->draining || ns_night_divides_anew(night) || night->control.drain ||
        night->control.paused)
        return false;
    if (night->roster.n == 0)
        return true;
    return night->roster.n < riders_most / 2 && ns_budget_left(night->budget) > night->budget->limit_bytes / 2;
}

enum ns_code ns_night_admit(struct ns_night *night, size_t *n_claimed, struct ns_error *err)
{
    *n_claimed = 0;
    while (wants_more(night)) {
        struct ns_claim_limits limits = {.requests = claim_most, .body_bytes = night->budget->limit_bytes / 8};
        struct ns_claim **claim = NULL;
        size_t n = 0;
        bool alone = false;
        enum ns_code rc = ns_runner_claim(night->runner, &limits, night->budget, &claim, &n, &alone, err);
        while (rc == NS_FULL && ns_night_wait_for_room(night, "to claim requests")) {
            ns_error_clear(err);
            rc = ns_runner_claim(night->runner, &limits, night->budget, &claim, &n, &alone, err);
        }
        if (rc == NS_OK && n > 0)
            rc = take_claims(night, claim, n, err);
        ns_budget_give(night->budget, claim);
        if (rc != NS_OK)
            return rc;
        night->alone = alone;
        *n_claimed += n;
        if (n < limits.requests)
            break;
    }
    return NS_OK;
}

/* The first position whose log-probability is still wanted: scoring begins there. */
static uint32_t score_start(const struct ns_ride *ride)
{
    const struct ns_prompt *p = &ride->row->prompt;
    if (ride->n_scored == ride->n_to_score)
        return 0;
    uint32_t at = p->is_score ? p->score_from : 1;
    while (at < p->n && ride->known[at])
        at++;
    return at;
}

void ns_night_count_back(struct ns_night *night, struct ns_ride *ride, uint32_t restored, uint32_t recomputed)
{
    struct ns_run_facts *facts = &ride->rider->facts;
    facts->restored_tokens += restored;
    facts->recomputed_tokens += recomputed;
    facts->replays += recomputed > 0 ? 1 : 0;
    night->report->tokens_restored += restored;
    night->report->tokens_recomputed += recomputed;
    ride->rider->restored = ride->rider->restored || restored > 0;
}

/* Positions of which something is known already: all tokens but the last, or the scored part of the prompt. */
static uint32_t seen_positions(const struct ns_ride *ride)
{
    uint32_t n = ride->row->prompt.n;
    if (ride->n_out > 0)
        return n + ride->n_out - 1;
    if (ride->n_scored == 0)
        return 0;
    uint32_t at = n - 1;
    while (ride->n_scored < ride->n_to_score && at > 0 && !ride->known[at])
        at--;
    return at;
}

/* Boards a sequence that was under way before this run, with what came back of it: the rest is computed again. */
static void resume_ride(struct ns_night *night, struct ns_ride *ride, uint32_t seen)
{
    uint32_t held = ride->state ? ns_seq_positions(ride->state) : 0, restored = 0;
    if (ride->state) {
        ns_sched_adopt(night->sched, ride->sched_item, ride->state);
        ride->state = NULL;
        ns_sched_state(night->sched, ride->sched_item, &restored);
    }
    restored = restored < seen ? restored : seen;
    if (restored < held)
        ns_log(NS_LOG_WARN, "request %" PRId64 ": of %" PRIu32 " saved positions %" PRIu32 " could be used",
               ride->rider->claim->request_id, held, restored);
    ns_night_count_back(night, ride, restored, seen - restored);
}

static enum ns_code board_ride(struct ns_night *night, struct ns_ride *ride, struct ns_error *err)
{
    const struct ns_prompt *p = &ride->row->prompt;
    size_t n = (size_t)p->n + ride->n_out;
    uint32_t *token = ns_budget_take(night->budget, n * sizeof *token, err);
    if (!token)
        return NS_BUDGET;
    memcpy(token, p->id, p->n * sizeof *token);
    if (ride->n_out > 0)
        memcpy(token + p->n, ride->token, ride->n_out * sizeof *token);
    const struct ns_claim *claim = ride->rider->claim;
    struct ns_sched_item item = {
        .id = (uint64_t)(uintptr_t)ride,
        .token = token,
        /* the prompt's own log-probabilities are wanted first; generated tokens follow once they are known */
        .n = (uint32_t)n,
        .score_from = score_start(ride),
        .max_new = p->is_score || ride->finish != NS_FINISH_NONE ? 0 : p->max_new - ride->n_out,
        .n_top = ns_request_n_top(&ride->rider->request),
        .priority = (uint32_t)claim->priority,
        .enqueued_ms = claim->enqueued_at_ms,
        .batch = (uint64_t)claim->batch_id,
    };
    enum ns_code rc = ns_sched_add(night->sched, &item, &ride->sched_item, err);
    ride->in_sched = rc == NS_OK;
    if (rc == NS_OK && !ride->boarded)
        resume_ride(night, ride, seen_positions(ride));
    ride->boarded = ride->boarded || rc == NS_OK;
    ns_budget_give(night->budget, token);
    return rc;
}

enum ns_code ns_night_board(struct ns_night *night, struct ns_error *err)
{
    for (size_t r = 0; r < night->roster.n; r++) {
        struct ns_rider *rider = night->roster.rider[r];
        for (size_t i = 0; !rider->ending && i < rider->n; i++) {
            struct ns_ride *ride = &rider->ride[i];
            if (ride->over || ride->in_sched)
                continue;
            if (night->options->order == NS_ORDER_SINGLE && ns_sched_items(night->sched) > 0)
                return NS_OK;
            enum ns_code rc = ns_night_restore(night, ride, err);
            if (rc != NS_OK)
                return rc;
            struct ns_error why = {0};
            rc = board_ride(night, ride, &why);
            if (rc == NS_OK)
                continue;
            if (rc == NS_BUDGET && ns_sched_items(night->sched) > 0)
                return NS_OK; /* room comes when others finish */
            if (rc == NS_BUDGET && divide_anew(night, rider, &why))
                return NS_OK;
            struct ns_refusal refusal;
            ns_refusal_set(&refusal, 500, ns_code_name(rc), "", "%s", why.message);
            rc = ns_night_fail(night, rider, &refusal, why.context, err);
            if (rc != NS_OK)
                return rc;
        }
    }
    return NS_OK;
}
