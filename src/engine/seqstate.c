/* seqstate.c - what is kept of a sequence between waves.
 *
 * WHAT   The recurrent state of every KDA layer (constant size) and the latent cache of every full attention layer (one
 *        row a position) in pages of a fixed number of positions, all such layers in one page.
 * WHY    Pages are what makes forks cheap: sequences with a common prefix name the same full pages. A page is written
 *        only while it is the unfull tail of one sequence, so sharing needs no copying on write.
 * INVARIANTS
 *   1. n_refs of a page is the number of tables that name it.                    (wave_test: forks_share_pages)
 *   2. A sequence of 0 positions holds no memory.                                 (wave_test: abandoned_wave)
 *   3. What a sequence was is not seen by the next in its memory.                 (wave_test: reused_state_is_clean)
 * Everything is charged to the engine's share for states. */
#include "engine/engine_impl.h"

#include <assert.h>
#include <string.h>

size_t ns_page_bytes(const struct ns_engine *engine)
{
    return (size_t)engine->n_mla * engine->block * engine->key_floats * sizeof(float);
}

struct ns_page *ns_page_open(struct ns_engine *engine, struct ns_error *err)
{
    if (ns_pool_make_room(engine, sizeof(struct ns_page) + ns_page_bytes(engine), err) != NS_OK)
        return NULL;
    struct ns_page *page = (struct ns_page *)ns_budget_take(&engine->state_share, sizeof *page, err);
    if (!page)
        return NULL;
    page->data = (float *)ns_budget_take_raw(&engine->state_share, ns_page_bytes(engine), 64, err);
    if (!page->data) {
        ns_budget_give(&engine->state_share, page);
        return NULL;
    }
    return page;
}

void ns_page_drop(struct ns_engine *engine, struct ns_page *page)
{
    assert(page->n_refs == 0);
    ns_budget_give(&engine->state_share, page->data);
    ns_budget_give(&engine->state_share, page);
}

void ns_page_release(struct ns_engine *engine, struct ns_page *page)
{
    assert(page->n_refs > 0);
    if (--page->n_refs == 0)
        ns_page_drop(engine, page);
}

float *ns_page_layer(const struct ns_engine *engine, const struct ns_page *page, uint32_t mla_index)
{
    return page->data + (size_t)mla_index * engine->block * engine->key_floats;
}

enum ns_code ns_seq_open(struct ns_engine *engine, struct ns_seq **out, struct ns_error *err)
{
    enum ns_code rc = ns_pool_make_room(engine, sizeof(struct ns_seq), err);
    if (rc != NS_OK)
        return rc;
    struct ns_seq *seq = (struct ns_seq *)ns_budget_take(&engine->state_share, sizeof *seq, err);
    if (!seq)
        return NS_BUDGET;
    seq->engine = engine;
    seq->next = engine->first_seq;
    if (seq->next)
        seq->next->before = seq;
    engine->first_seq = seq;
    *out = seq;
    return NS_OK;
}

void ns_seq_reset(struct ns_seq *seq)
{
    struct ns_engine *engine = seq->engine;
    for (uint32_t i = 0; i < seq->n_pages; i++)
        ns_page_release(engine, seq->page[i]);
    ns_budget_give(&engine->state_share, seq->page);
    ns_budget_give(&engine->state_share, seq->kda);
    ns_spill_give(engine, seq->spilled);
    seq->page = NULL;
    seq->kda = NULL;
    seq->spilled = NULL;
    seq->n_pages = seq->page_capacity = seq->n_positions = 0;
}

void ns_seq_close(struct ns_seq *seq)
{
    if (!seq)
        return;
    struct ns_engine *engine = seq->engine;
    ns_seq_reset(seq);
    if (seq->next)
        seq->next->before = seq->before;
    *(seq->before ? &seq->before->next : &engine->first_seq) = seq->next;
    ns_budget_give(&engine->state_share, seq);
}

uint32_t ns_seq_positions(const struct ns_seq *seq)
{
    return seq->n_positions;
}

