/* demo_kill_test.c - the real program on the demo model, killed (SIGKILL) or stopped (SIGTERM, SIGINT and SIGHUP in turn) at
 * random moments until the queue is done. After every death doctor finds nothing, the next run gets the lock at once (it would
 * be refused with exit 75 otherwise; C70 wants a hundred stops), and the digest of the results equals that of an undisturbed
 * run. Every result says how many positions were restored and computed again, and that agrees with how many tokens its last
 * attempt began with.
 * NS_BINARY: the program; NS_KILLS: deaths of each kind wanted, and at least 100 stops; NS_SEED. */
#define _GNU_SOURCE
#include "../random.h"
#include "../scratch.h"
#include "base/base.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>

#define DEMO NS_SOURCE_DIR "/jobs/demo"

static char dir[64], db[96];
static const char *binary;

static pid_t start(char *const argv[], const char *out_path)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen(out_path, "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(126);
        execv(binary, argv);
        _exit(127);
    }
    return pid;
}

static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int call(const char *out_path, const char *verb, const char *a, const char *b)
{
    char *argv[] = {"nightshift", "-d", db, (char *)(uintptr_t)verb, (char *)(uintptr_t)a, (char *)(uintptr_t)b, NULL};
    int status = wait_for(start(argv, out_path));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void remove_files(const char *pattern)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf %s", pattern);
    assert_int_equal(system(command), 0);
}

static void new_queue(void)
{
    static int n;
    char old[112];
    snprintf(old, sizeof old, "%s*", db);
    if (db[0])
        remove_files(old);
    snprintf(db, sizeof db, "%s/q%d.db", dir, n++);
    assert_int_equal(call("/dev/null", "init", NULL, NULL), 0);
    assert_int_equal(call("/dev/null", "submit", DEMO "/demo-choice.jsonl", NULL), 0);
    assert_int_equal(call("/dev/null", "submit", DEMO "/demo-generate.jsonl", NULL), 0);
}

static pid_t start_run(const char *rows)
{
    char *argv[] = {"nightshift", "-d",       db,     "run",         "--model",
                    DEMO,         "--memory", "400M", "--wave-rows", (char *)(uintptr_t)rows,
                    NULL};
    return start(argv, "/dev/null");
}

static void digest(char out[128])
{
    char path[96], export[96];
    snprintf(path, sizeof path, "%s/summary", dir);
    out[0] = '\0';
    for (int i = 0; i < 2; i++) {
        snprintf(export, sizeof export, "@last");
        if (i == 1) { /* the older batch is the choices */
            char list[96];
            snprintf(list, sizeof list, "%s/list", dir);
            assert_int_equal(call(list, "list", "--ids", NULL), 0);
            FILE *in = fopen(list, "r");
            assert_non_null(in);
            assert_non_null(fgets(export, sizeof export, in));
            fclose(in);
            export[strcspn(export, "\n")] = '\0';
        }
        assert_int_equal(call(path, "export", "--summary", export), 0);
        FILE *in = fopen(path, "r");
        assert_non_null(in);
        char line[256];
        while (fgets(line, sizeof line, in))
            if (strncmp(line, "results:", 8) == 0)
                strncat(out, line + 8, 127 - strlen(out));
        fclose(in);
    }
    assert_true(strlen(out) > 20);
}

static void check_queue(void)
{
    assert_int_equal(call("/dev/null", "doctor", NULL, NULL), 0);
}

/* Results whose counts cannot be. An attempt that began with n tokens of a sequence had n_prompt + n - 1 positions behind
 * it, one more when it got a token from a wave that was put aside; scores come back as a whole, or in part for nothing.
 * After a SIGKILL nothing is restored. */
