/* pool.c - memory that states of sequences and kept weights share.
 *
 * WHAT   What a plan leaves for both is one sum. States take from it as they need; whatever they leave holds weights. A
 *        state that finds no room makes weights go; before each wave what states have given back goes to weights again.
 * WHY    A gigabyte of states saves more reading than a gigabyte of weights, but a queue of scoring items has no states at
 *        all, and a fixed division would leave half of the memory idle there.
 *        The step keeps a sequence that grows by a page from moving the border at each page.
 * INVARIANTS
 *   1. The two together never exceed what they were given.                     (pool_test: states_come_first)
 *   2. All that weights hold can become states.                                (pool_test: states_come_first)
 *   3. Weights get back what states leave.                                     (pool_test: weights_come_back)
 * THREADS  The driving thread; weights move between waves only. */
#include "engine/engine_impl.h"

static const size_t steps = 32; /* of the whole sum */

enum ns_code ns_pool_open(struct ns_engine *e, struct ns_error *err)
{
    const size_t *first;
    const struct ns_tile *tile = ns_model_tiles(e->model, &first);
    size_t room = ns_store_room(e->store);
    e->pool.most_resident = room;
    e->pool.step = (room + e->state_share.limit_bytes) / steps;
    size_t cap = e->options.state_bytes, has = e->state_share.limit_bytes;
    e->pool.most_states = cap == 0 ? SIZE_MAX : cap > has ? cap : has;
    return ns_store_keep(e->store, tile, first[ns_model_layers(e->model) + 1], room, NULL, err);
}

/* What weights hold and states may have. */
static size_t lent(const struct ns_engine *e)
{
    if (!e->store)
        return 0;
    size_t room = ns_store_room(e->store), may = e->pool.most_states - e->state_share.limit_bytes;
    return room < may ? room : may;
}

size_t ns_pool_left(const struct ns_engine *e)
{
    return ns_budget_left(&e->state_share) + lent(e);
}

size_t ns_pool_bytes(const struct ns_engine *e)
{
    return e->state_share.limit_bytes + lent(e);
}

static enum ns_code set_room(struct ns_engine *e, size_t room, struct ns_error *err)
{
    const size_t *first;
    const struct ns_tile *tile = ns_model_tiles(e->model, &first);
    return ns_store_keep(e->store, tile, first[ns_model_layers(e->model) + 1], room, &e->state_share, err);
}

static void take_from_weights(struct ns_engine *e, size_t bytes)
{
    size_t may = lent(e), more = bytes < e->pool.step ? e->pool.step : bytes;
    more = more < may ? more : may;
    if (more > 0) /* less may stay than hoped: the next waves read it again */
        ns_code_ignore(set_room(e, ns_store_room(e->store) - more, NULL));
}

enum ns_code ns_pool_make_room(struct ns_engine *e, size_t bytes, struct ns_error *err)
{
    size_t left = ns_budget_left(&e->state_share);
    if (bytes <= left || ns_store_in_wave(e->store))
        return NS_OK;
    take_from_weights(e, bytes - left);
    enum ns_code rc = NS_OK;
    for (struct ns_seq *seq = e->first_seq; seq && rc == NS_OK; seq = seq->next) {
        if (bytes <= ns_budget_left(&e->state_share) || !ns_spill_has_room(e))
            break;
        if (seq->kda)
            rc = ns_spill_out(seq, err);
    }
    return rc;
}

enum ns_code ns_pool_settle(struct ns_engine *e, struct ns_error *err)
{
    size_t left = ns_budget_left(&e->state_share), room = ns_store_room(e->store), more = e->pool.most_resident - room;
    if (left <= 2 * e->pool.step || more == 0)
        return NS_OK;
    left -= e->pool.step;
    return set_room(e, room + (left < more ? left : more), err);
}
