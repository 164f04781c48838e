/* sched_test.c - whatever rides together, every item gets the answers of a run by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hash_machine.h"
#include "sched/sched_impl.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_MAX = 200, STOP = 0 };

/* One item of a test and what it has been told. */
struct job {
    uint32_t token[LENGTH_MAX * 2];
    uint32_t n_prompt, n, max_new, score_from, n_top, handle, told;
    bool added, over, failed, poisoned, cancelled;
    bool have[LENGTH_MAX * 2];
};

struct world {
    struct ns_budget budget;
    struct hash_machine m;
    struct ns_machine machine;
    struct ns_sched *s;
    struct job *job;
    uint32_t n_jobs;
    struct rng rng;
    uint64_t replayed, saved, waves;
    bool snapshots;
};

static uint64_t hash_upto(const struct job *j, uint32_t position)
{
    uint64_t hash = hash_start();
    for (uint32_t i = 0; i <= position; i++)
        hash = hash_next(hash, j->token[i]);
    return hash;
}

static void check_answer(const struct world *w, const struct job *j, const struct ns_sched_result *r)
{
    struct ns_answer want;
    hash_answer(hash_upto(j, r->position), w->m.vocab, r->target, j->n_top, &want);
    assert_true(r->answer->ok);
    assert_int_equal(r->n_top, j->n_top);
    assert_true(r->answer->n_top >= j->n_top);
    assert_int_equal(r->answer->best, want.best);
    for (uint32_t i = 0; i < j->n_top; i++) {
        assert_int_equal(r->answer->top_id[i], want.top_id[i]);
        assert_true(r->answer->top_logprob[i] == want.top_logprob[i]);
    }
    if (r->target != NS_NO_TOKEN)
        assert_true(r->answer->target_logprob == want.target_logprob);
}

static void job_add(struct world *w, uint32_t i)
{
    struct job *j = &w->job[i];
    struct ns_sched_item item = {.id = i,
                                 .token = j->token,
                                 .n = j->n,
                                 .score_from = j->score_from,
                                 .max_new = j->max_new,
                                 .n_top = j->n_top,
                                 .priority = rng_below(&w->rng, 10),
                                 .batch = rng_below(&w->rng, 3)};
    struct ns_error err = {0};
    assert_int_equal(ns_sched_add(w->s, &item, &j->handle, &err), NS_OK);
    j->added = true;
    uint32_t at = 1 + rng_below(&w->rng, j->n); /* a snapshot now and then, not always one that fits */
    if (w->snapshots && rng_below(&w->rng, 4) == 0 &&
        w->machine.state_left(w->machine.self) >= w->machine.seq_bytes(w->machine.self, at))
        ns_sched_adopt(w->s, j->handle, hash_machine_seq(&w->m, j->token, at));
}

static void job_end(struct world *w, struct job *j)
{
    ns_sched_remove(w->s, j->handle);
    j->over = true;
}

static void results_use(struct world *w, const struct ns_sched_outcome *o)
{
    uint64_t last_id = 0;
    uint32_t last_position = 0;
    for (size_t i = 0; i < o->n_results; i++) {
        const struct ns_sched_result *r = &o->result[i];
        struct job *j = &w->job[r->id];
        assert_true(j->added && !j->over && r->item == j->handle);
        if (i > 0 && r->id == last_id)
            assert_true(r->position > last_position);
        last_id = r->id;
        last_position = r->position;
        check_answer(w, j, r);
        if (r->target != NS_NO_TOKEN) {
            assert_int_equal(r->target, j->token[r->position + 1]);
            assert_true(r->position + 1 >= j->score_from && !j->have[r->position]);
            j->have[r->position] = true;
            j->told++;
            if (r->last)
                job_end(w, j);
            continue;
        }
        assert_true(r->last && r->position == j->n - 1);
        j->token[j->n++] = r->answer->best;
        if (r->answer->best == STOP || j->n == j->n_prompt + j->max_new)
            job_end(w, j);
        else
            assert_int_equal(ns_sched_append(w->s, r->item, r->answer->best, NULL), NS_OK);
    }
    for (size_t i = 0; i < o->n_failures; i++) {
        struct job *j = &w->job[o->failure[i].id];
        assert_int_equal(o->failure[i].error->code, NS_NONFINITE);
        assert_true(!j->over);
        j->failed = true;
        job_end(w, j);
    }
}

