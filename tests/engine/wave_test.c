/* wave_test.c - the numeric contract: the bits of an answer depend on the model and the request, and on nothing else. */
#include "wave_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sys/sys.h"

/* The two families and the trained model. */
static const char *const models[] = {"k3-tiny", "kimi-linear-tiny", "demo"};

enum { PROMPTS = 8, LONGEST = 70 };

static const uint32_t length[PROMPTS] = {37, 1, 2, 7, 33, LONGEST, 16, 5};

struct bench {
    struct rig rig;
    uint32_t id[PROMPTS][LONGEST];
    struct rig_result alone[PROMPTS][LONGEST];
};

static struct bench *bench_with(const char *model, struct ns_engine_options o)
{
    struct bench *b = calloc(1, sizeof *b);
    rig_open(&b->rig, rig_path(model), &o, 256u << 20);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        rig_prompt(b->id[i], length[i], ns_engine_config(b->rig.engine)->vocab, i + 1);
        rig_alone(&b->rig, b->id[i], length[i], b->alone[i]);
    }
    return b;
}

static struct bench *bench_open(const char *model)
{
    struct ns_engine_options o = rig_options();
    o.state_bytes = (size_t)64 << 20; /* the rest of the memory is for the logits that are looked at */
    return bench_with(model, o);
}

static void bench_close(struct bench *b)
{
    rig_close(&b->rig);
    free(b);
}

/* Runs the prompts order[0 .. n-1] in one wave and compares every position with the prompt alone. */
static void company(struct bench *b, struct rig *rig, const uint32_t *order, uint32_t n, const char *where)
{
    struct ns_segment *segment = calloc(n, sizeof *segment);
    struct ns_ask *ask = calloc(n * LONGEST, sizeof *ask);
    struct rig_result *result = calloc(n * LONGEST, sizeof *result);
    size_t n_asks = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *id = b->id[order[i]];
        segment[i] = (struct ns_segment){.token = id, .n = length[order[i]], .parent = NS_NO_PARENT};
        rig_ask_all(ask + n_asks, i, id, length[order[i]]);
        n_asks += length[order[i]];
    }
    rig_wave(rig, segment, n, ask, n_asks, result);
    const struct rig_result *r = result;
    for (uint32_t i = 0; i < n; i++) {
        rig_same(b->alone[order[i]], r, length[order[i]], where);
        r += length[order[i]];
    }
    free(segment);
    free(ask);
    free(result);
}

/* C77 */
static void alone_and_in_company(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct bench *b = bench_open(models[m]);
        uint32_t twice[2] = {0, 0}, eight[8] = {1, 2, 3, 4, 5, 6, 7, 0}, back[8] = {0, 7, 6, 5, 4, 3, 2, 1}, many[32];
        for (uint32_t i = 0; i < NS_COUNT(many); i++)
            many[i] = (i * 5 + i / 8) % PROMPTS;
        company(b, &b->rig, twice, 2, "twice");
        company(b, &b->rig, eight, 8, "among seven strangers");
        company(b, &b->rig, back, 8, "reversed");
        company(b, &b->rig, many, NS_COUNT(many), "shuffled");
        bench_close(b);
    }
}

static void sixty_four(void **state)
{
    (void)state;
    struct bench *b = bench_open("k3-odd");
    uint32_t many[64];
    for (uint32_t i = 0; i < NS_COUNT(many); i++)
        many[i] = (i * 3 + 1) % PROMPTS;
    struct ns_engine_options o = rig_options();
    struct rig wide;
    o.rows_max = 2048;
    rig_open(&wide, rig_path("k3-odd"), &o, 512u << 20);
    company(b, &wide, many, NS_COUNT(many), "sixty-four");
    rig_close(&wide);
    bench_close(b);
}

/* A prompt through one kept sequence in chunks; C79. */
static void in_chunks(struct bench *b, uint32_t prompt, uint32_t chunk)
{
    struct rig_result result[LONGEST];
    struct ns_seq *seq = NULL;
    char where[64];
    assert_int_equal(ns_seq_open(b->rig.engine, &seq, NULL), NS_OK);
    for (uint32_t at = 0; at < length[prompt]; at += chunk) {
        uint32_t n = length[prompt] - at < chunk ? length[prompt] - at : chunk;
        struct ns_segment s = {
            .token = b->id[prompt] + at, .n = n, .parent = NS_NO_PARENT, .from = at ? seq : NULL, .into = seq};
        struct ns_ask ask[LONGEST];
        rig_ask_all(ask, 0, b->id[prompt] + at, n);
        if (at + n < length[prompt])
            ask[n - 1].target = b->id[prompt][at + n];
        rig_wave(&b->rig, &s, 1, ask, n, result + at);
        assert_int_equal(ns_seq_positions(seq), at + n);
    }
    snprintf(where, sizeof where, "prompt %u in chunks of %u", prompt, chunk);
    rig_same(b->alone[prompt], result, length[prompt], where);
    ns_seq_close(seq);
}

