/* tiles.c - dense matrices as a stream.
 *
 * WHAT   The caller lists the tiles of a wave in the order of use. Reads run ahead along that list, across layers, as far
 *        as there are free slots. Some tiles stay in memory from wave to wave; those are handed out from there and take no
 *        slot.
 * WHY    The order is known for the whole wave, so nothing is guessed: the disk works while there is room, and the next
 *        layer is under way while this one is computed. Slots are equal, so the ring never fragments; a tile has at most
 *        one matrix, because its rows must be contiguous.
 * INVARIANTS
 *   1. Tiles are handed out in list order, each read once in a wave.       (store_test: tiles_match_the_file)
 *   2. A slot is reused only after its view was released.                  (store_test: several_views_at_once)
 *   3. After wave_end no read is under way and no slot is taken.           (store_test: abandoned_waves_leave_nothing)
 * THREADS  The driving thread alone; the pool touches a slot's io and buffer between start and done. */
#include "store/store_impl.h"

#include <assert.h>
#include <string.h>

#define TILES_MIN 3

enum tile_state { TILE_FREE, TILE_LOADING, TILE_READY };

struct ns_tile_slot {
    uint8_t *buffer; /* [slot_bytes] of the ring */
    enum tile_state state;
    size_t index;              /* in the list */
    struct ns_kept_tile *keep; /* the tile is read into this one's block instead; NULL: into buffer */
    struct ns_window window;
    struct ns_io io;
};

size_t ns_tiles_slot_bytes(const struct ns_layout *layout, size_t tile_bytes)
{
    size_t largest = tile_bytes > layout->largest_row ? tile_bytes : layout->largest_row;
    return (largest / NS_STORE_ALIGN + 3) * NS_STORE_ALIGN; /* a window at the worst offset */
}

enum ns_code ns_tiles_init(struct ns_store *s, const struct ns_store_options *options, struct ns_error *err)
{
    struct ns_tiles *t = &s->tiles;
    t->tile_bytes = options->tile_bytes;
    t->slot_bytes = ns_tiles_slot_bytes(&s->layout, options->tile_bytes);
    size_t n = options->ring_bytes / t->slot_bytes;
    n = n < TILES_MIN ? TILES_MIN : n > UINT32_MAX / 2 ? UINT32_MAX / 2 : n;
    t->slot = ns_budget_take(s->budget, n * sizeof *t->slot, err);
    t->ring = t->slot ? ns_bulk_take(s->budget, n * t->slot_bytes, err) : NULL;
    if (!t->ring)
        return NS_BUDGET;
    for (; t->n_slots < n; t->n_slots++)
        t->slot[t->n_slots].buffer = t->ring + t->n_slots * t->slot_bytes;
    return ns_span_open(&t->span, &s->kept, s->budget->limit_bytes, err);
}

void ns_tiles_fini(struct ns_store *s)
{
    struct ns_tiles *t = &s->tiles;
    ns_budget_give(s->budget, t->ring);
    ns_span_close(&t->span);
    ns_budget_give(s->budget, t->kept);
    ns_budget_give(s->budget, t->slot);
    *t = (struct ns_tiles){0};
}

uint32_t ns_store_tile_rows(const struct ns_store *store, const struct ns_tensor *tensor)
{
    size_t row = (size_t)(tensor->bytes / tensor->dim[0]);
    size_t n = row > 0 ? store->tiles.tile_bytes / row : 1;
    if (n < 1)
        n = 1;
    return n < tensor->dim[0] ? (uint32_t)n : (uint32_t)tensor->dim[0];
}

/* ---- the stream ---- */

static struct ns_tile_slot *free_slot(struct ns_tiles *t)
{
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->slot[i].state == TILE_FREE)
            return &t->slot[i];
    return NULL;
}

static void start_reads(struct ns_store *s)
{
    struct ns_tiles *t = &s->tiles;
    for (; t->next_start < t->n_list; t->next_start++) {
        const struct ns_tile *tile = &t->list[t->next_start];
        struct ns_kept_tile *kept = ns_tiles_find_kept(t, tile);
        if (kept && kept->ready)
            continue;
        struct ns_tile_slot *slot = free_slot(t);
        if (!slot)
            return;
        slot->window = ns_window_of(&s->layout, tile->tensor->shard, ns_tile_offset(tile), ns_tile_bytes(tile));
        assert(slot->window.n <= t->slot_bytes);
        bool stays = kept && ns_tiles_may_load(s, kept);
        slot->keep = stays ? kept : NULL;
        if (stays)
            kept->loading = true;
        slot->index = t->next_start;
        slot->state = TILE_LOADING;
        ns_window_start(&s->layout, &slot->window, s->pool, false, &slot->io, stays ? kept->block : slot->buffer);
    }
}

