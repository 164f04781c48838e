/* cmd_simulate.c - what keeping experts in memory would be worth: recorded routing replayed under four policies. With
 * --queue: what each order of the scheduler would be worth for the requests that wait (simqueue.c). */
#include "cli/commands.h"

#include "cli/simqueue.h"

#include "store/store.h"
#include "sys/sys.h"

#include <string.h>

#define LINE_MAX_BYTES ((size_t)16 << 20)
#define MEMORY_BYTES   ((size_t)1 << 30)
#define COUNT_MAX      ((int64_t)1 << 20)

struct trace_file {
    struct ns_budget *budget; /* borrowed */
    struct ns_trace trace;
    uint32_t *id; /* owned */
    char model[64];
    size_t line_no;
};

static enum ns_code header_number(const struct ns_json *header, const char *key, uint32_t *out, struct ns_error *err)
{
    int64_t v = 0;
    if (!ns_json_int(ns_json_find(header, key), &v) || v <= 0 || v > COUNT_MAX)
        return ns_error_set(err, NS_INPUT, "line 1: %s is not a number from 1 to %" PRId64, key, COUNT_MAX);
    *out = (uint32_t)v;
    return NS_OK;
}

static enum ns_code read_header(struct trace_file *f, const struct ns_json *header, struct ns_error *err)
{
    const char *s = NULL;
    size_t n = 0;
    if (!ns_json_string(ns_json_find(header, "fmt"), &s, &n) || n != 12 || memcmp(s, "moe-route-v1", 12) != 0)
        return ns_error_set(err, NS_INPUT, "line 1: fmt is not moe-route-v1");
    if (ns_json_string(ns_json_find(header, "model"), &s, &n))
        (void)snprintf(f->model, sizeof f->model, "%.*s", n < 60 ? (int)n : 60, s);
    struct ns_trace *t = &f->trace;
    enum ns_code rc = header_number(header, "n_layer", &t->n_layers, err);
    if (rc == NS_OK)
        rc = header_number(header, "n_expert", &t->n_experts, err);
    if (rc == NS_OK)
        rc = header_number(header, "top_k", &t->top_k, err);
    if (rc == NS_OK)
        rc = header_number(header, "n_token", &t->n_tokens, err);
    if (rc != NS_OK)
        return rc;
    size_t ids;
    if (!ns_size_mul(t->n_layers, t->n_tokens, &ids) || !ns_size_mul(ids, t->top_k, &ids) || ids > UINT32_MAX / 2)
        return ns_error_set(err, NS_INPUT, "line 1: a trace of this size is too long");
    f->id = ns_budget_take(f->budget, ids * sizeof *f->id, err);
    return f->id ? NS_OK : NS_BUDGET;
}

static enum ns_code read_token(struct trace_file *f, const struct ns_json *token, uint32_t index, struct ns_error *err)
{
    const struct ns_trace *t = &f->trace;
    const struct ns_json *layers = ns_json_find(token, "e");
    if (ns_json_type(layers) != NS_JSON_ARRAY || ns_json_count(layers) != t->n_layers)
        return ns_error_set(err, NS_INPUT, "line %zu: e has %zu lists, the header says %" PRIu32 " layers", f->line_no,
                            ns_json_count(layers), t->n_layers);
    uint32_t *id = f->id + (size_t)index * t->n_layers * t->top_k;
    for (uint32_t layer = 0; layer < t->n_layers; layer++) {
        const struct ns_json *list = ns_json_item(layers, layer);
        if (ns_json_type(list) != NS_JSON_ARRAY || ns_json_count(list) != t->top_k)
            return ns_error_set(err, NS_INPUT, "line %zu: list %" PRIu32 " has %zu ids, the header says %" PRIu32,
                                f->line_no, layer, ns_json_count(list), t->top_k);
        for (uint32_t k = 0; k < t->top_k; k++) {
            int64_t v = -1;
            if (!ns_json_int(ns_json_item(list, k), &v) || v < 0 || v >= t->n_experts)
                return ns_error_set(err, NS_INPUT, "line %zu: list %" PRIu32 ": id %" PRId64 " of %" PRIu32 " experts",
                                    f->line_no, layer, v, t->n_experts);
            *id++ = (uint32_t)v;
        }
    }
    return NS_OK;
}

