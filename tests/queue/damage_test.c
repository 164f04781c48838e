/* damage_test.c - a database with a page that is not what it was: no run starts on it and doctor finds it; it is never taken
 * for sound. NS_FLIPS: how many pages are damaged (each page in each way when there are fewer); NS_SEED. */
#include "../random.h"
#include "rig.h"

enum { PAGE = 4096, PAGES_MOST = 400, WAYS = 3 };

static uint8_t *read_whole(const char *path, size_t *n)
{
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    *n = (size_t)ftell(in);
    rewind(in);
    uint8_t *bytes = malloc(*n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, in), *n);
    fclose(in);
    return bytes;
}

static void no_words(void *arg, const char *invariant, bool is_note, int64_t ref, const char *text)
{
    (void)arg;
    (void)invariant;
    (void)is_note;
    (void)ref;
    (void)text;
}

static void must_be_65(enum ns_code rc, const char *who, const struct ns_error *why)
{
    if (ns_code_exit(rc) != 65)
        fail_msg("%s ends with exit %d: %s", who, ns_code_exit(rc), why->message);
}

/* By opening it, or by doctor. */
static bool is_found(struct rig *g, const char *path)
{
    struct ns_queue *q = NULL;
    struct ns_error why = {0};
    int64_t n = 0;
    enum ns_code rc = ns_queue_open(path, NS_QUEUE_READ, false, &g->budget, &q, &why);
    if (rc == NS_OK)
        rc = ns_queue_doctor(q, &(struct ns_doctor_options){.deep = true}, no_words, NULL, &n, &why);
    ns_queue_close(q);
    if (rc != NS_OK)
        must_be_65(rc, "doctor", &why);
    return rc != NS_OK || n > 0;
}

static bool is_refused(struct rig *g, const char *path, struct ns_error *why)
{
    struct ns_runner_options o = {.no_ballast = true};
    struct ns_runner_start_report report;
    struct ns_runner *r = NULL;
    enum ns_code rc = ns_runner_start(path, &o, &g->budget, &r, &report, why);
    ns_runner_abandon(r);
    if (rc != NS_OK)
        must_be_65(rc, "a run", why);
    return rc != NS_OK;
}

/* Pages that hold something: all but free ones, whose content is nothing to anybody. */
static size_t list_pages(struct rig *g, size_t page[PAGES_MOST])
{
    size_t n = 0;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_prepare_v2(g->q->db, "SELECT pageno FROM dbstat ORDER BY 1", -1, &stmt, NULL), SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        assert_true(n < PAGES_MOST);
        page[n++] = (size_t)sqlite3_column_int64(stmt, 0) - 1;
    }
    sqlite3_finalize(stmt);
    return n;
}

/* Leaves without entries: one says the same as the other. */
static bool are_empty(const uint8_t *a, const uint8_t *b)
{
    return a[0] == b[0] && (a[0] == 10 || a[0] == 13) && a[3] + a[4] + b[3] + b[4] == 0;
}

/* False when the page is as it was, or means the same. */
static bool spoil(uint8_t *page, int way, const uint8_t *other, uint64_t *rnd)
{
    uint8_t was[PAGE];
    memcpy(was, page, PAGE);
    if (way == 0)
        for (size_t i = 0; i < PAGE; i++)
            page[i] ^= (uint8_t)test_random(rnd);
    else if (way == 1)
        memset(page, 0, PAGE);
    else
        memcpy(page, other, PAGE); /* a write that went astray */
    return memcmp(was, page, PAGE) != 0 && !are_empty(was, page);
}

static void remove_database(struct rig *g, const char *path)
{
    char command[800];
    (void)g;
    snprintf(command, sizeof command, "rm -rf '%s'*", path);
    assert_int_equal(system(command), 0);
}

