/* experts.c - expert slots in memory.
 *
 * WHAT   A fixed number of equal slots holds the experts that are being read or used; residents are experts that stay from
 *        wave to wave. Each holds one expert exactly as on disk. A slot is free, loading, or ready. When a layer's wanted
 *        experts are known, those that are not resident are read into slots in the order in which they will be taken, as
 *        many at once as there are slots. When a used expert is released, residency.c says whether it stays: then the slot
 *        gives its buffer away and gets another one, so nothing is copied. All buffers lie in one span of memory.
 * WHY    Experts have one size per model, so slots never fragment and the budget is a multiplication. The order of use is
 *        ascending id, because sums over experts are taken in that order; in published files that is also the file order.
 *        An expert is often smaller than a large page: only side by side do they lie in large pages, into which the disk
 *        reads with less work, and whose first use costs less. So when residents go, a few others move.
 *        Wanted experts are read before tiles that wait: those are then what the disk does when the last expert is there
 *        and nothing else is known.
 * INVARIANTS
 *   1. A slot or resident with pins is never read into and never evicted.     (experts_test: pinned_experts_survive)
 *   2. A wanted resident stays until it was acquired.                         (experts_test: wanted_residents_stay)
 *   3. Each wanted expert that is not kept is read exactly once.              (experts_test: every_expert_is_read_once)
 *   4. After wave_end no read is under way and nothing is pinned.             (experts_test: abandoned_waves_leave_nothing)
 * THREADS  The driving thread alone; the pool touches a slot's ios and buffer between start and done. */
#include "store/store_impl.h"

#include <assert.h>
#include <string.h>

#define RESIDENT_BIT 0x80000000u

enum slot_state { SLOT_FREE, SLOT_LOADING, SLOT_READY };

struct ns_expert_slot {
    uint8_t *buffer; /* [slot_bytes]; of the same share as residents, so that they can be exchanged */
    enum slot_state state;
    uint32_t pins;
    struct ns_expert_id id;
    struct ns_expert_runs runs;
    struct ns_io io[NS_EXPERT_PIECES];
};

static uint32_t key_of(const struct ns_store *s, struct ns_expert_id id)
{
    return id.layer * s->layout.n_experts + id.expert;
}

static bool same(struct ns_expert_id a, struct ns_expert_id b)
{
    return a.layer == b.layer && a.expert == b.expert;
}

enum ns_code ns_experts_init(struct ns_store *s, const struct ns_store_options *options, struct ns_error *err)
{
    struct ns_experts *x = &s->experts;
    x->layer = UINT32_MAX;
    if (s->layout.expert_bytes == 0)
        return NS_OK;
    uint64_t keys = (uint64_t)s->layout.n_layers * s->layout.n_experts;
    if (keys >= RESIDENT_BIT)
        return ns_error_set(err, NS_INPUT, "%" PRIu64 " experts are more than this program can number", keys);
    enum ns_code rc = ns_rank_init(&x->rank, (uint32_t)keys, s->layout.n_experts, s->budget, err);
    if (rc != NS_OK)
        return rc;
    x->resident = ns_budget_take(s->budget, (size_t)keys * sizeof *x->resident, err);
    x->want = ns_budget_take(s->budget, s->layout.n_experts * sizeof *x->want, err);
    x->slot = ns_budget_take(s->budget, options->expert_slots * sizeof *x->slot, err);
    x->drawn = ns_budget_take(s->budget, (size_t)keys * sizeof *x->drawn, err);
    x->n_drawn = ns_budget_take(s->budget, s->layout.n_layers * sizeof *x->n_drawn, err);
    if (!x->resident || !x->want || !x->slot || !x->drawn || !x->n_drawn)
        return NS_BUDGET;
    uint64_t buffers = s->budget->limit_bytes / s->layout.slot_bytes, all = keys + options->expert_slots;
    rc = ns_span_open(&x->span, &s->kept, (size_t)(buffers < all ? buffers : all) * s->layout.slot_bytes, err);
    if (rc == NS_OK)
        rc = ns_span_grow(&x->span, options->expert_slots * s->layout.slot_bytes, err);
    if (rc != NS_OK)
        return rc;
    for (; x->n_slots < options->expert_slots; x->n_slots++)
        x->slot[x->n_slots].buffer = x->span.base + x->n_slots * s->layout.slot_bytes;
    return NS_OK;
}

