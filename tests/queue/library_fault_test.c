/* fault_test.c - failing writes, syncs, maps, opens, deletes and allocations, each n-th until a run is clean; and cut
 * power. Nothing committed is lost, nothing is reported that did not happen, the next run ends as an undisturbed one.
 * NS_CUTS: how many power cuts (50 unless set); NS_SEED: the first one. NS_ALL: every allocation, else ever fewer of the later
 * ones; NS_PART=2/3: the second of three parts of them. NS_ONLY: a pattern of the names of tests. */
#include "rig.h"
#include "shim.h"

#include <signal.h>
#include <sys/wait.h>

static char undisturbed[NS_SHA256_HEX];
static struct ns_error last; /* of the last life */
static int n_side_files;     /* named by rows after power cuts */

static const char job[] = "{\"custom_id\":\"a\",\"prompt\":[1,2],\"max_tokens\":2,\"logprobs\":0,\"ignore_eos\":true}\n"
                          "bad\n"
                          "{\"custom_id\":\"b\",\"prompt\":[1],\"choices\":[[2],[3,4]],\"answer\":0}\n"
                          "{\"custom_id\":\"c\",\"prompt\":[5],\"max_tokens\":2,\"ignore_eos\":true}\n";

/* The whole life of a queue, handing up the first error. acknowledged counts what was reported as durable. */
struct life {
    int64_t submitted, tokens; /* acknowledged */
    int fd;                    /* told of every acknowledgement; -1: nobody */
};

static void acknowledge(struct life *life)
{
    int64_t what[2] = {life->submitted, life->tokens};
    if (life->fd >= 0 && write(life->fd, what, sizeof what) != (ssize_t)sizeof what)
        _exit(9);
}

static enum ns_code submit_job(struct rig *g, struct life *life)
{
    struct ns_submit_options o = {.priority = 5};
    struct ns_submit_report report;
    enum ns_code rc = ns_queue_submit(g->q, scratch_path(&g->scratch, "job"), &o, &report, &last);
    if (rc == NS_OK) {
        life->submitted = report.lines;
        acknowledge(life);
    }
    ns_submit_report_fini(&report);
    return rc;
}

static enum ns_code claim_two(struct rig *g, struct rig_work *w)
{
    struct ns_claim_limits limits = {.requests = 2};
    enum ns_code rc = ns_runner_claim(g->r, &limits, &g->budget, &w->claim, &w->n, &w->alone, &last);
    if (rc != NS_OK)
        return rc;
    w->request = calloc(w->n + 1, sizeof *w->request);
    struct ns_admission a[2] = {{0}};
    struct ns_encoded encoded[2] = {{0}};
    for (size_t i = 0; rc == NS_OK && i < w->n; i++) {
        struct ns_refusal refusal;
        rc = ns_request_parse(w->claim[i]->body, w->claim[i]->body_n, &g->budget, &w->request[i], &refusal, &last);
        a[i].claim = w->claim[i];
        if (rc == NS_OK && w->claim[i]->n_seqs == 0) {
            rc = ns_request_encode(&w->request[i], &g->model, &g->budget, &encoded[i], &refusal, &last);
            a[i].encoded = &encoded[i];
        }
    }
    if (rc == NS_OK)
        rc = ns_runner_admit(g->r, a, w->n, &last);
    for (size_t i = 0; i < 2; i++)
        ns_encoded_fini(&encoded[i]);
    return rc;
}

static enum ns_code run_job(struct rig *g, struct life *life)
{
    enum ns_code rc = NS_OK;
    for (bool idle = false; rc == NS_OK && !idle;) {
        struct rig_work w = {0};
        rc = claim_two(g, &w);
        idle = w.n == 0;
        while (rc == NS_OK && w.n > 0) {
            struct ns_control control;
            rc = rig_wave(g, &w, &control, &last);
            if (rc != NS_OK)
                break;
            ns_control_fini(&control);
            life->tokens++;
            acknowledge(life);
        }
        if (w.claim)
            rig_drop(g, &w);
    }
    return rc;
}

