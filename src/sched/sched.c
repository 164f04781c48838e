/* sched.c - the scheduler's door: items in and out, and the order in which a wave is filled.
 *
 * WHAT   ns_sched_next fills a wave in three rounds: one row of every generation that runs; the rest of what has begun
 *        (prompts that were cut, sequences whose state was lost); then what waits, in the order of fair.c and group.c.
 *        place.c puts the rows in, emit.c writes them down, take.c hands out what the wave told.
 *        When there are more items than rows, and the disk is the limit, generations take turns instead, and prompts have
 *        waves of their own until there are several generations for each row.
 * WHY    Rows of running generations are few and each is a token; what has begun holds memory; what waits holds nothing.
 *        The order decides only who rides together: an answer depends on the tokens of its own path and on nothing else.
 * INVARIANTS
 *   1. Whatever the order, options, losses and limits: every item gets the answers of a run by itself.
 *      (sched_test: random_runs_equal_alone)
 *   2. When items want something, a plan is not empty, or there is an error that says why.
 *   3. Between next and take or wave_lost the tree does not change.
 * THREADS  One driving thread. */
#include "sched/sched_impl.h"

#include <assert.h>
#include <string.h>

enum { ROWS_LEAST = 1024, ROWS_MOST = 4096, LOOK_AHEAD = 64, OVERTAKE = 64, RESERVED_IN = 8, QUANTUM = 4096 };

enum { CHOICE = 4, PROMPT_WAVES = 3 }; /* generations for a row; waves of prompts for each of generations */

enum { ROWS_ALONE = 64 }; /* of an item that has the machine to itself */

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value > 0 ? value : fallback;
}

enum ns_code ns_sched_open(const struct ns_sched_options *options, const struct ns_machine *machine,
                           struct ns_budget *budget, struct ns_sched **out, struct ns_error *err)
{
    if (machine->rows_max == 0 || options->rows > machine->rows_max)
        return ns_error_set(err, NS_USAGE, "waves of %u rows: the machine takes at most %u", options->rows,
                            machine->rows_max);
    struct ns_sched *s = ns_budget_take(budget, sizeof *s, err);
    if (!s)
        return NS_BUDGET;
    s->budget = budget;
    s->machine = *machine;
    s->options = *options;
    struct ns_sched_options *o = &s->options;
    o->rows_least = or_default(o->rows_least, ROWS_LEAST);
    o->rows_most = or_default(o->rows_most, ROWS_MOST);
    o->look_ahead = or_default(o->look_ahead, LOOK_AHEAD);
    o->overtake_most = or_default(o->overtake_most, OVERTAKE);
    o->reserved_in = or_default(o->reserved_in, RESERVED_IN);
    o->quantum = or_default(o->quantum, QUANTUM);
    s->item_free = NS_NIL;
    ns_list_init(&s->begun);
    enum ns_code rc = ns_trie_init(s, err);
    if (rc == NS_OK)
        rc = ns_fair_init(s, err);
    if (rc != NS_OK) {
        ns_sched_close(s);
        return ns_error_wrap(err, rc, "scheduler");
    }
    ns_account_init(s);
    *out = s;
    return NS_OK;
}

void ns_sched_close(struct ns_sched *s)
{
    if (!s)
        return;
    ns_keep_abandon(s);
    for (size_t i = 0; i < s->n_kept; i++)
        s->machine.seq_close(s->machine.self, s->kept[i].seq);
    struct ns_budget *budget = s->budget;
    struct ns_wave_plan *wave = &s->wave;
    void *owned[] = {s->kept,   s->item,   s->result,  s->failure, wave->ride, wave->token,  wave->segment,
                     wave->ask, wave->use, wave->path, wave->key,  wave->last, wave->ask_of, s->alive};
    for (size_t i = 0; i < NS_COUNT(owned); i++)
        ns_budget_give(budget, owned[i]);
    ns_trie_fini(s);
    ns_fair_fini(s);
    ns_group_fini(s);
    ns_budget_give(budget, s);
}

/* ---- items ---------------------------------------------------------------------------------------------------------- */