static void chunks_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct bench *b = bench_open(models[m]);
        static const uint32_t chunk[] = {1, 2, 7, 16, 64, LONGEST};
        for (size_t c = 0; c < NS_COUNT(chunk); c++)
            in_chunks(b, 0, chunk[c]);
        in_chunks(b, 5, 64); /* across a page and a chunk of the recurrence */
        in_chunks(b, 5, 7);
        bench_close(b);
    }
}

/* The same prompts on an engine with other options. */
static void compare_options(struct bench *b, const char *model, const struct ns_engine_options *o, size_t memory,
                            const char *where)
{
    struct rig other;
    static const uint32_t order[PROMPTS] = {3, 1, 5, 0, 7, 2, 4, 6};
    rig_open(&other, rig_path(model), o, memory);
    company(b, &other, order, PROMPTS, where);
    rig_close(&other);
}

static void threads_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct bench *b = bench_open(models[m]);
        for (unsigned n = 2; n <= 4; n *= 2) {
            struct ns_engine_options o = rig_options();
            o.n_threads = n;
            compare_options(b, models[m], &o, 256u << 20, "threads");
        }
        bench_close(b);
    }
}

static void isas_give_the_same_bits(void **state)
{
    (void)state;
    static const char *const isa[] = {"avx2", "avx512", "neon"};
    size_t n_compared = 0;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct ns_engine_options ref = rig_options();
        ref.cpu = 0;
        struct bench *b = bench_with(models[m], ref);
        assert_string_equal(ns_engine_kernels(b->rig.engine)->isa, "ref");
        for (size_t i = 0; i < NS_COUNT(isa); i++) {
            struct ns_engine_options o = rig_options();
            if (!ns_kernels_isa_bits(isa[i], ns_cpu_bits(), &o.cpu)) {
                print_message("SKIPPED: this processor has no %s\n", isa[i]);
                continue;
            }
            compare_options(b, models[m], &o, 256u << 20, isa[i]);
            n_compared++;
        }
        bench_close(b);
    }
    if (n_compared == 0)
        skip();
}

static void budgets_tiles_and_groups(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct bench *b = bench_open(models[m]);
        struct ns_engine_options o = rig_options();
        o.rows_max = 256;
        o.context = 256;
        o.state_bytes = (size_t)4 << 20; /* the rest of the memory is for the logits that are looked at */
        o.store.resident_bytes = (size_t)2 << 20;
        compare_options(b, models[m], &o, 24u << 20, "small budget");
        o.store = (struct ns_store_options){.tile_bytes = 1, .expert_slots = 2, .resident_bytes = (size_t)8 << 20};
        compare_options(b, models[m], &o, 64u << 20, "tiles of one row");
        o.store = (struct ns_store_options){
            .tile_bytes = 5000, .no_direct = true, .n_readers = 1, .resident_bytes = (size_t)8 << 20};
        o.head_group = 1;
        o.block_positions = 3;
        compare_options(b, models[m], &o, 64u << 20, "odd tiles, single heads, small pages");
        bench_close(b);
    }
}

