/* cmd_hold.c - keep batches from being started. */
#include "cli/changes.h"

enum ns_code ns_cmd_hold(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_holds(cli, true, err);
}
