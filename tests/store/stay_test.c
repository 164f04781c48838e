/* stay_test.c - what stays between waves: the choice fills its room, a store holds what was measured, and a room that
 * shrinks gives its bytes back. */
#include "fixture.h"

static int teardown(void **state)
{
    (void)state;
    ns_fault_disarm();
    return 0;
}

static void need_of(struct fixture *f, const struct ns_store_options *o, struct ns_store_need *need)
{
    assert_int_equal(ns_store_measure(&f->config, f->shards, o, &f->budget, need, NULL), NS_OK);
}

/* Every expert of every layer, bytes compared, beside all tiles. */
static void run_wave(struct fixture *f)
{
    ns_store_wave_begin(f->store, f->tile, f->n_tiles);
    for (size_t i = 0; i < f->n_tiles; i++) {
        struct ns_tile_view view = {0};
        assert_int_equal(ns_store_tile_acquire(f->store, &view, NULL), NS_OK);
        fixture_assert_tile(f, &f->tile[i], &view);
        ns_store_tile_release(f->store, &view);
    }
    for (uint32_t layer = 0; layer < f->config.n_layers; layer++) {
        uint32_t id[256];
        if (!ns_config_is_moe(&f->config, layer))
            continue;
        for (uint32_t e = 0; e < f->config.n_experts; e++)
            id[e] = e;
        assert_int_equal(ns_store_experts_want(f->store, layer, id, NULL, f->config.n_experts, NULL), NS_OK);
        for (uint32_t e = 0; e < f->config.n_experts; e++) {
            struct ns_expert_view view = {0};
            struct ns_expert_id which = {layer, e};
            assert_int_equal(ns_store_expert_acquire(f->store, which, &view, NULL), NS_OK);
            fixture_assert_expert(f, which, &view);
            ns_store_expert_release(f->store, &view);
        }
    }
    ns_store_wave_end(f->store);
}

static uint64_t n_experts(const struct fixture *f)
{
    uint64_t n = 0;
    for (uint32_t layer = 0; layer < f->config.n_layers; layer++)
        n += ns_config_is_moe(&f->config, layer) ? f->config.n_experts : 0;
    return n;
}

/* The next wave, and what it read and found in memory. */
static struct ns_store_stats wave_stats(struct fixture *f)
{
    struct ns_store_stats a, b;
    ns_store_stats_get(f->store, &a);
    run_wave(f);
    ns_store_stats_get(f->store, &b);
    b.trunk_bytes -= a.trunk_bytes;
    b.head_bytes -= a.head_bytes;
    b.experts_kept -= a.experts_kept;
    b.experts_read -= a.experts_read;
    return b;
}

static uint64_t bytes_of(const struct fixture *f, bool head)
{
    uint64_t sum = 0;
    for (size_t i = head ? f->n_trunk : 0; i < (head ? f->n_tiles : f->n_trunk); i++)
        sum += fixture_tile_bytes(&f->tile[i]);
    return sum;
}

/* Tiles of the layers first, then of the head, then experts; and nothing larger than a tile is left over. */
static void room_is_used(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(fixture_names); m++) {
        struct fixture f;
        fixture_open_model(&f, fixture_names[m]);
        struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 2};
        struct ns_store_need need;
        need_of(&f, &o, &need);
        fixture_open_store(&f, &o);
        uint64_t trunk = bytes_of(&f, false), head = bytes_of(&f, true), most = 0;
        for (size_t i = 0; i < f.n_tiles; i++)
            most = fixture_tile_bytes(&f.tile[i]) > most ? fixture_tile_bytes(&f.tile[i]) : most;
        uint64_t extra = 4 * 4096; /* of a block: edges of its window, alignment */
        struct ns_keep before = {0};
        for (uint64_t room = 0; room < 4 * (trunk + head); room += 300000) {
            struct ns_keep k;
            ns_keep_measure(f.tile, f.n_tiles, room, need.slot_bytes, n_experts(&f), &k);
            uint64_t n = (k.trunk_bytes + k.head_bytes) / 4096 + f.n_tiles;
            assert_true(k.trunk_bytes + k.head_bytes + k.experts * need.slot_bytes <= room);
            assert_true(k.trunk_bytes >= before.trunk_bytes);
            if (before.trunk_bytes + before.head_bytes == trunk + head) /* before, a tile may take experts' places */
                assert_true(k.experts >= before.experts);
            assert_true(k.trunk_bytes + n * extra + most >= (room < trunk ? room : trunk));
            if (k.head_bytes > 2 * most)
                assert_true(k.trunk_bytes + most + extra >= trunk);
            if (k.experts > 2 + 2 * most / need.slot_bytes)
                assert_int_equal(k.trunk_bytes + k.head_bytes, trunk + head);
            before = k;
        }
        assert_int_equal(before.trunk_bytes, trunk);
        fixture_close(&f);
    }
}

