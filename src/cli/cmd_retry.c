/* cmd_retry.c - queue failed, cancelled or expired requests again. */
#include "cli/changes.h"

enum ns_code ns_cmd_retry(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_requests(cli, ns_queue_retry, "queued again", err);
}
