/* residency.c - who stays in memory between waves.
 *
 * WHAT   For every expert two decayed counts of the rows it served in a wave, one with a long and one with a short
 *        memory, give an estimate of its rate: rows to expect in a wave. From the rate follows when it will probably be
 *        used next, and the member that will be used last is the one to leave. Places are filled first come, first served;
 *        then an expert that was just read takes the place of the worst of a sample of members, if it is better.
 * WHY    A wave walks the layers in a circle, so LRU evicts each expert just before it is wanted again: no hits at all until
 *        the memory holds a whole wave. What pays is to hold on to the popular ones, with some weight on the recent.
 *        With rate r an expert is wanted in a wave with a probability of about r / (1 + r), so it waits 1 / r waves beyond
 *        the next visit of its layer; that visit is d waves away, 0 < d <= 1, less for a layer still ahead in this wave
 *        than for one just passed. The worth of a place is the inverse of the sum: r / (1 + d r). What Belady's rule does
 *        with the future, this does with what the past says about it.
 *        Layers still ahead have not been counted in this wave, so their rates are taken over one wave less: else each
 *        expert just seen would look better than its equals that are about to be seen.
 *        Sampled: a heap over a hundred thousand experts whose rates all change each wave would cost more than what the
 *        exact minimum gains. Decay is turned round: what a row adds grows, instead of all counts shrinking.
 * INVARIANTS
 *   1. member[place[key] - 1] == key for every member, and n counts them.   (residency_test: books_balance)
 *   2. A held key never leaves.                                             (residency_test: held_keys_stay)
 *   3. The same calls give the same choices.                                (residency_test: choices_repeat) */
#include "store/store_impl.h"

#include <assert.h>
#include <math.h>

#define SLOW_DECAY  0.98 /* per wave */
#define FAST_DECAY  0.4
#define FAST_WEIGHT 0.2
#define SAMPLE      256
#define UNIT_MAX    1e30
#define RANDOM_MUL  6364136223846793005u /* a 64-bit linear congruential step; the upper half is used */
#define RANDOM_PLUS 1442695040888963407u

enum ns_code ns_rank_init(struct ns_rank *r, uint32_t n_keys, uint32_t per_layer, struct ns_budget *budget,
                          struct ns_error *err)
{
    *r = (struct ns_rank){.budget = budget,
                          .n_keys = n_keys,
                          .per_layer = per_layer,
                          .slow = {.unit = 1.0},
                          .fast = {.unit = 1.0},
                          .random = 1};
    r->slow.count = ns_budget_take(budget, n_keys * sizeof *r->slow.count, err);
    r->fast.count = ns_budget_take(budget, n_keys * sizeof *r->fast.count, err);
    r->place = ns_budget_take(budget, n_keys * sizeof *r->place, err);
    r->member = ns_budget_take(budget, n_keys * sizeof *r->member, err);
    r->held = ns_budget_take(budget, n_keys, err);
    if (!r->slow.count || !r->fast.count || !r->place || !r->member || !r->held) {
        ns_rank_fini(r);
        return NS_BUDGET;
    }
    return NS_OK;
}

void ns_rank_set_capacity(struct ns_rank *r, uint32_t capacity)
{
    assert(r->n <= capacity && capacity <= r->n_keys);
    r->capacity = capacity;
}

void ns_rank_fini(struct ns_rank *r)
{
    if (!r->budget)
        return;
    ns_budget_give(r->budget, r->slow.count);
    ns_budget_give(r->budget, r->fast.count);
    ns_budget_give(r->budget, r->place);
    ns_budget_give(r->budget, r->member);
    ns_budget_give(r->budget, r->held);
    *r = (struct ns_rank){0};
}

static void age(struct ns_rank_memory *m, uint32_t n, double decay)
{
    m->unit /= decay;
    if (m->unit >= UNIT_MAX) {
        for (uint32_t i = 0; i < n; i++)
            m->count[i] /= m->unit;
        m->total /= m->unit;
        m->unit = 1.0;
    }
    m->total += m->unit;
}

void ns_rank_next_wave(struct ns_rank *r)
{
    age(&r->slow, r->n_keys, SLOW_DECAY);
    age(&r->fast, r->n_keys, FAST_DECAY);
    r->layer = 0;
}

void ns_rank_at_layer(struct ns_rank *r, uint32_t layer)
{
    r->layer = layer;
}

void ns_rank_note(struct ns_rank *r, uint32_t key, uint32_t n_rows)
{
    double weight = sqrt((double)n_rows); /* many rows in one wave say less than rows in many waves */
    r->slow.count[key] += r->slow.unit * weight;
    r->fast.count[key] += r->fast.unit * weight;
}

/* Rows a wave, over the waves in which the layer was visited. */
static double rate_of(const struct ns_rank_memory *m, uint32_t key, bool seen)
{
    double waves = seen ? m->total : m->total - m->unit;
    return waves > 0 ? m->count[key] / waves : 0;
}

/* The inverse of the waves until key is probably used again. */
static double worth_of(const struct ns_rank *r, uint32_t key)
{
    uint32_t layer = key / r->per_layer, n_layers = r->n_keys / r->per_layer;
    bool seen = layer <= r->layer;
    uint32_t ahead = seen ? layer + n_layers - r->layer : layer - r->layer;
    double distance = (double)ahead / n_layers;
    double rate = ((1 - FAST_WEIGHT) * rate_of(&r->slow, key, seen) + FAST_WEIGHT * rate_of(&r->fast, key, seen));
    return rate / (1 + distance * rate);
}

uint32_t ns_rank_place(const struct ns_rank *r, uint32_t key)
{
    return r->place[key] - 1; /* 0 wraps to NS_NO_PLACE */
}

/* Of a sample of members, the one whose place is worth least, or NS_NO_PLACE. */
static uint32_t weakest_of(struct ns_rank *r, double *least)
{
    uint32_t weakest = NS_NO_PLACE;
    for (uint32_t i = 0; i < SAMPLE && r->n > 0; i++) {
        r->random = r->random * RANDOM_MUL + RANDOM_PLUS;
        uint32_t m = r->member[(r->random >> 32) % r->n];
        if (r->held[m])
            continue;
        double has = worth_of(r, m);
        if (weakest == NS_NO_PLACE || has < *least) {
            weakest = m;
            *least = has;
        }
    }
    return weakest;
}

uint32_t ns_rank_remove_weakest(struct ns_rank *r)
{
    double least = 0;
    uint32_t weakest = weakest_of(r, &least);
    if (weakest == NS_NO_PLACE)
        return NS_NO_PLACE;
    uint32_t at = r->place[weakest] - 1, last = r->member[--r->n];
    r->member[at] = last;
    r->place[last] = at + 1;
    r->place[weakest] = 0;
    return at;
}

uint32_t ns_rank_offer(struct ns_rank *r, uint32_t key, uint32_t *evicted)
{
    assert(r->place[key] == 0);
    *evicted = NS_NO_PLACE;
    if (r->n < r->capacity) {
        uint32_t at = r->n++;
        r->member[at] = key;
        r->place[key] = at + 1;
        return at;
    }
    double least = 0;
    uint32_t weakest = weakest_of(r, &least);
    if (weakest == NS_NO_PLACE || worth_of(r, key) <= least)
        return NS_NO_PLACE;
    uint32_t at = r->place[weakest] - 1;
    r->place[weakest] = 0;
    r->member[at] = key;
    r->place[key] = at + 1;
    *evicted = weakest;
    return at;
}
