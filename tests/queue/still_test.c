/* still_test.c - reading a queue beside which no file may be made. */
#include "rig.h"

#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534

static const char three[] = "{\"custom_id\":\"a\",\"prompt\":[1]}\n{\"custom_id\":\"b\",\"prompt\":[2]}\n"
                            "{\"custom_id\":\"c\",\"prompt\":[3]}\n";

/* The folder is ours, or we are somebody who may only look. */
static void be_ours(struct rig *g)
{
    if (getuid() == 0)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(g->scratch.dir, 0755), 0);
}

static void be_a_guest(struct rig *g)
{
    assert_int_equal(chmod(g->db, 0644), 0);
    assert_int_equal(chmod(g->scratch.dir, 0555), 0);
    if (getuid() == 0) /* whom no mode stops */
        assert_int_equal(seteuid(NOBODY), 0);
}

static int setup(void **state)
{
    struct rig *g = calloc(1, sizeof *g);
    rig_open(g);
    rig_submit(g, "in.jsonl", three);
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    be_ours(*state);
    rig_close(*state);
    free(*state);
    return 0;
}

/* Nobody has it open: the last one who closes takes the log and the index along. */
static void close_all(struct rig *g)
{
    ns_queue_close(g->q);
    g->q = NULL;
    assert_false(ns_path_exists(scratch_path(&g->scratch, "queue.db-shm")));
}

static void read_three(struct rig *g, struct ns_queue *q)
{
    struct ns_queue_status status;
    RIG_OK(ns_queue_status_read(q, 0, &status, err));
    assert_int_equal(status.queued, 3);
    assert_false(ns_path_exists(scratch_path(&g->scratch, "queue.db-shm")));
}

static void a_guest_reads(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    close_all(g);
    be_a_guest(g);
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, err));
    assert_string_equal(ns_queue_path(q), g->db);
    read_three(g, q);
    ns_queue_close(q);
    assert_int_equal(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &q, NULL), NS_IO);
}

static void odd_names_and_links(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    char odd[512], link_path[600];
    close_all(g);
    snprintf(odd, sizeof odd, "%s/a b?c#d%%20e.db", g->scratch.dir);
    snprintf(link_path, sizeof link_path, "%s/link.db", g->scratch.dir);
    assert_int_equal(rename(g->db, odd), 0);
    assert_int_equal(symlink(odd, link_path), 0);
    snprintf(g->db, sizeof g->db, "%s", odd);
    be_a_guest(g);
    const char *const names[] = {odd, link_path};
    for (size_t i = 0; i < NS_COUNT(names); i++) {
        RIG_OK(ns_queue_open(names[i], NS_QUEUE_READ, false, &g->budget, &q, err));
        read_three(g, q);
        ns_queue_close(q);
    }
}

/* Where files may be made the library's locks are used: what is committed meanwhile is seen. */
static void a_folder_of_ours_has_locks(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    close_all(g);
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, err));
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
    rig_submit(g, "more.jsonl", three);
    struct ns_queue_status status;
    RIG_OK(ns_queue_status_read(q, 0, &status, err));
    assert_int_equal(status.queued, 6);
    ns_queue_close(q);
}

/* With somebody at work a guest reads by the index that is there, the log included. */
static void a_guest_reads_beside_a_writer(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    rig_submit(g, "more.jsonl", three);
    assert_int_equal(chmod(scratch_path(&g->scratch, "queue.db-wal"), 0644), 0);
    assert_int_equal(chmod(scratch_path(&g->scratch, "queue.db-shm"), 0644), 0);
    be_a_guest(g);
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, err));
    struct ns_queue_status status;
    RIG_OK(ns_queue_status_read(q, 0, &status, err));
    assert_int_equal(status.queued, 6);
    ns_queue_close(q);
}

struct intruder {
    struct rig *g;
    int rows;
};

static enum ns_code write_meanwhile(void *arg, const struct ns_request_info *r, struct ns_error *why)
{
    struct intruder *i = arg;
    (void)r, (void)why;
    if (i->rows++ > 0)
        return NS_OK;
    be_ours(i->g);
    RIG_OK(ns_queue_open(i->g->db, NS_QUEUE_WRITE, false, &i->g->budget, &i->g->q, err));
    rig_submit(i->g, "more.jsonl", three);
    close_all(i->g);
    be_a_guest(i->g);
    return NS_OK;
}

static void a_change_is_noticed(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    struct ns_selection all = {0};
    struct intruder intruder = {.g = g};
    struct ns_error why = {0};
    close_all(g);
    be_a_guest(g);
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, err));
    assert_int_equal(ns_queue_each_request(q, &all, false, write_meanwhile, &intruder, &why), NS_BUSY);
    assert_int_equal(intruder.rows, 1); /* the row that came before the change, and none after */
    assert_non_null(strstr(why.message, g->db));
    ns_queue_close(q);
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, err));
    intruder.rows = 1;
    RIG_OK(ns_queue_each_request(q, &all, false, write_meanwhile, &intruder, err));
    assert_int_equal(intruder.rows, 7);
    ns_queue_close(q);
}

/* A log without an index is what a run with --single-owner leaves when it dies. */
static void a_log_is_not_passed_over(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    struct ns_error err = {0};
    close_all(g);
    scratch_write(&g->scratch, "queue.db-wal", "something", 9);
    be_a_guest(g);
    assert_int_equal(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, &err), NS_IO);
    assert_non_null(strstr(err.message, "queue.db-wal"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_guest_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(odd_names_and_links, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_of_ours_has_locks, setup, teardown),
        cmocka_unit_test_setup_teardown(a_guest_reads_beside_a_writer, setup, teardown),
        cmocka_unit_test_setup_teardown(a_change_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_log_is_not_passed_over, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
