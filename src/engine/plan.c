/* plan.c - how the memory is divided, and what a wave moves.
 *
 * WHAT   From the shapes, the options and what the budget has left: the size of tiles and of their ring, expert slots,
 *        rows of the largest wave, room for kept sequences, and what may stay resident. The shares sum to less than the
 *        budget by construction; every large allocation is charged to its share.
 * WHY    The order is that of worth (throughput notes): first rows, up to where the disk stops being the limit, then
 *        states (a gigabyte of them saves more reading than a gigabyte of anything else), then what stays resident
 *        between waves, dense tiles before experts.
 *        The floor is what works at all: a few tiles in flight, two experts, waves of a few rows, one kept sequence.
 * INVARIANTS
 *   1. The sum of the shares is at most what was left.                          (plan_test: shares_sum_below_the_budget)
 *   2. A budget of exactly the floor works, one below is refused with it.        (plan_test: floor_is_sharp)
 *   3. More memory never gives fewer rows, states or residents.                  (plan_test: monotonic) */
#include "engine/engine_impl.h"

#include <string.h>

enum {
    ROWS_DEFAULT = 4096, /* beyond this a wave is compute-bound on nearly every machine */
    FLOOR_ROWS = 16,
    FLOOR_POSITIONS = 1024, /* of the one sequence that must fit */
    FLOOR_SLOTS = 2,
    RING_TILES = 4, /* tiles in flight at least */
    CONTEXT_DEFAULT = 131072,
    PAGE_DEFAULT = 64
};

static const size_t tile_most = (size_t)16 << 20, tile_least = (size_t)1 << 18, ring_most = (size_t)256 << 20;
static const size_t slack_least = (size_t)2 << 20, slack_most = (size_t)256 << 20;

const char *ns_share_name(enum ns_share share)
{
    static const char *const name[NS_SHARES] = {"model", "tiles", "experts", "rows", "states", "resident", "slack"};
    return name[share];
}

static size_t clamp(size_t v, size_t low, size_t high)
{
    return v < low ? low : v > high ? high : v;
}

static size_t at_most(size_t v, size_t high)
{
    return v < high ? v : high;
}

struct planner {
    const struct ns_model *shape;
    const struct ns_kernels *kernels;
    const struct ns_engine_options *options;
    struct ns_plan *plan;
    struct ns_model_bytes bytes;
    size_t left;
};

/* Memory of a wave of n rows, in the worst case of everything else. */
static size_t rows_bytes(const struct planner *p, uint32_t n)
{
    uint32_t context = p->plan->context;
    struct ns_pass pass = {.model = p->shape,
                           .kernels = p->kernels,
                           .n_rows = n,
                           .n_slots = ns_lineage_max_slots(n),
                           .n_block_rows = ns_lineage_query_rows(context),
                           .n_positions = context,
                           .n_head_rows = n};
    size_t most = ns_rows_bytes(&pass);
    /* many queries of a short context may need more scratch than few of a long one */
    pass.n_positions = (uint32_t)at_most(ns_lineage_short_context(), context);
    pass.n_block_rows = ns_lineage_query_rows(pass.n_positions);
    size_t other = ns_rows_bytes(&pass);
    return most > other ? most : other;
}

static void describe(struct planner *p)
{
    struct ns_plan *plan = p->plan;
    const struct ns_config *c = ns_model_config(p->shape);
    const struct ns_engine_options *o = p->options;
    plan->layers = ns_model_layers(p->shape);
    plan->block_positions = o->block_positions ? o->block_positions : PAGE_DEFAULT;
    plan->context = o->context;
    if (plan->context == 0)
        plan->context = c->context_advice && c->context_advice < CONTEXT_DEFAULT ? c->context_advice : CONTEXT_DEFAULT;
    ns_model_bytes_get(p->shape, &p->bytes);
    plan->trunk_bytes = p->bytes.trunk;
    plan->head_bytes = p->bytes.head;
    plan->embed_row_bytes = p->bytes.embed_row;
    plan->expert_bytes = p->bytes.expert;
    plan->n_experts = c->n_experts;
    plan->top_k = c->top_k;
    for (uint32_t i = 0; i < plan->layers; i++)
        plan->n_moe_layers += ns_config_is_moe(c, i);
    plan->expert_total_bytes = (uint64_t)plan->n_moe_layers * c->n_experts * p->bytes.expert;
    plan->seq_bytes =
        (size_t)ns_model_kda_layers(p->shape) * c->kda_heads * ns_kda_head_floats(c) * sizeof(float) + 256;
    plan->position_bytes = (size_t)ns_model_mla_layers(p->shape) * ns_mla_key_floats(c) * sizeof(float);
}

