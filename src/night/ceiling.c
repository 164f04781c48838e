/* ceiling.c - how the memory of a night is shared, and the least that works. run and plan both come here, so that a plan
 * says what a run does.
 *   slack   what the code itself, the C library, SQLite and the JSON reader take outside the shares
 *   desk    requests, results and the prefix tree: a sixteenth, at least 32 MiB, at most 1 GiB
 *   model   the rest: the engine divides it (engine/plan.c) */
#include "night/ceiling_impl.h"

#include "sys/sys.h"

static const size_t slack_bytes = (size_t)64 << 20;
static const size_t desk_least = (size_t)32 << 20, desk_most = (size_t)1 << 30;
static const size_t desk_part = 16;

static size_t ceiling_of(const struct ns_night_options *options)
{
    uint64_t ceiling = options->memory_bytes ? options->memory_bytes : ns_host_free_memory();
    return ceiling > SIZE_MAX / 2 ? SIZE_MAX / 2 : (size_t)ceiling;
}

static size_t desk_of(size_t ceiling)
{
    size_t desk = ceiling / desk_part;
    return desk < desk_least ? desk_least : desk > desk_most ? desk_most : desk;
}

/* The smallest ceiling that leaves model bytes beside slack and desk. */
static size_t floor_of(size_t model)
{
    size_t low = model, high = 0; /* low is too little, high is enough */
    if (!ns_size_add(model, slack_bytes + desk_most, &high))
        return SIZE_MAX;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        bool enough = middle >= slack_bytes + desk_of(middle) && middle - slack_bytes - desk_of(middle) >= model;
        if (enough)
            high = middle;
        else
            low = middle;
    }
    return high;
}

enum ns_code ns_ceiling_open(const struct ns_night_options *options, struct ns_ceiling *out, struct ns_error *err)
{
    *out = (struct ns_ceiling){0};
    size_t ceiling = ceiling_of(options);
    ns_budget_init(&out->root, "memory", ceiling);
    enum ns_code rc = ns_budget_share(&out->slack, &out->root, "slack", slack_bytes, err);
    out->has_slack = rc == NS_OK;
    if (rc == NS_OK) {
        rc = ns_budget_share(&out->desk, &out->root, "requests and plans", desk_of(ceiling), err);
        out->has_desk = rc == NS_OK;
    }
    if (rc == NS_OK) {
        rc = ns_budget_share(&out->model, &out->root, "model", ns_budget_left(&out->root), err);
        out->has_model = rc == NS_OK;
    }
    return rc;
}

void ns_ceiling_close(struct ns_ceiling *ceiling)
{
    if (ceiling->has_model)
        ns_budget_fini(&ceiling->model);
    if (ceiling->has_desk)
        ns_budget_fini(&ceiling->desk);
    if (ceiling->has_slack)
        ns_budget_fini(&ceiling->slack);
}

void ns_ceiling_engine_options(const struct ns_night_options *options, struct ns_engine_options *out)
{
    *out = (struct ns_engine_options){
        .n_threads = options->n_threads,
        .cpu = options->cpu,
        .rows_max = options->wave_rows,
        .context = options->context,
        .layers = options->layers,
    };
}

/* The engine's plan with more memory than any machine has: its floor does not depend on the ceiling. */
static enum ns_code read_floor(const struct ns_night_options *options, size_t *floor, struct ns_error *err)
{
    struct ns_engine_options engine_options;
    struct ns_budget wide;
    struct ns_plan plan;
    struct ns_work work;
    ns_ceiling_engine_options(options, &engine_options);
    ns_budget_init(&wide, "floor", SIZE_MAX / 2);
    enum ns_code rc = ns_plan_read(options->model_dir, &engine_options, &wide, &plan, &work, err);
    ns_budget_fini(&wide);
    if (rc == NS_OK)
        *floor = floor_of(plan.floor_bytes);
    return rc;
}

static enum ns_code say_floor(size_t ceiling, size_t floor, struct ns_error *err)
{
    char have[16], need[16];
    ns_size_text(ceiling, have);
    ns_size_text(floor, need);
    return ns_error_set(err, NS_BUDGET, "%s of memory (%zu bytes) are below the floor of this model, %s (%zu bytes)",
                        have, ceiling, need, floor);
}

enum ns_code ns_ceiling_refuse(const struct ns_night_options *options, struct ns_error *err)
{
    size_t ceiling = ceiling_of(options), floor = 0;
    struct ns_error why = {0};
    enum ns_code rc = read_floor(options, &floor, &why);
    if (rc != NS_OK) { /* the model itself is not sound: that is the better answer */
        if (err)
            *err = why;
        return rc;
    }
    if (ceiling < floor) {
        ns_error_clear(err);
        return say_floor(ceiling, floor, err);
    }
    return NS_BUDGET;
}

enum ns_code ns_night_plan(const struct ns_night_options *options, struct ns_night_plan *out, struct ns_error *err)
{
    struct ns_ceiling ceiling;
    struct ns_engine_options engine_options;
    *out = (struct ns_night_plan){.ceiling_bytes = ceiling_of(options), .slack_bytes = slack_bytes};
    out->desk_bytes = desk_of(out->ceiling_bytes);
    enum ns_code rc = read_floor(options, &out->floor_bytes, err);
    if (rc != NS_OK)
        return rc;
    if (out->ceiling_bytes < out->floor_bytes)
        return say_floor(out->ceiling_bytes, out->floor_bytes, err);
    ns_ceiling_engine_options(options, &engine_options);
    rc = ns_ceiling_open(options, &ceiling, err);
    if (rc == NS_OK)
        rc = ns_plan_read(options->model_dir, &engine_options, &ceiling.model, &out->engine, &out->work, err);
    ns_ceiling_close(&ceiling);
    return rc;
}
