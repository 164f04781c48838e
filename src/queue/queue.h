/* queue.h - the only room that says sqlite3_. Batches of requests, the runner that owns the work, one transaction per
 * wave, results written once. schema/README.md describes the tables.
 *
 * The life of a runner, as night uses it:
 *   ns_runner_start -> ns_runner_bind_model -> loop { ns_runner_claim, ns_runner_admit, (wave), ns_runner_commit }
 *   -> ns_runner_stop. Every call that writes is one BEGIN IMMEDIATE transaction that first checks the fence: NS_FENCED
 *   means another runner took over, and nothing was written.
 * Threads: a handle belongs to one thread; the heartbeat has its own connection. Ids are row ids (int64). */
#ifndef NS_QUEUE_H
#define NS_QUEUE_H

#include "base/base.h"
#include "job/job.h"

#define NS_SCHEMA_VERSION 1
#define NS_BATCH_ID_SIZE  40 /* "batch_" and 26 characters, with the NUL */

struct ns_queue;  /* one connection */
struct ns_runner; /* the one process that works */

/* ---- open.c ------------------------------------------------------------------------------------------------------ */

enum ns_queue_mode {
    NS_QUEUE_READ, /* query only; waits 5 s */
    NS_QUEUE_WRITE /* verbs that change something; waits 30 s */
};

/* Once from main, before threads: the library's allocations go through hooks that know the fault countdown. */
void ns_queue_library_init(void);
const char *ns_queue_library_version(void); /* "3.40.1" */

/* init: a new queue, and the directory it lies in. NS_CANTCREAT when something is there already. NS_CONFIG on a network file system. */
NS_MUST_CHECK enum ns_code ns_queue_create(const char *path, struct ns_error *err);
/* single_owner insists on a network file system: exclusive locking, no other process.
 * Errors: NS_NOINPUT (no such file: init makes one), NS_INPUT (not a queue, newer schema), NS_MIGRATE, NS_CORRUPT,
 * NS_CONFIG, NS_BUSY. */
NS_MUST_CHECK enum ns_code ns_queue_open(const char *path, enum ns_queue_mode mode, bool single_owner,
                                         struct ns_budget *budget, struct ns_queue **out, struct ns_error *err);
void ns_queue_close(struct ns_queue *queue); /* NULL is fine */
const char *ns_queue_path(const struct ns_queue *queue);

/* ---- submit.c ------------------------------------------------------------------------------------------------------ */

struct ns_submit_options {
    const char *name; /* NULL: the file's name, "stdin" for - */
    int priority;     /* 0..9, 0 first; 5 is normal */
    int max_attempts; /* 0: 3 */
    bool strict;      /* any bad line refuses the file */
    bool dry_run;     /* everything is checked, nothing is kept */
    bool hold;        /* the batch waits for release */
    bool again;       /* a second copy of a file that was submitted before */
};

#define NS_SUBMIT_ERRORS_MAX 100

struct ns_submit_error {
    int64_t line;
    struct ns_refusal refusal;
};

struct ns_submit_report {
    struct ns_budget *budget;
    char batch_id[NS_BATCH_ID_SIZE]; /* "" after a dry run */
    bool existed;                    /* the same file under the same name was there: its id, nothing done */
    bool continued;                  /* an interrupted submit was finished */
    int64_t lines, good, bad;
    size_t n_errors;               /* the first bad lines */
    struct ns_submit_error *error; /* owned */
};
/* path: a file, or - for standard input (spooled beside the database). 5,000 lines per transaction; the batch is
 * visible when it is complete. A bad line is a failed request. Constant memory.
 * NS_INPUT: empty file (empty_file), or bad lines with strict: the batch stays as failed, report lists the errors.
 * *report is filled in any case; free with ns_submit_report_fini. */
NS_MUST_CHECK enum ns_code ns_queue_submit(struct ns_queue *queue, const char *path,
                                           const struct ns_submit_options *options, struct ns_submit_report *report,
                                           struct ns_error *err);
void ns_submit_report_fini(struct ns_submit_report *report);

/* ---- runner.c ------------------------------------------------------------------------------------------------------ */

