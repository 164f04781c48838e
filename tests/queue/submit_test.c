/* submit_test.c - a file becomes a batch: once, whole, every fault with its line and code. */
#include "rig.h"

#include <sys/wait.h>

#define GOOD(id) "{\"custom_id\":\"" id "\",\"prompt\":[1]}\n"

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

static struct ns_submit_report report;
static const struct ns_submit_options plain = {.priority = 5}, strict = {.priority = 5, .strict = true},
                                      dry = {.priority = 5, .dry_run = true}, again = {.priority = 5, .again = true};

static enum ns_code submit(struct rig *g, const char *name, const char *text, const struct ns_submit_options *o)
{
    ns_submit_report_fini(&report);
    return rig_submit_as(g, name, text, o, &report, NULL);
}

static void expect_error(size_t i, int64_t line, const char *code)
{
    assert_true(i < report.n_errors);
    assert_int_equal(report.error[i].line, line);
    assert_string_equal(report.error[i].refusal.code, code);
}

static void c01_same_id_twice(void **state)
{
    struct rig *g = *state;
    const char *text = GOOD("row-a") "{\"custom_id\":\"row-b\",\"prompt\":\"Name a river\"}\n" GOOD(
        "row-c") "{\"custom_id\":\"row-b\",\"prompt\":\"Name a mountain\"}\n";
    assert_int_equal(submit(g, "a", text, &plain), NS_OK);
    assert_int_equal(report.good, 3);
    assert_int_equal(report.bad, 1);
    expect_error(0, 4, "duplicate_custom_id");
    assert_non_null(strstr(report.error[0].refusal.message, "line 4"));
    assert_non_null(strstr(report.error[0].refusal.message, "line 2"));
    assert_int_equal(rig_int(g,
                             "SELECT COUNT(*) FROM requests r JOIN results x ON x.request_id = r.id WHERE line_no = 4"
                             " AND state = 'failed' AND refused = 1 AND custom_id = 'row-b'"),
                     1);
    assert_int_equal(submit(g, "b", text, &strict), NS_INPUT);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM batches WHERE status = 'failed' AND validation_errors LIKE"
                                " '%duplicate_custom_id%'"),
                     1);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests"), 4); /* the refused file left no request */
    rig_doctor(g);
    ns_submit_report_fini(&report);
}

static void c02_same_id_in_two_batches(void **state)
{
    struct rig *g = *state;
    int64_t a =
        rig_submit(g, "a", "{\"custom_id\":\"r1\",\"prompt\":[1,2]}\n{\"custom_id\":\"r2\",\"prompt\":[1,3]}\n");
    int64_t b = rig_submit(g, "b", "{\"custom_id\":\"r1\",\"prompt\":[5]}\n{\"custom_id\":\"r2\",\"prompt\":[6]}\n");
    rig_start(g);
    rig_run(g, 100);
    rig_stop(g);
    rig_doctor(g);
    for (int i = 0; i < 2; i++) {
        struct ns_text line;
        ns_text_init(&line, &g->budget);
        RIG_OK(ns_queue_get(g->q, i ? b : a, "r1", true, &line, err));
        assert_non_null(strstr(line.data, i ? "\"prompt_tokens\":1," : "\"prompt_tokens\":2,"));
        ns_text_fini(&line);
    }
}

static void c04_one_broken_line(void **state)
{
    struct rig *g = *state;
    const char *text = GOOD("p1") GOOD("p2") "{\"custom_id\":\"p3\",\"body\":\n" GOOD("p4") GOOD("p5");
    assert_int_equal(submit(g, "a", text, &strict), NS_INPUT);
    expect_error(0, 3, "invalid_json_line");
    assert_non_null(strstr(report.error[0].refusal.message, "byte"));
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests"), 0);
    assert_int_equal(submit(g, "a", text, &plain), NS_OK); /* a refused file may come again */
    assert_int_equal(report.good, 4);
    expect_error(0, 3, "invalid_json_line");
    rig_start(g);
    rig_run(g, 100);
    rig_stop(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'done'"), 4);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'failed'"), 1);
    ns_submit_report_fini(&report);
}

