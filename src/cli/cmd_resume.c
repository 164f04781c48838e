/* cmd_resume.c - take back pause and drain. */
#include "cli/changes.h"

enum ns_code ns_cmd_resume(struct ns_cli *cli, struct ns_error *err)
{
    return ns_change_control(cli, NS_CONTROL_RESUME, "resumed", err);
}
