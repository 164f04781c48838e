/* night_test.c - the loop on the fake engine: what a run leaves in the queue. */
#define _GNU_SOURCE
#include "night_fixture.h"

#include "sys/sys.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
    static struct night_fixture f;
    night_fixture_open(&f);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    ns_signal_reset();
    night_fixture_close(*state);
    return 0;
}

static void run_to_end(struct night_fixture *f, uint32_t rows, struct night_tally *tally)
{
    struct fake_machine fake;
    fake_machine_init(&fake);
    struct ns_night_report report;
    struct ns_error err = {0};
    enum ns_code rc = night_fixture_run(f, &fake, rows, false, &report, &err);
    if (rc != NS_OK)
        fail_msg("%s: %s", err.context, err.message);
    assert_int_equal(report.requests_left, 0);
    night_fixture_check(f);
    night_fixture_tally(f, tally);
}

static void wave_size_does_not_show(void **state)
{
    struct night_fixture *f = *state;
    struct night_tally want, got;
    night_fixture_submit(f, 7, 60);
    run_to_end(f, 1000, &want);
    assert_int_equal(want.done, 60);
    static const uint32_t rows[] = {1, 7, 64};
    for (size_t i = 0; i < NS_COUNT(rows); i++) {
        night_fixture_new_queue(f);
        night_fixture_submit(f, 7, 60);
        run_to_end(f, rows[i], &got);
        assert_memory_equal(got.digest, want.digest, sizeof want.digest);
    }
}

static void once_ends_after_one_wave(void **state)
{
    struct night_fixture *f = *state;
    struct night_tally want, got;
    night_fixture_submit(f, 3, 8);
    run_to_end(f, 64, &want);
    night_fixture_new_queue(f);
    night_fixture_submit(f, 3, 8);
    uint64_t runs = 0;
    for (bool done = false; !done; runs++) {
        struct fake_machine fake;
        fake_machine_init(&fake);
        struct ns_night_report report;
        struct ns_error err = {0};
        assert_int_equal(night_fixture_run(f, &fake, 64, true, &report, &err), NS_OK);
        assert_true(report.waves <= 1);
        night_fixture_check(f);
        done = report.requests_left == 0;
        assert_true(runs < 10000);
    }
    night_fixture_tally(f, &got);
    assert_true(runs > 3);
    assert_memory_equal(got.digest, want.digest, sizeof want.digest);
}

static void lost_wave_leaves_no_trace(void **state)
{
    struct night_fixture *f = *state;
    struct night_tally want, got;
    night_fixture_submit(f, 5, 40);
    run_to_end(f, 64, &want);
    night_fixture_new_queue(f);
    night_fixture_submit(f, 5, 40);
    for (uint64_t wave = 1; wave < 12; wave += 3) {
        struct fake_machine fake;
        fake_machine_init(&fake);
        fake.fail_at_wave = wave;
        struct ns_night_report report;
        struct ns_error err = {0};
        assert_int_equal(night_fixture_run(f, &fake, 64, false, &report, &err), NS_IO);
        assert_non_null(strstr(err.message, "shard 2"));
        assert_int_equal(report.waves, wave - 1);
        night_fixture_check(f);
        night_fixture_tally(f, &got);
        assert_int_equal(got.running, 0); /* given back */
        assert_int_equal(got.failed, 0);  /* the requests are not to blame */
    }
    run_to_end(f, 64, &got);
    assert_memory_equal(got.digest, want.digest, sizeof want.digest);
}

static void raise_term(struct fake_machine *fake)
{
    if (fake->waves == 3)
        raise(SIGTERM);
}

