/* damage_test.c - a database with a page that is not what it was: refused, or found by doctor; never taken for sound. */
#include "rig.h"

enum { PAGE = 4096 };

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

/* Exit 65 of any command that opens it, or of doctor. */
static bool is_noticed(struct rig *g, const char *path)
{
    struct ns_queue *q = NULL;
    struct ns_error why = {0};
    enum ns_code rc = ns_queue_open(path, NS_QUEUE_READ, false, &g->budget, &q, &why);
    if (rc != NS_OK) {
        if (ns_code_exit(rc) != 65)
            fail_msg("refused with exit %d: %s", ns_code_exit(rc), why.message);
        return true;
    }
    int64_t n = 0;
    rc = ns_queue_doctor(q, &(struct ns_doctor_options){.deep = true}, no_words, NULL, &n, &why);
    ns_queue_close(q);
    if (rc != NS_OK && ns_code_exit(rc) != 65)
        fail_msg("doctor ends with exit %d: %s", ns_code_exit(rc), why.message);
    return rc != NS_OK || n > 0;
}

static void t13_no_damaged_page_passes(void **state)
{
    (void)state;
    struct rig g;
    char text[4000] = "";
    rig_open(&g);
    for (int i = 0; i < 30; i++)
        sprintf(text + strlen(text), "{\"custom_id\":\"r%d\",\"prompt\":[%d],\"max_tokens\":3}\n", i, 1 + i % 4);
    rig_submit(&g, "in", text);
    rig_start(&g);
    rig_run(&g, 7);
    rig_stop(&g);
    rig_sql(&g, "PRAGMA wal_checkpoint(TRUNCATE)");
    size_t n = 0, missed = 0, n_free = (size_t)rig_int(&g, "PRAGMA freelist_count");
    ns_queue_close(g.q);
    g.q = NULL;
    uint8_t *bytes = read_whole(g.db, &n);
    assert_true(n > 20 * PAGE && n % PAGE == 0);
    for (size_t at = 0; at < n; at += PAGE) {
        char path[600], side[700];
        for (size_t i = 0; i < PAGE; i++)
            bytes[at + i] ^= 0x5A;
        scratch_write(&g.scratch, "damaged.db", bytes, n);
        for (size_t i = 0; i < PAGE; i++)
            bytes[at + i] ^= 0x5A;
        snprintf(path, sizeof path, "%s/damaged.db", g.scratch.dir);
        if (!is_noticed(&g, path)) {
            print_message("page %zu: not noticed\n", at / PAGE + 1);
            missed++;
        }
        snprintf(side, sizeof side, "%s-wal", path);
        unlink(side);
        snprintf(side, sizeof side, "%s-shm", path);
        unlink(side);
    }
    assert_true(missed <= n_free); /* what a free page holds is nothing to anybody */
    free(bytes);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(t13_no_damaged_page_passes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
