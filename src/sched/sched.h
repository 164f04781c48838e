/* sched.h - which rows ride in the next wave. Sees token ids, limits and a machine's states; runs nothing itself.
 *
 * The caller's loop, one driving thread:
 *
 *     ns_sched_add(...)                          whenever no wave is planned: at every wave edge
 *     ns_sched_next(s, now, &plan, &err)         plan.desc.n_segments == 0: nothing to run
 *     wave = machine.wave_open(plan.desc); machine.wave_step(...) until done
 *       an error, or given up:  ns_sched_wave_lost(s)
 *       done:                   ns_sched_take(s, wave, &outcome, &err)
 *     for each outcome.failure:  note it, ns_sched_remove
 *     for each outcome.result:   note it; if it is the next token of a generation: ns_sched_append(token) to go on, or
 *                                ns_sched_remove when it is finished; if it is the last of a scoring item: ns_sched_remove
 *     ns_sched_observe(s, &stats); machine.wave_close(wave)
 *
 * Between next and take (or wave_lost) nothing else may be called but close, the getters and ns_sched_routing.
 * No option, order of arrival or loss of a wave changes an answer: only which rows ride together. */
#ifndef NS_SCHED_H
#define NS_SCHED_H

#include "base/base.h"
#include "engine/engine.h"
#include "engine/machine.h"

struct ns_sched;

enum ns_sched_experts {
    NS_SCHED_EXPERTS_AUTO, /* group by experts while the disk is the limit */
    NS_SCHED_EXPERTS_ALWAYS,
    NS_SCHED_EXPERTS_NEVER
};

/* Zeroed means the defaults. */
struct ns_sched_options {
    uint32_t rows;       /* rows of a wave, at most machine.rows_max; 0: grows until compute is the limit */
    uint32_t rows_least; /* bounds of that growth; 0: 1024 and 4096 */
    uint32_t rows_most;
    bool alone;    /* no sharing: every item is computed by itself (to measure what sharing gains) */
    bool in_order; /* no grouping: the fair order as it is */
    enum ns_sched_experts experts;
    uint32_t look_ahead;    /* candidates compared for each place; 0: 64 */
    uint32_t overtake_most; /* later ones that may go first, for each item; 0: 64; UINT32_MAX: no limit */
    uint32_t reserved_in;   /* one place in so many goes to the oldest; 0: 8; UINT32_MAX: none */
    uint32_t quantum;       /* tokens a batch may take before the next batch has its turn; 0: 4096 */
    uint32_t live_most;     /* generations under way at once; 0: what memory allows */
};

/* machine is copied, what it points at and budget are borrowed until close. The budget pays for the tree and the plans,
 * not for the sequences. */
NS_MUST_CHECK enum ns_code ns_sched_open(const struct ns_sched_options *options, const struct ns_machine *machine,
                                         struct ns_budget *budget, struct ns_sched **out, struct ns_error *err);
void ns_sched_close(
    struct ns_sched *sched); /* closes every sequence it opened; NULL is fine; a planned wave is closed first */

/* ---- items ---------------------------------------------------------------------------------------------------------- */

/* One sequence of tokens and what is wanted of it: log-probabilities of its own tokens, tokens to come, or both. */
struct ns_sched_item {
    uint64_t id;           /* the caller's word for it, handed back with every answer */
    const uint32_t *token; /* the prompt and what was generated so far (a resumed sequence); copied */
    uint32_t n;            /* at least 1 */
    uint32_t score_from;   /* log-probabilities of token[score_from .. n-1] are wanted (echo: 1); 0: none are */
    uint32_t max_new;      /* tokens that may still be generated; 0: scoring only */
    uint32_t expected_new; /* a guess of how many it will be; 0: max_new */
    uint32_t n_top;        /* best tokens wanted with each answer, 1 .. NS_TOP_MAX */
    uint32_t priority;     /* 0 .. 9, 0 first */
    int64_t enqueued_ms;   /* wall time; age counts from here */
    uint64_t batch;        /* batches of one class share the rows fairly, counted in tokens */
    uint64_t group;        /* items with the same key are likely alike; 0: not known */
};

/* *item is the scheduler's number for it until ns_sched_remove, then it may be used for another.
 * Errors: NS_INPUT (nothing wanted, longer than the context, a token outside the vocabulary), NS_BUDGET (its state can
 * never fit, or the tree has no room left: add it later). */
NS_MUST_CHECK enum ns_code ns_sched_add(struct ns_sched *sched, const struct ns_sched_item *what, uint32_t *item,
                                        struct ns_error *err);
/* The next token of a generation, after its answer was taken. Errors: NS_BUDGET; NS_INPUT when max_new is used up. */
NS_MUST_CHECK enum ns_code ns_sched_append(struct ns_sched *sched, uint32_t item, uint32_t token, struct ns_error *err);
/* A state of this item that was kept elsewhere (a snapshot): taken in any case, and used when it holds some, but not all, of
 * the item's positions in order. What it holds need not be computed again. */
