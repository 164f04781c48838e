/* cmd_waves.c - what each wave did and what bound it. */
#include "cli/commands.h"

#include "cli/batches.h"

#include <string.h>

enum { COLUMNS = 11, USUAL_ROWS = 20 };

struct listing {
    struct ns_cli *cli;
    struct ns_table table;
    struct ns_answer_json a;
};

/* A number of the stored account; 0 when it is not there. */
static double number_of(const struct ns_json *detail, const char *name)
{
    double v = 0;
    return ns_json_number(ns_json_find(detail, name), &v) ? v : 0;
}

static enum ns_code wave_json(struct listing *l, const struct ns_wave_info *wave)
{
    const struct ns_wave_record *r = &wave->record;
    ns_json_open_object(&l->a.w);
    ns_answer_int(&l->a, "wave", wave->id);
    ns_answer_int(&l->a, "runner", wave->runner_id);
    ns_answer_text(&l->a, "kind", r->kind);
    ns_answer_time(&l->a, "began_at", r->began_at_ms);
    ns_answer_int(&l->a, "ms", r->ended_at_ms - r->began_at_ms);
    ns_answer_int(&l->a, "sequences", r->n_seqs);
    ns_answer_int(&l->a, "tokens_in", r->n_tokens_in);
    ns_answer_int(&l->a, "tokens_out", r->n_tokens_out);
    ns_answer_int(&l->a, "bytes_read", (int64_t)r->bytes_read);
    ns_answer_int(&l->a, "io_ms", (int64_t)r->io_ms);
    ns_answer_int(&l->a, "compute_ms", (int64_t)r->compute_ms);
    ns_answer_int(&l->a, "rss_bytes", (int64_t)r->rss_bytes);
    ns_answer_raw(&l->a, "detail", r->detail);
    ns_json_close_object(&l->a.w);
    return NS_OK;
}

static enum ns_code add_wave(void *arg, const struct ns_wave_info *wave, struct ns_error *err)
{
    struct listing *l = arg;
    if (l->cli->json)
        return wave_json(l, wave);
    const struct ns_wave_record *r = &wave->record;
    struct ns_json *detail = NULL;
    const char *text = r->detail ? r->detail : "{}", *bound = "-";
    size_t n = 0;
    enum ns_code rc = ns_json_parse(text, strlen(text), &detail, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "account of wave %" PRId64, wave->id);
    if (!ns_json_string(ns_json_find(detail, "bound_by"), &bound, &n))
        bound = "-";
    char size[16], saved[24], achieved[40] = "-"; /* no rates are known where a small model was not measured */
    ns_size_text(r->bytes_read, size);
    snprintf(saved, sizeof saved, "%.0f",
             number_of(detail, "rows_saved_by_prefix") + number_of(detail, "rows_saved_by_same"));
    if (number_of(detail, "bound_s") > 0)
        snprintf(achieved, sizeof achieved, "%.2f %.16s", number_of(detail, "achieved"), bound);
    ns_table_cell(&l->table, "%" PRId64, wave->id);
    ns_table_cell(&l->table, "%s", r->kind);
    ns_table_cell(&l->table, "%" PRIu32, r->n_tokens_in);
    ns_table_cell(&l->table, "%s", saved);
    ns_table_cell(&l->table, "%" PRIu32, r->n_tokens_out);
    ns_table_cell(&l->table, "%.0f", number_of(detail, "experts_requested"));
    ns_table_cell(&l->table, "%.0f", number_of(detail, "experts_distinct"));
    ns_table_cell(&l->table, "%.0f", number_of(detail, "experts_read"));
    ns_table_cell(&l->table, "%s", size);
    ns_table_cell(&l->table, "%.2f s", (double)(r->ended_at_ms - r->began_at_ms) / 1000);
    ns_table_cell(&l->table, "%s", achieved);
    ns_json_free(detail);
    return NS_OK;
}

enum ns_code ns_cmd_waves(struct ns_cli *cli, struct ns_error *err)
{
    static const char *const titles[COLUMNS] = {"wave",     "kind", "rows", "saved", "tokens",  "experts",
                                                "distinct", "read", "disk", "time",  "achieved"};
    struct listing l = {.cli = cli};
    struct ns_queue *queue = NULL;
    int64_t limit = (int64_t)cli->args.number[NS_OPT_LIMIT];
    enum ns_code rc = ns_cli_open_queue(cli, NS_QUEUE_READ, &queue, err);
    if (rc != NS_OK)
        return rc;
    if (cli->json) {
        ns_answer_begin(&l.a, cli);
        ns_json_put_key(&l.a.w, "waves");
        ns_json_open_array(&l.a.w);
    } else {
        ns_table_init(&l.table, cli, COLUMNS, 0x3fd); /* all but kind and achieved are numbers */
        for (size_t i = 0; i < COLUMNS; i++)
            ns_table_cell(&l.table, "%s", titles[i]);
    }
    rc = ns_queue_each_wave(queue, 0, limit > 0 ? limit : cli->json ? 0 : USUAL_ROWS, add_wave, &l, err);
    ns_queue_close(queue);
    if (cli->json) {
        ns_json_close_array(&l.a.w);
        if (rc == NS_OK)
            return ns_answer_end(&l.a, cli, err);
        ns_text_fini(&l.a.text);
        return rc;
    }
    if (rc == NS_OK)
        rc = ns_table_say(&l.table, cli, err);
    ns_table_fini(&l.table);
    return rc;
}
