/* text_test.c - growing text, UTF-8 to the letter of the standard, sizes with units, clocks and log lines. */
#include "../scratch.h"
#include "base/base.h"

static void text_grows(void **state)
{
    (void)state;
    struct ns_budget b;
    struct ns_text t;
    ns_budget_init(&b, "test", 100000);
    ns_text_init(&t, &b);
    for (int i = 0; i < 1000; i++)
        ns_text_format(&t, "%d,", i);
    ns_text_puts(&t, "end");
    ns_text_add(&t, "\0x", 2);
    assert_true(ns_text_ok(&t));
    assert_int_equal(t.n, 10 * 2 + 90 * 3 + 900 * 4 + 3 + 2);
    assert_memory_equal(t.data, "0,1,2,", 6);
    assert_memory_equal(t.data + t.n - 5, "end\0x", 6); /* and the NUL behind it */
    ns_text_clear(&t);
    assert_string_equal(t.data, "");
    /* beyond the budget: remembered, what was there stays */
    ns_text_puts(&t, "kept");
    for (int i = 0; i < 20000; i++)
        ns_text_puts(&t, "too much");
    assert_false(ns_text_ok(&t));
    assert_memory_equal(t.data, "kept", 4);
    size_t n = t.n;
    ns_text_puts(&t, "x");
    assert_int_equal(t.n, n);
    ns_text_fini(&t);
    ns_budget_fini(&b);
}

static void assert_next(const char *s, size_t n, int want, uint32_t code_point)
{
    uint32_t cp = 0xDEAD;
    assert_int_equal(ns_utf8_next((const uint8_t *)s, n, &cp), want);
    if (want > 0)
        assert_int_equal(cp, code_point);
}

static void utf8_is_decoded_strictly(void **state)
{
    (void)state;
    assert_next("\x7F", 1, 1, 0x7F);
    assert_next("\xC2\x80", 2, 2, 0x80);
    assert_next("\xDF\xBF", 2, 2, 0x7FF);
    assert_next("\xE0\xA0\x80", 3, 3, 0x800);
    assert_next("\xED\x9F\xBF", 3, 3, 0xD7FF);
    assert_next("\xEE\x80\x80", 3, 3, 0xE000);
    assert_next("\xF0\x90\x80\x80", 4, 4, 0x10000);
    assert_next("\xF4\x8F\xBF\xBF", 4, 4, 0x10FFFF);
    /* unfinished but possible */
    assert_next("\xC2", 1, 0, 0);
    assert_next("\xE0\xA0", 2, 0, 0);
    assert_next("\xF0\x90\x80", 3, 0, 0);
    /* impossible: the maximal subpart is what one replacement stands for */
    assert_next("\x80", 1, -1, 0);
    assert_next("\xC1\xBF", 2, -1, 0);         /* overlong */
    assert_next("\xE0\x9F\xBF", 3, -1, 0);     /* overlong */
    assert_next("\xED\xA0\x80", 3, -1, 0);     /* surrogate */
    assert_next("\xF0\x8F\xBF\xBF", 4, -1, 0); /* overlong */
    assert_next("\xF4\x90\x80\x80", 4, -1, 0); /* beyond the last code point */
    assert_next("\xF5\x80\x80\x80", 4, -1, 0);
    assert_next("\xC2\x41", 2, -1, 0);
    assert_next("\xE1\x80\x41", 3, -2, 0);
    assert_next("\xF1\x80\x80\x41", 4, -3, 0);
}

/* Every code point there and back; every sequence of three bytes is judged as the definition says. */
static void utf8_is_complete(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF)
            continue;
        char s[4];
        uint32_t back = 0;
        size_t n = ns_utf8_put(cp, s);
        if (ns_utf8_next((const uint8_t *)s, n, &back) != (int)n || back != cp)
            fail_msg("U+%04X does not come back", (unsigned)cp);
    }
    size_t valid = 0;
    for (uint32_t v = 0x800000; v < 1u << 24; v++) {
        uint8_t s[3] = {(uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};
        valid += ns_utf8_valid(s, 3);
    }
    /* beginning with a lead byte: one character of three bytes, or one of two and an ASCII */
    assert_int_equal(valid, (0x10000 - 0x800 - 0x800) + 0x780 * 0x80);
    assert_true(ns_utf8_valid("", 0));
    assert_false(ns_utf8_valid("abc\xE2\x82", 5));
}

