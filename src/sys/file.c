/* file.c - positional reads and writes of one file.
 *
 * WHAT   A file is a descriptor, its path for messages, and the size it had when opened. Reads and writes say where, so
 *        that threads may share one. Whatever the kernel does short of failing (EINTR, a short transfer) is finished
 *        here: a call moves all its bytes or names path, offset, length and errno.
 * WHY    Linux moves at most 2 GiB less a page in one call, and other systems cut or refuse above 2^31-1: no call here
 *        asks for more than 1 GiB. Direct files need aligned offsets, lengths and memory; a short direct transfer is
 *        cut back to the alignment before it goes on, and the end of file is the one place where it need not be.
 * INVARIANTS
 *   1. A read that returns NS_OK filled every byte it promised.       (file_test: reads_survive_short_transfers)
 *   2. No system call asks for more than the transfer limit.          (file_test: large_reads_are_split)
 *   3. A failed sync is never tried again: the kernel may have dropped the pages it could not write.
 * THREADS  Positional calls from any thread; open and close are the owner's. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRANSFER_MAX ((size_t)1 << 30)
#define DIRECT_ALIGN ((size_t)4096)

struct ns_file {
    int fd;
    bool direct;
    uint64_t bytes;
    char *path;
};

static _Atomic size_t transfer_max = TRANSFER_MAX;

void ns_file_limit_transfer(size_t bytes)
{
    atomic_store(&transfer_max, bytes ? bytes : TRANSFER_MAX);
}

static int open_flags(enum ns_file_mode mode)
{
    switch (mode) {
    case NS_FILE_READ:
        return O_RDONLY | O_NONBLOCK;
    case NS_FILE_READ_DIRECT:
        return O_RDONLY | O_NONBLOCK | O_DIRECT;
    case NS_FILE_CREATE:
        return O_RDWR | O_CREAT | O_EXCL;
    case NS_FILE_WRITE:
        break;
    }
    return O_RDWR | O_CREAT;
}

static enum ns_code open_code(enum ns_file_mode mode, int errnum)
{
    if (mode == NS_FILE_READ_DIRECT && errnum == EINVAL)
        return NS_CONFIG;
    if (mode == NS_FILE_READ || mode == NS_FILE_READ_DIRECT)
        return errnum == ENOENT || errnum == ENOTDIR ? NS_NOINPUT : NS_IO;
    return ns_sys_write_code(errnum, NS_CANTCREAT);
}

enum ns_code ns_file_open(const char *path, enum ns_file_mode mode, struct ns_file **out, struct ns_error *err)
{
    bool reads = mode == NS_FILE_READ || mode == NS_FILE_READ_DIRECT;
    struct ns_file *f = ns_heap_alloc(sizeof *f);
    if (!f)
        return ns_error_set(err, NS_BUDGET, "opening %s: out of memory", path);
    *f = (struct ns_file){.fd = -1, .direct = mode == NS_FILE_READ_DIRECT, .path = ns_sys_copy_text(path)};
    enum ns_code rc = NS_OK;
    struct stat st;
    if (!f->path)
        rc = ns_error_set(err, NS_BUDGET, "opening %s: out of memory", path);
    if (rc == NS_OK) {
        do
            f->fd = open(path, open_flags(mode) | O_CLOEXEC, 0666);
        while (f->fd < 0 && errno == EINTR);
        if (f->fd < 0)
            rc = ns_sys_fail(err, open_code(mode, errno), "opening", path, errno);
    }
    if (rc == NS_OK && fstat(f->fd, &st) != 0)
        rc = ns_sys_fail(err, NS_IO, "looking at", path, errno);
    if (rc == NS_OK && reads && !S_ISREG(st.st_mode))
        rc = ns_error_set(err, NS_INPUT, "%s is not a regular file", path);
    if (rc != NS_OK) {
        ns_code_ignore(ns_file_close(f, NULL)); /* nothing was written: its result cannot matter */
        return rc;
    }
    f->bytes = (uint64_t)st.st_size;
    *out = f;
    return NS_OK;
}

enum ns_code ns_file_close(struct ns_file *file, struct ns_error *err)
{
    if (!file)
        return NS_OK;
    enum ns_code rc = NS_OK;
    /* Linux frees the descriptor even when close is interrupted */
    if (file->fd >= 0 && close(file->fd) != 0 && errno != EINTR)
        rc = ns_sys_fail(err, ns_sys_write_code(errno, NS_IO), "closing", file->path, errno);
    ns_heap_free(file->path);
    ns_heap_free(file);
    return rc;
}

uint64_t ns_file_bytes(const struct ns_file *file)
{
    return file->bytes;
}

const char *ns_file_path(const struct ns_file *file)
{
    return file->path;
}

static enum ns_code read_failed(const struct ns_file *f, size_t n, uint64_t offset, int errnum, struct ns_error *err)
{
    char text[128];
    return ns_error_set(err, NS_IO, "storage error: reading %s, offset %" PRIu64 ", length %zu: %s (errno %d)", f->path,
                        offset, n, ns_sys_errno_text(errnum, text, sizeof text), errnum);
}

/* One pread, or what the armed fault makes of it. */
static ssize_t read_once(const struct ns_file *f, void *buffer, size_t n, uint64_t offset)
{
    if (ns_fault_hit(NS_FAULT_READ)) {
        int mode = ns_fault_mode(NS_FAULT_READ);
        if (mode == NS_READ_ENDS)
            return 0;
        if (mode != NS_READ_SHORT) {
            errno = mode > 0 ? mode : EIO;
            return -1;
        }
        size_t step = f->direct ? DIRECT_ALIGN : 1;
        n = n / 2 >= step ? n / 2 / step * step : n;
    }
    return pread(f->fd, buffer, n, (off_t)offset);
}

