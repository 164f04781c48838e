/* settings.c - what the arguments say about a night. `run`, `plan` and `simulate --queue` read them here, so that the
 * forecast is made for the night that is run. */
#include "cli/cli.h"

#include "kernels/kernels.h"
#include "night/night.h"
#include "sys/sys.h"

enum ns_code ns_cli_read_isa(const char *word, uint32_t *out, struct ns_error *err)
{
    uint32_t cpu = ns_cpu_bits();
    *out = cpu;
    if (word && !ns_kernels_isa_bits(word, cpu, out))
        return ns_error_set(err, NS_ENGINE, "this processor or build has no %s", word);
    return NS_OK;
}

enum ns_code ns_cli_read_threads(const struct ns_cli *cli, unsigned *out, struct ns_error *err)
{
    static const uint64_t per_core = 4, always = 64;
    uint64_t cores = ns_cpu_physical(), most = cores * per_core > always ? cores * per_core : always;
    uint64_t asked = cli->args.number[NS_OPT_THREADS];
    if (asked > most)
        return ns_error_set(err, NS_USAGE,
                            "--threads %" PRIu64 ": at most %" PRIu64 " are allowed here, with %" PRIu64 " core%s",
                            asked, most, cores, NS_PLURAL(cores));
    *out = (unsigned)asked;
    return NS_OK;
}

enum ns_code ns_cli_takes_none(const struct ns_cli *cli, const char *what, const enum ns_opt *opts, size_t n,
                               struct ns_error *err)
{
    for (size_t i = 0; i < n; i++)
        for (const struct ns_option *o = ns_options; ns_given(cli, opts[i]) && o->name; o++)
            if (o->id == opts[i])
                return ns_error_set(err, NS_USAGE, "%s takes no --%s", what, o->name);
    return NS_OK;
}

enum ns_code ns_cli_read_night(struct ns_cli *cli, const char *why, struct ns_night_options *out, struct ns_error *err)
{
    const struct ns_args *args = &cli->args;
    *out = (struct ns_night_options){
        .db_path = cli->db_path,
        .model_dir = args->text[NS_OPT_MODEL],
        .memory_bytes = args->number[NS_OPT_MEMORY],
        .wave_rows = (uint32_t)args->number[ns_given(cli, NS_OPT_ROWS) ? NS_OPT_ROWS : NS_OPT_WAVE_ROWS],
        .context = (uint32_t)args->number[NS_OPT_CONTEXT],
        .layers = (uint32_t)args->number[NS_OPT_LAYERS],
        .spill_dir = args->text[NS_OPT_SPILL],
        .spill_bytes = args->number[NS_OPT_SPILL_LIMIT],
    };
    if (!out->model_dir)
        return ns_error_set(err, NS_USAGE, "%s", why);
    if (ns_given(cli, NS_OPT_SPILL_LIMIT) && !out->spill_dir)
        return ns_error_set(err, NS_USAGE, "--spill-limit wants --spill DIR");
    enum ns_code rc = ns_cli_read_threads(cli, &out->n_threads, err);
    return rc == NS_OK ? ns_cli_read_isa(args->text[NS_OPT_ISA], &out->cpu, err) : rc;
}