/* One round: false when there was nothing to do. */
static bool wave_run(struct world *w)
{
    struct ns_sched_plan plan;
    struct ns_error err = {0};
    enum ns_code rc = ns_sched_next(w->s, 0, &plan, &err);
    if (rc != NS_OK)
        fail_msg("%s", err.message);
    if (plan.desc.n_segments == 0)
        return false;
    w->waves++;
    w->replayed += plan.rows_replay;
    w->saved += plan.rows_prefix + plan.rows_same;
    assert_true(plan.rows <= plan.rows_most);
    assert_int_equal(plan.rows, plan.rows_decode + plan.rows_prefill + plan.rows_score + plan.rows_replay);
    struct ns_wave *wave;
    assert_int_equal(w->machine.wave_open(w->machine.self, &plan.desc, NULL, &wave, &err), NS_OK);
    assert_int_equal(w->m.wave_rows, plan.rows);
    bool done = false;
    while (rc == NS_OK && !done)
        rc = w->machine.wave_step(w->machine.self, wave, &done, &err);
    if (rc != NS_OK) {
        w->machine.wave_close(w->machine.self, wave);
        ns_sched_wave_lost(w->s);
        return true;
    }
    for (uint32_t row = 0; row < plan.rows; row++)
        for (uint32_t layer = 0; layer < 4; layer++) {
            uint32_t expert[2] = {rng_below(&w->rng, 16), rng_below(&w->rng, 16)};
            ns_sched_routing(w->s, row, layer, expert, 2);
        }
    struct ns_sched_outcome outcome;
    assert_int_equal(ns_sched_take(w->s, wave, &outcome, &err), NS_OK);
    results_use(w, &outcome);
    struct ns_wave_stats stats;
    w->machine.wave_stats(w->machine.self, wave, &stats);
    stats.store.disk_ns = rng_below(&w->rng, 1000); /* sizes of waves and grouping follow the clock, answers do not */
    stats.compute_ns = 1 + rng_below(&w->rng, 1000);
    ns_sched_observe(w->s, &stats);
    w->machine.wave_close(w->machine.self, wave);
    return true;
}

static void world_open(struct world *w, const struct ns_sched_options *options)
{
    ns_budget_init(&w->budget, "test", 1u << 30);
    w->machine = hash_machine_of(&w->m);
    struct ns_error err = {0};
    if (ns_sched_open(options, &w->machine, &w->budget, &w->s, &err) != NS_OK)
        fail_msg("%s", err.message);
    if (options->experts != NS_SCHED_EXPERTS_NEVER) {
        struct ns_sched_model model = {.n_moe_layers = 4, .n_experts = 16, .top_k = 2};
        ns_sched_set_model(w->s, &model);
    }
}

static void world_close(struct world *w)
{
    ns_sched_close(w->s);
    assert_int_equal(ns_budget_used(&w->budget), 0);
    assert_int_equal(w->m.seqs_open, 0);
    assert_int_equal(w->m.held, 0);
}

/* Prompts that share beginnings often: copies of a few stems, cut anywhere, with a few tokens of a tiny vocabulary. */
static void jobs_make(struct world *w, uint32_t n)
{
    struct rng *rng = &w->rng;
    w->n_jobs = n;
    w->job = calloc(n, sizeof *w->job);
    assert_non_null(w->job);
    for (uint32_t i = 0; i < n; i++) {
        struct job *j = &w->job[i];
        uint32_t stem = 0;
        if (i > 0 && rng_below(rng, 4) > 0) {
            const struct job *from = &w->job[rng_below(rng, i)];
            stem = rng_below(rng, 3) == 0 ? from->n_prompt : rng_below(rng, from->n_prompt + 1);
            memcpy(j->token, from->token, stem * sizeof *j->token);
        }
        uint32_t own = rng_below(rng, 5) == 0 ? rng_below(rng, 60) : rng_below(rng, 6);
        j->n_prompt = stem + own < 2 ? 2 : stem + own;
        j->n_prompt = j->n_prompt > LENGTH_MAX ? LENGTH_MAX : j->n_prompt;
        for (uint32_t k = stem; k < j->n_prompt; k++)
            j->token[k] = rng_below(rng, w->m.vocab - 1); /* the last one may be the poison */
        j->n = j->n_prompt;
        j->n_top = 1 + rng_below(rng, 3);
        uint32_t kind = rng_below(rng, 4);
        if (kind > 0)
            j->max_new = rng_below(rng, 3) == 0 ? 1 : 1 + rng_below(rng, 20);
        if (kind == 0 || rng_below(rng, 3) == 0)
            j->score_from = 1 + rng_below(rng, j->n_prompt - 1);
        if (w->m.poison != NS_NO_TOKEN && rng_below(rng, 12) == 0) {
            uint32_t at = rng_below(rng, j->n_prompt);
            j->token[at] = w->m.poison;
        }
    }
}

