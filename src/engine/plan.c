/* plan.c - how the memory is divided, and what a wave moves.
 *
 * WHAT   From the shapes, the options and what the budget has left: the size of tiles and of their ring, expert slots,
 *        rows of the largest wave, room for kept sequences, and what may stay resident. The shares sum to less than the
 *        budget by construction; every large allocation is charged to its share.
 * WHY    The ring is what the disk has to do while the cores work from the end of a layer's experts to the next router:
 *        dense tiles of a layer or two. Experts are used several at a time when their rows are many. Where waves are
 *        small and states many, few of both will do (night/sizing.c).
 *        The order is that of worth (throughput notes): first rows, up to where the disk stops being the limit, then
 *        states (a gigabyte of them saves more reading than a gigabyte of anything else), then what stays resident
 *        between waves, dense tiles before experts.
 *        The floor is what works at all: a few tiles in flight, two experts, waves of a few rows, one kept sequence.
 * INVARIANTS
 *   1. The sum of the shares is at most what was left.                          (plan_test: shares_sum_below_the_budget)
 *   2. A budget of exactly the floor works, one below is refused with it.        (plan_test: floor_is_sharp)
 *   3. More memory never gives fewer rows, states or residents.                  (plan_test: monotonic)
 *   4. A full store holds what the plan says.                                    (pool_test: the_plan_is_kept) */
#include "engine/engine_impl.h"

#include <string.h>

enum {
    ROWS_DEFAULT = 4096, /* beyond this a wave is compute-bound on nearly every machine */
    FLOOR_ROWS = 16,
    FLOOR_POSITIONS = 1024, /* of the one sequence that must fit */
    FLOOR_SLOTS = 2,
    RING_TILES = 4, /* tiles in flight at least */
    SLOTS_MOST = 32,
    CONTEXT_DEFAULT = 131072,
    PAGE_DEFAULT = 32
};

static const size_t tile_most = (size_t)16 << 20, tile_least = (size_t)1 << 18, ring_most = (size_t)256 << 20;
static const size_t large_page = (size_t)2 << 20;
static const size_t slack_least = (size_t)2 << 20, slack_most = (size_t)256 << 20;
static const size_t slack_row = 1536; /* tables of a wave, for each row */

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
    const struct ns_store_need *need;
    struct ns_plan *plan;
    struct ns_model_bytes bytes;
    size_t left;
};

