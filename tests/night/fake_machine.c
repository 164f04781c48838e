/* fake_machine.c - see the header. */
#include "fake_machine.h"

#include "sys/sys.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct ns_seq {
    uint64_t hash;
    uint32_t n;
    size_t charged;
    struct fake_machine *fake;
};

struct ns_wave {
    struct ns_wave_desc desc;
    struct ns_answer *answer;
    struct ns_error *fault;
    uint64_t *end_hash;
    uint32_t *end_n;
    bool *sick;
    uint32_t step, rows;
};

static const uint64_t hash_start = 0x9E3779B97F4A7C15u;

static uint64_t mix(uint64_t h, uint32_t token)
{
    h ^= token + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 29;
}

static uint32_t token_of(const struct fake_machine *fake, uint64_t h)
{
    if (h % 23 == 0)
        return fake->stop_token;
    return (uint32_t)(h >> 20) % (fake->vocab - 16);
}

uint32_t fake_next(const struct fake_machine *fake, const uint32_t *token, size_t n)
{
    uint64_t h = hash_start;
    for (size_t i = 0; i < n; i++)
        h = mix(h, token[i]);
    return token_of(fake, h);
}

void fake_machine_init(struct fake_machine *fake)
{
    *fake = (struct fake_machine){
        .vocab = 5000,
        .stop_token = 4990,
        .steps = 2,
        .state_bytes = (size_t)64 << 20,
        .poison = NS_NO_TOKEN,
        .sick = NS_NO_TOKEN,
    };
}

static size_t fake_seq_bytes(void *self, uint32_t n_positions)
{
    (void)self;
    return 4096 + (size_t)n_positions * 16;
}

static size_t fake_state_left(void *self)
{
    const struct fake_machine *fake = self;
    return fake->state_bytes - fake->state_used;
}

static enum ns_code fake_seq_open(void *self, struct ns_seq **out, struct ns_error *err)
{
    struct ns_seq *seq = calloc(1, sizeof *seq);
    if (!seq)
        return ns_error_set(err, NS_BUDGET, "no memory");
    seq->hash = hash_start;
    seq->fake = self;
    *out = seq;
    return NS_OK;
}

static void fake_seq_close(void *self, struct ns_seq *seq)
{
    struct fake_machine *fake = self;
    if (!seq)
        return;
    fake->state_used -= seq->charged;
    free(seq);
}

static uint32_t fake_seq_positions(void *self, const struct ns_seq *seq)
{
    (void)self;
    return seq->n;
}

static enum ns_code fake_wave_open(void *self, const struct ns_wave_desc *desc, const struct ns_probe *probe,
                                   struct ns_wave **out, struct ns_error *err)
{
    struct fake_machine *fake = self;
    fake->listened += probe != NULL;
    struct ns_wave *wave = calloc(1, sizeof *wave);
    if (!wave)
        return ns_error_set(err, NS_BUDGET, "no memory");
    wave->desc = *desc;
    wave->answer = calloc(desc->n_asks + 1, sizeof *wave->answer);
    wave->fault = calloc(desc->n_segments, sizeof *wave->fault);
    wave->end_hash = calloc(desc->n_segments, sizeof *wave->end_hash);
    wave->end_n = calloc(desc->n_segments, sizeof *wave->end_n);
    wave->sick = calloc(desc->n_segments, sizeof *wave->sick);
    uint32_t row = 0;
    for (size_t s = 0; probe && s < desc->n_segments; s++)
        for (uint32_t i = 0; i < desc->segment[s].n; i++, row++) {
            uint32_t id[2] = {desc->segment[s].token[i] % 7, 7 + desc->segment[s].token[i] % 9};
            float weight[2] = {1, 1};
            probe->row(probe->arg, 1, "ffn_in", row, weight, NULL, 2);
            probe->row(probe->arg, 1, "routed", row, weight, id, 2);
        }
    *out = wave;
    return NS_OK;
}

static float unit(uint64_t h)
{
    return -(float)(h % 100000) / 10000.0f - 0.001f;
}

static void answer_ask(const struct fake_machine *fake, const struct ns_ask *ask, uint64_t h, struct ns_answer *a)
{
    *a = (struct ns_answer){.ok = true, .best = token_of(fake, h), .best_logprob = unit(h), .n_top = ask->n_top};
    for (uint32_t i = 0; i < ask->n_top; i++) {
        a->top_id[i] = i == 0 ? a->best : (a->best + i * 7) % fake->vocab;
        a->top_logprob[i] = a->best_logprob - (float)i;
    }
    if (ask->target != NS_NO_TOKEN)
        a->target_logprob = ask->target == a->best ? a->best_logprob : unit(mix(h, ask->target));
}