/* With a spill folder a third of the memory for states is kept for pages and for windows. */
static enum ns_code reserve_recurrent(struct ns_seq *seq, struct ns_error *err)
{
    struct ns_engine *engine = seq->engine;
    size_t bytes = engine->n_kda * engine->kda_layer_floats * sizeof(float);
    if (ns_pool_left(engine) < bytes + ns_pool_bytes(engine) / 3 && ns_spill_has_room(engine))
        return ns_spill_take(engine, &seq->spilled, err);
    enum ns_code rc = ns_pool_make_room(engine, bytes, err);
    if (rc != NS_OK)
        return rc;
    seq->kda = (float *)ns_bulk_take(&engine->state_share, bytes, err);
    return seq->kda ? NS_OK : NS_BUDGET;
}

enum ns_code ns_seq_reserve(struct ns_seq *seq, uint32_t n_pages, struct ns_error *err)
{
    struct ns_engine *engine = seq->engine;
    if (!seq->kda && !seq->spilled && engine->n_kda) {
        enum ns_code taken = reserve_recurrent(seq, err);
        if (taken != NS_OK)
            return taken;
    }
    if (n_pages <= seq->page_capacity)
        return NS_OK;
    enum ns_code rc = ns_pool_make_room(engine, n_pages * sizeof(struct ns_page *), err);
    if (rc != NS_OK)
        return rc;
    struct ns_page **page =
        (struct ns_page **)ns_budget_resize(&engine->state_share, seq->page, n_pages * sizeof(struct ns_page *), err);
    if (!page)
        return NS_BUDGET;
    seq->page = page;
    seq->page_capacity = n_pages;
    return NS_OK;
}

float *ns_seq_kda_layer(const struct ns_seq *seq, uint32_t kda_index)
{
    return seq->kda + kda_index * seq->engine->kda_layer_floats;
}

enum ns_code ns_seq_kda_get(const struct ns_seq *seq, uint32_t kda_index, uint32_t n_logged, float *out,
                            struct ns_error *err)
{
    if (seq->spilled)
        return ns_spill_get_layer(seq->engine, seq->spilled, kda_index, n_logged, out, err);
    memcpy(out, ns_seq_kda_layer(seq, kda_index), seq->engine->kda_layer_floats * sizeof *out);
    return NS_OK;
}

enum ns_code ns_seq_kda_put(struct ns_seq *seq, uint32_t kda_index, const float *in, struct ns_error *err)
{
    if (seq->spilled)
        return ns_spill_put_layer(seq->engine, seq->spilled, kda_index, in, err);
    memcpy(ns_seq_kda_layer(seq, kda_index), in, seq->engine->kda_layer_floats * sizeof *in);
    return NS_OK;
}

size_t ns_seq_bytes(const struct ns_engine *engine, uint32_t n_positions)
{
    size_t pages = ((size_t)n_positions + engine->block - 1) / engine->block;
    return sizeof(struct ns_seq) + ns_spill_cost(engine) +
           pages * (ns_page_bytes(engine) + sizeof(struct ns_page) + sizeof(struct ns_page *));
}

/* States count as they will at worst: those in memory may go to files, those in files have windows in a wave. */
static size_t left_at_worst(const struct ns_engine *engine, size_t left)
{
    size_t cost = ns_spill_cost(engine), owed = 0;
    size_t state = engine->n_kda * engine->kda_layer_floats * sizeof(float);
    for (const struct ns_seq *seq = engine->first_seq; engine->spill && seq; seq = seq->next) {
        left += seq->kda ? state : 0;
        owed += seq->kda || seq->spilled ? cost : 0;
    }
    return left > owed ? left - owed : 0;
}

size_t ns_engine_state_left(const struct ns_engine *engine)
{
    return left_at_worst(engine, ns_pool_left(engine));
}

size_t ns_engine_room_left(const struct ns_engine *engine)
{
    return left_at_worst(engine, ns_pool_room(engine));
}
