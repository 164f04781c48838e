/* progress.h - how a run shows on standard error while it works. */
#ifndef NS_CLI_PROGRESS_H
#define NS_CLI_PROGRESS_H

#include "cli/cli.h"
struct ns_answer_json;
struct ns_night_report;
struct ns_night_ended;

struct ns_progress;

/* A redrawn block on a terminal, plain lines elsewhere, one JSON object for each wave and each finished request on
 * standard output with --json, nothing with --quiet or --no-progress; USR1 prints one line in any case. Log lines scroll
 * above the block: cli->progress is set. Starts a thread that keeps the clock of the block going and listens for USR1. */
NS_MUST_CHECK enum ns_code ns_progress_open(struct ns_cli *cli, struct ns_progress **out, struct ns_error *err);
/* News from the run; any number of times, from one thread. */
void ns_progress_update(struct ns_progress *progress, const struct ns_night_report *report);
void ns_progress_ended(struct ns_progress *progress, const struct ns_night_ended *ended);
/* The members that every JSON line of a run begins with. */
void ns_progress_begin(struct ns_answer_json *a, struct ns_cli *cli, const char *type);
/* Clears the block. NULL is fine. */
void ns_progress_close(struct ns_progress *progress);
/* Around other output on standard error: the block steps aside. NULL is fine. */
void ns_progress_hide(struct ns_progress *progress);
void ns_progress_unhide(struct ns_progress *progress);

#endif
