/* moe.c - mixture of experts over the rows of a wave (specification 3.9).
 *
 * WHAT   Route every row; then each expert that any row chose is brought in once, runs over its rows, and adds its
 *        weighted output to theirs. Experts come in ascending id, so every row's sum has the contract's order, whoever
 *        else rides along.
 * WHY    The shared expert (an ordinary feed-forward) is computed between asking for the experts and using the first:
 *        reading has then begun. The result is routed + shared; addition commutes, so it does not matter which was first.
 * INVARIANTS
 *   1. An expert is acquired once per wave and layer.                                    (wave_test: reads_once)
 *   2. A corrupt or overflowing expert fails the rows routed to it and no others.         (fault_test: corrupt_expert)
 * An I/O error ends the wave: a sum without one of its experts would be a silent wrong answer. */
#include "model/model_impl.h"

#include <string.h>

enum { BATCH_EXPERTS = 32, BATCH_ROWS = 512 }; /* experts of one call at most; rows of one call, for each thread */

enum { SLOTS_OF_A_CALL = 4 }; /* one slot in so many */

struct moe_buffers {
    struct ns_routing routing;
    float *z, *acc, *y; /* z [rows][latent]; acc [rows][latent or hidden]; y [rows][hidden] without latent */
    uint8_t *finite;    /* [rows of a call] */
    void *scratch;
};

/* Experts that are in memory, and the rows they serve, for one call. */
struct expert_batch {
    struct ns_expert_job job[BATCH_EXPERTS];
    uint32_t expert[BATCH_EXPERTS];
    struct ns_expert_view view[BATCH_EXPERTS];
    size_t n, most, n_rows, most_rows;
};

static size_t expert_width(const struct ns_config *c)
{
    return c->latent ? c->latent : c->hidden;
}

static struct ns_weights expert_part(const struct ns_config *c, const struct ns_expert_part *part, size_t rows,
                                     size_t cols)
{
    return (struct ns_weights){.type = c->mxfp4_experts ? NS_W_MXFP4 : NS_W_BF16,
                               .data = part->data,
                               .scale = part->scale,
                               .rows = rows,
                               .cols = cols};
}

static struct ns_expert_weights expert_weights(const struct ns_config *c, const struct ns_expert_view *view)
{
    size_t in = expert_width(c), m = c->moe_inter;
    return (struct ns_expert_weights){.gate = expert_part(c, &view->gate, m, in),
                                      .up = expert_part(c, &view->up, m, in),
                                      .down = expert_part(c, &view->down, in, m)};
}

enum ns_code ns_moe_list(struct ns_model *model, uint32_t layer, struct ns_error *err)
{
    const struct ns_moe_weights *w = &model->layer[layer].moe;
    enum ns_code rc = ns_tiles_add(model, &w->router, layer, 0, w->router.rows, err);
    if (rc == NS_OK && w->latent_down.tensor)
        rc = ns_tiles_add(model, &w->latent_down, layer, 0, w->latent_down.rows, err);
    if (rc == NS_OK && w->shared.gate.tensor)
        rc = ns_mlp_list_up(model, &w->shared, layer, err);
    if (rc == NS_OK && w->shared.gate.tensor)
        rc = ns_mlp_list_down(model, &w->shared, layer, err);
    if (rc == NS_OK && w->latent_up.tensor)
        rc = ns_tiles_add(model, &w->latent_up, layer, 0, w->latent_up.rows, err);
    return rc;
}

static size_t batch_rows(const struct ns_pass *pass)
{
    size_t routed = pass->n_rows * pass->model->config->top_k, most = BATCH_ROWS * (size_t)pass->kernels->n_threads;
    return routed < most ? routed : most;
}

/* No slot of a call is free before its end: most of them are left to what is read meanwhile, and to what has been read
 * but is not next. */
static size_t batch_experts(const struct ns_pass *pass)
{
    size_t most = ns_store_expert_slots(pass->store) / SLOTS_OF_A_CALL;
    return most < 1 ? 1 : most < BATCH_EXPERTS ? most : BATCH_EXPERTS;
}

