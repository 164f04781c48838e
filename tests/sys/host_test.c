/* host_test.c - free memory and cores under control groups of both versions, and who we are. */
#include "../scratch.h"
#include "sys/sys.h"

#include <limits.h>
#include <signal.h>

static int setup(void **state)
{
    struct scratch *s = test_malloc(sizeof *s);
    scratch_open(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    scratch_close(*state);
    test_free(*state);
    return 0;
}

/* Writes text to root/name, making the directories on the way. */
static void put(struct scratch *s, const char *name, const char *text)
{
    char command[1024];
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s/%s')\"", s->dir, name);
    assert_int_equal(system(command), 0);
    scratch_write(s, name, text, strlen(text));
}

#define MEMINFO "MemTotal: 64000000 kB\nMemFree: 100 kB\nMemAvailable:   32000000 kB\n"

static void machine_alone(void **state)
{
    struct scratch *s = *state;
    put(s, "proc/meminfo", MEMINFO);
    assert_int_equal(ns_host_free_memory_at(s->dir), (size_t)32000000 * 1024);
    assert_int_equal(ns_cpu_quota_at(s->dir), UINT_MAX);
}

static void version_2_nested(void **state)
{
    struct scratch *s = *state;
    put(s, "proc/meminfo", MEMINFO);
    put(s, "proc/self/cgroup", "0::/user.slice/job/inner\n");
    put(s, "sys/fs/cgroup/user.slice/job/inner/memory.max", "max\n");
    put(s, "sys/fs/cgroup/user.slice/job/inner/memory.current", "1000\n");
    assert_int_equal(ns_host_free_memory_at(s->dir), (size_t)32000000 * 1024);
    /* the parent has the limit, and its usage is mostly page cache */
    put(s, "sys/fs/cgroup/user.slice/job/memory.max", "8000000000\n");
    put(s, "sys/fs/cgroup/user.slice/job/memory.current", "7000000000\n");
    put(s, "sys/fs/cgroup/user.slice/job/memory.stat",
        "anon 500\nfile 6000000000\ninactive_file 4000000000\n"
        "active_file 1000000000\n");
    assert_int_equal(ns_host_free_memory_at(s->dir), 6000000000u);
    /* a tighter one inside */
    put(s, "sys/fs/cgroup/user.slice/job/inner/memory.high", "2000000000\n");
    assert_int_equal(ns_host_free_memory_at(s->dir), 2000000000u - 1000);
    /* a group over its limit has nothing left, not a huge number */
    put(s, "sys/fs/cgroup/user.slice/memory.max", "1000\n");
    put(s, "sys/fs/cgroup/user.slice/memory.current", "2000\n");
    assert_int_equal(ns_host_free_memory_at(s->dir), 0);
    put(s, "sys/fs/cgroup/user.slice/cpu.max", "350000 100000\n");
    put(s, "sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
    assert_int_equal(ns_cpu_quota_at(s->dir), 4);
}

static void version_1_nested(void **state)
{
    struct scratch *s = *state;
    put(s, "proc/meminfo", MEMINFO);
    put(s, "proc/self/cgroup", "12:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n");
    put(s, "sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "4000000000\n");
    put(s, "sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "3000000000\n");
    put(s, "sys/fs/cgroup/memory/docker/memory.stat",
        "inactive_file 1\ntotal_inactive_file 500000000\n"
        "total_active_file 0\n");
    /* unlimited in version 1 is a number near 2^63 */
    put(s, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put(s, "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "3000000000\n");
    assert_int_equal(ns_host_free_memory_at(s->dir), 1500000000u);
    put(s, "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
    put(s, "sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "200000\n");
    put(s, "sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000\n");
    assert_int_equal(ns_cpu_quota_at(s->dir), 2);
}

/* Inside a container the path of the group is the host's, but the mount shows the group itself. */
static void container_sees_its_group_as_the_root(void **state)
{
    struct scratch *s = *state;
    put(s, "proc/meminfo", MEMINFO);
    put(s, "proc/self/cgroup", "0::/system.slice/docker-123.scope\n");
    put(s, "sys/fs/cgroup/memory.max", "1000000000\n");
    put(s, "sys/fs/cgroup/memory.current", "250000000\n");
    assert_int_equal(ns_host_free_memory_at(s->dir), 750000000u);
}

static void this_machine_answers(void **state)
{
    struct scratch *s = *state;
    assert_true(ns_host_free_memory() > 0);
    assert_true(ns_host_rss() > 0 && ns_host_peak_rss() >= ns_host_rss() / 2);
    assert_true(ns_host_rss_of(ns_host_pid()) > 0);
    assert_true(ns_host_free_disk(s->dir) > 0);
    assert_int_equal(ns_host_free_disk(scratch_path(s, "none")), 0);
    assert_true(ns_cpu_physical() >= 1);
    ns_host_init();
    assert_true(strlen(ns_host_name()) > 0);
    assert_true(strlen(ns_host_user()) > 0);
    assert_true(ns_host_pid_start(ns_host_pid()) > 0);
    assert_int_equal(ns_host_pid_start(INT32_MAX), -1);
    char name[32];
    assert_false(ns_host_is_network_fs("/proc", name));
    assert_false(ns_host_is_network_fs(scratch_path(s, "not/there/yet"), name));
    /* avx512 without avx2 would be a mistake of ours, not of the processor */
    uint32_t cpu = ns_cpu_bits();
    assert_true(!ns_cpu_has(cpu, NS_CPU_AVX512) || ns_cpu_has(cpu, NS_CPU_AVX2 | NS_CPU_FMA));
}

static void signals_are_counted(void **state)
{
    (void)state;
    ns_signal_install();
    assert_int_equal(ns_signal_count(), 0);
    raise(SIGTERM);
    assert_int_equal(ns_signal_count(), 1);
    assert_int_equal(ns_signal_last(), SIGTERM);
    raise(SIGINT);
    raise(SIGINT);
    assert_int_equal(ns_signal_count(), 2);
    assert_int_equal(ns_signal_last(), SIGINT);
    assert_false(ns_signal_take_usr1());
    raise(SIGUSR1);
    assert_true(ns_signal_take_usr1());
    assert_false(ns_signal_take_usr1());
    raise(SIGPIPE); /* ignored */
    ns_signal_reset();
    assert_int_equal(ns_signal_count(), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(machine_alone),        T(version_2_nested),    T(version_1_nested), T(container_sees_its_group_as_the_root),
        T(this_machine_answers), T(signals_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
