/* fake_machine.h - an engine without a model: the token that follows a sequence is a hash of all tokens before it, so a
 * wrong order, a wrong state or a row computed twice shows in the answers. A wave costs a chosen time. */
#ifndef NS_FAKE_MACHINE_H
#define NS_FAKE_MACHINE_H

#include "engine/machine.h"

struct fake_machine {
    uint32_t vocab, stop_token;
    uint32_t steps;     /* wave_step calls per wave */
    uint64_t step_ms;   /* time of one step */
    size_t state_bytes; /* room for sequence states */
    size_t state_used;
    uint64_t fail_at_wave; /* that wave ends with NS_IO; 0: never */
    uint64_t waves;
    uint64_t listened; /* waves that were opened with a probe: it is told experts made of the tokens */
    uint32_t poison;   /* a sequence that contains this token kills the process; NS_NO_TOKEN: none */
    uint32_t sick;     /* a segment that contains this token fails with NS_NONFINITE; NS_NO_TOKEN: none */
    void (*on_step)(struct fake_machine *fake);
};

void fake_machine_init(struct fake_machine *fake);
struct ns_machine fake_machine_ops(struct fake_machine *fake, uint32_t rows_max, uint32_t context);
/* What the fake says after token[0..n). */
uint32_t fake_next(const struct fake_machine *fake, const uint32_t *token, size_t n);

#endif
