/* fault.c - failures on demand, for tests: the nth allocation, read, write or sync fails, and named points where the
 * process dies. Nothing is armed in ordinary use; the state is process-wide because a fault is. */
#include "base/base.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

struct fault {
    _Atomic uint64_t left; /* 0: not armed */
    _Atomic int mode;
    _Atomic bool sticky;
};

static struct fault faults[NS_FAULT_KINDS];
static char crash_name[64];
static _Atomic uint64_t crash_left;

void ns_fault_arm(enum ns_fault_kind kind, uint64_t nth)
{
    ns_fault_arm_mode(kind, nth, 0, false);
}

void ns_fault_arm_mode(enum ns_fault_kind kind, uint64_t nth, int mode, bool sticky)
{
    atomic_store(&faults[kind].mode, mode);
    atomic_store(&faults[kind].sticky, sticky);
    atomic_store(&faults[kind].left, nth);
}

void ns_fault_disarm(void)
{
    for (size_t i = 0; i < NS_FAULT_KINDS; i++)
        atomic_store(&faults[i].left, 0);
    atomic_store(&crash_left, 0);
}

bool ns_fault_hit(enum ns_fault_kind kind)
{
    struct fault *f = &faults[kind];
    uint64_t left = atomic_load_explicit(&f->left, memory_order_relaxed); /* a hint: zero is the ordinary case */
    while (left > 0) {
        uint64_t next = left == 1 && atomic_load(&f->sticky) ? 1 : left - 1;
        if (atomic_compare_exchange_weak(&f->left, &left, next))
            return left == 1;
    }
    return false;
}

int ns_fault_mode(enum ns_fault_kind kind)
{
    return atomic_load(&faults[kind].mode);
}

uint64_t ns_fault_left(enum ns_fault_kind kind)
{
    return atomic_load(&faults[kind].left);
}

void ns_crash_arm(const char *name, uint64_t visit)
{
    size_t n = strlen(name);
    if (n >= sizeof crash_name)
        return;
    memcpy(crash_name, name, n + 1);
    atomic_store(&crash_left, visit);
}

void ns_crash_point(const char *name)
{
    if (atomic_load_explicit(&crash_left, memory_order_relaxed) == 0 || strcmp(name, crash_name) != 0)
        return;
    if (atomic_fetch_sub(&crash_left, 1) == 1)
        raise(SIGKILL);
}
