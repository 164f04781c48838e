/* lock_test.c - locks and presence between processes. */
#include "../scratch.h"
#include "sys/sys.h"

#include <signal.h>
#include <sys/wait.h>

static int setup(void **state)
{
    struct scratch *s = test_malloc(sizeof *s);
    scratch_open(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    scratch_close(*state);
    test_free(*state);
    return 0;
}

struct holder {
    pid_t pid;
    int ready, go; /* pipe ends: it says ready, we say go */
};

/* A child that does take, reports its code, and waits for the word or for death. */
static struct holder start_holder(enum ns_code (*take)(const char *path), const char *path, int *code)
{
    int up[2], down[2];
    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(up[0]);
        close(down[1]);
        char c = (char)take(path);
        if (write(up[1], &c, 1) != 1 || read(down[0], &c, 1) < 0)
            _exit(1);
        _exit(0);
    }
    close(up[1]);
    close(down[0]);
    char c = 127;
    assert_int_equal(read(up[0], &c, 1), 1);
    *code = c;
    return (struct holder){pid, up[0], down[1]};
}

static void end_holder(struct holder h, bool kill_it)
{
    if (kill_it)
        kill(h.pid, SIGKILL);
    close(h.go);
    close(h.ready);
    assert_int_equal(waitpid(h.pid, NULL, 0), h.pid);
}

static enum ns_code take_byte_3(const char *path)
{
    struct ns_lock *lock = NULL;
    return ns_lock_take(path, 3, &lock, NULL);
}

static void lock_excludes_and_dies_with_its_process(void **state)
{
    struct scratch *s = *state;
    const char *path = scratch_path(s, "lock");
    struct ns_lock *mine = NULL, *other = NULL;
    int code = -1;
    struct holder h = start_holder(take_byte_3, path, &code);
    assert_int_equal(code, NS_OK);
    struct ns_error err = {0};
    assert_int_equal(ns_lock_take(path, 3, &mine, &err), NS_BUSY);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(ns_lock_take(path, 4, &other, NULL), NS_OK); /* another byte is another lock */
    end_holder(h, true);
    assert_int_equal(ns_lock_take(path, 3, &mine, NULL), NS_OK);
    h = start_holder(take_byte_3, path, &code);
    assert_int_equal(code, NS_BUSY);
    end_holder(h, false);
    ns_lock_give(mine);
    h = start_holder(take_byte_3, path, &code);
    assert_int_equal(code, NS_OK);
    end_holder(h, false);
    ns_lock_give(other);
    ns_lock_give(NULL);
}

static enum ns_code take_presence(const char *path)
{
    struct ns_presence *p = NULL;
    return ns_presence_take(path, (uint64_t)5 << 30, &p, NULL);
}

struct found {
    size_t n;
    int64_t pid[8];
    uint64_t bytes[8];
};

static void note(void *arg, int64_t pid, uint64_t bytes)
{
    struct found *found = arg;
    assert_true(found->n < 8);
    found->pid[found->n] = pid;
    found->bytes[found->n++] = bytes;
}

static void presence_is_seen_through_aliases(void **state)
{
    struct scratch *s = *state;
    char path[512], alias[512];
    scratch_write(s, "config.json", "{}", 2);
    snprintf(path, sizeof path, "%s", s->path);
    snprintf(alias, sizeof alias, "%s", scratch_path(s, "alias"));
    assert_int_equal(symlink(path, alias), 0);
    int code = -1;
    struct holder a = start_holder(take_presence, path, &code);
    assert_int_equal(code, NS_OK);
    struct holder b = start_holder(take_presence, alias, &code);
    assert_int_equal(code, NS_OK); /* presence never refuses */
    struct found found = {0};
    assert_int_equal(ns_presence_each(alias, note, &found, NULL), NS_OK);
    assert_int_equal(found.n, 2);
    assert_true((found.pid[0] == a.pid && found.pid[1] == b.pid) || (found.pid[0] == b.pid && found.pid[1] == a.pid));
    assert_int_equal(found.bytes[0], (uint64_t)5 << 30);
    end_holder(a, true);
    found.n = 0;
    assert_int_equal(ns_presence_each(path, note, &found, NULL), NS_OK);
    assert_int_equal(found.n, 1);
    assert_int_equal(found.pid[0], b.pid);
    end_holder(b, false);
    found.n = 0;
    assert_int_equal(ns_presence_each(path, note, &found, NULL), NS_OK);
    assert_int_equal(found.n, 0);
}

/* As for any file that is read: a path that leads nowhere is a missing input, not a disk at fault. */
static void presence_of_nothing_is_a_missing_input(void **state)
{
    struct scratch *s = *state;
    char path[600];
    struct found found = {0};
    scratch_write(s, "file", "x", 1);
    snprintf(path, sizeof path, "%s/config.json", s->path);
    assert_int_equal(take_presence(path), NS_NOINPUT);
    assert_int_equal(ns_presence_each(path, note, &found, NULL), NS_NOINPUT);
    assert_int_equal(take_presence(scratch_path(s, "none")), NS_NOINPUT);
}

static void killing_checks_who_it_is(void **state)
{
    struct scratch *s = *state;
    int code = -1;
    struct holder h = start_holder(take_byte_3, scratch_path(s, "lock"), &code);
    int64_t start = ns_host_pid_start(h.pid);
    assert_true(start > 0);
    assert_int_equal(ns_host_kill(h.pid, start + 1, 1000, NULL), NS_OK); /* not the one that was meant: left alone */
    assert_int_equal(ns_host_ask_to_stop(h.pid, start + 1, NULL), NS_OK);
    assert_int_equal(ns_host_pid_start(h.pid), start);
    assert_int_equal(kill(h.pid, SIGSTOP), 0);
    int status;
    assert_int_equal(waitpid(h.pid, &status, WUNTRACED), h.pid);
    assert_true(ns_host_pid_stopped(h.pid));
    assert_int_equal(ns_host_kill(h.pid, start, 5000, NULL), NS_OK);
    assert_int_equal(ns_host_pid_start(h.pid), -1);
    end_holder(h, false);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(lock_excludes_and_dies_with_its_process),
        T(presence_is_seen_through_aliases),
        T(presence_of_nothing_is_a_missing_input),
        T(killing_checks_who_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
