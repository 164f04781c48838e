/* suspend.c - a wave that stopped between two layers, as a file, and the same wave again.
 *
 * WHAT   Everything that a wave is at a layer boundary: its description, the sequences it starts from, the accumulator and
 *        residual sources of every row, the states and cache rows made by the layers that are done, and which segments
 *        failed. Payload, in order:
 *          counts      segments, asks, sequences, pages, bytes of notes, experts requested, experts distinct
 *          segments    rows, parent + 1, from + 1, into + 1 (0: none), then the tokens of all
 *          asks        segment, offset, target, best tokens
 *          notes       the caller's
 *          sequences   positions, and the page numbers of those with positions
 *          pages       of those sequences, each once, rows that hold something, all full attention layers
 *          recurrent   per sequence: all layers when it had positions, else the layers done
 *          new rows    per page being filled: the positions of this wave, layers done
 *          rows        accumulator, then the residual sources
 *          faults      per segment: code, layer, position, expert, kind
 * WHY    One file is enough to go on in another process: nothing in it refers to memory, and the order in which the wave is
 *        opened again (lineage.c) is the same for the same description, so pages being filled need no names.
 *        A K3 wave of 4,096 rows at its last layer is 1.1 GB; it saves hours.
 * INVARIANTS
 *   1. A resumed wave gives the bits of an undisturbed one, from any boundary.      (suspend_test: any_boundary)
 *   2. It reads only the tiles and experts of the layers that are left.              (suspend_test: reads_what_is_left)
 *   3. A file that does not fit leaves nothing behind.                               (suspend_test: useless_files) */
#include "engine/sidefile_impl.h"
#include "engine/wave_impl.h"

#include <assert.h>
#include <string.h>

struct ns_suspended {
    struct ns_engine *engine;
    struct ns_wave_desc desc;
    struct ns_segment *segment;
    struct ns_ask *ask;
    uint32_t *token;
    uint8_t *notes;
    size_t n_notes;
    struct ns_seq **seq;
    size_t n_seqs;
};

/* What can go wrong with a row, as written by pass.c, layer.c, router.c, moe.c and logits.c. */
static const char *const fault_kinds[] = {
    "value",        "embedding",     "attention output", "residual",
    "router score", "expert output", "logits",           "scale byte of an expert"};

static uint64_t fault_kind(const char *what)
{
    for (uint64_t i = 1; what && i < NS_COUNT(fault_kinds); i++)
        if (strcmp(what, fault_kinds[i]) == 0)
            return i;
    return 0;
}

/* Layers of each kind among the first n. */
static void layers_done(const struct ns_engine *e, uint32_t n, uint32_t *kda, uint32_t *mla)
{
    *kda = *mla = 0;
    for (uint32_t i = 0; i < n; i++)
        ++*(e->config.is_kda[i] ? kda : mla);
}

/* ---- the sequences of a wave ---------------------------------------------------------------------------------------------------------- */

/* Distinct sequences in order of appearance; number[i]: index + 1 of segment i's from and into. */
struct cast {
    struct ns_seq **seq;
    size_t n;
    uint64_t *from, *into;
    struct ns_page **page; /* distinct pages of sequences with positions */
    size_t n_pages, page_capacity;
};

static uint64_t cast_number(struct cast *c, struct ns_seq *seq)
{
    if (!seq)
        return 0;
    if (seq->home < c->n && c->seq[seq->home] == seq)
        return seq->home + 1u;
    seq->home = (uint32_t)c->n; /* the wave is between steps: home is looked up anew by those who use it */
    c->seq[c->n++] = seq;
    return c->n;
}

static uint64_t page_number(const struct cast *c, const struct ns_page *page)
{
    return page->number < c->n_pages && c->page[page->number] == page ? page->number : UINT64_MAX;
}