static void sizes_with_units(void **state)
{
    (void)state;

    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"1000000", 1000000},
        {"8G", 8000000000u},
        {"8GB", 8000000000u},
        {"1.5K", 1500},
        {"2k", 2000},
        {"512Mi", (uint64_t)512 << 20},
        {"512MiB", (uint64_t)512 << 20},
        {"7B", 7},
        {"1Ti", (uint64_t)1 << 40},
        {"18446744073709551615", UINT64_MAX},
    };

    for (size_t i = 0; i < NS_COUNT(good); i++) {
        uint64_t got = 1;
        if (!ns_size_parse(good[i].text, &got) || got != good[i].bytes)
            fail_msg("%s came out as %" PRIu64, good[i].text, got);
    }
    static const char *const bad[] = {"",          "G", "-1", "8X", "8 G", "8Gx", "1e3", "18446744073709551616",
                                      "20000000T", " 8"};
    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        uint64_t got;
        if (ns_size_parse(bad[i], &got))
            fail_msg("'%s' was taken for a size", bad[i]);
    }
    char text[16];
    ns_size_text(999, text);
    assert_string_equal(text, "999 B");
    ns_size_text(1500, text);
    assert_string_equal(text, "1.50 kB");
    ns_size_text(1560860324864, text);
    assert_string_equal(text, "1.56 TB");
    ns_size_text(UINT64_MAX, text);
    assert_true(strlen(text) < 16);
}

static void little_endian_and_checked_sums(void **state)
{
    (void)state;
    uint8_t p[8];
    ns_put_le64(p, 0x0102030405060708u);
    assert_int_equal(p[0], 8);
    assert_int_equal(p[7], 1);
    assert_int_equal(ns_le64(p), 0x0102030405060708u);
    ns_put_le32(p, 0xFFFFFFFEu);
    assert_int_equal(ns_le32(p), 0xFFFFFFFEu);
    size_t out;
    assert_true(ns_size_mul(SIZE_MAX / 2, 2, &out));
    assert_false(ns_size_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_true(ns_size_add(SIZE_MAX - 1, 1, &out));
    assert_false(ns_size_add(SIZE_MAX, 1, &out));
}

static void clocks_go_forward(void **state)
{
    (void)state;
    uint64_t a = ns_clock_mono_ns();
    assert_true(ns_clock_mono_ns() >= a);
    assert_true(ns_clock_boot_ms() > 0);
    char text[24];
    ns_clock_pin_wall(1769897700000);
    assert_int_equal(ns_clock_wall_ms(), 1769897700000);
    ns_clock_utc_text(ns_clock_wall_ms(), text);
    assert_string_equal(text, "2026-01-31T22:15:00Z");
    ns_clock_pin_wall(-1);
    assert_true(ns_clock_wall_ms() != 1769897700000);
}

struct sink {
    char text[4096];
    int n;
};

static void note_line(void *arg, enum ns_log_level level, const char *line)
{
    struct sink *s = arg;
    s->n++;
    snprintf(s->text, sizeof s->text, "%d %.2000s", (int)level, line);
}

static void lines_go_to_the_sink(void **state)
{
    (void)state;
    struct sink s = {{0}, 0};
    ns_log_set_sink(note_line, &s, NS_LOG_INFO);
    ns_log(NS_LOG_DEBUG, "not this");
    assert_int_equal(s.n, 0);
    ns_log(NS_LOG_WARN, "disk %d is slow", 3);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.text, "2 disk 3 is slow");
    ns_log_set_sink(NULL, NULL, NS_LOG_WARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows),
        cmocka_unit_test(utf8_is_decoded_strictly),
        cmocka_unit_test(utf8_is_complete),
        cmocka_unit_test(sizes_with_units),
        cmocka_unit_test(little_endian_and_checked_sums),
        cmocka_unit_test(clocks_go_forward),
        cmocka_unit_test(lines_go_to_the_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
