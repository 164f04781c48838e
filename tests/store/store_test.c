/* store_test.c - dense tiles, rows and small reads against the files themselves, with and without O_DIRECT, with every
 * read failing in turn, and with files that change. */
#include "fixture.h"

static int teardown(void **state)
{
    (void)state;
    ns_fault_disarm();
    ns_file_limit_transfer(0);
    return 0;
}

static uint64_t trunk_bytes(const struct fixture *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < f->n_trunk; i++)
        n += fixture_tile_bytes(&f->tile[i]);
    return n;
}

static void run_waves(struct fixture *f, const struct ns_store_options *o)
{
    struct ns_store_stats before, after;
    struct ns_keep keep;
    fixture_open_store(f, o);
    ns_keep_measure(f->tile, f->n_tiles, o->resident_bytes, 1, 0, &keep);
    if (o->resident_bytes > 100 << 20)
        assert_int_equal(keep.trunk_bytes, trunk_bytes(f));
    else
        assert_int_equal(keep.trunk_bytes > 0, o->resident_bytes > 0);
    assert_int_equal(ns_store_trunk_bytes(f->store), trunk_bytes(f));
    for (int wave = 0; wave < 3; wave++) {
        ns_store_stats_get(f->store, &before);
        assert_int_equal(fixture_run_tiles(f, NULL), NS_OK);
        ns_store_stats_get(f->store, &after);
        uint64_t read = after.trunk_bytes - before.trunk_bytes, all = trunk_bytes(f);
        uint64_t windows = (uint64_t)f->n_trunk * 8192;
        if (wave > 0)
            all -= keep.trunk_bytes;
        assert_true(read >= all && read <= all + windows); /* each byte once, and the edges of windows */
        if (o->no_direct)
            assert_int_equal(read, all);
    }
    fixture_close_store(f);
}

static void tiles_match_the_file(void **state)
{
    (void)state;
    static const size_t resident[] = {0, 700000, (size_t)128 << 20};
    for (size_t m = 0; m < NS_COUNT(fixture_names); m++) {
        struct fixture f;
        fixture_open_model(&f, fixture_names[m]);
        for (int direct = 0; direct < 2; direct++)
            for (size_t r = 0; r < NS_COUNT(resident); r++) {
                struct ns_store_options o = {.no_direct = !direct,
                                             .tile_bytes = 8192,
                                             .ring_bytes = 200000,
                                             .expert_slots = 2,
                                             .resident_bytes = resident[r]};
                run_waves(&f, &o);
            }
        fixture_close(&f);
    }
}

static void several_views_at_once(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1};
    fixture_open_store(&f, &o);
    ns_store_wave_begin(f.store, f.tile, f.n_tiles);
    struct ns_tile_view view[4] = {{0}};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ns_store_tile_acquire(f.store, &view[i], NULL), NS_OK);
    struct ns_error err = {0};
    assert_int_equal(ns_store_tile_acquire(f.store, &view[3], &err), NS_BUDGET); /* a ring of three */
    assert_non_null(strstr(err.message, "3 tile slots"));
    for (size_t i = 0; i < 3; i++)
        fixture_assert_tile(&f, &f.tile[i], &view[i]);
    ns_store_tile_release(f.store, &view[1]); /* not in order */
    assert_null(view[1].data);
    assert_int_equal(ns_store_tile_acquire(f.store, &view[3], NULL), NS_OK);
    fixture_assert_tile(&f, &f.tile[3], &view[3]);
    fixture_assert_tile(&f, &f.tile[0], &view[0]);
    fixture_assert_tile(&f, &f.tile[2], &view[2]);
    ns_store_wave_end(f.store); /* views in hand are no longer valid, and no longer count */
    assert_int_equal(fixture_run_tiles(&f, NULL), NS_OK);
    fixture_close(&f);
}

static void abandoned_waves_leave_nothing(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-tiny");
    for (size_t resident = 0; resident <= 500000; resident += 500000) {
        struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 100000, .resident_bytes = resident};
        fixture_open_store(&f, &o);
        for (size_t taken = 0; taken < 8; taken++) {
            ns_store_wave_begin(f.store, f.tile, f.n_tiles);
            for (size_t i = 0; i < taken; i++) {
                struct ns_tile_view view = {0};
                assert_int_equal(ns_store_tile_acquire(f.store, &view, NULL), NS_OK);
                fixture_assert_tile(&f, &f.tile[i], &view);
                if (i + 1 < taken)
                    ns_store_tile_release(f.store, &view);
            }
            ns_store_wave_end(f.store);
        }
        assert_int_equal(fixture_run_tiles(&f, NULL), NS_OK);
        fixture_close_store(&f);
    }
    fixture_close(&f);
}

static const struct ns_tensor *find_tensor(struct fixture *f, const char *part)
{
    for (size_t i = 0; i < ns_shards_count(f->shards); i++)
        if (strstr(ns_shards_at(f->shards, i)->name, part))
            return ns_shards_at(f->shards, i);
    fail_msg("no tensor %s", part);
    return NULL;
}