void ns_sched_adopt(struct ns_sched *sched, uint32_t item, struct ns_seq *seq);
/* The longest kept state on the item's path and its positions; NULL and 0: none. Borrowed until the next call of next. */
const struct ns_seq *ns_sched_state(const struct ns_sched *sched, uint32_t item, uint32_t *positions);
/* Finished, failed or cancelled: forgets it and frees what only it needed. */
void ns_sched_remove(struct ns_sched *sched, uint32_t item);

uint32_t ns_sched_items(const struct ns_sched *sched);   /* added and not removed */
uint32_t ns_sched_waiting(const struct ns_sched *sched); /* of those: not yet begun */
uint32_t ns_sched_live(const struct ns_sched *sched);    /* of those: holding memory for a state */

/* ---- one wave --------------------------------------------------------------------------------------------------------- */

/* Who is served by an answer. */
struct ns_sched_use {
    uint32_t ask; /* index into desc.ask */
    uint32_t item;
    uint64_t id;
    uint32_t position; /* index in the item's tokens: the answer is about what follows token[position] */
};

/* Everything is borrowed until take, wave_lost or close. Self-contained: with desc and use a caller can write down a wave
 * that is stopped half-way and, in a later process, apply its answers without this scheduler (add the items with what
 * was answered left out, the new tokens appended). */
struct ns_sched_plan {
    struct ns_wave_desc desc;
    const struct ns_sched_use *use; /* by item in order of arrival, then position */
    size_t n_uses;
    uint32_t rows_most;    /* the limit this wave was planned for */
    uint32_t rows;         /* = decode + prefill + score + replay */
    uint32_t rows_decode;  /* one new token of a running generation */
    uint32_t rows_prefill; /* prompts of generations */
    uint32_t rows_score;   /* scoring items */
    uint32_t rows_replay;  /* computed before, but the state was lost or given up */
    uint32_t rows_prefix;  /* rows that would have been computed again, were prefixes not shared */
    uint32_t rows_same;    /* the same for identical items */
    uint32_t items;        /* items with rows in this wave */
    uint32_t asks_shared;  /* answers that serve more than the first */
};

/* Plans the next wave. now_ms is wall time (ages). No segments and NS_OK: no item wants anything at present.
 * Errors: NS_BUDGET (the plan itself, or items wait and none of them fits in what is left for states). After an error
 * nothing is planned. */
NS_MUST_CHECK enum ns_code ns_sched_next(struct ns_sched *sched, int64_t now_ms, struct ns_sched_plan *plan,
                                         struct ns_error *err);

struct ns_sched_result {
    uint32_t item;
    uint64_t id;
    uint32_t position;              /* the answer is about what follows token[position] */
    uint32_t target;                /* that token, target_logprob is its own; NS_NO_TOKEN: the next of a generation */
    uint32_t n_top;                 /* as asked for; the answer may hold more */
    bool last;                      /* nothing else is wanted of the item: append or remove it */
    const struct ns_answer *answer; /* borrowed until the wave is closed; answer->ok */
};

struct ns_sched_failure {
    uint32_t item;
    uint64_t id, order;           /* order: of arrival */
    const struct ns_error *error; /* borrowed until the wave is closed */
};

/* By item in order of arrival, then position. Borrowed until the next call of ns_sched_next. */
struct ns_sched_outcome {
    const struct ns_sched_result *result;
    size_t n_results;
    const struct ns_sched_failure *failure;
    size_t n_failures;
};

/* The planned wave is done: what it tells. An item that failed has no results and is not planned again; it is to be
 * removed. Cannot fail but for NS_BUDGET; then the wave counts as lost. */
NS_MUST_CHECK enum ns_code ns_sched_take(struct ns_sched *sched, const struct ns_wave *wave,
                                         struct ns_sched_outcome *outcome, struct ns_error *err);
/* The planned wave failed or was given up. States it was writing are dropped; their rows are planned again. Call it
 * after, or instead of, wave_close. */
void ns_sched_wave_lost(struct ns_sched *sched);

/* ---- what the scheduler learns -------------------------------------------------------------------------------------- */

/* What the wave cost, before wave_close: sets the size of the next waves and the account below. */
void ns_sched_observe(struct ns_sched *sched, const struct ns_wave_stats *stats);
/* From the probe: the experts that a row of the planned wave chose in one layer (row: over all rows in segment order).
 * n is at most the model's top_k. Only a sample of the layers is remembered. Never fails; costs some hundred ns. */
void ns_sched_routing(struct ns_sched *sched, uint32_t row, uint32_t layer, const uint32_t *expert, size_t n);
/* Is it worth telling? Only while items are left over after the planned wave and the disk is, or may be, the limit. */
bool ns_sched_wants_routing(const struct ns_sched *sched);

