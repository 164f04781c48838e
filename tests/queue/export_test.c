/* export_test.c - results on their way out: never over the input, damaged rows skipped and counted. */
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

static char *slurp(struct rig *g, const char *path)
{
    char *text = NULL;
    size_t n;
    RIG_OK(ns_file_slurp(path, 1 << 20, &g->budget, &text, &n, err));
    return text;
}

static int64_t ten_done(struct rig *g)
{
    char text[1000] = "";
    for (int i = 0; i < 10; i++)
        sprintf(text + strlen(text), "{\"custom_id\":\"r%d\",\"prompt\":[%d],\"max_tokens\":%d}\n", i, i + 1,
                1 + i % 3);
    int64_t batch = rig_submit(g, "in.jsonl", text);
    rig_start(g);
    rig_run(g, 3);
    rig_stop(g);
    return batch;
}

static void c10_output_is_the_input(void **state)
{
    struct rig *g = *state;
    int64_t batch = ten_done(g);
    char input[600], link_path[600], hard[600], db_link[600];
    snprintf(input, sizeof input, "%s/in.jsonl", g->scratch.dir);
    snprintf(link_path, sizeof link_path, "%s/link", g->scratch.dir);
    snprintf(hard, sizeof hard, "%s/hard", g->scratch.dir);
    snprintf(db_link, sizeof db_link, "%s/db_link", g->scratch.dir);
    assert_int_equal(symlink(input, link_path), 0);
    assert_int_equal(link(input, hard), 0);
    assert_int_equal(symlink(g->db, db_link), 0);
    char *before = slurp(g, input);
    const char *const targets[] = {input, link_path, hard, g->db, db_link};
    for (size_t i = 0; i < NS_COUNT(targets); i++)
        for (int side = 0; side < 2; side++) {
            struct ns_export_options o = {.output = side ? NULL : targets[i], .errors = side ? targets[i] : NULL};
            struct ns_export_report report;
            assert_int_equal(ns_queue_export(g->q, batch, &o, &report, NULL), NS_CANTCREAT);
        }
    char *after = slurp(g, input);
    assert_string_equal(before, after);
    ns_budget_give(&g->budget, before);
    ns_budget_give(&g->budget, after);
    /* nor that of another batch */
    static const char line[] = "{\"custom_id\":\"z\",\"prompt\":[1],\"max_tokens\":1}\n";
    char other[600];
    scratch_write(&g->scratch, "other.jsonl", line, strlen(line));
    snprintf(other, sizeof other, "%s/other.jsonl", g->scratch.dir);
    struct ns_submit_options so = {.priority = 5};
    struct ns_submit_report sr;
    RIG_OK(ns_queue_submit(g->q, other, &so, &sr, err));
    ns_submit_report_fini(&sr);
    for (int side = 0; side < 2; side++) {
        struct ns_export_options o = {.output = side ? NULL : other, .errors = side ? other : NULL};
        struct ns_export_report report;
        assert_int_equal(ns_queue_export(g->q, batch, &o, &report, NULL), NS_CANTCREAT);
    }
    after = slurp(g, other);
    assert_string_equal(line, after);
    ns_budget_give(&g->budget, after);
    struct ns_export_options both = {.output = hard, .errors = hard};
    struct ns_export_report report;
    assert_int_not_equal(ns_queue_export(g->q, batch, &both, &report, NULL), NS_OK);
    rig_doctor(g);
}

/* C97: an empty body, a line that is not JSON, bad UTF-8: skipped and counted, the totals cover the rest. */
static void c97_damaged_lines_are_counted(void **state)
{
    struct rig *g = *state;
    int64_t batch = ten_done(g);
    char out[600];
    snprintf(out, sizeof out, "%s/out", g->scratch.dir);
    struct ns_export_options o = {.output = out};
    struct ns_export_report report;
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    char *text = slurp(g, out), *fourth = text;
    for (int i = 0; i < 3; i++)
        fourth = strchr(fourth, '\n') + 1;
    char *fifth = strchr(fourth, '\n') + 1;
    static const char *const damage[] = {"", "not json", "{\"custom_id\":\"\xE2\x82\"}", "{}", "null"};
    for (size_t i = 0; i < NS_COUNT(damage); i++) {
        FILE *f = fopen(out, "wb");
        fwrite(text, 1, (size_t)(fourth - text), f);
        fprintf(f, "%s\n%s", damage[i], fifth);
        fclose(f);
        struct ns_export_summary s;
        RIG_OK(ns_export_read_summary(out, &g->budget, &s, err));
        assert_int_equal(s.lines, 10);
        assert_int_equal(s.damaged, 1);
        assert_int_equal(s.succeeded, 9);
    }
    ns_budget_give(&g->budget, text);
}

