/* store.c - opening and closing a store, small reads, and the books. */
#include "store/store_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TILE_BYTES   ((size_t)4 << 20)
#define TILE_MIN     ((size_t)4 << 10)
#define RING_BYTES   ((size_t)64 << 20)
#define EXPERT_SLOTS 8
#define N_READERS    8
#define BOUNCE_BYTES ((size_t)64 << 10)

struct ns_store_options ns_store_options_filled(const struct ns_layout *layout, const struct ns_store_options *options)
{
    struct ns_store_options o = options ? *options : (struct ns_store_options){0};
    if (o.n_readers == 0)
        o.n_readers = N_READERS;
    if (o.tile_bytes == 0)
        o.tile_bytes = TILE_BYTES;
    if (o.tile_bytes < TILE_MIN)
        o.tile_bytes = TILE_MIN;
    if (o.ring_bytes == 0)
        o.ring_bytes = RING_BYTES;
    if (o.expert_slots == 0)
        o.expert_slots = EXPERT_SLOTS;
    if (layout->expert_bytes == 0)
        o.expert_slots = 0;
    return o;
}

static size_t bounce_bytes(const struct ns_layout *layout)
{
    size_t row = layout->largest_row > BOUNCE_BYTES ? layout->largest_row : BOUNCE_BYTES;
    return (row / NS_STORE_ALIGN + 3) * NS_STORE_ALIGN;
}

static enum ns_code open_parts(struct ns_store *s, const struct ns_store_options *o, struct ns_error *err)
{
    size_t slots, kept;
    if (!ns_size_mul(o->expert_slots, s->layout.slot_bytes, &slots) || !ns_size_add(slots, o->resident_bytes, &kept))
        return ns_error_set(err, NS_BUDGET, "%" PRIu32 " expert slots of %zu bytes and %zu bytes that stay overflow",
                            o->expert_slots, s->layout.slot_bytes, o->resident_bytes);
    enum ns_code rc = ns_layout_open(&s->layout, o->no_direct, err);
    if (rc == NS_OK)
        rc = ns_budget_share(&s->kept, s->budget, "kept weights", kept, err);
    if (rc != NS_OK)
        return rc;
    s->has_kept = true;
    s->room = o->resident_bytes;
    s->bounce_bytes = bounce_bytes(&s->layout);
    s->bounce = ns_budget_take_raw(s->budget, NS_BOUNCES * s->bounce_bytes, NS_STORE_ALIGN, err);
    if (!s->bounce)
        return NS_BUDGET;
    rc = ns_iopool_open(o->n_readers, &s->pool, err);
    if (rc == NS_OK)
        rc = ns_tiles_init(s, o, err);
    if (rc == NS_OK)
        rc = ns_experts_init(s, o, err);
    return rc;
}

enum ns_code ns_store_open(const struct ns_config *config, const struct ns_shards *shards,
                           const struct ns_store_options *options, struct ns_budget *budget, struct ns_store **out,
                           struct ns_error *err)
{
    struct ns_store *s = ns_budget_take(budget, sizeof *s, err);
    if (!s)
        return NS_BUDGET;
    s->budget = budget;
    enum ns_code rc = ns_layout_init(&s->layout, config, shards, budget, err);
    if (rc == NS_OK) {
        struct ns_store_options o = ns_store_options_filled(&s->layout, options);
        rc = open_parts(s, &o, err);
    }
    if (rc != NS_OK) {
        ns_store_close(s);
        return ns_error_wrap(err, rc, "opening the weights");
    }
    *out = s;
    return NS_OK;
}

void ns_store_close(struct ns_store *store)
{
    if (!store)
        return;
    if (store->pool)
        ns_store_wave_end(store);
    ns_iopool_close(store->pool);
    ns_prefill_end(store->prefill);
    ns_experts_fini(store);
    ns_tiles_fini(store);
    ns_budget_give(store->budget, store->bounce);
    if (store->has_kept)
        ns_budget_fini(&store->kept);
    ns_layout_fini(&store->layout);
    ns_budget_give(store->budget, store);
}

void ns_store_wave_end(struct ns_store *store)
{
    ns_experts_end(store);
    ns_tiles_end(store);
}