static void stop_gives_back(void **state)
{
    struct night_fixture *f = *state;
    struct night_tally want, got;
    night_fixture_submit(f, 11, 40);
    run_to_end(f, 64, &want);
    night_fixture_new_queue(f);
    night_fixture_submit(f, 11, 40);
    struct fake_machine fake;
    fake_machine_init(&fake);
    fake.on_step = raise_term;
    ns_signal_install();
    struct ns_night_report report;
    struct ns_error err = {0};
    assert_int_equal(night_fixture_run(f, &fake, 32, false, &report, &err), NS_OK);
    assert_true(report.stopped);
    assert_true(report.requests_left > 0);
    night_fixture_check(f);
    night_fixture_tally(f, &got);
    assert_int_equal(got.running, 0);
    ns_signal_reset();
    run_to_end(f, 64, &got);
    assert_memory_equal(got.digest, want.digest, sizeof want.digest);
}

static void sick_rows_fail_their_request_alone(void **state)
{
    struct night_fixture *f = *state;
    night_fixture_submit_text(f, "{\"custom_id\":\"good\",\"prompt\":[1,2,3],\"max_tokens\":5}\n"
                                 "{\"custom_id\":\"bad\",\"prompt\":[1,2,4321,3],\"max_tokens\":5}\n"
                                 "{\"custom_id\":\"mixed\",\"prompt\":[9],\"choices\":[[7],[4321,5],[8]]}\n"
                                 "{\"custom_id\":\"fine\",\"prompt\":[9],\"choices\":[[7],[8]]}\n");
    struct fake_machine fake;
    fake_machine_init(&fake);
    fake.sick = 4321;
    struct ns_night_report report;
    struct ns_error err = {0};
    assert_int_equal(night_fixture_run(f, &fake, 64, false, &report, &err), NS_OK);
    assert_int_equal(report.requests_failed, 2);
    assert_int_equal(report.requests_done, 2);
    night_fixture_check(f);
    char text[2048];
    night_fixture_result(f, "bad", text, sizeof text);
    assert_non_null(strstr(text, "non_finite"));
    assert_non_null(strstr(text, "position"));
    night_fixture_result(f, "fine", text, sizeof text);
    assert_non_null(strstr(text, "nightshift.choice"));
}

static void tokens_are_those_of_the_machine(void **state)
{
    struct night_fixture *f = *state;
    night_fixture_submit_text(
        f, "{\"custom_id\":\"x\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[5,6,7],"
           "\"max_tokens\":6,\"ignore_eos\":true,\"return_token_ids\":true}}\n");
    struct fake_machine fake;
    fake_machine_init(&fake);
    uint32_t token[9] = {5, 6, 7};
    char want[128] = "\"token_ids\":[";
    for (size_t i = 3; i < 9; i++) {
        token[i] = fake_next(&fake, token, i);
        size_t n = strlen(want);
        snprintf(want + n, sizeof want - n, "%s%u", i > 3 ? "," : "", token[i]);
    }
    strcat(want, "]");
    struct night_tally tally;
    run_to_end(f, 2, &tally);
    char text[2048];
    night_fixture_result(f, "x", text, sizeof text);
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "\"prompt_token_ids\":[5,6,7]"));
    assert_non_null(strstr(text, "\"finish_reason\":\"length\""));
}

static void c55_nothing_left_to_do(void **state)
{
    struct night_fixture *f = *state;
    struct night_tally first, again;
    night_fixture_submit(f, 2, 10);
    run_to_end(f, 64, &first);
    run_to_end(f, 64, &again);
    assert_memory_equal(again.digest, first.digest, sizeof first.digest);
    assert_int_equal(again.done, 10);
}

