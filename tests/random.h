/* random.h - random numbers that depend on the seed alone: splitmix64. For tests only. */
#ifndef NS_TESTS_RANDOM_H
#define NS_TESTS_RANDOM_H

#include <stdint.h>

static inline uint64_t test_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#endif
