/* problems.c - everything that is wrong with a file, in one message.
 * A user who repairs a checkpoint wants the whole list, not the first line of it; an error message has room for about
 * forty problems, further ones are counted. */
#include "format/format_impl.h"

#include <stdio.h>
#include <string.h>

static const size_t list_limit = 3600; /* leaves room for the lead in ns_error.message */

void ns_problems_init(struct ns_problems *p, struct ns_budget *budget)
{
    memset(p, 0, sizeof *p);
    ns_text_init(&p->list, budget);
}

void ns_problems_add(struct ns_problems *p, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    p->n++;
    if (n < 0 || p->list.n + strlen(line) + 1 > list_limit) {
        p->n_hidden++;
        return;
    }
    ns_text_puts(&p->list, line);
    ns_text_puts(&p->list, "\n");
}

enum ns_code ns_problems_close(struct ns_problems *p, enum ns_code code, const char *lead, struct ns_error *err)
{
    size_t n = p->n, hidden = p->n_hidden;
    bool ok = ns_text_ok(&p->list);
    if (ok && p->list.n > 0)
        p->list.data[p->list.n - 1] = '\0'; /* the last line break */
    const char *blank = lead[0] ? " " : "", *list = ok && p->list.data ? p->list.data : "";
    if (n == 0)
        code = NS_OK;
    else if (!ok)
        code = ns_error_set(err, NS_BUDGET, "no memory for a list of %zu problems", n);
    else if (hidden > 0)
        code = ns_error_set(err, code, "%s%s%zu problems:\n%s\nand %zu more", lead, blank, n, list, hidden);
    else if (n > 1)
        code = ns_error_set(err, code, "%s%s%zu problems:\n%s", lead, blank, n, list);
    else
        code = ns_error_set(err, code, "%s%s%s", lead, blank, list);
    ns_text_fini(&p->list);
    return code;
}

void ns_ranges_init(struct ns_ranges *r, struct ns_budget *budget)
{
    memset(r, 0, sizeof *r);
    ns_text_init(&r->text, budget);
}

static void flush_range(struct ns_ranges *r)
{
    if (r->n == 0)
        return;
    if (r->text.n > 0)
        ns_text_puts(&r->text, ", ");
    if (r->first == r->last)
        ns_text_format(&r->text, "%" PRIu64, r->first);
    else
        ns_text_format(&r->text, "%" PRIu64 "-%" PRIu64, r->first, r->last);
}

void ns_ranges_add(struct ns_ranges *r, uint64_t value)
{
    if (r->n > 0 && value == r->last + 1) {
        r->last = value;
        r->n++;
        return;
    }
    flush_range(r);
    r->first = r->last = value;
    r->n++;
}

const char *ns_ranges_text(struct ns_ranges *r)
{
    flush_range(r);
    r->n = 0;
    return r->text.data ? r->text.data : "";
}

void ns_ranges_fini(struct ns_ranges *r)
{
    ns_text_fini(&r->text);
}

enum ns_code ns_path_join(const char *dir, const char *name, char out[4096], struct ns_error *err)
{
    return ns_path_format(out, 4096, NS_INPUT, err, "%s/%s", dir, name);
}
