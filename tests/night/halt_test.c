/* halt_test.c - the real engine on the demo model, stopped politely at chosen layer boundaries: after any number of stops, in
 * waves of any size, every result is that of an undisturbed run, and the next run starts at once (C70: it would be refused
 * otherwise). The stops come from the test's own wave_step, so a failure repeats. Every run is a child process, as it is for
 * people. NS_SEEDS: rounds of stop after stop, and a quarter of the second signals. */
#define _GNU_SOURCE
#include "demo_night.h"

#include "sys/sys.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Every step-th line of a demo file. */
static void copy_lines(FILE *out, const char *path, size_t step)
{
    char line[4096];
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    for (size_t i = 0; fgets(line, sizeof line, in); i++)
        if (i % step == 0)
            fputs(line, out);
    fclose(in);
}

static void submit(struct night_fixture *f, size_t choice_step, size_t generate_step)
{
    FILE *out = fopen(f->jobs, "w");
    assert_non_null(out);
    copy_lines(out, DEMO "/demo-choice.jsonl", choice_step);
    copy_lines(out, DEMO "/demo-generate.jsonl", generate_step);
    assert_int_equal(fclose(out), 0);
    night_fixture_submit_file(f);
}

/* One stop in front of every layer of every wave, each time in a new queue; the rest in one run with waves of another size. */
static void stop_at_every_boundary(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want, got;
    night_fixture_open(&f);
    submit(&f, 25, 25);
    assert_false(run(&f, 256, 0));
    read_outcomes(&f, &want);
    uint64_t steps = 1, resumed = 0;
    for (bool stopped = true; stopped; steps++) {
        char when[64];
        night_fixture_new_queue(&f);
        submit(&f, 25, 25);
        stopped = run(&f, 24, steps);
        night_fixture_check(&f);
        resumed += suspended_files(&f);
        assert_false(run(&f, 24 + (uint32_t)(steps % 40), 0));
        night_fixture_check(&f);
        assert_int_equal(suspended_files(&f), 0);
        read_outcomes(&f, &got);
        snprintf(when, sizeof when, "stopped after %llu steps", (unsigned long long)steps);
        same_outcomes(&want, &got, when);
    }
    assert_true(steps > 50);
    assert_true(resumed > steps / 2); /* of 11 steps the last two end a wave */
    night_fixture_close(&f);
}

static void stop_after_stop(struct night_fixture *f, const struct outcomes *want, uint64_t seed)
{
    static struct outcomes got;
    char when[64];
    uint64_t rnd = seed;
    night_fixture_new_queue(f);
    submit(f, 1, 3);
    size_t stops = 0;
    for (bool stopped = true; stopped; stops++) {
        uint32_t rows = (uint32_t)(16 + test_random(&rnd) % 300);
        stopped = run(f, rows, 1 + test_random(&rnd) % 60);
        night_fixture_check(f);
    }
    read_outcomes(f, &got);
    snprintf(when, sizeof when, "seed %llu, %zu stops", (unsigned long long)seed, stops);
    same_outcomes(want, &got, when);
    print_message("%s\n", when);
}

static void stops_change_no_result(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    const char *seeds = getenv("NS_SEEDS"), *first = getenv("NS_SEED");
    night_fixture_open(&f);
    submit(&f, 1, 3);
    assert_false(run(&f, 256, 0));
    read_outcomes(&f, &want);
    assert_int_equal(report->requests_failed, 0);
    uint64_t n = seeds ? strtoull(seeds, NULL, 10) : 3, from = first ? strtoull(first, NULL, 10) : 1;
    for (uint64_t i = 0; i < n; i++)
        stop_after_stop(&f, &want, from + i);
    night_fixture_close(&f);
}

static void check_local(const struct outcomes *got, size_t i, unsigned restored, unsigned recomputed)
{
    char counts[64];
    snprintf(counts, sizeof counts, "\"restored\":%u,\"recomputed\":%u", restored, recomputed);
    if (!strstr(got->of[i].local, counts))
        fail_msg("%s: %s expected in %s", got->of[i].name, counts, got->of[i].local);
}

static void remove_suspended(const struct night_fixture *f)
{
    struct entries e;
    char path[200];
    list_side_files(f, &e);
    assert_int_equal(e.n, 1);
    snprintf(path, sizeof path, "%s/%s", e.dir, e.name[0]);
    assert_int_equal(unlink(path), 0);
}

/* Stopped in a wave, then its file kept or removed; both results are those of an undisturbed run. */
static void stop_and_count(struct night_fixture *f, const char *lines, uint32_t rows, uint64_t steps, bool kept,
                           struct outcomes *got)
{
    static struct outcomes want;
    night_fixture_new_queue(f);
    night_fixture_submit_text(f, lines);
    assert_false(run(f, rows, 0));
    read_outcomes(f, &want);
    night_fixture_new_queue(f);
    night_fixture_submit_text(f, lines);
    assert_true(run(f, rows, steps));
    assert_int_equal(suspended_files(f), 1);
    if (!kept)
        remove_suspended(f);
    assert_false(run(f, rows, 0));
    night_fixture_check(f);
    read_outcomes(f, got);
    same_outcomes(&want, got, kept ? "wave kept" : "wave lost");
}

