/* parallel.c - independent ranges over threads; the only OpenMP in the program.
 * A range is handed out when a thread asks for one, so a thread that loses its core to another program costs the time
 * of one piece and not its share of the whole. A run that is one piece long starts no thread. */
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

void ns_parallel(unsigned n_threads, size_t n, size_t grain, ns_range_fn body, void *arg)
{
    assert(n_threads > 0);
    if (grain == 0)
        grain = 1;
    size_t n_pieces = n / grain;
    if (n_pieces > n_threads && n_pieces < 8 * (size_t)n_threads)
        n_pieces -= n_pieces % n_threads; /* few pieces: as many for each thread, else some wait for the last */
    if (n_threads == 1 || n_pieces <= 1) {
        if (n > 0)
            body(arg, 0, n, 0);
        return;
    }
    int n_team = n_pieces < n_threads ? (int)n_pieces : (int)n_threads;
    (void)n_team; // unused without OpenMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_team)
    for (size_t i = 0; i < n_pieces; i++)
        body(arg, i * n / n_pieces, (i + 1) * n / n_pieces, this_thread());
}