/* Every order gives the same answers; the engine is listened to only where grouping by experts is to be decided. */
static void order_does_not_show(void **state)
{
    struct night_fixture *f = *state;
    struct night_tally want, got;
    night_fixture_submit(f, 21, 40);
    run_to_end(f, 64, &want);
    f->numbers = (struct ns_sched_model){.n_moe_layers = 4, .n_experts = 16, .top_k = 2, .expert_bytes = 1000};
    for (enum ns_night_order order = NS_ORDER_AUTO; order <= NS_ORDER_SINGLE; order++) {
        struct fake_machine fake;
        struct ns_night_report report;
        struct ns_error err = {0};
        fake_machine_init(&fake);
        fake.state_bytes = order == NS_ORDER_EXPERTS ? (size_t)1 << 20 : fake.state_bytes;
        f->order = order;
        night_fixture_new_queue(f);
        night_fixture_submit(f, 21, 40);
        assert_int_equal(night_fixture_run(f, &fake, 16, false, &report, &err), NS_OK);
        night_fixture_check(f);
        night_fixture_tally(f, &got);
        assert_memory_equal(got.digest, want.digest, sizeof want.digest);
        if (order == NS_ORDER_EXPERTS)
            assert_true(fake.listened > 10);
        else if (order == NS_ORDER_AUTO)
            assert_int_equal(fake.listened, 1); /* the first wave says that the disk is not the limit */
        else
            assert_int_equal(fake.listened, 0);
    }
}

static void submit_one_long(struct night_fixture *f)
{
    night_fixture_new_queue(f);
    night_fixture_submit_text(f, "{\"custom_id\":\"a\",\"prompt\":[5,6,7],\"max_tokens\":4}\n"
                                 "{\"custom_id\":\"long\",\"prompt\":[8,9],\"max_tokens\":900}\n"
                                 "{\"custom_id\":\"b\",\"prompt\":[10,11,12],\"choices\":[[1],[2,3]],\"answer\":0}\n"
                                 "{\"custom_id\":\"c\",\"prompt\":[13],\"max_tokens\":4}\n");
}

/* What does not fit because memory was divided for shorter ones waits for another division; it fails only if that knew. */
static void a_longer_one_waits_for_another_division(void **state)
{
    struct night_fixture *f = *state;
    struct night_tally want, got;
    struct ns_night_report report;
    struct ns_error err = {0};
    submit_one_long(f);
    run_to_end(f, 64, &want);
    assert_int_equal(want.done, 4);
    submit_one_long(f);
    struct ns_night_division division = {.longest_body = 100, .longest_new = 4};
    f->division = &division;
    struct fake_machine fake;
    fake_machine_init(&fake);
    size_t enough = fake.state_bytes;
    fake.state_bytes = 12000; /* the long one's state takes more */
    assert_int_equal(night_fixture_run(f, &fake, 64, false, &report, &err), NS_OK);
    assert_true(division.anew);
    assert_true(division.longest_new == 900 && division.longest_body == 100);
    night_fixture_check(f);
    night_fixture_tally(f, &got);
    assert_int_equal(got.done, 3);
    assert_int_equal(got.queued, 1);
    assert_int_equal(got.failed + got.running, 0);
    division.anew = false;
    fake.state_bytes = enough;
    assert_int_equal(night_fixture_run(f, &fake, 64, false, &report, &err), NS_OK);
    assert_false(division.anew);
    night_fixture_check(f);
    night_fixture_tally(f, &got);
    assert_memory_equal(got.digest, want.digest, sizeof want.digest);
    submit_one_long(f);
    fake.state_bytes = 12000;
    assert_int_equal(night_fixture_run(f, &fake, 64, false, &report, &err), NS_OK);
    assert_false(division.anew);
    night_fixture_tally(f, &got);
    assert_int_equal(got.done, 3);
    assert_int_equal(got.failed, 1);
    f->division = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wave_size_does_not_show, setup, teardown),
        cmocka_unit_test_setup_teardown(once_ends_after_one_wave, setup, teardown),
        cmocka_unit_test_setup_teardown(lost_wave_leaves_no_trace, setup, teardown),
        cmocka_unit_test_setup_teardown(stop_gives_back, setup, teardown),
        cmocka_unit_test_setup_teardown(sick_rows_fail_their_request_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(tokens_are_those_of_the_machine, setup, teardown),
        cmocka_unit_test_setup_teardown(c55_nothing_left_to_do, setup, teardown),
        cmocka_unit_test_setup_teardown(order_does_not_show, setup, teardown),
        cmocka_unit_test_setup_teardown(a_longer_one_waits_for_another_division, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
