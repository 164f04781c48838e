/* cmd_help.c - explain a verb, or list them. */
#include "cli/commands.h"

enum ns_code ns_cmd_help(struct ns_cli *cli, struct ns_error *err)
{
    const struct ns_verb *verb = cli->verb;
    if (!ns_given(cli, NS_OPT_HELP)) { /* the verb help itself: its operand is the verb to explain */
        verb = cli->args.n_operands > 0 ? ns_verb_find(cli->args.operand[0]) : NULL;
        if (cli->args.n_operands > 0 && !verb) {
            ns_hint(cli, "\"nightshift help\" lists the verbs.");
            return ns_error_set(err, NS_USAGE, "there is no verb \"%s\"", cli->args.operand[0]);
        }
    }
    struct ns_text text;
    ns_text_init(&text, &cli->budget);
    if (ns_given(cli, NS_OPT_MAN))
        ns_help_man(verb, &text);
    else if (verb)
        ns_help_verb(verb, &text);
    else
        ns_help_overview(&text);
    enum ns_code rc = ns_say_built(cli, &text, err);
    ns_text_fini(&text);
    return rc;
}