/* The last buffer in use moves to a free one, so that those in use lie together: a slot's as it is, for no slot is in use,
 * a resident's with its bytes. */
static void move_last(struct ns_store *s, uint8_t *free)
{
    struct ns_experts *x = &s->experts;
    uint8_t *last = x->span.base + ((size_t)x->n_slots + x->rank.n) * s->layout.slot_bytes;
    if (free == last)
        return;
    for (uint32_t i = 0; i < x->n_slots; i++)
        if (x->slot[i].buffer == last) {
            x->slot[i].buffer = free;
            return;
        }
    for (uint32_t at = 0; at < x->rank.n; at++)
        if (x->resident[at].buffer == last) {
            memcpy(free, last, s->layout.slot_bytes);
            x->resident[at].buffer = free;
            return;
        }
    assert(false); /* it is in use */
}

void ns_experts_fini(struct ns_store *s)
{
    struct ns_experts *x = &s->experts;
    ns_span_close(&x->span);
    ns_budget_give(s->budget, x->resident);
    ns_budget_give(s->budget, x->want);
    ns_budget_give(s->budget, x->slot);
    ns_budget_give(s->budget, x->drawn);
    ns_budget_give(s->budget, x->n_drawn);
    ns_rank_fini(&x->rank);
    *x = (struct ns_experts){0};
}

void ns_experts_set_places(struct ns_store *s, uint32_t n_places)
{
    struct ns_experts *x = &s->experts;
    if (s->layout.expert_bytes == 0)
        return;
    if (n_places > x->rank.n_keys)
        n_places = x->rank.n_keys;
    while (x->rank.n > n_places) {
        uint32_t at = ns_rank_remove_weakest(&x->rank);
        assert(at != NS_NO_PLACE); /* between waves nothing is held */
        uint8_t *gone = x->resident[at].buffer;
        x->resident[at] = x->resident[x->rank.n];
        x->resident[x->rank.n] = (struct ns_resident){0};
        move_last(s, gone);
    }
    size_t bytes = ((size_t)x->n_slots + n_places) * s->layout.slot_bytes;
    ns_span_shrink(&x->span, bytes);
    if (ns_span_grow(&x->span, bytes, NULL) != NS_OK)
        n_places = x->rank.capacity; /* without memory for more there are as many places as before */
    ns_rank_set_capacity(&x->rank, n_places);
}

void ns_experts_next_wave(struct ns_store *s)
{
    if (s->layout.expert_bytes > 0)
        ns_rank_next_wave(&s->experts.rank);
}

/* ---- reading ---- */

struct ns_expert_slot *ns_experts_free_slot(struct ns_store *s)
{
    struct ns_experts *x = &s->experts;
    for (uint32_t i = 0; i < x->n_slots; i++)
        if (x->slot[i].state == SLOT_FREE)
            return &x->slot[i];
    return NULL;
}

void ns_experts_start(struct ns_store *s, struct ns_expert_slot *slot, struct ns_expert_id id, bool urgent)
{
    assert(slot->state == SLOT_FREE && slot->pins == 0);
    slot->id = id;
    slot->state = SLOT_LOADING;
    ns_layout_runs(&s->layout, id, &slot->runs);
    assert(slot->runs.total <= s->layout.slot_bytes);
    for (uint32_t i = 0; i < slot->runs.n; i++)
        ns_window_start(&s->layout, &slot->runs.window[i], s->pool, urgent, &slot->io[i],
                        slot->buffer + slot->runs.room[i]);
}

static struct ns_expert_slot *find_slot(const struct ns_experts *x, struct ns_expert_id id)
{
    for (uint32_t i = 0; i < x->n_slots; i++)
        if (x->slot[i].state != SLOT_FREE && same(x->slot[i].id, id))
            return &x->slot[i];
    return NULL;
}

bool ns_experts_has(const struct ns_store *s, struct ns_expert_id id)
{
    return ns_rank_place(&s->experts.rank, key_of(s, id)) != NS_NO_PLACE || find_slot(&s->experts, id);
}

/* Takes back what was started, waiting for what has begun; what was read in vain still was read. */
static void abandon_slot(struct ns_store *s, struct ns_expert_slot *slot)
{
    if (slot->state == SLOT_LOADING)
        for (uint32_t i = slot->runs.n; i-- > 0;)
            if (!ns_io_cancel(s->pool, &slot->io[i]) && slot->io[i].code == NS_OK)
                s->stats.expert_bytes += slot->io[i].got;
    slot->state = SLOT_FREE;
    slot->pins = 0;
}

