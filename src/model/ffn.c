/* ffn.c - the gated feed-forward: dense layers and shared experts (specification 3.8). Gate and up are taken in slices
 * of one tile each, so that only the product h is ever whole; down needs all of h, because a dot product is one walk. */
#include "model/model_impl.h"

enum ns_code ns_mlp_list_up(struct ns_model *model, const struct ns_mlp_weights *w, uint32_t layer,
                            struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (uint32_t at = 0; rc == NS_OK && at < w->gate.rows; at += w->gate.tile_rows) {
        uint32_t n = w->gate.rows - at < w->gate.tile_rows ? w->gate.rows - at : w->gate.tile_rows;
        rc = ns_tiles_add(model, &w->gate, layer, at, n, err);
        if (rc == NS_OK)
            rc = ns_tiles_add(model, &w->up, layer, at, n, err);
    }
    return rc;
}

enum ns_code ns_mlp_list_down(struct ns_model *model, const struct ns_mlp_weights *w, uint32_t layer,
                              struct ns_error *err)
{
    return ns_tiles_add(model, &w->down, layer, 0, w->down.rows, err);
}

void ns_mlp_measure(struct ns_pass *pass, const struct ns_mlp_weights *w)
{
    size_t start = pass->arena->used;
    ns_pass_take_rows(pass, w->gate.rows);
    size_t mark = pass->arena->used;
    ns_pass_take_rows(pass, w->gate.tile_rows);
    pass->arena->used = mark;
    ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, w->gate.rows));
    pass->arena->used = start;
}

enum ns_code ns_mlp_run(struct ns_pass *pass, const struct ns_mlp_weights *w, const void *packed, float *out,
                        struct ns_error *err)
{
    size_t start = pass->arena->used, width = w->gate.rows, slice = w->gate.tile_rows;
    float *h = ns_pass_take_rows(pass, width);
    size_t mark = pass->arena->used;
    float *up = ns_pass_take_rows(pass, slice);
    enum ns_code rc = NS_OK;
    for (uint32_t at = 0; rc == NS_OK && at < width; at += (uint32_t)slice) {
        uint32_t n = (uint32_t)(width - at < slice ? width - at : slice);
        rc = ns_feed_product(pass, &w->gate, at, n, h + at, width, packed, NS_SET, err);
        if (rc == NS_OK)
            rc = ns_feed_product(pass, &w->up, at, n, up, slice, packed, NS_SET, err);
        if (rc == NS_OK)
            ns_activate(pass->kernels, h + at, width, h + at, width, up, slice, pass->n_rows, n, &pass->model->act);
    }
    pass->arena->used = mark;
    if (rc == NS_OK) {
        void *h_packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, width));
        ns_pass_pack(pass, h_packed, h, width, width);
        rc = ns_feed_product(pass, &w->down, 0, w->down.rows, out, pass->model->config->hidden, h_packed, NS_SET, err);
    }
    pass->arena->used = start;
    return rc;
}
