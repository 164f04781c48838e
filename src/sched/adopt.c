/* adopt.c - states that come from elsewhere and states that are to be written down: snapshots go in and out here. */
#include "sched/sched_impl.h"

void ns_sched_adopt(struct ns_sched *s, uint32_t item, struct ns_seq *seq)
{
    struct ns_sched_entry *it = &s->item[item];
    uint32_t at = s->machine.seq_positions(s->machine.self, seq);
    uint32_t node = it->node;
    while (node != NS_NIL && s->node[node].start >= at)
        node = s->node[node].parent;
    bool fits = at > 0 && at < it->n && node != NS_NIL && at <= ns_trie_end(&s->node[node]);
    bool useful = fits && s->node[node].state == NS_NIL && s->node[node].n_users > 0; /* nobody has one further on */
    if (!useful || ns_ledger_expect(s, 1, NULL) != NS_OK) {
        s->machine.seq_close(s->machine.self, seq);
        return;
    }
    ns_ledger_attach(s, node, seq, at);
    if (it->n_done < at)
        it->n_done = at;
    it->running = it->running || at + 1 == it->n;
}

const struct ns_seq *ns_sched_state(const struct ns_sched *s, uint32_t item, uint32_t *positions)
{
    const struct ns_kept *kept = ns_ledger_above(s, s->item[item].node);
    *positions = kept ? kept->at : 0;
    return kept ? kept->seq : NULL;
}
