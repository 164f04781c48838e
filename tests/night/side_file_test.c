/* side_file_test.c - snapshots and suspended waves of the real engine on the demo model: restored or refused and counted,
 * after deaths at every step of saving, without room for them, with wrong bytes, on a disk that fails. NS_FLIPS: how many
 * wrong bytes; NS_ALL: more of the failing reads. */
#define _GNU_SOURCE
#include "demo_night.h"

#include "sys/sys.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

static enum ns_code keep_kind(void *arg, const struct ns_attempt_info *attempt, struct ns_error *err)
{
    (void)err;
    snprintf(arg, 16, "%s", attempt->resume_kind); /* the last one stays */
    return NS_OK;
}

/* What the queue says of the one request: how its last attempt began, and the counts in its result. */
static void check_counts(struct night_fixture *f, const char *kind, unsigned restored, unsigned recomputed)
{
    struct ns_error err = {0};
    struct ns_queue *queue = NULL;
    static struct outcomes got;
    char found[16] = "", counts[64];
    must(ns_queue_open(f->db, NS_QUEUE_READ, false, &f->budget, &queue, &err), &err);
    must(ns_queue_each_attempt(queue, 1, keep_kind, found, &err), &err);
    ns_queue_close(queue);
    assert_string_equal(found, kind);
    read_outcomes(f, &got);
    snprintf(counts, sizeof counts, "\"restored\":%u,\"recomputed\":%u", restored, recomputed);
    if (!strstr(got.of[0].local, counts))
        fail_msg("%s expected in %s", counts, got.of[0].local);
    assert_int_equal(report->tokens_restored, restored);
    assert_int_equal(report->tokens_recomputed, recomputed);
}

enum damage {
    WHOLE,
    GONE,
    LONGER,   /* more bytes than the row says */
    APPENDED, /* more bytes, and the row says so */
    UNKNOWN,  /* something in a part of the head that has no meaning */
    NEWER,
    OLDER,
    ABI_NEWER,
    ABI_OLDER,
    OTHER_MODEL,
    DAMAGES
};

/* The head of a side file with another number at this place, and a sum that is right. */
static void renumber(const char *path, long at, int by)
{
    uint8_t head[256];
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof head, file), sizeof head);
    ns_put_le32(head + at, ns_le32(head + at) + (uint32_t)by);
    ns_put_le32(head + 252, ns_crc32c(0, head, 252));
    rewind(file);
    assert_int_equal(fwrite(head, 1, sizeof head, file), sizeof head);
    assert_int_equal(fclose(file), 0);
}

