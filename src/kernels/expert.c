/* expert.c - experts for the rows routed to them.
 * WHAT   Two steps. First rows are gathered and packed, gate and up run by pieces of inner outputs with the activation
 *        while they are in cache, and activations are packed. Then `down`, shared out by its outputs: a thread owns some
 *        columns of the accumulators and goes through the experts in their order, adding each small block of weighted
 *        outputs to its rows while it is in cache.
 * WHY    Experts serve few rows each, so cutting one over all threads is many short parallel runs, and threads wait for
 *        each other at every end. Instead a thread takes a whole expert, or some of its rows, through the first step, and
 *        all experts of a call are one parallel run. When there are too few experts and rows to keep the threads busy, the
 *        inner outputs of each expert are shared out, one expert after the other. The order of the additions belongs to
 *        the rows, so the second step cannot be cut by experts; cut by columns, no output ever waits for its turn.
 *        A result does not depend on how it was cut: a row is never part of another row's arithmetic, nor a column of
 *        another column's. */
#include "kernels/kernels_impl.h"

#include <assert.h>

/* Rows of a piece: at most, from where on halves are cut, and what is not cut further. Inner outputs taken together. Floats
 * of a block, which is what waits in cache: gate and up of so many inner outputs, or outputs, the more the fewer rows. */
enum { ROWS_MOST = 128, ROWS_AIM = 32, ROWS_LEAST = 16, TASK = 64, BLOCK = 2 * TASK * ROWS_MOST };

/* Outputs shared out: what one thread takes in a row, how many such runs a thread gets of a large matrix, and outputs
 * that stay together, which is what the widest tile takes. */
enum { RUN = 256, RUNS = 4, UNIT = 8 };

/* some rows of one job, on one thread in the first step */
struct piece {
    uint32_t job, first, n;
    bool sound;
    size_t packed; /* where its packed activations lie in the scratch */
};

/* Where things lie in the scratch, which begins with packed activations; everything is 64-byte aligned. The offsets
 * behind area are inside an area, of which every thread has one, and which begins with packed rows. */
