/* pool_test.c - states and weights share memory: a run reads what its plan says, states come first, and weights come back. */
#include "wave_rig.h"

#include <string.h>

enum { ROWS = 96, SEQS = 200 };

static void open_rig(struct rig *rig, const char *checkpoint, size_t memory, uint32_t rows_max)
{
    struct ns_engine_options o = rig_options();
    o.rows_max = rows_max;
    o.context = 256;
    o.store.no_direct = true; /* bytes without the edges of windows */
    rig_open(rig, rig_path(checkpoint), &o, memory);
}

/* A scoring wave of ROWS rows: its stats, and the answers. */
static struct ns_wave_stats score(struct rig *rig, uint32_t seed, struct ns_answer *answer)
{
    uint32_t id[ROWS];
    struct ns_ask ask[ROWS];
    struct ns_wave *wave = NULL;
    struct ns_wave_stats stats;
    rig_prompt(id, ROWS, ns_engine_config(rig->engine)->vocab, seed);
    struct ns_segment s = {.token = id, .n = ROWS, .parent = NS_NO_PARENT};
    rig_ask_all(ask, 0, id, ROWS);
    struct ns_wave_desc desc = {.segment = &s, .n_segments = 1, .ask = ask, .n_asks = ROWS};
    assert_int_equal(ns_wave_open(rig->engine, &desc, NULL, &wave, NULL), NS_OK);
    for (bool done = false; !done;)
        assert_int_equal(ns_wave_step(wave, &done, NULL), NS_OK);
    for (uint32_t i = 0; answer && i < ROWS; i++)
        answer[i] = ns_wave_answers(wave)[i];
    ns_wave_stats_get(wave, &stats);
    ns_wave_close(wave);
    return stats;
}

static void the_plan_is_kept(void **state)
{
    (void)state;
    static const size_t memory[] = {(size_t)11 << 20, (size_t)13 << 20, (size_t)17 << 20, (size_t)96 << 20};
    struct ns_answer want[ROWS], got[ROWS];
    for (size_t m = 0; m < NS_COUNT(memory); m++) {
        struct rig rig;
        open_rig(&rig, "k3-tiny", memory[m], ROWS);
        const struct ns_plan *plan = ns_engine_plan(rig.engine);
        struct ns_work work;
        ns_engine_work(rig.engine, &work);
        memset(got, 0, sizeof got);
        (void)score(&rig, 1, got);
        if (m == 0)
            memcpy(want, got, sizeof want);
        for (uint32_t i = 0; i < ROWS; i++) {
            assert_int_equal(got[i].best, want[i].best);
            assert_memory_equal(&got[i].target_logprob, &want[i].target_logprob, sizeof(float));
        }
        struct ns_wave_stats s = score(&rig, 1, NULL);
        struct ns_load_shape load = {
            .rows = ROWS, .head_rows = ROWS, .distinct = (double)s.experts_distinct / plan->n_moe_layers};
        struct ns_forecast f;
        ns_plan_forecast(plan, &work, &load, &f);
        assert_int_equal(s.store.trunk_bytes, f.trunk_bytes);
        assert_int_equal(s.store.head_bytes, f.head_bytes);
        assert_int_equal(s.experts_distinct, f.experts_distinct);
        /* every byte of an expert that was not kept once; all places that are of use are taken */
        assert_int_equal(s.store.experts_read + s.store.experts_kept, s.experts_distinct);
        assert_int_equal(s.store.expert_bytes, s.store.experts_read * plan->expert_bytes);
        uint64_t kept = plan->keep.experts < s.experts_distinct ? plan->keep.experts : s.experts_distinct;
        assert_int_equal(s.store.experts_kept, kept);
        assert_true(s.store.expert_bytes <= f.expert_bytes);
        assert_true(m + 1 < NS_COUNT(memory) || f.trunk_bytes + f.head_bytes + f.expert_bytes == 0);
        rig_close(&rig);
    }
}

/* A wave that will want nearly all experts, as one like it did, reads some while the attention is computed; none is read
 * twice, and a wave of one row after it expects none. */
static void reading_begins_before_the_router(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t id = 5;
    struct ns_segment s = {.token = &id, .n = 1, .parent = NS_NO_PARENT};
    struct ns_store_stats a, b;
    open_rig(&rig, "k3-tiny", (size_t)8 << 20, ROWS);
    const struct ns_plan *plan = ns_engine_plan(rig.engine);
    rig_wave(&rig, &s, 1, NULL, 0, NULL);
    ns_store_stats_get(ns_engine_store(rig.engine), &a);
    assert_int_equal(a.experts_early, 0); /* one row: nobody knows which */
    struct ns_wave_stats first = score(&rig, 1, NULL), many = score(&rig, 2, NULL);
    ns_store_stats_get(ns_engine_store(rig.engine), &b);
    assert_int_equal(first.store.experts_early, 0); /* one row says little */
    assert_true(many.experts_distinct > (uint64_t)plan->n_moe_layers * plan->n_experts * 9 / 10);
    assert_true(many.store.experts_early >= plan->n_moe_layers);
    assert_int_equal(many.store.experts_read + many.store.experts_kept, many.experts_distinct);
    assert_true((double)many.store.expert_bytes <= 1.01 * (double)(many.store.experts_read * plan->expert_bytes));
    rig_wave(&rig, &s, 1, NULL, 0, NULL);
    ns_store_stats_get(ns_engine_store(rig.engine), &a);
    assert_int_equal(a.experts_early, b.experts_early);
    assert_int_equal(a.expert_bytes - b.expert_bytes, (a.experts_read - b.experts_read) * plan->expert_bytes);
    rig_close(&rig);
}

