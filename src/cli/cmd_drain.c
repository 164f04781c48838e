/* cmd_drain.c - start nothing new; the runner ends when what runs is done. */
#include "cli/changes.h"

enum ns_code ns_cmd_drain(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_control(cli, NS_CONTROL_DRAIN, "draining", err);
}
