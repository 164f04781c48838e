/* crash_test.c - the process dies at every named point, at every visit up to the fifth, and before and after every COMMIT
 * of a whole life; afterwards the invariants hold and the next run ends with the results of an undisturbed one. And:
 * requests that kill the runner are found. (Points of the engine's side files: side_file_test; submit.chunk: submit_test.) */
#include "rig.h"

#include <signal.h>
#include <sys/wait.h>

static char undisturbed[NS_SHA256_HEX];

static void write_job(struct rig *g)
{
    char text[8000] = "";
    for (int i = 0; i < 9; i++)
        sprintf(text + strlen(text), "{\"custom_id\":\"r%d\",\"prompt\":[%d],\"max_tokens\":3,\"logprobs\":0}\n", i,
                1 + i % 4);
    strcat(text, "{\"custom_id\":\"s\",\"prompt\":[1],\"choices\":[[2],[3,4]],\"answer\":0}\nbad\n");
    scratch_write(&g->scratch, "in", text, strlen(text));
}

/* As a person repeats the command: what is there already is found. */
static void submit_job(struct rig *g)
{
    struct ns_submit_options o = {.priority = 5};
    struct ns_submit_report report;
    RIG_OK(ns_queue_submit(g->q, scratch_path(&g->scratch, "in"), &o, &report, err));
    ns_submit_report_fini(&report);
}

/* A whole life in this process: submits, suspends once, runs everything, stops. */
static void run_all(struct rig *g, size_t at_a_time)
{
    if (g->states)
        submit_job(g);
    rig_start(g);
    struct ns_suspend_row row;
    bool found;
    RIG_OK(ns_queue_find_suspend(ns_runner_queue(g->r), &row, &found, err));
    if (found)
        RIG_OK(ns_runner_drop_suspend(g->r, row.id, NULL, err));
    if (g->states) {
        char path[NS_PATH_SIZE + 64];
        memset(&row, 0, sizeof row);
        snprintf(row.rel_path, sizeof row.rel_path, "wave-%" PRId64 ".sus", ns_runner_id(g->r));
        snprintf(path, sizeof path, "%s/%s", ns_runner_state_dir(g->r), row.rel_path);
        RIG_OK(ns_file_replace(path, "rows", 4, err));
        row.bytes = 4;
        RIG_OK(ns_runner_suspend(g->r, &row, err));
    }
    rig_run(g, at_a_time);
    rig_stop(g);
}

/* In a child process; returns its wait status. The parent has no connection meanwhile. */
static int run_in_child(struct rig *g, const char *point, uint64_t visit, size_t at_a_time)
{
    ns_queue_close(g->q);
    g->q = NULL;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        ns_host_init();
        ns_log_set_sink(NULL, NULL, NS_LOG_ERROR);
        if (point)
            ns_crash_arm(point, visit);
        RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
        run_all(g, at_a_time);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
    return status;
}

/* After a death: what a new runner finds once it has taken over is sound. */
static void check_after_death(struct rig *g)
{
    rig_check_tokens(g);
    rig_start(g);
    rig_doctor(g);
    rig_check_tokens(g);
    int64_t files = 0;
    char command[NS_PATH_SIZE + 64], line[32] = "";
    snprintf(command, sizeof command, "ls '%s' | grep -vc '^crash-'", ns_runner_state_dir(g->r));
    FILE *p = popen(command, "r");
    assert_non_null(p);
    if (fgets(line, sizeof line, p))
        files = atoi(line);
    pclose(p);
    /* I7: no file without a row, no row without a file (doctor) */
    assert_int_equal(files, rig_int(g, "SELECT (SELECT COUNT(*) FROM state_files) + (SELECT COUNT(*) FROM suspends)"));
    rig_stop(g);
}

static void open_job(struct rig *g)
{
    rig_open(g);
    g->states = true;
    write_job(g);
}

/* An undisturbed life after all deaths. */
static void finish_well(struct rig *g)
{
    char digest[NS_SHA256_HEX];
    assert_int_equal(run_in_child(g, NULL, 0, 2), 0);
    rig_doctor(g);
    rig_digest(g, digest);
    assert_string_equal(digest, undisturbed);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM state_files"), 0);
    rig_close(g);
}

static void must_die(struct rig *g, const char *point, uint64_t visit)
{
    int status = run_in_child(g, point, visit, 2);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_msg("%s was not reached %d times", point, (int)visit);
    check_after_death(g);
}

