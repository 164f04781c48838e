/* cmd_get.c - print the answer of one request. */
#include "cli/commands.h"

enum ns_code ns_cmd_get(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    int64_t batch = 0;
    struct ns_text text;
    ns_text_init(&text, &cli->budget);
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc == NS_OK)
        rc = ns_queue_find_batch(queue, cli->args.operand[0], &batch, err);
    if (rc == NS_OK)
        rc = ns_queue_get(queue, batch, cli->args.operand[1], cli->json, &text, err);
    if (rc != NS_OK && batch != 0)
        ns_error_wrap(err, rc, "%s", cli->args.operand[0]);
    if (rc == NS_BUSY)
        ns_hint(cli, "Wait until it has run; \"nightshift show\" tells how far it is.");
    if (rc == NS_OK && !ns_text_ok(&text))
        rc = ns_error_set(err, NS_BUDGET, "no memory to print the answer");
    if (rc == NS_OK) {
        ns_say_text(cli, text.data ? text.data : "", text.n, true);
        if (text.n == 0 || text.data[text.n - 1] != '\n')
            ns_say(cli, "\n");
    }
    ns_text_fini(&text);
    ns_queue_close(queue);
    return rc;
}
