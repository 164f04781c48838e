/* storage_test.c - a night on a disk that fails: the error names the place, no result comes from that wave, requests wait
 * and do not fail, and the next run completes with the same bits. The same for a file that changes, and for a folder of
 * spilled states that fills up. */
#define _GNU_SOURCE
#include "night_fixture.h"

#include "sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SHARD "model-00002-of-00002.safetensors"

enum { GENERATE = 6, SCORE = 4, REQUESTS = GENERATE + SCORE };

struct rig {
    struct night_fixture f;
    struct ns_night_options options;
    struct ns_night_report report;
    struct ns_error err;
    char text[4400]; /* the error, with context */
    char model[96];  /* a copy, so that it may be harmed */
    struct night_tally want;
};

static void write_jobs(struct night_fixture *f)
{
    FILE *out = fopen(f->jobs, "w");
    assert_non_null(out);
    for (int i = 0; i < GENERATE; i++) {
        fprintf(out, "{\"custom_id\":\"g%d\",\"prompt\":[", i);
        for (int k = 0; k < 20; k++)
            fprintf(out, "%s%d", k ? "," : "", (i * 31 + k * 17) % 500);
        fprintf(out, "],\"max_tokens\":5}\n");
    }
    for (int i = 0; i < SCORE; i++)
        fprintf(out, "{\"custom_id\":\"s%d\",\"prompt\":[%d,7,9],\"choices\":[[1,2],[3],[4,5,6]],\"answer\":0}\n", i,
                100 + i);
    assert_int_equal(fclose(out), 0);
}

static void new_queue(struct rig *r)
{
    night_fixture_new_queue(&r->f);
    write_jobs(&r->f);
    night_fixture_submit_file(&r->f);
}

static enum ns_code run(struct rig *r)
{
    r->err = (struct ns_error){0};
    r->text[0] = '\0';
    enum ns_code rc = ns_night_run(&r->options, &r->report, &r->err);
    ns_fault_disarm();
    if (rc != NS_OK)
        ns_error_text(&r->err, r->text, sizeof r->text);
    return rc;
}

static void assert_same_results(struct rig *r)
{
    struct night_tally got;
    if (run(r) != NS_OK)
        fail_msg("%s", r->text);
    night_fixture_tally(&r->f, &got);
    assert_int_equal(got.done, REQUESTS);
    assert_memory_equal(got.digest, r->want.digest, sizeof got.digest);
    night_fixture_check(&r->f);
}

/* extra: memory beyond the floor */
static void open_rig(struct rig *r, const char *fixture, size_t extra)
{
    char command[512];
    memset(r, 0, sizeof *r);
    night_fixture_open(&r->f);
    snprintf(r->model, sizeof r->model, "%s.model", r->f.dir);
    snprintf(command, sizeof command, "cp -r '%s/fixtures/%s' '%s'", NS_TEST_DATA, fixture, r->model);
    assert_int_equal(system(command), 0);
    r->options = (struct ns_night_options){.db_path = r->f.db,
                                           .model_dir = r->model,
                                           .memory_bytes = (uint64_t)512 << 20,
                                           .n_threads = 1,
                                           .wave_rows = 16,
                                           .context = 256};
    new_queue(r);
    if (run(r) != NS_OK)
        fail_msg("%s", r->text);
    night_fixture_tally(&r->f, &r->want);
    assert_int_equal(r->want.done, REQUESTS);
    struct ns_night_plan plan;
    r->options.memory_bytes = 1;
    assert_int_equal(ns_night_plan(&r->options, &plan, NULL), NS_BUDGET);
    r->options.memory_bytes = plan.floor_bytes + extra; /* little stays: every wave reads */
}

static void close_rig(struct rig *r)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", r->model);
    assert_int_equal(system(command), 0);
    night_fixture_close(&r->f);
}

/* After a run that ended with an error of storage. */
static void assert_waiting(struct rig *r)
{
    struct night_tally t;
    night_fixture_tally(&r->f, &t);
    assert_int_equal(t.failed, 0);
    assert_int_equal(t.running, 0);
    assert_int_equal(t.queued + t.done, REQUESTS);
    assert_true(t.queued > 0);
    night_fixture_check(&r->f);
}

static void every_read_may_fail(void **state)
{
    (void)state;
    static const int modes[] = {EIO, NS_READ_ENDS};
    struct rig r;
    open_rig(&r, "k3-odd", 0);
    for (size_t m = 0; m < NS_COUNT(modes); m++) {
        enum ns_code rc = NS_IO;
        size_t in_waves = 0;
        for (uint64_t nth = 1; rc != NS_OK; nth += 1 + nth / 2) {
            new_queue(&r);
            ns_fault_arm_mode(NS_FAULT_READ, nth, modes[m], false);
            rc = run(&r);
            if (rc == NS_OK)
                break;
            assert_waiting(&r);
            if (strstr(r.text, ".safetensors, offset ")) {
                assert_int_equal(rc, NS_IO);
                assert_non_null(strstr(r.text, "storage error: reading "));
                assert_non_null(strstr(r.text, ", length "));
                assert_non_null(strstr(r.text, modes[m] == EIO ? "(errno 5)" : "the file ends after"));
                in_waves++;
            }
            assert_same_results(&r);
        }
        assert_true(in_waves >= 3);
    }
    close_rig(&r);
}

