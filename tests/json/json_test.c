/* json_test.c - the strict reader and the exact writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/json.h"

static struct ns_budget budget;

static int setup(void **state)
{
    (void)state;
    ns_json_init();
    ns_budget_init(&budget, "test", 64u << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

static struct ns_json *parse(const char *text)
{
    struct ns_json *doc = NULL;
    struct ns_error err = {0};
    if (ns_json_parse(text, strlen(text), &doc, &err) != NS_OK)
        fail_msg("%s: %s", text, err.message);
    return doc;
}

static void reads_every_type(void **state)
{
    (void)state;
    struct ns_json *doc =
        parse("{\"z\": [1, -2.5, true, null, \"\\u00e9\\ud83d\\ude00\"], \"a\": 4.0, \"big\": 9223372036854775807}");
    assert_int_equal(ns_json_type(doc), NS_JSON_OBJECT);
    assert_int_equal(ns_json_count(doc), 3);
    const struct ns_json *z = ns_json_find(doc, "z");
    assert_int_equal(ns_json_count(z), 5);
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    size_t n = 0;
    assert_true(ns_json_int(ns_json_item(z, 0), &i) && i == 1);
    assert_false(ns_json_int(ns_json_item(z, 1), &i));
    assert_true(ns_json_number(ns_json_item(z, 1), &d) && d == -2.5);
    assert_true(ns_json_bool(ns_json_item(z, 2), &b) && b);
    assert_false(ns_json_bool(ns_json_item(z, 0), &b));
    assert_true(ns_json_is_null(ns_json_item(z, 3)));
    assert_true(ns_json_string(ns_json_item(z, 4), &s, &n));
    assert_int_equal(n, 6);
    assert_memory_equal(s, "\xC3\xA9\xF0\x9F\x98\x80", 6);
    assert_null(ns_json_item(z, 5));
    assert_true(ns_json_int(ns_json_find(doc, "a"), &i) && i == 4);
    assert_true(ns_json_int(ns_json_find(doc, "big"), &i) && i == INT64_MAX);
    assert_null(ns_json_find(doc, "none"));
    assert_null(ns_json_find(z, "a"));
    assert_string_equal(ns_json_type_name(ns_json_type(z)), "array");
    /* members come in file order */
    void *it = ns_json_first(doc);
    assert_string_equal(ns_json_key(it), "z");
    it = ns_json_next(doc, it);
    assert_string_equal(ns_json_key(it), "a");
    ns_json_free(doc);
}

/* The "no limit" of published tokenizer files. */
static void an_integer_without_end_is_a_real(void **state)
{
    (void)state;
    struct ns_json *doc = parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 7}");
    double d = 0;
    int64_t i = 0;
    assert_true(ns_json_number(ns_json_find(doc, "model_max_length"), &d) && d > 9.99e29 && d < 1.01e30);
    assert_false(ns_json_int(ns_json_find(doc, "model_max_length"), &i));
    assert_true(ns_json_int(ns_json_find(doc, "n"), &i) && i == 7);
    ns_json_free(doc);
}

static void refuses_what_is_not_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",                   /* nothing */
        "{\"a\":1,\"a\":2}",  /* the same key twice */
        "{\"a\":1} x",        /* something after the end */
        "[1,]",               /* trailing comma */
        "{'a':1}",            /* quotes */
        "\"\xC0\xAF\"",       /* overlong (C19) */
        "\"\xE2\x82\"",       /* cut character (C19) */
        "\"\\ud800\"",        /* lone surrogate (C19) */
        "\"\\udc00\\ud800\"", /* surrogates the wrong way round */
        "\"\\u0000\"",        /* NUL */
        "\"\x01\"",           /* raw control */
        "[NaN]",              /* not JSON */
        "[01]",               /* leading zero */
        "{\"p3\",\"body\":",  /* cut (C04) */
        "[1e400]",            /* beyond a double */
    };
    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        struct ns_json *doc = NULL;
        struct ns_error err = {0};
        if (ns_json_parse(bad[i], strlen(bad[i]), &doc, &err) != NS_INPUT)
            fail_msg("case %zu was accepted: %s", i, bad[i]);
        assert_null(doc);
        assert_non_null(strstr(err.message, "byte "));
        assert_true(ns_utf8_valid(err.message, strlen(err.message)));
    }
}

static void refuses_raw_nul_bytes(void **state)
{
    (void)state;

    static const struct {
        const char *text;
        size_t n;
    } bad[] = {{"2\0", 2}, {"\0", 1}, {"[1,\0 2]", 7}, {"\"a\0b\"", 5}, {"{\"a\":1}\0", 8}};

    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        struct ns_json *doc = NULL;
        struct ns_error err = {0};
        assert_int_equal(ns_json_parse(bad[i].text, bad[i].n, &doc, &err), NS_INPUT);
        assert_non_null(strstr(err.message, "NUL byte"));
    }
}

