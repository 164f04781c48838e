/* sched_impl.h - private to sched/: the tree, the items, the wave being planned. */
#ifndef NS_SCHED_IMPL_H
#define NS_SCHED_IMPL_H

#include "sched/sched.h"

#define NS_NIL UINT32_MAX

enum ns_place {
    NS_PLACED,
    NS_PLACE_IDLE,     /* wants nothing */
    NS_PLACE_FULL,     /* not enough rows left */
    NS_PLACE_CONFLICT, /* its rows are in the wave, but start too late for it */
    NS_PLACE_MEMORY,   /* no room for its state */
    NS_PLACE_ERROR
};

/* ---- the tree (trie.c) ------------------------------------------------------------------------------------------------ */

/* A run of tokens at positions start .. start+n-1, shared by every item below. Node 0 is the root, without tokens. */
struct ns_trie_node {
    uint32_t *token; /* owned */
    uint32_t start, n, capacity;
    uint32_t parent, child, next, prev; /* free nodes: next */
    uint32_t hash_next;
    bool hashed;      /* can be found by parent and first token */
    uint32_t want;    /* first of the wants at these positions */
    uint32_t term;    /* first of the items that end with this node */
    uint32_t n_users; /* items at or below without a state between here and them */
    uint32_t ride;    /* this node's place in the planned wave, when stamp is the wave's */
    uint64_t stamp;
    uint32_t state; /* index of the kept state, or NS_NIL */
};

/* A kept state: a sequence of the machine after positions 0 .. at-1 of a path, start < at <= end of its node. */
struct ns_kept {
    struct ns_seq *seq; /* owned */
    uint32_t node, at;
    size_t bytes;
    uint32_t cover;  /* items that reserved memory and have nothing nearer; 0: the state is extra */
    uint32_t served; /* items that the planned wave takes on from here */
    uint32_t starts; /* chains of the planned wave that start from it */
    bool given;      /* ... the only one of them may write over it, whoever else uses it */
};

/* Answers wanted by one item about positions lo .. hi, all inside one node. */
struct ns_want {
    uint32_t item, node, lo, hi;
    uint32_t target;     /* the token after hi, or NS_NO_TOKEN; between lo and hi it is the node's own next token */
    uint32_t next, prev; /* in the node; free wants: next */
    uint32_t item_next, item_prev; /* in the item */
};

struct ns_sched_entry { /* one item */
    bool used, failed, begun;
    bool running;       /* its next row is a generated token, or the last of a prompt that went before */
    uint64_t id, order; /* order: of arrival */
    uint32_t n;         /* positions on its path */
    uint32_t node;      /* where the path ends */
    uint32_t term_next, term_prev;
    uint32_t want, n_wanted;
    uint32_t left, expected; /* tokens that may still, and likely will, be generated */
    uint32_t n_top, priority;
    int64_t enqueued_ms;
    uint64_t batch, group;
    uint32_t n_done;               /* positions already computed on its behalf */
    uint32_t depth;                /* tokens it was given an answer for */
    uint32_t end_next;             /* planned: positions that the wave computes on its behalf, up to here */
    uint64_t stamp;                /* of the wave it rides in */
    size_t reserve;                /* bytes reserved for its state, 0: none */
    uint64_t moved;                /* the wave in which its nearest state becomes another one */
    uint32_t list_next, list_prev; /* begun or waiting (fair.c) */
    uint32_t queue;                /* fair.c: where it waits, or NS_NIL: in the window */
    uint32_t class;                /* of its place in the window */
    uint32_t skips;                /* how many were taken before it from behind */
    uint64_t refused;              /* the wave that had no place for it ... */
    enum ns_place refusal;
    uint64_t turn;      /* the wave in which it is one of too many generations */
    uint32_t signature; /* group.c, or NS_NIL */
};

/* A list of items, linked by list_next and list_prev. */
struct ns_item_list {
    uint32_t first, last, n;
};

/* ---- the planned wave (place.c, emit.c) --------------------------------------------------------------------------------- */

/* One node's rows in the wave: positions from .. to-1. */
struct ns_ride {
    uint32_t node, from, to;
    uint32_t chain_start;     /* the chain of rides down to here began at this position */
    uint32_t state_node;      /* ... from the kept state of this node; NS_NIL: position 0 */
    uint32_t parent;          /* ride it continues, or NS_NIL: starts from the state */
    uint32_t kids, kid;       /* rides that continue it, the last of them */
    uint32_t placed;          /* items placed through it */
    uint32_t below;           /* users that a ride further down serves or will serve */
    uint32_t segment, offset; /* where its first row is */
    bool keep;                /* the end state is kept */
    bool cut;                 /* ... for an item that goes on from here in a later wave */
    bool own;                 /* ... for an item placed here, not only to save work */
    struct ns_seq *into;
    uint32_t over; /* node whose state is written over, or NS_NIL */
};