/* root -> {left -> {a, b}, right}: every line equals the same tokens in one segment. */
static void shared_prefix(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct bench *b = bench_open(models[m]);
        static const uint32_t parent[5] = {NS_NO_PARENT, 0, 1, 0, 1};
        static const uint32_t prompt[5] = {0, 3, 6, 4, 7}; /* the tokens of each segment */
        static const uint32_t line[3][3] = {{0, 1, 2}, {0, 1, 4}, {0, 3, UINT32_MAX}};
        struct ns_segment segment[5];
        struct ns_ask ask[5 * LONGEST];
        struct rig_result result[5 * LONGEST], whole[3 * LONGEST];
        size_t first[5], n_asks = 0;
        for (uint32_t i = 0; i < 5; i++) {
            segment[i] = (struct ns_segment){.token = b->id[prompt[i]], .n = length[prompt[i]], .parent = parent[i]};
            first[i] = n_asks;
            for (uint32_t t = 0; t < segment[i].n; t++)
                ask[n_asks++] = (struct ns_ask){.segment = i, .offset = t, .target = t, .n_top = 20};
        }
        rig_wave(&b->rig, segment, 5, ask, n_asks, result);
        for (size_t l = 0; l < 3; l++) {
            uint32_t id[3 * LONGEST], n = 0;
            struct ns_ask line_ask[3 * LONGEST];
            for (size_t i = 0; i < 3 && line[l][i] != UINT32_MAX; i++)
                for (uint32_t t = 0; t < segment[line[l][i]].n; t++, n++) {
                    id[n] = segment[line[l][i]].token[t];
                    line_ask[n] = (struct ns_ask){.segment = 0, .offset = n, .target = t, .n_top = 20};
                }
            struct ns_segment s = {.token = id, .n = n, .parent = NS_NO_PARENT};
            rig_wave(&b->rig, &s, 1, line_ask, n, whole);
            const struct rig_result *w = whole;
            for (size_t i = 0; i < 3 && line[l][i] != UINT32_MAX; w += segment[line[l][i]].n, i++)
                rig_same(w, result + first[line[l][i]], segment[line[l][i]].n, "shared prefix");
        }
        bench_close(b);
    }
}

/* Kept sequences: one goes on, two fork from it, and a branch of a shared segment is kept; all in pages of 4. */
static void from_and_into(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct bench *b = bench_open(models[m]);
        struct ns_engine_options o = rig_options();
        struct rig rig;
        struct ns_seq *seq[5];
        struct rig_result result[LONGEST];
        o.block_positions = 4;
        rig_open(&rig, rig_path(models[m]), &o, 256u << 20);
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(ns_seq_open(rig.engine, &seq[i], NULL), NS_OK);
        const uint32_t *id = b->id[5];
        /* positions 0..9 are kept in 0, and 0..9 + 10..20 in 1 by way of a shared parent */
        struct ns_segment first[2] = {{.token = id, .n = 10, .parent = NS_NO_PARENT, .into = seq[0]},
                                      {.token = id + 10, .n = 11, .parent = 0, .into = seq[1]}};
        rig_wave(&rig, first, 2, NULL, 0, NULL);
        assert_int_equal(ns_seq_positions(seq[0]), 10);
        assert_int_equal(ns_seq_positions(seq[1]), 21);
        /* two forks of 0 (one by way of a parent), and 1 goes on */
        struct ns_segment second[4] = {
            {.token = id + 10, .n = 9, .parent = NS_NO_PARENT, .from = seq[0], .into = seq[2]},
            {.token = id + 10, .n = 3, .parent = NS_NO_PARENT, .from = seq[0]},
            {.token = id + 21, .n = 8, .parent = NS_NO_PARENT, .from = seq[1], .into = seq[1]},
            {.token = id + 13, .n = 14, .parent = 1, .into = seq[3]}};
        rig_wave(&rig, second, 4, NULL, 0, NULL);
        assert_int_equal(ns_seq_positions(seq[0]), 10);
        static const uint32_t at[4] = {10, 29, 19, 27};
        struct ns_ask ask[LONGEST];
        for (size_t i = 0; i < 4; i++) { /* each of the four goes on to the end and equals the whole prompt */
            assert_int_equal(ns_seq_positions(seq[i]), at[i]);
            uint32_t n = length[5] - at[i];
            struct ns_segment s = {.token = id + at[i], .n = n, .parent = NS_NO_PARENT, .from = seq[i], .into = seq[i]};
            rig_ask_all(ask, 0, s.token, n);
            rig_wave(&rig, &s, 1, ask, n, result);
            rig_same(b->alone[5] + at[i], result, n, "from and into");
        }
        for (size_t i = 0; i < 5; i++)
            ns_seq_close(seq[i]);
        rig_close(&rig);
        bench_close(b);
    }
}

