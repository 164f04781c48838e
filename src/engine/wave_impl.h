/* wave_impl.h - private to engine/: the inside of a wave, for wave.c and suspend.c. */
#ifndef NS_ENGINE_WAVE_IMPL_H
#define NS_ENGINE_WAVE_IMPL_H

#include "engine/engine_impl.h"

struct ns_wave_fault_note {
    enum ns_code code; /* NS_OK: none */
    uint32_t layer, position, expert;
    const char *what; /* static */
};

struct ns_wave {
    struct ns_engine *engine;
    const struct ns_segment *segment;
    size_t n_segments;
    struct ns_lineage lineage;
    struct ns_asks asks;
    struct ns_rows rows;
    struct ns_pass pass;
    uint32_t *token; /* [n_rows] */
    struct ns_wave_fault_note *fault;
    bool *failed, *sound; /* [n_segments]: failed, and its opposite */
    struct ns_error fault_text;
    uint32_t next; /* 0: embedding, 1 + layer, 1 + layers: head, 2 + layers: done */
    bool began, broken, left;
    struct ns_store_stats before;
    uint64_t wall_ns, product_before_ns;
    struct ns_spill_stats spill_before;
    struct ns_wave_stats stats;
};

/* The store starts on the tiles from this layer on, and the pass stands in front of it. From here on the sequences that
 * the wave goes into are not what they were. */
NS_MUST_CHECK enum ns_code ns_wave_begin(struct ns_wave *wave, uint32_t first_layer, struct ns_error *err);
/* The segment failed: its rows are dead. */
void ns_wave_mark(struct ns_wave *wave, size_t segment);

#endif