static enum ns_code read_lines(struct trace_file *f, struct ns_line_reader *lines, struct ns_error *err)
{
    uint32_t n_tokens = 0;
    for (;;) {
        const char *line;
        size_t n;
        bool cut;
        struct ns_json *doc = NULL;
        enum ns_code rc = ns_lines_next(lines, &line, &n, &cut, err);
        if (rc != NS_OK || !line)
            break;
        f->line_no++;
        if (cut)
            return ns_error_set(err, NS_INPUT, "line %zu is longer than %zu bytes", f->line_no, LINE_MAX_BYTES);
        rc = ns_json_parse(line, n, &doc, err);
        if (rc != NS_OK)
            return ns_error_wrap(err, rc, "line %zu", f->line_no);
        if (f->line_no == 1)
            rc = read_header(f, doc, err);
        else if (n_tokens == f->trace.n_tokens)
            rc = ns_error_set(err, NS_INPUT, "line %zu is one token more than the %" PRIu32 " of the header",
                              f->line_no, n_tokens);
        else
            rc = read_token(f, doc, n_tokens++, err);
        ns_json_free(doc);
        if (rc != NS_OK)
            return rc;
    }
    if (f->line_no == 0 || n_tokens < f->trace.n_tokens)
        return ns_error_set(err, NS_INPUT, "the trace has %" PRIu32 " tokens, its header says %" PRIu32, n_tokens,
                            f->trace.n_tokens);
    f->trace.id = f->id;
    return NS_OK;
}

static enum ns_code open_trace(const char *path, struct trace_file *f, struct ns_error *err)
{
    struct ns_line_reader *lines = NULL;
    enum ns_code rc = ns_lines_open(path, LINE_MAX_BYTES, f->budget, &lines, err);
    if (rc == NS_OK)
        rc = read_lines(f, lines, err);
    ns_lines_close(lines);
    return rc == NS_OK ? rc : ns_error_wrap(err, rc, "%s", path);
}

static const struct {
    enum ns_policy policy;
    const char *name;
} policies[] = {
    {NS_POLICY_LRU, "lru"}, {NS_POLICY_LFU, "lfu"}, {NS_POLICY_RANKED, "ranked"}, {NS_POLICY_BELADY, "belady"}};

static const unsigned percents[] = {3, 6, 12, 25, 50};

/* One line of the answer: a wave size and a share of the experts in memory, under every policy. */
static enum ns_code replay_line(struct ns_cli *cli, const struct trace_file *f, uint32_t wave, unsigned percent,
                                struct ns_answer_json *a, struct ns_table *table, struct ns_error *err)
{
    uint32_t all = f->trace.n_layers * f->trace.n_experts;
    uint32_t capacity = (uint32_t)((uint64_t)all * percent / 100);
    struct ns_replay_result r[NS_COUNT(policies)];
    for (size_t p = 0; p < NS_COUNT(policies); p++) {
        enum ns_code rc = ns_replay(&f->trace, policies[p].policy, wave, capacity, f->budget, &r[p], err);
        if (rc != NS_OK)
            return rc;
    }
    if (cli->json) {
        ns_json_open_object(&a->w);
        ns_answer_int(a, "wave_rows", wave);
        ns_answer_int(a, "kept_percent", percent);
        ns_answer_int(a, "kept", capacity);
        ns_answer_int(a, "requests", (int64_t)r[0].requests);
        for (size_t p = 0; p < NS_COUNT(policies); p++)
            ns_answer_int(a, policies[p].name, (int64_t)r[p].hits);
        ns_json_close_object(&a->w);
        return NS_OK;
    }
    ns_table_cell(table, "%" PRIu32, wave);
    ns_table_cell(table, "%u %%", percent);
    ns_table_cell(table, "%" PRIu64, r[0].requests);
    for (size_t p = 0; p < NS_COUNT(policies); p++)
        ns_table_cell(table, "%.1f %%", r[p].requests ? 100.0 * (double)r[p].hits / (double)r[p].requests : 0.0);
    return NS_OK;
}

