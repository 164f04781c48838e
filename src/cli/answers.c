/* answers.c - a request, its answer and the right one, side by side. */
#include "cli/answers.h"

#include <string.h>

enum { PROMPT_WIDTH = 52, ANSWER_WIDTH = 40 };

void ns_answer_titles(struct ns_table *table)
{
    static const char *const titles[NS_ANSWER_COLUMNS] = {"request", "prompt", "answer", "expected", "verdict"};
    for (size_t i = 0; i < NS_ANSWER_COLUMNS; i++)
        ns_table_cell(table, "%s", titles[i]);
}

/* One cell of at most width characters; what is cut off shows as three dots. */
static void add_cut(struct ns_table *table, const char *s, size_t n, size_t width)
{
    size_t at = 0, characters = 0, cut = 0;
    while (at < n && characters < width) {
        if (characters == width - 3)
            cut = at;
        at++;
        while (at < n && ((uint8_t)s[at] & 0xc0) == 0x80)
            at++;
        characters++;
    }
    if (at == n)
        ns_table_cell(table, "%.*s", (int)n, s);
    else
        ns_table_cell(table, "%.*s...", (int)cut, s);
}

static struct ns_slice text_of(const struct ns_input *input)
{
    return input->is_ids ? (struct ns_slice){.s = "(ids)", .n = 5} : input->text;
}

/* What was asked: the prompt, or what the last message says. */
static struct ns_slice question_of(const struct ns_request *request)
{
    struct ns_slice out = {.s = "", .n = 0};
    if (request->kind != NS_KIND_CHAT)
        return text_of(&request->prompt);
    const struct ns_json *last = ns_json_item(request->messages, ns_json_count(request->messages) - 1);
    if (!ns_json_string(ns_json_find(last, "content"), &out.s, &out.n))
        return (struct ns_slice){.s = "(parts)", .n = 7};
    return out;
}

static struct ns_slice expected_of(const struct ns_request *request)
{
    if (request->has_answer && request->answer < request->n_choices)
        return text_of(&request->choice[request->answer]);
    return request->has_expected ? request->expected : (struct ns_slice){.s = "-", .n = 1};
}

static const char *verdict_of(const struct ns_request_info *r)
{
    if (r->correct >= 0)
        return r->correct ? "right" : "wrong";
    return strcmp(r->state, "done") == 0 ? "-" : r->state;
}

enum ns_code ns_answer_row(struct ns_cli *cli, const struct ns_request_info *r, struct ns_table *table,
                           struct ns_error *err)
{
    struct ns_text answer;
    struct ns_request request = {0};
    struct ns_refusal refusal;
    struct ns_slice question = {.s = "-", .n = 1}, expected = question;
    ns_text_init(&answer, &cli->budget);
    enum ns_code rc = r->status_code > 0 ? ns_result_text(r->response, r->error, &answer, err) : NS_OK;
    if (rc == NS_OK && !r->refused) {
        rc = ns_request_parse(r->body, strlen(r->body), &cli->budget, &request, &refusal, err);
        if (rc == NS_INPUT)
            rc = ns_error_set(err, NS_CORRUPT, "the stored line of request #%" PRId64 " does not parse: %s", r->id,
                              refusal.message);
    }
    if (rc == NS_OK && !r->refused) {
        question = question_of(&request);
        expected = expected_of(&request);
    }
    if (rc == NS_OK) {
        ns_table_cell(table, "%s", r->custom_id ? r->custom_id : "-");
        add_cut(table, question.s, question.n, PROMPT_WIDTH);
        const char *shown = answer.data ? answer.data : "";
        size_t blank = strspn(shown, " \n");
        add_cut(table, shown + blank, answer.n - blank, ANSWER_WIDTH);
        add_cut(table, expected.s, expected.n, ANSWER_WIDTH);
        ns_table_cell(table, "%s", verdict_of(r));
    }
    ns_request_fini(&request);
    ns_text_fini(&answer);
    return rc;
}