static enum ns_code cast_open(const struct ns_wave *w, struct cast *c, struct ns_error *err)
{
    struct ns_budget *budget = w->engine->budget;
    *c = (struct cast){0};
    c->seq = (struct ns_seq **)ns_budget_take(budget, 2 * w->n_segments * sizeof(struct ns_seq *), err);
    c->from = (uint64_t *)ns_budget_take(budget, w->n_segments * sizeof *c->from, err);
    c->into = (uint64_t *)ns_budget_take(budget, w->n_segments * sizeof *c->into, err);
    if (!c->seq || !c->from || !c->into)
        return NS_BUDGET;
    for (size_t i = 0; i < w->n_segments; i++) {
        c->from[i] = cast_number(c, w->segment[i].from);
        c->into[i] = cast_number(c, w->segment[i].into);
    }
    for (size_t i = 0; i < c->n; i++)
        c->page_capacity += c->seq[i]->n_pages;
    c->page = (struct ns_page **)ns_budget_take(budget, c->page_capacity * sizeof(struct ns_page *) + 1, err);
    if (!c->page)
        return NS_BUDGET;
    for (size_t i = 0; i < c->n; i++)
        for (uint32_t p = 0; p < c->seq[i]->n_pages; p++)
            if (page_number(c, c->seq[i]->page[p]) == UINT64_MAX) {
                c->seq[i]->page[p]->number = (uint32_t)c->n_pages;
                c->page[c->n_pages++] = c->seq[i]->page[p];
            }
    return NS_OK;
}

static void cast_close(const struct ns_wave *w, struct cast *c)
{
    ns_budget_give(w->engine->budget, c->seq);
    ns_budget_give(w->engine->budget, c->from);
    ns_budget_give(w->engine->budget, c->into);
    ns_budget_give(w->engine->budget, c->page);
}

/* ---- writing -------------------------------------------------------------------------------------------------------------------------------- */

/* A stream with a sticky error, so that a list of values reads as a list. */
struct pen {
    struct ns_side_out file;
    enum ns_code rc;
    struct ns_error *err;
};

static void put(struct pen *pen, const void *bytes, size_t n)
{
    if (pen->rc == NS_OK && ns_signal_count() > 1)
        pen->rc = ns_error_set(pen->err, NS_STOPPED, "a second signal ended the writing of the wave");
    if (pen->rc == NS_OK)
        pen->rc = ns_side_put(&pen->file, bytes, n, pen->err);
}

static void put_u64(struct pen *pen, uint64_t v)
{
    if (pen->rc == NS_OK)
        pen->rc = ns_side_put_u64(&pen->file, v, pen->err);
}

static void put_description(struct pen *pen, const struct ns_wave *w, const struct cast *c)
{
    for (size_t i = 0; i < w->n_segments; i++) {
        put_u64(pen, w->segment[i].n);
        put_u64(pen, w->segment[i].parent == NS_NO_PARENT ? 0 : w->segment[i].parent + 1ull);
        put_u64(pen, c->from[i]);
        put_u64(pen, c->into[i]);
    }
    put(pen, w->token, w->lineage.n_rows * sizeof *w->token);
    for (size_t i = 0; i < w->asks.n_asks; i++) {
        put_u64(pen, w->asks.ask[i].segment);
        put_u64(pen, w->asks.ask[i].offset);
        put_u64(pen, w->asks.ask[i].target);
        put_u64(pen, w->asks.ask[i].n_top);
    }
}

/* Rows of page p of a sequence that hold something. */
static size_t page_rows(const struct ns_engine *e, const struct ns_seq *seq, uint32_t p)
{
    uint32_t left = seq->n_positions - p * e->block;
    return left < e->block ? left : e->block;
}

static void put_sequences(struct pen *pen, const struct ns_engine *e, const struct cast *c)
{
    for (size_t i = 0; i < c->n; i++) {
        put_u64(pen, c->seq[i]->n_positions);
        for (uint32_t p = 0; p < c->seq[i]->n_pages; p++)
            put_u64(pen, page_number(c, c->seq[i]->page[p]));
    }
    size_t next = 0; /* pages were numbered in this order */
    for (size_t i = 0; i < c->n; i++)
        for (uint32_t p = 0; p < c->seq[i]->n_pages; p++) {
            if (next == c->n_pages || c->seq[i]->page[p] != c->page[next])
                continue;
            for (uint32_t l = 0; l < e->n_mla; l++)
                put(pen, ns_page_layer(e, c->page[next], l),
                    page_rows(e, c->seq[i], p) * e->key_floats * sizeof(float));
            next++;
        }
    assert(next == c->n_pages);
}

