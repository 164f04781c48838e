/* parallel.c - independent ranges over threads; the only OpenMP in the program.
 * A range is handed out when a thread asks for one, so a thread that loses its core to another program costs the time
 * of one piece and not its share of the whole. A run that is one piece long starts no thread, nor does one that is done
 * before a second thread is awake: callers ask ns_threads_for. */
#include "kernels/kernels.h"

#include <assert.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef _OPENMP
static unsigned this_thread(void)
{
    return (unsigned)omp_get_thread_num();
}
#else
static unsigned this_thread(void)
{
    return 0;
}
#endif

unsigned ns_threads_for(const struct ns_kernels *k, double work_ns)
{
    return work_ns >= k->least_ns * k->n_threads ? k->n_threads
           : work_ns < k->least_ns * 2           ? 1
                                                 : (unsigned)(work_ns / k->least_ns);
}

/* range i of n_ranges equal ones */
static void run_ranges(unsigned n_threads, size_t n, size_t n_ranges, ns_range_fn body, void *arg)
{
    assert(n_threads > 0);
    if (n_threads == 1 || n_ranges <= 1) {
        if (n > 0)
            body(arg, 0, n, 0);
        return;
    }
    int n_team = n_ranges < n_threads ? (int)n_ranges : (int)n_threads;
    (void)n_team; // unused without OpenMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_team)
    for (size_t i = 0; i < n_ranges; i++)
        body(arg, i * n / n_ranges, (i + 1) * n / n_ranges, this_thread());
}

void ns_parallel_steps(unsigned n_threads, size_t n_first, ns_range_fn first, size_t n_second, ns_range_fn second,
                       void *arg)
{
    size_t most = n_first > n_second ? n_first : n_second;
    if (n_threads == 1 || most <= 1) {
        run_ranges(1, n_first, n_first, first, arg);
        run_ranges(1, n_second, n_second, second, arg);
        return;
    }
    int n_team = most < n_threads ? (int)most : (int)n_threads;
    (void)n_team;
#pragma omp parallel num_threads(n_team)
    {
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < n_first; i++)
            first(arg, i, i + 1, this_thread());
            /* all wait here for each other */
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < n_second; i++)
            second(arg, i, i + 1, this_thread());
    }
}

void ns_parallel(unsigned n_threads, size_t n, size_t grain, ns_range_fn body, void *arg)
{
    size_t n_ranges = n / (grain ? grain : 1);
    if (n_ranges > n_threads && n_ranges < 8 * (size_t)n_threads)
        n_ranges -= n_ranges % n_threads; /* few ranges: as many for each thread, else some wait for the last */
    run_ranges(n_threads, n, n_ranges, body, arg);
}

void ns_parallel_each(unsigned n_threads, size_t n, ns_range_fn body, void *arg)
{
    run_ranges(n_threads, n, n, body, arg);
}
