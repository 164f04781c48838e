/* stay.c - what stays in memory between waves, and in how much of it.
 *
 * WHAT   Given the list of all tiles and a room in bytes: which dense tiles stay, and for how many experts there is room
 *        beside them. The choice is a calculation that needs no store, so that a plan says what a run does. The room may
 *        change between waves, because states of sequences have the first claim on memory.
 * WHY    A dense tile is read in each wave, an expert only when it is wanted: tiles have the first claim, those of the
 *        layers before those of the head. They are spread evenly over the list rather than taken from its front: else the
 *        disk would idle through the first layers and be the limit in the others. When the room changes, tiles only come
 *        or only go. Which experts stay is residency.c's.
 *        The tiles' memory is made present in the background, with that of ring and slots: first used inside a read, it
 *        would have to be cleared there while the disk waits. A tile whose memory is not there yet is read as if it did
 *        not stay, and stays from the next wave on. A little memory is not worth that; and the experts' places are too
 *        much: made present beside a wave they took more of the cores than they saved. Tiles lie side by side, so that
 *        they lie in large pages; when some go, others move.
 * INVARIANTS
 *   1. What stays fits in the room, and of one kind less than a tile's room is left over.   (stay_test: room_is_used)
 *   2. What a plan measures is what a full store holds.                                     (stay_test: plan_is_kept)
 *   3. After the room has shrunk its bytes are free, and what stays was there before.       (stay_test: room_shrinks)
 * THREADS  The driving thread, between waves. */
#include "store/store_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LITTLE   ((size_t)16 << 20)
#define READY_MS 2000

static uint64_t room_of(const struct ns_tile *tile)
{
    return ns_window_room(ns_tile_offset(tile), ns_tile_bytes(tile));
}

static bool is_head(const struct ns_tile *tile)
{
    return tile->layer == UINT32_MAX;
}

typedef void (*stays_fn)(void *arg, const struct ns_tile *tile);

/* The place of a tile in the order in which tiles come to stay: steps of the golden section, so that the first m of them
 * lie evenly among all, for every m; and what stays in less room stays in more. */
static uint32_t turn_of(uint32_t index)
{
    return index * 2654435769u;
}

/* Room of the tiles of one class whose turn is below limit. Calls stays for each, if given. */
static uint64_t take_turns(const struct ns_tile *list, size_t n, bool head, uint64_t limit, stays_fn stays, void *arg)
{
    uint64_t sum = 0;
    uint32_t index = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_head(&list[i]) != head || turn_of(index++) >= limit)
            continue;
        sum += room_of(&list[i]);
        if (stays)
            stays(arg, &list[i]);
    }
    return sum;
}

/* Calls stays for as many tiles of one class as fit in room; returns what they take. */
static uint64_t choose_class(const struct ns_tile *list, size_t n, bool head, uint64_t room, stays_fn stays, void *arg)
{
    uint64_t low = 0, high = (uint64_t)1 << 32; /* low fits */
    if (take_turns(list, n, head, high, NULL, NULL) <= room)
        low = high;
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        if (take_turns(list, n, head, mid, NULL, NULL) <= room)
            low = mid;
        else
            high = mid;
    }
    return take_turns(list, n, head, low, stays, arg);
}

/* Returns the room that is left for experts. */
static uint64_t choose(const struct ns_tile *list, size_t n, uint64_t room, stays_fn stays, void *arg)
{
    room -= choose_class(list, n, false, room, stays, arg);
    room -= choose_class(list, n, true, room, stays, arg);
    return room;
}

