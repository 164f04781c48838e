/* group.c - who goes with whom.
 *
 * WHAT   Of the candidates that fairness allows, the next one for the wave is: one that needs no rows at all (identical to
 *        another); then the one that shares the longest prefix with rows of the wave; then the one that starts from the
 *        longest kept state; among equals, while the disk is the limit, the one that brings the fewest new experts for
 *        each of its rows; then the longest expected generation; then the first in fair order.
 * WHY    Shared prefixes save rows, which helps whatever the limit is; taken one after the other they also make the order
 *        depth first, so a prefix's state seldom outlives its wave. Experts matter only while the disk is the limit and
 *        there is a choice. A generation's tokens come one wave after the other, so the longest should start first.
 *        Which experts a row will choose is guessed from two memories: what its token chose when last seen (the early
 *        layers follow the token closely), and what the last 2 to 4 tokens of its item chose (the topic). Both look at 8
 *        layers spread over the depth. A guess can only cost time: no answer depends on it.
 * INVARIANTS
 *   1. An item that was passed overtake_most times is picked before all others, or none is.
 *      (fair_test: nobody_is_overtaken_more_often)
 *   2. Routing that was seen changes no answer.    (sched_test: random_runs_equal_alone) */
#include "sched/sched_impl.h"

#include <string.h>

enum {
    SLOTS = 8,         /* layers remembered */
    TOKENS = 4096,     /* tokens remembered, a power of two */
    SIGNATURES = 2048, /* items remembered */
    RENEW = 2,         /* tokens after which the newer half of a signature becomes the older one */
    LOOK_ROWS = 64,    /* rows of a candidate that are looked at */
    TOP_K_MOST = 64,   /* larger models are not grouped by experts */
    EXPERTS_MOST = 8192
};

#define NO_EXPERT UINT16_MAX

/* ---- what was seen ------------------------------------------------------------------------------------------------------ */

/* Without memory for it there is no grouping by experts, nothing else. */
static void open_memory(struct ns_sched *s)
{
    struct ns_group *g = &s->group;
    const struct ns_sched_model *m = &s->model;
    if (g->ready || g->refused || !s->has_model || s->options.experts == NS_SCHED_EXPERTS_NEVER)
        return;
    if (m->n_moe_layers == 0 || m->top_k == 0 || m->top_k > TOP_K_MOST || m->n_experts > EXPERTS_MOST)
        return;
    g->step = m->n_moe_layers > SLOTS ? m->n_moe_layers / SLOTS : 1;
    g->top_k = m->top_k;
    g->slot_words = (m->n_experts + 63) / 64;
    g->set_words = g->slot_words * SLOTS;
    size_t ids = (size_t)TOKENS * SLOTS * g->top_k;
    g->token = ns_budget_take(s->budget, TOKENS * sizeof *g->token, NULL);
    g->expert = ns_budget_take_raw(s->budget, ids * sizeof *g->expert, 64, NULL);
    g->wave = ns_budget_take(s->budget, g->set_words * sizeof *g->wave, NULL);
    g->signature = ns_budget_take(s->budget, 2 * SIGNATURES * g->set_words * sizeof *g->signature, NULL);
    g->signature_free = ns_budget_take(s->budget, SIGNATURES * sizeof *g->signature_free, NULL);
    if (!g->token || !g->expert || !g->wave || !g->signature || !g->signature_free) {
        ns_group_fini(s);
        g->refused = true;
        return;
    }
    memset(g->expert, 0xff, ids * sizeof *g->expert);
    for (uint32_t i = 0; i < TOKENS; i++)
        g->token[i] = NS_NIL;
    for (uint32_t i = 0; i < SIGNATURES; i++)
        g->signature_free[i] = SIGNATURES - 1 - i;
    g->n_free = SIGNATURES;
    g->ready = true;
}

void ns_group_fini(struct ns_sched *s)
{
    struct ns_group *g = &s->group;
    void *owned[] = {g->token, g->expert, g->wave, g->signature, g->signature_free, g->row_item, g->turn};
    for (size_t i = 0; i < NS_COUNT(owned); i++)
        ns_budget_give(s->budget, owned[i]);
    *g = (struct ns_group){0};
}

