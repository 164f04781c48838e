/* wave_rig.c - see wave_rig.h */
#include "wave_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sys/sys.h"

const char *const rig_checkpoints[4] = {"k3-tiny", "k3-odd", "k3-realhead", "kimi-linear-tiny"};

const char *rig_path(const char *checkpoint)
{
    static char path[512];
    if (strcmp(checkpoint, "demo") == 0)
        snprintf(path, sizeof path, "%s/jobs/demo", NS_SOURCE_DIR);
    else if (checkpoint[0] == '/')
        snprintf(path, sizeof path, "%s", checkpoint);
    else
        snprintf(path, sizeof path, "%s/fixtures/%s", NS_TEST_DATA, checkpoint);
    return path;
}

struct ns_engine_options rig_options(void)
{
    return (struct ns_engine_options){
        .n_threads = 1, .cpu = ns_cpu_bits(), .rows_max = 1024, .context = 4096, .every_thread = true};
}

void rig_open(struct rig *rig, const char *dir, const struct ns_engine_options *options, size_t memory)
{
    struct ns_error err = {0};
    ns_budget_init(&rig->budget, "test", memory);
    if (ns_engine_open(dir, options, &rig->budget, &rig->engine, &err) != NS_OK) {
        char text[4400];
        ns_error_text(&err, text, sizeof text);
        fail_msg("%s", text);
    }
}

void rig_close(struct rig *rig)
{
    ns_engine_close(rig->engine);
    assert_int_equal(ns_budget_used(&rig->budget), 0);
    ns_budget_fini(&rig->budget);
}

struct crc_of_rows {
    uint32_t *crc; /* [rows] */
};

static void keep_crc(void *arg, uint32_t layer, const char *name, uint32_t row, const float *v, const uint32_t *ids,
                     size_t n)
{
    struct crc_of_rows *c = arg;
    (void)layer;
    (void)ids;
    if (strcmp(name, "logits") == 0)
        c->crc[row] = ns_crc32c(0, v, n * sizeof *v);
}

static enum ns_code run(struct rig *rig, const struct ns_wave_desc *desc, const struct ns_probe *probe,
                        struct rig_result *result, const uint32_t *crc, const size_t *first_row, struct ns_error *err)
{
    struct ns_wave *wave = NULL;
    enum ns_code rc = ns_wave_open(rig->engine, desc, probe, &wave, err);
    for (bool done = false; rc == NS_OK && !done;)
        rc = ns_wave_step(wave, &done, err);
    for (size_t i = 0; rc == NS_OK && result && i < desc->n_asks; i++) {
        memset(&result[i], 0, sizeof result[i]);
        const struct ns_answer *a = &ns_wave_answers(wave)[i];
        struct ns_answer *out = &result[i].answer;
        out->ok = a->ok; /* field by field: padding must not differ */
        out->best = a->best;
        out->best_logprob = a->best_logprob;
        out->target_logprob = a->target_logprob;
        out->n_top = a->n_top;
        memcpy(out->top_id, a->top_id, sizeof out->top_id);
        memcpy(out->top_logprob, a->top_logprob, sizeof out->top_logprob);
        result[i].logits_crc = crc[first_row[desc->ask[i].segment] + desc->ask[i].offset];
    }
    ns_wave_close(wave);
    return rc;
}

void rig_wave(struct rig *rig, const struct ns_segment *segment, size_t n_segments, const struct ns_ask *ask,
              size_t n_asks, struct rig_result *result)
{
    size_t rows = 0, *first_row = malloc(n_segments * sizeof *first_row);
    for (size_t i = 0; i < n_segments; i++) {
        first_row[i] = rows;
        rows += segment[i].n;
    }
    struct crc_of_rows crc = {.crc = calloc(rows, sizeof(uint32_t))};
    struct ns_probe probe = {.row = keep_crc, .arg = &crc, .logits = true};
    struct ns_wave_desc desc = {.segment = segment, .n_segments = n_segments, .ask = ask, .n_asks = n_asks};
    struct ns_error err = {0};
    if (run(rig, &desc, result ? &probe : NULL, result, crc.crc, first_row, &err) != NS_OK) {
        char text[4400];
        ns_error_text(&err, text, sizeof text);
        fail_msg("%s", text);
    }
    free(crc.crc);
    free(first_row);
}

enum ns_code rig_try(struct rig *rig, const struct ns_segment *segment, size_t n_segments, const struct ns_ask *ask,
                     size_t n_asks, struct ns_error *err)
{
    struct ns_wave_desc desc = {.segment = segment, .n_segments = n_segments, .ask = ask, .n_asks = n_asks};
    return run(rig, &desc, NULL, NULL, NULL, NULL, err);
}

void rig_prompt(uint32_t *id, size_t n, uint32_t vocab, uint32_t seed)
{
    uint64_t state = seed * 2654435761u + 12345;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        id[i] = (uint32_t)(state >> 33) % vocab;
    }
}

void rig_ask_all(struct ns_ask *ask, uint32_t segment, const uint32_t *token, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ask[i] = (struct ns_ask){
            .segment = segment, .offset = i, .target = i + 1 < n ? token[i + 1] : NS_NO_TOKEN, .n_top = 5};
}

void rig_alone(struct rig *rig, const uint32_t *token, uint32_t n, struct rig_result *result)
{
    struct ns_segment segment = {.token = token, .n = n, .parent = NS_NO_PARENT};
    struct ns_ask *ask = malloc(n * sizeof *ask);
    rig_ask_all(ask, 0, token, n);
    rig_wave(rig, &segment, 1, ask, n, result);
    free(ask);
}

void rig_same(const struct rig_result *a, const struct rig_result *b, size_t n, const char *where)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s: ask %zu differs: best %u and %u, log-probability %a and %a, logits %08x and %08x", where, i,
                     a[i].answer.best, b[i].answer.best, (double)a[i].answer.best_logprob,
                     (double)b[i].answer.best_logprob, a[i].logits_crc, b[i].logits_crc);
}
