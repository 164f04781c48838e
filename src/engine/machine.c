/* machine.c - the engine behind the table that the scheduler and the night drive. */
#include "engine/machine.h"

static size_t seq_bytes(void *self, uint32_t n_positions)
{
    return ns_seq_bytes((const struct ns_engine *)self, n_positions);
}

static size_t state_left(void *self)
{
    return ns_engine_state_left((const struct ns_engine *)self);
}

static size_t room_left(void *self)
{
    return ns_engine_room_left((const struct ns_engine *)self);
}

static size_t rows_bytes(void *self, uint32_t n_rows, uint32_t n_positions)
{
    return ns_engine_rows_bytes((const struct ns_engine *)self, n_rows, n_positions);
}

static enum ns_code seq_open(void *self, struct ns_seq **out, struct ns_error *err)
{
    return ns_seq_open((struct ns_engine *)self, out, err);
}

static void seq_close(void *self, struct ns_seq *seq)
{
    (void)self;
    ns_seq_close(seq);
}

static uint32_t seq_positions(void *self, const struct ns_seq *seq)
{
    (void)self;
    return ns_seq_positions(seq);
}

static enum ns_code wave_open(void *self, const struct ns_wave_desc *desc, const struct ns_probe *probe,
                              struct ns_wave **out, struct ns_error *err)
{
    return ns_wave_open((struct ns_engine *)self, desc, probe, out, err);
}

static enum ns_code wave_step(void *self, struct ns_wave *wave, bool *done, struct ns_error *err)
{
    (void)self;
    return ns_wave_step(wave, done, err);
}

static const struct ns_answer *wave_answers(void *self, const struct ns_wave *wave)
{
    (void)self;
    return ns_wave_answers(wave);
}

static const struct ns_error *wave_fault(void *self, const struct ns_wave *wave, size_t segment)
{
    (void)self;
    return ns_wave_fault(wave, segment);
}

static void wave_stats(void *self, const struct ns_wave *wave, struct ns_wave_stats *out)
{
    (void)self;
    ns_wave_stats_get(wave, out);
}

static void wave_close(void *self, struct ns_wave *wave)
{
    (void)self;
    ns_wave_close(wave);
}

struct ns_machine ns_machine_of_engine(struct ns_engine *engine)
{
    return (struct ns_machine){.self = engine,
                               .rows_max = ns_engine_rows_max(engine),
                               .context = ns_engine_context(engine),
                               .vocab = ns_engine_config(engine)->vocab,
                               .seq_bytes = seq_bytes,
                               .state_left = state_left,
                               .room_left = room_left,
                               .rows_bytes = rows_bytes,
                               .seq_open = seq_open,
                               .seq_close = seq_close,
                               .seq_positions = seq_positions,
                               .wave_open = wave_open,
                               .wave_step = wave_step,
                               .wave_answers = wave_answers,
                               .wave_fault = wave_fault,
                               .wave_stats = wave_stats,
                               .wave_close = wave_close};
}
