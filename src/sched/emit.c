/* emit.c - the rides of a planned wave become segments, asks and uses.
 *
 * WHAT   Rides that follow each other become one segment, until a state is kept, an item ends, the tree branches, or nothing
 *        follows. Wanted positions become asks: one for each (row, target), however many
 *        items want it; a use says which item is served by which ask.
 * INVARIANTS
 *   1. A segment's parent comes before it: rides are made parents first, segments in the order of their first ride.
 *   2. A want is answered from its lowest position upward, without gaps. */
#include "sched/sched_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Items that ride along unplaced are served too, up to so many uses: a bound on the memory of a plan. */
enum { USES_FREE = 1 << 20 };

/* ---- segments --------------------------------------------------------------------------------------------------------- */

static enum ns_code segments_make(struct ns_sched *s, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    void *array = wave->segment;
    enum ns_code rc =
        ns_sched_reserve(s->budget, &array, &wave->segment_capacity, wave->n_rides, sizeof *wave->segment, err);
    wave->segment = array;
    array = wave->token;
    if (rc == NS_OK)
        rc = ns_sched_reserve(s->budget, &array, &wave->token_capacity, wave->out.rows, sizeof *wave->token, err);
    wave->token = array;
    if (rc != NS_OK)
        return rc;
    uint32_t rows = 0;
    wave->n_segments = 0;
    for (uint32_t h = 0; h < wave->n_rides; h++) {
        struct ns_ride *head = &wave->ride[h], *ride = head;
        if (head->parent != NS_NIL && ns_keep_goes_on(s, &wave->ride[head->parent]))
            continue;
        struct ns_segment *segment = &wave->segment[wave->n_segments];
        *segment = (struct ns_segment){.token = wave->token + rows, .parent = NS_NO_PARENT};
        if (head->parent != NS_NIL)
            segment->parent = wave->ride[head->parent].segment;
        else if (head->state_node != NS_NIL)
            segment->from = s->kept[s->node[head->state_node].state].seq;
        for (;;) {
            const struct ns_trie_node *node = &s->node[ride->node];
            uint32_t n = ride->to - ride->from;
            ride->segment = wave->n_segments;
            ride->offset = segment->n;
            memcpy(wave->token + rows, node->token + (ride->from - node->start), (size_t)n * sizeof *wave->token);
            rows += n;
            segment->n += n;
            if (!ns_keep_goes_on(s, ride))
                break;
            ride = &wave->ride[ride->kid];
        }
        wave->n_segments++;
    }
    assert(rows == wave->out.rows);
    return NS_OK;
}

/* ---- asks ------------------------------------------------------------------------------------------------------------- */

static enum ns_code ask_add(struct ns_sched *s, const struct ns_ride *ride, uint32_t position, uint32_t target,
                            struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    void *array = wave->ask;
    enum ns_code rc =
        ns_sched_reserve(s->budget, &array, &wave->ask_capacity, wave->n_asks + 1, sizeof *wave->ask, err);
    wave->ask = array;
    if (rc == NS_OK)
        wave->ask[wave->n_asks++] = (struct ns_ask){
            .segment = ride->segment, .offset = ride->offset + position - ride->from, .target = target, .n_top = 1};
    return rc;
}

static enum ns_code use_add(struct ns_sched *s, uint32_t item, uint32_t position, size_t ask, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    void *array = wave->key;
    enum ns_code rc =
        ns_sched_reserve(s->budget, &array, &wave->key_capacity, wave->n_uses + 1, sizeof *wave->key, err);
    wave->key = array;
    if (rc != NS_OK)
        return rc;
    const struct ns_sched_entry *it = &s->item[item];
    wave->key[wave->n_uses++] = (struct ns_use_key){
        .order = it->order, .use = {.ask = (uint32_t)ask, .item = item, .id = it->id, .position = position}};
    if (wave->ask[ask].n_top < it->n_top)
        wave->ask[ask].n_top = it->n_top;
    return NS_OK;
}

/* Is this want answered by the ride, from its lowest position on? */
static bool rides_along(const struct ns_sched *s, const struct ns_want *want, const struct ns_ride *ride)
{
    const struct ns_sched_entry *it = &s->item[want->item];
    if (want->lo < ride->from || want->lo >= ride->to || it->failed)
        return false;
    if (it->stamp == s->wave.stamp)
        return true;
    if (want->target == NS_NO_TOKEN && want->hi == it->n - 1 && it->n_wanted > 1)
        return false; /* the next token is the last thing an item is told */
    return s->wave.n_uses + (want->hi - want->lo) < USES_FREE;
}

