/* host.c - memory and disk that are really free, and what kind of file system this is.
 *
 * WHAT   Free memory is the least of what the machine says is available and, for every control group around this
 *        process, its limit less what the group uses, not counting file pages the kernel can drop.
 * WHY    Containers see the machine's figure, not their own; a limit may sit on any parent; and a group whose usage is
 *        mostly page cache is not full. Each of the three mistakes has killed somebody's overnight run. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

/* The number after "key" at the start of a line, in units; false when there is none. */
static bool find_number(const char *text, const char *key, uint64_t *out)
{
    size_t k = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n')
            line++;
        if (strncmp(line, key, k) == 0 && (line[k] == ' ' || line[k] == ':' || line[k] == '\t')) {
            char *end;
            const char *from = line + k + 1;
            uint64_t v = strtoull(from, &end, 10);
            if (end == from)
                return false;
            *out = v;
            return true;
        }
    }
    return false;
}

static bool read_in(const char *dir, const char *name, char *out, size_t size)
{
    char path[4096];
    int k = snprintf(path, sizeof path, "%s/%s", dir, name);
    return k > 0 && (size_t)k < sizeof path && ns_sys_read_text(path, out, size);
}

/* "max" and absent files are no limit. */
static uint64_t read_limit(const char *dir, const char *name)
{
    char text[64], *end;
    if (!read_in(dir, name, text, sizeof text))
        return UINT64_MAX;
    uint64_t v = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : v;
}

static void look_at_group(void *arg, const char *dir, bool is_v2)
{
    uint64_t *least = arg;
    uint64_t limit = read_limit(dir, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t high = is_v2 ? read_limit(dir, "memory.high") : UINT64_MAX;
    uint64_t used = read_limit(dir, is_v2 ? "memory.current" : "memory.usage_in_bytes");
    if (high < limit)
        limit = high;
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return;
    char stat[16384];
    uint64_t inactive = 0, active = 0;
    if (read_in(dir, "memory.stat", stat, sizeof stat)) {
        (void)find_number(stat, is_v2 ? "inactive_file" : "total_inactive_file", &inactive);
        (void)find_number(stat, is_v2 ? "active_file" : "total_active_file", &active);
    }
    uint64_t cache = inactive + active;
    uint64_t held = used > cache ? used - cache : 0;
    uint64_t left = limit > held ? limit - held : 0;
    if (left < *least)
        *least = left;
}

size_t ns_host_free_memory_at(const char *root)
{
    uint64_t least = UINT64_MAX, kib = 0;
    char text[16384];
    if (read_in(root, "proc/meminfo", text, sizeof text) && find_number(text, "MemAvailable", &kib))
        least = kib * 1024;
    ns_sys_groups(root, "memory", look_at_group, &least);
    return least == UINT64_MAX ? 0 : (size_t)least;
}

size_t ns_host_free_memory(void)
{
    return ns_host_free_memory_at("");
}

static size_t status_bytes(const char *path, const char *key)
{
    char text[8192];
    uint64_t kib = 0;
    if (!ns_sys_read_text(path, text, sizeof text) || !find_number(text, key, &kib))
        return 0;
    return (size_t)kib * 1024;
}

size_t ns_host_peak_rss(void)
{
    return status_bytes("/proc/self/status", "VmHWM");
}

size_t ns_host_rss(void)
{
    return status_bytes("/proc/self/status", "VmRSS");
}

size_t ns_host_rss_of(int64_t pid)
{
    char path[64];
    int k = snprintf(path, sizeof path, "/proc/%" PRId64 "/status", pid);
    return k > 0 ? status_bytes(path, "VmRSS") : 0;
}

uint64_t ns_host_free_disk(const char *path)
{
    struct statvfs fs;
    if (statvfs(path, &fs) != 0)
        return 0;
    return (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize;
}

static const char *_Atomic pretended_fs; /* tests only */

void ns_host_pretend_network_fs(const char *name)
{
    pretended_fs = name;
}

bool ns_host_is_network_fs(const char *path, char name[32])
{
    const char *pretended = pretended_fs;
    if (pretended) {
        snprintf(name, 32, "%s", pretended);
        return true;
    }

    static const struct {
        uint32_t magic;
        const char *name;
    } kind[] = {
        {0x6969, "NFS"},       {0x517B, "SMB"},        {0xFF534D42, "SMB"},  {0xFE534D42, "SMB"},
        {0x65735546, "FUSE"},  {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"}, {0x01021997, "9p"},
        {0x00C36400, "Ceph"},  {0x5346414F, "AFS"},    {0x6B414653, "AFS"},  {0x19830326, "BeeGFS"},
        {0x7461636F, "OCFS2"}, {0x01161970, "GFS2"},   {0x73757245, "Coda"},
    };

    char dir[4096];
    struct statfs fs;
    size_t n = strlen(path);
    if (n >= sizeof dir)
        return false;
    memcpy(dir, path, n + 1);
    /* a file that is not there yet lies on its directory's file system */
    while (statfs(dir, &fs) != 0) {
        char *slash = strrchr(dir, '/');
        if (!slash || slash == dir) {
            memcpy(dir, slash ? "/" : ".", 2);
            if (statfs(dir, &fs) != 0)
                return false;
            break;
        }
        *slash = '\0';
    }
    for (size_t i = 0; i < NS_COUNT(kind); i++)
        if ((uint32_t)fs.f_type == kind[i].magic) {
            snprintf(name, 32, "%s", kind[i].name);
            return true;
        }
    return false;
}
