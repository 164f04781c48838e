/* clock.c - the clocks, and a pin for tests. */
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static _Atomic int64_t pinned_ms = -1;

static int64_t read_ms(clockid_t id)
{
    struct timespec t = {0};
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t ns_clock_wall_ms(void)
{
    int64_t pinned = atomic_load(&pinned_ms);
    return pinned >= 0 ? pinned : read_ms(CLOCK_REALTIME);
}

int64_t ns_clock_boot_ms(void)
{
#ifdef CLOCK_BOOTTIME
    return read_ms(CLOCK_BOOTTIME);
#else
    return read_ms(CLOCK_MONOTONIC);
#endif
}

uint64_t ns_clock_mono_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t ns_clock_thread_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void ns_clock_utc_text(int64_t wall_ms, char out[24])
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm tm;
    if (!gmtime_r(&seconds, &tm) || strftime(out, 24, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        snprintf(out, 24, "?");
}

void ns_clock_pin_wall(int64_t wall_ms)
{
    atomic_store(&pinned_ms, wall_ms);
}
