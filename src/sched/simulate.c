/* simulate.c - the plan without the model: the scheduler itself on a machine that only counts.
 *
 * WHAT   A machine whose sequences are a position and a topic. A wave looks up which experts its rows would choose, in
 *        recorded routing or in a synthetic one, counts the union, and derives bytes and seconds from the model's numbers:
 *          bytes   = trunk + head + experts of the union, less what was read before and memory keeps
 *          seconds = the greater of bytes / read rate and multiply-adds / rate, and 5 %
 *        Every item runs to its expected length. Four ways to run them are compared.
 * WHY    It answers "what would grouping gain for this queue" with the code that would do it, not with a formula.
 * ROUTING  Recorded: an item walks through the recorded tokens from a place given by its first tokens. Synthetic: half of a
 *        row's choices come from a small set of its topic, a third from the set of its token, the rest from all experts
 *        with a skew. The topic follows the tokens at multiples of 256 positions. Overlap of two rows of a topic is then
 *        about 0.17 and of the same token about 0.4, near what was measured on real models; the sums
 *        are good to some 20 %.
 * INVARIANT  Same options, same result.    (simulate_test: same_seed_same_result) */
#include "sched/sched_impl.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 8, TOPIC_LENGTH = 256, TOPICS = 64, VOCAB_OF_ANSWERS = 4096 };

struct ns_seq {
    uint32_t n;
    uint64_t topic;
    size_t bytes;
};

struct ns_wave {
    const struct ns_wave_desc *desc;
    struct ns_answer *answer;
    uint64_t *topic; /* after each segment */
    uint32_t *end;   /* positions after each segment */
    struct ns_wave_stats stats;
};

struct sim {
    const struct ns_sim_options *o;
    struct ns_budget *budget;
    struct ns_sched *sched;
    struct ns_wave wave;
    double filled; /* bytes of weights that were read and stayed */
    size_t held, answer_capacity, segment_capacity, end_capacity;
    uint32_t n_layers;
    uint64_t *set; /* [n_layers][words] of the wave */
    size_t words;
    uint32_t *left;   /* [n_layers] experts that the wave has not */
    uint32_t to_fill; /* layers with some left */
    bool tell;        /* what every row chose, to the scheduler */
    uint32_t *chosen; /* [top_k] */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    z = (z ^ (z >> 32)) * 0xc4ceb9fe1a85ec53u;
    return z ^ (z >> 29);
}

/* ---- routing ---------------------------------------------------------------------------------------------------------- */

static void choose(const struct sim *sim, uint64_t topic, uint32_t token, uint32_t position, uint32_t layer)
{
    const struct ns_sched_model *m = &sim->o->model;
    const struct ns_sim_routing *r = sim->o->routing;
    if (r) {
        uint64_t at = (topic + position) % r->n_tokens;
        for (uint32_t i = 0; i < m->top_k; i++)
            sim->chosen[i] = r->expert[(at * r->n_layers + layer) * r->top_k + i];
        return;
    }
    uint64_t row = mix(mix(sim->o->seed, topic), mix(token, position));
    for (uint32_t i = 0; i < m->top_k; i++) {
        uint64_t h = mix(mix(row, layer), i);
        double kind = (double)(h >> 40) / (double)(1u << 24), u = (double)(h & 0xffffff) / (double)(1u << 24);
        uint64_t pick;
        if (kind < 0.5)
            pick = mix(mix(topic, layer), (uint64_t)(u * 1.5 * m->top_k));
        else if (kind < 0.83)
            pick = mix(mix(0x746f6b656eu + token, layer), (uint64_t)(u * m->top_k));
        else
            pick = (uint64_t)(pow(u, 1.5) * m->n_experts);
        sim->chosen[i] = (uint32_t)(pick % m->n_experts);
    }
}

/* The layer's number in the model. */
static uint32_t layer_number(const struct sim *sim, uint32_t layer)
{
    uint32_t n = sim->o->model.n_moe_layers, step = n > LAYERS ? n / LAYERS : 1;
    return sim->n_layers == n ? layer : layer * step + step / 2;
}