static void damaged_rows_are_left_out(void **state)
{
    struct rig *g = *state;
    int64_t batch = ten_done(g);
    rig_sql(g, "DROP TRIGGER results_are_final; UPDATE results SET response = '{\"cut' WHERE request_id = 4;"
               "UPDATE results SET response = CAST(X'7B22C3227D' AS TEXT) WHERE request_id = 5");
    char out[600];
    snprintf(out, sizeof out, "%s/out", g->scratch.dir);
    struct ns_export_options o = {.output = out};
    struct ns_export_report report;
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    assert_int_equal(report.damaged, 2);
    assert_int_equal(report.written, 8);
    int64_t n = 0;
    RIG_OK(ns_queue_doctor(g->q, &(struct ns_doctor_options){.deep = true}, rig_finding, NULL, &n, err));
    assert_true(n >= 2);
}

static void orders_and_partial(void **state)
{
    struct rig *g = *state;
    int64_t batch = ten_done(g);
    char out[600];
    snprintf(out, sizeof out, "%s/out", g->scratch.dir);
    struct ns_export_options o = {.output = out};
    struct ns_export_report report;
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    char *text = slurp(g, out), *line = text;
    for (int i = 0; i < 10; i++) {
        char id[32];
        snprintf(id, sizeof id, "\"custom_id\":\"r%d\"", i);
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        assert_non_null(strstr(line, id));
        assert_non_null(strstr(line, "\"x_local\":{\"content_sha256\":"));
        line = end + 1;
    }
    ns_budget_give(&g->budget, text);
    o.by_finish = true;
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    assert_int_equal(report.written, 10);
    int64_t open = rig_submit(g, "more", "{\"custom_id\":\"z\",\"prompt\":[1]}\nbad\n");
    o = (struct ns_export_options){.output = out, .errors = NULL};
    assert_int_equal(ns_queue_export(g->q, open, &o, &report, NULL), NS_BUSY);
    o.partial = true;
    o.merged = true;
    RIG_OK(ns_queue_export(g->q, open, &o, &report, err));
    assert_int_equal(report.missing, 1);
    assert_int_equal(report.failures, 1);
    assert_int_equal(report.written, 1);
    struct ns_text t;
    ns_text_init(&t, &g->budget);
    assert_int_equal(ns_queue_get(g->q, open, "z", false, &t, NULL), NS_BUSY);
    assert_int_equal(ns_queue_get(g->q, open, "nobody", false, &t, NULL), NS_NOINPUT);
    RIG_OK(ns_queue_get(g->q, batch, "r1", false, &t, err));
    ns_text_fini(&t);
}

static void files_without_lines_are_not_there(void **state)
{
    struct rig *g = *state;
    int64_t batch = ten_done(g);
    char bad[600];
    snprintf(bad, sizeof bad, "%s/bad", g->scratch.dir);
    struct ns_export_options o = {.errors = bad};
    struct ns_export_report report;
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    assert_false(ns_path_exists(bad));
    assert_false(report.errors_removed);
    scratch_write(&g->scratch, "bad", "old\n", 4);
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    assert_true(report.errors_removed && !report.output_untouched);
    assert_false(ns_path_exists(bad)); /* they were of an earlier export */
}

static void batches_are_found_by_prefix(void **state)
{
    struct rig *g = *state;
    int64_t first = rig_submit(g, "a", "{\"custom_id\":\"z\",\"prompt\":[1]}\n");
    int64_t second = rig_submit(g, "b", "{\"custom_id\":\"y\",\"prompt\":[1]}\n"), id = 0;
    rig_sql(g, "UPDATE batches SET public_id = 'batch_01AAAAAAAAAAAAAAAAAAAAAAAA' WHERE id = 1;"
               "UPDATE batches SET public_id = 'batch_01BBBBBBBBBBBBBBBBBBBBBBBB' WHERE id = 2");
    RIG_OK(ns_queue_find_batch(g->q, "@last", &id, err));
    assert_int_equal(id, second);
    RIG_OK(ns_queue_find_batch(g->q, "batch_01A", &id, err));
    assert_int_equal(id, first);
    RIG_OK(ns_queue_find_batch(g->q, "01B", &id, err));
    assert_int_equal(id, second);
    assert_int_equal(ns_queue_find_batch(g->q, "batch_01", &id, NULL), NS_USAGE);
    assert_int_equal(ns_queue_find_batch(g->q, "batch_", &id, NULL), NS_NOINPUT);
    assert_int_equal(ns_queue_find_batch(g->q, "%", &id, NULL), NS_NOINPUT);
    struct ns_selection s;
    RIG_OK(ns_queue_select(g->q, "01A/z", &s, err));
    assert_true(s.batch_id == first && strcmp(s.custom_id, "z") == 0);
    RIG_OK(ns_queue_select(g->q, "#2-#7", &s, err));
    assert_true(s.first_id == 2 && s.last_id == 7 && s.batch_id == 0);
    assert_int_equal(ns_queue_select(g->q, "#7-#2", &s, NULL), NS_USAGE);
    assert_int_equal(ns_queue_select(g->q, "#", &s, NULL), NS_USAGE);
    assert_int_equal(ns_queue_select(g->q, "#99999999999999999999", &s, NULL), NS_USAGE);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(c10_output_is_the_input),           T(c97_damaged_lines_are_counted),
                                       T(damaged_rows_are_left_out),         T(orders_and_partial),
                                       T(files_without_lines_are_not_there), T(batches_are_found_by_prefix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
