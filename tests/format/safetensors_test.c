/* safetensors_test.c - one header: what is handed out, and what a hostile one cannot do. */
#include "checkpoint.h"

static struct ns_budget budget;

static int setup(void **state)
{
    (void)state;
    ns_budget_init(&budget, "test", 8u << 20);
    return 0;
}

static int no_leak(void **state)
{
    (void)state;
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

#define DATA_START 1000
#define FILE_BYTES 2000 /* so there are 1,000 bytes of data */

struct got {
    struct ns_tensor t[8];
    char name[8][64];
    size_t n;
};

static enum ns_code take(void *arg, const struct ns_tensor *t, struct ns_error *err)
{
    struct got *g = arg;
    (void)err;
    assert_true(g->n < 8);
    assert_true(t->offset >= DATA_START && t->offset + t->bytes <= FILE_BYTES);
    g->t[g->n] = *t;
    snprintf(g->name[g->n], sizeof g->name[0], "%s", t->name);
    g->n++;
    return NS_OK;
}

static enum ns_code parse(const char *header, struct got *got, struct ns_error *err)
{
    memset(got, 0, sizeof *got);
    memset(err, 0, sizeof *err);
    return ns_safetensors_parse(header, strlen(header), DATA_START, FILE_BYTES, &budget, take, got, err);
}

static void hands_out_every_tensor(void **state)
{
    (void)state;
    struct got got;
    struct ns_error err;
    assert_int_equal(parse("{\"__metadata__\":{\"format\":\"pt\",\"x\":\"{\\\"\"},"
                           "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                           "\"b\":{\"data_offsets\":[12,16],\"shape\":[],\"dtype\":\"F32\",\"extra\":[1]},"
                           "\"none\":{\"dtype\":\"U8\",\"shape\":[5,0],\"data_offsets\":[16,16]}}   ",
                           &got, &err),
                     NS_OK);
    assert_int_equal(got.n, 3);
    assert_string_equal(got.name[0], "a");
    assert_int_equal(got.t[0].dtype, NS_DTYPE_BF16);
    assert_int_equal(got.t[0].rank, 2);
    assert_int_equal(got.t[0].dim[0], 2);
    assert_int_equal(got.t[0].dim[1], 3);
    assert_int_equal(got.t[0].offset, DATA_START);
    assert_int_equal(got.t[0].bytes, 12);
    assert_int_equal(got.t[1].dtype, NS_DTYPE_F32);
    assert_int_equal(got.t[1].rank, 0);
    assert_int_equal(got.t[1].offset, DATA_START + 12);
    assert_int_equal(got.t[2].bytes, 0);
    assert_int_equal(parse("{}", &got, &err), NS_OK);
    assert_int_equal(got.n, 0);
}

static void types_have_their_sizes(void **state)
{
    (void)state;

    static const struct {
        const char *name;
        size_t bytes;
    } type[] = {{"U8", 1}, {"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F64", 8},
                {"I8", 1}, {"I16", 2},  {"I32", 4}, {"I64", 8}, {"BOOL", 1}};

    for (size_t i = 0; i < NS_COUNT(type); i++) {
        char header[128];
        struct got got;
        struct ns_error err;
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%zu]}}",
                 type[i].name, 3 * type[i].bytes);
        assert_int_equal(parse(header, &got, &err), NS_OK);
        assert_string_equal(ns_dtype_name(got.t[0].dtype), type[i].name);
        assert_int_equal(ns_dtype_bytes(got.t[0].dtype), type[i].bytes);
    }
    assert_int_equal(ns_dtype_bytes(NS_DTYPE_OTHER), 0);
}

static void refused(const char *header, const char *context, const char *word)
{
    struct got got;
    struct ns_error err;
    enum ns_code rc = parse(header, &got, &err);
    if (rc != NS_INPUT || !strstr(err.message, word) || !strstr(err.context, context))
        fail_msg("%s: %s: %s: %s; '%s' expected", header, ns_code_name(rc), err.context, err.message, word);
}

