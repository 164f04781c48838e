/* cmd_priority.c - change the class of batches or requests. */
#include "cli/changes.h"

static enum ns_code set_priority(struct ns_queue *queue, const struct ns_selection *which, const void *arg,
                                 struct ns_change *change, struct ns_error *err)
{
    return ns_queue_set_priority(queue, which, *(const int *)arg, change, err);
}

enum ns_code ns_cmd_priority(struct ns_cli *cli, struct ns_error *err)
{
    int priority = 0;
    enum ns_code rc = ns_priority_read(cli->args.operand[0], &priority, err);
    return rc == NS_OK ? ns_change_requests(cli, 1, set_priority, &priority, "changed", err) : rc;
}
