/* bulk.c - blocks for bulk data: weights, activations, states.
 *
 * WHAT   A block asks for large pages where they lie wholly inside it. A prefill is a thread that makes blocks present in
 *        the background, in a given order.
 * WHY    The first use of a page costs a fault and its clearing. Where that happens inside a read the disk waits for it,
 *        and a read into many small pages costs more for each of them.
 * INVARIANTS
 *   1. A block takes no more memory than its bytes and what a small page rounds.   (bulk_test: no_page_beyond_the_end)
 *   2. A prefill changes nothing in a block, which may be in use meanwhile.        (bulk_test: prefill_changes_nothing)
 * THREADS  The prefill's own thread; stop is an atomic flag. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_PAGE ((size_t)4096)
#define LARGE_PAGE ((size_t)2 << 20)
#define STEP_BYTES ((size_t)16 << 20) /* between two looks at the flag */

void *ns_bulk_take(struct ns_budget *budget, size_t bytes, struct ns_error *err)
{
    void *block = ns_budget_take_raw(budget, bytes, bytes < LARGE_PAGE ? SMALL_PAGE : LARGE_PAGE, err);
#ifdef MADV_HUGEPAGE
    if (block && bytes >= LARGE_PAGE)
        (void)madvise(block, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE); /* advice: refused, pages are small */
#endif
    return block;
}

/* Whole pages only: what shares its page with somebody else becomes present with them. */
static void populate(void *block, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    (void)madvise(block, bytes / SMALL_PAGE * SMALL_PAGE, MADV_POPULATE_WRITE); /* refused, the first use does it */
#else
    (void)block;
    (void)bytes;
#endif
}

struct ns_prefill {
    /* fixed after init */
    struct ns_thread *thread;
    struct ns_budget *budget;
    size_t n;
    atomic_bool stop; /* relaxed: it orders nothing, joining does */
    struct ns_bulk part[];
};

static void run(void *arg)
{
    struct ns_prefill *p = arg;
    for (size_t i = 0; i < p->n; i++)
        for (size_t at = 0; at < p->part[i].bytes; at += STEP_BYTES) {
            if (atomic_load_explicit(&p->stop, memory_order_relaxed))
                return;
            size_t left = p->part[i].bytes - at;
            populate((uint8_t *)p->part[i].block + at, left < STEP_BYTES ? left : STEP_BYTES);
        }
}

struct ns_prefill *ns_prefill_start(struct ns_budget *budget, const struct ns_bulk *part, size_t n)
{
    struct ns_prefill *p = ns_budget_take(budget, sizeof *p + n * sizeof *part, NULL);
    if (!p)
        return NULL;
    p->budget = budget;
    p->n = n;
    memcpy(p->part, part, n * sizeof *part);
    atomic_init(&p->stop, false);
    if (ns_thread_start(run, p, &p->thread, NULL) == NS_OK)
        return p;
    ns_budget_give(budget, p);
    return NULL;
}

void ns_prefill_end(struct ns_prefill *prefill)
{
    if (!prefill)
        return;
    atomic_store_explicit(&prefill->stop, true, memory_order_relaxed);
    ns_thread_join(prefill->thread);
    ns_budget_give(prefill->budget, prefill);
}
