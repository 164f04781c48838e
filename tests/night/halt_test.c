/* halt_test.c - the real engine on the demo model, stopped politely at chosen layer boundaries: after any number of stops, in
 * waves of any size, every result is that of an undisturbed run. The stops come from the test's own wave_step, so a
 * failure repeats. NS_SEEDS: rounds of stop after stop. */
#define _GNU_SOURCE
#include "night_fixture.h"

#include "json/json.h"
#include "sys/sys.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEMO NS_SOURCE_DIR "/jobs/demo"

enum { REQUESTS = 400, BODY = 4096 };

/* What a request came to, without what may differ: its state and the body less id, created and x_local. */
struct outcome {
    char name[48], body[BODY];
};

struct outcomes {
    struct outcome of[REQUESTS];
    size_t n;
};

static uint64_t steps_left; /* of all waves; the last one is followed by SIGTERM */

static enum ns_code counted_step(void *self, struct ns_wave *wave, bool *done, struct ns_error *err)
{
    (void)self;
    enum ns_code rc = ns_wave_step(wave, done, err);
    if (steps_left > 0 && --steps_left == 0)
        assert_int_equal(raise(SIGTERM), 0);
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

static void open_model(struct opened *o, uint32_t rows)
{
    struct ns_error err = {0};
    *o = (struct opened){0};
    ns_budget_init(&o->budget, "model", (size_t)300 << 20);
    struct ns_engine_options options = {.rows_max = rows, .cpu = ns_cpu_bits()};
    must(ns_engine_open(DEMO, &options, &o->budget, &o->engine, &err), &err);
    const struct ns_config *config = ns_engine_config(o->engine);
    must(ns_tokenizer_open(DEMO, config->vocab, &o->budget, &o->tokenizer, &err), &err);
    must(ns_job_model_init(&o->job, o->tokenizer, ns_engine_fingerprint(o->engine), NS_CONTRACT, config->vocab,
                           ns_engine_context(o->engine), config->eos, NULL, 0, &err),
         &err);
}

static void close_model(struct opened *o)
{
    ns_tokenizer_close(o->tokenizer);
    ns_engine_close(o->engine);
    ns_budget_fini(&o->budget);
}

/* One run; a stop after so many steps (0: none). True when it was stopped. */
static bool run(struct night_fixture *f, uint32_t rows, uint64_t steps, struct ns_night_report *report)
{
    struct opened o;
    struct ns_error err = {0};
    open_model(&o, rows);
    struct ns_night_model model = {.machine = ns_machine_of_engine(o.engine),
                                   .job = &o.job,
                                   .dir = DEMO,
                                   .tokenizer_fingerprint = ns_engine_tokenizer_fingerprint(o.engine),
                                   .engine = o.engine};
    model.machine.wave_step = counted_step;
    struct ns_night_options options = {.db_path = f->db, .model_dir = DEMO, .wave_rows = rows};
    steps_left = steps;
    ns_signal_reset();
    must(ns_night_run_model(&options, &model, &f->budget, report, &err), &err);
    steps_left = 0;
    ns_signal_reset();
    close_model(&o);
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
    struct ns_night_report report;
    static struct outcomes want, got;
    night_fixture_open(&f);
    ns_signal_install();
    submit(&f, 25, 25);
    assert_false(run(&f, 256, 0, &report));
    read_outcomes(&f, &want);
    uint64_t steps = 1, resumed = 0;
    for (bool stopped = true; stopped; steps++) {
        char when[64];
        night_fixture_new_queue(&f);
        submit(&f, 25, 25);
        stopped = run(&f, 24, steps, &report);
        night_fixture_check(&f);
        resumed += suspended_files(&f);
        assert_false(run(&f, 24 + (uint32_t)(steps % 40), 0, &report));
        night_fixture_check(&f);
        assert_int_equal(suspended_files(&f), 0);
        read_outcomes(&f, &got);
        snprintf(when, sizeof when, "stopped after %llu steps", (unsigned long long)steps);
        same_outcomes(&want, &got, when);
    }
    assert_true(steps > 100);
    assert_true(resumed > steps / 2); /* of 11 steps the last two end a wave */
    night_fixture_close(&f);
}

static void stop_after_stop(struct night_fixture *f, const struct outcomes *want, uint64_t seed)
{
    struct ns_night_report report;
    static struct outcomes got;
    char when[64];
    uint64_t rnd = seed;
    night_fixture_new_queue(f);
    submit(f, 1, 3);
    size_t stops = 0;
    for (bool stopped = true; stopped; stops++) {
        uint32_t rows = (uint32_t)(16 + night_random(&rnd) % 300);
        stopped = run(f, rows, 1 + night_random(&rnd) % 60, &report);
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
    struct ns_night_report report;
    static struct outcomes want;
    const char *seeds = getenv("NS_SEEDS"), *first = getenv("NS_SEED");
    night_fixture_open(&f);
    ns_signal_install();
    submit(&f, 1, 3);
    assert_false(run(&f, 256, 0, &report));
    read_outcomes(&f, &want);
    assert_int_equal(report.requests_failed, 0);
    uint64_t n = seeds ? strtoull(seeds, NULL, 10) : 3, from = first ? strtoull(first, NULL, 10) : 1;
    for (uint64_t i = 0; i < n; i++)
        stop_after_stop(&f, &want, from + i);
    night_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stop_at_every_boundary),
                                       cmocka_unit_test(stops_change_no_result)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