/* A wave soon has all experts of a layer; what its other rows choose there matters only to the scheduler. */
static void route_row(struct sim *sim, uint64_t topic, uint32_t token, uint32_t position, uint32_t row)
{
    uint32_t n = sim->to_fill > 0 || sim->tell ? sim->n_layers : 0;
    for (uint32_t layer = 0; layer < n; layer++) {
        if (sim->left[layer] == 0 && !sim->tell)
            continue;
        choose(sim, topic, token, position, layer);
        for (uint32_t i = 0; i < sim->o->model.top_k; i++) {
            uint64_t *word = &sim->set[layer * sim->words + sim->chosen[i] / 64], bit = 1ull << (sim->chosen[i] % 64);
            if ((*word & bit) == 0 && --sim->left[layer] == 0)
                sim->to_fill--;
            *word |= bit;
        }
        if (sim->tell)
            ns_sched_routing(sim->sched, row, layer_number(sim, layer), sim->chosen, sim->o->model.top_k);
    }
}

/* ---- the machine ------------------------------------------------------------------------------------------------------ */

static size_t sim_seq_bytes(void *self, uint32_t n)
{
    const struct sim *sim = self;
    return (size_t)(sim->o->seq_bytes + sim->o->seq_bytes_position * n);
}

static size_t left_of(uint64_t all, uint64_t taken)
{
    return all > taken ? (size_t)(all - taken) : 0;
}

static size_t sim_room_left(void *self)
{
    const struct sim *sim = self;
    return left_of(sim->o->room_bytes, sim->held);
}

static size_t sim_rows_bytes(void *self, uint32_t n_rows, uint32_t n_positions)
{
    (void)n_positions;
    const struct sim *sim = self;
    return (size_t)(sim->o->wave_bytes + n_rows * sim->o->row_bytes);
}

static size_t sim_state_left(void *self)
{
    const struct sim *sim = self;
    size_t left = left_of(sim->o->state_bytes, sim->held), room = sim_room_left(self);
    return sim->o->room_bytes > 0 && room < left ? room : left;
}

/* Bytes that can keep weights during a wave. */
static double sim_keeps(struct sim *sim, uint32_t n_rows)
{
    const struct ns_sim_options *o = sim->o;
    if (o->room_bytes == 0)
        return (double)o->model.memory_bytes;
    size_t room = left_of(sim_room_left(sim), sim_rows_bytes(sim, n_rows, 0));
    return room < o->keep_bytes ? (double)room : (double)o->keep_bytes;
}

static enum ns_code sim_seq_open(void *self, struct ns_seq **out, struct ns_error *err)
{
    struct sim *sim = self;
    struct ns_seq *seq = ns_budget_take(sim->budget, sizeof *seq, err);
    if (!seq)
        return NS_BUDGET;
    *out = seq;
    return NS_OK;
}

static void sim_seq_close(void *self, struct ns_seq *seq)
{
    struct sim *sim = self;
    if (seq)
        sim->held -= seq->bytes;
    ns_budget_give(sim->budget, seq);
}

static uint32_t sim_seq_positions(void *self, const struct ns_seq *seq)
{
    (void)self;
    return seq->n;
}

static enum ns_code sim_wave_open(void *self, const struct ns_wave_desc *desc, const struct ns_probe *probe,
                                  struct ns_wave **out, struct ns_error *err)
{
    (void)probe; /* it tells the scheduler itself what its rows chose */
    struct sim *sim = self;
    struct ns_wave *w = &sim->wave;
    void *answer = w->answer, *topic = w->topic, *end = w->end;
    enum ns_code rc =
        ns_sched_reserve(sim->budget, &answer, &sim->answer_capacity, desc->n_asks, sizeof *w->answer, err);
    w->answer = answer;
    if (rc == NS_OK)
        rc = ns_sched_reserve(sim->budget, &topic, &sim->segment_capacity, desc->n_segments, sizeof *w->topic, err);
    w->topic = topic;
    if (rc == NS_OK)
        rc = ns_sched_reserve(sim->budget, &end, &sim->end_capacity, desc->n_segments, sizeof *w->end, err);
    w->end = end;
    if (rc != NS_OK)
        return rc;
    w->desc = desc;
    w->stats = (struct ns_wave_stats){.segments = (uint32_t)desc->n_segments};
    *out = w;
    return NS_OK;
}

