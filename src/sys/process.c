/* process.c - who we are, and whether another process is still the one that was meant: a pid with its start time names a
 * process for the life of the machine, the pid alone does not. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* filled once by ns_host_init, before threads */
static char host_name[256] = "localhost";
static char boot_id[64] = "";
static char user_name[64] = "";

void ns_host_init(void)
{
    if (gethostname(host_name, sizeof host_name - 1) != 0 || host_name[0] == '\0')
        memcpy(host_name, "localhost", 10);
    host_name[sizeof host_name - 1] = '\0';
    if (!ns_sys_read_text("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id))
        boot_id[0] = '\0';
    boot_id[strcspn(boot_id, "\n")] = '\0';
    struct passwd pw, *found = NULL;
    char room[4096];
    if (getpwuid_r(getuid(), &pw, room, sizeof room, &found) == 0 && found)
        snprintf(user_name, sizeof user_name, "%s", pw.pw_name);
    else
        snprintf(user_name, sizeof user_name, "%ld", (long)getuid());
}

const char *ns_host_name(void)
{
    return host_name;
}

const char *ns_host_boot_id(void)
{
    return boot_id;
}

const char *ns_host_user(void)
{
    return user_name;
}

void ns_host_fill_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            int got = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); /* takes the lowest number: fd */
            if (got > 2)
                close(got);
        }
}

int64_t ns_host_pid(void)
{
    return (int64_t)getpid();
}

int64_t ns_host_uid(void)
{
    return (int64_t)getuid();
}

/* State letter and start time from /proc/<pid>/stat: the name in brackets may hold anything, so look behind the last
 * bracket; state is the next field and the start time the 20th from there. */
static bool read_stat(int64_t pid, char *state, int64_t *start)
{
    char path[64], text[2048];
    int k = snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    if (pid <= 0 || k < 0 || !ns_sys_read_text(path, text, sizeof text))
        return false;
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ' || p[2] == '\0')
        return false;
    p += 2;
    *state = *p;
    for (int field = 3; field < 22; field++) {
        p = strchr(p, ' ');
        if (!p)
            return false;
        p++;
    }
    *start = strtoll(p, NULL, 10);
    return true;
}

int64_t ns_host_pid_start(int64_t pid)
{
    char state;
    int64_t start;
    /* a zombie has ended; only its parent has not looked yet */
    return read_stat(pid, &state, &start) && state != 'Z' && state != 'X' ? start : -1;
}

bool ns_host_is_alive(const char *host, const char *boot, int64_t pid, int64_t start)
{
    return host && boot && start > 0 && strcmp(host, host_name) == 0 && strcmp(boot, boot_id) == 0 &&
           ns_host_pid_start(pid) == start;
}

bool ns_host_pid_stopped(int64_t pid)
{
    char state;
    int64_t start;
    return read_stat(pid, &state, &start) && (state == 'T' || state == 't');
}

/* Opens a descriptor of the process that pid and start name and sends it the signal; *fd is -1 when it is gone. The
 * descriptor pins the process: a start time that is right once it is open stays right. */
static enum ns_code send_to(int64_t pid, int64_t start, int signal_number, int *fd, struct ns_error *err)
{
    *fd = -1;
    if (pid <= 1)
        return ns_error_set(err, NS_INTERNAL, "process %" PRId64 " is not one to signal", pid);
    char text[128];
    int got = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0u);
    if (got < 0)
        return errno == ESRCH ? NS_OK
                              : ns_error_set(err, NS_IO, "reaching process %" PRId64 ": %s (errno %d)", pid,
                                             ns_sys_errno_text(errno, text, sizeof text), errno);
    if (ns_host_pid_start(pid) != start) { /* the one that was meant is gone, another has its number */
        close(got);
        return NS_OK;
    }
    if (syscall(SYS_pidfd_send_signal, got, signal_number, NULL, 0u) != 0 && errno != ESRCH) {
        enum ns_code rc = ns_error_set(err, NS_IO, "signalling process %" PRId64 ": %s (errno %d)", pid,
                                       ns_sys_errno_text(errno, text, sizeof text), errno);
        close(got);
        return rc;
    }
    *fd = got;
    return NS_OK;
}

enum ns_code ns_host_ask_to_stop(int64_t pid, int64_t start, struct ns_error *err)
{
    int fd;
    enum ns_code rc = send_to(pid, start, SIGTERM, &fd, err);
    if (fd >= 0)
        close(fd);
    return rc;
}

enum ns_code ns_host_kill(int64_t pid, int64_t start, uint64_t wait_ms, struct ns_error *err)
{
    int fd;
    enum ns_code rc = send_to(pid, start, SIGKILL, &fd, err);
    if (fd < 0)
        return rc;
    uint64_t until = ns_clock_mono_ns() + wait_ms * 1000000u;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t now = ns_clock_mono_ns();
        int r = poll(&p, 1, now < until ? (int)((until - now) / 1000000u + 1) : 0);
        if (r > 0)
            break;
        if (r == 0 && ns_clock_mono_ns() >= until) {
            rc = ns_error_set(err, NS_BUSY, "process %" PRId64 " did not end within %" PRIu64 " ms", pid, wait_ms);
            break;
        }
    }
    close(fd);
    return rc;
}
