/* lineage.c - who descends from whom in a wave, and what that means for states and caches.
 *
 * WHAT   Segments form trees: a shared prefix and its branches. From them follow, once per wave: the order in which the
 *        recurrent state of a head is walked through a tree, with copies at branch points; for every segment the list of
 *        spans (pages, then rows of the wave) in which its positions lie; and which pages must be filled for sequences
 *        that are kept. Per layer only pointers are resolved.
 * WHY    Recurrent order: children are visited lightest first and the heaviest takes its parent's slot over, so a path
 *        holds at most log2(leaves) + 2 states at a time. A page that is complete inside a shared segment is made once and
 *        named by every sequence that descends from it.
 * INVARIANTS
 *   1. Slots never exceed ns_lineage_max_slots.                                  (asserted; wave_test: many_branches)
 *   2. The spans of a segment cover positions 0 .. end-1 in order, each once.     (wave_test: from_and_into)
 *   3. A page completed by a shared segment exists once.                          (wave_test: forks_share_pages)
 *   4. Without commit no into keeps anything.                                     (wave_test: abandoned_wave) */
#include "engine/engine_impl.h"

#include <assert.h>
#include <string.h>

uint32_t ns_lineage_max_slots(size_t n_segments)
{
    uint32_t slots = 2;
    for (; n_segments > 1; n_segments /= 2)
        slots++;
    return slots;
}

static void *take(struct ns_lineage *l, size_t n, size_t size, struct ns_error *err)
{
    size_t bytes;
    if (!ns_size_mul(n ? n : 1, size, &bytes)) {
        ns_error_set(err, NS_BUDGET, "the wave's tables overflow");
        return NULL;
    }
    return ns_budget_take(l->engine->budget, bytes, err);
}

/* ---- checks --------------------------------------------------------------------------------------------------------------------- */

static void clear_marks(const struct ns_segment *segment, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (segment[i].from)
            segment[i].from->n_from = segment[i].from->n_into = 0;
        if (segment[i].into)
            segment[i].into->n_from = segment[i].into->n_into = 0;
    }
}

static enum ns_code check_segment(const struct ns_engine *engine, const struct ns_segment *segment, size_t i,
                                  struct ns_error *err)
{
    const struct ns_segment *s = &segment[i];
    if (s->n == 0)
        return ns_error_set(err, NS_INPUT, "segment %zu is empty", i);
    if (s->parent != NS_NO_PARENT && s->parent >= i)
        return ns_error_set(err, NS_INPUT, "segment %zu: parent %" PRIu32 " does not come earlier", i, s->parent);
    if (s->parent != NS_NO_PARENT && s->from)
        return ns_error_set(err, NS_INPUT, "segment %zu has both a parent and a state to start from", i);
    for (uint32_t t = 0; t < s->n; t++)
        if (s->token[t] >= engine->config.vocab)
            return ns_error_set(err, NS_INPUT,
                                "segment %zu: token %" PRIu32 " at %" PRIu32 ", the vocabulary has %" PRIu32, i,
                                s->token[t], t, engine->config.vocab);
    if (s->from)
        s->from->n_from++;
    if (s->into && s->into->n_into++)
        return ns_error_set(err, NS_INPUT, "segment %zu: its sequence gets the end of another segment too", i);
    if (s->into && s->into != s->from && s->into->n_positions)
        return ns_error_set(err, NS_INPUT, "segment %zu: the sequence it goes into has %" PRIu32 " positions", i,
                            s->into->n_positions);
    return NS_OK;
}

static enum ns_code check(const struct ns_engine *engine, const struct ns_segment *segment, size_t n,
                          struct ns_error *err)
{
    if (n == 0)
        return ns_error_set(err, NS_INPUT, "a wave without segments");
    size_t rows = 0;
    clear_marks(segment, n);
    for (size_t i = 0; i < n; i++) {
        enum ns_code rc = check_segment(engine, segment, i, err);
        if (rc != NS_OK)
            return rc;
        rows += segment[i].n;
        if (rows > engine->plan.rows_max)
            return ns_error_set(err, NS_INPUT, "the wave has more than %" PRIu32 " rows", engine->plan.rows_max);
    }
    for (size_t i = 0; i < n; i++) {
        if (segment[i].into && segment[i].into == segment[i].from && segment[i].from->n_from > 1)
            return ns_error_set(err, NS_INPUT, "segment %zu goes on in a sequence that others start from", i);
        if (segment[i].into && segment[i].into != segment[i].from && segment[i].into->n_from)
            return ns_error_set(err, NS_INPUT, "segment %zu goes into a sequence that others start from", i);
    }
    return NS_OK;
}

