/* ledger.c - who holds memory for states.
 *
 * WHAT   A ledger. total is what the machine can hold. An item that must keep a state between waves reserves the bytes of
 *        its longest state before it begins. A kept state is covered when an item with a reservation has nothing nearer;
 *        every other kept state (a prefix that others will start from) is extra.
 *        Where a machine's rows and states share their memory, the rows of the wave that is being planned count too, and
 *        never fewer than one for each item that has begun: what is admitted can take its steps.
 * WHY    What has begun can always be finished: reserved + extra <= total at every plan, so no sequence waits for memory
 *        that another waiting sequence holds. Extra states only save work, so they are the first to go.
 * INVARIANTS
 *   1. held is the sum of the bytes of all kept states.                     (sched_test: tree_and_ledger_are_sound)
 *   2. A state that the planned wave starts from is not given up.           (sched_test: random_runs_equal_alone)
 *   3. Giving up any extra state changes no answer.                         (sched_test: random_runs_equal_alone) */
#include "sched/sched_impl.h"

#include <assert.h>

enum ns_code ns_ledger_expect(struct ns_sched *s, size_t n, struct ns_error *err)
{
    void *array = s->kept;
    enum ns_code rc = ns_sched_reserve(s->budget, &array, &s->kept_capacity, s->n_kept + n, sizeof *s->kept, err);
    s->kept = array;
    return rc;
}

struct ns_kept *ns_ledger_above(const struct ns_sched *s, uint32_t node)
{
    for (; node != NS_NIL; node = s->node[node].parent)
        if (s->node[node].state != NS_NIL)
            return &s->kept[s->node[node].state];
    return NULL;
}

/* Users below node are the business of the nearest state above it, or no longer. */
static void users_above(struct ns_sched *s, uint32_t node, bool add)
{
    uint32_t d = s->node[node].n_users;
    for (uint32_t i = s->node[node].parent; i != NS_NIL && d > 0; i = s->node[i].parent) {
        struct ns_trie_node *at = &s->node[i];
        assert(add || at->n_users >= d);
        at->n_users = add ? at->n_users + d : at->n_users - d;
        if (at->state == NS_NIL)
            continue;
        if (at->n_users == 0)
            ns_ledger_drop(s, i);
        return;
    }
}

void ns_ledger_attach(struct ns_sched *s, uint32_t node, struct ns_seq *seq, uint32_t at)
{
    assert(s->node[node].state == NS_NIL && s->n_kept < s->kept_capacity);
    size_t bytes = s->machine.seq_bytes(s->machine.self, at);
    s->kept[s->n_kept] = (struct ns_kept){.seq = seq, .node = node, .at = at, .bytes = bytes};
    s->node[node].state = (uint32_t)s->n_kept++;
    s->held += bytes;
    users_above(s, node, false);
}

struct ns_seq *ns_ledger_give(struct ns_sched *s, uint32_t node)
{
    uint32_t i = s->node[node].state;
    struct ns_seq *seq = s->kept[i].seq;
    s->held -= s->kept[i].bytes;
    s->kept[i] = s->kept[--s->n_kept];
    s->node[s->kept[i].node].state = i;
    s->node[node].state = NS_NIL; /* after the line above: it may be the same node */
    users_above(s, node, true);
    return seq;
}

void ns_ledger_drop(struct ns_sched *s, uint32_t node)
{
    s->machine.seq_close(s->machine.self, ns_ledger_give(s, node));
}

void ns_ledger_clear(struct ns_sched *s, uint32_t but)
{
    for (size_t i = s->n_kept; i-- > 0;) {
        if (i >= s->n_kept || s->kept[i].node == but)
            continue;
        ns_ledger_drop(s, s->kept[i].node);
    }
}

void ns_ledger_look(struct ns_sched *s)
{
    size_t left = s->machine.state_left(s->machine.self);
    if (!ns_size_add(left, s->held, &s->state_total))
        s->state_total = SIZE_MAX;
    s->room_total = SIZE_MAX;
    if (s->machine.rows_bytes && !ns_size_add(s->machine.room_left(s->machine.self), s->held, &s->room_total))
        s->room_total = SIZE_MAX;
}

void ns_ledger_refresh(struct ns_sched *s)
{
    ns_ledger_look(s);
    for (size_t i = 0; i < s->n_kept; i++) {
        s->kept[i].cover = s->kept[i].served = s->kept[i].starts = 0;
        s->kept[i].given = false;
    }
    for (uint32_t i = s->begun.first; i != NS_NIL; i = s->item[i].list_next) {
        if (s->item[i].reserve == 0)
            continue;
        struct ns_kept *kept = ns_ledger_above(s, s->item[i].node);
        if (kept)
            kept->cover++;
    }
    s->extra = 0;
    for (size_t i = 0; i < s->n_kept; i++)
        if (s->kept[i].cover == 0)
            s->extra += s->kept[i].bytes;
    s->memory_blocked = false;
}

