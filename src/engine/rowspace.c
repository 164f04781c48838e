/* rowspace.c - the memory of a wave: one block, sized exactly for its rows before it starts, so that nothing is allocated
 * while layers run. The latent rows and the flags of failed rows stay in front; the model's scratch is behind them. */
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

enum ns_code ns_rows_open(struct ns_engine *engine, const struct ns_pass *shape, struct ns_rows *rows,
                          struct ns_error *err)
{
    *rows = (struct ns_rows){.arena.limit = ns_rows_bytes(shape)};
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
