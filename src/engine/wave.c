/* wave.c - many rows through all layers, layer-major.
 *
 * WHAT   Opening checks the description, works out who descends from whom (lineage.c), which rows have logits (ask.c)
 *        and takes all memory the wave will need. A step is the embedding, or one layer, or the head. Between two steps
 *        everything that the wave is lies in the rows (accumulator, residual sources), the states made so far and the
 *        list of failed rows; that is what suspend.c writes down.
 * WHY    Layer-major order is the point of the program: each weight is read once for all rows.
 * INVARIANTS
 *   1. A row's values depend on the model and its own line of tokens only.        (wave_test: alone_and_in_company)
 *   2. A failed row fails its segment and what descends from it, nothing else.     (fault_test: nan_in_an_embedding)
 *   3. After an error, or when abandoned, no into sequence holds anything.         (wave_test: abandoned_wave)
 *   4. A result never comes from a wave with a failed read or a changed file.      (fault_test: read_errors)
 * THREADS  One driving thread. */
#include "engine/wave_impl.h"

#include <assert.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------------------------------------- */

static size_t segment_of(const struct ns_wave *w, uint32_t row)
{
    size_t low = 0, high = w->n_segments;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (w->lineage.seg[mid].row <= row)
            low = mid;
        else
            high = mid;
    }
    return low;
}

void ns_wave_mark(struct ns_wave *w, size_t segment)
{
    const struct ns_seg *seg = &w->lineage.seg[segment];
    w->failed[segment] = true;
    memset(w->rows.dead + seg->row, 1, seg->n);
}

static void fail_row(void *arg, enum ns_code code, uint32_t layer, uint32_t row, uint32_t expert, const char *what)
{
    struct ns_wave *w = (struct ns_wave *)arg;
    size_t s = segment_of(w, row);
    const struct ns_seg *seg = &w->lineage.seg[s];
    if (w->failed[s])
        return;
    w->fault[s] = (struct ns_wave_fault_note){
        .code = code, .layer = layer, .position = seg->start + (row - seg->row), .expert = expert, .what = what};
    for (size_t i = s; i < w->n_segments; i++) {
        bool descends = i == s || (w->segment[i].parent != NS_NO_PARENT && w->segment[i].parent >= s &&
                                   w->failed[w->segment[i].parent] && !w->failed[i]);
        if (!descends)
            continue;
        if (i != s)
            w->fault[i] = w->fault[w->segment[i].parent];
        ns_wave_mark(w, i);
    }
}

static enum ns_code open_rows(struct ns_wave *w, const struct ns_probe *probe, struct ns_error *err)
{
    struct ns_engine *e = w->engine;
    size_t n = w->lineage.n_rows;
    w->token = (uint32_t *)ns_budget_take(e->budget, n * sizeof *w->token, err);
    w->fault = (struct ns_wave_fault_note *)ns_budget_take(e->budget, w->n_segments * sizeof *w->fault, err);
    w->failed = (bool *)ns_budget_take(e->budget, w->n_segments * sizeof *w->failed, err);
    w->sound = (bool *)ns_budget_take(e->budget, w->n_segments * sizeof *w->sound, err);
    if (!w->token || !w->fault || !w->failed || !w->sound)
        return NS_BUDGET;
    for (size_t i = 0; i < w->n_segments; i++)
        for (uint32_t t = 0; t < w->segment[i].n; t++)
            w->token[w->lineage.seg[i].row + t] = w->segment[i].token[t];
    w->pass = (struct ns_pass){.model = e->model,
                               .kernels = &e->kernels,
                               .store = e->store,
                               .arena = &w->rows.arena,
                               .n_rows = n,
                               .n_slots = w->lineage.n_slots,
                               .n_block_rows = w->lineage.n_block_rows,
                               .n_positions = w->lineage.n_positions,
                               .n_head_rows = w->asks.n_rows,
                               .fault = fail_row,
                               .fault_arg = w};
    if (probe)
        w->pass.tap = (struct ns_tap){.row = probe->row, .arg = probe->arg};
    if (probe && probe->logits) {
        w->pass.seen_logits =
            (float *)ns_budget_take_raw(e->budget, w->asks.n_rows * e->config.vocab * sizeof(float), 64, err);
        if (!w->pass.seen_logits)
            return NS_BUDGET;
    }
    enum ns_code rc = ns_rows_open(e, &w->pass, &w->rows, err);
    w->pass.dead = w->rows.dead;
    return rc;
}