/* All layers of a sequence that had positions, else the layers done. A spilled one: with the log as far as it counts. */
static void put_recurrent(struct pen *pen, const struct ns_wave *w, const struct ns_seq *seq, uint32_t done)
{
    struct ns_engine *e = w->engine;
    if (!seq->kda && !seq->spilled)
        return;
    float *state = (float *)ns_budget_take_raw(e->budget, e->kda_layer_floats * sizeof(float), 64, pen->err);
    if (pen->rc == NS_OK && !state)
        pen->rc = NS_BUDGET;
    for (uint32_t k = 0; pen->rc == NS_OK && k < (seq->n_positions ? e->n_kda : done); k++) {
        uint32_t logged = seq->spilled ? seq->spilled->n_logged : 0;
        for (size_t h = 0; k < done && seq->spilled && h < w->lineage.n_homes; h++)
            if (w->lineage.home[h] == seq)
                logged = ns_spill_window_logged(w->lineage.window, h);
        pen->rc = ns_seq_kda_get(seq, k, logged, state, pen->err);
        put(pen, state, e->kda_layer_floats * sizeof(float));
    }
    ns_budget_give(e->budget, state);
}

static void put_progress(struct pen *pen, const struct ns_wave *w, const struct cast *c, uint32_t layer)
{
    const struct ns_engine *e = w->engine;
    uint32_t kda, mla;
    layers_done(e, layer, &kda, &mla);
    for (size_t i = 0; i < c->n; i++)
        put_recurrent(pen, w, c->seq[i], kda);
    for (size_t f = 0; f < w->lineage.n_fills; f++) {
        const struct ns_fill *fill = &w->lineage.fill[f];
        for (uint32_t l = 0; l < mla; l++)
            put(pen, ns_page_layer(e, fill->page, l) + (fill->begin % e->block) * e->key_floats,
                (fill->end - fill->begin) * e->key_floats * sizeof(float));
    }
    size_t bytes = w->lineage.n_rows * e->config.hidden * sizeof(float);
    put(pen, w->pass.x, bytes);
    for (uint32_t b = 0; b < w->pass.n_blocks; b++)
        put(pen, w->pass.block[b], bytes);
    for (size_t i = 0; i < w->n_segments; i++) {
        const struct ns_wave_fault_note *f = &w->fault[i];
        put_u64(pen, f->code);
        put_u64(pen, f->layer);
        put_u64(pen, f->position);
        put_u64(pen, f->expert);
        put_u64(pen, fault_kind(f->what));
    }
}

static void put_wave(struct pen *pen, const struct ns_wave *w, const struct cast *c, const void *notes, size_t n_notes)
{
    put_u64(pen, w->n_segments);
    put_u64(pen, w->asks.n_asks);
    put_u64(pen, c->n);
    put_u64(pen, c->n_pages);
    put_u64(pen, n_notes);
    put_u64(pen, w->pass.experts_requested);
    put_u64(pen, w->pass.experts_distinct);
    put_description(pen, w, c);
    put(pen, notes, n_notes);
    put_sequences(pen, w->engine, c);
    put_progress(pen, w, c, w->next - 1);
}