static enum ns_code replay_all(struct ns_cli *cli, const struct trace_file *f, struct ns_error *err)
{
    uint32_t wave[] = {1, 8, 32};
    size_t n_waves = NS_COUNT(wave);
    if (ns_given(cli, NS_OPT_ROWS)) {
        uint64_t rows = cli->args.number[NS_OPT_ROWS];
        wave[0] = rows == 0 ? 1 : rows > UINT32_MAX ? UINT32_MAX : (uint32_t)rows;
        n_waves = 1;
    }
    static const char *const titles[] = {"rows", "kept", "requests", "lru", "lfu", "ranked", "belady"};
    struct ns_answer_json a = {0};
    struct ns_table table;
    ns_table_init(&table, cli, NS_COUNT(titles), 0x7F);
    if (cli->json) {
        ns_answer_begin(&a, cli);
        ns_answer_text(&a, "model", f->model);
        ns_answer_int(&a, "layers", f->trace.n_layers);
        ns_answer_int(&a, "experts", f->trace.n_experts);
        ns_answer_int(&a, "top_k", f->trace.top_k);
        ns_answer_int(&a, "tokens", f->trace.n_tokens);
        ns_json_put_key(&a.w, "replays");
        ns_json_open_array(&a.w);
    }
    for (size_t i = 0; i < NS_COUNT(titles); i++)
        ns_table_cell(&table, "%s", titles[i]);
    enum ns_code rc = NS_OK;
    for (size_t w = 0; w < n_waves && rc == NS_OK; w++)
        for (size_t p = 0; p < NS_COUNT(percents) && rc == NS_OK; p++)
            rc = replay_line(cli, f, wave[w], percents[p], &a, &table, err);
    if (rc == NS_OK && cli->json) {
        ns_json_close_array(&a.w);
        rc = ns_answer_end(&a, cli, err);
    } else if (rc == NS_OK) {
        ns_note(cli,
                "%s: %" PRIu32 " token%s, %" PRIu32 " layer%s of %" PRIu32 " expert%s, %" PRIu32
                " a token; share of the requests of a wave found in memory",
                f->model, f->trace.n_tokens, NS_PLURAL(f->trace.n_tokens), f->trace.n_layers,
                NS_PLURAL(f->trace.n_layers), f->trace.n_experts, NS_PLURAL(f->trace.n_experts), f->trace.top_k);
        rc = ns_table_say(&table, cli, err);
    } else {
        ns_text_fini(&a.text);
    }
    ns_table_fini(&table);
    return rc;
}

/* The trace in the form of the scheduler's simulation. */
static enum ns_code routing_of(const struct trace_file *f, struct ns_sim_routing *out, uint16_t **expert,
                               struct ns_error *err)
{
    const struct ns_trace *t = &f->trace;
    size_t n = (size_t)t->n_tokens * t->n_layers * t->top_k;
    if (t->n_experts > UINT16_MAX)
        return ns_error_set(err, NS_INPUT, "a trace of %" PRIu32 " experts: at most %d can be simulated", t->n_experts,
                            UINT16_MAX);
    uint16_t *copy = ns_budget_take(f->budget, n * sizeof *copy, err);
    if (!copy)
        return NS_BUDGET;
    for (size_t i = 0; i < n; i++)
        copy[i] = (uint16_t)f->id[i];
    *expert = copy;
    *out = (struct ns_sim_routing){
        .n_layers = t->n_layers, .n_experts = t->n_experts, .top_k = t->top_k, .n_tokens = t->n_tokens, .expert = copy};
    return NS_OK;
}

static enum ns_code simulate_queue(struct ns_cli *cli, const struct trace_file *f, struct ns_error *err)
{
    struct ns_sim_routing routing;
    uint16_t *expert = NULL;
    if (!f->id)
        return ns_simulate_queue(cli, NULL, "made up", err);
    enum ns_code rc = routing_of(f, &routing, &expert, err);
    if (rc == NS_OK)
        rc = ns_simulate_queue(cli, &routing, f->model[0] ? f->model : "recorded", err);
    ns_budget_give(f->budget, expert);
    return rc;
}

enum ns_code ns_cmd_simulate(struct ns_cli *cli, struct ns_error *err)
{
    static const enum ns_opt of_a_queue[] = {NS_OPT_MODEL, NS_OPT_MEMORY, NS_OPT_DISK_RATE, NS_OPT_COMPUTE_RATE};

    bool queue = ns_given(cli, NS_OPT_QUEUE), has_trace = cli->args.n_operands > 0;
    if (!has_trace && !queue) {
        ns_hint(cli, "Name a file of recorded routing, or say --queue --model DIR.");
        return ns_error_set(err, NS_USAGE, "nothing to simulate");
    }
    enum ns_code rc = NS_OK;
    if (!queue)
        rc = ns_cli_takes_none(cli, "simulate without --queue", of_a_queue, NS_COUNT(of_a_queue), err);
    if (rc != NS_OK)
        return rc;
    struct ns_budget budget;
    ns_budget_init(&budget, "simulation", MEMORY_BYTES);
    struct trace_file f = {.budget = &budget};
    rc = has_trace ? open_trace(cli->args.operand[0], &f, err) : NS_OK;
    if (rc == NS_OK)
        rc = queue ? simulate_queue(cli, &f, err) : replay_all(cli, &f, err);
    ns_budget_give(&budget, f.id);
    ns_budget_fini(&budget);
    return rc;
}
