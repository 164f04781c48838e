/* fault_test.c - what a bad number, a bad file and a bad read do: the requests they touched fail with a name and a
 * place, the others get the same bits as ever, and an error of the machine ends the wave. */
#include "wave_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../scratch.h"
#include "sys/sys.h"

/* ---- an edited copy of a checkpoint ------------------------------------------------------------------------------------------- */

static const char *const parts[] = {"config.json",
                                    "generation_config.json",
                                    "model.safetensors.index.json",
                                    "tiktoken.model",
                                    "tokenizer_config.json",
                                    "model-00001-of-00002.safetensors",
                                    "model-00002-of-00002.safetensors",
                                    "model-00001-of-00003.safetensors",
                                    "model-00002-of-00003.safetensors",
                                    "model-00003-of-00003.safetensors"};

static void copy_checkpoint(struct scratch *s, const char *checkpoint)
{
    scratch_open(s);
    for (size_t i = 0; i < NS_COUNT(parts); i++) {
        char path[700];
        struct ns_budget budget;
        char *text = NULL;
        size_t n = 0;
        ns_budget_init(&budget, "copy", 64u << 20);
        snprintf(path, sizeof path, "%s/%s", rig_path(checkpoint), parts[i]);
        if (!ns_path_exists(path))
            continue;
        assert_int_equal(ns_file_slurp(path, 32u << 20, &budget, &text, &n, NULL), NS_OK);
        scratch_write(s, parts[i], text, n);
        ns_budget_give(&budget, text);
    }
}

/* Overwrites bytes of a tensor, from byte `at` on. */
static void edit(struct scratch *s, const char *tensor, uint64_t at, const void *bytes, size_t n)
{
    struct ns_budget budget;
    struct ns_shards *shards = NULL;
    ns_budget_init(&budget, "edit", 64u << 20);
    assert_int_equal(ns_shards_open(s->dir, &budget, &shards, NULL), NS_OK);
    const struct ns_tensor *t = ns_shards_find(shards, tensor);
    assert_non_null(t);
    assert_true(at + n <= t->bytes);
    FILE *f = fopen(ns_shards_path(shards, t->shard), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)(t->offset + at), SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    ns_shards_close(shards);
}

static const uint8_t bf16_nan[2] = {0xc0, 0x7f};

/* ---- waves with faults --------------------------------------------------------------------------------------------------------- */

enum { N = 24 };

struct three {
    uint32_t id[3][N];
    struct ns_segment segment[3];
    struct ns_ask ask[3 * N];
};

static void three_prompts(struct three *t, uint32_t vocab)
{
    for (uint32_t i = 0; i < 3; i++) {
        rig_prompt(t->id[i], N, vocab, 40 + i);
        t->segment[i] = (struct ns_segment){.token = t->id[i], .n = N, .parent = NS_NO_PARENT};
        rig_ask_all(t->ask + (size_t)i * N, i, t->id[i], N);
    }
}

static struct ns_wave *run_wave(struct rig *rig, const struct ns_segment *s, size_t n, const struct ns_ask *ask,
                                size_t n_asks)
{
    struct ns_wave_desc desc = {.segment = s, .n_segments = n, .ask = ask, .n_asks = n_asks};
    struct ns_wave *wave = NULL;
    assert_int_equal(ns_wave_open(rig->engine, &desc, NULL, &wave, NULL), NS_OK);
    for (bool done = false; !done;)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    return wave;
}

static void expect_fault(const struct ns_wave *wave, size_t segment, enum ns_code code, const char *word,
                         const char *other)
{
    const struct ns_error *err = ns_wave_fault(wave, segment);
    char text[4400];
    assert_non_null(err);
    assert_int_equal(err->code, code);
    ns_error_text(err, text, sizeof text);
    if (!strstr(text, word) || !strstr(text, other))
        fail_msg("\"%s\" should name \"%s\" and \"%s\"", text, word, other);
}

