/* diskbench.c - what this disk can do with the reads that a wave makes.
 *
 * WHAT   Reads the model's own shard files for a given time, sequentially in blocks or expert by expert in a scattered
 *        order, with a given number of reads in flight, and says how many bytes a second came.
 * WHY    The engine is judged against the disk it runs on, so the ceiling must be measured with the same files, the same
 *        kind of descriptor and the same sizes, in the same run. Nothing is written. A test may begin where another ended:
 *        what was just read may come faster than what a wave reads. So may what is read after a pause: a disk that is
 *        shared or limited often lends some tenths of a second's worth of bytes, and a wave reads for longer. */
#include "store/store_impl.h"

#include <assert.h>
#include <string.h>

#define DEPTH_MAX 64

struct bench {
    const struct ns_layout *layout;
    struct ns_iopool *pool;
    struct ns_disk_test test;
    uint32_t shard; /* sequential: where the next block is */
    uint64_t offset;
    uint64_t n_experts, next_expert, stride; /* scattered: every expert once, far from the one before */
};

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b > 0) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* The next block of the shards in order, from the start again after the last. */
static struct ns_window next_block(struct bench *b)
{
    const struct ns_layout *l = b->layout;
    for (uint32_t tries = 0; tries <= l->n_files; tries++) {
        const struct ns_shard_file *f = &l->file[b->shard];
        if (f->file && b->offset < f->identity[0]) {
            uint64_t left = f->identity[0] - b->offset;
            size_t n = left < b->test.block_bytes ? (size_t)left : b->test.block_bytes;
            struct ns_window w = ns_window_of(l, b->shard, b->offset, n);
            b->offset += b->test.block_bytes;
            return w;
        }
        b->shard = (b->shard + 1) % l->n_files;
        b->offset = 0;
    }
    return (struct ns_window){0};
}

/* One run of the next expert that exists; dense layers have none. */
static struct ns_window next_expert(struct bench *b)
{
    const struct ns_layout *l = b->layout;
    for (;;) {
        b->next_expert = (b->next_expert + b->stride) % b->n_experts;
        struct ns_expert_id id = {(uint32_t)(b->next_expert / l->n_experts), (uint32_t)(b->next_expert % l->n_experts)};
        if (!ns_layout_expert(l, id)[0])
            continue;
        struct ns_expert_runs runs;
        ns_layout_runs(l, id, &runs);
        uint32_t longest = 0;
        for (uint32_t i = 1; i < runs.n; i++)
            if (runs.window[i].n > runs.window[longest].n)
                longest = i;
        return runs.window[longest];
    }
}

/* Reads depth at once, in order. The clock runs from the first read that is done after warm_ms to the first that is done
 * after limit_ms. Both times all other places are still reading: what came early of those at the beginning is counted, what
 * came early of those at the end is not, and the two are alike. */
static enum ns_code run(struct bench *b, struct ns_io *io, struct ns_window *w, uint8_t *buffer, size_t room,
                        struct ns_disk_rate *out, struct ns_error *err)
{
    const uint64_t limit = b->test.limit_ms * 1000000u, warm = ns_clock_mono_ns() + b->test.warm_ms * 1000000u;
    const size_t depth = b->test.depth;
    struct ns_disk_rate r = {.direct = b->layout->direct};
    uint64_t begin = ns_clock_mono_ns();
    bool is_warm = b->test.warm_ms == 0, over = false;
    size_t started = 0, finished = 0;
    enum ns_code rc = NS_OK;
    for (;;) {
        if (rc == NS_OK && !over && started - finished < depth) {
            size_t at = started++ % depth;
            w[at] = b->test.experts ? next_expert(b) : next_block(b);
            assert(w[at].n <= room);
            ns_window_start(b->layout, &w[at], b->pool, false, &io[at], buffer + at * room);
            continue;
        }
        if (finished == started)
            break;
        size_t at = finished++ % depth;
        uint64_t bytes = 0;
        enum ns_code one = ns_window_finish(b->layout, &w[at], b->pool, &io[at], &bytes, rc == NS_OK ? err : NULL);
        rc = rc == NS_OK ? one : rc;
        uint64_t now = ns_clock_mono_ns();
        if (!is_warm || over) {
            r.reads_beside++;
        } else {
            r.reads++;
            r.bytes += bytes;
            r.ns = now - begin;
            over = r.ns >= limit && r.reads >= depth;
        }
        if (!is_warm && now >= warm) {
            is_warm = true;
            begin = now;
        }
    }
    if (rc == NS_OK)
        *out = r;
    return rc;
}

static enum ns_code with_buffers(struct bench *b, struct ns_budget *budget, struct ns_disk_rate *out,
                                 struct ns_error *err)
{
    const struct ns_disk_test *t = &b->test;
    size_t room, all;
    if (!ns_size_add(t->experts ? b->layout->slot_bytes : t->block_bytes, 3 * NS_STORE_ALIGN, &room) ||
        !ns_size_mul(room / NS_STORE_ALIGN * NS_STORE_ALIGN, t->depth, &all))
        return ns_error_set(err, NS_USAGE, "%u blocks of %zu bytes overflow", t->depth, t->block_bytes);
    room = room / NS_STORE_ALIGN * NS_STORE_ALIGN;
    struct ns_io *io = ns_budget_take(budget, t->depth * sizeof *io, err);
    struct ns_window *w = ns_budget_take(budget, t->depth * sizeof *w, err);
    uint8_t *buffer = ns_bulk_take(budget, all, err);
    enum ns_code rc = io && w && buffer ? ns_iopool_open(t->depth, &b->pool, err) : NS_BUDGET;
    if (buffer)
        memset(buffer, 0, all); /* its first use is no work of the disk */
    if (rc == NS_OK)
        rc = run(b, io, w, buffer, room, out, err);
    ns_iopool_close(b->pool);
    ns_budget_give(budget, buffer);
    ns_budget_give(budget, w);
    ns_budget_give(budget, io);
    return rc;
}

enum ns_code ns_disk_measure(const struct ns_config *config, const struct ns_shards *shards,
                             const struct ns_disk_test *test, struct ns_budget *budget, struct ns_disk_rate *out,
                             struct ns_error *err)
{
    if (test->depth == 0 || test->depth > DEPTH_MAX || (!test->experts && test->block_bytes == 0))
        return ns_error_set(err, NS_USAGE, "%u reads in flight of %zu bytes: from 1 to %d are possible", test->depth,
                            test->block_bytes, DEPTH_MAX);
    struct ns_layout layout;
    enum ns_code rc = ns_layout_init(&layout, config, shards, budget, err);
    if (rc == NS_OK)
        rc = ns_layout_open(&layout, test->no_direct, err);
    struct bench b = {.layout = &layout, .test = *test};
    if (rc == NS_OK && test->experts) {
        b.n_experts = (uint64_t)layout.n_layers * layout.n_experts;
        if (layout.expert_bytes == 0)
            rc = ns_error_set(err, NS_USAGE, "the model has no experts");
        /* about the golden section of all, and coprime to it, so that every expert has its turn */
        b.stride = b.n_experts * 618 / 1000 + 1;
        while (b.n_experts > 0 && gcd(b.stride, b.n_experts) != 1)
            b.stride++;
    }
    for (uint64_t i = 0; rc == NS_OK && i < test->first; i++)
        (void)(test->experts ? next_expert(&b) : next_block(&b));
    if (rc == NS_OK)
        rc = with_buffers(&b, budget, out, err);
    ns_layout_fini(&layout);
    return rc;
}
