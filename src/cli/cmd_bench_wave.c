/* cmd_bench_wave.c - bench wave: what a whole wave of scoring rows reaches of this processor's peak.
 * The wave is made of items like a multiple-choice test: a question, and four continuations that share it. Its tokens are
 * arbitrary, since the figures do not depend on what they say. The first wave brings the weights into memory and is not
 * counted. The peak is measured after every layer, so a clock or a neighbour that changes cancels out. */
#include "cli/commands.h"

#include "engine/engine.h"
#include "sys/sys.h"

#include <stdlib.h>

enum { QUESTION = 96, CHOICES = 4, CHOICE = 8, ITEM = QUESTION + CHOICES * CHOICE, ROWS = 1024, WAVES = 3 };

struct wave_bench {
    struct ns_engine *engine;
    uint32_t n_items;
    uint32_t *token; /* [n_items][ITEM] */
    struct ns_segment *segment;
    struct ns_ask *ask;
    struct ns_wave_desc desc;
    double attended; /* earlier positions, summed over rows */
};

/* of one wave */
struct wave_figures {
    struct ns_wave_stats stats;
    double multiply_adds, peak_adds; /* done; what the peak would have done in the computing time */
};

static void describe_item(struct wave_bench *b, uint32_t item)
{
    uint32_t *token = b->token + (size_t)item * ITEM, first = item * (1 + CHOICES);
    b->segment[first] = (struct ns_segment){.token = token, .n = QUESTION, .parent = NS_NO_PARENT};
    for (uint32_t c = 0; c < CHOICES; c++) {
        const uint32_t *own = token + QUESTION + (size_t)c * CHOICE;
        b->segment[first + 1 + c] = (struct ns_segment){.token = own, .n = CHOICE, .parent = first};
        for (uint32_t t = 0; t < CHOICE; t++) /* token t is predicted by the row before it */
            b->ask[((size_t)item * CHOICES + c) * CHOICE + t] =
                t == 0 ? (struct ns_ask){.segment = first, .offset = QUESTION - 1, .target = own[0], .n_top = 1}
                       : (struct ns_ask){.segment = first + 1 + c, .offset = t - 1, .target = own[t], .n_top = 1};
    }
    for (uint32_t t = 0; t < QUESTION; t++)
        b->attended += t + 1;
    for (uint32_t t = 0; t < CHOICE; t++)
        b->attended += CHOICES * (QUESTION + t + 1);
}

static enum ns_code describe(struct wave_bench *b, struct ns_budget *budget, struct ns_error *err)
{
    size_t n_tokens = (size_t)b->n_items * ITEM, n_asks = (size_t)b->n_items * CHOICES * CHOICE;
    uint32_t vocab = ns_engine_config(b->engine)->vocab, state = 1;
    b->token = ns_budget_take(budget, n_tokens * sizeof *b->token, err);
    b->segment = ns_budget_take(budget, (size_t)b->n_items * (1 + CHOICES) * sizeof *b->segment, err);
    b->ask = ns_budget_take(budget, n_asks * sizeof *b->ask, err);
    if (!b->token || !b->segment || !b->ask)
        return NS_BUDGET;
    for (size_t i = 0; i < n_tokens; i++) {
        state = state * 1664525u + 1013904223u;
        b->token[i] = (uint32_t)(((uint64_t)state * vocab) >> 32);
    }
    for (uint32_t i = 0; i < b->n_items; i++)
        describe_item(b, i);
    b->desc = (struct ns_wave_desc){
        .segment = b->segment, .n_segments = (size_t)b->n_items * (1 + CHOICES), .ask = b->ask, .n_asks = n_asks};
    return NS_OK;
}

