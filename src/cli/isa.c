/* isa.c - which feature bits --isa leaves on. Naming more than the processor has is an error, not a wish. */
#include "cli/cli.h"

#include "kernels/kernels.h"
#include "sys/sys.h"

enum ns_code ns_cli_read_isa(const char *word, uint32_t *out, struct ns_error *err)
{
    uint32_t cpu = ns_cpu_bits();
    *out = cpu;
    if (word && !ns_kernels_isa_bits(word, cpu, out))
        return ns_error_set(err, NS_ENGINE, "this processor or build has no %s", word);
    return NS_OK;
}
