/* change_test.c - what people ask for, and that the counters, the rows and the files agree afterwards. */
#include "rig.h"

static int setup(void **state)
{
    struct rig *g = calloc(1, sizeof *g);
    rig_open(g);
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    rig_close(*state);
    free(*state);
    return 0;
}

#define LINE(id) "{\"custom_id\":\"" id "\",\"prompt\":[1,2],\"max_tokens\":5,\"ignore_eos\":true}\n"

static void wave(struct rig *g, struct rig_work *w, struct ns_control *control)
{
    RIG_OK(rig_wave(g, w, control, err));
}

/* What night does with a request that was asked to end: its partial result. */
static void end_asked(struct rig *g, struct rig_work *w, const struct ns_control *control)
{
    for (size_t k = 0; k < control->n_asked; k++)
        for (size_t i = 0; i < w->n; i++) {
            struct ns_claim *c = w->claim[i];
            if (c->request_id != control->asked[k].request_id)
                continue;
            bool expired = control->asked[k].what == NS_ASKED_EXPIRE;
            struct ns_outcome o = {.prompt = c->seq[0].prompt.id,
                                   .n_prompt = c->seq[0].prompt.n,
                                   .token = c->seq[0].token,
                                   .n_out = c->seq[0].n_out};
            struct ns_result result;
            RIG_OK(ns_result_ended(&w->request[i], &g->model, expired ? "batch_expired" : "cancelled", "asked", &o,
                                   NULL, &g->budget, &result, err));
            struct ns_request_end end = {.request_id = c->request_id,
                                         .attempt_id = c->attempt_id,
                                         .end = expired ? NS_END_EXPIRED : NS_END_CANCELLED,
                                         .result = &result};
            struct ns_wave_commit commit = {.end = &end, .n_ends = 1};
            struct ns_control after;
            RIG_OK(ns_runner_commit(g->r, &commit, NULL, &after, err));
            ns_control_fini(&after);
            ns_result_fini(&result);
            ns_claim_close(c);
            ns_request_fini(&w->request[i]);
            w->n--;
            w->claim[i] = w->claim[w->n];
            w->request[i] = w->request[w->n];
            break;
        }
}

/* C94: cancel and deadline with work half done, then retry only what is unfinished. */
static void c94_cancel_and_deadline_keep_finished_rows(void **state)
{
    struct rig *g = *state;
    int64_t batch = rig_submit(g, "in", LINE("a") LINE("b") LINE("c") LINE("d"));
    rig_start(g);
    struct rig_work w = {0};
    struct ns_control control;
    rig_claim(g, 1, &w);
    while (w.n > 0) {
        wave(g, &w, &control);
        ns_control_fini(&control);
    }
    rig_drop(g, &w);
    rig_claim(g, 1, &w);
    wave(g, &w, &control);
    ns_control_fini(&control);
    struct ns_change change = {0};
    struct ns_selection one = {.batch_id = batch, .custom_id = "c"};
    RIG_OK(ns_queue_cancel(g->q, &one, &change, err)); /* waiting: at once */
    assert_int_equal(change.changed, 1);
    assert_int_equal(rig_int(g, "SELECT state = 'cancelled' FROM requests WHERE custom_id = 'c'"), 1);
    RIG_OK(ns_queue_set_deadline(g->q, batch, 1, &change, err)); /* long past */
    assert_int_equal(rig_int(g, "SELECT state = 'expired' FROM requests WHERE custom_id = 'd'"), 1);
    wave(g, &w, &control);
    assert_int_equal(control.n_asked, 1);
    assert_int_equal(control.asked[0].what, NS_ASKED_EXPIRE);
    end_asked(g, &w, &control);
    ns_control_fini(&control);
    rig_drop(g, &w);
    rig_doctor(g);
    assert_int_equal(rig_int(g, "SELECT status = 'expired' FROM batches"), 1);
    assert_int_equal(
        rig_int(g, "SELECT COUNT(*) FROM results WHERE local LIKE '%\"partial\":{\"text\":\"\",\"token_ids\":[%'"), 1);

    struct ns_selection all = {.batch_id = batch};
    RIG_OK(ns_queue_retry(g->q, &all, &change, err));
    assert_int_equal(change.changed, 3);
    assert_int_equal(change.already, 1);
    assert_int_equal(rig_int(g, "SELECT status = 'in_progress' FROM batches"), 1);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM events WHERE kind = 'retry' AND json_valid(detail)"), 3);
    rig_run(g, 10);
    rig_stop(g);
    rig_doctor(g);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'done'"), 4);
    /* b went on from its committed tokens and says what an undisturbed run says */
    assert_int_equal(rig_int(g, "SELECT COUNT(DISTINCT n_out) FROM sequences"), 1);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM actions WHERE verb IN ('cancel', 'deadline', 'retry')"), 3);
}

