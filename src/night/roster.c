/* roster.c - the requests under way and their sequences. An array of pointers; a rider knows its place, so leaving is
 * a swap with the last one. */
#include "night/night_impl.h"

#include <assert.h>

void ns_roster_init(struct ns_roster *roster, struct ns_budget *budget)
{
    *roster = (struct ns_roster){.budget = budget};
}

static void free_ride(struct ns_budget *budget, struct ns_ride *ride)
{
    ns_budget_give(budget, ride->token);
    ns_budget_give(budget, ride->logprob);
    ns_budget_give(budget, ride->top_id);
    ns_budget_give(budget, ride->top_logprob);
    ns_seq_close(ride->state);
    ns_budget_give(budget, ride->known);
    ns_budget_give(budget, ride->prompt_logprob);
    ns_budget_give(budget, ride->prompt_top_id);
    ns_budget_give(budget, ride->prompt_top_logprob);
}

static void free_rider(struct ns_budget *budget, struct ns_rider *rider)
{
    for (size_t i = 0; rider->ride && i < rider->n; i++)
        free_ride(budget, &rider->ride[i]);
    ns_budget_give(budget, rider->ride);
    if (rider->has_result)
        ns_result_fini(&rider->result);
    if (rider->parsed)
        ns_request_fini(&rider->request);
    ns_claim_close(rider->claim);
    ns_budget_give(budget, rider);
}

void ns_roster_fini(struct ns_roster *roster)
{
    for (size_t i = 0; i < roster->n; i++)
        free_rider(roster->budget, roster->rider[i]);
    ns_budget_give(roster->budget, roster->rider);
    *roster = (struct ns_roster){.budget = roster->budget};
}

enum ns_code ns_roster_add(struct ns_roster *roster, struct ns_claim *claim, struct ns_rider **out,
                           struct ns_error *err)
{
    if (roster->n == roster->capacity) {
        size_t capacity = roster->capacity ? roster->capacity * 2 : 64;
        void *grown = ns_budget_resize(roster->budget, roster->rider, capacity * sizeof(struct ns_rider *), err);
        if (!grown) {
            ns_claim_close(claim);
            return NS_BUDGET;
        }
        roster->rider = grown;
        roster->capacity = capacity;
    }
    struct ns_rider *rider = ns_budget_take(roster->budget, sizeof *rider, err);
    if (!rider) {
        ns_claim_close(claim);
        return NS_BUDGET;
    }
    rider->claim = claim;
    rider->place = roster->n;
    roster->rider[roster->n++] = rider;
    *out = rider;
    return NS_OK;
}

void ns_roster_remove(struct ns_roster *roster, struct ns_rider *rider)
{
    assert(roster->rider[rider->place] == rider);
    struct ns_rider *last = roster->rider[--roster->n];
    roster->rider[rider->place] = last;
    last->place = rider->place;
    free_rider(roster->budget, rider);
}

struct ns_rider *ns_roster_find(const struct ns_roster *roster, int64_t request_id)
{
    for (size_t i = 0; i < roster->n; i++)
        if (roster->rider[i]->claim->request_id == request_id)
            return roster->rider[i];
    return NULL;
}
