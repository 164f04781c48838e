/* engine.h - one loaded model and the waves that pass through it. Sees token ids only; knows nothing of SQL or text.
 *
 * A wave carries rows (one row = one token position of one sequence) through all layers, layer-major. Rows come as
 * segments: runs of consecutive positions. A segment starts from nothing (position 0), from the kept state of a
 * sequence, or from the end of an earlier segment of the same wave (a shared prefix and its branches).
 * Threads: one driving thread; compute threads are the kernels' business. */
#ifndef NS_ENGINE_H
#define NS_ENGINE_H

#include "base/base.h"
#include "format/format.h"
#include "kernels/kernels.h"
#include "store/store.h"

struct ns_engine;
struct ns_seq; /* kept state of a sequence at some position: recurrent matrices, conv history, latent cache */
struct ns_wave;

struct ns_engine_options {
    unsigned n_threads;       /* 0: physical cores */
    uint32_t cpu;             /* feature bits the kernels may use */
    uint32_t rows_max;        /* largest wave; 0: what half of the memory has room for, at most 4096 */
    uint32_t context;         /* longest sequence; 0: config advice or 131072, whichever is less */
    uint32_t layers;          /* diagnosis: only the first layers; 0: all */
    uint32_t block_positions; /* latent pages; 0: default */
    uint32_t head_group;      /* attention heads worked on together; 0: default */
    size_t state_bytes;       /* most memory for kept sequences; 0: what the plan gives */
    const char *spill_dir;    /* recurrent states that do not fit in memory go to files here; NULL: never */
    uint64_t spill_bytes;     /* most bytes of such files; 0: half of what is free there */
    uint32_t spill_log;       /* positions logged between two rewrites of a state; 0: default 8 */
    bool every_thread;        /* wakes them for little work too: tests of what threads do */
    struct ns_store_options store;
};

/* Reads config, shards, census and fingerprint, refuses what is unsound (all problems in one message), opens the store
 * and makes room for a wave. Everything is charged to budget; NS_BUDGET names the floor when it does not fit. */
NS_MUST_CHECK enum ns_code ns_engine_open(const char *dir, const struct ns_engine_options *options,
                                          struct ns_budget *budget, struct ns_engine **out, struct ns_error *err);
void ns_engine_close(struct ns_engine *engine);
const struct ns_config *ns_engine_config(const struct ns_engine *engine);
const char *ns_engine_fingerprint(const struct ns_engine *engine);           /* hex SHA-256 of the model */
const char *ns_engine_tokenizer_fingerprint(const struct ns_engine *engine); /* hex */
uint32_t ns_engine_rows_max(const struct ns_engine *engine);
uint32_t ns_engine_context(const struct ns_engine *engine);
struct ns_store *ns_engine_store(struct ns_engine *engine);
const struct ns_kernels *ns_engine_kernels(const struct ns_engine *engine);

/* ---- the plan (plan.c): how the memory is divided, and what a wave moves ----------------------------------------------------- */

enum ns_share {
    NS_SHARE_MODEL,
    NS_SHARE_TILES,
    NS_SHARE_EXPERTS,
    NS_SHARE_ROWS,
    NS_SHARE_STATES,
    NS_SHARE_RESIDENT,
    NS_SHARE_SLACK,
    NS_SHARES
};

const char *ns_share_name(enum ns_share share); /* "model", "tiles", "experts", "rows", "states", "resident", "slack" */

