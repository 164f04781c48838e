/* residency_test.c - the ranked set: its books, its holds, its choices. */
#include "../scratch.h"
#include "store/store_impl.h"

#define PER_LAYER 16
#define N_LAYERS  8
#define N_KEYS    (PER_LAYER * N_LAYERS)

static void assert_books(const struct ns_rank *r)
{
    uint32_t members = 0;
    for (uint32_t key = 0; key < r->n_keys; key++) {
        uint32_t at = ns_rank_place(r, key);
        if (at == NS_NO_PLACE)
            continue;
        members++;
        assert_true(at < r->n);
        assert_int_equal(r->member[at], key);
    }
    assert_int_equal(members, r->n);
    assert_true(r->n <= r->capacity);
}

/* Waves whose requests follow a fixed skewed pattern; returns a digest of every choice. */
static uint64_t drive(struct ns_rank *r, uint32_t n_waves, uint32_t held)
{
    uint64_t digest = 0, x = 99;
    for (uint32_t wave = 0; wave < n_waves; wave++) {
        ns_rank_next_wave(r);
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            ns_rank_at_layer(r, layer);
            for (uint32_t e = 0; e < PER_LAYER; e++) {
                x = x * 6364136223846793005u + 1;
                if ((x >> 33) % PER_LAYER < e)
                    continue; /* low numbers are popular */
                uint32_t key = layer * PER_LAYER + e, evicted = NS_NO_PLACE, at = ns_rank_place(r, key);
                ns_rank_note(r, key, 1 + e % 3);
                if (at == NS_NO_PLACE)
                    at = ns_rank_offer(r, key, &evicted);
                assert_true(held == NS_NO_PLACE || evicted != held);
                digest = digest * 31 + at * 7 + evicted;
            }
            assert_books(r);
        }
    }
    return digest;
}

static void books_balance(void **state)
{
    (void)state;
    struct ns_budget b;
    ns_budget_init(&b, "test", 1 << 20);
    for (uint32_t capacity = 0; capacity <= N_KEYS; capacity += 32) {
        struct ns_rank r;
        assert_int_equal(ns_rank_init(&r, N_KEYS, PER_LAYER, &b, NULL), NS_OK);
        ns_rank_set_capacity(&r, capacity);
        (void)drive(&r, 20, NS_NO_PLACE);
        assert_true(capacity == 0 || r.n > 0);
        ns_rank_fini(&r);
    }
    ns_budget_fini(&b);
}

static void held_keys_stay(void **state)
{
    (void)state;
    struct ns_budget b;
    struct ns_rank r;
    uint32_t evicted, key = 15; /* the least popular of layer 0 */
    ns_budget_init(&b, "test", 1 << 20);
    assert_int_equal(ns_rank_init(&r, N_KEYS, PER_LAYER, &b, NULL), NS_OK);
    ns_rank_set_capacity(&r, 8);
    assert_int_equal(ns_rank_offer(&r, key, &evicted), 0);
    r.held[key] = 1;
    (void)drive(&r, 200, key);
    assert_int_equal(ns_rank_place(&r, key), 0);
    r.held[key] = 0;
    (void)drive(&r, 50, NS_NO_PLACE);
    assert_int_equal(ns_rank_place(&r, key), NS_NO_PLACE); /* and without the hold it goes */
    ns_rank_fini(&r);
    ns_budget_fini(&b);
}

static void choices_repeat(void **state)
{
    (void)state;
    struct ns_budget b;
    ns_budget_init(&b, "test", 1 << 20);
    uint64_t digest[2];
    for (int i = 0; i < 2; i++) {
        struct ns_rank r;
        assert_int_equal(ns_rank_init(&r, N_KEYS, PER_LAYER, &b, NULL), NS_OK);
        ns_rank_set_capacity(&r, 24);
        digest[i] = drive(&r, 2000, NS_NO_PLACE); /* long enough for the units to be rescaled */
        ns_rank_fini(&r);
    }
    assert_int_equal(digest[0], digest[1]);
    ns_budget_fini(&b);
}

/* After enough waves the popular third is in, and stays in. */
static void the_popular_stay(void **state)
{
    (void)state;
    struct ns_budget b;
    struct ns_rank r;
    ns_budget_init(&b, "test", 1 << 20);
    assert_int_equal(ns_rank_init(&r, N_KEYS, PER_LAYER, &b, NULL), NS_OK);
    ns_rank_set_capacity(&r, 4 * N_LAYERS);
    (void)drive(&r, 300, NS_NO_PLACE);
    uint32_t popular = 0;
    for (uint32_t i = 0; i < r.n; i++)
        popular += r.member[i] % PER_LAYER < 6;
    assert_true(popular >= 24); /* of 32 places */
    ns_rank_fini(&r);
    ns_budget_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(books_balance),
        cmocka_unit_test(held_keys_stay),
        cmocka_unit_test(choices_repeat),
        cmocka_unit_test(the_popular_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
