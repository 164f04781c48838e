/* cmocka.h - the few words of cmocka that checkkernels.c and vmath_test.c use, for a cross build without the library. */
#ifndef NS_TEST_CROSS_CMOCKA_H
#define NS_TEST_CROSS_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f)                                                                                            \
    {                                                                                                                  \
#f, f                                                                                                          \
    }

static jmp_buf cross_failed;

#define print_message printf
#define fail_msg(...)                                                                                                  \
    do {                                                                                                               \
        printf("%s:%d: ", __FILE__, __LINE__);                                                                         \
        printf(__VA_ARGS__);                                                                                           \
        printf("\n");                                                                                                  \
        longjmp(cross_failed, 1);                                                                                      \
    } while (0)
#define assert_true(x)                                                                                                 \
    do {                                                                                                               \
        if (!(x))                                                                                                      \
            fail_msg("not true: %s", #x);                                                                              \
    } while (0)
#define assert_non_null(x)           assert_true((x) != NULL)
#define assert_int_equal(a, b)       assert_true((a) == (b))
#define assert_string_equal(a, b)    assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)

static int cross_run(const struct CMUnitTest *tests, size_t n)
{
    volatile int n_failed = 0;
    for (volatile size_t i = 0; i < n; i++) {
        void *state = NULL;
        if (setjmp(cross_failed) == 0) {
            tests[i].run(&state);
            printf("ok %s\n", tests[i].name);
        } else {
            printf("FAILED %s\n", tests[i].name);
            n_failed++;
        }
        fflush(stdout);
    }
    return n_failed;
}

#define cmocka_run_group_tests(tests, setup, teardown) cross_run(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
