/* engine.c - one loaded model: everything that is opened once.
 *
 * Opening reads config, index and census (ns_engine_prepare, shared with the plan that opens nothing else), divides the
 * memory, then opens the store and binds the model. Closing takes every half-built state. */
#include "engine/engine_impl.h"

static unsigned threads_of(const struct ns_engine_options *o)
{
    unsigned n = o->n_threads ? o->n_threads : ns_cpu_physical();
    return n ? n : 1;
}

static enum ns_code open_shape(struct ns_engine *e, size_t tile_bytes, struct ns_model **out, struct ns_error *err)
{
    struct ns_model_options mo = {.n_layers = e->options.layers,
                                  .head_group = e->options.head_group,
                                  .n_threads = e->kernels.n_threads,
                                  .tile_bytes = tile_bytes};
    return ns_model_open(&e->config, e->shards, NULL, &mo, e->budget, out, err);
}

/* What stays resident, from the tiles as the store will cut them. */
static enum ns_code foresee_keep(struct ns_engine *e, size_t slot_bytes, struct ns_error *err)
{
    struct ns_plan *plan = &e->plan;
    struct ns_model *shape = NULL;
    enum ns_code rc = open_shape(e, plan->store.tile_bytes, &shape, err);
    if (rc != NS_OK)
        return rc;
    const size_t *first;
    const struct ns_tile *tile = ns_model_tiles(shape, &first);
    ns_keep_measure(tile, first[plan->layers + 1], plan->store.resident_bytes, slot_bytes,
                    (uint64_t)plan->n_moe_layers * plan->n_experts, &plan->keep);
    ns_model_close(shape);
    return NS_OK;
}