struct ns_plan {
    size_t budget_bytes; /* the ceiling that was divided */
    size_t used_bytes;   /* taken before (config, index of tensors) */
    size_t
        share[NS_SHARES]; /* sums to at most budget_bytes - used_bytes; of rows, states and resident each may have what
                           * the others do not need */
    struct ns_keep keep;  /* what the resident share holds when it is full */
    size_t floor_bytes;   /* the smallest budget that works, at waves of floor_rows */
    uint32_t floor_rows;
    uint32_t rows_max, context, layers, block_positions;
    uint32_t rows_most;     /* that could be asked for */
    size_t row_bytes;       /* what one row more takes in a wave of short sequences, rounded up ... */
    size_t wave_bytes;      /* ... and such a wave beside its rows */
    size_t row_table_bytes; /* of its slack that a row less of the largest wave leaves to others */
    size_t state_most;      /* states can have of what rows and weights leave; SIZE_MAX: all */
    size_t resident_most;   /* weights that can come to stay when neither rows nor states need the memory */
    size_t seq_bytes;       /* a kept sequence, without its positions */
    size_t position_bytes;  /* and per position */
    size_t expert_bytes;    /* one expert */
    uint32_t n_moe_layers, n_experts, top_k;
    uint64_t trunk_bytes, head_bytes, embed_row_bytes, expert_total_bytes;
    uint64_t spill_bytes, spill_free_bytes; /* most bytes of spilled states, and what is free there; 0: no folder */
    uint64_t spill_file_bytes;              /* of one spilled state */
    uint32_t spilled_most;                  /* sequences; their states need not fit in memory */
    struct ns_store_options store;          /* what the store is opened with */
};

/* Multiply-adds per row, from the shapes: everything but experts, attention over the context and the head; experts;
 * the head (per row that is asked about); attention per (row, cached position). */
struct ns_work {
    uint64_t trunk, experts, head, attend;
};

/* What one wave moves and computes, once what stays has been read. */
struct ns_forecast {
    uint64_t trunk_bytes, head_bytes, embed_bytes, expert_bytes, kept_bytes; /* kept: not read, because resident */
    uint64_t experts_distinct;                                               /* over all layers */
    double multiply_adds;
};
/* The plan without opening the store: reads config and index only. Errors as ns_engine_open; NS_BUDGET fills *out's
 * floor and shares all the same. */
NS_MUST_CHECK enum ns_code ns_plan_read(const char *dir, const struct ns_engine_options *options,
                                        struct ns_budget *budget, struct ns_plan *out, struct ns_work *work,
                                        struct ns_error *err);
const struct ns_plan *ns_engine_plan(const struct ns_engine *engine);
void ns_engine_work(const struct ns_engine *engine, struct ns_work *out);

struct ns_load_shape {
    uint32_t rows, head_rows;
    double distinct; /* experts per layer that the rows choose; 0: the union of independent uniform choices */
    double mean_context;
    uint64_t state_bytes; /* what kept sequences take meanwhile */
};

void ns_plan_forecast(const struct ns_plan *plan, const struct ns_work *work, const struct ns_load_shape *load,
                      struct ns_forecast *out);

/* ---- sequences ------------------------------------------------------------------------------------------------------------------ */

/* Bytes that a kept sequence of n positions takes; what is left for such states. */
size_t ns_seq_bytes(const struct ns_engine *engine, uint32_t n_positions);
size_t ns_engine_state_left(const struct ns_engine *engine);
/* Between waves: what such states and the rows of the next wave may still take together; the most that a wave of n rows
 * takes of it when each sees at most n_positions. */
size_t ns_engine_room_left(const struct ns_engine *engine);
size_t ns_engine_rows_bytes(const struct ns_engine *engine, uint32_t n, uint32_t n_positions);

/* Spilled states so far: bytes read, bytes written, files now. Zero without a spill folder. A folder with less room than
 * one state needs is no error: then no state is spilled. */
struct ns_spill_stats {
    uint64_t read_bytes, written_bytes, file_bytes;
    uint32_t n_files;
};

void ns_engine_spill_stats(const struct ns_engine *engine, struct ns_spill_stats *out);
/* An empty sequence (0 positions). Memory is taken when a wave writes into it; NS_BUDGET then. */
NS_MUST_CHECK enum ns_code ns_seq_open(struct ns_engine *engine, struct ns_seq **out, struct ns_error *err);
void ns_seq_close(struct ns_seq *seq); /* NULL is fine */
uint32_t ns_seq_positions(const struct ns_seq *seq);

/* ---- snapshots (snapshot.c): a kept sequence as a checked side file ----------------------------------------------- */

#define NS_ENGINE_ABI 1 /* what states in files mean; another number is refused */