static void check_counts(bool was_killed, int64_t sum[2])
{
    static const char counts[] =
        "SELECT COUNT(*), SUM(restored), SUM(again), SUM(CASE WHEN ?1 AND restored <> 0 THEN 1"
        "  WHEN is_score THEN restored + again > prompts - n OR (?1 AND again <> 0)"
        "  WHEN began = 0 THEN again <> 0 OR restored NOT IN (0, prompts)"
        "  ELSE restored + again - began - prompts NOT IN (-1, CASE WHEN ?1 THEN -1 ELSE 0 END) END)"
        " FROM (SELECT x.local ->> '$.restored' AS restored, x.local ->> '$.recomputed' AS again,"
        "  a.resumed_from AS began, SUM(s.n_prompt) AS prompts, COUNT(*) AS n, MAX(s.mode) = 'score' AS is_score"
        "  FROM results x JOIN attempts a ON a.id = x.attempt_id JOIN sequences s ON s.request_id = x.request_id"
        "  GROUP BY x.request_id)";
    sqlite3 *q = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(db, &q, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(q, counts, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_bind_int(stmt, 1, was_killed), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(stmt, 0), 300);
    for (int i = 0; i < 2; i++)
        sum[i] += sqlite3_column_int64(stmt, 1 + i);
    if (sqlite3_column_int(stmt, 3) != 0)
        fail_msg("%s: %d results with wrong counts", db, sqlite3_column_int(stmt, 3));
    sqlite3_finalize(stmt);
    assert_int_equal(sqlite3_close(q), SQLITE_OK);
}

static int count_state(const char *state)
{
    char path[96], line[512];
    snprintf(path, sizeof path, "%s/left", dir);
    assert_int_equal(call(path, "list", "-r", state), 0);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    int n = 0;
    while (fgets(line, sizeof line, in))
        n += strchr(line, '#') != NULL;
    fclose(in);
    return n;
}

/* Runs and hits the process after after_us; true when the queue was done before that. */
static bool hit_once(uint64_t *rnd, int signal_no, uint64_t after_us)
{
    char rows[16];
    snprintf(rows, sizeof rows, "%u", (unsigned)(16 + test_random(rnd) % 300));
    pid_t pid = start_run(rows);
    usleep((useconds_t)after_us);
    kill(pid, signal_no);
    int status = wait_for(pid);
    if (signal_no == SIGKILL && WIFSIGNALED(status))
        return false;
    assert_true(WIFEXITED(status) || WTERMSIG(status) == signal_no); /* a stop before the handler is in place */
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
    return count_state("--state=queued") + count_state("--state=running") == 0;
}

/* By each of the signals in turn. */
static void hit_until_done(const int *signal_no, size_t n_signals, uint64_t wanted, uint64_t *rnd)
{
    new_queue();
    uint64_t began = ns_clock_mono_ns();
    assert_int_equal(WEXITSTATUS(wait_for(start_run("256"))), 0);
    uint64_t whole_us = (ns_clock_mono_ns() - began) / 1000;
    char want[128], got[128];
    digest(want);
    uint64_t hits = 0;
    int64_t sum[2] = {0};
    while (hits < wanted) {
        new_queue();
        for (bool done = false, fresh = true; !done; fresh = false) {
            uint64_t after_us = test_random(rnd) % whole_us;
            done = hit_once(rnd, signal_no[hits % n_signals], after_us);
            hits += done ? 0 : 1;
            if (done && fresh) /* a whole run takes less: hits would come too late for the others too */
                whole_us = after_us + 1;
            check_queue();
        }
        digest(got);
        assert_string_equal(got, want);
        check_counts(signal_no[0] == SIGKILL, sum);
    }
    print_message("%llu hits by %s: %lld positions restored, %lld computed again\n", (unsigned long long)hits,
                  signal_no[0] == SIGKILL ? "KILL" : "TERM, INT, HUP", (long long)sum[0], (long long)sum[1]);
}

static void killed_and_stopped_runs_end_like_undisturbed_ones(void **state)
{
    (void)state;
    const char *kills = getenv("NS_KILLS"), *seed = getenv("NS_SEED");
    uint64_t wanted = kills ? strtoull(kills, NULL, 10) : 10, rnd = seed ? strtoull(seed, NULL, 10) : 1;
    print_message("seed %llu\n", (unsigned long long)rnd);
    binary = getenv("NS_BINARY");
    assert_non_null(binary);
    scratch_folder(dir, sizeof dir);
    static const int deadly[] = {SIGKILL}, polite[] = {SIGTERM, SIGINT, SIGHUP};
    hit_until_done(deadly, 1, wanted, &rnd);
    hit_until_done(polite, 3, wanted > 100 ? wanted : 100, &rnd);
    remove_files(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_and_stopped_runs_end_like_undisturbed_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
