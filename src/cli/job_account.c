/* job_account.c - the account of a whole job.
 *
 * WHAT   Every wave stores the account of its run so far. The last one of each run is added up: counts, bytes and seconds.
 *        Of what is no sum, the largest is taken (bytes of states) or it is computed anew (shares).
 * WHY    A job that takes days is seldom one run. The lower bound of several runs is the sum of theirs: each began with
 *        nothing in memory. */
#include "cli/job_account.h"

#include <math.h>
#include <string.h>

static bool is_among(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

static void add_member(struct ns_account *a, const char *name, const struct ns_json *value)
{
    static const char *const most[] = {"state_bytes", "spill_file_bytes"}, *const shares[] = {"achieved", "overlap"};
    double v;
    size_t i = 0;
    if (!ns_json_number(value, &v) || is_among(name, shares, NS_COUNT(shares)) || strlen(name) >= NS_ACCOUNT_NAME)
        return;
    while (i < a->n && strcmp(a->member[i].name, name) != 0)
        i++;
    if (i == NS_ACCOUNT_MEMBERS)
        return;
    if (i == a->n) {
        a->n++;
        memcpy(a->member[i].name, name, strlen(name) + 1);
        a->member[i].is_whole = true;
    }
    a->member[i].is_whole = a->member[i].is_whole && ns_json_type(value) == NS_JSON_INT;
    a->member[i].sum = is_among(name, most, NS_COUNT(most)) ? fmax(a->member[i].sum, v) : a->member[i].sum + v;
}

static enum ns_code add_run(void *arg, const struct ns_wave_info *wave, struct ns_error *err)
{
    struct ns_account *a = arg;
    const char *text = wave->record.detail ? wave->record.detail : "{}";
    struct ns_json *detail = NULL;
    enum ns_code rc = ns_json_parse(text, strlen(text), &detail, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "account of wave %" PRId64, wave->id);
    const struct ns_json *job = ns_json_find(detail, "job");
    for (void *it = ns_json_first(job); it; it = ns_json_next(job, it))
        add_member(a, ns_json_key(it), ns_json_value(it));
    ns_json_free(detail);
    return NS_OK;
}

enum ns_code ns_account_read(struct ns_queue *queue, struct ns_account *out, struct ns_error *err)
{
    *out = (struct ns_account){0};
    return ns_queue_each_last_wave(queue, add_run, out, err);
}

double ns_account_sum(const struct ns_account *a, const char *name)
{
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->member[i].name, name) == 0)
            return a->member[i].sum;
    return 0;
}

double ns_account_achieved(const struct ns_account *a)
{
    double wall = ns_account_sum(a, "wall_s");
    return wall > 0 ? ns_account_sum(a, "bound_s") / wall : 0;
}

void ns_account_json(struct ns_answer_json *answer, const char *key, const struct ns_account *a)
{
    ns_json_put_key(&answer->w, key);
    if (a->n == 0) {
        ns_json_put_null(&answer->w);
        return;
    }
    double disk = ns_account_sum(a, "disk_s"), compute = ns_account_sum(a, "compute_s"),
           wall = ns_account_sum(a, "wall_s");
    ns_json_open_object(&answer->w);
    for (size_t i = 0; i < a->n; i++)
        if (a->member[i].is_whole)
            ns_answer_int(answer, a->member[i].name, (int64_t)a->member[i].sum);
        else
            ns_answer_number(answer, a->member[i].name, a->member[i].sum);
    ns_answer_number(answer, "achieved", ns_account_achieved(a));
    ns_answer_number(answer, "overlap", wall > 0 ? fmax(disk, compute) / wall : 0);
    ns_answer_text(answer, "bound_by", wall <= 0 ? "none" : disk > compute ? "disk" : "compute");
    ns_json_close_object(&answer->w);
}