static enum ns_code item_check(struct ns_sched *s, const struct ns_sched_item *what, struct ns_error *err)
{
    if (what->n == 0 || (what->max_new == 0 && (what->score_from == 0 || what->score_from >= what->n)) ||
        what->score_from > what->n)
        return ns_error_set(err, NS_INPUT, "nothing is wanted of %u tokens (scored from %u, %u new)", what->n,
                            what->score_from, what->max_new);
    if (what->n > s->machine.context || what->max_new > s->machine.context - what->n)
        return ns_error_set(err, NS_INPUT, "%u tokens and %u new ones are more than the context of %u", what->n,
                            what->max_new, s->machine.context);
    if (what->n_top == 0 || what->n_top > NS_TOP_MAX)
        return ns_error_set(err, NS_INPUT, "%u best tokens: 1 to %d can be had", what->n_top, NS_TOP_MAX);
    for (uint32_t i = 0; i < what->n; i++)
        if (what->token[i] >= s->machine.vocab)
            return ns_error_set(err, NS_INPUT, "token %u is %u, the vocabulary has %u", i, what->token[i],
                                s->machine.vocab);
    return NS_OK;
}

/* What can never run is refused here, so that it does not wait for ever. */
static enum ns_code item_fits(struct ns_sched *s, const struct ns_sched_entry *it, struct ns_error *err)
{
    uint32_t rows = s->options.rows > 0 ? s->options.rows : s->machine.rows_max;
    if (!ns_place_keeps_state(it) && it->n <= rows)
        return NS_OK;
    ns_ledger_look(s);
    size_t need = ns_ledger_need(s, it), beside = ns_ledger_rows_bytes(s, it->n < ROWS_ALONE ? it->n : ROWS_ALONE);
    size_t total = beside < s->room_total ? s->room_total - beside : 0;
    total = total < s->state_total ? total : s->state_total;
    if (need > total)
        return ns_error_set(err, NS_BUDGET, "the state of %u positions takes %zu bytes, %zu are there for states",
                            it->n + it->left, need, total);
    return NS_OK;
}

static enum ns_code item_new(struct ns_sched *s, uint32_t *out, struct ns_error *err)
{
    uint32_t i = s->item_free;
    if (i != NS_NIL) {
        s->item_free = s->item[i].list_next;
        *out = i;
        return NS_OK;
    }
    size_t capacity = s->item_capacity;
    void *array = s->item;
    enum ns_code rc = ns_sched_reserve(s->budget, &array, &capacity, (size_t)s->n_items + 1, sizeof *s->item, err);
    s->item = array;
    s->item_capacity = (uint32_t)capacity;
    if (rc == NS_OK)
        *out = s->n_items++;
    return rc;
}

static void item_free(struct ns_sched *s, uint32_t i)
{
    s->item[i] = (struct ns_sched_entry){.list_next = s->item_free};
    s->item_free = i;
}

static enum ns_code item_wants(struct ns_sched *s, uint32_t item, const struct ns_sched_item *what,
                               struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    if (what->score_from > 0 && what->score_from < what->n)
        rc = ns_trie_want(s, item, what->score_from - 1, what->n - 2, what->token[what->n - 1], err);
    if (rc == NS_OK && what->max_new > 0)
        rc = ns_trie_want(s, item, what->n - 1, what->n - 1, NS_NO_TOKEN, err);
    return rc;
}

static void item_forget(struct ns_sched *s, uint32_t item)
{
    struct ns_sched_entry *it = &s->item[item];
    ns_group_forget(s, item);
    while (it->want != NS_NIL)
        ns_trie_want_drop(s, it->want);
    uint32_t node = it->node;
    ns_trie_detach(s, item);
    ns_trie_prune(s, node);
    item_free(s, item);
}

