/* cmd_pause.c - start nothing new until resume. */
#include "cli/changes.h"

enum ns_code ns_cmd_pause(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_control(cli, NS_CONTROL_PAUSE, "paused", err);
}
