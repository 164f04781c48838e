/* cmd_version.c - what this program is and what it was built with. */
#include "cli/commands.h"

#include "sys/sys.h"

static void add_cpu(struct ns_json_writer *w)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } bits[] = {{NS_CPU_AVX2, "avx2"},
                {NS_CPU_FMA, "fma"},
                {NS_CPU_AVX512, "avx512"},
                {NS_CPU_VBMI, "avx512vbmi"},
                {NS_CPU_NEON, "neon"}};

    uint32_t cpu = ns_cpu_bits();
    ns_json_open_array(w);
    for (size_t i = 0; i < NS_COUNT(bits); i++)
        if (ns_cpu_has(cpu, bits[i].bit))
            ns_json_put_cstring(w, bits[i].name);
    ns_json_close_array(w);
}

enum ns_code ns_cmd_version(struct ns_cli *cli, struct ns_error *err)
{
    if (!cli->json) {
        ns_say(cli, "nightshift %s\n", NS_VERSION);
        return NS_OK;
    }
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_text(&a, "version", NS_VERSION);
    ns_answer_int(&a, "schema", NS_SCHEMA_VERSION);
    ns_answer_text(&a, "sqlite", ns_queue_library_version());
    ns_json_put_key(&a.w, "cpu");
    add_cpu(&a.w);
    return ns_answer_end(&a, cli, err);
}
