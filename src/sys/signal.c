/* signal.c - signals counted into flags. The first of SIGTERM, SIGINT, SIGHUP asks for a polite stop, the second says
 * abandon; SIGUSR1 is a question about progress; SIGPIPE is an error of the write that caused it. */
#include "sys/sys_impl.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

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
