/* cmd_plan.c - how memory would be shared, what a wave moves, and how long the queue would take; after a run, forecast
 * and fact side by side. The shares are those a run takes; times come from a short measurement of this machine, or from
 * given rates. */
#include "cli/commands.h"

#include "cli/forecast.h"
#include "cli/plan_text.h"
#include "sys/sys.h"

#include <string.h>

static const enum ns_share shares[] = {NS_SHARE_MODEL,  NS_SHARE_TILES,    NS_SHARE_EXPERTS, NS_SHARE_ROWS,
                                       NS_SHARE_STATES, NS_SHARE_RESIDENT, NS_SHARE_SLACK};

/* ---- text ---------------------------------------------------------------------------------------------------------------- */

static void say_bytes(struct ns_cli *cli, const char *what, uint64_t bytes, const char *note)
{
    char size[16];
    ns_size_text(bytes, size);
    ns_say(cli, "  %-20s %10s%s%s\n", what, size, note[0] ? "  " : "", note);
}

static void say_memory(struct ns_cli *cli, const struct ns_night_plan *p)
{
    char note[96];
    ns_say(cli, "memory\n");
    say_bytes(cli, "free", p->view.free_bytes,
              p->view.is_chosen ? "less what others were promised, less a margin" : "");
    say_bytes(cli, "ceiling", p->ceiling_bytes, p->view.is_chosen ? "chosen" : "");
    snprintf(note, sizeof note, "below it a run is refused (waves of %" PRIu32 " row%s)", p->engine.floor_rows,
             NS_PLURAL(p->engine.floor_rows));
    say_bytes(cli, "floor", p->floor_bytes, note);
    say_bytes(cli, "program", p->slack_bytes, "code, libraries, SQLite");
    say_bytes(cli, "requests and plans", p->desk_bytes, "");
    for (size_t i = 0; i < NS_COUNT(shares); i++)
        say_bytes(cli, ns_share_name(shares[i]), p->engine.share[shares[i]], "");
    say_bytes(cli, "of it dense", p->engine.keep.trunk_bytes + p->engine.keep.head_bytes, "tiles of layers and head");
    ns_say(cli, "  %-20s %10" PRIu32 "  of %" PRIu64 ", when no states need the room\n", "of it experts",
           p->engine.keep.experts, (uint64_t)p->engine.n_moe_layers * p->engine.n_experts);
    ns_say(cli, "  %-20s %10" PRIu32 "\n", "rows of a wave", p->engine.rows_max);
    ns_say(cli, "  %-20s %10" PRIu64 "  of 1024 positions\n", "sequences in flight",
           ns_plan_sequences(&p->engine, 1024));
    if (p->engine.spill_file_bytes > 0) {
        char one[16], room[16];
        ns_size_text(p->engine.spill_file_bytes, one);
        ns_size_text(p->engine.spill_free_bytes, room);
        snprintf(note, sizeof note, "most on disk, of %s free; %s a state", room, one);
        say_bytes(cli, "spilled states", p->engine.spill_bytes, note);
        ns_say(cli, "  %-20s %10" PRIu32 "  sequence%s more in flight\n", "", p->engine.spilled_most,
               NS_PLURAL(p->engine.spilled_most));
    }
    ns_say(cli, "  %-20s %10" PRIu32 "\n", "context", p->engine.context);
}

static void say_range(struct ns_cli *cli, const char *what, const struct ns_range *r)
{
    char low[24], high[24];
    ns_span_text(r->low, low);
    ns_span_text(r->high, high);
    ns_say(cli, "  %-20s %10s to %s\n", what, low, high);
}

