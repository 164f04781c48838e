/* ask.c - which rows have logits, and what is answered. Several asks may name one row; the head sees each row once, and
 * targets sorted by token, because the vocabulary passes once. */
#include "engine/engine_impl.h"

static void *take(struct ns_engine *engine, size_t n, size_t size, struct ns_error *err)
{
    size_t bytes;
    if (!ns_size_mul(n ? n : 1, size, &bytes)) {
        ns_error_set(err, NS_BUDGET, "the wave's questions overflow");
        return NULL;
    }
    return ns_budget_take(engine->budget, bytes, err);
}

static enum ns_code check(const struct ns_engine *engine, const struct ns_ask *ask, size_t n,
                          const struct ns_lineage *l, struct ns_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ask[i].segment >= l->n_segments || ask[i].offset >= l->seg[ask[i].segment].n)
            return ns_error_set(err, NS_INPUT, "ask %zu: segment %" PRIu32 " offset %" PRIu32 " is not in the wave", i,
                                ask[i].segment, ask[i].offset);
        if (ask[i].target != NS_NO_TOKEN && ask[i].target >= engine->config.vocab)
            return ns_error_set(err, NS_INPUT, "ask %zu: token %" PRIu32 ", the vocabulary has %" PRIu32, i,
                                ask[i].target, engine->config.vocab);
        if (ask[i].n_top == 0 || ask[i].n_top > NS_TOP_MAX)
            return ns_error_set(err, NS_INPUT, "ask %zu: %" PRIu32 " best tokens, 1 to %d can be given", i,
                                ask[i].n_top, NS_TOP_MAX);
    }
    return NS_OK;
}

/* Heap sort of index by key[index] (no recursion, no memory, no luck). */
static void sift(uint32_t *index, size_t root, size_t n, const uint32_t *key)
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && key[index[child]] < key[index[child + 1]])
            child++;
        if (key[index[root]] >= key[index[child]])
            return;
        uint32_t t = index[root];
        index[root] = index[child];
        index[child] = t;
    }
}

static void sort_index(uint32_t *index, size_t n, const uint32_t *key)
{
    for (size_t i = 0; i < n; i++)
        index[i] = (uint32_t)i;
    for (size_t i = n / 2; i-- > 0;)
        sift(index, i, n, key);
    for (size_t end = n; end > 1; end--) {
        uint32_t t = index[0];
        index[0] = index[end - 1];
        index[end - 1] = t;
        sift(index, 0, end - 1, key);
    }
}

/* Distinct rows ascending, head_of, and n_top as the largest wish for the row. */
static void collect_rows(struct ns_asks *a, const struct ns_lineage *l, uint32_t *index, uint32_t *key)
{
    for (size_t i = 0; i < a->n_asks; i++)
        key[i] = l->seg[a->ask[i].segment].row + a->ask[i].offset;
    sort_index(index, a->n_asks, key);
    for (size_t i = 0; i < a->n_asks; i++) {
        uint32_t ask = index[i];
        if (a->n_rows == 0 || a->row[a->n_rows - 1] != key[ask])
            a->row[a->n_rows++] = key[ask];
        uint32_t head = (uint32_t)a->n_rows - 1;
        a->head_of[ask] = head;
        a->head[head].finite = true;
        if (a->head[head].n_top < a->ask[ask].n_top)
            a->head[head].n_top = a->ask[ask].n_top;
    }
}

static void collect_targets(struct ns_asks *a, uint32_t *index, uint32_t *key)
{
    for (size_t i = 0; i < a->n_asks; i++)
        key[i] = a->ask[i].target; /* NS_NO_TOKEN sorts last */
    sort_index(index, a->n_asks, key);
    for (size_t i = 0; i < a->n_asks; i++) {
        uint32_t ask = index[i];
        a->target_of[ask] = UINT32_MAX;
        if (key[ask] == NS_NO_TOKEN)
            continue;
        a->target_of[ask] = (uint32_t)a->n_targets;
        a->target[a->n_targets++] = (struct ns_head_target){.head = a->head_of[ask], .token = key[ask]};
    }
}

enum ns_code ns_asks_open(struct ns_engine *engine, const struct ns_ask *ask, size_t n,
                          const struct ns_lineage *lineage, struct ns_asks *asks, struct ns_error *err)
{
    *asks = (struct ns_asks){0};
    enum ns_code rc = check(engine, ask, n, lineage, err);
    if (rc != NS_OK)
        return rc;
    struct ns_asks a = {.ask = ask, .n_asks = n};
    uint32_t *index = (uint32_t *)take(engine, n, 2 * sizeof *index, err);
    a.row = (uint32_t *)take(engine, n, sizeof *a.row, err);
    a.head_of = (uint32_t *)take(engine, n, sizeof *a.head_of, err);
    a.target_of = (uint32_t *)take(engine, n, sizeof *a.target_of, err);
    a.head = (struct ns_head_row *)take(engine, n, sizeof *a.head, err);
    a.result = (struct ns_head_result *)take(engine, n, sizeof *a.result, err);
    a.target = (struct ns_head_target *)take(engine, n, sizeof *a.target, err);
    a.answer = (struct ns_answer *)take(engine, n, sizeof *a.answer, err);
    if (!index || !a.row || !a.head_of || !a.target_of || !a.head || !a.result || !a.target || !a.answer) {
        ns_asks_close(engine, &a);
        rc = NS_BUDGET;
    } else {
        collect_rows(&a, lineage, index, index + n);
        collect_targets(&a, index, index + n);
        *asks = a;
    }
    ns_budget_give(engine->budget, index);
    return rc;
}

void ns_asks_answer(struct ns_asks *a, const bool *failed)
{
    for (size_t i = 0; i < a->n_asks; i++) {
        const struct ns_head_row *head = &a->head[a->head_of[i]];
        const struct ns_head_result *r = &a->result[a->head_of[i]];
        struct ns_answer *out = &a->answer[i];
        if (failed[a->ask[i].segment])
            continue; /* ok stays false */
        out->ok = true;
        out->n_top = head->n_kept < a->ask[i].n_top ? head->n_kept : a->ask[i].n_top;
        for (uint32_t t = 0; t < out->n_top; t++) {
            out->top_id[t] = head->top_id[t];
            out->top_logprob[t] = (head->top_logit[t] - r->max) - r->log_sum;
        }
        out->best = out->top_id[0];
        out->best_logprob = out->top_logprob[0];
        if (a->target_of[i] != UINT32_MAX)
            out->target_logprob = (a->target[a->target_of[i]].logit - r->max) - r->log_sum;
    }
}

void ns_asks_close(struct ns_engine *engine, struct ns_asks *a)
{
    void *block[] = {a->row, a->head_of, a->target_of, a->head, a->result, a->target, a->answer};
    for (size_t i = 0; i < NS_COUNT(block); i++)
        ns_budget_give(engine->budget, block[i]);
    *a = (struct ns_asks){0};
}