void ns_store_wave_begin(struct ns_store *store, const struct ns_tile *tile, size_t n_tiles)
{
    struct ns_tiles *t = &store->tiles;
    assert(!t->in_wave);
    t->in_wave = true;
    t->list = tile;
    t->n_list = n_tiles;
    t->next_start = 0;
    t->next_acquire = 0;
    ns_experts_next_wave(store);
    start_reads(store);
}

static enum ns_code tile_failed(const struct ns_tile *tile, enum ns_code rc, struct ns_error *err)
{
    return ns_error_wrap(err, rc, "%s rows %" PRIu32 "-%" PRIu32, tile->tensor->name, tile->first,
                         tile->first + tile->n - 1);
}

/* What was not read is read by the next wave, into the same block. */
static void forget_keep(struct ns_tile_slot *slot)
{
    if (slot->keep)
        slot->keep->loading = false;
    slot->keep = NULL;
}

static enum ns_code acquire_slot(struct ns_store *s, struct ns_tile_slot *slot, const struct ns_tile *tile,
                                 struct ns_tile_view *view, struct ns_error *err)
{
    uint64_t *bytes = tile->layer == UINT32_MAX ? &s->stats.head_bytes : &s->stats.trunk_bytes;
    enum ns_code rc = ns_store_finish(s, &slot->window, &slot->io, bytes, err);
    if (rc != NS_OK) {
        forget_keep(slot);
        slot->state = TILE_FREE;
        return tile_failed(tile, rc, err);
    }
    view->first = tile->first;
    view->n = tile->n;
    if (slot->keep) {
        slot->keep->skip = slot->window.skip;
        slot->keep->ready = true;
        slot->keep->loading = false;
        view->data = slot->keep->block + slot->window.skip;
        view->slot = UINT32_MAX; /* it stays: nothing to give back but the io */
        slot->keep = NULL;
        slot->state = TILE_FREE;
        start_reads(s);
    } else {
        view->data = slot->buffer + slot->window.skip;
        view->slot = (uint32_t)(slot - s->tiles.slot);
        slot->state = TILE_READY;
    }
    return NS_OK;
}

enum ns_code ns_store_tile_acquire(struct ns_store *store, struct ns_tile_view *view, struct ns_error *err)
{
    struct ns_tiles *t = &store->tiles;
    assert(t->list && t->next_acquire < t->n_list);
    size_t index = t->next_acquire;
    const struct ns_tile *tile = &t->list[index];
    start_reads(store);
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->slot[i].state == TILE_LOADING && t->slot[i].index == index) {
            t->next_acquire++;
            return acquire_slot(store, &t->slot[i], tile, view, err);
        }
    struct ns_kept_tile *kept = ns_tiles_find_kept(t, tile);
    if (!kept || !kept->ready)
        return tile_failed(tile, ns_error_set(err, NS_BUDGET, "all %" PRIu32 " tile slots are in use", t->n_slots),
                           err);
    t->next_acquire++;
    store->stats.trunk_kept_bytes += ns_tile_bytes(tile);
    *view =
        (struct ns_tile_view){.data = kept->block + kept->skip, .first = tile->first, .n = tile->n, .slot = UINT32_MAX};
    return NS_OK;
}

void ns_store_tile_release(struct ns_store *store, struct ns_tile_view *view)
{
    struct ns_tiles *t = &store->tiles;
    if (view->data && view->slot != UINT32_MAX) {
        assert(view->slot < t->n_slots && t->slot[view->slot].state == TILE_READY);
        t->slot[view->slot].state = TILE_FREE;
        start_reads(store);
    }
    *view = (struct ns_tile_view){0};
}

void ns_tiles_end(struct ns_store *s)
{
    struct ns_tiles *t = &s->tiles;
    /* first take out all that has not begun, then wait for the few that have */
    for (uint32_t i = t->n_slots; i-- > 0;) {
        struct ns_tile_slot *slot = &t->slot[i];
        if (slot->state == TILE_LOADING) {
            (void)ns_io_cancel(s->pool, &slot->io);
            forget_keep(slot);
        }
        slot->state = TILE_FREE;
        slot->keep = NULL;
    }
    t->list = NULL;
    t->n_list = 0;
    t->in_wave = false;
}