static int by_target(const void *a, const void *b)
{
    const struct ns_last_want *x = a, *y = b;
    if (x->target != y->target)
        return x->target < y->target ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

/* The last position of a node, after which paths differ: one ask for each target. */
static enum ns_code asks_at_end(struct ns_sched *s, const struct ns_ride *ride, size_t n, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    qsort(wave->last, n, sizeof *wave->last, by_target);
    size_t first = wave->n_asks;
    for (size_t i = 0; i < n; i++) {
        uint32_t target = wave->last[i].target;
        enum ns_code rc = NS_OK;
        bool same = wave->n_asks > first && wave->ask[wave->n_asks - 1].target == target;
        bool any = wave->n_asks > first && target == NS_NO_TOKEN; /* every answer about the row names the best */
        if (!same && !any)
            rc = ask_add(s, ride, ride->to - 1, target, err);
        if (rc == NS_OK)
            rc = use_add(s, wave->last[i].item, ride->to - 1, wave->n_asks - 1, err);
        if (rc != NS_OK)
            return rc;
    }
    return NS_OK;
}

static enum ns_code asks_of_ride(struct ns_sched *s, const struct ns_ride *ride, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    const struct ns_trie_node *node = &s->node[ride->node];
    uint32_t n = ride->to - ride->from;
    bool to_end = ride->to == ns_trie_end(node);
    size_t n_last = 0;
    void *array = wave->ask_of;
    enum ns_code rc = ns_sched_reserve(s->budget, &array, &wave->ask_of_capacity, n, sizeof *wave->ask_of, err);
    wave->ask_of = array;
    if (rc != NS_OK)
        return rc;
    memset(wave->ask_of, 0xff, (size_t)n * sizeof *wave->ask_of);
    for (uint32_t w = node->want; w != NS_NIL; w = s->want[w].next) {
        const struct ns_want *want = &s->want[w];
        if (!rides_along(s, want, ride))
            continue;
        for (uint32_t p = want->lo; p <= want->hi && p < ride->to; p++) {
            if (to_end && p == ride->to - 1) {
                array = wave->last;
                rc = ns_sched_reserve(s->budget, &array, &wave->last_capacity, n_last + 1, sizeof *wave->last, err);
                wave->last = array;
                if (rc != NS_OK)
                    return rc;
                wave->last[n_last++] = (struct ns_last_want){.target = want->target, .item = want->item};
                continue;
            }
            uint32_t *ask = &wave->ask_of[p - ride->from];
            if (*ask == NS_NIL) {
                *ask = (uint32_t)wave->n_asks;
                rc = ask_add(s, ride, p, node->token[p + 1 - node->start], err);
            }
            if (rc == NS_OK)
                rc = use_add(s, want->item, p, *ask, err);
            if (rc != NS_OK)
                return rc;
        }
    }
    return n_last > 0 ? asks_at_end(s, ride, n_last, err) : NS_OK;
}

static int by_order(const void *a, const void *b)
{
    const struct ns_use_key *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->use.position < y->use.position ? -1 : x->use.position > y->use.position;
}

static enum ns_code uses_sort(struct ns_sched *s, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    void *array = wave->use;
    enum ns_code rc = ns_sched_reserve(s->budget, &array, &wave->use_capacity, wave->n_uses, sizeof *wave->use, err);
    wave->use = array;
    if (rc != NS_OK)
        return rc;
    if (wave->n_uses > 0)
        qsort(wave->key, wave->n_uses, sizeof *wave->key, by_order);
    for (size_t i = 0; i < wave->n_uses; i++)
        wave->use[i] = wave->key[i].use;
    return NS_OK;
}

enum ns_code ns_emit(struct ns_sched *s, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    wave->n_asks = wave->n_uses = 0;
    enum ns_code rc = segments_make(s, err);
    for (uint32_t r = 0; r < wave->n_rides && rc == NS_OK; r++)
        rc = asks_of_ride(s, &wave->ride[r], err);
    if (rc == NS_OK)
        rc = uses_sort(s, err);
    if (rc == NS_OK)
        rc = ns_keep_open(s, err);
    if (rc != NS_OK)
        return rc;
    wave->out.desc = (struct ns_wave_desc){
        .segment = wave->segment, .n_segments = wave->n_segments, .ask = wave->ask, .n_asks = wave->n_asks};
    wave->out.use = wave->use;
    wave->out.n_uses = wave->n_uses;
    wave->out.asks_shared = (uint32_t)(wave->n_uses - wave->n_asks);
    return NS_OK;
}
