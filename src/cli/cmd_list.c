/* cmd_list.c - list batches, or requests with -r. */
#include "cli/commands.h"

#include "cli/answers.h"
#include "cli/batches.h"

struct listing {
    struct ns_cli *cli;
    struct ns_table table;
    struct ns_answer_json a;
    int64_t skip; /* batches before the newest --limit */
};

static void utc_or_dash(int64_t wall_ms, char out[24])
{
    if (wall_ms > 0)
        ns_clock_utc_text(wall_ms, out);
    else
        out[0] = '-', out[1] = '\0';
}

static enum ns_code count_batch(void *arg, const struct ns_batch_info *batch, struct ns_error *err)
{
    (void)batch;
    (void)err;
    ++*(int64_t *)arg;
    return NS_OK;
}

static void add_id(struct listing *l, const char *id)
{
    if (l->cli->json)
        ns_json_put_cstring(&l->a.w, id);
    else
        ns_say(l->cli, "%s\n", id);
}

static enum ns_code add_batch(void *arg, const struct ns_batch_info *b, struct ns_error *err)
{
    (void)err;
    struct listing *l = arg;
    if (l->skip > 0) {
        l->skip--;
        return NS_OK;
    }
    if (ns_given(l->cli, NS_OPT_IDS)) {
        add_id(l, b->public_id);
        return NS_OK;
    }
    if (l->cli->json) {
        ns_batch_json(&l->a, b);
        return NS_OK;
    }
    char created[24];
    utc_or_dash(b->created_at_ms, created);
    ns_table_cell(&l->table, "%s", b->public_id);
    ns_table_cell(&l->table, "%s", b->name);
    ns_table_cell(&l->table, "%s%s", b->status, b->held ? ", held" : "");
    ns_table_cell(&l->table, "%" PRId64, b->total);
    ns_table_cell(&l->table, "%" PRId64, b->done);
    ns_table_cell(&l->table, "%" PRId64, b->failed + b->cancelled + b->expired);
    ns_batch_accuracy(b, &l->table);
    ns_table_cell(&l->table, "%s", created);
    return NS_OK;
}

static enum ns_code add_request(void *arg, const struct ns_request_info *r, struct ns_error *err)
{
    struct listing *l = arg;
    if (ns_given(l->cli, NS_OPT_IDS)) {
        char id[24];
        snprintf(id, sizeof id, "#%" PRId64, r->id);
        add_id(l, id);
        return NS_OK;
    }
    if (l->cli->json) {
        ns_json_open_object(&l->a.w);
        ns_request_json(&l->a, r);
        ns_json_close_object(&l->a.w);
        return NS_OK;
    }
    if (ns_given(l->cli, NS_OPT_ANSWERS))
        return ns_answer_row(l->cli, r, &l->table, err);
    ns_table_cell(&l->table, "#%" PRId64, r->id);
    ns_table_cell(&l->table, "%s", r->batch);
    ns_table_cell(&l->table, "%" PRId64, r->line_no);
    ns_table_cell(&l->table, "%s", r->custom_id ? r->custom_id : "-");
    ns_table_cell(&l->table, "%s", r->kind ? r->kind : "-");
    ns_table_cell(&l->table, "%s", r->state);
    ns_table_cell(&l->table, "%" PRId64, r->tries);
    ns_table_cell(&l->table, "%" PRId64, r->n_out);
    ns_table_cell(&l->table, "%s", r->correct < 0 ? "-" : r->correct ? "right" : "wrong");
    return NS_OK;
}

static void add_titles(struct ns_table *table, const char *const *titles, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ns_table_cell(table, "%s", titles[i]);
}

static enum ns_code list_requests(struct listing *l, struct ns_queue *queue, struct ns_error *err)
{
    static const char *const titles[] = {"id",    "batch", "line",   "custom_id", "kind",
                                         "state", "tries", "tokens", "answer"};
    struct ns_selection which = {.state = l->cli->args.text[NS_OPT_STATE],
                                 .limit = (int64_t)l->cli->args.number[NS_OPT_LIMIT]};
    enum ns_code rc = NS_OK;
    bool answers = ns_given(l->cli, NS_OPT_ANSWERS);
    if (answers) {
        ns_table_init(&l->table, l->cli, NS_ANSWER_COLUMNS, 0);
        ns_answer_titles(&l->table);
    } else {
        ns_table_init(&l->table, l->cli, NS_COUNT(titles), 1u << 2 | 1u << 6 | 1u << 7);
        add_titles(&l->table, titles, NS_COUNT(titles));
    }
    if (ns_given(l->cli, NS_OPT_BATCH))
        rc = ns_queue_find_batch(queue, l->cli->args.text[NS_OPT_BATCH], &which.batch_id, err);
    if (rc == NS_OK)
        rc = ns_queue_each_request(queue, &which, answers, add_request, l, err);
    return rc;
}

static enum ns_code list_batches(struct listing *l, struct ns_queue *queue, struct ns_error *err)
{
    static const char *const titles[] = {"batch", "name", "status", "requests", "done", "failed", "right", "created"};
    int64_t batch = 0, limit = (int64_t)l->cli->args.number[NS_OPT_LIMIT];
    enum ns_code rc = NS_OK;
    ns_table_init(&l->table, l->cli, NS_COUNT(titles), 1u << 3 | 1u << 4 | 1u << 5 | 1u << 6);
    add_titles(&l->table, titles, NS_COUNT(titles));
    if (ns_given(l->cli, NS_OPT_STATE) || ns_given(l->cli, NS_OPT_ANSWERS))
        return ns_error_set(err, NS_USAGE, "--state and --answers are about requests: add -r");
    if (ns_given(l->cli, NS_OPT_BATCH))
        rc = ns_queue_find_batch(queue, l->cli->args.text[NS_OPT_BATCH], &batch, err);
    if (rc == NS_OK && limit > 0) {
        rc = ns_queue_each_batch(queue, batch, count_batch, &l->skip, err);
        l->skip -= limit;
    }
    if (rc == NS_OK)
        rc = ns_queue_each_batch(queue, batch, add_batch, l, err);
    return rc;
}

enum ns_code ns_cmd_list(struct ns_cli *cli, struct ns_error *err)
{
    struct listing l = {.cli = cli};
    struct ns_queue *queue = NULL;
    bool requests = ns_given(cli, NS_OPT_REQUESTS), ids = ns_given(cli, NS_OPT_IDS);
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc != NS_OK)
        return rc;
    if (cli->json) {
        ns_answer_begin(&l.a, cli);
        ns_json_put_key(&l.a.w, ids ? "ids" : requests ? "requests" : "batches");
        ns_json_open_array(&l.a.w);
    }
    rc = requests ? list_requests(&l, queue, err) : list_batches(&l, queue, err);
    if (cli->json) {
        ns_json_close_array(&l.a.w);
        if (rc == NS_OK)
            rc = ns_answer_end(&l.a, cli, err);
        else
            ns_text_fini(&l.a.text);
    } else if (rc == NS_OK && !ids) {
        rc = ns_table_say(&l.table, cli, err);
    }
    ns_table_fini(&l.table);
    ns_queue_close(queue);
    return rc;
}
