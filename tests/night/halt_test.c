/* halt_test.c - the real engine on the demo model, stopped politely at chosen layer boundaries: after any number of stops, in
 * waves of any size, every result is that of an undisturbed run. The stops come from the test's own wave_step, so a
 * failure repeats. Every run is a child process, as it is for people. NS_SEEDS: rounds of stop after stop. */
#define _GNU_SOURCE
#include "night_fixture.h"

#include "json/json.h"
#include "sys/sys.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DEMO NS_SOURCE_DIR "/jobs/demo"

enum { REQUESTS = 400, BODY = 4096 };

/* What a request came to, without what may differ: its state and the body less id, created and x_local. */
struct outcome {
    char name[48], body[BODY], local[1024];
};

struct outcomes {
    struct outcome of[REQUESTS];
    size_t n;
};

/* One run, and what happens to it. */
struct trial {
    uint32_t rows;
    uint64_t stop_after; /* steps of all waves, then SIGTERM; 0: never */
    uint64_t second_us;  /* another SIGTERM so long after the first; 0: none */
    uint64_t
        full_from; /* after the stop, this write of a side file and all later ones find no room; 0: there is room */
    const char *crash_at; /* named point, NULL: none */
    uint64_t visit;
};

static struct trial trial; /* the child's */

static struct ns_night_report *report; /* shared with the child */

static void second_signal(int number)
{
    (void)number;
    raise(SIGTERM);
}

static void stop_now(void)
{
    raise(SIGTERM);
    if (trial.full_from > 0)
        ns_fault_arm_mode(NS_FAULT_WRITE, trial.full_from, ENOSPC, true);
    if (trial.second_us > 0) {
        struct itimerval once = {.it_value.tv_usec = (suseconds_t)trial.second_us};
        setitimer(ITIMER_REAL, &once, NULL);
    }
}

static enum ns_code counted_step(void *self, struct ns_wave *wave, bool *done, struct ns_error *err)
{
    (void)self;
    enum ns_code rc = ns_wave_step(wave, done, err);
    if (trial.stop_after > 0 && --trial.stop_after == 0)
        stop_now();
    return rc;
}

struct opened {
    struct ns_budget budget;
    struct ns_engine *engine;
    struct ns_tokenizer *tokenizer;
    struct ns_job_model job;
};

static void must(enum ns_code rc, const struct ns_error *err)
{
    if (rc != NS_OK)
        fail_msg("%s: %s", err->context, err->message);
}

static enum ns_code open_model(struct opened *o, uint32_t rows, struct ns_error *err)
{
    ns_budget_init(&o->budget, "model", (size_t)300 << 20);
    struct ns_engine_options options = {.n_threads = 1, .rows_max = rows, .cpu = ns_cpu_bits()};
    enum ns_code rc = ns_engine_open(DEMO, &options, &o->budget, &o->engine, err);
    if (rc != NS_OK)
        return rc;
    const struct ns_config *config = ns_engine_config(o->engine);
    rc = ns_tokenizer_open(DEMO, config->vocab, &o->budget, &o->tokenizer, err);
    return rc != NS_OK ? rc
                       : ns_job_model_init(&o->job, o->tokenizer, ns_engine_fingerprint(o->engine), NS_CONTRACT,
                                           config->vocab, ns_engine_context(o->engine), config->eos, NULL, 0, err);
}

/* The life of a child. */
static enum ns_code live(struct night_fixture *f, struct ns_error *err)
{
    struct opened o = {0};
    enum ns_code rc = open_model(&o, trial.rows, err);
    if (rc == NS_OK) {
        struct ns_night_model model = {.machine = ns_machine_of_engine(o.engine),
                                       .job = &o.job,
                                       .dir = DEMO,
                                       .tokenizer_fingerprint = ns_engine_tokenizer_fingerprint(o.engine),
                                       .engine = o.engine};
        model.machine.wave_step = counted_step;
        struct ns_night_options options = {.db_path = f->db, .model_dir = DEMO, .wave_rows = trial.rows};
        rc = ns_night_run_model(&options, &model, &f->budget, report, err);
    }
    ns_tokenizer_close(o.tokenizer);
    ns_engine_close(o.engine);
    return rc;
}

