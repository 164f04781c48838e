/* cpu_features.h - feature bits for tests of the room alone, without the operating system's room. */
#ifndef NS_TEST_CPU_FEATURES_H
#define NS_TEST_CPU_FEATURES_H

#include "base/base.h"

#ifdef __x86_64__
static inline uint32_t cpu_features(void)
{
    uint32_t bits = 0;
    if (__builtin_cpu_supports("avx2"))
        bits |= NS_CPU_AVX2;
    if (__builtin_cpu_supports("fma"))
        bits |= NS_CPU_FMA;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        bits |= NS_CPU_AVX512;
    return bits;
}
#elif defined(__aarch64__)
static inline uint32_t cpu_features(void)
{
    return NS_CPU_NEON;
}
#else
static inline uint32_t cpu_features(void)
{
    return 0;
}
#endif

#endif