static uint32_t places_in(uint64_t room, size_t slot_bytes, uint64_t n_experts)
{
    uint64_t n = slot_bytes > 0 ? room / slot_bytes : 0;
    n = n < n_experts ? n : n_experts;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static void add_bytes(void *arg, const struct ns_tile *tile)
{
    struct ns_keep *keep = arg;
    *(is_head(tile) ? &keep->head_bytes : &keep->trunk_bytes) += ns_tile_bytes(tile);
}

void ns_keep_measure(const struct ns_tile *list, size_t n, uint64_t room, size_t slot_bytes, uint64_t n_experts,
                     struct ns_keep *out)
{
    *out = (struct ns_keep){0};
    uint64_t left = choose(list, n, room, add_bytes, out);
    out->experts = places_in(left, slot_bytes, n_experts);
}

/* ---- the table of tiles: by tensor and first row, open addressing --------------------------------------------------- */

/* The entry of a tile, or the empty place where it belongs. The table is never full. */
static struct ns_kept_tile *entry_of(const struct ns_tiles *t, const struct ns_tensor *tensor, uint32_t first)
{
    uint64_t h = ((uint64_t)(uintptr_t)tensor / 16 + first) * 0x9E3779B97F4A7C15u;
    for (size_t i = (size_t)(h >> 32);; i++) {
        struct ns_kept_tile *k = &t->kept[i & (t->kept_capacity - 1)];
        if (!k->tensor || (k->tensor == tensor && k->first == first))
            return k;
    }
}

struct ns_kept_tile *ns_tiles_find_kept(const struct ns_tiles *t, const struct ns_tile *tile)
{
    if (t->n_kept == 0)
        return NULL;
    struct ns_kept_tile *k = entry_of(t, tile->tensor, tile->first);
    return k->tensor && k->stays && k->n == tile->n ? k : NULL;
}

/* Room in the table for the tiles of list that it has not met. */
static enum ns_code grow_table(struct ns_store *s, const struct ns_tile *list, size_t n, struct ns_error *err)
{
    struct ns_tiles *t = &s->tiles;
    size_t more = t->kept_capacity > 0 ? 0 : n, capacity = 64;
    for (size_t i = 0; i < n && t->kept_capacity > 0; i++)
        more += entry_of(t, list[i].tensor, list[i].first)->tensor == NULL;
    while (capacity < 2 * (t->n_kept + more))
        capacity *= 2;
    if (capacity <= t->kept_capacity)
        return NS_OK;
    struct ns_kept_tile *old = t->kept;
    size_t old_capacity = t->kept_capacity;
    struct ns_kept_tile *next = ns_budget_take(s->budget, capacity * sizeof *next, err);
    if (!next)
        return NS_BUDGET;
    t->kept = next;
    t->kept_capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].tensor)
            *entry_of(t, old[i].tensor, old[i].first) = old[i];
    ns_budget_give(s->budget, old);
    return NS_OK;
}

/* Its block is a gap in the span until close_gaps. */
static void forget(struct ns_kept_tile *k)
{
    assert(!k->loading);
    k->block = NULL;
    k->ready = false;
}

static void enter(void *arg, const struct ns_tile *tile)
{
    struct ns_store *s = arg;
    struct ns_kept_tile *k = entry_of(&s->tiles, tile->tensor, tile->first);
    if (!k->tensor) {
        *k = (struct ns_kept_tile){.tensor = tile->tensor, .first = tile->first};
        s->tiles.n_kept++;
    }
    if (k->n != tile->n)
        forget(k);
    k->n = tile->n;
    k->stays = true;
}

static struct ns_tile tile_of(const struct ns_kept_tile *k)
{
    return (struct ns_tile){.tensor = k->tensor, .first = k->first, .n = k->n};
}

static int by_block(const void *a, const void *b)
{
    const struct ns_kept_tile *x = *(struct ns_kept_tile *const *)a, *y = *(struct ns_kept_tile *const *)b;
    return (x->block > y->block) - (x->block < y->block);
}

/* Moves the blocks together, in the order in which they lie, and gives the rest back. Without memory to sort them none is
 * kept. */
static enum ns_code close_gaps(struct ns_store *s, struct ns_error *err)
{
    struct ns_tiles *t = &s->tiles;
    size_t n = 0, used = 0;
    for (size_t i = 0; i < t->kept_capacity; i++)
        n += t->kept[i].block != NULL;
    struct ns_kept_tile **k = ns_budget_take(s->budget, n * sizeof *k, err);
    n = 0;
    for (size_t i = 0; i < t->kept_capacity; i++)
        if (t->kept[i].block && k)
            k[n++] = &t->kept[i];
        else
            forget(&t->kept[i]);
    if (k)
        qsort(k, n, sizeof *k, by_block);
    for (size_t i = 0; i < n; i++) {
        struct ns_tile tile = tile_of(k[i]);
        if (k[i]->ready && k[i]->block > t->span.base + used)
            memmove(t->span.base + used, k[i]->block, room_of(&tile));
        k[i]->block = t->span.base + used;
        used += room_of(&tile);
    }
    ns_span_shrink(&t->span, used);
    enum ns_code rc = k ? NS_OK : NS_BUDGET;
    ns_budget_give(s->budget, k);
    return rc;
}

