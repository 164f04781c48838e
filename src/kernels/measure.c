/* measure.c - how close each kernel comes to this machine's own limits.
 * WHAT   For each instruction set and thread count: the peak of multiply-adds, the plain read rate, then every subject.
 * WHY    Clocks and neighbours change within a minute, so a kernel is compared with a peak taken right before it, several
 *        times, and the median of the ratios is the figure. One thread is timed by its processor time, several by the wall
 *        clock. */
#include "kernels/measure_impl.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PAIRS = 9 };

static const uint64_t burst_ns = 2000000, least_ns = 1000000; /* a peak; the shortest run that is timed */

static uint64_t now_ns(const struct ns_kernels *k)
{
    return k->n_threads == 1 ? ns_clock_thread_ns() : ns_clock_mono_ns();
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

/* ---- the machine ------------------------------------------------------------------------------------------------------------ */

struct burst {
    const struct ns_kernel_table *table;
    size_t steps;
    const float *memory;
    volatile float sink[64]; /* results nobody needs, so that they are computed */
};

static void fma_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct burst *b = arg;
    for (size_t i = begin; i < end; i++)
        b->sink[thread % 64] = b->table->fma_burst(b->steps);
}

enum { READ_PIECE = 1 << 18 }; /* floats */

static void read_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    struct burst *b = arg;
    for (size_t i = begin; i < end; i++)
        b->sink[thread % 64] = b->table->read_burst(b->memory + i * READ_PIECE, READ_PIECE);
}

/* The length of a burst comes from this thread's own time: judged by the wall clock, a thread that wakes late would pass
 * for work, and the rate would be nobody's. */
static double fma_rate(const struct ns_kernels *k)
{
    struct burst b = {.table = k->table, .steps = 1000};
    const size_t pieces = 4 * k->n_threads;
    uint64_t t = 0;
    for (; t < burst_ns / 40; b.steps *= 2) {
        t = ns_clock_thread_ns();
        fma_range(&b, 0, 1, 0);
        t = ns_clock_thread_ns() - t;
    }
    b.steps = b.steps / 2 * (burst_ns / 4) / t + 1;
    double rate[3];
    for (size_t i = 0; i < NS_COUNT(rate); i++) {
        t = now_ns(k);
        ns_parallel(k->n_threads, pieces, 1, fma_range, &b);
        t = now_ns(k) - t;
        rate[i] = (double)(pieces * b.steps * k->table->fma_step) / (double)(t + 1);
    }
    return median(rate, NS_COUNT(rate));
}

double ns_kernels_peak(const struct ns_kernels *k)
{
    return fma_rate(k);
}