/* C80: one not-a-number in a norm of the last layer. */
static void nan_in_a_norm(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    struct three t;
    struct ns_engine_options o = rig_options();
    copy_checkpoint(&s, "k3-odd");
    edit(&s, "language_model.model.layers.4.post_attention_layernorm.weight", 6, bf16_nan, 2);
    rig_open(&rig, s.dir, &o, 64u << 20);
    three_prompts(&t, ns_engine_config(rig.engine)->vocab);
    struct ns_seq *seq = NULL;
    assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
    t.segment[1].into = seq;
    struct ns_wave *wave = run_wave(&rig, t.segment, 3, t.ask, NS_COUNT(t.ask));
    for (size_t i = 0; i < 3; i++)
        expect_fault(wave, i, NS_NONFINITE, "layer 4", "position 0");
    for (size_t i = 0; i < NS_COUNT(t.ask); i++)
        assert_false(ns_wave_answers(wave)[i].ok);
    ns_wave_close(wave);
    assert_int_equal(ns_seq_positions(seq), 0);
    ns_seq_close(seq);
    rig_close(&rig);
    scratch_close(&s);
}

/* A token whose embedding is not a number fails the line it stands in, from its position on. */
static void nan_in_an_embedding(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig, good;
    struct three t;
    struct ns_engine_options o = rig_options();
    copy_checkpoint(&s, "kimi-linear-tiny");
    rig_open(&good, s.dir, &o, 64u << 20);
    uint32_t vocab = ns_engine_config(good.engine)->vocab, bad = vocab - 3;
    three_prompts(&t, vocab - 8);
    struct rig_result want[3 * N];
    rig_wave(&good, t.segment, 3, t.ask, NS_COUNT(t.ask), want);
    rig_close(&good);
    edit(&s, "model.embed_tokens.weight", (uint64_t)bad * 64 * 2 + 10, bf16_nan, 2);
    rig_open(&rig, s.dir, &o, 64u << 20);
    uint32_t tail[3] = {1, bad, 2}, more[2] = {3, 4};
    struct ns_segment segment[6] = {t.segment[0],
                                    t.segment[1],
                                    t.segment[2],
                                    {.token = tail, .n = 3, .parent = 1},
                                    {.token = more, .n = 2, .parent = 3},
                                    {.token = more, .n = 2, .parent = 1}};
    struct ns_ask ask[3 * N + 1];
    memcpy(ask, t.ask, sizeof t.ask);
    ask[3 * N] = (struct ns_ask){.segment = 5, .offset = 1, .target = NS_NO_TOKEN, .n_top = 1};
    struct ns_wave *wave = run_wave(&rig, segment, 6, ask, NS_COUNT(ask));
    for (size_t i = 0; i < 3; i++)
        assert_null(ns_wave_fault(wave, i));
    expect_fault(wave, 3, NS_NONFINITE, "embedding", "position 25");
    expect_fault(wave, 4, NS_NONFINITE, "embedding", "position 25"); /* starts from what failed */
    assert_null(ns_wave_fault(wave, 5));
    for (size_t i = 0; i < 3 * N; i++) {
        const struct ns_answer *a = &ns_wave_answers(wave)[i];
        assert_true(a->ok);
        assert_memory_equal(&a->best_logprob, &want[i].answer.best_logprob, sizeof(float));
        assert_memory_equal(&a->target_logprob, &want[i].answer.target_logprob, sizeof(float));
    }
    assert_true(ns_wave_answers(wave)[3 * N].ok);
    ns_wave_close(wave);
    rig_close(&rig);
    scratch_close(&s);
}

/* ---- one bad expert --------------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 16, EXPERTS = 64 };

enum { SHORT = 3 }; /* rows of segments 0 and 2 of these waves; segment 1 has N */

struct routing {
    uint8_t used[3][LAYERS][EXPERTS]; /* by segment */
    uint32_t first[LAYERS][EXPERTS];  /* first row */
};

