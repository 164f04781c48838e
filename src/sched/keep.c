/* keep.c - which states outlive the wave.
 *
 * WHAT   An item that goes on keeps its end state. Beyond that a state is kept where items below found no place in this
 *        wave, when memory is left. A chain that starts from a kept state writes over it when nobody else needs it.
 * WHY    The ledger of ledger.c counts item by item, before it is known how chains join. The exact sum is taken here, over
 *        all states that exist while the wave runs, and what does not fit goes: states that only save work first, then
 *        those of the items placed last. The first item placed always keeps its own, so there is progress. When even that
 *        does not fit, because chains start from states that no chain may write over, or when no item has room beside
 *        what is kept, the wave is planned again for one item that leaves a state (tight).
 * INVARIANTS
 *   1. States never take more than the machine has.                           (hash_machine.c checks every wave)
 *   2. A state is written over only by the one segment that starts from it.   (hash_machine.c) */
#include "sched/sched_impl.h"

#include <assert.h>

/* A fault is known by segment, so a segment never reaches past a node where some path ends or turns off. */
bool ns_keep_goes_on(const struct ns_sched *s, const struct ns_ride *ride)
{
    return !ride->keep && ride->kids == 1 && !ns_trie_breaks(s, &s->node[ride->node]);
}

static struct ns_kept *kept_at(const struct ns_sched *s, uint32_t node)
{
    return node == NS_NIL || s->node[node].state == NS_NIL ? NULL : &s->kept[s->node[node].state];
}

/* The same state is kept already. */
static bool is_there(const struct ns_sched *s, const struct ns_ride *ride)
{
    const struct ns_kept *kept = kept_at(s, ride->node);
    return kept && kept->at == ride->to;
}

/* The kept state that the ride's segment starts from and may write over, or NULL. */
static struct ns_kept *writes_over(const struct ns_sched *s, const struct ns_ride *ride)
{
    const struct ns_ride *head = ride;
    while (head->parent != NS_NIL && ns_keep_goes_on(s, &s->wave.ride[head->parent]))
        head = &s->wave.ride[head->parent];
    struct ns_kept *kept = head->parent == NS_NIL ? kept_at(s, head->state_node) : NULL;
    if (!kept || kept->starts != 1)
        return NULL;
    bool free = kept->node == ride->node || kept->given || kept->served >= s->node[kept->node].n_users;
    return free ? kept : NULL;
}

static uint32_t unserved(const struct ns_sched *s, const struct ns_ride *ride)
{
    uint32_t users = s->node[ride->node].n_users;
    return users > ride->placed ? users - ride->placed : 0;
}

/* Deepest first: an item that could not be placed is served by the nearest state above it. */
static void keep_for_others(struct ns_sched *s)
{
    struct ns_wave_plan *wave = &s->wave;
    for (uint32_t r = wave->n_rides; r-- > 0;) {
        struct ns_ride *ride = &wave->ride[r];
        uint32_t others = unserved(s, ride), here = others > ride->below ? others - ride->below : 0;
        bool whole = ride->to == ns_trie_end(&s->node[ride->node]), there = is_there(s, ride);
        ride->own = ride->keep = ride->keep && !there;
        if (!ride->keep && whole && here > 0 && !s->options.alone && !there) {
            const struct ns_kept *above = kept_at(s, ride->state_node);
            double worth = (double)(ride->to - (above ? above->at : 0)) * here;
            size_t bytes = s->machine.seq_bytes(s->machine.self, ride->to);
            bool moves = above && ride->parent == NS_NIL && above->node == ride->node;
            if (moves && above->cover > 0) {
                ride->keep = true; /* whoever reserved memory still covers it */
            } else if (ns_ledger_room(s, bytes, worth)) {
                ride->keep = true;
                s->extra += bytes;
            }
        }
        if (ride->parent != NS_NIL)
            wave->ride[ride->parent].below += ride->keep || there ? others : ride->below;
    }
}

/* ---- the exact sum ---------------------------------------------------------------------------------------------------- */

static size_t bytes_in_wave(const struct ns_sched *s)
{
    size_t sum = s->held;
    for (uint32_t r = 0; r < s->wave.n_rides; r++) {
        const struct ns_ride *ride = &s->wave.ride[r];
        if (!ride->keep)
            continue;
        const struct ns_kept *over = writes_over(s, ride);
        sum += s->machine.seq_bytes(s->machine.self, ride->to) - (over ? over->bytes : 0);
    }
    return sum;
}

