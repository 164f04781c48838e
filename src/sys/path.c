/* path.c - names in the file system: atomic replace, rename, directories, sameness. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *ns_sys_errno_text(int errnum, char *buffer, size_t size)
{
    return strerror_r(errnum, buffer, size); /* the GNU form: may return a constant instead of buffer */
}

enum ns_code ns_sys_fail(struct ns_error *err, enum ns_code code, const char *what, const char *path, int errnum)
{
    char text[128];
    return ns_error_set(err, code, "%s %s: %s (errno %d)", what, path, ns_sys_errno_text(errnum, text, sizeof text),
                        errnum);
}

enum ns_code ns_sys_write_code(int errnum, enum ns_code otherwise)
{
    return errnum == ENOSPC || errnum == EDQUOT ? NS_FULL : otherwise;
}

char *ns_sys_copy_text(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = ns_heap_alloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

bool ns_sys_read_text(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    size_t n = 0;
    ssize_t r = 0;
    while (n + 1 < size && ((r = read(fd, out + n, size - 1 - n)) > 0 || (r < 0 && errno == EINTR)))
        n += r > 0 ? (size_t)r : 0;
    close(fd);
    out[n] = '\0';
    return r == 0; /* anything else: an error, or the buffer ended first */
}

enum ns_code ns_path_refuse(enum ns_code code, const char *path, size_t n, size_t size, struct ns_error *err)
{
    return ns_error_set(err, code, "the path has %zu bytes, at most %zu are allowed: %.60s...", n, size - 1, path);
}

enum ns_code ns_path_format(char *out, size_t size, enum ns_code code, struct ns_error *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(out, size, fmt, args);
    va_end(args);
    if (n < 0)
        return ns_error_set(err, NS_INTERNAL, "a path could not be written");
    return (size_t)n < size ? NS_OK : ns_path_refuse(code, out, (size_t)n, size, err);
}

/* The directory part of path into dir: "." when there is none. */
static bool dir_of(const char *path, char dir[4096])
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= 4096)
        return false;
    memcpy(dir, path, n);
    dir[n] = '\0';
    if (n == 0)
        memcpy(dir, slash ? "/" : ".", 2);
    return true;
}

enum ns_code ns_dir_sync(const char *path, struct ns_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ns_sys_fail(err, NS_IO, "opening directory", path, errno);
    int e = 0;
    if (ns_fault_hit(NS_FAULT_SYNC))
        e = ns_fault_mode(NS_FAULT_SYNC) > 0 ? ns_fault_mode(NS_FAULT_SYNC) : EIO;
    else if (fsync(fd) != 0)
        e = errno;
    close(fd);
    /* EINVAL: a file system that has no such thing as syncing a directory */
    return e == 0 || e == EINVAL ? NS_OK : ns_sys_fail(err, ns_sys_write_code(e, NS_IO), "syncing directory", path, e);
}

enum ns_code ns_file_rename(const char *from, const char *to, struct ns_error *err)
{
    if (rename(from, to) != 0) {
        int e = errno;
        char text[128];
        return ns_error_set(err, ns_sys_write_code(e, NS_IO), "renaming %s to %s: %s (errno %d)", from, to,
                            ns_sys_errno_text(e, text, sizeof text), e);
    }
    return NS_OK;
}

enum ns_code ns_file_unlink(const char *path, struct ns_error *err)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return ns_sys_fail(err, NS_IO, "removing", path, errno);
    return NS_OK;
}

enum ns_code ns_file_replace(const char *path, const void *bytes, size_t n, struct ns_error *err)
{
    char temp[4096], dir[4096];
    enum ns_code rc = ns_path_format(temp, sizeof temp, NS_CANTCREAT, err, "%s.part-%" PRId64, path, ns_host_pid());
    if (rc != NS_OK || !dir_of(path, dir)) /* which is shorter */
        return rc;
    rc = ns_file_unlink(temp, err); /* left by a dead process that had our number */
    struct ns_file *f = NULL;
    if (rc != NS_OK || (rc = ns_file_open(temp, NS_FILE_CREATE, &f, err)) != NS_OK)
        return rc;
    rc = ns_file_write(f, bytes, n, 0, err);
    ns_crash_point("file.written");
    if (rc == NS_OK)
        rc = ns_file_sync(f, err);
    ns_crash_point("file.synced");
    enum ns_code closed = ns_file_close(f, rc == NS_OK ? err : NULL);
    rc = rc == NS_OK ? closed : rc;
    if (rc == NS_OK)
        rc = ns_file_rename(temp, path, err);
    if (rc != NS_OK) {
        ns_code_ignore(ns_file_unlink(temp, NULL)); /* the first error is the one to report */
        return rc;
    }
    ns_crash_point("file.renamed");
    rc = ns_dir_sync(dir, err);
    ns_crash_point("file.dir_synced");
    return rc;
}

