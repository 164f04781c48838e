/* tokenizer_impl.h - private to the room: the parts of the tokenizer and what they share. */
#ifndef NS_TOKENIZER_IMPL_H
#define NS_TOKENIZER_IMPL_H

#include "format/format_impl.h"

/* Where a token's bytes lie in the pool. */
struct ns_token_span {
    uint32_t at, n;
};

struct ns_splitter; /* the compiled pattern (pretokenize.c) */

/* Fixed after open. */
struct ns_tokenizer {
    struct ns_budget *budget;
    uint32_t base, vocab;        /* ids below base are merges of bytes, from base to vocab markers and reserved slots */
    uint8_t *pool;               /* bytes of the tokens below base */
    struct ns_token_span *token; /* [base] */
    uint32_t max_token_bytes;
    uint32_t *slot; /* [n_slots], hash of a token's bytes to id + 1; 0 is empty */
    size_t n_slots;
    uint32_t byte_id[256];      /* the single bytes */
    struct ns_text names;       /* spellings of base..vocab-1, one after the other */
    struct ns_token_span *name; /* [vocab - base] */
    uint32_t *named;            /* [n_named]: indices into name of those with a name of their own */
    uint32_t n_named;
    bool marker_start[256]; /* first bytes of all spellings */
    struct ns_splitter *splitter;
};

/* tokenizer_read.c: fills a zeroed tokenizer (budget and vocab set) from the two files' texts. */
NS_MUST_CHECK enum ns_code ns_tokenizer_read_ranks(struct ns_tokenizer *tok, const char *text, size_t n,
                                                   struct ns_error *err);
/* After read_ranks; text may be NULL: all slots are reserved ones. */
NS_MUST_CHECK enum ns_code ns_tokenizer_read_names(struct ns_tokenizer *tok, const char *text, size_t n,
                                                   struct ns_error *err);
/* The id of exactly these bytes below base, or NS_NO_TOKEN. */
uint32_t ns_token_find(const struct ns_tokenizer *tok, const uint8_t *bytes, size_t n);

/* bpe.c: scratch for one call of encode, grown to the longest piece. */
struct ns_bpe {
    struct ns_budget *budget;
    struct ns_bpe_part *part;
    uint64_t *heap;
    uint32_t *heap_bytes;
    size_t capacity;
};

void ns_bpe_init(struct ns_bpe *bpe, struct ns_budget *budget);
void ns_bpe_fini(struct ns_bpe *bpe);
NS_MUST_CHECK enum ns_code ns_bpe_encode(struct ns_bpe *bpe, const struct ns_tokenizer *tok, const uint8_t *piece,
                                         size_t n, struct ns_ids *ids, struct ns_error *err);

/* pretokenize.c */
typedef enum ns_code (*ns_part_fn)(void *arg, const char *part, size_t n, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_splitter_open(struct ns_splitter **out, struct ns_budget *budget, struct ns_error *err);
void ns_splitter_close(struct ns_splitter *splitter, struct ns_budget *budget);
/* White space as the reference's language defines it: Unicode's, and the four separators U+001C to U+001F. */
bool ns_char_is_space(uint32_t code_point);
/* The length cuts that come before everything else: blocks, then runs of one kind. text is valid UTF-8. */
#define NS_BLOCK_CHARACTERS 400000
#define NS_RUN_CHARACTERS   25000
NS_MUST_CHECK enum ns_code ns_text_cut(const char *text, size_t n, size_t block_limit, size_t run_limit,
                                       ns_part_fn each, void *arg, struct ns_error *err);
/* The pieces of one cut. text is valid UTF-8. */
NS_MUST_CHECK enum ns_code ns_splitter_run(const struct ns_splitter *splitter, const char *text, size_t n,
                                           ns_part_fn each, void *arg, struct ns_error *err);

#endif
