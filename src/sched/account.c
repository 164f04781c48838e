/* account.c - what the waves cost, what they saved, and what nobody could have gone below.
 *
 * WHAT   Three sums for each wave and for all: what was done (rows by kind, experts, bytes, seconds), what the same work
 *        costs one prompt at a time, and the lower bound of physics. And the size of the next wave, from the same numbers.
 * WHY    The bound makes "fast" checkable: achieved = bound / wall. It counts:
 *          multiply-adds  rows that had to be computed, logit rows, (row, earlier position) pairs
 *          bytes          everything once for the first pass, and again for each further token of the longest generation,
 *                         less what memory can keep: a generation's next token is known only after the pass before it;
 *                         and states that memory cannot hold, unless more passes over the weights are cheaper
 *        The number of experts in a pass is the measured share of what even, independent choices would touch.
 * ROWS   A wave grows until compute is the limit: B* = disk seconds of a wave / compute seconds of a row, and half as many
 *        again, because a disk is not always as fast as in the last wave; and until an expert has 128 rows on average, because
 *        every product unpacks its weights anew. A bigger wave only delays results and loses more in a crash. Growth is at most twofold from wave to wave; where rates are known, the first wave is that large. */
#include "sched/sched_impl.h"

#include <math.h>

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static double greater(double a, double b)
{
    return a > b ? a : b;
}

/* Experts of one layer that n rows touch when choices are even and independent: E (1 - (1 - k/E)^n). */
static double layer_uniform(const struct ns_sched_model *m, double n)
{
    if (m->n_experts == 0 || n <= 0)
        return 0;
    double e = m->n_experts, miss = 1 - (double)m->top_k / e;
    if (miss <= 0)
        return e;
    return e * (1 - pow(miss, n));
}

double ns_account_pass_bytes(const struct ns_sched_model *m, double rows, double share)
{
    double experts = (double)m->n_moe_layers * layer_uniform(m, rows) * share;
    return (double)m->trunk_bytes + (double)m->head_bytes + experts * (double)m->expert_bytes;
}

/* ---- the size of a wave ----------------------------------------------------------------------------------------------- */

static const double beyond_balance = 1.5;
static const double rows_of_expert = 128;
static const double usual_share = 0.65; /* of the machine's multiply-adds that a wave reaches */

static uint32_t rows_clamp(const struct ns_sched *s, double rows)
{
    double most = s->options.rows_most, least = s->options.rows_least;
    rows = rows < least ? least : rows;
    rows = rows > most ? most : rows;
    return rows > s->machine.rows_max ? s->machine.rows_max : (uint32_t)rows;
}

void ns_account_init(struct ns_sched *s)
{
    s->rows_auto = rows_clamp(s, 0);
}

uint32_t ns_account_rows(const struct ns_sched *s)
{
    return s->options.rows > 0 ? s->options.rows : s->rows_auto;
}

/* Rows with which an expert has so many that unpacking its weights costs little beside their products. */
static double rows_full(const struct ns_sched *s)
{
    const struct ns_sched_model *m = &s->model;
    return s->has_model && m->top_k > 0 ? rows_of_expert * (double)m->n_experts / m->top_k : 0;
}

/* Moving averages of both sides of the balance; a nearly empty wave says little about either. */
static void rows_learn(struct ns_sched *s, const struct ns_wave_stats *stats)
{
    if (stats->rows == 0 || stats->compute_ns == 0)
        return;
    double disk = seconds(stats->store.disk_ns), row = seconds(stats->compute_ns) / stats->rows;
    double weight = stats->rows * 4 >= s->rows_auto ? 0.5 : 0.1;
    if (s->row_compute_s == 0)
        weight = 1;
    s->wave_disk_s += weight * (disk - s->wave_disk_s);
    s->row_compute_s += weight * (row - s->row_compute_s);
    double wish = greater(beyond_balance * s->wave_disk_s / s->row_compute_s, rows_full(s));
    double most = 2.0 * s->rows_auto;
    s->rows_auto = rows_clamp(s, wish < most ? wish : most);
    s->io_bound = stats->store.disk_ns > stats->compute_ns;
}

/* ---- one wave --------------------------------------------------------------------------------------------------------- */

void ns_account_planned(struct ns_sched *s)
{
    const struct ns_sched_plan *out = &s->wave.out;
    s->account = (struct ns_sched_account){.waves = 1,
                                           .rows = out->rows,
                                           .rows_decode = out->rows_decode,
                                           .rows_prefill = out->rows_prefill,
                                           .rows_score = out->rows_score,
                                           .rows_replay = out->rows_replay,
                                           .rows_prefix = out->rows_prefix,
                                           .rows_same = out->rows_same,
                                           .past = s->wave.past,
                                           .items = out->items,
                                           .plan_ns = s->wave.plan_ns};
}

