/* file_test.c - files: whole transfers or a named error, atomic replacement, lines, streamed output. */
#include "../scratch.h"
#include "sys/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

static void fill(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = pattern(i);
}

static int setup(void **state)
{
    struct scratch *s = test_malloc(sizeof *s);
    scratch_open(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    ns_fault_disarm();
    ns_file_limit_transfer(0);
    scratch_close(*state);
    test_free(*state);
    return 0;
}

#define N 100000

static struct ns_file *open_pattern(struct scratch *s, enum ns_file_mode mode)
{
    static uint8_t bytes[N];
    fill(bytes, N);
    scratch_write(s, "data", bytes, N);
    struct ns_file *f = NULL;
    struct ns_error err = {0};
    assert_int_equal(ns_file_open(scratch_path(s, "data"), mode, &f, &err), NS_OK);
    assert_int_equal(ns_file_bytes(f), N);
    return f;
}

static void assert_pattern(const uint8_t *got, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], pattern(from + i));
}

static void reads_survive_short_transfers(void **state)
{
    struct ns_file *f = open_pattern(*state, NS_FILE_READ);
    static uint8_t got[N];
    for (uint64_t nth = 1; nth <= 3; nth++) {
        memset(got, 0xEE, N);
        ns_file_limit_transfer(40960);
        ns_fault_arm_mode(NS_FAULT_READ, nth, NS_READ_SHORT, false);
        assert_int_equal(ns_file_read(f, got, N - 17, 17, NULL), NS_OK);
        assert_pattern(got, 17, N - 17);
        ns_fault_arm_mode(NS_FAULT_READ, nth, EINTR, false);
        assert_int_equal(ns_file_read(f, got, N, 0, NULL), NS_OK);
        assert_pattern(got, 0, N);
    }
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
}

static void direct_reads_survive_short_transfers(void **state)
{
    struct scratch *s = *state;
    struct ns_file *f = open_pattern(s, NS_FILE_READ);
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
    struct ns_error err = {0};
    enum ns_code rc = ns_file_open(scratch_path(s, "data"), NS_FILE_READ_DIRECT, &f, &err);
    if (rc == NS_CONFIG) {
        print_message("SKIPPED: no O_DIRECT in %s\n", s->dir);
        skip();
    }
    assert_int_equal(rc, NS_OK);
    size_t n = (N + 4095) / 4096 * 4096, got = 0;
    uint8_t *buffer = aligned_alloc(4096, n);
    assert_non_null(buffer);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        memset(buffer, 0xEE, n);
        ns_file_limit_transfer(40960);
        ns_fault_arm_mode(NS_FAULT_READ, nth, NS_READ_SHORT, false);
        assert_int_equal(ns_file_read_some(f, buffer, n, 0, &got, &err), NS_OK);
        assert_int_equal(got, N);
        assert_pattern(buffer, 0, N);
    }
    free(buffer);
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
}

/* C43: with the limit lowered, every system call stays below it and the bytes are right. */
static void large_reads_are_split(void **state)
{
    struct ns_file *f = open_pattern(*state, NS_FILE_READ);
    static uint8_t got[N];
    ns_file_limit_transfer(4096);
    /* 100000 bytes by 4096 are 25 calls: the 26th does not happen, so a fault armed for it stays armed */
    ns_fault_arm_mode(NS_FAULT_READ, 26, EIO, false);
    assert_int_equal(ns_file_read(f, got, N, 0, NULL), NS_OK);
    assert_true(ns_fault_hit(NS_FAULT_READ));
    assert_pattern(got, 0, N);
    ns_fault_arm_mode(NS_FAULT_READ, 25, EIO, false);
    assert_int_equal(ns_file_read(f, got, N, 0, NULL), NS_IO);
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
}

/* C43: a sparse file of 3 GiB, a marked value near its end: offsets beyond 2^31 arrive. */
static void offsets_beyond_two_gib(void **state)
{
    struct scratch *s = *state;
    const char *path = scratch_path(s, "sparse");
    const off_t size = (off_t)3 << 30;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    assert_int_equal(pwrite(fd, "marked", 6, size - 100), 6);
    close(fd);
    struct ns_file *f = NULL;
    assert_int_equal(ns_file_open(path, NS_FILE_READ, &f, NULL), NS_OK);
    char got[6];
    assert_int_equal(ns_file_read(f, got, 6, (uint64_t)size - 100, NULL), NS_OK);
    assert_memory_equal(got, "marked", 6);
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
}

