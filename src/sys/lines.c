/* lines.c - a buffered reader of lines, from a file, a pipe or standard input. A line that is longer than allowed is cut
 * and the rest of it skipped; the next line is whole again. */
#define _GNU_SOURCE
#include "sys/sys_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((size_t)65536)

struct ns_line_reader {
    struct ns_budget *budget; /* borrowed */
    char *path;
    int fd;
    size_t max_line;
    uint64_t offset; /* bytes read from fd so far, for messages */
    bool ended;
    char *chunk; /* [CHUNK]: bytes not yet looked at are chunk[at .. have) */
    size_t at, have;
    char *line; /* grows up to max_line + 1 */
    size_t n, capacity;
};

enum ns_code ns_lines_open(const char *path, size_t max_line, struct ns_budget *budget, struct ns_line_reader **out,
                           struct ns_error *err)
{
    struct ns_line_reader *r = ns_budget_take(budget, sizeof *r, err);
    if (!r)
        return NS_BUDGET;
    bool is_stdin = strcmp(path, "-") == 0;
    r->budget = budget;
    r->max_line = max_line;
    r->fd = -1;
    r->path = ns_sys_copy_text(is_stdin ? "standard input" : path);
    r->chunk = ns_budget_take_raw(budget, CHUNK, 64, err);
    if (!r->path || !r->chunk) {
        ns_lines_close(r);
        return ns_error_set(err, NS_BUDGET, "reading %s: out of memory", path);
    }
    r->fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0) {
        int e = errno;
        ns_lines_close(r);
        return ns_sys_fail(err, e == ENOENT || e == ENOTDIR ? NS_NOINPUT : NS_IO, "opening", path, e);
    }
    *out = r;
    return NS_OK;
}

void ns_lines_close(struct ns_line_reader *r)
{
    if (!r)
        return;
    if (r->fd > STDIN_FILENO)
        close(r->fd); /* only read: its result cannot matter */
    ns_heap_free(r->path);
    ns_budget_give(r->budget, r->chunk);
    ns_budget_give(r->budget, r->line);
    ns_budget_give(r->budget, r);
}

static enum ns_code fill(struct ns_line_reader *r, struct ns_error *err)
{
    ssize_t got;
    if (!ns_sys_wait_for(r->fd, POLLIN))
        return ns_error_set(err, NS_STOPPED, "reading %s was stopped by a signal", r->path);
    do {
        if (ns_fault_hit(NS_FAULT_READ)) {
            errno = ns_fault_mode(NS_FAULT_READ) > 0 ? ns_fault_mode(NS_FAULT_READ) : EIO;
            got = -1;
        } else {
            got = read(r->fd, r->chunk, CHUNK);
        }
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        int e = errno;
        char text[128];
        return ns_error_set(err, NS_IO, "reading %s, offset %" PRIu64 ", length %zu: %s (errno %d)", r->path, r->offset,
                            CHUNK, ns_sys_errno_text(e, text, sizeof text), e);
    }
    r->at = 0;
    r->have = (size_t)got;
    r->offset += (uint64_t)got;
    r->ended = got == 0;
    return NS_OK;
}

/* Adds bytes to the line as far as max_line goes; *cut when some did not fit. */
static enum ns_code add(struct ns_line_reader *r, const char *bytes, size_t n, bool *cut, struct ns_error *err)
{
    size_t room = r->max_line - r->n;
    if (n > room) {
        *cut = true;
        n = room;
    }
    size_t need = r->n + n + 1;
    if (need > r->capacity) {
        size_t capacity = need < 1024 ? 1024 : need + need / 2;
        if (capacity > r->max_line + 1)
            capacity = r->max_line + 1;
        char *line = ns_budget_resize(r->budget, r->line, capacity, err);
        if (!line)
            return ns_error_wrap(err, NS_BUDGET, "a line of %s", r->path);
        r->line = line;
        r->capacity = capacity;
    }
    if (n > 0)
        memcpy(r->line + r->n, bytes, n);
    r->n += n;
    r->line[r->n] = '\0';
    return NS_OK;
}

enum ns_code ns_lines_next(struct ns_line_reader *r, const char **line, size_t *n, bool *cut, struct ns_error *err)
{
    bool any = false, too_long = false;
    r->n = 0;
    for (;;) {
        if (r->at == r->have && !r->ended) {
            enum ns_code rc = fill(r, err);
            if (rc != NS_OK)
                return rc;
        }
        if (r->ended)
            break;
        const char *from = r->chunk + r->at;
        const char *newline = memchr(from, '\n', r->have - r->at);
        size_t k = newline ? (size_t)(newline - from) : r->have - r->at;
        any = true;
        enum ns_code rc = add(r, from, k, &too_long, err);
        if (rc != NS_OK)
            return rc;
        r->at += k + (newline ? 1 : 0);
        if (newline)
            break;
    }
    *line = any ? r->line : NULL;
    *n = any ? r->n : 0;
    *cut = too_long;
    return NS_OK;
}
