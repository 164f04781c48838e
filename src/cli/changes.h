/* changes.h - what cancel, retry, hold and release share: which rows, how many, are you sure. */
#ifndef NS_CLI_CHANGES_H
#define NS_CLI_CHANGES_H

#include "cli/commands.h"

/* arg is what the change needs to know beside the rows. */
typedef enum ns_code (*ns_change_fn)(struct ns_queue *queue, const struct ns_selection *which, const void *arg,
                                     struct ns_change *change, struct ns_error *err);

/* Applies change to every operand from the first on, or to what --batch and --state select. done is the past tense. */
NS_MUST_CHECK enum ns_code ns_change_requests(struct ns_cli *cli, size_t first, ns_change_fn change, const void *arg,
                                              const char *done, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_change_holds(struct ns_cli *cli, bool held, struct ns_error *err);

/* pause, resume, drain: one row for the whole queue. */
NS_MUST_CHECK enum ns_code ns_change_control(struct ns_cli *cli, enum ns_control_verb verb, const char *done,
                                             struct ns_error *err);
/* 0 to 9, high, normal, low. */
NS_MUST_CHECK enum ns_code ns_priority_read(const char *word, int *out, struct ns_error *err);

#endif
