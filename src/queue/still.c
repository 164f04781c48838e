/* still.c - reading a queue whose folder this process may not write.
 *
 * WHAT   Readers of a write-ahead log share an index beside the database (-shm). Where it is there, since somebody has the
 *        queue open, one may read by it without writing. Where it is not and may not be made, nobody has the queue open
 *        and, with no log or an empty one, the file alone is the queue: it is then read without locks ("immutable").
 * WHY    The library would not notice somebody who begins to write meanwhile. So what the file was is noted first (size,
 *        time, inode, no log, no index) and compared after every step of every statement: a row that was read from
 *        something else is never given out, the command ends with NS_BUSY.
 * INVARIANTS
 *   1. Every row comes from the state that was noted first.                             (still_test: a_change_is_noticed)
 *   2. Where the index may be used or made, locks are used.                     (still_test: a_folder_of_ours_has_locks)
 *   3. A log with something in it is not passed over.                           (still_test: a_log_is_not_passed_over) */
#include "queue/queue_impl.h"

#include <stdio.h>
#include <string.h>

/* File times move in steps of the kernel's clock, at most 10 ms. */
#define TIME_STEP_MS 20

struct ns_still {
    struct ns_budget *budget;
    struct ns_file *file;
    uint64_t identity[3];
    char log[NS_PATH_SIZE + 8], index[NS_PATH_SIZE + 8];
};

static bool is_empty_or_absent(const char *path)
{
    struct ns_file *file = NULL;
    if (!ns_path_exists(path))
        return true;
    if (ns_file_open(path, NS_FILE_READ, &file, NULL) != NS_OK)
        return false;
    bool empty = ns_file_bytes(file) == 0;
    return ns_file_close(file, NULL) == NS_OK && empty;
}

static bool folder_is_ours(const char *path)
{
    char folder[NS_PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    return ns_path_may_write(slash ? folder : ".");
}

/* A change within the same step of the clock as one before it would not show in the file's time, so the step must be over. */
static enum ns_code note_identity(struct ns_still *s, struct ns_error *err)
{
    enum ns_code rc = ns_file_identity(s->file, s->identity, err);
    if (rc != NS_OK)
        return rc;
    int64_t age_ms = ns_clock_wall_ms() - (int64_t)(s->identity[1] / 1000000);
    if (age_ms >= TIME_STEP_MS)
        return NS_OK;
    ns_sleep_ms(TIME_STEP_MS);
    return ns_file_identity(s->file, s->identity, err);
}

enum ns_code ns_still_open(const char *path, struct ns_budget *budget, struct ns_still **out, struct ns_error *err)
{
    *out = NULL;
    char log[NS_PATH_SIZE + 8], index[NS_PATH_SIZE + 8];
    snprintf(log, sizeof log, "%s-wal", path);
    snprintf(index, sizeof index, "%s-shm", path);
    if (ns_path_exists(index) || folder_is_ours(path))
        return NS_OK;
    if (!is_empty_or_absent(log))
        return ns_error_set(
            err, NS_IO,
            "%s holds commits that cannot be read where no file can be made; copy it and %s into a folder "
            "that you may write and read them there",
            log, path);
    struct ns_still *s = ns_budget_take(budget, sizeof *s, err);
    if (!s)
        return NS_BUDGET;
    s->budget = budget;
    memcpy(s->log, log, sizeof s->log);
    memcpy(s->index, index, sizeof s->index);
    enum ns_code rc = ns_file_open(path, NS_FILE_READ, &s->file, err);
    if (rc == NS_OK)
        rc = note_identity(s, err);
    if (rc != NS_OK) {
        ns_still_close(s);
        return rc;
    }
    *out = s;
    return NS_OK;
}

void ns_still_close(struct ns_still *s)
{
    if (!s)
        return;
    if (s->file)
        ns_code_ignore(ns_file_close(s->file, NULL)); /* it was only read */
    ns_budget_give(s->budget, s);
}

enum ns_code ns_still_check(const struct ns_still *s, const char *path, struct ns_error *err)
{
    uint64_t now[3];
    if (!s)
        return NS_OK;
    enum ns_code rc = ns_file_identity(s->file, now, err);
    if (rc != NS_OK)
        return rc;
    if (memcmp(now, s->identity, sizeof now) == 0 && !ns_path_exists(s->index) && is_empty_or_absent(s->log))
        return NS_OK;
    return ns_error_set(err, NS_BUSY, "somebody began to write %s while it was read without locks", path);
}

/* file: and the path with what means something in a URI written as %XX. */
enum ns_code ns_still_uri(const char *path, struct ns_text *out, struct ns_error *err)
{
    ns_text_puts(out, path[0] == '/' ? "file://" : "file:");
    for (const char *c = path; *c; c++)
        if (strchr("%?#", *c))
            ns_text_format(out, "%%%02X", (unsigned)*c);
        else
            ns_text_add(out, c, 1);
    ns_text_puts(out, "?immutable=1");
    return ns_text_ok(out) ? NS_OK : ns_error_set(err, NS_BUDGET, "no memory for the path of the queue");
}