/* 64 bytes more, in the file and in its row. */
static void append_section(const struct night_fixture *f, const char *path)
{
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    for (int i = 0; i < 64; i++)
        assert_int_equal(fputc('a' + i % 26, file), 'a' + i % 26);
    assert_int_equal(fclose(file), 0);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(f->db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "UPDATE state_files SET bytes = bytes + 64; UPDATE suspends SET bytes = bytes + 64",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void damage_side_files(const struct night_fixture *f, enum damage damage)
{
    struct entries e;
    list_side_files(f, &e);
    assert_int_equal(e.n, 1);
    char path[200];
    snprintf(path, sizeof path, "%s/%s", e.dir, e.name[0]);
    if (damage == GONE)
        assert_int_equal(unlink(path), 0);
    else if (damage == LONGER)
        assert_int_equal(truncate(path, 1 << 20), 0);
    else if (damage == APPENDED)
        append_section(f, path);
    else if (damage != WHOLE)
        renumber(path,
                 damage == OTHER_MODEL ? 16
                 : damage == UNKNOWN   ? 240
                 : damage <= OLDER     ? 8
                                       : 12,
                 damage == OLDER || damage == ABI_OLDER ? -1 : 1);
}

/* C62: what was saved is not computed again, and the counts say so. C64, C65: a file of another model or version is
 * refused, its wave or state is computed again, and the counts say that. Stopped after so many steps; then the file is damaged. */
static void resume_one(struct night_fixture *f, const struct outcomes *want, uint64_t steps, enum damage damage)
{
    static struct outcomes got;
    char when[64];
    uint64_t waves = steps / STEPS; /* complete ones: as many tokens */
    bool suspended = steps % STEPS != 0;
    night_fixture_new_queue(f);
    submit_long(f, 1);
    assert_true(run(f, 128, steps));
    assert_int_equal(report->waves, waves);
    assert_int_equal(suspended_files(f), suspended);
    damage_side_files(f, damage);
    assert_false(run(f, 128, 0));
    night_fixture_check(f);
    unsigned computed = waves > 0 ? PROMPT + (unsigned)waves - 1 : 0; /* positions before the stop */
    if (damage == WHOLE) {
        unsigned in_wave = !suspended ? 0 : waves > 0 ? 1 : PROMPT; /* the wave that was finished */
        check_counts(f, "state", computed + in_wave, 0);
        assert_int_equal(report->rows, in_wave + NEW - waves - suspended);
    } else {
        check_counts(f, waves > 0 ? "replay" : "fresh", 0, computed);
        assert_int_equal(report->rows, PROMPT + NEW - 1);
    }
    /* said once, for people who look later */
    static const char dropped[] = "SELECT COUNT(*) FROM events WHERE level = 'warn' AND kind LIKE '% dropped'";
    assert_int_equal(night_fixture_number(f, dropped), damage != WHOLE);
    read_outcomes(f, &got);
    snprintf(when, sizeof when, "damage %d after %llu steps", (int)damage, (unsigned long long)steps);
    same_outcomes(want, &got, when);
}

static void c62_c64_c65_restored_or_refused_and_counted(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    open_long(&f, 1, &want);
    for (int damage = WHOLE; damage < DAMAGES; damage++) {
        resume_one(&f, &want, 5 * STEPS, (enum damage)damage);     /* a snapshot */
        resume_one(&f, &want, 4 * STEPS + 5, (enum damage)damage); /* a decode wave */
        resume_one(&f, &want, 5, (enum damage)damage);             /* the prompt's wave */
    }
    night_fixture_close(&f);
}

/* T2 and C59: after a death at any step of saving, a start finds what was saved before, or what is saved now. */
static void every_crash_point_of_side_files(void **state)
{
    (void)state;

    static const struct {
        const char *name;
        uint64_t steps; /* before the stop; 0: none */
        bool once;      /* in a life: then the k-th visit is in the k-th life, each of which dies there */
    } point[] = {{"side.written", 4 * STEPS + 5, true},   {"side.data_synced", 4 * STEPS + 5, true},
                 {"suspend.synced", 4 * STEPS + 5, true}, {"suspend.renamed", 4 * STEPS + 5, true},
                 {"suspend.before", 4 * STEPS + 5, true}, {"suspend.after", 4 * STEPS + 5, true},
                 {"side.written", 24 * STEPS, false},     {"side.data_synced", 24 * STEPS, false},
                 {"state.synced", 24 * STEPS, false},     {"state.renamed", 24 * STEPS, false},
                 {"state.dir_synced", 5 * STEPS, true},   {"wave.computed", 0, false}};

    struct night_fixture f;
    static struct outcomes want;
    open_long(&f, 6, &want);
    for (size_t i = 0; i < NS_COUNT(point); i++)
        for (uint64_t visit = 1; visit <= 5; visit++) {
            char when[64];
            struct trial t = {.rows = 128,
                              .stop_after = point[i].steps,
                              .crash_at = point[i].name,
                              .visit = point[i].once ? 1 : visit};
            if (visit == 1 || !point[i].once) {
                night_fixture_new_queue(&f);
                submit_long(&f, 6);
                assert_true(run(&f, 128, 6 * STEPS)); /* an older snapshot of each */
            }
            snprintf(when, sizeof when, "%s, visit %llu", t.crash_at, (unsigned long long)visit);
            int status = try_run(&f, &t);
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
                fail_msg("%s was not reached", when);
            night_fixture_check(&f);
            if (point[i].once && visit < 5)
                continue;
            finish_well(&f, &want, when);
            assert_true(report->tokens_restored >= 6 * PROMPT);
        }
    night_fixture_close(&f);
}

/* The run meets the fault and everything is well after the next one; false when it has fewer such calls. */
static bool survives(struct night_fixture *f, const struct outcomes *want, const struct trial *t, const char *what)
{
    char when[96];
    snprintf(when, sizeof when, "%s %llu%s, errno %d, after %llu steps", what, (unsigned long long)t->fault.nth,
             t->fault.sticky ? " and later" : "", t->fault.mode, (unsigned long long)t->stop_after);
    int status = try_run(f, t);
    if (!WIFEXITED(status))
        fail_msg("%s: status %x", when, (unsigned)status);
    int code = WEXITSTATUS(status);
    /* a write in vain costs time; a sync that failed, or a weight that could not be read, may end the run */
    if (code != 0 && code != TRIAL_NOT_REACHED && (code != TRIAL_FAILED || t->fault.kind == NS_FAULT_WRITE))
        fail_msg("%s: exit %d", when, code);
    finish_well(f, want, when);
    return code != TRIAL_NOT_REACHED;
}

/* T3, T8: every write and sync of side files fails at a stop, for want of room or because the disk is broken, once or from
 * then on: the run ends as asked, and the wave or the state is computed again. */
static void t3_t8_every_failing_write_and_sync(void **state)
{
    (void)state;

    static const struct {
        enum ns_fault_kind kind;
        const char *name;
    } call[] = {{NS_FAULT_WRITE, "write"}, {NS_FAULT_SYNC, "sync"}};

    static const int modes[] = {EIO, ENOSPC};
    struct night_fixture f;
    static struct outcomes want;
    open_long(&f, 2, &want);
    for (unsigned k = 0; k < 16; k++) {
        struct trial t = {.rows = 128,
                          .stop_after = 3 * STEPS + (k & 1 ? 5 : 0), /* in a wave; states */
                          .fault = {.kind = call[k >> 1 & 1].kind, .mode = modes[k >> 2 & 1], .sticky = k >> 3 & 1}};
        for (bool reached = true; reached;) {
            night_fixture_new_queue(&f);
            submit_long(&f, 2);
            t.fault.nth++;
            reached = survives(&f, &want, &t, call[k >> 1 & 1].name);
        }
        assert_true(t.fault.nth > 3); /* some were */
    }
    night_fixture_close(&f);
}

/* T3: what was saved cannot be read, nor can a weight, at any read of the next run. */
static void t3_failing_reads_of_the_next_run(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    uint64_t share = getenv("NS_ALL") ? 8 : 2;
    open_long(&f, 2, &want);
    for (unsigned k = 0; k < 4; k++) {
        struct trial t = {.rows = 128, .fault = {.kind = NS_FAULT_READ, .mode = EIO, .sticky = k >> 1 & 1}};
        uint64_t lives = 0;
        for (bool reached = true; reached; lives++) {
            night_fixture_new_queue(&f);
            submit_long(&f, 2);
            assert_true(run(&f, 128, 3 * STEPS + (k & 1 ? 5 : 0)));
            t.fault.nth += 1 + t.fault.nth / share; /* side files come first */
            reached = survives(&f, &want, &t, "read");
        }
        assert_true(lives > 3);
    }
    night_fixture_close(&f);
}

/* The queue of a moment, with its side files, to be brought back. */
static void copy_queue(const struct night_fixture *f, bool back)
{
    char command[512];
    int n = back
                ? snprintf(command, sizeof command, "rm -rf '%s'* && cp -a '%s.kept'/. '%s'", f->db, f->dir, f->dir)
                : snprintf(command, sizeof command, "rm -rf '%s.kept' && cp -a '%s' '%s.kept'", f->dir, f->dir, f->dir);
    assert_true(n > 0 && (size_t)n < sizeof command);
    assert_int_equal(system(command), 0);
}

/* The first bytes one after the other, then any. */
static long flip_byte(const char *path, long i, uint64_t *rnd)
{
    uint8_t byte;
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long at = i < 4 ? i * 30 : (long)(test_random(rnd) % (uint64_t)ftell(file));
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fread(&byte, 1, 1, file), 1);
    byte ^= (uint8_t)(1 + test_random(rnd) % 255);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fwrite(&byte, 1, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    return at;
}

/* T13: any byte of a side file is wrong: found by doctor, refused, and computed again. */
static void t13_flipped_side_files(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want, got;
    const char *flips = getenv("NS_FLIPS"), *first = getenv("NS_SEED");
    long n = flips ? strtol(flips, NULL, 10) : 12;
    uint64_t rnd = first ? strtoull(first, NULL, 10) : 5;
    open_long(&f, 1, &want);
    for (int kind = 0; kind < 2; kind++) { /* a snapshot, a wave */
        night_fixture_new_queue(&f);
        submit_long(&f, 1);
        assert_true(run(&f, 128, kind == 0 ? 30 * STEPS : 30 * STEPS + 4));
        copy_queue(&f, false);
        for (long i = 0; i < n / 2; i++) {
            char when[64], path[200];
            struct entries e;
            copy_queue(&f, true);
            list_side_files(&f, &e);
            assert_int_equal(e.n, 1);
            snprintf(path, sizeof path, "%s/%s", e.dir, e.name[0]);
            long at = flip_byte(path, i, &rnd);
            snprintf(when, sizeof when, "%s, byte %ld flipped", kind ? "a wave" : "a snapshot", at);
            if (night_fixture_findings(&f) != 1)
                fail_msg("%s: doctor does not see it", when);
            assert_false(run(&f, 128, 0));
            assert_int_equal(report->tokens_restored, 0);
            night_fixture_check(&f);
            read_outcomes(&f, &got);
            same_outcomes(&want, &got, when);
        }
    }
    print_message("%ld bytes flipped\n", n / 2 * 2);
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s.kept'", f.dir);
    assert_int_equal(system(command), 0);
    night_fixture_close(&f);
}

int main(void)
{
    demo_night_init();
    cmocka_set_test_filter(getenv("NS_ONLY")); /* a pattern, to repeat one of them */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c62_c64_c65_restored_or_refused_and_counted),
        cmocka_unit_test(every_crash_point_of_side_files),
        cmocka_unit_test(t3_t8_every_failing_write_and_sync),
        cmocka_unit_test(t3_failing_reads_of_the_next_run),
        cmocka_unit_test(t13_flipped_side_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
