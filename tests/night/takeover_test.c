/* takeover_test.c - runners on the fake engine that do not die by themselves, and requests that make them die.
 * T7: stopped (SIGSTOP) at random moments, also inside a transaction; another runner takes over; woken up again the old one
 * writes nothing. T11: the process aborts whenever certain requests are under way: they alone fail, soon.
 * NS_ROUNDS: stops (20 unless set), and seeds of the second test, at least 50; NS_SEED where the random numbers start. */
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

enum { POISON = 4950 }; /* no job of the fixture has it */

static uint64_t rounds = 20, rnd = 1;
static int ready_fd = -1;

static void tell_ready(struct fake_machine *fake)
{
    (void)fake;
    if (ready_fd < 0)
        return;
    if (write(ready_fd, "r", 1) != 1)
        _exit(8);
    close(ready_fd);
    ready_fd = -1;
}

static int live(struct night_fixture *f, uint32_t rows, uint32_t poison)
{
    struct fake_machine fake;
    struct ns_night_report report;
    struct ns_error err = {0};
    ns_log_set_sink(NULL, NULL, NS_LOG_ERROR);
    fake_machine_init(&fake);
    fake.step_ms = poison == NS_NO_TOKEN ? 1 : 0;
    fake.on_step = tell_ready;
    fake.poison = poison;
    enum ns_code rc = night_fixture_run(f, &fake, rows, false, &report, &err);
    if (rc != NS_OK)
        fprintf(stderr, "run: %s: %s\n", err.context, err.message);
    return rc == NS_OK ? 0 : 1;
}

/* A run in a process of its own; returns once its first wave is under way, or it ended. */
static pid_t start(struct night_fixture *f, uint32_t rows, uint32_t poison)
{
    int fd[2];
    char byte;
    assert_int_equal(pipe(fd), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fd[0]);
        ready_fd = fd[1];
        _exit(live(f, rows, poison));
    }
    close(fd[1]);
    ssize_t got = read(fd[0], &byte, 1);
    assert_true(got >= 0);
    close(fd[0]);
    return pid;
}

static int end_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void undisturbed(struct night_fixture *f, uint64_t seed, size_t n, struct night_tally *want)
{
    night_fixture_submit(f, seed, n);
    assert_int_equal(end_of(start(f, 64, NS_NO_TOKEN)), 0);
    night_fixture_tally(f, want);
    assert_int_equal(want->done, n);
    night_fixture_new_queue(f);
}

/* True when it was stopped in time: the end of the run came later than the stop. */
static bool stop_and_take_over(struct night_fixture *f, size_t n, const struct night_tally *want)
{
    struct night_tally taken, got;
    int status;
    pid_t old = start(f, (uint32_t)(8 + test_random(&rnd) % 60), NS_NO_TOKEN);
    usleep((useconds_t)(test_random(&rnd) % 60000)); /* the moment; the run is under way whatever it is */
    assert_int_equal(kill(old, SIGSTOP), 0);
    assert_int_equal(waitpid(old, &status, WUNTRACED), old);
    if (!WIFSTOPPED(status)) {
        assert_int_equal(status, 0); /* it was done */
        return false;
    }
    f->takeover = true;
    assert_int_equal(end_of(start(f, (uint32_t)(8 + test_random(&rnd) % 60), NS_NO_TOKEN)), 0);
    f->takeover = false;
    night_fixture_check(f);
    night_fixture_tally(f, &taken);
    assert_int_equal(kill(old, SIGCONT), 0); /* not reaped yet, so the number is still its own */
    status = end_of(old);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    night_fixture_check(f);
    night_fixture_tally(f, &got);
    assert_memory_equal(&got, &taken, sizeof got); /* it wrote nothing */
    assert_int_equal(got.done, n);
    assert_memory_equal(got.digest, want->digest, sizeof want->digest);
    return true;
}

