/* kda.c - Kimi Delta Attention over the rows of a wave (specification 3.6).
 *
 * WHAT   Projections of the normalised input, a short convolution, L2 norms, a decay per channel, the recurrence one
 *        position at a time, a gated norm, and the output projection.
 * WHY    Working memory. At K3 size q, k, v, decay and gate of one row are 246 KB; so heads are worked on in groups: the
 *        rows of the matrices that belong to a group stream in, its recurrence runs, and only its output (o) is kept.
 *        Matrices are head-major, so a group is a run of rows and every byte is still read once.
 *        A unit of recurrent work is one head of one tree of runs. It walks positions in chunks that fit the
 *        processor's cache; chunk boundaries cannot be seen in the result, because convolution and recurrence are
 *        defined position by position.
 * INVARIANTS
 *   1. Chunks, trees and groups do not change a bit.            (wave_test: chunks_give_the_same_bits, groups_...)
 *   2. A branch starts from a copy; its siblings see nothing of it.                 (wave_test: shared_prefix)
 * THREADS  Units are independent; each worker has its own slots and chunk memory. */
#include "model/model_impl.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64 }; /* positions of one head between two calls; 3 x 64 x 128 floats stay in the second-level cache */

struct kda_buffers {
    float *o, *beta, *f_mid, *g_mid; /* [rows][P], [rows][heads], [rows][D] twice */
    void *f_packed, *g_packed;
    float *q, *k, *v, *f, *g; /* [rows][group * D] */
    float *worker;            /* per thread: slots, then q, k, v of a chunk, then scratch of the recurrence */
    size_t worker_floats;
};

enum ns_code ns_kda_list(struct ns_model *model, uint32_t layer, struct ns_error *err)
{
    const struct ns_kda_weights *w = &model->layer[layer].kda;
    const struct ns_config *c = model->config;
    enum ns_code rc = ns_tiles_add(model, &w->b, layer, 0, w->b.rows, err);
    if (rc == NS_OK)
        rc = ns_tiles_add(model, &w->f_a, layer, 0, w->f_a.rows, err);
    if (rc == NS_OK && w->g_a.tensor)
        rc = ns_tiles_add(model, &w->g_a, layer, 0, w->g_a.rows, err);
    for (uint32_t h = 0; rc == NS_OK && h < c->kda_heads; h += model->kda_group) {
        uint32_t heads = c->kda_heads - h < model->kda_group ? c->kda_heads - h : model->kda_group;
        const struct ns_matrix *part[5] = {&w->q, &w->k, &w->v, &w->f_b, w->g.tensor ? &w->g : &w->g_b};
        for (int i = 0; rc == NS_OK && i < 5; i++)
            rc = ns_tiles_add(model, part[i], layer, h * c->kda_dim, heads * c->kda_dim, err);
    }
    if (rc == NS_OK)
        rc = ns_tiles_add(model, &w->o, layer, 0, w->o.rows, err);
    return rc;
}

static void carve_layer(struct ns_pass *pass, struct kda_buffers *b)
{
    const struct ns_config *c = pass->model->config;
    b->o = ns_pass_take_rows(pass, (size_t)c->kda_heads * c->kda_dim);
    b->beta = ns_pass_take_rows(pass, c->kda_heads);
}

static void carve_groups(struct ns_pass *pass, struct kda_buffers *b)
{
    const struct ns_config *c = pass->model->config;
    size_t d = c->kda_dim, width = pass->model->kda_group * d;
    b->f_mid = ns_pass_take_rows(pass, d);
    b->f_packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, d));
    if (!c->kda_full_rank_gate) {
        b->g_mid = ns_pass_take_rows(pass, d);
        b->g_packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, d));
    }
    float **part[5] = {&b->q, &b->k, &b->v, &b->f, &b->g};
    for (int i = 0; i < 5; i++)
        *part[i] = ns_pass_take_rows(pass, width);
    b->worker_floats = pass->n_slots * ns_kda_head_floats(c) + 3 * CHUNK * d + 4 * d;
    b->worker_floats = (b->worker_floats + 15) & ~(size_t)15;
    b->worker = (float *)ns_arena_take(pass->arena, pass->kernels->n_threads * b->worker_floats * sizeof(float));
}

