/* plan_text.h - how the memory of a run is divided, in a few words. */
#ifndef NS_CLI_PLAN_TEXT_H
#define NS_CLI_PLAN_TEXT_H

#include "cli/cli.h"
#include "night/night.h"

/* Kept sequences of so many positions that the share of states holds. */
uint64_t ns_plan_sequences(const struct ns_plan *plan, uint32_t positions);
/* Notes on standard error: how the ceiling was chosen, and what it is for. */
void ns_plan_note(struct ns_cli *cli, const struct ns_night_plan *plan);

#endif