/* In our words, with the place of the escape; a backslash that is escaped itself begins none. */
static void names_the_place_of_an_escaped_nul(void **state)
{
    (void)state;

    static const struct {
        const char *text, *place;
    } bad[] = {{"\"\\u0000\"", "byte 2: "},
               {"{\"a\":\"\\\\u0000\",\"b\":\"x\\u0000y\"}", "byte 22: "},
               {"{\"a\\u0000\":1}", "byte 4: "},
               {"[\"\\\"\\\\\",\"\\\\\\u0000\"]", "byte 12: "}};

    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        struct ns_json *doc = NULL;
        struct ns_error err = {0};
        char want[80];
        snprintf(want, sizeof want, "%s\\u0000 in a string: text cannot hold a NUL character", bad[i].place);
        assert_int_equal(ns_json_parse(bad[i].text, strlen(bad[i].text), &doc, &err), NS_INPUT);
        assert_string_equal(err.message, want);
    }
    struct ns_json *doc = NULL;
    assert_int_equal(ns_json_parse("\"\\\\u0000\"", 9, &doc, NULL), NS_OK);
    ns_json_free(doc);
}

static void refuses_deep_nesting(void **state)
{
    (void)state;
    size_t n = 1000000;
    char *text = malloc(2 * n);
    assert_non_null(text);
    memset(text, '[', 2 * n);
    memset(text + n, ']', n);
    struct ns_json *doc = NULL;
    struct ns_error err = {0};
    assert_int_equal(ns_json_parse(text, 2 * n, &doc, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "byte 49: JSON nests deeper than 48"));
    size_t edge = NS_JSON_MAX_DEPTH;
    assert_int_equal(ns_json_parse(text + n - edge, 2 * edge, &doc, NULL), NS_OK);
    ns_json_free(doc);
    free(text);
    doc = parse("\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[\""); /* not nesting */
    ns_json_free(doc);
}

static void parse_survives_every_failed_allocation(void **state)
{
    (void)state;
    static const char text[] =
        "{\"custom_id\": \"a long enough name\", \"list\": [1, 2.5, {\"k\": \"v\"}, [], \"\\u20ac\"]}";
    struct ns_json *whole = parse(text);
    enum ns_code rc = NS_BUDGET;
    uint64_t nth = 1;
    for (; rc != NS_OK; nth++) {
        struct ns_json *doc = NULL;
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = ns_json_parse(text, sizeof text - 1, &doc, NULL);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        assert_true(rc != NS_OK || ns_json_equal(doc, whole));
        ns_json_free(doc);
    }
    assert_true(nth > 10); /* it did fail before it worked */
    ns_json_free(whole);
}

static void expect_float(float v, const char *expected)
{
    struct ns_text text;
    struct ns_json_writer w;
    ns_text_init(&text, &budget);
    ns_json_begin(&w, &text);
    ns_json_put_float(&w, v);
    assert_string_equal(text.data, expected);
    ns_text_fini(&text);
}

static void expect_double(double v, const char *expected)
{
    struct ns_text text;
    struct ns_json_writer w;
    ns_text_init(&text, &budget);
    ns_json_begin(&w, &text);
    ns_json_put_double(&w, v);
    assert_string_equal(text.data, expected);
    ns_text_fini(&text);
}

static void numbers_are_the_shortest_that_read_back(void **state)
{
    (void)state;
    expect_float(0.1f, "0.1");
    expect_float(-9.1f, "-9.1");
    expect_float(1.0f, "1.0");
    expect_float(-0.0f, "-0.0");
    expect_float(16777216.0f, "16777216.0");
    expect_float(1.0f / 3.0f, "0.33333334");
    expect_float(1e-45f, "1e-45");
    expect_float(3.4028235e38f, "3.4028235e+38");
    expect_float(INFINITY, "null");
    expect_float(-INFINITY, "null");
    expect_float(NAN, "null");
    expect_double(1e-5, "1e-05");
    expect_double(0.0001, "0.0001");
    expect_double(1.5e-7, "1.5e-07");
    expect_double(1e15, "1000000000000000.0");
    expect_double(1e16, "1e+16");
    expect_double(123456789.125, "123456789.125");
    expect_double(0.1 + 0.2, "0.30000000000000004");
    expect_double(5e-324, "5e-324");
    expect_double(NAN, "null");
    /* many bit patterns: read back, the same float */
    uint32_t bits = 12345;
    for (int i = 0; i < 20000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float v;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v))
            continue;
        struct ns_text text;
        struct ns_json_writer w;
        ns_text_init(&text, &budget);
        ns_json_begin(&w, &text);
        ns_json_put_float(&w, v);
        float back = strtof(text.data, NULL);
        assert_memory_equal(&back, &v, sizeof v);
        ns_text_fini(&text);
    }
}