static void say_wave(struct ns_cli *cli, const struct ns_outlook *o)
{
    char rate[16];
    ns_size_text((uint64_t)o->rates.disk_bytes_per_s, rate);
    ns_say(cli, "a wave of %" PRIu32 " row%s\n", o->wave.rows, NS_PLURAL(o->wave.rows));
    say_bytes(cli, "dense weights", o->wave.move.trunk_bytes, "");
    say_bytes(cli, "output head", o->wave.move.head_bytes, "");
    say_bytes(cli, "embedding", o->wave.move.embed_bytes, "");
    say_bytes(cli, "experts", o->wave.move.expert_bytes, "");
    say_bytes(cli, "kept in memory", o->wave.move.kept_bytes, "not read");
    ns_say(cli, "  %-20s %10.1f s  at %s/s (%s)\n", "disk", o->wave.disk_s, rate, o->rates.disk_source);
    ns_say(cli, "  %-20s %10.1f s  at %.1f GFMA/s (%s)\n", "compute", o->wave.compute_s, o->rates.fma_per_s / 1e9,
           o->rates.fma_source);
    say_range(cli, "together", &o->wave.wall);
    ns_say(cli, "  %-20s %10.3g to %.3g\n", "rows per second", o->wave.rows / o->wave.wall.high,
           o->wave.rows / o->wave.wall.low);
}

static void say_queue(struct ns_cli *cli, const struct ns_outlook *o)
{
    const struct ns_load *q = &o->load;
    ns_say(cli, "the queue: %" PRIu64 " request%s, %" PRIu64 " token%s in\n", q->requests, NS_PLURAL(q->requests),
           q->tokens_in, NS_PLURAL(q->tokens_in));
    if (q->tokens_out_most == 0)
        ns_say(cli, "  %-20s none: choices are read, not written\n", "tokens out");
    else if (q->finished > 0)
        ns_say(cli,
               "  %-20s %10.0f  as in the %" PRId64 " finished requests; %" PRIu64 " if each takes its max_tokens\n",
               "tokens out", q->tokens_out_expected, q->finished, q->tokens_out_most);
    else
        ns_say(cli,
               "  %-20s %10" PRIu64 "  the longest: each takes its max_tokens; the usual is known when %d have "
               "finished\n",
               "tokens out", q->tokens_out_most, NS_SURE_AFTER);
    ns_say(cli, "  %-20s %10.0f to %.0f\n", "waves", o->waves.low, o->waves.high);
    say_range(cli, "time", &o->time);
}

