/* fair_test.c - who waits how long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hash_machine.h"

#include <stdlib.h>
#include <string.h>

enum { ITEMS = 1000, LONGEST = 256, DAY_MS = 24 * 60 * 60 * 1000 };

struct fair_item {
    uint32_t n, priority, number;
    uint64_t batch, group;
    int64_t enqueued_ms;
    uint64_t came, served; /* waves; served 0: not yet */
};

struct hall {
    struct ns_budget budget;
    struct hash_machine m;
    struct ns_machine machine;
    struct ns_sched *s;
    struct fair_item item[ITEMS];
    uint32_t n;
    uint64_t wave;
    uint64_t groups_seen; /* sum over waves of distinct groups */
    int64_t now_ms;
    struct rng rng;
};

static void hall_open(struct hall *h, const struct ns_sched_options *options)
{
    h->m = (struct hash_machine){
        .rows_max = 4096, .context = 4096, .vocab = 1u << 30, .state_bytes = 0, .seq_fixed = 10, .poison = NS_NO_TOKEN};
    h->machine = hash_machine_of(&h->m);
    ns_budget_init(&h->budget, "test", 1u << 30);
    assert_int_equal(ns_sched_open(options, &h->machine, &h->budget, &h->s, NULL), NS_OK);
    h->wave = 1;
}

static void hall_close(struct hall *h)
{
    ns_sched_close(h->s);
    assert_int_equal(ns_budget_used(&h->budget), 0);
    free(h);
}

static struct hall *hall_new(uint64_t seed)
{
    struct hall *h = calloc(1, sizeof *h);
    assert_non_null(h);
    h->rng = (struct rng){seed};
    return h;
}

/* shared tokens of the group, then some of its own */
static void arrive(struct hall *h, struct fair_item what, uint32_t shared)
{
    uint32_t token[LONGEST], i = h->n++;
    assert_true(i < ITEMS && what.n <= LONGEST);
    for (uint32_t k = 0; k < what.n; k++)
        token[k] = k < shared ? 1000 * (uint32_t)what.group + k : 1000000 + i * LONGEST + k;
    what.came = h->wave;
    h->item[i] = what;
    struct ns_sched_item item = {.id = i,
                                 .token = token,
                                 .n = what.n,
                                 .score_from = what.n - 1,
                                 .n_top = 1,
                                 .priority = what.priority,
                                 .batch = what.batch,
                                 .group = what.group,
                                 .enqueued_ms = what.enqueued_ms};
    assert_int_equal(ns_sched_add(h->s, &item, &h->item[i].number, NULL), NS_OK);
}

static bool serve(struct hall *h)
{
    struct ns_sched_plan plan;
    assert_int_equal(ns_sched_next(h->s, h->now_ms, &plan, NULL), NS_OK);
    if (plan.desc.n_segments == 0)
        return false;
    struct ns_wave *wave;
    bool done = false;
    assert_int_equal(h->machine.wave_open(&h->m, &plan.desc, NULL, &wave, NULL), NS_OK);
    while (!done)
        assert_int_equal(h->machine.wave_step(&h->m, wave, &done, NULL), NS_OK);
    struct ns_sched_outcome o;
    assert_int_equal(ns_sched_take(h->s, wave, &o, NULL), NS_OK);
    bool seen[64] = {false};
    for (size_t i = 0; i < o.n_results; i++) {
        struct fair_item *it = &h->item[o.result[i].id];
        assert_true(o.result[i].last && it->served == 0);
        it->served = h->wave;
        h->groups_seen += it->group < 64 && !seen[it->group];
        seen[it->group % 64] = true;
        ns_sched_remove(h->s, o.result[i].item);
    }
    h->machine.wave_close(&h->m, wave);
    h->wave++;
    return true;
}

/* How often is an item of this queue overtaken by later ones of the same queue, at most? */
static uint32_t worst_overtaken(const struct hall *h)
{
    uint32_t worst = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        uint32_t n = 0;
        for (uint32_t k = i + 1; k < h->n; k++) {
            const struct fair_item *a = &h->item[i], *b = &h->item[k];
            n += a->batch == b->batch && a->priority == b->priority && b->served < a->served;
        }
        worst = n > worst ? n : worst;
    }
    return worst;
}

/* 1,000 random arrivals in many groups, small waves. */
static uint32_t random_arrivals(uint64_t seed, const struct ns_sched_options *options, uint32_t batches,
                                uint64_t *groups)
{
    struct hall *h = hall_new(seed);
    hall_open(h, options);
    while (h->n < ITEMS || ns_sched_items(h->s) > 0) {
        for (uint32_t n = rng_below(&h->rng, 40); n > 0 && h->n < ITEMS; n--) {
            struct fair_item it = {.n = 34 + rng_below(&h->rng, 8), .group = 1 + rng_below(&h->rng, 20)};
            it.batch = rng_below(&h->rng, batches);
            it.priority = batches > 1 ? rng_below(&h->rng, 10) : 5;
            arrive(h, it, 30);
        }
        serve(h);
    }
    for (uint32_t i = 0; i < h->n; i++)
        assert_true(h->item[i].served > 0);
    uint32_t worst = worst_overtaken(h);
    *groups = h->groups_seen * 1000 / (h->wave - 1);
    hall_close(h);
    return worst;
}

