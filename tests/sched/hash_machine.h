/* hash_machine.h - a machine whose state is a rolling hash of every token so far. Any row that is missing, doubled, out of
 * order or started from the wrong state gives other answers. It also keeps the books on memory and checks every rule of
 * engine.h about segments and sequences. */
#ifndef HASH_MACHINE_H
#define HASH_MACHINE_H

#include "sched/sched.h"

struct hash_machine {
    uint32_t rows_max, context, vocab;
    size_t state_bytes;        /* for all sequences */
    size_t seq_fixed, seq_row; /* bytes of one: fixed + row * positions */
    size_t wave_row;           /* bytes of each row of a wave, taken from state_bytes while it runs; 0: none */
    uint32_t poison;           /* a segment that holds this token fails; NS_NO_TOKEN: none */
    uint64_t fail_wave;        /* the n-th wave from now fails with NS_IO; 0: none */
    /* counted */
    size_t held;
    uint64_t seqs_open, waves, rows, rows_widest;
    uint32_t wave_rows, wave_segments; /* of the last wave */
    struct ns_wave *wave;
};

struct ns_machine hash_machine_of(struct hash_machine *m);
/* A state as it would be after these tokens (a snapshot from elsewhere). */
struct ns_seq *hash_machine_seq(struct hash_machine *m, const uint32_t *token, uint32_t n);
uint64_t hash_start(void);
uint64_t hash_next(uint64_t state, uint32_t token);
void hash_answer(uint64_t state, uint32_t vocab, uint32_t target, uint32_t n_top, struct ns_answer *out);

/* A small generator for tests: same seed, same numbers. */
struct rng {
    uint64_t s;
};

uint32_t rng_below(struct rng *rng, uint32_t n);

#endif
