/* cmd_submit.c - check the requests of a file and queue them as one batch. */
#include "cli/changes.h"

static enum ns_code answer_json(struct ns_cli *cli, const struct ns_submit_report *report, struct ns_error *err)
{
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_text(&a, "batch_id", report->batch_id[0] ? report->batch_id : NULL);
    ns_json_put_key(&a.w, "existed");
    ns_json_put_bool(&a.w, report->existed);
    ns_json_put_key(&a.w, "continued");
    ns_json_put_bool(&a.w, report->continued);
    ns_answer_int(&a, "lines", report->lines);
    ns_answer_int(&a, "good", report->good);
    ns_answer_int(&a, "bad", report->bad);
    ns_json_put_key(&a.w, "errors");
    ns_json_open_array(&a.w);
    for (size_t i = 0; i < report->n_errors; i++)
        ns_refusal_json(&a.w, &report->error[i].refusal, report->error[i].line);
    ns_json_close_array(&a.w);
    return ns_answer_end(&a, cli, err);
}

static void note_bad_lines(struct ns_cli *cli, const char *path, const struct ns_submit_report *report)
{
    for (size_t i = 0; i < report->n_errors; i++) /* line 0: the file itself, and the error tells it */
        if (report->error[i].line > 0)
            ns_note(cli, "%s: line %" PRId64 ": %s (%s)", path, report->error[i].line, report->error[i].refusal.message,
                    report->error[i].refusal.code);
    int64_t more = report->bad - (int64_t)report->n_errors;
    if (more > 0)
        ns_note(cli, "%s: and %" PRId64 " more bad line%s", path, more, NS_PLURAL(more));
}

static enum ns_code answer(struct ns_cli *cli, const char *path, const struct ns_submit_report *report,
                           struct ns_error *err)
{
    bool dry = ns_given(cli, NS_OPT_DRY_RUN);
    note_bad_lines(cli, path, report);
    if (cli->json)
        return answer_json(cli, report, err);
    if (dry) {
        ns_say(cli, "%" PRId64 " request%s would be queued, %" PRId64 " line%s bad\n", report->good,
               NS_PLURAL(report->good), report->bad, report->bad == 1 ? " is" : "s are");
        return NS_OK;
    }
    ns_say(cli, "%s\n", report->batch_id);
    if (report->existed)
        ns_note(cli, "this file was submitted before under this name; --again makes a second copy");
    else
        ns_note(cli, "%" PRId64 " request%s queued, %" PRId64 " bad line%s%s", report->good, NS_PLURAL(report->good),
                report->bad, NS_PLURAL(report->bad), report->continued ? " (an interrupted submit was finished)" : "");
    return NS_OK;
}

enum ns_code ns_cmd_submit(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_submit_options options = {
        .name = cli->args.text[NS_OPT_NAME],
        .priority = 5,
        .strict = ns_given(cli, NS_OPT_STRICT),
        .dry_run = ns_given(cli, NS_OPT_DRY_RUN),
        .hold = ns_given(cli, NS_OPT_HOLD),
        .again = ns_given(cli, NS_OPT_AGAIN),
    };
    const char *path = cli->args.operand[0];
    struct ns_queue *queue = NULL;
    struct ns_submit_report report = {0};
    enum ns_code rc = NS_OK;
    if (ns_given(cli, NS_OPT_PRIORITY))
        rc = ns_priority_read(cli->args.text[NS_OPT_PRIORITY], &options.priority, err);
    if (rc == NS_OK)
        rc = ns_cli_open_queue(cli, NS_QUEUE_WRITE, &queue, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_queue_submit(queue, path, &options, &report, err);
    if (rc == NS_OK)
        rc = answer(cli, path, &report, err);
    else if (report.n_errors > 0) {
        note_bad_lines(cli, path, &report);
        if (cli->json && answer_json(cli, &report, NULL) != NS_OK)
            ns_note(cli, "no memory to list the bad lines");
        if (ns_given(cli, NS_OPT_STRICT) && report.lines > 0)
            ns_hint(cli, "Mend the lines, or submit without --strict: bad lines then fail alone.");
    }
    if (rc == NS_STOPPED)
        ns_note(cli, "stopped; the same command goes on where it was");
    ns_submit_report_fini(&report);
    ns_queue_close(queue);
    return rc;
}
