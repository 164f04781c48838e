/* night_impl.h - private to night/: who is under way, and the state of one run. */
#ifndef NS_NIGHT_IMPL_H
#define NS_NIGHT_IMPL_H

#include "night/night.h"

/* ---- roster.c: requests and their sequences ---------------------------------------------------------------------- */

struct ns_rider;

/* One sequence under way. Arrays are owned, sized at admission, charged to the run's budget. */
struct ns_ride {
    struct ns_rider *rider;
    const struct ns_claim_seq *row; /* borrowed from the claim: seq_id, prompt, what was committed before */
    uint32_t n_top;                 /* alternatives kept per token; 0: none */
    /* generation */
    uint32_t *token; /* [max_new] */
    float *logprob;  /* [max_new] */
    uint32_t *top_id;
    float *top_logprob;
    uint32_t n_out, n_committed;
    /* echo and scoring: of position i of the prompt */
    float *prompt_logprob; /* [prompt.n], NULL when not wanted */
    uint32_t *prompt_top_id;
    float *prompt_top_logprob;
    uint8_t *known; /* [prompt.n] which of them are known; NULL when not wanted */
    uint32_t n_scored, n_to_score;
    bool boarded;         /* was in the scheduler before */
    struct ns_seq *state; /* owned: came back from a file, for the scheduler to adopt */
    uint32_t n_snapshot;  /* positions of the side file that is there already */
    bool prompt_committed;
    bool is_greedy;
    double score;
    enum ns_finish finish;
    bool over;    /* nothing more to compute */
    bool touched; /* changed since the last commit */
    bool in_sched;
    uint32_t sched_item; /* valid while in_sched */
};

/* One request under way. */
struct ns_rider {
    struct ns_claim *claim;    /* owned */
    struct ns_request request; /* owned */
    bool parsed;
    bool restored;        /* something of it came back from a side file ... */
    bool restored_told;   /* ... and its attempt says so */
    struct ns_ride *ride; /* [n] owned */
    size_t n, n_over;
    struct ns_run_facts facts;
    bool ending; /* result is made, waits for its commit */
    enum ns_end end;
    struct ns_result result; /* owned once ending */
    bool has_result;
    char error[256]; /* for the attempt's record; "" none */
    size_t place;    /* index in the roster */
};

struct ns_roster {
    struct ns_budget *budget;
    struct ns_rider **rider; /* [n] owned */
    size_t n, capacity;
};

void ns_roster_init(struct ns_roster *roster, struct ns_budget *budget);
void ns_roster_fini(struct ns_roster *roster);
/* Takes the claim (also on error: then it is closed). */
NS_MUST_CHECK enum ns_code ns_roster_add(struct ns_roster *roster, struct ns_claim *claim, struct ns_rider **out,
                                         struct ns_error *err);
void ns_roster_remove(struct ns_roster *roster, struct ns_rider *rider);
struct ns_rider *ns_roster_find(const struct ns_roster *roster, int64_t request_id); /* NULL: not here */

struct ns_snap { /* a side file whose row is to be written */
    struct ns_ride *ride;
    struct ns_snapshot made;
    char rel_path[96];
};

/* ---- the run ------------------------------------------------------------------------------------------------------ */

struct ns_night {
    const struct ns_night_options *options;
    const struct ns_night_model *model;
    struct ns_budget *budget;
    struct ns_runner *runner;
    struct ns_sched *sched;
    struct ns_roster roster;
    struct ns_night_report *report;
    struct ns_control control; /* what people asked for at the last edge */
    bool alone;                /* suspects under way: claim nothing until a wave has committed */
    bool draining;
    uint32_t steps;       /* of the wave under way, in this run */
    struct ns_snap *snap; /* [n_snaps] owned while a snapshot is taken */
    size_t n_snaps;
    uint64_t snapped_ns; /* when the last one was */
    bool waits;          /* for room on the disk */
    bool is_ahead;       /* of the queue: the last wave was not committed, so no state may be saved */
    uint64_t warned_ns;  /* when that was said last */
    bool said_paused;    /* of the pause that lasts */
};

/* The loop until the queue is empty or memory has to be divided anew; *report goes on from what it holds. */
NS_MUST_CHECK enum ns_code ns_night_run_part(const struct ns_night_options *options, const struct ns_night_model *model,
                                             struct ns_budget *budget, struct ns_night_report *report,
                                             struct ns_error *err);

