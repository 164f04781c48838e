/* store.h - weights on disk and in memory. Knows where every tensor lies, how to read it, and what stays; knows nothing
 * of what the numbers mean. Nothing in this contract assumes that the bytes come from this machine's memory: a view is
 * borrowed between acquire and release, and that is all.
 * Threads: one driving thread calls; reads run in the I/O pool. */
#ifndef NS_STORE_H
#define NS_STORE_H

#include "base/base.h"
#include "format/format.h"
#include "sys/sys.h"

struct ns_store;

struct ns_store_options {
    unsigned n_readers;    /* 0: default */
    bool no_direct;        /* never O_DIRECT */
    size_t tile_bytes;     /* aim for the size of a dense tile; 0: default */
    size_t ring_bytes;     /* memory for tiles in flight; 0: default */
    uint32_t expert_slots; /* slots for experts in flight (not residents); 0: default */
    size_t resident_bytes; /* room for what stays between waves; see ns_store_keep */
};

/* shards and config are borrowed until close. Opens the shard files that hold needed tensors. */
NS_MUST_CHECK enum ns_code ns_store_open(const struct ns_config *config, const struct ns_shards *shards,
                                         const struct ns_store_options *options, struct ns_budget *budget,
                                         struct ns_store **out, struct ns_error *err);
void ns_store_close(struct ns_store *store);
bool ns_store_is_direct(const struct ns_store *store); /* false: the file system refused O_DIRECT */

/* What a store needs, for a plan: before anything large is taken and without opening a shard. */
struct ns_store_need {
    size_t expert_bytes, slot_bytes; /* one expert; the room it takes as slot or resident */
    size_t tile_slot_bytes;          /* one place in the ring */
    size_t ring_bytes, table_bytes;  /* with these options, rounded to whole places */
    uint32_t expert_slots;
    size_t fixed_bytes;               /* all that open and the first wave take besides resident_bytes */
    uint64_t trunk_bytes, head_bytes; /* what dense tiles may come to stay */
    uint64_t experts_bytes;           /* all experts */
};
NS_MUST_CHECK enum ns_code ns_store_measure(const struct ns_config *config, const struct ns_shards *shards,
                                            const struct ns_store_options *options, struct ns_budget *budget,
                                            struct ns_store_need *out, struct ns_error *err);

/* ---- small tensors: read once at open of the model, whole ---------------------------------------------------------------- */
NS_MUST_CHECK enum ns_code ns_store_read(struct ns_store *store, const struct ns_tensor *tensor, uint64_t first_byte,
                                         size_t n, void *buffer, struct ns_error *err);
/* Rows of a matrix by index (embedding), each of row_bytes = bytes/dim[0], into consecutive places; repeated and
 * neighbouring rows are read once. */
NS_MUST_CHECK enum ns_code ns_store_read_rows(struct ns_store *store, const struct ns_tensor *tensor,
                                              const uint32_t *row, size_t n, void *buffer, struct ns_error *err);

/* ---- dense matrices as a stream of tiles ----------------------------------------------------------------------------------- */

/* One tile: rows first .. first+n of a matrix [dim0][dim1]. The caller lists all tiles of a wave in the order in which
 * it will take them; the store reads ahead along that list as far as its ring allows. A tile asked for out of order is
 * a bug (assert). */
struct ns_tile {
    const struct ns_tensor *tensor;
    uint32_t first, n;
    uint32_t layer; /* for messages and for the plan's classes; UINT32_MAX: head */
};

struct ns_tile_view {
    const uint8_t *data; /* n rows, contiguous; at least 1-byte aligned, borrowed until release */
    uint32_t first, n;
    uint32_t slot; /* private */
};

/* How many rows of this matrix make one tile of at most tile_bytes (at least 1, at most dim0). The ring holds at least
 * three tiles of that size, and one tile is at most that large. */
uint32_t ns_store_tile_rows(const struct ns_store *store, const struct ns_tensor *tensor);

/* ---- what stays between waves ----------------------------------------------------------------------------------------------- */

/* What a given room holds when it is full. */
struct ns_keep {
    uint64_t trunk_bytes, head_bytes; /* of dense tiles */
    uint32_t experts;
};

/* What of list would stay in room bytes: dense tiles of the layers, spread evenly over the list, then of the head, then
 * experts of slot_bytes each, at most n_experts. No store is needed: a plan asks the same. */
void ns_keep_measure(const struct ns_tile *list, size_t n, uint64_t room, size_t slot_bytes, uint64_t n_experts,
                     struct ns_keep *out);
/* Between waves: from now on tiles of list (all that a wave may name, in its order) and experts stay, in room bytes, read
 * as waves come by. More room than now is taken from other, less is given to it: a share of the same parent as the
 * store's budget was charged to, or NULL when the room is as it was. What no longer fits goes: the experts used last,
 * then tiles. NS_BUDGET: other has not enough, or the tables found no memory; then less stays, or nothing. */
NS_MUST_CHECK enum ns_code ns_store_keep(struct ns_store *store, const struct ns_tile *list, size_t n, size_t room,
                                         struct ns_budget *other, struct ns_error *err);
/* Before the first wave: waits until the memory of what stays is there, but not for long. It is made present in the
 * background anyway, where it takes cores and time from a wave that reads. */
void ns_store_get_ready(struct ns_store *store);
size_t ns_store_room(const struct ns_store *store); /* as set last; at first what the options say */
bool ns_store_in_wave(const struct ns_store *store);

void ns_store_wave_begin(struct ns_store *store, const struct ns_tile *tile,
                         size_t n_tiles); /* list borrowed until wave_end */
