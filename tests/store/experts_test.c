/* experts_test.c - experts against the files themselves: slots, residents, what is read before the router spoke, and
 * every read failing in turn. */
#include "fixture.h"

static int teardown(void **state)
{
    (void)state;
    ns_fault_disarm();
    return 0;
}

enum { ALL_BUT_ONE = 0, ALL = 1, WAVES_TO_LEARN = 16 };

/* The experts e with (e + wave) % of == 0; all, or all but the last. */
static size_t choose(const struct fixture *f, uint32_t *id, uint32_t *rows, uint32_t of, uint32_t wave)
{
    size_t n = 0;
    for (uint32_t e = 0; e < f->config.n_experts; e++)
        if (of == ALL_BUT_ONE ? e + 1 < f->config.n_experts : (e + wave) % of == 0) {
            rows[n] = 1 + e % 4;
            id[n++] = e;
        }
    return n;
}

/* One wave over all layers, every byte compared; stops at the first error. draws: said before (0: nothing is); held views
 * at a time. */
static enum ns_code run_wave(struct fixture *f, uint32_t of, uint32_t wave, uint64_t draws, size_t held,
                             struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    ns_store_wave_begin(f->store, NULL, 0);
    for (uint32_t layer = 0; layer < f->config.n_layers && rc == NS_OK; layer++) {
        uint32_t id[256], rows[256];
        if (!ns_config_is_moe(&f->config, layer))
            continue;
        size_t n = choose(f, id, rows, of, wave);
        struct ns_expert_view view[4];
        memset(view, 0, sizeof view);
        if (draws > 0)
            ns_store_experts_expect(f->store, layer, draws);
        rc = ns_store_experts_want(f->store, layer, id, rows, n, err);
        for (size_t i = 0; i < n && rc == NS_OK; i++) {
            struct ns_expert_view *v = &view[i % held];
            ns_store_expert_release(f->store, v); /* a zeroed one is a no-op */
            rc = ns_store_expert_acquire(f->store, (struct ns_expert_id){layer, id[i]}, v, err);
            if (rc != NS_OK)
                assert_null(v->gate.data);
            /* all that are in hand are still what they were */
            for (size_t k = 0; k < held && k <= i && rc == NS_OK; k++)
                fixture_assert_expert(f, (struct ns_expert_id){layer, id[i - k]}, &view[(i - k) % held]);
        }
        for (size_t k = 0; k < held; k++)
            ns_store_expert_release(f->store, &view[k]);
    }
    ns_store_wave_end(f->store);
    return rc;
}

static uint64_t n_moe_layers(const struct fixture *f)
{
    uint64_t n = 0;
    for (uint32_t layer = 0; layer < f->config.n_layers; layer++)
        n += ns_config_is_moe(&f->config, layer);
    return n;
}

static void every_expert_is_read_once(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(fixture_names); m++)
        for (int direct = 0; direct < 2; direct++)
            for (uint32_t slots = 1; slots <= 9; slots += 4) {
                struct fixture f;
                fixture_open_model(&f, fixture_names[m]);
                struct ns_store_options o = {
                    .no_direct = !direct, .tile_bytes = 8192, .ring_bytes = 1, .expert_slots = slots};
                fixture_open_store(&f, &o);
                for (uint32_t of = 1; of <= 3; of += 2) {
                    struct ns_store_stats before, after;
                    ns_store_stats_get(f.store, &before);
                    assert_int_equal(run_wave(&f, of, 0, 0, 1, NULL), NS_OK);
                    ns_store_stats_get(f.store, &after);
                    uint64_t n = n_moe_layers(&f) * ((f.config.n_experts + of - 1) / of);
                    uint64_t bytes = n * ns_store_expert_bytes(f.store);
                    assert_int_equal(after.experts_wanted - before.experts_wanted, n);
                    assert_int_equal(after.experts_read - before.experts_read, n);
                    uint64_t read = after.expert_bytes - before.expert_bytes;
                    assert_true(read >= bytes && read <= bytes + n * 6 * 8192);
                    if (!direct)
                        assert_int_equal(read, bytes);
                }
                fixture_close(&f);
            }
}

