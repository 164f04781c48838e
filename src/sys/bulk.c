/* bulk.c - blocks for bulk data: weights, activations, states.
 *
 * WHAT   A block asks for large pages where they lie wholly inside it. A span is one block for many things of less than a
 *        large page or a few of them, whose number changes. A prefill is a few threads that make blocks present in the
 *        background, in a given order, and say which are.
 * WHY    The first use of a page costs a fault and its clearing, and in a virtual machine the host's fault as well. Where
 *        that happens inside a read the disk waits for it, and a read into many small pages costs more for each of them.
 *        While nobody waits for them any more the threads are last in line: the cores belong to the wave. A signal to
 *        stop ends them: what is still to do should be done soon.
 * INVARIANTS
 *   1. A block takes no more memory than its bytes and what a small page rounds.   (bulk_test: no_page_beyond_the_end)
 *   2. A prefill changes nothing in a block, which may be in use meanwhile.        (bulk_test: prefill_changes_nothing)
 *   3. A block of which it is said is present, as far as the system allows.        (bulk_test: prefill_makes_present)
 *   4. After a signal to stop nobody waits for it, and it takes no time from others.  (bulk_test: prefill_ends_by_signal)
 *   5. A span's memory beyond its end is the system's again.                       (bulk_test: span_gives_back)
 * THREADS  The prefill's own; each takes the next block that none has taken. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <stdatomic.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/resource.h>
#endif

#define SMALL_PAGE  ((size_t)4096)
#define LARGE_PAGE  ((size_t)2 << 20)
#define STEP_BYTES  ((size_t)4 << 20) /* between two looks at the flag */
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

/* ---- spans ---- */

enum ns_code ns_span_open(struct ns_span *span, struct ns_budget *budget, size_t most, struct ns_error *err)
{
    *span = (struct ns_span){.budget = budget};
    size_t all;
    if (!ns_size_add(most, LARGE_PAGE + SMALL_PAGE, &all))
        return ns_error_set(err, NS_BUDGET, "%s: %zu bytes are more than can be addressed", budget->name, most);
    if (ns_fault_hit(NS_FAULT_ALLOC))
        return ns_error_set(err, NS_BUDGET, "%s: no addresses for %zu bytes", budget->name, most);
    void *got = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED)
        return ns_error_set(err, NS_BUDGET, "%s: no addresses for %zu bytes", budget->name, most);
    span->reserved = got;
    span->reserved_bytes = all;
    span->base = (uint8_t *)ns_round_up((uintptr_t)got, LARGE_PAGE);
    span->most = most / SMALL_PAGE * SMALL_PAGE;
    return NS_OK;
}