/* Wait status of the child. It never touches the parent's compute threads: the parent computes nothing. */
static int try_run(struct night_fixture *f, const struct trial *what)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct ns_error err = {0};
        trial = *what;
        ns_log_set_sink(NULL, NULL, NS_LOG_ERROR);
        ns_signal_install();
        signal(SIGALRM, second_signal);
        if (trial.crash_at)
            ns_crash_arm(trial.crash_at, trial.visit);
        enum ns_code rc = live(f, &err);
        if (rc != NS_OK)
            fprintf(stderr, "run: %s: %s\n", err.context, err.message);
        _exit(rc == NS_OK ? 0 : 9);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* One run that ends by itself; a stop after so many steps (0: none). True when it was stopped. */
static bool run(struct night_fixture *f, uint32_t rows, uint64_t steps)
{
    struct trial t = {.rows = rows, .stop_after = steps};
    assert_int_equal(try_run(f, &t), 0);
    return report->stopped;
}

static enum ns_code keep_outcome(void *arg, const struct ns_request_info *r, struct ns_error *err)
{
    struct outcomes *all = arg;
    struct outcome *out = &all->of[all->n++];
    struct ns_json *doc = NULL;
    struct ns_budget budget;
    struct ns_text text;
    struct ns_json_writer w;
    assert_true(all->n <= REQUESTS);
    snprintf(out->name, sizeof out->name, "%s", r->custom_id ? r->custom_id : "");
    snprintf(out->body, sizeof out->body, "%s", r->state);
    snprintf(out->local, sizeof out->local, "%s", r->local ? r->local : "");
    if (!r->response)
        return NS_OK;
    must(ns_json_parse(r->response, strlen(r->response), &doc, err), err);
    ns_budget_init(&budget, "outcome", (size_t)1 << 20);
    ns_text_init(&text, &budget);
    ns_json_begin(&w, &text);
    ns_json_open_object(&w);
    for (void *it = ns_json_first(doc); it; it = ns_json_next(doc, it)) {
        const char *key = ns_json_key(it);
        if (strcmp(key, "id") == 0 || strcmp(key, "created") == 0 || strcmp(key, "x_local") == 0)
            continue;
        ns_json_put_key(&w, key);
        ns_json_put_value(&w, ns_json_value(it));
    }
    ns_json_close_object(&w);
    assert_true(ns_text_ok(&text) && text.n < BODY);
    memcpy(out->body, text.data, text.n + 1);
    ns_text_fini(&text);
    ns_budget_fini(&budget);
    ns_json_free(doc);
    return NS_OK;
}

static void read_outcomes(struct night_fixture *f, struct outcomes *out)
{
    struct ns_error err = {0};
    struct ns_queue *queue = NULL;
    struct ns_selection all = {0};
    out->n = 0;
    must(ns_queue_open(f->db, NS_QUEUE_READ, false, &f->budget, &queue, &err), &err);
    must(ns_queue_each_request(queue, &all, true, keep_outcome, out, &err), &err);
    ns_queue_close(queue);
}

static void same_outcomes(const struct outcomes *want, const struct outcomes *got, const char *when)
{
    size_t wrong = 0;
    assert_int_equal(want->n, got->n);
    for (size_t i = 0; i < want->n; i++) {
        if (strcmp(want->of[i].body, got->of[i].body) == 0)
            continue;
        if (wrong++ < 3)
            print_error("%s: %s\n  undisturbed %s\n  stopped     %s\n", when, want->of[i].name, want->of[i].body,
                        got->of[i].body);
    }
    if (wrong > 0)
        fail_msg("%zu of %zu results differ", wrong, want->n);
}

static enum ns_code count_suspended(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    (void)bytes;
    (void)err;
    *(uint64_t *)arg += strstr(name, ".suspend") != NULL;
    return NS_OK;
}

static uint64_t suspended_files(const struct night_fixture *f)
{
    char dir[128];
    struct ns_error err = {0};
    uint64_t n = 0;
    snprintf(dir, sizeof dir, "%s.state", f->db);
    must(ns_dir_each(dir, count_suspended, &n, &err), &err);
    return n;
}

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
        uint32_t rows = (uint32_t)(16 + night_random(&rnd) % 300);
        stopped = run(f, rows, 1 + night_random(&rnd) % 60);
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

/* ---- one long generation ------------------------------------------------------------------------------------------------ */