/* ---- positions ------------------------------------------------------------------------------------------------------------------- */

static const struct ns_seq *origin(const struct ns_lineage *l, uint32_t s)
{
    const struct ns_seq *from = l->segment[l->seg[s].root].from;
    return from && from->n_positions ? from : NULL;
}

static uint32_t end_of(const struct ns_lineage *l, uint32_t s)
{
    return l->seg[s].start + l->seg[s].n;
}

static enum ns_code place(struct ns_lineage *l, struct ns_error *err)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        const struct ns_segment *s = &l->segment[i];
        struct ns_seg *seg = &l->seg[i];
        bool is_root = s->parent == NS_NO_PARENT;
        *seg = (struct ns_seg){.row = row, .n = s->n, .root = is_root ? i : l->seg[s->parent].root};
        uint64_t start = is_root ? (s->from ? s->from->n_positions : 0) : end_of(l, s->parent);
        if (start + s->n > l->engine->plan.context)
            return ns_error_set(err, NS_INPUT,
                                "segment %" PRIu32 " ends at position %" PRIu64 ", the context is %" PRIu32, i,
                                start + s->n, l->engine->plan.context);
        seg->start = (uint32_t)start;
        row += s->n;
        if (end_of(l, i) > l->n_positions)
            l->n_positions = end_of(l, i);
    }
    l->n_rows = row;
    for (uint32_t i = (uint32_t)l->n_segments; i-- > 0;) {
        l->seg[i].needs_pages |= l->segment[i].into != NULL;
        if (l->seg[i].needs_pages && l->segment[i].parent != NS_NO_PARENT)
            l->seg[l->segment[i].parent].needs_pages = true;
    }
    l->n_visible = (uint32_t *)take(l, l->n_rows, sizeof *l->n_visible, err);
    if (!l->n_visible)
        return NS_BUDGET;
    for (uint32_t i = 0; i < l->n_segments; i++)
        for (uint32_t t = 0; t < l->seg[i].n; t++)
            l->n_visible[l->seg[i].row + t] = l->seg[i].start + t + 1;
    return NS_OK;
}

/* ---- recurrent layers: the walk ------------------------------------------------------------------------------------------------------ */

/* Scratch of the walk, one entry a segment. */
struct walk {
    uint32_t *weight;          /* segments of the subtree */
    uint32_t *child, *sibling; /* first child, next sibling: heaviest first */
    uint32_t *left;            /* children not yet visited */
    uint32_t *place;           /* where the state after the segment is */
    uint32_t *stack, *free_slot;
    uint32_t n_free;
};

static uint32_t home_of(struct ns_lineage *l, struct ns_seq *seq)
{
    if (seq->home < l->n_homes && l->home[seq->home] == seq)
        return NS_STATE_HOME + seq->home;
    seq->home = l->n_homes;
    l->home[l->n_homes++] = seq;
    return NS_STATE_HOME + seq->home;
}

/* Children lists, heaviest child first: the stack then gives the heaviest last. */
static void link_children(const struct ns_lineage *l, struct walk *w)
{
    for (uint32_t i = (uint32_t)l->n_segments; i-- > 0;) {
        w->weight[i]++;
        uint32_t parent = l->segment[i].parent;
        if (parent == NS_NO_PARENT)
            continue;
        w->weight[parent] += w->weight[i];
        w->left[parent]++;
        if (w->child[parent] == UINT32_MAX || w->weight[w->child[parent]] <= w->weight[i]) {
            w->sibling[i] = w->child[parent];
            w->child[parent] = i;
        } else { /* only the heaviest has a place of its own */
            w->sibling[i] = w->sibling[w->child[parent]];
            w->sibling[w->child[parent]] = i;
        }
    }
}

static uint32_t slot_take(struct ns_lineage *l, struct walk *w)
{
    return w->n_free ? w->free_slot[--w->n_free] : l->n_slots++;
}

static void slot_give(struct walk *w, uint32_t place)
{
    if (place < NS_STATE_HOME)
        w->free_slot[w->n_free++] = place;
}