static void nobody_is_overtaken_more_often(void **state)
{
    (void)state;
    struct ns_sched_options options = {.rows = 128};
    uint64_t grouped, plain, free_hand;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        assert_true(random_arrivals(seed, &options, 1, &grouped) <= 64);
        assert_true(random_arrivals(seed, &options, 5, &grouped) <= 64);
    }
    options.overtake_most = 5;
    for (uint64_t seed = 1; seed <= 8; seed++)
        assert_true(random_arrivals(seed, &options, 1, &grouped) <= 5);
    options.overtake_most = 64;
    random_arrivals(1, &options, 1, &grouped);
    options.overtake_most = UINT32_MAX;
    options.look_ahead = ITEMS;
    assert_true(random_arrivals(1, &options, 1, &free_hand) > 64); /* so the limit is what held it */
    options = (struct ns_sched_options){.rows = 128, .in_order = true};
    assert_int_equal(random_arrivals(1, &options, 1, &plain), 0);
    print_message("distinct groups in a wave: in order %.1f, grouped %.1f, without limit %.1f\n", (double)plain / 1000,
                  (double)grouped / 1000, (double)free_hand / 1000);
    assert_true(grouped < plain);
}

/* T14: 1,000 arrivals of every class, up to five days old when they come, an hour between waves. Within a batch and class
 * nobody is overtaken by more than 64 that came after him and are no older; everybody is served, the better classes
 * sooner, and an old one of a bad class before a young one. */
static void classes_ages_and_the_limit(void **state)
{
    (void)state;
    struct ns_sched_options options = {.rows = 256};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct hall *h = hall_new(seed);
        uint64_t wait[2] = {0}, aged[2] = {0};
        uint32_t n[2] = {0}, n_aged[2] = {0}, worst = 0;
        hall_open(h, &options);
        h->now_ms = 10 * (int64_t)DAY_MS;
        for (; h->n < ITEMS || ns_sched_items(h->s) > 0; h->now_ms += DAY_MS / 24) {
            for (uint32_t k = rng_below(&h->rng, 60); k > 0 && h->n < ITEMS; k--) {
                int64_t age = rng_below(&h->rng, 2) ? (int64_t)rng_below(&h->rng, 5 * 24) * (DAY_MS / 24) : 0;
                struct fair_item it = {.n = 34 + rng_below(&h->rng, 8), .group = 1 + rng_below(&h->rng, 20)};
                it.batch = rng_below(&h->rng, 3);
                it.priority = rng_below(&h->rng, 10);
                it.enqueued_ms = h->now_ms - age;
                arrive(h, it, 30);
            }
            serve(h);
        }
        for (uint32_t i = 0; i < h->n; i++) {
            const struct fair_item *a = &h->item[i];
            uint32_t over = 0;
            assert_true(a->served > 0);
            for (uint32_t k = i + 1; k < h->n; k++) {
                const struct fair_item *b = &h->item[k];
                over += a->batch == b->batch && a->priority == b->priority && b->enqueued_ms >= a->enqueued_ms &&
                        b->served < a->served;
            }
            worst = over > worst ? over : worst;
            if (a->priority <= 2 || a->priority >= 7) {
                wait[a->priority >= 7] += a->served - a->came;
                n[a->priority >= 7]++;
            }
            if (a->priority >= 7) {
                int64_t came_ms = 10 * (int64_t)DAY_MS + (int64_t)(a->came - 1) * (DAY_MS / 24);
                bool old = came_ms - a->enqueued_ms > (int64_t)DAY_MS * 3; /* three classes better */
                aged[old] += a->served - a->came;
                n_aged[old]++;
            }
        }
        assert_true(worst <= 64);
        assert_true(n[0] > 100 && n[1] > 100);
        assert_true(wait[0] * n[1] < wait[1] * n[0]);
        if (n_aged[0] > 20 && n_aged[1] > 20)
            assert_true(aged[1] * n_aged[0] < aged[0] * n_aged[1]);
        hall_close(h);
    }
}