enum { STEPS = 11, PROMPT = 60, NEW = 40 }; /* a wave: embedding, nine layers, head */

/* n generations that end at their limit, each with a prompt of its own. */
static void submit_long(struct night_fixture *f, unsigned n)
{
    FILE *out = fopen(f->jobs, "w");
    assert_non_null(out);
    for (unsigned r = 0; r < n; r++) {
        fprintf(out,
                "{\"custom_id\":\"long%u\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\","
                "\"prompt\":[",
                r);
        for (unsigned i = 0; i < PROMPT; i++)
            fprintf(out, "%s%u", i ? "," : "", (11 + 7 * i + 13 * r) % 2000);
        fprintf(out, "],\"max_tokens\":%d,\"ignore_eos\":true,\"logprobs\":2}}\n", NEW);
    }
    assert_int_equal(fclose(out), 0);
    night_fixture_submit_file(f);
}

struct entries {
    char dir[128], name[64][64];
    size_t n;
};

static enum ns_code keep_name(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    (void)bytes;
    (void)err;
    struct entries *e = arg;
    assert_true(e->n < NS_COUNT(e->name));
    snprintf(e->name[e->n++], sizeof e->name[0], "%s", name);
    return NS_OK;
}

static void list_side_files(const struct night_fixture *f, struct entries *e)
{
    struct ns_error err = {0};
    e->n = 0;
    snprintf(e->dir, sizeof e->dir, "%s.state", f->db);
    must(ns_dir_each(e->dir, keep_name, e, &err), &err);
}

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

enum damage { WHOLE, GONE, LONGER, NEWER, OLDER, ABI_NEWER, ABI_OLDER, OTHER_MODEL, DAMAGES };

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
    else if (damage != WHOLE)
        renumber(path,
                 damage == OTHER_MODEL ? 16
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
    read_outcomes(f, &got);
    snprintf(when, sizeof when, "damage %d after %llu steps", (int)damage, (unsigned long long)steps);
    same_outcomes(want, &got, when);
}

static void c62_c64_c65_restored_or_refused_and_counted(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    night_fixture_open(&f);
    submit_long(&f, 1);
    assert_false(run(&f, 128, 0));
    read_outcomes(&f, &want);
    for (int damage = WHOLE; damage < DAMAGES; damage++) {
        resume_one(&f, &want, 5 * STEPS, (enum damage)damage);     /* a snapshot */
        resume_one(&f, &want, 4 * STEPS + 5, (enum damage)damage); /* a decode wave */
        resume_one(&f, &want, 5, (enum damage)damage);             /* the prompt's wave */
    }
    night_fixture_close(&f);
}