struct ns_last_want { /* a want about the last position of a node */
    uint32_t target, item;
};

struct ns_use_key {
    uint64_t order;
    struct ns_sched_use use;
};

struct ns_wave_plan {
    bool open;
    uint64_t stamp;
    uint32_t rows_most;
    struct ns_ride *ride;
    uint32_t n_rides, ride_capacity;
    uint32_t *token; /* [rows_most] */
    struct ns_segment *segment;
    struct ns_ask *ask;
    struct ns_sched_use *use;
    uint32_t n_segments;
    size_t n_asks, ask_capacity, n_uses, use_capacity, segment_capacity, token_capacity;
    uint32_t *ask_of; /* scratch: the ask of each row of a ride */
    struct ns_last_want *last;
    struct ns_use_key *key;
    size_t ask_of_capacity, last_capacity, key_capacity;
    uint32_t *path; /* scratch: nodes of one item, deepest first */
    size_t path_capacity;
    struct ns_sched_plan out;
    uint64_t past, plan_ns, alone_rows;
    double alone_bytes;
};

/* ---- the order of beginning (fair.c) -------------------------------------------------------------------------------------- */

enum { NS_FAIR_CLASSES = 10 };

struct ns_fair_queue { /* waiting items of one batch and priority, oldest first */
    uint64_t batch;
    uint32_t priority;
    struct ns_item_list items;
    int64_t deficit;
    bool topped;
    uint32_t ring, next, prev, hash_next;
};

struct ns_fair {
    struct ns_fair_queue *queue;
    uint32_t n_queues;
    size_t queue_capacity;
    uint32_t *bucket;
    uint32_t n_buckets;
    uint32_t ring[NS_FAIR_CLASSES]; /* the queue whose turn it is */
    uint32_t *window;               /* items taken from the queues, in the order in which they should begin */
    size_t n_window, window_capacity;
    uint64_t taken;
    int64_t now_ms;
};

/* ---- who goes with whom (group.c) ------------------------------------------------------------------------------------------ */

struct ns_group {
    bool ready, refused;
    uint32_t step, top_k; /* every step-th layer is remembered */
    size_t set_words;     /* of a set of experts over all slots */
    size_t slot_words;    /* ... over one */
    uint32_t *token;      /* tokens seen, by hash */
    uint16_t *expert;     /* [tokens][slots][top_k] what they chose, or none */
    uint64_t *wave;       /* the experts that the planned wave will likely choose */
    uint64_t last_key;    /* group key of the item placed last */
    uint64_t *signature;  /* [n][2][set_words]: of the last tokens of an item, and of those before */
    uint32_t *signature_free;
    uint32_t n_free;
    uint32_t *row_item; /* whose row it is in the planned wave, or NS_NIL */
    size_t row_item_capacity;
    uint32_t *turn; /* scratch: generations that can take a step, and did not yet */
    size_t n_turns, turn_capacity;
    uint32_t unfinished;   /* begun, but not among them */
    bool prompts_first;    /* in the planned wave */
    uint32_t prompt_waves; /* in a row */
};

struct ns_sched {
    struct ns_budget *budget; /* borrowed */
    struct ns_machine machine;
    struct ns_sched_options options; /* defaults filled in */

    struct ns_trie_node *node;
    uint32_t n_nodes, node_capacity, node_free;
    uint32_t *bucket; /* hash of (parent, first token) to node */
    uint32_t n_buckets, n_hashed;

    struct ns_want *want;
    uint32_t n_wants, want_capacity, want_free;

    struct ns_sched_entry *item;
    uint32_t n_items, item_capacity, item_free, items_used;
    uint64_t next_order;

    struct ns_kept *kept;
    size_t n_kept, kept_capacity;
    size_t state_total, reserved, extra, held; /* bytes: for states in all; by items; of shared states; really in use */
    size_t room_total; /* for states and the rows of a wave; SIZE_MAX: rows have their own place */
    uint32_t longest;  /* positions of an item, of all since there were none */
    uint32_t placing;  /* rows that the item which is being placed will add */

    struct {
        uint32_t n, longest;
        size_t bytes;
    } rows_memo; /* of the machine's last answer */

    uint32_t n_live; /* items with a reservation */
    bool memory_blocked;
    bool tight;       /* states did not fit together: this wave only one item leaves one */
    uint32_t leaving; /* items of the planned wave that leave a state */