enum ns_code ns_wave_suspend(struct ns_wave *w, const char *path, const void *notes, size_t n_notes,
                             struct ns_suspend *out, struct ns_error *err)
{
    const struct ns_engine *e = w->engine;
    assert(w->next >= 1 && w->next <= e->plan.layers + 1 && !w->broken);
    struct cast c = {0};
    struct pen pen = {.err = err};
    struct ns_suspend s = {.next_layer = w->next - 1};
    struct ns_side_head head = {.kind = NS_SIDE_WAVE,
                                .field = {s.next_layer, e->plan.layers, e->block, e->n_kda * e->kda_layer_floats,
                                          e->n_mla * e->key_floats, w->lineage.n_rows}};
    memcpy(head.fingerprint, e->fingerprint, sizeof head.fingerprint);
    pen.rc = ns_spill_window_settle(w->lineage.window, err);
    if (pen.rc == NS_OK)
        pen.rc = cast_open(w, &c, err);
    if (pen.rc == NS_OK) {
        pen.rc = ns_side_create(path, e->budget, &pen.file, err);
        if (pen.rc == NS_OK) {
            put_wave(&pen, w, &c, notes, n_notes);
            if (pen.rc == NS_OK)
                pen.rc = ns_side_finish(&pen.file, &head, &s.bytes, s.checksum, err);
            else
                ns_side_abort(&pen.file);
            if (pen.rc != NS_OK)
                ns_code_ignore(ns_file_unlink(path, NULL));
        }
    }
    cast_close(w, &c);
    if (pen.rc == NS_OK)
        *out = s;
    return pen.rc;
}

/* ---- reading -------------------------------------------------------------------------------------------------------------------------------- */

struct reader {
    struct ns_side_in file;
    struct ns_suspended *s;
    struct ns_page **page;
    size_t n_pages;
    uint64_t n_rows, requested, distinct;
    uint32_t layer;
    enum ns_code rc;
    struct ns_error *err;
};

static void get(struct reader *r, void *bytes, size_t n)
{
    if (r->rc == NS_OK)
        r->rc = ns_side_get(&r->file, bytes, n, r->err);
}

static uint64_t get_u64(struct reader *r, uint64_t most)
{
    uint64_t v = 0;
    if (r->rc == NS_OK)
        r->rc = ns_side_get_u64(&r->file, most, &v, r->err);
    return v;
}

static void *take(struct reader *r, size_t n, size_t size)
{
    void *block = r->rc == NS_OK ? ns_budget_take(r->s->engine->budget, n * size + 1, r->err) : NULL;
    if (r->rc == NS_OK && !block)
        r->rc = NS_BUDGET;
    return block;
}

static void get_counts(struct reader *r)
{
    struct ns_suspended *s = r->s;
    s->desc.n_segments = (size_t)get_u64(r, r->n_rows);
    s->desc.n_asks = (size_t)get_u64(r, UINT32_MAX / sizeof(struct ns_ask));
    s->n_seqs = (size_t)get_u64(r, 2 * (uint64_t)s->desc.n_segments);
    r->n_pages = (size_t)get_u64(r, UINT32_MAX);
    s->n_notes = (size_t)get_u64(r, UINT32_MAX);
    r->requested = get_u64(r, UINT64_MAX);
    r->distinct = get_u64(r, UINT64_MAX);
    s->segment = (struct ns_segment *)take(r, s->desc.n_segments, sizeof *s->segment);
    s->ask = (struct ns_ask *)take(r, s->desc.n_asks, sizeof *s->ask);
    s->token = (uint32_t *)take(r, (size_t)r->n_rows, sizeof *s->token);
    s->notes = (uint8_t *)take(r, s->n_notes, 1);
    s->seq = (struct ns_seq **)take(r, s->n_seqs, sizeof(struct ns_seq *));
    r->page = (struct ns_page **)take(r, r->n_pages, sizeof(struct ns_page *));
    for (size_t i = 0; r->rc == NS_OK && i < s->n_seqs; i++)
        r->rc = ns_seq_open(s->engine, &s->seq[i], r->err);
    s->desc.segment = s->segment;
    s->desc.ask = s->ask;
}