static enum ns_code live(struct rig *g, struct life *life)
{
    struct ns_runner_options o = {.no_ballast = true};
    struct ns_runner_start_report report;
    ns_error_clear(&last);
    enum ns_code rc = ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, &last);
    if (rc == NS_OK)
        rc = submit_job(g, life);
    if (rc == NS_OK)
        rc = ns_runner_start(g->db, &o, &g->budget, &g->r, &report, &last);
    if (rc == NS_OK)
        rc = ns_runner_bind_model(g->r, g->scratch.dir, &g->model, "tok", &last);
    if (rc == NS_OK)
        rc = run_job(g, life);
    if (rc == NS_OK) {
        rc = ns_runner_stop(g->r, "done", &last);
        g->r = NULL;
    }
    ns_runner_abandon(g->r);
    g->r = NULL;
    ns_queue_close(g->q);
    g->q = NULL;
    return rc;
}

static void open_queue(struct rig *g)
{
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
}

static void close_queue(struct rig *g)
{
    ns_queue_close(g->q);
    g->q = NULL;
}

/* Everything acknowledged is there and sound. */
static void check_acknowledged(struct rig *g, const struct life *life, const char *what)
{
    if (life->submitted != 0 && rig_int(g, "SELECT COUNT(*) FROM requests") != life->submitted)
        fail_msg("%s: an acknowledged submit is gone", what);
    if (rig_int(g, "SELECT COUNT(*) FROM waves") < life->tokens)
        fail_msg("%s: %d waves were acknowledged, %d are there", what, (int)life->tokens,
                 (int)rig_int(g, "SELECT COUNT(*) FROM waves"));
    rig_check_tokens(g);
}

/* The queue can be finished, with the results of an undisturbed run. */
static void finish(struct rig *g, const char *what)
{
    struct life rest = {.fd = -1};
    char digest[NS_SHA256_HEX];
    RIG_OK(live(g, &rest));
    open_queue(g);
    rig_doctor(g);
    rig_digest(g, digest);
    if (strcmp(digest, undisturbed) != 0)
        fail_msg("%s: other results", what);
}

static void finish_and_check(struct rig *g, const struct life *life, const char *what)
{
    open_queue(g);
    check_acknowledged(g, life, what);
    close_queue(g);
    finish(g, what);
}

static void open_closed(struct rig *g)
{
    rig_open(g);
    scratch_write(&g->scratch, "job", job, sizeof job - 1);
    ns_queue_close(g->q);
    g->q = NULL;
}

static void t3_every_failing_call(void **state)
{
    (void)state;

    static const struct {
        enum shim_call call;
        enum shim_fault fault;
        bool sticky;
        const char *name;
    } kinds[] = {{SHIM_WRITE, SHIM_IO, false, "write, I/O error"},
                 {SHIM_WRITE, SHIM_IO, true, "write, I/O error from then on"},
                 {SHIM_WRITE, SHIM_FULL, false, "write, disk full"},
                 {SHIM_WRITE, SHIM_FULL, true, "write, disk full from then on"},
                 {SHIM_WRITE, SHIM_SHORT, false, "short write"},
                 {SHIM_WRITE, SHIM_SHORT, true, "short writes from then on"},
                 {SHIM_SYNC, SHIM_IO, false, "sync"},
                 {SHIM_SYNC, SHIM_IO, true, "sync, from then on"},
                 {SHIM_SYNC, SHIM_FULL, false, "sync, disk full"},
                 {SHIM_SYNC, SHIM_FULL, true, "sync, disk full from then on"},
                 {SHIM_TRUNCATE, SHIM_IO, false, "truncate"},
                 {SHIM_TRUNCATE, SHIM_IO, true, "truncate, from then on"},
                 {SHIM_SHM_MAP, SHIM_IO, false, "map"},
                 {SHIM_SHM_MAP, SHIM_IO, true, "map, from then on"},
                 {SHIM_OPEN, SHIM_IO, false, "open"},
                 {SHIM_OPEN, SHIM_IO, true, "open, from then on"},
                 {SHIM_DELETE, SHIM_IO, false, "delete"},
                 {SHIM_DELETE, SHIM_IO, true, "delete, from then on"}};

    for (size_t k = 0; k < NS_COUNT(kinds); k++) {
        uint64_t nth = 1;
        for (bool hit = true; hit; nth++) {
            struct rig g;
            struct life life = {.fd = -1};
            open_closed(&g);
            shim_arm(kinds[k].call, nth, kinds[k].fault, kinds[k].sticky);
            enum ns_code rc = live(&g, &life);
            hit = shim_was_hit();
            shim_arm(SHIM_WRITE, 0, SHIM_IO, false);
            if (!hit)
                assert_int_equal(rc, NS_OK);
            if (rc != NS_OK && rc != NS_IO && rc != NS_FULL && rc != NS_NOINPUT)
                fail_msg("%s %d: %s: %s", kinds[k].name, (int)nth, ns_code_name(rc), last.message);
            finish_and_check(&g, &life, kinds[k].name);
            rig_close(&g);
        }
        print_message("%s: up to %d calls\n", kinds[k].name, (int)nth - 2);
    }
}

