/* machine.h - what the scheduler and the night need of an engine, as a table of functions, so that tests and the
 * simulator can put something cheaper in its place. The calls mean what their namesakes in engine.h say. */
#ifndef NS_ENGINE_MACHINE_H
#define NS_ENGINE_MACHINE_H

#include "engine/engine.h"

struct ns_machine {
    void *self;
    uint32_t rows_max, context, vocab;
    size_t (*seq_bytes)(void *self, uint32_t n_positions);
    size_t (*state_left)(void *self);
    /* Memory of rows that states could have too: what is left for both, and what a wave takes of it. NULL: rows_max rows
     * have a place of their own. */
    size_t (*room_left)(void *self);
    size_t (*rows_bytes)(void *self, uint32_t n_rows, uint32_t n_positions);
    enum ns_code (*seq_open)(void *self, struct ns_seq **out, struct ns_error *err);
    void (*seq_close)(void *self, struct ns_seq *seq);
    uint32_t (*seq_positions)(void *self, const struct ns_seq *seq);
    enum ns_code (*wave_open)(void *self, const struct ns_wave_desc *desc, const struct ns_probe *probe,
                              struct ns_wave **out, struct ns_error *err);
    enum ns_code (*wave_step)(void *self, struct ns_wave *wave, bool *done, struct ns_error *err);
    const struct ns_answer *(*wave_answers)(void *self, const struct ns_wave *wave);
    const struct ns_error *(*wave_fault)(void *self, const struct ns_wave *wave, size_t segment);
    void (*wave_stats)(void *self, const struct ns_wave *wave, struct ns_wave_stats *out);
    void (*wave_close)(void *self, struct ns_wave *wave);
};

struct ns_machine ns_machine_of_engine(struct ns_engine *engine); /* borrowed */

#endif
