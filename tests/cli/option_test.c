/* option_test.c - the table of verbs and options, the parser it drives, and the texts that are made of it. */
#include "cli/cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS_MAX = 16 };

/* A command line in one string, words separated by one blank. The parser permutes the words, so they are ours. */
struct line {
    char text[256];
    char *word[WORDS_MAX];
    int n;
    const struct ns_verb *verb;
    struct ns_args args;
    struct ns_error err;
};

static enum ns_code parse(struct line *l, const char *text)
{
    memset(l, 0, sizeof *l);
    assert_true(strlen(text) < sizeof l->text);
    strcpy(l->text, text);
    for (char *at = l->text; at && l->n < WORDS_MAX - 1; l->n++) {
        l->word[l->n] = at;
        at = strchr(at, ' ');
        if (at)
            *at++ = '\0';
    }
    return ns_args_parse(l->n, l->word, &l->verb, &l->args, &l->err);
}

static void options_stand_anywhere(void **state)
{
    (void)state;
    static const char *const same[] = {
        "nightshift -d x.db run --model m --threads 3 -qv", "nightshift run --model=m -vq --thr=3 -dx.db",
        "nightshift --db=x.db -q run -v -m m -t3", "nightshift run -qvmm -t 3 --db x.db --"};
    for (size_t i = 0; i < NS_COUNT(same); i++) {
        struct line l;
        assert_int_equal(parse(&l, same[i]), NS_OK);
        assert_string_equal(l.verb->name, "run");
        assert_string_equal(l.args.text[NS_OPT_DB], "x.db");
        assert_string_equal(l.args.text[NS_OPT_MODEL], "m");
        assert_int_equal(l.args.number[NS_OPT_THREADS], 3);
        assert_int_equal(l.args.given[NS_OPT_QUIET], 1);
        assert_int_equal(l.args.given[NS_OPT_VERBOSE], 1);
        assert_int_equal(l.args.n_operands, 0);
    }
}

static void operands_are_kept_in_order(void **state)
{
    (void)state;
    struct line l;
    assert_int_equal(parse(&l, "nightshift cancel one --dry-run two -b x three"), NS_OK);
    assert_int_equal(l.args.n_operands, 3);
    assert_string_equal(l.args.operand[0], "one");
    assert_string_equal(l.args.operand[1], "two");
    assert_string_equal(l.args.operand[2], "three");
    assert_int_equal(parse(&l, "nightshift submit -"), NS_OK);
    assert_string_equal(l.args.operand[0], "-");
    assert_int_equal(parse(&l, "nightshift submit -- --strict"), NS_OK);
    assert_string_equal(l.args.operand[0], "--strict");
    assert_int_equal(l.args.given[NS_OPT_STRICT], 0);
}

static void flags_are_counted_and_the_last_value_holds(void **state)
{
    (void)state;
    struct line l;
    assert_int_equal(parse(&l, "nightshift -v status -vv"), NS_OK);
    assert_int_equal(l.args.given[NS_OPT_VERBOSE], 3);
    assert_int_equal(parse(&l, "nightshift run -m a --model b --memory 1G --memory 512Mi"), NS_OK);
    assert_string_equal(l.args.text[NS_OPT_MODEL], "b");
    assert_int_equal(l.args.number[NS_OPT_MEMORY], (uint64_t)512 << 20);
}

static void faults_are_named(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"nightshift frob", "there is no verb \"frob\""},
        {"nightshift run --frob", "run has no option \"--frob\""},
        {"nightshift run -x", "run has no option -x"},
        {"nightshift run -qx", "run has no option -x"},
        {"nightshift --model m run", "nightshift has no option \"--model\""},
        {"nightshift submit", "submit wants FILE|-"},
        {"nightshift submit a b", "submit does not know what to do with \"b\""},
        {"nightshift get a", "get wants BATCH CUSTOM_ID"},
        {"nightshift run --memory", "--memory needs an argument (SIZE)"},
        {"nightshift run -M", "--memory needs an argument (SIZE)"},
        {"nightshift run --memory 0", "--memory wants a size such as 8G or 512Mi, not \"0\""},
        {"nightshift run --memory 8X", "--memory wants a size such as 8G or 512Mi, not \"8X\""},
        {"nightshift run --threads 0", "--threads wants a whole number from 1 to 4294967295, not \"0\""},
        {"nightshift run --threads -1", "--threads wants a whole number from 1 to 4294967295, not \"-1\""},
        {"nightshift run --threads 99999999999999999999", "not \"99999999999999999999\""},
        {"nightshift run --isa sse", "--isa wants one of ref|avx2|avx512|neon, not \"sse\""},
        {"nightshift run --isa re", "--isa wants one of ref|avx2|avx512|neon, not \"re\""},
        {"nightshift status --follow=1", "--follow takes no argument"},
        {"nightshift run --m x", "\"--m\" may mean --model or --memory"},
        {"nightshift status --color sometimes", "--color wants one of auto|always|never, not \"sometimes\""},
    };
    for (size_t i = 0; i < NS_COUNT(cases); i++) {
        struct line l;
        assert_int_equal(parse(&l, cases[i][0]), NS_USAGE);
        assert_int_equal(l.err.code, NS_USAGE);
        if (!strstr(l.err.message, cases[i][1]))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i][0], l.err.message, cases[i][1]);
    }
}

