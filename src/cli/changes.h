/* changes.h - what cancel, retry, hold and release share: which rows, how many, are you sure. */
#ifndef NS_CLI_CHANGES_H
#define NS_CLI_CHANGES_H

#include "cli/commands.h"

typedef enum ns_code (*ns_change_fn)(struct ns_queue *queue, const struct ns_selection *which, struct ns_change *change,
                                     struct ns_error *err);

/* Applies change to every operand, or to what --batch and --state select. done is the past tense for people. */
NS_MUST_CHECK enum ns_code ns_change_requests(struct ns_cli *cli, ns_change_fn change, const char *done,
                                              struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_change_holds(struct ns_cli *cli, bool held, struct ns_error *err);

#endif
