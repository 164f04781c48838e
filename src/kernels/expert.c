/* expert.c - experts for the rows routed to them.
 * WHAT   Rows are gathered and packed, gate and up run by pieces of inner outputs with the activation while they are in
 *        cache, activations are packed, down; then every row gets the weighted outputs of its experts, in their order.
 * WHY    Experts serve few rows each, so cutting one over all threads is many short parallel runs, and threads wait for
 *        each other at every end. Instead a thread takes a whole expert, or some of its rows, from gathering to output,
 *        and all experts of a call are one parallel run. Outputs wait in the scratch, because the order of the additions
 *        belongs to the rows. When there are too few experts and rows to keep the threads busy, the outputs of each
 *        expert are shared out, one expert after the other.
 *        A result does not depend on how it was cut: a row is never part of another row's arithmetic. */
#include "kernels/kernels_impl.h"

#include <assert.h>

/* Rows of a piece: at most, from where on halves are cut, and what is not cut further. Inner outputs taken together. */
enum { ROWS_MOST = 128, ROWS_AIM = 32, ROWS_LEAST = 16, TASK = 64 };

/* Outputs shared out: what one thread takes in a row, how many such runs a thread gets of a large matrix, and outputs
 * that stay together, which is what the widest tile takes. */
enum { RUN = 256, RUNS = 4, UNIT = 8 };

/* some rows of one job, on one thread */
struct piece {
    uint32_t job, first, n;
    bool sound;
};

/* Where things lie in the scratch; everything is 64-byte aligned. The offsets behind area are inside an area, of which
 * every thread has one. */
