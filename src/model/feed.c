/* feed.c - matrices arrive as tiles.
 *
 * The store reads ahead along a list of tiles that must be in the order in which the layers take them. The list is
 * made once per model by the list functions beside each part's run function; here are the two readings of one order:
 * ns_tiles_add cuts rows into tiles, ns_feed_product takes the same rows and finds the same tiles. A difference
 * between them is caught by the assert in ns_feed_take, on the first wave of any model of that shape. */
#include "model/model_impl.h"

#include <assert.h>

enum ns_code ns_tiles_add(struct ns_model *model, const struct ns_matrix *m, uint32_t layer, uint32_t first, uint32_t n,
                          struct ns_error *err)
{
    struct ns_tile_list *list = &model->tiles;
    for (uint32_t end = first + n; first < end; first += m->tile_rows) {
        if (list->n == list->capacity) {
            size_t capacity = list->capacity ? 2 * list->capacity : 256;
            struct ns_tile *tile =
                (struct ns_tile *)ns_budget_resize(model->budget, list->tile, capacity * sizeof *tile, err);
            if (!tile)
                return NS_BUDGET;
            list->tile = tile;
            list->capacity = capacity;
        }
        uint32_t rows = end - first < m->tile_rows ? end - first : m->tile_rows;
        list->tile[list->n++] = (struct ns_tile){.tensor = m->tensor, .first = first, .n = rows, .layer = layer};
    }
    return NS_OK;
}

enum ns_code ns_tiles_build(struct ns_model *model, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (uint32_t i = 0; rc == NS_OK && i < model->n_layers; i++) {
        const struct ns_layer *l = &model->layer[i];
        model->first_tile[i] = model->tiles.n;
        rc = l->is_kda ? ns_kda_list(model, i, err) : ns_mla_list(model, i, err);
        if (rc == NS_OK && l->is_moe)
            rc = ns_moe_list(model, i, err);
        if (rc == NS_OK && !l->is_moe)
            rc = ns_mlp_list_up(model, &l->dense, i, err);
        if (rc == NS_OK && !l->is_moe)
            rc = ns_mlp_list_down(model, &l->dense, i, err);
    }
    model->first_tile[model->n_layers] = model->tiles.n;
    if (rc == NS_OK)
        rc = ns_head_list(model, err);
    model->first_tile[model->n_layers + 1] = model->tiles.n;
    return rc;
}

enum ns_code ns_feed_take(struct ns_pass *pass, const struct ns_matrix *m, struct ns_tile_view *view,
                          struct ns_error *err)
{
    const struct ns_tile_list *list = &pass->model->tiles;
    assert(pass->next_tile < list->n && list->tile[pass->next_tile].tensor == m->tensor);
    (void)list;
    (void)m;
    enum ns_code rc = ns_store_tile_acquire(pass->store, view, err);
    if (rc == NS_OK)
        pass->next_tile++;
    return rc;
}

enum ns_code ns_feed_product(struct ns_pass *pass, const struct ns_matrix *m, uint32_t first, uint32_t n, float *y,
                             size_t ld_y, const void *packed, enum ns_store_mode mode, struct ns_error *err)
{
    for (uint32_t at = first; at < first + n;) {
        struct ns_tile_view view = {0};
        enum ns_code rc = ns_feed_take(pass, m, &view, err);
        if (rc != NS_OK)
            return rc;
        assert(view.first == at && view.n <= first + n - at);
        struct ns_weights w = {.type = NS_W_BF16, .data = view.data, .rows = view.n, .cols = m->cols};
        ns_gemm(pass->kernels, y + (at - first), ld_y, &w, packed, pass->n_rows, mode, pass->gemm_scratch);
        at += view.n;
        ns_store_tile_release(pass->store, &view);
    }
    return NS_OK;
}

size_t ns_pass_pack_bytes(const struct ns_pass *pass, size_t cols)
{
    return ns_pack_bytes(pass->kernels, NS_W_BF16, pass->n_rows, cols);
}

void ns_pass_pack(struct ns_pass *pass, void *packed, const float *x, size_t ld_x, size_t cols)
{
    ns_pack_rows(pass->kernels, NS_W_BF16, packed, x, ld_x, NULL, pass->n_rows, cols);
}

float *ns_pass_take_rows(struct ns_pass *pass, size_t cols)
{
    return (float *)ns_arena_take(pass->arena, pass->n_rows * cols * sizeof(float));
}
