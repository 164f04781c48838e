/* simqueue.h - what the queue would cost under each order of the scheduler. */
#ifndef NS_CLI_SIMQUEUE_H
#define NS_CLI_SIMQUEUE_H

#include "cli/cli.h"
#include "sched/sched.h"

/* Answers simulate --queue. routing: recorded, NULL: made up; borrowed. name: what the answer calls it. */
NS_MUST_CHECK enum ns_code ns_simulate_queue(struct ns_cli *cli, const struct ns_sim_routing *routing, const char *name,
                                             struct ns_error *err);

#endif