static void note_routing(void *arg, uint32_t layer, const char *name, uint32_t row, const float *v, const uint32_t *ids,
                         size_t n)
{
    struct routing *r = arg;
    (void)v;
    uint32_t segment = row < SHORT ? 0 : row < SHORT + N ? 1 : 2;
    for (size_t i = 0; strcmp(name, "routed") == 0 && i < n; i++) {
        if (segment == 1 && !r->used[1][layer][ids[i]])
            r->first[layer][ids[i]] = row - SHORT;
        r->used[segment][layer][ids[i]] = 1;
    }
}

/* An expert that only segment 1 uses. */
static void find_rare(const struct routing *r, uint32_t *layer, uint32_t *expert)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (r->used[1][l][e] && !r->used[0][l][e] && !r->used[2][l][e]) {
                *layer = l;
                *expert = e;
                return;
            }
    fail_msg("every expert is used by several prompts");
}

static void bad_expert(const char *checkpoint, const char *part, const void *bytes, size_t n_bytes, enum ns_code code)
{
    struct scratch s;
    struct rig rig;
    struct three t;
    struct routing *routing = calloc(1, sizeof *routing);
    struct ns_engine_options o = rig_options();
    struct rig_result want[3];
    uint32_t layer = 0, expert = 0;
    copy_checkpoint(&s, checkpoint);
    rig_open(&rig, s.dir, &o, 64u << 20);
    three_prompts(&t, ns_engine_config(rig.engine)->vocab);
    t.segment[0].n = t.segment[2].n = SHORT;
    struct ns_ask ask[3];
    for (uint32_t i = 0; i < 3; i++)
        ask[i] = (struct ns_ask){.segment = i, .offset = t.segment[i].n - 1, .target = NS_NO_TOKEN, .n_top = 1};
    struct ns_wave_desc desc = {.segment = t.segment, .n_segments = 3};
    struct ns_probe probe = {.row = note_routing, .arg = routing};
    struct ns_wave *wave = NULL;
    assert_int_equal(ns_wave_open(rig.engine, &desc, &probe, &wave, NULL), NS_OK);
    for (bool done = false; !done;)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    ns_wave_close(wave);
    rig_wave(&rig, t.segment, 3, ask, 3, want);
    const char *prefix = ns_engine_config(rig.engine)->mxfp4_experts ? "language_model." : "";
    rig_close(&rig);
    find_rare(routing, &layer, &expert);
    char name[160], where[64], position[32];
    snprintf(name, sizeof name, "%smodel.layers.%u.block_sparse_moe.experts.%u.%s", prefix, layer, expert, part);
    snprintf(where, sizeof where, "layer %u: expert %u", layer, expert);
    snprintf(position, sizeof position, "position %u", routing->first[layer][expert]);
    edit(&s, name, 0, bytes, n_bytes);
    rig_open(&rig, s.dir, &o, 64u << 20);
    wave = run_wave(&rig, t.segment, 3, ask, 3);
    assert_null(ns_wave_fault(wave, 0));
    assert_null(ns_wave_fault(wave, 2));
    expect_fault(wave, 1, code, where, position);
    for (size_t i = 0; i < 3; i++) {
        const struct ns_answer *a = &ns_wave_answers(wave)[i];
        assert_int_equal(a->ok, i != 1);
        if (a->ok)
            assert_memory_equal(&a->best_logprob, &want[i].answer.best_logprob, sizeof(float));
    }
    ns_wave_close(wave);
    rig_close(&rig);
    free(routing);
    scratch_close(&s);
}

static void corrupt_expert(void **state)
{
    (void)state;
    static const uint8_t nan_scale = 255;
    uint8_t all[96];
    bad_expert("k3-odd", "w2.weight_scale", &nan_scale, 1, NS_CORRUPT);
    bad_expert("k3-odd", "w1.weight_scale", &nan_scale, 1, NS_CORRUPT);
    memset(all, 252, sizeof all); /* finite weights whose product is not */
    bad_expert("k3-odd", "w2.weight_scale", all, sizeof all, NS_NONFINITE);
    bad_expert("kimi-linear-tiny", "w3.weight", bf16_nan, 2, NS_NONFINITE);
}

/* ---- dtypes and padding -------------------------------------------------------------------------------------------------------------- */

