/* error_test.c - the first error wins, context is prepended, nothing is ever written past the end. */
#include "../scratch.h"
#include "base/base.h"

static void the_first_error_wins(void **state)
{
    (void)state;
    struct ns_error err = {0};
    assert_int_equal(ns_error_set(&err, NS_IO, "first %d", 1), NS_IO);
    assert_int_equal(ns_error_set(&err, NS_INPUT, "second"), NS_INPUT); /* returned, not recorded */
    assert_int_equal(err.code, NS_IO);
    assert_string_equal(err.message, "first 1");
    assert_int_equal(ns_error_set(NULL, NS_FULL, "nobody listens"), NS_FULL);
    ns_error_clear(&err);
    assert_int_equal(err.code, NS_OK);
    assert_int_equal(ns_error_set(&err, NS_INPUT, "third"), NS_INPUT);
    assert_string_equal(err.message, "third");
    ns_error_clear(NULL);
}

static void context_is_prepended(void **state)
{
    (void)state;
    struct ns_error err = {0};
    (void)ns_error_set(&err, NS_CORRUPT, "checksum mismatch");
    assert_int_equal(ns_error_wrap(&err, NS_CORRUPT, "expert %d", 212), NS_CORRUPT);
    (void)ns_error_wrap(&err, NS_CORRUPT, "layer %d", 7);
    (void)ns_error_wrap(&err, NS_CORRUPT, "request 7f3a");
    assert_string_equal(err.context, "request 7f3a: layer 7: expert 212");
    char text[128];
    ns_error_text(&err, text, sizeof text);
    assert_string_equal(text, "request 7f3a: layer 7: expert 212: checksum mismatch (corrupt)");
    memset(text, 'x', sizeof text);
    ns_error_text(&err, text, 10);
    assert_string_equal(text, "request 7");
    assert_int_equal(text[10], 'x');
    ns_error_text(&err, text, 0);
    assert_int_equal(ns_error_wrap(NULL, NS_IO, "x"), NS_IO);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    struct ns_error err = {0};
    static char longer[6000];
    memset(longer, 'm', sizeof longer - 1);
    (void)ns_error_set(&err, NS_INPUT, "%s", longer);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    for (int i = 0; i < 100; i++)
        (void)ns_error_wrap(&err, NS_INPUT, "level %d", i);
    assert_true(strlen(err.context) < sizeof err.context);
    assert_non_null(strstr(err.context, "level 99")); /* the outermost is kept */
    (void)ns_error_wrap(&err, NS_INPUT, "%s", longer);
    assert_int_equal(strlen(err.context), sizeof err.context - 1);
}

/* What others depend on: names in the database, statuses in scripts. */
static void the_catalogue(void **state)
{
    (void)state;

    static const struct {
        enum ns_code code;
        const char *name;
        int exit_status;
        enum ns_retry retry;
    } want[] = {
        {NS_OK, "ok", 0, NS_NEVER},
        {NS_USAGE, "usage", 64, NS_NEVER},
        {NS_INPUT, "input", 65, NS_NEVER},
        {NS_CORRUPT, "corrupt", 65, NS_NEVER},
        {NS_NOINPUT, "no_input", 66, NS_NEVER},
        {NS_IO, "io", 74, NS_LATER},
        {NS_BUDGET, "budget", 75, NS_LATER},
        {NS_FULL, "disk_full", 75, NS_LATER},
        {NS_CONFIG, "config", 78, NS_NEVER},
        {NS_STOPPED, "stopped", 0, NS_LATER},
    };

    for (size_t i = 0; i < NS_COUNT(want); i++) {
        assert_string_equal(ns_code_name(want[i].code), want[i].name);
        assert_int_equal(ns_code_exit(want[i].code), want[i].exit_status);
        assert_int_equal(ns_code_retry(want[i].code), want[i].retry);
    }
    for (unsigned a = 0; a < NS_CODE_COUNT; a++) {
        assert_true(strlen(ns_code_people((enum ns_code)a)) > 3);
        for (unsigned b = 0; b < a; b++)
            assert_string_not_equal(ns_code_name((enum ns_code)a), ns_code_name((enum ns_code)b));
    }
    assert_string_equal(ns_code_name((enum ns_code)12345), "internal"); /* not a crash */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_error_wins),
        cmocka_unit_test(context_is_prepended),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(the_catalogue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