static void rows_arrive_where_asked(void **state)
{
    (void)state;
    for (int direct = 0; direct < 2; direct++) {
        struct fixture f;
        fixture_open_model(&f, "k3-odd");
        struct ns_store_options o = {.no_direct = !direct};
        fixture_open_store(&f, &o);
        const struct ns_tensor *t = find_tensor(&f, "embed_tokens");
        size_t row_bytes = (size_t)(t->bytes / t->dim[0]);
        uint32_t last = (uint32_t)t->dim[0] - 1;
        uint32_t row[200] = {last, 0, 7, 7, 8, 9, last, 0, 100, 3};
        for (size_t i = 10; i < 200; i++)
            row[i] = (uint32_t)(i * 37 % t->dim[0]);
        uint8_t *got = malloc(200 * row_bytes);
        assert_non_null(got);
        static const size_t counts[] = {1, 10, 200, 0};
        for (size_t c = 0; c < NS_COUNT(counts); c++) {
            struct ns_store_stats before, after;
            ns_store_stats_get(f.store, &before);
            assert_int_equal(ns_store_read_rows(f.store, t, row, counts[c], got, NULL), NS_OK);
            ns_store_stats_get(f.store, &after);
            for (size_t i = 0; i < counts[c]; i++)
                fixture_assert_bytes(&f, t, row[i] * row_bytes, row_bytes, got + i * row_bytes);
            if (counts[c] == 10) /* 0 | 3 | 7 8 9 | 100 | last */
                assert_int_equal(after.reads - before.reads, 5);
            if (counts[c] == 10 && !direct)
                assert_int_equal(after.embed_bytes - before.embed_bytes, 7 * row_bytes);
        }
        struct ns_error err = {0};
        row[1] = last + 1;
        assert_int_equal(ns_store_read_rows(f.store, t, row, 2, got, &err), NS_INTERNAL);
        for (uint64_t nth = 1; nth <= 3; nth++) {
            ns_error_clear(&err);
            row[1] = 0;
            ns_fault_arm(NS_FAULT_READ, nth);
            assert_int_equal(ns_store_read_rows(f.store, t, row, 10, got, &err), NS_IO);
            assert_non_null(strstr(err.message, "safetensors"));
            assert_non_null(strstr(err.context, "embed_tokens"));
        }
        free(got);
        fixture_close(&f);
    }
}

static void small_tensors_are_read_whole(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    fixture_open_store(&f, NULL);
    const struct ns_tensor *t = find_tensor(&f, "input_layernorm.weight");
    uint8_t got[4096];
    assert_true(t->bytes <= sizeof got);
    assert_int_equal(ns_store_read(f.store, t, 0, (size_t)t->bytes, got, NULL), NS_OK);
    fixture_assert_bytes(&f, t, 0, (size_t)t->bytes, got);
    assert_int_equal(ns_store_read(f.store, t, 6, 10, got, NULL), NS_OK);
    fixture_assert_bytes(&f, t, 6, 10, got);
    assert_int_equal(ns_store_read(f.store, t, 6, (size_t)t->bytes, got, NULL), NS_INTERNAL);
    struct ns_error err = {0};
    ns_fault_arm(NS_FAULT_READ, 1);
    assert_int_equal(ns_store_read(f.store, t, 0, 10, got, &err), NS_IO);
    assert_non_null(strstr(err.context, "input_layernorm"));
    fixture_close(&f);
}

/* Every read of a wave fails once, in each way: a named error, and the next wave is right. */
static void every_read_may_fail(void **state)
{
    (void)state;
    static const int modes[] = {EIO, ENXIO, NS_READ_ENDS, NS_READ_SHORT, EINTR};
    struct fixture f;
    fixture_open_model(&f, "k3-odd");
    struct ns_store_options o = {.tile_bytes = 16384, .ring_bytes = 150000, .resident_bytes = 300000};
    for (size_t m = 0; m < NS_COUNT(modes); m++) {
        size_t failures = 0;
        bool harmless = modes[m] == NS_READ_SHORT || modes[m] == EINTR;
        fixture_open_store(&f, &o);
        for (uint64_t nth = 1; nth <= f.n_tiles; nth += harmless ? 7 : 1) {
            struct ns_error err = {0};
            ns_fault_arm_mode(NS_FAULT_READ, nth, modes[m], false);
            enum ns_code rc = fixture_run_tiles(&f, &err);
            ns_fault_disarm();
            if (rc == NS_OK)
                continue; /* harmless, or read ahead of a wave that had fewer reads than that */
            failures++;
            assert_false(harmless);
            assert_int_equal(rc, NS_IO);
            assert_non_null(strstr(err.message, f.scratch.dir));
            assert_non_null(strstr(err.message, ".safetensors, offset "));
            assert_non_null(strstr(err.message, "length "));
            assert_non_null(strstr(err.message, modes[m] == NS_READ_ENDS ? "the file ends after 0 bytes" : "errno"));
            assert_true(strstr(err.context, "rows") && strstr(err.context, ".weight"));
            if (nth % 5 == 0)
                assert_int_equal(fixture_run_tiles(&f, NULL), NS_OK);
        }
        assert_true(harmless ? failures == 0 : failures > f.n_tiles / 2);
        fixture_close_store(&f);
    }
    fixture_close(&f);
}

