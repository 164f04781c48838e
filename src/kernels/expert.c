/* expert.c - one expert for the rows routed to it.
 * WHAT   Gather and pack the rows, gate and up by runs of inner outputs with the activation while they are in cache,
 *        pack the activations, down, weighted add into the rows. Four parallel runs, all over independent outputs.
 * WHY    The weights are read once for up to ROWS rows. More rows go in blocks of ROWS, which bounds the work memory;
 *        a row's result does not depend on its block. */
#include "kernels/kernels_impl.h"

#include <assert.h>

enum { ROWS = 256, TASK = 64 }; /* rows of a block; inner outputs of one piece of gate and up */

/* Outputs that one thread takes in a row, how many such runs a thread gets of a large matrix, and outputs that stay
 * together, which is what the widest tile takes. */
enum { RUN = 256, RUNS = 4, UNIT = 8 };

/* where things lie in the scratch; everything is 64-byte aligned */
struct plan {
    size_t packed_z, hidden, packed_h, out; /* offsets */
    size_t thread;                          /* first thread's area: gemm work, then gate and up pieces */
    size_t thread_bytes, pieces;            /* of one thread; offset of its pieces */
    size_t total;
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Packing is sized for every smaller block too: the last block may be cut differently. */
static struct plan plan_of(const struct ns_kernels *k, const struct ns_expert_weights *e, size_t n)
{
    const struct ns_gemm_ops *gate = k->table->gemm[e->gate.type];
    const struct ns_gemm_ops *down = k->table->gemm[e->down.type];
    size_t last = n > ROWS ? n % ROWS : 0;
    size_t rows = n > ROWS ? ROWS : n;
    struct plan p = {0};
    p.hidden = ns_round_up(
        larger(gate->pack_bytes(rows, e->gate.cols), last ? gate->pack_bytes(last, e->gate.cols) : 0), NS_ALIGN);
    p.packed_h = p.hidden + ns_round_up(rows * e->gate.rows * sizeof(float), NS_ALIGN);
    p.out = p.packed_h +
            ns_round_up(larger(down->pack_bytes(rows, e->down.cols), last ? down->pack_bytes(last, e->down.cols) : 0),
                        NS_ALIGN);
    p.thread = p.out + ns_round_up(rows * e->down.rows * sizeof(float), NS_ALIGN);
    p.pieces = larger(gate->scratch_bytes(rows, e->gate.cols), down->scratch_bytes(rows, e->down.cols));
    if (last)
        p.pieces =
            larger(p.pieces, larger(gate->scratch_bytes(last, e->gate.cols), down->scratch_bytes(last, e->down.cols)));
    p.pieces = ns_round_up(p.pieces, NS_ALIGN);
    p.thread_bytes = p.pieces + ns_round_up(2 * rows * TASK * sizeof(float), NS_ALIGN);
    p.total = p.thread + k->n_threads * p.thread_bytes;
    return p;
}

size_t ns_expert_scratch(const struct ns_kernels *k, const struct ns_expert_weights *e, size_t n_rows)
{
    return plan_of(k, e, n_rows).total;
}

struct expert_call {
    const struct ns_kernels *k;
    const struct ns_expert_weights *e;
    const struct ns_act *act;
    const struct plan *plan;
    uint8_t *scratch;
    size_t n;
};

/* A product fetches the weights behind its own ahead, which helps only the thread that goes on there: so long runs, as
 * far as every thread gets some. Few packed rows are little work: then from a million multiply-adds on. */
static size_t units_of(const struct ns_kernels *k, size_t rows, size_t cols, size_t n)
{
    size_t least = ((size_t)1 << 20) / (n * cols + 1) + 1, share = rows / (RUNS * k->n_threads);
    size_t grain = share > RUN ? share : RUN, most = rows / (2 * k->n_threads);
    if (grain > most)
        grain = most;
    return ns_round_up(grain > least ? grain : least, TASK) / UNIT;
}

static size_t last_output(size_t end, size_t rows)
{
    return end * UNIT < rows ? end * UNIT : rows;
}

/* inner outputs of units [begin, end): h = act(gate z, up z) */
static void inner_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct expert_call *c = arg;
    const struct ns_gemm_ops *gemm = c->k->table->gemm[c->e->gate.type];
    uint8_t *mine = c->scratch + c->plan->thread + thread * c->plan->thread_bytes;
    float *g = (float *)(void *)(mine + c->plan->pieces);
    float *u = g + c->n * TASK;
    float *h = (float *)(void *)(c->scratch + c->plan->hidden);
    const float *z = (const float *)(const void *)c->scratch;
    ns_rows_fn activate = c->k->table->row[c->act->situ ? NS_ROW_SITU_MUL : NS_ROW_SILU_MUL];
    end = last_output(end, c->e->gate.rows);
    for (size_t r = begin * UNIT; r < end; r += TASK) {
        size_t n = end - r < TASK ? end - r : TASK;
        gemm->run(g, TASK, &c->e->gate, r, r + n, z, c->n, NS_SET, mine);
        gemm->run(u, TASK, &c->e->up, r, r + n, z, c->n, NS_SET, mine);
        struct ns_rows a = {.y = h + r,
                            .ld_y = c->e->gate.rows,
                            .x = g,
                            .ld_x = TASK,
                            .g = u,
                            .ld_g = TASK,
                            .n = n,
                            .beta = c->act->beta,
                            .linear_beta = c->act->linear_beta};
        activate(&a, 0, c->n);
    }
}

