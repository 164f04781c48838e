/* full_test.c - the disk is full when a wave is to be committed: the run waits, loses nothing, and goes on by itself when
 * there is room again. */
#define _GNU_SOURCE
#include "../queue/shim.h"
#include "night_fixture.h"

#include "sys/sys.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/time.h>

#include <cmocka.h>

static uint64_t full_at_wave;
static bool was_full;

static void make_room(int number)
{
    (void)number;
    was_full = shim_was_hit();
    shim_arm(SHIM_WRITE, 0, SHIM_FULL, false);
}

/* From this wave's last step on no write of the queue finds room; some commits later there is room. */
static void fill_disk(struct fake_machine *fake)
{
    if (fake->waves != full_at_wave)
        return;
    full_at_wave = 0;
    shim_arm(SHIM_WRITE, 1, SHIM_FULL, true);
    struct itimerval once = {.it_value.tv_sec = 1};
    assert_int_equal(setitimer(ITIMER_REAL, &once, NULL), 0);
}

static void t8_waits_for_room(void **state)
{
    (void)state;
    struct night_fixture f;
    struct night_tally want, got;
    struct fake_machine fake;
    struct ns_night_report report;
    struct ns_error err = {0};
    night_fixture_open(&f);
    shim_install();
    signal(SIGALRM, make_room);
    night_fixture_submit(&f, 11, 30);
    fake_machine_init(&fake);
    assert_int_equal(night_fixture_run(&f, &fake, 64, false, &report, &err), NS_OK);
    night_fixture_tally(&f, &want);
    uint64_t waves = report.waves;
    assert_true(waves > 4);
    for (uint64_t wave = 1; wave <= waves / 2; wave += waves / 4) {
        night_fixture_new_queue(&f);
        night_fixture_submit(&f, 11, 30);
        fake_machine_init(&fake);
        fake.on_step = fill_disk;
        full_at_wave = wave;
        was_full = false;
        if (night_fixture_run(&f, &fake, 64, false, &report, &err) != NS_OK)
            fail_msg("wave %d: %s", (int)wave, err.message);
        assert_int_equal(full_at_wave, 0);
        assert_true(was_full);
        night_fixture_check(&f);
        night_fixture_tally(&f, &got);
        assert_memory_equal(got.digest, want.digest, sizeof want.digest);
        assert_int_equal(got.queued + got.running, 0);
    }
    night_fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(t8_waits_for_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
