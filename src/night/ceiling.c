/* ceiling.c - how the memory of a night is shared, and the least that works. run and plan both come here, so that a plan
 * says what a run does.
 *   ceiling what was asked for; else what the machine and every control group around us leave free, less what other runs
 *           on the same model promised themselves and have not taken yet, less a margin of a sixteenth
 *   slack   what the code itself, the C library, SQLite and the JSON reader take outside the shares: 8 MiB for themselves,
 *           and a 128th for the edges of large blocks, at most 64 MiB
 *   desk    requests, results, tokenizer and the prefix tree: a sixteenth, at least 4 MiB, at most 1 GiB; when the queue is
 *           known, no more than it needs, but an eighth of that at least, for what may still come
 *   model   the rest: the engine divides it (engine/plan.c)
 * Two runs that start on one machine would both see the same free memory and both take it. A mark on the model's
 * config.json says who runs and how much it promised; the mark dies with its process, and aliases of the folder lead to
 * the same file. */
#include "night/ceiling_impl.h"

#include "sys/sys.h"

#include <stdio.h>

static const size_t slack_least = (size_t)8 << 20, slack_most = (size_t)64 << 20, slack_part = 128;
static const size_t desk_least = (size_t)4 << 20, desk_most = (size_t)1 << 30;
static const size_t desk_part = 16, desk_still = 8;
static const uint64_t margin_least = (uint64_t)128 << 20, margin_part = 16;

static size_t slack_of(size_t ceiling)
{
    size_t slack = slack_least + ceiling / slack_part;
    return slack > slack_most ? slack_most : slack;
}

static size_t desk_of(size_t ceiling)
{
    size_t desk = ceiling / desk_part;
    return desk < desk_least ? desk_least : desk > desk_most ? desk_most : desk;
}

static void count_other(void *arg, int64_t pid, uint64_t promised_bytes)
{
    struct ns_ceiling_view *v = arg;
    uint64_t taken = ns_host_rss_of(pid);
    if (taken == 0)
        return; /* it has just ended, or lives where we cannot see it */
    v->n_others++;
    v->other_pid = pid;
    v->promised_bytes += promised_bytes > taken ? promised_bytes - taken : 0;
}

static enum ns_code mark_path(const char *model_dir, char out[4096], struct ns_error *err)
{
    return ns_path_format(out, 4096, NS_INPUT, err, "%s/config.json", model_dir);
}

/* Looks around. A model that cannot be read is found out by whoever reads it, with a better message. */
static struct ns_ceiling_view look(const struct ns_night_options *options)
{
    struct ns_ceiling_view v = {.free_bytes = ns_host_free_memory(), .is_chosen = options->memory_bytes == 0};
    char path[4096];
    if (mark_path(options->model_dir, path, NULL) == NS_OK)
        ns_code_ignore(ns_presence_each(path, count_other, &v, NULL));
    uint64_t left = v.free_bytes > v.promised_bytes ? v.free_bytes - v.promised_bytes : 0;
    v.margin_bytes = left / margin_part > margin_least ? left / margin_part : margin_least;
    v.left_bytes = left > v.margin_bytes ? left - v.margin_bytes : 0;
    uint64_t ceiling = v.is_chosen ? v.left_bytes : options->memory_bytes;
    v.ceiling_bytes = ceiling > SIZE_MAX / 2 ? SIZE_MAX / 2 : (size_t)ceiling;
    return v;
}

/* The smallest ceiling that leaves model bytes beside slack and desk. */
static size_t floor_of(size_t model)
{
    size_t low = model, high = 0; /* low is too little, high is enough */
    if (!ns_size_add(model, slack_most + desk_most, &high))
        return SIZE_MAX;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        size_t beside = slack_of(middle) + desk_of(middle);
        bool enough = middle >= beside && middle - beside >= model;
        if (enough)
            high = middle;
        else
            low = middle;
    }
    return high;
}

