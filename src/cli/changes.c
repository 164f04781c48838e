/* changes.c - what cancel, retry, hold and release share: which rows, how many, are you sure. */
#include "cli/changes.h"

#include <string.h>

enum { ASK_ABOVE = 100 };

/* Everything that was selected, on one line. */
static enum ns_code answer(struct ns_cli *cli, const char *done, const struct ns_change *total, struct ns_error *err)
{
    if (!cli->json) {
        if (ns_given(cli, NS_OPT_DRY_RUN))
            ns_say(cli, "%" PRId64 " would be %s\n", total->changed, done);
        else
            ns_note(cli, "%" PRId64 " %s", total->changed, done);
        int64_t finished = total->already - total->refused;
        if (finished > 0)
            ns_note(cli, "%" PRId64 " left as %s: there is nothing to change", finished,
                    finished == 1 ? "it is" : "they are");
        if (total->refused > 0)
            ns_note(cli,
                    "%" PRId64 " bad line%s cannot be tried again, for there is no sound request in %s: mend %s in the "
                    "file (show tells what is wrong) and submit the corrected file",
                    total->refused, NS_PLURAL(total->refused), total->refused == 1 ? "it" : "them",
                    total->refused == 1 ? "it" : "them");
        return NS_OK;
    }
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_json_put_key(&a.w, "dry_run");
    ns_json_put_bool(&a.w, ns_given(cli, NS_OPT_DRY_RUN));
    ns_answer_int(&a, "changed", total->changed);
    ns_answer_int(&a, "already", total->already);
    ns_answer_int(&a, "refused", total->refused);
    return ns_answer_end(&a, cli, err);
}

/* More rows than a slip of the finger should touch: a person confirms, a program says --yes. */
static enum ns_code confirm(struct ns_cli *cli, int64_t rows, const char *done, struct ns_error *err)
{
    if (rows <= ASK_ABOVE || ns_given(cli, NS_OPT_YES))
        return NS_OK;
    if (!cli->term_in || !cli->term_err)
        return ns_error_set(err, NS_USAGE, "%" PRId64 " request%s would be %s; say --yes if that is meant", rows,
                            NS_PLURAL(rows), done);
    fprintf(stderr, "%" PRId64 " request%s would be %s. Go on? [y/N] ", rows, NS_PLURAL(rows), done);
    char line[16];
    if (!fgets(line, sizeof line, stdin) || (line[0] != 'y' && line[0] != 'Y'))
        return ns_error_set(err, NS_USAGE, "nothing was changed");
    return NS_OK;
}

static enum ns_code select_rows(struct ns_cli *cli, struct ns_queue *queue, size_t i, struct ns_selection *which,
                                struct ns_error *err)
{
    memset(which, 0, sizeof *which);
    enum ns_code rc = NS_OK;
    if (i < cli->args.n_operands)
        rc = ns_queue_select(queue, cli->args.operand[i], which, err);
    if (rc == NS_OK && ns_given(cli, NS_OPT_BATCH)) {
        int64_t batch = 0;
        rc = ns_queue_find_batch(queue, cli->args.text[NS_OPT_BATCH], &batch, err);
        if (rc == NS_OK && which->batch_id != 0 && which->batch_id != batch)
            return ns_error_set(err, NS_USAGE, "\"%s\" is not in batch %s", cli->args.operand[i],
                                cli->args.text[NS_OPT_BATCH]);
        which->batch_id = batch;
    }
    which->state = cli->args.text[NS_OPT_STATE];
    return rc;
}

/* A request that was named and is not there is not the same as one that has nothing to change. */
static enum ns_code refuse_missing(const struct ns_cli *cli, size_t i, const struct ns_selection *which,
                                   const struct ns_change *change, struct ns_error *err)
{
    const char *batch = cli->args.text[NS_OPT_BATCH];
    if (which->state || !(which->first_id || which->custom_id) || change->changed + change->already > 0)
        return NS_OK;
    return ns_error_set(err, NS_NOINPUT, "there is no request \"%s\"%s%s", cli->args.operand[i], batch ? " in " : "",
                        batch ? batch : "");
}

/* What to do, to which operands. */
struct task {
    size_t first;
    ns_change_fn change;
    const void *arg;
    const char *done;
};