/* C41: the message has file, offset, length and errno, and says storage. */
static void read_errors_name_everything(void **state)
{
    struct scratch *s = *state;
    struct ns_file *f = open_pattern(s, NS_FILE_READ);
    uint8_t got[64];
    struct ns_error err = {0};
    ns_fault_arm(NS_FAULT_READ, 1);
    assert_int_equal(ns_file_read(f, got, 64, 4711, &err), NS_IO);
    assert_non_null(strstr(err.message, "storage"));
    assert_non_null(strstr(err.message, scratch_path(s, "data")));
    assert_non_null(strstr(err.message, "offset 4711"));
    assert_non_null(strstr(err.message, "length 64"));
    assert_non_null(strstr(err.message, "errno 5"));

    ns_error_clear(&err);
    assert_int_equal(ns_file_read(f, got, 64, N - 10, &err), NS_IO);
    assert_non_null(strstr(err.message, "ends after 10 bytes"));

    ns_error_clear(&err);
    ns_fault_arm_mode(NS_FAULT_READ, 1, NS_READ_ENDS, false);
    assert_int_equal(ns_file_read(f, got, 64, 0, &err), NS_IO);
    assert_non_null(strstr(err.message, "ends after 0 bytes"));
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
}

static void opening_names_the_kind_of_failure(void **state)
{
    struct scratch *s = *state;
    struct ns_file *f = NULL;
    struct ns_error err = {0};
    assert_int_equal(ns_file_open(scratch_path(s, "none"), NS_FILE_READ, &f, &err), NS_NOINPUT);
    assert_null(f);
    assert_non_null(strstr(err.message, "none"));
    assert_int_equal(ns_file_open(s->dir, NS_FILE_READ, &f, NULL), NS_INPUT);
    assert_int_equal(mkfifo(scratch_path(s, "pipe"), 0600), 0);
    assert_int_equal(ns_file_open(s->path, NS_FILE_READ, &f, NULL), NS_INPUT); /* and does not hang */
    assert_int_equal(ns_file_open(scratch_path(s, "no/where"), NS_FILE_CREATE, &f, NULL), NS_CANTCREAT);
    scratch_write(s, "there", "x", 1);
    assert_int_equal(ns_file_open(s->path, NS_FILE_CREATE, &f, NULL), NS_CANTCREAT);
}

static void full_disks_have_their_own_code(void **state)
{
    struct scratch *s = *state;
    struct ns_file *f = NULL;
    assert_int_equal(ns_file_open(scratch_path(s, "new"), NS_FILE_CREATE, &f, NULL), NS_OK);
    static const int full[] = {ENOSPC, EDQUOT};
    for (size_t i = 0; i < 2; i++) {
        struct ns_error err = {0};
        ns_fault_arm_mode(NS_FAULT_WRITE, 1, full[i], false);
        assert_int_equal(ns_file_write(f, "abc", 3, 7, &err), NS_FULL);
        assert_non_null(strstr(err.message, "offset 7"));
        ns_fault_arm_mode(NS_FAULT_SYNC, 1, full[i], false);
        assert_int_equal(ns_file_sync(f, NULL), NS_FULL);
    }
    ns_fault_arm(NS_FAULT_WRITE, 1);
    assert_int_equal(ns_file_write(f, "abc", 3, 0, NULL), NS_IO);
    assert_int_equal(ns_file_write(f, "abc", 3, 0, NULL), NS_OK);
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
}

static void assert_content(const char *path, const char *want)
{
    struct ns_budget b;
    ns_budget_init(&b, "test", 1 << 20);
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(ns_file_slurp(path, 1 << 16, &b, &text, &n, NULL), NS_OK);
    assert_int_equal(n, strlen(want));
    assert_string_equal(text, want);
    ns_budget_give(&b, text);
    ns_budget_fini(&b);
}

static size_t count_entries(struct scratch *s)
{
    char command[600];
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", s->dir);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    size_t n = 0;
    assert_int_equal(fscanf(p, "%zu", &n), 1);
    pclose(p);
    return n;
}

static void replace_is_all_or_nothing(void **state)
{
    struct scratch *s = *state;
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path(s, "file"));
    assert_int_equal(ns_file_replace(path, "old", 3, NULL), NS_OK);
    assert_content(path, "old");
    ns_fault_arm(NS_FAULT_WRITE, 1);
    assert_int_equal(ns_file_replace(path, "new!", 4, NULL), NS_IO);
    assert_content(path, "old");
    ns_fault_arm(NS_FAULT_SYNC, 1);
    assert_int_equal(ns_file_replace(path, "new!", 4, NULL), NS_IO);
    assert_content(path, "old");
    assert_int_equal(count_entries(s), 1); /* no temporary is left */
    assert_int_equal(ns_file_replace(path, "new!", 4, NULL), NS_OK);
    assert_content(path, "new!");
    assert_int_equal(ns_file_unlink(path, NULL), NS_OK);
    assert_int_equal(ns_file_unlink(path, NULL), NS_OK); /* a missing file is fine */
}