static void t13_no_damaged_page_passes(void **state)
{
    (void)state;
    struct rig g;
    char text[4000] = "", path[600];
    const char *wanted = getenv("NS_FLIPS"), *first = getenv("NS_SEED");
    uint64_t rnd = first ? strtoull(first, NULL, 10) : 3;
    rig_open(&g);
    for (int i = 0; i < 30; i++)
        sprintf(text + strlen(text), "{\"custom_id\":\"r%d\",\"prompt\":[%d],\"max_tokens\":3}\n", i, 1 + i % 4);
    rig_submit(&g, "in", text);
    rig_start(&g);
    rig_run(&g, 7);
    rig_stop(&g);
    rig_sql(&g, "PRAGMA wal_checkpoint(TRUNCATE)");
    size_t n = 0, page[PAGES_MOST], n_pages = list_pages(&g, page), missed = 0, spoiled = 0;
    ns_queue_close(g.q);
    g.q = NULL;
    uint8_t *bytes = read_whole(g.db, &n);
    assert_true(n_pages > 20 && n > 20 * PAGE && n % PAGE == 0);
    snprintf(path, sizeof path, "%s/damaged.db", g.scratch.dir);
    size_t rounds = wanted ? strtoull(wanted, NULL, 10) : 0;
    for (size_t i = 0; i < rounds || i < n_pages * WAYS; i++) {
        uint8_t was[PAGE], *p = bytes + page[i % n_pages] * PAGE;
        int way = (int)(i / n_pages % WAYS);
        memcpy(was, p, PAGE);
        if (spoil(p, way, bytes + page[test_random(&rnd) % n_pages] * PAGE, &rnd)) {
            spoiled++;
            scratch_write(&g.scratch, "damaged.db", bytes, n);
            bool found = is_found(&g, path);
            remove_database(&g, path);
            scratch_write(&g.scratch, "damaged.db", bytes, n);
            struct ns_error why = {0};
            bool refused = is_refused(&g, path, &why);
            remove_database(&g, path);
            if (!found || !refused) {
                print_message("page %zu, way %d: %s, %s\n", page[i % n_pages] + 1, way, found ? "found" : "not found",
                              refused ? why.message : "not refused");
                missed++;
            }
        }
        memcpy(p, was, PAGE);
    }
    print_message("%zu of %zu pages, %zu times spoiled\n", n_pages, n / PAGE, spoiled);
    assert_int_equal(missed, 0);
    free(bytes);
    rig_close(&g);
}

static int64_t checks_after_start(struct rig *g, bool well)
{
    struct ns_runner_options o = {.no_ballast = true, .large_bytes = 1};
    struct ns_runner_start_report report;
    RIG_OK(ns_runner_start(g->db, &o, &g->budget, &g->r, &report, err));
    int64_t n = rig_int(g, "SELECT COUNT(*) FROM events WHERE kind = 'pages checked'");
    if (well)
        rig_stop(g);
    else
        ns_runner_abandon(g->r);
    g->r = NULL;
    return n;
}

/* When a run was killed or ended with an error, and once a day; a restart on the same day need not wait. */
static void a_large_queue_is_checked_when_it_matters(void **state)
{
    (void)state;
    struct rig g;
    struct ns_runner_options large = {.no_ballast = true, .large_bytes = 1};
    struct ns_runner_start_report report;
    struct ns_error why = {0};
    rig_open(&g);
    assert_int_equal(checks_after_start(&g, true), 1);
    assert_int_equal(checks_after_start(&g, true), 1);
    assert_int_equal(checks_after_start(&g, false), 1);
    assert_int_equal(checks_after_start(&g, true), 2); /* the one before died */
    assert_int_equal(checks_after_start(&g, true), 2);
    rig_sql(&g, "UPDATE runners SET end_reason = 'error io: x' WHERE id = (SELECT MAX(id) FROM runners)");
    assert_int_equal(checks_after_start(&g, true), 3);
    rig_sql(&g, "UPDATE events SET at = at - 25 * 3600 * 1000 WHERE kind = 'pages checked'");
    assert_int_equal(checks_after_start(&g, false), 4);
    /* and what such a check finds ends the start */
    rig_sql(&g, "PRAGMA wal_checkpoint(TRUNCATE)");
    int64_t page = rig_int(&g, "SELECT pageno FROM dbstat WHERE name = 'runners'");
    ns_queue_close(g.q);
    g.q = NULL;
    FILE *out = fopen(g.db, "r+b");
    assert_non_null(out);
    uint8_t zero[PAGE] = {0};
    assert_int_equal(fseek(out, (page - 1) * PAGE + 8, SEEK_SET), 0);
    assert_int_equal(fwrite(zero, 1, 2, out), 2); /* the place of its first cell */
    assert_int_equal(fclose(out), 0);
    assert_int_equal(ns_runner_start(g.db, &large, &g.budget, &g.r, &report, &why), NS_CORRUPT);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(t13_no_damaged_page_passes),
                                       cmocka_unit_test(a_large_queue_is_checked_when_it_matters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