struct ns_runner_options {
    const char *lane; /* NULL: "main" */
    bool takeover;    /* kill a holder whose heartbeat is stale or that is stopped */
    bool single_owner;
    uint64_t heartbeat_ms; /* 0: 10,000 */
    bool no_ballast;       /* tests: no reserve file */
    uint64_t large_bytes;  /* above it not each start checks all pages; 0: 256 MiB */
};

struct ns_runner_start_report {
    int64_t runner_id;                /* the fence */
    int64_t lost_runners, taken_back; /* rows of dead runners closed, requests put back in the queue */
    int64_t swept_files;
};
/* Takes the lock, checks the pages (pages.c), writes the row, starts the heartbeat. NS_BUSY names the holder:
 * runner 17 (pid 4242) holds lane main; last progress 12 s ago. */
NS_MUST_CHECK enum ns_code ns_runner_start(const char *path, const struct ns_runner_options *options,
                                           struct ns_budget *budget, struct ns_runner **out,
                                           struct ns_runner_start_report *report, struct ns_error *err);
/* Gives back what is still claimed (yielded, the try is given back), closes the row with reason ("done", "stopped",
 * "drained", "error ..."), truncates the WAL, frees. Frees even when it fails. */
NS_MUST_CHECK enum ns_code ns_runner_stop(struct ns_runner *runner, const char *reason, struct ns_error *err);
/* Frees without writing: after NS_FENCED, or in a test that plays dead. NULL is fine. */
void ns_runner_abandon(struct ns_runner *runner);
int64_t ns_runner_id(const struct ns_runner *runner);
struct ns_queue *ns_runner_queue(struct ns_runner *runner); /* the runner's connection, for the reading calls below */

/* Which model this run serves. NS_INPUT when open batches are bound to another model (fingerprint or contract): names
 * the batch and both. Batches are bound when the first of their requests is claimed. */
NS_MUST_CHECK enum ns_code ns_runner_bind_model(struct ns_runner *runner, const char *dir,
                                                const struct ns_job_model *model, const char *tokenizer_fingerprint,
                                                struct ns_error *err);

/* ---- claim.c ------------------------------------------------------------------------------------------------------- */

struct ns_claim_seq { /* a sequence row with everything committed so far */
    int64_t seq_id;
    struct ns_prompt prompt; /* id owned by the claim */
    uint32_t n_out, n_top;   /* committed tokens; alternatives stored per token */
    uint32_t *token;         /* [n_out] owned */
    float *logprob;          /* [n_out] owned, NULL when not stored */
    uint32_t *top_id;        /* [n_out * n_top] owned, NULL when n_top is 0 */
    float *top_logprob;
    bool has_score; /* score and is_greedy are committed */
    double score;
    bool is_greedy;
    float *prompt_logprob;   /* [n_prompt] owned, NULL until committed (echo) */
    uint32_t *prompt_top_id; /* [n_prompt * n_top] */
    float *prompt_top_logprob;
    bool finished; /* finish_reason is set: nothing left to generate */
    enum ns_finish finish;
};

struct ns_claim {
    int64_t request_id, batch_id, attempt_id;
    int64_t line_no;
    int priority;
    uint32_t tries, suspect;                              /* tries counts this one */
    int64_t enqueued_at_ms, claimed_at_ms, created_at_ms; /* created_at_ms: of the batch */
    const char *custom_id;                                /* owned, terminated */
    const char *body;                                     /* the line; owned, terminated */
    size_t body_n;
    struct ns_claim_seq *seq; /* [n_seqs]; empty until admitted (then filled by ns_runner_admit) */
    size_t n_seqs;
    struct ns_budget *budget;
};

struct ns_claim_limits {
    size_t requests;     /* at most this many */
    uint64_t body_bytes; /* stop when the bodies reach this; 0: no limit */
};
/* Claims the next requests in order: priority and age, deficit round robin among batches, look-ahead by group_key.
 * *out is a budget-charged array of *n claims (0: nothing to do now), taken-back ones with their tokens. Free each
 * with ns_claim_close and the array with ns_budget_give.
 * While requests are suspected of killing the runner, only half of the suspects are given out and nobody else
 * (*alone tells: do not claim more until a wave has committed). */
