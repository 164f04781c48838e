/* store_impl.h - private to store/: the parts of a store and how they hang together. */
#ifndef NS_STORE_IMPL_H
#define NS_STORE_IMPL_H

#include "store/store.h"

/* ---- layout.c ---------------------------------------------------------------------------------------------------- */

#define NS_STORE_ALIGN   ((size_t)4096)
#define NS_EXPERT_PIECES 6 /* gate, up, down: data and scale each; scales are NULL for bf16 experts */

struct ns_shard_file {
    struct ns_file *file;   /* through the page cache; NULL when no needed tensor lies here */
    struct ns_file *direct; /* NULL when the layout is buffered */
    uint64_t identity[3];
};

struct ns_layout {
    struct ns_budget *budget;       /* borrowed */
    const struct ns_shards *shards; /* borrowed */
    uint32_t n_files, n_layers, n_experts;
    bool direct;
    struct ns_shard_file *file;     /* [n_files], owned */
    const struct ns_tensor **piece; /* [n_layers][n_experts][NS_EXPERT_PIECES], owned */
    size_t expert_bytes;            /* bytes of one expert; 0: the model has none */
    size_t slot_bytes;              /* the largest room one expert needs, windows included */
    size_t largest_row;             /* bytes of the longest matrix row of trunk and head */
    uint64_t trunk_bytes, head_bytes, experts_bytes;
};