static enum ns_code apply_all(struct ns_cli *cli, struct ns_queue *queue, const struct task *task, bool dry_run,
                              struct ns_change *total, struct ns_error *err)
{
    size_t end = cli->args.n_operands > task->first ? cli->args.n_operands : task->first + 1;
    memset(total, 0, sizeof *total);
    for (size_t i = task->first; i < end; i++) {
        struct ns_selection which;
        struct ns_change one = {.dry_run = dry_run};
        enum ns_code rc = select_rows(cli, queue, i, &which, err);
        if (rc == NS_OK)
            rc = task->change(queue, &which, task->arg, &one, err);
        if (rc == NS_OK)
            rc = refuse_missing(cli, i, &which, &one, err);
        if (rc != NS_OK)
            return rc;
        total->changed += one.changed;
        total->already += one.already;
        total->refused += one.refused;
    }
    return NS_OK;
}

enum ns_code ns_change_requests(struct ns_cli *cli, size_t first, ns_change_fn change, const void *arg,
                                const char *done, struct ns_error *err)
{
    struct task task = {.first = first, .change = change, .arg = arg, .done = done};
    if (cli->args.n_operands <= first && !ns_given(cli, NS_OPT_BATCH))
        return ns_error_set(err, NS_USAGE, "%s wants an id, or --batch", cli->verb->name);
    struct ns_queue *queue = NULL;
    struct ns_change total;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_WRITE, &queue, err);
    if (rc == NS_OK)
        rc = apply_all(cli, queue, &task, true, &total, err); /* how many would it be? */
    if (rc == NS_OK && !ns_given(cli, NS_OPT_DRY_RUN)) {
        rc = confirm(cli, total.changed, done, err);
        if (rc == NS_OK)
            rc = apply_all(cli, queue, &task, false, &total, err);
    }
    if (rc == NS_OK)
        rc = answer(cli, done, &total, err);
    ns_queue_close(queue);
    return rc;
}

enum ns_code ns_change_holds(struct ns_cli *cli, bool held, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    struct ns_change total = {0};
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_WRITE, &queue, err);
    for (size_t i = 0; rc == NS_OK && i < cli->args.n_operands; i++) {
        int64_t batch = 0;
        struct ns_change one = {0};
        rc = ns_queue_find_batch(queue, cli->args.operand[i], &batch, err);
        if (rc == NS_OK)
            rc = ns_queue_hold(queue, batch, held, &one, err);
        total.changed += one.changed;
        total.already += one.already;
    }
    if (rc == NS_OK)
        rc = answer(cli, held ? "held" : "released", &total, err);
    ns_queue_close(queue);
    return rc;
}

enum ns_code ns_change_control(struct ns_cli *cli, enum ns_control_verb verb, const char *done, struct ns_error *err)
{
    struct ns_queue *queue = NULL;
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_WRITE, &queue, err);
    if (rc == NS_OK)
        rc = ns_queue_set_control(queue, verb, cli->args.text[NS_OPT_REASON], err);
    ns_queue_close(queue);
    if (rc != NS_OK)
        return rc;
    if (!cli->json) {
        ns_note(cli, "%s", done);
        return NS_OK;
    }
    struct ns_answer_json a;
    ns_answer_begin(&a, cli);
    ns_answer_text(&a, "control", cli->verb->name);
    ns_answer_text(&a, "reason", cli->args.text[NS_OPT_REASON]);
    return ns_answer_end(&a, cli, err);
}

enum ns_code ns_priority_read(const char *word, int *out, struct ns_error *err)
{
    static const struct {
        const char *word;
        int priority;
    } names[] = {{"high", 2}, {"normal", 5}, {"low", 8}};

    for (size_t i = 0; i < NS_COUNT(names); i++)
        if (strcmp(word, names[i].word) == 0) {
            *out = names[i].priority;
            return NS_OK;
        }
    if (word[0] < '0' || word[0] > '9' || word[1] != '\0')
        return ns_error_set(err, NS_USAGE, "a priority is 0 to 9, high, normal or low, not \"%s\"", word);
    *out = word[0] - '0';
    return NS_OK;
}