enum ns_code ns_wave_open(struct ns_engine *engine, const struct ns_wave_desc *desc, const struct ns_probe *probe,
                          struct ns_wave **out, struct ns_error *err)
{
    if (engine->wave)
        return ns_error_set(err, NS_INTERNAL, "a wave is already in progress");
    struct ns_wave *w = (struct ns_wave *)ns_budget_take(engine->budget, sizeof *w, err);
    if (!w)
        return NS_BUDGET;
    w->engine = engine;
    w->segment = desc->segment;
    w->n_segments = desc->n_segments;
    engine->wave = w;
    enum ns_code rc = ns_lineage_open(engine, desc->segment, desc->n_segments, &w->lineage, err);
    if (rc == NS_OK)
        rc = ns_asks_open(engine, desc->ask, desc->n_asks, &w->lineage, &w->asks, err);
    if (rc == NS_OK)
        rc = open_rows(w, probe, err);
    if (rc != NS_OK) {
        ns_wave_close(w);
        return rc;
    }
    w->stats.rows = (uint32_t)w->lineage.n_rows;
    w->stats.segments = (uint32_t)w->n_segments;
    w->stats.logit_rows = (uint32_t)w->asks.n_rows;
    ns_store_stats_get(engine->store, &w->before);
    w->product_before_ns = engine->product.ns;
    ns_engine_spill_stats(engine, &w->spill_before);
    *out = w;
    return NS_OK;
}

/* ---- stepping -------------------------------------------------------------------------------------------------------------------- */

enum ns_code ns_wave_begin(struct ns_wave *w, uint32_t first_layer, struct ns_error *err)
{
    const size_t *first;
    const struct ns_tile *tile = ns_model_tiles(w->engine->model, &first);
    uint32_t layers = ns_model_layers(w->engine->model);
    size_t end = first[w->asks.n_rows ? layers + 1 : layers];
    enum ns_code rc = ns_store_check_unchanged(w->engine->store, err);
    if (rc == NS_OK)
        rc = ns_lineage_page_in(&w->lineage, first_layer == 0, err);
    if (rc == NS_OK)
        rc = ns_pool_settle(w->engine, err);
    if (rc != NS_OK)
        return rc;
    ns_store_wave_begin(w->engine->store, tile + first[first_layer], end - first[first_layer]);
    w->began = true;
    w->lineage.written = true;
    ns_pass_begin(&w->pass);
    if (first_layer > 0)
        ns_pass_resume(&w->pass, first_layer);
    return NS_OK;
}

struct latent_store {
    struct ns_wave *wave;
    uint32_t mla_index;
};

static void store_latent(void *arg)
{
    const struct latent_store *s = (const struct latent_store *)arg;
    ns_lineage_store(&s->wave->lineage, s->mla_index, s->wave->rows.latent);
}

/* A layer, after a word to the store how many experts will be chosen: when that makes nearly all of them, reading begins
 * while the attention is computed. */
static enum ns_code run_layer(struct ns_wave *w, uint32_t layer, struct ns_error *err)
{
    const struct ns_config *c = &w->engine->config;
    if (ns_config_is_moe(c, layer))
        ns_store_experts_expect(w->engine->store, layer, (uint64_t)w->lineage.n_rows * c->top_k);
    uint32_t k = ns_model_kind_index(w->engine->model, layer);
    if (c->is_kda[layer]) {
        struct ns_kda_work work;
        ns_lineage_kda(&w->lineage, k, &work);
        return ns_pass_layer(&w->pass, layer, &work, NULL, err);
    }
    struct ns_mla_work work;
    struct latent_store store = {.wave = w, .mla_index = k};
    ns_lineage_mla(&w->lineage, k, w->rows.latent, &work);
    work.stored = store_latent;
    work.arg = &store;
    return ns_pass_layer(&w->pass, layer, NULL, &work, err);
}

