/* engine_impl.h - private to engine/: the handle, sequences, and the wave's inner parts. */
#ifndef NS_ENGINE_IMPL_H
#define NS_ENGINE_IMPL_H

#include "engine/engine.h"
#include "model/model.h"

struct ns_pool {
    size_t most_resident, most_states; /* how far each may grow */
    size_t step;
};

struct ns_engine {
    struct ns_budget *budget;
    struct ns_engine_options options;
    struct ns_config config;
    struct ns_shards *shards;
    struct ns_store *store;
    struct ns_model *model;
    struct ns_kernels kernels;
    struct ns_product_time product; /* kernels.time: since the engine was opened */
    char fingerprint[NS_SHA256_HEX], tokenizer_fingerprint[NS_SHA256_HEX];
    struct ns_plan plan;
    struct ns_work work;
    struct ns_budget rows_share, state_share; /* limit 0 until opened */
    struct ns_pool pool;
    struct ns_seq *first_seq;
    struct ns_spill *spill;              /* NULL: states stay in memory */
    struct ns_wave *wave;                /* the one in progress, or NULL */
    size_t kda_layer_floats, key_floats; /* one layer's recurrent state; one cached position */
    uint32_t n_kda, n_mla, block;        /* block: positions of a page */
};

/* ---- pool.c: memory that rows, states and kept weights share --------------------------------------------------------------------- */

/* Model and store are open. */
NS_MUST_CHECK enum ns_code ns_pool_open(struct ns_engine *engine, struct ns_error *err);
size_t ns_pool_left(const struct ns_engine *engine);  /* what states may still take */
size_t ns_pool_bytes(const struct ns_engine *engine); /* what they may have in all */
size_t ns_pool_room(const struct ns_engine *engine);  /* what states and the rows of a wave may still take together */
/* Before bytes are taken from the share of states: the place of rows and weights go as far as needed, then states go to
 * files when that is allowed. Nothing happens during a wave. Whether there is room now is found out by taking it; an error
 * is one of files. */
NS_MUST_CHECK enum ns_code ns_pool_make_room(struct ns_engine *engine, size_t bytes, struct ns_error *err);
/* The same for bytes of the share of rows. */
NS_MUST_CHECK enum ns_code ns_pool_make_rows(struct ns_engine *engine, size_t bytes, struct ns_error *err);
/* Before a wave reads, when its rows are there: weights get what they and states have left. */
NS_MUST_CHECK enum ns_code ns_pool_settle(struct ns_engine *engine, struct ns_error *err);

/* ---- seqstate.c ------------------------------------------------------------------------------------------------------------------ */

/* block positions of all full attention layers: [n_mla][block][key]. Full pages are shared by reference and never
 * written again; the last, unfull page of a sequence is its own. */
struct ns_page {
    uint32_t n_refs; /* tables that name it */
    uint32_t number; /* in the file being written; otherwise meaningless */
    float *data;
};

struct ns_seq {
    struct ns_engine *engine;
    uint32_t n_positions;
    float *kda; /* [n_kda][kda_heads][head floats]; NULL while nothing was written, or spilled */
    struct ns_spill_file *spilled;
    struct ns_page **page;
    uint32_t n_pages, page_capacity;
    struct ns_seq *next, *before; /* of all sequences of the engine */
    uint32_t n_from, n_into;      /* uses in the wave that is being checked */
    uint32_t home;                /* index among the homes of the wave in progress */
};

