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
 *   1. Chunks, trees and groups do not change a bit.            (wave_test: chunks_give_the_same_bits, budgets_tiles_and_groups)
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
    uint32_t first_head, n_heads;
};

static float *state_at(const struct kda_job *job, uint32_t place, uint32_t head, float *slots)
{
    size_t floats = ns_kda_head_floats(job->pass->model->config);
    if (place < NS_STATE_HOME)
        return slots + place * floats;
    uint32_t home = place - NS_STATE_HOME;
    return job->work->home[home] + (head - (job->work->log ? job->work->log[home].first_head : 0)) * floats;
}

/* Where the inputs of one head's positions are, and where its output goes. */
struct head_rows {
    const float *in[3]; /* q, k, v before the convolution */
    const float *alpha, *beta;
    float *o;
    size_t ld_in, ld_beta, ld_o;
};

/* n <= CHUNK consecutive positions of one head; state is moved along. chunk: 3 x CHUNK x d floats, and 4 d behind them. */
static void run_chunk(const struct ns_kda_weights *w, const struct ns_config *c, const struct ns_kernels *k,
                      uint32_t head, const struct head_rows *r, size_t n, float *state, float *chunk)
{
    size_t d = c->kda_dim, taps = c->conv_kernel;
    float *out[3] = {chunk, chunk + CHUNK * d, chunk + 2 * CHUNK * d};
    for (size_t i = 0; i < 3; i++)
        ns_short_conv(k, out[i], d, r->in[i], r->ld_in, w->conv[i] + head * d * taps, taps,
                      state + d * d + i * (taps - 1) * d, d, n, d);
    ns_l2norm_heads(k, out[0], d, out[0], d, n, 1, d, 1.0f / sqrtf((float)d));
    ns_l2norm_heads(k, out[1], d, out[1], d, n, 1, d, 1.0f);
    ns_kda_run(k, state, r->o ? r->o : out[2], r->o ? r->ld_o : d, out[0], d, out[1], d, out[2], d, r->alpha, r->ld_in,
               r->beta, r->ld_beta, n, d, chunk + 3 * CHUNK * d);
}

/* The log holds what run_chunk takes; the outputs of replayed positions are nobody's. */
static void replay(const struct ns_kda_weights *w, const struct ns_config *c, const struct ns_kernels *k, uint32_t head,
                   const float *row, size_t ld_row, uint32_t n, float *state, float *chunk)
{
    size_t d = c->kda_dim;
    for (uint32_t t = 0; t < n; t += CHUNK) {
        const float *at = row + t * ld_row;
        struct head_rows r = {.in = {at, at + d, at + 2 * d},
                              .alpha = at + 3 * d,
                              .beta = at + 4 * d,
                              .ld_in = ld_row,
                              .ld_beta = ld_row};
        run_chunk(w, c, k, head, &r, n - t < CHUNK ? n - t : CHUNK, state, chunk);
    }
}

size_t ns_kda_replay_floats(const struct ns_config *config)
{
    return (3 * CHUNK + 4) * (size_t)config->kda_dim;
}

void ns_kda_replay(const struct ns_model *model, const struct ns_kernels *kernels, uint32_t layer, uint32_t head,
                   const float *row, size_t ld_row, uint32_t n, float *state, float *scratch)
{
    struct ns_kernels one = *kernels;
    one.n_threads = 1;
    replay(&model->layer[layer].kda, model->config, &one, head, row, ld_row, n, state, scratch);
}

/* Writes n positions of one head behind those that the log holds. */
static void append(const struct kda_job *job, const struct ns_kda_log *log, uint32_t head, const struct head_rows *r,
                   uint32_t at, uint32_t n)
{
    const struct ns_config *c = job->pass->model->config;
    size_t d = c->kda_dim, floats = ns_kda_log_floats(c), ld = job->n_heads * floats;
    for (uint32_t t = 0; t < n; t++) {
        float *out = log->row + (log->n + at + t) * ld + (head - job->first_head) * floats;
        for (size_t i = 0; i < 3; i++)
            memcpy(out + i * d, r->in[i] + t * r->ld_in, d * sizeof *out);
        memcpy(out + 3 * d, r->alpha + t * r->ld_in, d * sizeof *out);
        out[4 * d] = r->beta[t * r->ld_beta];
    }
}