static void plan_is_kept(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(fixture_names); m++) {
        struct fixture f;
        fixture_open_model(&f, fixture_names[m]);
        for (size_t room = 0; room <= (size_t)16 << 20; room = room ? 4 * room : 400000) {
            struct ns_store_options o = {
                .no_direct = true, .tile_bytes = 16384, .ring_bytes = 1, .expert_slots = 2, .resident_bytes = room};
            struct ns_store_need need;
            struct ns_keep k;
            need_of(&f, &o, &need);
            fixture_open_store(&f, &o);
            ns_keep_measure(f.tile, f.n_tiles, room, need.slot_bytes, n_experts(&f), &k);
            run_wave(&f);
            for (int wave = 0; wave < 2; wave++) {
                struct ns_store_stats s = wave_stats(&f);
                assert_int_equal(s.trunk_bytes, bytes_of(&f, false) - k.trunk_bytes);
                assert_int_equal(s.head_bytes, bytes_of(&f, true) - k.head_bytes);
                assert_int_equal(s.experts_kept, k.experts);
                assert_int_equal(s.experts_read, n_experts(&f) - k.experts);
            }
            fixture_close_store(&f);
        }
        fixture_close(&f);
    }
}

static void room_shrinks(void **state)
{
    (void)state;
    struct fixture f;
    struct ns_budget other;
    struct ns_error err = {0};
    size_t all = (size_t)12 << 20;
    fixture_open_model(&f, "k3-tiny");
    struct ns_store_options o = {
        .no_direct = true, .tile_bytes = 16384, .ring_bytes = 1, .expert_slots = 2, .resident_bytes = all};
    fixture_open_store(&f, &o);
    assert_int_equal(ns_budget_share(&other, &f.budget, "other", 0, NULL), NS_OK);
    run_wave(&f);
    assert_int_equal(wave_stats(&f).experts_read, 0);
    for (size_t room = all; room > 0; room /= 3) {
        struct ns_store_stats s;
        assert_int_equal(ns_store_keep(f.store, f.tile, f.n_tiles, room, &other, NULL), NS_OK);
        assert_int_equal(ns_store_room(f.store), room);
        assert_int_equal(ns_budget_left(&other), all - room);
        void *used = ns_budget_take(&other, all - room, NULL); /* it is really free */
        assert_non_null(used);
        s = wave_stats(&f); /* no tile is new in the choice: nothing is read that the plan keeps */
        struct ns_keep k;
        ns_keep_measure(f.tile, f.n_tiles, room, 1, 0, &k);
        assert_int_equal(s.trunk_bytes, bytes_of(&f, false) - k.trunk_bytes);
        assert_true(s.trunk_bytes + s.head_bytes + s.experts_read * ns_store_expert_bytes(f.store) + room >=
                    bytes_of(&f, false) + bytes_of(&f, true) + n_experts(&f) * ns_store_expert_bytes(f.store));
        assert_int_equal(ns_store_keep(f.store, f.tile, f.n_tiles, room + 1, &other, &err), NS_BUDGET);
        ns_error_clear(&err);
        ns_budget_give(&other, used);
    }
    /* and back again */
    assert_int_equal(ns_store_keep(f.store, f.tile, f.n_tiles, all, &other, NULL), NS_OK);
    run_wave(&f);
    struct ns_store_stats s = wave_stats(&f);
    assert_int_equal(s.trunk_bytes + s.head_bytes + s.experts_read, 0);
    ns_budget_fini(&other);
    fixture_close(&f);
}