static void slurp_has_a_limit(void **state)
{
    struct scratch *s = *state;
    scratch_write(s, "ten", "0123456789", 10);
    struct ns_budget b;
    ns_budget_init(&b, "test", 1 << 20);
    char *text = NULL;
    size_t n = 0;
    struct ns_error err = {0};
    assert_int_equal(ns_file_slurp(s->path, 9, &b, &text, &n, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "10 bytes"));
    assert_null(text);
    assert_int_equal(ns_budget_used(&b), 0);
    ns_budget_fini(&b);
}

struct seen {
    char names[256];
    uint64_t bytes;
};

static enum ns_code note_entry(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    struct seen *seen = arg;
    (void)err;
    strcat(seen->names, name);
    strcat(seen->names, " ");
    seen->bytes += bytes;
    return NS_OK;
}

static enum ns_code refuse_entry(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    (void)arg;
    (void)bytes;
    return ns_error_set(err, NS_INPUT, "refused %s", name);
}

static void directories_list_sorted(void **state)
{
    struct scratch *s = *state;
    scratch_write(s, "b", "22", 2);
    scratch_write(s, "a", "1", 1);
    scratch_write(s, "c", "333", 3);
    assert_int_equal(ns_dir_make(scratch_path(s, "sub"), NULL), NS_OK);
    assert_int_equal(ns_dir_make(s->path, NULL), NS_OK); /* existing is fine */
    struct seen seen = {0};
    assert_int_equal(ns_dir_each(s->dir, note_entry, &seen, NULL), NS_OK);
    assert_string_equal(seen.names, "a b c ");
    assert_int_equal(seen.bytes, 6);
    struct ns_error err = {0};
    assert_int_equal(ns_dir_each(s->dir, refuse_entry, NULL, &err), NS_INPUT);
    assert_string_equal(err.message, "refused a");
    assert_int_equal(ns_dir_each(scratch_path(s, "none"), note_entry, &seen, NULL), NS_NOINPUT);
}

static void sameness_sees_through_links(void **state)
{
    struct scratch *s = *state;
    char a[512], hard[512], soft[512], other[512], real[4096], real_a[4096];
    scratch_write(s, "a", "1", 1);
    snprintf(a, sizeof a, "%s", s->path);
    snprintf(hard, sizeof hard, "%s", scratch_path(s, "hard"));
    snprintf(soft, sizeof soft, "%s", scratch_path(s, "soft"));
    scratch_write(s, "other", "1", 1);
    snprintf(other, sizeof other, "%s", s->path);
    assert_int_equal(link(a, hard), 0);
    assert_int_equal(symlink(a, soft), 0);
    assert_true(ns_path_same(a, hard));
    assert_true(ns_path_same(a, soft));
    assert_false(ns_path_same(a, other));
    assert_int_equal(ns_path_real(soft, real, NULL), NS_OK);
    assert_int_equal(ns_path_real(a, real_a, NULL), NS_OK);
    assert_string_equal(real, real_a);
    assert_int_equal(ns_path_real(scratch_path(s, "none"), real, NULL), NS_NOINPUT);
}

static void identity_notices_change_and_replacement(void **state)
{
    struct scratch *s = *state;
    struct ns_file *f = open_pattern(s, NS_FILE_READ);
    uint64_t before[3], after[3];
    assert_int_equal(ns_file_identity(f, before, NULL), NS_OK);
    scratch_write(s, "other", "x", 1);
    assert_int_equal(ns_file_identity(f, after, NULL), NS_OK);
    assert_memory_equal(before, after, sizeof before);
    char from[512];
    snprintf(from, sizeof from, "%s", scratch_path(s, "other"));
    assert_int_equal(ns_file_rename(from, scratch_path(s, "data"), NULL), NS_OK);
    assert_int_equal(ns_file_identity(f, after, NULL), NS_OK);
    assert_memory_not_equal(before, after, sizeof before);
    assert_int_equal(ns_file_close(f, NULL), NS_OK);
}