static void carve(struct ns_pass *pass, struct moe_buffers *b)
{
    const struct ns_config *c = pass->model->config;
    ns_router_carve(pass, &b->routing);
    if (c->latent)
        b->z = ns_pass_take_rows(pass, c->latent);
    else
        b->y = ns_pass_take_rows(pass, c->hidden);
    b->finite = (uint8_t *)ns_arena_take(pass->arena, batch_rows(pass));
}

static void carve_experts(struct ns_pass *pass, struct moe_buffers *b)
{
    const struct ns_config *c = pass->model->config;
    struct ns_expert_view none = {0};
    struct ns_expert_weights e = expert_weights(c, &none);
    b->acc = ns_pass_take_rows(pass, expert_width(c));
    b->scratch = ns_arena_take(pass->arena, ns_experts_scratch(pass->kernels, &e, BATCH_EXPERTS, batch_rows(pass)));
}

void ns_moe_measure(struct ns_pass *pass, uint32_t layer)
{
    const struct ns_config *c = pass->model->config;
    const struct ns_moe_weights *w = &pass->model->layer[layer].moe;
    struct moe_buffers b = {0};
    size_t start = pass->arena->used;
    carve(pass, &b);
    size_t mark = pass->arena->used;
    ns_pass_take_rows(pass, c->n_experts);
    pass->arena->used = mark;
    if (w->shared.gate.tensor)
        ns_mlp_measure(pass, &w->shared);
    carve_experts(pass, &b);
    if (c->latent)
        ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, c->latent));
    pass->arena->used = start;
}

static void report(struct ns_pass *pass, enum ns_code code, uint32_t layer, uint32_t row, uint32_t expert,
                   const char *what)
{
    if (!pass->dead[row])
        pass->fault(pass->fault_arg, code, layer, row, expert, what);
}

/* Adds what the batch gives to its rows, and gives its experts back. */
static void run_batch(struct ns_pass *pass, uint32_t layer, const float *z, struct moe_buffers *b,
                      struct expert_batch *batch)
{
    size_t width = expert_width(pass->model->config);
    memset(b->finite, 1, batch->n_rows);
    ns_experts(pass->kernels, batch->job, batch->n, &pass->model->act, z, width, b->acc, width, b->scratch);
    for (size_t j = 0; j < batch->n; j++) {
        const struct ns_expert_job *job = &batch->job[j];
        for (size_t i = 0; i < job->n; i++)
            if (!job->sound)
                report(pass, NS_CORRUPT, layer, job->index[i], batch->expert[j], "scale byte of an expert");
            else if (!job->finite[i])
                report(pass, NS_NONFINITE, layer, job->index[i], batch->expert[j], "expert output");
        ns_store_expert_release(pass->store, &batch->view[j]);
    }
    batch->n = batch->n_rows = 0;
}

static void add_job(struct moe_buffers *b, struct expert_batch *batch, const struct ns_expert_weights *w,
                    uint32_t expert, size_t first, size_t n_rows)
{
    batch->expert[batch->n] = expert;
    batch->job[batch->n++] = (struct ns_expert_job){.w = *w,
                                                    .index = b->routing.row + first,
                                                    .weight = b->routing.weight + first,
                                                    .finite = b->finite + batch->n_rows,
                                                    .n = n_rows};
    batch->n_rows += n_rows;
}

/* Brings the next expert in and puts its rows, from routing.row[first] on, into the batch. What was collected runs
 * before, when there is no more room, or rather than wait for the disk. */
static enum ns_code take_expert(struct ns_pass *pass, struct ns_expert_id id, size_t first, size_t n_rows,
                                const float *z, struct moe_buffers *b, struct expert_batch *batch, struct ns_error *err)
{
    struct ns_expert_view view = {0};
    if (batch->n > 0 &&
        (batch->n == batch->most || batch->n_rows + n_rows > batch->most_rows || !ns_store_expert_ready(pass->store)))
        run_batch(pass, id.layer, z, b, batch);
    enum ns_code rc = ns_store_expert_acquire(pass->store, id, &view, err);
    if (rc != NS_OK)
        return rc;
    struct ns_expert_weights w = expert_weights(pass->model->config, &view);
    for (; n_rows > batch->most_rows; first += batch->most_rows, n_rows -= batch->most_rows) {
        add_job(b, batch, &w, id.expert, first, batch->most_rows); /* then the batch was empty */
        run_batch(pass, id.layer, z, b, batch);
    }
    batch->view[batch->n] = view;
    add_job(b, batch, &w, id.expert, first, n_rows);
    return NS_OK;
}

