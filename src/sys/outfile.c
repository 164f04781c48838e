/* outfile.c - a streaming writer whose file appears whole or not at all: a temporary beside the path, synced and renamed
 * on commit. Standard output and things that are not plain files (a pipe, /dev/null) are written in place. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER ((size_t)65536)

struct ns_out_file {
    int fd;
    bool in_place; /* no temporary, no rename */
    char path[4096];
    char temp[4096];
    uint64_t offset; /* bytes handed to the system, for messages */
    size_t n;
    char buffer[BUFFER];
};

static enum ns_code open_target(struct ns_out_file *f, const char *path, struct ns_error *err)
{
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return ns_error_set(err, NS_CANTCREAT, "%s is a directory", path);
    if (exists && !S_ISREG(st.st_mode)) {
        f->in_place = true;
        f->fd = open(path, O_WRONLY | O_CLOEXEC);
        return f->fd >= 0 ? NS_OK : ns_sys_fail(err, NS_CANTCREAT, "opening", path, errno);
    }
    if (exists) {
        /* a link keeps pointing at the file it names; only that file is replaced */
        enum ns_code rc = ns_path_real(path, f->path, err);
        if (rc != NS_OK)
            return rc;
    }
    enum ns_code rc =
        ns_path_format(f->temp, sizeof f->temp, NS_CANTCREAT, err, "%s.part-%" PRId64, f->path, ns_host_pid());
    if (rc != NS_OK)
        return rc;
    f->fd = open(f->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return f->fd >= 0 ? NS_OK : ns_sys_fail(err, ns_sys_write_code(errno, NS_CANTCREAT), "creating", f->temp, errno);
}

enum ns_code ns_out_open(const char *path, struct ns_out_file **out, struct ns_error *err)
{
    if (strlen(path) >= sizeof(*out)->path)
        return ns_path_refuse(NS_CANTCREAT, path, strlen(path), sizeof(*out)->path, err);
    struct ns_out_file *f = ns_heap_alloc(sizeof *f);
    if (!f)
        return ns_error_set(err, NS_BUDGET, "creating %s: out of memory", path);
    f->fd = -1;
    f->in_place = false;
    f->n = 0;
    f->offset = 0;
    f->temp[0] = '\0';
    memcpy(f->path, path, strlen(path) + 1);
    enum ns_code rc = NS_OK;
    if (strcmp(path, "-") == 0) {
        f->fd = STDOUT_FILENO;
        f->in_place = true;
    } else {
        rc = open_target(f, path, err);
    }
    if (rc != NS_OK) {
        ns_heap_free(f);
        return rc;
    }
    *out = f;
    return NS_OK;
}

/* A pipe takes a few bytes at a time once it says it is ready, so that nobody who does not read can hold the program. */
static enum ns_code flush(struct ns_out_file *f, const void *bytes, size_t n, struct ns_error *err)
{
    const size_t most = f->in_place ? PIPE_BUF : SIZE_MAX;
    int e = 0;
    for (size_t done = 0, step; e == 0 && done < n; done += step) {
        if (!ns_sys_wait_for(f->fd, POLLOUT))
            return ns_error_set(err, NS_STOPPED, "writing was stopped by a signal");
        step = n - done < most ? n - done : most;
        e = ns_sys_write_all(f->fd, (const char *)bytes + done, step, -1);
        f->offset += e == 0 ? step : 0;
    }
    if (e == 0)
        return NS_OK;
    char text[128];
    return ns_error_set(err, ns_sys_write_code(e, NS_IO), "writing %s, offset %" PRIu64 ", length %zu: %s (errno %d)",
                        f->fd == STDOUT_FILENO ? "standard output" : f->path, f->offset, n,
                        ns_sys_errno_text(e, text, sizeof text), e);
}

enum ns_code ns_out_write(struct ns_out_file *f, const void *bytes, size_t n, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    if (n > BUFFER - f->n) {
        rc = flush(f, f->buffer, f->n, err);
        f->n = 0;
    }
    if (rc != NS_OK)
        return rc;
    if (n > BUFFER)
        return flush(f, bytes, n, err);
    memcpy(f->buffer + f->n, bytes, n);
    f->n += n;
    return NS_OK;
}

static void parent_of(const char *path, char dir[4096])
{
    const char *slash = strrchr(path, '/');
    size_t n = slash && slash > path ? (size_t)(slash - path) : 1;
    memcpy(dir, slash ? path : ".", n);
    dir[n] = '\0';
}

enum ns_code ns_out_commit(struct ns_out_file *f, struct ns_error *err)
{
    enum ns_code rc = flush(f, f->buffer, f->n, err);
    f->n = 0;
    if (f->in_place) {
        if (f->fd != STDOUT_FILENO && close(f->fd) != 0 && rc == NS_OK)
            rc = ns_sys_fail(err, NS_IO, "closing", f->path, errno);
        ns_heap_free(f);
        return rc;
    }
    int e = rc == NS_OK ? ns_sys_sync(f->fd) : 0;
    if (e != 0)
        rc = ns_sys_fail(err, ns_sys_write_code(e, NS_IO), "syncing", f->path, e);
    if (close(f->fd) != 0 && errno != EINTR && rc == NS_OK)
        rc = ns_sys_fail(err, ns_sys_write_code(errno, NS_IO), "closing", f->path, errno);
    if (rc == NS_OK)
        rc = ns_file_rename(f->temp, f->path, err);
    char dir[4096];
    parent_of(f->path, dir);
    if (rc == NS_OK)
        rc = ns_dir_sync(dir, err);
    else
        ns_code_ignore(ns_file_unlink(f->temp, NULL)); /* the first error is the one to report */
    ns_heap_free(f);
    return rc;
}

void ns_out_abort(struct ns_out_file *f)
{
    if (!f)
        return;
    if (f->fd != STDOUT_FILENO)
        close(f->fd);
    if (!f->in_place)
        ns_code_ignore(ns_file_unlink(f->temp, NULL)); /* nothing to tell anybody: the file was never there */
    ns_heap_free(f);
}