static void hostile_entries_are_refused(void **state)
{
    (void)state;
#define ENTRY(dtype, shape, offsets)                                                                                   \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    refused(ENTRY("F32", "[4]", "[0,15]"), "tensor a", "its shape needs 16 bytes, its range has 15");
    refused(ENTRY("F32", "[4]", "[16,0]"), "tensor a", "begins at 16 and ends at 0");
    refused(ENTRY("F32", "[4]", "[-16,0]"), "", "a count was expected");
    refused(ENTRY("F32", "[4]", "[0,16,32]"), "", "3 numbers");
    refused(ENTRY("F32", "[4]", "[0]"), "", "1 numbers");
    refused(ENTRY("F32", "[4.0]", "[0,16]"), "", "whole number");
    refused(ENTRY("F32", "4", "[0,16]"), "", "array");
    refused(ENTRY("F32", "[4294967296,4294967296]", "[0,16]"), "tensor a", "dimension 1 (4294967296) overflows");
    refused(ENTRY("U8", "[18446744073709551615,2]", "[0,16]"), "tensor a", "overflows");
    refused(ENTRY("U8", "[18446744073709551616]", "[0,16]"), "", "64 bits");
    refused(ENTRY("U8", "[0]", "[18446744073709551615,18446744073709551615]"), "tensor a", "overflows");
    refused(ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "tensor a", "more than 8 dimensions");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", "tensor a", "dtype is missing");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", "tensor a", "shape is missing");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", "tensor a", "data_offsets is missing");
    refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "tensor a",
            "dtype stands");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", "", "__metadata__ stands twice");
    refused("{\"a\":7}", "", "object");
    refused("[]", "", "object");
    refused("{} x", "", "the end");
    refused("{\"a\":", "", "ends where");
    refused("", "", "ends where");
}

static void a_short_file_is_told_once_with_its_size(void **state)
{
    (void)state;
    struct got got;
    struct ns_error err;
    assert_int_equal(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[900],\"data_offsets\":[0,900]},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[101],\"data_offsets\":[900,1001]},"
                           "\"c\":{\"dtype\":\"U8\",\"shape\":[500],\"data_offsets\":[1001,1501]}}",
                           &got, &err),
                     NS_INPUT);
    assert_non_null(strstr(err.message, "the file has 2000 bytes, its header calls for 2501 (tensor c ends there)"));
    assert_int_equal(got.n, 1);
}

/* C31: the range comes first, whatever the type. */
static void c31_unknown_type_is_range_checked(void **state)
{
    (void)state;
    struct got got;
    struct ns_error err;
    refused(ENTRY("F4_X", "[4]", "[5000,5002]"), "", "its header calls for 6002");
    refused(ENTRY("F4_X", "[4]", "[9,2]"), "tensor a", "begins at 9");
    refused(ENTRY("F4_X", "[4]", "[18446744073709551610,18446744073709551615]"), "tensor a", "overflows");
    assert_int_equal(parse(ENTRY("F4_X", "[4]", "[998,1000]"), &got, &err), NS_OK);
    assert_int_equal(got.t[0].dtype, NS_DTYPE_OTHER);
    assert_string_equal(got.t[0].other, "F4_X");
    assert_int_equal(parse(ENTRY("\\u00e9 very long type", "[4]", "[0,2]"), &got, &err), NS_OK);
    assert_string_equal(got.t[0].other, "???very");
}

static enum ns_code stop(void *arg, const struct ns_tensor *t, struct ns_error *err)
{
    (void)arg;
    (void)t;
    return ns_error_set(err, NS_STOPPED, "enough");
}

static void an_error_of_the_caller_ends_it(void **state)
{
    (void)state;
    static const char header[] = ENTRY("U8", "[4]", "[0,4]");
    struct ns_error err = {0};
    assert_int_equal(ns_safetensors_parse(header, sizeof header - 1, DATA_START, FILE_BYTES, &budget, stop, NULL, &err),
                     NS_STOPPED);
    assert_string_equal(err.message, "enough");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(hands_out_every_tensor, no_leak),
        cmocka_unit_test_teardown(types_have_their_sizes, no_leak),
        cmocka_unit_test_teardown(hostile_entries_are_refused, no_leak),
        cmocka_unit_test_teardown(a_short_file_is_told_once_with_its_size, no_leak),
        cmocka_unit_test_teardown(c31_unknown_type_is_range_checked, no_leak),
        cmocka_unit_test_teardown(an_error_of_the_caller_ends_it, no_leak),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
