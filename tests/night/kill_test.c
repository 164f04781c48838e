/* kill_test.c - the kill loop: a runner on the fake engine is killed at random moments until the queue is done, again and
 * again with new jobs; after every death the invariants hold, and the final results equal those of an undisturbed run.
 * NS_KILLS says how many deaths, NS_SEED where the random numbers start (printed, so that a failure can be repeated). */
#define _GNU_SOURCE
#include "night_fixture.h"

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

/* Deaths in a row without a commit after which the next life is let do some waves first. More of them make the request that
 * runs alone a suspect, rightly, and how many a random delay gives depends on what else the machine does. */
#define FRUITLESS_MOST 3

static int ready_fd = -1;
static uint64_t ready_wave;

/* The first step of a wave: tells the parent that the work has begun (or, from the second on, that one is committed). */
static void tell_ready(struct fake_machine *fake)
{
    if (ready_fd >= 0 && fake->waves >= ready_wave) {
        ssize_t n = write(ready_fd, "r", 1);
        (void)n;
        close(ready_fd);
        ready_fd = -1;
    }
}

static int run_child(struct night_fixture *f, uint32_t rows)
{
    struct fake_machine fake;
    fake_machine_init(&fake);
    fake.step_ms = 1;
    fake.on_step = tell_ready;
    struct ns_night_report report;
    struct ns_error err = {0};
    enum ns_code rc = night_fixture_run(f, &fake, rows, false, &report, &err);
    if (rc != NS_OK)
        fprintf(stderr, "child: %s: %s\n", err.context, err.message);
    return rc == NS_OK ? 0 : 1;
}

/* One life: true when it ended by itself (the queue is done), false when it was killed. */
static bool live_once(struct night_fixture *f, uint64_t *rnd, uint64_t wave_us, uint64_t from_wave)
{
    uint32_t rows = (uint32_t)(8 + test_random(rnd) % 200);
    uint64_t delay_us = test_random(rnd) % (4 * wave_us);
    int pipe_fd[2];
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(pipe_fd[0]);
        ready_fd = pipe_fd[1];
        ready_wave = from_wave;
        _exit(run_child(f, rows));
    }
    close(pipe_fd[1]);
    char byte;
    ssize_t got = read(pipe_fd[0], &byte, 1); /* 0: it ended before that wave */
    close(pipe_fd[0]);
    if (got == 1) {
        usleep((useconds_t)delay_us);
        kill(pid, SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return false;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    return true;
}

/* Returns the time of a wave in microseconds. */
static uint64_t undisturbed(struct night_fixture *f, uint64_t seed, size_t n, struct night_tally *tally)
{
    night_fixture_submit(f, seed, n);
    struct fake_machine fake;
    fake_machine_init(&fake);
    fake.step_ms = 1;
    struct ns_night_report report;
    struct ns_error err = {0};
    assert_int_equal(night_fixture_run(f, &fake, 512, false, &report, &err), NS_OK);
    night_fixture_tally(f, tally);
    assert_int_equal(tally->done, n);
    night_fixture_new_queue(f);
    return report.wall_ns / 1000 / report.waves;
}

static void killed_runs_end_like_undisturbed_ones(void **state)
{
    (void)state;
    const char *kills_text = getenv("NS_KILLS"), *seed_text = getenv("NS_SEED");
    uint64_t kills_wanted = kills_text ? strtoull(kills_text, NULL, 10) : 20;
    uint64_t rnd = seed_text ? strtoull(seed_text, NULL, 10) : 1;
    print_message("kills %llu, seed %llu\n", (unsigned long long)kills_wanted, (unsigned long long)rnd);
    struct night_fixture f;
    night_fixture_open(&f);
    uint64_t kills = 0, jobs = 0;
    while (kills < kills_wanted) {
        uint64_t job_seed = test_random(&rnd);
        size_t n = 40 + test_random(&rnd) % 60;
        struct night_tally want, before = {0}, now;
        uint64_t wave_us = undisturbed(&f, job_seed, n, &want);
        night_fixture_submit(&f, job_seed, n);
        unsigned fruitless = 0;
        for (bool done = false; !done;) {
            done = live_once(&f, &rnd, wave_us, fruitless < FRUITLESS_MOST ? 1 : 4 * fruitless);
            kills += done ? 0 : 1;
            night_fixture_check(&f);
            night_fixture_tally(&f, &now);
            assert_int_equal(now.queued + now.running + now.done + now.failed, n);
            assert_true(now.done >= before.done);   /* a result never goes away */
            assert_true(now.n_out >= before.n_out); /* nor does a committed token */
            fruitless = now.done > before.done || now.n_out > before.n_out ? 0 : fruitless + 1;
            before = now;
        }
        assert_int_equal(now.done, n);
        assert_memory_equal(now.digest, want.digest, sizeof want.digest);
        night_fixture_new_queue(&f);
        jobs++;
    }
    print_message("%llu deaths over %llu jobs\n", (unsigned long long)kills, (unsigned long long)jobs);
    night_fixture_close(&f);
}

int main(void)
{
    night_fixture_in_memory();
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_runs_end_like_undisturbed_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