enum ns_code ns_ceiling_open(const struct ns_night_options *options, struct ns_ceiling *out, struct ns_error *err)
{
    *out = (struct ns_ceiling){.view = look(options)};
    size_t ceiling = out->view.ceiling_bytes;
    ns_budget_init(&out->root, "memory", ceiling);
    enum ns_code rc = ns_budget_share(&out->slack, &out->root, "slack", slack_of(ceiling), err);
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
    ns_presence_give(ceiling->mark);
}

enum ns_code ns_ceiling_mark(const struct ns_night_options *options, struct ns_ceiling *ceiling, struct ns_error *err)
{
    const struct ns_ceiling_view *v = &ceiling->view;
    char path[4096], limit[16], left[16];
    ns_size_text(v->ceiling_bytes, limit);
    ns_size_text(v->left_bytes, left);
    if (v->n_others > 0)
        ns_log(NS_LOG_WARN, "process %" PRId64 " runs this model too; %s are left beside it, planning with %s",
               v->other_pid, left, limit);
    if (v->ceiling_bytes > v->left_bytes)
        ns_log(NS_LOG_WARN, "the memory limit is %s, but only %s are free", limit, left);
    enum ns_code rc = mark_path(options->model_dir, path, err);
    return rc == NS_OK ? ns_presence_take(path, v->ceiling_bytes, &ceiling->mark, err) : rc;
}

void ns_ceiling_plan(const struct ns_ceiling *ceiling, const struct ns_plan *plan, struct ns_night_plan *out)
{
    out->ceiling_bytes = ceiling->view.ceiling_bytes;
    out->view = ceiling->view;
    out->slack_bytes = ceiling->slack.limit_bytes;
    out->desk_bytes = ceiling->desk.limit_bytes;
    if (out->floor_bytes == 0) /* else it is known, of no queue in particular */
        out->floor_bytes = floor_of(plan->floor_bytes);
    out->engine = *plan;
}

void ns_ceiling_engine_options(const struct ns_night_options *options, struct ns_engine_options *out)
{
    *out = (struct ns_engine_options){
        .n_threads = options->n_threads,
        .cpu = options->cpu,
        .rows_max = options->wave_rows,
        .context = options->context,
        .layers = options->layers,
        .spill_dir = options->spill_dir,
        .spill_bytes = options->spill_bytes,
    };
}

static uint64_t file_bytes(const char *dir, const char *name)
{
    char path[4096];
    struct ns_file *file = NULL;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path || ns_file_open(path, NS_FILE_READ, &file, NULL) != NS_OK)
        return 0;
    uint64_t bytes = ns_file_bytes(file);
    ns_code_ignore(ns_file_close(file, NULL));
    return bytes;
}

/* What the desk does not need for this queue goes to the model. */
static void clear_desk(const struct ns_night_options *options, const struct ns_appetite *a, struct ns_ceiling *ceiling)
{
    static const double table = 4; /* of a tokenizer, for each byte of its file */
    size_t desk = ceiling->desk.limit_bytes, least = desk / desk_still;
    double need = a->desk_bytes + table * (double)file_bytes(options->model_dir, "tiktoken.model");
    size_t keep = need < (double)desk ? (size_t)need : desk;
    keep = keep < least ? least : keep;
    keep = keep < desk_least ? desk_least : keep;
    bool moved = ns_budget_shift(&ceiling->desk, &ceiling->model, desk > keep ? desk - keep : 0);
    (void)moved; /* if not, it is in use */
}

/* Whether a division exists under which the wave fits that was put aside. */
static bool can_hold(const struct ns_night_options *options, struct ns_budget *model, const struct ns_suspend_size *s)
{
    struct ns_engine_options engine_options;
    struct ns_plan plan;
    struct ns_work work;
    ns_ceiling_engine_options(options, &engine_options);
    engine_options.rows_max = s->rows;
    return ns_plan_read(options->model_dir, &engine_options, model, &plan, &work, NULL) == NS_OK &&
           s->layers == plan.layers && s->block_positions == plan.block_positions &&
           s->position_bytes == plan.position_bytes;
}

