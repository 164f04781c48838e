/* place.c - the rows that one item needs, into the wave that is being planned.
 *
 * WHAT   A ride is the range of one node's positions that the wave computes. Placing an item walks from the end of its
 *        path up to the first thing it can start from: a ride that is in the wave already, a kept state, or position 0.
 *        Every node on the way down from there gets a ride.
 * WHY    The tree is the sharing: what another item has placed is simply found on the way up, so a shared run is
 *        computed once, and identical items need no rows at all.
 * INVARIANTS
 *   1. A node has at most one ride in a wave; rides of one chain are contiguous in positions.
 *   2. An item starts at or below its lowest wanted position; else the answer there would be missing. When the wave
 *      holds its nodes from a later position on, it has to wait (a conflict).
 *   3. Only an item with a reservation is cut, or leaves a state. Cuts are at multiples of 64 positions where the rows
 *      left allow it.
 *      (all: sched_test random_runs_equal_alone, with a machine that knows which rows came in which order) */
#include "sched/sched_impl.h"

#include <assert.h>

enum { CUT = 64 };

bool ns_place_keeps_state(const struct ns_sched_entry *it)
{
    return it->left > 1;
}

static enum ns_code path_add(struct ns_sched *s, struct ns_need *need, uint32_t node, struct ns_error *err)
{
    void *array = s->wave.path;
    enum ns_code rc = ns_sched_reserve(s->budget, &array, &s->wave.path_capacity, (size_t)need->n_path + 1,
                                       sizeof *s->wave.path, err);
    s->wave.path = array;
    if (rc == NS_OK)
        s->wave.path[need->n_path++] = node;
    return rc;
}

static bool state_usable(const struct ns_sched *s, const struct ns_kept *kept, uint32_t low, bool passed)
{
    /* passed: this item is not one of its users; a single user may be about to write over the state */
    return kept->at <= low && !kept->given && !(passed && s->node[kept->node].n_users < 2);
}

enum ns_code ns_place_need(struct ns_sched *s, uint32_t item, struct ns_need *need, struct ns_error *err)
{
    const struct ns_sched_entry *it = &s->item[item];
    *need = (struct ns_need){.low = UINT32_MAX, .ride = NS_NIL, .state_node = NS_NIL};
    for (uint32_t w = it->want; w != NS_NIL; w = s->want[w].item_next) {
        need->low = s->want[w].lo < need->low ? s->want[w].lo : need->low;
        need->to = s->want[w].hi + 1 > need->to ? s->want[w].hi + 1 : need->to;
    }
    uint32_t i = it->node, to = need->to;
    while (s->node[i].start >= to)
        i = s->node[i].parent;
    bool passed = false, found = false;
    for (; i != 0; to = s->node[i].start, i = s->node[i].parent) {
        const struct ns_trie_node *node = &s->node[i];
        const struct ns_kept *kept = node->state != NS_NIL ? &s->kept[node->state] : NULL;
        bool usable = kept && state_usable(s, kept, need->low, passed);
        if (!found && node->stamp == s->wave.stamp) {
            const struct ns_ride *ride = &s->wave.ride[node->ride];
            need->conflict = ride->to < to || ride->chain_start > need->low;
            need->ride = node->ride;
            need->from = to;
            found = true;
        }
        if (usable) {
            need->kept_at = kept->at;
            if (found)
                return NS_OK;
            need->state_node = i;
            need->from = kept->at;
            return kept->at < to ? path_add(s, need, i, err) : NS_OK;
        }
        passed = passed || kept;
        if (!found) {
            enum ns_code rc = path_add(s, need, i, err);
            if (rc != NS_OK)
                return rc;
        }
    }
    return NS_OK;
}

/* Where a run may be cut when only so many rows are left. */
static uint32_t cut_at(uint32_t from, uint32_t rows)
{
    uint32_t end = from + rows, whole = end - end % CUT;
    return whole > from ? whole : end;
}

static bool is_below(const struct ns_sched *s, uint32_t node, uint32_t above)
{
    while (node != NS_NIL && node != above)
        node = s->node[node].parent;
    return node != NS_NIL;
}

/* Items that cover the state now and will have a state at end nearer to them. mark: they are counted no more. */
static uint32_t captured(struct ns_sched *s, uint32_t covered, uint32_t end, bool mark)
{
    uint32_t n = 0;
    for (uint32_t i = s->begun.first; i != NS_NIL; i = s->item[i].list_next) {
        struct ns_sched_entry *it = &s->item[i];
        if (it->reserve == 0 || it->moved == s->wave.stamp || !is_below(s, it->node, end))
            continue;
        const struct ns_kept *kept = ns_ledger_above(s, it->node);
        if (!kept || kept->node != covered)
            continue;
        it->moved = mark ? s->wave.stamp : it->moved;
        n++;
    }
    return n;
}

