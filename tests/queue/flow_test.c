/* flow_test.c - a file in, a fake run, a file out. */
#include "rig.h"

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

static void a_file_goes_through(void **state)
{
    struct rig *g = *state;
    int64_t batch = rig_submit(g, "in.jsonl",
                               "{\"custom_id\":\"a\",\"prompt\":[1,2,3],\"max_tokens\":4}\n"
                               "{\"custom_id\":\"b\",\"prompt\":[1,2,9],\"max_tokens\":9,\"logprobs\":0}\n"
                               "not json\n"
                               "{\"custom_id\":\"c\",\"prompt\":[1,2],\"choices\":[[3],[4,5]],\"answer\":1}\n"
                               "{\"custom_id\":\"d\",\"prompt\":\"text without a tokenizer\"}\n");
    rig_start(g);
    rig_run(g, 100);
    rig_stop(g);
    rig_doctor(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'done'"), 3);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'failed'"), 2);
    assert_int_equal(rig_int(g, "SELECT status = 'completed' FROM batches"), 1);
    char out[600], bad[600];
    snprintf(out, sizeof out, "%s/out.jsonl", g->scratch.dir);
    snprintf(bad, sizeof bad, "%s/err.jsonl", g->scratch.dir);
    struct ns_export_options o = {.output = out, .errors = bad};
    struct ns_export_report report;
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    assert_int_equal(report.written, 3);
    assert_int_equal(report.failures, 2);
    assert_int_equal(report.damaged, 0);
    struct ns_export_summary s;
    RIG_OK(ns_export_read_summary(out, &g->budget, &s, err));
    assert_int_equal(s.lines, 3);
    assert_int_equal(s.succeeded, 3);
    assert_int_equal(s.judged, 1);
    RIG_OK(ns_export_read_summary(bad, &g->budget, &s, err));
    assert_int_equal(s.lines, 2);
    assert_int_equal(s.failed + s.damaged, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(a_file_goes_through, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