static size_t sequence_bytes(const struct ns_plan *plan, size_t n_positions)
{
    size_t pages = (n_positions + plan->block_positions - 1) / plan->block_positions;
    return plan->seq_bytes + pages * (plan->block_positions * plan->position_bytes + 256);
}

/* An expert slot as the store keeps it: whole, widened to the blocks of direct reads at both ends. */
static size_t slot_bytes(const struct planner *p)
{
    return p->bytes.expert + 6 * 8192;
}

/* Sizes of tiles, ring and slots for this much memory. */
static void choose_transport(struct planner *p, size_t memory, struct ns_store_options *s)
{
    *s = p->options->store;
    if (!s->tile_bytes)
        s->tile_bytes = clamp(memory / 128, tile_least, tile_most);
    if (s->tile_bytes < p->bytes.largest_row)
        s->tile_bytes = p->bytes.largest_row;
    size_t tile = s->tile_bytes + 8192;
    if (!s->ring_bytes)
        s->ring_bytes =
            clamp(memory / 12, RING_TILES * tile, ring_most > RING_TILES * tile ? ring_most : RING_TILES * tile);
    if (!s->expert_slots)
        s->expert_slots = (uint32_t)clamp(memory / 10 / slot_bytes(p), FLOOR_SLOTS, 32);
}

static size_t fixed_bytes(const struct planner *p, const struct ns_store_options *s)
{
    size_t tiles = (size_t)((p->bytes.trunk + p->bytes.head) / s->tile_bytes) + 64 * (size_t)p->plan->layers;
    size_t lists = tiles * 2 * sizeof(struct ns_tile);
    size_t index = (size_t)p->plan->n_moe_layers * p->plan->n_experts * 96; /* the store's table of experts */
    return ns_model_resident_bytes(p->shape) + lists + index + 65536;
}

/* What must be there beside the rows, with the smallest choices. */
static size_t floor_of(struct planner *p)
{
    struct ns_plan *plan = p->plan;
    struct ns_store_options s;
    choose_transport(p, 0, &s);
    plan->floor_rows = p->options->rows_max ? (uint32_t)at_most(p->options->rows_max, FLOOR_ROWS) : FLOOR_ROWS;
    return fixed_bytes(p, &s) + s.ring_bytes + s.expert_slots * slot_bytes(p) + rows_bytes(p, plan->floor_rows) +
           sequence_bytes(plan, at_most(plan->context, FLOOR_POSITIONS)) + slack_least;
}