static bool job_poisoned(const struct world *w, const struct job *j)
{
    uint32_t n = j->max_new > 0 ? j->n_prompt : j->n_prompt - 1;
    for (uint32_t k = 0; k < n; k++)
        if (j->token[k] == w->m.poison)
            return true;
    return false;
}

/* ---- the tree and the ledger, counted again from scratch -------------------------------------------------------------- */

static uint32_t users_of(const struct ns_sched *s, uint32_t node)
{
    uint32_t n = 0;
    for (uint32_t item = s->node[node].term; item != NS_NIL; item = s->item[item].term_next)
        n++;
    for (uint32_t c = s->node[node].child; c != NS_NIL; c = s->node[c].next)
        n += s->node[c].state == NS_NIL ? users_of(s, c) : 0;
    return n;
}

static void check_node(const struct ns_sched *s, uint32_t i)
{
    const struct ns_trie_node *node = &s->node[i];
    assert_int_equal(node->n_users, users_of(s, i));
    if (i != 0)
        assert_true(node->n > 0 && (node->term != NS_NIL || node->child != NS_NIL));
    for (uint32_t w = node->want; w != NS_NIL; w = s->want[w].next) {
        assert_true(s->want[w].node == i && s->want[w].lo >= node->start && s->want[w].lo <= s->want[w].hi);
        assert_true(s->want[w].hi < node->start + node->n);
    }
    for (uint32_t a = node->child; a != NS_NIL; a = s->node[a].next) {
        assert_int_equal(s->node[a].parent, i);
        assert_int_equal(s->node[a].start, node->start + node->n);
        for (uint32_t b = s->node[a].next; b != NS_NIL && !s->options.alone; b = s->node[b].next)
            assert_int_not_equal(s->node[a].token[0], s->node[b].token[0]);
        check_node(s, a);
    }
}

static void check_sound(const struct world *w)
{
    const struct ns_sched *s = w->s;
    check_node(s, 0);
    size_t held = 0, reserved = 0;
    for (size_t i = 0; i < s->n_kept; i++) {
        const struct ns_kept *kept = &s->kept[i];
        const struct ns_trie_node *node = &s->node[kept->node];
        assert_int_equal(node->state, i);
        assert_true(kept->at > node->start && kept->at <= node->start + node->n && node->n_users > 0);
        assert_int_equal(w->machine.seq_positions(w->machine.self, kept->seq), kept->at);
        held += kept->bytes;
    }
    assert_int_equal(s->held, held);
    assert_int_equal(w->m.held, held);
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        const struct job *j = &w->job[i];
        if (!j->added || j->over)
            continue;
        const struct ns_sched_entry *it = &s->item[j->handle];
        assert_true(it->used && it->id == i && it->n == (j->max_new > 0 ? j->n : j->n - 1));
        reserved += it->reserve;
        for (uint32_t node = it->node, to = it->n; node != 0; to = s->node[node].start, node = s->node[node].parent) {
            assert_int_equal(s->node[node].start + s->node[node].n, to);
            assert_memory_equal(s->node[node].token, j->token + s->node[node].start, s->node[node].n * 4);
        }
    }
    assert_int_equal(s->reserved, reserved);
}

