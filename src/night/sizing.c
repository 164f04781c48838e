/* sizing.c - which division of memory serves the queue best.
 *
 * WHAT   The engine divides memory for any work. When the queue is known, its work is: rows of scoring and prompts, sequences
 *        that generate and for how long. For a row of wave sizes, and states for as many generations as then fit, the passes
 *        are counted and their bytes and multiply-adds forecast; the fastest division wins, if it is clearly faster than the
 *        usual one. What rows and states do not need stays resident (the engine moves that border itself).
 * WHY    A generation advances one token a pass, so with room for a quarter of the states a night takes nearly four times
 *        the passes, while large waves are worth nothing to it; scoring needs large waves and no state at all.
 * LIMITS Prompts are measured by their bytes (a token has about 4), shared prefixes are not known yet. A guess can only cost
 *        time: never fewer states than half the usual ones, never fewer than two of the longest sequences take, so whatever
 *        was accepted by the usual division runs.     (sizing_test: nothing_is_refused_for_it) */
#include "night/ceiling_impl.h"

#include "job/job.h"
#include "queue/queue.h"

#include <math.h>
#include <string.h>

enum { PARSED_MOST = 4096, BYTES_A_TOKEN = 4 };

static const double usual_read_rate = 1e9, usual_fma_rate = 6e10; /* when nobody measured */
static const double clearly = 0.97;

/* ---- what waits ------------------------------------------------------------------------------------------------------- */

struct reader {
    struct ns_budget *budget;
    struct ns_appetite *out;
    uint64_t n_parsed, n_seen;
};

static double input_tokens(const struct ns_input *input)
{
    return input->is_ids ? (double)input->n_ids : (double)(input->text.n / BYTES_A_TOKEN + 1);
}

static void add_request(struct ns_appetite *a, const struct ns_request *r, size_t body_n)
{
    double prompt = r->kind == NS_KIND_CHAT ? (double)(body_n / BYTES_A_TOKEN) : input_tokens(&r->prompt);
    if (r->kind == NS_KIND_CHOICE) {
        a->score_rows += prompt;
        for (size_t i = 0; i < r->n_choices; i++)
            a->score_rows += input_tokens(&r->choice[i]);
    } else if (r->max_tokens == 0) {
        a->score_rows += prompt;
    } else {
        a->generations += 1;
        a->prompt_rows += prompt;
        a->new_tokens += r->max_tokens;
        a->longest_new = r->max_tokens > a->longest_new ? r->max_tokens : a->longest_new;
    }
}

static enum ns_code read_request(void *arg, const struct ns_request_info *info, struct ns_error *err)
{
    (void)err;
    struct reader *reader = arg;
    struct ns_appetite *a = reader->out;
    struct ns_request request = {0};
    struct ns_refusal refusal;
    if (!info->body || info->refused)
        return NS_OK;
    size_t n = strlen(info->body);
    reader->n_seen++;
    a->longest_body = n > a->longest_body ? n : a->longest_body;
    if (reader->n_parsed >= PARSED_MOST)
        return NS_OK;
    /* what cannot be read fails when it is admitted, at no cost */
    if (ns_request_parse(info->body, n, reader->budget, &request, &refusal, NULL) == NS_OK) {
        add_request(a, &request, n);
        reader->n_parsed++;
    }
    ns_request_fini(&request);
    return NS_OK;
}

enum ns_code ns_appetite_read(const char *db_path, struct ns_budget *budget, struct ns_appetite *out,
                              struct ns_error *err)
{
    static const char *const states[] = {"queued", "running"};
    *out = (struct ns_appetite){0};
    struct reader reader = {.budget = budget, .out = out};
    struct ns_queue *queue = NULL;
    enum ns_code rc = ns_queue_open(db_path, NS_QUEUE_READ, false, budget, &queue, err);
    for (size_t i = 0; rc == NS_OK && i < NS_COUNT(states); i++) {
        struct ns_selection which = {.state = states[i]};
        rc = ns_queue_each_request(queue, &which, true, read_request, &reader, err);
    }
    ns_queue_close(queue);
    if (rc != NS_OK || reader.n_parsed == 0)
        return rc;
    double scale = (double)reader.n_seen / (double)reader.n_parsed;
    out->score_rows *= scale;
    out->generations *= scale;
    out->prompt_rows *= scale;
    out->new_tokens *= scale;
    return NS_OK;
}

/* ---- how long it would take --------------------------------------------------------------------------------------------- */

struct division {
    uint32_t rows;
    size_t states, resident;
};

struct sizing {
    const struct ns_plan *plan;
    const struct ns_work *work;
    const struct ns_appetite *a;
    double read_rate, fma_rate;
    double sequence; /* bytes of a usual one */
};

