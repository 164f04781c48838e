/* cmd_bench_kernels.c - bench kernels and bench parts: each kernel against this machine's own peaks, and what each takes of
 * a wave. */
#include "cli/commands.h"

#include "kernels/kernels.h"
#include "sys/sys.h"

struct rates {
    struct ns_cli *cli;
    enum ns_code rc;
    struct ns_error *err;
    bool begun;
};

static void say_share(struct ns_cli *cli, double rate, double share)
{
    if (rate > 0)
        ns_say(cli, " %9.1f %7.1f%%", rate, 100 * share);
    else
        ns_say(cli, " %9s %8s", "-", "-");
}

/* One figure a line as soon as it is there: a whole run takes minutes. */
static bool say_rate(void *arg, const struct ns_rate *r)
{
    struct rates *rates = arg;
    struct ns_cli *cli = rates->cli;
    if (cli->json) {
        struct ns_answer_json a;
        ns_answer_begin(&a, cli);
        ns_answer_text(&a, "kernel", r->kernel);
        ns_answer_int(&a, "rows", (int64_t)r->rows);
        ns_answer_text(&a, "isa", r->isa);
        ns_answer_int(&a, "threads", r->threads);
        ns_answer_number(&a, "gfma_s", r->gfma_s);
        ns_answer_number(&a, "share_of_peak", r->share_of_peak);
        ns_answer_number(&a, "gb_s", r->gb_s);
        ns_answer_number(&a, "share_of_bandwidth", r->share_of_bandwidth);
        rates->rc = ns_answer_end(&a, cli, rates->err);
    } else {
        if (!rates->begun)
            ns_say(cli, "%-16s %5s %-7s %3s %9s %8s %9s %8s\n", "kernel", "rows", "isa", "thr", "GFMA/s", "of peak",
                   "GB/s", "of read");
        rates->begun = true;
        ns_say(cli, "%-16s %5zu %-7s %3u", r->kernel, r->rows, r->isa, r->threads);
        say_share(cli, r->gfma_s, r->share_of_peak);
        say_share(cli, r->gb_s, r->share_of_bandwidth);
        ns_say(cli, "\n");
    }
    return rates->rc == NS_OK && ns_signal_count() == 0;
}

/* What both measure with. */
static enum ns_code read_options(struct ns_cli *cli, struct ns_measure *what, struct ns_error *err)
{
    const struct ns_args *args = &cli->args;
    uint32_t bits;
    *what = (struct ns_measure){.cpu = ns_cpu_bits(), .isa = args->text[NS_OPT_ISA], .take = ns_bulk_take};
    enum ns_code rc = ns_cli_read_isa(what->isa, &bits, err);
    if (rc == NS_OK)
        rc = ns_cli_read_threads(cli, &what->n_threads, err);
    if (what->n_threads == 0)
        what->n_threads = ns_cpu_physical();
    return rc;
}

enum ns_code ns_bench_kernels(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_measure what;
    struct ns_budget budget;
    enum ns_code rc = read_options(cli, &what, err);
    if (rc != NS_OK)
        return rc;
    if (cli->args.n_operands > 1)
        what.kernel = cli->args.operand[1];
    ns_budget_init(&budget, "bench", ns_host_free_memory());
    ns_signal_install();
    struct rates rates = {.cli = cli, .rc = NS_OK, .err = err};
    rc = ns_kernels_measure(&what, &budget, say_rate, &rates, err);
    ns_budget_fini(&budget);
    if (rc == NS_OK && rates.rc == NS_OK && ns_signal_count() > 0)
        cli->status = NS_STATUS_INTERRUPTED;
    return rc != NS_OK ? rc : rates.rc;
}

static bool say_part(void *arg, const struct ns_wave_part *p)
{
    struct rates *rates = arg;
    struct ns_cli *cli = rates->cli;
    if (cli->json) {
        struct ns_answer_json a;
        ns_answer_begin(&a, cli);
        ns_answer_text(&a, "kernel", p->kernel);
        ns_answer_int(&a, "rows", (int64_t)p->rows);
        ns_answer_int(&a, "measured_rows", (int64_t)p->measured_rows);
        ns_answer_text(&a, "isa", p->isa);
        ns_answer_int(&a, "threads", p->threads);
        ns_answer_number(&a, "row_us", p->row_ns / 1e3);
        ns_answer_number(&a, "share_of_wave", p->share);
        ns_json_put_key(&a.w, "product");
        ns_json_put_bool(&a.w, p->product);
        if (p->context > 0) {
            ns_answer_int(&a, "context", (int64_t)p->context);
            ns_answer_int(&a, "context_at_5_percent", (int64_t)p->context_at_limit);
        }
        rates->rc = ns_answer_end(&a, cli, rates->err);
    } else {
        if (!rates->begun)
            ns_say(cli, "%-16s %5s %-7s %3s %9s %8s\n", "kernel", "rows", "isa", "thr", "us a row", "of wave");
        rates->begun = true;
        ns_say(cli, "%-16s %5zu %-7s %3u %9.1f %7.2f%%", p->kernel, p->rows, p->isa, p->threads, p->row_ns / 1e3,
               100 * p->share);
        if (p->context > 0)
            ns_say(cli, "  at %zu positions, 5%% at %zu", p->context, p->context_at_limit);
        ns_say(cli, "\n");
    }
    return rates->rc == NS_OK && ns_signal_count() == 0;
}

enum ns_code ns_bench_parts(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_measure what;
    struct ns_budget budget;
    enum ns_code rc = read_options(cli, &what, err);
    if (rc != NS_OK)
        return rc;
    ns_budget_init(&budget, "bench", ns_host_free_memory());
    ns_signal_install();
    struct rates rates = {.cli = cli, .rc = NS_OK, .err = err};
    rc = ns_kernels_measure_wave(&what, &budget, say_part, &rates, err);
    ns_budget_fini(&budget);
    if (rc == NS_OK && rates.rc == NS_OK && ns_signal_count() > 0)
        cli->status = NS_STATUS_INTERRUPTED;
    return rc != NS_OK ? rc : rates.rc;
}
