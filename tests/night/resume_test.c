/* resume_test.c - whole nights on the demo model, memory divided as for people: a polite stop inside a large wave, then a run
 * with so little left to do that it would be given small waves. It goes on with the large one all the same. */
#define _GNU_SOURCE
#include "demo_night.h"

#include "sys/sys.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SCORES = 15, GENERATIONS = 3, IDS = 60, STOP_AFTER = 8 }; /* steps: the embedding and seven of nine layers */

static const uint64_t memory = 42000000;

static uint64_t stop_after;        /* steps; 0: never */
static struct ns_night_plan *plan; /* of the last run; shared with the child */

enum ns_code __real_ns_wave_step(struct ns_wave *wave, bool *done, struct ns_error *err);
enum ns_code __wrap_ns_wave_step(struct ns_wave *wave, bool *done, struct ns_error *err);

enum ns_code __wrap_ns_wave_step(struct ns_wave *wave, bool *done, struct ns_error *err)
{
    enum ns_code rc = __real_ns_wave_step(wave, done, err);
    if (stop_after > 0 && --stop_after == 0)
        raise(SIGTERM);
    return rc;
}

static void note_plan(void *arg, const struct ns_night_plan *p)
{
    (void)arg;
    *plan = *p;
}

static struct ns_night_options options_of(const struct night_fixture *f, uint32_t wave_rows)
{
    return (struct ns_night_options){.db_path = f->db,
                                     .model_dir = DEMO,
                                     .memory_bytes = memory,
                                     .n_threads = 1,
                                     .cpu = ns_cpu_bits(),
                                     .wave_rows = wave_rows,
                                     .planned = note_plan};
}

/* What a run of its own process says as a warning goes to this file. */
static void log_path(const struct night_fixture *f, char out[128])
{
    snprintf(out, 128, "%s/log", f->dir);
}

static void keep_line(void *arg, enum ns_log_level level, const char *line)
{
    (void)level;
    fprintf(arg, "%s\n", line);
    fflush(arg);
}

static bool night(struct night_fixture *f, uint32_t wave_rows, uint64_t steps)
{
    char log[128];
    log_path(f, log);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct ns_error err = {0};
        struct ns_night_options options = options_of(f, wave_rows);
        FILE *out = fopen(log, "w");
        stop_after = steps;
        ns_log_set_sink(keep_line, out, NS_LOG_WARN);
        ns_signal_install();
        enum ns_code rc = out ? ns_night_run(&options, report, &err) : NS_IO;
        if (rc != NS_OK)
            fprintf(stderr, "run: %s: %s\n", err.context, err.message);
        _exit(rc == NS_OK ? 0 : 9);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    return report->stopped;
}

static void put_ids(FILE *out, unsigned seed)
{
    for (unsigned i = 0; i < IDS; i++)
        fprintf(out, "%s%u", i ? "," : "", (11 + 7 * i + 131 * seed) % 2000);
}

/* Scores s0 and on, each of a prompt of its own; generations g0 and on. */
static void submit(struct night_fixture *f, unsigned scores, unsigned generations)
{
    FILE *out = fopen(f->jobs, "w");
    assert_non_null(out);
    for (unsigned r = 0; r < scores; r++) {
        fprintf(out, "{\"custom_id\":\"s%u\",\"prompt\":[", r);
        put_ids(out, r);
        fprintf(out, "],\"choices\":[[5,6],[7]]}\n");
    }
    for (unsigned r = 0; r < generations; r++) {
        fprintf(out, "{\"custom_id\":\"g%u\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[",
                r);
        put_ids(out, 50 + r);
        fprintf(out, "],\"max_tokens\":3,\"ignore_eos\":true}}\n");
    }
    assert_int_equal(fclose(out), 0);
    night_fixture_submit_file(f);
}

static void cancel(struct night_fixture *f, int64_t first, int64_t last, int64_t n)
{
    struct ns_error err = {0};
    struct ns_queue *queue = NULL;
    struct ns_selection which = {.first_id = first, .last_id = last};
    struct ns_change change = {0};
    must(ns_queue_open(f->db, NS_QUEUE_WRITE, false, &f->budget, &queue, &err), &err);
    must(ns_queue_cancel(queue, &which, &change, &err), &err);
    assert_int_equal(change.changed, n);
    ns_queue_close(queue);
}

static uint32_t planned_rows(const struct night_fixture *f, bool keep)
{
    struct ns_night_options options = options_of(f, 0);
    struct ns_night_plan p;
    struct ns_error err = {0};
    options.keep = keep;
    must(ns_night_plan(&options, &p, &err), &err);
    return p.engine.rows_max;
}