NS_MUST_CHECK enum ns_code ns_runner_claim(struct ns_runner *runner, const struct ns_claim_limits *limits,
                                           struct ns_budget *budget, struct ns_claim ***out, size_t *n, bool *alone,
                                           struct ns_error *err);
void ns_claim_close(struct ns_claim *claim); /* NULL is fine */

struct ns_admission {
    struct ns_claim *claim;
    const struct ns_encoded *encoded; /* becomes sequence rows and claim->seq; NULL when it has rows, or failed */
    uint32_t n_top;                   /* alternatives that will be stored per token; 0: none */
    const struct ns_result *failed;   /* ends the request as failed; NULL: admitted */
};
/* One transaction for all. After NS_OK the failed ones are terminal. */
NS_MUST_CHECK enum ns_code ns_runner_admit(struct ns_runner *runner, struct ns_admission *admission, size_t n,
                                           struct ns_error *err);
/* Back to the queue: the attempt ends as yielded, the try is given back. */
NS_MUST_CHECK enum ns_code ns_runner_yield(struct ns_runner *runner, const int64_t *request_id, size_t n,
                                           struct ns_error *err);

/* ---- commit.c: one wave, one transaction ------------------------------------------------------------------------------ */

struct ns_seq_update {
    int64_t seq_id;
    uint32_t n_out_before; /* guard: must equal the stored n_out, else NS_INTERNAL and nothing is written */
    uint32_t n;            /* new tokens, 0 for scores and prompt log-probabilities alone */
    uint32_t n_top;
    const uint32_t *token;  /* [n] */
    const float *logprob;   /* [n] or NULL */
    const uint32_t *top_id; /* [n * n_top] or NULL */
    const float *top_logprob;
    bool has_score;
    double score;
    bool is_greedy;
    const float *prompt_logprob; /* [n_prompt] or NULL */
    const uint32_t *prompt_top_id;
    const float *prompt_top_logprob;
    uint32_t n_prompt;
    enum ns_finish finish; /* NS_FINISH_NONE: goes on */
};

enum ns_end { NS_END_DONE, NS_END_FAILED, NS_END_CANCELLED, NS_END_EXPIRED };

struct ns_request_end {
    int64_t request_id, attempt_id;
    enum ns_end end;
    const struct ns_result *result;
    const char *error; /* text for attempts.error, NULL for none */
};

struct ns_retry_later { /* a transient failure: queued again with backoff, or failed when tries are spent */
    int64_t request_id, attempt_id;
    const char *error;
    const struct ns_result *result_if_spent;
};

struct ns_state_file { /* a side file that is durable already */
    int64_t seq_id;
    bool is_delta;
    uint32_t from_pos, to_pos;
    const char *rel_path;
    uint64_t bytes;
    const char *checksum, *fingerprint;
    uint32_t engine_abi;
};

struct ns_wave_record {
    const char *kind; /* "prefill" "decode" "mixed" */
    int64_t began_at_ms, ended_at_ms;
    uint32_t n_seqs, n_tokens_in, n_tokens_out;
    uint64_t bytes_read, cache_hits, cache_misses, io_ms, compute_ms, state_bytes, rss_bytes, free_bytes;
    const char *detail; /* JSON object, NULL: {} */
};

struct ns_wave_commit {
    const struct ns_wave_record *wave; /* NULL: no wave row (an edge without work); then no tokens either */
    const struct ns_seq_update *seq;
    size_t n_seqs;
    const struct ns_request_end *end;
    size_t n_ends;
    const struct ns_retry_later *retry;
    size_t n_retries;
    const struct ns_state_file *state; /* replaces every row of its sequence that it covers */
    size_t n_states;
    const int64_t *progressed; /* requests that were in this wave: their suspicion is lifted */
    size_t n_progressed;
    const int64_t *restored; /* attempts that turned out to go on from a side file */
    size_t n_restored;
};