struct ns_page *ns_page_open(struct ns_engine *engine, struct ns_error *err); /* no reference yet */
void ns_page_drop(struct ns_engine *engine, struct ns_page *page);            /* frees one without references */
void ns_page_release(struct ns_engine *engine, struct ns_page *page);         /* one reference less */
size_t ns_page_bytes(const struct ns_engine *engine);
float *ns_page_layer(const struct ns_engine *engine, const struct ns_page *page, uint32_t mla_index);
NS_MUST_CHECK enum ns_code ns_seq_reserve(struct ns_seq *seq, uint32_t n_pages, struct ns_error *err);
void ns_seq_reset(struct ns_seq *seq);                                 /* back to 0 positions; memory is given back */
float *ns_seq_kda_layer(const struct ns_seq *seq, uint32_t kda_index); /* of one in memory */
/* One layer's state into out, or from in: wherever it lives. n_logged: positions of its log that count. */
NS_MUST_CHECK enum ns_code ns_seq_kda_get(const struct ns_seq *seq, uint32_t kda_index, uint32_t n_logged, float *out,
                                          struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_seq_kda_put(struct ns_seq *seq, uint32_t kda_index, const float *in,
                                          struct ns_error *err);

/* ---- spill.c: recurrent states in files, with a write-behind log ------------------------------------------------------------------ */

struct ns_spill_file {
    struct ns_file *file;
    uint32_t n_logged; /* positions in the log of every layer */
};
struct ns_spill_window;

/* Of one layer and group of heads, with its log; of one sequence. log: positions, 0: default. */
struct ns_spill_sizes {
    uint32_t log;
    size_t slice_bytes;
    uint64_t file_bytes;
};

void ns_spill_measure(const struct ns_model *model, uint32_t log, struct ns_spill_sizes *out);
/* What of asked (0: half of it) the folder has room for, less a margin; it need not exist yet. */
uint64_t ns_spill_limit(const char *dir, uint64_t asked, uint64_t *free_bytes);
NS_MUST_CHECK enum ns_code ns_spill_open(struct ns_engine *engine, struct ns_error *err);
void ns_spill_close(struct ns_engine *engine);
NS_MUST_CHECK enum ns_code ns_spill_take(struct ns_engine *engine, struct ns_spill_file **out, struct ns_error *err);
void ns_spill_give(struct ns_engine *engine, struct ns_spill_file *file);
NS_MUST_CHECK enum ns_code ns_spill_get_layer(struct ns_engine *engine, const struct ns_spill_file *file,
                                              uint32_t kda_index, uint32_t n_logged, float *out, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_spill_put_layer(struct ns_engine *engine, struct ns_spill_file *file, uint32_t kda_index,
                                              const float *in, struct ns_error *err);
bool ns_spill_has_room(const struct ns_engine *engine); /* for one more */
size_t ns_spill_cost(const struct ns_engine *engine);   /* memory for one more recurrent state, in a file or not */
/* Moves the state of a sequence from memory to a file; on error it is where it was. */
NS_MUST_CHECK enum ns_code ns_spill_out(struct ns_seq *seq, struct ns_error *err);

/* Homes of a wave: those that are spilled pass through a window of one group of heads. n_new [n_homes]: rows that end in
 * the home, 0: it is only read. on_goes: the home is also where they start. */
struct ns_spill_home {
    struct ns_seq *seq;
    uint32_t n_new;
    bool goes_on;
};
/* *out is NULL when no home is spilled. may_append: false when layers were done already (a resumed wave). */
NS_MUST_CHECK enum ns_code ns_spill_window_open(struct ns_engine *engine, const struct ns_spill_home *home, size_t n,
                                                bool may_append, struct ns_spill_window **out, struct ns_error *err);
/* Points work (and the states of spilled homes) at the window for this layer. */
void ns_spill_window_layer(struct ns_spill_window *window, uint32_t kda_index, float **home_state,
                           struct ns_kda_work *work);
NS_MUST_CHECK enum ns_code ns_spill_window_settle(struct ns_spill_window *window,
                                                  struct ns_error *err);            /* waits for writes */
uint32_t ns_spill_window_logged(const struct ns_spill_window *window, size_t home); /* after the wave */
void ns_spill_window_commit(struct ns_spill_window *window);
void ns_spill_window_close(struct ns_spill_window *window); /* NULL is fine */

/* ---- lineage.c: who descends from whom, and what that means for states and caches ---------------------------------------------- */

struct ns_seg {
    uint32_t row, n, start; /* first row, rows, position of the first row */
    uint32_t root;
    uint32_t first_page, n_new_pages; /* pages completed by it, in lineage->page */
    uint32_t first_span, n_spans, n_from_spans;
    struct ns_page *tail; /* last, unfull page of into */
    bool needs_pages;     /* it, or a descendant, ends in a kept sequence */
};

struct ns_span_source {
    const struct ns_page *page; /* NULL: rows of the wave */
    uint32_t row, n;
};

struct ns_fill {
    struct ns_page *page;
    uint32_t segment, begin, end; /* positions to copy into it */
};

struct ns_lineage {
    struct ns_engine *engine;
    const struct ns_segment *segment;
    size_t n_segments, n_rows;
    struct ns_seg *seg;
    uint32_t *n_visible; /* [n_rows] */
    /* recurrent layers */
    struct ns_kda_step *step;
    struct ns_kda_tree *tree;
    size_t n_trees;
    uint32_t n_slots;
    struct ns_seq **home;
    float **home_state; /* of the layer at work */
    uint32_t n_homes;
    struct ns_spill_window *window; /* NULL: every home is in memory */
    /* full attention */
    struct ns_mla_block *block;
    size_t n_blocks;
    uint32_t n_block_rows, n_positions;
    struct ns_span_source *source;
    struct ns_key_run *span; /* of the layer at work */
    size_t n_spans;
    struct ns_page **page; /* new (or, for the tail of a sequence that goes on, its own) pages */
    uint32_t n_pages;
    struct ns_fill *fill;
    size_t n_fills;
    bool written; /* set when the first layer runs: from then on the sequences are not what they were */
};

/* Checks the segments (NS_INPUT) and makes room for what into needs. On error nothing is left behind. */
NS_MUST_CHECK enum ns_code ns_lineage_open(struct ns_engine *engine, const struct ns_segment *segment, size_t n,
                                           struct ns_lineage *lineage, struct ns_error *err);
/* The window for spilled homes, before the first layer that runs. */
NS_MUST_CHECK enum ns_code ns_lineage_page_in(struct ns_lineage *lineage, bool may_append, struct ns_error *err);
void ns_lineage_kda(struct ns_lineage *lineage, uint32_t kda_index, struct ns_kda_work *work);
void ns_lineage_mla(struct ns_lineage *lineage, uint32_t mla_index, float *latent, struct ns_mla_work *work);
/* Copies the rows of this layer into the pages of kept sequences. */
void ns_lineage_store(struct ns_lineage *lineage, uint32_t mla_index, const float *latent);
/* The wave is complete: into of segment i moves to its new end when ok[i], and is reset otherwise. Cannot fail. */
void ns_lineage_commit(struct ns_lineage *lineage, const bool *ok);
/* Frees. Without a commit every into is reset that was written to, or holds nothing. */
void ns_lineage_close(struct ns_lineage *lineage);

/* ---- ask.c: which rows have logits, and what is answered --------------------------------------------------------------------------- */

struct ns_asks {
    const struct ns_ask *ask;
    size_t n_asks, n_rows, n_targets;
    uint32_t *row;       /* [n_rows] ascending */
    uint32_t *head_of;   /* [n_asks] index into row */
    uint32_t *target_of; /* [n_asks] index into target, or UINT32_MAX */
    struct ns_head_row *head;
    struct ns_head_result *result;
    struct ns_head_target *target;
    struct ns_answer *answer;
};
NS_MUST_CHECK enum ns_code ns_asks_open(struct ns_engine *engine, const struct ns_ask *ask, size_t n,
                                        const struct ns_lineage *lineage, struct ns_asks *asks, struct ns_error *err);
/* fault [n_segments]: true for failed ones. */
void ns_asks_answer(struct ns_asks *asks, const bool *failed);
void ns_asks_close(struct ns_engine *engine, struct ns_asks *asks);

/* ---- rowspace.c: the memory of a wave --------------------------------------------------------------------------------------------------- */

struct ns_rows {
    struct ns_arena arena;
    float *latent; /* [n_rows][key floats] */
    uint8_t *dead;
};

/* The arena for a pass of this shape, with the latent rows and the dead flags in front. */
size_t ns_rows_bytes(const struct ns_pass *shape);
/* The same for any wave of n rows that see at most n_positions. */
size_t ns_rows_most(const struct ns_model *model, const struct ns_kernels *kernels, uint32_t n, uint32_t n_positions);
NS_MUST_CHECK enum ns_code ns_rows_open(struct ns_engine *engine, const struct ns_pass *shape, struct ns_rows *rows,
                                        struct ns_error *err);
void ns_rows_close(struct ns_engine *engine, struct ns_rows *rows);

/* ---- plan.c ---------------------------------------------------------------------------------------------------------------------------- */

/* Divides what the budget has left. shape: the model without a store; *out must be all zero. NS_BUDGET fills floor and
 * used_bytes all the same. */
NS_MUST_CHECK enum ns_code ns_plan_make(const struct ns_model *shape, const struct ns_kernels *kernels,
                                        const struct ns_engine_options *options, const struct ns_store_need *need,
                                        const struct ns_budget *budget, struct ns_plan *out, struct ns_error *err);
/* Config, index and census of a directory; what ns_plan_read and ns_engine_open share. Fills engine->config, shards,
 * kernels and plan; on error the caller closes the engine. */
NS_MUST_CHECK enum ns_code ns_engine_prepare(struct ns_engine *engine, const char *dir, struct ns_error *err);
/* Most slots that a wave of n segments can ask for; rows of a query block when n positions are visible; the longest
 * context with full blocks. */
uint32_t ns_lineage_max_slots(size_t n_segments);
uint32_t ns_lineage_query_rows(uint32_t n_positions);
uint32_t ns_lineage_short_context(void);

#endif