#define BODY(id, url, model)                                                                                           \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"" url "\",\"body\":{\"model\":\"" model                   \
    "\",\"prompt\":\"p\"}}\n"

static void c08_every_class_of_file_fault(void **state)
{
    struct rig *g = *state;

    static const struct {
        const char *text, *code;
        int64_t line;
    } files[] = {{GOOD("a") "{oops\n", "invalid_json_line", 2},
                 {GOOD("a") GOOD("a"), "duplicate_custom_id", 2},
                 {BODY("a", "/v1/completions", "M") BODY("b", "/v1/embeddings", "M"), "url_mismatch", 2},
                 {BODY("a", "/v1/completions", "M") BODY("b", "/v1/completions", "N"), "model_mismatch", 2},
                 {GOOD("a") "{\"custom_id\":\"b\"}\n", "missing_required_parameter", 2}};

    for (size_t i = 0; i < NS_COUNT(files); i++) {
        char name[8];
        snprintf(name, sizeof name, "f%zu", i);
        assert_int_equal(submit(g, name, files[i].text, &plain), NS_OK);
        assert_int_equal(report.bad, 1);
        expect_error(0, files[i].line, files[i].code);
        snprintf(name, sizeof name, "s%zu", i);
        assert_int_equal(submit(g, name, files[i].text, &strict), NS_INPUT);
        expect_error(0, files[i].line, files[i].code);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(submit(g, "empty", "", i ? &strict : &plain), NS_INPUT);
        expect_error(0, 0, "empty_file");
        assert_int_equal(submit(g, "blank", "\n  \n\r\n", i ? &strict : &plain), NS_INPUT);
    }
    assert_int_equal(submit(g, "two", GOOD("a") "no\n" GOOD("b") GOOD("c") GOOD("a"), &plain), NS_OK);
    expect_error(0, 2, "invalid_json_line");
    expect_error(1, 5, "duplicate_custom_id");
    rig_doctor(g);
    ns_submit_report_fini(&report);
}

static void c47_same_file_twice(void **state)
{
    struct rig *g = *state;
    const char *text = GOOD("a") GOOD("b"), *other = GOOD("b") GOOD("a");
    assert_int_equal(submit(g, "f", text, &plain), NS_OK);
    char first[NS_BATCH_ID_SIZE];
    memcpy(first, report.batch_id, sizeof first);
    assert_int_equal(strlen(first), 32);
    assert_int_equal(submit(g, "f", text, &plain), NS_OK);
    assert_true(report.existed);
    assert_string_equal(report.batch_id, first);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests"), 2);
    assert_int_equal(submit(g, "f", text, &again), NS_OK);
    assert_false(report.existed);
    assert_string_not_equal(report.batch_id, first);
    assert_int_equal(submit(g, "f", other, &plain), NS_OK); /* another order is another file */
    assert_false(report.existed);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests"), 6);
    ns_submit_report_fini(&report);
}

static void a_dry_run_keeps_nothing(void **state)
{
    struct rig *g = *state;
    assert_int_equal(submit(g, "f", GOOD("a") GOOD("a") "x\n", &dry), NS_OK);
    assert_int_equal(report.good, 1);
    assert_int_equal(report.bad, 2);
    assert_string_equal(report.batch_id, "");
    expect_error(0, 2, "duplicate_custom_id");
    assert_int_equal(rig_int(g, "SELECT (SELECT COUNT(*) FROM batches) + (SELECT COUNT(*) FROM requests)"), 0);
    ns_submit_report_fini(&report);
}