/* The entries of A_log behind the heads are padding: poison there changes nothing. */
static void a_log_padding(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    struct three t;
    struct ns_engine_options o = rig_options();
    struct rig_result want[3 * N], got[3 * N];
    copy_checkpoint(&s, "k3-odd");
    rig_open(&rig, s.dir, &o, 64u << 20);
    uint32_t heads = ns_engine_config(rig.engine)->kda_heads;
    three_prompts(&t, ns_engine_config(rig.engine)->vocab);
    rig_wave(&rig, t.segment, 3, t.ask, NS_COUNT(t.ask), want);
    rig_close(&rig);
    static const uint8_t poison[8] = {0, 0, 0xc0, 0x7f, 0, 0, 0x80, 0x7f};
    edit(&s, "language_model.model.layers.0.self_attn.A_log", heads * 4, poison, sizeof poison);
    rig_open(&rig, s.dir, &o, 64u << 20);
    rig_wave(&rig, t.segment, 3, t.ask, NS_COUNT(t.ask), got);
    rig_same(want, got, NS_COUNT(want), "poison in the padding");
    rig_close(&rig);
    scratch_close(&s);
}

/* A matrix of another dtype, of the same size, is refused by name before the first token. */
static void wrong_dtype(void **state)
{
    (void)state;
    static const char name[] = "\"language_model.model.layers.1.self_attn.q_proj.weight\"";
    struct scratch s;
    struct ns_budget budget;
    struct ns_engine_options o = rig_options();
    struct ns_engine *e = NULL;
    struct ns_error err = {0};
    size_t n_edited = 0;
    copy_checkpoint(&s, "k3-odd");
    ns_budget_init(&budget, "test", 64u << 20);
    for (size_t i = 5; i < 7; i++) { /* the two shards */
        char *text = NULL;
        size_t n = 0;
        assert_int_equal(ns_file_slurp(scratch_path(&s, parts[i]), 32u << 20, &budget, &text, &n, NULL), NS_OK);
        char *at = strstr(text + 8, name); /* behind the length, a header is text */
        char *dtype = at ? strstr(at, "\"BF16\"") : NULL;
        if (dtype) {
            memcpy(dtype, "\"F16\" ", 6);
            scratch_write(&s, parts[i], text, n);
            n_edited++;
        }
        ns_budget_give(&budget, text);
    }
    assert_int_equal(n_edited, 1);
    assert_int_equal(ns_engine_open(s.dir, &o, &budget, &e, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "layers.1.self_attn.q_proj.weight"));
    assert_null(e);
    assert_int_equal(ns_budget_used(&budget), 0);
    scratch_close(&s);
}

/* ---- the machine fails ------------------------------------------------------------------------------------------------------------------- */

/* Every n-th read of a wave fails in turn: a named error, no kept sequence, and the next wave has the same bits. */
static void read_errors(void **state)
{
    (void)state;
    struct rig rig;
    struct three t;
    struct ns_engine_options o = rig_options();
    struct rig_result want[N], got[N];
    rig_open(&rig, rig_path("k3-odd"), &o, 16u << 20);
    three_prompts(&t, ns_engine_config(rig.engine)->vocab);
    rig_alone(&rig, t.id[0], N, want);
    enum ns_code rc = NS_IO;
    size_t n_failed = 0;
    for (uint64_t nth = 1; rc != NS_OK; nth += nth < 8 ? 1 : 13) {
        struct ns_seq *seq = NULL;
        struct ns_error err = {0};
        assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
        t.segment[0].into = seq;
        ns_fault_arm_mode(NS_FAULT_READ, nth, EIO, false);
        rc = rig_try(&rig, t.segment, 1, t.ask, N, &err);
        ns_fault_disarm();
        if (rc != NS_OK) {
            char text[4400];
            ns_error_text(&err, text, sizeof text);
            assert_int_equal(rc, NS_IO);
            if (!strstr(text, ".safetensors"))
                fail_msg("\"%s\" does not name the file", text);
            const char *layer = strstr(text, "layer ");
            if (layer && strstr(layer + 1, "layer "))
                fail_msg("\"%s\" names the layer twice", text);
            assert_int_equal(ns_seq_positions(seq), 0);
            n_failed++;
        }
        ns_seq_close(seq);
        assert_true(nth < 100000);
    }
    assert_true(n_failed >= 2);
    rig_alone(&rig, t.id[0], N, got);
    rig_same(want, got, N, "after failed reads");
    rig_close(&rig);
}