enum ns_code ns_span_grow(struct ns_span *span, size_t bytes, struct ns_error *err)
{
    bytes = ns_round_up(bytes, SMALL_PAGE);
    if (bytes > span->most)
        return ns_error_set(err, NS_BUDGET, "%s: %zu bytes asked for, %zu are the most", span->budget->name, bytes,
                            span->most);
    if (bytes <= span->bytes)
        return NS_OK;
    size_t more = bytes - span->bytes;
    enum ns_code rc = ns_budget_charge(span->budget, more, err);
    if (rc != NS_OK)
        return rc;
    if (mprotect(span->base + span->bytes, more, PROT_READ | PROT_WRITE) != 0) {
        ns_budget_discharge(span->budget, more);
        return ns_error_set(err, NS_BUDGET, "%s: the machine refused %zu bytes", span->budget->name, more);
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(span->base, bytes, MADV_HUGEPAGE); /* advice: refused, pages are small */
#endif
    span->bytes = bytes;
    return NS_OK;
}

void ns_span_shrink(struct ns_span *span, size_t bytes)
{
    bytes = ns_round_up(bytes, SMALL_PAGE);
    if (bytes >= span->bytes)
        return;
    size_t less = span->bytes - bytes;
    /* a fresh mapping in its place: the pages go, and the system no longer counts them as promised */
    void *got = mmap(span->base + bytes, less, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (got == MAP_FAILED)
        (void)madvise(span->base + bytes, less, MADV_DONTNEED); /* no room for one mapping more: the pages go */
    ns_budget_discharge(span->budget, less);
    span->bytes = bytes;
}

void ns_span_close(struct ns_span *span)
{
    if (span->reserved) {
        ns_budget_discharge(span->budget, span->bytes);
        (void)munmap(span->reserved, span->reserved_bytes); /* of whole pages that are ours: it cannot fail */
    }
    *span = (struct ns_span){0};
}

/* ---- prefill ---- */

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

struct part {
    struct ns_bulk bulk;
    atomic_bool present; /* relaxed: the pages are the kernel's, no byte passes between threads here */
};

struct ns_prefill {
    /* fixed after init */
    struct ns_thread *thread[THREADS_MAX];
    unsigned n_threads;
    struct ns_budget *budget;
    struct ns_mutex *mu;
    struct ns_cond *finished;
    size_t n;
    /* guarded by mu */
    size_t n_present;
    unsigned n_ended; /* threads: all is present, or it shall stop */
    /* relaxed: they order nothing, starting and joining do */
    atomic_size_t next;
    atomic_bool stop, polite;
    /* fixed after init */
    struct part part[];
};

/* Last in line for the cores; where a priority is a whole process's, it stays as it is. */
static void be_polite(void)
{
#ifdef __linux__
    (void)setpriority(PRIO_PROCESS, 0, 19); /* of this thread only; refused, it is one among many */
#endif
}

static void make_present(struct ns_prefill *p)
{
    size_t i;
    bool polite = false;
    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n) {
        struct part *part = &p->part[i];
        for (size_t at = 0; at < part->bulk.bytes; at += STEP_BYTES) {
            if (atomic_load_explicit(&p->stop, memory_order_relaxed) || ns_signal_count() > 0)
                return;
            if (!polite && atomic_load_explicit(&p->polite, memory_order_relaxed)) {
                be_polite();
                polite = true;
            }
            size_t left = part->bulk.bytes - at;
            populate((uint8_t *)part->bulk.block + at, left < STEP_BYTES ? left : STEP_BYTES);
        }
        atomic_store_explicit(&part->present, true, memory_order_relaxed);
        ns_mutex_lock(p->mu);
        p->n_present++;
        ns_mutex_unlock(p->mu);
    }
}

static void run(void *arg)
{
    struct ns_prefill *p = arg;
    make_present(p);
    ns_mutex_lock(p->mu);
    p->n_ended++;
    ns_cond_signal(p->finished);
    ns_mutex_unlock(p->mu);
}

struct ns_prefill *ns_prefill_start(struct ns_budget *budget, const struct ns_bulk *part, size_t n)
{
    struct ns_prefill *p = ns_budget_take(budget, sizeof *p + n * sizeof p->part[0], NULL);
    if (!p)
        return NULL;
    p->budget = budget;
    p->n = n;
    p->mu = ns_mutex_open();
    p->finished = ns_cond_open();
    for (size_t i = 0; i < n; i++) {
        p->part[i].bulk = part[i];
        atomic_init(&p->part[i].present, false);
    }
    atomic_init(&p->next, 0);
    atomic_init(&p->stop, false);
    atomic_init(&p->polite, false);
    unsigned cores = ns_cpu_physical(), most = cores < THREADS_MAX ? cores : THREADS_MAX;
    for (unsigned i = 0; p->mu && p->finished && i < most && i < n; i++)
        if (ns_thread_start(run, p, &p->thread[p->n_threads], NULL) == NS_OK)
            p->n_threads++;
    if (p->n_threads > 0)
        return p;
    ns_prefill_end(p);
    return NULL;
}

bool ns_prefill_wait(struct ns_prefill *p, uint64_t timeout_ms)
{
    uint64_t until = ns_clock_mono_ns() + timeout_ms * 1000000u, now;
    ns_mutex_lock(p->mu);
    while (p->n_ended < p->n_threads && (now = ns_clock_mono_ns()) < until)
        (void)ns_cond_wait_ms(p->finished, p->mu, (until - now) / 1000000u + 1);
    bool all = p->n_present == p->n;
    ns_mutex_unlock(p->mu);
    atomic_store_explicit(&p->polite, true, memory_order_relaxed);
    return all;
}

bool ns_prefill_has(const struct ns_prefill *prefill, size_t i)
{
    return atomic_load_explicit(&prefill->part[i].present, memory_order_relaxed);
}

void ns_prefill_end(struct ns_prefill *prefill)
{
    if (!prefill)
        return;
    atomic_store_explicit(&prefill->stop, true, memory_order_relaxed);
    for (unsigned i = 0; i < prefill->n_threads; i++)
        ns_thread_join(prefill->thread[i]);
    ns_cond_close(prefill->finished);
    ns_mutex_close(prefill->mu);
    ns_budget_give(prefill->budget, prefill);
}