static void check_local(const struct outcomes *got, size_t i, unsigned restored, unsigned recomputed)
{
    char counts[64];
    snprintf(counts, sizeof counts, "\"restored\":%u,\"recomputed\":%u", restored, recomputed);
    if (!strstr(got->of[i].local, counts))
        fail_msg("%s: %s expected in %s", got->of[i].name, counts, got->of[i].local);
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
        damage_side_files(f, GONE);
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

/* ---- deaths, full disks, second signals ---------------------------------------------------------------------------------- */

/* The rest is done in one run, with the right results and nothing left behind. */
static void finish_well(struct night_fixture *f, const struct outcomes *want, const char *when)
{
    static struct outcomes got;
    struct entries e;
    night_fixture_check(f);
    assert_false(run(f, 128, 0)); /* C70: the lock is free at once, or this would be refused */
    night_fixture_check(f);
    list_side_files(f, &e);
    for (size_t i = 0; i < e.n; i++)
        fail_msg("%s: %s is left", when, e.name[i]);
    read_outcomes(f, &got);
    same_outcomes(want, &got, when);
}

/* T2 and C59: after a death at any step of saving, a start finds what was saved before, or what is saved now. */
static void every_crash_point_of_side_files(void **state)
{
    (void)state;

    static const struct {
        const char *name;
        uint64_t visits, steps;
    } point[] = {{"suspend.synced", 1, 4 * STEPS + 5}, {"suspend.renamed", 1, 4 * STEPS + 5},
                 {"suspend.before", 1, 4 * STEPS + 5}, {"suspend.after", 1, 4 * STEPS + 5},
                 {"state.synced", 5, 24 * STEPS},      {"state.renamed", 5, 24 * STEPS},
                 {"state.dir_synced", 1, 24 * STEPS},  {"wave.computed", 5, 0}};

    struct night_fixture f;
    static struct outcomes want;
    night_fixture_open(&f);
    submit_long(&f, 6);
    assert_false(run(&f, 128, 0));
    read_outcomes(&f, &want);
    for (size_t i = 0; i < NS_COUNT(point); i++)
        for (uint64_t visit = 1; visit <= point[i].visits; visit++) {
            char when[64];
            struct trial t = {.rows = 128, .stop_after = point[i].steps, .crash_at = point[i].name, .visit = visit};
            night_fixture_new_queue(&f);
            submit_long(&f, 6);
            assert_true(run(&f, 128, 6 * STEPS)); /* an older snapshot of each */
            snprintf(when, sizeof when, "%s, visit %llu", t.crash_at, (unsigned long long)visit);
            int status = try_run(&f, &t);
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
                fail_msg("%s was not reached", when);
            finish_well(&f, &want, when);
            assert_true(report->tokens_restored >= 6 * PROMPT);
        }
    night_fixture_close(&f);
}

/* T8: no room for a side file at any of its writes: the run ends as asked, and the wave or the state is computed again. */
static void t8_no_room_for_side_files(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    night_fixture_open(&f);
    submit_long(&f, 2);
    assert_false(run(&f, 128, 0));
    read_outcomes(&f, &want);
    for (uint64_t nth = 1; nth <= 4; nth++)
        for (uint64_t steps = 3 * STEPS; steps <= 3 * STEPS + 5; steps += 5) {
            char when[64];
            struct trial t = {.rows = 128, .stop_after = steps, .full_from = nth};
            night_fixture_new_queue(&f);
            submit_long(&f, 2);
            assert_int_equal(try_run(&f, &t), 0);
            assert_true(report->stopped);
            snprintf(when, sizeof when, "no room from write %llu on", (unsigned long long)nth);
            finish_well(&f, &want, when);
        }
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
    night_fixture_open(&f);
    submit_long(&f, 4);
    assert_false(run(&f, 128, 0));
    read_outcomes(&f, &want);
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

/* T13: any byte of a side file is wrong: found by doctor, refused, and computed again. */
static void t13_flipped_side_files(void **state)
{
    (void)state;
    struct night_fixture f;
    static struct outcomes want;
    uint64_t rnd = 5;
    night_fixture_open(&f);
    submit_long(&f, 1);
    assert_false(run(&f, 128, 0));
    read_outcomes(&f, &want);
    for (int i = 0; i < 12; i++) {
        char when[64], path[200];
        struct entries e;
        uint8_t byte;
        night_fixture_new_queue(&f);
        submit_long(&f, 1);
        assert_true(run(&f, 128, i % 2 ? 3 * STEPS : 3 * STEPS + 4));
        list_side_files(&f, &e);
        assert_int_equal(e.n, 1);
        snprintf(path, sizeof path, "%s/%s", e.dir, e.name[0]);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, 0, SEEK_END), 0);
        long at = i < 4 ? i * 30 : (long)(night_random(&rnd) % (uint64_t)ftell(file));
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        assert_int_equal(fread(&byte, 1, 1, file), 1);
        byte ^= (uint8_t)(1 + night_random(&rnd) % 255);
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        assert_int_equal(fwrite(&byte, 1, 1, file), 1);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(night_fixture_findings(&f), 1);
        assert_false(run(&f, 128, 0));
        assert_int_equal(report->tokens_restored, 0);
        night_fixture_check(&f);
        static struct outcomes got;
        read_outcomes(&f, &got);
        snprintf(when, sizeof when, "byte %ld flipped", at);
        same_outcomes(&want, &got, when);
    }
    night_fixture_close(&f);
}

int main(void)
{
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_at_every_boundary),
        cmocka_unit_test(stops_change_no_result),
        cmocka_unit_test(c62_c64_c65_restored_or_refused_and_counted),
        cmocka_unit_test(scores_and_last_tokens_are_counted),
        cmocka_unit_test(every_crash_point_of_side_files),
        cmocka_unit_test(t8_no_room_for_side_files),
        cmocka_unit_test(c68_second_signal_while_saving),
        cmocka_unit_test(t13_flipped_side_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
