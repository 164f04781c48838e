/* thread.c - mutexes, conditions, threads. Threads start with every signal blocked: signals belong to the main thread,
 * so no read in the pool is ever interrupted by a polite stop. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

struct ns_mutex {
    pthread_mutex_t m;
};

struct ns_cond {
    pthread_cond_t c;
};

struct ns_thread {
    pthread_t t;
    void (*run)(void *arg);
    void *arg;
};

struct ns_mutex *ns_mutex_open(void)
{
    struct ns_mutex *mutex = ns_heap_alloc(sizeof *mutex);
    if (mutex && pthread_mutex_init(&mutex->m, NULL) != 0) {
        ns_heap_free(mutex);
        mutex = NULL;
    }
    return mutex;
}

void ns_mutex_close(struct ns_mutex *mutex)
{
    if (!mutex)
        return;
    int r = pthread_mutex_destroy(&mutex->m);
    assert(r == 0);
    (void)r;
    ns_heap_free(mutex);
}

void ns_mutex_lock(struct ns_mutex *mutex)
{
    int r = pthread_mutex_lock(&mutex->m);
    assert(r == 0);
    (void)r;
}

void ns_mutex_unlock(struct ns_mutex *mutex)
{
    int r = pthread_mutex_unlock(&mutex->m);
    assert(r == 0);
    (void)r;
}

struct ns_cond *ns_cond_open(void)
{
    struct ns_cond *cond = ns_heap_alloc(sizeof *cond);
    pthread_condattr_t attr;
    if (!cond)
        return NULL;
    bool ok = pthread_condattr_init(&attr) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_cond_init(&cond->c, &attr) == 0;
        pthread_condattr_destroy(&attr);
    }
    if (!ok) {
        ns_heap_free(cond);
        cond = NULL;
    }
    return cond;
}

void ns_cond_close(struct ns_cond *cond)
{
    if (!cond)
        return;
    pthread_cond_destroy(&cond->c);
    ns_heap_free(cond);
}

void ns_cond_wait(struct ns_cond *cond, struct ns_mutex *mutex)
{
    int r = pthread_cond_wait(&cond->c, &mutex->m);
    assert(r == 0);
    (void)r;
}

bool ns_cond_wait_ms(struct ns_cond *cond, struct ns_mutex *mutex, uint64_t timeout_ms)
{
    uint64_t until = ns_clock_mono_ns() + timeout_ms * 1000000u;
    struct timespec ts = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    return pthread_cond_timedwait(&cond->c, &mutex->m, &ts) != ETIMEDOUT;
}

void ns_cond_signal(struct ns_cond *cond)
{
    pthread_cond_signal(&cond->c);
}

void ns_cond_broadcast(struct ns_cond *cond)
{
    pthread_cond_broadcast(&cond->c);
}

static void *thread_main(void *arg)
{
    struct ns_thread *thread = arg;
    thread->run(thread->arg);
    return NULL;
}

enum ns_code ns_thread_start(void (*run)(void *arg), void *arg, struct ns_thread **out, struct ns_error *err)
{
    struct ns_thread *thread = ns_heap_alloc(sizeof *thread);
    if (!thread)
        return ns_error_set(err, NS_BUDGET, "starting a thread: out of memory");
    thread->run = run;
    thread->arg = arg;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);
    if (r == 0) {
        /* readers need little: the ordinary 8 MiB would be address space only, but it counts where that is limited */
        (void)pthread_attr_setstacksize(&attr, (size_t)512 << 10);
        r = pthread_create(&thread->t, &attr, thread_main, thread);
        pthread_attr_destroy(&attr);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r != 0) {
        ns_heap_free(thread);
        return ns_error_set(err, NS_BUDGET, "starting a thread: errno %d", r);
    }
    *out = thread;
    return NS_OK;
}

void ns_thread_join(struct ns_thread *thread)
{
    if (!thread)
        return;
    int r = pthread_join(thread->t, NULL);
    assert(r == 0);
    (void)r;
    ns_heap_free(thread);
}

void ns_sleep_ms(uint64_t ms)
{
    struct timespec ts = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&ts, NULL);
}
