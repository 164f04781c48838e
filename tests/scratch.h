/* scratch.h - a temporary folder for one test, and files in it. For tests only. */
#ifndef NS_TESTS_SCRATCH_H
#define NS_TESTS_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

struct scratch {
    char dir[256];
    char path[512]; /* of the last scratch_path */
};

/* A new folder, its name in dir. TMPDIR decides where; O_DIRECT works on most disks and not on every memory file system. */
static inline void scratch_folder(char *dir, size_t size)
{
    const char *base = getenv("TMPDIR");
    int n = snprintf(dir, size, "%s/ns-test-XXXXXX", base && *base ? base : "/tmp");
    if (n < 0 || (size_t)n >= size)
        fail_msg("TMPDIR is too long: a folder there has a name of %d bytes, at most %zu fit", n, size - 1);
    assert_non_null(mkdtemp(dir));
}

static inline void scratch_open(struct scratch *s)
{
    scratch_folder(s->dir, sizeof s->dir);
}

static inline void scratch_close(struct scratch *s)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    assert_int_equal(system(command), 0);
}

static inline const char *scratch_path(struct scratch *s, const char *name)
{
    int n = snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    assert_true(n > 0 && (size_t)n < sizeof s->path);
    return s->path;
}

static inline void scratch_write(struct scratch *s, const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(scratch_path(s, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

#endif