static void jobs_check(struct world *w)
{
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        struct job *j = &w->job[i];
        assert_true(j->added && j->over);
        if (j->cancelled)
            continue;
        bool poisoned = job_poisoned(w, j);
        if (poisoned && !j->failed) { /* answered before the poison: only possible when nothing after it was wanted */
            fail_msg("item %u is poisoned and did not fail", i);
        }
        if (j->failed) {
            bool generated = false;
            for (uint32_t k = j->n_prompt; k < j->n; k++)
                generated |= j->token[k] == w->m.poison;
            assert_true(poisoned || generated);
            continue;
        }
        if (j->score_from > 0)
            assert_int_equal(j->told, j->n_prompt - j->score_from);
        if (j->max_new > 0)
            assert_true(j->n == j->n_prompt + j->max_new || j->token[j->n - 1] == STOP);
    }
}

static void options_random(struct world *w, struct ns_sched_options *o)
{
    struct rng *rng = &w->rng;
    static const uint32_t rows[] = {1, 2, 3, 8, 16, 50, 64, 100, 300, 1000};
    *o = (struct ns_sched_options){.rows = rows[rng_below(rng, NS_COUNT(rows))],
                                   .alone = rng_below(rng, 5) == 0,
                                   .in_order = rng_below(rng, 4) == 0,
                                   .experts = (enum ns_sched_experts)rng_below(rng, 3),
                                   .look_ahead = rng_below(rng, 3) * 7,
                                   .overtake_most = rng_below(rng, 3) * 3,
                                   .reserved_in = rng_below(rng, 4),
                                   .quantum = rng_below(rng, 2) * 50,
                                   .live_most = rng_below(rng, 3) == 0 ? 1 + rng_below(rng, 5) : 0};
    if (rng_below(rng, 6) == 0) {
        o->rows = 0;
        o->rows_least = 1 + rng_below(rng, 30);
        o->rows_most = o->rows_least + rng_below(rng, 300);
    }
}

/* However items were cut, shared and given up, one at a time they would have cost their rows once. */
static void check_account(const struct world *w)
{
    struct ns_sched_account all;
    ns_sched_account_all(w->s, &all);
    uint64_t alone = 0;
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        if (w->job[i].cancelled || w->job[i].failed)
            return;
        alone += w->job[i].n - 1; /* the last token has no row */
    }
    assert_int_equal(all.rows, all.rows_decode + all.rows_prefill + all.rows_score + all.rows_replay);
    assert_int_equal(all.alone_rows, all.rows - all.rows_replay + all.rows_prefix + all.rows_same);
    if (!w->snapshots)
        assert_int_equal(all.alone_rows, alone);
}

/* One random night: arrivals in portions, cancellations, lost waves, poisoned items, little memory. */
static void night(uint64_t seed, bool sound)
{
    struct world w = {.rng = {seed}};
    struct rng *rng = &w.rng;
    w.m = (struct hash_machine){.rows_max = 1000,
                                .context = LENGTH_MAX * 2,
                                .vocab = 2 + rng_below(rng, 6),
                                .seq_fixed = rng_below(rng, 100),
                                .seq_row = rng_below(rng, 3)};
    w.m.poison = rng_below(rng, 3) == 0 ? w.m.vocab - 1 : NS_NO_TOKEN;
    size_t longest = w.m.seq_fixed + w.m.seq_row * LENGTH_MAX * 2;
    w.m.state_bytes = longest * (1 + rng_below(rng, 8)) + rng_below(rng, 50);
    bool scarce = false;
    if (rng_below(rng, 3) == 0) { /* rows and states in one place */
        w.m.wave_row = 1 + rng_below(rng, 3);
        scarce = rng_below(rng, 2) == 0;
        w.m.state_bytes = scarce ? longest : w.m.state_bytes;
        w.m.state_bytes += w.m.wave_row * (scarce ? 72 : w.m.rows_max);
    }
    struct ns_sched_options options;
    options_random(&w, &options);
    if (scarce) { /* just enough for one item, or for the widest wave */
        uint32_t fit = (uint32_t)(w.m.state_bytes / w.m.wave_row);
        w.m.rows_max = fit < w.m.rows_max ? fit : w.m.rows_max;
        options.rows = options.rows < w.m.rows_max ? options.rows : w.m.rows_max;
    }
    world_open(&w, &options);
    jobs_make(&w, 1 + rng_below(rng, 60));
    bool lossy = rng_below(rng, 3) == 0;
    w.snapshots = w.m.poison == NS_NO_TOKEN && rng_below(rng, 2) == 0; /* none holds what failed */
    uint32_t added = 0, idle = 0;
    while (ns_sched_items(w.s) > 0 || added < w.n_jobs) {
        uint32_t portion = rng_below(rng, 3) == 0 ? w.n_jobs : rng_below(rng, 5);
        for (; portion > 0 && added < w.n_jobs; portion--)
            job_add(&w, added++);
        if (rng_below(rng, 20) == 0 && added > 0) {
            struct job *j = &w.job[rng_below(rng, added)];
            if (!j->over) {
                j->cancelled = true;
                job_end(&w, j);
            }
        }
        if (lossy && rng_below(rng, 6) == 0)
            w.m.fail_wave = 1;
        idle = wave_run(&w) || added < w.n_jobs ? 0 : idle + 1;
        assert_true(idle < 3 || ns_sched_items(w.s) == 0);
        if (sound)
            check_sound(&w);
    }
    jobs_check(&w);
    check_account(&w);
    world_close(&w);
    free(w.job);
}