/* A file that changes while the wave runs: no result. */
static void changed_file(void **state)
{
    (void)state;
    struct scratch s;
    struct rig rig;
    struct three t;
    struct ns_engine_options o = rig_options();
    struct ns_error err = {0};
    copy_checkpoint(&s, "k3-odd");
    rig_open(&rig, s.dir, &o, 64u << 20);
    three_prompts(&t, ns_engine_config(rig.engine)->vocab);
    struct ns_wave_desc desc = {.segment = t.segment, .n_segments = 3, .ask = t.ask, .n_asks = NS_COUNT(t.ask)};
    struct ns_wave *wave = NULL;
    assert_int_equal(ns_wave_open(rig.engine, &desc, NULL, &wave, NULL), NS_OK);
    bool done = false;
    for (int i = 0; i < 3; i++)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    FILE *f = fopen(scratch_path(&s, "model-00002-of-00002.safetensors"), "ab");
    assert_non_null(f);
    assert_int_equal(fputc(0, f), 0);
    assert_int_equal(fclose(f), 0);
    enum ns_code rc = NS_OK;
    while (rc == NS_OK && !done)
        rc = ns_wave_step(wave, &done, &err);
    assert_int_equal(rc, NS_CORRUPT);
    assert_non_null(strstr(err.message, "model-00002-of-00002"));
    ns_wave_close(wave);
    rig_close(&rig);
    scratch_close(&s);
}

static void open_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct ns_engine_options o = rig_options();
    struct ns_budget budget;
    enum ns_code rc = NS_BUDGET;
    ns_budget_init(&budget, "test", 64u << 20);
    uint64_t nth = 1;
    for (; rc != NS_OK; nth++) {
        struct ns_engine *e = NULL;
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = ns_engine_open(rig_path("k3-odd"), &o, &budget, &e, NULL);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        ns_engine_close(e);
        assert_int_equal(ns_budget_used(&budget), 0);
    }
    assert_true(nth > 20);
}

static void wave_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct rig rig;
    struct three t;
    struct ns_engine_options o = rig_options();
    struct rig_result want[N], got[N];
    struct ns_seq *seq = NULL;
    rig_open(&rig, rig_path("k3-odd"), &o, 64u << 20);
    three_prompts(&t, ns_engine_config(rig.engine)->vocab);
    rig_alone(&rig, t.id[1], N, want);
    assert_int_equal(ns_seq_open(rig.engine, &seq, NULL), NS_OK);
    size_t used = ns_budget_used(&rig.budget), left = ns_engine_state_left(rig.engine);
    t.segment[0].into = seq;
    enum ns_code rc = NS_BUDGET;
    uint64_t nth = 1;
    for (; rc != NS_OK; nth++) {
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = rig_try(&rig, t.segment, 3, t.ask, NS_COUNT(t.ask), NULL);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        assert_int_equal(ns_budget_used(&rig.budget), used);
        if (rc != NS_OK)
            assert_int_equal(ns_engine_state_left(rig.engine), left);
    }
    assert_true(nth > 15);
    assert_int_equal(ns_seq_positions(seq), N);
    ns_seq_close(seq);
    rig_alone(&rig, t.id[1], N, got);
    rig_same(want, got, N, "after failed allocations");
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_in_a_norm),
        cmocka_unit_test(nan_in_an_embedding),
        cmocka_unit_test(corrupt_expert),
        cmocka_unit_test(a_log_padding),
        cmocka_unit_test(wrong_dtype),
        cmocka_unit_test(read_errors),
        cmocka_unit_test(changed_file),
        cmocka_unit_test(open_survives_every_failed_allocation),
        cmocka_unit_test(wave_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