static void cancelling_a_whole_batch(void **state)
{
    struct rig *g = *state;
    int64_t batch = rig_submit(g, "in", LINE("a") LINE("b") LINE("c"));
    rig_start(g);
    struct rig_work w = {0};
    struct ns_control control;
    rig_claim(g, 1, &w);
    wave(g, &w, &control);
    ns_control_fini(&control);
    struct ns_change change = {.dry_run = true};
    struct ns_selection all = {.batch_id = batch};
    RIG_OK(ns_queue_cancel(g->q, &all, &change, err));
    assert_int_equal(change.changed, 3);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM results"), 0);
    change.dry_run = false;
    RIG_OK(ns_queue_cancel(g->q, &all, &change, err));
    assert_int_equal(change.changed, 3);
    assert_int_equal(rig_int(g, "SELECT status = 'cancelling' FROM batches"), 1);
    RIG_OK(ns_runner_look(g->r, &control, err));
    assert_int_equal(control.n_asked, 1);
    assert_int_equal(control.asked[0].what, NS_ASKED_CANCEL);
    end_asked(g, &w, &control);
    ns_control_fini(&control);
    rig_drop(g, &w);
    rig_stop(g);
    rig_doctor(g);
    assert_int_equal(rig_int(g, "SELECT status = 'cancelled' AND cancelled_at IS NOT NULL FROM batches"), 1);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM requests WHERE state = 'cancelled'"), 3);
    RIG_OK(ns_queue_cancel(g->q, &all, &change, err)); /* again: a no-op */
    assert_int_equal(change.changed, 0);
    assert_int_equal(change.already, 3);
}

/* A runner died before it saw the wish: the wish survives it. */
static void a_wish_survives_the_runner(void **state)
{
    struct rig *g = *state;
    int64_t batch = rig_submit(g, "in", LINE("a") LINE("b"));
    rig_start(g);
    struct rig_work w = {0};
    rig_claim(g, 1, &w);
    struct ns_change change = {0};
    struct ns_selection one = {.batch_id = batch, .custom_id = "a"};
    RIG_OK(ns_queue_cancel(g->q, &one, &change, err));
    assert_int_equal(rig_int(g, "SELECT cancel_asked FROM requests WHERE custom_id = 'a'"), 1);
    rig_drop(g, &w);
    ns_runner_abandon(g->r); /* as if it had died */
    rig_start(g);
    assert_int_equal(rig_int(g, "SELECT state = 'cancelled' FROM requests WHERE custom_id = 'a'"), 1);
    rig_stop(g);
    rig_doctor(g);
}

static void hold_asks_running_ones_to_yield(void **state)
{
    struct rig *g = *state;
    int64_t batch = rig_submit(g, "in", LINE("a"));
    rig_start(g);
    struct rig_work w = {0};
    struct ns_control control;
    struct ns_change change = {0};
    rig_claim(g, 1, &w);
    RIG_OK(ns_queue_hold(g->q, batch, true, &change, err));
    wave(g, &w, &control);
    assert_int_equal(control.n_asked, 1);
    assert_int_equal(control.asked[0].what, NS_ASKED_YIELD);
    assert_int_equal(control.queued_now, 0);
    ns_control_fini(&control);
    int64_t id = w.claim[0]->request_id;
    RIG_OK(ns_runner_yield(g->r, &id, 1, err));
    rig_drop(g, &w);
    assert_int_equal(rig_int(g, "SELECT state = 'queued' AND tries = 0 FROM requests"), 1);
    RIG_OK(ns_queue_set_control(g->q, NS_CONTROL_DRAIN, "for the night", err));
    RIG_OK(ns_runner_look(g->r, &control, err));
    assert_true(control.drain && !control.paused);
    ns_control_fini(&control);
    RIG_OK(ns_queue_set_control(g->q, NS_CONTROL_PAUSE, NULL, err));
    RIG_OK(ns_runner_look(g->r, &control, err));
    assert_true(control.paused && !control.drain);
    ns_control_fini(&control);
    rig_stop(g);
}

static void retry_waits_and_gives_up(void **state)
{
    struct rig *g = *state;
    rig_submit(g, "in", LINE("a"));
    rig_sql(g, "UPDATE batches SET max_attempts = 2");
    rig_start(g);
    struct ns_refusal refusal;
    ns_refusal_set(&refusal, 500, "internal", NULL, "it did not work");
    for (int i = 1; i <= 2; i++) {
        struct rig_work w = {0};
        rig_claim(g, 1, &w);
        assert_int_equal(w.n, 1);
        struct ns_result spent;
        RIG_OK(ns_result_fail(&w.request[0], &g->model, &refusal, NULL, NULL, &g->budget, &spent, err));
        struct ns_retry_later later = {.request_id = w.claim[0]->request_id,
                                       .attempt_id = w.claim[0]->attempt_id,
                                       .error = "it did not work",
                                       .result_if_spent = &spent};
        struct ns_wave_commit commit = {.retry = &later, .n_retries = 1};
        struct ns_control control;
        int64_t now = ns_clock_wall_ms();
        RIG_OK(ns_runner_commit(g->r, &commit, NULL, &control, err));
        ns_control_fini(&control);
        ns_result_fini(&spent);
        rig_drop(g, &w);
        if (i == 1) {
            int64_t wait = rig_int(g, "SELECT not_before FROM requests") - now;
            assert_true(wait >= 22000 && wait <= 38000);
            rig_sql(g, "UPDATE requests SET not_before = 0");
        }
    }
    assert_int_equal(rig_int(g, "SELECT state = 'failed' FROM requests"), 1);
    assert_int_equal(rig_int(g, "SELECT COUNT(*) FROM attempts WHERE outcome = 'error' AND error = 'it did not work'"),
                     2);
    rig_stop(g);
    rig_doctor(g);
}

