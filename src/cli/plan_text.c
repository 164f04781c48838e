/* plan_text.c - how the memory of a run is divided, in a few words. */
#include "cli/plan_text.h"

static const char *size_of(uint64_t bytes, char text[16])
{
    ns_size_text(bytes, text);
    return text;
}

uint64_t ns_plan_sequences(const struct ns_plan *plan, uint32_t positions)
{
    uint64_t pages = ((uint64_t)positions + plan->block_positions - 1) / plan->block_positions;
    uint64_t one = plan->seq_bytes + pages * plan->block_positions * plan->position_bytes;
    /* states have the first claim on what weights hold */
    return one > 0 ? (plan->share[NS_SHARE_STATES] + plan->share[NS_SHARE_RESIDENT]) / one : 0;
}

void ns_plan_note(struct ns_cli *cli, const struct ns_night_plan *p)
{
    const struct ns_ceiling_view *v = &p->view;
    const struct ns_plan *e = &p->engine;
    uint64_t sequences = ns_plan_sequences(e, 1024);
    char a[16], b[16], c[16], d[16], f[16];
    if (v->is_chosen)
        ns_note(cli, "memory: %s of the %s that are free, less %s promised to others and a margin of %s",
                size_of(v->ceiling_bytes, a), size_of(v->free_bytes, b), size_of(v->promised_bytes, c),
                size_of(v->margin_bytes, d));
    ns_note(cli,
            "plan: %s in all; %s for waves of up to %" PRIu32
            " row%s, %s of weights in flight, %s for weights that stay "
            "(%s dense, %" PRIu32 " expert%s) or states of up to %" PRIu64 " sequence%s of 1024 positions",
            size_of(p->ceiling_bytes, a), size_of(e->share[NS_SHARE_ROWS], b), e->rows_max, NS_PLURAL(e->rows_max),
            size_of(e->share[NS_SHARE_TILES] + e->share[NS_SHARE_EXPERTS], c),
            size_of(e->share[NS_SHARE_RESIDENT] + e->share[NS_SHARE_STATES], d),
            size_of(e->keep.trunk_bytes + e->keep.head_bytes, f), e->keep.experts, NS_PLURAL(e->keep.experts),
            sequences, NS_PLURAL(sequences));
}