static uint32_t token_slot(uint32_t token)
{
    return (uint32_t)((token * 0x9e3779b97f4a7c15u) >> 32) & (TOKENS - 1);
}

static uint64_t *signature_of(const struct ns_sched *s, uint32_t signature, uint32_t half)
{
    return s->group.signature + (2 * (size_t)signature + half) * s->group.set_words;
}

static void set_bit(uint64_t *set, size_t slot_words, uint32_t slot, uint32_t expert)
{
    set[slot * slot_words + expert / 64] |= 1ull << (expert % 64);
}

static bool has_bit(const uint64_t *set, size_t slot_words, uint32_t slot, uint32_t expert)
{
    return set[slot * slot_words + expert / 64] >> (expert % 64) & 1;
}

void ns_sched_routing(struct ns_sched *s, uint32_t row, uint32_t layer, const uint32_t *expert, size_t n)
{
    struct ns_group *g = &s->group;
    uint32_t slot = g->ready ? layer / g->step : SLOTS;
    if (slot >= SLOTS || layer % g->step != g->step / 2 || !s->wave.open || row >= s->wave.out.rows || n > g->top_k)
        return;
    uint32_t token = s->wave.token[row], at = token_slot(token);
    uint16_t *seen = g->expert + (size_t)at * SLOTS * g->top_k;
    if (g->token[at] != token) {
        g->token[at] = token;
        memset(seen, 0xff, (size_t)SLOTS * g->top_k * sizeof *seen);
    }
    uint32_t item = g->row_item[row], signature = item == NS_NIL ? NS_NIL : s->item[item].signature;
    uint64_t *newer = signature == NS_NIL ? NULL : signature_of(s, signature, 0);
    for (size_t i = 0; i < n; i++) {
        if (expert[i] >= s->model.n_experts)
            continue;
        seen[slot * g->top_k + i] = (uint16_t)expert[i];
        if (newer)
            set_bit(newer, g->slot_words, slot, expert[i]);
    }
}

bool ns_sched_wants_routing(const struct ns_sched *s)
{
    if (!s->group.ready || s->options.in_order || s->options.experts == NS_SCHED_EXPERTS_NEVER || !s->wave.open)
        return false;
    bool no_wave_yet = s->account_all.waves == 0; /* nobody knows the limit */
    return s->items_used > s->wave.out.items && (ns_group_active(s) || no_wave_yet);
}

/* The rows near the end of an item's path tell its topic. */
enum ns_code ns_group_planned(struct ns_sched *s, struct ns_error *err)
{
    struct ns_group *g = &s->group;
    if (!g->ready)
        return NS_OK;
    void *array = g->row_item;
    enum ns_code rc =
        ns_sched_reserve(s->budget, &array, &g->row_item_capacity, s->wave.out.rows, sizeof *g->row_item, err);
    g->row_item = array;
    if (rc != NS_OK)
        return rc;
    memset(g->row_item, 0xff, s->wave.out.rows * sizeof *g->row_item);
    for (uint32_t r = 0; r < s->wave.n_rides; r++) {
        const struct ns_ride *ride = &s->wave.ride[r];
        uint32_t item = s->node[ride->node].term;
        if (item == NS_NIL || s->item[item].left == 0 || ride->to != ns_trie_end(&s->node[ride->node]))
            continue;
        struct ns_sched_entry *it = &s->item[item];
        if (it->signature == NS_NIL && g->n_free > 0) {
            it->signature = g->signature_free[--g->n_free];
            memset(signature_of(s, it->signature, 0), 0, 2 * g->set_words * sizeof *g->signature);
        } else if (it->signature != NS_NIL && it->depth % RENEW == 0) {
            uint64_t *newer = signature_of(s, it->signature, 0);
            memcpy(newer + g->set_words, newer, g->set_words * sizeof *newer);
            memset(newer, 0, g->set_words * sizeof *newer);
        }
        size_t end =
            (size_t)(s->wave.segment[ride->segment].token - s->wave.token) + ride->offset + ride->to - ride->from;
        uint32_t n = ride->to - ride->from < RENEW ? ride->to - ride->from : RENEW;
        for (uint32_t i = 1; i <= n; i++)
            g->row_item[end - i] = item;
    }
    return NS_OK;
}