static struct ns_kda_step step_of(struct ns_lineage *l, struct walk *w, uint32_t i)
{
    const struct ns_segment *s = &l->segment[i];
    struct ns_kda_step step = {.row = l->seg[i].row, .n = l->seg[i].n, .source = NS_STATE_ZERO};
    bool last_child = false;
    if (s->parent != NS_NO_PARENT) {
        step.source = w->place[s->parent];
        last_child = --w->left[s->parent] == 0;
    } else if (s->from && s->from->n_positions) {
        step.source = home_of(l, s->from);
        step.replay = true;
    }
    if (s->into)
        step.target = home_of(l, s->into);
    else
        step.target = last_child && step.source < NS_STATE_HOME ? step.source : slot_take(l, w);
    if (last_child && step.source != step.target)
        slot_give(w, step.source);
    w->place[i] = step.target;
    if (w->child[i] == UINT32_MAX)
        slot_give(w, step.target);
    return step;
}

static void walk_tree(struct ns_lineage *l, struct walk *w, uint32_t root, uint32_t *n_steps)
{
    struct ns_kda_tree *tree = &l->tree[l->n_trees++];
    uint32_t n_stack = 0;
    tree->first = *n_steps;
    w->stack[n_stack++] = root;
    while (n_stack > 0) {
        uint32_t i = w->stack[--n_stack];
        l->step[(*n_steps)++] = step_of(l, w, i);
        for (uint32_t c = w->child[i]; c != UINT32_MAX; c = w->sibling[c])
            w->stack[n_stack++] = c;
    }
    tree->n = *n_steps - tree->first;
}

static enum ns_code plan_walks(struct ns_lineage *l, struct ns_error *err)
{
    size_t n = l->n_segments;
    l->step = (struct ns_kda_step *)take(l, n, sizeof *l->step, err);
    l->tree = (struct ns_kda_tree *)take(l, n, sizeof *l->tree, err);
    l->home = (struct ns_seq **)take(l, 2 * n, sizeof(struct ns_seq *), err);
    l->home_state = (float **)take(l, 2 * n, sizeof(float *), err);
    uint32_t *scratch = (uint32_t *)take(l, 7 * n, sizeof *scratch, err);
    if (!l->step || !l->tree || !l->home || !l->home_state || !scratch) {
        ns_budget_give(l->engine->budget, scratch);
        return NS_BUDGET;
    }
    struct walk w = {.weight = scratch,
                     .left = scratch + n,
                     .child = scratch + 2 * n,
                     .sibling = scratch + 3 * n,
                     .place = scratch + 4 * n,
                     .stack = scratch + 5 * n,
                     .free_slot = scratch + 6 * n};
    memset(w.child, 0xff, 2 * n * sizeof *scratch);
    link_children(l, &w);
    uint32_t n_steps = 0;
    for (uint32_t i = 0; i < n; i++)
        if (l->segment[i].parent == NS_NO_PARENT)
            walk_tree(l, &w, i, &n_steps);
    if (l->n_slots == 0)
        l->n_slots = 1;
    ns_budget_give(l->engine->budget, scratch);
    assert(l->n_slots <= ns_lineage_max_slots(n));
    return NS_OK;
}

/* ---- full attention: spans and blocks of queries ---------------------------------------------------------------------------------------- */

static size_t spans_of(const struct ns_lineage *l, uint32_t i)
{
    const struct ns_segment *s = &l->segment[i];
    if (s->parent != NS_NO_PARENT)
        return (size_t)l->seg[s->parent].n_spans + 1;
    const struct ns_seq *from = origin(l, i);
    return (from ? from->n_pages : 0) + (size_t)1;
}

