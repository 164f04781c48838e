/* spill_test.c - recurrent states in files: the same bits as in memory, fewer bytes written, and no wave without its
 * writes. */
#include "wave_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../scratch.h"
#include "sys/sys.h"

enum { SEQS = 8, N = 40, PREFILL = 11 };

/* An engine whose share for states holds only some of the sequences. */
static void open_tight(struct rig *rig, const char *checkpoint, const char *dir, uint64_t limit, uint32_t head_group)
{
    struct ns_engine_options o = rig_options();
    o.rows_max = 96;
    o.context = 64;
    o.block_positions = 8;
    o.head_group = head_group;
    o.n_threads = 2;
    o.spill_dir = dir;
    o.spill_bytes = limit;
    o.spill_log = 4;
    /* some states, the third that is kept free for pages and window, and not much more */
    o.state_bytes = strcmp(checkpoint, "k3-realhead") == 0 ? 3800000 : 500000;
    rig_open(rig, rig_path(checkpoint), &o, 128u << 20);
}

/* Prefills all sequences, forks the last from the first, then decodes one token a wave; every answer is kept. */
static void night(struct rig *rig, const uint32_t id[SEQS][N], struct rig_result result[N][SEQS], uint32_t *n_spilled)
{
    struct ns_seq *seq[SEQS];
    struct ns_segment s[SEQS];
    struct ns_ask ask[SEQS];
    struct ns_spill_stats stats;
    uint32_t n = SEQS - 1;
    for (uint32_t i = 0; i < SEQS; i++)
        assert_int_equal(ns_seq_open(rig->engine, &seq[i], NULL), NS_OK);
    for (uint32_t i = 0; i < n; i++) {
        s[i] = (struct ns_segment){.token = id[i], .n = PREFILL, .parent = NS_NO_PARENT, .into = seq[i]};
        ask[i] = (struct ns_ask){.segment = i, .offset = PREFILL - 1, .target = 1, .n_top = 5};
    }
    rig_wave(rig, s, n, ask, n, result[PREFILL - 1]);
    for (uint32_t t = PREFILL; t < N - 1; t++) {
        for (uint32_t i = 0; i < SEQS; i++) {
            bool fork = i == n && t == PREFILL; /* from sequence n-1, which waits in this wave */
            s[i] = (struct ns_segment){
                .token = &id[i][t], .n = 1, .parent = NS_NO_PARENT, .from = fork ? seq[n - 1] : seq[i], .into = seq[i]};
            ask[i] = (struct ns_ask){.segment = i, .offset = 0, .target = 1, .n_top = 5};
        }
        if (t == PREFILL)
            s[n - 1].into = NULL;
        rig_wave(rig, s, SEQS, ask, SEQS, result[t]);
    }
    ns_engine_spill_stats(rig->engine, &stats);
    *n_spilled = stats.n_files;
    for (uint32_t i = 0; i < SEQS; i++)
        ns_seq_close(seq[i]);
    ns_engine_spill_stats(rig->engine, &stats);
    assert_int_equal(stats.n_files, 0);
    assert_int_equal(stats.file_bytes, 0);
}

static void same_bits(void **state)
{
    (void)state;
    static const char *const models[] = {"k3-realhead", "kimi-linear-tiny"};
    struct scratch s;
    scratch_open(&s);
    for (size_t c = 0; c < NS_COUNT(models); c++)
        for (uint32_t group = 1; group <= 2; group++) {
            struct rig rig;
            static uint32_t id[SEQS][N];
            static struct rig_result want[N][SEQS], got[N][SEQS];
            uint32_t n_spilled = 0;
            struct ns_engine_options o = rig_options();
            rig_open(&rig, rig_path(models[c]), &o, 128u << 20);
            for (uint32_t i = 0; i < SEQS; i++)
                rig_prompt(id[i], N, ns_engine_config(rig.engine)->vocab, 300 + i);
            night(&rig, (const uint32_t(*)[N])id, want, &n_spilled);
            assert_int_equal(n_spilled, 0);
            rig_close(&rig);
            open_tight(&rig, models[c], s.dir, 1u << 30, group);
            night(&rig, (const uint32_t(*)[N])id, got, &n_spilled);
            print_message("%s: %u of %d sequences were spilled\n", models[c], n_spilled, SEQS);
            assert_in_range(n_spilled, 1, SEQS);
            for (uint32_t t = PREFILL - 1; t < N - 1; t++)
                rig_same(want[t], got[t], t < PREFILL ? SEQS - 1 : SEQS, "spilled");
            struct ns_spill_stats stats;
            ns_engine_spill_stats(rig.engine, &stats);
            assert_true(stats.read_bytes > 0);
            rig_close(&rig);
        }
    scratch_close(&s);
}