struct ns_snapshot {
    uint64_t seq_id, runner;   /* the caller's names */
    uint32_t from_pos, to_pos; /* positions in the file; from_pos 0: a base, else a delta */
    uint64_t bytes;
    char checksum[NS_SHA256_HEX]; /* hex of 16 bytes */
};
/* Writes recurrent state and positions from .. end to path (a file that is there goes) and syncs it; renaming it into
 * place and syncing the folder are the caller's. seq has positions. Errors: NS_FULL, NS_IO; nothing is left at path. */
NS_MUST_CHECK enum ns_code ns_seq_save(const struct ns_seq *seq, const char *path, uint64_t seq_id, uint64_t runner,
                                       uint32_t from, struct ns_snapshot *out, struct ns_error *err);
/* Base and deltas in order into an empty sequence. want: what the caller's rows say (checksum "": not compared).
 * NS_CORRUPT: another model, engine, contract, position or a wrong sum; NS_NOINPUT, NS_IO, NS_BUDGET. The sequence is then
 * empty, and replaying gives the same bits. */
NS_MUST_CHECK enum ns_code ns_seq_load(struct ns_seq *seq, const char *const *path, const struct ns_snapshot *want,
                                       size_t n, struct ns_error *err);

/* ---- waves ------------------------------------------------------------------------------------------------------------------------ */

#define NS_NO_PARENT UINT32_MAX

struct ns_segment {
    const uint32_t *token; /* borrowed until the wave is closed */
    uint32_t n;            /* at least 1 */
    uint32_t parent;       /* index of an EARLIER segment of this wave, or NS_NO_PARENT */
    struct ns_seq *from;   /* without a parent: start here; NULL: position 0. Only read, unless into is the same */
    struct ns_seq *into;   /* gets the end state; NULL: nothing survives the wave. May be from, when no other segment
                            * starts from it; otherwise must be empty. */
};

/* A row whose logits are wanted. Several asks may name the same row. */
struct ns_ask {
    uint32_t segment, offset; /* the logits after segment.token[offset] */
    uint32_t target;          /* a token whose log-probability is wanted, or NS_NO_TOKEN */
    uint32_t n_top;           /* how many best tokens, 1 .. NS_TOP_MAX */
};

struct ns_answer {
    bool ok;       /* false: the segment failed, see ns_wave_fault */
    uint32_t best; /* greedy token, ties lowest id */
    float best_logprob, target_logprob;
    uint32_t n_top;
    uint32_t top_id[NS_TOP_MAX];
    float top_logprob[NS_TOP_MAX];
};

struct ns_wave_desc {
    const struct ns_segment *segment; /* borrowed until close */
    size_t n_segments;
    const struct ns_ask *ask;
    size_t n_asks;
};

/* What a test, a routing record or a logit lens may look at. Called on the driving thread; name: "embed", "residual"
 * (after the layer), "attn_in", "attn_out", "ffn_in", "ffn_out", "routed", "final" and "logits" (rows asked about, layer
 * is the number of layers; "logits" only on request). row: index over all rows of the wave in segment order. For
 * "routed" v holds the n weights and ids the n experts, ascending; ids is NULL otherwise. */
struct ns_probe {
    void (*row)(void *arg, uint32_t layer, const char *name, uint32_t row, const float *v, const uint32_t *ids,
                size_t n);
    void *arg;
    bool logits; /* whole "logits" too: takes asked rows x vocabulary floats beside the shares */
};

struct ns_wave_stats {
    uint32_t rows, segments, logit_rows;
    uint64_t experts_requested;  /* rows x top_k over the layers */
    uint64_t experts_distinct;   /* sum over layers of the union */
    struct ns_store_stats store; /* of this wave */
    uint64_t spill_read_bytes, spill_written_bytes;
    uint64_t spill_file_bytes; /* of all spilled states, after the wave */
    uint64_t compute_ns, wall_ns;
    uint64_t product_ns; /* of compute_ns: in matrix products and experts */
};

/* Checks the description (sizes, tokens below vocab, parents earlier, context): NS_INPUT. Takes what the wave needs. */
NS_MUST_CHECK enum ns_code ns_wave_open(struct ns_engine *engine, const struct ns_wave_desc *desc,
                                        const struct ns_probe *probe /* NULL: none */, struct ns_wave **out,
                                        struct ns_error *err);
