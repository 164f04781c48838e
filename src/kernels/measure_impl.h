/* measure_impl.h - between measure.c, which takes times, and subjects.c, which knows what to run. */
#ifndef NS_MEASURE_IMPL_H
#define NS_MEASURE_IMPL_H

#include "kernels/kernels_impl.h"

/* The shapes of the released model, for measuring only; they reach nothing else. Hidden, heads times head width, latent,
 * inner width; heads, head width; experts, chosen; vocabulary piece; cached key and value; positions; residual blocks. */
enum {
    HIDDEN = 7 << 10,
    WIDE = 12 << 10,
    LATENT = 7 << 9,
    INNER = 3 << 10,
    HEADS = 96,
    HEAD = 128,
    EXPERTS = 7 << 7,
    CHOSEN = 16,
    VOCABULARY = 8 << 10,
    KEY = 576,
    VALUE = 512,
    CONTEXT = 1024,
    BLOCKS = 8,
    JOBS = 4 /* experts of a call, as far as their rows are no more than the most */
};

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
struct ns_run {
    double fma, bytes;
};

struct ns_subject {
    const char *name;
    size_t most;     /* rows up to which it is measured: more of them would change nothing */
    size_t most_few; /* the same for the reference */
    struct ns_run (*run)(struct ns_bench *b);
};

extern const struct ns_subject ns_subjects[];
extern const size_t ns_subject_count;

/* Takes and fills the memory for what is measured (ns_bench_close also after a failure), and one figure of b->rows. */
NS_MUST_CHECK enum ns_code ns_bench_open(const struct ns_measure *what, struct ns_bench *b, struct ns_budget *budget,
                                         struct ns_error *err);
void ns_bench_close(struct ns_bench *b, struct ns_budget *budget);
struct ns_rate ns_bench_measure(const struct ns_subject *s, struct ns_bench *b);

/* A part of a wave: how often one of its rows needs what one row of a subject is. */
struct ns_part {
    const char *subject;
    size_t most;           /* measured with the rows of the wave, at most so many */
    size_t rows_of_expert; /* one row of an expert for so many of the wave; 0: not by expert */
    double times;
    double apart; /* the fraction of it that is not inside another part already */
    bool product;
};

extern const struct ns_part ns_parts[];
extern const size_t ns_part_count;

enum { NS_PARTS_MOST = 32 };

/* share[i] of the time of a row, from row_ns[i] of one row of each part's subject. */
void ns_parts_weigh(const double *row_ns, double *share);

#endif