static size_t pool_of(const struct rig *rig)
{
    const struct ns_plan *plan = ns_engine_plan(rig->engine);
    return plan->share[NS_SHARE_ROWS] + plan->share[NS_SHARE_STATES] + plan->share[NS_SHARE_RESIDENT];
}

/* One wave that begins a sequence of 64 positions. */
static enum ns_code begin_seq(struct rig *rig, struct ns_seq *seq, uint32_t seed)
{
    uint32_t id[64];
    struct ns_error err = {0};
    rig_prompt(id, 64, ns_engine_config(rig->engine)->vocab, seed);
    struct ns_segment s = {.token = id, .n = 64, .parent = NS_NO_PARENT, .into = seq};
    return rig_try(rig, &s, 1, NULL, 0, &err);
}

static void states_come_first(void **state)
{
    (void)state;
    struct rig rig;
    struct ns_seq *seq[2000];
    open_rig(&rig, "k3-realhead", (size_t)40 << 20, ROWS);
    size_t pool = pool_of(&rig), one = ns_seq_bytes(rig.engine, 64), n = 0;
    assert_true(ns_engine_state_left(rig.engine) == pool);
    (void)score(&rig, 1, NULL); /* weights take their room */
    assert_true(ns_store_room(ns_engine_store(rig.engine)) > 0);
    enum ns_code rc = NS_OK;
    while (rc == NS_OK) {
        assert_true(n < NS_COUNT(seq));
        assert_int_equal(ns_seq_open(rig.engine, &seq[n], NULL), NS_OK);
        rc = begin_seq(&rig, seq[n++], 7);
        assert_true(ns_engine_state_left(rig.engine) <= pool - (rc == NS_OK ? n : 0) * one);
    }
    assert_int_equal(rc, NS_BUDGET);
    assert_true(n * one > pool - 2 * one); /* all of it became states */
    assert_true(ns_store_room(ns_engine_store(rig.engine)) < one);
    /* the_sum_stays, at the peak too */
    assert_true(ns_budget_peak(&rig.budget) <= (size_t)40 << 20);
    for (size_t room = ns_engine_rows_bytes(rig.engine, ROWS, 256); ns_engine_room_left(rig.engine) < room;)
        ns_seq_close(seq[--n]);
    struct ns_wave_stats s = score(&rig, 1, NULL);
    assert_true(s.store.trunk_bytes > 0);
    for (size_t i = 0; i < n; i++)
        ns_seq_close(seq[i]);
    assert_int_equal(ns_engine_state_left(rig.engine), pool);
    rig_close(&rig);
}

/* Where few rows are in the wave states may be, and rows where states were; neither gets what the other has. */
static void rows_and_states_change_places(void **state)
{
    (void)state;
    struct rig rig;
    struct ns_seq *seq[2000];
    struct ns_answer want[ROWS], got[ROWS];
    memset(want, 0, sizeof want);
    memset(got, 0, sizeof got);
    open_rig(&rig, "k3-realhead", (size_t)40 << 20, 1024);
    const struct ns_plan *plan = ns_engine_plan(rig.engine);
    size_t one = ns_seq_bytes(rig.engine, 64), pool = pool_of(&rig), n = 0;
    (void)score(&rig, 1, want);
    while (ns_engine_room_left(rig.engine) >= one + ns_engine_rows_bytes(rig.engine, 64, 64)) {
        assert_true(n < NS_COUNT(seq));
        assert_int_equal(ns_seq_open(rig.engine, &seq[n], NULL), NS_OK);
        assert_int_equal(begin_seq(&rig, seq[n++], 7), NS_OK);
    }
    assert_true(n * one > pool - plan->share[NS_SHARE_ROWS]); /* they are in the place of rows */
    size_t room = ns_engine_rows_bytes(rig.engine, ROWS, 256);
    assert_true(ns_engine_room_left(rig.engine) < room);
    while (ns_engine_room_left(rig.engine) < room)
        ns_seq_close(seq[--n]);
    assert_true(n > 0);
    (void)score(&rig, 1, got);
    assert_memory_equal(want, got, sizeof want);
    while (n > 0)
        ns_seq_close(seq[--n]);
    assert_int_equal(ns_engine_room_left(rig.engine), pool);
    assert_true(ns_budget_peak(&rig.budget) <= (size_t)40 << 20);
    rig_close(&rig);
}

static void weights_come_back(void **state)
{
    (void)state;
    struct rig rig;
    struct ns_seq *seq[SEQS];
    open_rig(&rig, "k3-realhead", (size_t)40 << 20, ROWS);
    (void)score(&rig, 1, NULL);
    assert_int_equal(score(&rig, 1, NULL).store.trunk_bytes, 0);
    size_t room = ns_store_room(ns_engine_store(rig.engine)), pool = pool_of(&rig);
    uint32_t n = 0;
    for (; n < SEQS && ns_store_room(ns_engine_store(rig.engine)) > room / 2; n++) {
        assert_int_equal(ns_seq_open(rig.engine, &seq[n], NULL), NS_OK);
        assert_int_equal(begin_seq(&rig, seq[n], 3), NS_OK);
    }
    assert_true(ns_store_room(ns_engine_store(rig.engine)) < room);
    for (uint32_t i = 0; i < n; i++)
        ns_seq_close(seq[i]);
    (void)score(&rig, 1, NULL);
    size_t back = ns_store_room(ns_engine_store(rig.engine));
    assert_true(back <= room && back + pool / 16 > room);
    assert_int_equal(score(&rig, 1, NULL).store.trunk_bytes, 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_kept),
        cmocka_unit_test(reading_begins_before_the_router),
        cmocka_unit_test(states_come_first),
        cmocka_unit_test(weights_come_back),
        cmocka_unit_test(rows_and_states_change_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