static void segment_run(struct sim *sim, size_t i, uint64_t *past)
{
    struct ns_wave *w = &sim->wave;
    const struct ns_segment *g = &w->desc->segment[i];
    uint64_t topic = 0;
    uint32_t position = 0;
    if (g->parent != NS_NO_PARENT) {
        topic = w->topic[g->parent];
        position = w->end[g->parent];
    } else if (g->from) {
        topic = g->from->topic;
        position = g->from->n;
    }
    for (uint32_t k = 0; k < g->n; k++, position++) {
        if (position % TOPIC_LENGTH == 0)
            topic = mix(topic, g->token[k]) % TOPICS;
        route_row(sim, topic, g->token[k], position, w->stats.rows++);
        *past += position;
    }
    w->topic[i] = topic;
    w->end[i] = position;
}

/* Bytes and seconds of a wave from its rows and its union. */
static void wave_cost(struct sim *sim, uint64_t past)
{
    const struct ns_sched_model *m = &sim->o->model;
    struct ns_wave_stats *st = &sim->wave.stats;
    uint64_t distinct = 0;
    for (size_t i = 0; i < sim->n_layers * sim->words; i++)
        distinct += (uint64_t)__builtin_popcountll(sim->set[i]);
    double experts = (double)distinct * m->n_moe_layers / sim->n_layers;
    double most = sim_keeps(sim, st->rows), kept = fmin(sim->filled, most), keep = kept;
    double trunk = (double)m->trunk_bytes, head = (double)m->head_bytes;
    double trunk_kept = keep < trunk ? keep : trunk;
    keep -= trunk_kept;
    double head_kept = keep < head ? keep : head,
           all = (double)m->n_moe_layers * m->n_experts * (double)m->expert_bytes;
    keep -= head_kept;
    double share = all > 0 && keep < all ? keep / all : 1;
    st->logit_rows = (uint32_t)sim->wave.desc->n_asks;
    st->experts_requested = (uint64_t)st->rows * m->top_k * m->n_moe_layers;
    st->experts_distinct = (uint64_t)experts;
    st->store.experts_kept = (uint64_t)(experts * share);
    st->store.experts_read = st->experts_distinct - st->store.experts_kept;
    st->store.trunk_bytes = (uint64_t)(trunk - trunk_kept);
    st->store.trunk_kept_bytes = (uint64_t)trunk_kept;
    st->store.head_bytes = (uint64_t)(head - head_kept);
    st->store.expert_bytes = st->store.experts_read * m->expert_bytes;
    double bytes = (double)(st->store.trunk_bytes + st->store.head_bytes + st->store.expert_bytes);
    sim->filled = fmin(kept + bytes, most);
    double fma = st->rows * m->fma_row + st->logit_rows * m->fma_head + (double)past * m->fma_past;
    double disk = bytes / m->read_rate, compute = fma / m->fma_rate;
    st->store.disk_ns = (uint64_t)(disk * 1e9);
    st->compute_ns = (uint64_t)(compute * 1e9) + 1;
    st->wall_ns = (uint64_t)(1.05e9 * (disk > compute ? disk : compute)) + 1;
    st->store.stall_ns = st->wall_ns - st->compute_ns;
}

static enum ns_code sim_wave_step(void *self, struct ns_wave *w, bool *done, struct ns_error *err)
{
    (void)err;
    struct sim *sim = self;
    uint64_t past = 0;
    memset(sim->set, 0, sim->n_layers * sim->words * sizeof *sim->set);
    for (uint32_t layer = 0; layer < sim->n_layers; layer++)
        sim->left[layer] = sim->o->model.n_experts;
    sim->to_fill = sim->n_layers;
    for (size_t i = 0; i < w->desc->n_segments; i++)
        segment_run(sim, i, &past);
    for (size_t i = 0; i < w->desc->n_segments; i++) {
        struct ns_seq *into = w->desc->segment[i].into;
        if (!into)
            continue;
        sim->held -= into->bytes;
        *into = (struct ns_seq){.n = w->end[i], .topic = w->topic[i], .bytes = sim_seq_bytes(sim, w->end[i])};
        sim->held += into->bytes;
    }
    for (size_t i = 0; i < w->desc->n_asks; i++) {
        const struct ns_ask *ask = &w->desc->ask[i];
        uint32_t best = (uint32_t)mix(w->topic[ask->segment], w->end[ask->segment]) % VOCAB_OF_ANSWERS;
        w->answer[i] = (struct ns_answer){.ok = true, .best = best % sim->o->vocab, .n_top = 1};
    }
    wave_cost(sim, past);
    *done = true;
    return NS_OK;
}

