/* iopool_test.c - the I/O pool: order, errors, cancelling, closing. */
#include "../scratch.h"
#include "sys/sys.h"

#include <errno.h>

#define N     65536
#define N_IOS 16

struct fixture {
    struct scratch scratch;
    struct ns_file *file;
    struct ns_iopool *pool;
    uint8_t bytes[N], got[N_IOS][N / N_IOS];
    struct ns_io io[N_IOS];
};

static int setup(void **state)
{
    struct fixture *f = test_calloc(1, sizeof *f);
    scratch_open(&f->scratch);
    for (size_t i = 0; i < N; i++)
        f->bytes[i] = (uint8_t)(i * 11 + i / 256);
    scratch_write(&f->scratch, "data", f->bytes, N);
    assert_int_equal(ns_file_open(f->scratch.path, NS_FILE_WRITE, &f->file, NULL), NS_OK);
    assert_int_equal(ns_iopool_open(2, &f->pool, NULL), NS_OK);
    for (size_t i = 0; i < N_IOS; i++)
        f->io[i] =
            (struct ns_io){.file = f->file, .buffer = f->got[i], .n = N / N_IOS, .offset = (uint64_t)i * (N / N_IOS)};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    ns_fault_disarm();
    ns_iopool_close(f->pool);
    assert_int_equal(ns_file_close(f->file, NULL), NS_OK);
    scratch_close(&f->scratch);
    test_free(f);
    return 0;
}

static void every_read_arrives(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < N_IOS; i++)
        ns_io_start(f->pool, &f->io[i]);
    for (size_t i = N_IOS; i-- > 0;)
        assert_int_equal(ns_io_wait(f->pool, &f->io[i], NULL), NS_OK);
    assert_memory_equal(f->got, f->bytes, N);
    struct ns_iopool_stats stats;
    ns_iopool_stats_get(f->pool, &stats);
    assert_int_equal(stats.reads, N_IOS);
    assert_int_equal(stats.read_bytes, N);
    assert_true(stats.disk_ns > 0 && stats.read_ns > 0);
}

static void one_failure_is_one_requests_failure(void **state)
{
    struct fixture *f = *state;
    ns_fault_arm_mode(NS_FAULT_READ, 5, ENXIO, false);
    for (size_t i = 0; i < N_IOS; i++)
        ns_io_start(f->pool, &f->io[i]);
    size_t failed = 0;
    for (size_t i = 0; i < N_IOS; i++) {
        struct ns_error err = {0};
        if (ns_io_wait(f->pool, &f->io[i], &err) == NS_OK) {
            assert_memory_equal(f->got[i], f->bytes + i * (N / N_IOS), N / N_IOS);
            continue;
        }
        failed++;
        assert_int_equal(err.code, NS_IO);
        assert_non_null(strstr(err.message, "data"));
        assert_non_null(strstr(err.message, "length 4096"));
    }
    assert_int_equal(failed, 1);
}

/* A read past the end: an error, or with may_end what is there. */
static void the_end_of_the_file(void **state)
{
    struct fixture *f = *state;
    struct ns_io *io = &f->io[0];
    io->offset = N - 100;
    ns_io_start(f->pool, io);
    assert_int_equal(ns_io_wait(f->pool, io, NULL), NS_IO);
    io->may_end = true;
    ns_io_start(f->pool, io);
    assert_int_equal(ns_io_wait(f->pool, io, NULL), NS_OK);
    assert_int_equal(io->got, 100);
    assert_memory_equal(f->got[0], f->bytes + N - 100, 100);
}

/* The readers are kept busy with a pipe that does not deliver: what stands behind them can be taken out. */
static void cancel_is_clean(void **state)
{
    struct fixture *f = *state;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < N_IOS; i++)
            ns_io_start(f->pool, &f->io[i]);
        /* from the middle, the end and the front: whichever were not begun come back unread */
        static const size_t order[N_IOS] = {7, 15, 8, 14, 0, 1, 13, 2, 12, 3, 11, 4, 10, 5, 9, 6};
        for (size_t i = 0; i < N_IOS; i++)
            if (!ns_io_cancel(f->pool, &f->io[order[i]])) {
                assert_int_equal(f->io[order[i]].code, NS_OK);
                assert_memory_equal(f->got[order[i]], f->bytes + order[i] * (N / N_IOS), N / N_IOS);
            }
    }
    /* the queue is still sound */
    ns_io_start(f->pool, &f->io[3]);
    assert_int_equal(ns_io_wait(f->pool, &f->io[3], NULL), NS_OK);
}

static void close_waits(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < N_IOS; i++)
        ns_io_start(f->pool, &f->io[i]);
    ns_iopool_close(f->pool);
    f->pool = NULL;
    assert_memory_equal(f->got, f->bytes, N);
}

static void writes_do_not_block_reads(void **state)
{
    struct fixture *f = *state;
    static uint8_t out[N / N_IOS];
    memset(out, 0x5A, sizeof out);
    struct ns_io write = {.file = f->file, .buffer = out, .n = sizeof out, .offset = N, .is_write = true};
    ns_io_start(f->pool, &write);
    for (size_t i = 0; i < N_IOS; i++)
        ns_io_start(f->pool, &f->io[i]);
    for (size_t i = 0; i < N_IOS; i++)
        assert_int_equal(ns_io_wait(f->pool, &f->io[i], NULL), NS_OK);
    assert_int_equal(ns_io_wait(f->pool, &write, NULL), NS_OK);
    assert_int_equal(ns_file_read(f->file, f->got[0], sizeof out, N, NULL), NS_OK);
    assert_memory_equal(f->got[0], out, sizeof out);
}

/* One reader serves one after the other: when the urgent one is done and one started before it is not, it has overtaken. It
 * can only do so while the others wait, which is up to the machine; in the order of arrival it never would. */
static void urgent_ones_overtake(void **state)
{
    struct fixture *f = *state;
    struct ns_iopool *pool = NULL;
    assert_int_equal(ns_iopool_open(1, &pool, NULL), NS_OK);
    f->io[N_IOS - 1].urgent = true;
    bool overtook = false;
    for (int round = 0; round < 10000 && !overtook; round++) {
        for (size_t i = 0; i < N_IOS; i++)
            ns_io_start(pool, &f->io[i]);
        assert_int_equal(ns_io_wait(pool, &f->io[N_IOS - 1], NULL), NS_OK);
        overtook = !ns_io_done(pool, &f->io[N_IOS - 2]);
        for (size_t i = 0; i < N_IOS; i++)
            assert_int_equal(ns_io_wait(pool, &f->io[i], NULL), NS_OK);
    }
    assert_true(overtook);
    assert_memory_equal(f->got, f->bytes, N);
    ns_iopool_close(pool);
}

/* The same from both lines of a queue. */
static void cancel_finds_urgent_ones(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < N_IOS; i += 3)
        f->io[i].urgent = true;
    cancel_is_clean(state);
}

static void open_survives_every_failed_allocation(void **state)
{
    (void)state;
    enum ns_code rc = NS_BUDGET;
    for (uint64_t nth = 1; rc != NS_OK; nth++) {
        struct ns_iopool *pool = NULL;
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = ns_iopool_open(2, &pool, NULL);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        assert_true((rc == NS_OK) == (pool != NULL));
        ns_iopool_close(pool);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(every_read_arrives),
        T(one_failure_is_one_requests_failure),
        T(the_end_of_the_file),
        T(cancel_is_clean),
        T(cancel_finds_urgent_ones),
        T(urgent_ones_overtake),
        T(close_waits),
        T(writes_do_not_block_reads),
        T(open_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