static void get_description(struct reader *r)
{
    struct ns_suspended *s = r->s;
    uint64_t rows = 0;
    for (size_t i = 0; r->rc == NS_OK && i < s->desc.n_segments; i++) {
        uint64_t n = get_u64(r, r->n_rows - rows), parent = get_u64(r, i), from = get_u64(r, s->n_seqs),
                 into = get_u64(r, s->n_seqs);
        s->segment[i] = (struct ns_segment){.token = s->token + rows,
                                            .n = (uint32_t)n,
                                            .parent = parent ? (uint32_t)parent - 1 : NS_NO_PARENT,
                                            .from = from ? s->seq[from - 1] : NULL,
                                            .into = into ? s->seq[into - 1] : NULL};
        rows += n;
    }
    if (r->rc == NS_OK && rows != r->n_rows)
        r->rc = ns_error_set(r->err, NS_CORRUPT, "%" PRIu64 " rows in segments, %" PRIu64 " in all", rows, r->n_rows);
    get(r, s->token, (size_t)r->n_rows * sizeof *s->token);
    for (size_t i = 0; r->rc == NS_OK && i < s->desc.n_asks; i++) {
        s->ask[i].segment = (uint32_t)get_u64(r, UINT32_MAX);
        s->ask[i].offset = (uint32_t)get_u64(r, UINT32_MAX);
        s->ask[i].target = (uint32_t)get_u64(r, UINT32_MAX);
        s->ask[i].n_top = (uint32_t)get_u64(r, NS_TOP_MAX);
    }
    get(r, s->notes, s->n_notes);
}

/* Page tables first, then every page once, when the first sequence that names it comes by. */
static void get_sequences(struct reader *r)
{
    struct ns_engine *e = r->s->engine;
    for (size_t i = 0; r->rc == NS_OK && i < r->s->n_seqs; i++) {
        struct ns_seq *seq = r->s->seq[i];
        uint32_t n = (uint32_t)get_u64(r, e->plan.context);
        if (r->rc != NS_OK || n == 0)
            continue;
        uint32_t n_pages = e->n_mla ? (n + e->block - 1) / e->block : 0;
        r->rc = ns_seq_reserve(seq, n_pages, r->err);
        seq->n_positions = n;
        for (uint32_t p = 0; r->rc == NS_OK && p < n_pages; p++) {
            size_t number = (size_t)get_u64(r, r->n_pages ? r->n_pages - 1 : 0);
            if (r->rc == NS_OK && r->n_pages == 0)
                r->rc = ns_error_set(r->err, NS_CORRUPT, "a page that is not there");
            if (r->rc == NS_OK && !r->page[number]) {
                r->page[number] = ns_page_open(e, r->err);
                r->rc = r->page[number] ? NS_OK : NS_BUDGET;
            }
            if (r->rc != NS_OK)
                break;
            r->page[number]->n_refs++;
            seq->page[seq->n_pages++] = r->page[number];
        }
    }
    size_t next = 0;
    for (size_t i = 0; r->rc == NS_OK && i < r->s->n_seqs; i++)
        for (uint32_t p = 0; r->rc == NS_OK && p < r->s->seq[i]->n_pages; p++) {
            struct ns_seq *seq = r->s->seq[i];
            if (next == r->n_pages || seq->page[p] != r->page[next])
                continue;
            for (uint32_t l = 0; l < e->n_mla; l++)
                get(r, ns_page_layer(e, r->page[next], l), page_rows(e, seq, p) * e->key_floats * sizeof(float));
            next++;
        }
    if (r->rc == NS_OK && next != r->n_pages)
        r->rc = ns_error_set(r->err, NS_CORRUPT, "%zu pages found, %zu expected", next, r->n_pages);
}

static void get_faults(struct reader *r, struct ns_wave *w)
{
    for (size_t i = 0; r->rc == NS_OK && i < w->n_segments; i++) {
        struct ns_wave_fault_note f = {.code = (enum ns_code)get_u64(r, NS_CODE_COUNT - 1)};
        f.layer = (uint32_t)get_u64(r, w->engine->plan.layers);
        f.position = (uint32_t)get_u64(r, UINT32_MAX);
        f.expert = (uint32_t)get_u64(r, UINT32_MAX);
        f.what = fault_kinds[get_u64(r, NS_COUNT(fault_kinds) - 1)];
        w->fault[i] = f;
        if (r->rc == NS_OK && f.code != NS_OK)
            ns_wave_mark(w, i);
    }
}