/* One step: the embedding, then one layer, ..., then the head. *done when the wave is complete. An error ends the wave:
 * every into sequence is then unusable (ns_seq_positions 0) and must be rebuilt from its tokens. */
NS_MUST_CHECK enum ns_code ns_wave_step(struct ns_wave *wave, bool *done, struct ns_error *err);
uint32_t ns_wave_next_layer(const struct ns_wave *wave);
/* After done: one answer per ask, in order. */
const struct ns_answer *ns_wave_answers(const struct ns_wave *wave);
/* NULL, or why the rows of this segment (and of those that start from it) failed: NS_NONFINITE or NS_CORRUPT with
 * layer, position and expert. Valid until the next call. */
const struct ns_error *ns_wave_fault(const struct ns_wave *wave, size_t segment);
void ns_wave_stats_get(const struct ns_wave *wave, struct ns_wave_stats *out);
/* Before done: abandons it, as after an error. NULL is fine. */
void ns_wave_close(struct ns_wave *wave);

/* ---- suspended waves (suspend.c) -------------------------------------------------------------------------------------- */

struct ns_suspend {
    uint64_t bytes;
    char checksum[NS_SHA256_HEX]; /* hex of 16 bytes */
    uint32_t next_layer;
};

/* Between two steps: no step follows, only suspending and closing. What is read ahead for the layers that are left is given
 * up, so that the disk and the cores are free for the file. */
void ns_wave_leave(struct ns_wave *wave);
/* Writes a wave that is between two steps (at least one was done, not all) to path and syncs it: description, rows,
 * residual sources, and the sequences it starts from or makes. notes are the caller's, given back when it is resumed.
 * The wave stays as it is. Errors: NS_FULL, NS_IO, NS_STOPPED (a second signal); nothing is left at path. */
NS_MUST_CHECK enum ns_code ns_wave_suspend(struct ns_wave *wave, const char *path, const void *notes, size_t n_notes,
                                           struct ns_suspend *out, struct ns_error *err);

/* What a suspended wave needs, from the beginning of its file: whoever divides the memory leaves room for it. */
struct ns_suspend_size {
    uint32_t rows;
    uint32_t layers, block_positions; /* as in the plan of the model it belongs to */
    uint64_t position_bytes;
    double n_seqs, n_pages; /* at most: kept sequences it starts from and makes, and the pages of their positions */
};
/* fingerprint: of the model the wave should belong to. Errors: NS_CORRUPT, NS_NOINPUT, NS_IO, NS_BUDGET. */
NS_MUST_CHECK enum ns_code ns_suspend_measure(const char *path, const char *fingerprint, struct ns_budget *budget,
                                              struct ns_suspend_size *out, struct ns_error *err);
/* The wave again, at the layer where it stopped. want: what the caller's row says. *out owns the description (borrowed by
 * the wave, so it is closed after the wave); the sequences named in it are the caller's from here on.
 * NS_CORRUPT: another model, engine, contract, size or sum; NS_BUDGET: does not fit. Nothing is left then. */
struct ns_suspended;
NS_MUST_CHECK enum ns_code ns_wave_resume(struct ns_engine *engine, const char *path, const struct ns_suspend *want,
                                          const struct ns_probe *probe, struct ns_suspended **out,
                                          struct ns_wave **wave, struct ns_error *err);
const struct ns_wave_desc *ns_suspended_desc(const struct ns_suspended *suspended);
const void *ns_suspended_notes(const struct ns_suspended *suspended, size_t *n);
void ns_suspended_close(struct ns_suspended *suspended); /* NULL is fine */

/* ---- side files of both kinds (sidefile.c) ----------------------------------------------------------------------------- */

/* Checks a side file of any model: its head, its size, and that it ends with checksum (hex of 16 bytes), which is the sum
 * of the sums of its blocks. whole: reads all blocks and compares their sums too.
 * NS_CORRUPT with what does not fit; NS_NOINPUT, NS_IO, NS_BUDGET. */
NS_MUST_CHECK enum ns_code ns_side_verify(const char *path, const char *checksum, bool whole, struct ns_budget *budget,
                                          struct ns_error *err);

#endif
