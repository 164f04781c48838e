/* model.h - the layers as maths over rows. Knows the shapes and the order of the equations; knows nothing of requests,
 * sequences or budgets of memory: whoever drives it says which rows belong together and where their states live.
 *
 * A pass takes rows through the model layer by layer: begin, layer 0 .. n-1, head. Row i of every array is row i of the
 * wave. Threads: one driving thread; compute threads are the kernels' business. */
#ifndef NS_MODEL_H
#define NS_MODEL_H

#include "base/base.h"
#include "format/format.h"
#include "kernels/kernels.h"
#include "store/store.h"

/* ---- the bound model (bind.c) ----------------------------------------------------------------------------------------- */

struct ns_model; /* names bound to tensors, the small vectors widened and resident, and the list of tiles of a wave */

struct ns_model_options {
    uint32_t n_layers;   /* how many layers run (diagnosis); 0: all */
    uint32_t head_group; /* how many attention heads are worked on together; 0: default for n_threads */
    unsigned n_threads;
    size_t tile_bytes; /* without a store: the size of its tiles */
};

/* config, shards and store are borrowed until close. store NULL: the shapes only; nothing is read, and the model serves
 * for measuring. Errors: NS_INPUT (a tensor is missing or of a dtype that cannot be used), NS_IO, NS_BUDGET. */
NS_MUST_CHECK enum ns_code ns_model_open(const struct ns_config *config, const struct ns_shards *shards,
                                         struct ns_store *store, const struct ns_model_options *options,
                                         struct ns_budget *budget, struct ns_model **out, struct ns_error *err);
void ns_model_close(struct ns_model *model);
const struct ns_config *ns_model_config(const struct ns_model *model);
uint32_t ns_model_layers(const struct ns_model *model);
/* Bytes of what ns_model_open keeps for good, tile list included. */
size_t ns_model_resident_bytes(const struct ns_model *model);

/* Bytes of all matrices of the layers; of the head; of one embedding row; of one expert. */
struct ns_model_bytes {
    uint64_t trunk, head, embed_row, expert;
    size_t largest_row; /* of any matrix that comes in tiles */
    size_t n_tiles;
};

void ns_model_bytes_get(const struct ns_model *model, struct ns_model_bytes *out);

/* Multiply-adds of one row: matrices of the layers; its experts; the head (rows with logits); attention per cached
 * position. The recurrence counts with the matrices. */
struct ns_model_work {
    uint64_t trunk, experts, head, attend;
};

void ns_model_work_get(const struct ns_model *model, struct ns_model_work *out);
/* The k-th recurrent (or full attention) layer is layer i: k for layer i. */
uint32_t ns_model_kind_index(const struct ns_model *model, uint32_t layer);
uint32_t ns_model_kda_layers(const struct ns_model *model);
uint32_t ns_model_mla_layers(const struct ns_model *model);

/* Floats of recurrent state of one head: S [d][d], then the histories of q, k, v, each [conv_kernel-1][d]. A layer's
 * state is [kda_heads] of them. */
size_t ns_kda_head_floats(const struct ns_config *config);
/* Floats of one logged position of one head. */
size_t ns_kda_log_floats(const struct ns_config *config);
uint32_t ns_kda_group(const struct ns_model *model); /* heads worked on together */
/* Moves the state of one head along n logged positions (row stride ld_row floats). layer is a recurrent one. scratch:
 * ns_kda_replay_floats. */
size_t ns_kda_replay_floats(const struct ns_config *config);
void ns_kda_replay(const struct ns_model *model, const struct ns_kernels *kernels, uint32_t layer, uint32_t head,
                   const float *row, size_t ld_row, uint32_t n, float *state, float *scratch);
/* Floats of one cached position of one full attention layer: the latent, then the shared key part. */
size_t ns_mla_key_floats(const struct ns_config *config);

/* All tiles of a wave in the order in which the layers take them. Layer l starts at first[l]; the head at
 * first[n_layers]; first[n_layers+1] is the end. */
const struct ns_tile *ns_model_tiles(const struct ns_model *model, const size_t **first);

/* ---- scratch (arena.c) -------------------------------------------------------------------------------------------------- */

/* One block of memory handed out from the bottom; a mark gives back everything after it. base NULL measures: take
 * returns NULL and only peak counts. */
struct ns_arena {
    uint8_t *base;
    size_t used, limit, peak;
};

void *ns_arena_take(struct ns_arena *arena, size_t bytes); /* 64-byte aligned; beyond the limit is a bug (assert) */

/* ---- which rows belong together ----------------------------------------------------------------------------------------- */

/* Recurrent layers walk trees of runs. A state lives in a slot (scratch of the worker, 0 .. n_slots-1) or in a home
 * (memory of whoever drives, NS_STATE_HOME + index). Source and target may be the same place. */
#define NS_STATE_ZERO UINT32_MAX
#define NS_STATE_HOME 0x40000000u

struct ns_kda_step {
    uint32_t row, n;         /* n consecutive positions: rows row .. row+n-1 */
    uint32_t source, target; /* state before the first row; state after the last */
    bool replay;             /* the source is a home as it was kept: its log comes first */
};

struct ns_kda_tree {
    uint32_t first, n; /* steps; independent of every other tree */
};

/* A home that is not kept whole in memory: a base, and the inputs of the positions since, replayed in front of the rows
 * of the step that starts from it. row [n + new][heads of the group][ns_kda_log_floats]: q, k, v before the convolution,
 * alpha, beta; the rows of a step that ends in a home with append are added behind the first n. */