static enum ns_code run_head(struct ns_wave *w, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    if (w->asks.n_rows)
        rc = ns_pass_head(&w->pass, w->asks.row, w->asks.head, w->asks.result, w->asks.target, w->asks.n_targets, err);
    if (rc == NS_OK)
        rc = ns_spill_window_settle(w->lineage.window, err);
    if (rc == NS_OK)
        rc = ns_store_check_unchanged(w->engine->store, err);
    if (rc != NS_OK)
        return rc;
    ns_store_wave_end(w->engine->store);
    w->began = false;
    for (size_t i = 0; i < w->n_segments; i++)
        w->sound[i] = !w->failed[i];
    ns_asks_answer(&w->asks, w->failed);
    ns_lineage_commit(&w->lineage, w->sound);
    return NS_OK;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void update_stats(struct ns_wave *w)
{
    struct ns_store_stats now;
    const struct ns_store_stats *b = &w->before;
    ns_store_stats_get(w->engine->store, &now);
    w->stats.store = (struct ns_store_stats){.trunk_bytes = now.trunk_bytes - b->trunk_bytes,
                                             .head_bytes = now.head_bytes - b->head_bytes,
                                             .embed_bytes = now.embed_bytes - b->embed_bytes,
                                             .expert_bytes = now.expert_bytes - b->expert_bytes,
                                             .trunk_kept_bytes = now.trunk_kept_bytes - b->trunk_kept_bytes,
                                             .experts_wanted = now.experts_wanted - b->experts_wanted,
                                             .experts_kept = now.experts_kept - b->experts_kept,
                                             .experts_read = now.experts_read - b->experts_read,
                                             .experts_early = now.experts_early - b->experts_early,
                                             .reads = now.reads - b->reads,
                                             .read_ns = now.read_ns - b->read_ns,
                                             .disk_ns = now.disk_ns - b->disk_ns,
                                             .stall_ns = now.stall_ns - b->stall_ns};
    struct ns_spill_stats spill;
    ns_engine_spill_stats(w->engine, &spill);
    w->stats.spill_read_bytes = spill.read_bytes - w->spill_before.read_bytes;
    w->stats.spill_written_bytes = spill.written_bytes - w->spill_before.written_bytes;
    w->stats.spill_file_bytes = spill.file_bytes;
    w->stats.experts_requested = w->pass.experts_requested;
    w->stats.experts_distinct = w->pass.experts_distinct;
    w->stats.wall_ns = w->wall_ns;
    w->stats.compute_ns = minus(w->wall_ns, w->stats.store.stall_ns);
    w->stats.product_ns = w->engine->product.ns - w->product_before_ns;
}

enum ns_code ns_wave_step(struct ns_wave *w, bool *done, struct ns_error *err)
{
    uint32_t layers = ns_model_layers(w->engine->model);
    assert(w->next <= layers + 1);
    if (w->broken || w->left)
        return ns_error_set(err, NS_INTERNAL, "the wave has %s before", w->left ? "been left" : "failed");
    uint64_t start = ns_clock_mono_ns();
    enum ns_code rc = NS_OK;
    if (!w->began)
        rc = ns_wave_begin(w, 0, err);
    if (rc == NS_OK) {
        if (w->next == 0)
            rc = ns_pass_embed(&w->pass, w->token, err);
        else if (w->next <= layers)
            rc = run_layer(w, w->next - 1, err);
        else
            rc = run_head(w, err);
    }
    w->wall_ns += ns_clock_mono_ns() - start;
    update_stats(w);
    if (rc != NS_OK) {
        w->broken = true;
        return rc;
    }
    w->next++;
    *done = w->next == layers + 2;
    return NS_OK;
}

void ns_wave_leave(struct ns_wave *w)
{
    if (w->began)
        ns_store_wave_end(w->engine->store);
    w->began = false;
    w->left = true;
}

uint32_t ns_wave_next_layer(const struct ns_wave *w)
{
    return w->next ? w->next - 1 : 0;
}

/* ---- results ------------------------------------------------------------------------------------------------------------------- */

const struct ns_answer *ns_wave_answers(const struct ns_wave *w)
{
    return w->asks.answer;
}

const struct ns_error *ns_wave_fault(const struct ns_wave *wave, size_t segment)
{
    struct ns_wave *w = (struct ns_wave *)(uintptr_t)wave; /* the text is a cache, not part of the wave's state */
    const struct ns_wave_fault_note *f = &w->fault[segment];
    if (f->code == NS_OK)
        return NULL;
    ns_error_clear(&w->fault_text);
    if (f->code == NS_CORRUPT)
        ns_error_set(&w->fault_text, f->code, "position %" PRIu32 " was routed to it: %s is not valid", f->position,
                     f->what);
    else
        ns_error_set(&w->fault_text, f->code, "position %" PRIu32 ": %s is not a finite number", f->position, f->what);
    if (f->expert != NS_NO_EXPERT)
        ns_error_wrap(&w->fault_text, f->code, "layer %" PRIu32 ": expert %" PRIu32, f->layer, f->expert);
    else if (f->layer == ns_model_layers(w->engine->model))
        ns_error_wrap(&w->fault_text, f->code, "output head");
    else
        ns_error_wrap(&w->fault_text, f->code, "layer %" PRIu32, f->layer);
    return &w->fault_text;
}

void ns_wave_stats_get(const struct ns_wave *w, struct ns_wave_stats *out)
{
    *out = w->stats;
}

void ns_wave_close(struct ns_wave *w)
{
    if (!w)
        return;
    struct ns_engine *e = w->engine;
    if (w->began)
        ns_store_wave_end(e->store);
    ns_lineage_close(&w->lineage);
    ns_asks_close(e, &w->asks);
    ns_rows_close(e, &w->rows);
    ns_budget_give(e->budget, w->pass.seen_logits);
    ns_budget_give(e->budget, w->token);
    ns_budget_give(e->budget, w->fault);
    ns_budget_give(e->budget, w->failed);
    ns_budget_give(e->budget, w->sound);
    e->wave = NULL;
    ns_budget_give(e->budget, w);
}
