/* sizing.c - which division of memory serves the queue best.
 *
 * WHAT   The engine divides memory for any work. When the queue is known, its work is: rows of scoring and prompts, sequences
 *        that generate and for how long. For a row of wave sizes, and of limits for states, the passes are counted and their
 *        bytes and multiply-adds forecast; the fastest pair wins, if it is clearly faster than the usual one. Both are
 *        limits, not shares: rows, states and what stays change places as a night goes on (engine/pool.c). Then the same with
 *        fewer experts and tiles in flight, which leave them more memory.
 * WHY    A generation advances one token a pass, so with room for a quarter of the states a night takes nearly four times
 *        the passes; scoring needs large waves and no state at all. Prompts of generations need both: rows to come in, and
 *        fewer and fewer as states fill the memory; long prompts want states limited, so that rows are left for the next.
 * LIMITS Prompts are measured by their bytes (a token has about 4), shared prefixes are not known yet. A guess can only cost
 *        time: never fewer states than half the usual ones, never fewer than two of the longest sequences take, so whatever
 *        was accepted by the usual division runs.     (sizing_test: nothing_is_refused_for_it)
 *        A wave that an earlier run put aside is worth more than any division: it fits into each that is looked at.
 *                                                     (sizing_test: a_wave_that_was_put_aside_fits; resume_test) */
#include "night/ceiling_impl.h"

#include "job/job.h"
#include "queue/queue.h"

#include <math.h>
#include <string.h>

enum { PARSED_MOST = 4096, BYTES_A_TOKEN = 4, STEPS_LIFE = 256, STEPS_MOST = 1024 };

static const double usual_read_rate = 1e9, usual_fma_rate = 1e11; /* when nobody measured */
static const double desk_alone = 4e6; /* without a request: what the scheduler remembers, the largest plans */
static const double beside_each =
    0.15; /* of the shorter of reading and computing, that is not done beside the longer */
static const double clearly = 0.99, nearly = 0.998;
static const double slots_held = 0.4,
                    tiles_held = 1.2; /* of experts, of tiles: by what is computed or came too early */
static const uint32_t least_slots = 4, few_tiles = 4;
static const size_t tile_edge = 12288; /* of a read that is cut at the disk's blocks */

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

/* Bytes on the desk: the request as text and as ids, its place in tree and plans, its tokens and the text of its result. */
static double desk_of(const struct ns_request *r, size_t body_n, double prompt)
{
    static const double each = 16384, of_body = 12, token = 64, alternative = 96;
    double told = r->max_tokens + (ns_request_wants_prompt_logprobs(r) ? prompt : 0);
    return each + of_body * (double)body_n + told * (token + alternative * (1 + r->n_logprobs));
}

static void add_request(struct ns_appetite *a, const struct ns_request *r, size_t body_n)
{
    double prompt = r->kind == NS_KIND_CHAT ? (double)(body_n / BYTES_A_TOKEN) : input_tokens(&r->prompt);
    a->desk_bytes += desk_of(r, body_n, prompt);
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
    out->desk_bytes = desk_alone + out->desk_bytes * scale;
    return NS_OK;
}

/* ---- how long it would take --------------------------------------------------------------------------------------------- */

struct division {
    uint32_t rows;
    double states; /* most bytes of them */
};

