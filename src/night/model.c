/* model.c - opens what a night needs: the engine, the tokenizer, the stop ids. */
#include "night/ceiling_impl.h"
#include "night/night_impl.h"

#include "sys/sys.h"

#include <stdio.h>

struct opened {
    struct ns_ceiling ceiling;
    struct ns_engine *engine;
    struct ns_tokenizer *tokenizer;
    struct ns_job_model job;
};

static void close_all(struct opened *o)
{
    ns_tokenizer_close(o->tokenizer);
    ns_engine_close(o->engine);
    ns_ceiling_close(&o->ceiling);
}

void ns_night_contract(uint32_t layers, uint32_t of, char out[NS_NIGHT_CONTRACT_SIZE])
{
    if (layers < of)
        (void)snprintf(out, NS_NIGHT_CONTRACT_SIZE, NS_CONTRACT ", %" PRIu32 " layers", layers);
    else
        (void)snprintf(out, NS_NIGHT_CONTRACT_SIZE, NS_CONTRACT);
}

static enum ns_code read_job_model(const struct ns_night_options *options, struct opened *o, struct ns_error *err)
{
    char path[4096];
    char *text = NULL;
    size_t text_n = 0;
    enum ns_code rc = ns_path_format(path, sizeof path, NS_INPUT, err, "%s/generation_config.json", options->model_dir);
    if (rc == NS_OK && ns_path_exists(path))
        rc = ns_file_slurp(path, (size_t)1 << 20, &o->ceiling.desk, &text, &text_n, err);
    const struct ns_config *config = ns_engine_config(o->engine);
    uint32_t layers = ns_engine_plan(o->engine)->layers;
    char contract[NS_NIGHT_CONTRACT_SIZE];
    ns_night_contract(layers, config->n_layers, contract);
    if (rc == NS_OK)
        rc = ns_job_model_init(&o->job, o->tokenizer, ns_engine_fingerprint(o->engine), contract, config->vocab,
                               ns_engine_context(o->engine), config->eos, text, text_n, err);
    ns_budget_give(&o->ceiling.desk, text);
    return rc;
}

static enum ns_code open_all(const struct ns_night_options *options, struct ns_night_division *division,
                             struct opened *o, struct ns_error *err)
{
    enum ns_code rc = ns_ceiling_open(options, &o->ceiling, err);
    if (rc == NS_OK)
        rc = ns_ceiling_mark(options, &o->ceiling, err);
    struct ns_engine_options engine_options;
    if (rc == NS_OK)
        rc = ns_ceiling_size(options, &o->ceiling, division, &engine_options, err);
    if (rc == NS_OK)
        rc = ns_engine_open(options->model_dir, &engine_options, &o->ceiling.model, &o->engine, err);
    if (rc == NS_BUDGET)
        return ns_ceiling_refuse(options, err);
    if (rc == NS_OK)
        rc = ns_tokenizer_open(options->model_dir, ns_engine_config(o->engine)->vocab, &o->ceiling.desk, &o->tokenizer,
                               err);
    return rc == NS_OK ? read_job_model(options, o, err) : rc;
}

/* With one division of memory. */
static enum ns_code run_divided(const struct ns_night_options *options, struct ns_night_division *division,
                                struct ns_night_report *report, struct ns_error *err)
{
    struct opened o = {0};
    enum ns_code rc = open_all(options, division, &o, err);
    if (rc == NS_OK) {
        struct ns_store *store = ns_engine_store(o.engine);
        struct ns_night_plan plan = {0};
        ns_ceiling_plan(&o.ceiling, ns_engine_plan(o.engine), &plan);
        if (options->planned)
            options->planned(options->progress_arg, &plan);
        struct ns_night_model model = {
            .machine = ns_machine_of_engine(o.engine),
            .job = &o.job,
            .dir = options->model_dir,
            .tokenizer_fingerprint = ns_engine_tokenizer_fingerprint(o.engine),
            .numbers = ns_sched_model_of(ns_engine_config(o.engine), ns_store_trunk_bytes(store),
                                         ns_store_expert_bytes(store)),
            .engine = o.engine,
            .division = division,
        };
        model.numbers.memory_bytes = o.ceiling.root.limit_bytes;
        model.numbers.read_rate = options->read_rate;
        model.numbers.fma_rate = options->fma_rate;
        rc = ns_night_run_part(options, &model, &o.ceiling.desk, report, err);
    }
    close_all(&o);
    return rc;
}

enum ns_code ns_night_run(const struct ns_night_options *options, struct ns_night_report *report, struct ns_error *err)
{
    *report = (struct ns_night_report){0};
    struct ns_night_division division = {0};
    enum ns_code rc;
    do /* each time for a longer request than before */
        rc = run_divided(options, &division, report, err);
    while (rc == NS_OK && division.anew && !report->stopped);
    return rc;
}