static uint32_t rows_that_fit(const struct planner *p, uint32_t most, size_t memory)
{
    uint32_t low = p->plan->floor_rows, high = most;
    if (rows_bytes(p, high) <= memory)
        return high;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (rows_bytes(p, mid) <= memory)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static enum ns_code divide(struct planner *p, struct ns_error *err)
{
    struct ns_plan *plan = p->plan;
    const struct ns_engine_options *o = p->options;
    size_t one = sequence_bytes(plan, at_most(plan->context, FLOOR_POSITIONS));
    /* transport grows with memory, but never at the price of the floor's rows and sequence */
    size_t spare = p->left - (plan->floor_bytes - plan->used_bytes);
    choose_transport(p, spare, &plan->store);
    size_t *share = plan->share;
    share[NS_SHARE_MODEL] = fixed_bytes(p, &plan->store);
    share[NS_SHARE_TILES] = plan->store.ring_bytes;
    share[NS_SHARE_EXPERTS] = plan->store.expert_slots * slot_bytes(p);
    share[NS_SHARE_SLACK] = slack_least + at_most(spare / 12, slack_most);
    size_t rest = p->left;
    for (int i = 0; i < NS_SHARES; i++)
        rest -= share[i];
    size_t least = rows_bytes(p, plan->floor_rows), beside = rest - one;
    uint32_t wish = o->rows_max ? o->rows_max : ROWS_DEFAULT;
    /* rows get half of what is not the floor's, or, when a number was asked for, what they need */
    size_t for_rows = o->rows_max ? beside : least + (beside - least) / 2;
    plan->rows_max = rows_that_fit(p, wish, for_rows);
    if (o->rows_max && plan->rows_max < o->rows_max)
        return ns_error_set(err, NS_BUDGET,
                            "waves of %" PRIu32 " rows need %zu bytes of memory, %zu are left for rows: %" PRIu32
                            " fit",
                            o->rows_max, rows_bytes(p, o->rows_max), beside, plan->rows_max);
    share[NS_SHARE_ROWS] = rows_bytes(p, plan->rows_max);
    plan->row_bytes = share[NS_SHARE_ROWS] / plan->rows_max + 1;
    rest -= share[NS_SHARE_ROWS];
    uint64_t model =
        plan->trunk_bytes + plan->head_bytes + plan->expert_total_bytes + (plan->expert_total_bytes >> 8) + 65536;
    size_t resident = one < rest ? (rest - one) / 2 : 0;
    if (o->state_bytes) /* a cap: the rest stays resident */
        resident = rest - at_most(rest, o->state_bytes > one ? o->state_bytes : one);
    if (resident > model)
        resident = (size_t)model;
    if (o->store.resident_bytes && resident > o->store.resident_bytes)
        resident = o->store.resident_bytes;
    share[NS_SHARE_RESIDENT] = plan->store.resident_bytes = resident;
    share[NS_SHARE_STATES] = rest - resident;
    if (o->state_bytes)
        share[NS_SHARE_STATES] = at_most(rest - resident, o->state_bytes > one ? o->state_bytes : one);
    return NS_OK;
}

enum ns_code ns_plan_make(const struct ns_model *shape, const struct ns_kernels *kernels,
                          const struct ns_engine_options *options, const struct ns_budget *budget, struct ns_plan *out,
                          struct ns_error *err)
{
    struct planner p = {.shape = shape, .kernels = kernels, .options = options, .plan = out};
    *out = (struct ns_plan){0};
    out->budget_bytes = budget->limit_bytes;
    out->used_bytes = ns_budget_used(budget);
    p.left = ns_budget_left(budget);
    describe(&p);
    size_t floor = floor_of(&p);
    out->floor_bytes = floor + out->used_bytes;
    if (floor > p.left)
        return ns_error_set(err, NS_BUDGET,
                            "this model needs at least %zu bytes of memory (%zu of them for waves of %" PRIu32
                            " rows and one sequence), the limit is %zu",
                            out->floor_bytes, rows_bytes(&p, out->floor_rows) + sequence_bytes(out, FLOOR_POSITIONS),
                            out->floor_rows, out->budget_bytes);
    return divide(&p, err);
}

void ns_plan_forecast(const struct ns_plan *plan, const struct ns_work *work, uint32_t rows, uint32_t head_rows,
                      double distinct, double mean_context, struct ns_forecast *out)
{
    double experts = plan->n_experts;
    if (distinct <= 0) { /* independent uniform choices: E (1 - (1 - k/E)^rows) */
        double miss = 1, step = 1 - (experts > 0 ? plan->top_k / experts : 0);
        for (uint32_t n = rows; n > 0; n >>= 1, step *= step)
            if (n & 1)
                miss *= step;
        distinct = experts * (1 - miss);
    }
    uint64_t union_all = (uint64_t)(distinct * plan->n_moe_layers + 0.5);
    uint64_t expert_bytes = union_all * plan->expert_bytes, head = head_rows ? plan->head_bytes : 0;
    uint64_t resident = plan->store.resident_bytes, all = plan->trunk_bytes + head;
    *out = (struct ns_forecast){.embed_bytes = rows * plan->embed_row_bytes, .experts_distinct = union_all};
    uint64_t kept_dense = resident < all ? resident : all; /* dense tiles first */
    uint64_t kept_trunk = kept_dense < plan->trunk_bytes ? kept_dense : plan->trunk_bytes;
    out->trunk_bytes = plan->trunk_bytes - kept_trunk;
    out->head_bytes = head - (kept_dense - kept_trunk);
    uint64_t left = resident - kept_dense, total = plan->expert_total_bytes;
    double share = total ? (left < total ? (double)left / (double)total : 1) : 0;
    uint64_t kept_experts = (uint64_t)((double)expert_bytes * share);
    out->expert_bytes = expert_bytes - kept_experts;
    out->kept_bytes = kept_dense + kept_experts;
    out->multiply_adds =
        (double)rows * ((double)work->trunk + (double)work->experts + mean_context * (double)work->attend) +
        (double)head_rows * (double)work->head;
}