/* Reads that come in pieces are no errors at all. */
static void short_reads_go_on(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "k3-odd", 0);
    for (uint64_t nth = 1; nth < 400; nth += 40) {
        new_queue(&r);
        ns_fault_arm_mode(NS_FAULT_READ, nth, NS_READ_SHORT, true);
        assert_same_results(&r);
    }
    close_rig(&r);
}

/* C41: a disk that fails night after night; the requests are as they were, however often, and say so nowhere as failed. */
static void c41_requests_wait_for_a_broken_disk(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "k3-odd", 0);
    new_queue(&r);
    for (int i = 0; i < 6; i++) {
        ns_fault_arm_mode(NS_FAULT_READ, 60, EIO, true); /* before a wave can be complete */
        assert_int_equal(run(&r), NS_IO);
        assert_int_equal(ns_code_exit(NS_IO), 74);
        assert_non_null(strstr(r.text, "storage error: reading "));
        assert_non_null(strstr(r.text, ".safetensors, offset "));
        assert_non_null(strstr(r.text, "(errno 5)"));
        assert_int_equal(r.report.requests_failed, 0);
        assert_waiting(&r);
    }
    assert_same_results(&r);
    close_rig(&r);
}

struct changer {
    const char *path;
    bool done;
};

/* After the first wave one byte of a shard is another, and its time too. */
static void change_file(void *arg, const struct ns_night_report *report)
{
    struct changer *c = arg;
    if (c->done || report->waves == 0)
        return;
    FILE *f = fopen(c->path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    int last = fgetc(f);
    assert_true(last != EOF);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fputc(last ^ 1, f), last ^ 1);
    assert_int_equal(fclose(f), 0);
    struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, c->path, times, 0), 0);
    c->done = true;
}

static void changed_file_ends_the_run(void **state)
{
    (void)state;
    struct rig r;
    char shard[160];
    open_rig(&r, "k3-odd", 0);
    snprintf(shard, sizeof shard, "%s/%s", r.model, SHARD);
    struct changer c = {.path = shard};
    new_queue(&r);
    r.options.progress = change_file;
    r.options.progress_arg = &c;
    assert_int_equal(run(&r), NS_CORRUPT);
    assert_true(c.done);
    assert_non_null(strstr(r.text, SHARD " changed during the run"));
    assert_waiting(&r);
    assert_int_equal(r.report.waves, 1); /* no result of the second */
    r.options.progress = NULL;
    char command[512];
    snprintf(command, sizeof command, "cp '%s/fixtures/k3-odd/%s' '%s'", NS_TEST_DATA, SHARD, shard);
    assert_int_equal(system(command), 0);
    assert_same_results(&r);
    close_rig(&r);
}

/* A shard that became shorter between two runs is refused before any work; mended, the run completes. */
static void truncated_file_is_refused(void **state)
{
    (void)state;
    struct rig r;
    char shard[160];
    struct stat st;
    open_rig(&r, "k3-odd", 0);
    snprintf(shard, sizeof shard, "%s/%s", r.model, SHARD);
    assert_int_equal(stat(shard, &st), 0);
    new_queue(&r);
    assert_int_equal(truncate(shard, st.st_size - 1000), 0);
    assert_true(run(&r) != NS_OK);
    assert_non_null(strstr(r.text, SHARD));
    assert_waiting(&r);
    char command[512];
    snprintf(command, sizeof command, "cp '%s/fixtures/k3-odd/%s' '%s'", NS_TEST_DATA, SHARD, shard);
    assert_int_equal(system(command), 0);
    assert_same_results(&r);
    close_rig(&r);
}

/* C76: states that do not fit in memory go to files, below the limit, with the same answers; a folder that fills up is an
 * error that says so, and the requests wait. */
static void c76_spilled_states(void **state)
{
    (void)state;
    struct rig r;
    char dir[160];
    open_rig(&r, "k3-realhead", 0);
    snprintf(dir, sizeof dir, "%s/spill", r.model);
    r.options.spill_dir = dir;
    r.options.spill_bytes = (uint64_t)64 << 20;
    new_queue(&r);
    assert_same_results(&r);
    assert_true(r.report.bytes_spilled > 0);
    size_t full = 0;
    for (uint64_t nth = 1; nth < 200; nth *= 3) {
        new_queue(&r);
        ns_fault_arm_mode(NS_FAULT_WRITE, nth, ENOSPC, true);
        enum ns_code rc = run(&r);
        if (rc == NS_OK)
            break;
        full++;
        assert_int_equal(rc, NS_FULL);
        assert_non_null(strstr(r.text, "spilled state"));
        assert_non_null(strstr(r.text, "(errno 28)"));
        assert_waiting(&r);
        assert_same_results(&r);
    }
    assert_true(full > 0);
    /* room for one state only: fewer in flight, all the same */
    struct ns_night_plan plan;
    assert_int_equal(ns_night_plan(&r.options, &plan, NULL), NS_OK);
    r.options.spill_bytes = plan.engine.spill_file_bytes;
    new_queue(&r);
    assert_same_results(&r);
    /* and for none */
    r.options.spill_bytes = 1;
    new_queue(&r);
    assert_same_results(&r);
    assert_int_equal(r.report.bytes_spilled, 0);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_read_may_fail),
        cmocka_unit_test(short_reads_go_on),
        cmocka_unit_test(c41_requests_wait_for_a_broken_disk),
        cmocka_unit_test(changed_file_ends_the_run),
        cmocka_unit_test(truncated_file_is_refused),
        cmocka_unit_test(c76_spilled_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
