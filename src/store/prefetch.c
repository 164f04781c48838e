/* prefetch.c - experts read before the router has spoken.
 *
 * WHAT   Of each layer the store remembers how its last choices were spread over the experts. Before the router chooses
 *        again, that says how probable it is that an expert will be wanted by a wave of so many choices. When nearly all
 *        experts are expected, those that are almost surely wanted and not kept begin to be read.
 * WHY    The disk would idle otherwise. A guess per expert, scaled to this wave: what a large wave wanted says nothing
 *        about a small one, and what is still not kept where nearly all are kept is what nobody ever chose. A popular
 *        expert of few choices may have been lucky, so its share is taken two deviations lower than it was seen.
 * INVARIANTS
 *   1. A small wave after large ones reads no more than one alone would.       (experts_test: few_choices_expect_nothing)
 *   2. Early reads leave half of the slots to others and never push out what is kept. What the router then does not want
 *      was read in vain and is counted.                                         (experts_test: expected_experts_are_used) */
#include "store/store_impl.h"

#include <math.h>

#define NEARLY_ALL       0.9
#define MISSED           0.005 /* probability that what is read early is not wanted */
#define DRAWS_REMEMBERED 64    /* times the experts of a layer */

void ns_experts_learn(struct ns_store *s, uint32_t layer, const uint32_t *n_rows, size_t n)
{
    struct ns_experts *x = &s->experts;
    size_t all = s->layout.n_experts;
    float *drawn = x->drawn + layer * all;
    double draws = 0, window = (double)DRAWS_REMEMBERED * (double)all;
    for (size_t i = 0; i < n; i++)
        draws += n_rows ? n_rows[i] : 1;
    double fresh = draws > window ? window / draws : 1, room = window - draws * fresh;
    double old = x->n_drawn[layer] > room ? room / x->n_drawn[layer] : 1;
    for (size_t i = 0; i < all; i++)
        drawn[i] *= (float)old;
    for (size_t i = 0; i < n; i++)
        drawn[x->want[i]] += (float)(fresh * (n_rows ? n_rows[i] : 1));
    x->n_drawn[layer] = (float)(old * x->n_drawn[layer] + fresh * draws);
}

/* That none of n_draws independent choices falls on an expert which had that share of them. */
static double unwanted(double share, uint64_t n_draws)
{
    return share < 1 ? exp((double)n_draws * log1p(-share)) : 0;
}

static bool almost_surely_wanted(double drawn, double of, uint64_t n_draws)
{
    double least = drawn - 2 * sqrt(drawn);
    return least > 0 && unwanted(least / of, n_draws) <= MISSED;
}

void ns_store_experts_expect(struct ns_store *store, uint32_t layer, uint64_t n_draws)
{
    struct ns_experts *x = &store->experts;
    uint32_t all = store->layout.n_experts;
    if (store->layout.expert_bytes == 0 || layer >= store->layout.n_layers || x->layer == layer ||
        !(x->n_drawn[layer] > 0))
        return;
    const float *drawn = x->drawn + (size_t)layer * all;
    double wanted = 0, of = x->n_drawn[layer];
    for (uint32_t i = 0; i < all; i++)
        wanted += 1 - unwanted(drawn[i] / of, n_draws);
    if (wanted < NEARLY_ALL * all)
        return;
    uint32_t room = x->n_slots / 2;
    for (uint32_t i = 0; i < all && room > 0; i++) {
        struct ns_expert_id id = {layer, i};
        if (!almost_surely_wanted(drawn[i], of, n_draws) || ns_experts_has(store, id))
            continue;
        struct ns_expert_slot *slot = ns_experts_free_slot(store);
        if (!slot)
            return;
        ns_experts_start(store, slot, id, false);
        room--;
    }
}
