/* demo_night.c - see the header. */
#define _GNU_SOURCE
#include "demo_night.h"

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

static struct trial trial; /* the child's */

struct ns_night_report *report;

static void second_signal(int number)
{
    (void)number;
    raise(SIGTERM);
}

static void arm_fault(void)
{
    const struct trial_fault *f = &trial.fault;
    if (f->nth > 0)
        ns_fault_arm_mode(f->kind, f->nth, f->mode, f->sticky);
}

static bool fault_was_reached(void)
{
    return trial.fault.nth == 0 || ns_fault_left(trial.fault.kind) <= (trial.fault.sticky ? 1 : 0);
}

static void stop_now(void)
{
    raise(SIGTERM);
    arm_fault();
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

void must(enum ns_code rc, const struct ns_error *err)
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
        if (trial.stop_after == 0)
            arm_fault();
        struct ns_night_options options = {.db_path = f->db, .model_dir = DEMO, .wave_rows = trial.rows};
        rc = ns_night_run_model(&options, &model, &f->budget, report, err);
    }
    ns_tokenizer_close(o.tokenizer);
    ns_engine_close(o.engine);
    return rc;
}

/* The child never meets the parent's compute threads: the parent computes nothing. */
int try_run(struct night_fixture *f, const struct trial *what)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct ns_error err = {0};
        trial = *what;
        ns_log_set_sink(what->hear, what->hear_arg, what->hear ? NS_LOG_WARN : NS_LOG_ERROR);
        ns_signal_install();
        signal(SIGALRM, second_signal);
        if (trial.crash_at)
            ns_crash_arm(trial.crash_at, trial.visit);
        enum ns_code rc = live(f, &err);
        if (rc != NS_OK)
            fprintf(stderr, "run: %s: %s\n", err.context, err.message);
        _exit(rc != NS_OK ? TRIAL_FAILED : fault_was_reached() ? 0 : TRIAL_NOT_REACHED);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

bool run(struct night_fixture *f, uint32_t rows, uint64_t steps)
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

void read_outcomes(struct night_fixture *f, struct outcomes *out)
{
    struct ns_error err = {0};
    struct ns_queue *queue = NULL;
    struct ns_selection all = {0};
    out->n = 0;
    must(ns_queue_open(f->db, NS_QUEUE_READ, false, &f->budget, &queue, &err), &err);
    must(ns_queue_each_request(queue, &all, true, keep_outcome, out, &err), &err);
    ns_queue_close(queue);
}

void same_outcomes(const struct outcomes *want, const struct outcomes *got, const char *when)
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

void demo_night_init(void)
{
    night_fixture_in_memory();
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED)
        abort();
}

static enum ns_code count_suspended(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    (void)bytes;
    (void)err;
    *(uint64_t *)arg += strstr(name, ".suspend") != NULL;
    return NS_OK;
}

uint64_t suspended_files(const struct night_fixture *f)
{
    char dir[128];
    struct ns_error err = {0};
    uint64_t n = 0;
    snprintf(dir, sizeof dir, "%s.state", f->db);
    must(ns_dir_each(dir, count_suspended, &n, &err), &err);
    return n;
}

void submit_long(struct night_fixture *f, unsigned n)
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

static enum ns_code keep_name(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    (void)bytes;
    (void)err;
    struct entries *e = arg;
    assert_true(e->n < NS_COUNT(e->name));
    snprintf(e->name[e->n++], sizeof e->name[0], "%s", name);
    return NS_OK;
}

void open_long(struct night_fixture *f, unsigned n, struct outcomes *want)
{
    night_fixture_open(f);
    submit_long(f, n);
    assert_false(run(f, 128, 0));
    read_outcomes(f, want);
}

void list_side_files(const struct night_fixture *f, struct entries *e)
{
    struct ns_error err = {0};
    e->n = 0;
    snprintf(e->dir, sizeof e->dir, "%s.state", f->db);
    must(ns_dir_each(e->dir, keep_name, e, &err), &err);
}

void finish_well(struct night_fixture *f, const struct outcomes *want, const char *when)
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