void ns_group_forget(struct ns_sched *s, uint32_t item)
{
    if (s->item[item].signature != NS_NIL)
        s->group.signature_free[s->group.n_free++] = s->item[item].signature;
}

/* ---- what is guessed ---------------------------------------------------------------------------------------------------- */

void ns_group_begin(struct ns_sched *s)
{
    s->group.n_turns = 0;
    s->group.prompts_first = false;
    open_memory(s);
    if (s->group.ready)
        memset(s->group.wave, 0, s->group.set_words * sizeof *s->group.wave);
}

bool ns_group_active(const struct ns_sched *s)
{
    if (!s->group.ready || s->options.in_order)
        return false;
    return s->options.experts == NS_SCHED_EXPERTS_ALWAYS || s->io_bound;
}

bool ns_group_takes_turns(const struct ns_sched *s)
{
    static const double nearly_all = 2.3; /* choices for an expert; 1 - exp(-2.3) is 0.9 */
    return ns_group_active(s) && s->wave.rows_most * (double)s->group.top_k < nearly_all * s->model.n_experts;
}

/* The experts that one token chose when it was last seen: how many, and how many of them the wave has not. */
static void look_token(const struct ns_sched *s, uint32_t token, uint32_t *known, uint32_t *fresh, uint64_t *add)
{
    const struct ns_group *g = &s->group;
    uint32_t at = token_slot(token);
    if (g->token[at] != token)
        return;
    const uint16_t *seen = g->expert + (size_t)at * SLOTS * g->top_k;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t i = 0; i < g->top_k; i++) {
            uint32_t expert = seen[slot * g->top_k + i];
            if (expert == NO_EXPERT)
                continue;
            ++*known;
            *fresh += !has_bit(g->wave, g->slot_words, slot, expert);
            if (add)
                set_bit(add, g->slot_words, slot, expert);
        }
}

/* Share of the item's recent experts that the wave has not; below 0: nothing is known. */
static double look_signature(const struct ns_sched *s, uint32_t signature)
{
    const struct ns_group *g = &s->group;
    if (signature == NS_NIL)
        return -1;
    const uint64_t *newer = signature_of(s, signature, 0), *older = newer + g->set_words;
    uint32_t known = 0, fresh = 0;
    for (size_t i = 0; i < g->set_words; i++) {
        uint64_t set = newer[i] | older[i];
        known += (uint32_t)__builtin_popcountll(set);
        fresh += (uint32_t)__builtin_popcountll(set & ~g->wave[i]);
    }
    return known > 0 ? (double)fresh / known : -1;
}

/* Walks the rows that the item needs, the last LOOK_ROWS of them, and looks up their tokens. */
static void look_rows(const struct ns_sched *s, const struct ns_need *need, uint32_t *known, uint32_t *fresh,
                      uint64_t *add)
{
    uint32_t to = need->to, least = to > LOOK_ROWS ? to - LOOK_ROWS : 0;
    least = need->from > least ? need->from : least;
    for (uint32_t i = 0; i < need->n_path && to > least; i++) {
        const struct ns_trie_node *node = &s->node[s->wave.path[i]];
        if (node->start >= to)
            continue; /* cut before this one */
        uint32_t from = node->start > least ? node->start : least;
        for (uint32_t p = from; p < to; p++)
            look_token(s, node->token[p - node->start], known, fresh, add);
        to = node->start;
    }
}

/* Share of new experts that an item would bring, 0 to 1; unknown counts as all new. */
static double fresh_share(const struct ns_sched *s, uint32_t item, const struct ns_need *need)
{
    uint32_t known = 0, fresh = 0;
    look_rows(s, need, &known, &fresh, NULL);
    double by_topic = look_signature(s, s->item[item].signature);
    double by_token = known > 0 ? (double)fresh / known : -1;
    if (by_token < 0)
        return by_topic < 0 ? 1 : by_topic;
    return by_topic < 0 ? by_token : (by_token + by_topic) / 2;
}