/* C92: ten requests, a refused one and a too long one; counters, rows and files agree. */
static void c92_counts_agree_everywhere(void **state)
{
    struct rig *g = *state;
    char text[4000] = "", ids[400] = "1";
    for (int i = 0; i < 100; i++)
        strcat(ids, ",1");
    for (int i = 0; i < 8; i++)
        sprintf(text + strlen(text), "{\"custom_id\":\"r%d\",\"prompt\":[%d],\"expected\":\"x\"}\n", i, i + 1);
    strcat(text, "{\"custom_id\":\"neg\",\"prompt\":[1],\"temperature\":-1}\n");
    sprintf(text + strlen(text), "{\"custom_id\":\"long\",\"prompt\":[%s]}\n", ids);
    int64_t batch = rig_submit(g, "in", text);
    rig_start(g);
    rig_run(g, 4);
    rig_stop(g);
    rig_doctor(g);
    struct ns_queue_status s;
    RIG_OK(ns_queue_status_read(g->q, batch, &s, err));
    assert_int_equal(s.total, 10);
    assert_int_equal(s.done, 8);
    assert_int_equal(s.failed, 2);
    assert_int_equal(s.done + s.failed + s.cancelled + s.expired, s.total);
    assert_int_equal(s.judged, 8); /* C58: over all rows, whichever run made them */
    char out[600], bad[600];
    snprintf(out, sizeof out, "%s/out", g->scratch.dir);
    snprintf(bad, sizeof bad, "%s/bad", g->scratch.dir);
    struct ns_export_options o = {.output = out, .errors = bad};
    struct ns_export_report report;
    RIG_OK(ns_queue_export(g->q, batch, &o, &report, err));
    assert_int_equal(report.written, s.done);
    assert_int_equal(report.failures, s.failed);
    struct ns_export_summary sum;
    RIG_OK(ns_export_read_summary(out, &g->budget, &sum, err));
    assert_true(sum.lines == 8 && sum.succeeded == 8 && sum.failed == 0 && sum.damaged == 0);
    RIG_OK(ns_export_read_summary(bad, &g->budget, &sum, err));
    assert_true(sum.lines == 2 && sum.succeeded == 0 && sum.failed == 2 && sum.damaged == 0);
    struct ns_text line;
    ns_text_init(&line, &g->budget);
    RIG_OK(ns_queue_get(g->q, batch, "long", true, &line, err));
    assert_non_null(strstr(line.data, "\"status_code\":400"));
    assert_non_null(strstr(line.data, "101 tokens"));
    assert_non_null(strstr(line.data, "context_length_exceeded"));
    ns_text_fini(&line);
}

/* C58: scores come from all rows of the batch, also of an earlier session. */
static void c58_scores_of_both_sessions(void **state)
{
    struct rig *g = *state;
    char text[1000] = "";
    for (int i = 0; i < 6; i++)
        sprintf(text + strlen(text), "{\"custom_id\":\"q%d\",\"prompt\":[1],\"choices\":[[2],[3]],\"answer\":0}\n", i);
    int64_t batch = rig_submit(g, "in", text);
    rig_start(g);
    struct rig_work w = {0};
    struct ns_control control;
    rig_claim(g, 4, &w);
    wave(g, &w, &control);
    ns_control_fini(&control);
    rig_drop(g, &w);
    rig_stop(g);
    struct ns_queue_status s;
    RIG_OK(ns_queue_status_read(g->q, batch, &s, err));
    assert_int_equal(s.judged, 4);
    rig_start(g);
    rig_run(g, 10);
    rig_stop(g);
    RIG_OK(ns_queue_status_read(g->q, batch, &s, err));
    assert_int_equal(s.judged, 6);
    assert_int_equal(s.done, 6);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {T(c94_cancel_and_deadline_keep_finished_rows),
                                       T(cancelling_a_whole_batch),
                                       T(a_wish_survives_the_runner),
                                       T(hold_asks_running_ones_to_yield),
                                       T(retry_waits_and_gives_up),
                                       T(c92_counts_agree_everywhere),
                                       T(c58_scores_of_both_sessions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
