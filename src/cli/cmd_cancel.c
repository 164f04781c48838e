/* cmd_cancel.c - cancel batches or requests. */
#include "cli/changes.h"

static enum ns_code cancel(struct ns_queue *queue, const struct ns_selection *which, const void *arg,
                           struct ns_change *change, struct ns_error *err)
{
    (void)arg;
    return ns_queue_cancel(queue, which, change, err);
}

enum ns_code ns_cmd_cancel(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_requests(cli, 0, cancel, NULL, "cancelled", err);
}
