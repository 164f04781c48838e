/* select.c - from processor features to a table. The features come in as an argument, so that --isa and the tests can
 * narrow them. NS_BUILD_<ISA> says which tables this build has. */
#include "kernels/kernels_impl.h"

#include <string.h>

const struct ns_kernel_table ns_table_ref = {
    .gemm = {&ns_gemm_ref, &ns_gemm_ref, &ns_gemm_ref},
    .row = ns_rows_ref,
    .short_conv = ns_short_conv_ref,
    .kda_run = ns_kda_run_ref,
    .attend_scratch = ns_attend_scratch_ref,
    .attend = ns_attend_ref,
    .head_block = ns_head_block_ref,
    .fma_burst = ns_fma_burst_ref,
    .fma_step = NS_LANES,
    .read_burst = ns_read_burst_ref,
};

/* best first; the reference needs nothing and ends the search */
static const struct isa {
    const char *name;
    uint32_t needs;
    const struct ns_kernel_table *table;
} isas[] = {
#ifdef NS_BUILD_AVX512
    {"avx512", NS_CPU_AVX512 | NS_CPU_AVX2 | NS_CPU_FMA, &ns_table_avx512},
#endif
#ifdef NS_BUILD_AVX2
    {"avx2", NS_CPU_AVX2 | NS_CPU_FMA, &ns_table_avx2},
#endif
#ifdef NS_BUILD_NEON
    {"neon", NS_CPU_NEON, &ns_table_neon},
#endif
    {"ref", 0, &ns_table_ref},
};

/* A thread that blocks while it waits takes some 30 us to wake; with this much work it still gains. */
#define LEAST_NS 50e3

struct ns_kernels ns_kernels_select(uint32_t cpu, unsigned n_threads)
{
    size_t i = 0;
    while (!ns_cpu_has(cpu, isas[i].needs))
        i++;
    return (struct ns_kernels){
        .table = isas[i].table, .isa = isas[i].name, .n_threads = n_threads ? n_threads : 1, .least_ns = LEAST_NS};
}

bool ns_kernels_isa_bits(const char *name, uint32_t have, uint32_t *bits)
{
    for (size_t i = 0; i < NS_COUNT(isas); i++)
        if (strcmp(name, isas[i].name) == 0 && ns_cpu_has(have, isas[i].needs)) {
            *bits = isas[i].needs;
            return true;
        }
    return false;
}