static void help_needs_no_operands(void **state)
{
    (void)state;
    struct line l;
    assert_int_equal(parse(&l, "nightshift get --help"), NS_OK);
    assert_string_equal(l.verb->name, "get");
    assert_int_equal(parse(&l, "nightshift --version"), NS_OK);
    assert_null(l.verb);
    assert_int_equal(parse(&l, "nightshift"), NS_OK);
    assert_null(l.verb);
}

/* Every example of the help texts is a line that the program takes; shell words behind && are lines of their own. */
static void examples_can_be_typed(void **state)
{
    (void)state;
    size_t seen = 0;
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        char text[1000], *keep = NULL;
        assert_true(strlen(v->examples) < sizeof text);
        strcpy(text, v->examples);
        for (char *quote = text; (quote = strchr(quote, '\'')) != NULL;)
            memmove(quote, quote + 1, strlen(quote));
        for (char *then = text; (then = strstr(then, " && ")) != NULL;)
            memcpy(then, "\n\n\n\n", 4);
        bool quoted = false; /* a quoted text is one word */
        for (char *c = text; *c; c++) {
            quoted = *c == '"' ? !quoted : quoted;
            *c = quoted && *c == ' ' ? '_' : *c;
        }
        for (char *line = strtok_r(text, "\n", &keep); line; line = strtok_r(NULL, "\n", &keep)) {
            struct line l;
            if (parse(&l, line) != NS_OK || !l.verb)
                fail_msg("example of %s: %s: %s", v->name, line, l.err.message);
            seen++;
        }
    }
    assert_true(seen > 30);
}

static void table_is_sound(void **state)
{
    (void)state;
    unsigned seen[NS_OPT_COUNT] = {0};
    for (const struct ns_option *o = ns_options; o->name; o++) {
        seen[o->id]++;
        assert_true((o->kind == NS_ARG_NONE) == (o->arg == NULL));
        assert_true(strlen(o->help) > 0);
    }
    for (size_t i = 0; i < NS_OPT_COUNT; i++)
        assert_int_equal(seen[i], 1);
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        assert_ptr_equal(ns_verb_find(v->name), v);
        assert_true(strlen(v->examples) > 0);
        for (const struct ns_option *a = ns_options; a->name; a++)
            for (const struct ns_option *b = ns_options; b < a; b++) {
                if (!ns_option_applies(a, v) || !ns_option_applies(b, v))
                    continue;
                assert_string_not_equal(a->name, b->name);
                assert_true(a->letter == 0 || a->letter != b->letter);
            }
    }
}

/* ---- texts -------------------------------------------------------------------------------------------------------------- */

