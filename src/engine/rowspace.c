/* rowspace.c - the memory of a wave: one block, sized exactly for its rows before it starts, so that nothing is allocated
 * while layers run. The latent rows and the flags of failed rows stay in front; the model's scratch is behind them. Between
 * waves it belongs to whoever needs it: pool.c. */
#include "engine/engine_impl.h"

static void carve(const struct ns_pass *shape, struct ns_rows *rows)
{
    rows->latent = (float *)ns_arena_take(
        &rows->arena, shape->n_rows * ns_mla_key_floats(ns_model_config(shape->model)) * sizeof(float));
    rows->dead = (uint8_t *)ns_arena_take(&rows->arena, shape->n_rows);
}

size_t ns_rows_bytes(const struct ns_pass *shape)
{
    struct ns_rows measure = {0};
    carve(shape, &measure);
    return measure.arena.used + ns_pass_arena_bytes(shape);
}

size_t ns_rows_most(const struct ns_model *model, const struct ns_kernels *kernels, uint32_t n, uint32_t n_positions)
{
    struct ns_pass pass = {.model = model,
                           .kernels = kernels,
                           .n_rows = n,
                           .n_slots = ns_lineage_max_slots(n),
                           .n_block_rows = ns_lineage_query_rows(n_positions),
                           .n_positions = n_positions,
                           .n_head_rows = n};
    size_t most = ns_rows_bytes(&pass);
    /* many queries of a short context may need more scratch than few of a long one */
    if (n_positions > ns_lineage_short_context())
        pass.n_positions = ns_lineage_short_context();
    pass.n_block_rows = ns_lineage_query_rows(pass.n_positions);
    size_t other = ns_rows_bytes(&pass);
    return most > other ? most : other;
}

enum ns_code ns_rows_open(struct ns_engine *engine, const struct ns_pass *shape, struct ns_rows *rows,
                          struct ns_error *err)
{
    *rows = (struct ns_rows){.arena.limit = ns_rows_bytes(shape)};
    enum ns_code rc = ns_pool_make_rows(engine, rows->arena.limit, err);
    if (rc != NS_OK)
        return rc;
    rows->arena.base = (uint8_t *)ns_bulk_take(&engine->rows_share, rows->arena.limit, err);
    if (!rows->arena.base)
        return NS_BUDGET;
    carve(shape, rows);
    for (size_t i = 0; i < shape->n_rows; i++)
        rows->dead[i] = 0;
    return NS_OK;
}

void ns_rows_close(struct ns_engine *engine, struct ns_rows *rows)
{
    ns_budget_give(&engine->rows_share, rows->arena.base);
    *rows = (struct ns_rows){0};
}