struct sizing {
    const struct ns_plan *plan;
    const struct ns_work *work;
    const struct ns_appetite *a;
    double read_rate, fma_rate;
    uint32_t slots, tiles;   /* experts and tiles in flight */
    double pool;             /* bytes for rows, states and what stays */
    double sequence, prompt; /* bytes and prompt rows of a usual one that generates */
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

/* Of the peak, that a wave of so many rows reaches: the more rows an expert has, the less its unpacking weighs. */
static double share_of_peak(double rows)
{
    static const double few = 16, with_few = 0.28, each_doubling = 0.05, least = 0.05, most = 0.6;
    return fmin(fmax(with_few + each_doubling * log2(rows / few), least), most);
}

/* Of the disk's rate, that is reached with n blocks in flight when on average some of them are held. */
static double share_of_disk(double n, double held)
{
    return n > 0 ? n / (n + held) : 1;
}

/* One wave while live sequences keep their states. */
static double wave_seconds(const struct sizing *z, double rows, double live)
{
    struct ns_plan plan = *z->plan;
    struct ns_forecast f;
    uint32_t n = rows < 1 ? 1 : (uint32_t)ceil(rows);
    struct ns_load_shape shape = {.rows = n, .head_rows = n};
    double taken = live * z->sequence + n * (double)plan.row_bytes + (double)plan.wave_bytes;
    plan.keep = keep_in(&plan, taken < z->pool ? (uint64_t)(z->pool - taken) : 0);
    ns_plan_forecast(&plan, z->work, &shape, &f);
    double dense = (double)(f.trunk_bytes + f.head_bytes + f.embed_bytes), experts = (double)f.expert_bytes;
    double disk =
        (dense / share_of_disk(z->tiles, tiles_held) + experts / share_of_disk(z->slots, slots_held)) / z->read_rate;
    double compute = f.multiply_adds / (z->fma_rate * share_of_peak(n));
    return fmax(disk, compute) + beside_each * fmin(disk, compute);
}

/* Rows of a wave beside the states of live sequences. */
static double rows_beside(const struct sizing *z, const struct division *d, double live)
{
    const struct ns_plan *p = z->plan;
    double room = z->pool - live * z->sequence - (double)p->wave_bytes;
    return fmax(0, fmin(d->rows, room / (double)p->row_bytes));
}

/* How many of those that wait come in beside live ones. A prompt that finds no room whole comes in parts, its state
 * reserved from the first. */
static double joining(const struct sizing *z, const struct division *d, double prompt, double live)
{
    const double row = (double)z->plan->row_bytes, states = ceil(live - 1e-6), most = floor(d->states / z->sequence);
    const double room = z->pool - (double)z->plan->wave_bytes - states * z->sequence - live * row,
                 rows = d->rows - live;
    if (states - live > 1e-6)
        return fmax(fmin(fmin(room / (prompt * row), rows / prompt), states - live), 0);
    double k = fmin(room / (z->sequence + prompt * row), rows / prompt);
    if (k < 1)
        k = fmax(fmin(fmin((room - z->sequence) / (prompt * row), rows / prompt), 1), 0);
    return fmin(k < 1 ? k : floor(k), fmax(most - live, 0));
}

/* All waves in which something is generated, one after the other: who joins finds room for state and prompt beside those
 * that run, and leaves as many steps later as is usual; prompts and scoring ride in the rows that are left. A generation of
 * very many tokens is walked in fewer, longer steps; a queue that takes more of them goes on as it began.
 * Returns seconds; *other: rows that still need waves of their own. */
static double generate(const struct sizing *z, const struct division *d, double *other)
{
    const double mean = fmax(1, z->a->new_tokens / z->a->generations), pace = ceil(mean / STEPS_LIFE);
    const uint32_t life = (uint32_t)ceil(mean / pace);
    double joined[STEPS_MOST], waiting = z->a->generations, live = 0, seconds = 0;
    uint32_t step = 0;
    for (; step < STEPS_MOST && waiting + live > 1e-6; step++) {
        live -= step >= life ? joined[step - life] : 0;
        double k = fmin(joining(z, d, z->prompt / pace, live), waiting), prompt = z->prompt / pace;
        if (k * z->prompt < 1 && live < 1 && waiting > 1e-6)
            return INFINITY; /* nobody ever finds room */
        joined[step] = k;
        waiting -= k;
        live += k;
        double now = live - k + k * prompt;
        double riding = fmin(fmax(*other, 0), pace * fmax(0, rows_beside(z, d, live) - now));
        *other -= riding;
        seconds += pace * wave_seconds(z, now + riding / pace, live);
    }
    double begun = z->a->generations - waiting, part = begun - live / 2;
    return waiting + live > 1e-6 ? seconds * z->a->generations / fmax(part, 1) : seconds;
}

static double seconds_of(const struct sizing *usual, const struct division *d)
{
    struct sizing z = *usual;
    const struct ns_appetite *a = z.a;
    z.pool += ((double)z.plan->rows_max - d->rows) * (double)z.plan->row_table_bytes;
    double other = a->score_rows, s = a->generations > 0 ? generate(&z, d, &other) : 0;
    double full = ceil(fmax(other, 0) / fmax(rows_beside(&z, d, 0), 1));
    return s + (full > 0 ? full * wave_seconds(&z, other / full, 0) : 0);
}

/* The fastest pair of limits, if it takes less than best seconds. */
static bool search(const struct sizing *z, double least, bool fixed_rows, double *best, struct ns_engine_options *out)
{
    const struct ns_plan *p = z->plan;
    const uint32_t aside = z->a->aside.rows, most = p->rows_most > aside ? p->rows_most : aside;
    const uint32_t least_rows = p->floor_rows > aside ? p->floor_rows : aside;
    bool found = false;
    for (uint32_t rows = fixed_rows ? p->rows_max : most; rows >= least_rows && rows > 0;
         rows -= rows / 8 > 0 ? rows / 8 : 1) {
        for (double states = z->pool; states >= least; states *= 7.0 / 8) {
            struct division d = {.rows = rows, .states = states};
            double s = seconds_of(z, &d);
            if (s >= *best)
                continue;
            *best = s * nearly;
            found = true;
            out->rows_max = rows;
            out->state_bytes = states < z->pool ? (size_t)states : 0;
        }
        if (fixed_rows)
            break; /* it was said how many */
    }
    return found;
}

/* Bytes of the states of the wave that was put aside, at most; 0: there is none. */
static double states_aside(const struct sizing *z)
{
    const struct ns_plan *p = z->plan;
    return z->a->aside.n_seqs * sequence_bytes(p, 0) +
           z->a->aside.n_pages * (sequence_bytes(p, 1) - sequence_bytes(p, 0));
}

static double wave_aside(const struct sizing *z)
{
    const struct ns_plan *p = z->plan;
    if (z->a->aside.rows == 0)
        return 0;
    return states_aside(z) + z->a->aside.rows * (double)p->row_bytes + (double)p->wave_bytes;
}

static size_t tile_room(const struct ns_plan *p)
{
    return p->store.tile_bytes + tile_edge;
}

/* Fewer experts and tiles in flight read slower, and leave memory for states and rows: how many are best is asked for
 * limits of the shape that was found, then the limits are looked for anew. When the wave that was put aside does not fit
 * otherwise, only divisions that leave room for it count, or the smallest. */
static void search_flight(struct sizing *z, double least, bool fixed_rows, double *best, struct ns_engine_options *out)
{
    const struct ns_plan *p = z->plan;
    const uint32_t slots = z->slots, tiles = z->tiles;
    const uint32_t least_n = slots < least_slots ? slots : least_slots, least_t = tiles < few_tiles ? tiles : few_tiles;
    const double slot = slots > 0 ? (double)p->share[NS_SHARE_EXPERTS] / slots : 0, pool = z->pool;
    const double part = out->state_bytes > 0 ? (double)out->state_bytes / pool : 1;
    const bool tight = wave_aside(z) > pool;
    const uint32_t rows = out->rows_max > 0 ? out->rows_max : p->rows_max;
    struct sizing found = *z;
    double least_s = tight ? INFINITY : *best * clearly;
    bool any = false;
    for (uint32_t t = tiles; t >= least_t; t = t > least_t && t / 2 < least_t ? least_t : t / 2) {
        for (uint32_t n = slots; n >= least_n; n--) {
            struct sizing now = *z;
            now.tiles = t;
            now.slots = n;
            now.pool = pool + (double)((tiles - t) * tile_room(p)) + (slots - n) * slot;
            struct division d = {.rows = rows, .states = part * now.pool};
            bool smallest = n == least_n && t == least_t;
            if (tight && wave_aside(z) > now.pool && !smallest)
                continue;
            double s = seconds_of(&now, &d);
            if (s < least_s || (tight && smallest && !any)) {
                least_s = s * nearly;
                found = now;
                any = true;
            }
            if (n == 0)
                break;
        }
        if (t == 0)
            break;
    }
    if (!any)
        return;
    out->rows_max = rows;
    out->state_bytes = out->state_bytes > 0 ? (size_t)(part * found.pool) : 0;
    out->store.expert_slots = found.slots < slots ? found.slots : 0;
    out->store.ring_bytes = found.tiles < tiles ? found.tiles * tile_room(p) : 0;
    search(&found, least, fixed_rows, &least_s, out);
    if (tight)
        out->state_bytes = 0;
}

/* In steps of a half octave: two measurements of a machine should lead to one division. */
static double steady(double rate, double usual)
{
    return exp2(round(2 * log2(rate > 0 ? rate : usual)) / 2);
}

void ns_size_memory(const struct ns_plan *plan, const struct ns_work *work, const struct ns_appetite *appetite,
                    const struct ns_night_options *options, struct ns_engine_options *out)
{
    struct sizing z = {.plan = plan,
                       .work = work,
                       .a = appetite,
                       .slots = plan->store.expert_slots,
                       .tiles = (uint32_t)(plan->store.ring_bytes / tile_room(plan)),
                       .read_rate = steady(options->read_rate, usual_read_rate),
                       .fma_rate = steady(options->fma_rate, usual_fma_rate)};
    if (plan->rows_max == 0)
        return;
    if (appetite->aside.rows > plan->rows_max)
        out->rows_max = appetite->aside.rows;
    if (appetite->score_rows + appetite->new_tokens < 1)
        return;
    const double usual_states = (double)plan->share[NS_SHARE_STATES] + (double)plan->share[NS_SHARE_RESIDENT];
    z.pool = usual_states + (double)plan->share[NS_SHARE_ROWS];
    z.sequence = sequence_bytes(plan, 1);
    if (appetite->generations > 0) {
        z.sequence = sequence_bytes(plan, (appetite->prompt_rows + appetite->new_tokens) / appetite->generations);
        z.prompt = fmax(1, appetite->prompt_rows / appetite->generations);
    }
    double longest = (double)(appetite->longest_body + appetite->longest_new);
    double least = fmax(usual_states / 2, 2 * sequence_bytes(plan, fmin(longest, plan->context)));
    least = fmax(least, fmin(states_aside(&z), z.pool));
    struct division usual = {.rows = plan->rows_max, .states = z.pool};
    /* into the usual one that wave may not fit */
    double best = appetite->aside.rows > plan->rows_max ? INFINITY : clearly * seconds_of(&z, &usual);
    search(&z, least, options->wave_rows > 0, &best, out);
    search_flight(&z, least, options->wave_rows > 0, &best, out);
}