static void get_recurrent(struct reader *r, struct ns_seq *seq, uint32_t done)
{
    struct ns_engine *e = r->s->engine;
    if (!seq->kda && !seq->spilled)
        return;
    float *state = (float *)take(r, e->kda_layer_floats, sizeof *state);
    for (uint32_t k = 0; r->rc == NS_OK && k < (seq->n_positions ? e->n_kda : done); k++) {
        get(r, state, e->kda_layer_floats * sizeof *state);
        if (r->rc == NS_OK)
            r->rc = ns_seq_kda_put(seq, k, state, r->err);
    }
    ns_budget_give(e->budget, state);
}

static void get_progress(struct reader *r, struct ns_wave *w)
{
    const struct ns_engine *e = w->engine;
    uint32_t kda, mla;
    layers_done(e, r->layer, &kda, &mla);
    for (size_t i = 0; i < r->s->n_seqs; i++)
        get_recurrent(r, r->s->seq[i], kda);
    for (size_t f = 0; f < w->lineage.n_fills; f++) {
        const struct ns_fill *fill = &w->lineage.fill[f];
        for (uint32_t l = 0; l < mla; l++)
            get(r, ns_page_layer(e, fill->page, l) + (fill->begin % e->block) * e->key_floats,
                (fill->end - fill->begin) * e->key_floats * sizeof(float));
    }
    if (r->rc == NS_OK)
        r->rc = ns_wave_begin(w, r->layer, r->err);
    size_t bytes = w->lineage.n_rows * e->config.hidden * sizeof(float);
    get(r, w->pass.x, bytes);
    for (uint32_t b = 0; b < w->pass.n_blocks; b++)
        get(r, (void *)(uintptr_t)w->pass.block[b], bytes); /* sources are const to the layers, not to us */
    get_faults(r, w);
    w->pass.experts_requested = r->requested;
    w->pass.experts_distinct = r->distinct;
    w->next = r->layer + 1;
}

static enum ns_code check_shape(const struct ns_engine *e, const struct ns_side_head *head, struct ns_error *err)
{
    const uint64_t *f = head->field;
    if (f[0] > e->plan.layers || f[1] != e->plan.layers || f[2] != e->block || f[3] != e->n_kda * e->kda_layer_floats ||
        f[4] != e->n_mla * e->key_floats || f[5] == 0 || f[5] > UINT32_MAX)
        return ns_error_set(err, NS_CORRUPT, "the wave was made with other layers or pages");
    if (f[5] > e->plan.rows_max)
        return ns_error_set(err, NS_BUDGET, "the wave has %" PRIu64 " rows, %" PRIu32 " fit now", f[5],
                            e->plan.rows_max);
    return NS_OK;
}

enum ns_code ns_suspend_measure(const char *path, const char *fingerprint, struct ns_budget *budget,
                                struct ns_suspend_size *out, struct ns_error *err)
{
    struct ns_side_in file;
    struct ns_side_head head;
    const uint64_t *f = head.field;
    uint64_t count[4] = {0}; /* segments, asks, sequences, pages */
    enum ns_code rc = ns_side_open(path, fingerprint, NS_SIDE_WAVE, budget, &file, &head, err);
    if (rc != NS_OK)
        return rc;
    for (size_t i = 0; rc == NS_OK && i < NS_COUNT(count); i++)
        rc = ns_side_get_u64(&file, UINT64_MAX, &count[i], err);
    ns_side_close(&file);
    if (rc == NS_OK &&
        (f[1] > UINT32_MAX || f[2] == 0 || f[2] > UINT32_MAX || f[4] > UINT32_MAX || f[5] == 0 || f[5] > UINT32_MAX))
        rc = ns_error_set(err, NS_CORRUPT, "%s: no model has such a wave", path);
    if (rc != NS_OK)
        return rc;
    *out = (struct ns_suspend_size){.rows = (uint32_t)f[5],
                                    .layers = (uint32_t)f[1],
                                    .block_positions = (uint32_t)f[2],
                                    .position_bytes = f[4] * sizeof(float),
                                    .n_seqs = (double)count[2]};
    if (f[4] > 0) /* a sequence that is made may copy a page and begin one */
        out->n_pages = (double)count[3] + (double)f[5] / (double)f[2] + 2 * out->n_seqs;
    return NS_OK;
}