/* With room for some, for most and for all: kept ones are not read again, and everything is still right. */
static void kept_experts_are_skipped(void **state)
{
    (void)state;
    static const uint32_t percent[] = {10, 50, 100};
    for (size_t m = 0; m < NS_COUNT(fixture_names); m++)
        for (size_t p = 0; p < NS_COUNT(percent); p++) {
            struct fixture f;
            fixture_open_model(&f, fixture_names[m]);
            struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 3};
            struct ns_store_need need;
            assert_int_equal(ns_store_measure(&f.config, f.shards, &o, &f.budget, &need, NULL), NS_OK);
            uint64_t all = n_moe_layers(&f) * f.config.n_experts;
            uint64_t places = all * percent[p] / 100;
            o.resident_bytes = (size_t)(places * need.slot_bytes);
            fixture_open_store(&f, &o);
            fixture_keep(&f, 0);
            struct ns_store_stats s0, s1, s2;
            ns_store_stats_get(f.store, &s0);
            assert_int_equal(run_wave(&f, ALL, 0, 0, 1, NULL), NS_OK);
            ns_store_stats_get(f.store, &s1);
            assert_int_equal(s1.experts_read - s0.experts_read, all);
            for (uint32_t wave = 1; wave < 4; wave++) {
                assert_int_equal(run_wave(&f, ALL, wave, 0, 1, NULL), NS_OK);
                ns_store_stats_get(f.store, &s2);
                assert_int_equal(s2.experts_kept - s1.experts_kept, places);
                assert_int_equal(s2.experts_read - s1.experts_read, all - places);
                s1 = s2;
            }
            fixture_close(&f);
        }
}

/* Two or three in hand while others come and go, under a small set that changes all the time. */
static void pinned_experts_survive(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 4};
    struct ns_store_need need;
    assert_int_equal(ns_store_measure(&f.config, f.shards, &o, &f.budget, &need, NULL), NS_OK);
    o.resident_bytes = 5 * need.slot_bytes;
    fixture_open_store(&f, &o);
    fixture_keep(&f, 0);
    for (uint32_t wave = 0; wave < 12; wave++)
        assert_int_equal(run_wave(&f, 2 + wave % 3, wave, wave % 2 * 64 * f.config.n_experts, 3, NULL), NS_OK);
    fixture_close(&f);
}

/* Whatever is resident when the want list comes is served from memory, though swaps go on while it is worked off. */
static void wanted_residents_stay(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-tiny");
    struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 2};
    struct ns_store_need need;
    assert_int_equal(ns_store_measure(&f.config, f.shards, &o, &f.budget, &need, NULL), NS_OK);
    o.resident_bytes = 6 * need.slot_bytes;
    fixture_open_store(&f, &o);
    fixture_keep(&f, 0);
    uint64_t read = 0, kept = 0;
    for (uint32_t wave = 0; wave < 20; wave++) {
        struct ns_store_stats s;
        assert_int_equal(run_wave(&f, 1 + wave % 2, wave, 0, 1, NULL), NS_OK);
        ns_store_stats_get(f.store, &s);
        assert_int_equal(s.experts_read + s.experts_kept, s.experts_wanted);
        read = s.experts_read;
        kept = s.experts_kept;
    }
    assert_true(read > 0 && kept > 0);
    fixture_close(&f);
}

enum { SLOTS = 6 };

/* Reads have no edges of windows, so that bytes are those of experts. */
static void open_expecting(struct fixture *f, size_t resident_bytes)
{
    struct ns_store_options o = {.tile_bytes = 8192,
                                 .ring_bytes = 1,
                                 .expert_slots = SLOTS,
                                 .no_direct = true,
                                 .resident_bytes = resident_bytes};
    fixture_open_model(f, "k3-tiny");
    fixture_open_store(f, &o);
}