void ns_kda_measure(struct ns_pass *pass)
{
    struct kda_buffers b = {0};
    const struct ns_config *c = pass->model->config;
    size_t start = pass->arena->used;
    carve_layer(pass, &b);
    size_t mark = pass->arena->used;
    carve_groups(pass, &b);
    pass->arena->used = mark;
    ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, (size_t)c->kda_heads * c->kda_dim));
    pass->arena->used = start;
}

/* ---- the recurrent part of one group ------------------------------------------------------------------------------------- */

struct kda_job {
    const struct ns_pass *pass;
    const struct ns_kda_weights *w;
    const struct ns_kda_work *work;
    const struct kda_buffers *b;
    struct ns_kernels one; /* the same kernels on the worker's own thread */
    uint32_t first_head;
    float q_scale;
};

static float *state_at(const struct kda_job *job, uint32_t place, uint32_t head, float *slots)
{
    size_t floats = ns_kda_head_floats(job->pass->model->config);
    if (place >= NS_STATE_HOME)
        return job->work->home[place - NS_STATE_HOME] + head * floats;
    return slots + place * floats;
}

/* n consecutive positions of one head from row on; state is moved along. */
static void run_chunk(const struct kda_job *job, uint32_t head, size_t row, size_t n, float *state, float *chunk)
{
    const struct ns_config *c = job->pass->model->config;
    const struct kda_buffers *b = job->b;
    const struct ns_kernels *k = &job->one;
    size_t d = c->kda_dim, taps = c->conv_kernel, width = job->pass->model->kda_group * d;
    size_t at = row * width + (head - job->first_head) * d, channel = head * d, p = (size_t)c->kda_heads * d;
    float *in[3] = {b->q + at, b->k + at, b->v + at};
    float *out[3] = {chunk, chunk + CHUNK * d, chunk + 2 * CHUNK * d};
    for (size_t i = 0; i < 3; i++)
        ns_short_conv(k, out[i], d, in[i], width, job->w->conv[i] + channel * taps, taps,
                      state + d * d + i * (taps - 1) * d, d, n, d);
    ns_l2norm_heads(k, out[0], d, out[0], d, n, 1, d, job->q_scale);
    ns_l2norm_heads(k, out[1], d, out[1], d, n, 1, d, 1.0f);
    float *alpha = b->f + at;
    ns_kda_decay(k, alpha, width, alpha, width, job->w->dt + channel, job->w->a + head, c->has_decay_bound,
                 c->decay_bound, n, 1, d);
    ns_kda_run(k, state, b->o + row * p + channel, p, out[0], d, out[1], d, out[2], d, alpha, width,
               b->beta + row * c->kda_heads + head, c->kda_heads, n, d, chunk + 3 * CHUNK * d);
}

static void run_unit(const struct kda_job *job, uint32_t head, const struct ns_kda_tree *tree, unsigned thread)
{
    size_t floats = ns_kda_head_floats(job->pass->model->config);
    float *slots = job->b->worker + thread * job->b->worker_floats;
    float *chunk = slots + job->pass->n_slots * floats;
    for (uint32_t i = 0; i < tree->n; i++) {
        const struct ns_kda_step *step = &job->work->step[tree->first + i];
        float *state = state_at(job, step->target, head, slots);
        if (step->source == NS_STATE_ZERO)
            memset(state, 0, floats * sizeof *state);
        else if (step->source != step->target)
            memcpy(state, state_at(job, step->source, head, slots), floats * sizeof *state);
        for (uint32_t t = 0; t < step->n; t += CHUNK) {
            uint32_t n = step->n - t < CHUNK ? step->n - t : CHUNK;
            run_chunk(job, head, step->row + t, n, state, chunk);
        }
    }
}

/* Unit u: head u / trees of the group, tree u mod trees; so equal shares of units are equal shares of work. */
static void run_units(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct kda_job *job = (const struct kda_job *)arg;
    size_t n_trees = job->work->n_trees;
    for (size_t u = begin; u < end; u++)
        run_unit(job, job->first_head + (uint32_t)(u / n_trees), &job->work->tree[u % n_trees], thread);
}

/* ---- the layer ------------------------------------------------------------------------------------------------------------- */

