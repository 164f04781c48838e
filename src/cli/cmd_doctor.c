/* cmd_doctor.c - check the queue: its rules, its file, the library. */
#include "cli/commands.h"
#include "engine/engine.h"

#include <string.h>

struct findings {
    struct ns_cli *cli;
    struct ns_answer_json *json; /* NULL: text */
};

static void say_finding(void *arg, const char *invariant, bool is_note, int64_t ref, const char *text)
{
    struct findings *f = arg;
    if (f->json) {
        ns_json_open_object(&f->json->w);
        ns_answer_text(f->json, "rule", invariant);
        ns_json_put_key(&f->json->w, "note");
        ns_json_put_bool(&f->json->w, is_note);
        ns_answer_int(f->json, "ref", ref);
        ns_answer_text(f->json, "text", text);
        ns_json_close_object(&f->json->w);
        return;
    }
    ns_say_painted(f->cli, is_note ? NS_YELLOW : NS_RED, is_note ? "note" : "fault");
    ns_say(f->cli, " %s: ", invariant);
    ns_say_text(f->cli, text, strlen(text), false);
    if (ref != 0)
        ns_say(f->cli, " (row %" PRId64 ")", ref);
    ns_say(f->cli, "\n");
}

enum ns_code ns_cmd_doctor(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    int64_t n = 0;
    struct ns_answer_json a;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc != NS_OK)
        return rc;
    struct findings findings = {.cli = cli, .json = cli->json ? &a : NULL};
    if (cli->json) {
        ns_answer_begin(&a, cli);
        ns_answer_text(&a, "sqlite", ns_queue_library_version());
        ns_json_put_key(&a.w, "findings");
        ns_json_open_array(&a.w);
    }
    struct ns_doctor_options options = {.deep = ns_given(cli, NS_OPT_DEEP), .check_side = ns_side_verify};
    rc = ns_queue_doctor(queue, &options, say_finding, &findings, &n, err);
    if (cli->json) {
        ns_json_close_array(&a.w);
        ns_answer_int(&a, "faults", n);
        enum ns_code said = ns_answer_end(&a, cli, err);
        rc = rc == NS_OK ? said : rc;
    } else if (rc == NS_OK) {
        ns_say(cli, "%" PRId64 " fault%s in %s (SQLite %s)\n", n, NS_PLURAL(n), ns_queue_path(queue),
               ns_queue_library_version());
    }
    ns_queue_close(queue);
    if (rc == NS_OK && n > 0)
        cli->status = ns_code_exit(NS_CORRUPT);
    return rc;
}
