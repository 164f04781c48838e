/* wave_detail.c - the account of a wave, and of the run so far, as the JSON object that waves.detail keeps. */
#include "night/night_impl.h"

#include <math.h>

static void put_u64(struct ns_text *out, const char *name, uint64_t v)
{
    ns_text_format(out, "%s\"%s\":%" PRIu64, out->n > 1 ? "," : "", name, v);
}

static void put_real(struct ns_text *out, const char *name, double v)
{
    if (isfinite(v))
        ns_text_format(out, "%s\"%s\":%.6g", out->n > 1 ? "," : "", name, v);
}

/* The members that a wave and a whole job have in common. */
static void put_account(struct ns_text *out, const struct ns_sched_account *a)
{
    put_u64(out, "rows", a->rows);
    put_u64(out, "rows_decode", a->rows_decode);
    put_u64(out, "rows_prefill", a->rows_prefill);
    put_u64(out, "rows_score", a->rows_score);
    put_u64(out, "rows_replay", a->rows_replay);
    put_u64(out, "rows_saved_by_prefix", a->rows_prefix);
    put_u64(out, "rows_saved_by_same", a->rows_same);
    put_u64(out, "logit_rows", a->logit_rows);
    put_u64(out, "items", a->items);
    put_u64(out, "experts_requested", a->experts_requested);
    put_u64(out, "experts_distinct", a->experts_distinct);
    put_u64(out, "experts_kept", a->experts_kept);
    put_u64(out, "experts_read", a->experts_read);
    put_real(out, "experts_uniform", a->experts_uniform);
    put_u64(out, "trunk_bytes", a->trunk_bytes);
    put_u64(out, "trunk_kept_bytes", a->trunk_kept_bytes);
    put_u64(out, "head_bytes", a->head_bytes);
    put_u64(out, "embed_bytes", a->embed_bytes);
    put_u64(out, "expert_bytes", a->expert_bytes);
    put_u64(out, "alone_rows", a->alone_rows);
    put_u64(out, "alone_bytes", a->alone_bytes);
    put_u64(out, "state_bytes", a->state_bytes);
    put_u64(out, "spill_read_bytes", a->spill_read_bytes);
    put_u64(out, "spill_written_bytes", a->spill_written_bytes);
    put_u64(out, "spill_file_bytes", a->spill_file_bytes);
    put_real(out, "disk_s", (double)a->disk_ns * 1e-9);
    put_real(out, "compute_s", (double)a->compute_ns * 1e-9);
    put_real(out, "product_s", (double)a->product_ns * 1e-9);
    put_real(out, "stall_s", (double)a->stall_ns * 1e-9);
    put_real(out, "wall_s", (double)a->wall_ns * 1e-9);
    put_real(out, "plan_s", (double)a->plan_ns * 1e-9);
    put_real(out, "bound_disk_s", a->bound_disk_s);
    put_real(out, "bound_compute_s", a->bound_compute_s);
    put_real(out, "bound_s", a->bound_s);
    put_real(out, "achieved", a->achieved);
    put_real(out, "overlap", a->overlap);
    ns_text_format(out, ",\"bound_by\":\"%s\"", ns_sched_bound_name(a->bound));
}

void ns_wave_detail(struct ns_text *out, const struct ns_sched_account *wave, const struct ns_sched_account *job,
                    const struct ns_sched_plan *plan)
{
    ns_text_puts(out, "{");
    put_account(out, wave);
    put_u64(out, "rows_most", plan->rows_most);
    ns_text_puts(out, ",\"job\":");
    ns_text_format(out, "{\"waves\":%" PRIu64, job->waves);
    put_account(out, job);
    ns_text_puts(out, "}}");
}