static enum ns_code project_narrow(struct ns_pass *pass, const struct ns_kda_weights *w, const void *packed,
                                   struct kda_buffers *b, struct ns_error *err)
{
    const struct ns_config *c = pass->model->config;
    size_t d = c->kda_dim;
    enum ns_code rc = ns_feed_product(pass, &w->b, 0, w->b.rows, b->beta, c->kda_heads, packed, NS_SET, err);
    if (rc == NS_OK)
        rc = ns_feed_product(pass, &w->f_a, 0, w->f_a.rows, b->f_mid, d, packed, NS_SET, err);
    if (rc == NS_OK && w->g_a.tensor)
        rc = ns_feed_product(pass, &w->g_a, 0, w->g_a.rows, b->g_mid, d, packed, NS_SET, err);
    if (rc != NS_OK)
        return rc;
    ns_sigmoid_rows(pass->kernels, b->beta, c->kda_heads, b->beta, c->kda_heads, pass->n_rows, c->kda_heads);
    ns_pass_pack(pass, b->f_packed, b->f_mid, d, d);
    if (w->g_a.tensor)
        ns_pass_pack(pass, b->g_packed, b->g_mid, d, d);
    return NS_OK;
}

static enum ns_code run_group(struct ns_pass *pass, const struct ns_kda_weights *w, const struct ns_kda_work *work,
                              const void *packed, const struct kda_buffers *b, uint32_t head, struct ns_error *err)
{
    const struct ns_config *c = pass->model->config;
    uint32_t heads = c->kda_heads - head, d = c->kda_dim;
    if (heads > pass->model->kda_group)
        heads = pass->model->kda_group;
    size_t width = (size_t)pass->model->kda_group * d, p = (size_t)c->kda_heads * d;

    struct {
        const struct ns_matrix *m;
        float *y;
        const void *packed;
    } part[5] = {{&w->q, b->q, packed},
                 {&w->k, b->k, packed},
                 {&w->v, b->v, packed},
                 {&w->f_b, b->f, b->f_packed},
                 {w->g.tensor ? &w->g : &w->g_b, b->g, w->g.tensor ? packed : b->g_packed}};

    for (int i = 0; i < 5; i++) {
        enum ns_code rc =
            ns_feed_product(pass, part[i].m, head * d, heads * d, part[i].y, width, part[i].packed, NS_SET, err);
        if (rc != NS_OK)
            return rc;
    }
    struct kda_job job = {.pass = pass,
                          .w = w,
                          .work = work,
                          .b = b,
                          .one = *pass->kernels,
                          .first_head = head,
                          .q_scale = 1.0f / sqrtf((float)d)};
    job.one.n_threads = 1;
    ns_parallel(pass->kernels->n_threads, heads * work->n_trees, 1, run_units, &job);
    float *o = b->o + (size_t)head * d;
    ns_gated_norm_heads(pass->kernels, o, p, o, p, b->g, width, w->o_norm, pass->n_rows, heads, d, c->rms_eps);
    return NS_OK;
}

enum ns_code ns_kda_attend(struct ns_pass *pass, uint32_t layer, const struct ns_kda_work *work, const void *packed,
                           float *out, struct ns_error *err)
{
    const struct ns_kda_weights *w = &pass->model->layer[layer].kda;
    const struct ns_config *c = pass->model->config;
    size_t start = pass->arena->used, p = (size_t)c->kda_heads * c->kda_dim;
    struct kda_buffers b = {0};
    carve_layer(pass, &b);
    size_t mark = pass->arena->used;
    carve_groups(pass, &b);
    enum ns_code rc = project_narrow(pass, w, packed, &b, err);
    for (uint32_t h = 0; rc == NS_OK && h < c->kda_heads; h += pass->model->kda_group)
        rc = run_group(pass, w, work, packed, &b, h, err);
    pass->arena->used = mark;
    if (rc == NS_OK) {
        void *o_packed = ns_arena_take(pass->arena, ns_pass_pack_bytes(pass, p));
        ns_pass_pack(pass, o_packed, b.o, p, p);
        rc = ns_feed_product(pass, &w->o, 0, w->o.rows, out, c->hidden, o_packed, NS_SET, err);
    }
    pass->arena->used = start;
    return rc;
}