/* bytes a nanosecond, from a part of the weights that changes with every call */
static double read_rate(const struct ns_kernels *k, struct ns_bench *bench)
{
    const size_t pieces = 48, all = ns_bench_weight_bytes / sizeof(float) / READ_PIECE;
    size_t first = bench->turn * pieces % (all - pieces);
    struct burst b = {.table = k->table, .memory = (const float *)(const void *)bench->weights + first * READ_PIECE};
    uint64_t t = now_ns(k);
    ns_parallel(k->n_threads, pieces, 1, read_range, &b);
    t = now_ns(k) - t;
    return (double)(pieces * READ_PIECE * sizeof(float)) / (double)(t + 1);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------------------- */

/* rates of one run, and the time of a row */
struct sample {
    double fma_ns, bytes_ns, row_ns;
};

/* Runs the subject until it took long enough to be timed. */
static struct sample one_run(const struct ns_subject *s, struct ns_bench *b)
{
    struct ns_run done = {0, 0};
    uint64_t start = now_ns(&b->k), t = 0;
    size_t n = 0;
    for (; t < least_ns; n++) {
        struct ns_run r = s->run(b);
        b->turn++;
        done.fma += r.fma;
        done.bytes += r.bytes;
        t = now_ns(&b->k) - start;
    }
    return (struct sample){done.fma / (double)t, done.bytes / (double)t, (double)t / (double)(n * b->rows)};
}

struct ns_rate ns_bench_measure(const struct ns_subject *s, struct ns_bench *b)
{
    double fma[MOST_PAIRS], bytes[MOST_PAIRS], row[MOST_PAIRS], of_peak[MOST_PAIRS], of_read[MOST_PAIRS];
    uint64_t start = ns_clock_mono_ns(), spent = 0;
    size_t n = 0;
    b->fresh = true;
    one_run(s, b); /* warms up, and is not counted */
    while (n < 3 || (n < 5 && spent < 3000000000u) || (n < MOST_PAIRS && spent < 500000000u)) {
        double peak = fma_rate(&b->k), read = read_rate(&b->k, b);
        struct sample run = one_run(s, b);
        fma[n] = run.fma_ns;
        bytes[n] = run.bytes_ns;
        row[n] = run.row_ns;
        of_peak[n] = run.fma_ns / peak;
        of_read[n] = run.bytes_ns / read;
        n++;
        spent = ns_clock_mono_ns() - start;
    }
    return (struct ns_rate){.kernel = s->name,
                            .isa = b->k.isa,
                            .rows = b->rows,
                            .threads = b->k.n_threads,
                            .gfma_s = median(fma, n),
                            .share_of_peak = median(of_peak, n),
                            .gb_s = median(bytes, n),
                            .share_of_bandwidth = median(of_read, n),
                            .row_ns = median(row, n)};
}

static bool measure_machine(struct ns_bench *b, ns_rate_fn each, void *arg)
{
    double fma[MOST_PAIRS], bytes[MOST_PAIRS];
    for (size_t i = 0; i < MOST_PAIRS; i++, b->turn++) {
        fma[i] = fma_rate(&b->k);
        bytes[i] = read_rate(&b->k, b);
    }
    struct ns_rate peak = {.kernel = "fma_peak",
                           .isa = b->k.isa,
                           .threads = b->k.n_threads,
                           .gfma_s = median(fma, MOST_PAIRS),
                           .share_of_peak = 1};
    struct ns_rate read = {.kernel = "memory_read",
                           .isa = b->k.isa,
                           .threads = b->k.n_threads,
                           .gb_s = median(bytes, MOST_PAIRS),
                           .share_of_bandwidth = 1};
    return each(arg, &peak) && each(arg, &read);
}

static bool wanted(const struct ns_measure *what, const struct ns_subject *s)
{
    return !what->kernel || strstr(s->name, what->kernel);
}

/* everything with one table and one thread count; false: asked to stop */
static bool measure_all(const struct ns_measure *what, struct ns_bench *b, ns_rate_fn each, void *arg)
{
    static const size_t rows[] = {1, 4, 16, 64, 256, 1024};
    if (!measure_machine(b, each, arg))
        return false;
    for (size_t s = 0; s < ns_subject_count; s++)
        for (size_t i = 0; i < NS_COUNT(rows) && wanted(what, &ns_subjects[s]); i++) {
            b->rows = rows[i];
            if (rows[i] > (b->few ? ns_subjects[s].most_few : ns_subjects[s].most))
                continue;
            struct ns_rate rate = ns_bench_measure(&ns_subjects[s], b);
            if (!each(arg, &rate))
                return false;
        }
    return true;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

/* ordinary numbers everywhere: bf16 between 0.008 and 2, scales near 1 */
static void fill(struct ns_bench *b)
{
    uint64_t s = 88172645463325252u;
    for (size_t i = 0; i + 8 <= ns_bench_weight_bytes; i += 8) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        uint64_t v = (s & 0x83ff83ff83ff83ffu) | 0x3c003c003c003c00u;
        memcpy(b->weights + i, &v, 8);
    }
    for (size_t i = 0; i < ns_bench_scale_bytes; i++)
        b->scales[i] = (uint8_t)(118 + i * 7 % 8);
    for (size_t i = 0; i < ns_bench_x_floats; i++) {
        b->x[i] = (float)(i * 2654435761u % 2048) / 1024.0f - 1.0f;
        b->y[i] = b->aux[i] = b->x[i];
    }
}

static bool take_all(ns_take_fn take, struct ns_bench *b, struct ns_budget *budget, struct ns_error *err)
{
    const size_t x_bytes = ns_bench_x_floats * sizeof(float);
    b->weights = take(budget, ns_bench_weight_bytes, err);
    b->scales = take(budget, ns_bench_scale_bytes, err);
    b->x = take(budget, x_bytes, err);
    b->y = take(budget, x_bytes, err);
    b->aux = take(budget, x_bytes, err);
    b->packed = take(budget, x_bytes + (1u << 16), err);
    b->scratch = take(budget, b->scratch_bytes, err);
    return b->weights && b->scales && b->x && b->y && b->aux && b->packed && b->scratch;
}

void ns_bench_close(struct ns_bench *b, struct ns_budget *budget)
{
    ns_budget_give(budget, b->weights);
    ns_budget_give(budget, b->scales);
    ns_budget_give(budget, b->x);
    ns_budget_give(budget, b->y);
    ns_budget_give(budget, b->aux);
    ns_budget_give(budget, b->packed);
    ns_budget_give(budget, b->scratch);
}

static const char *const isa_names[] = {"avx512", "avx2", "neon", "ref"};

static bool is_measured(const struct ns_measure *what, const char *isa, uint32_t *bits)
{
    return (!what->isa || strcmp(what->isa, isa) == 0) && ns_kernels_isa_bits(isa, what->cpu, bits);
}

/* The widest instruction set is not the one that wants most. */
static size_t most_scratch(const struct ns_measure *what)
{
    size_t most = 0;
    for (size_t i = 0; i < NS_COUNT(isa_names); i++) {
        uint32_t bits;
        if (!is_measured(what, isa_names[i], &bits))
            continue;
        struct ns_bench b = {.k = ns_kernels_select(bits, what->n_threads)};
        size_t bytes = ns_bench_scratch_bytes(&b);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static bool is_known(const struct ns_measure *what)
{
    for (size_t s = 0; s < ns_subject_count; s++)
        if (wanted(what, &ns_subjects[s]))
            return true;
    return false;
}

enum ns_code ns_bench_open(const struct ns_measure *what, struct ns_bench *b, struct ns_budget *budget,
                           struct ns_error *err)
{
    *b = (struct ns_bench){.scratch_bytes = most_scratch(what)};
    if (!take_all(what->take, b, budget, err))
        return NS_BUDGET;
    fill(b);
    return NS_OK;
}

enum ns_code ns_kernels_measure(const struct ns_measure *what, struct ns_budget *budget, ns_rate_fn each, void *arg,
                                struct ns_error *err)
{
    struct ns_bench b;
    if (!is_known(what))
        return ns_error_set(err, NS_USAGE, "no kernel's name contains \"%s\"", what->kernel);
    enum ns_code rc = ns_bench_open(what, &b, budget, err);
    bool go_on = rc == NS_OK;
    for (size_t i = 0; i < NS_COUNT(isa_names) && go_on; i++) {
        uint32_t bits;
        if (!is_measured(what, isa_names[i], &bits))
            continue;
        b.few = bits == 0;
        for (unsigned threads = 1; go_on && threads <= what->n_threads;
             threads = threads < what->n_threads ? what->n_threads : threads + 1) {
            b.k = ns_kernels_select(bits, threads);
            assert(ns_bench_scratch_bytes(&b) <= b.scratch_bytes);
            go_on = measure_all(what, &b, each, arg);
        }
    }
    ns_bench_close(&b, budget);
    return rc;
}
