/* prefetch.c - experts read before the router has spoken.
 *
 * When nearly all experts of a layer are expected, reading the first of them early is a guess that is hardly ever wrong,
 * and the disk would idle otherwise. Early reads go into free slots only and never push out what is kept. What the router
 * then does not want was read in vain and is counted; what it does want is found in its slot. */
#include "store/store_impl.h"

#define NEARLY_ALL_PERCENT 90

void ns_store_experts_expect(struct ns_store *store, uint32_t layer, size_t n_expected)
{
    struct ns_experts *x = &store->experts;
    size_t all = store->layout.n_experts;
    if (store->layout.expert_bytes == 0 || layer >= store->layout.n_layers ||
        n_expected * 100 < all * NEARLY_ALL_PERCENT || x->layer == layer)
        return;
    if (!ns_layout_expert(&store->layout, (struct ns_expert_id){layer, 0})[0])
        return; /* a dense layer */
    x->expected_layer = layer;
    x->n_expected = all;
    x->next_expected = 0;
    ns_experts_read_ahead(store);
}

void ns_experts_read_ahead(struct ns_store *store)
{
    struct ns_experts *x = &store->experts;
    if (x->next_start < x->n_want)
        return; /* certain reads go first */
    for (; x->next_expected < x->n_expected; x->next_expected++) {
        struct ns_expert_id id = {x->expected_layer, x->next_expected};
        if (ns_experts_has(store, id))
            continue;
        struct ns_expert_slot *slot = ns_experts_free_slot(store);
        if (!slot)
            return;
        ns_experts_start(store, slot, id);
    }
}