/* Finds every expert and the sizes; opens nothing. */
NS_MUST_CHECK enum ns_code ns_layout_init(struct ns_layout *layout, const struct ns_config *config,
                                          const struct ns_shards *shards, struct ns_budget *budget,
                                          struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_layout_open(struct ns_layout *layout, bool no_direct, struct ns_error *err);
void ns_layout_fini(struct ns_layout *layout);
NS_MUST_CHECK enum ns_code ns_layout_check_unchanged(struct ns_layout *layout, struct ns_error *err);

static inline const struct ns_tensor **ns_layout_expert(const struct ns_layout *layout, struct ns_expert_id id)
{
    return layout->piece + ((size_t)id.layer * layout->n_experts + id.expert) * NS_EXPERT_PIECES;
}

/* A range of one shard as it is read: with direct files the enclosing aligned window, else the range itself. */
struct ns_window {
    uint32_t shard;
    uint64_t offset; /* of the window */
    size_t n;        /* bytes of the window; it may run past the end of the file */
    size_t skip;     /* from the window's start to the range */
    size_t bytes;    /* of the range */
};
struct ns_window ns_window_of(const struct ns_layout *layout, uint32_t shard, uint64_t offset, size_t bytes);
/* The room a window may need, whatever the mode: what is planned before files are open. */
size_t ns_window_room(uint64_t offset, size_t bytes);
void ns_window_start(const struct ns_layout *layout, const struct ns_window *w, struct ns_iopool *pool, bool urgent,
                     struct ns_io *io, void *buffer);
/* Waits; the whole range must have come. On success *io_bytes grows by what was read. */
NS_MUST_CHECK enum ns_code ns_window_finish(const struct ns_layout *layout, const struct ns_window *w,
                                            struct ns_iopool *pool, struct ns_io *io, uint64_t *io_bytes,
                                            struct ns_error *err);

/* The pieces of one expert as runs that lie together in a shard, each read at once. room is where a run's window goes
 * in the slot; piece_at where each piece's first byte comes to lie. */
struct ns_expert_runs {
    uint32_t n;
    struct ns_window window[NS_EXPERT_PIECES];
    size_t room[NS_EXPERT_PIECES];
    size_t piece_at[NS_EXPERT_PIECES];
    size_t total; /* bytes of the slot in use */
};

void ns_layout_runs(const struct ns_layout *layout, struct ns_expert_id id, struct ns_expert_runs *out);

/* ---- residency.c: who stays. Pure: no memory of weights, no files; the replay of traces uses it too --------------------- */

struct ns_rank_memory {
    double unit;   /* what one row adds in this wave */
    double total;  /* what one row in each wave would have added */
    double *count; /* [n_keys] */
};

struct ns_rank {
    struct ns_budget *budget; /* borrowed */
    uint32_t n_keys;          /* layer * per_layer + expert */
    uint32_t per_layer;
    uint32_t capacity, n; /* places, and how many are taken */
    uint32_t layer;       /* the one being read */
    uint64_t random;
    struct ns_rank_memory slow, fast;
    uint32_t *place;  /* [n_keys]: place + 1, 0 when not a member */
    uint32_t *member; /* [n_keys]: the key in each place */
    uint8_t *held;    /* [n_keys]: must not leave now */
};
NS_MUST_CHECK enum ns_code ns_rank_init(struct ns_rank *rank, uint32_t n_keys, uint32_t per_layer,
                                        struct ns_budget *budget, struct ns_error *err);
/* Smaller than n: members must be taken out first. */
void ns_rank_set_capacity(struct ns_rank *rank, uint32_t capacity);
/* Takes out the weakest member of a sample, and its place; the last member moves there. NS_NO_PLACE: all are held. */
uint32_t ns_rank_remove_weakest(struct ns_rank *rank);
void ns_rank_fini(struct ns_rank *rank);
void ns_rank_next_wave(struct ns_rank *rank);
void ns_rank_at_layer(struct ns_rank *rank, uint32_t layer);
void ns_rank_note(struct ns_rank *rank, uint32_t key, uint32_t n_rows);
#define NS_NO_PLACE UINT32_MAX
uint32_t ns_rank_place(const struct ns_rank *rank, uint32_t key); /* NS_NO_PLACE: not a member */
/* May key, which was just read, stay? Its new place, or NS_NO_PLACE. *evicted is the key that left, or NS_NO_PLACE. */
uint32_t ns_rank_offer(struct ns_rank *rank, uint32_t key, uint32_t *evicted);

/* ---- tiles.c, stay.c ----------------------------------------------------------------------------------------------------------- */

struct ns_tile_slot;

/* A tile that stays, or stayed once. Without a block there was no memory for it. */
struct ns_kept_tile {
    const struct ns_tensor *tensor; /* NULL: an empty place */
    uint32_t first, n;
    bool stays;
    bool loading, ready; /* its bytes are on the way, or there */
    uint8_t *block;      /* in the span of tiles */
    uint32_t part;       /* of the store's prefill; NS_NO_PART: it never was */
    size_t skip;         /* from the block's start to the first byte */
};

#define NS_NO_PART UINT32_MAX

struct ns_tiles {
    size_t tile_bytes, slot_bytes;
    uint32_t n_slots;
    struct ns_tile_slot *slot; /* [n_slots] */
    uint8_t *ring;             /* [n_slots][slot_bytes] */
    /* the wave */
    bool in_wave;
    const struct ns_tile *list; /* borrowed until wave_end */
    size_t n_list, next_start, next_acquire;
    /* tiles that stay, by tensor and first row: open addressing, a power of two */
    struct ns_kept_tile *kept;
    size_t n_kept, kept_capacity;
    struct ns_span span; /* their blocks, without gaps */
};

/* ---- experts.c ----------------------------------------------------------------------------------------------------------- */

struct ns_expert_slot;

struct ns_resident {
    uint8_t *buffer;
    uint32_t pins;
};

struct ns_experts {
    uint32_t n_slots;
    struct ns_expert_slot *slot; /* [n_slots]: experts in flight and in use */
    struct ns_span span; /* [n_slots + rank.capacity][slot_bytes]: buffers; the first n_slots + rank.n are in use */
    struct ns_rank rank;
    struct ns_resident *resident; /* [rank.n_keys]; those below rank.n have a buffer */
    /* the layer */
    uint32_t layer;
    uint32_t *want; /* [n_experts], owned */
    size_t n_want, next_start, next_acquire;
    /* prefetch.c: how the last choices of each layer were spread */
    float *drawn;   /* [n_layers][n_experts], owned */
    float *n_drawn; /* [n_layers], owned: their sum */
};

/* ---- store.c ------------------------------------------------------------------------------------------------------------- */

struct ns_store {
    struct ns_budget *budget; /* borrowed */
    struct ns_budget kept;    /* share: expert slots, and what stays between waves */
    bool has_kept;
    size_t room; /* of it, what may stay */
    struct ns_layout layout;
    struct ns_iopool *pool;
    struct ns_tiles tiles;
    struct ns_experts experts;
    struct ns_prefill *prefill; /* of what was taken last to be read into */
    bool prefilled;             /* ring and slots have been part of one */
    uint8_t *bounce;            /* read_rows */
    size_t bounce_bytes;
    struct ns_store_stats stats;
};

#define NS_BOUNCES 4 /* row reads in flight */

/* Waits for a window and counts the time as a stall. */
NS_MUST_CHECK enum ns_code ns_store_finish(struct ns_store *store, const struct ns_window *w, struct ns_io *io,
                                           uint64_t *class_bytes, struct ns_error *err);

static inline uint64_t ns_tile_offset(const struct ns_tile *tile)
{
    return tile->tensor->offset + (uint64_t)tile->first * (tile->tensor->bytes / tile->tensor->dim[0]);
}

static inline size_t ns_tile_bytes(const struct ns_tile *tile)
{
    return (size_t)(tile->tensor->bytes / tile->tensor->dim[0]) * tile->n;
}

size_t ns_tiles_slot_bytes(const struct ns_layout *layout, size_t tile_bytes);
NS_MUST_CHECK enum ns_code ns_tiles_init(struct ns_store *store, const struct ns_store_options *options,
                                         struct ns_error *err);
void ns_tiles_fini(struct ns_store *store);
void ns_tiles_end(struct ns_store *store);
/* stay.c: NULL when it does not stay. */
struct ns_kept_tile *ns_tiles_find_kept(const struct ns_tiles *tiles, const struct ns_tile *tile);
/* Has it a block that may be read into now? */
bool ns_tiles_may_load(const struct ns_store *store, const struct ns_kept_tile *kept);

NS_MUST_CHECK enum ns_code ns_experts_init(struct ns_store *store, const struct ns_store_options *options,
                                           struct ns_error *err);
void ns_experts_fini(struct ns_store *store);
void ns_experts_set_places(struct ns_store *store, uint32_t n_places);
void ns_experts_next_wave(struct ns_store *store);
void ns_experts_end(struct ns_store *store);
/* prefetch.c: the first n of want were chosen by so many rows of the layer (NULL: by one each). */
void ns_experts_learn(struct ns_store *store, uint32_t layer, const uint32_t *n_rows, size_t n);
struct ns_expert_slot *ns_experts_free_slot(struct ns_store *store); /* or NULL */
/* Starts the reads of one expert into a free slot; urgent ones come before tiles that wait. */
void ns_experts_start(struct ns_store *store, struct ns_expert_slot *slot, struct ns_expert_id id, bool urgent);
bool ns_experts_has(const struct ns_store *store, struct ns_expert_id id); /* kept, or in a slot */

/* Options with every 0 replaced by its default, and what does not fit the model put right. */
struct ns_store_options ns_store_options_filled(const struct ns_layout *layout, const struct ns_store_options *options);

#endif
