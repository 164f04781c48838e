/* cmd_bench_kernels.c - bench kernels: each kernel against this machine's own peaks. */
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

enum ns_code ns_bench_kernels(struct ns_cli *cli, struct ns_error *err)
{
    const struct ns_args *args = &cli->args;
    struct ns_measure what = {.cpu = ns_cpu_bits(),
                              .isa = args->text[NS_OPT_ISA],
                              .n_threads = (unsigned)args->number[NS_OPT_THREADS],
                              .take = ns_bulk_take};
    uint32_t bits;
    if (ns_given(cli, NS_OPT_ROWS) || ns_given(cli, NS_OPT_MEMORY))
        return ns_error_set(err, NS_USAGE, "bench kernels takes no %s: rows and memory are always the same",
                            ns_given(cli, NS_OPT_ROWS) ? "--rows" : "--memory");
    if (what.isa && !ns_kernels_isa_bits(what.isa, what.cpu, &bits))
        return ns_error_set(err, NS_USAGE, "this processor or build has no %s", what.isa);
    if (args->n_operands > 1)
        what.kernel = args->operand[1];
    if (what.n_threads == 0)
        what.n_threads = ns_cpu_physical();
    struct ns_budget budget;
    ns_budget_init(&budget, "bench", ns_host_free_memory());
    ns_signal_install();
    struct rates rates = {.cli = cli, .rc = NS_OK, .err = err};
    enum ns_code rc = ns_kernels_measure(&what, &budget, say_rate, &rates, err);
    ns_budget_fini(&budget);
    if (rc == NS_OK && rates.rc == NS_OK && ns_signal_count() > 0)
        cli->status = NS_STATUS_INTERRUPTED;
    return rc != NS_OK ? rc : rates.rc;
}