/* An item makes a state at position to of node end. May the one that was nearest to it, and to others there, stay? */
static enum ns_place leave_state(struct ns_sched *s, const struct ns_sched_entry *it, bool covers, uint32_t start,
                                 uint32_t end, uint32_t to)
{
    struct ns_kept *kept = ns_ledger_above(s, it->node);
    while (kept && kept->node != end && is_below(s, kept->node, end)) { /* too far on to be of use to this item */
        if (kept->starts > 0 || kept->cover > (covers ? 1u : 0u)) {
            size_t bytes = s->machine.seq_bytes(s->machine.self, to);
            if (!ns_ledger_room(s, bytes, (double)to))
                return NS_PLACE_MEMORY;
            s->extra += bytes;
            return NS_PLACED;
        }
        ns_ledger_less(s, kept->cover == 0 ? kept->bytes : 0);
        ns_ledger_drop(s, kept->node);
        kept = ns_ledger_above(s, it->node);
    }
    if (!kept || kept->node == end || kept->cover == 0)
        return NS_PLACED;
    uint32_t covered = kept->node, n = captured(s, covered, end, false);
    if (n > 0 && n >= kept->cover) {
        bool can_give = covered == start && kept->starts == 1; /* only this chain starts from it */
        bool sole = can_give && s->node[covered].n_users == 1;
        bool room = sole || ns_ledger_room(s, kept->bytes, (double)kept->at);
        kept = &s->kept[s->node[covered].state]; /* giving others up moves it */
        if (!room && !can_give)
            return NS_PLACE_MEMORY; /* it will be alone in a later wave */
        kept->given = sole || !room;
        if (!kept->given)
            s->extra += kept->bytes;
    }
    kept->cover -= captured(s, covered, end, true);
    return NS_PLACED;
}

/* The node that holds position to-1. */
static uint32_t end_node(const struct ns_sched *s, const struct ns_need *need, uint32_t to)
{
    uint32_t i = 0;
    if (need->n_path == 0)
        return s->wave.ride[need->ride].node;
    while (i + 1 < need->n_path && s->node[s->wave.path[i]].start >= to)
        i++;
    return s->wave.path[i];
}

/* Memory for a state of its own. When only the state it starts from is in the way, it gets that one. */
static bool reserve(struct ns_sched *s, uint32_t item, uint32_t start)
{
    bool blocked = s->memory_blocked;
    if (ns_ledger_reserve(s, item))
        return true;
    struct ns_kept *kept = start == NS_NIL ? NULL : &s->kept[s->node[start].state];
    if (blocked || !kept || kept->cover > 0 || kept->starts > 1)
        return false;
    s->memory_blocked = false;
    ns_ledger_less(s, kept->bytes);
    bool admitted = ns_ledger_reserve(s, item);
    kept = &s->kept[s->node[start].state]; /* giving others up moves it */
    kept->given = admitted;
    if (!admitted)
        s->extra += kept->bytes;
    return admitted;
}

/* Pins the state that the item starts from; sees to memory when it makes one of its own, at position to of node end. */
static enum ns_place take_state(struct ns_sched *s, uint32_t item, uint32_t start, uint32_t end, uint32_t to)
{
    struct ns_sched_entry *it = &s->item[item];
    bool leaves = end != NS_NIL, covers = it->reserve > 0;
    if (start != NS_NIL)
        s->kept[s->node[start].state].starts++; /* not to be given up for this very item */
    enum ns_place place = leaves && !covers && !reserve(s, item, start) ? NS_PLACE_MEMORY : NS_PLACED;
    if (place == NS_PLACED && leaves)
        place = leave_state(s, it, covers, start, end, to);
    if (place != NS_PLACED && start != NS_NIL) {
        struct ns_kept *kept = &s->kept[s->node[start].state];
        kept->starts--;
        if (kept->given) { /* by reserve: back it goes */
            kept->given = false;
            s->extra += kept->bytes;
        }
    }
    return place;
}

/* The node where the item's state is to be may hold one already. At the same position it is the same state. Behind it, it
 * is somebody's progress. Before it, it is left for those who use it until the new one takes its place. */
