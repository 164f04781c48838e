/* countdown_test.c - the countdown to a failure: the nth call, once or from then on, and the point where a process dies. */
#include "../scratch.h"
#include "base/base.h"

#include <signal.h>
#include <sys/wait.h>

static int teardown(void **state)
{
    (void)state;
    ns_fault_disarm();
    return 0;
}

static void the_nth_call_fails(void **state)
{
    (void)state;
    assert_false(ns_fault_hit(NS_FAULT_READ));
    ns_fault_arm(NS_FAULT_READ, 3);
    assert_false(ns_fault_hit(NS_FAULT_READ));
    assert_int_equal(ns_fault_left(NS_FAULT_READ), 2);
    assert_false(ns_fault_hit(NS_FAULT_WRITE)); /* kinds do not mix */
    assert_false(ns_fault_hit(NS_FAULT_READ));
    assert_true(ns_fault_hit(NS_FAULT_READ));
    for (int i = 0; i < 10; i++)
        assert_false(ns_fault_hit(NS_FAULT_READ));
    ns_fault_arm_mode(NS_FAULT_SYNC, 2, 28, true);
    assert_false(ns_fault_hit(NS_FAULT_SYNC));
    for (int i = 0; i < 10; i++)
        assert_true(ns_fault_hit(NS_FAULT_SYNC));
    assert_int_equal(ns_fault_mode(NS_FAULT_SYNC), 28);
    ns_fault_disarm();
    assert_false(ns_fault_hit(NS_FAULT_SYNC));
}

static void the_heap_hooks_count_too(void **state)
{
    (void)state;
    void *p = ns_heap_alloc(10);
    assert_non_null(p);
    ns_fault_arm(NS_FAULT_ALLOC, 1);
    assert_null(ns_heap_resize(p, 20));
    ns_fault_arm(NS_FAULT_ALLOC, 1);
    assert_null(ns_heap_alloc(1));
    p = ns_heap_resize(p, 20);
    assert_non_null(p);
    ns_heap_free(p);
    ns_heap_free(NULL);
}

static void a_crash_point_kills_on_its_visit(void **state)
{
    (void)state;
    for (uint64_t visit = 0; visit <= 3; visit++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            if (visit > 0)
                ns_crash_arm("here", visit);
            ns_crash_point("elsewhere");
            ns_crash_point("here");
            ns_crash_point("here");
            _exit(7);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (visit == 1 || visit == 2)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_nth_call_fails, teardown),
        cmocka_unit_test_teardown(the_heap_hooks_count_too, teardown),
        cmocka_unit_test_teardown(a_crash_point_kills_on_its_visit, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
