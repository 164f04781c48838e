/* forecast.c - how long waves and the queue would take on this machine.
 * A wave takes at least the longer of its reads and its arithmetic, and at most both one after the other: that is the
 * range. The queue takes as many waves as its rows fill, or as its longest generation has tokens, or as the places for
 * live sequences force. Shared prefixes and experts that neighbours have in common are not counted on: both only help. */
#include "cli/forecast.h"

#include "cli/pending.h"
#include "sys/sys.h"

#include <math.h>
#include <string.h>

enum { DISK_WARM_MS = 500, DISK_MS = 1500, DISK_DEPTH = 8, BLOCK_BYTES = 4 << 20, BURSTS = 5 };

const double ns_usual_share = 0.65;

/* ---- rates ---------------------------------------------------------------------------------------------------------------- */

/* The best of a few bursts, of one thread times their number or of all: threads that wake late, and others who are at work,
 * make the machine look slower than it is, and a bound too high. */
static void measure_compute(const struct ns_night_options *options, struct ns_rates *out)
{
    unsigned threads = options->n_threads ? options->n_threads : ns_cpu_physical();
    struct ns_kernels one = ns_kernels_select(options->cpu, 1), all = ns_kernels_select(options->cpu, threads);
    double best = 0;
    for (int i = 0; i < BURSTS; i++)
        best = fmax(best, fmax(ns_kernels_peak(&one) * threads, ns_kernels_peak(&all)));
    out->fma_per_s = best * 1e9;
    out->fma_source = "measured peak of all threads";
}

static uint64_t shards_bytes(const struct ns_shards *shards)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ns_shards_files(shards); i++)
        sum += ns_shards_file_bytes(shards, i);
    return sum;
}

/* A smaller model is through before its disk is measured; its waves then have no lower bound. */
static const uint64_t measured_least = 1000000000;