static enum ns_place meet_state(struct ns_sched *s, const struct ns_sched_entry *it, uint32_t end, uint32_t to,
                                bool *same)
{
    const struct ns_kept *there = s->node[end].state == NS_NIL ? NULL : &s->kept[s->node[end].state];
    *same = there && there->at == to && !there->given;
    if (there && there->at == to && there->given)
        return NS_PLACE_CONFLICT;
    if (!there || there->at <= to)
        return NS_PLACED;
    bool mine = it->reserve > 0 && ns_ledger_above(s, it->node) == there;
    if (there->cover > (mine ? 1u : 0u) || there->starts > 0)
        return NS_PLACE_CONFLICT;
    ns_ledger_less(s, there->cover == 0 ? there->bytes : 0);
    ns_ledger_drop(s, end);
    return NS_PLACED;
}

/* One more, or one fewer, that needs no state but this one. */
static void cover(struct ns_sched *s, uint32_t node, bool add)
{
    struct ns_kept *kept = &s->kept[s->node[node].state];
    if (add && kept->cover++ == 0)
        ns_ledger_less(s, kept->bytes);
    if (!add && --kept->cover == 0)
        s->extra += kept->bytes;
}

/* A state can be written over only by the segment that starts from it, which ends where the tree branches or an item ends:
 * so far the item may go in this wave. */
static uint32_t first_break(const struct ns_sched *s, const struct ns_need *need, uint32_t to)
{
    for (uint32_t i = need->n_path; i-- > 0;) {
        const struct ns_trie_node *node = &s->node[s->wave.path[i]];
        if (ns_trie_end(node) >= to)
            break;
        if (ns_trie_breaks(s, node))
            return ns_trie_end(node);
    }
    return to;
}

static enum ns_code ride_add(struct ns_sched *s, uint32_t node, const struct ns_need *need, uint32_t *from, uint32_t to,
                             struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    size_t capacity = wave->ride_capacity;
    void *array = wave->ride;
    enum ns_code rc =
        ns_sched_reserve(s->budget, &array, &capacity, (size_t)wave->n_rides + 1, sizeof *wave->ride, err);
    wave->ride = array;
    wave->ride_capacity = (uint32_t)capacity;
    if (rc != NS_OK)
        return rc;
    struct ns_trie_node *at = &s->node[node];
    bool first = *from == need->from;
    uint32_t parent = first ? need->ride : wave->n_rides - 1;
    struct ns_ride *ride = &wave->ride[wave->n_rides];
    *ride = (struct ns_ride){.node = node,
                             .from = *from,
                             .to = to < ns_trie_end(at) ? to : ns_trie_end(at),
                             .chain_start = parent == NS_NIL ? need->from : wave->ride[parent].chain_start,
                             .state_node = parent == NS_NIL ? need->state_node : wave->ride[parent].state_node,
                             .parent = parent,
                             .kid = NS_NIL};
    if (parent != NS_NIL) {
        wave->ride[parent].kids++;
        wave->ride[parent].kid = wave->n_rides;
    }
    for (uint32_t p = ride->from; p < ride->to; p++)
        wave->past += p;
    at->ride = wave->n_rides++;
    at->stamp = wave->stamp;
    *from = ride->to;
    return NS_OK;
}

/* Rows by what they are for, and what the same item would have cost alone. */
static void count(struct ns_sched *s, struct ns_sched_entry *it, uint32_t from, uint32_t to, uint32_t start)
{
    struct ns_sched_plan *out = &s->wave.out;
    uint32_t rows = to - from, again = 0;
    if (it->n_done > from)
        again = (it->n_done < to ? it->n_done : to) - from;
    uint32_t fresh = rows - again;
    out->rows += rows;
    out->rows_replay += again;
    if (it->left > 0 && it->running && start > 0 && rows == 1)
        out->rows_decode += fresh;
    else if (it->left > 0)
        out->rows_prefill += fresh;
    else
        out->rows_score += fresh;
    uint32_t alone = to > it->n_done ? to - it->n_done : 0;
    if (alone > fresh) {
        if (rows == 0)
            out->rows_same += alone;
        else
            out->rows_prefix += alone - fresh;
    }
    ns_account_alone(s, alone);
    out->items++;
    it->end_next = to;
}

/* Somebody's state will be up there: one further down would be nearer to both, and leave that one uncovered. */
static bool behind_cut(const struct ns_sched *s, uint32_t ride)
{
    while (ride != NS_NIL && !s->wave.ride[ride].cut)
        ride = s->wave.ride[ride].parent;
    return ride != NS_NIL;
}

/* How many of n rows have room, and a state of the item's own beside them if it must leave one. When only the state it
 * starts from is in the way, reserve will let it have that one. */