static enum ns_code plan_spans(struct ns_lineage *l, struct ns_error *err)
{
    size_t total = 0;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        size_t n = spans_of(l, i);
        l->seg[i].n_spans = (uint32_t)n;
        if (!ns_size_add(total, n, &total) || total > UINT32_MAX)
            return ns_error_set(err, NS_BUDGET, "the wave's prefixes are nested too deeply");
    }
    l->source = (struct ns_span_source *)take(l, total, sizeof *l->source, err);
    l->span = (struct ns_key_run *)take(l, total, sizeof *l->span, err);
    if (!l->source || !l->span)
        return NS_BUDGET;
    uint32_t block = l->engine->block;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        struct ns_seg *seg = &l->seg[i];
        struct ns_span_source *out = l->source + l->n_spans;
        uint32_t parent = l->segment[i].parent, n = 0;
        seg->first_span = (uint32_t)l->n_spans;
        if (parent != NS_NO_PARENT) {
            n = l->seg[parent].n_spans;
            memcpy(out, l->source + l->seg[parent].first_span, n * sizeof *out);
            seg->n_from_spans = l->seg[parent].n_from_spans;
        } else if (origin(l, i)) {
            const struct ns_seq *from = origin(l, i);
            for (; n < from->n_pages; n++) {
                uint32_t left = from->n_positions - n * block;
                out[n] = (struct ns_span_source){.page = from->page[n], .n = left < block ? left : block};
            }
            seg->n_from_spans = n;
        }
        if (n > seg->n_from_spans && out[n - 1].row + out[n - 1].n == seg->row)
            out[n - 1].n += seg->n; /* lies right behind its parent */
        else
            out[n++] = (struct ns_span_source){.row = seg->row, .n = seg->n};
        seg->n_spans = n;
        l->n_spans += n;
    }
    return NS_OK;
}

/* Long contexts take fewer queries at a time: the scores of a block are whole in memory. */
enum { QUERY_ROWS = 16, SCORES = 1 << 19 };

uint32_t ns_lineage_short_context(void)
{
    return SCORES / QUERY_ROWS;
}

uint32_t ns_lineage_query_rows(uint32_t n_positions)
{
    uint32_t n = SCORES / (n_positions ? n_positions : 1);
    return n < 1 ? 1 : n > QUERY_ROWS ? QUERY_ROWS : n;
}

static enum ns_code plan_blocks(struct ns_lineage *l, struct ns_error *err)
{
    uint32_t most = ns_lineage_query_rows(l->n_positions);
    l->n_block_rows = most;
    size_t n = 0;
    for (uint32_t i = 0; i < l->n_segments; i++)
        n += (l->seg[i].n + most - 1) / most;
    l->block = (struct ns_mla_block *)take(l, n, sizeof *l->block, err);
    if (!l->block)
        return NS_BUDGET;
    for (uint32_t i = 0; i < l->n_segments; i++)
        for (uint32_t t = 0; t < l->seg[i].n; t += most)
            l->block[l->n_blocks++] = (struct ns_mla_block){.row = l->seg[i].row + t,
                                                            .n = l->seg[i].n - t < most ? l->seg[i].n - t : most,
                                                            .first_span = l->seg[i].first_span,
                                                            .n_spans = l->seg[i].n_spans};
    return NS_OK;
}

/* ---- pages of kept sequences ------------------------------------------------------------------------------------------------------------- */

/* Does page idx of segment i's line continue the sequence's own unfull page? */
static bool is_own_tail(const struct ns_lineage *l, uint32_t i, uint32_t idx)
{
    const struct ns_segment *s = &l->segment[i];
    return s->into && s->into == s->from && s->from->n_positions % l->engine->block != 0 &&
           idx == s->from->n_positions / l->engine->block;
}

static enum ns_code new_page(struct ns_lineage *l, uint32_t i, uint32_t idx, uint32_t end, struct ns_page **out,
                             struct ns_error *err)
{
    struct ns_fill *fill = &l->fill[l->n_fills];
    *fill = (struct ns_fill){.segment = i, .begin = idx * l->engine->block, .end = end};
    if (is_own_tail(l, i, idx)) {
        fill->page = l->segment[i].from->page[idx];
        fill->begin = l->segment[i].from->n_positions;
    } else {
        fill->page = ns_page_open(l->engine, err);
    }
    if (!fill->page)
        return NS_BUDGET;
    l->n_fills++;
    *out = fill->page;
    return NS_OK;
}

static enum ns_code plan_pages(struct ns_lineage *l, struct ns_error *err)
{
    uint32_t block = l->engine->block;
    size_t n_full = 0, n_tails = 0;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        struct ns_seg *seg = &l->seg[i];
        seg->n_new_pages = seg->needs_pages && l->engine->n_mla ? end_of(l, i) / block - seg->start / block : 0;
        n_full += seg->n_new_pages;
        n_tails += l->segment[i].into && end_of(l, i) % block != 0;
    }
    l->page = (struct ns_page **)take(l, n_full, sizeof(struct ns_page *), err);
    l->fill = (struct ns_fill *)take(l, n_full + n_tails, sizeof *l->fill, err);
    if (!l->page || !l->fill)
        return NS_BUDGET;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        struct ns_seg *seg = &l->seg[i];
        struct ns_seq *into = l->segment[i].into;
        seg->first_page = l->n_pages;
        for (uint32_t p = 0; p < seg->n_new_pages; p++) {
            uint32_t idx = seg->start / block + p;
            enum ns_code rc = new_page(l, i, idx, (idx + 1) * block, &l->page[l->n_pages], err);
            if (rc != NS_OK)
                return rc;
            l->n_pages++;
        }
        if (!into)
            continue;
        uint32_t end = end_of(l, i);
        enum ns_code rc = ns_seq_reserve(into, l->engine->n_mla ? (end + block - 1) / block : 0, err);
        if (rc == NS_OK && l->engine->n_mla && end % block != 0)
            rc = new_page(l, i, end / block, end, &seg->tail, err);
        if (rc != NS_OK)
            return rc;
    }
    return NS_OK;
}