/* T14: a heavy batch and a trickle of small ones; none of these waits for the end of the heavy one. */
static void small_batches_pass_a_heavy_one(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct hall *h = hall_new(seed);
        struct ns_sched_options options = {.rows = 512};
        hall_open(h, &options);
        for (uint32_t i = 0; i < 800; i++)
            arrive(h, (struct fair_item){.n = 200, .batch = 1, .priority = 5}, 0);
        while (ns_sched_items(h->s) > 0 || h->n < ITEMS) {
            if (h->n < ITEMS && rng_below(&h->rng, 2) == 0)
                arrive(h, (struct fair_item){.n = 10, .batch = 2 + h->n, .priority = 5}, 0);
            serve(h);
        }
        uint64_t longest = 0;
        for (uint32_t i = 800; i < h->n; i++) {
            uint64_t waited = h->item[i].served - h->item[i].came;
            longest = waited > longest ? waited : longest;
        }
        /* the window in front of it, one turn of the heavy batch, and what may overtake it, in rows of a wave */
        assert_true(longest <= (64 * 200 + 4096 + 64 * 200) / 400);
        assert_true(h->wave > 300);
        hall_close(h);
    }
}

static void batches_share_tokens(void **state)
{
    (void)state;
    struct hall *h = hall_new(1);
    struct ns_sched_options options = {.rows = 500, .in_order = true, .quantum = 500, .reserved_in = UINT32_MAX};
    hall_open(h, &options);
    for (uint32_t i = 0; i < 100; i++)
        arrive(h, (struct fair_item){.n = 200, .batch = 1, .priority = 5}, 0);
    for (uint32_t i = 0; i < 900; i++)
        arrive(h, (struct fair_item){.n = 20, .batch = 2, .priority = 5}, 0);
    for (int i = 0; i < 30; i++)
        serve(h);
    uint32_t tokens[3] = {0};
    for (uint32_t i = 0; i < h->n; i++)
        if (h->item[i].served > 0)
            tokens[h->item[i].batch] += h->item[i].n;
    assert_true(tokens[1] > 4000 && tokens[2] > 4000);
    assert_in_range(tokens[1] * 100 / tokens[2], 85, 115);
    hall_close(h);
}

static void low_priority_does_not_starve(void **state)
{
    (void)state;
    for (uint32_t reserved = 8; reserved != 0; reserved = reserved == 8 ? UINT32_MAX : 0) {
        struct hall *h = hall_new(1);
        struct ns_sched_options options = {.rows = 100, .reserved_in = reserved, .look_ahead = 4};
        hall_open(h, &options);
        for (uint32_t i = 0; i < 20; i++)
            arrive(h, (struct fair_item){.n = 11, .batch = 1, .priority = 0, .enqueued_ms = 1}, 0);
        arrive(h, (struct fair_item){.n = 11, .batch = 2, .priority = 9}, 0);
        while (h->n + 10 < ITEMS) { /* the better class never ends */
            for (uint32_t i = 0; i < 10; i++)
                arrive(h, (struct fair_item){.n = 11, .batch = 1, .priority = 0, .enqueued_ms = 2}, 0);
            serve(h);
        }
        if (reserved == 8)
            assert_in_range(h->item[20].served, 1, 4);
        else
            assert_int_equal(h->item[20].served, 0);
        hall_close(h);
    }
}

static void age_raises_the_class(void **state)
{
    (void)state;
    for (int64_t days = 3; days <= 5; days += 2) {
        struct hall *h = hall_new(1);
        struct ns_sched_options options = {.rows = 100, .reserved_in = UINT32_MAX, .in_order = true};
        hall_open(h, &options);
        h->now_ms = days * DAY_MS;
        for (uint32_t i = 0; i < 100; i++)
            arrive(h, (struct fair_item){.n = 11, .batch = 1, .priority = 5, .enqueued_ms = h->now_ms}, 0);
        arrive(h, (struct fair_item){.n = 11, .batch = 2, .priority = 9}, 0);
        while (serve(h)) {
        }
        if (days == 5)
            assert_int_equal(h->item[100].served, 1); /* class 4 */
        else
            assert_true(h->item[100].served > 9); /* class 6 */
        hall_close(h);
    }
}

static void better_class_goes_first(void **state)
{
    (void)state;
    struct hall *h = hall_new(1);
    struct ns_sched_options options = {.rows = 100, .reserved_in = UINT32_MAX};
    hall_open(h, &options);
    for (uint32_t i = 0; i < 200; i++)
        arrive(h, (struct fair_item){.n = 11, .batch = 1, .priority = 5}, 0);
    serve(h);
    for (uint32_t i = 0; i < 5; i++)
        arrive(h, (struct fair_item){.n = 11, .batch = 1, .priority = 2}, 0);
    serve(h);
    for (uint32_t i = 200; i < 205; i++)
        assert_int_equal(h->item[i].served, 2);
    hall_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_overtaken_more_often), cmocka_unit_test(classes_ages_and_the_limit),
        cmocka_unit_test(small_batches_pass_a_heavy_one), cmocka_unit_test(batches_share_tokens),
        cmocka_unit_test(low_priority_does_not_starve),   cmocka_unit_test(age_raises_the_class),
        cmocka_unit_test(better_class_goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