enum { NOT_REACHED = 3 }; /* exit status: it ended well before the allocation that was to fail */

/* A life in a process of its own, which may end at any instant: prepare arms what goes wrong. Returns the wait status;
 * *told is what it had acknowledged. */
static int live_in_child(struct rig *g, struct life *told, void (*prepare)(uint64_t), uint64_t number)
{
    int fd[2], status;
    assert_int_equal(pipe(fd), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(fd[0]);
        ns_host_init();
        struct life mine = {.fd = fd[1]};
        prepare(number);
        enum ns_code rc = live(g, &mine);
        if (rc == NS_OK)
            _exit(ns_fault_left(NS_FAULT_ALLOC) > 1 ? NOT_REACHED : 0);
        _exit(rc == NS_BUDGET || rc == NS_IO || rc == NS_BUSY ? 1 : 2);
    }
    close(fd[1]);
    int64_t line[2];
    while (read(fd[0], line, sizeof line) == (ssize_t)sizeof line) {
        told->submitted = line[0];
        told->tokens = line[1];
    }
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* ---- allocations --------------------------------------------------------------------------------------------------- */

/* A new queue with nothing in it, as a file: a copy is a hundred times cheaper than the schema. */
static char *empty_queue;
static size_t empty_queue_n;

static void read_empty_queue(void)
{
    struct rig g;
    open_closed(&g);
    FILE *in = fopen(g.db, "rb");
    assert_non_null(in);
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    empty_queue_n = (size_t)ftell(in);
    rewind(in);
    empty_queue = malloc(empty_queue_n);
    assert_int_equal(fread(empty_queue, 1, empty_queue_n, in), empty_queue_n);
    fclose(in);
    rig_close(&g);
}

/* The folder as it was: the empty queue and the job. */
static void start_anew(struct rig *g)
{
    static const char *const left[] = {"queue.db-wal", "queue.db-shm", "queue.db.lock", "queue.db.ballast"};
    char path[600];
    for (size_t i = 0; i < NS_COUNT(left); i++) {
        snprintf(path, sizeof path, "%s/%s", g->scratch.dir, left[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s.state", g->db);
    rmdir(path); /* no side files are written here; sweeping removes the marks */
    scratch_write(&g->scratch, "queue.db", empty_queue, empty_queue_n);
}

/* What may differ between two lives that left the same: times, names, words. */
static bool is_passing(const char *column)
{
    static const char *const passing[] = {"public_id", "input_name", "location",   "pid",
                                          "pid_start", "host",       "end_reason", "detail",
                                          "response",  "error",      "local",      "heartbeat_boot_ms"};
    size_t n = strlen(column);
    for (size_t i = 0; i < NS_COUNT(passing); i++)
        if (strcmp(column, passing[i]) == 0)
            return true;
    return strcmp(column, "at") == 0 || (n > 3 && strcmp(column + n - 3, "_at") == 0);
}

static void hash_table(struct rig *g, const char *table, struct ns_sha256 *hash)
{
    sqlite3_stmt *stmt = NULL;
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT * FROM \"%s\"", table);
    assert_int_equal(sqlite3_prepare_v2(g->q->db, sql, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW)
        for (int c = 0; c < sqlite3_column_count(stmt); c++) {
            char kind = (char)sqlite3_column_type(stmt, c); /* a time that is not there is not passing */
            const void *value = sqlite3_column_blob(stmt, c);
            ns_sha256_add(hash, &kind, 1);
            if (value && !is_passing(sqlite3_column_name(stmt, c)))
                ns_sha256_add(hash, value, (size_t)sqlite3_column_bytes(stmt, c));
        }
    assert_int_equal(sqlite3_finalize(stmt), SQLITE_OK);
}

struct left_states {
    char digest[4096][NS_SHA256_HEX];
    size_t n;
};

/* Whether an earlier life left the same rows in all tables: then finishing would do the same again. */
static bool is_known(struct rig *g, struct left_states *known)
{
    char hex[NS_SHA256_HEX];
    uint8_t sum[NS_SHA256_BYTES];
    sqlite3_stmt *stmt = NULL;
    struct ns_sha256 *hash = ns_sha256_open();
    static const char tables[] = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    assert_int_equal(sqlite3_prepare_v2(g->q->db, tables, -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW)
        hash_table(g, (const char *)sqlite3_column_text(stmt, 0), hash);
    assert_int_equal(sqlite3_finalize(stmt), SQLITE_OK);
    ns_sha256_close(hash, sum);
    ns_hex(sum, sizeof sum, hex);
    for (size_t i = 0; i < known->n; i++)
        if (strcmp(known->digest[i], hex) == 0)
            return true;
    assert_true(known->n < NS_COUNT(known->digest));
    snprintf(known->digest[known->n++], sizeof hex, "%s", hex);
    return false;
}

static void refuse_from(uint64_t nth)
{
    ns_fault_arm_mode(NS_FAULT_ALLOC, nth, 0, true);
}

/* One life in which the nth allocation fails, and all later ones if sticky. False: it has fewer. */
static bool live_short_of_memory(struct rig *g, struct life *life, uint64_t nth, bool sticky)
{
    if (!sticky) {
        ns_fault_arm_mode(NS_FAULT_ALLOC, nth, 0, false);
        enum ns_code rc = live(g, life);
        bool failed = ns_fault_left(NS_FAULT_ALLOC) == 0;
        ns_fault_disarm();
        if (rc != NS_OK && rc != NS_BUDGET && rc != NS_IO && rc != NS_BUSY)
            fail_msg("allocation %d: %s: %s", (int)nth, ns_code_name(rc), last.message);
        return failed;
    }
    /* reading JSON without any memory ends the process, which is safe at any instant */
    int status = live_in_child(g, life, refuse_from, nth);
    bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
    if (!aborted && (!WIFEXITED(status) || (WEXITSTATUS(status) > 1 && WEXITSTATUS(status) != NOT_REACHED)))
        fail_msg("allocation %d and all later ones: status %x", (int)nth, (unsigned)status);
    return aborted || WEXITSTATUS(status) != NOT_REACHED;
}

static void every_failing_allocation(bool sticky)
{
    static struct left_states known;
    const char *part = getenv("NS_PART");
    bool every = getenv("NS_ALL") != NULL;
    uint64_t from = part ? strtoull(part, NULL, 10) : 1, nth = from;
    uint64_t step = part && strchr(part, '/') ? strtoull(strchr(part, '/') + 1, NULL, 10) : 1;
    assert_true(from > 0 && step >= from);
    struct rig g;
    int beyond = 0, lives = 0;
    read_empty_queue();
    open_closed(&g);
    /* the heartbeat makes their number uncertain by a few: three lives must have fewer. Later ones repeat early ones, so
     * that fewer of them will do for every day */
    for (; beyond < 3; nth += every ? step : 1 + nth / 16, lives++) {
        struct life life = {.fd = -1};
        start_anew(&g);
        beyond = live_short_of_memory(&g, &life, nth, sticky) ? 0 : beyond + 1;
        open_queue(&g);
        check_acknowledged(&g, &life, "allocation");
        assert_int_equal(rig_int(&g, "SELECT integrity_check = 'ok' FROM pragma_integrity_check LIMIT 1"), 1);
        if (!is_known(&g, &known)) {
            close_queue(&g);
            finish(&g, "allocation");
        }
        close_queue(&g);
        assert_int_equal(ns_budget_used(&g.budget), 0);
    }
    print_message("%d lives, up to allocation %d; %zu states were left and finished\n", lives, (int)(nth - 1), known.n);
    rig_close(&g);
    free(empty_queue);
}

static void t6_every_failing_allocation(void **state)
{
    (void)state;
    every_failing_allocation(false);
}

static void t6_failing_allocations_from_each_on(void **state)
{
    (void)state;
    every_failing_allocation(true);
}

static void cut_power(uint64_t seed)
{
    shim_cut_power(1 + seed * 7 % 27, seed);
}

static const char *row_text(sqlite3_stmt *stmt)
{
    return (const char *)sqlite3_column_text(stmt, 0);
}

/* I7: a side file that a row names is whole, for it was durable before the row. */
static void check_side_files(struct rig *g, const char *what)
{
    sqlite3_stmt *stmt = NULL;
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
    assert_int_equal(sqlite3_prepare_v2(g->q->db, "SELECT rel_path FROM state_files", -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        char path[1024], text[16] = "";
        snprintf(path, sizeof path, "%s.state/%s", g->db, row_text(stmt));
        FILE *in = fopen(path, "rb");
        size_t n = in ? fread(text, 1, sizeof text - 1, in) : 0;
        if (in)
            fclose(in);
        if (n != 5 || strcmp(text, "state") != 0)
            fail_msg("%s: %s is named but holds %zu bytes", what, path, n);
        n_side_files++;
    }
    sqlite3_finalize(stmt);
    ns_queue_close(g->q);
    g->q = NULL;
}

/* T4 and C53: what was acknowledged before the power went is there afterwards. */
static void t4_c53_cut_power(void **state)
{
    (void)state;
    const char *wanted = getenv("NS_CUTS"), *first = getenv("NS_SEED");
    int cuts = wanted && atoi(wanted) > 0 ? atoi(wanted) : 50, n_cut = 0, from = first ? atoi(first) : 1;
    for (int seed = from; seed < from + cuts; seed++) {
        struct rig g;
        struct life life = {.fd = -1};
        char what[40], shm[600];
        open_closed(&g);
        g.states = true;
        int status = live_in_child(&g, &life, cut_power, (uint64_t)seed);
        n_cut += WIFEXITED(status) && WEXITSTATUS(status) == 99;
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != 99 && WEXITSTATUS(status) != 0))
            fail_msg("seed %d: status %x", seed, (unsigned)status);
        snprintf(shm, sizeof shm, "%s-shm", g.db); /* memory does not survive a power cut */
        unlink(shm);
        snprintf(what, sizeof what, "power cut, seed %d", seed);
        check_side_files(&g, what);
        finish_and_check(&g, &life, what);
        rig_close(&g);
    }
    print_message("%d lives, %d cut, %d side files were named\n", cuts, n_cut, n_side_files);
    assert_true(n_cut > cuts / 2 && n_side_files > 0);
}

/* T8 and C52: full, everything rolled back and reported; room again: the same call goes through. */
static void c52_full_disk_can_be_retried(void **state)
{
    (void)state;
    struct rig g;
    struct life life = {.fd = -1};
    open_closed(&g);
    RIG_OK(ns_queue_open(g.db, NS_QUEUE_WRITE, false, &g.budget, &g.q, err));
    RIG_OK(submit_job(&g, &life));
    rig_start(&g);
    struct rig_work w = {0};
    struct ns_control control;
    RIG_OK(claim_two(&g, &w));
    shim_arm(SHIM_WRITE, 1, SHIM_FULL, true);
    char ballast[600];
    snprintf(ballast, sizeof ballast, "%s.ballast", g.db);
    for (int i = 0; i < 3; i++) {
        scratch_write(&g.scratch, "queue.db.ballast", "x", 1); /* given up for the commit, in vain here */
        assert_int_equal(rig_wave(&g, &w, &control, NULL), NS_FULL);
        assert_int_equal(control.n_asked, 0);
        assert_false(ns_path_exists(ballast));
    }
    shim_arm(SHIM_WRITE, 0, SHIM_IO, false);
    assert_int_equal(rig_int(&g, "SELECT COUNT(*) FROM waves"), 0);
    RIG_OK(rig_wave(&g, &w, &control, err));
    ns_control_fini(&control);
    rig_drop(&g, &w);
    RIG_OK(run_job(&g, &life));
    rig_stop(&g);
    rig_doctor(&g);
    rig_close(&g);
}

/* A commit with a wrong count, a second result, a foreign request: all or nothing. */
static void failed_commit_is_clean(void **state)
{
    (void)state;
    struct rig g;
    struct life life = {.fd = -1};
    open_closed(&g);
    RIG_OK(ns_queue_open(g.db, NS_QUEUE_WRITE, false, &g.budget, &g.q, err));
    RIG_OK(submit_job(&g, &life));
    rig_start(&g);
    struct rig_work w = {0};
    struct ns_control control;
    RIG_OK(claim_two(&g, &w));
    w.claim[0]->seq[0].n_out = 1; /* a lie: guards_n_out */
    w.claim[0]->seq[0].token = ns_budget_take(&g.budget, 8, NULL);
    w.claim[0]->seq[0].logprob = ns_budget_take(&g.budget, 8, NULL);
    assert_int_equal(rig_wave(&g, &w, &control, NULL), NS_INTERNAL);
    assert_int_equal(rig_int(&g, "SELECT (SELECT COUNT(*) FROM waves) + (SELECT COUNT(*) FROM seq_chunks) +"
                                 " (SELECT COUNT(*) FROM results WHERE status_code = 200)"),
                     0);
    w.claim[0]->seq[0].n_out = 0;
    RIG_OK(rig_wave(&g, &w, &control, err));
    ns_control_fini(&control);
    rig_drop(&g, &w);
    rig_stop(&g);
    rig_doctor(&g);
    rig_close(&g);
}

static int setup_group(void **state)
{
    (void)state;
    struct rig g;
    struct life life = {.fd = -1};
    ns_json_init();
    ns_queue_library_init();
    shim_install();
    ns_log_set_sink(NULL, NULL, NS_LOG_ERROR);
    open_closed(&g);
    RIG_OK(live(&g, &life));
    RIG_OK(ns_queue_open(g.db, NS_QUEUE_WRITE, false, &g.budget, &g.q, err));
    rig_doctor(&g);
    rig_digest(&g, undisturbed);
    rig_close(&g);
    return 0;
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(failed_commit_is_clean),
                                       cmocka_unit_test(c52_full_disk_can_be_retried),
                                       cmocka_unit_test(t4_c53_cut_power),
                                       cmocka_unit_test(t3_every_failing_call),
                                       cmocka_unit_test(t6_every_failing_allocation),
                                       cmocka_unit_test(t6_failing_allocations_from_each_on)};
    cmocka_set_test_filter(getenv("NS_ONLY"));
    return cmocka_run_group_tests(tests, setup_group, NULL);
}
