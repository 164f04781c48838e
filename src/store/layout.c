/* layout.c - where every tensor and expert lies, and how its bytes are asked for.
 *
 * WHAT   A table of the experts' tensors by layer and expert, the open shard files, and windows: the aligned range of a
 *        file that holds the range one wants.
 * WHY    Tensors begin at any byte; direct reads begin at multiples of 4096. So a read takes the enclosing window, into
 *        a buffer that has room for it, and the caller gets a pointer to the first wanted byte. The last window of a
 *        shard runs past the end of the file, which is not an error as long as the wanted range came. Whether the file
 *        system allows direct reads is found by trying one, not by asking what it is. Without them, reads are plain and
 *        the page cache is told to forget what was read: a terabyte streamed through it would evict everything else.
 *        The six tensors of an expert lie together in published checkpoints, but nothing promises it: pieces that touch
 *        are one run, and an expert may have up to six runs in as many shards.
 * INVARIANTS
 *   1. The bytes of a view are the bytes of the file, for any offset.       (store_test: tiles_match_the_file)
 *   2. An expert's runs fit in slot_bytes.                                  (asserted)
 *   3. A file that changed in size, time or identity is noticed.            (store_test: a_changed_file_is_named) */
#include "store/store_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const piece_stem[3] = {"w1", "w3", "w2"}; /* gate, up, down */

static const struct ns_tensor *find_piece(const struct ns_shards *shards, uint32_t layer, uint32_t expert,
                                          const char *stem, const char *what)
{
    char name[256];
    int k = snprintf(name, sizeof name, "%smodel.layers.%" PRIu32 ".block_sparse_moe.experts.%" PRIu32 ".%s.%s",
                     ns_shards_prefix(shards), layer, expert, stem, what);
    return k > 0 && (size_t)k < sizeof name ? ns_shards_find(shards, name) : NULL;
}

static enum ns_code find_expert(const struct ns_config *config, const struct ns_shards *shards, struct ns_expert_id id,
                                const struct ns_tensor **piece, struct ns_error *err)
{
    for (size_t i = 0; i < 3; i++) {
        const char *missing = NULL;
        if (config->mxfp4_experts) {
            piece[2 * i] = find_piece(shards, id.layer, id.expert, piece_stem[i], "weight_packed");
            piece[2 * i + 1] = find_piece(shards, id.layer, id.expert, piece_stem[i], "weight_scale");
            missing = !piece[2 * i] ? "weight_packed" : !piece[2 * i + 1] ? "weight_scale" : NULL;
        } else {
            piece[2 * i] = find_piece(shards, id.layer, id.expert, piece_stem[i], "weight");
            missing = !piece[2 * i] ? "weight" : NULL;
        }
        if (missing)
            return ns_error_set(err, NS_INPUT, "layer %" PRIu32 ": expert %" PRIu32 ": tensor %s.%s is missing",
                                id.layer, id.expert, piece_stem[i], missing);
    }
    return NS_OK;
}

size_t ns_window_room(uint64_t offset, size_t bytes)
{
    uint64_t start = offset / NS_STORE_ALIGN * NS_STORE_ALIGN;
    uint64_t end = (offset + bytes + NS_STORE_ALIGN - 1) / NS_STORE_ALIGN * NS_STORE_ALIGN;
    return (size_t)(end - start);
}

struct ns_window ns_window_of(const struct ns_layout *layout, uint32_t shard, uint64_t offset, size_t bytes)
{
    struct ns_window w = {.shard = shard, .offset = offset, .n = bytes, .skip = 0, .bytes = bytes};
    if (layout->direct) {
        w.offset = offset / NS_STORE_ALIGN * NS_STORE_ALIGN;
        w.skip = (size_t)(offset - w.offset);
        w.n = ns_window_room(offset, bytes);
    }
    return w;
}

