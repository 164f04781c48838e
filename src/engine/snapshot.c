/* snapshot.c - a kept sequence as a side file.
 *
 * WHAT   The recurrent state at the end (whole: it has constant size) and the latent rows of positions from .. end. A file
 *        from 0 is a base; one from the end of an earlier file is a delta. Loading reads base and deltas in order and
 *        takes the recurrent state of the last one.
 *        Payload: [n_kda][kda_heads][head floats], then per position [n_mla][key floats].
 *        Fields: 0 sequence id, 1 runner, 2 from, 3 to, 4 layers, 5 recurrent floats, 6 floats a position.
 * WHY    Tokens are the checkpoint; a snapshot only saves replaying. So every doubt (another model, engine, length, sum)
 *        is an error that the caller answers by dropping the file.
 * INVARIANTS
 *   1. A loaded sequence goes on with the same bits.                         (suspend_test: same_bits_after_loading)
 *   2. A failed load leaves the sequence empty.                               (suspend_test: torn_and_flipped_states) */
#include "engine/engine_impl.h"
#include "engine/sidefile_impl.h"

#include <assert.h>
#include <string.h>

static size_t recurrent_floats(const struct ns_engine *e)
{
    return e->n_kda * e->kda_layer_floats;
}

static size_t position_floats(const struct ns_engine *e)
{
    return e->n_mla * e->key_floats;
}

/* The recurrent state of all layers, by way of one layer's buffer: it may be spilled. */
static enum ns_code put_recurrent(struct ns_side_out *out, const struct ns_seq *seq, struct ns_error *err)
{
    struct ns_engine *e = seq->engine;
    size_t bytes = e->kda_layer_floats * sizeof(float);
    float *state = (float *)ns_budget_take_raw(e->budget, bytes, 64, err);
    enum ns_code rc = state ? NS_OK : NS_BUDGET;
    for (uint32_t k = 0; rc == NS_OK && k < e->n_kda; k++) {
        rc = ns_seq_kda_get(seq, k, seq->spilled ? seq->spilled->n_logged : 0, state, err);
        if (rc == NS_OK)
            rc = ns_side_put(out, state, bytes, err);
    }
    ns_budget_give(e->budget, state);
    return rc;
}

static enum ns_code get_recurrent(struct ns_side_in *in, struct ns_seq *seq, struct ns_error *err)
{
    struct ns_engine *e = seq->engine;
    size_t bytes = e->kda_layer_floats * sizeof(float);
    float *state = (float *)ns_budget_take_raw(e->budget, bytes, 64, err);
    enum ns_code rc = state ? NS_OK : NS_BUDGET;
    for (uint32_t k = 0; rc == NS_OK && k < e->n_kda; k++) {
        rc = ns_side_get(in, state, bytes, err);
        if (rc == NS_OK)
            rc = ns_seq_kda_put(seq, k, state, err);
    }
    ns_budget_give(e->budget, state);
    return rc;
}

static enum ns_code put_positions(struct ns_side_out *out, const struct ns_seq *seq, uint32_t from,
                                  struct ns_error *err)
{
    const struct ns_engine *e = seq->engine;
    enum ns_code rc = NS_OK;
    for (uint32_t p = from; rc == NS_OK && p < seq->n_positions; p++)
        for (uint32_t l = 0; rc == NS_OK && l < e->n_mla; l++)
            rc = ns_side_put(out, ns_page_layer(e, seq->page[p / e->block], l) + (p % e->block) * e->key_floats,
                             e->key_floats * sizeof(float), err);
    return rc;
}