static void expected_experts_are_used(void **state)
{
    (void)state;
    struct fixture f;
    open_expecting(&f, 0);
    struct ns_store_stats s, t;
    uint64_t all = n_moe_layers(&f) * f.config.n_experts, many = 64 * f.config.n_experts;
    /* nothing is known yet: nothing is expected */
    assert_int_equal(run_wave(&f, ALL, 0, many, 1, NULL), NS_OK);
    ns_store_stats_get(f.store, &s);
    assert_int_equal(s.experts_early, 0);
    for (uint32_t wave = 1; wave < WAVES_TO_LEARN; wave++)
        assert_int_equal(run_wave(&f, ALL, wave, many, 1, NULL), NS_OK);
    /* all of them, and half of the slots early: nothing is read twice */
    ns_store_stats_get(f.store, &s);
    assert_true(s.experts_early >= n_moe_layers(&f) * SLOTS / 2);
    assert_int_equal(s.experts_read, WAVES_TO_LEARN * all);
    assert_int_equal(s.expert_bytes, s.experts_read * ns_store_expert_bytes(f.store));
    /* half of them against all expectation: they are right, and what was read in vain is counted */
    assert_int_equal(run_wave(&f, 2, 0, many, 1, NULL), NS_OK);
    ns_store_stats_get(f.store, &t);
    uint64_t early = t.experts_early - s.experts_early, vain = n_moe_layers(&f) * SLOTS / 2 - early;
    assert_int_equal(t.experts_read - s.experts_read, all / 2);
    assert_true(vain > 0 && t.expert_bytes - s.expert_bytes >= all / 2 * ns_store_expert_bytes(f.store));
    assert_true(t.expert_bytes - s.expert_bytes <= (all / 2 + vain) * ns_store_expert_bytes(f.store));
    fixture_close(&f);
}

/* What large waves wanted is not expected of a small one. */
static void few_choices_expect_nothing(void **state)
{
    (void)state;
    struct fixture f;
    open_expecting(&f, 0);
    struct ns_store_stats s, t;
    for (uint32_t wave = 0; wave < WAVES_TO_LEARN; wave++)
        assert_int_equal(run_wave(&f, ALL, wave, 64 * f.config.n_experts, 1, NULL), NS_OK);
    ns_store_stats_get(f.store, &s);
    for (uint64_t draws = 1; draws <= f.config.n_experts; draws *= 2) {
        assert_int_equal(run_wave(&f, f.config.n_experts / 2, 1, draws, 1, NULL), NS_OK);
        ns_store_stats_get(f.store, &t);
        assert_int_equal(t.experts_early, s.experts_early);
        assert_int_equal(t.expert_bytes, t.experts_read * ns_store_expert_bytes(f.store));
    }
    fixture_close(&f);
}

/* Where all that is ever wanted is kept, nothing is read, although nearly all are expected. */
static void what_nobody_wants_is_not_read(void **state)
{
    (void)state;
    struct fixture f;
    open_expecting(&f, (size_t)64 << 20);
    struct ns_store_stats s;
    uint64_t wanted = n_moe_layers(&f) * (f.config.n_experts - 1);
    assert_true((f.config.n_experts - 1) * 10 >= f.config.n_experts * 9);
    for (uint32_t wave = 0; wave < WAVES_TO_LEARN; wave++)
        assert_int_equal(run_wave(&f, ALL_BUT_ONE, wave, 64 * f.config.n_experts, 1, NULL), NS_OK);
    ns_store_stats_get(f.store, &s);
    assert_int_equal(s.experts_read, wanted);
    assert_int_equal(s.expert_bytes, wanted * ns_store_expert_bytes(f.store));
    fixture_close(&f);
}

static void abandoned_waves_leave_nothing(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_store_options o = {
        .tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 3, .resident_bytes = (size_t)4 << 20};
    fixture_open_store(&f, &o);
    uint32_t id[256], rows[256], layer = f.config.first_dense;
    size_t n = choose(&f, id, rows, ALL, 0);
    for (uint32_t wave = 0; wave < WAVES_TO_LEARN; wave++)
        assert_int_equal(run_wave(&f, ALL, wave, 0, 1, NULL), NS_OK);
    for (size_t taken = 0; taken < 6; taken++) {
        ns_store_wave_begin(f.store, NULL, 0);
        if (taken % 2 == 0)
            ns_store_experts_expect(f.store, layer, 64 * n);
        assert_int_equal(ns_store_experts_want(f.store, layer, id, rows, n, NULL), NS_OK);
        for (size_t i = 0; i < taken; i++) {
            struct ns_expert_view view;
            memset(&view, 0, sizeof view);
            assert_int_equal(ns_store_expert_acquire(f.store, (struct ns_expert_id){layer, id[i]}, &view, NULL), NS_OK);
            if (i + 1 < taken)
                ns_store_expert_release(f.store, &view);
        }
        ns_store_wave_end(f.store);
    }
    assert_int_equal(run_wave(&f, ALL, 0, 0, 2, NULL), NS_OK);
    fixture_close(&f);
}