static void run_segment(struct fake_machine *fake, struct ns_wave *wave, size_t s)
{
    const struct ns_segment *seg = &wave->desc.segment[s];
    uint64_t h = seg->parent != NS_NO_PARENT ? wave->end_hash[seg->parent] : seg->from ? seg->from->hash : hash_start;
    uint32_t n = seg->parent != NS_NO_PARENT ? wave->end_n[seg->parent] : seg->from ? seg->from->n : 0;
    wave->sick[s] = seg->parent != NS_NO_PARENT && wave->sick[seg->parent];
    for (uint32_t i = 0; i < seg->n; i++) {
        if (seg->token[i] == fake->poison)
            abort();
        wave->sick[s] = wave->sick[s] || seg->token[i] == fake->sick;
        h = mix(h, seg->token[i]);
        for (size_t a = 0; a < wave->desc.n_asks; a++)
            if (wave->desc.ask[a].segment == s && wave->desc.ask[a].offset == i)
                answer_ask(fake, &wave->desc.ask[a], h, &wave->answer[a]);
    }
    if (wave->sick[s])
        ns_error_set(&wave->fault[s], NS_NONFINITE, "layer 3: position %u is not a number", n);
    wave->end_hash[s] = h;
    wave->end_n[s] = n + seg->n;
    wave->rows += seg->n;
}

static enum ns_code finish_wave(struct fake_machine *fake, struct ns_wave *wave, struct ns_error *err)
{
    fake->waves++;
    if (fake->fail_at_wave == fake->waves)
        return ns_error_set(err, NS_IO, "shard 2: reading 4096 bytes at 77: Input/output error");
    for (size_t s = 0; s < wave->desc.n_segments; s++)
        run_segment(fake, wave, s);
    for (size_t a = 0; a < wave->desc.n_asks; a++)
        wave->answer[a].ok = !wave->sick[wave->desc.ask[a].segment];
    for (size_t s = 0; s < wave->desc.n_segments; s++) {
        struct ns_seq *into = wave->desc.segment[s].into;
        if (!into)
            continue;
        size_t bytes = fake_seq_bytes(fake, wave->end_n[s]);
        fake->state_used += bytes - into->charged;
        into->charged = bytes;
        into->hash = wave->end_hash[s];
        into->n = wave->end_n[s];
    }
    return NS_OK;
}

static enum ns_code fake_wave_step(void *self, struct ns_wave *wave, bool *done, struct ns_error *err)
{
    struct fake_machine *fake = self;
    if (fake->on_step)
        fake->on_step(fake);
    if (fake->step_ms > 0)
        ns_sleep_ms(fake->step_ms);
    *done = ++wave->step >= fake->steps;
    return *done ? finish_wave(fake, wave, err) : NS_OK;
}

static const struct ns_answer *fake_wave_answers(void *self, const struct ns_wave *wave)
{
    (void)self;
    return wave->answer;
}

static const struct ns_error *fake_wave_fault(void *self, const struct ns_wave *wave, size_t segment)
{
    (void)self;
    return wave->sick[segment] ? &wave->fault[segment] : NULL;
}

static void fake_wave_stats(void *self, const struct ns_wave *wave, struct ns_wave_stats *out)
{
    (void)self;
    *out = (struct ns_wave_stats){
        .rows = wave->rows,
        .segments = (uint32_t)wave->desc.n_segments,
        .compute_ns = 1000000,
        .wall_ns = 2000000,
    };
}

static void fake_wave_close(void *self, struct ns_wave *wave)
{
    (void)self;
    free(wave->answer);
    free(wave->fault);
    free(wave->end_hash);
    free(wave->end_n);
    free(wave->sick);
    free(wave);
}

struct ns_machine fake_machine_ops(struct fake_machine *fake, uint32_t rows_max, uint32_t context)
{
    return (struct ns_machine){
        .self = fake,
        .rows_max = rows_max,
        .context = context,
        .vocab = fake->vocab,
        .seq_bytes = fake_seq_bytes,
        .state_left = fake_state_left,
        .seq_open = fake_seq_open,
        .seq_close = fake_seq_close,
        .seq_positions = fake_seq_positions,
        .wave_open = fake_wave_open,
        .wave_step = fake_wave_step,
        .wave_answers = fake_wave_answers,
        .wave_fault = fake_wave_fault,
        .wave_stats = fake_wave_stats,
        .wave_close = fake_wave_close,
    };
}