/* An item of the wave with this many rows, had it been alone: a pass over everything, less what memory keeps. */
void ns_account_alone(struct ns_sched *s, uint32_t rows)
{
    s->wave.alone_rows += rows;
    if (!s->has_model || rows == 0)
        return;
    double bytes = ns_account_pass_bytes(&s->model, rows, 1) - (double)s->model.memory_bytes;
    s->wave.alone_bytes += greater(bytes, 0);
}

void ns_account_depth(struct ns_sched *s, uint32_t item)
{
    uint32_t depth = s->item[item].depth++;
    size_t n = (size_t)depth + 1;
    void *array = s->alive;
    /* without room the bound leaves the deepest passes out and stays a bound */
    if (ns_sched_reserve(s->budget, &array, &s->alive_capacity, n, sizeof *s->alive, NULL) != NS_OK)
        return;
    s->alive = array;
    s->n_alive = n > s->n_alive ? n : s->n_alive;
    s->alive[depth]++;
}

static void times_finish(struct ns_sched_account *a)
{
    double disk = seconds(a->disk_ns), compute = seconds(a->compute_ns), wall = seconds(a->wall_ns);
    a->overlap = wall > 0 ? greater(disk, compute) / wall : 0;
    a->bound = a->wall_ns == 0 ? NS_BOUND_NONE : disk > compute ? NS_BOUND_DISK : NS_BOUND_COMPUTE;
    a->bound_s = greater(a->bound_disk_s, a->bound_compute_s);
    a->achieved = wall > 0 ? a->bound_s / wall : 0;
}

static uint64_t bytes_read(const struct ns_sched_account *a)
{
    return a->trunk_bytes + a->head_bytes + a->embed_bytes + a->expert_bytes;
}

/* Seconds for so many bytes: the disk is as fast as was measured, or as it was seen to be. */
static double read_least(const struct ns_sched_model *m, const struct ns_sched_account *a, double bytes)
{
    double seen = a->disk_ns > 0 ? (double)bytes_read(a) / seconds(a->disk_ns) : 0;
    return m->read_rate > 0 ? bytes / greater(m->read_rate, seen) : 0;
}

static double fma_least(const struct ns_sched_model *m, const struct ns_sched_account *a)
{
    double rows = a->rows > a->rows_replay ? (double)(a->rows - a->rows_replay) : 0;
    return rows * m->fma_row + (double)a->logit_rows * m->fma_head + (double)a->past * m->fma_past;
}

void ns_sched_observe(struct ns_sched *s, const struct ns_wave_stats *stats)
{
    struct ns_sched_account *a = &s->account, *all = &s->account_all;
    const struct ns_sched_model *m = &s->model;
    a->logit_rows = stats->logit_rows;
    a->experts_requested = stats->experts_requested;
    a->experts_distinct = stats->experts_distinct;
    a->experts_kept = stats->store.experts_kept;
    a->experts_read = stats->store.experts_read;
    a->experts_uniform = s->has_model ? m->n_moe_layers * layer_uniform(m, stats->rows) : 0;
    a->trunk_bytes = stats->store.trunk_bytes;
    a->head_bytes = stats->store.head_bytes;
    a->embed_bytes = stats->store.embed_bytes;
    a->expert_bytes = stats->store.expert_bytes;
    a->trunk_kept_bytes = stats->store.trunk_kept_bytes;
    a->rows_same = s->wave.out.rows_same; /* take may have found more */
    a->alone_rows = s->wave.alone_rows;
    a->alone_bytes = (uint64_t)s->wave.alone_bytes;
    a->state_bytes = s->held;
    a->spill_read_bytes = stats->spill_read_bytes;
    a->spill_written_bytes = stats->spill_written_bytes;
    a->spill_file_bytes = stats->spill_file_bytes;
    a->disk_ns = stats->store.disk_ns;
    a->compute_ns = stats->compute_ns;
    a->product_ns = stats->product_ns;
    a->stall_ns = stats->store.stall_ns;
    a->wall_ns = stats->wall_ns;
    a->bound_disk_s = read_least(m, a, (double)bytes_read(a));
    a->bound_compute_s = m->fma_rate > 0 ? fma_least(m, a) / m->fma_rate : 0;
    times_finish(a);

#define ADD(field) all->field += a->field
    ADD(waves), ADD(rows), ADD(rows_decode), ADD(rows_prefill), ADD(rows_score), ADD(rows_replay), ADD(rows_prefix);
    ADD(rows_same), ADD(logit_rows), ADD(past), ADD(items), ADD(experts_requested), ADD(experts_distinct);
    ADD(experts_kept), ADD(experts_read), ADD(experts_uniform), ADD(trunk_bytes), ADD(head_bytes), ADD(embed_bytes);
    ADD(expert_bytes), ADD(trunk_kept_bytes), ADD(alone_rows), ADD(alone_bytes), ADD(disk_ns), ADD(compute_ns);
    ADD(product_ns), ADD(stall_ns), ADD(wall_ns), ADD(plan_ns);
    ADD(spill_read_bytes), ADD(spill_written_bytes);
#undef ADD
    all->state_bytes = a->state_bytes > all->state_bytes ? a->state_bytes : all->state_bytes;
    all->spill_file_bytes = a->spill_file_bytes > all->spill_file_bytes ? a->spill_file_bytes : all->spill_file_bytes;
    rows_learn(s, stats);
}