/* What people asked for meanwhile, read in the same transaction. */
struct ns_control {
    bool paused, drain;
    int64_t queued_now; /* requests that could be claimed */
    size_t n_asked;     /* running requests that should end or yield */

    struct ns_asked {
        int64_t request_id;

        enum { NS_ASKED_CANCEL, NS_ASKED_EXPIRE, NS_ASKED_YIELD } what; /* yield: its batch was put on hold */
    } * asked;                                                          /* owned: ns_control_fini */
    struct ns_budget *budget;
};
/* The fence, then everything above, batches that became complete, progress. All or nothing. wave_id may be NULL.
 * Crash points: commit.before, commit.after. Afterwards replaced state files are unlinked and the WAL is checkpointed
 * when it is large. NS_FULL: rolled back, nothing lost, try again when there is room. NS_IO: stop. */
NS_MUST_CHECK enum ns_code ns_runner_commit(struct ns_runner *runner, const struct ns_wave_commit *commit,
                                            int64_t *wave_id, struct ns_control *control, struct ns_error *err);
void ns_control_fini(struct ns_control *control);
/* The same news without writing (while sleeping). */
NS_MUST_CHECK enum ns_code ns_runner_look(struct ns_runner *runner, struct ns_control *control, struct ns_error *err);
/* After NS_FULL: moves the write-ahead log into the database as far as that is possible, so that its room is used again.
 * Waits for nobody. */
void ns_runner_relieve(struct ns_runner *runner);
/* False when the reserve of disk space was given up for a commit and there is no room yet to make it again (tried here):
 * the next commit may fail, so no work should begin. True where the disk never had room for one. */
bool ns_runner_has_reserve(struct ns_runner *runner);
/* The runner row: running, draining, sleeping (with a reason that status shows). */
NS_MUST_CHECK enum ns_code ns_runner_set_state(struct ns_runner *runner, const char *state, const char *reason,
                                               struct ns_error *err);

/* ---- state.c: side files and suspended waves --------------------------------------------------------------------------- */

const char *ns_runner_state_dir(const struct ns_runner *runner); /* <db>.state, made at start */

struct ns_state_row {
    uint32_t from_pos, to_pos;
    bool is_delta;
    char rel_path[96];
    uint64_t bytes;
    char checksum[NS_SHA256_HEX], fingerprint[NS_SHA256_HEX];
    uint32_t engine_abi;
};
/* Rows of one sequence, base first, as *n of at most max. */
NS_MUST_CHECK enum ns_code ns_runner_find_states(struct ns_runner *runner, int64_t seq_id, struct ns_state_row *out,
                                                 size_t max, size_t *n, struct ns_error *err);
/* Lost, torn or foreign: the rows go, then the files; a warning event with why (the caller says it to people). */
NS_MUST_CHECK enum ns_code ns_runner_drop_states(struct ns_runner *runner, int64_t seq_id, const char *why,
                                                 struct ns_error *err);