static double sequence_bytes(const struct ns_plan *p, double positions)
{
    double pages = ceil(positions / p->block_positions);
    return (double)p->seq_bytes + pages * ((double)p->block_positions * (double)p->position_bytes + 256);
}

/* What would stay, about: trunk, then head, then experts. */
static struct ns_keep keep_in(const struct ns_plan *p, uint64_t room)
{
    struct ns_keep k = {.trunk_bytes = room < p->trunk_bytes ? room : p->trunk_bytes};
    room -= k.trunk_bytes;
    k.head_bytes = room < p->head_bytes ? room : p->head_bytes;
    uint64_t places = p->expert_bytes ? (room - k.head_bytes) / p->expert_bytes : 0;
    uint64_t all = (uint64_t)p->n_moe_layers * p->n_experts;
    k.experts = (uint32_t)(places < all ? places : all);
    return k;
}

static double wave_seconds(const struct sizing *z, double rows, size_t resident)
{
    struct ns_plan plan = *z->plan;
    struct ns_forecast f;
    uint32_t n = rows < 1 ? 1 : (uint32_t)ceil(rows);
    struct ns_load_shape shape = {.rows = n, .head_rows = n};
    plan.keep = keep_in(&plan, resident);
    ns_plan_forecast(&plan, z->work, &shape, &f);
    double bytes = (double)(f.trunk_bytes + f.head_bytes + f.embed_bytes + f.expert_bytes);
    return fmax(bytes / z->read_rate, f.multiply_adds / z->fma_rate);
}

/* Passes of decoding, with prompts and scoring in the places that are left; before and after them, passes full of those. */
static double seconds_of(const struct sizing *z, const struct division *d)
{
    const struct ns_appetite *a = z->a;
    double rows = d->rows, other = a->score_rows + a->prompt_rows, decoding = 0, live = 0, full, riding = 0;
    if (a->generations > 0) {
        live = fmax(1, fmin(fmin(a->generations, floor((double)d->states / z->sequence)), rows));
        decoding = fmax((double)a->longest_new, ceil(a->new_tokens / live));
        live = a->new_tokens / decoding;
    }
    double first = fmin(live * (a->generations > 0 ? a->prompt_rows / a->generations : 0), a->prompt_rows);
    full = ceil(first / rows);
    riding = fmin(fmax(other - full * rows, 0), decoding * fmax(rows - live, 0));
    full = fmax(full, ceil((other - riding) / rows));
    double s = decoding > 0 ? decoding * wave_seconds(z, live + riding / decoding, d->resident) : 0;
    return s + (full > 0 ? full * wave_seconds(z, (other - riding) / full, d->resident) : 0);
}

static struct division divide(const struct sizing *z, uint32_t rows)
{
    const struct ns_plan *p = z->plan;
    double pool = (double)(p->share[NS_SHARE_ROWS] + p->share[NS_SHARE_STATES] + p->share[NS_SHARE_RESIDENT]);
    double rest = fmax(0, pool - (double)rows * (double)p->row_bytes);
    double least = (double)p->share[NS_SHARE_STATES] / 2;
    least = fmax(least, 2 * sequence_bytes(p, fmin((double)(z->a->longest_body + z->a->longest_new), p->context)));
    double states = fmin(rest, fmax(least, z->a->generations * z->sequence));
    double model = (double)(p->trunk_bytes + p->head_bytes + p->expert_total_bytes) * 1.01;
    return (struct division){.rows = rows, .states = (size_t)states, .resident = (size_t)fmin(rest - states, model)};
}

void ns_size_memory(const struct ns_plan *plan, const struct ns_work *work, const struct ns_appetite *appetite,
                    const struct ns_night_options *options, struct ns_engine_options *out)
{
    struct sizing z = {.plan = plan,
                       .work = work,
                       .a = appetite,
                       .read_rate = options->read_rate > 0 ? options->read_rate : usual_read_rate,
                       .fma_rate = options->fma_rate > 0 ? options->fma_rate : usual_fma_rate};
    if (appetite->score_rows + appetite->new_tokens < 1 || plan->rows_max == 0)
        return;
    double mean =
        appetite->generations > 0 ? (appetite->prompt_rows + appetite->new_tokens) / appetite->generations : 1;
    z.sequence = sequence_bytes(plan, mean);
    struct division usual = divide(&z, plan->rows_max); /* states take what they need from what stays */
    double best = clearly * seconds_of(&z, &usual);
    for (uint32_t rows = plan->rows_max; rows >= plan->floor_rows && rows > 0; rows -= rows / 8 > 0 ? rows / 8 : 1) {
        struct division d = divide(&z, rows);
        double s = seconds_of(&z, &d);
        if (s < best) {
            best = s;
            out->rows_max = d.rows;
            out->state_bytes = d.states;
        }
        if (options->wave_rows > 0)
            break; /* it was said how many */
    }
}