    struct ns_item_list begun;
    struct ns_fair fair;
    struct ns_group group;

    struct ns_wave_plan wave;
    struct ns_sched_result *result;
    size_t result_capacity;
    struct ns_sched_failure *failure;
    size_t n_failures, failure_capacity;

    struct ns_sched_model model;
    bool has_model;
    struct ns_sched_account account, account_all;
    uint32_t *alive; /* generations that got their token d+1 */
    size_t n_alive, alive_capacity;
    uint32_t rows_auto;
    double wave_disk_s, row_compute_s; /* moving averages */
    bool io_bound;
};

/* Grows *array to hold at least n elements of size bytes. */
NS_MUST_CHECK enum ns_code ns_sched_reserve(struct ns_budget *budget, void **array, size_t *capacity, size_t n,
                                            size_t size, struct ns_error *err);

/* trie.c */
NS_MUST_CHECK enum ns_code ns_trie_init(struct ns_sched *s, struct ns_error *err);
void ns_trie_fini(struct ns_sched *s);
/* The node whose path is exactly token[0..n); shared with what is there, or by itself. */
NS_MUST_CHECK enum ns_code ns_trie_insert(struct ns_sched *s, const uint32_t *token, uint32_t n, bool share,
                                          uint32_t *node, struct ns_error *err);
/* The node one token after the end of an item's path: the same node grown, a child, or a new one. */
NS_MUST_CHECK enum ns_code ns_trie_extend(struct ns_sched *s, uint32_t item, uint32_t token, uint32_t *node,
                                          struct ns_error *err);
void ns_trie_prune(struct ns_sched *s, uint32_t node); /* removes it and its ancestors while nothing needs them */
void ns_trie_attach(struct ns_sched *s, uint32_t item, uint32_t node);
void ns_trie_detach(struct ns_sched *s, uint32_t item); /* leaves the node in place */
void ns_trie_move(struct ns_sched *s, uint32_t item, uint32_t node);
NS_MUST_CHECK enum ns_code ns_trie_expect_want(struct ns_sched *s, struct ns_error *err); /* room for one more */
NS_MUST_CHECK enum ns_code ns_trie_want(struct ns_sched *s, uint32_t item, uint32_t lo, uint32_t hi, uint32_t target,
                                        struct ns_error *err);
void ns_trie_want_drop(struct ns_sched *s, uint32_t want);

static inline uint32_t ns_trie_end(const struct ns_trie_node *node)
{
    return node->start + node->n;
}

/* Does a path end or turn off at the end of this node? */
static inline bool ns_trie_breaks(const struct ns_sched *s, const struct ns_trie_node *node)
{
    return node->term != NS_NIL || (node->child != NS_NIL && s->node[node->child].next != NS_NIL);
}

/* ledger.c: who holds memory for states */
NS_MUST_CHECK enum ns_code ns_ledger_expect(struct ns_sched *s, size_t n, struct ns_error *err); /* room for n more */
void ns_ledger_attach(struct ns_sched *s, uint32_t node, struct ns_seq *seq, uint32_t at); /* takes seq; expected */
void ns_ledger_drop(struct ns_sched *s, uint32_t node);                                    /* closes the state */
struct ns_seq *ns_ledger_give(struct ns_sched *s, uint32_t node); /* takes it away without closing it */
void ns_ledger_clear(struct ns_sched *s, uint32_t but); /* closes every state but that of one node, or NS_NIL */
void ns_ledger_look(struct ns_sched *s);                /* between waves: what the machine can hold */
void ns_ledger_refresh(struct ns_sched *s);             /* at the start of a plan */
void ns_ledger_less(struct ns_sched *s, size_t bytes);  /* of extra */
size_t ns_ledger_free(struct ns_sched *s);
/* What a wave of n rows takes of the memory that states could have. */
size_t ns_ledger_rows_bytes(struct ns_sched *s, uint32_t n);
/* How many of n more rows have room in the wave, when their item needs so many bytes for a state beside what it has. */
uint32_t ns_ledger_rows_left(struct ns_sched *s, uint32_t n, size_t bytes);
struct ns_kept *ns_ledger_above(const struct ns_sched *s, uint32_t node);         /* nearest at or above, or NULL */
size_t ns_ledger_need(const struct ns_sched *s, const struct ns_sched_entry *it); /* bytes of its longest state */
bool ns_ledger_reserve(struct ns_sched *s, uint32_t item);
/* Room for bytes by giving up shared states worth less than this (rows that would be computed again). */
bool ns_ledger_room(struct ns_sched *s, size_t bytes, double worth);