enum ns_code ns_sched_add(struct ns_sched *s, const struct ns_sched_item *what, uint32_t *item, struct ns_error *err)
{
    assert(!s->wave.open);
    enum ns_code rc = item_check(s, what, err);
    if (rc != NS_OK)
        return rc;
    struct ns_sched_entry it = {.used = true,
                                .id = what->id,
                                .order = s->next_order,
                                .n = what->max_new > 0 ? what->n : what->n - 1,
                                .node = NS_NIL,
                                .want = NS_NIL,
                                .signature = NS_NIL,
                                .left = what->max_new,
                                .expected = what->expected_new > 0 ? what->expected_new : what->max_new,
                                .n_top = what->n_top,
                                .priority = what->priority > 9 ? 9 : what->priority,
                                .enqueued_ms = what->enqueued_ms,
                                .batch = what->batch,
                                .group = what->group};
    s->longest = s->items_used > 0 && s->longest > it.n + it.left ? s->longest : it.n + it.left;
    rc = item_fits(s, &it, err);
    uint32_t i = NS_NIL, node = NS_NIL;
    if (rc == NS_OK)
        rc = item_new(s, &i, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_trie_insert(s, what->token, it.n, !s->options.alone, &node, err);
    if (rc != NS_OK) {
        item_free(s, i);
        return rc;
    }
    s->item[i] = it;
    ns_trie_attach(s, i, node);
    rc = item_wants(s, i, what, err);
    if (rc == NS_OK)
        rc = ns_fair_add(s, i, err);
    if (rc != NS_OK) {
        item_forget(s, i);
        return rc;
    }
    s->next_order++;
    s->items_used++;
    *item = i;
    return NS_OK;
}

enum ns_code ns_sched_append(struct ns_sched *s, uint32_t item, uint32_t token, struct ns_error *err)
{
    assert(!s->wave.open && item < s->n_items && s->item[item].used);
    struct ns_sched_entry *it = &s->item[item];
    assert(it->n_wanted == 0 && !it->failed);
    if (it->left <= 1)
        return ns_error_set(err, NS_INPUT, "no more tokens were to be generated");
    if (token >= s->machine.vocab)
        return ns_error_set(err, NS_INPUT, "token %u, the vocabulary has %u", token, s->machine.vocab);
    uint32_t node;
    enum ns_code rc = ns_trie_expect_want(s, err);
    if (rc == NS_OK)
        rc = ns_trie_extend(s, item, token, &node, err);
    if (rc != NS_OK)
        return rc;
    ns_trie_move(s, item, node);
    it->n++;
    it->left--;
    it->expected = it->expected > 1 ? it->expected - 1 : 1;
    return ns_trie_want(s, item, it->n - 1, it->n - 1, NS_NO_TOKEN, err);
}

void ns_sched_remove(struct ns_sched *s, uint32_t item)
{
    assert(!s->wave.open && item < s->n_items && s->item[item].used);
    struct ns_sched_entry *it = &s->item[item];
    if (it->reserve > 0) {
        s->reserved -= it->reserve;
        s->n_live--;
    }
    if (it->begun)
        ns_list_remove(s, &s->begun, item);
    else
        ns_fair_remove(s, item);
    item_forget(s, item);
    s->items_used--;
}

uint32_t ns_sched_items(const struct ns_sched *s)
{
    return s->items_used;
}

uint32_t ns_sched_waiting(const struct ns_sched *s)
{
    return s->items_used - s->begun.n;
}

uint32_t ns_sched_live(const struct ns_sched *s)
{
    return s->n_live;
}

/* ---- one wave --------------------------------------------------------------------------------------------------------- */

static void to_the_back(struct ns_sched *s, uint32_t item)
{
    ns_list_remove(s, &s->begun, item);
    ns_list_add(s, &s->begun, item);
    s->item[item].skips = 0;
}

/* rest_only: not those that take turns. */
static enum ns_code fill_begun(struct ns_sched *s, bool decode_only, bool rest_only, struct ns_error *err)
{
    uint32_t item = s->begun.first;
    for (uint32_t n = s->begun.n; n > 0; n--) {
        uint32_t next = s->item[item].list_next;
        bool held_back = rest_only && s->item[item].turn == s->wave.stamp;
        if (s->item[item].stamp != s->wave.stamp && !held_back) {
            enum ns_place place = ns_place_item(s, item, decode_only, err);
            if (place == NS_PLACE_ERROR)
                return NS_BUDGET;
            if (place == NS_PLACED && decode_only)
                to_the_back(s, item); /* when they are too many they take turns */
        }
        item = next;
    }
    return NS_OK;
}

/* Running generations that could take a step now, in the order of their turns. */
static enum ns_code turns_find(struct ns_sched *s, struct ns_error *err)
{
    struct ns_group *g = &s->group;
    g->unfinished = 0;
    for (uint32_t item = s->begun.first; item != NS_NIL; item = s->item[item].list_next) {
        const struct ns_sched_entry *it = &s->item[item];
        if (it->n_wanted != 1 || it->left == 0 || it->failed || it->reserve == 0)
            continue;
        struct ns_need need;
        enum ns_code rc = ns_place_need(s, item, &need, err);
        if (rc == NS_OK && (need.to - need.from != 1 || need.state_node == NS_NIL)) {
            g->unfinished++; /* a prompt that is not through, or a state that was lost */
            continue;
        }
        void *array = g->turn;
        if (rc == NS_OK)
            rc = ns_sched_reserve(s->budget, &array, &g->turn_capacity, g->n_turns + 1, sizeof *g->turn, err);
        g->turn = array;
        if (rc != NS_OK)
            return rc;
        g->turn[g->n_turns++] = item;
        s->item[item].turn = s->wave.stamp;
    }
    return NS_OK;
}

/* Longest first; as few, stable, insertion will do: they come nearly sorted. */
static void turns_sort(struct ns_sched *s, uint32_t *turn, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint32_t item = turn[i];
        size_t k = i;
        for (; k > 0 && s->item[turn[k - 1]].expected < s->item[item].expected; k--)
            turn[k] = turn[k - 1];
        turn[k] = item;
    }
}

