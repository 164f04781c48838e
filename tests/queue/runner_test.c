/* runner_test.c - the lease: who holds it, who lost it, what happens to what it had. */
#include "rig.h"

#include <signal.h>
#include <sys/wait.h>

static int setup(void **state)
{
    struct rig *g = calloc(1, sizeof *g);
    rig_open(g);
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    rig_close(*state);
    free(*state);
    return 0;
}

static const char three[] = "{\"custom_id\":\"a\",\"prompt\":[1],\"max_tokens\":6,\"ignore_eos\":true}\n"
                            "{\"custom_id\":\"b\",\"prompt\":[2],\"max_tokens\":6,\"ignore_eos\":true}\n"
                            "{\"custom_id\":\"c\",\"prompt\":[3],\"max_tokens\":6,\"ignore_eos\":true}\n";

/* A process that starts a runner, claims n, makes waves, says so through a pipe, and waits to be killed. */
static pid_t child_runner(struct rig *g, size_t n, int waves)
{
    int fd[2];
    ns_queue_close(g->q); /* no connection may cross a fork */
    g->q = NULL;
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        ns_host_init(); /* another process now */
        struct rig_work w = {0};
        rig_start(g);
        if (n > 0)
            rig_claim(g, n, &w);
        for (int i = 0; i < waves; i++) {
            struct ns_control control;
            if (rig_wave(g, &w, &control, NULL) != NS_OK)
                _exit(3);
        }
        if (write(fd[1], "x", 1) != 1)
            _exit(4);
        for (;;)
            pause();
    }
    char c;
    assert_int_equal(read(fd[0], &c, 1), 1);
    close(fd[0]);
    close(fd[1]);
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
    return pid;
}

