/* suspend_test.c - states and waves in files: the same bits after loading, and no harm from files that do not fit. */
#include "wave_rig.h"

#include "engine/engine_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../scratch.h"
#include "sys/sys.h"

enum { N = 30, LINES = 5, SEQS = 4 };

/* A mixed wave: a sequence that goes on, one that is forked, a shared prefix with two branches, one of them kept. */
struct mixed {
    uint32_t id[SEQS][N];
    struct ns_seq *seq[SEQS];
    struct ns_segment segment[LINES];
    struct ns_ask ask[LINES * N];
    size_t n_asks;
};

static void mixed_prompts(struct mixed *m, uint32_t vocab)
{
    for (uint32_t i = 0; i < SEQS; i++)
        rig_prompt(m->id[i], N, vocab, 70 + i);
}

/* Sequences 0 and 1 have 9 and 16 positions; 2 and 3 are empty. */
static void mixed_start(struct mixed *m, struct rig *rig)
{
    mixed_prompts(m, ns_engine_config(rig->engine)->vocab);
    for (size_t i = 0; i < SEQS; i++)
        assert_int_equal(ns_seq_open(rig->engine, &m->seq[i], NULL), NS_OK);
    struct ns_segment s[2] = {{.token = m->id[0], .n = 9, .parent = NS_NO_PARENT, .into = m->seq[0]},
                              {.token = m->id[1], .n = 16, .parent = NS_NO_PARENT, .into = m->seq[1]}};
    rig_wave(rig, s, 2, NULL, 0, NULL);
}

static void mixed_describe(struct mixed *m)
{
    const struct ns_segment line[LINES] = {
        {.token = m->id[0] + 9, .n = 10, .parent = NS_NO_PARENT, .from = m->seq[0], .into = m->seq[0]},
        {.token = m->id[1] + 16, .n = 3, .parent = NS_NO_PARENT, .from = m->seq[1], .into = m->seq[2]},
        {.token = m->id[2], .n = 13, .parent = NS_NO_PARENT},
        {.token = m->id[3], .n = 5, .parent = 2, .into = m->seq[3]},
        {.token = m->id[3] + 5, .n = 6, .parent = 2}};
    memcpy(m->segment, line, sizeof line);
    m->n_asks = 0;
    for (uint32_t i = 0; i < LINES; i++) {
        rig_ask_all(m->ask + m->n_asks, i, line[i].token, line[i].n);
        m->n_asks += line[i].n;
    }
}

/* One more token of each kept sequence after the wave. */
static void mixed_continue(struct rig *rig, struct ns_seq *const seq[SEQS], struct rig_result result[SEQS])
{
    static const uint32_t token = 3;
    struct ns_segment s[SEQS];
    struct ns_ask ask[SEQS];
    for (uint32_t i = 0; i < SEQS; i++) {
        s[i] = (struct ns_segment){.token = &token, .n = 1, .parent = NS_NO_PARENT, .from = seq[i], .into = seq[i]};
        ask[i] = (struct ns_ask){.segment = i, .offset = 0, .target = 7, .n_top = 5};
    }
    rig_wave(rig, s, SEQS, ask, SEQS, result);
}

static void open_small_pages(struct rig *rig, const char *checkpoint)
{
    struct ns_engine_options o = rig_options();
    o.block_positions = 4;
    rig_open(rig, rig_path(checkpoint), &o, 128u << 20);
}

struct undisturbed {
    struct ns_answer answer[LINES * N];
    struct rig_result after[SEQS];
    struct ns_wave_stats stats;
    size_t n;
};

static void keep_answers(struct ns_answer *out, const struct ns_answer *a, size_t n)
{
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        out[i].ok = a[i].ok;
        out[i].best = a[i].best;
        out[i].best_logprob = a[i].best_logprob;
        out[i].target_logprob = a[i].target_logprob;
        out[i].n_top = a[i].n_top;
        memcpy(out[i].top_id, a[i].top_id, sizeof out[i].top_id);
        memcpy(out[i].top_logprob, a[i].top_logprob, sizeof out[i].top_logprob);
    }
}

static void finish(struct ns_wave *wave)
{
    for (bool done = false; !done;)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
}

