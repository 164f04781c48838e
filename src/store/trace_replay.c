/* trace_replay.c - recorded routing against ways of deciding who stays.
 *
 * WHAT   A trace says which experts each token chose in each layer. Its tokens are cut into waves; in a wave each layer
 *        asks once for each expert of its union, ascending. The replay counts how many of these requests find their expert
 *        in memory under LRU, LFU, the ranked policy of residency.c (the very code the store runs), and Belady's bound,
 *        which knows the future.
 * WHY    What a bigger memory or another policy is worth can be read off before anybody buys or writes anything.
 *        Belady may refuse an expert that is wanted later than all it holds, as the ranked policy may; LRU and LFU are the
 *        textbook ones and always take in what was just read. */
#include "store/store_impl.h"

#include <string.h>

#define NEVER UINT32_MAX

/* All requests of the trace in order. */
struct requests {
    struct ns_budget *budget;
    uint32_t *key, *rows, *next; /* next: index of the key's next request, NEVER */
    uint32_t n, n_keys;
    uint32_t *group; /* [n_groups + 1]: first request of each (wave, layer) */
    uint32_t n_groups, n_layers;
};

static void requests_fini(struct requests *q)
{
    ns_budget_give(q->budget, q->key);
    ns_budget_give(q->budget, q->rows);
    ns_budget_give(q->budget, q->next);
    ns_budget_give(q->budget, q->group);
}

/* The unions of all waves and layers. count [n_experts] is zero before and after. */
static void collect(struct requests *q, const struct ns_trace *t, uint32_t wave_tokens, uint32_t *count)
{
    for (uint32_t begin = 0; begin < t->n_tokens; begin += wave_tokens) {
        uint32_t end = t->n_tokens - begin < wave_tokens ? t->n_tokens : begin + wave_tokens;
        for (uint32_t layer = 0; layer < t->n_layers; layer++) {
            for (uint32_t token = begin; token < end; token++) {
                const uint32_t *id = t->id + ((size_t)token * t->n_layers + layer) * t->top_k;
                for (uint32_t k = 0; k < t->top_k; k++)
                    count[id[k]]++;
            }
            q->group[q->n_groups++] = q->n;
            for (uint32_t e = 0; e < t->n_experts; e++)
                if (count[e] > 0) {
                    q->key[q->n] = layer * t->n_experts + e;
                    q->rows[q->n++] = count[e];
                    count[e] = 0;
                }
        }
    }
    q->group[q->n_groups] = q->n;
}

static enum ns_code requests_init(struct requests *q, const struct ns_trace *t, uint32_t wave_tokens,
                                  struct ns_budget *budget, struct ns_error *err)
{
    *q = (struct requests){.budget = budget, .n_keys = t->n_layers * t->n_experts, .n_layers = t->n_layers};
    uint64_t most = (uint64_t)t->n_tokens * t->n_layers * t->top_k;
    uint64_t waves = ((uint64_t)t->n_tokens + wave_tokens - 1) / wave_tokens;
    if (most >= UINT32_MAX || (uint64_t)t->n_layers * t->n_experts >= UINT32_MAX)
        return ns_error_set(err, NS_INPUT, "a trace of %" PRIu64 " choices is too long", most);
    uint32_t *count = ns_budget_take(budget, t->n_experts * sizeof *count, err);
    uint32_t *last = ns_budget_take_raw(budget, q->n_keys * sizeof *last, 64, err);
    q->key = ns_budget_take(budget, most * sizeof *q->key, err);
    q->rows = ns_budget_take(budget, most * sizeof *q->rows, err);
    q->next = ns_budget_take(budget, most * sizeof *q->next, err);
    q->group = ns_budget_take(budget, (waves * t->n_layers + 1) * sizeof *q->group, err);
    enum ns_code rc = count && last && q->key && q->rows && q->next && q->group ? NS_OK : NS_BUDGET;
    if (rc == NS_OK) {
        collect(q, t, wave_tokens, count);
        memset(last, 0xFF, q->n_keys * sizeof *last); /* NEVER */
        for (uint32_t i = q->n; i-- > 0;) {
            q->next[i] = last[q->key[i]];
            last[q->key[i]] = i;
        }
    }
    ns_budget_give(budget, count);
    ns_budget_give(budget, last);
    return rc;
}