void ns_layout_runs(const struct ns_layout *layout, struct ns_expert_id id, struct ns_expert_runs *out)
{
    const struct ns_tensor **piece = ns_layout_expert(layout, id);
    uint32_t order[NS_EXPERT_PIECES], n = 0, run_of[NS_EXPERT_PIECES] = {0};
    uint64_t start[NS_EXPERT_PIECES], end[NS_EXPERT_PIECES];
    for (uint32_t i = 0; i < NS_EXPERT_PIECES; i++) {
        if (!piece[i])
            continue;
        uint32_t j = n++;
        for (; j > 0; j--) {
            const struct ns_tensor *before = piece[order[j - 1]];
            if (before->shard < piece[i]->shard ||
                (before->shard == piece[i]->shard && before->offset < piece[i]->offset))
                break;
            order[j] = order[j - 1];
        }
        order[j] = i;
    }
    out->n = 0;
    out->total = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct ns_tensor *t = piece[order[i]];
        uint32_t r = out->n;
        /* a gap smaller than the alignment costs nothing: the windows would touch */
        if (r > 0 && out->window[r - 1].shard == t->shard && t->offset - end[r - 1] < NS_STORE_ALIGN) {
            r--;
        } else {
            out->n++;
            out->window[r].shard = t->shard;
            start[r] = t->offset;
        }
        end[r] = t->offset + t->bytes;
        run_of[order[i]] = r;
    }
    for (uint32_t r = 0; r < out->n; r++) {
        size_t bytes = (size_t)(end[r] - start[r]);
        out->window[r] = ns_window_of(layout, out->window[r].shard, start[r], bytes);
        out->room[r] = out->total;
        out->total += ns_window_room(start[r], bytes);
    }
    for (uint32_t i = 0; i < NS_EXPERT_PIECES; i++) {
        out->piece_at[i] = 0;
        if (piece[i]) {
            uint32_t r = run_of[i];
            out->piece_at[i] = out->room[r] + out->window[r].skip + (size_t)(piece[i]->offset - start[r]);
        }
    }
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Sizes by class, and the longest row that can be asked for as a tile. */
static void measure(struct ns_layout *l)
{
    char layers[128], head[128];
    (void)snprintf(layers, sizeof layers, "%.64smodel.layers.", ns_shards_prefix(l->shards));
    (void)snprintf(head, sizeof head, "%.64slm_head.", ns_shards_prefix(l->shards));
    for (size_t i = 0; i < ns_shards_count(l->shards); i++) {
        const struct ns_tensor *t = ns_shards_at(l->shards, i);
        if (t->rank != 2 || t->dim[0] < 2)
            continue;
        bool in_layer = starts_with(t->name, layers);
        if (in_layer && strstr(t->name, ".experts."))
            continue;
        if (in_layer)
            l->trunk_bytes += t->bytes;
        else if (starts_with(t->name, head))
            l->head_bytes += t->bytes;
        size_t row = (size_t)(t->bytes / t->dim[0]);
        if (row > l->largest_row)
            l->largest_row = row;
    }
}

enum ns_code ns_layout_init(struct ns_layout *layout, const struct ns_config *config, const struct ns_shards *shards,
                            struct ns_budget *budget, struct ns_error *err)
{
    *layout = (struct ns_layout){.budget = budget,
                                 .shards = shards,
                                 .n_files = ns_shards_files(shards),
                                 .n_layers = config->n_layers,
                                 .n_experts = config->n_experts};
    size_t n = sizeof *layout->piece;
    if (!ns_size_mul(n, config->n_layers, &n) || !ns_size_mul(n, config->n_experts, &n) ||
        !ns_size_mul(n, NS_EXPERT_PIECES, &n))
        return ns_error_set(err, NS_INPUT, "%" PRIu32 " layers of %" PRIu32 " experts overflow", config->n_layers,
                            config->n_experts);
    layout->piece = ns_budget_take(budget, n, err);
    if (!layout->piece)
        return NS_BUDGET;
    for (uint32_t layer = 0; layer < config->n_layers; layer++)
        for (uint32_t e = 0; e < config->n_experts && ns_config_is_moe(config, layer); e++) {
            struct ns_expert_id id = {layer, e};
            const struct ns_tensor **piece = ns_layout_expert(layout, id);
            enum ns_code rc = find_expert(config, shards, id, piece, err);
            if (rc != NS_OK)
                return rc;
            uint64_t bytes = 0;
            for (size_t i = 0; i < NS_EXPERT_PIECES; i++)
                bytes += piece[i] ? piece[i]->bytes : 0; /* ranges inside files: no sum of six overflows */
            struct ns_expert_runs runs;
            ns_layout_runs(layout, id, &runs);
            layout->experts_bytes += bytes;
            if (bytes > layout->expert_bytes)
                layout->expert_bytes = (size_t)bytes;
            if (runs.total > layout->slot_bytes)
                layout->slot_bytes = runs.total;
        }
    measure(layout);
    return NS_OK;
}