enum ns_code ns_dir_make(const char *path, struct ns_error *err)
{
    struct stat st;
    if (mkdir(path, 0777) == 0)
        return NS_OK;
    int e = errno;
    if (e == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return NS_OK;
    return ns_sys_fail(err, ns_sys_write_code(e, NS_CANTCREAT), "making directory", path, e);
}

enum ns_code ns_dir_make_parents(const char *path, size_t *made, struct ns_error *err)
{
    char part[4096];
    size_t n = strlen(path);
    *made = 0;
    if (n >= sizeof part)
        return ns_path_refuse(NS_CANTCREAT, path, n, sizeof part, err);
    for (size_t i = 1; i < n; i++) {
        if (path[i] != '/' || path[i - 1] == '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (ns_path_exists(part))
            continue;
        enum ns_code rc = ns_dir_make(part, err);
        if (rc != NS_OK)
            return rc;
        *made = *made ? *made : i;
    }
    return NS_OK;
}

void ns_dir_remove_parents(const char *path, size_t made)
{
    char part[4096];
    size_t n = strlen(path);
    if (made == 0 || n >= sizeof part)
        return;
    memcpy(part, path, n + 1);
    for (size_t i = n; i-- > made;) {
        if (part[i] == '/')
            part[i] = '\0';
        if (path[i] == '/' && path[i - 1] != '/' && rmdir(part) != 0 && errno != ENOENT)
            return; /* somebody else has put something there: it stays */
    }
}

bool ns_path_is_stream(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of dir's entries but . and .., each to be freed, and the array too. */
static enum ns_code list_names(const char *path, char ***out, size_t *n_out, struct ns_error *err)
{
    DIR *dir = opendir(path);
    if (!dir)
        return ns_sys_fail(err, errno == ENOENT || errno == ENOTDIR ? NS_NOINPUT : NS_IO, "listing", path, errno);
    char **name = NULL;
    size_t n = 0, capacity = 0;
    enum ns_code rc = NS_OK;
    while (rc == NS_OK) {
        errno = 0;
        struct dirent *entry = readdir(dir); /* this stream is ours alone */
        if (!entry) {
            if (errno != 0)
                rc = ns_sys_fail(err, NS_IO, "listing", path, errno);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            char **more = ns_heap_resize(name, capacity * sizeof *name);
            if (!more) {
                rc = ns_error_set(err, NS_BUDGET, "listing %s: out of memory", path);
                break;
            }
            name = more;
        }
        if (!(name[n] = ns_sys_copy_text(entry->d_name)))
            rc = ns_error_set(err, NS_BUDGET, "listing %s: out of memory", path);
        else
            n++;
    }
    closedir(dir);
    *out = name;
    *n_out = n;
    return rc;
}

enum ns_code ns_dir_each(const char *path, ns_dir_each_fn each, void *arg, struct ns_error *err)
{
    char **name = NULL;
    size_t n = 0;
    enum ns_code rc = list_names(path, &name, &n, err);
    if (n > 1)
        qsort(name, n, sizeof *name, by_name);
    for (size_t i = 0; i < n && rc == NS_OK; i++) {
        char full[4096];
        struct stat st;
        int k = snprintf(full, sizeof full, "%s/%s", path, name[i]);
        if (k < 0 || (size_t)k >= sizeof full || stat(full, &st) != 0 || !S_ISREG(st.st_mode))
            continue; /* not a plain entry: a directory, a broken link, one that has just gone */
        rc = each(arg, name[i], (uint64_t)st.st_size, err);
    }
    for (size_t i = 0; i < n; i++)
        ns_heap_free(name[i]);
    ns_heap_free(name);
    return rc;
}

bool ns_path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool ns_path_is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool ns_path_may_write(const char *path)
{
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

bool ns_path_same(const char *a, const char *b)
{
    struct stat sa, sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

enum ns_code ns_path_real(const char *path, char out[4096], struct ns_error *err)
{
    char *real = realpath(path, NULL);
    if (!real)
        return ns_sys_fail(err, errno == ENOENT || errno == ENOTDIR ? NS_NOINPUT : NS_IO, "resolving", path, errno);
    enum ns_code rc = ns_path_format(out, 4096, NS_IO, err, "%s", real);
    ns_heap_free(real);
    return rc;
}