/* Returns the room left beside the tiles; without memory for the table no tile stays. */
static enum ns_code keep_tiles(struct ns_store *s, const struct ns_tile *list, size_t n, uint64_t room, uint64_t *left,
                               struct ns_error *err)
{
    struct ns_tiles *t = &s->tiles;
    for (size_t i = 0; i < t->kept_capacity; i++)
        t->kept[i].stays = false;
    enum ns_code rc = grow_table(s, list, n, err);
    *left = rc == NS_OK ? choose(list, n, room, enter, s) : 0;
    for (size_t i = 0; i < t->kept_capacity; i++)
        if (!t->kept[i].stays)
            forget(&t->kept[i]);
    enum ns_code closed = close_gaps(s, rc == NS_OK ? err : NULL);
    return rc == NS_OK ? closed : rc;
}

bool ns_tiles_may_load(const struct ns_store *s, const struct ns_kept_tile *k)
{
    if (!k->block || k->loading) /* a tile named twice is read plainly the second time */
        return false;
    return !s->prefill || k->part == NS_NO_PART || ns_prefill_has(s->prefill, k->part);
}

/* Blocks for the tiles that stay and have none yet, behind those of the others. Without memory there are none. */
static void take_blocks(struct ns_store *s, const struct ns_tile *list, size_t n)
{
    struct ns_tiles *t = &s->tiles;
    size_t at = t->span.bytes, more = 0;
    for (size_t i = 0; i < n; i++) {
        const struct ns_kept_tile *k = ns_tiles_find_kept(t, &list[i]);
        more += k && !k->block ? room_of(&list[i]) : 0;
    }
    if (ns_span_grow(&t->span, at + more, NULL) != NS_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        struct ns_kept_tile *k = ns_tiles_find_kept(t, &list[i]);
        if (!k || k->block)
            continue;
        k->block = t->span.base + at;
        at += room_of(&list[i]);
    }
}

/* A prefill of what nothing was read into, in the order of use. */
static void start_prefill(struct ns_store *s, const struct ns_tile *list, size_t n)
{
    size_t n_parts = 0, sum = 0;
    struct ns_bulk *part = ns_budget_take(s->budget, (2 + n) * sizeof *part, NULL);
    if (part && !s->prefilled) {
        part[n_parts++] = (struct ns_bulk){s->tiles.ring, s->tiles.n_slots * s->tiles.slot_bytes};
        part[n_parts++] = (struct ns_bulk){s->experts.span.base, s->experts.n_slots * s->layout.slot_bytes};
    }
    for (size_t i = 0; i < n; i++) {
        struct ns_kept_tile *k = ns_tiles_find_kept(&s->tiles, &list[i]);
        if (!k || k->ready)
            continue;
        k->part = NS_NO_PART;
        if (!part || !k->block)
            continue;
        sum += room_of(&list[i]);
        if (sum > LITTLE)
            k->part = (uint32_t)n_parts;
        part[n_parts++] = (struct ns_bulk){k->block, room_of(&list[i])};
    }
    if (n_parts > 0)
        s->prefill = ns_prefill_start(s->budget, part, n_parts);
    if (s->prefill && s->prefilled)
        (void)ns_prefill_wait(s->prefill, 0); /* a wave is about to begin */
    s->prefilled = true;
    ns_budget_give(s->budget, part);
}

enum ns_code ns_store_keep(struct ns_store *s, const struct ns_tile *list, size_t n, size_t room,
                           struct ns_budget *other, struct ns_error *err)
{
    assert(!s->tiles.in_wave);
    if (room > s->room && !ns_budget_shift(other, &s->kept, room - s->room))
        return ns_error_set(err, NS_BUDGET, "%zu bytes more shall stay in memory, %zu are left", room - s->room,
                            ns_budget_left(other));
    ns_prefill_end(s->prefill); /* it may be at what goes now */
    s->prefill = NULL;
    uint64_t left = 0;
    enum ns_code rc = keep_tiles(s, list, n, room, &left, err);
    ns_experts_set_places(s, places_in(left, s->layout.slot_bytes, (uint64_t)s->layout.n_layers * s->layout.n_experts));
    bool shifted = room >= s->room || ns_budget_shift(&s->kept, other, s->room - room);
    assert(shifted); /* all that was charged beyond the room has just gone */
    (void)shifted;
    s->room = room;
    take_blocks(s, list, n);
    start_prefill(s, list, n);
    return rc;
}

void ns_store_get_ready(struct ns_store *store)
{
    if (store->prefill)
        (void)ns_prefill_wait(store->prefill, READY_MS); /* the rest comes while waves go by */
}

size_t ns_store_room(const struct ns_store *store)
{
    return store->room;
}

bool ns_store_in_wave(const struct ns_store *store)
{
    return store->tiles.in_wave;
}