static void prefill_then_decode(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(models); m++) {
        struct bench *b = bench_open(models[m]);
        for (uint32_t n = 1; n < 37; n += 9) {
            struct ns_seq *seq = NULL;
            struct rig_result result;
            assert_int_equal(ns_seq_open(b->rig.engine, &seq, NULL), NS_OK);
            struct ns_segment s = {.token = b->id[0], .n = n, .parent = NS_NO_PARENT, .into = seq};
            rig_wave(&b->rig, &s, 1, NULL, 0, NULL);
            s = (struct ns_segment){.token = b->id[0] + n, .n = 1, .parent = NS_NO_PARENT, .from = seq, .into = seq};
            struct ns_ask ask = {.target = n + 1 < length[0] ? b->id[0][n + 1] : NS_NO_TOKEN, .n_top = 5};
            rig_wave(&b->rig, &s, 1, &ask, 1, &result);
            rig_same(&b->alone[0][n], &result, 1, "prefill then decode");
            ns_seq_close(seq);
        }
        bench_close(b);
    }
}

/* C83: the memory of closed sequences is used again, three times over; every answer equals its solo run. */
static void reused_state_is_clean(void **state)
{
    (void)state;
    struct bench *b = bench_open("k3-tiny");
    for (uint32_t round = 0; round < 3; round++) {
        struct ns_seq *seq[PROMPTS];
        struct ns_segment segment[PROMPTS];
        struct ns_ask ask[PROMPTS];
        struct rig_result result[PROMPTS];
        for (uint32_t i = 0; i < PROMPTS; i++) {
            uint32_t p = (i + 3 * round) % PROMPTS;
            assert_int_equal(ns_seq_open(b->rig.engine, &seq[i], NULL), NS_OK);
            segment[i] = (struct ns_segment){
                .token = b->id[p], .n = length[p] - (length[p] > 1), .parent = NS_NO_PARENT, .into = seq[i]};
        }
        rig_wave(&b->rig, segment, PROMPTS, NULL, 0, NULL);
        for (uint32_t i = 0; i < PROMPTS; i++) {
            uint32_t p = (i + 3 * round) % PROMPTS, last = length[p] - 1;
            bool one = length[p] == 1;
            segment[i] = (struct ns_segment){
                .token = b->id[p] + last, .n = 1, .parent = NS_NO_PARENT, .from = one ? NULL : seq[i]};
            ask[i] = (struct ns_ask){.segment = i, .offset = 0, .target = NS_NO_TOKEN, .n_top = 5};
        }
        rig_wave(&b->rig, segment, PROMPTS, ask, PROMPTS, result);
        for (uint32_t i = 0; i < PROMPTS; i++) {
            uint32_t p = (i + 3 * round) % PROMPTS;
            rig_same(&b->alone[p][length[p] - 1], &result[i], 1, "reused state");
            ns_seq_close(seq[i]);
        }
    }
    bench_close(b);
}

