/* cpu.c - feature bits of this processor, as far as the operating system saves their registers, and the cores that this
 * process may really use. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* XCR0: which register files the operating system keeps across a switch. */
static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

uint32_t ns_cpu_bits(void)
{
    uint32_t a, b, c, d, bits = 0;
    const uint32_t osxsave = 1u << 27, fma = 1u << 12, f16c = 1u << 29;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave))
        return 0;
    uint32_t ecx1 = c;
    const uint64_t ymm = 0x6, zmm = 0xE6;
    uint64_t saved = saved_registers();
    if ((saved & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    const uint32_t avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31 /* F DQ BW VL */, vbmi = 1u << 1;
    if ((b & avx2) && (ecx1 & f16c))
        bits |= NS_CPU_AVX2;
    if (ecx1 & fma)
        bits |= NS_CPU_FMA;
    if ((saved & zmm) == zmm && (b & avx512) == avx512) {
        bits |= NS_CPU_AVX512;
        if (c & vbmi)
            bits |= NS_CPU_VBMI;
    }
    return bits;
}
#elif defined(__aarch64__)
uint32_t ns_cpu_bits(void)
{
    return NS_CPU_NEON | NS_CPU_FMA; /* both are part of the base architecture */
}
#else
uint32_t ns_cpu_bits(void)
{
    return 0;
}
#endif

static void look_at_quota(void *arg, const char *dir, bool is_v2)
{
    unsigned *least = arg;
    char path[4200], text[128];
    long long quota = -1, period = 0;
    snprintf(path, sizeof path, "%s/%s", dir, is_v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!ns_sys_read_text(path, text, sizeof text))
        return;
    char *end;
    quota = strtoll(text, &end, 10);
    if (end == text || quota <= 0)
        return; /* "max", or -1: no limit */
    if (is_v2) {
        period = strtoll(end, NULL, 10);
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (ns_sys_read_text(path, text, sizeof text))
            period = strtoll(text, NULL, 10);
    }
    if (period <= 0)
        return;
    long long cores = (quota + period - 1) / period;
    if (cores < (long long)*least)
        *least = (unsigned)cores;
}

unsigned ns_cpu_quota_at(const char *root)
{
    unsigned least = UINT_MAX;
    ns_sys_groups(root, "cpu", look_at_quota, &least);
    return least;
}

/* The lowest-numbered thread of cpu's core; cpu itself when the kernel does not say. */
static size_t first_sibling(size_t cpu)
{
    char path[128], text[1024], *end;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", cpu);
    if (!ns_sys_read_text(path, text, sizeof text))
        return cpu;
    unsigned long first = strtoul(text, &end, 10);
    return end == text || first > cpu ? cpu : first;
}

unsigned ns_cpu_physical(void)
{
    cpu_set_t may, core;
    CPU_ZERO(&may);
    CPU_ZERO(&core);
    unsigned n = 1;
    if (sched_getaffinity(0, sizeof may, &may) == 0) {
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &may))
                CPU_SET(first_sibling(i), &core); /* two threads of one core count once, whichever we may use */
        n = (unsigned)CPU_COUNT(&core);
    }
    unsigned quota = ns_cpu_quota_at("");
    if (quota < n)
        n = quota;
    return n > 0 ? n : 1;
}