void ns_sched_account_wave(const struct ns_sched *s, struct ns_sched_account *out)
{
    *out = s->account;
}

/* ---- the whole job ---------------------------------------------------------------------------------------------------- */

/* Bytes of the step in which n generations get a further token: weights once, less what memory keeps. States that memory
 * cannot hold are read too; or the generations take the step in groups that it holds, and each further group reads the dense
 * weights again. */
static double step_least(const struct ns_sched_model *m, double n, double share)
{
    double ram = (double)m->memory_bytes, states = n * (double)m->state_bytes;
    double weights = greater(0, ns_account_pass_bytes(m, n, share) - ram);
    if (states <= ram)
        return weights;
    double dense = greater(0, (double)(m->trunk_bytes + m->head_bytes) - ram);
    double read = states - ram, groups = ram > 0 ? (states / ram - 1) * dense : INFINITY;
    return weights + (read < groups ? read : groups);
}

/* Bytes that have to move for all that was done. */
static double bytes_least(const struct ns_sched *s, const struct ns_sched_account *a)
{
    const struct ns_sched_model *m = &s->model;
    double share = a->experts_uniform > 0 ? (double)a->experts_distinct / a->experts_uniform : 1;
    double first = (double)(a->rows - a->rows_decode - a->rows_replay);
    double bytes = first > 0 || a->rows_decode > 0 ? ns_account_pass_bytes(m, greater(first, 1), share) : 0;
    for (size_t d = 1; d < s->n_alive; d++)
        bytes += step_least(m, s->alive[d], share);
    return bytes;
}

void ns_sched_account_all(const struct ns_sched *s, struct ns_sched_account *out)
{
    *out = s->account_all;
    const struct ns_sched_model *m = &s->model;
    out->bound_disk_s = read_least(m, out, bytes_least(s, out));
    out->bound_compute_s = m->fma_rate > 0 ? fma_least(m, out) / m->fma_rate : 0;
    times_finish(out);
}

const char *ns_sched_bound_name(enum ns_sched_bound bound)
{
    static const char *const name[] = {"none", "disk", "compute"};
    return name[bound];
}

void ns_sched_set_model(struct ns_sched *s, const struct ns_sched_model *model)
{
    s->model = *model;
    s->has_model = true;
    if (model->read_rate <= 0 || model->fma_rate <= 0 || s->account_all.waves > 0)
        return;
    double disk = ns_account_pass_bytes(model, s->options.rows_most, 1) / model->read_rate;
    double wish = beyond_balance * disk * usual_share * model->fma_rate / model->fma_row;
    s->rows_auto = rows_clamp(s, greater(wish, rows_full(s)));
}

/* Multiply-adds from the shapes; the small vectors (norms, gates, convolutions) are left out. */
struct ns_sched_model ns_sched_model_of(const struct ns_config *c, uint64_t trunk_bytes, uint64_t expert_bytes)
{
    struct ns_sched_model m = {.trunk_bytes = trunk_bytes,
                               .head_bytes = 2ull * c->vocab * c->hidden,
                               .expert_bytes = expert_bytes,
                               .n_experts = c->n_experts,
                               .top_k = c->top_k,
                               .fma_head = (double)c->vocab * c->hidden};
    double row = (double)trunk_bytes / 2; /* bf16: one multiply-add for each weight */
    double width = c->latent > 0 ? c->latent : c->hidden;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (ns_config_is_moe(c, l)) {
            m.n_moe_layers++;
            row += 3.0 * c->top_k * width * c->moe_inter;
        }
        if (c->is_kda[l]) {
            row += 3.0 * c->kda_heads * c->kda_dim * c->kda_dim; /* decay and read, correct, read out */
            m.state_bytes += 4ull * c->kda_heads * c->kda_dim * c->kda_dim;
        } else
            m.fma_past += (double)c->n_heads * (2.0 * c->kv_lora + c->d_rope); /* absorbed: score and value */
    }
    m.fma_row = row;
    return m;
}
