/* pool.c - memory that rows of a wave, states of sequences and kept weights share.
 *
 * WHAT   What a plan leaves for the three is one sum. The rows of a wave take theirs when it is opened and give it back when
 *        it is closed; states take from what is left as they need; whatever both leave holds weights. A state, or a wave,
 *        that finds no room makes weights go; before each wave reads, what is idle goes to weights again.
 * WHY    A gigabyte of states saves more reading than a gigabyte of weights, but a queue of scoring items has no states at
 *        all, and a fixed division would leave half of the memory idle there. Prompts need many rows before their states are
 *        there, and few rows afterwards.
 *        The step keeps a sequence that grows by a page from moving the border at each page.
 * INVARIANTS
 *   1. The three together never exceed what they were given.                   (pool_test: states_come_first)
 *   2. All that weights and rows hold can become states, up to a limit that was asked for, and the other way round.
 *                                                                (pool_test: states_come_first, rows_and_states_change_places)
 *   3. Weights get back what states leave.                                     (pool_test: weights_come_back)
 * THREADS  The driving thread; weights move between waves only. */
#include "engine/engine_impl.h"

static const size_t steps = 32; /* of states and weights */

enum ns_code ns_pool_open(struct ns_engine *e, struct ns_error *err)
{
    const size_t *first;
    const struct ns_tile *tile = ns_model_tiles(e->model, &first);
    size_t room = ns_store_room(e->store);
    e->pool.most_resident = e->plan.resident_most;
    e->pool.step = (room + e->state_share.limit_bytes) / steps;
    e->pool.most_states = e->plan.state_most;
    return ns_store_keep(e->store, tile, first[ns_model_layers(e->model) + 1], room, NULL, err);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What is idle in the place of rows, or holds weights. */
static size_t beside_states(const struct ns_engine *e)
{
    return ns_budget_left(&e->rows_share) + (e->store ? ns_store_room(e->store) : 0);
}

/* What of it states may have. */
static size_t lent(const struct ns_engine *e)
{
    return smaller(beside_states(e), e->pool.most_states - e->state_share.limit_bytes);
}

size_t ns_pool_left(const struct ns_engine *e)
{
    return ns_budget_left(&e->state_share) + lent(e);
}

size_t ns_pool_bytes(const struct ns_engine *e)
{
    return e->state_share.limit_bytes + lent(e);
}

size_t ns_pool_room(const struct ns_engine *e)
{
    return ns_budget_left(&e->state_share) + beside_states(e);
}

/* Moves the border of the weights; what they give or get is other's. */
static enum ns_code set_room(struct ns_engine *e, size_t room, struct ns_budget *other, struct ns_error *err)
{
    const size_t *first;
    const struct ns_tile *tile = ns_model_tiles(e->model, &first);
    return ns_store_keep(e->store, tile, first[ns_model_layers(e->model) + 1], room, other, err);
}

static void take_from_weights(struct ns_engine *e, size_t bytes, size_t most, struct ns_budget *other)
{
    size_t room = ns_store_room(e->store), more = bytes < e->pool.step ? e->pool.step : bytes;
    more = smaller(smaller(more, most), room);
    if (more > 0) /* less may stay than hoped: the next waves read it again */
        ns_code_ignore(set_room(e, room - more, other, NULL));
}

/* Moves what is idle, at most bytes. */
static void take_idle(struct ns_budget *from, struct ns_budget *to, size_t bytes)
{
    bool moved = ns_budget_shift(from, to, smaller(bytes, ns_budget_left(from)));
    (void)moved; /* no more than there is */
}

/* States go to files until there are bytes idle in their share. */
static enum ns_code spill_until(struct ns_engine *e, size_t bytes, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (struct ns_seq *seq = e->first_seq; seq && rc == NS_OK; seq = seq->next) {
        if (bytes <= ns_budget_left(&e->state_share) || !ns_spill_has_room(e))
            break;
        if (seq->kda)
            rc = ns_spill_out(seq, err);
    }
    return rc;
}

enum ns_code ns_pool_make_room(struct ns_engine *e, size_t bytes, struct ns_error *err)
{
    struct ns_budget *states = &e->state_share;
    if (bytes <= ns_budget_left(states) || ns_store_in_wave(e->store))
        return NS_OK;
    size_t short_of = bytes - ns_budget_left(states);
    take_idle(&e->rows_share, states, smaller(short_of, e->pool.most_states - states->limit_bytes));
    if (bytes > ns_budget_left(states))
        take_from_weights(e, bytes - ns_budget_left(states), e->pool.most_states - states->limit_bytes, states);
    return spill_until(e, bytes, err);
}

enum ns_code ns_pool_make_rows(struct ns_engine *e, size_t bytes, struct ns_error *err)
{
    struct ns_budget *rows = &e->rows_share;
    if (bytes <= ns_budget_left(rows))
        return NS_OK;
    take_idle(&e->state_share, rows, bytes - ns_budget_left(rows));
    if (bytes > ns_budget_left(rows))
        take_from_weights(e, bytes - ns_budget_left(rows), SIZE_MAX, rows);
    size_t left = ns_budget_left(rows);
    if (bytes <= left)
        return NS_OK;
    enum ns_code rc = spill_until(e, bytes - left, err);
    take_idle(&e->state_share, rows, bytes - left);
    return rc;
}

/* Gives weights what is idle in a share, but for a step. */
static enum ns_code settle(struct ns_engine *e, struct ns_budget *share, struct ns_error *err)
{
    size_t left = ns_budget_left(share), room = ns_store_room(e->store);
    if (left <= 2 * e->pool.step || room >= e->pool.most_resident)
        return NS_OK;
    return set_room(e, room + smaller(left - e->pool.step, e->pool.most_resident - room), share, err);
}

enum ns_code ns_pool_settle(struct ns_engine *e, struct ns_error *err)
{
    enum ns_code rc = settle(e, &e->rows_share, err);
    return rc == NS_OK ? settle(e, &e->state_share, err) : rc;
}