/* What states may take beside the rows of the wave. */
static size_t states_most(struct ns_sched *s)
{
    size_t rows = ns_ledger_rows_bytes(s, s->wave.out.rows);
    size_t room = rows < s->room_total ? s->room_total - rows : 0;
    return room < s->state_total ? room : s->state_total;
}

static bool drop_idle(struct ns_sched *s, bool covered)
{
    for (size_t i = 0; i < s->n_kept; i++) {
        const struct ns_kept *kept = &s->kept[i];
        if (kept->starts > 0 || (kept->cover > 0) != covered)
            continue;
        ns_ledger_less(s, covered ? 0 : kept->bytes);
        ns_ledger_drop(s, kept->node);
        return true;
    }
    return false;
}

static bool unkeep(struct ns_sched *s, bool own)
{
    uint32_t last = NS_NIL, first = NS_NIL;
    for (uint32_t r = 0; r < s->wave.n_rides; r++) {
        if (!s->wave.ride[r].keep)
            continue;
        if (s->wave.ride[r].own && first == NS_NIL)
            first = r;
        if (s->wave.ride[r].own == own)
            last = r;
    }
    if (last == NS_NIL || last == first)
        return false;
    s->wave.ride[last].keep = false;
    return true;
}

bool ns_keep_choose(struct ns_sched *s)
{
    keep_for_others(s);
    size_t total = states_most(s);
    while (bytes_in_wave(s) > total)
        if (!drop_idle(s, false) && !unkeep(s, false) && !unkeep(s, true) && !drop_idle(s, true))
            return false;
    return true;
}

/* ---- sequences -------------------------------------------------------------------------------------------------------- */

enum ns_code ns_keep_open(struct ns_sched *s, struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    size_t n = 0;
    for (uint32_t r = 0; r < wave->n_rides; r++)
        n += wave->ride[r].keep;
    enum ns_code rc = ns_ledger_expect(s, n, err);
    for (uint32_t r = 0; r < wave->n_rides && rc == NS_OK; r++) {
        struct ns_ride *ride = &wave->ride[r];
        if (!ride->keep)
            continue;
        const struct ns_kept *over = writes_over(s, ride);
        ride->over = over ? over->node : NS_NIL;
        if (over)
            ride->into = over->seq;
        else
            rc = s->machine.seq_open(s->machine.self, &ride->into, err);
        if (rc == NS_OK)
            wave->segment[ride->segment].into = ride->into;
    }
    return rc;
}

void ns_keep_abandon(struct ns_sched *s)
{
    struct ns_wave_plan *wave = &s->wave;
    for (uint32_t r = 0; r < wave->n_rides; r++) {
        struct ns_ride *ride = &wave->ride[r];
        if (!ride->into)
            continue;
        if (ride->over == NS_NIL)
            s->machine.seq_close(s->machine.self, ride->into);
        else if (wave->open)
            ns_ledger_drop(s, ride->over); /* the lost wave was writing over it */
        ride->into = NULL;
    }
    wave->n_rides = 0;
    wave->open = false;
}

/* States that were written over leave their old place before any arrives, so that none is closed between. */
void ns_keep_settle(struct ns_sched *s, const struct ns_wave *done)
{
    struct ns_wave_plan *wave = &s->wave;
    for (uint32_t r = 0; r < wave->n_rides; r++) {
        struct ns_ride *ride = &wave->ride[r];
        if (ride->into && ride->over != NS_NIL)
            ride->into = ns_ledger_give(s, ride->over);
    }
    for (uint32_t r = 0; r < wave->n_rides; r++) {
        struct ns_ride *ride = &wave->ride[r];
        if (!ride->into)
            continue;
        bool fault = s->machine.wave_fault(s->machine.self, done, ride->segment);
        if (fault || s->node[ride->node].n_users == 0) {
            s->machine.seq_close(s->machine.self, ride->into);
        } else {
            if (s->node[ride->node].state != NS_NIL)
                ns_ledger_drop(s, ride->node);
            ns_ledger_attach(s, ride->node, ride->into, ride->to);
        }
        ride->into = NULL;
    }
    wave->n_rides = 0;
    wave->open = false;
}