struct plan {
    size_t rows; /* of a piece at most */
    size_t piece, area;
    size_t hidden, packed_h, work, gate_up, area_bytes; /* packed rows come first */
    size_t total;
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t aligned(size_t bytes)
{
    return ns_round_up(bytes, NS_ALIGN);
}

/* A piece may have any number of rows, and fewer rows may be cut so that they need more. */
static struct plan plan_of(const struct ns_kernels *k, const struct ns_expert_weights *e, size_t n_jobs, size_t n_rows)
{
    const struct ns_gemm_ops *gate = k->table->gemm[e->gate.type], *down = k->table->gemm[e->down.type];
    struct plan p = {.rows = smaller(n_rows, ROWS_MOST)};
    size_t z = 0, h = 0, work = 0;
    for (size_t n = 1; n <= p.rows; n++) {
        z = larger(z, gate->pack_bytes(n, e->gate.cols));
        h = larger(h, down->pack_bytes(n, e->down.cols));
        work = larger(work, larger(gate->scratch_bytes(n, e->gate.cols), down->scratch_bytes(n, e->down.cols)));
    }
    p.piece = aligned(n_rows * e->down.rows * sizeof(float)); /* behind the outputs */
    p.area = p.piece + aligned((n_jobs + n_rows / ROWS_LEAST) * sizeof(struct piece));
    p.hidden = aligned(z);
    p.packed_h = p.hidden + aligned(p.rows * e->gate.rows * sizeof(float));
    p.work = p.packed_h + aligned(h);
    p.gate_up = p.work + aligned(work);
    p.area_bytes = p.gate_up + aligned(2 * p.rows * TASK * sizeof(float));
    p.total = p.area + k->n_threads * p.area_bytes;
    return p;
}

size_t ns_experts_scratch(const struct ns_kernels *k, const struct ns_expert_weights *e, size_t n_jobs, size_t n_rows)
{
    return plan_of(k, e, n_jobs, n_rows).total;
}

struct experts_call {
    const struct ns_kernels *k;
    struct ns_expert_job *job;
    size_t n_jobs, n_rows;
    const struct ns_act *act;
    const float *z;
    size_t ld_z;
    float *acc;
    size_t ld_acc;
    struct plan plan;
    uint8_t *scratch;
    struct piece *piece;
    size_t n_pieces;
};

static uint8_t *area_of(const struct experts_call *c, unsigned thread)
{
    return c->scratch + c->plan.area + thread * c->plan.area_bytes;
}

static float *outputs_of(const struct experts_call *c, size_t job)
{
    size_t at = 0;
    for (size_t j = 0; j < job; j++)
        at += c->job[j].n;
    return (float *)(void *)c->scratch + at * c->job->w.down.rows;
}

/* ---- the parts of one expert ------------------------------------------------------------------------------------------------ */

/* n rows of one job: rows and hidden in one area, the outputs in y */
struct part {
    const struct experts_call *call;
    const struct ns_expert_weights *w;
    uint8_t *area;
    float *y;
    size_t n;
};

static float *floats_at(uint8_t *area, size_t offset)
{
    return (float *)(void *)(area + offset);
}

/* inner outputs [begin, end): h = act(gate z, up z), with the work memory of an area */
static void inner_outputs(const struct part *p, size_t begin, size_t end, uint8_t *mine)
{
    const struct experts_call *c = p->call;
    const struct ns_gemm_ops *gemm = c->k->table->gemm[p->w->gate.type];
    float *g = floats_at(mine, c->plan.gate_up), *u = g + p->n * TASK, *h = floats_at(p->area, c->plan.hidden);
    const float *z = floats_at(p->area, 0);
    ns_rows_fn activate = c->k->table->row[c->act->situ ? NS_ROW_SITU_MUL : NS_ROW_SILU_MUL];
    for (size_t r = begin; r < end; r += TASK) {
        size_t n = smaller(end - r, TASK);
        gemm->run(g, TASK, &p->w->gate, r, r + n, z, p->n, NS_SET, mine + c->plan.work);
        gemm->run(u, TASK, &p->w->up, r, r + n, z, p->n, NS_SET, mine + c->plan.work);
        struct ns_rows a = {.y = h + r,
                            .ld_y = p->w->gate.rows,
                            .x = g,
                            .ld_x = TASK,
                            .g = u,
                            .ld_g = TASK,
                            .n = n,
                            .beta = c->act->beta,
                            .linear_beta = c->act->linear_beta};
        activate(&a, 0, p->n);
    }
}

static void down_outputs(const struct part *p, size_t begin, size_t end, uint8_t *mine)
{
    const struct experts_call *c = p->call;
    c->k->table->gemm[p->w->down.type]->run(p->y + begin, p->w->down.rows, &p->w->down, begin, end,
                                            floats_at(p->area, c->plan.packed_h), p->n, NS_SET, mine + c->plan.work);
}

static bool is_sound(const struct ns_kernels *k, const struct ns_expert_weights *w)
{
    return w->gate.type != NS_W_MXFP4 ||
           (ns_mxfp4_sound(k, &w->gate) && ns_mxfp4_sound(k, &w->up) && ns_mxfp4_sound(k, &w->down));
}

/* ---- by rows: a thread takes pieces --------------------------------------------------------------------------------------- */

static void piece_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct experts_call *c = arg;
    for (size_t i = begin; i < end; i++) {
        struct piece *at = &c->piece[i];
        const struct ns_expert_job *job = &c->job[at->job];
        const struct ns_expert_weights *w = &job->w;
        const struct ns_gemm_ops *gate = c->k->table->gemm[w->gate.type], *down = c->k->table->gemm[w->down.type];
        struct part p = {c, w, area_of(c, thread), outputs_of(c, at->job) + at->first * w->down.rows, at->n};
        at->sound = is_sound(c->k, w);
        if (!at->sound)
            continue;
        gate->pack(floats_at(p.area, 0), c->z, c->ld_z, job->index + at->first, p.n, w->gate.cols, 0,
                   gate->pack_units(p.n, w->gate.cols));
        inner_outputs(&p, 0, w->gate.rows, p.area);
        down->pack(floats_at(p.area, c->plan.packed_h), floats_at(p.area, c->plan.hidden), w->gate.rows, NULL, p.n,
                   w->down.cols, 0, down->pack_units(p.n, w->down.cols));
        down_outputs(&p, 0, w->down.rows, p.area);
    }
}