static void check_local(const struct outcome *o, unsigned restored)
{
    char counts[64];
    snprintf(counts, sizeof counts, "\"restored\":%u,\"recomputed\":0", restored);
    if (!strstr(o->local, counts))
        fail_msg("%s: %s expected in %s", o->name, counts, o->local);
}

/* One run from beginning to end: its results, and rows and bytes of its first wave. */
static void undisturbed(struct night_fixture *f, struct outcomes *out, int64_t *rows, int64_t *bytes)
{
    submit(f, SCORES, GENERATIONS);
    assert_false(night(f, 0, 0));
    read_outcomes(f, out);
    *rows = night_fixture_number(f, "SELECT n_tokens_in FROM waves ORDER BY id LIMIT 1");
    *bytes = night_fixture_number(f, "SELECT bytes_read FROM waves ORDER BY id LIMIT 1");
}

/* wave_rows: what is asked for when the wave is to go on; 0: nothing. */
static void stop_and_go_on(uint32_t wave_rows)
{
    struct night_fixture f;
    static struct outcomes want, got;
    int64_t rows, bytes;
    char log[128], said[256] = "";
    night_fixture_open(&f);
    undisturbed(&f, &want, &rows, &bytes);

    night_fixture_new_queue(&f);
    submit(&f, 1, 1);
    uint32_t alone = planned_rows(&f, false);
    assert_true(alone < rows); /* what little is left would not be given the rows of that wave */

    night_fixture_new_queue(&f);
    submit(&f, SCORES, GENERATIONS);
    assert_true(night(&f, 0, STOP_AFTER));
    assert_int_equal(night_fixture_number(&f, "SELECT COUNT(*) FROM suspends"), 1);
    assert_int_equal(night_fixture_number(&f, "SELECT COUNT(*) FROM waves"), 0);
    cancel(&f, 2, SCORES, SCORES - 1); /* s0 and g0 are left */
    cancel(&f, SCORES + 2, SCORES + GENERATIONS, GENERATIONS - 1);
    assert_true(planned_rows(&f, false) >= rows);
    assert_true(planned_rows(&f, true) >= rows);

    assert_false(night(&f, wave_rows, 0));
    assert_true(plan->engine.rows_max >= rows);
    night_fixture_check(&f);
    assert_int_equal(suspended_files(&f), 0);
    log_path(&f, log);
    FILE *in = fopen(log, "r");
    assert_non_null(in);
    while (fgets(said, sizeof said, in))
        if (!strstr(said, " runs this model too; ")) /* another test may */
            fail_msg("it warned: %s", said);
    fclose(in);
    assert_int_equal(night_fixture_number(&f, "SELECT COUNT(*) FROM events WHERE kind = 'suspend dropped'"), 0);
    assert_int_equal(night_fixture_number(&f, "SELECT n_tokens_in FROM waves ORDER BY id LIMIT 1"), rows);
    assert_int_equal(
        night_fixture_number(&f, "SELECT MAX(n_tokens_in) FROM waves WHERE id > (SELECT MIN(id) FROM waves)"), 1);
    assert_int_equal(night_fixture_number(&f, "SELECT COUNT(*) FROM waves"), 3); /* and two for the other tokens */
    /* two layers of nine and the head were left */
    int64_t again = night_fixture_number(&f, "SELECT bytes_read FROM waves ORDER BY id LIMIT 1");
    print_message("%d rows, %u planned for what is left; %d of %d bytes read\n", (int)rows, alone, (int)again,
                  (int)bytes);
    assert_true(again > 0 && again * 10 < bytes * 4);
    read_outcomes(&f, &got);
    for (size_t i = 0; i <= SCORES; i += SCORES) {
        assert_string_equal(got.of[i].name, want.of[i].name);
        assert_string_equal(got.of[i].body, want.of[i].body);
    }
    check_local(&got.of[0], IDS + 1 + IDS); /* positions that end in the two choices */
    check_local(&got.of[SCORES], IDS);
    night_fixture_close(&f);
}

static void a_large_wave_goes_on_with_little_left(void **state)
{
    (void)state;
    stop_and_go_on(0);
}

/* Later waves are no larger than that; this one has its rows behind it. */
static void a_large_wave_goes_on_whatever_rows_are_asked_for(void **state)
{
    (void)state;
    stop_and_go_on(64);
}

int main(void)
{
    demo_night_init();
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan == MAP_FAILED)
        abort();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_wave_goes_on_with_little_left),
        cmocka_unit_test(a_large_wave_goes_on_whatever_rows_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