struct ns_suspend_row {
    int64_t id;
    char rel_path[96];
    uint64_t bytes;
    char checksum[NS_SHA256_HEX], fingerprint[NS_SHA256_HEX], contract[32];
    uint32_t next_layer;
    int64_t made_at_ms;
};
/* Records a durable suspend file, replacing an older one. */
NS_MUST_CHECK enum ns_code ns_runner_suspend(struct ns_runner *runner, const struct ns_suspend_row *row,
                                             struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_queue_find_suspend(struct ns_queue *queue, struct ns_suspend_row *out, bool *found,
                                                 struct ns_error *err);
/* Used up, or useless (why: NULL or for a warning event, which the caller says to people): the row goes, then the
 * file. */
NS_MUST_CHECK enum ns_code ns_runner_drop_suspend(struct ns_runner *runner, int64_t id, const char *why,
                                                  struct ns_error *err);

/* ---- events -------------------------------------------------------------------------------------------------------------- */

/* level: "debug" "info" "warn" "error". detail: a JSON object, NULL: {}. request_id 0: none. Kept as its own row. */
NS_MUST_CHECK enum ns_code ns_runner_event(struct ns_runner *runner, const char *level, const char *kind,
                                           int64_t request_id, const char *detail, struct ns_error *err);

/* ---- status.c: what people read -------------------------------------------------------------------------------------------- */

struct ns_batch_info {
    int64_t id;
    char public_id[NS_BATCH_ID_SIZE];
    const char *name, *endpoint, *status, *model, *fingerprint, *input_name; /* borrowed for the call; may be NULL */
    const char *validation_errors, *metadata; /* JSON text, validation_errors may be NULL */
    bool held;
    int priority;
    int64_t total, queued, running, done, failed, cancelled, expired, refused; /* refused is part of failed */
    int64_t judged, correct; /* results with something to compare; accuracy = correct / judged over ALL rows */
    int64_t prompt_tokens, completion_tokens;
    int64_t created_at_ms, in_progress_at_ms, finalizing_at_ms, completed_at_ms, failed_at_ms, expired_at_ms,
        cancelling_at_ms, cancelled_at_ms, deadline_at_ms; /* 0: not (yet) */
};
typedef enum ns_code (*ns_batch_each_fn)(void *arg, const struct ns_batch_info *batch, struct ns_error *err);
/* Oldest first; batch_id 0: all. */
NS_MUST_CHECK enum ns_code ns_queue_each_batch(struct ns_queue *queue, int64_t batch_id, ns_batch_each_fn each,
                                               void *arg, struct ns_error *err);
/* "@last" (the last one that was not refused as a file), a full id or a unique prefix ("batch_01J" or "01J"). NS_NOINPUT:
 * none; NS_USAGE: several (lists them). */
NS_MUST_CHECK enum ns_code ns_queue_find_batch(struct ns_queue *queue, const char *name, int64_t *batch_id,
                                               struct ns_error *err);

struct ns_runner_info {
    bool present;                                                    /* an open runner row exists */
    bool alive;                                                      /* and its process does too */
    bool halted;                                                     /* by a signal, SIGCONT wakes it */
    int64_t id, pid, started_at_ms, heartbeat_at_ms, progress_at_ms; /* 0: none yet */
    int64_t pid_start;                                               /* with pid and host it names the process */
    char lane[32], host[64], state[16], reason[128];
};

struct ns_queue_status {
    struct ns_runner_info runner;
    bool paused, drain;
    char control_reason[128];
    int64_t batches, open_batches;
    int64_t total, queued, running, done, failed, cancelled, expired;
    int64_t judged, correct, prompt_tokens, completion_tokens; /* of results */
    int64_t unfinished_tokens;                                 /* made so far for requests that have not ended */
    /* waves of the last run (all of its rows) */
    int64_t waves, wave_rows, wave_tokens_out, bytes_read, experts_hit, experts_missed, io_ms, compute_ms, wall_ms;
    int64_t bytes_spilled; /* written for states that did not fit in memory */
    /* the last up to ten waves, for rates */
    int64_t recent_waves, recent_tokens_out, recent_ms, recent_bytes;
    int64_t wal_bytes;
};
/* What the last run of a model did: the waves of that run, into the fields of a status. waves 0: it did none here. */
NS_MUST_CHECK enum ns_code ns_queue_read_past(struct ns_queue *queue, const char *fingerprint, const char *contract,
                                              struct ns_queue_status *out, struct ns_error *err);
/* batch_id 0: the whole queue. */
NS_MUST_CHECK enum ns_code ns_queue_status_read(struct ns_queue *queue, int64_t batch_id, struct ns_queue_status *out,
                                                struct ns_error *err);

struct ns_wave_info {
    int64_t id, runner_id;
    struct ns_wave_record record; /* texts borrowed for the call */
};
typedef enum ns_code (*ns_wave_each_fn)(void *arg, const struct ns_wave_info *wave, struct ns_error *err);
/* Newest first, at most limit (0: all); runner_id 0: all. */
NS_MUST_CHECK enum ns_code ns_queue_each_wave(struct ns_queue *queue, int64_t runner_id, int64_t limit,
                                              ns_wave_each_fn each, void *arg, struct ns_error *err);
/* The last wave of each account: of each run, or part of one after which it counted anew. Oldest first. */
NS_MUST_CHECK enum ns_code ns_queue_each_last_wave(struct ns_queue *queue, ns_wave_each_fn each, void *arg,
                                                   struct ns_error *err);

/* Which requests: all members must agree; zeros mean any. */
struct ns_selection {
    int64_t batch_id, first_id, last_id;
    const char *state;     /* "queued" "running" "done" "failed" "cancelled" "expired", NULL: any */
    const char *custom_id; /* NULL: any */
    int64_t limit;         /* list only; 0: all */
};
/* Fills a selection from "batch_..", "@last", "#12", "#12-#20", "BATCH/custom_id". custom_id is borrowed from text. */
NS_MUST_CHECK enum ns_code ns_queue_select(struct ns_queue *queue, const char *text, struct ns_selection *out,
                                           struct ns_error *err);

struct ns_request_info {
    int64_t id, batch_id, line_no;
    const char *batch, *custom_id, *kind, *state; /* borrowed for the call; custom_id and kind may be NULL */
    int priority;
    bool refused, cancel_asked;
    int64_t tries, suspect, skips, n_prompt, max_new, n_out, runner_id;
    int64_t enqueued_at_ms, started_at_ms, finished_at_ms, not_before_ms;
    int correct;                                 /* -1: no result, or nothing to compare with */
    int status_code;                             /* 0: no result yet */
    const char *response, *error, *local, *body; /* show only (want_text); else NULL */
};
typedef enum ns_code (*ns_request_each_fn)(void *arg, const struct ns_request_info *request, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_queue_each_request(struct ns_queue *queue, const struct ns_selection *which,
                                                 bool want_text, ns_request_each_fn each, void *arg,
                                                 struct ns_error *err);

struct ns_attempt_info {
    int64_t try_no, runner_id, began_at_ms, ended_at_ms, resumed_from;
    const char *outcome, *error, *resume_kind; /* borrowed; outcome NULL: open */
};
typedef enum ns_code (*ns_attempt_each_fn)(void *arg, const struct ns_attempt_info *attempt, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_queue_each_attempt(struct ns_queue *queue, int64_t request_id, ns_attempt_each_fn each,
                                                 void *arg, struct ns_error *err);

struct ns_event_info {
    int64_t id, at_ms, runner_id, batch_id, request_id; /* 0: none */
    const char *level, *kind, *detail;
};
typedef enum ns_code (*ns_event_each_fn)(void *arg, const struct ns_event_info *event, struct ns_error *err);
/* Rising id above after_id. */
NS_MUST_CHECK enum ns_code ns_queue_each_event(struct ns_queue *queue, int64_t after_id, ns_event_each_fn each,
                                               void *arg, struct ns_error *err);
/* Runner by id, for show. found false: none. */
NS_MUST_CHECK enum ns_code ns_queue_read_runner(struct ns_queue *queue, int64_t runner_id, struct ns_runner_info *out,
                                                struct ns_error *err);

/* ---- change.c: what people ask for; every call leaves a row in actions ------------------------------------------------------- */

struct ns_change {
    bool dry_run;
    int64_t changed; /* out: requests or batches that changed (or would) */
    int64_t already; /* out: selected but finished, nothing to do */
    int64_t refused; /* out: of these already, bad lines of a file: no request that could be tried again */
};
/* Waiting requests end at once, with a result row; running ones are asked and end at the next wave edge. A whole batch
 * (selection of the batch alone) becomes cancelling. */
NS_MUST_CHECK enum ns_code ns_queue_cancel(struct ns_queue *queue, const struct ns_selection *which,
                                           struct ns_change *change, struct ns_error *err);
/* failed, cancelled and expired requests are queued again (not refused lines); the old result moves into events, the
 * maximum of tries rises by one. The batch is open again. */
NS_MUST_CHECK enum ns_code ns_queue_retry(struct ns_queue *queue, const struct ns_selection *which,
                                          struct ns_change *change, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_queue_hold(struct ns_queue *queue, int64_t batch_id, bool held, struct ns_change *change,
                                         struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_queue_set_priority(struct ns_queue *queue, const struct ns_selection *which, int priority,
                                                 struct ns_change *change, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_queue_set_deadline(struct ns_queue *queue, int64_t batch_id, int64_t deadline_at_ms,
                                                 struct ns_change *change, struct ns_error *err); /* 0: none */

enum ns_control_verb { NS_CONTROL_PAUSE, NS_CONTROL_RESUME, NS_CONTROL_DRAIN };
NS_MUST_CHECK enum ns_code ns_queue_set_control(struct ns_queue *queue, enum ns_control_verb verb, const char *reason,
                                                struct ns_error *err);

/* ---- export.c ------------------------------------------------------------------------------------------------------------------ */

struct ns_export_options {
    const char *output; /* NULL: none; - is standard output */
    const char *errors; /* NULL: failures go nowhere unless merged */
    bool merged;        /* failures into output too */
    bool partial;       /* an unfinished batch is fine: what is there */
    bool by_finish;     /* in the order of finishing; else of the input */
};

struct ns_export_report {
    int64_t written, failures; /* lines in output (successes) and failed lines, written or not */
    int64_t missing;           /* not finished */
    int64_t damaged;           /* stored rows that do not parse: skipped and counted */
    bool output_untouched;     /* no lines: what the file held before it holds still */
    bool errors_removed;       /* no lines, and a file of an earlier export was there */
};
/* Streams in constant memory, one short read transaction per 10,000 rows. Files appear complete (temp, sync, rename)
 * or not at all; without a line nothing is made, emptied or replaced. Refused: NS_CANTCREAT when an output is the input
 * file or the database by path, symbolic or hard link, or both outputs are the same; NS_BUSY when it is still being
 * submitted, or unfinished and not partial (report->missing tells how many). */
NS_MUST_CHECK enum ns_code ns_queue_export(struct ns_queue *queue, int64_t batch_id,
                                           const struct ns_export_options *options, struct ns_export_report *report,
                                           struct ns_error *err);

/* Totals of an export file (successes and failures, accuracy by x_local): bad lines are skipped and counted (C97). */
struct ns_export_summary {
    int64_t lines, succeeded, failed, damaged, judged, correct, prompt_tokens, completion_tokens;
};
NS_MUST_CHECK enum ns_code ns_export_read_summary(const char *path, struct ns_budget *budget,
                                                  struct ns_export_summary *out, struct ns_error *err);
/* The text of one result (or its whole output line with json). NS_NOINPUT: no such request; NS_BUSY: no result yet. */
NS_MUST_CHECK enum ns_code ns_queue_get(struct ns_queue *queue, int64_t batch_id, const char *custom_id, bool json,
                                        struct ns_text *out, struct ns_error *err);

/* ---- doctor.c -------------------------------------------------------------------------------------------------------------------- */

/* invariant: "I1".."I9", "integrity", "foreign keys", "json", "library" (a note). ref: a row id or 0. */
typedef void (*ns_finding_fn)(void *arg, const char *invariant, bool is_note, int64_t ref, const char *text);
/* Compares a side file with its checksum, and all it holds when whole is asked for; what that is is the engine's business. */
typedef enum ns_code (*ns_side_check_fn)(const char *path, const char *checksum, bool whole, struct ns_budget *budget,
                                         struct ns_error *err);

struct ns_doctor_options {
    bool deep;                   /* whole side files, and JSON of every column */
    ns_side_check_fn check_side; /* for every named side file; NULL: sizes only */
};
/* Calls each finding; *n_findings counts those that are not notes. */
NS_MUST_CHECK enum ns_code ns_queue_doctor(struct ns_queue *queue, const struct ns_doctor_options *options,
                                           ns_finding_fn each, void *arg, int64_t *n_findings, struct ns_error *err);

/* ---- care.c ---------------------------------------------------------------------------------------------------------------------- */

/* A compact consistent copy while others work: temp, integrity check, sync, rename. NS_CANTCREAT when path exists. */
NS_MUST_CHECK enum ns_code ns_queue_backup(struct ns_queue *queue, const char *path, struct ns_error *err);

#endif
