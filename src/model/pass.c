/* pass.c - what all parts of a pass share: the embedding, the look-out for values that are not numbers, the probe. */
#include "model/model_impl.h"

#include <string.h>

enum { EMBED_ROWS = 256 }; /* embedding rows fetched at once: bounds the buffer */

static size_t embed_bytes(const struct ns_pass *pass)
{
    return (pass->n_rows < EMBED_ROWS ? pass->n_rows : EMBED_ROWS) * pass->model->config->hidden * 2;
}

void ns_embed_measure(struct ns_pass *pass)
{
    size_t mark = pass->arena->used;
    ns_arena_take(pass->arena, embed_bytes(pass));
    pass->arena->used = mark;
}

enum ns_code ns_pass_embed(struct ns_pass *pass, const uint32_t *token, struct ns_error *err)
{
    size_t d = pass->model->config->hidden, mark = pass->arena->used;
    uint8_t *raw = (uint8_t *)ns_arena_take(pass->arena, embed_bytes(pass));
    enum ns_code rc = NS_OK;
    for (size_t at = 0; rc == NS_OK && at < pass->n_rows; at += EMBED_ROWS) {
        size_t n = pass->n_rows - at < EMBED_ROWS ? pass->n_rows - at : EMBED_ROWS;
        rc = ns_store_read_rows(pass->store, pass->model->embed, token + at, n, raw, err);
        if (rc == NS_OK)
            ns_widen_bf16(pass->x + at * d, raw, n * d);
    }
    pass->arena->used = mark;
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "embedding");
    ns_pass_check(pass, 0, pass->x, "embedding");
    ns_pass_tap(pass, 0, "embed", pass->x, d);
    return NS_OK;
}

void ns_pass_check(struct ns_pass *pass, uint32_t layer, const float *v, const char *what)
{
    size_t d = pass->model->config->hidden;
    memset(pass->ok, 1, pass->n_rows);
    ns_finite_rows(pass->kernels, pass->ok, v, d, pass->n_rows, d);
    for (size_t i = 0; i < pass->n_rows; i++)
        if (!pass->ok[i] && !pass->dead[i])
            pass->fault(pass->fault_arg, NS_NONFINITE, layer, (uint32_t)i, NS_NO_EXPERT, what);
}

void ns_pass_tap(struct ns_pass *pass, uint32_t layer, const char *name, const float *v, size_t n)
{
    for (size_t i = 0; pass->tap.row && i < pass->n_rows; i++)
        pass->tap.row(pass->tap.arg, layer, name, (uint32_t)i, v + i * n, NULL, n);
}
