/* fixture.h - a small checkpoint, its store, and the files read plainly to compare with. For tests only. */
#ifndef NS_TESTS_STORE_FIXTURE_H
#define NS_TESTS_STORE_FIXTURE_H

#include "../scratch.h"
#include "store/store.h"

#include <errno.h>
#include <sys/stat.h>

struct fixture {
    struct scratch scratch; /* a copy of the checkpoint, so that it may be harmed */
    struct ns_budget budget;
    struct ns_config config;
    struct ns_shards *shards;
    struct ns_store *store;
    struct ns_tile *tile; /* every matrix of the layers, then the head */
    size_t n_tiles, n_trunk;
};

static const char *const fixture_names[] = {"k3-tiny", "k3-odd", "kimi-linear-tiny"};

static inline void fixture_open_model(struct fixture *f, const char *name)
{
    memset(f, 0, sizeof *f);
    scratch_open(&f->scratch);
    char command[1024];
    snprintf(command, sizeof command, "cp '%s/fixtures/%s/'* '%s/'", NS_TEST_DATA, name, f->scratch.dir);
    assert_int_equal(system(command), 0);
    ns_budget_init(&f->budget, "test", (size_t)256 << 20);
    struct ns_error err = {0};
    assert_int_equal(ns_config_read(f->scratch.dir, &f->budget, &f->config, &err), NS_OK);
    assert_int_equal(ns_shards_open(f->scratch.dir, &f->budget, &f->shards, &err), NS_OK);
}

static inline void fixture_close_store(struct fixture *f)
{
    ns_store_close(f->store);
    f->store = NULL;
    ns_budget_give(&f->budget, f->tile);
    f->tile = NULL;
    f->n_tiles = 0;
}

static inline void fixture_close(struct fixture *f)
{
    ns_fault_disarm();
    fixture_close_store(f);
    ns_shards_close(f->shards);
    ns_config_fini(&f->config);
    assert_int_equal(ns_budget_used(&f->budget), 0);
    scratch_close(&f->scratch);
}

static inline void fixture_add_tiles(struct fixture *f, const struct ns_tensor *t, uint32_t layer, bool fill)
{
    uint32_t rows = ns_store_tile_rows(f->store, t);
    for (uint32_t first = 0; first < t->dim[0]; first += rows) {
        uint32_t n = (uint32_t)t->dim[0] - first < rows ? (uint32_t)t->dim[0] - first : rows;
        if (fill)
            f->tile[f->n_tiles] = (struct ns_tile){.tensor = t, .first = first, .n = n, .layer = layer};
        f->n_tiles++;
    }
}

static inline bool fixture_is_trunk(const struct ns_tensor *t)
{
    return t->rank == 2 && t->dim[0] > 1 && strstr(t->name, ".layers.") && !strstr(t->name, ".experts.");
}

/* What the options gave room for stays: the first n tiles, and experts beside them. */
static inline void fixture_keep(struct fixture *f, size_t n)
{
    assert_int_equal(ns_store_keep(f->store, f->tile, n, ns_store_room(f->store), NULL, NULL), NS_OK);
}

static inline void fixture_open_store(struct fixture *f, const struct ns_store_options *options)
{
    struct ns_error err = {0};
    assert_int_equal(ns_store_open(&f->config, f->shards, options, &f->budget, &f->store, &err), NS_OK);
    for (int fill = 0; fill < 2; fill++) {
        f->n_tiles = 0;
        for (size_t i = 0; i < ns_shards_count(f->shards); i++)
            if (fixture_is_trunk(ns_shards_at(f->shards, i)))
                fixture_add_tiles(f, ns_shards_at(f->shards, i), 0, fill != 0);
        f->n_trunk = f->n_tiles;
        for (size_t i = 0; i < ns_shards_count(f->shards); i++)
            if (strstr(ns_shards_at(f->shards, i)->name, "lm_head."))
                fixture_add_tiles(f, ns_shards_at(f->shards, i), UINT32_MAX, fill != 0);
        if (!fill)
            f->tile = ns_budget_take(&f->budget, f->n_tiles * sizeof *f->tile, NULL);
        assert_non_null(f->tile);
    }
    fixture_keep(f, f->n_tiles);
}

static inline uint64_t fixture_tile_bytes(const struct ns_tile *t)
{
    return t->tensor->bytes / t->tensor->dim[0] * t->n;
}

/* The bytes of the file, read without the store. */
static inline void fixture_assert_bytes(struct fixture *f, const struct ns_tensor *t, uint64_t from, size_t n,
                                        const uint8_t *got)
{
    FILE *file = fopen(ns_shards_path(f->shards, t->shard), "rb");
    assert_non_null(file);
    uint8_t *want = malloc(n);
    assert_non_null(want);
    assert_int_equal(fseek(file, (long)(t->offset + from), SEEK_SET), 0);
    assert_int_equal(fread(want, 1, n, file), n);
    fclose(file);
    assert_memory_equal(got, want, n);
    free(want);
}

static inline void fixture_assert_tile(struct fixture *f, const struct ns_tile *t, const struct ns_tile_view *view)
{
    assert_int_equal(view->first, t->first);
    assert_int_equal(view->n, t->n);
    uint64_t row = t->tensor->bytes / t->tensor->dim[0];
    fixture_assert_bytes(f, t->tensor, t->first * row, (size_t)(row * t->n), view->data);
}

/* One wave of tiles, every byte compared. Stops at the first error and returns it. */
static inline enum ns_code fixture_run_tiles(struct fixture *f, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    ns_store_wave_begin(f->store, f->tile, f->n_tiles);
    for (size_t i = 0; i < f->n_tiles && rc == NS_OK; i++) {
        struct ns_tile_view view = {0};
        rc = ns_store_tile_acquire(f->store, &view, err);
        if (rc == NS_OK)
            fixture_assert_tile(f, &f->tile[i], &view);
        else
            assert_null(view.data);
        ns_store_tile_release(f->store, &view);
    }
    ns_store_wave_end(f->store);
    return rc;
}

static inline const struct ns_tensor *fixture_expert_tensor(struct fixture *f, struct ns_expert_id id, const char *stem,
                                                            const char *what)
{
    char name[256];
    snprintf(name, sizeof name, "%smodel.layers.%u.block_sparse_moe.experts.%u.%s.%s", ns_shards_prefix(f->shards),
             (unsigned)id.layer, (unsigned)id.expert, stem, what);
    return ns_shards_find(f->shards, name);
}

static inline void fixture_assert_part(struct fixture *f, struct ns_expert_id id, const char *stem,
                                       const struct ns_expert_part *part)
{
    const struct ns_tensor *data = fixture_expert_tensor(f, id, stem, part->scale ? "weight_packed" : "weight");
    assert_non_null(data);
    fixture_assert_bytes(f, data, 0, (size_t)data->bytes, part->data);
    assert_int_equal(part->scale != NULL, f->config.mxfp4_experts);
    if (part->scale) {
        const struct ns_tensor *scale = fixture_expert_tensor(f, id, stem, "weight_scale");
        fixture_assert_bytes(f, scale, 0, (size_t)scale->bytes, part->scale);
    }
}

static inline void fixture_assert_expert(struct fixture *f, struct ns_expert_id id, const struct ns_expert_view *view)
{
    fixture_assert_part(f, id, "w1", &view->gate);
    fixture_assert_part(f, id, "w3", &view->up);
    fixture_assert_part(f, id, "w2", &view->down);
}

#endif