static void lines_come_whole_or_cut(void **state)
{
    struct scratch *s = *state;
    static char text[200000];
    size_t n = 0;
    n += (size_t)sprintf(text + n, "first\n\n");
    memset(text + n, 'x', 150000); /* longer than the reader's chunk, and than the limit */
    n += 150000;
    n += (size_t)sprintf(text + n, "\nlast without newline");
    scratch_write(s, "lines", text, n);
    struct ns_budget b;
    ns_budget_init(&b, "test", 1 << 20);
    for (size_t max = 100000; max <= 200000; max += 100000) {
        struct ns_line_reader *r = NULL;
        const char *line;
        size_t k;
        bool cut;
        assert_int_equal(ns_lines_open(s->path, max, &b, &r, NULL), NS_OK);
        assert_int_equal(ns_lines_next(r, &line, &k, &cut, NULL), NS_OK);
        assert_string_equal(line, "first");
        assert_int_equal(ns_lines_next(r, &line, &k, &cut, NULL), NS_OK);
        assert_non_null(line);
        assert_int_equal(k, 0);
        assert_int_equal(ns_lines_next(r, &line, &k, &cut, NULL), NS_OK);
        assert_int_equal(k, max < 150000 ? max : 150000);
        assert_int_equal(cut, max < 150000);
        assert_int_equal(line[k], '\0');
        assert_int_equal(ns_lines_next(r, &line, &k, &cut, NULL), NS_OK);
        assert_string_equal(line, "last without newline");
        assert_false(cut);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(ns_lines_next(r, &line, &k, &cut, NULL), NS_OK);
            assert_null(line);
        }
        ns_lines_close(r);
    }
    struct ns_line_reader *r = NULL;
    assert_int_equal(ns_lines_open(scratch_path(s, "none"), 10, &b, &r, NULL), NS_NOINPUT);
    ns_budget_fini(&b);
}

static void output_appears_on_commit(void **state)
{
    struct scratch *s = *state;
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path(s, "out"));
    struct ns_out_file *f = NULL;
    assert_int_equal(ns_out_open(path, &f, NULL), NS_OK);
    assert_int_equal(ns_out_write(f, "hello ", 6, NULL), NS_OK);
    assert_false(ns_path_exists(path));
    assert_int_equal(ns_out_write(f, "world", 5, NULL), NS_OK);
    assert_int_equal(ns_out_commit(f, NULL), NS_OK);
    assert_content(path, "hello world");
    assert_int_equal(ns_out_open(path, &f, NULL), NS_OK);
    assert_int_equal(ns_out_write(f, "worse", 5, NULL), NS_OK);
    ns_out_abort(f);
    assert_content(path, "hello world");
    assert_int_equal(ns_out_open(path, &f, NULL), NS_OK);
    assert_int_equal(ns_out_write(f, "worse", 5, NULL), NS_OK);
    ns_fault_arm_mode(NS_FAULT_WRITE, 1, ENOSPC, false);
    assert_int_equal(ns_out_commit(f, NULL), NS_FULL);
    assert_content(path, "hello world");
    assert_int_equal(count_entries(s), 1);
    /* a device is written in place, never replaced by a file */
    assert_int_equal(ns_out_open("/dev/null", &f, NULL), NS_OK);
    assert_int_equal(ns_out_write(f, "x", 1, NULL), NS_OK);
    assert_int_equal(ns_out_commit(f, NULL), NS_OK);
    struct stat st;
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

static void output_follows_links(void **state)
{
    struct scratch *s = *state;
    char target[512], link_path[512];
    scratch_write(s, "target", "old", 3);
    snprintf(target, sizeof target, "%s", s->path);
    snprintf(link_path, sizeof link_path, "%s", scratch_path(s, "link"));
    assert_int_equal(symlink(target, link_path), 0);
    struct ns_out_file *f = NULL;
    assert_int_equal(ns_out_open(link_path, &f, NULL), NS_OK);
    assert_int_equal(ns_out_write(f, "new", 3, NULL), NS_OK);
    assert_int_equal(ns_out_commit(f, NULL), NS_OK);
    struct stat st;
    assert_int_equal(lstat(link_path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_content(target, "new");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(reads_survive_short_transfers),
        T(direct_reads_survive_short_transfers),
        T(large_reads_are_split),
        T(offsets_beyond_two_gib),
        T(read_errors_name_everything),
        T(opening_names_the_kind_of_failure),
        T(full_disks_have_their_own_code),
        T(replace_is_all_or_nothing),
        T(slurp_has_a_limit),
        T(directories_list_sorted),
        T(sameness_sees_through_links),
        T(identity_notices_change_and_replacement),
        T(lines_come_whole_or_cut),
        T(output_appears_on_commit),
        T(output_follows_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
