/* budget.c - the only malloc.
 *
 * WHAT   A budget is a ceiling with a name; a share of it is a child whose whole limit was charged when it was made.
 *        Blocks carry a 64-byte head in front: the raw pointer, the size and the budget they were charged to.
 * WHY    "--memory 8G" is a promise. Shares that add up by construction need no trust in anybody's arithmetic.
 * INVARIANTS
 *   1. used_bytes of a budget is the sum of its blocks and of the limits of its shares.  (budget_test: sums_hold)
 *   2. A refused take changes nothing.                                                   (budget_test: refusal_is_clean)
 * THREADS  Charging is an atomic compare-and-swap; peak is a relaxed maximum, reported only. */
#include "base/base.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define HEAD_BYTES 64

struct head {
    void *raw;
    size_t bytes;
    struct ns_budget *budget;
};

void ns_budget_init(struct ns_budget *budget, const char *name, size_t limit_bytes)
{
    budget->name = name;
    budget->parent = NULL;
    budget->limit_bytes = limit_bytes;
    atomic_init(&budget->used_bytes, 0);
    atomic_init(&budget->peak_bytes, 0);
}

static bool charge(struct ns_budget *budget, size_t bytes)
{
    /* relaxed: the counter orders nothing but itself */
    size_t used = atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
    size_t next;
    do {
        if (!ns_size_add(used, bytes, &next) || next > budget->limit_bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used_bytes, &used, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    size_t peak = atomic_load_explicit(&budget->peak_bytes, memory_order_relaxed);
    while (peak < next && !atomic_compare_exchange_weak_explicit(&budget->peak_bytes, &peak, next, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
    }
    return true;
}

void ns_budget_discharge(struct ns_budget *budget, size_t bytes)
{
    size_t before = atomic_fetch_sub_explicit(&budget->used_bytes, bytes, memory_order_relaxed);
    assert(before >= bytes);
    (void)before;
}

enum ns_code ns_budget_charge(struct ns_budget *budget, size_t bytes, struct ns_error *err)
{
    if (!ns_fault_hit(NS_FAULT_ALLOC) && charge(budget, bytes))
        return NS_OK;
    return ns_error_set(err, NS_BUDGET, "%s: %zu bytes asked for, %zu of %zu are left", budget->name, bytes,
                        ns_budget_left(budget), budget->limit_bytes);
}

enum ns_code ns_budget_share(struct ns_budget *share, struct ns_budget *parent, const char *name, size_t limit_bytes,
                             struct ns_error *err)
{
    if (!charge(parent, limit_bytes))
        return ns_error_set(err, NS_BUDGET, "%s needs %zu bytes of memory, %zu of %zu are left", name, limit_bytes,
                            ns_budget_left(parent), parent->limit_bytes);
    ns_budget_init(share, name, limit_bytes);
    share->parent = parent;
    return NS_OK;
}

void ns_budget_fini(struct ns_budget *budget)
{
    assert(ns_budget_used(budget) == 0);
    if (budget->parent)
        ns_budget_discharge(budget->parent, budget->limit_bytes);
    budget->parent = NULL;
    budget->limit_bytes = 0;
}

bool ns_budget_shift(struct ns_budget *from, struct ns_budget *to, size_t bytes)
{
    assert(from->parent && from->parent == to->parent);
    if (bytes > ns_budget_left(from))
        return false;
    from->limit_bytes -= bytes;
    to->limit_bytes += bytes; /* their sum was charged to the parent: it does not overflow */
    return true;
}

size_t ns_budget_used(const struct ns_budget *budget)
{
    return atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
}

size_t ns_budget_left(const struct ns_budget *budget)
{
    return budget->limit_bytes - ns_budget_used(budget);
}

size_t ns_budget_peak(const struct ns_budget *budget)
{
    return atomic_load_explicit(&budget->peak_bytes, memory_order_relaxed);
}

static struct head *head_of(void *block)
{
    return (struct head *)(void *)((char *)block - HEAD_BYTES);
}

static const size_t heap_align = 64;

void *ns_budget_take_raw(struct ns_budget *budget, size_t bytes, size_t align, struct ns_error *err)
{
    if (align < heap_align)
        align = heap_align;
    assert((align & (align - 1)) == 0);
    size_t total;
    if (!ns_size_add(bytes, align + HEAD_BYTES, &total)) {
        ns_error_set(err, NS_BUDGET, "%s: %zu bytes are more than can be addressed", budget->name, bytes);
        return NULL;
    }
    if (ns_budget_charge(budget, bytes, err) != NS_OK)
        return NULL;
    void *raw = malloc(total);
    if (!raw) {
        ns_budget_discharge(budget, bytes);
        ns_error_set(err, NS_BUDGET, "%s: the machine refused %zu bytes", budget->name, bytes);
        return NULL;
    }
    uintptr_t start = ((uintptr_t)raw + HEAD_BYTES + align - 1) & ~(uintptr_t)(align - 1);
    struct head *head = head_of((void *)start);
    *head = (struct head){.raw = raw, .bytes = bytes, .budget = budget};
    return (void *)start;
}

void *ns_budget_take(struct ns_budget *budget, size_t bytes, struct ns_error *err)
{
    void *block = ns_budget_take_raw(budget, bytes, heap_align, err);
    if (block)
        memset(block, 0, bytes);
    return block;
}

void *ns_budget_resize(struct ns_budget *budget, void *block, size_t bytes, struct ns_error *err)
{
    void *next = ns_budget_take_raw(budget, bytes, heap_align, err);
    if (!next)
        return NULL;
    size_t kept = 0;
    if (block) {
        kept = head_of(block)->bytes < bytes ? head_of(block)->bytes : bytes;
        memcpy(next, block, kept);
        ns_budget_give(budget, block);
    }
    memset((char *)next + kept, 0, bytes - kept);
    return next;
}

void ns_budget_give(struct ns_budget *budget, void *block)
{
    if (!block)
        return;
    struct head head = *head_of(block);
    assert(head.budget == budget);
    (void)budget;
    ns_budget_discharge(head.budget, head.bytes);
    free(head.raw);
}

void ns_heap_init(void)
{
#ifdef __GLIBC__
    /* a threshold that was set no longer grows with the blocks that are freed */
    (void)mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    (void)mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
#endif
}

void *ns_heap_alloc(size_t bytes)
{
    return ns_fault_hit(NS_FAULT_ALLOC) ? NULL : malloc(bytes);
}

void *ns_heap_resize(void *block, size_t bytes)
{
    return ns_fault_hit(NS_FAULT_ALLOC) ? NULL : realloc(block, bytes);
}

void ns_heap_free(void *block)
{
    free(block);
}