/* The log writes a fraction of what rewriting every state after every token would. */
static void writes_less(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    static uint32_t id[SEQS][N];
    static struct rig_result got[N][SEQS];
    struct ns_spill_stats stats;
    uint32_t n_spilled = 0;
    scratch_open(&s);
    open_tight(&rig, "k3-realhead", s.dir, 1u << 30, 2);
    for (uint32_t i = 0; i < SEQS; i++)
        rig_prompt(id[i], N, ns_engine_config(rig.engine)->vocab, 300 + i);
    night(&rig, (const uint32_t(*)[N])id, got, &n_spilled);
    ns_engine_spill_stats(rig.engine, &stats);
    uint64_t plain = (uint64_t)n_spilled * (N - PREFILL) * ns_engine_plan(rig.engine)->seq_bytes;
    assert_true(stats.written_bytes > 0 && stats.written_bytes < plain / 2);
    rig_close(&rig);
    scratch_close(&s);
}

static void limit_holds(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    struct ns_seq *seq[64];
    struct ns_spill_stats stats;
    uint32_t id = 1, n = 0;
    scratch_open(&s);
    open_tight(&rig, "k3-realhead", s.dir, 3000000, 0);
    enum ns_code rc = NS_OK;
    for (; rc == NS_OK && n < 64; n++) {
        assert_int_equal(ns_seq_open(rig.engine, &seq[n], NULL), NS_OK);
        struct ns_segment one = {.token = &id, .n = 1, .parent = NS_NO_PARENT, .into = seq[n]};
        rc = rig_try(&rig, &one, 1, NULL, 0, NULL);
        ns_engine_spill_stats(rig.engine, &stats);
        assert_true(stats.file_bytes <= 3000000);
    }
    assert_int_equal(rc, NS_BUDGET);
    assert_true(stats.n_files > 0);
    for (uint32_t i = 0; i < n; i++)
        ns_seq_close(seq[i]);
    rig_close(&rig);
    scratch_close(&s);
}

/* A failed read or write of a state ends the wave, and the sequence must be rebuilt. */
static void failed_io(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    struct ns_seq *seq[SEQS];
    struct ns_segment line[SEQS];
    struct ns_spill_stats stats;
    uint32_t id = 1;
    scratch_open(&s);
    open_tight(&rig, "k3-realhead", s.dir, 1u << 30, 1);
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(ns_seq_open(rig.engine, &seq[i], NULL), NS_OK);
        line[i] = (struct ns_segment){.token = &id, .n = 1, .parent = NS_NO_PARENT, .into = seq[i]};
    }
    uint32_t n_failed = 0;
    enum ns_code rc = NS_FULL;
    for (uint64_t nth = 1; rc != NS_OK; nth++) {
        ns_fault_arm_mode(NS_FAULT_WRITE, nth, ENOSPC, false);
        rc = rig_try(&rig, line, SEQS, NULL, 0, NULL);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_FULL);
        if (rc != NS_OK) {
            n_failed++;
            for (uint32_t i = 0; i < SEQS; i++)
                assert_int_equal(ns_seq_positions(seq[i]), 0);
        }
    }
    assert_true(n_failed > 0);
    ns_engine_spill_stats(rig.engine, &stats);
    assert_true(stats.n_files > 0);
    for (uint32_t i = 0; i < SEQS; i++)
        ns_seq_close(seq[i]);
    rig_close(&rig);
    scratch_close(&s);
}