/* Memory of a wave of n rows, in the worst case of everything else. */
static size_t rows_bytes(const struct planner *p, uint32_t n)
{
    return ns_rows_most(p->shape, p->kernels, n, p->plan->context);
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

/* Sizes of tiles, ring and slots for this much memory. */
static void choose_transport(struct planner *p, size_t memory, struct ns_store_options *s)
{
    *s = p->options->store;
    if (!s->tile_bytes)
        s->tile_bytes = clamp(memory / 384, tile_least, tile_most);
    if (!p->options->store.tile_bytes && s->tile_bytes > large_page) /* so that large pages hold all of it */
        s->tile_bytes -= s->tile_bytes % large_page;
    if (s->tile_bytes < p->bytes.largest_row)
        s->tile_bytes = p->bytes.largest_row;
    size_t tile = s->tile_bytes + 8192;
    if (!s->ring_bytes)
        s->ring_bytes =
            clamp(memory / 16, RING_TILES * tile, ring_most > RING_TILES * tile ? ring_most : RING_TILES * tile);
    if (!s->expert_slots)
        s->expert_slots = (uint32_t)clamp(memory / 10 / (p->need->slot_bytes + 1), FLOOR_SLOTS, SLOTS_MOST);
}

static size_t fixed_bytes(const struct planner *p, const struct ns_store_options *s)
{
    size_t tiles = (size_t)((p->bytes.trunk + p->bytes.head) / s->tile_bytes) + 64 * (size_t)p->plan->layers;
    size_t lists = tiles * (2 * sizeof(struct ns_tile) + 200); /* and the store's table of those that stay */
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
    return fixed_bytes(p, &s) + s.ring_bytes + s.expert_slots * p->need->slot_bytes + rows_bytes(p, plan->floor_rows) +
           sequence_bytes(plan, at_most(plan->context, FLOOR_POSITIONS)) + slack_least;
}

/* With their tables, which are slack. */
static size_t rows_cost(const struct planner *p, uint32_t n)
{
    return rows_bytes(p, n) + (n > p->plan->floor_rows ? (n - p->plan->floor_rows) * slack_row : 0);
}

static uint32_t rows_that_fit(const struct planner *p, uint32_t most, size_t memory)
{
    uint32_t low = p->plan->floor_rows, high = most;
    if (rows_cost(p, high) <= memory)
        return high;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (rows_cost(p, mid) <= memory)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* The whole model as it lies in memory: what is read is whole pages. */
static size_t resident_most(const struct planner *p)
{
    const struct ns_plan *plan = p->plan;
    uint64_t experts = (uint64_t)plan->n_moe_layers * plan->n_experts;
    uint64_t all = plan->trunk_bytes + plan->head_bytes + 2 * (uint64_t)p->bytes.n_tiles * 4 * 4096 +
                   experts * p->need->slot_bytes;
    return all < SIZE_MAX ? (size_t)all : SIZE_MAX;
}

/* What a wave takes, as a sum and as a line for those who plan with it. */
static void describe_rows(struct planner *p)
{
    struct ns_plan *plan = p->plan;
    uint32_t few = plan->floor_rows, many = plan->rows_max;
    uint32_t context = (uint32_t)at_most(plan->context, ns_lineage_short_context());
    size_t low = ns_rows_most(p->shape, p->kernels, few, context);
    plan->row_bytes =
        many > few ? (ns_rows_most(p->shape, p->kernels, many, context) - low) / (many - few) + 1 : low / few + 1;
    plan->row_table_bytes = slack_row;
    plan->wave_bytes = low > few * plan->row_bytes ? low - few * plan->row_bytes : 0;
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
    share[NS_SHARE_EXPERTS] = plan->store.expert_slots * p->need->slot_bytes;
    share[NS_SHARE_SLACK] = slack_least + at_most(spare / 512, slack_most);
    size_t rest = p->left;
    for (int i = 0; i < NS_SHARES; i++)
        rest -= share[i];
    size_t least = rows_bytes(p, plan->floor_rows), beside = rest - one;
    uint32_t wish = o->rows_max ? o->rows_max : ROWS_DEFAULT;
    /* rows get half of what is not the floor's, or, when a number was asked for, what they need */
    size_t for_rows = o->rows_max ? beside : least + (beside - least) / 2;
    plan->rows_max = rows_that_fit(p, wish, for_rows);
    plan->rows_most = rows_that_fit(p, ROWS_DEFAULT, beside);
    if (o->rows_max && plan->rows_max < o->rows_max)
        return ns_error_set(err, NS_BUDGET,
                            "waves of %" PRIu32 " rows need %zu bytes of memory, %zu are left for rows: %" PRIu32
                            " fit",
                            o->rows_max, rows_cost(p, o->rows_max), beside, plan->rows_max);
    describe_rows(p);
    share[NS_SHARE_ROWS] = rows_bytes(p, plan->rows_max);
    share[NS_SHARE_SLACK] += rows_cost(p, plan->rows_max) - share[NS_SHARE_ROWS];
    rest -= rows_cost(p, plan->rows_max);
    /* states have the first claim, but take from what stays only when there are any: pool.c */
    plan->resident_most = resident_most(p);
    if (o->store.resident_bytes)
        plan->resident_most = at_most(plan->resident_most, o->store.resident_bytes);
    size_t resident = at_most(one < rest ? rest - one : 0, plan->resident_most);
    share[NS_SHARE_RESIDENT] = plan->store.resident_bytes = resident;
    share[NS_SHARE_STATES] = rest - resident;
    plan->state_most = SIZE_MAX;
    if (o->state_bytes) {
        share[NS_SHARE_STATES] = at_most(rest - resident, o->state_bytes > one ? o->state_bytes : one);
        plan->state_most = o->state_bytes > share[NS_SHARE_STATES] ? o->state_bytes : share[NS_SHARE_STATES];
    }
    return NS_OK;
}

static void plan_spill(struct planner *p)
{
    const struct ns_engine_options *o = p->options;
    struct ns_plan *plan = p->plan;
    if (!o->spill_dir || ns_model_kda_layers(p->shape) == 0)
        return;
    struct ns_spill_sizes s;
    ns_spill_measure(p->shape, o->spill_log, &s);
    plan->spill_bytes = ns_spill_limit(o->spill_dir, o->spill_bytes, &plan->spill_free_bytes);
    plan->spill_file_bytes = s.file_bytes;
    /* each has at least one page in memory, and a window through which it passes */
    uint64_t beside = s.slice_bytes + 8192 + plan->block_positions * plan->position_bytes;
    uint64_t windows = (plan->share[NS_SHARE_STATES] + plan->share[NS_SHARE_RESIDENT]) / beside;
    uint64_t files = plan->spill_bytes / s.file_bytes, most = files < windows ? files : windows;
    plan->spilled_most = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

enum ns_code ns_plan_make(const struct ns_model *shape, const struct ns_kernels *kernels,
                          const struct ns_engine_options *options, const struct ns_store_need *need,
                          const struct ns_budget *budget, struct ns_plan *out, struct ns_error *err)
{
    struct planner p = {.shape = shape, .kernels = kernels, .options = options, .need = need, .plan = out};
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
    enum ns_code rc = divide(&p, err);
    if (rc == NS_OK)
        plan_spill(&p);
    return rc;
}

/* What stays when states take more than their share: it comes from experts, then from the head, then from the trunk. */
static struct ns_keep keep_beside(const struct ns_plan *plan, uint64_t state_bytes)
{
    struct ns_keep k = plan->keep;
    uint64_t share = plan->share[NS_SHARE_STATES], room = plan->share[NS_SHARE_RESIDENT];
    if (state_bytes <= share)
        return k;
    room -= state_bytes - share < room ? state_bytes - share : room;
    k.trunk_bytes = k.trunk_bytes < room ? k.trunk_bytes : room;
    room -= k.trunk_bytes;
    k.head_bytes = k.head_bytes < room ? k.head_bytes : room;
    room -= k.head_bytes;
    uint64_t places = plan->expert_bytes ? room / plan->expert_bytes : 0;
    k.experts = k.experts < places ? k.experts : (uint32_t)places;
    return k;
}

/* Experts that rows choose when each row's top_k of n_experts are independent and uniform: E (1 - (1 - k/E)^rows). */
static double uniform_union(double n_experts, double top_k, uint32_t rows)
{
    double miss = 1, step = 1 - (n_experts > 0 ? top_k / n_experts : 0);
    for (uint32_t n = rows; n > 0; n >>= 1, step *= step)
        if (n & 1)
            miss *= step;
    return n_experts * (1 - miss);
}

void ns_plan_forecast(const struct ns_plan *plan, const struct ns_work *work, const struct ns_load_shape *load,
                      struct ns_forecast *out)
{
    double distinct = load->distinct > 0 ? load->distinct : uniform_union(plan->n_experts, plan->top_k, load->rows);
    struct ns_keep keep = keep_beside(plan, load->state_bytes);
    uint64_t union_all = (uint64_t)(distinct * plan->n_moe_layers + 0.5);
    uint64_t all = (uint64_t)plan->n_moe_layers * plan->n_experts;
    /* of what is asked for the kept ones are at least their part of all */
    uint64_t kept_experts = all ? (uint64_t)((double)union_all * keep.experts / (double)all) : 0;
    if (load->head_rows == 0)
        keep.head_bytes = 0;
    *out = (struct ns_forecast){.embed_bytes = load->rows * plan->embed_row_bytes, .experts_distinct = union_all};
    out->trunk_bytes = plan->trunk_bytes - keep.trunk_bytes;
    out->head_bytes = load->head_rows ? plan->head_bytes - keep.head_bytes : 0;
    out->expert_bytes = (union_all - kept_experts) * plan->expert_bytes;
    out->kept_bytes = keep.trunk_bytes + keep.head_bytes + kept_experts * plan->expert_bytes;
    out->multiply_adds =
        (double)load->rows * ((double)work->trunk + (double)work->experts + load->mean_context * (double)work->attend) +
        (double)load->head_rows * (double)work->head;
}