enum ns_code ns_ceiling_size(const struct ns_night_options *options, struct ns_ceiling *ceiling,
                             struct ns_night_division *division, struct ns_engine_options *out, struct ns_error *err)
{
    struct ns_night_division known = *division;
    struct ns_appetite appetite;
    struct ns_plan plan;
    struct ns_work work;
    ns_ceiling_engine_options(options, out);
    *division = (struct ns_night_division){.longest_body = UINT64_MAX, .longest_new = UINT64_MAX};
    if (!options->db_path)
        return NS_OK;
    struct ns_suspend_size aside;
    bool holds = ns_night_aside(options->db_path, &ceiling->desk, &aside);
    if (options->keep) /* who knows what will come */
        appetite = (struct ns_appetite){0};
    else if (ns_appetite_read(options->db_path, &ceiling->desk, &appetite, NULL) != NS_OK)
        return NS_OK; /* whoever opens the queue in earnest says why */
    if (!options->keep) {
        if (appetite.longest_body < known.longest_body)
            appetite.longest_body = known.longest_body;
        if (appetite.longest_new < known.longest_new)
            appetite.longest_new = known.longest_new;
        *division = (struct ns_night_division){appetite.longest_body, appetite.longest_new, false};
        clear_desk(options, &appetite, ceiling);
    }
    holds = holds && can_hold(options, &ceiling->model, &aside);
    if (holds)
        appetite.aside = aside;
    else if (options->keep)
        return NS_OK;
    if (holds && out->rows_max > 0 && out->rows_max < aside.rows)
        out->rows_max = aside.rows; /* later waves are no larger than was asked for all the same */
    enum ns_code rc = ns_plan_read(options->model_dir, out, &ceiling->model, &plan, &work, err);
    if (rc == NS_OK)
        ns_size_memory(&plan, &work, &appetite, options, out);
    return rc;
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

static enum ns_code say_floor(const struct ns_ceiling_view *v, size_t floor, struct ns_error *err)
{
    char have[16], need[16], promised[16], other[80] = "";
    ns_size_text(v->ceiling_bytes, have);
    ns_size_text(floor, need);
    ns_size_text(v->promised_bytes, promised);
    if (v->is_chosen && v->n_others > 0)
        snprintf(other, sizeof other, "; process %" PRId64 " runs this model too and may take %s", v->other_pid,
                 promised);
    return ns_error_set(err, NS_BUDGET, "%s of memory (%zu bytes) are below the floor of this model, %s (%zu bytes)%s",
                        have, v->ceiling_bytes, need, floor, other);
}

enum ns_code ns_ceiling_refuse(const struct ns_night_options *options, struct ns_error *err)
{
    struct ns_ceiling_view view = look(options);
    size_t floor = 0;
    struct ns_error why = {0};
    enum ns_code rc = read_floor(options, &floor, &why);
    if (rc != NS_OK) { /* the model itself is not sound: that is the better answer */
        if (err)
            *err = why;
        return rc;
    }
    if (view.ceiling_bytes < floor) {
        ns_error_clear(err);
        return say_floor(&view, floor, err);
    }
    return NS_BUDGET;
}

enum ns_code ns_night_plan(const struct ns_night_options *options, struct ns_night_plan *out, struct ns_error *err)
{
    struct ns_ceiling ceiling;
    struct ns_engine_options engine_options;
    struct ns_night_division division = {0};
    struct ns_plan plan;
    *out = (struct ns_night_plan){0};
    enum ns_code rc = read_floor(options, &out->floor_bytes, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_ceiling_open(options, &ceiling, NULL);
    out->ceiling_bytes = ceiling.view.ceiling_bytes;
    if (out->ceiling_bytes < out->floor_bytes)
        rc = say_floor(&ceiling.view, out->floor_bytes, err);
    if (rc == NS_OK)
        rc = ns_ceiling_size(options, &ceiling, &division, &engine_options, err);
    if (rc == NS_OK)
        rc = ns_plan_read(options->model_dir, &engine_options, &ceiling.model, &plan, &out->work, err);
    if (rc == NS_OK)
        ns_ceiling_plan(&ceiling, &plan, out);
    ns_ceiling_close(&ceiling);
    return rc;
}