static void t2_every_crash_point(void **state)
{
    (void)state;
    static const char *const point[] = {"claim.before", "claim.after",   "admit.before", "admit.after",
                                        "file.written", "file.synced",   "file.renamed", "file.dir_synced",
                                        "commit.begin", "commit.before", "commit.after", "unlink.before"};
    for (size_t i = 0; i < NS_COUNT(point); i++)
        for (uint64_t k = 1; k <= 5; k++) {
            struct rig g;
            open_job(&g);
            must_die(&g, point[i], k);
            finish_well(&g);
        }
}

/* What a life passes once: the k-th visit is in the k-th life, each of which dies there. */
static void t2_points_that_a_life_passes_once(void **state)
{
    (void)state;
    static const char *const point[] = {"submit.batch",  "start.before_commit", "start.after_commit", "suspend.before",
                                        "suspend.after", "stop.before_commit",  "stop.after_commit"};
    for (size_t i = 0; i < NS_COUNT(point); i++) {
        struct rig g;
        open_job(&g);
        for (int life = 1; life <= 5; life++)
            must_die(&g, point[i], 1);
        finish_well(&g);
    }
}

/* From the first transaction of submitting to the last one of the run's end. */
static void t2_before_and_after_every_commit(void **state)
{
    (void)state;
    static const char *const point[] = {"write.before", "write.after"};
    for (size_t i = 0; i < NS_COUNT(point); i++) {
        bool died = true;
        uint64_t k = 1;
        for (; died; k++) {
            struct rig g;
            open_job(&g);
            int status = run_in_child(&g, point[i], k, 2);
            died = status != 0;
            if (died && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL))
                fail_msg("%s, visit %d: status %x", point[i], (int)k, (unsigned)status);
            check_after_death(&g);
            finish_well(&g);
        }
        print_message("%s: %d visits\n", point[i], (int)k - 2);
        assert_true(k > 30);
    }
}

/* Killed again and again at ever later visits: every run makes some progress, none takes any back. */
static void t1_killed_until_done(void **state)
{
    (void)state;
    struct rig g;
    char digest[NS_SHA256_HEX];
    open_job(&g);
    int64_t seen = 0;
    for (int round = 0;; round++) {
        static const char *const point[] = {"commit.before", "commit.after", "claim.after", "file.renamed"};
        int status = run_in_child(&g, point[round % 4], 2 + (uint64_t)round % 3, 3);
        int64_t tokens = rig_int(&g, "SELECT IFNULL(SUM(n_out), 0) FROM sequences");
        assert_true(tokens >= seen);
        seen = tokens;
        check_after_death(&g);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        assert_true(round < 200);
    }
    rig_digest(&g, digest);
    assert_string_equal(digest, undisturbed);
    rig_close(&g);
}

static void poison_of(size_t slots, int n)
{
    struct rig g;
    rig_open(&g);
    char text[20000] = "";
    for (int i = 0; i < n; i++)
        sprintf(text + strlen(text), "{\"custom_id\":\"r%d\",\"prompt\":[%d],\"max_tokens\":2}\n", i, 1 + i % 4);
    rig_submit(&g, "in", text);
    g.poison = "r21";
    int starts = 0, status;
    do {
        status = run_in_child(&g, NULL, 0, slots);
        assert_true(++starts < 40);
    } while (WIFSIGNALED(status));
    assert_int_equal(status, 0);
    int most = 5;
    for (size_t k = 1; k < slots; k *= 2)
        most++;
    print_message("%zu slots: %d starts\n", slots, starts);
    assert_true(starts - 1 <= most); /* the last start is the one that ends well */
    rig_doctor(&g);
    assert_int_equal(rig_int(&g, "SELECT COUNT(*) FROM requests WHERE state = 'done'"), n - 1);
    assert_int_equal(rig_int(&g, "SELECT COUNT(*) FROM requests r JOIN results x ON x.request_id = r.id WHERE state ="
                                 " 'failed' AND custom_id = 'r21' AND response LIKE '%worker_crashed%'"),
                     1);
    rig_close(&g);
}

static void t11_culprits_are_found(void **state)
{
    (void)state;
    poison_of(1, 24);
    poison_of(8, 32);
    poison_of(64, 64);
}

static int setup_group(void **state)
{
    (void)state;
    struct rig g;
    rig_open(&g);
    write_job(&g);
    submit_job(&g);
    run_all(&g, 2);
    rig_doctor(&g);
    rig_digest(&g, undisturbed);
    rig_close(&g);
    return 0;
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) /* kills lose nothing that was written, so memory is as good as a disk */
        setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t2_every_crash_point), cmocka_unit_test(t2_points_that_a_life_passes_once),
        cmocka_unit_test(t2_before_and_after_every_commit), cmocka_unit_test(t1_killed_until_done),
        cmocka_unit_test(t11_culprits_are_found)};
    return cmocka_run_group_tests(tests, setup_group, NULL);
}
