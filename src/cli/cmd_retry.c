/* cmd_retry.c - queue failed, cancelled or expired requests again. */
#include "cli/changes.h"

static enum ns_code retry(struct ns_queue *queue, const struct ns_selection *which, const void *arg,
                          struct ns_change *change, struct ns_error *err)
{
    (void)arg;
    return ns_queue_retry(queue, which, change, err);
}

enum ns_code ns_cmd_retry(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_requests(cli, 0, retry, NULL, "queued again", err);
}
