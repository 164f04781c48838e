/* cmd_release.c - let held batches run. */
#include "cli/changes.h"

enum ns_code ns_cmd_release(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_holds(cli, false, err);
}