enum ns_code ns_engine_prepare(struct ns_engine *e, const char *dir, struct ns_error *err)
{
    enum ns_code rc = ns_config_read(dir, e->budget, &e->config, err);
    if (rc == NS_OK)
        rc = ns_shards_open(dir, e->budget, &e->shards, err);
    if (rc != NS_OK)
        return rc;
    ns_config_settle(&e->config, e->shards);
    rc = ns_census_check(&e->config, e->shards, err);
    if (rc != NS_OK)
        return rc;
    e->kernels = ns_kernels_select(e->options.cpu, threads_of(&e->options));
    e->kernels.time = &e->product;
    if (e->options.every_thread)
        e->kernels.least_ns = 0;
    struct ns_model *shape = NULL;
    struct ns_store_need need;
    rc = ns_store_measure(&e->config, e->shards, &e->options.store, e->budget, &need, err);
    if (rc == NS_OK)
        rc = open_shape(e, e->options.store.tile_bytes ? e->options.store.tile_bytes : 1u << 20, &shape, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_plan_make(shape, &e->kernels, &e->options, &need, e->budget, &e->plan, err);
    struct ns_model_work work;
    ns_model_work_get(shape, &work);
    e->work = (struct ns_work){work.trunk, work.experts, work.head, work.attend};
    e->n_kda = ns_model_kda_layers(shape);
    e->n_mla = ns_model_mla_layers(shape);
    ns_model_close(shape);
    e->kda_layer_floats = e->config.kda_heads * ns_kda_head_floats(&e->config);
    e->key_floats = ns_mla_key_floats(&e->config);
    e->block = e->plan.block_positions;
    return rc == NS_OK ? foresee_keep(e, need.slot_bytes, err) : rc;
}

static enum ns_code open_parts(struct ns_engine *e, const char *dir, struct ns_error *err)
{
    enum ns_code rc = ns_budget_share(&e->rows_share, e->budget, "rows", e->plan.share[NS_SHARE_ROWS], err);
    if (rc == NS_OK)
        rc = ns_budget_share(&e->state_share, e->budget, "states", e->plan.share[NS_SHARE_STATES], err);
    if (rc == NS_OK)
        rc = ns_store_open(&e->config, e->shards, &e->plan.store, e->budget, &e->store, err);
    if (rc != NS_OK)
        return rc;
    struct ns_model_options mo = {
        .n_layers = e->options.layers, .head_group = e->options.head_group, .n_threads = e->kernels.n_threads};
    rc = ns_model_open(&e->config, e->shards, e->store, &mo, e->budget, &e->model, err);
    if (rc == NS_OK)
        rc = ns_pool_open(e, err);
    if (rc == NS_OK) /* while memory for the weights is made present */
        rc = ns_fingerprint(dir, e->shards, e->budget, e->fingerprint, e->tokenizer_fingerprint, err);
    if (rc == NS_OK && e->options.spill_dir && e->n_kda)
        rc = ns_spill_open(e, err);
    if (rc == NS_OK)
        ns_store_get_ready(e->store);
    return rc;
}

enum ns_code ns_engine_open(const char *dir, const struct ns_engine_options *options, struct ns_budget *budget,
                            struct ns_engine **out, struct ns_error *err)
{
    struct ns_engine *e = (struct ns_engine *)ns_budget_take(budget, sizeof *e, err);
    if (!e)
        return NS_BUDGET;
    e->budget = budget;
    e->options = *options;
    enum ns_code rc = ns_engine_prepare(e, dir, err);
    if (rc == NS_OK)
        rc = open_parts(e, dir, err);
    if (rc != NS_OK) {
        ns_engine_close(e);
        return ns_error_wrap(err, rc, "model %s", dir);
    }
    *out = e;
    return NS_OK;
}

void ns_engine_close(struct ns_engine *e)
{
    if (!e)
        return;
    ns_spill_close(e);
    ns_model_close(e->model);
    ns_store_close(e->store);
    if (e->rows_share.parent)
        ns_budget_fini(&e->rows_share);
    if (e->state_share.parent)
        ns_budget_fini(&e->state_share);
    ns_shards_close(e->shards);
    ns_config_fini(&e->config);
    ns_budget_give(e->budget, e);
}

enum ns_code ns_plan_read(const char *dir, const struct ns_engine_options *options, struct ns_budget *budget,
                          struct ns_plan *out, struct ns_work *work, struct ns_error *err)
{
    struct ns_engine *e = (struct ns_engine *)ns_budget_take(budget, sizeof *e, err);
    if (!e)
        return NS_BUDGET;
    e->budget = budget;
    e->options = *options;
    enum ns_code rc = ns_engine_prepare(e, dir, err);
    if (rc == NS_OK || rc == NS_BUDGET) {
        *out = e->plan;
        *work = e->work;
    }
    ns_engine_close(e);
    return rc == NS_OK ? rc : ns_error_wrap(err, rc, "model %s", dir);
}

const struct ns_config *ns_engine_config(const struct ns_engine *engine)
{
    return &engine->config;
}

const char *ns_engine_fingerprint(const struct ns_engine *engine)
{
    return engine->fingerprint;
}

const char *ns_engine_tokenizer_fingerprint(const struct ns_engine *engine)
{
    return engine->tokenizer_fingerprint;
}

uint32_t ns_engine_rows_max(const struct ns_engine *engine)
{
    return engine->plan.rows_max;
}

size_t ns_engine_rows_bytes(const struct ns_engine *engine, uint32_t n, uint32_t n_positions)
{
    return ns_rows_most(engine->model, &engine->kernels, n, n_positions);
}

uint32_t ns_engine_context(const struct ns_engine *engine)
{
    return engine->plan.context;
}

struct ns_store *ns_engine_store(struct ns_engine *engine)
{
    return engine->store;
}

const struct ns_kernels *ns_engine_kernels(const struct ns_engine *engine)
{
    return &engine->kernels;
}

const struct ns_plan *ns_engine_plan(const struct ns_engine *engine)
{
    return &engine->plan;
}

void ns_engine_work(const struct ns_engine *engine, struct ns_work *out)
{
    *out = engine->work;
}
