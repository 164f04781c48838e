/* cgroup.c - the control groups of this process, innermost first, for both versions of the interface. A group's limit is
 * bounded by each of its parents', so whoever asks looks at all of them. */
#include "sys/sys_impl.h"

#include <stdio.h>
#include <string.h>

/* True when the comma-separated list names the controller. */
static bool list_has(const char *list, size_t n, const char *word)
{
    size_t k = strlen(word);
    for (size_t i = 0; i < n;) {
        size_t j = i;
        while (j < n && list[j] != ',')
            j++;
        if (j - i == k && memcmp(list + i, word, k) == 0)
            return true;
        i = j + 1;
    }
    return false;
}

/* group and all its parents below the mount; group begins with a slash and is eaten from the end. */
static void walk_up(const char *mount, char *group, bool is_v2, ns_group_each_fn each, void *arg)
{
    for (;;) {
        char dir[4096];
        bool at_top = group[0] == '\0' || strcmp(group, "/") == 0;
        int k = snprintf(dir, sizeof dir, "%s%s", mount, at_top ? "" : group);
        if (k > 0 && (size_t)k < sizeof dir)
            each(arg, dir, is_v2);
        if (at_top)
            return;
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

void ns_sys_groups(const char *root, const char *controller, ns_group_each_fn each, void *arg)
{
    char path[4096], mount[4096], text[16384];
    int k = snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (k < 0 || (size_t)k >= sizeof path || !ns_sys_read_text(path, text, sizeof text))
        return;
    /* lines "id:controllers:/group"; version 2 has id 0 and no controllers */
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        char *list = strchr(line, ':');
        char *group = list ? strchr(list + 1, ':') : NULL;
        if (group) {
            size_t n = (size_t)(group - list - 1);
            bool is_v2 = n == 0;
            if (is_v2 || list_has(list + 1, n, controller)) {
                k = snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, is_v2 ? "" : "/",
                             is_v2 ? "" : controller);
                if (k > 0 && (size_t)k < sizeof mount)
                    walk_up(mount, group + 1, is_v2, each, arg);
            }
        }
        if (!end)
            break;
        line = end + 1;
    }
}
