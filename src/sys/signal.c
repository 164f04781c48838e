/* signal.c - signals counted into flags. The first of SIGTERM, SIGINT, SIGHUP asks for a polite stop, the second says
 * abandon; SIGUSR1 is a question about progress; SIGPIPE is an error of the write that caused it. A crash leaves a mark in
 * a file, so that a successor can tell a program that broke from one that was killed. */
#include "sys/sys_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* lock-free atomics: the only objects a handler may touch */
static _Atomic unsigned stop_count;
static _Atomic int stop_last;
static _Atomic bool usr1_seen;

static void on_stop(int number)
{
    atomic_store(&stop_last, number);
    if (atomic_load(&stop_count) < 2)
        atomic_fetch_add(&stop_count, 1);
}

static void on_usr1(int number)
{
    (void)number;
    atomic_store(&usr1_seen, true);
}

void ns_signal_install(void)
{
    static const int stops[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_flags = SA_RESTART;
    sa.sa_handler = on_stop;
    for (size_t i = 0; i < NS_COUNT(stops); i++)
        sigaction(stops[i], &sa, NULL);
    sa.sa_handler = on_usr1;
    sigaction(SIGUSR1, &sa, NULL);
    sa.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &sa, NULL);
}

unsigned ns_signal_count(void)
{
    return atomic_load(&stop_count);
}

int ns_signal_last(void)
{
    return atomic_load(&stop_last);
}

bool ns_sys_wait_for(int fd, short events)
{
    /* poll is not begun again after a handler; the time limit is for a signal that comes just before it */
    for (struct pollfd p = {.fd = fd, .events = events}; ns_signal_count() == 0;)
        if (poll(&p, 1, 200) > 0)
            return true;
    return false;
}

void ns_signal_reset(void)
{
    atomic_store(&stop_count, 0);
    atomic_store(&stop_last, 0);
    atomic_store(&usr1_seen, false);
}

bool ns_signal_take_usr1(void)
{
    return atomic_exchange(&usr1_seen, false);
}

/* ---- the mark of a crash -------------------------------------------------------------------------------------------- */

static _Atomic int mark_fd = -1; /* lock-free: the handler reads it */

static void on_crash(int number)
{
    int fd = atomic_load(&mark_fd);
    char digits[2] = {(char)('0' + number / 10), (char)('0' + number % 10)};
    if (fd >= 0 && write(fd, digits, sizeof digits) < 0)
        fd = -1;   /* nothing more can be done here */
    raise(number); /* SA_RESETHAND: this time for good */
}

enum ns_code ns_crash_mark_open(const char *path, struct ns_error *err)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    ns_crash_mark_close();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return ns_sys_fail(err, ns_sys_write_code(errno, NS_CANTCREAT), "creating", path, errno);
    atomic_store(&mark_fd, fd);
    for (size_t i = 0; i < NS_COUNT(fatal); i++) {
        struct sigaction sa, old;
        memset(&sa, 0, sizeof sa);
        sigemptyset(&sa.sa_mask);
        sa.sa_handler = on_crash;
        sa.sa_flags = (int)SA_RESETHAND;
        if (sigaction(fatal[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL) /* a sanitizer keeps its own */
            sigaction(fatal[i], &sa, NULL);
    }
    return NS_OK;
}

void ns_crash_mark_close(void)
{
    int fd = atomic_exchange(&mark_fd, -1);
    if (fd >= 0)
        close(fd); /* nothing was written */
}
