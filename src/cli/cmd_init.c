/* cmd_init.c - create the queue's database. */
#include "cli/commands.h"

#include "sys/sys.h"

enum ns_code ns_cmd_init(struct ns_cli *cli, struct ns_error *err)
{
    enum ns_code rc = ns_queue_create(cli->db_path, err);
    if (rc == NS_CANTCREAT && ns_path_exists(cli->db_path))
        ns_hint(cli, "An existing queue is never replaced; name another file with --db.");
    if (rc != NS_OK)
        return rc;
    ns_note(cli, "created %s", cli->db_path);
    if (!cli->json)
        return NS_OK;
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_text(&a, "created", cli->db_path);
    return ns_answer_end(&a, cli, err);
}