/* Into how many pieces of rows a job is cut: a few percent of the whole each, so that the threads end together. */
static size_t cuts_of(const struct experts_call *c, size_t n)
{
    size_t threads = c->k->n_threads, aim = larger(c->n_rows / (16 * threads), ROWS_AIM);
    size_t most = n / ROWS_LEAST, cuts = larger(n / aim, (n + c->plan.rows - 1) / c->plan.rows);
    if (cuts > 1 && c->n_jobs < 4 * threads) /* few jobs: as many for each thread */
        cuts = ns_round_up(cuts, threads);
    return larger(smaller(cuts, most), 1);
}

/* Cuts all jobs, larger pieces first. */
static void cut_rows(struct experts_call *c)
{
    for (size_t j = 0; j < c->n_jobs; j++) {
        size_t n = c->job[j].n, cuts = n ? cuts_of(c, n) : 0;
        for (size_t i = 0; i < cuts; i++) {
            struct piece p = {.job = (uint32_t)j, .first = (uint32_t)(i * n / cuts)};
            p.n = (uint32_t)((i + 1) * n / cuts) - p.first;
            size_t at = c->n_pieces++;
            for (; at > 0 && c->piece[at - 1].n < p.n; at--)
                c->piece[at] = c->piece[at - 1];
            c->piece[at] = p;
        }
    }
}

/* Would whole pieces keep the threads busy? A row costs its work, and each piece the decoding of the weights. */
static bool rows_suffice(const struct experts_call *c)
{
    enum { DECODE = 3 };

    size_t threads = c->k->n_threads, all = c->n_rows + DECODE * c->n_pieces;
    size_t rounds = (c->n_pieces + threads - 1) / threads, longest = c->piece[0].n + DECODE;
    return rounds >= 4 || 4 * rounds * longest * threads <= 5 * all;
}

static void run_by_rows(struct experts_call *c)
{
    ns_parallel_each(c->k->n_threads, c->n_pieces, piece_range, c);
    for (size_t i = 0; i < c->n_pieces; i++)
        c->job[c->piece[i].job].sound = c->piece[i].sound;
}

/* ---- by outputs: all threads on one expert ---------------------------------------------------------------------------------- */

/* A product fetches the weights behind its own ahead, which helps only the thread that goes on there: so long runs, as
 * far as every thread gets some. Few packed rows are little work: then from a million multiply-adds on. */
static size_t units_of(const struct ns_kernels *k, size_t rows, size_t cols, size_t n)
{
    size_t least = ((size_t)1 << 20) / (n * cols + 1) + 1, share = rows / (RUNS * k->n_threads);
    size_t grain = smaller(larger(share, RUN), rows / (2 * k->n_threads));
    return ns_round_up(larger(grain, least), TASK) / UNIT;
}

static void inner_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct part *p = arg;
    inner_outputs(p, begin * UNIT, smaller(end * UNIT, p->w->gate.rows), area_of(p->call, thread));
}

static void down_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct part *p = arg;
    down_outputs(p, begin * UNIT, smaller(end * UNIT, p->w->down.rows), area_of(p->call, thread));
}

