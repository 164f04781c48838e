/* hash_machine.c - see hash_machine.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../random.h"
#include "hash_machine.h"

#include <stdlib.h>

struct ns_seq {
    uint64_t hash;
    uint32_t n;
    size_t bytes;
    bool lost;
};

struct ns_wave {
    struct hash_machine *m;
    const struct ns_wave_desc *desc;
    uint64_t *hash; /* of every row */
    size_t *first;  /* row of each segment */
    uint32_t *end;  /* positions after each segment */
    struct ns_answer *answer;
    struct ns_error *fault;
    bool *faulty;
    bool done, fails;
    uint32_t step;
};

uint32_t rng_below(struct rng *rng, uint32_t n)
{
    return (uint32_t)(test_random(&rng->s) % n);
}

uint64_t hash_start(void)
{
    return 0x243f6a8885a308d3u;
}

uint64_t hash_next(uint64_t state, uint32_t token)
{
    uint64_t z = (state ^ (token + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    z ^= z >> 33;
    return z * 0xc4ceb9fe1a85ec53u + 1;
}

void hash_answer(uint64_t state, uint32_t vocab, uint32_t target, uint32_t n_top, struct ns_answer *out)
{
    *out = (struct ns_answer){.ok = true, .n_top = n_top};
    for (uint32_t i = 0; i < n_top; i++) {
        out->top_id[i] = (uint32_t)((hash_next(state, i) >> 20) % vocab);
        out->top_logprob[i] = -(float)(hash_next(state, 1000 + i) >> 44);
    }
    out->best = out->top_id[0];
    out->best_logprob = out->top_logprob[0];
    out->target_logprob = target == NS_NO_TOKEN ? 0 : -(float)(hash_next(state, 2000 + target) >> 44);
}

static size_t seq_bytes(void *self, uint32_t n)
{
    const struct hash_machine *m = self;
    return m->seq_fixed + m->seq_row * n;
}

static size_t state_left(void *self)
{
    const struct hash_machine *m = self;
    return m->state_bytes - m->held;
}

static size_t rows_bytes(void *self, uint32_t n_rows, uint32_t n_positions)
{
    const struct hash_machine *m = self;
    (void)n_positions;
    return m->wave_row * n_rows;
}

static enum ns_code seq_open(void *self, struct ns_seq **out, struct ns_error *err)
{
    (void)err;
    struct hash_machine *m = self;
    *out = calloc(1, sizeof **out);
    assert_non_null(*out);
    (*out)->hash = hash_start();
    m->seqs_open++;
    return NS_OK;
}

static void seq_close(void *self, struct ns_seq *seq)
{
    struct hash_machine *m = self;
    if (!seq)
        return;
    m->held -= seq->bytes;
    m->seqs_open--;
    free(seq);
}

struct ns_seq *hash_machine_seq(struct hash_machine *m, const uint32_t *token, uint32_t n)
{
    struct ns_seq *seq;
    assert_int_equal(seq_open(m, &seq, NULL), NS_OK);
    for (; seq->n < n; seq->n++)
        seq->hash = hash_next(seq->hash, token[seq->n]);
    seq->bytes = seq_bytes(m, n);
    m->held += seq->bytes;
    return seq;
}

static uint32_t seq_positions(void *self, const struct ns_seq *seq)
{
    (void)self;
    return seq->n;
}

/* Every rule about from and into. */
static void check_desc(struct hash_machine *m, const struct ns_wave_desc *d)
{
    size_t rows = 0;
    for (size_t i = 0; i < d->n_segments; i++) {
        const struct ns_segment *g = &d->segment[i];
        assert_true(g->n > 0);
        rows += g->n;
        if (g->parent != NS_NO_PARENT) {
            assert_true(g->parent < i);
            assert_null(g->from);
        }
        if (g->from) {
            assert_false(g->from->lost);
            assert_true(g->from->n > 0);
        }
        for (size_t j = 0; j < d->n_segments; j++) {
            if (j == i || !g->into)
                continue;
            assert_ptr_not_equal(g->into, d->segment[j].into);
            assert_ptr_not_equal(g->into, d->segment[j].from);
        }
        if (g->into && g->into != g->from)
            assert_int_equal(g->into->n, 0);
        for (uint32_t k = 0; k < g->n; k++)
            assert_true(g->token[k] < m->vocab);
    }
    assert_true(rows <= m->rows_max);
    assert_true(d->n_segments > 0);
    for (size_t i = 0; i < d->n_asks; i++) {
        assert_true(d->ask[i].segment < d->n_segments);
        assert_true(d->ask[i].offset < d->segment[d->ask[i].segment].n);
        assert_true(d->ask[i].n_top >= 1 && d->ask[i].n_top <= NS_TOP_MAX);
    }
    m->rows += rows;
    m->rows_widest = rows > m->rows_widest ? rows : m->rows_widest;
    m->wave_rows = (uint32_t)rows;
    m->wave_segments = (uint32_t)d->n_segments;
}

static enum ns_code wave_open(void *self, const struct ns_wave_desc *desc, const struct ns_probe *probe,
                              struct ns_wave **out, struct ns_error *err)
{
    (void)probe;
    (void)err;
    struct hash_machine *m = self;
    assert_null(m->wave);
    check_desc(m, desc);
    struct ns_wave *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->m = m;
    w->desc = desc;
    w->hash = calloc(m->wave_rows, sizeof *w->hash);
    w->first = calloc(desc->n_segments, sizeof *w->first);
    w->end = calloc(desc->n_segments, sizeof *w->end);
    w->answer = calloc(desc->n_asks + 1, sizeof *w->answer);
    w->fault = calloc(desc->n_segments, sizeof *w->fault);
    w->faulty = calloc(desc->n_segments, sizeof *w->faulty);
    assert_true(w->hash && w->first && w->end && w->answer && w->fault && w->faulty);
    m->waves++;
    w->fails = m->fail_wave > 0 && --m->fail_wave == 0;
    m->wave = w;
    *out = w;
    return NS_OK;
}

static void lose_all(struct ns_wave *w)
{
    for (size_t i = 0; i < w->desc->n_segments; i++) {
        struct ns_seq *into = w->desc->segment[i].into;
        if (into) {
            into->lost = true;
            into->n = 0;
        }
    }
}

static void run_segment(struct ns_wave *w, size_t i, size_t *row)
{
    const struct ns_segment *g = &w->desc->segment[i];
    uint64_t hash = hash_start();
    if (g->parent != NS_NO_PARENT) {
        const struct ns_segment *p = &w->desc->segment[g->parent];
        hash = w->hash[w->first[g->parent] + p->n - 1];
        w->faulty[i] = w->faulty[g->parent];
        w->end[i] = w->end[g->parent];
    } else if (g->from) {
        hash = g->from->hash;
        w->end[i] = g->from->n;
    }
    w->end[i] += g->n;
    w->first[i] = *row;
    for (uint32_t k = 0; k < g->n; k++) {
        hash = w->hash[(*row)++] = hash_next(hash, g->token[k]);
        if (g->token[k] == w->m->poison)
            w->faulty[i] = true;
    }
    if (w->faulty[i])
        ns_error_set(&w->fault[i], NS_NONFINITE, "segment %zu is poisoned", i);
}

static void store_states(struct ns_wave *w)
{
    struct hash_machine *m = w->m;
    for (size_t i = 0; i < w->desc->n_segments; i++) {
        const struct ns_segment *g = &w->desc->segment[i];
        if (!g->into)
            continue;
        g->into->hash = w->hash[w->first[i] + g->n - 1];
        g->into->lost = w->faulty[i];
        m->held -= g->into->bytes;
        g->into->bytes = m->seq_fixed + m->seq_row * w->end[i];
        m->held += g->into->bytes;
        g->into->n = w->faulty[i] ? 0 : w->end[i];
    }
    size_t rows = m->wave_row * m->wave_rows;
    if (m->held + rows > m->state_bytes)
        fail_msg("states hold %zu bytes and rows %zu of %zu", m->held, rows, m->state_bytes);
}

static enum ns_code wave_step(void *self, struct ns_wave *w, bool *done, struct ns_error *err)
{
    (void)self;
    if (w->step++ == 0) {
        *done = false;
        return NS_OK;
    }
    if (w->fails) {
        lose_all(w);
        return ns_error_set(err, NS_IO, "the disk is gone");
    }
    size_t row = 0;
    for (size_t i = 0; i < w->desc->n_segments; i++)
        run_segment(w, i, &row);
    store_states(w);
    for (size_t i = 0; i < w->desc->n_asks; i++) {
        const struct ns_ask *ask = &w->desc->ask[i];
        if (!w->faulty[ask->segment])
            hash_answer(w->hash[w->first[ask->segment] + ask->offset], w->m->vocab, ask->target, ask->n_top,
                        &w->answer[i]);
    }
    w->done = *done = true;
    return NS_OK;
}

static const struct ns_answer *wave_answers(void *self, const struct ns_wave *w)
{
    (void)self;
    return w->answer;
}

static const struct ns_error *wave_fault(void *self, const struct ns_wave *w, size_t segment)
{
    (void)self;
    return w->faulty[segment] ? &w->fault[segment] : NULL;
}

static void wave_stats(void *self, const struct ns_wave *w, struct ns_wave_stats *out)
{
    (void)self;
    *out = (struct ns_wave_stats){.rows = w->m->wave_rows, .segments = w->m->wave_segments};
}

static void wave_close(void *self, struct ns_wave *w)
{
    struct hash_machine *m = self;
    if (!w)
        return;
    if (!w->done)
        lose_all(w);
    free(w->hash);
    free(w->first);
    free(w->end);
    free(w->answer);
    free(w->fault);
    free(w->faulty);
    free(w);
    m->wave = NULL;
}

struct ns_machine hash_machine_of(struct hash_machine *m)
{
    return (struct ns_machine){.self = m,
                               .rows_max = m->rows_max,
                               .context = m->context,
                               .vocab = m->vocab,
                               .seq_bytes = seq_bytes,
                               .state_left = state_left,
                               .room_left = state_left,
                               .rows_bytes = m->wave_row > 0 ? rows_bytes : NULL,
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