/* One aligned read of the first file tells what opening with O_DIRECT alone does not. */
static bool direct_works(struct ns_file *file, struct ns_budget *budget)
{
    size_t got = 0;
    void *page = ns_budget_take_raw(budget, NS_STORE_ALIGN, NS_STORE_ALIGN, NULL);
    bool works = page && ns_file_read_some(file, page, NS_STORE_ALIGN, 0, &got, NULL) == NS_OK;
    ns_budget_give(budget, page);
    return works;
}

static void give_up_direct(struct ns_layout *l)
{
    l->direct = false;
    for (uint32_t i = 0; i < l->n_files; i++) {
        ns_code_ignore(ns_file_close(l->file[i].direct, NULL)); /* only read */
        l->file[i].direct = NULL;
    }
}

enum ns_code ns_layout_open(struct ns_layout *l, bool no_direct, struct ns_error *err)
{
    l->file = ns_budget_take(l->budget, l->n_files * sizeof *l->file, err);
    if (!l->file)
        return NS_BUDGET;
    l->direct = !no_direct;
    bool tried = false;
    for (size_t i = 0; i < ns_shards_count(l->shards); i++) {
        uint32_t shard = ns_shards_at(l->shards, i)->shard;
        struct ns_shard_file *f = &l->file[shard];
        if (f->file)
            continue;
        const char *path = ns_shards_path(l->shards, shard);
        enum ns_code rc = ns_file_open(path, NS_FILE_READ, &f->file, err);
        if (rc == NS_OK)
            rc = ns_file_identity(f->file, f->identity, err);
        if (rc != NS_OK)
            return rc;
        if (f->identity[0] != ns_shards_file_bytes(l->shards, shard))
            return ns_error_set(err, NS_CORRUPT, "%s has %" PRIu64 " bytes, its header was read when it had %" PRIu64,
                                path, f->identity[0], ns_shards_file_bytes(l->shards, shard));
        if (l->direct && ns_file_open(path, NS_FILE_READ_DIRECT, &f->direct, NULL) != NS_OK)
            give_up_direct(l);
        if (l->direct && !tried && !direct_works(f->direct, l->budget))
            give_up_direct(l);
        tried = true;
    }
    return NS_OK;
}

void ns_layout_fini(struct ns_layout *l)
{
    for (uint32_t i = 0; l->file && i < l->n_files; i++) {
        ns_code_ignore(ns_file_close(l->file[i].file, NULL)); /* only read */
        ns_code_ignore(ns_file_close(l->file[i].direct, NULL));
    }
    ns_budget_give(l->budget, l->file);
    ns_budget_give(l->budget, l->piece);
    l->file = NULL;
    l->piece = NULL;
}

enum ns_code ns_layout_check_unchanged(struct ns_layout *l, struct ns_error *err)
{
    static const char *const what[3] = {"size", "modification time", "inode"};
    for (uint32_t i = 0; i < l->n_files; i++) {
        struct ns_shard_file *f = &l->file[i];
        uint64_t now[3];
        if (!f->file)
            continue;
        enum ns_code rc = ns_file_identity(f->file, now, err);
        if (rc != NS_OK)
            return rc;
        for (size_t k = 0; k < 3; k++)
            if (now[k] != f->identity[k])
                return ns_error_set(err, NS_CORRUPT, "%s changed during the run: its %s was %" PRIu64 ", is %" PRIu64,
                                    ns_file_path(f->file), what[k], f->identity[k], now[k]);
    }
    return NS_OK;
}

void ns_window_start(const struct ns_layout *layout, const struct ns_window *w, struct ns_iopool *pool, bool urgent,
                     struct ns_io *io, void *buffer)
{
    const struct ns_shard_file *f = &layout->file[w->shard];
    io->file = layout->direct ? f->direct : f->file;
    io->buffer = buffer;
    io->n = w->n;
    io->offset = w->offset;
    io->is_write = false;
    io->urgent = urgent;
    io->may_end = true;
    ns_io_start(pool, io);
}

enum ns_code ns_window_finish(const struct ns_layout *layout, const struct ns_window *w, struct ns_iopool *pool,
                              struct ns_io *io, uint64_t *io_bytes, struct ns_error *err)
{
    enum ns_code rc = ns_io_wait(pool, io, err);
    if (rc != NS_OK)
        return rc;
    if (io->got < w->skip + w->bytes)
        return ns_error_set(err, NS_IO,
                            "storage error: reading %s, offset %" PRIu64 ", length %zu: the file ends after %zu bytes",
                            ns_file_path(io->file), w->offset, w->n, io->got);
    *io_bytes += io->got;
    if (!layout->direct)
        ns_file_forget(io->file, w->offset, w->n);
    return NS_OK;
}
