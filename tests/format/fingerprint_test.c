/* fingerprint_test.c - which model is this? The same after a copy, another after any change that matters. */
#include "checkpoint.h"

#include "json/json.h"

static struct ns_budget budget;

static int setup(void **state)
{
    (void)state;
    ns_json_init();
    ns_budget_init(&budget, "test", 64u << 20);
    return 0;
}

static int no_leak(void **state)
{
    (void)state;
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

struct prints {
    char model[NS_SHA256_HEX], tokenizer[NS_SHA256_HEX];
};

static struct prints prints_of(const char *dir)
{
    struct prints p;
    struct ns_shards *s = NULL;
    struct ns_error err = {0};
    if (ns_shards_open(dir, &budget, &s, &err) != NS_OK ||
        ns_fingerprint(dir, s, &budget, p.model, p.tokenizer, &err) != NS_OK)
        fail_msg("%s: %s", err.context, err.message);
    ns_shards_close(s);
    assert_int_equal(strlen(p.model), 64);
    assert_int_equal(strlen(p.tokenizer), 64);
    return p;
}

#define FIXTURE NS_TEST_DATA "/fixtures/k3-odd"
static const char *const files[] = {"config.json",
                                    "tiktoken.model",
                                    "tokenizer_config.json",
                                    "model.safetensors.index.json",
                                    "model-00001-of-00002.safetensors",
                                    "model-00002-of-00002.safetensors"};

static void flip(struct scratch *s, const char *name, long at)
{
    FILE *f = fopen(scratch_path(s, name), "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    int c = fgetc(f);
    assert_true(c != EOF);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    assert_int_equal(fputc(c ^ 1, f), c ^ 1);
    assert_int_equal(fclose(f), 0);
}

static void a_copy_is_the_same_model(void **state)
{
    (void)state;
    struct scratch s;
    struct prints a = prints_of(FIXTURE);
    scratch_open(&s);
    for (size_t i = 0; i < NS_COUNT(files); i++)
        copy_into(&s, FIXTURE, files[i]);
    struct prints b = prints_of(s.dir);
    assert_string_equal(a.model, b.model);
    assert_string_equal(a.tokenizer, b.tokenizer);
    assert_string_not_equal(a.model, a.tokenizer);
    scratch_close(&s);
}

/* Below 1 GB any byte counts. The index does not: it says nothing that the headers do not. */
static void any_change_is_another_model(void **state)
{
    (void)state;
    struct scratch s;
    struct prints a = prints_of(FIXTURE);
    scratch_open(&s);
    for (size_t i = 0; i < NS_COUNT(files); i++)
        copy_into(&s, FIXTURE, files[i]);

    static const struct {
        const char *name;
        long at;
        bool model, tokenizer; /* does it change? */
    } change[] = {
        {"config.json", -2, true, false},
        {"tiktoken.model", 0, true, true},
        {"tokenizer_config.json", 2, true, true},
        {"model-00002-of-00002.safetensors", -1, true, false},
        {"model-00001-of-00002.safetensors", 700000, true, false},
    };

    for (size_t i = 0; i < NS_COUNT(change); i++) {
        flip(&s, change[i].name, change[i].at);
        struct prints b = prints_of(s.dir);
        assert_int_equal(strcmp(a.model, b.model) != 0, change[i].model);
        assert_int_equal(strcmp(a.tokenizer, b.tokenizer) != 0, change[i].tokenizer);
        flip(&s, change[i].name, change[i].at);
        b = prints_of(s.dir);
        assert_string_equal(a.model, b.model);
    }
    scratch_close(&s);
}

/* Above 1 GB (a hole, so it costs nothing): header, size and 16 places of 64 KiB count. */
static void a_large_model_is_sampled(void **state)
{
    (void)state;
    struct scratch s;
    struct made m = {0};
    const long data = 1200000000;
    made_add(&m, "a", "U8", 1, 1, (uint64_t)data, 0, 0);
    scratch_open(&s);
    scratch_write(&s, "config.json", "{}", 2);
    made_write(&m, 0, 1, scratch_path(&s, "model.safetensors"));
    struct prints a = prints_of(s.dir);
    long start = 8 + (long)strlen("{\"a\":{\"dtype\":\"U8\",\"shape\":[1200000000],\"data_offsets\":[0,1200000000]}}");
    static const long inside[] = {0, 65535};
    for (size_t i = 0; i < NS_COUNT(inside); i++)
        for (long place = 0; place < 16; place += 5) {
            long at = start + place * (data - 65536) / 15 + inside[i];
            flip(&s, "model.safetensors", at);
            assert_string_not_equal(prints_of(s.dir).model, a.model);
            flip(&s, "model.safetensors", at);
        }
    flip(&s, "model.safetensors", start + 65600); /* between two places */
    assert_string_equal(prints_of(s.dir).model, a.model);
    flip(&s, "model.safetensors", -1); /* the last byte is in the last place */
    assert_string_not_equal(prints_of(s.dir).model, a.model);
    made_free(&m);
    scratch_close(&s);
}

static void a_file_that_changed_size_is_refused(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_shards *shards = NULL;
    struct ns_error err = {0};
    struct prints p;
    scratch_open(&s);
    for (size_t i = 0; i < NS_COUNT(files); i++)
        copy_into(&s, FIXTURE, files[i]);
    assert_int_equal(ns_shards_open(s.dir, &budget, &shards, NULL), NS_OK);
    assert_int_equal(truncate(scratch_path(&s, files[5]), 5000), 0);
    assert_int_equal(ns_fingerprint(s.dir, shards, &budget, p.model, p.tokenizer, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "has 5000 bytes now, it had"));
    ns_shards_close(shards);
    scratch_close(&s);
}

static void fingerprints_are_stable(void **state)
{
    (void)state;
    /* a stored result names its model by this: a change of the recipe must be a decision */
    struct prints p = prints_of(FIXTURE);
    assert_string_equal(p.tokenizer, "7a6e52044e7faaa945ffa4c3f5e0a697550d7b05fab4e819232244c20ac39c60");
    assert_string_equal(p.model, "44941703d52d16cff15c749623c0e16d051ac78c67ad7b92065511fa72d9ced0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_copy_is_the_same_model, no_leak),
        cmocka_unit_test_teardown(any_change_is_another_model, no_leak),
        cmocka_unit_test_teardown(a_large_model_is_sampled, no_leak),
        cmocka_unit_test_teardown(a_file_that_changed_size_is_refused, no_leak),
        cmocka_unit_test_teardown(fingerprints_are_stable, no_leak),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