static void t7_stopped_runners_are_taken_over(void **state)
{
    (void)state;
    struct night_fixture f;
    night_fixture_open(&f);
    for (uint64_t stops = 0, runs = 0; stops < rounds; runs++) {
        struct night_tally want;
        assert_true(runs < 20 * rounds + 20); /* some end before they are stopped, not nearly all */
        uint64_t seed = test_random(&rnd);
        size_t n = 20 + test_random(&rnd) % 40;
        undisturbed(&f, seed, n, &want);
        night_fixture_submit(&f, seed, n);
        stops += stop_and_take_over(&f, n, &want);
        night_fixture_new_queue(&f);
    }
    night_fixture_close(&f);
}

static void submit_poisoned(struct night_fixture *f, size_t n, const size_t *culprit, size_t n_culprits)
{
    FILE *out = fopen(f->jobs, "w");
    assert_non_null(out);
    for (size_t i = 0; i < n; i++) {
        bool bad = false;
        for (size_t c = 0; c < n_culprits; c++)
            bad = bad || culprit[c] == i;
        fprintf(out, "{\"custom_id\":\"r%zu\",\"prompt\":[%zu,%d],\"max_tokens\":%u}\n", i, 1 + i % 900,
                bad ? POISON : 7, (unsigned)(1 + test_random(&rnd) % 9));
    }
    assert_int_equal(fclose(out), 0);
    night_fixture_submit_file(f);
}

static void t11_culprits_fail_alone(void **state)
{
    (void)state;
    struct night_fixture f;
    night_fixture_open(&f);
    size_t most = 0;
    for (uint64_t round = 0; round < rounds || round < 50; round++) {
        size_t n = 1 + test_random(&rnd) % 100, starts = 0, allowed = 5, culprit[3], n_culprits = 1 + round % 3;
        n_culprits = n_culprits < n ? n_culprits : n;
        size_t first = test_random(&rnd) % n;
        for (size_t c = 0; c < n_culprits; c++)
            culprit[c] = (first + c * (n / n_culprits)) % n; /* apart from each other */
        for (size_t slots = 1; slots < n; slots *= 2)
            allowed++;
        submit_poisoned(&f, n, culprit, n_culprits);
        int status;
        do {
            status = end_of(start(&f, (uint32_t)(8 + test_random(&rnd) % 60), POISON));
            assert_true(WIFEXITED(status) || WTERMSIG(status) == SIGABRT);
            night_fixture_check(&f);
            starts++;
            if (starts > n_culprits * allowed + 1)
                fail_msg("round %d: %zu starts for %zu culprits among %zu", (int)round, starts, n_culprits, n);
        } while (WIFSIGNALED(status));
        assert_int_equal(status, 0);
        most = starts > most ? starts : most;
        struct night_tally got;
        night_fixture_tally(&f, &got);
        assert_int_equal(got.failed, n_culprits);
        assert_int_equal(got.done, n - n_culprits);
        for (size_t c = 0; c < n_culprits; c++) {
            char name[24], text[2048];
            snprintf(name, sizeof name, "r%zu", culprit[c]);
            night_fixture_result(&f, name, text, sizeof text);
            assert_non_null(strstr(text, "worker_crashed"));
        }
        night_fixture_new_queue(&f);
    }
    print_message("at most %zu starts\n", most);
    night_fixture_close(&f);
}

int main(void)
{
    night_fixture_in_memory();
    const char *wanted = getenv("NS_ROUNDS"), *seed = getenv("NS_SEED");
    rounds = wanted ? strtoull(wanted, NULL, 10) : rounds;
    rnd = seed ? strtoull(seed, NULL, 10) : rnd;
    printf("rounds %llu, seed %llu\n", (unsigned long long)rounds, (unsigned long long)rnd);
    const struct CMUnitTest tests[] = {cmocka_unit_test(t7_stopped_runners_are_taken_over),
                                       cmocka_unit_test(t11_culprits_fail_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
