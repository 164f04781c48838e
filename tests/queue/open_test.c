/* open_test.c - making, opening, refusing, copying. */
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

static void missing_file_is_refused(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    struct ns_error err = {0};
    assert_int_equal(ns_queue_open(scratch_path(&g->scratch, "none.db"), NS_QUEUE_WRITE, false, &g->budget, &q, &err),
                     NS_NOINPUT);
    assert_non_null(strstr(err.message, "init"));
    assert_false(ns_path_exists(scratch_path(&g->scratch, "none.db")));
}

static void init_refuses_what_is_there(void **state)
{
    struct rig *g = *state;
    assert_int_equal(ns_queue_create(g->db, NULL), NS_CANTCREAT);
    scratch_write(&g->scratch, "empty.db", "", 0);
    RIG_OK(ns_queue_create(scratch_path(&g->scratch, "empty.db"), err));          /* an empty file is as good as none */
    RIG_OK(ns_queue_create(scratch_path(&g->scratch, "no/such/folder.db"), err)); /* the folder is made too */
    assert_int_equal(ns_queue_create(scratch_path(&g->scratch, "empty.db/new.db"), NULL), NS_CANTCREAT);
}

static void settings_read_back(void **state)
{
    struct rig *g = *state;
    assert_int_equal(rig_int(g, "PRAGMA synchronous"), 2);
    assert_int_equal(rig_int(g, "PRAGMA foreign_keys"), 1);
    assert_int_equal(rig_int(g, "PRAGMA trusted_schema"), 0);
    assert_int_equal(rig_int(g, "PRAGMA wal_autocheckpoint"), 0);
    assert_int_equal(rig_int(g, "PRAGMA auto_vacuum"), 2);
    assert_int_equal(rig_int(g, "PRAGMA page_size"), 4096);
    assert_int_equal(rig_int(g, "PRAGMA secure_delete"), 0);
    assert_int_equal(rig_int(g, "PRAGMA user_version"), NS_SCHEMA_VERSION);
}

static void refuses_other_files(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    struct ns_error err = {0};
    char text[8192];
    memset(text, 'x', sizeof text);
    scratch_write(&g->scratch, "text.db", text, sizeof text);
    assert_int_equal(ns_queue_open(scratch_path(&g->scratch, "text.db"), NS_QUEUE_WRITE, false, &g->budget, &q, &err),
                     NS_CORRUPT);
    assert_non_null(strstr(err.message, "text.db is not a queue"));
    rig_sql(g, "PRAGMA user_version = 2");
    ns_error_clear(&err);
    assert_int_equal(ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &q, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "schema 2"));
    rig_sql(g, "PRAGMA user_version = 0");
    assert_int_equal(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, NULL), NS_MIGRATE);
    rig_sql(g, "PRAGMA user_version = 1; PRAGMA application_id = 5");
    assert_int_equal(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, NULL), NS_INPUT);
}

static void a_reader_cannot_write(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    RIG_OK(ns_queue_open(g->db, NS_QUEUE_READ, false, &g->budget, &q, err));
    assert_int_equal(ns_write_begin(q, NULL), NS_INTERNAL);
    assert_int_equal(ns_sql_run(q, NULL, "DELETE FROM requests", ""), NS_INTERNAL);
    ns_queue_close(q);
    /* nor may a writer outside a write transaction */
    assert_int_equal(ns_sql_run(g->q, NULL, "DELETE FROM requests", ""), NS_INTERNAL);
}

static void a_copy_is_a_queue(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in.jsonl", "{\"custom_id\":\"a\",\"prompt\":[1]}\n");
    char copy[600];
    snprintf(copy, sizeof copy, "%s/copy.db", g->scratch.dir);
    RIG_OK(ns_queue_backup(g->q, copy, err));
    assert_int_equal(ns_queue_backup(g->q, copy, NULL), NS_CANTCREAT);
    struct ns_queue *q = NULL;
    RIG_OK(ns_queue_open(copy, NS_QUEUE_READ, false, &g->budget, &q, err));
    int64_t n = 0;
    RIG_OK(ns_sql_value(q, &n, NULL, err, "SELECT COUNT(*) FROM requests", ""));
    assert_int_equal(n, 1);
    ns_queue_close(q);
}

