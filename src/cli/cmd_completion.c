/* cmd_completion.c - print a completion script for a shell. */
#include "cli/commands.h"

enum ns_code ns_cmd_completion(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_text text;
    ns_text_init(&text, &cli->budget);
    enum ns_code rc = ns_help_completion(cli->args.operand[0], &text, err);
    if (rc == NS_OK)
        rc = ns_say_built(cli, &text, err);
    ns_text_fini(&text);
    return rc;
}