static uint32_t rows_left(struct ns_sched *s, const struct ns_sched_entry *it, const struct ns_need *need, uint32_t n)
{
    size_t state = ns_place_keeps_state(it) && it->reserve == 0 ? ns_ledger_need(s, it) : 0;
    uint32_t start = need->state_node;
    if (start == NS_NIL)
        return ns_ledger_rows_left(s, n, state);
    s->kept[s->node[start].state].starts++; /* not to be given up for this very item */
    uint32_t left = ns_ledger_rows_left(s, n, state);
    struct ns_kept *kept = &s->kept[s->node[start].state]; /* giving others up moves it */
    if (left == 0 && state > 0 && kept->cover == 0 && kept->starts == 1) {
        size_t bytes = kept->bytes;
        ns_ledger_less(s, bytes);
        left = ns_ledger_rows_left(s, n, state);
        s->extra += bytes;
        kept = &s->kept[s->node[start].state];
    }
    kept->starts--;
    return left;
}

static enum ns_place place_item(struct ns_sched *s, uint32_t item, bool decode_only, struct ns_error *err)
{
    struct ns_sched_entry *it = &s->item[item];
    struct ns_wave_plan *wave = &s->wave;
    if (it->n_wanted == 0 || it->failed)
        return NS_PLACE_IDLE;
    struct ns_need need;
    if (ns_place_need(s, item, &need, err) != NS_OK)
        return NS_PLACE_ERROR;
    if (need.conflict)
        return NS_PLACE_CONFLICT;
    uint32_t left = wave->rows_most - wave->out.rows, to = need.to;
    bool keeps = ns_place_keeps_state(it), cut = to - need.from > left;
    if (decode_only && (cut || to - need.from > 1))
        return NS_PLACE_FULL;
    uint32_t most = cut ? left : to - need.from;
    left = rows_left(s, it, &need, most);
    cut = to - need.from > left;
    if (left == 0 && most > 0 && ns_ledger_rows_left(s, 1, 0) > 0) {
        s->memory_blocked = true; /* only its state has no room: those that need none may go on */
        return NS_PLACE_MEMORY;
    }
    if (cut && (decode_only || left == 0))
        return NS_PLACE_FULL;
    if (cut && !keeps && it->reserve == 0 && to - need.kept_at <= wave->rows_most)
        return NS_PLACE_FULL; /* an empty wave takes it whole, without a state */
    if (cut)
        to = cut_at(need.from, left);
    s->placing = to - need.from;
    uint32_t state_node = need.ride != NS_NIL ? wave->ride[need.ride].state_node : need.state_node;
    bool leaves = keeps || cut;
    if (leaves && behind_cut(s, need.ride))
        return NS_PLACE_CONFLICT;
    if (leaves && s->tight && s->leaving > 0)
        return NS_PLACE_MEMORY;
    uint32_t end = end_node(s, &need, to);
    bool same = false;
    enum ns_place place = NS_PLACED;
    if (leaves && need.state_node != end)
        place = meet_state(s, it, end, to, &same);
    if (same)
        cover(s, end, true);
    if (place == NS_PLACED)
        place = take_state(s, item, need.state_node, leaves ? end : NS_NIL, to);
    if (same && place != NS_PLACED)
        cover(s, end, false);
    if (place != NS_PLACED)
        return place;
    struct ns_kept *start = need.state_node == NS_NIL ? NULL : &s->kept[s->node[need.state_node].state];
    if (start && leaves && s->tight)
        start->given = true;
    if (start && start->given) {
        uint32_t stop = first_break(s, &need, to);
        cut = cut || stop < to;
        to = stop;
    }
    uint32_t from = need.from;
    for (uint32_t i = need.n_path; i-- > 0 && from < to;)
        if (ride_add(s, wave->path[i], &need, &from, to, err) != NS_OK)
            return NS_PLACE_ERROR;
    assert(from == to);
    uint32_t last = need.n_path > 0 ? wave->n_rides - 1 : need.ride;
    s->leaving += leaves;
    if (keeps || cut)
        wave->ride[last].keep = true;
    if (cut)
        wave->ride[last].cut = true;
    for (uint32_t r = last; r != NS_NIL; r = wave->ride[r].parent)
        wave->ride[r].placed++;
    if (state_node != NS_NIL)
        s->kept[s->node[state_node].state].served++;
    need.to = to;
    ns_group_placed(s, item, &need);
    count(s, it, need.from, to, need.kept_at);
    it->stamp = wave->stamp;
    return NS_PLACED;
}

enum ns_place ns_place_item(struct ns_sched *s, uint32_t item, bool decode_only, struct ns_error *err)
{
    enum ns_place place = place_item(s, item, decode_only, err);
    s->placing = 0; /* now they are rows of the wave, or not */
    return place;
}