enum ns_code ns_file_read_some(struct ns_file *file, void *buffer, size_t n, uint64_t offset, size_t *got,
                               struct ns_error *err)
{
    uint64_t end;
    if (__builtin_add_overflow(offset, (uint64_t)n, &end) || end > INT64_MAX)
        return read_failed(file, n, offset, EOVERFLOW, err);
    size_t limit = atomic_load_explicit(&transfer_max, memory_order_relaxed); /* a test sets it before reading */
    size_t done = 0;
    while (done < n) {
        size_t ask = n - done < limit ? n - done : limit;
        ssize_t r = read_once(file, (char *)buffer + done, ask, offset + done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return read_failed(file, n, offset, errno, err);
        if (r == 0)
            break;
        size_t moved = (size_t)r;
        if (file->direct && moved < ask && moved % DIRECT_ALIGN != 0) {
            if (offset + done + moved >= file->bytes) {
                done += moved; /* the end of the file: an unaligned rest is all there is */
                break;
            }
            moved = moved / DIRECT_ALIGN * DIRECT_ALIGN;
            if (moved == 0)
                return read_failed(file, n, offset, EIO, err);
        }
        done += moved;
    }
    *got = done;
    return NS_OK;
}

enum ns_code ns_file_read(struct ns_file *file, void *buffer, size_t n, uint64_t offset, struct ns_error *err)
{
    size_t got = 0;
    enum ns_code rc = ns_file_read_some(file, buffer, n, offset, &got, err);
    if (rc == NS_OK && got < n)
        return ns_error_set(err, NS_IO,
                            "storage error: reading %s, offset %" PRIu64 ", length %zu: the file ends after %zu bytes",
                            file->path, offset, n, got);
    return rc;
}

int ns_sys_write_all(int fd, const void *bytes, size_t n, int64_t offset)
{
    size_t limit = atomic_load_explicit(&transfer_max, memory_order_relaxed);
    const char *p = bytes;
    if (ns_fault_hit(NS_FAULT_WRITE)) {
        int mode = ns_fault_mode(NS_FAULT_WRITE);
        return mode > 0 ? mode : EIO;
    }
    for (size_t done = 0; done < n;) {
        size_t ask = n - done < limit ? n - done : limit;
        ssize_t r = offset < 0 ? write(fd, p + done, ask) : pwrite(fd, p + done, ask, offset + (off_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return errno;
        done += (size_t)r;
    }
    return 0;
}

enum ns_code ns_file_write(struct ns_file *file, const void *bytes, size_t n, uint64_t offset, struct ns_error *err)
{
    uint64_t end;
    int e = __builtin_add_overflow(offset, (uint64_t)n, &end) || end > INT64_MAX
                ? EFBIG
                : ns_sys_write_all(file->fd, bytes, n, (int64_t)offset);
    if (e == 0)
        return NS_OK;
    char text[128];
    return ns_error_set(err, ns_sys_write_code(e, NS_IO), "writing %s, offset %" PRIu64 ", length %zu: %s (errno %d)",
                        file->path, offset, n, ns_sys_errno_text(e, text, sizeof text), e);
}

int ns_sys_sync(int fd)
{
    if (ns_fault_hit(NS_FAULT_SYNC)) {
        int mode = ns_fault_mode(NS_FAULT_SYNC);
        return mode > 0 ? mode : EIO;
    }
    return fdatasync(fd) == 0 ? 0 : errno;
}

enum ns_code ns_file_sync(struct ns_file *file, struct ns_error *err)
{
    int e = ns_sys_sync(file->fd);
    return e == 0 ? NS_OK : ns_sys_fail(err, ns_sys_write_code(e, NS_IO), "syncing", file->path, e);
}

void ns_file_forget(struct ns_file *file, uint64_t offset, uint64_t n)
{
    (void)posix_fadvise(file->fd, (off_t)offset, (off_t)n, POSIX_FADV_DONTNEED); /* advice: failing costs only memory */
}

enum ns_code ns_file_identity(struct ns_file *file, uint64_t out[3], struct ns_error *err)
{
    struct stat st, named;
    if (fstat(file->fd, &st) != 0)
        return ns_sys_fail(err, NS_IO, "looking at", file->path, errno);
    if (stat(file->path, &named) != 0)
        return ns_sys_fail(err, NS_IO, "looking at", file->path, errno);
    /* size and time of what is open, inode of what the name leads to now: a replaced file shows in the third */
    out[0] = (uint64_t)st.st_size;
    out[1] = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    out[2] = (uint64_t)named.st_ino;
    return NS_OK;
}

enum ns_code ns_file_slurp(const char *path, size_t max_bytes, struct ns_budget *budget, char **out, size_t *n,
                           struct ns_error *err)
{
    struct ns_file *f = NULL;
    enum ns_code rc = ns_file_open(path, NS_FILE_READ, &f, err);
    if (rc != NS_OK)
        return rc;
    char *text = NULL;
    size_t bytes = (size_t)f->bytes;
    if (f->bytes > max_bytes)
        rc = ns_error_set(err, NS_INPUT, "%s holds %" PRIu64 " bytes, the limit is %zu", path, f->bytes, max_bytes);
    if (rc == NS_OK && !(text = ns_budget_take_raw(budget, bytes + 1, 64, err)))
        rc = NS_BUDGET;
    if (rc == NS_OK)
        rc = ns_file_read(f, text, bytes, 0, err);
    if (ns_file_close(f, rc == NS_OK ? err : NULL) != NS_OK && rc == NS_OK)
        rc = NS_IO;
    if (rc != NS_OK) {
        ns_budget_give(budget, text);
        return rc;
    }
    text[bytes] = '\0';
    *out = text;
    *n = bytes;
    return NS_OK;
}
