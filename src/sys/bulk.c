/* bulk.c - blocks for bulk data: weights, activations, states.
 *
 * WHAT   A block asks for large pages where they lie wholly inside it. A prefill is a few threads that make blocks present
 *        in the background, in a given order.
 * WHY    The first use of a page costs a fault and its clearing. Where that happens inside a read the disk waits for it,
 *        and a read into many small pages costs more for each of them.
 * INVARIANTS
 *   1. A block takes no more memory than its bytes and what a small page rounds.   (bulk_test: no_page_beyond_the_end)
 *   2. A prefill changes nothing in a block, which may be in use meanwhile.        (bulk_test: prefill_changes_nothing)
 * THREADS  The prefill's own; each takes the next block that none has taken. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_PAGE  ((size_t)4096)
#define LARGE_PAGE  ((size_t)2 << 20)
#define STEP_BYTES  ((size_t)16 << 20) /* between two looks at the flag */
#define THREADS_MAX 4

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
    struct ns_thread *thread[THREADS_MAX];
    unsigned n_threads;
    struct ns_budget *budget;
    size_t n;
    /* relaxed: both order nothing, starting and joining do */
    atomic_size_t next;
    atomic_bool stop;
    /* fixed after init */
    struct ns_bulk part[];
};

static void run(void *arg)
{
    struct ns_prefill *p = arg;
    size_t i;
    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n)
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
    atomic_init(&p->next, 0);
    atomic_init(&p->stop, false);
    unsigned cores = ns_cpu_physical(), most = cores < THREADS_MAX ? cores : THREADS_MAX;
    for (unsigned i = 0; i < most && i < n; i++)
        if (ns_thread_start(run, p, &p->thread[p->n_threads], NULL) == NS_OK)
            p->n_threads++;
    if (p->n_threads > 0)
        return p;
    ns_budget_give(budget, p);
    return NULL;
}

void ns_prefill_end(struct ns_prefill *prefill)
{
    if (!prefill)
        return;
    atomic_store_explicit(&prefill->stop, true, memory_order_relaxed);
    for (unsigned i = 0; i < prefill->n_threads; i++)
        ns_thread_join(prefill->thread[i]);
    ns_budget_give(prefill->budget, prefill);
}