static void a_changed_file_is_named(void **state)
{
    (void)state;
    static const char *const harm[] = {
        "touch -d 2001-01-01 \"$0\"",                      /* another time */
        "printf x >> \"$0\"",                              /* another size */
        "cp -p \"$0\" \"$0.new\" && mv \"$0.new\" \"$0\"", /* same bytes and time, another inode */
    };
    for (size_t h = 0; h < NS_COUNT(harm); h++) {
        struct fixture f;
        fixture_open_model(&f, "k3-odd");
        fixture_open_store(&f, NULL);
        assert_int_equal(ns_store_check_unchanged(f.store, NULL), NS_OK);
        assert_int_equal(fixture_run_tiles(&f, NULL), NS_OK);
        const char *path = scratch_path(&f.scratch, "model-00002-of-00002.safetensors");
        char command[2048];
        snprintf(command, sizeof command, "sh -c '%s' '%s'", harm[h], path);
        assert_int_equal(system(command), 0);
        struct ns_error err = {0};
        assert_int_equal(ns_store_check_unchanged(f.store, &err), NS_CORRUPT);
        assert_non_null(strstr(err.message, path));
        fixture_close(&f);
    }
}

static void a_truncated_file_is_an_error_of_storage(void **state)
{
    (void)state;
    for (int direct = 0; direct < 2; direct++) {
        struct fixture f;
        fixture_open_model(&f, "k3-odd");
        struct ns_store_options o = {.no_direct = !direct};
        fixture_open_store(&f, &o);
        const char *path = scratch_path(&f.scratch, "model-00001-of-00002.safetensors");
        assert_int_equal(truncate(path, 100001), 0);
        struct ns_error err = {0};
        struct ns_tile_view view = {0};
        ns_store_wave_begin(f.store, f.tile, f.n_tiles);
        enum ns_code rc = NS_OK;
        for (size_t i = 0; i < f.n_tiles && rc == NS_OK; i++) {
            rc = ns_store_tile_acquire(f.store, &view, &err);
            ns_store_tile_release(f.store, &view);
        }
        assert_int_equal(rc, NS_IO);
        assert_non_null(strstr(err.message, path));
        assert_non_null(strstr(err.message, "the file ends after"));
        fixture_close(&f);
    }
}

static void open_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open_model(&f, "kimi-linear-tiny");
    size_t before = ns_budget_used(&f.budget);
    enum ns_code rc = NS_BUDGET;
    for (uint64_t nth = 1; rc != NS_OK; nth++) {
        struct ns_store_options o = {.tile_bytes = 8192, .ring_bytes = 1, .expert_slots = 2, .n_readers = 1};
        struct ns_error err = {0};
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = ns_store_open(&f.config, f.shards, &o, &f.budget, &f.store, &err);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        assert_true(rc == NS_OK || err.message[0]);
        ns_store_close(f.store);
        f.store = NULL;
        assert_int_equal(ns_budget_used(&f.budget), before);
    }
    fixture_close(&f);
}

/* What is measured before opening covers what is really taken, and not much more than that. */
static void the_need_is_known_beforehand(void **state)
{
    (void)state;
    for (size_t m = 0; m < NS_COUNT(fixture_names); m++) {
        struct fixture f;
        fixture_open_model(&f, fixture_names[m]);
        struct ns_store_options o = {.tile_bytes = 1 << 20, .ring_bytes = 8 << 20, .expert_slots = 4};
        struct ns_store_need need;
        assert_int_equal(ns_store_measure(&f.config, f.shards, &o, &f.budget, &need, NULL), NS_OK);
        size_t before = ns_budget_used(&f.budget);
        struct ns_budget share;
        assert_int_equal(ns_budget_share(&share, &f.budget, "store", need.fixed_bytes, NULL), NS_OK);
        struct ns_store *s = NULL;
        struct ns_error err = {0};
        assert_int_equal(ns_store_open(&f.config, f.shards, &o, &share, &s, &err), NS_OK);
        assert_int_equal(need.expert_bytes, ns_store_expert_bytes(s));
        assert_int_equal(need.trunk_bytes, ns_store_trunk_bytes(s));
        assert_true(ns_budget_peak(&share) + ((size_t)2 << 20) >= need.fixed_bytes);
        ns_store_close(s);
        ns_budget_fini(&share);
        assert_int_equal(ns_budget_used(&f.budget), before);
        fixture_close(&f);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_teardown(name, teardown)
    const struct CMUnitTest tests[] = {
        T(tiles_match_the_file),
        T(several_views_at_once),
        T(abandoned_waves_leave_nothing),
        T(rows_arrive_where_asked),
        T(small_tensors_are_read_whole),
        T(every_read_may_fail),
        T(a_changed_file_is_named),
        T(a_truncated_file_is_an_error_of_storage),
        T(open_survives_every_failed_allocation),
        T(the_need_is_known_beforehand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