/* LRU, LFU and Belady are one machine: each member has a worth, and the least worth leaves. */
static uint64_t replay_worth(const struct requests *q, enum ns_policy policy, uint32_t capacity, uint64_t *worth,
                             uint32_t *member, uint32_t *place)
{
    uint64_t hits = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        uint32_t key = q->key[i];
        if (place[key] > 0)
            hits++;
        if (policy == NS_POLICY_LRU)
            worth[key] = i;
        else if (policy == NS_POLICY_LFU)
            worth[key]++;
        else
            worth[key] = NEVER - q->next[i]; /* the later its next use, the less */
        if (place[key] > 0 || capacity == 0)
            continue;
        uint32_t at = n;
        if (n == capacity) {
            at = 0;
            for (uint32_t m = 1; m < n; m++)
                if (worth[member[m]] < worth[member[at]])
                    at = m;
            if (policy == NS_POLICY_BELADY && worth[key] <= worth[member[at]])
                continue;
            place[member[at]] = 0;
        } else {
            n++;
        }
        member[at] = key;
        place[key] = at + 1;
    }
    return hits;
}

static enum ns_code replay_ranked(const struct requests *q, const struct ns_trace *t, uint32_t capacity,
                                  struct ns_budget *budget, uint64_t *hits, struct ns_error *err)
{
    struct ns_rank rank;
    enum ns_code rc = ns_rank_init(&rank, q->n_keys, t->n_experts, budget, err);
    if (rc == NS_OK)
        ns_rank_set_capacity(&rank, capacity < q->n_keys ? capacity : q->n_keys);
    for (uint32_t g = 0; g < q->n_groups && rc == NS_OK; g++) {
        if (g % q->n_layers == 0)
            ns_rank_next_wave(&rank);
        ns_rank_at_layer(&rank, g % q->n_layers);
        for (uint32_t i = q->group[g]; i < q->group[g + 1]; i++) {
            ns_rank_note(&rank, q->key[i], q->rows[i]);
            rank.held[q->key[i]] = 1;
        }
        for (uint32_t i = q->group[g]; i < q->group[g + 1]; i++) {
            uint32_t evicted;
            rank.held[q->key[i]] = 0;
            if (ns_rank_place(&rank, q->key[i]) != NS_NO_PLACE)
                (*hits)++;
            else
                (void)ns_rank_offer(&rank, q->key[i], &evicted);
        }
    }
    ns_rank_fini(&rank);
    return rc;
}

enum ns_code ns_replay(const struct ns_trace *trace, enum ns_policy policy, uint32_t wave_tokens, uint32_t capacity,
                       struct ns_budget *budget, struct ns_replay_result *out, struct ns_error *err)
{
    if (trace->n_layers == 0 || trace->n_experts == 0 || trace->top_k == 0 || wave_tokens == 0)
        return ns_error_set(err, NS_INPUT, "a trace without layers, experts or choices, or a wave without tokens");
    size_t n_ids = (size_t)trace->n_tokens * trace->n_layers * trace->top_k;
    for (size_t i = 0; i < n_ids; i++)
        if (trace->id[i] >= trace->n_experts)
            return ns_error_set(err, NS_INPUT, "expert %" PRIu32 " in a trace of %" PRIu32, trace->id[i],
                                trace->n_experts);
    struct requests q;
    enum ns_code rc = requests_init(&q, trace, wave_tokens, budget, err);
    uint64_t hits = 0;
    if (rc == NS_OK && policy == NS_POLICY_RANKED) {
        rc = replay_ranked(&q, trace, capacity, budget, &hits, err);
    } else if (rc == NS_OK) {
        uint64_t *worth = ns_budget_take(budget, q.n_keys * sizeof *worth, err);
        uint32_t *member = ns_budget_take(budget, capacity * sizeof *member, err);
        uint32_t *place = ns_budget_take(budget, q.n_keys * sizeof *place, err);
        if (worth && member && place)
            hits = replay_worth(&q, policy, capacity, worth, member, place);
        else
            rc = NS_BUDGET;
        ns_budget_give(budget, worth);
        ns_budget_give(budget, member);
        ns_budget_give(budget, place);
    }
    if (rc == NS_OK)
        *out = (struct ns_replay_result){.requests = q.n, .hits = hits};
    requests_fini(&q);
    return rc;
}