static void random_runs_equal_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++)
        night(seed, false); /* a debugger shows the seed */
}

static void tree_and_ledger_are_sound(void **state)
{
    (void)state;
    for (uint64_t seed = 5001; seed <= 5300; seed++)
        night(seed, true);
}

/* ---- single cases ------------------------------------------------------------------------------------------------------- */

static void case_open(struct world *w, const struct ns_sched_options *options, size_t states)
{
    *w = (struct world){.rng = {1}};
    w->m = (struct hash_machine){.rows_max = 1000,
                                 .context = LENGTH_MAX * 2,
                                 .vocab = 50,
                                 .seq_fixed = 100,
                                 .state_bytes = 100 * states,
                                 .poison = NS_NO_TOKEN};
    world_open(w, options);
    w->job = calloc(64, sizeof *w->job);
    assert_non_null(w->job);
}

static struct job *case_job(struct world *w, uint32_t n, uint32_t shared, uint32_t score_from, uint32_t max_new)
{
    struct job *j = &w->job[w->n_jobs];
    *j = (struct job){.n = n, .n_prompt = n, .score_from = score_from, .max_new = max_new, .n_top = 1};
    for (uint32_t k = 0; k < n; k++)
        j->token[k] = 1 + (k < shared ? k % 40 : (k + 7 * (w->n_jobs + 1)) % 40);
    job_add(w, w->n_jobs++);
    return j;
}

static void case_close(struct world *w)
{
    while (wave_run(w)) {
    }
    jobs_check(w);
    world_close(w);
    free(w->job);
}

static void shared_rows_are_computed_once(void **state)
{
    (void)state;
    struct world w;
    case_open(&w, &(struct ns_sched_options){.rows = 1000}, 0);
    for (int i = 0; i < 10; i++)
        case_job(&w, 60, 40, 59, 0);
    case_close(&w);
    assert_int_equal(w.m.waves, 1);
    assert_int_equal(w.m.rows, 40 + 10 * 19); /* the last token of a scored item has no row */
    case_open(&w, &(struct ns_sched_options){.rows = 1000}, 0);
    for (int i = 0; i < 5; i++)
        case_job(&w, 60, 60, 59, 0);
    case_close(&w);
    assert_int_equal(w.m.rows, 59); /* identical items once */
    case_open(&w, &(struct ns_sched_options){.rows = 1000, .alone = true}, 0);
    for (int i = 0; i < 5; i++)
        case_job(&w, 60, 60, 59, 0);
    case_close(&w);
    assert_int_equal(w.m.rows, 5 * 59);
}

static void prefix_state_is_kept_while_memory_lasts(void **state)
{
    (void)state;
    for (size_t states = 0; states <= 1; states++) {
        struct world w;
        case_open(&w, &(struct ns_sched_options){.rows = 100}, states);
        for (int i = 0; i < 10; i++)
            case_job(&w, 81, 60, 80,
                     0); /* 60 shared, 20 of its own: two in a wave with the shared ones, five without */
        case_close(&w);
        assert_int_equal(w.m.waves, states == 0 ? 5 : 3);
        assert_int_equal(w.m.rows, states == 0 ? 5 * 60 + 200 : 60 + 200);
    }
}

