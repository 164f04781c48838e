/* json_scan_test.c - walking JSON without a tree: what it reads, and that it is as strict as the tree reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "json/json.h"

static struct ns_budget budget;

static int setup(void **state)
{
    (void)state;
    ns_json_init();
    ns_budget_init(&budget, "test", 1u << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

static void walks_a_header(void **state)
{
    (void)state;
    static const char text[] =
        " {\"a\\u00e9\" : [1, 18446744073709551615], \"skip\":{\"x\":[-1.5e3,true,{}],\"y\":\"\\\"\"},"
        "\"s\":\"v\", \"none\":[]}  ";
    struct ns_json_scan s;
    const char *key = NULL, *v = NULL;
    size_t n = 0;
    uint64_t u = 0;
    bool more = false;
    ns_json_scan_init(&s, text, sizeof text - 1, &budget);
    assert_int_equal(ns_json_scan_open(&s, '{', NULL), NS_OK);
    assert_int_equal(ns_json_scan_key(&s, &key, &n, NULL), NS_OK);
    assert_string_equal(key, "a\xC3\xA9");
    assert_int_equal(n, 3);
    assert_int_equal(ns_json_scan_open(&s, '[', NULL), NS_OK);
    assert_true(ns_json_scan_element(&s, &more, NULL) == NS_OK && more);
    assert_true(ns_json_scan_u64(&s, &u, NULL) == NS_OK && u == 1);
    assert_true(ns_json_scan_element(&s, &more, NULL) == NS_OK && more);
    assert_true(ns_json_scan_u64(&s, &u, NULL) == NS_OK && u == UINT64_MAX);
    assert_true(ns_json_scan_element(&s, &more, NULL) == NS_OK && !more);
    assert_int_equal(ns_json_scan_key(&s, &key, &n, NULL), NS_OK);
    assert_string_equal(key, "skip");
    assert_int_equal(ns_json_scan_skip(&s, NULL), NS_OK);
    assert_int_equal(ns_json_scan_key(&s, &key, &n, NULL), NS_OK);
    assert_string_equal(key, "s");
    assert_int_equal(ns_json_scan_string(&s, &v, &n, NULL), NS_OK);
    assert_string_equal(v, "v");
    assert_int_equal(ns_json_scan_key(&s, &key, &n, NULL), NS_OK);
    assert_int_equal(ns_json_scan_skip(&s, NULL), NS_OK);
    assert_int_equal(ns_json_scan_key(&s, &key, &n, NULL), NS_OK);
    assert_null(key);
    assert_int_equal(ns_json_scan_end(&s, NULL), NS_OK);
    ns_json_scan_fini(&s);
}

static void is_as_strict_as_the_tree_reader(void **state)
{
    (void)state;
    static const char *const text[] = {
        "null",
        "true",
        "fals",
        "0",
        "-0",
        "01",
        "-",
        "1.",
        "1.5",
        "1e",
        "1e+5",
        "1E-2",
        ".5",
        "+1",
        "\"\"",
        "\"",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u00e9\"",
        "\"\\ud800\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83dx\"",
        "\"\\udc00\"",
        "\"\\u0000\"",
        "\"\x01\"",
        "\"\xC0\xAF\"",
        "\"\xE2\x82\"",
        "\"\xE2\x82\xAC\"",
        "[]",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[[],[]]",
        "[[] []]",
        "{}",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1",
        "{\"a\":1,}",
        "{,}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":{},\"b\":[]}",
        "{1:2}",
        "1 2",
        "{} {}",
        "",
        "  ",
        " [ ] ",
        "\xEF\xBB\xBF[]",
    };
    size_t accepted = 0;
    for (size_t i = 0; i < NS_COUNT(text); i++) {
        struct ns_json_scan s;
        struct ns_json *doc = NULL;
        struct ns_error err = {0};
        enum ns_code tree = ns_json_parse(text[i], strlen(text[i]), &doc, NULL);
        ns_json_free(doc);
        ns_json_scan_init(&s, text[i], strlen(text[i]), &budget);
        enum ns_code walk = ns_json_scan_skip(&s, &err);
        if (walk == NS_OK)
            walk = ns_json_scan_end(&s, &err);
        ns_json_scan_fini(&s);
        if (walk != tree)
            fail_msg("'%s': tree %s, walk %s (%s)", text[i], ns_code_name(tree), ns_code_name(walk), err.message);
        accepted += walk == NS_OK;
        if (walk != NS_OK)
            assert_non_null(strstr(err.message, "byte "));
    }
    assert_int_equal(accepted, 16);
}

static void refuses_counts_that_are_none(void **state)
{
    (void)state;
    static const char *const bad[] = {"-1", "1.0", "1e3", "18446744073709551616", "007", "\"1\"", ""};
    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        struct ns_json_scan s;
        uint64_t u = 77;
        ns_json_scan_init(&s, bad[i], strlen(bad[i]), &budget);
        assert_int_equal(ns_json_scan_u64(&s, &u, NULL), NS_INPUT);
        assert_int_equal(u, 77);
        ns_json_scan_fini(&s);
    }
}

static void refuses_deep_nesting(void **state)
{
    (void)state;
    char text[200];
    memset(text, '[', 100);
    memset(text + 100, ']', 100);
    struct ns_json_scan s;
    struct ns_error err = {0};
    ns_json_scan_init(&s, text, sizeof text, &budget);
    assert_int_equal(ns_json_scan_skip(&s, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "deeper than 48"));
    ns_json_scan_fini(&s);
    ns_json_scan_init(&s, text + 52, 96, &budget);
    assert_int_equal(ns_json_scan_skip(&s, NULL), NS_OK);
    assert_int_equal(ns_json_scan_end(&s, NULL), NS_OK);
    ns_json_scan_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks_a_header),
        cmocka_unit_test(is_as_strict_as_the_tree_reader),
        cmocka_unit_test(refuses_counts_that_are_none),
        cmocka_unit_test(refuses_deep_nesting),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
