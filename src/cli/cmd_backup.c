/* cmd_backup.c - copy the queue into one consistent file while others work. */
#include "cli/commands.h"

enum ns_code ns_cmd_backup(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_WRITE, &queue, err);
    if (rc == NS_OK)
        rc = ns_queue_backup(queue, cli->args.operand[0], err);
    ns_queue_close(queue);
    if (rc != NS_OK)
        return rc;
    ns_note(cli, "copied %s to %s", cli->db_path, cli->args.operand[0]);
    if (!cli->json)
        return NS_OK;
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_text(&a, "backup", cli->args.operand[0]);
    return ns_answer_end(&a, cli, err);
}