static const struct ns_kda_log *log_of(const struct kda_job *job, uint32_t place)
{
    bool is_home = place != NS_STATE_ZERO && place >= NS_STATE_HOME;
    return is_home && job->work->log ? &job->work->log[place - NS_STATE_HOME] : NULL;
}

static void run_step(const struct kda_job *job, uint32_t head, const struct ns_kda_step *step, float *state,
                     float *chunk)
{
    const struct ns_config *c = job->pass->model->config;
    const struct kda_buffers *b = job->b;
    const struct ns_kda_log *target = log_of(job, step->target);
    size_t d = c->kda_dim, width = job->pass->model->kda_group * d, p = (size_t)c->kda_heads * d;
    for (uint32_t t = 0; t < step->n; t += CHUNK) {
        uint32_t n = step->n - t < CHUNK ? step->n - t : CHUNK;
        size_t row = step->row + t, at = row * width + (head - job->first_head) * d;
        float *alpha = b->f + at;
        ns_kda_decay(&job->one, alpha, width, alpha, width, job->w->dt + head * d, job->w->a + head, c->has_decay_bound,
                     c->decay_bound, n, 1, d);
        struct head_rows r = {.in = {b->q + at, b->k + at, b->v + at},
                              .alpha = alpha,
                              .beta = b->beta + row * c->kda_heads + head,
                              .o = b->o + row * p + head * d,
                              .ld_in = width,
                              .ld_beta = c->kda_heads,
                              .ld_o = p};
        run_chunk(job->w, c, &job->one, head, &r, n, state, chunk);
        if (target && target->append)
            append(job, target, head, &r, t, n);
    }
}

static void run_unit(const struct kda_job *job, uint32_t head, const struct ns_kda_tree *tree, unsigned thread)
{
    const struct ns_config *c = job->pass->model->config;
    size_t floats = ns_kda_head_floats(c);
    float *slots = job->b->worker + thread * job->b->worker_floats;
    float *chunk = slots + job->pass->n_slots * floats;
    for (uint32_t i = 0; i < tree->n; i++) {
        const struct ns_kda_step *step = &job->work->step[tree->first + i];
        float *state = state_at(job, step->target, head, slots);
        if (step->source == NS_STATE_ZERO)
            memset(state, 0, floats * sizeof *state);
        else if (step->source != step->target)
            memcpy(state, state_at(job, step->source, head, slots), floats * sizeof *state);
        const struct ns_kda_log *source = log_of(job, step->source);
        if (source && step->replay && source->n > 0)
            replay(job->w, c, &job->one, head, source->row + (head - job->first_head) * ns_kda_log_floats(c),
                   job->n_heads * ns_kda_log_floats(c), source->n, state, chunk);
        run_step(job, head, step, state, chunk);
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

/* Roughly what a float of a state takes: to come from memory and go back, once a step, and with each row. */
static unsigned threads_of(const struct ns_pass *pass, const struct ns_kda_work *work, uint32_t heads)
{
    const double move_ns = 0.15, row_ns = 0.05;
    const struct ns_config *c = pass->model->config;
    double steps = 0;
    for (size_t t = 0; t < work->n_trees; t++)
        steps += work->tree[t].n;
    return ns_threads_for(pass->kernels, heads * (double)c->kda_dim * (double)c->kda_dim *
                                             (move_ns * steps + row_ns * (double)pass->n_rows));
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

    const struct ns_kda_pager *pager = work->pager;
    enum ns_code rc = pager ? pager->begin(pager->arg, head, heads, err) : NS_OK;
    for (int i = 0; rc == NS_OK && i < 5; i++)
        rc = ns_feed_product(pass, part[i].m, head * d, heads * d, part[i].y, width, part[i].packed, NS_SET, err);
    if (rc == NS_OK && pager)
        rc = pager->ready(pager->arg, err);
    if (rc != NS_OK)
        return rc;
    struct kda_job job = {
        .pass = pass, .w = w, .work = work, .b = b, .one = *pass->kernels, .first_head = head, .n_heads = heads};
    job.one.n_threads = 1;
    ns_parallel(threads_of(pass, work, heads), heads * work->n_trees, 1, run_units, &job);
    float *o = b->o + (size_t)head * d;
    ns_gated_norm_heads(pass->kernels, o, p, o, p, b->g, width, w->o_norm, pass->n_rows, heads, d, c->rms_eps);
    return pager ? pager->end(pager->arg, err) : NS_OK;
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