static void run_by_outputs(struct experts_call *c)
{
    const struct ns_kernels *k = c->k;
    for (size_t j = 0; j < c->n_jobs; j++) {
        struct ns_expert_job *job = &c->job[j];
        const struct ns_weights *gate = &job->w.gate, *down = &job->w.down;
        job->sound = job->n == 0 || is_sound(k, &job->w); /* without rows nobody looks, as by rows */
        struct part p = {.call = c, .w = &job->w, .area = area_of(c, 0)};
        for (size_t first = 0; first < job->n && job->sound; first += p.n) {
            p.n = smaller(job->n - first, c->plan.rows);
            p.y = outputs_of(c, j) + first * down->rows;
            ns_pack_rows(k, gate->type, p.area, c->z, c->ld_z, job->index + first, p.n, gate->cols);
            ns_parallel(k->n_threads, ns_round_up(gate->rows, UNIT) / UNIT, units_of(k, gate->rows, gate->cols, p.n),
                        inner_range, &p);
            ns_pack_rows(k, down->type, p.area + c->plan.packed_h, floats_at(p.area, c->plan.hidden), gate->rows, NULL,
                         p.n, down->cols);
            ns_parallel(k->n_threads, ns_round_up(down->rows, UNIT) / UNIT, units_of(k, down->rows, down->cols, p.n),
                        down_range, &p);
        }
    }
}

/* ---- the sum ---------------------------------------------------------------------------------------------------------------- */

/* rows [begin, end) of acc: what each job has for them, job after job */
static void add_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    (void)thread;
    const struct experts_call *c = arg;
    for (size_t j = 0; j < c->n_jobs; j++) {
        const struct ns_expert_job *job = &c->job[j];
        if (!job->sound)
            continue;
        struct ns_rows add = {.y = c->acc,
                              .ld_y = c->ld_acc,
                              .x = outputs_of(c, j),
                              .ld_x = job->w.down.rows,
                              .index = job->index,
                              .a = job->weight,
                              .ok = job->finite,
                              .n = job->w.down.rows};
        for (size_t i = 0, run; i < job->n; i += run) {
            for (run = 0; i + run < job->n && job->index[i + run] >= begin && job->index[i + run] < end;)
                run++;
            c->k->table->row[NS_ROW_EXPERT_ADD](&add, i, i + run);
            run += run == 0;
        }
    }
}

static void add_outputs(struct experts_call *c)
{
    size_t n_acc = 0, floats = c->n_rows * c->job->w.down.rows;
    for (size_t j = 0; j < c->n_jobs; j++)
        for (size_t i = 0; i < c->job[j].n; i++)
            n_acc = larger(n_acc, (size_t)c->job[j].index[i] + 1);
    size_t ranges = floats < 65536 ? 1 : smaller(4 * c->k->n_threads, n_acc);
    ns_parallel(c->k->n_threads, n_acc, (n_acc + ranges - 1) / ranges, add_range, c);
}

void ns_experts(const struct ns_kernels *k, struct ns_expert_job *job, size_t n_jobs, const struct ns_act *act,
                const float *z, size_t ld_z, float *acc, size_t ld_acc, void *scratch)
{
    assert((uintptr_t)scratch % NS_ALIGN == 0);
    struct ns_kernels inner = *k;
    inner.time = NULL; /* the whole call counts, not its parts again */
    struct experts_call c = {.k = &inner,
                             .job = job,
                             .n_jobs = n_jobs,
                             .act = act,
                             .z = z,
                             .ld_z = ld_z,
                             .acc = acc,
                             .ld_acc = ld_acc,
                             .scratch = scratch};
    for (size_t j = 0; j < n_jobs; j++) {
        const struct ns_expert_weights *w = &job[j].w;
        assert(w->gate.type == w->up.type && w->gate.rows == w->up.rows && w->gate.cols == w->up.cols);
        assert(w->down.cols == w->gate.rows && w->down.rows == job->w.down.rows);
        (void)w;
        job[j].sound = true;
        c.n_rows += job[j].n;
    }
    if (c.n_rows == 0)
        return;
    uint64_t began = ns_product_begin(k);
    c.plan = plan_of(k, &job->w, n_jobs, c.n_rows);
    c.piece = (struct piece *)(void *)(c.scratch + c.plan.piece);
    cut_rows(&c);
    if (k->n_threads == 1 || rows_suffice(&c))
        run_by_rows(&c);
    else
        run_by_outputs(&c);
    add_outputs(&c);
    ns_product_end(k, began);
}