static const struct ns_answer *sim_wave_answers(void *self, const struct ns_wave *w)
{
    (void)self;
    return w->answer;
}

static const struct ns_error *sim_wave_fault(void *self, const struct ns_wave *w, size_t segment)
{
    (void)self, (void)w, (void)segment;
    return NULL;
}

static void sim_wave_stats(void *self, const struct ns_wave *w, struct ns_wave_stats *out)
{
    (void)self;
    *out = w->stats;
}

static void sim_wave_close(void *self, struct ns_wave *w)
{
    (void)self, (void)w;
}

static struct ns_machine machine_of(struct sim *sim)
{
    bool shared = sim->o->room_bytes > 0;
    return (struct ns_machine){.self = sim,
                               .rows_max = sim->o->rows_max,
                               .context = sim->o->context,
                               .vocab = sim->o->vocab,
                               .seq_bytes = sim_seq_bytes,
                               .state_left = sim_state_left,
                               .room_left = shared ? sim_room_left : NULL,
                               .rows_bytes = shared ? sim_rows_bytes : NULL,
                               .seq_open = sim_seq_open,
                               .seq_close = sim_seq_close,
                               .seq_positions = sim_seq_positions,
                               .wave_open = sim_wave_open,
                               .wave_step = sim_wave_step,
                               .wave_answers = sim_wave_answers,
                               .wave_fault = sim_wave_fault,
                               .wave_stats = sim_wave_stats,
                               .wave_close = sim_wave_close};
}

/* ---- a night ---------------------------------------------------------------------------------------------------------- */

static enum ns_code wave_run(struct sim *sim, const struct ns_machine *machine, const struct ns_sched_plan *plan,
                             const struct ns_sched_item *item, uint32_t *made, struct ns_error *err)
{
    struct ns_wave *wave;
    bool done = false;
    enum ns_code rc = machine->wave_open(sim, &plan->desc, NULL, &wave, err);
    if (rc == NS_OK)
        rc = machine->wave_step(sim, wave, &done, err);
    struct ns_sched_outcome outcome;
    if (rc == NS_OK)
        rc = ns_sched_take(sim->sched, wave, &outcome, err);
    if (rc != NS_OK) {
        ns_sched_wave_lost(sim->sched);
        return rc;
    }
    ns_sched_observe(sim->sched, &wave->stats);
    for (size_t i = 0; i < outcome.n_results && rc == NS_OK; i++) {
        const struct ns_sched_result *r = &outcome.result[i];
        if (!r->last)
            continue;
        const struct ns_sched_item *it = &item[r->id];
        uint32_t length = it->expected_new > 0 && it->expected_new < it->max_new ? it->expected_new : it->max_new;
        if (r->target == NS_NO_TOKEN && ++made[r->id] < length)
            rc = ns_sched_append(sim->sched, r->item, r->answer->best, err);
        else
            ns_sched_remove(sim->sched, r->item);
    }
    return rc;
}

static enum ns_code night_run(struct sim *sim, enum ns_sim_mode mode, const struct ns_sched_item *item, size_t n,
                              struct ns_error *err)
{
    struct ns_machine machine = machine_of(sim);
    uint32_t *made = ns_budget_take(sim->budget, n * sizeof *made, err);
    if (!made)
        return NS_BUDGET;
    enum ns_code rc = NS_OK;
    size_t next = 0;
    while (rc == NS_OK) {
        /* in file order no more than a wave can take need to wait: their tokens are there once for each */
        size_t most = mode == NS_SIM_ONE_BY_ONE ? 1 : n, waiting = mode == NS_SIM_FILE_ORDER ? sim->o->rows_max : n;
        while (rc == NS_OK && next < n && ns_sched_items(sim->sched) < most && ns_sched_waiting(sim->sched) < waiting) {
            struct ns_sched_item it = item[next];
            uint32_t number;
            it.id = next++;
            rc = ns_sched_add(sim->sched, &it, &number, err);
        }
        struct ns_sched_plan plan = {0};
        if (rc == NS_OK)
            rc = ns_sched_next(sim->sched, 0, &plan, err);
        if (rc != NS_OK || plan.desc.n_segments == 0)
            break;
        rc = wave_run(sim, &machine, &plan, item, made, err);
    }
    ns_budget_give(sim->budget, made);
    return rc;
}