/* admit.c: claims what fits and puts it into the scheduler. *n: how many requests were claimed. */
NS_MUST_CHECK enum ns_code ns_night_admit(struct ns_night *night, size_t *n, struct ns_error *err);
/* Adds rides that wait for room in the scheduler. */
NS_MUST_CHECK enum ns_code ns_night_board(struct ns_night *night, struct ns_error *err);

/* Positions of a sequence that were computed in an earlier run: they came back, or are computed again. Once a sequence and
 * run; the sums are in x_local and in the report. */
void ns_night_count_back(struct ns_night *night, struct ns_ride *ride, uint32_t restored, uint32_t recomputed);

/* night.c: what waves have in common. step: *gave_up when a signal came; the wave is as it was after its last step. */
NS_MUST_CHECK enum ns_code ns_night_step(struct ns_night *night, struct ns_wave *wave, bool *gave_up,
                                         struct ns_error *err);
/* Somebody waits for another division of memory: nothing begins in this one. */
bool ns_night_divides_anew(const struct ns_night *night);
/* After NS_FULL: says so, sleeps a little, true: try again. False: somebody wants the run to end. go_on: there was room. */
bool ns_night_wait_for_room(struct ns_night *night, const char *what);
void ns_night_go_on(struct ns_night *night);
/* A wave that is complete, before its answers are noted. */
void ns_night_count(struct ns_night *night, const struct ns_wave_stats *stats);
struct ns_wave_record ns_night_record(const struct ns_night *night, const struct ns_wave_stats *stats, const char *kind,
                                      int64_t began_at_ms, uint32_t n_seqs, uint32_t n_tokens, const char *detail);

/* halt.c: puts a half-done wave aside, as far as that is possible; and goes on with one that was. */
void ns_night_halt(struct ns_night *night, struct ns_wave *wave, const struct ns_sched_plan *plan);
NS_MUST_CHECK enum ns_code ns_night_thaw(struct ns_night *night, bool *gave_up, struct ns_error *err);

/* snap.c: side files of sequence states. A failure to save is a warning. */
NS_MUST_CHECK enum ns_code ns_night_snapshot(struct ns_night *night, struct ns_error *err);
void ns_snap_rows(const struct ns_night *night, struct ns_state_file *out); /* [n_snaps] */
/* Loads what was saved of a sequence that comes back, if it is good. */
NS_MUST_CHECK enum ns_code ns_night_restore(struct ns_night *night, struct ns_ride *ride, struct ns_error *err);

/* harvest.c: notes answers and failures, makes results of what is finished. */
NS_MUST_CHECK enum ns_code ns_night_harvest(struct ns_night *night, const struct ns_sched_outcome *outcome,
                                            uint32_t *n_tokens, struct ns_error *err);
/* One answer; result->item is not looked at. A ride that is not in the scheduler boards later with what it learned. */
NS_MUST_CHECK enum ns_code ns_night_note(struct ns_night *night, const struct ns_sched_result *result,
                                         uint32_t *n_tokens, struct ns_error *err);
/* Cancelled, expired and held requests. */
NS_MUST_CHECK enum ns_code ns_night_obey(struct ns_night *night, struct ns_error *err);
/* One transaction: everything new since the last commit; finished riders leave. wave may be NULL. */
NS_MUST_CHECK enum ns_code ns_night_commit(struct ns_night *night, const struct ns_wave_record *wave,
                                           struct ns_error *err);
/* A request whose sequences are all over: its result. */
NS_MUST_CHECK enum ns_code ns_night_conclude(struct ns_night *night, struct ns_rider *rider, struct ns_error *err);
/* A request that ends with a failure. context may be NULL. */
NS_MUST_CHECK enum ns_code ns_night_fail(struct ns_night *night, struct ns_rider *rider,
                                         const struct ns_refusal *refusal, const char *context, struct ns_error *err);
/* A request that is over and committed: counts it and tells who asked to hear. */
void ns_night_note_end(struct ns_night *night, const struct ns_rider *rider);

/* wave_detail.c: the account of a wave as JSON, that of the run so far under "job". */
void ns_wave_detail(struct ns_text *out, const struct ns_sched_account *wave, const struct ns_sched_account *job,
                    const struct ns_sched_plan *plan);

#endif