static void reap(pid_t pid, int signal_number)
{
    int status;
    assert_int_equal(kill(pid, signal_number), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static enum ns_code try_start(struct rig *g, bool takeover, struct ns_error *why)
{
    struct ns_runner_options o = {.takeover = takeover};
    struct ns_runner_start_report report;
    return ns_runner_start(g->db, &o, &g->budget, &g->r, &report, why);
}

static void second_runner_names_the_holder(void **state)
{
    struct rig *g = *state;
    pid_t pid = child_runner(g, 0, 0);
    struct ns_error why = {0};
    char text[64];
    assert_int_equal(try_start(g, false, &why), NS_BUSY);
    snprintf(text, sizeof text, "(pid %d) holds lane main", (int)pid);
    if (!strstr(why.message, text) || !strstr(why.message, "started 0 s ago"))
        fail_msg("%s", why.message);
    /* a lively holder is not killed even when asked */
    ns_error_clear(&why);
    assert_int_equal(try_start(g, true, &why), NS_BUSY);
    reap(pid, SIGKILL);
    RIG_OK(try_start(g, false, err));
    rig_stop(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM runners WHERE state = 'lost'"), 1);
}

/* C44: killed in the second request's generation; the next run has everything back with its tokens. C46, first
 * scenario: the same lane and name do not hide the dead one. */
static void c44_killed_runner_is_taken_over(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    pid_t pid = child_runner(g, 2, 3);
    reap(pid, SIGKILL);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'running'"), 2);
    rig_start(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'queued'"), 3);
    assert_int_equal(rig_int(g, "SELECT SUM(suspect) FROM requests"), 2);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM attempts WHERE outcome = 'lost'"), 2);
    struct rig_work w = {0};
    rig_claim(g, 10, &w);
    assert_int_equal(w.n, 3);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(w.claim[i]->n_seqs, 1);
        struct ns_claim_seq *s = &w.claim[i]->seq[0];
        assert_int_equal(s->n_out, 3);
        for (uint32_t p = 0; p < 3; p++) {
            assert_int_equal(s->token[p], rig_token(&w.request[i], p));
            assert_true(s->logprob[p] < -0.4f - (float)p && s->logprob[p] > -0.6f - (float)p);
        }
    }
    while (w.n > 0) {
        struct ns_control control;
        RIG_OK(rig_wave(g, &w, &control, err));
        ns_control_fini(&control);
    }
    rig_drop(g, &w);
    rig_stop(g);
    rig_doctor(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'done'"), 3);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM attempts"), 5);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM attempts WHERE resume_kind = 'replay' AND resumed_from = 3"), 2);
    assert_int_equal(rig_int(g, "SELECT SUM(replays) FROM results"), 2);
    assert_int_equal(rig_int(g, "SELECT SUM(suspect) FROM requests"), 0);
}

/* A process that has nothing to do with the queue and waits to be killed. */
static pid_t bystander(void)
{
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    assert_true(pid > 0);
    return pid;
}

static void let_the_row_name(struct rig *g, pid_t pid, int64_t start)
{
    char sql[128];
    snprintf(sql, sizeof sql, "UPDATE runners SET pid = %d, pid_start = %" PRId64 " WHERE ended_at IS NULL", (int)pid,
             start);
    rig_sql(g, sql);
}

/* C46, second scenario: the number of the dead runner's process belongs to another one now, even to ourselves. Start time
 * and boot id tell them apart: the row is closed, the work taken back, and nobody else is touched. */
static void c46_a_reused_pid_is_not_the_holder(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    pid_t other = bystander();
    int64_t start = ns_host_pid_start(other), own = ns_host_pid_start(ns_host_pid());
    assert_true(start > 0 && own > 0);

    const struct {
        pid_t pid;
        int64_t start;
        bool another_boot;
    } cases[] = {{other, start - 1, false}, {other, start, true}, {getpid(), own - 1, false}, {getpid(), own, true}};

    for (size_t i = 0; i < NS_COUNT(cases); i++) {
        reap(child_runner(g, 2, 1), SIGKILL);
        let_the_row_name(g, cases[i].pid, cases[i].start);
        if (cases[i].another_boot)
            rig_sql(g, "UPDATE runners SET boot_id = 'another boot' WHERE ended_at IS NULL");
        struct ns_queue_status s;
        RIG_OK(ns_queue_status_read(g->q, 0, &s, err));
        assert_true(s.runner.present && !s.runner.alive);
        RIG_OK(try_start(g, i % 2 == 1, err));
        assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM runners WHERE ended_at IS NULL"), 1);
        assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'running'"), 0);
        assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'queued'"), 3);
        rig_stop(g);
        assert_int_equal(waitpid(other, NULL, WNOHANG), 0); /* it lives */
    }
    reap(other, SIGKILL);
}

/* The lock is held by a process that has not registered; the row left open by a dead one names a bystander's number.
 * Neither is named as the holder, nor killed. */
static void c46_a_reused_pid_is_not_killed(void **state)
{
    struct rig *g = *state;
    pid_t other = bystander();
    reap(child_runner(g, 0, 0), SIGKILL);
    let_the_row_name(g, other, ns_host_pid_start(other) - 1);
    rig_sql(g, "UPDATE runners SET heartbeat_boot_ms = 0");
    char path[600];
    snprintf(path, sizeof path, "%s.lock", g->db);
    int fd[2];
    char c = 'x';
    assert_int_equal(pipe(fd), 0);
    pid_t holder = fork();
    if (holder == 0) {
        struct ns_lock *lock = NULL;
        if (ns_lock_take(path, 0, &lock, NULL) != NS_OK || write(fd[1], &c, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(fd[0], &c, 1), 1);
    for (int takeover = 0; takeover < 2; takeover++) {
        struct ns_error why = {0};
        assert_int_equal(try_start(g, takeover, &why), NS_BUSY);
        assert_non_null(strstr(why.message, "has not registered yet"));
    }
    assert_int_equal(waitpid(other, NULL, WNOHANG), 0);
    assert_int_equal(waitpid(holder, NULL, WNOHANG), 0);
    close(fd[0]);
    close(fd[1]);
    reap(holder, SIGKILL);
    reap(other, SIGKILL);
}

/* T7: a stopped process is taken over; woken up... it is dead, so nothing of it writes again. */
static void t7_stopped_holder_is_killed_on_takeover(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    pid_t pid = child_runner(g, 2, 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    struct ns_error why = {0};
    assert_int_equal(try_start(g, false, &why), NS_BUSY);
    assert_non_null(strstr(why.message, "stopped by a signal"));
    RIG_OK(try_start(g, true, err));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    RIG_OK(ns_runner_bind_model(g->r, g->scratch.dir, &g->model, "tok", err));
    rig_run(g, 10);
    rig_stop(g);
    rig_doctor(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM results WHERE status_code = 200"), 3);
}

static void fenced_runner_writes_nothing(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    rig_start(g);
    struct rig_work w = {0};
    rig_claim(g, 3, &w);
    rig_sql(g, "UPDATE runners SET state = 'lost', ended_at = 1 WHERE ended_at IS NULL");
    struct ns_control control;
    struct ns_error why = {0};
    assert_int_equal(rig_wave(g, &w, &control, &why), NS_FENCED);
    assert_int_equal(rig_int(g, "SELECT (SELECT COUNT(*) FROM seq_chunks) + (SELECT COUNT(*) FROM waves)"), 0);
    assert_int_equal(ns_runner_event(g->r, "info", "x", 0, NULL, NULL), NS_FENCED);
    int64_t id = w.claim[0]->request_id;
    assert_int_equal(ns_runner_yield(g->r, &id, 1, NULL), NS_FENCED);
    rig_drop(g, &w);
    assert_int_equal(ns_runner_stop(g->r, "x", NULL), NS_FENCED);
    g->r = NULL;
}

/* A power cut is nobody's fault: another boot id takes work back without suspicion. */
static void another_boot_blames_nobody(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    pid_t pid = child_runner(g, 2, 0);
    reap(pid, SIGKILL);
    rig_sql(g, "UPDATE runners SET boot_id = 'another boot'");
    rig_start(g);
    assert_int_equal(rig_int(g, "SELECT SUM(suspect) FROM requests"), 0);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'queued'"), 3);
    rig_stop(g);
}

/* Nor is a kill from outside, however often somebody loses patience before a wave is done: the request still completes. */
static void impatient_kills_condemn_nobody(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", "{\"custom_id\":\"a\",\"prompt\":[1],\"max_tokens\":6}\n");
    for (int i = 0; i < 20; i++)
        reap(child_runner(g, 1, 0), SIGKILL);
    rig_start(g);
    rig_run(g, 10);
    rig_stop(g);
    rig_doctor(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'done' AND suspect = 0 AND alone = 0"), 1);
}

static void stopping_gives_everything_back(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    rig_start(g);
    struct rig_work w = {0};
    rig_claim(g, 2, &w);
    rig_drop(g, &w);
    rig_stop(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'queued' AND tries = 0 AND suspect = 0"),
                     3);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM attempts WHERE outcome = 'yielded'"), 2);
    assert_int_equal(rig_int(g, "SELECT state = 'stopped' AND end_reason = 'done' FROM runners"), 1);
    rig_doctor(g);
}

/* C55: nothing to do is not an error. */
static void c55_nothing_left_to_do(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    for (int i = 0; i < 2; i++) {
        rig_start(g);
        rig_run(g, 10);
        rig_stop(g);
    }
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM results"), 3);
    struct ns_queue_status s;
    RIG_OK(ns_queue_status_read(g->q, 0, &s, err));
    assert_int_equal(s.done, 3);
    assert_true(s.waves > 0);
    assert_false(s.runner.present);
}

/* C56: another model, another numeric contract, or other ids that end a reply are refused while a batch is half done. */
static void c56_another_model_is_refused(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    rig_start(g);
    struct rig_work w = {0};
    rig_claim(g, 1, &w);
    rig_drop(g, &w);
    rig_stop(g);
    for (int i = 0; i < 4; i++) {
        struct ns_job_model other = g->model;
        if (i == 0)
            other.fingerprint[0] = 'f';
        else if (i == 1)
            other.contract[0] = 'g';
        else if (i == 2)
            other.n_stop = 0; /* generation_config.json went away */
        else
            other.stop[other.n_stop++] = 9;
        struct ns_error why = {0};
        RIG_OK(try_start(g, false, err));
        assert_int_equal(ns_runner_bind_model(g->r, g->scratch.dir, &other, "tok", &why), NS_INPUT);
        assert_non_null(strstr(why.message, "batch_"));
        rig_stop(g);
    }
    rig_sql(g, "UPDATE batches SET held = 1");
    struct ns_job_model other = g->model;
    other.fingerprint[0] = 'f';
    RIG_OK(try_start(g, false, err));
    RIG_OK(ns_runner_bind_model(g->r, g->scratch.dir, &other, "tok", err));
    rig_stop(g);
}

/* C49: a writer in the way is waited for. */
static void c49_a_commit_waits_for_a_writer(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    int fd[2], go[2];
    char c = 'g';
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(pipe(go), 0);
    pid_t pid = fork(); /* before the runner: its heartbeat may hold a lock of the library at any moment */
    if (pid == 0) {
        sqlite3 *db = NULL;
        if (read(go[0], &c, 1) != 1 || sqlite3_open(g->db, &db) != SQLITE_OK ||
            sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK || write(fd[1], "x", 1) != 1)
            _exit(1);
        ns_sleep_ms(700);
        _exit(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL));
    }
    rig_start(g);
    struct rig_work w = {0};
    rig_claim(g, 3, &w);
    assert_int_equal(write(go[1], &c, 1), 1);
    assert_int_equal(read(fd[0], &c, 1), 1);
    uint64_t began = ns_clock_mono_ns();
    struct ns_control control;
    RIG_OK(rig_wave(g, &w, &control, err));
    assert_true(ns_clock_mono_ns() - began > 300000000u);
    ns_control_fini(&control);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(fd[0]);
    close(fd[1]);
    close(go[0]);
    close(go[1]);
    rig_drop(g, &w);
    rig_stop(g);
}

static void the_heart_beats(void **state)
{
    struct rig *g = *state;
    struct ns_runner_options o = {.heartbeat_ms = 20};
    struct ns_runner_start_report start;
    RIG_OK(ns_runner_start(g->db, &o, &g->budget, &g->r, &start, err));
    int64_t first = rig_int(g, "SELECT heartbeat_boot_ms FROM runners");
    for (int i = 0; i < 500 && rig_int(g, "SELECT heartbeat_boot_ms FROM runners") == first; i++)
        ns_sleep_ms(10);
    assert_true(rig_int(g, "SELECT heartbeat_boot_ms FROM runners") > first);
    rig_stop(g);
}

static void damaged_pages_are_refused(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", three);
    ns_queue_close(g->q);
    g->q = NULL;
    FILE *f = fopen(g->db, "r+b");
    assert_non_null(f);
    unsigned char junk[3000];
    memset(junk, 0xA5, sizeof junk);
    for (long page = 4; page < 60; page += 3) {
        assert_int_equal(fseek(f, page * 4096 + 8, SEEK_SET), 0);
        fwrite(junk, 1, sizeof junk, f);
    }
    fclose(f);
    enum ns_code rc = try_start(g, false, NULL);
    assert_int_equal(rc, NS_CORRUPT);
}

static void odd_lanes(void **state)
{
    struct rig *g = *state;
    struct ns_runner_options o = {.lane = ""};
    struct ns_runner_start_report start;
    assert_int_equal(ns_runner_start(g->db, &o, &g->budget, &g->r, &start, NULL), NS_USAGE);
    o.lane = "second";
    struct ns_runner *other = NULL;
    RIG_OK(ns_runner_start(g->db, &o, &g->budget, &other, &start, err));
    rig_start(g); /* another lane is another lease */
    rig_stop(g);
    RIG_OK(ns_runner_stop(other, "done", err));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(second_runner_names_the_holder),
                                       T(c44_killed_runner_is_taken_over),
                                       T(c46_a_reused_pid_is_not_the_holder),
                                       T(c46_a_reused_pid_is_not_killed),
                                       T(t7_stopped_holder_is_killed_on_takeover),
                                       T(fenced_runner_writes_nothing),
                                       T(another_boot_blames_nobody),
                                       T(impatient_kills_condemn_nobody),
                                       T(stopping_gives_everything_back),
                                       T(c55_nothing_left_to_do),
                                       T(c56_another_model_is_refused),
                                       T(c49_a_commit_waits_for_a_writer),
                                       T(the_heart_beats),
                                       T(damaged_pages_are_refused),
                                       T(odd_lanes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