void ns_group_placed(struct ns_sched *s, uint32_t item, const struct ns_need *need)
{
    s->group.last_key = s->item[item].group;
    if (!ns_group_active(s))
        return;
    uint32_t known = 0, fresh = 0, signature = s->item[item].signature;
    look_rows(s, need, &known, &fresh, s->group.wave);
    if (signature == NS_NIL)
        return;
    const uint64_t *newer = signature_of(s, signature, 0), *older = newer + s->group.set_words;
    for (size_t i = 0; i < s->group.set_words; i++)
        s->group.wave[i] |= newer[i] | older[i];
}

/* ---- the choice --------------------------------------------------------------------------------------------------------- */

struct merit {
    uint32_t level, saved; /* 3: no rows; 2: rows of the wave; 1: a kept state */
    double fresh;
    uint32_t expected;
    bool alike; /* same group key as the one placed last */
};

static bool is_better(const struct merit *a, const struct merit *b)
{
    if (a->level != b->level)
        return a->level > b->level;
    if (a->saved != b->saved)
        return a->saved > b->saved;
    if (a->fresh < b->fresh || a->fresh > b->fresh)
        return a->fresh < b->fresh;
    if (a->alike != b->alike)
        return a->alike;
    return a->expected > b->expected;
}

static struct merit merit_of(const struct ns_sched *s, uint32_t item, const struct ns_need *need)
{
    const struct ns_sched_entry *it = &s->item[item];
    struct merit m = {.expected = it->left > 1 ? it->expected : 0, .level = need->from > 0};
    m.saved = it->begun ? 0 : need->from; /* a running generation shares nothing by its own state */
    if (need->from == need->to)
        m.level = 3;
    else if (need->ride != NS_NIL)
        m.level = 2;
    m.alike = it->group != 0 && it->group == s->group.last_key;
    m.fresh = ns_group_active(s) && m.level < 3 ? fresh_share(s, item, need) : 0;
    return m;
}

/* The first that was passed too often: *i = n when it had no place, then nobody behind it may have one. */
static bool forced(const struct ns_sched *s, const uint32_t *item, size_t n, size_t *i)
{
    for (size_t k = 0; k < n; k++) {
        const struct ns_sched_entry *it = &s->item[item[k]];
        if (it->skips < s->options.overtake_most || s->options.overtake_most == UINT32_MAX)
            continue;
        if (it->refused == s->wave.stamp && it->refusal != NS_PLACE_FULL)
            continue; /* it waits for something that the others do not take */
        *i = it->refused == s->wave.stamp ? n : k;
        return true;
    }
    return false;
}

static bool first_in_order(const struct ns_sched *s, const uint32_t *item, size_t n, size_t *i)
{
    for (*i = 0; *i < n; ++*i) {
        const struct ns_sched_entry *it = &s->item[item[*i]];
        if (it->refused != s->wave.stamp)
            return true;
        if (it->refusal == NS_PLACE_FULL)
            break;
    }
    *i = n;
    return true;
}

enum ns_code ns_group_pick(struct ns_sched *s, const uint32_t *item, size_t n, size_t *i, struct ns_error *err)
{
    if (s->options.in_order ? first_in_order(s, item, n, i) : forced(s, item, n, i))
        return NS_OK;
    *i = n;
    uint32_t left = s->wave.rows_most - s->wave.out.rows;
    struct merit best = {0};
    for (size_t k = 0; k < n; k++) {
        struct ns_need need;
        struct ns_sched_entry *it = &s->item[item[k]];
        if (it->refused == s->wave.stamp)
            continue;
        enum ns_code rc = ns_place_need(s, item[k], &need, err);
        if (rc != NS_OK)
            return rc;
        if (need.conflict || (left == 0 && need.from < need.to)) {
            it->refused = s->wave.stamp;
            it->refusal = need.conflict ? NS_PLACE_CONFLICT : NS_PLACE_FULL;
            continue;
        }
        struct merit m = merit_of(s, item[k], &need);
        if (*i == n || is_better(&m, &best)) {
            *i = k;
            best = m;
        }
        if (best.level == 3)
            break;
    }
    return NS_OK;
}