struct plan {
    size_t rows; /* of a piece at most */
    size_t piece, order, area;
    size_t hidden, work, block, area_bytes;
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

/* A piece may have any number of rows, and fewer rows may be packed so that they need more. */
static struct plan plan_of(const struct ns_kernels *k, const struct ns_expert_weights *e, size_t n_jobs, size_t n_rows)
{
    const struct ns_gemm_ops *gate = k->table->gemm[e->gate.type], *down = k->table->gemm[e->down.type];
    struct plan p = {.rows = smaller(n_rows, ROWS_MOST)};
    size_t z = 0, h_of_row = 0, work = 0, most_pieces = n_jobs + n_rows / ROWS_LEAST;
    for (size_t n = 1; n <= p.rows; n++) {
        z = larger(z, gate->pack_bytes(n, e->gate.cols));
        h_of_row = larger(h_of_row, (aligned(down->pack_bytes(n, e->down.cols)) + n - 1) / n);
        work = larger(work, larger(gate->scratch_bytes(n, e->gate.cols), down->scratch_bytes(n, e->down.cols)));
    }
    p.piece = aligned(n_rows * h_of_row);
    p.order = p.piece + aligned(most_pieces * sizeof(struct piece));
    p.area = p.order + aligned(most_pieces * sizeof(uint32_t));
    p.hidden = aligned(z);
    p.work = p.hidden + aligned(p.rows * e->gate.rows * sizeof(float));
    p.block = p.work + aligned(work);
    p.area_bytes = p.block + aligned(BLOCK * sizeof(float));
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
    struct piece *piece;     /* in the order of the jobs */
    uint32_t *order;         /* of the pieces: larger ones first */
    size_t n_pieces, n_runs; /* runs of columns */
};

static uint8_t *area_of(const struct experts_call *c, unsigned thread)
{
    return c->scratch + c->plan.area + thread * c->plan.area_bytes;
}

static float *floats_at(uint8_t *area, size_t offset)
{
    return (float *)(void *)(area + offset);
}

/* ---- pieces ----------------------------------------------------------------------------------------------------------------- */

/* Into how many pieces of rows a job is cut: a few percent of the whole each, so that the threads end together. */
static size_t cuts_of(const struct experts_call *c, size_t n)
{
    size_t threads = c->k->n_threads, aim = larger(c->n_rows / (16 * threads), ROWS_AIM);
    size_t most = n / ROWS_LEAST, cuts = larger(n / aim, (n + c->plan.rows - 1) / c->plan.rows);
    if (cuts > 1 && c->n_jobs < 4 * threads) /* few jobs: as many for each thread */
        cuts = ns_round_up(cuts, threads);
    return larger(smaller(cuts, most), 1);
}

static void put_in_order(struct experts_call *c, uint32_t piece)
{
    size_t at = piece;
    for (; at > 0 && c->piece[c->order[at - 1]].n < c->piece[piece].n; at--)
        c->order[at] = c->order[at - 1];
    c->order[at] = piece;
}

/* Cuts all jobs; whole: no further than a piece may be large. */
static void cut_rows(struct experts_call *c, bool whole)
{
    const struct ns_weights *down = &c->job->w.down;
    size_t packed = 0;
    c->n_pieces = 0;
    for (size_t j = 0; j < c->n_jobs; j++) {
        size_t n = c->job[j].n, cuts = whole || n == 0 ? (n + c->plan.rows - 1) / c->plan.rows : cuts_of(c, n);
        for (size_t i = 0; i < cuts; i++) {
            struct piece p = {.job = (uint32_t)j, .first = (uint32_t)(i * n / cuts), .packed = packed};
            p.n = (uint32_t)((i + 1) * n / cuts) - p.first;
            packed += aligned(c->k->table->gemm[down->type]->pack_bytes(p.n, down->cols));
            c->piece[c->n_pieces] = p;
            put_in_order(c, (uint32_t)c->n_pieces++);
        }
    }
    assert(packed <= c->plan.piece);
}

/* Would whole pieces keep the threads busy? A row costs its work, and each piece the decoding of the weights. */
static bool rows_suffice(const struct experts_call *c)
{
    enum { DECODE = 3 };

    size_t threads = c->k->n_threads, all = c->n_rows + DECODE * c->n_pieces;
    size_t rounds = (c->n_pieces + threads - 1) / threads, longest = c->piece[c->order[0]].n + DECODE;
    return rounds >= 4 || 4 * rounds * longest * threads <= 5 * all;
}

/* ---- first step ------------------------------------------------------------------------------------------------------------- */

/* n rows of one job: packed rows and hidden in one area */
struct part {
    const struct experts_call *call;
    const struct ns_expert_weights *w;
    uint8_t *area;
    size_t n;
};

/* inner outputs [begin, end): h = act(gate z, up z), with the work memory of an area */
static void inner_outputs(const struct part *p, size_t begin, size_t end, uint8_t *mine)
{
    const struct experts_call *c = p->call;
    const struct ns_gemm_ops *gemm = c->k->table->gemm[p->w->gate.type];
    float *g = floats_at(mine, c->plan.block), *u = g + p->n * TASK, *h = floats_at(p->area, c->plan.hidden);
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

/* Without a bad scale in gate and up? An infinite weight could hide behind the caps of the activation. */
static bool is_sound_inside(const struct ns_kernels *k, const struct ns_expert_weights *w)
{
    return w->gate.type != NS_W_MXFP4 || (ns_mxfp4_sound(k, &w->gate) && ns_mxfp4_sound(k, &w->up));
}

/* by rows: a thread takes pieces */
static void piece_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct experts_call *c = arg;
    for (size_t i = begin; i < end; i++) {
        struct piece *at = &c->piece[c->order[i]];
        const struct ns_expert_job *job = &c->job[at->job];
        const struct ns_weights *in = &job->w.gate, *out = &job->w.down;
        const struct ns_gemm_ops *gate = c->k->table->gemm[in->type], *down = c->k->table->gemm[out->type];
        struct part p = {c, &job->w, area_of(c, thread), at->n};
        at->sound = is_sound_inside(c->k, p.w);
        if (!at->sound)
            continue;
        gate->pack(floats_at(p.area, 0), c->z, c->ld_z, job->index + at->first, p.n, in->cols, 0,
                   gate->pack_units(p.n, in->cols));
        inner_outputs(&p, 0, in->rows, p.area);
        down->pack(floats_at(c->scratch, at->packed), floats_at(p.area, c->plan.hidden), in->rows, NULL, p.n, out->cols,
                   0, down->pack_units(p.n, out->cols));
    }
}

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

/* by inner outputs: all threads on one piece */
static void run_by_outputs(struct experts_call *c)
{
    const struct ns_kernels *k = c->k;
    for (size_t i = 0; i < c->n_pieces; i++) {
        struct piece *at = &c->piece[i];
        const struct ns_expert_job *job = &c->job[at->job];
        const struct ns_weights *gate = &job->w.gate, *down = &job->w.down;
        struct part p = {c, &job->w, area_of(c, 0), at->n};
        at->sound = at->first > 0 ? at[-1].sound : is_sound_inside(k, p.w);
        if (!at->sound)
            continue;
        ns_pack_rows(k, gate->type, p.area, c->z, c->ld_z, job->index + at->first, p.n, gate->cols);
        ns_parallel(k->n_threads, ns_round_up(gate->rows, UNIT) / UNIT, units_of(k, gate->rows, gate->cols, p.n),
                    inner_range, &p);
        ns_pack_rows(k, down->type, c->scratch + at->packed, floats_at(p.area, c->plan.hidden), gate->rows, NULL, p.n,
                     down->cols);
    }
}

/* ---- second step ------------------------------------------------------------------------------------------------------------ */

/* outputs [first, first + n) of one piece, added to its rows */
static void add_block(const struct experts_call *c, const struct piece *at, size_t first, size_t n, uint8_t *mine)
{
    const struct ns_expert_job *job = &c->job[at->job];
    const struct ns_weights *down = &job->w.down;
    float *y = floats_at(mine, c->plan.block);
    c->k->table->gemm[down->type]->run(y, n, down, first, first + n, floats_at(c->scratch, at->packed), at->n, NS_SET,
                                       mine + c->plan.work);
    struct ns_rows add = {.y = c->acc + first,
                          .ld_y = c->ld_acc,
                          .x = y,
                          .ld_x = n,
                          .index = job->index + at->first,
                          .a = job->weight + at->first,
                          .ok = job->finite ? job->finite + at->first : NULL,
                          .n = n};
    c->k->table->row[NS_ROW_EXPERT_ADD](&add, 0, at->n);
}

/* Pieces [i, next) of one job, which have different rows, for columns [first, last): each block of weights meets them all
 * while it is in cache. */
static void add_job(const struct experts_call *c, size_t i, size_t next, size_t first, size_t last, uint8_t *mine)
{
    size_t most = BLOCK / larger(c->piece[i].n, c->piece[next - 1].n), n_blocks = (last - first + most - 1) / most;
    size_t step = ns_round_up((last - first + n_blocks - 1) / n_blocks, UNIT);
    for (size_t o = first; o < last; o += step)
        for (size_t at = i; at < next; at++)
            add_block(c, &c->piece[at], o, smaller(last - o, step), mine);
}

/* Weights of `down` with a bad scale give no finite output, so nothing of theirs is added; but the job must be told. */
static void check_down(struct ns_expert_job *job, const struct ns_kernels *k, size_t first, size_t last)
{
    const struct ns_weights *w = &job->w.down;
    const size_t row_bytes = ns_weight_row_bytes(w->type, w->cols);
    struct ns_weights part = *w;
    if (w->type != NS_W_MXFP4)
        return;
    part.data = (const uint8_t *)w->data + first * row_bytes;
    part.scale = w->scale + first * (w->cols / 32);
    part.rows = last - first;
    if (!ns_mxfp4_sound(k, &part))
        __atomic_store_n(&job->sound, false, __ATOMIC_RELAXED); /* as ns_row_fails */
}

/* runs [begin, end) of columns: what each job has for them, job after job */
static void column_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct experts_call *c = arg;
    const size_t rows = c->job->w.down.rows, units = (rows + UNIT - 1) / UNIT;
    const size_t first = begin * units / c->n_runs * UNIT, last = smaller(end * units / c->n_runs * UNIT, rows);
    for (size_t i = 0, next; i < c->n_pieces; i = next) {
        for (next = i; next < c->n_pieces && c->piece[next].job == c->piece[i].job;)
            next++;
        if (!c->piece[i].sound)
            continue;
        check_down(&c->job[c->piece[i].job], c->k, first, last);
        add_job(c, i, next, first, last, area_of(c, thread));
    }
}