/* ---- account ---------------------------------------------------------------------------------------------------------- */

/* A model in numbers, for bounds and forecasts. */
struct ns_sched_model {
    uint64_t trunk_bytes, head_bytes, expert_bytes; /* all dense matrices; output head; one expert */
    uint64_t state_bytes;                           /* what a generation keeps between its tokens, at least */
    uint32_t n_moe_layers, n_experts, top_k;
    double fma_row, fma_head, fma_past; /* multiply-adds per row, per logit row, per (row, earlier position) */
    uint64_t memory_bytes;              /* what can keep weights between waves */
    double read_rate;                   /* bytes/s, sequential, measured; 0: not known */
    double fma_rate;                    /* multiply-adds/s the machine can do at most; 0: not known */
};
struct ns_sched_model ns_sched_model_of(const struct ns_config *config, uint64_t trunk_bytes, uint64_t expert_bytes);
void ns_sched_set_model(struct ns_sched *sched, const struct ns_sched_model *model); /* copied */

enum ns_sched_bound { NS_BOUND_NONE, NS_BOUND_DISK, NS_BOUND_COMPUTE };

const char *ns_sched_bound_name(enum ns_sched_bound bound); /* "none", "disk", "compute" */

/* Of one wave, or of all since open. The caller stores it in waves.detail and shows it. */
struct ns_sched_account {
    uint64_t waves;
    uint64_t rows, rows_decode, rows_prefill, rows_score, rows_replay, rows_prefix, rows_same, logit_rows;
    uint64_t past;  /* sum over rows of earlier positions */
    uint64_t items; /* riders, summed over waves */
    uint64_t experts_requested, experts_distinct, experts_kept, experts_read;
    double experts_uniform; /* distinct experts if the choices were independent and even */
    uint64_t trunk_bytes, head_bytes, embed_bytes, expert_bytes; /* read */
    uint64_t trunk_kept_bytes;
    uint64_t alone_rows, alone_bytes; /* the same work one prompt at a time: rows, and bytes read for them */
    uint64_t state_bytes;             /* held for sequences after the wave (all: the most) */
    uint64_t spill_read_bytes, spill_written_bytes, spill_file_bytes; /* states on disk; file: after the wave */
    uint64_t disk_ns, compute_ns, product_ns, stall_ns, wall_ns, plan_ns;
    double bound_disk_s, bound_compute_s, bound_s; /* lower bound, see account.c; 0: rates not known */
    double achieved;                               /* bound_s / wall; 0: not known */
    double overlap;                                /* max(disk, compute) / wall */
    enum ns_sched_bound bound;                     /* what the time went to */
};

void ns_sched_account_wave(const struct ns_sched *sched, struct ns_sched_account *out); /* the last one observed */
void ns_sched_account_all(const struct ns_sched *sched, struct ns_sched_account *out);

/* ---- simulation: the plan without the model ------------------------------------------------------------------------- */

enum ns_sim_mode { NS_SIM_ONE_BY_ONE, NS_SIM_FILE_ORDER, NS_SIM_PREFIX, NS_SIM_EXPERTS, NS_SIM_MODES };

const char *ns_sim_mode_name(enum ns_sim_mode mode);

/* Routing of recorded tokens, any number of sequences one after the other; borrowed. */
struct ns_sim_routing {
    uint32_t n_layers, n_experts, top_k, n_tokens;
    const uint16_t *expert; /* [n_tokens][n_layers][top_k] */
};

struct ns_sim_options {
    struct ns_sched_options sched;        /* switches of grouping are set by the mode */
    struct ns_sched_model model;          /* read_rate and fma_rate must be known */
    const struct ns_sim_routing *routing; /* NULL: synthetic, skewed and clustered, from seed */
    uint64_t seed;
    uint64_t state_bytes; /* most memory for states; seq_bytes and seq_bytes_position describe one */
    uint64_t seq_bytes, seq_bytes_position;
    /* Memory that states share with the rows of a wave, which takes wave_bytes and row_bytes for each; what both leave keeps
     * weights, at most keep_bytes. 0: rows have a place of their own, and the model's memory_bytes keep weights. */
    uint64_t room_bytes, wave_bytes, row_bytes, keep_bytes;
    uint32_t rows_max, context, vocab;
};

struct ns_sim_result {
    struct ns_sched_account account;
    double hours;
};
/* Runs all items (every generation to its expected length) on a machine that only counts. Same seed, same result. */
NS_MUST_CHECK enum ns_code ns_sim_run(const struct ns_sim_options *options, enum ns_sim_mode mode,
                                      const struct ns_sched_item *item, size_t n_items, struct ns_budget *budget,
                                      struct ns_sim_result *out, struct ns_error *err);

#endif
