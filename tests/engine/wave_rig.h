/* wave_rig.h - an engine on a checkpoint for tests, and waves whose every number is kept for comparing. */
#ifndef NS_TEST_RIG_H
#define NS_TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/engine.h"

struct rig {
    struct ns_budget budget;
    struct ns_engine *engine;
};

/* Result of one ask: the answer, and a sum over the bits of all logits of its row. */
struct rig_result {
    struct ns_answer answer;
    uint32_t logits_crc;
};

extern const char *const rig_checkpoints[4];  /* directories under NS_TEST_DATA/fixtures */
const char *rig_path(const char *checkpoint); /* static storage; "demo" is the demo model; an absolute path is itself */

struct ns_engine_options rig_options(void); /* one thread, the best kernels */
void rig_open(struct rig *rig, const char *dir, const struct ns_engine_options *options, size_t memory);
void rig_close(struct rig *rig); /* asserts that nothing is left in use */

/* Runs a wave to its end. result [n_asks] may be NULL. Asserts success. */
void rig_wave(struct rig *rig, const struct ns_segment *segment, size_t n_segments, const struct ns_ask *ask,
              size_t n_asks, struct rig_result *result);
/* Like rig_wave, but gives the code back. */
enum ns_code rig_try(struct rig *rig, const struct ns_segment *segment, size_t n_segments, const struct ns_ask *ask,
                     size_t n_asks, struct ns_error *err);

/* A prompt of n ids below vocab, the same for the same seed. */
void rig_prompt(uint32_t *id, size_t n, uint32_t vocab, uint32_t seed);
/* Asks for every position of one segment, target: the next token. */
void rig_ask_all(struct ns_ask *ask, uint32_t segment, const uint32_t *token, uint32_t n);
/* All positions of a prompt, alone in a wave. */
void rig_alone(struct rig *rig, const uint32_t *token, uint32_t n, struct rig_result *result);
/* Asserts the same bits. where: printed on failure. */
void rig_same(const struct rig_result *a, const struct rig_result *b, size_t n, const char *where);

#endif