static void check_width(const struct ns_text *text)
{
    for (const char *line = text->data; *line;) {
        size_t n = strcspn(line, "\n");
        if (n > 90)
            fail_msg("%zu columns: %.*s", n, (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* The name as the manual page spells it: every hyphen escaped. */
static void roff_name(const char *name, char out[64])
{
    strcpy(out, "\\-\\-");
    for (const char *s = name; *s; s++) {
        char piece[3] = {*s == '-' ? '\\' : *s, *s == '-' ? '-' : '\0', '\0'};
        strcat(out, piece);
    }
}

static void every_option_is_in_help_and_manual(void **state)
{
    struct ns_budget *budget = *state;
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        struct ns_text help, man;
        ns_text_init(&help, budget);
        ns_text_init(&man, budget);
        ns_help_verb(v, &help);
        ns_help_man(v, &man);
        assert_true(ns_text_ok(&help) && ns_text_ok(&man));
        check_width(&help);
        for (const struct ns_option *o = ns_options; o->name; o++) {
            char in_help[64], in_man[64];
            snprintf(in_help, sizeof in_help, "--%s", o->name);
            roff_name(o->name, in_man);
            if (ns_option_applies(o, v)) {
                assert_non_null(strstr(help.data, in_help));
                assert_non_null(strstr(man.data, in_man));
            }
        }
        ns_text_fini(&help);
        ns_text_fini(&man);
    }
}

static void overview_names_every_verb(void **state)
{
    struct ns_budget *budget = *state;
    struct ns_text help, man, shell;
    ns_text_init(&help, budget);
    ns_text_init(&man, budget);
    ns_help_overview(&help);
    ns_help_man(NULL, &man);
    assert_true(ns_text_ok(&help) && ns_text_ok(&man));
    check_width(&help);
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        assert_non_null(strstr(help.data, v->summary));
        assert_non_null(strstr(man.data, v->name));
    }
    ns_text_fini(&help);
    ns_text_fini(&man);
    static const char *const shells[] = {"bash", "zsh", "fish"};
    for (size_t i = 0; i < NS_COUNT(shells); i++) {
        ns_text_init(&shell, budget);
        assert_int_equal(ns_help_completion(shells[i], &shell, NULL), NS_OK);
        assert_true(ns_text_ok(&shell));
        for (const struct ns_verb *v = ns_verbs; v->name; v++)
            assert_non_null(strstr(shell.data, v->name));
        ns_text_fini(&shell);
    }
    ns_text_init(&shell, budget);
    assert_int_equal(ns_help_completion("ksh", &shell, NULL), NS_USAGE);
    ns_text_fini(&shell);
}

static void check_escaped(struct ns_budget *budget, const char *s, size_t n, bool multi_line, const char *want)
{
    struct ns_text text;
    ns_text_init(&text, budget);
    ns_text_escaped(&text, s, n, multi_line);
    assert_true(ns_text_ok(&text));
    assert_string_equal(text.data ? text.data : "", want);
    ns_text_fini(&text);
}

static void others_cannot_steer_the_terminal(void **state)
{
    struct ns_budget *budget = *state;
    check_escaped(budget, "plain \xc3\xa9 text", 13, false, "plain \xc3\xa9 text");
    check_escaped(budget, "\033[31mred\a", 9, false, "\\x1b[31mred\\x07");
    check_escaped(budget, "a\nb\tc\r", 6, true, "a\nb\tc\\x0d");
    check_escaped(budget, "a\nb\tc\r", 6, false, "a\\nb\\tc\\x0d");
    check_escaped(budget, "\xc2\x9b\x33\x31m", 5, true, "\\u009b31m");        /* CSI as one C1 character */
    check_escaped(budget, "\xe2\x80\xae\x61\x62\x63", 6, true, "\\u202eabc"); /* right-to-left override */
    check_escaped(budget, "\x7f", 1, true, "\\x7f");
    check_escaped(budget, "\xff\xfe", 2, true, "\\xff\\xfe");
    check_escaped(budget, "\xe2\x82", 2, true, "\\xe2\\x82"); /* cut off */
    check_escaped(budget, "a\0b", 3, true, "a\\x00b");
}

static void spans_read_well(void **state)
{
    (void)state;

    static const struct {
        double seconds;
        const char *want;
    } cases[] = {{0, "0.0 s"},          {9.94, "9.9 s"}, {59.4, "59 s"},   {60, "1 min 00 s"},
                 {3599, "59 min 59 s"}, {3600, "1.0 h"}, {90000, "25.0 h"}};

    for (size_t i = 0; i < NS_COUNT(cases); i++) {
        char text[24];
        ns_span_text(cases[i].seconds, text);
        assert_string_equal(text, cases[i].want);
    }
}

int main(void)
{
    static struct ns_budget budget;
    ns_budget_init(&budget, "test", (size_t)64 << 20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_stand_anywhere),
        cmocka_unit_test(operands_are_kept_in_order),
        cmocka_unit_test(flags_are_counted_and_the_last_value_holds),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(help_needs_no_operands),
        cmocka_unit_test(table_is_sound),
        cmocka_unit_test(examples_can_be_typed),
        cmocka_unit_test_prestate(every_option_is_in_help_and_manual, &budget),
        cmocka_unit_test_prestate(overview_names_every_verb, &budget),
        cmocka_unit_test_prestate(others_cannot_steer_the_terminal, &budget),
        cmocka_unit_test(spans_read_well),
    };
    int failed = cmocka_run_group_tests_name("option", tests, NULL, NULL);
    ns_budget_fini(&budget);
    return failed;
}