const char *ns_sim_mode_name(enum ns_sim_mode mode)
{
    static const char *const name[] = {"one by one", "file order", "prefix", "prefix and experts"};
    return name[mode];
}

static enum ns_code options_check(const struct ns_sim_options *o, struct ns_error *err)
{
    const struct ns_sched_model *m = &o->model;
    if (m->read_rate <= 0 || m->fma_rate <= 0)
        return ns_error_set(err, NS_USAGE, "a simulation needs a read rate and a compute rate");
    if (m->n_experts == 0 || m->top_k == 0 || m->top_k > m->n_experts || m->n_moe_layers == 0 || o->vocab == 0)
        return ns_error_set(err, NS_USAGE, "a simulation needs a model with experts");
    const struct ns_sim_routing *r = o->routing;
    if (r && (r->n_tokens == 0 || r->n_layers == 0 || r->top_k != m->top_k || r->n_experts != m->n_experts))
        return ns_error_set(err, NS_INPUT, "the routing was recorded with %u of %u experts, the model has %u of %u",
                            r->top_k, r->n_experts, m->top_k, m->n_experts);
    if (r)
        for (size_t i = 0; i < (size_t)r->n_tokens * r->n_layers * r->top_k; i++)
            if (r->expert[i] >= r->n_experts)
                return ns_error_set(err, NS_INPUT, "recorded expert %u, there are %u", r->expert[i], r->n_experts);
    return NS_OK;
}

enum ns_code ns_sim_run(const struct ns_sim_options *options, enum ns_sim_mode mode, const struct ns_sched_item *item,
                        size_t n_items, struct ns_budget *budget, struct ns_sim_result *out, struct ns_error *err)
{
    enum ns_code rc = options_check(options, err);
    if (rc != NS_OK)
        return rc;
    struct sim sim = {.o = options, .budget = budget, .words = (options->model.n_experts + 63) / 64};
    sim.n_layers = options->model.n_moe_layers < LAYERS ? options->model.n_moe_layers : LAYERS;
    if (options->routing)
        sim.n_layers = options->routing->n_layers;
    struct ns_sched_options sched = options->sched;
    sched.alone = mode == NS_SIM_ONE_BY_ONE || mode == NS_SIM_FILE_ORDER;
    sched.in_order = sched.alone;
    sim.tell = mode == NS_SIM_EXPERTS;
    sched.experts = mode == NS_SIM_EXPERTS ? NS_SCHED_EXPERTS_ALWAYS : NS_SCHED_EXPERTS_NEVER;
    struct ns_machine machine = machine_of(&sim);
    sim.set = ns_budget_take(budget, sim.n_layers * sim.words * sizeof *sim.set, err);
    sim.chosen = ns_budget_take(budget, options->model.top_k * sizeof *sim.chosen, err);
    sim.left = ns_budget_take(budget, sim.n_layers * sizeof *sim.left, err);
    rc = sim.set && sim.chosen && sim.left ? ns_sched_open(&sched, &machine, budget, &sim.sched, err) : NS_BUDGET;
    if (rc == NS_OK) {
        ns_sched_set_model(sim.sched, &options->model);
        rc = night_run(&sim, mode, item, n_items, err);
    }
    if (rc == NS_OK) {
        ns_sched_account_all(sim.sched, &out->account);
        out->hours = (double)out->account.wall_ns / 3.6e12;
    }
    ns_sched_close(sim.sched);
    void *owned[] = {sim.set, sim.chosen, sim.left, sim.wave.answer, sim.wave.topic, sim.wave.end};
    for (size_t i = 0; i < NS_COUNT(owned); i++)
        ns_budget_give(budget, owned[i]);
    return rc == NS_OK ? NS_OK : ns_error_wrap(err, rc, "simulation, %s", ns_sim_mode_name(mode));
}