static enum ns_code run_wave(const struct wave_bench *b, struct wave_figures *out, struct ns_error *err)
{
    struct ns_wave *wave = NULL;
    struct ns_wave_stats *s = &out->stats;
    enum ns_code rc = ns_wave_open(b->engine, &b->desc, NULL, &wave, err);
    double peak = ns_kernels_peak(ns_engine_kernels(b->engine));
    out->peak_adds = 0;
    for (bool done = false; rc == NS_OK && !done && ns_signal_count() == 0;) {
        uint64_t before = s->compute_ns;
        rc = ns_wave_step(wave, &done, err);
        ns_wave_stats_get(wave, s);
        double after = ns_kernels_peak(ns_engine_kernels(b->engine));
        out->peak_adds += (double)(s->compute_ns - before) * (peak + after) / 2;
        peak = after;
    }
    for (size_t i = 0; rc == NS_OK && i < b->desc.n_segments && ns_signal_count() == 0; i++)
        if (ns_wave_fault(wave, i))
            rc = ns_error_set(err, NS_ENGINE, "%s", ns_wave_fault(wave, i)->message);
    ns_wave_close(wave);
    struct ns_work work;
    ns_engine_work(b->engine, &work);
    out->multiply_adds = (double)s->rows * ((double)work.trunk + (double)work.experts) +
                         b->attended * (double)work.attend + (double)s->logit_rows * (double)work.head;
    return rc;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static int by_share(const void *a, const void *b)
{
    const struct wave_figures *x = a, *y = b;
    double dx = share(x->multiply_adds, x->peak_adds), dy = share(y->multiply_adds, y->peak_adds);
    return (dx > dy) - (dx < dy);
}

static enum ns_code say_wave(struct ns_cli *cli, const struct wave_bench *b, const struct wave_figures *f,
                             struct ns_error *err)
{
    const struct ns_wave_stats *s = &f->stats;
    const struct ns_kernels *k = ns_engine_kernels(b->engine);
    double compute = (double)s->compute_ns, of_products = share((double)s->product_ns, compute);
    double of_peak = share(f->multiply_adds, f->peak_adds);
    if (!cli->json) {
        ns_say(cli, "wave      %" PRIu32 " scoring rows, %" PRIu32 " with logits, %s, %u thread%s\n", s->rows,
               s->logit_rows, k->isa, k->n_threads, NS_PLURAL(k->n_threads));
        ns_say(cli, "time      %.2f s computing, %.2f s waiting for the disk\n", compute * 1e-9,
               (double)s->store.stall_ns * 1e-9);
        ns_say(cli, "products  %.1f%% of the computing time\n", 100 * of_products);
        ns_say(cli, "peak      %.1f%% of it: %.1f GFMA/s\n", 100 * of_peak, share(f->multiply_adds, compute));
        return NS_OK;
    }
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_int(&a, "rows", s->rows);
    ns_answer_int(&a, "logit_rows", s->logit_rows);
    ns_answer_text(&a, "isa", k->isa);
    ns_answer_int(&a, "threads", k->n_threads);
    ns_answer_number(&a, "compute_s", compute * 1e-9);
    ns_answer_number(&a, "stall_s", (double)s->store.stall_ns * 1e-9);
    ns_answer_number(&a, "product_s", (double)s->product_ns * 1e-9);
    ns_answer_number(&a, "share_in_products", of_products);
    ns_answer_number(&a, "gfma_s", share(f->multiply_adds, compute));
    ns_answer_number(&a, "share_of_peak", of_peak);
    return ns_answer_end(&a, cli, err);
}

static enum ns_code run_waves(struct ns_cli *cli, struct wave_bench *b, struct ns_budget *budget, struct ns_error *err)
{
    struct wave_figures figures[WAVES] = {0};
    enum ns_code rc = describe(b, budget, err);
    for (size_t i = 0; i <= WAVES && rc == NS_OK; i++)
        rc = run_wave(b, &figures[i > 0 ? i - 1 : 0], err);
    if (rc == NS_OK && ns_signal_count() > 0) {
        cli->status = NS_STATUS_INTERRUPTED;
        return rc;
    }
    qsort(figures, WAVES, sizeof *figures, by_share);
    return rc == NS_OK ? say_wave(cli, b, &figures[WAVES / 2], err) : rc;
}

enum ns_code ns_bench_wave(struct ns_cli *cli, struct ns_error *err)
{
    const struct ns_args *args = &cli->args;
    struct ns_engine_options options = {.context = QUESTION + CHOICE};
    uint64_t rows = ns_given(cli, NS_OPT_ROWS) ? args->number[NS_OPT_ROWS] : ROWS;
    if (!ns_given(cli, NS_OPT_MODEL)) {
        ns_hint(cli, "Say which model to run: --model DIR.");
        return ns_error_set(err, NS_USAGE, "bench wave needs --model");
    }
    if (rows < ITEM || rows > 65536)
        return ns_error_set(err, NS_USAGE, "--rows %" PRIu64 ": %d to 65536 were expected", rows, (int)ITEM);
    enum ns_code rc = ns_cli_read_threads(cli, &options.n_threads, err);
    if (rc == NS_OK)
        rc = ns_cli_read_isa(args->text[NS_OPT_ISA], &options.cpu, err);
    if (rc != NS_OK)
        return rc;
    struct wave_bench b = {.n_items = (uint32_t)rows / ITEM};
    options.rows_max = b.n_items * ITEM;
    struct ns_budget budget;
    ns_budget_init(&budget, "bench",
                   ns_given(cli, NS_OPT_MEMORY) ? (size_t)args->number[NS_OPT_MEMORY] : ns_host_free_memory());
    ns_signal_install();
    rc = ns_engine_open(args->text[NS_OPT_MODEL], &options, &budget, &b.engine, err);
    if (rc == NS_OK)
        rc = run_waves(cli, &b, &budget, err);
    ns_engine_close(b.engine);
    ns_budget_give(&budget, b.token);
    ns_budget_give(&budget, b.segment);
    ns_budget_give(&budget, b.ask);
    ns_budget_fini(&budget);
    return rc;
}