static enum ns_code run_experts(struct ns_pass *pass, uint32_t layer, const float *z, struct moe_buffers *b,
                                struct ns_error *err)
{
    const struct ns_routing *r = &b->routing;
    struct expert_batch batch = {.most = batch_experts(pass), .most_rows = batch_rows(pass)};
    enum ns_code rc = NS_OK;
    memset(b->acc, 0, pass->n_rows * expert_width(pass->model->config) * sizeof(float));
    size_t first = 0;
    for (uint32_t i = 0; i < r->n_wanted && rc == NS_OK; i++) {
        struct ns_expert_id id = {.layer = layer, .expert = r->wanted[i]};
        rc = take_expert(pass, id, first, r->n_rows[i], z, b, &batch, err);
        first += r->n_rows[i];
    }
    if (rc == NS_OK && batch.n > 0)
        run_batch(pass, layer, z, b, &batch);
    for (size_t j = 0; j < batch.n; j++) /* after an error */
        ns_store_expert_release(pass->store, &batch.view[j]);
    pass->experts_requested += first;
    pass->experts_distinct += r->n_wanted;
    return rc;
}

/* Scores, choice, and the word to the store. */
static enum ns_code route(struct ns_pass *pass, uint32_t layer, const void *packed, struct moe_buffers *b,
                          struct ns_error *err)
{
    const struct ns_moe_weights *w = &pass->model->layer[layer].moe;
    size_t mark = pass->arena->used, n = pass->model->config->n_experts;
    float *logits = ns_pass_take_rows(pass, n);
    enum ns_code rc = ns_feed_product(pass, &w->router, 0, w->router.rows, logits, n, packed, NS_SET, err);
    if (rc == NS_OK)
        ns_router_run(pass, layer, logits, &b->routing);
    pass->arena->used = mark;
    if (rc == NS_OK)
        rc = ns_store_experts_want(pass->store, layer, b->routing.wanted, b->routing.n_rows, b->routing.n_wanted, err);
    return rc;
}

enum ns_code ns_moe_run(struct ns_pass *pass, uint32_t layer, float *in, const void *packed, float **out,
                        struct ns_error *err)
{
    const struct ns_config *c = pass->model->config;
    const struct ns_moe_weights *w = &pass->model->layer[layer].moe;
    size_t d = c->hidden, l = c->latent;
    struct moe_buffers b = {0};
    carve(pass, &b);
    enum ns_code rc = route(pass, layer, packed, &b, err);
    if (rc == NS_OK && l)
        rc = ns_feed_product(pass, &w->latent_down, 0, w->latent_down.rows, b.z, l, packed, NS_SET, err);
    float *y = l ? in : b.y; /* with a latent the input is dead from here on */
    if (rc == NS_OK && w->shared.gate.tensor)
        rc = ns_mlp_run(pass, &w->shared, packed, y, err);
    carve_experts(pass, &b);
    if (rc == NS_OK)
        rc = run_experts(pass, layer, l ? b.z : in, &b, err);
    if (rc != NS_OK)
        return rc;
    bool shared = w->shared.gate.tensor != NULL;
    if (l) {
        if (w->latent_norm)
            ns_rmsnorm(pass->kernels, b.acc, l, b.acc, l, w->latent_norm, pass->n_rows, l, c->rms_eps);
        void *acc_packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, l));
        ns_pass_pack(pass, acc_packed, b.acc, l, l);
        rc =
            ns_feed_product(pass, &w->latent_up, 0, w->latent_up.rows, y, d, acc_packed, shared ? NS_ADD : NS_SET, err);
    } else if (shared) {
        ns_add_rows(pass->kernels, y, d, b.acc, d, y, d, pass->n_rows, d);
    } else {
        y = b.acc;
    }
    *out = y;
    return rc;
}
