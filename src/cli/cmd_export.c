/* cmd_export.c - write a batch's results as JSON lines, or sum them up. */
#include "cli/commands.h"

#include "cli/batches.h"
#include "sys/sys.h"

#include <string.h>

/* One number for "the same results": SHA-256 over the content hashes of the results in input order, a line each. */
struct digest {
    struct ns_sha256 *hash;
    int64_t n;
};

static enum ns_code add_content(void *arg, const struct ns_request_info *r, struct ns_error *err)
{
    struct digest *d = arg;
    struct ns_json *local = NULL;
    const char *content = NULL;
    size_t n = 0;
    if (r->status_code == 0 && !r->error)
        return NS_OK; /* no result yet */
    enum ns_code rc = ns_json_parse(r->local, strlen(r->local), &local, err);
    if (rc == NS_OK && ns_json_string(ns_json_find(local, "content_sha256"), &content, &n)) {
        ns_sha256_add(d->hash, content, n);
        ns_sha256_add(d->hash, "\n", 1);
        d->n++;
    }
    ns_json_free(local);
    return rc;
}

static enum ns_code read_digest(struct ns_queue *queue, int64_t batch, char hex[NS_SHA256_HEX], struct ns_error *err)
{
    struct digest d = {.hash = ns_sha256_open()};
    struct ns_selection which = {.batch_id = batch};
    uint8_t bytes[NS_SHA256_BYTES];
    if (!d.hash)
        return ns_error_set(err, NS_BUDGET, "no memory for a hash");
    enum ns_code rc = ns_queue_each_request(queue, &which, true, add_content, &d, err);
    ns_sha256_close(d.hash, bytes);
    ns_hex(bytes, d.n > 0 ? sizeof bytes : 0, hex);
    return rc;
}

struct summary {
    struct ns_cli *cli;
    struct ns_queue *queue;
};

static enum ns_code summary_json(struct ns_cli *cli, const struct ns_batch_info *b, const char *digest,
                                 struct ns_error *err)
{
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_text(&a, "type", "summary");
    ns_answer_text(&a, "batch_id", b->public_id);
    ns_answer_text(&a, "name", b->name);
    ns_answer_text(&a, "status", b->status);
    ns_answer_int(&a, "total", b->total);
    ns_answer_int(&a, "completed", b->done);
    ns_answer_int(&a, "failed", b->failed);
    ns_answer_int(&a, "cancelled", b->cancelled);
    ns_answer_int(&a, "expired", b->expired);
    ns_answer_int(&a, "unfinished", b->queued + b->running);
    ns_accuracy_json(&a, b->correct, b->judged);
    ns_answer_int(&a, "prompt_tokens", b->prompt_tokens);
    ns_answer_int(&a, "completion_tokens", b->completion_tokens);
    ns_answer_text(&a, "results_sha256", digest[0] ? digest : NULL);
    return ns_answer_end(&a, cli, err);
}

static enum ns_code summarize(void *arg, const struct ns_batch_info *b, struct ns_error *err)
{
    const struct summary *s = arg;
    struct ns_cli *cli = s->cli;
    char digest[NS_SHA256_HEX];
    enum ns_code rc = read_digest(s->queue, b->id, digest, err);
    if (rc != NS_OK)
        return rc;
    cli->status = ns_outcome_status(b->done, ns_batch_failures(b));
    if (cli->json)
        return summary_json(cli, b, digest, err);
    ns_say(cli, "%s  ", b->public_id);
    ns_say_text(cli, b->name, strlen(b->name), false);
    ns_say(cli, "  %s\n", b->status);
    ns_say(cli,
           "%" PRId64 " request%s: %" PRId64 " done, %" PRId64 " failed, %" PRId64 " cancelled, %" PRId64
           " expired, %" PRId64 " unfinished\n",
           b->total, NS_PLURAL(b->total), b->done, b->failed, b->cancelled, b->expired, b->queued + b->running);
    if (b->judged > 0)
        ns_say(cli, "right: %" PRId64 " of %" PRId64 " (%.1f %%)\n", b->correct, b->judged,
               100.0 * (double)b->correct / (double)b->judged);
    ns_say(cli, "tokens: %" PRId64 " in, %" PRId64 " out\n", b->prompt_tokens, b->completion_tokens);
    ns_say(cli, "results: %s\n", digest[0] ? digest : "none");
    return NS_OK;
}