static void down_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    const struct expert_call *c = arg;
    float *y = (float *)(void *)(c->scratch + c->plan->out);
    begin *= UNIT;
    end = last_output(end, c->e->down.rows);
    c->k->table->gemm[c->e->down.type]->run(y + begin, c->e->down.rows, &c->e->down, begin, end,
                                            (const float *)(const void *)(c->scratch + c->plan->packed_h), c->n, NS_SET,
                                            c->scratch + c->plan->thread + thread * c->plan->thread_bytes);
}

void ns_expert(const struct ns_kernels *k, const struct ns_expert_weights *e, const struct ns_act *act, const float *z,
               size_t ld_z, const uint32_t *index, const float *weight, size_t n, float *acc, size_t ld_acc,
               uint8_t *finite, void *scratch)
{
    assert(e->gate.type == e->up.type && e->gate.rows == e->up.rows && e->gate.cols == e->up.cols);
    assert(e->down.cols == e->gate.rows && (uintptr_t)scratch % NS_ALIGN == 0);
    uint64_t began = ns_product_begin(k);
    const struct ns_kernels *asked = k;
    struct ns_kernels inner = *k;
    inner.time = NULL; /* the whole call counts, not its parts again */
    k = &inner;
    struct plan plan = plan_of(k, e, n);
    struct expert_call c = {k, e, act, &plan, scratch, 0};
    for (size_t first = 0; first < n; first += ROWS) {
        c.n = n - first < ROWS ? n - first : ROWS;
        float *h = (float *)(void *)(c.scratch + plan.hidden);
        ns_pack_rows(k, e->gate.type, c.scratch, z, ld_z, index + first, c.n, e->gate.cols);
        ns_parallel(k->n_threads, ns_round_up(e->gate.rows, UNIT) / UNIT, units_of(k, e->gate.rows, e->gate.cols, c.n),
                    inner_range, &c);
        ns_pack_rows(k, e->down.type, c.scratch + plan.packed_h, h, e->gate.rows, NULL, c.n, e->down.cols);
        ns_parallel(k->n_threads, ns_round_up(e->down.rows, UNIT) / UNIT, units_of(k, e->down.rows, e->down.cols, c.n),
                    down_range, &c);
        struct ns_rows add = {.y = acc,
                              .ld_y = ld_acc,
                              .x = (const float *)(const void *)(c.scratch + plan.out),
                              .ld_x = e->down.rows,
                              .index = index + first,
                              .a = weight + first,
                              .ok = finite ? finite + first : NULL,
                              .n = e->down.rows};
        ns_rows_run(k, NS_ROW_EXPERT_ADD, &add, c.n);
    }
    ns_product_end(asked, began);
}
