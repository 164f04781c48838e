/* lock.c - locks that die with their process: one byte for one holder, and presence for many.
 *
 * WHAT   ns_lock_take is an exclusive lock on one byte of a lock file. ns_presence says "I use this file and promise to
 *        stay within so many bytes of memory" to whoever asks, and asks who else does.
 * WHY    Open-file-description locks belong to the descriptor: closing another descriptor of the same file does not drop
 *        them, which the ordinary POSIX kind does. They name no process, so presence writes the process into the range:
 *        a shared lock of [pid * 2^32, + promised MiB + 1). Shared locks need no write permission, so a model on a
 *        read-only disk works; the kernel keys them by inode, so every alias of a directory meets; and nothing is left
 *        on disk by a crash. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ns_lock {
    int fd;
};

struct ns_presence {
    int fd;
};

/* Whether the file we hold is the one that others will find: not when its last holder took it away meanwhile. */
static bool is_there(int fd, const char *path)
{
    struct stat held, found;
    return fstat(fd, &held) == 0 && stat(path, &found) == 0 && held.st_dev == found.st_dev &&
           held.st_ino == found.st_ino;
}

static enum ns_code take_once(const char *path, uint64_t byte, struct ns_lock **out, struct ns_error *err)
{
    struct ns_lock *lock = ns_heap_alloc(sizeof *lock);
    if (!lock)
        return ns_error_set(err, NS_BUDGET, "locking %s: out of memory", path);
    lock->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock->fd < 0) {
        int e = errno;
        ns_heap_free(lock);
        return ns_sys_fail(err, ns_sys_write_code(e, NS_CANTCREAT), "opening", path, e);
    }
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    int r;
    do
        r = fcntl(lock->fd, F_OFD_SETLK, &range);
    while (r != 0 && errno == EINTR);
    if (r != 0) {
        int e = errno;
        ns_lock_give(lock);
        if (e == EAGAIN || e == EACCES)
            return ns_error_set(err, NS_BUSY, "%s is locked by another process", path);
        return ns_sys_fail(err, NS_IO, "locking", path, e);
    }
    *out = lock;
    return NS_OK;
}

enum ns_code ns_lock_take(const char *path, uint64_t byte, struct ns_lock **out, struct ns_error *err)
{
    enum { TRIES = 100 };

    for (int i = 0; i < TRIES; i++) {
        struct ns_lock *lock = NULL;
        enum ns_code rc = take_once(path, byte, &lock, err);
        if (rc != NS_OK)
            return rc;
        if (is_there(lock->fd, path)) {
            *out = lock;
            return NS_OK;
        }
        ns_lock_give(lock);
    }
    return ns_error_set(err, NS_BUSY, "%s is taken away again and again by another process", path);
}

void ns_lock_remove(struct ns_lock *lock, const char *path)
{
    struct ns_error err = {0};
    if (ns_file_unlink(path, &err) != NS_OK)
        ns_log(NS_LOG_WARN, "a lock file stays: %s", err.message);
    ns_lock_give(lock);
}

void ns_lock_give(struct ns_lock *lock)
{
    if (!lock)
        return;
    close(lock->fd); /* closing the description is what unlocks */
    ns_heap_free(lock);
}

#define PID_SHIFT  32
#define PIDS_MAX   ((int64_t)1 << 30)
#define PROMISE_IN ((uint64_t)1 << 20)

enum ns_code ns_presence_take(const char *path, uint64_t promised_bytes, struct ns_presence **out, struct ns_error *err)
{
    uint64_t mib = promised_bytes / PROMISE_IN;
    if (mib >= UINT32_MAX)
        mib = UINT32_MAX - 1;
    struct ns_presence *p = ns_heap_alloc(sizeof *p);
    if (!p)
        return ns_error_set(err, NS_BUDGET, "marking %s as in use: out of memory", path);
    p->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (p->fd < 0) {
        int e = errno;
        ns_heap_free(p);
        return ns_sys_fail(err, e == ENOENT || e == ENOTDIR ? NS_NOINPUT : NS_IO, "opening", path, e);
    }
    struct flock range = {.l_type = F_RDLCK,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)(ns_host_pid() << PID_SHIFT),
                          .l_len = (off_t)(mib + 1)};
    /* a file system without locks: the others cannot be seen either, and the memory they use still can */
    if (fcntl(p->fd, F_OFD_SETLK, &range) != 0)
        ns_log(NS_LOG_WARN, "%s: other runs on this model cannot be noticed here (errno %d)", path, errno);
    *out = p;
    return NS_OK;
}

void ns_presence_give(struct ns_presence *presence)
{
    if (!presence)
        return;
    close(presence->fd);
    ns_heap_free(presence);
}

/* Holders in [from, end): the kernel names one that is in the way, and what lies on both sides of it is asked again.
 * The depth is bounded by the number of holders, and that by depth. */
static void each_holder(int fd, int64_t from, int64_t end, int depth, ns_presence_each_fn each, void *arg)
{
    while (from < end && depth > 0) {
        struct flock range = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)(end - from)};
        if (fcntl(fd, F_OFD_GETLK, &range) != 0 || range.l_type == F_UNLCK || range.l_len <= 0)
            return;
        int64_t start = range.l_start, stop = start + range.l_len;
        each_holder(fd, from, start, depth - 1, each, arg);
        int64_t pid = start >> PID_SHIFT;
        if (start == pid << PID_SHIFT && pid > 0)
            each(arg, pid, (uint64_t)(range.l_len - 1) * PROMISE_IN);
        from = stop;
    }
}

enum ns_code ns_presence_each(const char *path, ns_presence_each_fn each, void *arg, struct ns_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ns_sys_fail(err, errno == ENOENT || errno == ENOTDIR ? NS_NOINPUT : NS_IO, "opening", path, errno);
    each_holder(fd, 0, PIDS_MAX << PID_SHIFT, 64, each, arg);
    close(fd);
    return NS_OK;
}