/* Nothing to write there: the user must not take an old file for this answer, nor look for one that was not made. */
static void note_untouched(struct ns_cli *cli, const char *path)
{
    if (ns_path_exists(path))
        ns_note(cli, "%s was left as it is, since there are no results; its lines are from before", path);
    else
        ns_note(cli, "%s was not made, since there are no results", path);
}

static void note_report(struct ns_cli *cli, const struct ns_export_options *o, const struct ns_export_report *r)
{
    ns_note(cli, "%" PRId64 " result%s, %" PRId64 " failure%s%s", r->written, NS_PLURAL(r->written), r->failures,
            NS_PLURAL(r->failures), r->failures > 0 && !o->errors && !o->merged ? " (not written: see --errors)" : "");
    if (r->missing > 0)
        ns_note(cli, "%" PRId64 " request%s no result yet", r->missing, r->missing == 1 ? " has" : "s have");
    if (r->output_untouched && strcmp(o->output, "-") != 0)
        note_untouched(cli, o->output);
    if (r->errors_removed)
        ns_note(cli, "%s was removed, since there are no failures; its lines were from before", o->errors);
}

static enum ns_code write_files(struct ns_cli *cli, struct ns_queue *queue, int64_t batch, struct ns_error *err)
{
    const char *order = cli->args.text[NS_OPT_ORDER];
    struct ns_export_options options = {
        .output = ns_given(cli, NS_OPT_OUTPUT) ? cli->args.text[NS_OPT_OUTPUT] : "-",
        .errors = cli->args.text[NS_OPT_ERRORS],
        .merged = ns_given(cli, NS_OPT_MERGED),
        .partial = ns_given(cli, NS_OPT_PARTIAL),
        .by_finish = order && order[0] == 'f',
    };
    struct ns_export_report report = {0};
    if (options.merged && options.errors)
        return ns_error_set(err, NS_USAGE, "--merged puts failures into the output; --errors has nothing to add");
    cli->writes_itself = strcmp(options.output, "-") == 0 || (options.errors && strcmp(options.errors, "-") == 0);
    enum ns_code rc = ns_queue_export(queue, batch, &options, &report, err);
    if (rc == NS_BUSY && report.missing > 0)
        ns_hint(cli,
                "Export what is there with --partial, or wait until a run has done the rest (\"nightshift wait\").");
    if (rc == NS_CANTCREAT)
        ns_hint(cli, "Choose another output; nothing was written.");
    if (rc != NS_OK)
        return rc;
    note_report(cli, &options, &report);
    if (report.damaged > 0)
        return ns_error_set(err, NS_CORRUPT, "%" PRId64 " stored result%s not parse and %s left out", report.damaged,
                            report.damaged == 1 ? " does" : "s do", report.damaged == 1 ? "was" : "were");
    cli->status = ns_outcome_status(report.written, report.failures);
    return NS_OK;
}

enum ns_code ns_cmd_export(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    int64_t batch = 0;
    bool summary = ns_given(cli, NS_OPT_SUMMARY);
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc == NS_OK)
        rc = ns_queue_find_batch(queue, cli->args.operand[0], &batch, err);
    if (rc == NS_OK && (!summary || ns_given(cli, NS_OPT_OUTPUT) || ns_given(cli, NS_OPT_ERRORS)))
        rc = write_files(cli, queue, batch, err);
    struct summary sum = {.cli = cli, .queue = queue};
    if (rc == NS_OK && summary)
        rc = ns_queue_each_batch(queue, batch, summarize, &sum, err);
    ns_queue_close(queue);
    return rc;
}
