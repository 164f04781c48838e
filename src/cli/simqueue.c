/* simqueue.c - simulate --queue: the waiting requests through the scheduler itself, on a machine that only counts.
 * Shares of memory are those of a run, rates are measured or given, every generation goes to its limit. Which experts a
 * row would choose is recorded or made up (sched/simulate.c); no weight is read. */
#include "cli/simqueue.h"

#include "cli/forecast.h"
#include "cli/pending.h"
#include "sys/sys.h"

#include <string.h>

enum { COLUMNS = 7 };

static const size_t memory_bytes = (size_t)16 << 30; /* of items and plans, at most */

struct items {
    struct ns_budget *budget;
    struct ns_sched_item *item; /* [n] owned; tokens too */
    size_t n, capacity, requests;
    uint64_t tokens_in, tokens_out;
};

static enum ns_code add_item(struct items *l, const struct ns_request *request, const struct ns_prompt *p,
                             struct ns_error *err)
{
    if (l->n == l->capacity) {
        size_t more = l->capacity > 0 ? 2 * l->capacity : 256, bytes;
        if (!ns_size_mul(more, sizeof *l->item, &bytes))
            return ns_error_set(err, NS_BUDGET, "too many requests");
        struct ns_sched_item *grown = ns_budget_take(l->budget, bytes, err);
        if (!grown)
            return NS_BUDGET;
        if (l->n > 0)
            memcpy(grown, l->item, l->n * sizeof *grown);
        ns_budget_give(l->budget, l->item);
        l->item = grown;
        l->capacity = more;
    }
    uint32_t *token = ns_budget_take(l->budget, p->n * sizeof *token, err);
    if (!token)
        return NS_BUDGET;
    memcpy(token, p->id, p->n * sizeof *token);
    bool echo = !p->is_score && p->n > 1 && ns_request_wants_prompt_logprobs(request);
    l->item[l->n++] = (struct ns_sched_item){.token = token,
                                             .n = p->n,
                                             .score_from = p->is_score ? p->score_from
                                                           : echo      ? 1
                                                                       : 0,
                                             .max_new = p->is_score ? 0 : p->max_new,
                                             .n_top = 1,
                                             .priority = 5};
    l->tokens_in += p->n;
    l->tokens_out += p->is_score ? 0 : p->max_new;
    return NS_OK;
}

static enum ns_code add_request(void *arg, const struct ns_request *request, const struct ns_encoded *encoded,
                                struct ns_error *err)
{
    struct items *l = arg;
    enum ns_code rc = NS_OK;
    l->requests++;
    for (size_t i = 0; i < encoded->n && rc == NS_OK; i++) {
        const struct ns_prompt *p = &encoded->prompt[i];
        bool echo = !p->is_score && p->n > 1 && ns_request_wants_prompt_logprobs(request);
        if (p->is_score || p->max_new > 0 || echo)
            rc = add_item(l, request, p, err);
    }
    return rc;
}

static void items_fini(struct items *l)
{
    for (size_t i = 0; i < l->n; i++) {
        void *token = NULL;
        memcpy(&token, &l->item[i].token, sizeof token);
        ns_budget_give(l->budget, token);
    }
    ns_budget_give(l->budget, l->item);
}

static enum ns_code options_of(struct ns_cli *cli, const struct ns_night_options *options, const struct ns_rates *rates,
                               const struct ns_night_plan *plan, struct ns_sim_options *out, struct ns_error *err)
{
    const struct ns_plan *p = &plan->engine;
    struct ns_config config;
    enum ns_code rc = ns_config_read(options->model_dir, &cli->budget, &config, err);
    if (rc != NS_OK)
        return rc;
    *out = (struct ns_sim_options){
        .sched = {.rows = options->wave_rows},
        .model = ns_sched_model_of(&config, p->trunk_bytes, p->expert_bytes),
        .state_bytes = p->state_most,
        .seq_bytes = p->seq_bytes,
        .seq_bytes_position = p->position_bytes,
        .room_bytes = p->share[NS_SHARE_ROWS] + p->share[NS_SHARE_STATES] + p->share[NS_SHARE_RESIDENT],
        .wave_bytes = p->wave_bytes,
        .row_bytes = p->row_bytes,
        .keep_bytes = p->resident_most,
        .rows_max = p->rows_max,
        .context = p->context,
        .vocab = config.vocab,
    };
    out->model.memory_bytes = plan->ceiling_bytes;
    out->model.read_rate = rates->disk_bytes_per_s;
    out->model.fma_rate = rates->fma_per_s * (ns_given(cli, NS_OPT_COMPUTE_RATE) ? 1 : ns_usual_share);
    ns_config_fini(&config);
    return NS_OK;
}

static uint64_t bytes_of(const struct ns_sched_account *a)
{
    return a->trunk_bytes + a->head_bytes + a->embed_bytes + a->expert_bytes;
}