/* ---- spilled homes --------------------------------------------------------------------------------------------------- */

enum ns_code ns_lineage_page_in(struct ns_lineage *l, bool may_append, struct ns_error *err)
{
    if (!l->engine->spill || l->n_homes == 0)
        return NS_OK;
    struct ns_spill_home *home = (struct ns_spill_home *)take(l, l->n_homes, sizeof *home, err);
    if (!home)
        return NS_BUDGET;
    for (uint32_t i = 0; i < l->n_homes; i++)
        home[i].seq = l->home[i];
    for (uint32_t i = 0; i < l->n_segments; i++) {
        struct ns_seq *into = l->segment[i].into;
        if (!into)
            continue;
        home[into->home].n_new = l->seg[i].n;
        home[into->home].goes_on = into == l->segment[i].from && into->n_positions > 0;
    }
    enum ns_code rc = ns_spill_window_open(l->engine, home, l->n_homes, may_append, &l->window, err);
    ns_budget_give(l->engine->budget, home);
    return rc;
}

/* ---- the layers ------------------------------------------------------------------------------------------------------------------------------- */

void ns_lineage_kda(struct ns_lineage *l, uint32_t kda_index, struct ns_kda_work *work)
{
    for (uint32_t i = 0; i < l->n_homes; i++)
        l->home_state[i] = l->home[i]->spilled ? NULL : ns_seq_kda_layer(l->home[i], kda_index);
    *work = (struct ns_kda_work){
        .step = l->step, .tree = l->tree, .n_trees = l->n_trees, .n_slots = l->n_slots, .home = l->home_state};
    ns_spill_window_layer(l->window, kda_index, l->home_state, work);
}

void ns_lineage_mla(struct ns_lineage *l, uint32_t mla_index, float *latent, struct ns_mla_work *work)
{
    size_t key = l->engine->key_floats;
    for (size_t i = 0; i < l->n_spans; i++) {
        const struct ns_span_source *s = &l->source[i];
        l->span[i] =
            (struct ns_key_run){.rows = s->page ? ns_page_layer(l->engine, s->page, mla_index) : latent + s->row * key,
                                .ld = key,
                                .n = s->n};
    }
    *work = (struct ns_mla_work){.block = l->block,
                                 .n_blocks = l->n_blocks,
                                 .span = l->span,
                                 .n_visible = l->n_visible,
                                 .latent = latent,
                                 .n_block_rows = l->n_block_rows,
                                 .n_positions = l->n_positions};
}

void ns_lineage_store(struct ns_lineage *l, uint32_t mla_index, const float *latent)
{
    size_t key = l->engine->key_floats;
    uint32_t block = l->engine->block;
    for (size_t f = 0; f < l->n_fills; f++) {
        const struct ns_fill *fill = &l->fill[f];
        const struct ns_seg *seg = &l->seg[fill->segment];
        const struct ns_seq *from = origin(l, fill->segment);
        float *out = ns_page_layer(l->engine, fill->page, mla_index) + (fill->begin % block) * key;
        uint32_t at = fill->begin, span = seg->n_from_spans, base = from ? from->n_positions : 0;
        if (at < base) { /* pages of the origin are all full but the last: found by division */
            span = at / block;
            base = span * block;
        }
        while (at < fill->end) {
            const struct ns_span_source *s = &l->source[seg->first_span + span];
            assert(span < seg->n_spans);
            if (at < base + s->n) {
                uint32_t n = base + s->n - at;
                if (n > fill->end - at)
                    n = fill->end - at;
                const float *rows = s->page ? ns_page_layer(l->engine, s->page, mla_index) : latent + s->row * key;
                memcpy(out, rows + (at - base) * key, n * key * sizeof *out);
                out += n * key;
                at += n;
            }
            base += s->n;
            span++;
        }
    }
}