static void say_fact(struct ns_cli *cli, const struct ns_outlook *o)
{
    char forecast[16], fact[16], low[24], high[24], wall[24];
    ns_size_text((uint64_t)o->past.forecast_bytes, forecast);
    ns_size_text((uint64_t)o->past.bytes, fact);
    ns_span_text(o->past.forecast_s.low, low);
    ns_span_text(o->past.forecast_s.high, high);
    ns_span_text(o->past.seconds, wall);
    ns_say(cli, "the last run: %" PRId64 " wave%s, %" PRId64 " row%s\n", o->past.waves, NS_PLURAL(o->past.waves),
           o->past.rows, NS_PLURAL(o->past.rows));
    ns_say(cli, "  %-20s %10s, forecast %s\n", "read", fact, forecast);
    ns_say(cli, "  %-20s %10s, forecast %s to %s\n", "time", wall, low, high);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------------- */

static void range_json(struct ns_answer_json *a, const char *key, const struct ns_range *r)
{
    ns_json_put_key(&a->w, key);
    ns_json_open_array(&a->w);
    ns_json_put_double(&a->w, r->low);
    ns_json_put_double(&a->w, r->high);
    ns_json_close_array(&a->w);
}

static void memory_json(struct ns_answer_json *a, const struct ns_night_plan *p)
{
    ns_answer_int(a, "layers", p->engine.layers);
    ns_answer_int(a, "ceiling_bytes", (int64_t)p->ceiling_bytes);
    ns_json_put_key(&a->w, "chosen");
    ns_json_put_bool(&a->w, p->view.is_chosen);
    ns_answer_int(a, "free_bytes", (int64_t)p->view.free_bytes);
    ns_answer_int(a, "promised_bytes", (int64_t)p->view.promised_bytes);
    ns_answer_int(a, "other_runs", p->view.n_others);
    ns_answer_int(a, "floor_bytes", (int64_t)p->floor_bytes);
    ns_answer_int(a, "floor_rows", p->engine.floor_rows);
    ns_json_put_key(&a->w, "shares");
    ns_json_open_object(&a->w);
    ns_answer_int(a, "program", (int64_t)p->slack_bytes);
    ns_answer_int(a, "requests_and_plans", (int64_t)p->desk_bytes);
    for (size_t i = 0; i < NS_COUNT(shares); i++)
        ns_answer_int(a, ns_share_name(shares[i]), (int64_t)p->engine.share[shares[i]]);
    ns_json_close_object(&a->w);
    ns_json_put_key(&a->w, "keep");
    ns_json_open_object(&a->w);
    ns_answer_int(a, "trunk_bytes", (int64_t)p->engine.keep.trunk_bytes);
    ns_answer_int(a, "head_bytes", (int64_t)p->engine.keep.head_bytes);
    ns_answer_int(a, "experts", (int64_t)p->engine.keep.experts);
    ns_json_close_object(&a->w);
    ns_answer_int(a, "rows_max", p->engine.rows_max);
    ns_answer_int(a, "context", p->engine.context);
    ns_answer_int(a, "row_bytes", (int64_t)p->engine.row_bytes);
    ns_answer_int(a, "sequence_bytes", (int64_t)p->engine.seq_bytes);
    ns_answer_int(a, "position_bytes", (int64_t)p->engine.position_bytes);
    ns_answer_int(a, "expert_bytes", (int64_t)p->engine.expert_bytes);
    ns_json_put_key(&a->w, "spill");
    if (p->engine.spill_file_bytes == 0) {
        ns_json_put_null(&a->w);
        return;
    }
    ns_json_open_object(&a->w);
    ns_answer_int(a, "limit_bytes", (int64_t)p->engine.spill_bytes);
    ns_answer_int(a, "free_bytes", (int64_t)p->engine.spill_free_bytes);
    ns_answer_int(a, "state_bytes", (int64_t)p->engine.spill_file_bytes);
    ns_answer_int(a, "sequences", p->engine.spilled_most);
    ns_json_close_object(&a->w);
}

static void wave_json(struct ns_answer_json *a, const struct ns_outlook *o)
{
    ns_json_put_key(&a->w, "wave");
    ns_json_open_object(&a->w);
    ns_answer_int(a, "rows", o->wave.rows);
    ns_answer_int(a, "trunk_bytes", (int64_t)o->wave.move.trunk_bytes);
    ns_answer_int(a, "head_bytes", (int64_t)o->wave.move.head_bytes);
    ns_answer_int(a, "embed_bytes", (int64_t)o->wave.move.embed_bytes);
    ns_answer_int(a, "expert_bytes", (int64_t)o->wave.move.expert_bytes);
    ns_answer_int(a, "kept_bytes", (int64_t)o->wave.move.kept_bytes);
    ns_answer_int(a, "experts_distinct", (int64_t)o->wave.move.experts_distinct);
    ns_answer_number(a, "multiply_adds", o->wave.move.multiply_adds);
    ns_answer_number(a, "disk_s", o->wave.disk_s);
    ns_answer_number(a, "compute_s", o->wave.compute_s);
    range_json(a, "wall_s", &o->wave.wall);
    struct ns_range rate = {o->wave.rows / o->wave.wall.high, o->wave.rows / o->wave.wall.low};
    range_json(a, "rows_per_s", &rate);
    ns_json_close_object(&a->w);
    ns_json_put_key(&a->w, "rates");
    ns_json_open_object(&a->w);
    ns_answer_number(a, "disk_bytes_per_s", o->rates.disk_bytes_per_s);
    ns_answer_text(a, "disk_source", o->rates.disk_source);
    ns_answer_number(a, "gfma_per_s", o->rates.fma_per_s / 1e9);
    ns_answer_text(a, "compute_source", o->rates.fma_source);
    ns_json_close_object(&a->w);
}

static void queue_json(struct ns_answer_json *a, const struct ns_outlook *o)
{
    ns_json_put_key(&a->w, "queue");
    if (o->load.requests == 0)
        ns_json_put_null(&a->w);
    else {
        ns_json_open_object(&a->w);
        ns_answer_int(a, "requests", (int64_t)o->load.requests);
        ns_answer_int(a, "tokens_in", (int64_t)o->load.tokens_in);
        ns_answer_number(a, "tokens_out_expected", o->load.tokens_out_expected);
        ns_answer_int(a, "tokens_out_most", (int64_t)o->load.tokens_out_most);
        ns_answer_int(a, "finished", o->load.finished);
        range_json(a, "waves", &o->waves);
        struct ns_range hours = {o->time.low / 3600, o->time.high / 3600};
        range_json(a, "hours", &hours);
        ns_json_close_object(&a->w);
    }
    ns_json_put_key(&a->w, "last_run");
    if (o->past.waves == 0) {
        ns_json_put_null(&a->w);
        return;
    }
    ns_json_open_object(&a->w);
    ns_answer_int(a, "waves", o->past.waves);
    ns_answer_int(a, "rows", o->past.rows);
    ns_answer_number(a, "bytes_read", o->past.bytes);
    ns_answer_number(a, "bytes_forecast", o->past.forecast_bytes);
    ns_answer_number(a, "seconds", o->past.seconds);
    range_json(a, "seconds_forecast", &o->past.forecast_s);
    ns_json_close_object(&a->w);
}

static enum ns_code say_plan(struct ns_cli *cli, const struct ns_night_plan *p, const struct ns_outlook *o,
                             struct ns_error *err)
{
    if (cli->json) {
        struct ns_answer_json a;
        ns_answer_begin(&a, cli);
        memory_json(&a, p);
        wave_json(&a, o);
        queue_json(&a, o);
        return ns_answer_end(&a, cli, err);
    }
    say_memory(cli, p);
    say_wave(cli, o);
    if (o->load.requests > 0)
        say_queue(cli, o);
    if (o->past.waves > 0)
        say_fact(cli, o);
    else if (o->past.is_foreign)
        ns_say(cli, "the last run: was of another model; this one has no run to compare with\n");
    return NS_OK;
}

enum ns_code ns_cmd_plan(struct ns_cli *cli, struct ns_error *err)
{
    struct ns_night_options options;
    struct ns_night_plan plan;
    struct ns_outlook outlook = {0};
    enum ns_code rc = ns_cli_read_night(cli, "plan wants --model DIR", &options, err);
    if (!ns_given(cli, NS_OPT_DB) && !ns_path_exists(cli->db_path))
        options.db_path = NULL; /* a plan needs no queue */
    struct ns_error no_rates = {0};
    enum ns_code measured = rc == NS_OK ? ns_rates_read(cli, true, &options, &outlook.rates, &no_rates) : rc;
    if (rc == NS_OK)
        rc = ns_night_plan(&options, &plan, err); /* it has the better words for what is wrong with a model */
    if (rc == NS_OK && measured != NS_OK) {
        rc = measured;
        *err = no_rates;
    }
    if (rc == NS_OK && options.layers > 0)
        ns_note(cli, "only the first %" PRIu32 " layer%s: not the model", plan.engine.layers,
                NS_PLURAL(plan.engine.layers));
    if (rc == NS_OK && plan.view.n_others > 0)
        ns_note(cli, "process %" PRId64 " runs this model too", plan.view.other_pid);
    if (rc == NS_OK)
        rc = ns_outlook_read(cli, &options, &plan, &outlook, err);
    return rc == NS_OK ? say_plan(cli, &plan, &outlook, err) : rc;
}