/* More generations than rows: those that share experts take the step together, and nobody is passed over too often.
 * only_forced: those that were. */
static enum ns_code fill_turns(struct ns_sched *s, bool only_forced, struct ns_error *err)
{
    struct ns_group *g = &s->group;
    uint32_t rows = s->wave.rows_most;
    bool draining = s->items_used == s->begun.n;
    if (draining) /* nobody comes after them: they should end together, or the last waves are empty */
        turns_sort(s, g->turn, g->n_turns);
    while (g->n_turns > 0 && s->wave.out.rows < rows) {
        size_t most = g->n_turns < s->options.look_ahead ? g->n_turns : s->options.look_ahead, i;
        if (draining && most > 2 * (size_t)rows)
            most = 2 * (size_t)rows;
        enum ns_code rc = ns_group_pick(s, g->turn, most, &i, err);
        if (rc != NS_OK || i == most)
            return rc;
        uint32_t item = g->turn[i];
        if (only_forced && s->item[item].skips < s->options.overtake_most)
            return NS_OK;
        enum ns_place place = ns_place_item(s, item, true, err);
        if (place == NS_PLACE_ERROR)
            return NS_BUDGET;
        if (place == NS_PLACED) {
            ns_fair_passed(s, g->turn, i, true);
            to_the_back(s, item);
        } else {
            s->item[item].refused = s->wave.stamp;
            s->item[item].refusal = NS_PLACE_CONFLICT;
        }
        memmove(g->turn + i, g->turn + i + 1, (g->n_turns - i - 1) * sizeof *g->turn);
        g->n_turns--;
    }
    return NS_OK;
}

/* Rows of one prompt share more experts than rows of many, and a larger choice of generations lets those ride together
 * that agree: prompts have waves of their own, until there are several generations for each row. */
static bool prompts_first(const struct ns_sched *s)
{
    const struct ns_group *g = &s->group;
    bool more = s->items_used > s->begun.n && s->n_live / CHOICE < s->wave.rows_most;
    return (more || g->unfinished > 0) && g->prompt_waves < PROMPT_WAVES;
}

static enum ns_code fill_running(struct ns_sched *s, struct ns_error *err)
{
    struct ns_group *g = &s->group;
    if (s->items_used <= s->wave.rows_most || !ns_group_takes_turns(s))
        return fill_begun(s, true, false, err);
    enum ns_code rc = turns_find(s, err);
    if (rc != NS_OK)
        return rc;
    g->prompts_first = prompts_first(s);
    rc = fill_turns(s, g->prompts_first, err);
    if (rc == NS_OK && g->prompts_first)
        ns_fair_passed(s, g->turn, g->n_turns, true);
    return rc;
}

/* Only the first item that holds memory goes on, from the state it can use; every other state is given up. */
static enum ns_code tighten(struct ns_sched *s, struct ns_error *err)
{
    uint32_t item = s->begun.first, but = NS_NIL;
    while (item != NS_NIL && (s->item[item].reserve == 0 || s->item[item].n_wanted == 0))
        item = s->item[item].list_next;
    if (item != NS_NIL) {
        struct ns_need need;
        ns_ledger_refresh(s);
        enum ns_code rc = ns_place_need(s, item, &need, err);
        if (rc != NS_OK)
            return rc;
        but = need.state_node;
        ns_list_remove(s, &s->begun, item);
        ns_list_push(s, &s->begun, item);
    }
    ns_ledger_clear(s, but);
    return NS_OK;
}