static void writer_keeps_commas_and_nesting(void **state)
{
    (void)state;
    struct ns_text text;
    struct ns_json_writer w;
    ns_text_init(&text, &budget);
    ns_json_begin(&w, &text);
    ns_json_open_object(&w);
    ns_json_put_key(&w, "a");
    ns_json_open_array(&w);
    ns_json_put_int(&w, -1);
    ns_json_open_object(&w);
    ns_json_close_object(&w);
    ns_json_put_bool(&w, true);
    ns_json_put_null(&w);
    ns_json_put_cstring(&w, NULL);
    ns_json_close_array(&w);
    ns_json_put_key(&w, "b\"");
    ns_json_put_raw(&w, "[0]", 3);
    ns_json_put_key(&w, "c");
    ns_json_put_string(&w, "x", 1);
    ns_json_close_object(&w);
    assert_string_equal(text.data, "{\"a\":[-1,{},true,null,null],\"b\\\"\":[0],\"c\":\"x\"}");
    ns_text_fini(&text);
}

static void c98_any_text_can_be_written_and_read_back(void **state)
{
    (void)state;
    char all[256];
    size_t n = 0;
    for (char c = 1; c < 0x20; c++)
        all[n++] = c;
    static const char tail[] = "\x7F\"\\/\xE2\x80\xA8\xEF\xBF\xBF\xF0\x9F\x98\x80\xEF\xBF\xBD";
    memcpy(all + n, tail, sizeof tail - 1);
    n += sizeof tail - 1;
    struct ns_text text;
    struct ns_json_writer w;
    ns_text_init(&text, &budget);
    ns_json_begin(&w, &text);
    ns_json_put_string(&w, all, n);
    assert_non_null(strstr(text.data, "\\u0001\\u0002"));
    assert_non_null(strstr(text.data, "\\b\\t\\n\\u000b\\f\\r\\u000e"));
    struct ns_json *doc = parse(text.data);
    const char *s = NULL;
    size_t back = 0;
    assert_true(ns_json_string(doc, &s, &back));
    assert_int_equal(back, n);
    assert_memory_equal(s, all, n);
    ns_json_free(doc);
    ns_text_fini(&text);
}

static void values_are_written_as_is_sorted_or_spaced(void **state)
{
    (void)state;
    struct ns_json *doc =
        parse("{ \"b\" : [1, 2.50, {\"y\":null,\"x\":\"\\u00e9\"}], \"a\":true, \"B\":{}, \"\xC3\xA9\":1e2 }");
    struct ns_text text;
    struct ns_json_writer w;
    ns_text_init(&text, &budget);
    ns_json_begin(&w, &text);
    ns_json_open_array(&w);
    ns_json_put_value(&w, doc);
    ns_json_put_sorted(&w, doc);
    ns_json_put_spaced(&w, doc);
    ns_json_close_array(&w);
    assert_string_equal(
        text.data,
        "[{\"b\":[1,2.5,{\"y\":null,\"x\":\"\xC3\xA9\"}],\"a\":true,\"B\":{},\"\xC3\xA9\":100.0},"
        "{\"B\":{},\"a\":true,\"b\":[1,2.5,{\"x\":\"\xC3\xA9\",\"y\":null}],\"\xC3\xA9\":100.0},"
        "{\"b\": [1, 2.5, {\"y\": null, \"x\": \"\xC3\xA9\"}], \"a\": true, \"B\": {}, \"\xC3\xA9\": 100.0}]");
    ns_text_fini(&text);
    ns_json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(an_integer_without_end_is_a_real),
        cmocka_unit_test(refuses_what_is_not_strict),
        cmocka_unit_test(refuses_raw_nul_bytes),
        cmocka_unit_test(names_the_place_of_an_escaped_nul),
        cmocka_unit_test(refuses_deep_nesting),
        cmocka_unit_test(parse_survives_every_failed_allocation),
        cmocka_unit_test(numbers_are_the_shortest_that_read_back),
        cmocka_unit_test(writer_keeps_commas_and_nesting),
        cmocka_unit_test(c98_any_text_can_be_written_and_read_back),
        cmocka_unit_test(values_are_written_as_is_sorted_or_spaced),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
