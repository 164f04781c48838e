/* night.h - the night's work: claim, plan, run, commit, repeat; stop politely. The two wings meet here and only here:
 * queue and job know nothing of tensors, sched and engine nothing of SQL. */
#ifndef NS_NIGHT_H
#define NS_NIGHT_H

#include "base/base.h"
#include "engine/machine.h"
#include "job/job.h"
#include "queue/queue.h"
#include "sched/sched.h"

/* What happened. Counts are of this run. */
struct ns_night_report {
    uint64_t waves, rows, tokens_out;
    uint64_t requests_done, requests_failed, requests_left; /* left: still queued or running in the queue */
    uint64_t experts_requested, experts_distinct, experts_read, experts_kept;
    uint64_t bytes_read, bytes_spilled; /* spilled: written for states */
    uint64_t tokens_restored, tokens_recomputed;
    uint64_t compute_ns, disk_ns, stall_ns, wall_ns;
    uint64_t last_wave_ns;
    bool stopped; /* on request, before the queue was empty */
};

/* ---- ceiling.c: what a run would do with its memory, without opening the model ---- */

struct ns_ceiling_view {
    size_t ceiling_bytes;
    bool is_chosen;                    /* nothing was asked for */
    uint64_t free_bytes;               /* what the machine and its control groups leave */
    uint64_t promised_bytes;           /* of it, what other runs on this model may still take */
    uint64_t margin_bytes, left_bytes; /* left: free, less promised, less margin */
    uint32_t n_others;                 /* other runs on this model, by whatever name of its folder */
    int64_t other_pid;                 /* one of them */
};

struct ns_night_plan {
    size_t ceiling_bytes, floor_bytes; /* of the whole process */
    size_t slack_bytes, desk_bytes;    /* outside the shares; requests, results and the prefix tree */
    struct ns_ceiling_view view;       /* how the ceiling came about */
    struct ns_plan engine;             /* how the rest is divided */
    struct ns_work work;
};

/* Who rides with whom. The answers are the same with each. */
enum ns_night_order {
    NS_ORDER_AUTO,    /* shared prefixes first, then experts while the disk is the limit */
    NS_ORDER_EXPERTS, /* ... experts always */
    NS_ORDER_PREFIX,  /* ... experts never */
    NS_ORDER_FILE,    /* as they come; every sequence computed by itself */
    NS_ORDER_SINGLE   /* ... and one sequence at a time */
};

/* A request that ended for good, after its transaction. Strings are borrowed for the call. */
struct ns_night_ended {
    int64_t request_id;
    const char *custom_id, *state; /* done, failed, cancelled or expired */
    uint32_t prompt_tokens, completion_tokens;
};

/* What a run is asked to do. Strings are borrowed. */
struct ns_night_options {
    const char *db_path;
    const char *model_dir;
    uint64_t memory_bytes; /* the ceiling; 0: what the machine and its control groups leave free */
    unsigned n_threads;    /* 0: physical cores */
    uint32_t cpu;          /* feature bits the kernels may use */
    uint32_t wave_rows;    /* 0: chosen by the scheduler */
    uint32_t context;      /* 0: the engine's default */
    uint32_t layers;       /* diagnosis: only the first layers; 0: all */
    const char *spill_dir; /* states that do not fit in memory go to files here; NULL: never */
    uint64_t spill_bytes;  /* most of such files; 0: half of what is free there */
    const char *lane;      /* NULL: main */
    bool once;             /* end after one wave */
    bool keep;             /* stay when the queue is empty */
    bool require_done;     /* the caller turns work left into exit 75 */
    bool takeover;
    bool single_owner;
    enum ns_night_order order;
    double read_rate, fma_rate; /* bytes and multiply-adds a second that the machine can do; 0: not known */
    uint32_t overtake;          /* later ones that may go before a request; 0: the scheduler's default */
    /* Called once, before the first wave; may be NULL. */
    void (*planned)(void *arg, const struct ns_night_plan *plan);
    /* Called on the driving thread after every commit and at the end; may be NULL. */
    void (*progress)(void *arg, const struct ns_night_report *report);
    /* Called on the driving thread for each request, before the progress of its wave; may be NULL. */
    void (*ended)(void *arg, const struct ns_night_ended *ended);
    void *progress_arg;
};

/* Runs until the queue has nothing left for this model (or once, or until stopped). *report is filled as far as it got,
 * also on error. Errors: those of the queue (BUSY, FENCED, FULL ...), of the model (INPUT, CORRUPT, IO), BUDGET. */
NS_MUST_CHECK enum ns_code ns_night_run(const struct ns_night_options *options, struct ns_night_report *report,
                                        struct ns_error *err);

/* The contract of answers by the first layers of a model with so many: answers of less than the whole model never mix with
 * the model's, and say what they are. */
#define NS_NIGHT_CONTRACT_SIZE 32
void ns_night_contract(uint32_t layers, uint32_t of, char out[NS_NIGHT_CONTRACT_SIZE]);

/* For whom memory was divided, and whether it has to be divided anew. */
struct ns_night_division {
    uint64_t longest_body, longest_new; /* of the requests known then: bytes, tokens to come; UINT64_MAX: of any */
    bool anew;                          /* a longer one came later and found no room; the two above include it now */
};

/* The same loop on a machine given by the caller: tests drive it with a fake engine. */
struct ns_night_model {
    struct ns_machine machine;
    const struct ns_job_model *job;
    const char *dir, *tokenizer_fingerprint;
    struct ns_sched_model numbers; /* for bounds; zeroed: not known */
    struct ns_engine *engine;      /* NULL for a fake: no snapshots, no suspended waves */
    /* borrowed; NULL: for any. When a request is longer than all of these and finds no room although it is alone, the
     * loop ends with anew set, and the request is back in the queue. Others that find no room fail. */
    struct ns_night_division *division;
};
NS_MUST_CHECK enum ns_code ns_night_run_model(const struct ns_night_options *options,
                                              const struct ns_night_model *model, struct ns_budget *budget,
                                              struct ns_night_report *report, struct ns_error *err);

/* NS_BUDGET: the ceiling is below the floor (both are filled in). Else the errors of ns_engine_open. */
NS_MUST_CHECK enum ns_code ns_night_plan(const struct ns_night_options *options, struct ns_night_plan *out,
                                         struct ns_error *err);

#endif
