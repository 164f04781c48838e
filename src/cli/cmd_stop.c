/* cmd_stop.c - ask the runner of this host to stop politely. */
#include "cli/commands.h"

#include "sys/sys.h"

#include <string.h>

enum ns_code ns_cmd_stop(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    struct ns_queue_status status;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc == NS_OK)
        rc = ns_queue_status_read(queue, 0, &status, err);
    ns_queue_close(queue);
    if (rc != NS_OK)
        return rc;
    const struct ns_runner_info *runner = &status.runner;
    bool asked = runner->present && runner->alive;
    if (asked && strcmp(runner->host, ns_host_name()) != 0)
        return ns_error_set(err, NS_USAGE, "runner %" PRId64 " works on %s; stop it there, or use drain", runner->id,
                            runner->host);
    if (asked)
        rc = ns_host_ask_to_stop(runner->pid, runner->pid_start, err);
    if (rc != NS_OK)
        return rc;
    if (asked)
        ns_note(cli, "asked runner %" PRId64 " (pid %" PRId64 ") to stop%s", runner->id, runner->pid,
                runner->halted ? "; it is stopped by a signal and will hear of it when SIGCONT wakes it" : "");
    else
        ns_note(cli, "no runner is alive");
    if (!cli->json)
        return NS_OK;
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_json_put_key(&a.w, "asked");
    ns_json_put_bool(&a.w, asked);
    return ns_answer_end(&a, cli, err);
}