static size_t runs_of(const struct experts_call *c)
{
    const struct ns_weights *down = &c->job->w.down;
    size_t units = (down->rows + UNIT - 1) / UNIT, grain = units_of(c->k, down->rows, down->cols, c->n_rows);
    return c->k->n_threads == 1 ? 1 : larger(units / grain, 1);
}

static unsigned threads_of(const struct experts_call *c)
{
    const struct ns_weights *gate = &c->job->w.gate, *down = &c->job->w.down;
    double weights = 2 * (double)gate->rows * (double)gate->cols + (double)down->rows * (double)down->cols, ns = 0;
    for (size_t j = 0; j < c->n_jobs; j++)
        ns += c->job[j].n > 0 ? weights * ns_weight_ns(c->job[j].n) : 0;
    return ns_threads_for(c->k, ns);
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
    inner.n_threads = threads_of(&c);
    c.plan = plan_of(&inner, &job->w, n_jobs, c.n_rows);
    c.piece = (struct piece *)(void *)(c.scratch + c.plan.piece);
    c.order = (uint32_t *)(void *)(c.scratch + c.plan.order);
    c.n_runs = runs_of(&c);
    cut_rows(&c, false);
    if (inner.n_threads == 1 || rows_suffice(&c)) {
        ns_parallel_steps(inner.n_threads, c.n_pieces, piece_range, c.n_runs, column_range, &c);
    } else {
        cut_rows(&c, true);
        run_by_outputs(&c);
        ns_parallel_each(inner.n_threads, c.n_runs, column_range, &c);
    }
    for (size_t i = 0; i < c.n_pieces; i++)
        if (!c.piece[i].sound)
            job[c.piece[i].job].sound = false;
    ns_product_end(k, began);
}