static void too_many_in_hand_is_said(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 2};
    fixture_open_store(&f, &o);
    uint32_t id[256], rows[256], layer = f.config.first_dense;
    size_t n = choose(&f, id, rows, ALL, 0);
    struct ns_expert_view view[3];
    memset(view, 0, sizeof view);
    struct ns_error err = {0};
    ns_store_wave_begin(f.store, NULL, 0);
    assert_int_equal(ns_store_experts_want(f.store, layer, id, rows, n, NULL), NS_OK);
    assert_int_equal(ns_store_expert_acquire(f.store, (struct ns_expert_id){layer, id[0]}, &view[0], NULL), NS_OK);
    assert_int_equal(ns_store_expert_acquire(f.store, (struct ns_expert_id){layer, id[1]}, &view[1], NULL), NS_OK);
    assert_int_equal(ns_store_expert_acquire(f.store, (struct ns_expert_id){layer, id[2]}, &view[2], &err), NS_BUDGET);
    assert_non_null(strstr(err.message, "2 expert slots"));
    ns_store_expert_release(f.store, &view[0]);
    assert_int_equal(ns_store_expert_acquire(f.store, (struct ns_expert_id){layer, id[2]}, &view[2], NULL), NS_OK);
    fixture_assert_expert(&f, (struct ns_expert_id){layer, id[2]}, &view[2]);
    fixture_assert_expert(&f, (struct ns_expert_id){layer, id[1]}, &view[1]);
    ns_store_wave_end(f.store);
    /* lists that are not ascending are a bug of the caller, and refused */
    uint32_t wrong[2] = {3, 3};
    ns_store_wave_begin(f.store, NULL, 0);
    assert_int_equal(ns_store_experts_want(f.store, layer, wrong, rows, 2, NULL), NS_INTERNAL);
    ns_store_wave_end(f.store);
    fixture_close(&f);
}

static void every_read_may_fail(void **state)
{
    (void)state;
    static const int modes[] = {EIO, NS_READ_ENDS, NS_READ_SHORT};
    for (size_t m = 0; m < NS_COUNT(modes); m++) {
        struct fixture f;
        fixture_open_model(&f, "kimi-linear-tiny"); /* experts in several runs and shards */
        struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 3};
        fixture_open_store(&f, &o);
        size_t failures = 0, tries = 0;
        for (uint64_t nth = 1; nth <= n_moe_layers(&f) * f.config.n_experts; nth += 3) {
            struct ns_error err = {0};
            ns_fault_arm_mode(NS_FAULT_READ, nth, modes[m], false);
            enum ns_code rc = run_wave(&f, ALL, 0, nth % 2 * 64 * f.config.n_experts, 1, &err);
            ns_fault_disarm();
            tries++;
            if (rc == NS_OK)
                continue;
            failures++;
            assert_int_equal(rc, NS_IO);
            assert_non_null(strstr(err.message, ".safetensors, offset "));
            assert_non_null(strstr(err.context, "expert "));
            if (nth % 5 == 0)
                assert_int_equal(run_wave(&f, ALL, 0, 0, 1, NULL), NS_OK);
        }
        assert_int_equal(failures, modes[m] == NS_READ_SHORT ? 0 : tries);
        fixture_close(&f);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_teardown(name, teardown)
    const struct CMUnitTest tests[] = {
        T(every_expert_is_read_once),     T(kept_experts_are_skipped),      T(pinned_experts_survive),
        T(wanted_residents_stay),         T(expected_experts_are_used),     T(few_choices_expect_nothing),
        T(what_nobody_wants_is_not_read), T(abandoned_waves_leave_nothing), T(too_many_in_hand_is_said),
        T(every_read_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