/* fair.c: lists */
void ns_list_init(struct ns_item_list *list);
void ns_list_add(struct ns_sched *s, struct ns_item_list *list, uint32_t item);
void ns_list_push(struct ns_sched *s, struct ns_item_list *list, uint32_t item); /* in front */
void ns_list_remove(struct ns_sched *s, struct ns_item_list *list, uint32_t item);
NS_MUST_CHECK enum ns_code ns_fair_init(struct ns_sched *s, struct ns_error *err);
void ns_fair_fini(struct ns_sched *s);
NS_MUST_CHECK enum ns_code ns_fair_add(struct ns_sched *s, uint32_t item, struct ns_error *err);
void ns_fair_remove(struct ns_sched *s, uint32_t item); /* a waiting one */
/* Waiting items into what is left of the wave. */
NS_MUST_CHECK enum ns_code ns_fair_fill(struct ns_sched *s, int64_t now_ms, struct ns_error *err);
/* One that stood behind these was taken before them. reserved: it took memory too. */
void ns_fair_passed(struct ns_sched *s, const uint32_t *item, size_t n, bool reserved);
void ns_fair_begin(struct ns_sched *s, uint32_t item); /* from waiting to begun */

/* place.c: rows of one item into the wave */
struct ns_need {         /* what an item needs of the wave */
    uint32_t from, to;   /* positions that have no rows yet: from .. to-1 */
    uint32_t low;        /* lowest wanted position */
    uint32_t n_path;     /* nodes that need rows: wave.path[n_path-1] first, wave.path[0] last */
    uint32_t ride;       /* ride to continue, or NS_NIL */
    uint32_t state_node; /* node whose kept state to start from, or NS_NIL */
    uint32_t kept_at;    /* position from which an empty wave would have to start */
    bool conflict;
};
NS_MUST_CHECK enum ns_code ns_place_need(struct ns_sched *s, uint32_t item, struct ns_need *need, struct ns_error *err);
/* All rows the item needs, or the first of them when it may be cut. decode_only: not if it needs more than one. */
enum ns_place ns_place_item(struct ns_sched *s, uint32_t item, bool decode_only, struct ns_error *err);
/* True when the item must leave a state behind: more tokens will follow those it has. */
bool ns_place_keeps_state(const struct ns_sched_entry *it);

/* group.c */
void ns_group_fini(struct ns_sched *s);
void ns_group_begin(struct ns_sched *s);        /* of a plan */
bool ns_group_active(const struct ns_sched *s); /* does the choice of experts matter now? */
/* ... so much that generations take turns: the planned wave will not take nearly all experts whoever rides in it. */
bool ns_group_takes_turns(const struct ns_sched *s);
/* Which of these candidates, in fair order, is to be placed next: *i = n for none. */
NS_MUST_CHECK enum ns_code ns_group_pick(struct ns_sched *s, const uint32_t *item, size_t n, size_t *i,
                                         struct ns_error *err);
void ns_group_placed(struct ns_sched *s, uint32_t item, const struct ns_need *need);
NS_MUST_CHECK enum ns_code ns_group_planned(struct ns_sched *s, struct ns_error *err); /* which row is whose */
void ns_group_forget(struct ns_sched *s, uint32_t item);

/* keep.c: states that outlive the wave */
bool ns_keep_goes_on(const struct ns_sched *s, const struct ns_ride *ride); /* the next ride is in the same segment */
bool ns_keep_choose(struct ns_sched *s); /* false: they do not fit, whatever is given up */
NS_MUST_CHECK enum ns_code ns_keep_open(struct ns_sched *s, struct ns_error *err);
void ns_keep_abandon(struct ns_sched *s); /* closes what the plan opened, and what a lost wave was writing over */
void ns_keep_settle(struct ns_sched *s, const struct ns_wave *done);

/* emit.c: rides become segments, asks and uses */
NS_MUST_CHECK enum ns_code ns_emit(struct ns_sched *s, struct ns_error *err);

/* account.c */
void ns_account_init(struct ns_sched *s);
void ns_account_planned(struct ns_sched *s);
void ns_account_alone(struct ns_sched *s, uint32_t rows); /* rows of an item of this wave, were it alone */
void ns_account_depth(struct ns_sched *s, uint32_t item); /* a generation got its next token */
/* Bytes of one pass of so many rows, share: of the experts that even choices would touch. */
double ns_account_pass_bytes(const struct ns_sched_model *model, double rows, double share);
uint32_t ns_account_rows(const struct ns_sched *s); /* rows of the next wave */

#endif