static void drop_sequences(struct ns_suspended *s)
{
    for (size_t i = 0; s->seq && i < s->n_seqs; i++)
        ns_seq_close(s->seq[i]);
    s->n_seqs = 0;
}

static enum ns_code read_wave(struct reader *r, const struct ns_suspend *want, const struct ns_probe *probe,
                              struct ns_wave **wave)
{
    char checksum[NS_SHA256_HEX];
    get_counts(r);
    get_description(r);
    get_sequences(r);
    if (r->rc == NS_OK) {
        r->rc = ns_wave_open(r->s->engine, &r->s->desc, probe, wave, r->err);
        if (r->rc == NS_INPUT) { /* what was refused is what the file said */
            r->rc = NS_CORRUPT;
            if (r->err)
                r->err->code = NS_CORRUPT;
        }
    }
    if (r->rc != NS_OK)
        return r->rc;
    get_progress(r, *wave);
    if (r->rc == NS_OK)
        r->rc = ns_side_end(&r->file, checksum, r->err);
    if (r->rc == NS_OK && want->checksum[0] && strcmp(want->checksum, checksum) != 0)
        r->rc = ns_error_set(r->err, NS_CORRUPT, "checksum %s, %s expected", checksum, want->checksum);
    return r->rc;
}

enum ns_code ns_wave_resume(struct ns_engine *e, const char *path, const struct ns_suspend *want,
                            const struct ns_probe *probe, struct ns_suspended **out, struct ns_wave **wave,
                            struct ns_error *err)
{
    struct ns_side_head head;
    struct reader r = {.err = err};
    struct ns_wave *w = NULL;
    r.s = (struct ns_suspended *)ns_budget_take(e->budget, sizeof *r.s, err);
    if (!r.s)
        return NS_BUDGET;
    r.s->engine = e;
    r.rc = ns_side_open(path, e->fingerprint, NS_SIDE_WAVE, e->budget, &r.file, &head, err);
    if (r.rc == NS_OK)
        r.rc = check_shape(e, &head, err);
    r.layer = (uint32_t)head.field[0];
    r.n_rows = head.field[5];
    if (r.rc == NS_OK)
        r.rc = read_wave(&r, want, probe, &w);
    ns_side_close(&r.file);
    for (size_t i = 0; r.page && i < r.n_pages; i++)
        if (r.page[i] && r.page[i]->n_refs == 0)
            ns_page_drop(e, r.page[i]);
    ns_budget_give(e->budget, r.page);
    if (r.rc != NS_OK) {
        ns_wave_close(w);
        drop_sequences(r.s);
        ns_suspended_close(r.s);
        return ns_error_wrap(err, r.rc, "suspended wave %s", path);
    }
    *out = r.s;
    *wave = w;
    return NS_OK;
}

const struct ns_wave_desc *ns_suspended_desc(const struct ns_suspended *s)
{
    return &s->desc;
}

const void *ns_suspended_notes(const struct ns_suspended *s, size_t *n)
{
    *n = s->n_notes;
    return s->notes;
}

void ns_suspended_close(struct ns_suspended *s)
{
    if (!s)
        return;
    struct ns_budget *budget = s->engine->budget;
    ns_budget_give(budget, s->segment);
    ns_budget_give(budget, s->ask);
    ns_budget_give(budget, s->token);
    ns_budget_give(budget, s->notes);
    ns_budget_give(budget, s->seq);
    ns_budget_give(budget, s);
}