/* Rows where no states are yet, states where no rows are needed any more. */
static void prompts_make_way_for_states(void **state)
{
    (void)state;
    struct world w;
    case_open(&w, &(struct ns_sched_options){.rows = 1000}, 0);
    world_close(&w);
    free(w.job);
    w.m.wave_row = 2; /* a state is 100: a prompt of 50 takes as much again while it comes in */
    w.m.state_bytes = 2000;
    world_open(&w, &(struct ns_sched_options){.rows = 1000});
    w.n_jobs = 0;
    w.job = calloc(64, sizeof *w.job);
    assert_non_null(w.job);
    for (int i = 0; i < 40; i++)
        case_job(&w, 50, 0, 0, 30);
    assert_true(wave_run(&w));
    assert_in_range(ns_sched_live(w.s), 9, 10); /* half the memory is rows */
    for (int i = 0; i < 12; i++)
        assert_true(wave_run(&w));
    assert_in_range(ns_sched_live(w.s), 18, 19); /* all but a row for each */
    case_close(&w);
}

static void shared_room_open(struct world *w, const struct ns_sched_options *options, size_t bytes)
{
    case_open(w, options, 0);
    world_close(w);
    free(w->job);
    w->m.wave_row = 1;
    w->m.state_bytes = bytes;
    world_open(w, options);
    w->n_jobs = 0;
    w->job = calloc(64, sizeof *w->job);
    assert_non_null(w->job);
}

/* Memory for one state, and the prefix that a generation starts from has it: it gets that one. */
static void generation_takes_the_state_it_starts_from(void **state)
{
    (void)state;
    struct world w;
    shared_room_open(&w, &(struct ns_sched_options){.rows = 25, .overtake_most = 1}, 100 + 32);
    case_job(&w, 26, 20, 25, 0);
    case_job(&w, 29, 20, 0, 2);
    case_job(&w, 29, 20, 0, 2);
    case_close(&w);
    assert_int_equal(w.m.rows, 25 + (9 + 1) + (29 + 1));
}

/* The only place for a state is taken by a prefix that is worth more than a row: it goes, or the generation would wait for
 * all that use the prefix. */
static void generation_does_not_wait_for_a_kept_prefix(void **state)
{
    (void)state;
    struct world w;
    shared_room_open(&w, &(struct ns_sched_options){.rows = 30, .overtake_most = 1}, 100 + 32);
    for (int i = 0; i < 10; i++)
        case_job(&w, 31, 20, 30, 0);
    assert_true(wave_run(&w));
    struct job *j = case_job(&w, 10, 0, 0, 3);
    for (int i = 0; i < 5; i++)
        assert_true(wave_run(&w));
    assert_true(j->over);
    case_close(&w);
}

/* A prefix that is kept leaves no room for the rows of those it is kept for: it goes. */
static void kept_prefix_does_not_stop_the_queue(void **state)
{
    (void)state;
    struct world w;
    shared_room_open(&w, &(struct ns_sched_options){.rows = 66}, 100 + 32);
    case_job(&w, 26, 20, 25, 0);
    case_job(&w, 66, 20, 65, 0);
    case_job(&w, 66, 20, 65, 0);
    case_close(&w);
    assert_int_equal(w.m.rows, 25 + 65 + 65);
}

/* The rest of a prompt would have room in a wave by itself, but not beside the state that it starts from. */
static void rest_of_a_prompt_is_cut_again(void **state)
{
    (void)state;
    struct world w;
    shared_room_open(&w, &(struct ns_sched_options){.rows = 100}, 100 + 72);
    case_job(&w, 155, 0, 154, 0);
    case_close(&w);
    assert_int_equal(w.m.rows, 154);
    assert_int_equal(w.m.waves, 3);
}

