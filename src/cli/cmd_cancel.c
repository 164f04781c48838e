/* cmd_cancel.c - cancel batches or requests. */
#include "cli/changes.h"

enum ns_code ns_cmd_cancel(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_requests(cli, ns_queue_cancel, "cancelled", err);
}
