/* sched_test.c - whatever rides together, every item gets the answers of a run by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hash_machine.h"

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
    assert_int_equal(w->machine.wave_open(w->machine.self, &plan.desc, &wave, &err), NS_OK);
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

/* One random night: arrivals in portions, cancellations, lost waves, poisoned items, little memory. */
static void night(uint64_t seed)
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
    struct ns_sched_options options;
    options_random(&w, &options);
    world_open(&w, &options);
    jobs_make(&w, 1 + rng_below(rng, 60));
    bool lossy = rng_below(rng, 3) == 0;
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
    }
    jobs_check(&w);
    world_close(&w);
    free(w.job);
}

static void random_runs_equal_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++)
        night(seed); /* a debugger shows the seed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_runs_equal_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