enum ns_code ns_store_measure(const struct ns_config *config, const struct ns_shards *shards,
                              const struct ns_store_options *options, struct ns_budget *budget,
                              struct ns_store_need *out, struct ns_error *err)
{
    struct ns_layout l;
    enum ns_code rc = ns_layout_init(&l, config, shards, budget, err);
    if (rc == NS_OK) {
        struct ns_store_options o = ns_store_options_filled(&l, options);
        size_t tile = ns_tiles_slot_bytes(&l, o.tile_bytes);
        size_t n_tiles = o.ring_bytes / tile < 3 ? 3 : o.ring_bytes / tile;
        uint64_t keys = (uint64_t)l.n_layers * l.n_experts;
        *out = (struct ns_store_need){
            .expert_bytes = l.expert_bytes,
            .slot_bytes = l.slot_bytes,
            .tile_slot_bytes = tile,
            .expert_slots = o.expert_slots,
            .ring_bytes = n_tiles * tile,
            .trunk_bytes = l.trunk_bytes,
            .head_bytes = l.head_bytes,
            .experts_bytes = l.experts_bytes,
        };
        /* tables: the experts' tensors, their ranks, slots with their requests, tiles that stay, shard files */
        out->table_bytes =
            (size_t)(keys * (NS_EXPERT_PIECES * sizeof(void *) + 56)) + 2 * NS_BOUNCES * bounce_bytes(&l) +
            (n_tiles + (size_t)o.expert_slots * NS_EXPERT_PIECES) * (sizeof(struct ns_io) + 512) +
            (size_t)((l.trunk_bytes + l.head_bytes) / o.tile_bytes + ns_shards_count(shards) / 64) * 160 +
            l.n_files * sizeof(struct ns_shard_file) + ((size_t)1 << 20);
        out->fixed_bytes = out->table_bytes + out->ring_bytes + o.expert_slots * l.slot_bytes;
    }
    ns_layout_fini(&l);
    return rc;
}

uint64_t ns_store_trunk_bytes(const struct ns_store *store)
{
    return store->layout.trunk_bytes;
}

bool ns_store_is_direct(const struct ns_store *store)
{
    return store->layout.direct;
}

/* ---- small reads ---- */

enum ns_code ns_store_finish(struct ns_store *s, const struct ns_window *w, struct ns_io *io, uint64_t *class_bytes,
                             struct ns_error *err)
{
    if (ns_io_done(s->pool, io))
        return ns_window_finish(&s->layout, w, s->pool, io, class_bytes, err);
    uint64_t begin = ns_clock_mono_ns();
    enum ns_code rc = ns_window_finish(&s->layout, w, s->pool, io, class_bytes, err);
    s->stats.stall_ns += ns_clock_mono_ns() - begin;
    return rc;
}

enum ns_code ns_store_read(struct ns_store *store, const struct ns_tensor *tensor, uint64_t first_byte, size_t n,
                           void *buffer, struct ns_error *err)
{
    if (first_byte > tensor->bytes || n > tensor->bytes - first_byte)
        return ns_error_set(err, NS_INTERNAL, "%s has %" PRIu64 " bytes, not %" PRIu64 " + %zu", tensor->name,
                            tensor->bytes, first_byte, n);
    /* through the page cache: these are small, unaligned, and read once */
    struct ns_io io = {.file = store->layout.file[tensor->shard].file,
                       .buffer = buffer,
                       .n = n,
                       .offset = tensor->offset + first_byte};
    ns_io_start(store->pool, &io);
    enum ns_code rc = ns_io_wait(store->pool, &io, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "%s", tensor->name);
    store->stats.small_bytes += n;
    return NS_OK;
}

/* One read of neighbouring rows and the places they go to. */
struct row_group {
    struct ns_window window;
    struct ns_io io;
    size_t first, n; /* of the sorted order */
};

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void scatter(const struct row_group *g, const uint8_t *bounce, const uint64_t *order, size_t row_bytes,
                    uint8_t *out)
{
    uint32_t first_row = (uint32_t)(order[g->first] >> 32);
    for (size_t i = g->first; i < g->first + g->n; i++) {
        uint32_t row = (uint32_t)(order[i] >> 32), place = (uint32_t)order[i];
        memcpy(out + (size_t)place * row_bytes, bounce + g->window.skip + (size_t)(row - first_row) * row_bytes,
               row_bytes);
    }
}

