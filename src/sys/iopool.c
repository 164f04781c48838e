/* iopool.c - the one I/O pool: positional reads and writes by a few threads.
 *
 * WHAT   Requests belong to the caller and wait in one of two queues, reads and writes, each served in the order of
 *        arrival by its own threads, urgent requests before the others. A request is idle, queued, running or done.
 * WHY    Slow writes must not occupy every reader, so writes have a thread of their own. Plain preads by a handful of
 *        threads fill a drive as well as an asynchronous interface does when requests are megabytes: the cost of a call
 *        is lost in the transfer, and a thread that sleeps in a read is the simplest queue entry there is.
 * INVARIANTS
 *   1. A request is touched by the pool from start until done, and never after.   (iopool_test: cancel_is_clean)
 *   2. A write never delays a read that has a reader.                             (iopool_test: writes_do_not_block_reads)
 *   3. Closing waits for every request that was started.                          (iopool_test: close_waits)
 *   4. An urgent request waits for none that is not and has not begun.             (iopool_test: urgent_ones_overtake)
 * THREADS  mu guards queues, states and counters; no system call happens under it. */
#include "sys/sys_impl.h"

#include <assert.h>

enum { IO_IDLE, IO_QUEUED, IO_RUNNING, IO_DONE };

#define READERS_MAX     64
#define READERS_DEFAULT 4

struct line {
    struct ns_io *first, *last;
};

struct queue {
    struct ns_iopool *pool;
    struct line urgent, other;
    struct ns_cond *more;
    unsigned n_running;
};

struct ns_iopool {
    /* fixed after init */
    struct ns_mutex *mu;
    struct ns_cond *done;
    unsigned n_threads;
    struct ns_thread *thread[READERS_MAX + 1];
    /* guarded by mu */
    struct queue reads, writes;
    bool closing;
    uint64_t busy_since; /* when the first of the running reads began */
    struct ns_iopool_stats stats;
};

static struct line *line_of(struct queue *q, const struct ns_io *io)
{
    return io->urgent ? &q->urgent : &q->other;
}

static void append(struct line *l, struct ns_io *io)
{
    io->next = NULL;
    if (l->last)
        l->last->next = io;
    else
        l->first = io;
    l->last = io;
}

/* io is in the line. */
static void take_out(struct line *l, struct ns_io *io)
{
    struct ns_io *before = NULL, *at = l->first;
    while (at != io) {
        before = at;
        at = at->next;
    }
    if (before)
        before->next = io->next;
    else
        l->first = io->next;
    if (l->last == io)
        l->last = before;
    io->next = NULL;
}

static struct ns_io *next_of(const struct queue *q)
{
    return q->urgent.first ? q->urgent.first : q->other.first;
}

static void run_io(struct ns_io *io)
{
    uint64_t begin = ns_clock_mono_ns();
    ns_error_clear(&io->err);
    io->got = 0;
    if (io->is_write) {
        io->code = ns_file_write(io->file, io->buffer, io->n, io->offset, &io->err);
        io->got = io->code == NS_OK ? io->n : 0;
    } else if (io->may_end) {
        io->code = ns_file_read_some(io->file, io->buffer, io->n, io->offset, &io->got, &io->err);
    } else {
        io->code = ns_file_read(io->file, io->buffer, io->n, io->offset, &io->err);
        io->got = io->code == NS_OK ? io->n : 0;
    }
    io->busy_ns = ns_clock_mono_ns() - begin;
}

static void serve(void *arg)
{
    struct queue *q = arg;
    struct ns_iopool *pool = q->pool;
    ns_mutex_lock(pool->mu);
    for (;;) {
        while (!next_of(q) && !pool->closing)
            ns_cond_wait(q->more, pool->mu);
        struct ns_io *io = next_of(q);
        if (!io)
            break;
        take_out(line_of(q, io), io);
        io->state = IO_RUNNING;
        bool is_read = !io->is_write;
        if (q->n_running++ == 0 && is_read)
            pool->busy_since = ns_clock_mono_ns();
        ns_mutex_unlock(pool->mu);
        run_io(io);
        ns_mutex_lock(pool->mu);
        if (is_read) {
            pool->stats.reads++;
            pool->stats.read_bytes += io->got;
            pool->stats.read_ns += io->busy_ns;
        }
        if (--q->n_running == 0 && is_read)
            pool->stats.disk_ns += ns_clock_mono_ns() - pool->busy_since;
        io->state = IO_DONE; /* from here the caller may free it */
        ns_cond_broadcast(pool->done);
    }
    ns_mutex_unlock(pool->mu);
}