/* ---- the end ----------------------------------------------------------------------------------------------------------------------------------- */

static void table_set(struct ns_seq *seq, uint32_t idx, struct ns_page *page, bool keep)
{
    if (!keep)
        page->n_refs++;
    seq->page[idx] = page;
}

static void commit_sequence(struct ns_lineage *l, uint32_t i)
{
    struct ns_seq *into = l->segment[i].into;
    const struct ns_seq *from = origin(l, i);
    uint32_t block = l->engine->block, end = end_of(l, i);
    if (l->engine->n_mla) {
        for (uint32_t s = i;; s = l->segment[s].parent) {
            const struct ns_seg *seg = &l->seg[s];
            for (uint32_t p = 0; p < seg->n_new_pages; p++) {
                uint32_t idx = seg->start / block + p;
                table_set(into, idx, l->page[seg->first_page + p], is_own_tail(l, s, idx) && s == i);
            }
            if (l->segment[s].parent == NS_NO_PARENT)
                break;
        }
        if (from && from != into)
            for (uint32_t p = 0; p < from->n_positions / block; p++)
                table_set(into, p, from->page[p], false);
        if (end % block != 0)
            table_set(into, end / block, l->seg[i].tail, is_own_tail(l, i, end / block));
        into->n_pages = (end + block - 1) / block;
    }
    into->n_positions = end;
}

/* New pages that no table names. */
static void drop_unused(struct ns_lineage *l)
{
    for (size_t f = 0; f < l->n_fills; f++)
        if (l->fill[f].page->n_refs == 0)
            ns_page_drop(l->engine, l->fill[f].page);
    l->n_fills = 0;
}

void ns_lineage_commit(struct ns_lineage *l, const bool *ok)
{
    /* Sequences that others start from are read by those first; so the ones that go on themselves come last. */
    for (uint32_t i = 0; i < l->n_segments; i++)
        if (l->segment[i].into && ok[i] && l->segment[i].into != l->segment[i].from)
            commit_sequence(l, i);
    for (uint32_t i = 0; i < l->n_segments; i++)
        if (l->segment[i].into && ok[i] && l->segment[i].into == l->segment[i].from)
            commit_sequence(l, i);
    drop_unused(l);
    ns_spill_window_commit(l->window);
    ns_spill_window_close(l->window);
    l->window = NULL;
    for (uint32_t i = 0; i < l->n_segments; i++)
        if (l->segment[i].into && !ok[i])
            ns_seq_reset(l->segment[i].into);
    l->segment = NULL; /* committed: close leaves the sequences alone */
}

void ns_lineage_close(struct ns_lineage *l)
{
    if (!l->engine)
        return;
    drop_unused(l);
    ns_spill_window_close(l->window);
    l->window = NULL;
    for (size_t i = 0; l->segment && i < l->n_segments; i++)
        if (l->segment[i].into && (l->written || l->segment[i].into->n_positions == 0))
            ns_seq_reset(l->segment[i].into);
    void *block[] = {l->seg,   l->n_visible, l->step, l->tree, l->home, l->home_state,
                     l->block, l->source,    l->span, l->page, l->fill};
    for (size_t i = 0; i < NS_COUNT(block); i++)
        ns_budget_give(l->engine->budget, block[i]);
    *l = (struct ns_lineage){0};
}

enum ns_code ns_lineage_open(struct ns_engine *engine, const struct ns_segment *segment, size_t n, struct ns_lineage *l,
                             struct ns_error *err)
{
    enum ns_code rc = check(engine, segment, n, err);
    if (rc != NS_OK)
        return rc;
    *l = (struct ns_lineage){.engine = engine, .segment = segment, .n_segments = n};
    l->seg = (struct ns_seg *)take(l, n, sizeof *l->seg, err);
    rc = l->seg ? place(l, err) : NS_BUDGET;
    if (rc == NS_OK)
        rc = plan_walks(l, err);
    if (rc == NS_OK)
        rc = plan_spans(l, err);
    if (rc == NS_OK)
        rc = plan_blocks(l, err);
    if (rc == NS_OK)
        rc = plan_pages(l, err);
    if (rc != NS_OK)
        ns_lineage_close(l);
    return rc;
}