/* The rows from order[at] on that one bounce buffer holds: equal ones and next neighbours. */
static size_t group_rows(const uint64_t *order, size_t at, size_t n, size_t row_bytes, size_t room)
{
    uint32_t first = (uint32_t)(order[at] >> 32), last = first;
    size_t k = at + 1;
    for (; k < n; k++) {
        uint32_t row = (uint32_t)(order[k] >> 32);
        if (row - last > 1 || (size_t)(row - first + 1) * row_bytes > room)
            break;
        last = row;
    }
    return k - at;
}

static enum ns_code read_sorted(struct ns_store *s, const struct ns_tensor *t, const uint64_t *order, size_t n,
                                struct row_group *group, uint8_t *out, struct ns_error *err)
{
    size_t row_bytes = (size_t)(t->bytes / t->dim[0]);
    size_t room = s->bounce_bytes - 2 * NS_STORE_ALIGN;
    size_t started = 0, finished = 0, at = 0;
    enum ns_code rc = NS_OK;
    /* a ring of NS_BOUNCES groups: start while there is a free one, finish the oldest */
    while (finished < started || (at < n && rc == NS_OK)) {
        if (at < n && rc == NS_OK && started - finished < NS_BOUNCES) {
            size_t b = started++ % NS_BOUNCES;
            struct row_group *g = &group[b];
            *g = (struct row_group){.first = at, .n = group_rows(order, at, n, row_bytes, room)};
            uint32_t first = (uint32_t)(order[at] >> 32), last = (uint32_t)(order[at + g->n - 1] >> 32);
            g->window = ns_window_of(&s->layout, t->shard, t->offset + (uint64_t)first * row_bytes,
                                     (size_t)(last - first + 1) * row_bytes);
            ns_window_start(&s->layout, &g->window, s->pool, true, &g->io, s->bounce + b * s->bounce_bytes);
            at += g->n;
            continue;
        }
        size_t b = finished++ % NS_BOUNCES;
        enum ns_code one =
            ns_store_finish(s, &group[b].window, &group[b].io, &s->stats.embed_bytes, rc == NS_OK ? err : NULL);
        if (one == NS_OK)
            scatter(&group[b], s->bounce + b * s->bounce_bytes, order, row_bytes, out);
        rc = rc == NS_OK ? one : rc;
    }
    return rc;
}

enum ns_code ns_store_read_rows(struct ns_store *store, const struct ns_tensor *tensor, const uint32_t *row, size_t n,
                                void *buffer, struct ns_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (row[i] >= tensor->dim[0] || i > UINT32_MAX)
            return ns_error_set(err, NS_INTERNAL, "%s has %" PRIu64 " rows, row %" PRIu32 " was asked for",
                                tensor->name, tensor->dim[0], row[i]);
    uint64_t *order = ns_budget_take_raw(store->budget, n * sizeof *order, 64, err);
    struct row_group *group = ns_budget_take_raw(store->budget, NS_BOUNCES * sizeof *group, 64, err);
    enum ns_code rc = order && group ? NS_OK : NS_BUDGET;
    if (rc == NS_OK) {
        for (size_t i = 0; i < n; i++)
            order[i] = (uint64_t)row[i] << 32 | i;
        qsort(order, n, sizeof *order, by_key);
        rc = read_sorted(store, tensor, order, n, group, buffer, err);
        if (rc != NS_OK)
            (void)ns_error_wrap(err, rc, "%s", tensor->name);
    }
    ns_budget_give(store->budget, order);
    ns_budget_give(store->budget, group);
    return rc;
}

void ns_store_stats_get(const struct ns_store *store, struct ns_store_stats *out)
{
    struct ns_iopool_stats pool;
    ns_iopool_stats_get(store->pool, &pool);
    *out = store->stats;
    out->reads = pool.reads;
    out->read_ns = pool.read_ns;
    out->disk_ns = pool.disk_ns;
}

enum ns_code ns_store_check_unchanged(struct ns_store *store, struct ns_error *err)
{
    return ns_layout_check_unchanged(&store->layout, err);
}