static void start_wanted(struct ns_store *s)
{
    struct ns_experts *x = &s->experts;
    for (; x->next_start < x->n_want; x->next_start++) {
        struct ns_expert_id id = {x->layer, x->want[x->next_start]};
        if (ns_experts_has(s, id))
            continue;
        struct ns_expert_slot *slot = ns_experts_free_slot(s);
        if (!slot)
            return;
        ns_experts_start(s, slot, id, true);
    }
}

static bool is_wanted(const struct ns_experts *x, uint32_t expert)
{
    size_t lo = x->next_acquire, hi = x->n_want;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (x->want[mid] < expert)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n_want && x->want[lo] == expert;
}

/* Forgets what is left of a want list: holds and reads. */
static void drop_want(struct ns_store *s)
{
    struct ns_experts *x = &s->experts;
    for (size_t i = x->next_acquire; i < x->n_want; i++)
        x->rank.held[key_of(s, (struct ns_expert_id){x->layer, x->want[i]})] = 0;
    x->n_want = x->next_start = x->next_acquire = 0;
}

enum ns_code ns_store_experts_want(struct ns_store *store, uint32_t layer, const uint32_t *expert,
                                   const uint32_t *n_rows, size_t n, struct ns_error *err)
{
    struct ns_experts *x = &store->experts;
    if (layer >= store->layout.n_layers || store->layout.expert_bytes == 0)
        return ns_error_set(err, NS_INTERNAL, "layer %" PRIu32 " has no experts", layer);
    /* ascending ids below n_experts: n cannot exceed it */
    for (size_t i = 0; i < n; i++)
        if (expert[i] >= store->layout.n_experts || (i > 0 && expert[i] <= expert[i - 1]))
            return ns_error_set(err, NS_INTERNAL, "layer %" PRIu32 ": wanted experts are not ascending", layer);
    drop_want(store);
    x->layer = layer;
    for (size_t i = 0; i < n; i++)
        x->want[i] = expert[i];
    x->n_want = n;
    ns_experts_learn(store, layer, n_rows, n);
    for (uint32_t i = 0; i < x->n_slots; i++) {
        struct ns_expert_slot *slot = &x->slot[i];
        if (slot->state == SLOT_FREE || slot->pins > 0)
            continue;
        if (slot->id.layer != layer || !is_wanted(x, slot->id.expert))
            abandon_slot(store, slot);
        else
            store->stats.experts_early++;
    }
    ns_rank_at_layer(&x->rank, layer);
    for (size_t i = 0; i < n; i++) {
        uint32_t key = key_of(store, (struct ns_expert_id){layer, expert[i]});
        ns_rank_note(&x->rank, key, n_rows ? n_rows[i] : 1);
        x->rank.held[key] = 1;
    }
    store->stats.experts_wanted += n;
    start_wanted(store);
    return NS_OK;
}

/* ---- use ---- */

static void fill_view(const struct ns_store *s, const uint8_t *buffer, const struct ns_expert_runs *runs,
                      struct ns_expert_id id, struct ns_expert_view *view)
{
    const struct ns_tensor **piece = ns_layout_expert(&s->layout, id);
    struct ns_expert_part *part[3] = {&view->gate, &view->up, &view->down};
    for (size_t i = 0; i < 3; i++) {
        part[i]->data = buffer + runs->piece_at[2 * i];
        part[i]->scale = piece[2 * i + 1] ? buffer + runs->piece_at[2 * i + 1] : NULL;
    }
}

static enum ns_code finish_slot(struct ns_store *s, struct ns_expert_slot *slot, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (uint32_t i = 0; i < slot->runs.n; i++) {
        enum ns_code one =
            ns_store_finish(s, &slot->runs.window[i], &slot->io[i], &s->stats.expert_bytes, rc == NS_OK ? err : NULL);
        rc = rc == NS_OK ? one : rc;
    }
    slot->state = rc == NS_OK ? SLOT_READY : SLOT_FREE;
    return rc;
}

