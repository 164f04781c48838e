/* batches.c - how a batch and a request look, to people and in JSON. */
#include "cli/batches.h"

#include <string.h>

void ns_answer_raw(struct ns_answer_json *answer, const char *key, const char *json)
{
    ns_json_put_key(&answer->w, key);
    if (json)
        ns_json_put_raw(&answer->w, json, strlen(json));
    else
        ns_json_put_null(&answer->w);
}

void ns_accuracy_json(struct ns_answer_json *answer, int64_t correct, int64_t judged)
{
    ns_json_put_key(&answer->w, "accuracy");
    if (judged == 0) {
        ns_json_put_null(&answer->w);
        return;
    }
    ns_json_open_object(&answer->w);
    ns_answer_int(answer, "correct", correct);
    ns_answer_int(answer, "judged", judged);
    ns_answer_number(answer, "share", (double)correct / (double)judged);
    ns_json_close_object(&answer->w);
}

void ns_batch_accuracy(const struct ns_batch_info *batch, struct ns_table *table)
{
    if (batch->judged > 0)
        ns_table_cell(table, "%" PRId64 "/%" PRId64, batch->correct, batch->judged);
    else
        ns_table_cell(table, "-");
}

static void add_times(struct ns_answer_json *a, const struct ns_batch_info *b)
{
    ns_answer_time(a, "created_at", b->created_at_ms);
    ns_answer_time(a, "in_progress_at", b->in_progress_at_ms);
    ns_answer_time(a, "expires_at", b->deadline_at_ms);
    ns_answer_time(a, "finalizing_at", b->finalizing_at_ms);
    ns_answer_time(a, "completed_at", b->completed_at_ms);
    ns_answer_time(a, "failed_at", b->failed_at_ms);
    ns_answer_time(a, "expired_at", b->expired_at_ms);
    ns_answer_time(a, "cancelling_at", b->cancelling_at_ms);
    ns_answer_time(a, "cancelled_at", b->cancelled_at_ms);
}

static void add_local(struct ns_answer_json *a, const struct ns_batch_info *b)
{
    ns_json_put_key(&a->w, "x_local");
    ns_json_open_object(&a->w);
    ns_answer_text(a, "name", b->name);
    ns_json_put_key(&a->w, "held");
    ns_json_put_bool(&a->w, b->held);
    ns_answer_int(a, "priority", b->priority);
    ns_answer_text(a, "fingerprint", b->fingerprint);
    ns_answer_int(a, "queued", b->queued);
    ns_answer_int(a, "running", b->running);
    ns_answer_int(a, "refused", b->refused);
    ns_answer_int(a, "cancelled", b->cancelled);
    ns_answer_int(a, "expired", b->expired);
    ns_accuracy_json(a, b->correct, b->judged);
    ns_json_close_object(&a->w);
}

void ns_batch_json(struct ns_answer_json *a, const struct ns_batch_info *b)
{
    ns_json_open_object(&a->w);
    ns_answer_text(a, "id", b->public_id);
    ns_answer_text(a, "object", "batch");
    ns_answer_text(a, "endpoint", b->endpoint);
    ns_answer_raw(a, "errors", b->validation_errors);
    ns_answer_text(a, "input_file_id", b->input_name);
    ns_answer_text(a, "completion_window", "24h");
    ns_answer_text(a, "status", b->status);
    ns_answer_text(a, "output_file_id", NULL);
    ns_answer_text(a, "error_file_id", NULL);
    add_times(a, b);
    ns_json_put_key(&a->w, "request_counts");
    ns_json_open_object(&a->w);
    ns_answer_int(a, "total", b->total);
    ns_answer_int(a, "completed", b->done);
    ns_answer_int(a, "failed", b->failed + b->cancelled + b->expired);
    ns_json_close_object(&a->w);
    ns_answer_raw(a, "metadata", b->metadata);
    ns_answer_text(a, "model", b->model);
    ns_json_put_key(&a->w, "usage");
    ns_json_open_object(&a->w);
    ns_answer_int(a, "input_tokens", b->prompt_tokens);
    ns_answer_int(a, "output_tokens", b->completion_tokens);
    ns_answer_int(a, "total_tokens", b->prompt_tokens + b->completion_tokens);
    ns_json_close_object(&a->w);
    add_local(a, b);
    ns_json_close_object(&a->w);
}

void ns_request_json(struct ns_answer_json *a, const struct ns_request_info *r)
{
    ns_answer_int(a, "id", r->id);
    ns_answer_text(a, "batch", r->batch);
    ns_answer_int(a, "line", r->line_no);
    ns_answer_text(a, "custom_id", r->custom_id);
    ns_answer_text(a, "kind", r->kind);
    ns_answer_text(a, "state", r->state);
    ns_json_put_key(&a->w, "refused");
    ns_json_put_bool(&a->w, r->refused);
    ns_json_put_key(&a->w, "cancel_asked");
    ns_json_put_bool(&a->w, r->cancel_asked);
    ns_answer_int(a, "priority", r->priority);
    ns_answer_int(a, "tries", r->tries);
    ns_answer_int(a, "prompt_tokens", r->n_prompt);
    ns_answer_int(a, "tokens_out", r->n_out);
    ns_answer_time(a, "enqueued_at", r->enqueued_at_ms);
    ns_answer_time(a, "started_at", r->started_at_ms);
    ns_answer_time(a, "finished_at", r->finished_at_ms);
    ns_json_put_key(&a->w, "correct");
    if (r->correct < 0)
        ns_json_put_null(&a->w);
    else
        ns_json_put_bool(&a->w, r->correct != 0);
}

int64_t ns_batch_failures(const struct ns_batch_info *b)
{
    return b->failed + b->cancelled + b->expired + (b->status && strcmp(b->status, "failed") == 0);
}

int ns_outcome_status(int64_t succeeded, int64_t failed)
{
    return failed == 0 ? 0 : succeeded > 0 ? 1 : 2;
}
