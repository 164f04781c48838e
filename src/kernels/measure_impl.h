/* measure_impl.h - between measure.c, which takes times, and subjects.c, which knows what to run. */
#ifndef NS_MEASURE_IMPL_H
#define NS_MEASURE_IMPL_H

#include "kernels/kernels_impl.h"

/* The memory all subjects share; weights are large enough that no cache keeps them. */
struct ns_bench {
    struct ns_kernels k;
    uint8_t *weights; /* bench_weight_bytes of packed codes, or of bf16 */
    uint8_t *scales;
    float *x, *y, *aux; /* activations */
    void *packed, *scratch;
    size_t scratch_bytes; /* enough for each instruction set that is measured, with the most threads */
    uint32_t index[1024];
    size_t turn; /* how many runs there were: chooses the weights */
    size_t rows; /* of the present run */
    bool fresh;  /* the first run of a subject with these rows */
    bool few;    /* the reference: a part of the work, counted as a part */
};

extern const size_t ns_bench_weight_bytes, ns_bench_scale_bytes, ns_bench_x_floats;
size_t ns_bench_scratch_bytes(const struct ns_bench *b); /* with the threads of b->k */

/* What one run did. */
struct ns_work {
    double fma, bytes;
};

struct ns_subject {
    const char *name;
    size_t most_few; /* rows up to which the reference is measured */
    struct ns_work (*run)(struct ns_bench *b);
};

extern const struct ns_subject ns_subjects[];
extern const size_t ns_subject_count;

#endif
