/* format_impl.h - private to the room: one list of problems for readers that refuse everything at once. */
#ifndef NS_FORMAT_IMPL_H
#define NS_FORMAT_IMPL_H

#include "format/format.h"

/* Collects what is wrong with a file so that one refusal names all of it. */
struct ns_problems {
    struct ns_text list; /* one a line */
    size_t n, n_hidden;  /* n_hidden did not fit into an error message */
};

void ns_problems_init(struct ns_problems *p, struct ns_budget *budget);
void ns_problems_add(struct ns_problems *p, const char *fmt, ...) NS_PRINTF(2, 3);
/* NS_OK without problems, else code with the whole list as message: lead (may be empty), a blank, then the only
 * problem, or their number and one a line. Frees the list. */
NS_MUST_CHECK enum ns_code ns_problems_close(struct ns_problems *p, enum ns_code code, const char *lead,
                                             struct ns_error *err);

/* An integer set written for people: numbers come in rising order, "2, 4-5". */
struct ns_ranges {
    struct ns_text text;
    uint64_t first, last;
    size_t n;
};

void ns_ranges_init(struct ns_ranges *r, struct ns_budget *budget);
void ns_ranges_add(struct ns_ranges *r, uint64_t value);
const char *ns_ranges_text(struct ns_ranges *r); /* ends the list; borrowed until fini */
void ns_ranges_fini(struct ns_ranges *r);

/* <dir>/<name> into out. NS_INPUT when it does not fit. */
NS_MUST_CHECK enum ns_code ns_path_join(const char *dir, const char *name, char out[4096], struct ns_error *err);

#endif