static enum ns_code fill(struct ns_sched *s, uint32_t rows, int64_t now_ms, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    enum ns_code rc = NS_OK;
    wave->stamp++;
    wave->n_rides = 0;
    wave->past = wave->alone_rows = 0;
    wave->alone_bytes = 0;
    wave->rows_most = rows;
    wave->out = (struct ns_sched_plan){.rows_most = rows};
    s->leaving = 0;
    if (s->tight && (rc = tighten(s, err)) != NS_OK)
        return rc;
    ns_ledger_refresh(s);
    ns_group_begin(s);
    if (!s->tight)
        rc = fill_running(s, err);
    if (rc == NS_OK)
        rc = fill_begun(s, false, true, err);
    if (rc == NS_OK)
        rc = ns_fair_fill(s, now_ms, err);
    if (rc == NS_OK && wave->out.rows < rows)
        rc = fill_turns(s, false, err);
    if (rc == NS_OK && wave->out.rows < rows)
        rc = fill_begun(s, false, false, err); /* those that were held back for the sake of the waiting ones */
    return rc;
}

static enum ns_code nothing_fits(struct ns_sched *s, struct ns_error *err)
{
    size_t least = SIZE_MAX;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_items; i++) {
        if (!s->item[i].used || s->item[i].n_wanted == 0)
            continue;
        size_t need = ns_ledger_need(s, &s->item[i]);
        least = need < least ? need : least;
        n++;
    }
    if (n == 0)
        return NS_OK;
    return ns_error_set(err, NS_BUDGET, "%u items wait for memory: the least state takes %zu bytes, %zu are left", n,
                        least, ns_ledger_free(s));
}

enum ns_code ns_sched_next(struct ns_sched *s, int64_t now_ms, struct ns_sched_plan *plan, struct ns_error *err)
{
    assert(!s->wave.open);
    struct ns_wave_plan *wave = &s->wave;
    uint64_t began = ns_clock_mono_ns();
    uint32_t rows = ns_account_rows(s);
    enum ns_code rc = fill(s, rows, now_ms, err);
    if (rc == NS_OK && wave->n_rides == 0 && s->options.rows == 0 && rows < s->machine.rows_max)
        rc = fill(s, s->machine.rows_max, now_ms, err); /* a long item that fits whole needs no state */
    bool stuck = rc == NS_OK && wave->n_rides == 0 && s->n_kept > 0 && nothing_fits(s, NULL) != NS_OK;
    if (rc == NS_OK && wave->n_rides == 0 && !stuck) {
        *plan = (struct ns_sched_plan){.rows_most = rows};
        return nothing_fits(s, err);
    }
    if (rc == NS_OK && (stuck || !ns_keep_choose(s))) {
        s->tight = true; /* what is kept is in the way of every item */
        rc = fill(s, rows, now_ms, err);
        if (rc == NS_OK && (wave->n_rides == 0 || !ns_keep_choose(s)))
            rc = ns_error_set(err, NS_BUDGET, "%zu bytes for states are too few for one of %u items", s->state_total,
                              s->items_used);
        s->tight = false;
    }
    if (rc == NS_OK)
        rc = ns_emit(s, err);
    if (rc == NS_OK)
        rc = ns_group_planned(s, err);
    void *result = s->result, *failure = s->failure;
    if (rc == NS_OK)
        rc = ns_sched_reserve(s->budget, &result, &s->result_capacity, wave->n_uses, sizeof *s->result, err);
    s->result = result;
    if (rc == NS_OK)
        rc = ns_sched_reserve(s->budget, &failure, &s->failure_capacity, s->items_used, sizeof *s->failure, err);
    s->failure = failure;
    if (rc != NS_OK) {
        ns_keep_abandon(s);
        return ns_error_wrap(err, rc, "planning a wave");
    }
    wave->open = true;
    s->group.prompt_waves = s->group.prompts_first ? s->group.prompt_waves + 1 : 0;
    wave->plan_ns = ns_clock_mono_ns() - began;
    ns_account_planned(s);
    *plan = wave->out;
    return NS_OK;
}