/* A generation that waits for memory, and may be overtaken no more, does not hold back those that need none. */
static void scoring_goes_on_while_a_state_has_no_room(void **state)
{
    (void)state;
    struct world w;
    shared_room_open(&w, &(struct ns_sched_options){.rows = 24, .overtake_most = 2}, 100 + 32);
    case_job(&w, 10, 0, 0, 40);
    assert_true(wave_run(&w));
    case_job(&w, 10, 0, 0, 40);
    for (int i = 0; i < 20; i++)
        case_job(&w, 11, 0, 10, 0);
    for (int i = 0; i < 20; i++)
        assert_true(wave_run(&w));
    assert_int_equal(ns_sched_items(w.s), 2);
    case_close(&w);
}

static void long_prompts_are_cut_at_64(void **state)
{
    (void)state;
    struct world w;
    case_open(&w, &(struct ns_sched_options){.rows = 100}, 1);
    case_job(&w, 191, 0, 190, 0);
    struct ns_sched_plan plan;
    assert_int_equal(ns_sched_next(w.s, 0, &plan, NULL), NS_OK);
    assert_int_equal(plan.rows, 64);
    assert_non_null(plan.desc.segment[0].into);
    ns_sched_wave_lost(w.s);
    case_close(&w);
    assert_int_equal(w.m.waves, 3); /* 64, 64, 62 */
    assert_int_equal(w.m.rows, 190);
}

static void lost_wave_costs_only_its_rows(void **state)
{
    (void)state;
    struct world w;
    case_open(&w, &(struct ns_sched_options){.rows = 100}, 4);
    case_job(&w, 20, 0, 0, 4);
    case_job(&w, 20, 0, 19, 0);
    w.m.fail_wave = 1;
    assert_true(wave_run(&w));
    assert_int_equal(w.m.held, 0);
    w.m.fail_wave = 2; /* the first decode wave: the state is lost, the token is not */
    case_close(&w);
    assert_true(w.replayed >= 20);
}

static void what_never_fits_is_refused(void **state)
{
    (void)state;
    struct world w;
    case_open(&w, &(struct ns_sched_options){.rows = 100}, 0);
    uint32_t token[200] = {0}, item;
    struct ns_error err = {0};
    struct ns_sched_item what = {.token = token, .n = 20, .max_new = 2, .n_top = 1};
    assert_int_equal(ns_sched_add(w.s, &what, &item, &err), NS_BUDGET); /* a second token needs a state */
    assert_non_null(strstr(err.message, "takes 100 bytes, 0 are there"));
    what.max_new = 1;
    assert_int_equal(ns_sched_add(w.s, &what, &item, NULL), NS_OK);
    ns_sched_remove(w.s, item);
    what = (struct ns_sched_item){.token = token, .n = 102, .score_from = 1, .n_top = 1};
    assert_int_equal(ns_sched_add(w.s, &what, &item, NULL), NS_BUDGET); /* 101 rows in waves of 100 */
    what.n = 101;
    what.n_top = NS_TOP_MAX + 1;
    assert_int_equal(ns_sched_add(w.s, &what, &item, NULL), NS_INPUT);
    what.n_top = 1;
    what.score_from = 101;
    assert_int_equal(ns_sched_add(w.s, &what, &item, NULL), NS_INPUT); /* nothing is wanted */
    what.score_from = 1;
    token[5] = w.m.vocab;
    assert_int_equal(ns_sched_add(w.s, &what, &item, NULL), NS_INPUT);
    what = (struct ns_sched_item){.token = token, .n = 5, .max_new = LENGTH_MAX * 2 - 4, .n_top = 1};
    assert_int_equal(ns_sched_add(w.s, &what, &item, NULL), NS_INPUT);
    assert_int_equal(ns_sched_items(w.s), 0);
    case_close(&w);
}