/* Snapshots and suspended waves of spilled sequences. */
static void files_of_spilled_states(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig, plain;
    struct ns_seq *seq[SEQS], *loaded = NULL;
    struct ns_segment line[SEQS];
    struct ns_ask ask[SEQS];
    struct rig_result want[SEQS], got;
    struct ns_snapshot row[SEQS];
    static uint32_t id[SEQS][N];
    char path[SEQS][512];
    scratch_open(&s);
    open_tight(&rig, "k3-realhead", s.dir, 1u << 30, 1);
    for (uint32_t i = 0; i < SEQS; i++) {
        rig_prompt(id[i], N, ns_engine_config(rig.engine)->vocab, 900 + i);
        assert_int_equal(ns_seq_open(rig.engine, &seq[i], NULL), NS_OK);
    }
    for (uint32_t t = 0; t < 3; t++) { /* a base of 9 positions and a log of two */
        for (uint32_t i = 0; i < SEQS; i++)
            line[i] = (struct ns_segment){.token = id[i] + (t ? 8 + t : 0),
                                          .n = t ? 1 : 9,
                                          .parent = NS_NO_PARENT,
                                          .from = t ? seq[i] : NULL,
                                          .into = seq[i]};
        rig_wave(&rig, line, SEQS, NULL, 0, NULL);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        snprintf(path[i], sizeof path[i], "%s/snap%u", s.dir, i);
        assert_int_equal(ns_seq_save(seq[i], path[i], i, 1, 0, &row[i], NULL), NS_OK);
        line[i] =
            (struct ns_segment){.token = id[i] + 11, .n = 1, .parent = NS_NO_PARENT, .from = seq[i], .into = seq[i]};
        ask[i] = (struct ns_ask){.segment = i, .offset = 0, .target = 2, .n_top = 5};
    }
    /* stop in front of layer 2, go on in another engine */
    struct ns_wave_desc desc = {.segment = line, .n_segments = SEQS, .ask = ask, .n_asks = SEQS};
    struct ns_wave *wave = NULL;
    struct ns_suspend stop;
    struct ns_suspended *suspended = NULL;
    bool done = false;
    assert_int_equal(ns_wave_open(rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    char stopped[512];
    snprintf(stopped, sizeof stopped, "%s/stopped", s.dir);
    assert_int_equal(ns_wave_suspend(wave, stopped, "", 0, &stop, NULL), NS_OK);
    ns_wave_close(wave);
    for (uint32_t i = 0; i < SEQS; i++)
        ns_seq_close(seq[i]);
    rig_close(&rig);
    /* what it must be: loaded into memory from the snapshots */
    struct ns_engine_options o = rig_options();
    o.context = 64;
    o.block_positions = 8;
    rig_open(&plain, rig_path("k3-realhead"), &o, 128u << 20);
    for (uint32_t i = 0; i < SEQS; i++) {
        const char *one = path[i];
        assert_int_equal(ns_seq_open(plain.engine, &loaded, NULL), NS_OK);
        assert_int_equal(ns_seq_load(loaded, &one, &row[i], 1, NULL), NS_OK);
        line[i].from = line[i].into = loaded;
        struct ns_ask first = ask[i];
        first.segment = 0;
        rig_wave(&plain, &line[i], 1, &first, 1, &want[i]);
        ns_seq_close(loaded);
        struct ns_segment whole = {.token = id[i], .n = 12, .parent = NS_NO_PARENT};
        struct ns_ask last = {.segment = 0, .offset = 11, .target = 2, .n_top = 5};
        rig_wave(&plain, &whole, 1, &last, 1, &got);
        rig_same(&want[i], &got, 1, "snapshot of a spilled state");
    }
    rig_close(&plain);
    open_tight(&rig, "k3-realhead", s.dir, 1u << 30, 1);
    assert_int_equal(ns_wave_resume(rig.engine, stopped, &stop, NULL, &suspended, &wave, NULL), NS_OK);
    for (done = false; !done;)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(ns_wave_answers(wave)[i].best, want[i].answer.best);
        assert_memory_equal(&ns_wave_answers(wave)[i].target_logprob, &want[i].answer.target_logprob, sizeof(float));
        seq[i] = ns_suspended_desc(suspended)->segment[i].into;
    }
    ns_wave_close(wave);
    ns_suspended_close(suspended);
    for (uint32_t i = 0; i < SEQS; i++) { /* and their states are whole */
        line[i] =
            (struct ns_segment){.token = id[i] + 12, .n = 1, .parent = NS_NO_PARENT, .from = seq[i], .into = seq[i]};
        struct ns_segment whole = {.token = id[i], .n = 13, .parent = NS_NO_PARENT};
        struct ns_ask first = {.segment = 0, .offset = 0, .target = 2, .n_top = 5};
        rig_wave(&rig, &line[i], 1, &first, 1, &want[i]);
        first.offset = 12;
        rig_wave(&rig, &whole, 1, &first, 1, &got);
        rig_same(&want[i], &got, 1, "after a resumed wave of spilled states");
        ns_seq_close(seq[i]);
    }
    rig_close(&rig);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(writes_less),
        cmocka_unit_test(limit_holds),
        cmocka_unit_test(failed_io),
        cmocka_unit_test(files_of_spilled_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