enum ns_code ns_iopool_open(unsigned n_readers, struct ns_iopool **out, struct ns_error *err)
{
    if (n_readers == 0)
        n_readers = READERS_DEFAULT;
    if (n_readers > READERS_MAX)
        n_readers = READERS_MAX;
    struct ns_iopool *pool = ns_heap_alloc(sizeof *pool);
    if (!pool)
        return ns_error_set(err, NS_BUDGET, "opening the I/O pool: out of memory");
    *pool = (struct ns_iopool){.mu = ns_mutex_open(), .done = ns_cond_open()};
    pool->reads = (struct queue){.pool = pool, .more = ns_cond_open()};
    pool->writes = (struct queue){.pool = pool, .more = ns_cond_open()};
    enum ns_code rc = NS_OK;
    if (!pool->mu || !pool->done || !pool->reads.more || !pool->writes.more)
        rc = ns_error_set(err, NS_BUDGET, "opening the I/O pool: out of memory");
    for (unsigned i = 0; i <= n_readers && rc == NS_OK; i++) {
        rc = ns_thread_start(serve, i < n_readers ? &pool->reads : &pool->writes, &pool->thread[i], err);
        if (rc == NS_OK)
            pool->n_threads++;
    }
    if (rc != NS_OK) {
        ns_iopool_close(pool);
        return rc;
    }
    *out = pool;
    return NS_OK;
}

void ns_iopool_close(struct ns_iopool *pool)
{
    if (!pool)
        return;
    if (pool->n_threads > 0) {
        ns_mutex_lock(pool->mu);
        pool->closing = true;
        ns_cond_broadcast(pool->reads.more);
        ns_cond_broadcast(pool->writes.more);
        ns_mutex_unlock(pool->mu);
    }
    for (unsigned i = 0; i < pool->n_threads; i++)
        ns_thread_join(pool->thread[i]);
    ns_cond_close(pool->reads.more);
    ns_cond_close(pool->writes.more);
    ns_cond_close(pool->done);
    ns_mutex_close(pool->mu);
    ns_heap_free(pool);
}

static struct queue *queue_of(struct ns_iopool *pool, const struct ns_io *io)
{
    return io->is_write ? &pool->writes : &pool->reads;
}

void ns_io_start(struct ns_iopool *pool, struct ns_io *io)
{
    struct queue *q = queue_of(pool, io);
    ns_mutex_lock(pool->mu);
    assert(io->state == IO_IDLE || io->state == IO_DONE);
    io->state = IO_QUEUED;
    append(line_of(q, io), io);
    ns_cond_signal(q->more);
    ns_mutex_unlock(pool->mu);
}

/* mu is held. */
static void wait_done(struct ns_iopool *pool, struct ns_io *io)
{
    assert(io->state != IO_IDLE);
    while (io->state != IO_DONE)
        ns_cond_wait(pool->done, pool->mu);
}

enum ns_code ns_io_wait(struct ns_iopool *pool, struct ns_io *io, struct ns_error *err)
{
    ns_mutex_lock(pool->mu);
    wait_done(pool, io);
    ns_mutex_unlock(pool->mu);
    if (io->code != NS_OK && err && err->code == NS_OK)
        *err = io->err;
    return io->code;
}

bool ns_io_done(struct ns_iopool *pool, struct ns_io *io)
{
    ns_mutex_lock(pool->mu);
    bool done = io->state == IO_DONE;
    ns_mutex_unlock(pool->mu);
    return done;
}

bool ns_io_cancel(struct ns_iopool *pool, struct ns_io *io)
{
    struct queue *q = queue_of(pool, io);
    ns_mutex_lock(pool->mu);
    bool taken = io->state == IO_QUEUED;
    if (taken) {
        take_out(line_of(q, io), io);
        io->state = IO_IDLE;
    } else {
        wait_done(pool, io);
    }
    ns_mutex_unlock(pool->mu);
    return taken;
}

void ns_iopool_stats_get(struct ns_iopool *pool, struct ns_iopool_stats *out)
{
    ns_mutex_lock(pool->mu);
    *out = pool->stats;
    if (pool->reads.n_running > 0)
        out->disk_ns += ns_clock_mono_ns() - pool->busy_since;
    ns_mutex_unlock(pool->mu);
}