enum ns_code ns_store_expert_acquire(struct ns_store *store, struct ns_expert_id id, struct ns_expert_view *view,
                                     struct ns_error *err)
{
    struct ns_experts *x = &store->experts;
    assert(id.layer == x->layer && x->next_acquire < x->n_want && x->want[x->next_acquire] == id.expert);
    uint32_t key = key_of(store, id), place = ns_rank_place(&x->rank, key);
    if (place != NS_NO_PLACE) {
        struct ns_expert_runs runs;
        ns_layout_runs(&store->layout, id, &runs);
        x->resident[place].pins++;
        fill_view(store, x->resident[place].buffer, &runs, id, view);
        view->slot = place | RESIDENT_BIT;
        store->stats.experts_kept++;
        x->next_acquire++;
        return NS_OK;
    }
    start_wanted(store);
    struct ns_expert_slot *slot = find_slot(x, id);
    if (!slot)
        return ns_error_wrap(err, ns_error_set(err, NS_BUDGET, "all %" PRIu32 " expert slots are in use", x->n_slots),
                             "expert %" PRIu32, id.expert);
    enum ns_code rc = finish_slot(store, slot, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "expert %" PRIu32, id.expert);
    slot->pins = 1;
    fill_view(store, slot->buffer, &slot->runs, id, view);
    view->slot = (uint32_t)(slot - x->slot);
    store->stats.experts_read++;
    x->next_acquire++;
    return NS_OK;
}

uint32_t ns_store_expert_slots(const struct ns_store *store)
{
    return store->experts.n_slots;
}

bool ns_store_expert_ready(struct ns_store *store)
{
    const struct ns_experts *x = &store->experts;
    if (x->next_acquire >= x->n_want)
        return false;
    struct ns_expert_id id = {x->layer, x->want[x->next_acquire]};
    if (ns_rank_place(&x->rank, key_of(store, id)) != NS_NO_PLACE)
        return true;
    struct ns_expert_slot *slot = find_slot(x, id);
    for (uint32_t i = 0; slot && i < slot->runs.n; i++)
        if (!ns_io_done(store->pool, &slot->io[i]))
            return false;
    return slot != NULL;
}

/* A used expert may stay: its buffer moves to the resident, and the slot gets the one of who left, or a new one. */
static void offer(struct ns_store *s, struct ns_expert_slot *slot)
{
    struct ns_experts *x = &s->experts;
    uint32_t evicted, key = key_of(s, slot->id);
    uint32_t place = ns_rank_offer(&x->rank, key, &evicted);
    if (place == NS_NO_PLACE)
        return;
    struct ns_resident *r = &x->resident[place];
    assert(r->pins == 0);
    uint8_t *other = r->buffer;
    if (!other) /* a place that was never taken, and with it the next buffer */
        other = x->span.base + ((size_t)x->n_slots + place) * s->layout.slot_bytes;
    r->buffer = slot->buffer;
    slot->buffer = other;
}

void ns_store_expert_release(struct ns_store *store, struct ns_expert_view *view)
{
    struct ns_experts *x = &store->experts;
    if (view->gate.data && (view->slot & RESIDENT_BIT)) {
        uint32_t place = view->slot & ~RESIDENT_BIT;
        assert(place < x->rank.n && x->resident[place].pins > 0);
        if (--x->resident[place].pins == 0)
            x->rank.held[x->rank.member[place]] = 0;
    } else if (view->gate.data) {
        struct ns_expert_slot *slot = &x->slot[view->slot];
        assert(view->slot < x->n_slots && slot->pins == 1);
        slot->pins = 0;
        x->rank.held[key_of(store, slot->id)] = 0;
        offer(store, slot);
        slot->state = SLOT_FREE;
        start_wanted(store);
    }
    *view = (struct ns_expert_view){0};
}

void ns_experts_end(struct ns_store *s)
{
    struct ns_experts *x = &s->experts;
    if (s->layout.expert_bytes == 0)
        return;
    drop_want(s);
    for (uint32_t i = x->n_slots; i-- > 0;) {
        if (x->slot[i].pins > 0)
            x->rank.held[key_of(s, x->slot[i].id)] = 0;
        abandon_slot(s, &x->slot[i]);
    }
    for (uint32_t i = 0; i < x->rank.n; i++) {
        x->resident[i].pins = 0;
        x->rank.held[x->rank.member[i]] = 0;
    }
    x->layer = UINT32_MAX;
}

size_t ns_store_expert_bytes(const struct ns_store *store)
{
    return store->layout.expert_bytes;
}