static void run_undisturbed(const char *checkpoint, struct undisturbed *u)
{
    struct rig rig;
    struct mixed m;
    struct ns_wave *wave = NULL;
    open_small_pages(&rig, checkpoint);
    mixed_start(&m, &rig);
    mixed_describe(&m);
    struct ns_wave_desc desc = {.segment = m.segment, .n_segments = LINES, .ask = m.ask, .n_asks = m.n_asks};
    assert_int_equal(ns_wave_open(rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    finish(wave);
    u->n = m.n_asks;
    keep_answers(u->answer, ns_wave_answers(wave), m.n_asks);
    ns_wave_stats_get(wave, &u->stats);
    ns_wave_close(wave);
    mixed_continue(&rig, m.seq, u->after);
    for (size_t i = 0; i < SEQS; i++)
        ns_seq_close(m.seq[i]);
    rig_close(&rig);
}

/* Runs the wave up to the boundary in front of `layer`, writes it, and forgets everything. */
static void suspend_at(const char *checkpoint, uint32_t layer, const char *path, struct ns_suspend *out)
{
    struct rig rig;
    struct mixed m;
    struct ns_wave *wave = NULL;
    bool done = false;
    open_small_pages(&rig, checkpoint);
    mixed_start(&m, &rig);
    mixed_describe(&m);
    struct ns_wave_desc desc = {.segment = m.segment, .n_segments = LINES, .ask = m.ask, .n_asks = m.n_asks};
    assert_int_equal(ns_wave_open(rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    for (uint32_t i = 0; i <= layer; i++)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    assert_true(ns_store_in_wave(rig.engine->store));
    ns_wave_leave(wave);
    assert_false(ns_store_in_wave(rig.engine->store)); /* nothing is read ahead of the file */
    assert_int_equal(ns_wave_suspend(wave, path, "notes", 5, out, NULL), NS_OK);
    assert_int_equal(out->next_layer, layer);
    assert_int_equal(ns_wave_step(wave, &done, NULL), NS_INTERNAL);
    ns_wave_close(wave);
    for (size_t i = 0; i < SEQS; i++)
        ns_seq_close(m.seq[i]);
    rig_close(&rig);
}

static void any_boundary(void **state)
{
    (void)state;
    static const char *const models[] = {"k3-tiny", "kimi-linear-tiny", "demo"};
    struct scratch s;
    scratch_open(&s);
    for (size_t c = 0; c < NS_COUNT(models); c++) {
        struct undisturbed *u = calloc(1, sizeof *u);
        run_undisturbed(models[c], u);
        struct rig rig;
        open_small_pages(&rig, models[c]);
        uint32_t layers = ns_engine_config(rig.engine)->n_layers;
        for (uint32_t layer = 0; layer <= layers; layer++) {
            struct ns_suspend row;
            struct ns_suspended *suspended = NULL;
            struct ns_wave *wave = NULL;
            struct ns_answer *got = calloc(u->n, sizeof *got);
            struct rig_result after[SEQS];
            size_t n_notes = 0;
            suspend_at(models[c], layer, scratch_path(&s, "wave"), &row);
            assert_int_equal(ns_wave_resume(rig.engine, s.path, &row, NULL, &suspended, &wave, NULL), NS_OK);
            assert_memory_equal(ns_suspended_notes(suspended, &n_notes), "notes", 5);
            assert_int_equal(n_notes, 5);
            assert_int_equal(ns_wave_next_layer(wave), layer);
            finish(wave);
            keep_answers(got, ns_wave_answers(wave), u->n);
            if (memcmp(got, u->answer, u->n * sizeof *got) != 0)
                fail_msg("%s: other answers after a stop in front of layer %u", models[c], layer);
            struct ns_wave_stats stats;
            ns_wave_stats_get(wave, &stats);
            assert_int_equal(stats.experts_requested, u->stats.experts_requested);
            assert_int_equal(stats.experts_distinct, u->stats.experts_distinct);
            const struct ns_segment *seg = ns_suspended_desc(suspended)->segment;
            struct ns_seq *seq[SEQS] = {seg[0].into, seg[1].from, seg[1].into, seg[3].into};
            assert_ptr_equal(seg[0].from, seg[0].into);
            ns_wave_close(wave);
            ns_suspended_close(suspended);
            mixed_continue(&rig, seq, after);
            rig_same(u->after, after, SEQS, "after a resumed wave");
            for (size_t i = 0; i < SEQS; i++)
                ns_seq_close(seq[i]);
            free(got);
        }
        rig_close(&rig);
        free(u);
    }
    scratch_close(&s);
}

static void reads_what_is_left(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_suspend row;
    struct ns_suspended *suspended = NULL;
    struct ns_wave *wave = NULL;
    struct undisturbed *u = calloc(1, sizeof *u);
    struct rig rig;
    struct ns_wave_stats stats;
    scratch_open(&s);
    run_undisturbed("k3-tiny", u);
    suspend_at("k3-tiny", 12, scratch_path(&s, "wave"), &row); /* one layer of 13 and the head */
    open_small_pages(&rig, "k3-tiny");
    assert_int_equal(ns_wave_resume(rig.engine, s.path, &row, NULL, &suspended, &wave, NULL), NS_OK);
    finish(wave);
    ns_wave_stats_get(wave, &stats);
    assert_true(stats.store.trunk_bytes + stats.store.trunk_kept_bytes <= ns_engine_plan(rig.engine)->trunk_bytes / 5);
    assert_true(stats.store.experts_wanted <= ns_engine_config(rig.engine)->n_experts);
    for (size_t i = 0; i < LINES; i++)
        if (ns_suspended_desc(suspended)->segment[i].into)
            assert_true(ns_seq_positions(ns_suspended_desc(suspended)->segment[i].into) > 0);
    const struct ns_segment *seg = ns_suspended_desc(suspended)->segment;
    struct ns_seq *seq[SEQS] = {seg[0].into, seg[1].from, seg[1].into, seg[3].into};
    ns_wave_close(wave);
    ns_suspended_close(suspended);
    for (size_t i = 0; i < SEQS; i++)
        ns_seq_close(seq[i]);
    rig_close(&rig);
    free(u);
    scratch_close(&s);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 0x10, f), c ^ 0x10);
    assert_int_equal(fclose(f), 0);
}

static void flip_last(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    long at = ftell(f);
    assert_int_equal(fclose(f), 0);
    flip(path, at);
}

static void refused_wave(struct rig *rig, const char *path, const struct ns_suspend *row, enum ns_code code)
{
    struct ns_suspended *suspended = NULL;
    struct ns_wave *wave = NULL;
    struct ns_error err = {0};
    size_t left = ns_engine_state_left(rig->engine);
    assert_int_equal(ns_wave_resume(rig->engine, path, row, NULL, &suspended, &wave, &err), code);
    assert_non_null(strstr(err.context, path));
    assert_null(suspended);
    assert_null(wave);
    assert_int_equal(ns_engine_state_left(rig->engine), left);
}

static void useless_files(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig, other;
    struct ns_suspend row;
    scratch_open(&s);
    suspend_at("k3-odd", 3, scratch_path(&s, "wave"), &row);
    open_small_pages(&rig, "k3-odd");
    for (long at = 0; at < (long)row.bytes; at += at < 400 ? 8 : 4999) {
        if (at >= 200 && at < 248)
            continue; /* unused */
        flip(s.path, at);
        refused_wave(&rig, s.path, &row, NS_CORRUPT);
        flip(s.path, at);
    }
    flip(s.path, (long)row.bytes - 1);
    refused_wave(&rig, s.path, &row, NS_CORRUPT);
    flip(s.path, (long)row.bytes - 1);
    open_small_pages(&other, "kimi-linear-tiny");
    refused_wave(&other, s.path, &row, NS_CORRUPT);
    rig_close(&other);
    struct ns_engine_options o = rig_options();
    o.block_positions = 4;
    o.rows_max = 20; /* too few for the wave */
    rig_open(&other, rig_path("k3-odd"), &o, 64u << 20);
    refused_wave(&other, s.path, &row, NS_BUDGET);
    rig_close(&other);
    struct ns_suspend wrong = row;
    wrong.checksum[0] = wrong.checksum[0] == 'a' ? 'b' : 'a';
    refused_wave(&rig, s.path, &wrong, NS_CORRUPT);
    assert_int_equal(truncate(s.path, (long)row.bytes - 100), 0);
    refused_wave(&rig, s.path, &row, NS_CORRUPT);
    assert_int_equal(truncate(s.path, 0), 0);
    refused_wave(&rig, s.path, &row, NS_CORRUPT);
    refused_wave(&rig, scratch_path(&s, "nothing"), &row, NS_NOINPUT);
    rig_close(&rig);
    scratch_close(&s);
}

/* Every write and sync of both kinds of file fails in turn: an error, and no file. */
static void failed_writes(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    struct mixed m;
    struct ns_wave *wave = NULL;
    bool done = false;
    scratch_open(&s);
    open_small_pages(&rig, "k3-odd");
    mixed_start(&m, &rig);
    const char *path = scratch_path(&s, "file");

    static const enum ns_fault_kind kind[2] = {NS_FAULT_WRITE, NS_FAULT_SYNC};

    mixed_describe(&m);
    struct ns_wave_desc desc = {.segment = m.segment, .n_segments = LINES, .ask = m.ask, .n_asks = m.n_asks};
    assert_int_equal(ns_wave_open(rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    size_t failed = 0;
    for (size_t k = 0; k < 2; k++)
        for (int what = 0; what < 2; what++) {
            enum ns_code rc = NS_IO;
            for (uint64_t nth = 1; rc != NS_OK; nth++) {
                struct ns_suspend row;
                struct ns_snapshot snap;
                ns_fault_arm_mode(kind[k], nth, k == 0 ? ENOSPC : EIO, false);
                rc = what ? ns_wave_suspend(wave, path, "", 0, &row, NULL)
                          : ns_seq_save(m.seq[1], path, 1, 2, 0, &snap, NULL);
                ns_fault_disarm();
                if (rc == NS_OK)
                    break;
                assert_true(rc == (k == 0 ? NS_FULL : NS_IO));
                assert_false(ns_path_exists(path));
                failed++;
            }
        }
    assert_true(failed >= 8);
    finish(wave); /* the wave itself was not harmed */
    ns_wave_close(wave);
    for (size_t i = 0; i < SEQS; i++)
        ns_seq_close(m.seq[i]);
    rig_close(&rig);
    scratch_close(&s);
}

/* ---- snapshots -------------------------------------------------------------------------------------------------------------------- */

static void same_bits_after_loading(void **state)
{
    (void)state;
    static const char *const models[] = {"k3-tiny", "kimi-linear-tiny"};
    struct scratch s;
    scratch_open(&s);
    for (size_t c = 0; c < NS_COUNT(models); c++) {
        struct rig rig, again;
        uint32_t id[N];
        struct rig_result whole[N], rest[N];
        struct ns_snapshot row[2];
        char path[2][512];
        struct ns_seq *seq = NULL;
        open_small_pages(&rig, models[c]);
        rig_prompt(id, N, ns_engine_config(rig.engine)->vocab, 5);
        rig_alone(&rig, id, N, whole);
        assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
        struct ns_segment seg = {.token = id, .n = 10, .parent = NS_NO_PARENT, .into = seq};
        rig_wave(&rig, &seg, 1, NULL, 0, NULL);
        snprintf(path[0], sizeof path[0], "%s", scratch_path(&s, "base"));
        assert_int_equal(ns_seq_save(seq, path[0], 41, 3, 0, &row[0], NULL), NS_OK);
        seg = (struct ns_segment){.token = id + 10, .n = 9, .parent = NS_NO_PARENT, .from = seq, .into = seq};
        rig_wave(&rig, &seg, 1, NULL, 0, NULL);
        snprintf(path[1], sizeof path[1], "%s", scratch_path(&s, "delta"));
        assert_int_equal(ns_seq_save(seq, path[1], 41, 3, 10, &row[1], NULL), NS_OK);
        assert_int_equal(row[1].from_pos, 10);
        assert_int_equal(row[1].to_pos, 19);
        ns_seq_close(seq);
        rig_close(&rig);
        open_small_pages(&again, models[c]);
        for (size_t n = 1; n <= 2; n++) {
            const char *paths[2] = {path[0], path[1]};
            uint32_t at = row[n - 1].to_pos;
            struct ns_ask ask[N];
            assert_int_equal(ns_seq_open(again.engine, &seq, NULL), NS_OK);
            assert_int_equal(ns_seq_load(seq, paths, row, n, NULL), NS_OK);
            assert_int_equal(ns_seq_positions(seq), at);
            seg = (struct ns_segment){.token = id + at, .n = N - at, .parent = NS_NO_PARENT, .from = seq, .into = seq};
            rig_ask_all(ask, 0, seg.token, seg.n);
            rig_wave(&again, &seg, 1, ask, seg.n, rest);
            rig_same(whole + at, rest, seg.n, "after loading");
            ns_seq_close(seq);
        }
        rig_close(&again);
    }
    scratch_close(&s);
}

static void refused_state(struct ns_seq *seq, struct rig *rig, const char *path, const struct ns_snapshot *row)
{
    size_t left = ns_engine_state_left(rig->engine);
    struct ns_error err = {0};
    assert_int_equal(ns_seq_load(seq, &path, row, 1, &err), NS_CORRUPT);
    assert_int_equal(ns_seq_positions(seq), 0);
    assert_int_equal(ns_engine_state_left(rig->engine), left);
}

static void torn_and_flipped_states(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    uint32_t id[N];
    struct ns_seq *seq = NULL, *empty = NULL;
    struct ns_snapshot row;
    scratch_open(&s);
    open_small_pages(&rig, "k3-odd");
    rig_prompt(id, N, ns_engine_config(rig.engine)->vocab, 5);
    assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
    assert_int_equal(ns_seq_open(rig.engine, &empty, NULL), NS_OK);
    struct ns_segment seg = {.token = id, .n = N, .parent = NS_NO_PARENT, .into = seq};
    rig_wave(&rig, &seg, 1, NULL, 0, NULL);
    const char *path = scratch_path(&s, "state");
    assert_int_equal(ns_seq_save(seq, path, 7, 1, 0, &row, NULL), NS_OK);
    for (long at = 0; at < (long)row.bytes; at += at < 256 ? 16 : 3001) {
        if (at >= 176 && at < 248)
            continue; /* unused fields */
        flip(path, at);
        refused_state(empty, &rig, path, &row);
        flip(path, at);
    }
    struct ns_snapshot wrong = row;
    wrong.seq_id = 8;
    refused_state(empty, &rig, path, &wrong);
    wrong = row;
    wrong.to_pos--;
    refused_state(empty, &rig, path, &wrong);
    assert_int_equal(truncate(path, (long)row.bytes / 2), 0);
    refused_state(empty, &rig, path, &row);
    ns_seq_close(seq);
    ns_seq_close(empty);
    rig_close(&rig);
    scratch_close(&s);
}

/* C64: shapes, vocabulary and sizes are the same, one byte of one weight is not. */
static void c64_files_of_a_twin(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    uint32_t id[N];
    struct ns_seq *seq = NULL, *empty = NULL;
    struct ns_snapshot snapshot;
    struct ns_suspend row;
    char twin[300], shard[360], wave[300], command[900];
    scratch_open(&s);
    snprintf(twin, sizeof twin, "%s/twin", s.dir);
    snprintf(shard, sizeof shard, "%s/model-00002-of-00002.safetensors", twin);
    snprintf(wave, sizeof wave, "%s/wave", s.dir);
    snprintf(command, sizeof command, "cp -r '%s' '%s'", rig_path("k3-odd"), twin);
    assert_int_equal(system(command), 0);
    flip_last(shard);
    suspend_at("k3-odd", 3, wave, &row);
    open_small_pages(&rig, "k3-odd");
    rig_prompt(id, N, ns_engine_config(rig.engine)->vocab, 5);
    assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
    struct ns_segment seg = {.token = id, .n = N, .parent = NS_NO_PARENT, .into = seq};
    rig_wave(&rig, &seg, 1, NULL, 0, NULL);
    const char *path = scratch_path(&s, "state");
    assert_int_equal(ns_seq_save(seq, path, 7, 1, 0, &snapshot, NULL), NS_OK);
    ns_seq_close(seq);
    rig_close(&rig);
    open_small_pages(&rig, twin);
    assert_int_equal(ns_seq_open(rig.engine, &empty, NULL), NS_OK);
    refused_wave(&rig, wave, &row, NS_CORRUPT);
    refused_state(empty, &rig, path, &snapshot);
    struct ns_error err = {0};
    assert_int_equal(ns_seq_load(empty, &path, &snapshot, 1, &err), NS_CORRUPT);
    assert_non_null(strstr(err.message, "belongs to another model"));
    ns_seq_close(empty);
    rig_close(&rig);
    open_small_pages(&rig, "k3-odd"); /* nothing is wrong with the files */
    assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
    assert_int_equal(ns_seq_load(seq, &path, &snapshot, 1, NULL), NS_OK);
    ns_seq_close(seq);
    rig_close(&rig);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_boundary),
        cmocka_unit_test(reads_what_is_left),
        cmocka_unit_test(useless_files),
        cmocka_unit_test(failed_writes),
        cmocka_unit_test(same_bits_after_loading),
        cmocka_unit_test(torn_and_flipped_states),
        cmocka_unit_test(c64_files_of_a_twin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