/* What ends with the wave that was put aside is counted too: scores, a last token, an echo. A part of a long score that came
 * back too early to be of use is counted as computed again. */
static void scores_and_last_tokens_are_counted(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"custom_id\":\"c\",\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12],\"choices\":[[5,6],[7],[8,9,10]]}\n"
        "{\"custom_id\":\"g\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[21,22,23,24,25],"
        "\"max_tokens\":1}}\n"
        "{\"custom_id\":\"e\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[31,32,33,34],"
        "\"max_tokens\":0,\"echo\":true,\"logprobs\":0}}\n";
    static const char long_one[] = "{\"custom_id\":\"l\",\"prompt\":[1,2,3,4],\"choices\":[[5,6,7,8,9,10,11,12,13,14,"
                                   "15,16,17,18,19,20,21,22,23,24,25,"
                                   "26,27,28,29,30,31,32,33,34,35,36,37,38,39,40]]}\n";
    struct night_fixture f;
    static struct outcomes got;
    night_fixture_open(&f);
    stop_and_count(&f, lines, 128, 5, true, &got);
    check_local(&got, 0, 13 + 12 + 14, 0);
    check_local(&got, 1, 5, 0);
    check_local(&got, 2, 3, 0);
    assert_int_equal(report->tokens_restored, 39 + 5 + 3);
    assert_int_equal(report->tokens_recomputed, 0);
    stop_and_count(&f, lines, 128, 5, false, &got);
    for (size_t i = 0; i < got.n; i++)
        check_local(&got, i, 0, 0); /* nothing of it was known */
    stop_and_count(&f, long_one, 16, STEPS + 5, true, &got);
    check_local(&got, 0, 0, 32); /* two waves of 16 positions: the first one's scores went with the run */
    night_fixture_close(&f);
}

static void set_control(const struct night_fixture *f, enum ns_control_verb verb)
{
    struct ns_budget budget;
    struct ns_queue *q = NULL;
    struct ns_error err = {0};
    ns_budget_init(&budget, "control", (size_t)8 << 20);
    must(ns_queue_open(f->db, NS_QUEUE_WRITE, false, &budget, &q, &err), &err);
    must(ns_queue_set_control(q, verb, NULL, &err), &err);
    ns_queue_close(q);
    ns_budget_fini(&budget);
}

static void stop_in_a_wave(struct night_fixture *f)
{
    night_fixture_new_queue(f);
    submit_long(f, 4);
    assert_true(run(f, 128, 3 * STEPS + 5));
    assert_int_equal(suspended_files(f), 1);
}

/* Hears the run say that it waits, and only then ends the pause. */
static void resume_when_it_waits(void *arg, enum ns_log_level level, const char *text)
{
    (void)level;
    if (strstr(text, "the queue is paused"))
        set_control(arg, NS_CONTROL_RESUME);
}

/* While nothing may be claimed, the wave would serve nobody: a run that drains leaves it, one that is paused waits. */
static void a_wave_put_aside_waits_for_its_requests(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    open_long(&f, 4, &want);
    stop_in_a_wave(&f);
    finish_well(&f, &want, "at once");
    uint64_t waves = report->waves;
    stop_in_a_wave(&f);
    set_control(&f, NS_CONTROL_DRAIN);
    assert_false(run(&f, 128, 0));
    assert_int_equal(report->waves, 0);
    assert_int_equal(suspended_files(&f), 1);
    set_control(&f, NS_CONTROL_PAUSE);
    assert_int_equal(try_run(&f, &(struct trial){.rows = 128, .hear = resume_when_it_waits, .hear_arg = &f}), 0);
    assert_int_equal(report->waves, waves);
    finish_well(&f, &want, "after a drain and a pause");
    assert_int_equal(night_fixture_number(&f, "SELECT paused FROM control"), 0);
    night_fixture_close(&f);
}

/* C68: a second signal, at many moments while the first one's file is being written. */
static void c68_second_signal_while_saving(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    const char *seeds = getenv("NS_SEEDS");
    uint64_t n = seeds ? strtoull(seeds, NULL, 10) * 4 : 12;
    open_long(&f, 4, &want);
    for (uint64_t i = 0; i < n; i++) {
        char when[64];
        struct trial t = {.rows = 128, .stop_after = 3 * STEPS + 5, .second_us = 1 + i * 8000 / n};
        night_fixture_new_queue(&f);
        submit_long(&f, 4);
        assert_int_equal(try_run(&f, &t), 0);
        snprintf(when, sizeof when, "second signal after %llu us", (unsigned long long)t.second_us);
        finish_well(&f, &want, when);
    }
    night_fixture_close(&f);
}

int main(void)
{
    demo_night_init();
    cmocka_set_test_filter(getenv("NS_ONLY")); /* a pattern, to repeat one of them */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_at_every_boundary),
        cmocka_unit_test(stops_change_no_result),
        cmocka_unit_test(scores_and_last_tokens_are_counted),
        cmocka_unit_test(a_wave_put_aside_waits_for_its_requests),
        cmocka_unit_test(c68_second_signal_while_saving),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