enum ns_code ns_seq_save(const struct ns_seq *seq, const char *path, uint64_t seq_id, uint64_t runner, uint32_t from,
                         struct ns_snapshot *out, struct ns_error *err)
{
    const struct ns_engine *e = seq->engine;
    assert(seq->n_positions > 0 && from <= seq->n_positions);
    struct ns_side_out file;
    struct ns_snapshot s = {.seq_id = seq_id, .runner = runner, .from_pos = from, .to_pos = seq->n_positions};
    struct ns_side_head head = {
        .kind = NS_SIDE_STATE,
        .field = {seq_id, runner, from, seq->n_positions, e->plan.layers, recurrent_floats(e), position_floats(e)}};
    memcpy(head.fingerprint, e->fingerprint, sizeof head.fingerprint);
    enum ns_code rc = ns_side_create(path, e->budget, &file, err);
    if (rc != NS_OK)
        return rc;
    rc = put_recurrent(&file, seq, err);
    if (rc == NS_OK)
        rc = put_positions(&file, seq, from, err);
    if (rc == NS_OK)
        rc = ns_side_finish(&file, &head, &s.bytes, s.checksum, err);
    else
        ns_side_abort(&file);
    if (rc != NS_OK) {
        ns_code_ignore(ns_file_unlink(path, NULL));
        return rc;
    }
    *out = s;
    return NS_OK;
}

static enum ns_code get_positions(struct ns_side_in *in, struct ns_seq *seq, uint32_t from, uint32_t to,
                                  struct ns_error *err)
{
    struct ns_engine *e = seq->engine;
    for (uint32_t p = from; p < to; p++) {
        if (e->n_mla && p / e->block == seq->n_pages) {
            struct ns_page *page = ns_page_open(e, err);
            if (!page)
                return NS_BUDGET;
            page->n_refs = 1;
            seq->page[seq->n_pages++] = page;
        }
        for (uint32_t l = 0; l < e->n_mla; l++) {
            float *row = ns_page_layer(e, seq->page[p / e->block], l) + (p % e->block) * e->key_floats;
            enum ns_code rc = ns_side_get(in, row, e->key_floats * sizeof(float), err);
            if (rc != NS_OK)
                return rc;
        }
    }
    return NS_OK;
}

static enum ns_code load_one(struct ns_seq *seq, const char *path, const struct ns_snapshot *want, uint32_t from,
                             struct ns_error *err)
{
    struct ns_engine *e = seq->engine;
    struct ns_side_in in;
    struct ns_side_head head;
    char checksum[NS_SHA256_HEX];
    enum ns_code rc = ns_side_open(path, e->fingerprint, NS_SIDE_STATE, e->budget, &in, &head, err);
    if (rc != NS_OK)
        return rc;
    const uint64_t *f = head.field;
    if (f[0] != want->seq_id || f[2] != want->from_pos || f[3] != want->to_pos || want->from_pos != from ||
        f[4] != e->plan.layers || f[5] != recurrent_floats(e) || f[6] != position_floats(e))
        rc = ns_error_set(err, NS_CORRUPT,
                          "%s: sequence %" PRIu64 " positions %" PRIu64 " to %" PRIu64 " found, %" PRIu64 " %" PRIu32
                          " to %" PRIu32 " expected",
                          path, f[0], f[2], f[3], want->seq_id, from, want->to_pos);
    else if (want->to_pos < from || want->to_pos > e->plan.context)
        rc = ns_error_set(err, NS_CORRUPT, "%s: ends at position %" PRIu32, path, want->to_pos);
    uint32_t pages = (want->to_pos + e->block - 1) / e->block;
    if (rc == NS_OK)
        rc = ns_seq_reserve(seq, e->n_mla ? pages : 0, err);
    if (rc == NS_OK)
        rc = get_recurrent(&in, seq, err);
    if (rc == NS_OK) {
        seq->n_positions = want->to_pos; /* its state counts: pages may push it into a file */
        rc = get_positions(&in, seq, from, want->to_pos, err);
    }
    if (rc == NS_OK)
        rc = ns_side_end(&in, checksum, err);
    if (rc == NS_OK && want->checksum[0] && strcmp(want->checksum, checksum) != 0)
        rc = ns_error_set(err, NS_CORRUPT, "%s: checksum %s, %s expected", path, checksum, want->checksum);
    ns_side_close(&in);
    return rc;
}

enum ns_code ns_seq_load(struct ns_seq *seq, const char *const *path, const struct ns_snapshot *want, size_t n,
                         struct ns_error *err)
{
    assert(seq->n_positions == 0);
    uint32_t at = 0;
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < n; i++) {
        rc = load_one(seq, path[i], &want[i], at, err);
        at = want[i].to_pos;
    }
    if (rc != NS_OK) {
        ns_seq_reset(seq);
        return rc;
    }
    assert(seq->n_positions == at);
    return NS_OK;
}