static void odd_line_ends_and_marks(void **state)
{
    struct rig *g = *state;
    assert_int_equal(
        submit(g, "f", "\xEF\xBB\xBF{\"custom_id\":\"a\",\"prompt\":[1]}\r\n\r\n{\"custom_id\":\"b\",\"prompt\":[1]}",
               &strict),
        NS_OK);
    assert_int_equal(report.good, 2);
    assert_int_equal(rig_int(g, "SELECT MAX(line_no) FROM requests"), 3);
    ns_submit_report_fini(&report);
}

static void endpoints_of_batches(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "a", BODY("a", "/v1/completions", "M"));
    assert_int_equal(rig_int(g, "SELECT endpoint = '/v1/completions' FROM batches WHERE id = 1"), 1);
    rig_submit(g, "b", BODY("a", "/v1/completions", "M") GOOD("b"));
    assert_int_equal(rig_int(g, "SELECT endpoint = 'plain' FROM batches WHERE id = 2"), 1);
    rig_submit(g, "c", "bad\n");
    assert_int_equal(rig_int(g, "SELECT status = 'completed' AND endpoint = 'plain' FROM batches WHERE id = 3"), 1);
}

static char *many_lines(int n)
{
    char *text = malloc((size_t)n * 64 + 1), *p = text;
    for (int i = 0; i < n; i++)
        p += sprintf(p, i % 1000 == 500 ? "bad line %d\n" : "{\"custom_id\":\"r%d\",\"prompt\":[1,%d]}\n", i, i % 900);
    return text;
}

/* T2: killed after any chunk and submitted again: every line exactly once, the same batch. */
static void continues_after_a_kill(void **state)
{
    struct rig *g = *state;
    char *text = many_lines(22000);
    scratch_write(&g->scratch, "f", text, strlen(text));
    for (uint64_t visit = 1; visit <= 5; visit++) {
        char name[8];
        snprintf(name, sizeof name, "n%d", (int)visit);
        struct ns_submit_options o = {.priority = 5, .name = name};
        ns_queue_close(g->q); /* no connection may cross a fork */
        pid_t pid = fork();
        if (pid == 0) {
            ns_crash_arm("submit.chunk", visit);
            struct ns_queue *q = NULL;
            enum ns_code rc = ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &q, NULL);
            rc = rc == NS_OK ? ns_queue_submit(q, scratch_path(&g->scratch, "f"), &o, &report, NULL) : rc;
            _exit(rc == NS_OK ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        RIG_OK(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &g->q, err));
        char sql[120];
        snprintf(sql, sizeof sql, "SELECT status = 'validating' FROM batches WHERE name = '%s'", name);
        assert_int_equal(rig_int(g, sql), 1);
        RIG_OK(ns_queue_submit(g->q, scratch_path(&g->scratch, "f"), &o, &report, err));
        assert_true(report.continued);
        assert_int_equal(report.lines, 22000);
        assert_int_equal(report.bad, 22);
        ns_submit_report_fini(&report);
        snprintf(sql, sizeof sql,
                 "SELECT COUNT(DISTINCT line_no) FROM requests r JOIN batches b ON b.id = batch_id"
                 " WHERE name = '%s'",
                 name);
        assert_int_equal(rig_int(g, sql), 22000);
    }
    rig_doctor(g);
    free(text);
}

static void a_hundred_thousand_lines(void **state)
{
    struct rig *g = *state;
    char *text = many_lines(100000);
    uint64_t began = ns_clock_mono_ns();
    rig_submit(g, "big", text);
    double seconds = (double)(ns_clock_mono_ns() - began) / 1e9;
    print_message("100,000 requests in %.1f s\n", seconds);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests"), 100000);
    assert_true(ns_budget_peak(&g->budget) < (size_t)32 << 20); /* constant memory, whatever the file */
    free(text);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(c01_same_id_twice),       T(c02_same_id_in_two_batches),
                                       T(c04_one_broken_line),     T(c08_every_class_of_file_fault),
                                       T(c47_same_file_twice),     T(a_dry_run_keeps_nothing),
                                       T(odd_line_ends_and_marks), T(endpoints_of_batches),
                                       T(continues_after_a_kill),  T(a_hundred_thousand_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