static void waves_grow_until_compute_is_the_limit(void **state)
{
    (void)state;
    struct world w;
    case_open(&w, &(struct ns_sched_options){.rows_least = 16, .rows_most = 800}, 60);
    struct ns_sched_model model = {.n_moe_layers = 4, .n_experts = 16, .top_k = 8}; /* full at 256 rows */
    ns_sched_set_model(w.s, &model);
    struct ns_wave_stats stats = {.rows = 16, .compute_ns = 16 * 1000, .store = {.disk_ns = 300 * 1000}};
    uint32_t rows[7];
    for (int i = 0; i < 7; i++) {
        case_job(&w, 2 + 1, 0, 2, 0);
        struct ns_sched_plan plan;
        assert_int_equal(ns_sched_next(w.s, 0, &plan, NULL), NS_OK);
        rows[i] = plan.rows_most;
        ns_sched_wave_lost(w.s);
        ns_sched_observe(w.s, &stats); /* 300 us of disk for each wave, 1 us of compute for each row */
        stats.rows = rows[i] * 2 < 450 ? rows[i] * 2 : 450;
        stats.compute_ns = stats.rows * 1000ull;
    }
    assert_int_equal(rows[0], 16);
    for (int i = 1; i < 5; i++)
        assert_int_equal(rows[i], rows[i - 1] * 2);
    assert_in_range(rows[6], 449, 451); /* B* and a half */
    case_close(&w);
}

/* Where generations take turns prompts have waves of their own, but never more than three for each step. */
static void generations_go_on_beside_prompts(void **state)
{
    (void)state;
    struct world w;
    case_open(&w, &(struct ns_sched_options){.rows = 8, .experts = NS_SCHED_EXPERTS_ALWAYS}, 60);
    struct ns_sched_model model = {.n_moe_layers = 4, .n_experts = 64, .top_k = 4};
    ns_sched_set_model(w.s, &model);
    struct job *generation = case_job(&w, 6, 0, 0, 100);
    assert_true(wave_run(&w) && generation->n == 7);
    for (int i = 0; i < 50; i++)
        case_job(&w, 150, 0, 149, 0); /* 900 waves and more */
    uint64_t before = w.waves;
    while (!generation->over)
        assert_true(wave_run(&w));
    uint32_t steps = generation->n - 7;
    assert_true(steps > 20);
    assert_in_range(w.waves - before, 2 * steps, 4 * steps);
    case_close(&w);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    struct ns_sched_options options = {.rows = 64, .experts = NS_SCHED_EXPERTS_ALWAYS};
    uint64_t nth = 1;
    for (bool failed = true; failed; nth++) {
        struct world w;
        case_open(&w, &options, 2);
        struct ns_sched_model model = {.n_moe_layers = 4, .n_experts = 16, .top_k = 2};
        ns_sched_set_model(w.s, &model);
        failed = false;
        uint32_t token[90], item;
        for (uint32_t k = 0; k < 90; k++)
            token[k] = k % 50;
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        for (uint32_t i = 0; i < 12; i++) {
            token[30 + i] = 1;
            struct ns_sched_item what = {.id = i, .token = token, .n = 60 + i, .score_from = 1, .n_top = 1, .batch = i};
            what.max_new = i % 3;
            failed |= ns_sched_add(w.s, &what, &item, NULL) == NS_BUDGET;
        }
        for (int i = 0; i < 3; i++) {
            struct ns_sched_plan plan;
            failed |= ns_sched_next(w.s, 0, &plan, NULL) != NS_OK;
            ns_sched_wave_lost(w.s);
        }
        ns_fault_disarm();
        check_node(w.s, 0);
        world_close(&w);
        free(w.job);
    }
    assert_true(nth > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_runs_equal_alone),
        cmocka_unit_test(tree_and_ledger_are_sound),
        cmocka_unit_test(shared_rows_are_computed_once),
        cmocka_unit_test(prefix_state_is_kept_while_memory_lasts),
        cmocka_unit_test(prompts_make_way_for_states),
        cmocka_unit_test(generation_takes_the_state_it_starts_from),
        cmocka_unit_test(generation_does_not_wait_for_a_kept_prefix),
        cmocka_unit_test(kept_prefix_does_not_stop_the_queue),
        cmocka_unit_test(rest_of_a_prompt_is_cut_again),
        cmocka_unit_test(scoring_goes_on_while_a_state_has_no_room),
        cmocka_unit_test(long_prompts_are_cut_at_64),
        cmocka_unit_test(lost_wave_costs_only_its_rows),
        cmocka_unit_test(what_never_fits_is_refused),
        cmocka_unit_test(waves_grow_until_compute_is_the_limit),
        cmocka_unit_test(generations_go_on_beside_prompts),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