void ns_ledger_less(struct ns_sched *s, size_t bytes)
{
    assert(s->extra >= bytes);
    s->extra -= bytes;
}

enum { ROWS_STEP = 8 };

size_t ns_ledger_rows_bytes(struct ns_sched *s, uint32_t n)
{
    if (s->room_total == SIZE_MAX || n == 0)
        return 0;
    uint32_t most = s->machine.rows_max;
    n = n < most - n % ROWS_STEP ? n + (ROWS_STEP - 1) - (n - 1) % ROWS_STEP : most; /* few different questions */
    n = n < most ? n : most;
    if (n != s->rows_memo.n || s->longest != s->rows_memo.longest) {
        s->rows_memo.n = n;
        s->rows_memo.longest = s->longest;
        s->rows_memo.bytes = s->machine.rows_bytes(s->machine.self, n, s->longest);
    }
    return s->rows_memo.bytes;
}

/* What states may take beside the rows of the wave and those that are being placed. */
static size_t total_beside(struct ns_sched *s)
{
    uint32_t rows = s->wave.out.rows + s->placing, steps = s->n_live + 1;
    size_t bytes = ns_ledger_rows_bytes(s, rows > steps ? rows : steps);
    size_t room = bytes < s->room_total ? s->room_total - bytes : 0;
    return room < s->state_total ? room : s->state_total;
}

size_t ns_ledger_free(struct ns_sched *s)
{
    size_t taken = s->reserved + s->extra, total = total_beside(s);
    return taken < total ? total - taken : 0;
}

static bool has_room(struct ns_sched *s, size_t bytes)
{
    return s->reserved + s->extra <= total_beside(s) && ns_ledger_free(s) >= bytes;
}

/* Rows that would be computed again without it. */
static double worth_of(const struct ns_sched *s, const struct ns_kept *kept)
{
    const struct ns_kept *above = ns_ledger_above(s, s->node[kept->node].parent);
    return (double)(kept->at - (above ? above->at : 0)) * s->node[kept->node].n_users;
}

static bool may_go(const struct ns_sched *s, const struct ns_kept *kept, double worth)
{
    return kept->cover == 0 && kept->starts == 0 && worth_of(s, kept) < worth;
}

bool ns_ledger_room(struct ns_sched *s, size_t bytes, double worth)
{
    if (has_room(s, bytes))
        return true;
    size_t could = total_beside(s);
    for (size_t i = 0; i < s->n_kept; i++)
        if (may_go(s, &s->kept[i], worth))
            could += s->kept[i].bytes;
    while (could >= s->reserved + s->extra + bytes && !has_room(s, bytes)) {
        struct ns_kept *least = NULL;
        for (size_t i = 0; i < s->n_kept; i++) {
            struct ns_kept *kept = &s->kept[i];
            if (may_go(s, kept, worth) && (!least || worth_of(s, kept) < worth_of(s, least)))
                least = kept;
        }
        if (!least)
            break;
        ns_ledger_less(s, least->bytes);
        ns_ledger_drop(s, least->node);
    }
    return has_room(s, bytes);
}

/* Rows are worth states that save fewer. But a state that an item waits for is worth all of those, as in reserve. */
uint32_t ns_ledger_rows_left(struct ns_sched *s, uint32_t n, size_t bytes)
{
    uint32_t low = 0, high = n + 1, steps = s->n_live;
    if (s->room_total == SIZE_MAX || (bytes == 0 && s->wave.out.rows + n <= steps))
        return n; /* the steps of those that have begun were counted when they began */
    s->placing = 1;
    if (n > 0 && bytes > 0 && !s->memory_blocked && ns_ledger_room(s, bytes, 1e300))
        low = 1;
    while (high - low > 1) {
        uint32_t middle = high == n + 1 ? n : low + (high - low) / 2;
        s->placing = middle;
        if (ns_ledger_room(s, bytes, middle))
            low = middle;
        else
            high = middle;
    }
    s->placing = 0;
    return low;
}

size_t ns_ledger_need(const struct ns_sched *s, const struct ns_sched_entry *it)
{
    return s->machine.seq_bytes(s->machine.self, it->n + it->left);
}

bool ns_ledger_reserve(struct ns_sched *s, uint32_t item)
{
    struct ns_sched_entry *it = &s->item[item];
    if (it->reserve > 0)
        return true;
    if (s->memory_blocked || (s->options.live_most > 0 && s->n_live >= s->options.live_most))
        return false;
    size_t bytes = ns_ledger_need(s, it);
    if (!ns_ledger_room(s, bytes, 1e300)) {
        s->memory_blocked = true; /* those behind it may not take what it waits for */
        return false;
    }
    it->reserve = bytes > 0 ? bytes : 1;
    it->moved = s->wave.stamp; /* it did not cover anything when this plan began */
    s->reserved += it->reserve;
    s->n_live++;
    return true;
}