static enum ns_code measure_disk(const char *dir, bool must, struct ns_rates *out, struct ns_error *err)
{
    struct ns_budget budget;
    struct ns_config config;
    struct ns_shards *shards = NULL;
    struct ns_disk_rate rate = {0};
    ns_budget_init(&budget, "measurement", (size_t)4 << 30);
    enum ns_code rc = ns_config_read(dir, &budget, &config, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_shards_open(dir, &budget, &shards, err);
    if (rc == NS_OK)
        ns_config_settle(&config, shards);
    struct ns_disk_test test = {.experts = config.n_experts > 0,
                                .block_bytes = BLOCK_BYTES,
                                .depth = DISK_DEPTH,
                                .warm_ms = DISK_WARM_MS,
                                .limit_ms = DISK_MS};
    out->is_small = rc == NS_OK && shards_bytes(shards) < measured_least;
    if (rc == NS_OK && (must || !out->is_small))
        rc = ns_disk_measure(&config, shards, &test, &budget, &rate, err);
    ns_shards_close(shards);
    ns_config_fini(&config);
    ns_budget_fini(&budget);
    out->disk_bytes_per_s = rate.ns > 0 ? (double)rate.bytes * 1e9 / (double)rate.ns : 0;
    out->disk_source = rate.direct ? "measured" : "measured through the page cache";
    return rc;
}

enum ns_code ns_rates_read(struct ns_cli *cli, bool must, struct ns_night_options *options, struct ns_rates *out,
                           struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    *out = (struct ns_rates){.disk_source = "given", .fma_source = "given"};
    if (ns_given(cli, NS_OPT_DISK_RATE))
        out->disk_bytes_per_s = (double)cli->args.number[NS_OPT_DISK_RATE];
    else
        rc = measure_disk(options->model_dir, must, out, err);
    if (rc != NS_OK)
        return rc;
    if (ns_given(cli, NS_OPT_COMPUTE_RATE))
        out->fma_per_s = (double)cli->args.number[NS_OPT_COMPUTE_RATE] * 1e9;
    else if (must || !out->is_small)
        measure_compute(options, out);
    if (rc == NS_OK && (must || !out->is_small) && (out->disk_bytes_per_s <= 0 || out->fma_per_s <= 0))
        rc = ns_error_set(err, NS_INTERNAL, "a measured rate is zero");
    if (rc == NS_OK && !out->is_small) {
        options->read_rate = out->disk_bytes_per_s;
        options->fma_rate = out->fma_per_s;
    } else if (rc == NS_OK && ns_given(cli, NS_OPT_COMPUTE_RATE)) {
        options->fma_rate = out->fma_per_s;
    }
    return rc;
}

/* ---- one wave -------------------------------------------------------------------------------------------------------------- */

struct cost {
    struct ns_forecast move;
    double disk_s, compute_s;
};

static double bytes_of(const struct ns_forecast *move)
{
    return (double)(move->trunk_bytes + move->head_bytes + move->embed_bytes + move->expert_bytes);
}

/* state_bytes: of the sequences that are kept meanwhile */
static struct cost cost_of(const struct ns_night_plan *plan, const struct ns_outlook *o, double rows,
                           double state_bytes)
{
    struct cost c;
    uint32_t n = rows < 1 ? 1 : (uint32_t)rows;
    double context =
        o->load.requests ? ((double)o->load.tokens_in + o->load.tokens_out_expected) / (double)o->load.requests / 2 : 0;
    struct ns_load_shape shape = {
        .rows = n, .head_rows = n, .mean_context = context, .state_bytes = (uint64_t)state_bytes};
    ns_plan_forecast(&plan->engine, &plan->work, &shape, &c.move);
    c.disk_s = bytes_of(&c.move) / o->rates.disk_bytes_per_s;
    c.compute_s = c.move.multiply_adds / o->rates.fma_per_s;
    return c;
}

static struct ns_range wall_of(const struct cost *c)
{
    return (struct ns_range){fmax(c->disk_s, c->compute_s), c->disk_s + c->compute_s};
}

/* ---- the queue ---------------------------------------------------------------------------------------------------------------- */

static enum ns_code add_request(void *arg, const struct ns_request *request, const struct ns_encoded *e,
                                struct ns_error *err)
{
    (void)request, (void)err;
    struct ns_load *load = arg;
    uint64_t in = 0, most = 0;
    for (size_t i = 0; i < e->n; i++) {
        const struct ns_prompt *p = &e->prompt[i];
        in += i == 0 || p->n < e->prompt_tokens ? p->n : p->n - e->prompt_tokens; /* choices share the stem */
        most += p->is_score ? 0 : p->max_new;
    }
    load->requests++;
    load->tokens_in += in;
    load->tokens_out_most += most;
    load->longest_out = most > load->longest_out ? most : load->longest_out;
    return NS_OK;
}

/* What is asked for at most, until enough requests have finished to know what is usual. */
static void expect_out(struct ns_load *load, const struct ns_queue_status *s)
{
    load->tokens_out_expected = (double)load->tokens_out_most;
    if (s->done < NS_SURE_AFTER)
        return;
    double usual = (double)s->completion_tokens / (double)s->done * (double)load->requests;
    load->finished = s->done;
    load->tokens_out_expected = fmin(usual, load->tokens_out_expected);
}

struct work_time {
    double waves, low, high;
};

static struct work_time time_of(const struct ns_night_plan *plan, const struct ns_outlook *o, double out,
                                double longest)
{
    const struct ns_plan *p = &plan->engine;
    const struct ns_load *load = &o->load;
    double rows = (double)load->tokens_in + out, mean = rows / (double)load->requests;
    double pages = ceil(mean / p->block_positions);
    double one = (double)p->seq_bytes + pages * (double)p->block_positions * (double)p->position_bytes;
    double room = (double)p->share[NS_SHARE_STATES] + (double)p->share[NS_SHARE_RESIDENT];
    room += (double)p->share[NS_SHARE_ROWS] - (double)p->wave_bytes; /* states and rows change places */
    double live = fmin(fmax(floor(room / (one + (double)p->row_bytes)), 1), (double)load->requests);
    double waves = fmax(ceil(rows / p->rows_max), fmax(ceil(out / live), longest));
    struct cost c = cost_of(plan, o, rows / waves, out > 0 ? live * one : 0);
    struct ns_range wall = wall_of(&c);
    double fill = (double)c.move.kept_bytes / o->rates.disk_bytes_per_s; /* what stays is read once */
    return (struct work_time){waves, fill + waves * wall.low, fill + waves * wall.high};
}

static void foresee_queue(const struct ns_night_plan *plan, struct ns_outlook *o)
{
    const struct ns_load *load = &o->load;
    double share = load->tokens_out_most ? load->tokens_out_expected / (double)load->tokens_out_most : 0;
    struct work_time few = time_of(plan, o, load->tokens_out_expected, ceil(share * (double)load->longest_out));
    struct work_time many = time_of(plan, o, (double)load->tokens_out_most, (double)load->longest_out);
    o->waves = (struct ns_range){few.waves, many.waves};
    o->time = (struct ns_range){few.low, many.high};
}

static void compare_past(const struct ns_night_plan *plan, const struct ns_queue_status *s, struct ns_outlook *o)
{
    o->past.waves = s->waves;
    o->past.rows = s->wave_rows;
    if (s->waves == 0)
        return;
    struct cost c = cost_of(plan, o, (double)s->wave_rows / (double)s->waves, 0);
    struct ns_range wall = wall_of(&c);
    double waves = (double)s->waves;
    o->past.bytes = (double)s->bytes_read;
    o->past.seconds = (double)s->wall_ms / 1000;
    o->past.forecast_bytes =
        waves * (double)(c.move.trunk_bytes + c.move.head_bytes + c.move.embed_bytes + c.move.expert_bytes);
    o->past.forecast_s = (struct ns_range){waves * wall.low, waves * wall.high};
}

/* Of the run before the last one too: what another model did says nothing of this one. */
static enum ns_code read_past(struct ns_queue *queue, const char *dir, const struct ns_night_plan *plan,
                              struct ns_queue_status *out, struct ns_error *err)
{
    struct ns_budget budget;
    struct ns_config config;
    struct ns_shards *shards = NULL;
    char model[NS_SHA256_HEX], tokenizer[NS_SHA256_HEX], contract[NS_NIGHT_CONTRACT_SIZE];
    ns_budget_init(&budget, "fingerprint", (size_t)4 << 30);
    enum ns_code rc = ns_config_read(dir, &budget, &config, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_shards_open(dir, &budget, &shards, err);
    if (rc == NS_OK)
        rc = ns_fingerprint(dir, shards, &budget, model, tokenizer, err);
    ns_night_contract(plan->engine.layers, config.n_layers, contract);
    ns_shards_close(shards);
    ns_config_fini(&config);
    ns_budget_fini(&budget);
    return rc == NS_OK ? ns_queue_read_past(queue, model, contract, out, err) : rc;
}

static enum ns_code read_queue(struct ns_cli *cli, const char *dir, const struct ns_night_plan *plan,
                               struct ns_outlook *out, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    struct ns_queue_status status, past = {0};
    if (!ns_given(cli, NS_OPT_DB) && !ns_path_exists(cli->db_path))
        return NS_OK; /* no queue yet: the waves are all there is to say */
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc == NS_OK)
        rc = ns_queue_status_read(queue, 0, &status, err);
    if (rc == NS_OK)
        rc = ns_pending_each(cli, dir, plan->engine.context, queue, add_request, &out->load, err);
    if (rc == NS_OK && status.waves > 0)
        rc = read_past(queue, dir, plan, &past, err);
    ns_queue_close(queue);
    if (rc != NS_OK)
        return rc;
    expect_out(&out->load, &status);
    if (out->load.requests > 0)
        foresee_queue(plan, out);
    out->past.is_foreign = status.waves > 0 && past.waves == 0;
    compare_past(plan, &past, out);
    return NS_OK;
}

enum ns_code ns_outlook_read(struct ns_cli *cli, const struct ns_night_options *options,
                             const struct ns_night_plan *plan, struct ns_outlook *out, struct ns_error *err)
{
    if (!ns_given(cli, NS_OPT_COMPUTE_RATE)) {
        out->rates.fma_per_s *= ns_usual_share;
        out->rates.fma_source = "0.65 of the measured peak of all threads";
    }
    enum ns_code rc = read_queue(cli, options->model_dir, plan, out, err);
    if (rc != NS_OK)
        return rc;
    struct cost c = cost_of(plan, out, plan->engine.rows_max, 0);
    out->wave.rows = plan->engine.rows_max;
    out->wave.move = c.move;
    out->wave.disk_s = c.disk_s;
    out->wave.compute_s = c.compute_s;
    out->wave.wall = wall_of(&c);
    return NS_OK;
}
