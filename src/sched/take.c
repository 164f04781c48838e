/* take.c - after a wave: what it told, and to whom.
 *
 * WHAT   Answers become results by way of the plan's uses. A segment that failed fails the items whose path runs through
 *        it and whose state was not past it already. States that the wave wrote take their places in the tree.
 * INVARIANTS
 *   1. A result is handed out once; its want is gone afterwards.         (sched_test: random_runs_equal_alone)
 *   2. After a lost wave every item is as it was before, but for states. (sched_test: lost_wave_costs_only_its_rows) */
#include "sched/sched_impl.h"

#include <assert.h>
#include <stdlib.h>

/* The wants of an item up to this position are answered: positions come in rising order. */
static void want_answered(struct ns_sched *s, uint32_t item, uint32_t position)
{
    struct ns_sched_entry *it = &s->item[item];
    for (uint32_t w = it->want; w != NS_NIL; w = s->want[w].item_next) {
        if (s->want[w].lo != position)
            continue;
        it->n_wanted--;
        if (s->want[w].lo == s->want[w].hi)
            ns_trie_want_drop(s, w);
        else
            s->want[w].lo++;
        return;
    }
    assert(false && "an answer that nobody wanted");
}

static void fail_item(struct ns_sched *s, uint32_t item, const struct ns_error *error)
{
    struct ns_sched_entry *it = &s->item[item];
    if (it->failed)
        return;
    it->failed = true;
    while (it->want != NS_NIL)
        ns_trie_want_drop(s, it->want);
    it->n_wanted = 0;
    s->failure[s->n_failures++] =
        (struct ns_sched_failure){.item = item, .id = it->id, .order = it->order, .error = error};
}

/* Everything at or below top that wants something and has no state past the fault. Walked without recursion. */
static void fail_below(struct ns_sched *s, uint32_t top, uint32_t from, const struct ns_error *error)
{
    uint32_t i = top;
    for (;;) {
        const struct ns_trie_node *node = &s->node[i];
        bool past = node->state != NS_NIL && s->kept[node->state].at > from;
        for (uint32_t item = past ? NS_NIL : node->term; item != NS_NIL; item = s->item[item].term_next)
            if (s->item[item].n_wanted > 0)
                fail_item(s, item, error);
        if (!past && node->child != NS_NIL) {
            i = node->child;
            continue;
        }
        while (i != top && s->node[i].next == NS_NIL)
            i = s->node[i].parent;
        if (i == top)
            return;
        i = s->node[i].next;
    }
}

static void faults_find(struct ns_sched *s, const struct ns_wave *done, const struct ns_answer *answer)
{
    struct ns_wave_plan *wave = &s->wave;
    s->n_failures = 0;
    for (uint32_t r = 0; r < wave->n_rides; r++) {
        const struct ns_error *error = s->machine.wave_fault(s->machine.self, done, wave->ride[r].segment);
        if (error)
            fail_below(s, wave->ride[r].node, wave->ride[r].from, error);
    }
    for (size_t u = 0; u < wave->n_uses; u++) {
        const struct ns_ask *ask = &wave->ask[wave->use[u].ask];
        const struct ns_error *error = s->machine.wave_fault(s->machine.self, done, ask->segment);
        if (!answer[wave->use[u].ask].ok)
            fail_item(s, wave->use[u].item, error);
    }
}

static int by_arrival(const void *a, const void *b)
{
    const struct ns_sched_failure *x = a, *y = b;
    return x->order < y->order ? -1 : x->order > y->order;
}

static size_t results_make(struct ns_sched *s, const struct ns_answer *answer)
{
    struct ns_wave_plan *wave = &s->wave;
    size_t n = 0;
    for (size_t u = 0; u < wave->n_uses; u++) {
        const struct ns_sched_use *use = &wave->use[u];
        struct ns_sched_entry *it = &s->item[use->item];
        if (it->failed)
            continue;
        want_answered(s, use->item, use->position);
        bool next = it->left > 0 && use->position == it->n - 1;
        s->result[n++] = (struct ns_sched_result){.item = use->item,
                                                  .id = use->id,
                                                  .position = use->position,
                                                  .target = next ? NS_NO_TOKEN : wave->ask[use->ask].target,
                                                  .n_top = it->n_top,
                                                  .last = it->n_wanted == 0,
                                                  .answer = &answer[use->ask]};
        if (next) {
            it->running = true;
            ns_account_depth(s, use->item);
        }
        if (it->n_wanted == 0 && it->n > it->n_done) { /* served by the rows of an identical item */
            wave->out.rows_same += it->n - it->n_done;
            ns_account_alone(s, it->n - it->n_done);
            it->n_done = it->n;
        }
        if (it->n_wanted == 0 && !it->begun)
            ns_fair_begin(s, use->item);
    }
    return n;
}

enum ns_code ns_sched_take(struct ns_sched *s, const struct ns_wave *done, struct ns_sched_outcome *outcome,
                           struct ns_error *err)
{
    struct ns_wave_plan *wave = &s->wave;
    if (!wave->open)
        return ns_error_set(err, NS_INTERNAL, "no wave is planned");
    const struct ns_answer *answer = s->machine.wave_answers(s->machine.self, done);
    faults_find(s, done, answer);
    for (uint32_t i = s->begun.first; i != NS_NIL;
         i = s->item[i].list_next) { /* cut ones too, which had no answer yet */
        struct ns_sched_entry *it = &s->item[i];
        if (it->stamp == wave->stamp && it->end_next > it->n_done)
            it->n_done = it->end_next;
    }
    size_t n = results_make(s, answer);
    ns_keep_settle(s, done);
    if (s->n_failures > 0)
        qsort(s->failure, s->n_failures, sizeof *s->failure, by_arrival);
    *outcome = (struct ns_sched_outcome){
        .result = s->result, .n_results = n, .failure = s->failure, .n_failures = s->n_failures};
    return NS_OK;
}

void ns_sched_wave_lost(struct ns_sched *s)
{
    ns_keep_abandon(s);
}