/* Without memory for the table nothing stays, and the waves are right all the same. */
static void no_memory_for_the_table(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_store_options o = {.tile_bytes = 16384, .ring_bytes = 1, .expert_slots = 2, .resident_bytes = 0};
    struct ns_budget other;
    fixture_open_store(&f, &o);
    fixture_keep(&f, f.n_tiles);
    assert_int_equal(ns_budget_share(&other, &f.budget, "other", (size_t)1 << 20, NULL), NS_OK);
    fixture_close_store(&f);
    assert_int_equal(ns_store_open(&f.config, f.shards, &o, &f.budget, &f.store, NULL), NS_OK);
    struct ns_tile *tile = ns_budget_take(&f.budget, 4 * sizeof *tile, NULL);
    assert_non_null(tile);
    for (size_t i = 0, n = 0; n < 4; i++)
        if (fixture_is_trunk(ns_shards_at(f.shards, i)))
            tile[n++] = (struct ns_tile){.tensor = ns_shards_at(f.shards, i), .n = 1};
    ns_fault_arm(NS_FAULT_ALLOC, 1);
    assert_int_equal(ns_store_keep(f.store, tile, 4, (size_t)1 << 20, &other, NULL), NS_BUDGET);
    ns_fault_disarm();
    assert_int_equal(ns_store_room(f.store), (size_t)1 << 20);
    f.tile = tile;
    f.n_tiles = f.n_trunk = 4;
    run_wave(&f);
    assert_true(wave_stats(&f).trunk_bytes > 0);
    assert_int_equal(ns_store_keep(f.store, tile, 4, (size_t)1 << 20, &other, NULL), NS_OK);
    run_wave(&f);
    assert_int_equal(wave_stats(&f).trunk_bytes, 0);
    assert_int_equal(ns_store_keep(f.store, tile, 4, 0, &other, NULL), NS_OK);
    ns_budget_fini(&other);
    fixture_close(&f);
}

/* Whatever memory is refused while the room shrinks or grows: its bytes are free, and waves are right. */
static void no_memory_while_the_room_changes(void **state)
{
    (void)state;
    struct fixture f;
    struct ns_budget other;
    size_t all = (size_t)8 << 20;
    fixture_open_model(&f, "k3-tiny");
    struct ns_store_options o = {
        .no_direct = true, .tile_bytes = 16384, .ring_bytes = 1, .expert_slots = 2, .resident_bytes = all};
    fixture_open_store(&f, &o);
    assert_int_equal(ns_budget_share(&other, &f.budget, "other", 0, NULL), NS_OK);
    bool clean = false;
    for (uint64_t nth = 1; !clean; nth++) {
        for (int grow = 0; grow < 2; grow++) {
            ns_fault_arm(NS_FAULT_ALLOC, nth);
            enum ns_code rc = ns_store_keep(f.store, f.tile, f.n_tiles, grow ? all : all / 3, &other, NULL);
            clean = grow && ns_fault_left(NS_FAULT_ALLOC) > 0;
            ns_fault_disarm();
            assert_true(rc == NS_OK || rc == NS_BUDGET);
            assert_int_equal(ns_budget_left(&other), grow ? 0 : all - all / 3);
            run_wave(&f);
        }
        assert_int_equal(ns_store_keep(f.store, f.tile, f.n_tiles, all, &other, NULL), NS_OK);
        run_wave(&f);
    }
    assert_int_equal(wave_stats(&f).trunk_bytes, 0);
    /* nor does the table find memory for tiles that it has not met: the old ones' bytes are free all the same */
    size_t n = 0;
    struct ns_tile *single = ns_budget_take(&f.budget, 4 * f.n_tiles * sizeof *single, NULL);
    assert_non_null(single);
    for (size_t i = 0; i < f.n_tiles; i++)
        for (uint32_t r = 0; r < f.tile[i].n && r < 4; r++, n++) {
            single[n] = f.tile[i];
            single[n].first += r;
            single[n].n = 1;
        }
    ns_fault_arm(NS_FAULT_ALLOC, 1);
    assert_int_equal(ns_store_keep(f.store, single, n, 0, &other, NULL), NS_BUDGET);
    ns_fault_disarm();
    assert_int_equal(ns_budget_left(&other), all);
    run_wave(&f);
    ns_budget_give(&f.budget, single);
    ns_budget_fini(&other);
    fixture_close(&f);
}

int main(void)
{
#define T(name) cmocka_unit_test_teardown(name, teardown)
    const struct CMUnitTest tests[] = {
        T(room_is_used),
        T(plan_is_kept),
        T(room_shrinks),
        T(no_memory_for_the_table),
        T(no_memory_while_the_room_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