static void mode_json(struct ns_answer_json *a, const char *order, const struct ns_sim_result *r)
{
    const struct ns_sched_account *s = &r->account;
    ns_json_open_object(&a->w);
    ns_answer_text(a, "order", order);
    ns_answer_int(a, "waves", (int64_t)s->waves);
    ns_answer_int(a, "rows", (int64_t)s->rows);
    ns_answer_int(a, "experts_distinct", (int64_t)s->experts_distinct);
    ns_answer_int(a, "bytes_read", (int64_t)bytes_of(s));
    ns_answer_number(a, "hours", r->hours);
    ns_answer_number(a, "achieved", s->achieved);
    ns_answer_text(a, "bound_by", ns_sched_bound_name(s->bound));
    ns_json_close_object(&a->w);
}

static void mode_cells(struct ns_table *t, const char *order, const struct ns_sim_result *r)
{
    const struct ns_sched_account *s = &r->account;
    char size[16], span[24];
    ns_size_text(bytes_of(s), size);
    ns_span_text(r->hours * 3600, span);
    ns_table_cell(t, "%s", order);
    ns_table_cell(t, "%" PRIu64, s->waves);
    ns_table_cell(t, "%" PRIu64, s->rows);
    ns_table_cell(t, "%.0f", s->waves > 0 ? (double)s->experts_distinct / (double)s->waves : 0);
    ns_table_cell(t, "%s", size);
    ns_table_cell(t, "%s", span);
    ns_table_cell(t, "%s", ns_sched_bound_name(s->bound));
}

/* In the words of run --order. */
static const char *const orders[NS_SIM_MODES] = {[NS_SIM_ONE_BY_ONE] = "single",
                                                 [NS_SIM_FILE_ORDER] = "file",
                                                 [NS_SIM_PREFIX] = "prefix",
                                                 [NS_SIM_EXPERTS] = "experts"};

static enum ns_code run_modes(struct ns_cli *cli, const struct ns_sim_options *o, const struct items *l,
                              const char *routing, struct ns_error *err)
{
    static const char *const titles[COLUMNS] = {"order", "waves", "rows", "experts a wave", "read", "time", "bound by"};
    struct ns_answer_json a;
    struct ns_table table;
    if (cli->json) {
        ns_answer_begin(&a, cli);
        ns_answer_int(&a, "requests", (int64_t)l->requests);
        ns_answer_int(&a, "sequences", (int64_t)l->n);
        ns_answer_int(&a, "tokens_in", (int64_t)l->tokens_in);
        ns_answer_int(&a, "tokens_out", (int64_t)l->tokens_out);
        ns_answer_text(&a, "routing", routing);
        ns_json_put_key(&a.w, "orders");
        ns_json_open_array(&a.w);
    }
    ns_table_init(&table, cli, COLUMNS, 0x3e);
    for (size_t i = 0; i < COLUMNS; i++)
        ns_table_cell(&table, "%s", titles[i]);
    enum ns_code rc = NS_OK;
    for (enum ns_sim_mode mode = 0; mode < NS_SIM_MODES && rc == NS_OK; mode++) {
        struct ns_sim_result r;
        rc = ns_sim_run(o, mode, l->item, l->n, l->budget, &r, err);
        if (rc == NS_OK && cli->json)
            mode_json(&a, orders[mode], &r);
        else if (rc == NS_OK)
            mode_cells(&table, orders[mode], &r);
    }
    if (rc == NS_OK && cli->json) {
        ns_json_close_array(&a.w);
        rc = ns_answer_end(&a, cli, err);
    } else if (rc == NS_OK) {
        ns_note(cli, "%zu request%s, %zu sequence%s, %" PRIu64 " token%s in and at most %" PRIu64 " out; routing %s",
                l->requests, NS_PLURAL(l->requests), l->n, NS_PLURAL(l->n), l->tokens_in, NS_PLURAL(l->tokens_in),
                l->tokens_out, routing);
        rc = ns_table_say(&table, cli, err);
    } else if (cli->json) {
        ns_text_fini(&a.text);
    }
    ns_table_fini(&table);
    return rc;
}

enum ns_code ns_simulate_queue(struct ns_cli *cli, const struct ns_sim_routing *routing, const char *name,
                               struct ns_error *err)
{
    struct ns_night_options options;
    struct ns_night_plan plan;
    struct ns_rates rates;
    struct ns_sim_options sim = {0};
    struct ns_queue *queue = NULL;
    struct ns_budget budget;
    struct items items = {.budget = &budget};
    enum ns_code rc =
        ns_cli_read_night(cli, "simulate --queue wants --model DIR, for its shapes and its tokenizer", &options, err);
    if (rc == NS_OK)
        rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc == NS_OK)
        rc = ns_rates_read(cli, true, &options, &rates, err);
    if (rc == NS_OK)
        rc = ns_night_plan(&options, &plan, err);
    if (rc == NS_OK)
        rc = options_of(cli, &options, &rates, &plan, &sim, err);
    ns_budget_init(&budget, "simulation", memory_bytes);
    if (rc == NS_OK)
        rc = ns_pending_each(cli, options.model_dir, sim.context, queue, add_request, &items, err);
    ns_queue_close(queue);
    sim.routing = routing;
    if (rc == NS_OK && items.n == 0)
        ns_note(cli, "nothing waits in the queue");
    if (rc == NS_OK)
        rc = run_modes(cli, &sim, &items, name, err);
    items_fini(&items);
    ns_budget_fini(&budget);
    return rc;
}