struct ns_kda_log {
    uint32_t n;
    uint32_t first_head; /* the head that home[] starts with: 0 for homes whole in memory */
    bool append;
    float *row;
};

/* Brings the states of a group of heads in and out; all three are called on the driving thread. begin may return while
 * reads are under way, ready waits for them. While a group is at work its homes hold the heads of the group only. */
struct ns_kda_pager {
    enum ns_code (*begin)(void *arg, uint32_t first_head, uint32_t n_heads, struct ns_error *err);
    enum ns_code (*ready)(void *arg, struct ns_error *err);
    enum ns_code (*end)(void *arg, struct ns_error *err);
    void *arg;
};

struct ns_kda_work {
    const struct ns_kda_step *step;
    const struct ns_kda_tree *tree;
    size_t n_trees;
    uint32_t n_slots;
    float *const *home;               /* of this layer: [kda_heads][ns_kda_head_floats] each */
    const struct ns_kda_log *log;     /* one a home; NULL: all homes are whole in memory */
    const struct ns_kda_pager *pager; /* NULL with log */
};

/* Full attention: blocks of queries of one run with everything they may see. */
struct ns_mla_block {
    uint32_t row, n;
    uint32_t first_span, n_spans;
};

struct ns_mla_work {
    const struct ns_mla_block *block;
    size_t n_blocks;
    const struct ns_key_run *span; /* of this layer; those of this wave's own rows point into latent */
    const uint32_t *n_visible;     /* [n_rows] position + 1 */
    float *latent;                 /* [n_rows][ns_mla_key_floats], written by the layer before anything is attended */
    uint32_t n_block_rows;         /* most queries in a block */
    uint32_t n_positions;          /* most positions any query sees */
    /* Called when latent is complete, to store it away. */
    void (*stored)(void *arg);
    void *arg;
};

/* ---- a pass ---------------------------------------------------------------------------------------------------------------- */

#define NS_NO_EXPERT  UINT32_MAX
#define NS_MAX_BLOCKS 64

struct ns_tap { /* see ns_probe in engine.h */
    void (*row)(void *arg, uint32_t layer, const char *name, uint32_t row, const float *v, const uint32_t *ids,
                size_t n);
    void *arg;
};

struct ns_pass {
    /* fixed over the pass, set by the driver */
    const struct ns_model *model;
    const struct ns_kernels *kernels;
    struct ns_store *store;
    struct ns_arena *arena;
    size_t n_rows;
    uint32_t n_slots;      /* most slots of the recurrent work */
    uint32_t n_block_rows; /* most queries of an attention block */
    uint32_t n_positions;  /* most positions any query sees */
    size_t n_head_rows;    /* rows whose logits are wanted */
    float *seen_logits;    /* [n_head_rows][vocab] to be filled and shown, or NULL */
    struct ns_tap tap;     /* row NULL: nobody looks */
    uint8_t *dead;         /* [n_rows] rows that failed: left out of routing, not reported again */
    /* Row went wrong (NS_NONFINITE, NS_CORRUPT). The driver marks it, and whatever depends on it, dead. */
    void (*fault)(void *arg, enum ns_code code, uint32_t layer, uint32_t row, uint32_t expert, const char *what);
    void *fault_arg;
    /* the state of the pass */
    float *x;                          /* [n_rows][hidden] the accumulator */
    const float *block[NS_MAX_BLOCKS]; /* [n_rows][hidden] each: the residual sources */
    uint32_t n_blocks;
    size_t next_tile;
    /* counted */
    uint64_t experts_requested, experts_distinct;
    /* private */
    void *gemm_scratch;
    uint8_t *ok;
};

/* Bytes of arena that a pass of this shape takes (n_rows, n_slots, n_block_rows, n_positions, n_head_rows, and whether
 * somebody looks); model and kernels must be set. */
size_t ns_pass_arena_bytes(const struct ns_pass *shape);
/* Takes what the pass keeps for its whole length and clears the counters. The tile list must be begun by the driver. */
void ns_pass_begin(struct ns_pass *pass);
/* x <- embedding of token[n_rows]. */
NS_MUST_CHECK enum ns_code ns_pass_embed(struct ns_pass *pass, const uint32_t *token, struct ns_error *err);
/* One layer; kda or mla is used, by the layer's kind. */
NS_MUST_CHECK enum ns_code ns_pass_layer(struct ns_pass *pass, uint32_t layer, const struct ns_kda_work *kda,
                                         const struct ns_mla_work *mla, struct ns_error *err);
/* Puts the accumulator and the sources where they are after `layer` layers, for a pass that goes on with saved ones:
 * x and block[] then point at memory to fill. */
void ns_pass_resume(struct ns_pass *pass, uint32_t layer);

/* Final mix, norm and logits of pass->n_head_rows rows. row [n] ascending; head [n] has n_top set, the rest zero. */
struct ns_head_target {
    uint32_t head, token; /* index into row[]; sorted by token */
    float logit;          /* written */
};

struct ns_head_result {
    float max, log_sum;
};
NS_MUST_CHECK enum ns_code ns_pass_head(struct ns_pass *pass, const uint32_t *row, struct ns_head_row *head,
                                        struct ns_head_result *result, struct ns_head_target *target, size_t n_targets,
                                        struct ns_error *err);

#endif