static void abandoned_wave(void **state)
{
    (void)state;
    struct bench *b = bench_open("k3-tiny");
    size_t left = ns_engine_state_left(b->rig.engine);
    struct ns_seq *seq[2];
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(ns_seq_open(b->rig.engine, &seq[i], NULL), NS_OK);
    struct ns_segment s[2] = {{.token = b->id[0], .n = 20, .parent = NS_NO_PARENT, .into = seq[0]},
                              {.token = b->id[4], .n = 33, .parent = NS_NO_PARENT, .into = seq[1]}};
    rig_wave(&b->rig, s, 1, NULL, 0, NULL);
    s[0] = (struct ns_segment){.token = b->id[0] + 20, .n = 17, .parent = NS_NO_PARENT, .from = seq[0], .into = seq[0]};
    struct ns_wave_desc desc = {.segment = s, .n_segments = 2};
    struct ns_wave *wave = NULL;
    bool done = false;
    assert_int_equal(ns_wave_open(b->rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    ns_wave_close(wave); /* before the first step nothing is lost */
    assert_int_equal(ns_seq_positions(seq[0]), 20);
    assert_int_equal(ns_wave_open(b->rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    for (int i = 0; i < 6; i++)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    assert_int_equal(ns_wave_next_layer(wave), 5);
    ns_wave_close(wave);
    assert_int_equal(ns_seq_positions(seq[0]), 0);
    assert_int_equal(ns_seq_positions(seq[1]), 0);
    for (size_t i = 0; i < 2; i++)
        ns_seq_close(seq[i]);
    assert_int_equal(ns_engine_state_left(b->rig.engine), left);
    struct rig_result again[LONGEST];
    rig_alone(&b->rig, b->id[0], length[0], again);
    rig_same(b->alone[0], again, length[0], "after an abandoned wave");
    bench_close(b);
}

static void forks_share_pages(void **state)
{
    (void)state;
    struct ns_engine_options o = rig_options();
    struct rig rig;
    uint32_t id[130];
    o.block_positions = 8;
    rig_open(&rig, rig_path("k3-odd"), &o, 256u << 20);
    rig_prompt(id, NS_COUNT(id), ns_engine_config(rig.engine)->vocab, 9);
    size_t left = ns_engine_state_left(rig.engine), one = ns_seq_bytes(rig.engine, 130),
           none = ns_seq_bytes(rig.engine, 0);
    struct ns_seq *seq[5];
    struct ns_segment s[6] = {{.token = id, .n = 128, .parent = NS_NO_PARENT}};
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(ns_seq_open(rig.engine, &seq[i], NULL), NS_OK);
        s[i + 1] = (struct ns_segment){.token = id + 128, .n = 2, .parent = 0, .into = seq[i]};
    }
    rig_wave(&rig, s, 6, NULL, 0, NULL);
    size_t used = left - ns_engine_state_left(rig.engine);
    size_t pages = one - none; /* 16 shared and one of its own */
    assert_true(used <= 5 * none + pages + 4 * (pages / 17 + 1) + 5 * 17 * sizeof(void *));
    for (uint32_t i = 0; i < 5; i++)
        ns_seq_close(seq[i]);
    assert_int_equal(ns_engine_state_left(rig.engine), left);
    rig_close(&rig);
}

/* A comb of 64 nested branches, and 64 leaves under one root. */
static void many_branches(void **state)
{
    (void)state;
    struct bench *b = bench_open("k3-odd");

    enum { N = 64 };
    struct ns_segment segment[2 * N];
    struct ns_ask ask[2 * N];
    struct rig_result comb[2 * N], line[N];
    uint32_t id[N], other = 5;
    rig_prompt(id, N, ns_engine_config(b->rig.engine)->vocab, 77);
    rig_alone(&b->rig, id, N, line);
    for (uint32_t i = 0; i < N; i++) { /* 2i: the spine; 2i+1: a leaf at its side */
        segment[2 * i] = (struct ns_segment){.token = id + i, .n = 1, .parent = i ? 2 * i - 2 : NS_NO_PARENT};
        segment[2 * i + 1] = (struct ns_segment){.token = &other, .n = 1, .parent = 2 * i};
        ask[i] =
            (struct ns_ask){.segment = 2 * i, .offset = 0, .target = i + 1 < N ? id[i + 1] : NS_NO_TOKEN, .n_top = 5};
    }
    rig_wave(&b->rig, segment, 2 * N, ask, N, comb);
    rig_same(line, comb, N, "spine of a comb");
    for (uint32_t i = 1; i < N; i++)
        segment[i] = (struct ns_segment){.token = id + i, .n = 1, .parent = 0};
    segment[0].n = 1;
    for (uint32_t i = 0; i < N; i++)
        ask[i] = (struct ns_ask){.segment = i, .offset = 0, .target = i < 2 ? id[i + 1] : NS_NO_TOKEN, .n_top = 5};
    rig_wave(&b->rig, segment, N, ask, N, comb);
    rig_same(line, comb, 2, "leaves under one root");
    bench_close(b);
}

static void bad_descriptions(void **state)
{
    (void)state;
    struct rig rig;
    struct ns_engine_options o = rig_options();
    o.rows_max = 8;
    o.context = 10;
    rig_open(&rig, rig_path("k3-odd"), &o, 64u << 20);
    uint32_t id[16] = {0}, wrong = ns_engine_config(rig.engine)->vocab;
    struct ns_seq *a = NULL, *c = NULL;
    assert_int_equal(ns_seq_open(rig.engine, &a, NULL), NS_OK);
    assert_int_equal(ns_seq_open(rig.engine, &c, NULL), NS_OK);
    struct ns_segment fill = {.token = id, .n = 5, .parent = NS_NO_PARENT, .into = a};
    assert_int_equal(rig_try(&rig, &fill, 1, NULL, 0, NULL), NS_OK);

    struct {
        const char *word;
        size_t n;
        struct ns_segment s[2];
        struct ns_ask ask;
    } bad[] = {
        {"empty", 1, {{.token = id, .n = 0, .parent = NS_NO_PARENT}}, {.n_top = 1}},
        {"earlier", 1, {{.token = id, .n = 1, .parent = 0}}, {.n_top = 1}},
        {"vocabulary", 1, {{.token = &wrong, .n = 1, .parent = NS_NO_PARENT}}, {.n_top = 1}},
        {"rows", 1, {{.token = id, .n = 9, .parent = NS_NO_PARENT}}, {.n_top = 1}},
        {"context", 1, {{.token = id, .n = 6, .parent = NS_NO_PARENT, .from = a}}, {.n_top = 1}},
        {"5 positions", 1, {{.token = id, .n = 1, .parent = NS_NO_PARENT, .into = a}}, {.n_top = 1}},
        {"goes on",
         2,
         {{.token = id, .n = 1, .parent = NS_NO_PARENT, .from = a, .into = a},
          {.token = id, .n = 1, .parent = NS_NO_PARENT, .from = a}},
         {.n_top = 1}},
        {"another segment",
         2,
         {{.token = id, .n = 1, .parent = NS_NO_PARENT, .into = c}, {.token = id, .n = 1, .parent = 0, .into = c}},
         {.n_top = 1}},
        {"both",
         2,
         {{.token = id, .n = 1, .parent = NS_NO_PARENT}, {.token = id, .n = 1, .parent = 0, .from = a}},
         {.n_top = 1}},
        {"not in the wave",
         1,
         {{.token = id, .n = 1, .parent = NS_NO_PARENT}},
         {.offset = 1, .target = NS_NO_TOKEN, .n_top = 1}},
        {"best tokens", 1, {{.token = id, .n = 1, .parent = NS_NO_PARENT}}, {.target = NS_NO_TOKEN, .n_top = 21}},
        {"vocabulary", 1, {{.token = id, .n = 1, .parent = NS_NO_PARENT}}, {.target = wrong, .n_top = 1}},
    };

    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        struct ns_error err = {0};
        assert_int_equal(rig_try(&rig, bad[i].s, bad[i].n, &bad[i].ask, 1, &err), NS_INPUT);
        if (!strstr(err.message, bad[i].word))
            fail_msg("case %zu: \"%s\" has no \"%s\"", i, err.message, bad[i].word);
    }
    assert_int_equal(rig_try(&rig, NULL, 0, NULL, 0, NULL), NS_INPUT);
    assert_int_equal(ns_seq_positions(a), 5); /* refused waves leave sequences alone */
    ns_seq_close(a);
    ns_seq_close(c);
    rig_close(&rig);
}

static void reads_once(void **state)
{
    (void)state;
    struct ns_engine_options o = rig_options();
    struct rig rig;
    uint32_t id[40];
    rig_open(&rig, rig_path("k3-tiny"), &o, 256u << 20);
    const struct ns_config *c = ns_engine_config(rig.engine);
    rig_prompt(id, 40, c->vocab, 3);
    struct ns_segment s = {.token = id, .n = 40, .parent = NS_NO_PARENT};
    struct ns_ask ask = {.offset = 39, .target = NS_NO_TOKEN, .n_top = 1};
    struct ns_wave_desc desc = {.segment = &s, .n_segments = 1, .ask = &ask, .n_asks = 1};
    struct ns_wave *wave = NULL;
    assert_int_equal(ns_wave_open(rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    for (bool done = false; !done;)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    struct ns_wave_stats stats;
    ns_wave_stats_get(wave, &stats);
    uint32_t moe = c->n_layers - c->first_dense;
    assert_int_equal(stats.rows, 40);
    assert_int_equal(stats.logit_rows, 1);
    assert_int_equal(stats.experts_requested, 40ull * c->top_k * moe);
    assert_true(stats.experts_distinct >= (uint64_t)c->top_k * moe &&
                stats.experts_distinct <= (uint64_t)c->n_experts * moe);
    assert_int_equal(stats.store.experts_wanted, stats.experts_distinct);
    const struct ns_plan *plan = ns_engine_plan(rig.engine);
    assert_true(stats.store.trunk_bytes + stats.store.trunk_kept_bytes >= plan->trunk_bytes);
    ns_wave_close(wave);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_and_in_company),
        cmocka_unit_test(sixty_four),
        cmocka_unit_test(chunks_give_the_same_bits),
        cmocka_unit_test(threads_give_the_same_bits),
        cmocka_unit_test(isas_give_the_same_bits),
        cmocka_unit_test(budgets_tiles_and_groups),
        cmocka_unit_test(shared_prefix),
        cmocka_unit_test(from_and_into),
        cmocka_unit_test(prefill_then_decode),
        cmocka_unit_test(reused_state_is_clean),
        cmocka_unit_test(abandoned_wave),
        cmocka_unit_test(forks_share_pages),
        cmocka_unit_test(many_branches),
        cmocka_unit_test(bad_descriptions),
        cmocka_unit_test(reads_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