NS_MUST_CHECK enum ns_code ns_store_tile_acquire(struct ns_store *store, struct ns_tile_view *view,
                                                 struct ns_error *err);        /* the next one of the list */
void ns_store_tile_release(struct ns_store *store, struct ns_tile_view *view); /* clears; zeroed is a no-op */
void ns_store_wave_end(struct ns_store *store); /* also after an error: cancels reads, frees every pin */

/* ---- experts ------------------------------------------------------------------------------------------------------------------ */

struct ns_expert_id {
    uint32_t layer, expert;
};

struct ns_expert_part {
    const uint8_t *data, *scale; /* scale NULL for bf16 experts */
};

struct ns_expert_view {
    struct ns_expert_part gate, up, down; /* w1, w3, w2 as on disk, borrowed until release */
    uint32_t slot;                        /* private */
};
/* The experts of one layer that this wave needs, ascending, with the number of rows each serves (for ranking). Reading
 * of those not kept starts at once, in this order. The list is copied. */
NS_MUST_CHECK enum ns_code ns_store_experts_want(struct ns_store *store, uint32_t layer, const uint32_t *expert,
                                                 const uint32_t *n_rows, size_t n, struct ns_error *err);
/* Before the router has spoken: it will make n_draws choices (rows times choices of a row). When nearly all experts of the
 * layer are to be expected by what was wanted before, reading begins of those that are almost surely among them. */
void ns_store_experts_expect(struct ns_store *store, uint32_t layer, uint64_t n_draws);
/* Pin one wanted expert; order is that of the want list. Errors: NS_IO, NS_CORRUPT, NS_BUDGET. */
NS_MUST_CHECK enum ns_code ns_store_expert_acquire(struct ns_store *store, struct ns_expert_id id,
                                                   struct ns_expert_view *view, struct ns_error *err);
/* Would the next one of the want list be there at once? False also when there is no next one. */
bool ns_store_expert_ready(struct ns_store *store);
void ns_store_expert_release(struct ns_store *store, struct ns_expert_view *view);
size_t ns_store_expert_bytes(const struct ns_store *store); /* one expert */
uint32_t ns_store_expert_slots(const struct ns_store *store);
/* All dense matrices of the layers, without embedding and head. */
uint64_t ns_store_trunk_bytes(const struct ns_store *store);

/* ---- accounting ------------------------------------------------------------------------------------------------------------------ */
/* Counted since open; subtract to get a wave. */
struct ns_store_stats {
    uint64_t trunk_bytes, head_bytes, embed_bytes, expert_bytes; /* read from disk */
    uint64_t small_bytes;                                        /* ns_store_read, at open */
    uint64_t trunk_kept_bytes;                                   /* served from memory */
    uint64_t experts_wanted, experts_kept, experts_read;
    uint64_t experts_early; /* of those read: begun before the router had spoken */
    uint64_t reads;
    uint64_t read_ns;  /* sum over readers of time in reads */
    uint64_t disk_ns;  /* time in which at least one read was under way */
    uint64_t stall_ns; /* time the driving thread waited for a read */
};

void ns_store_stats_get(const struct ns_store *store, struct ns_store_stats *out);
/* NS_CORRUPT naming the file when a shard's size, time or inode is not what it was at open. */
NS_MUST_CHECK enum ns_code ns_store_check_unchanged(struct ns_store *store, struct ns_error *err);

/* ---- what the disk can do (diskbench.c) ------------------------------------------------------------------------------- */

struct ns_disk_test {
    bool experts;       /* scattered experts of the model; else blocks in file order */
    size_t block_bytes; /* of a block */
    unsigned depth;     /* reads in flight, 1 .. 64 */
    uint64_t warm_ms;   /* reads before the clock runs */
    uint64_t limit_ms;  /* the clock stops at the first read done then; each place is counted at least once */
    uint64_t first;     /* of the order of its kind, so many reads are passed over: an earlier test had them */
    bool no_direct;
};

struct ns_disk_rate {
    uint64_t bytes, ns, reads;
    uint64_t reads_beside; /* before and after, not counted in the others */
    bool direct;           /* false: through the page cache, which may hold some of it already */
};
/* Reads the model's shards; writes nothing. Errors: NS_USAGE, NS_BUDGET, NS_IO. */
NS_MUST_CHECK enum ns_code ns_disk_measure(const struct ns_config *config, const struct ns_shards *shards,
                                           const struct ns_disk_test *test, struct ns_budget *budget,
                                           struct ns_disk_rate *out, struct ns_error *err);

/* ---- replay of recorded routing (trace_replay.c) ------------------------------------------------------------------------ */

struct ns_trace {
    uint32_t n_layers, n_experts, top_k, n_tokens;
    const uint32_t *id; /* [n_tokens][n_layers][top_k], borrowed */
};

enum ns_policy { NS_POLICY_LRU, NS_POLICY_LFU, NS_POLICY_RANKED, NS_POLICY_BELADY };

struct ns_replay_result {
    uint64_t requests, hits; /* one request per wave, layer and expert of the union */
};
/* Cuts the trace into waves of wave_tokens and counts the requests that find their expert among capacity kept ones.
 * Errors: NS_INPUT (an id outside the model), NS_BUDGET. */
NS_MUST_CHECK enum ns_code ns_replay(const struct ns_trace *trace, enum ns_policy policy, uint32_t wave_tokens,
                                     uint32_t capacity, struct ns_budget *budget, struct ns_replay_result *out,
                                     struct ns_error *err);

#endif