/* Results cannot be changed, whoever tries. */
static void results_are_final(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in.jsonl", "bad\n");
    char *message = NULL;
    assert_int_equal(sqlite3_exec(g->q->db, "UPDATE results SET response = '{}'", NULL, NULL, &message),
                     SQLITE_CONSTRAINT_TRIGGER);
    sqlite3_free(message);
    assert_int_equal(sqlite3_exec(g->q->db, "INSERT OR REPLACE INTO results SELECT * FROM results", NULL, NULL, NULL),
                     SQLITE_CONSTRAINT_TRIGGER);
}

static void views_work_in_the_shell(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in.jsonl", "bad\n{\"custom_id\":\"a\",\"prompt\":[1]}\n");
    sqlite3 *db = NULL; /* as the shell opens it: the schema is trusted */
    assert_int_equal(sqlite3_open(g->db, &db), SQLITE_OK);
    static const char *const views[] = {"v_batches", "v_requests", "v_results", "v_dead", "v_waves", "v_doctor"};
    for (size_t i = 0; i < NS_COUNT(views); i++) {
        char sql[80];
        snprintf(sql, sizeof sql, "SELECT * FROM %s", views[i]);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    }
    /* a bad line was never tried; what is wrong with it shows all the same */
    static const char *const reasons[] = {"SELECT last_error FROM v_dead", "SELECT error FROM v_results"};
    for (size_t i = 0; i < NS_COUNT(reasons); i++) {
        sqlite3_stmt *stmt = NULL;
        assert_int_equal(sqlite3_prepare_v2(db, reasons[i], -1, &stmt, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
        assert_non_null(sqlite3_column_text(stmt, 0));
        assert_non_null(strstr((const char *)sqlite3_column_text(stmt, 0), "not valid JSON"));
        sqlite3_finalize(stmt);
    }
    sqlite3_close(db);
}

static void c50_network_file_systems_are_refused(void **state)
{
    struct rig *g = *state;
    struct ns_queue *q = NULL;
    struct ns_error why = {0};
    ns_host_pretend_network_fs("NFS");
    enum ns_code opened = ns_queue_open(g->db, NS_QUEUE_WRITE, false, &g->budget, &q, &why);
    enum ns_code made = ns_queue_create(scratch_path(&g->scratch, "new.db"), NULL);
    ns_queue_close(g->q); /* insisting means being alone */
    g->q = NULL;
    enum ns_code insisted = ns_queue_open(g->db, NS_QUEUE_WRITE, true, &g->budget, &q, NULL);
    ns_host_pretend_network_fs(NULL);
    assert_int_equal(opened, NS_CONFIG);
    assert_int_equal(ns_code_exit(opened), 78);
    assert_non_null(strstr(why.message, "NFS"));
    assert_non_null(strstr(why.message, "--single-owner"));
    assert_int_equal(made, NS_CONFIG);
    assert_int_equal(insisted, NS_OK);
    ns_queue_close(q);
}

static void the_reserve_is_kept_and_given_up(void **state)
{
    struct rig *g = *state;
    struct ns_runner_options o = {0};
    struct ns_runner_start_report report;
    RIG_OK(ns_runner_start(g->db, &o, &g->budget, &g->r, &report, err));
    char path[600];
    snprintf(path, sizeof path, "%s.ballast", g->db);
    if (ns_host_free_disk(g->scratch.dir) > (uint64_t)200 << 20)
        assert_true(ns_path_exists(path));
    assert_int_equal(ns_ballast_drop(g->r), ns_host_free_disk(g->scratch.dir) > (uint64_t)200 << 20);
    assert_false(ns_path_exists(path));
    assert_false(ns_ballast_drop(g->r));
    rig_stop(g);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(missing_file_is_refused),
                                       T(init_refuses_what_is_there),
                                       T(settings_read_back),
                                       T(refuses_other_files),
                                       T(a_reader_cannot_write),
                                       T(a_copy_is_a_queue),
                                       T(results_are_final),
                                       T(views_work_in_the_shell),
                                       T(c50_network_file_systems_are_refused),
                                       T(the_reserve_is_kept_and_given_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
