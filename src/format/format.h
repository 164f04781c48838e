/* format.h - untrusted model files become checked values. Reads files through sys, JSON through json; no maths.
 * The equations and byte layouts follow the Kimi K3 checkpoint as released (see the essays of the .c files). */
#ifndef NS_FORMAT_H
#define NS_FORMAT_H

#include "base/base.h"
#include "sys/sys.h"

struct ns_json;

/* ---- config.c: the model's numbers ------------------------------------------------------------------------------- */

enum ns_activation { NS_ACT_SILU, NS_ACT_SITU };

/* Everything the forward pass needs to know. Counts are positive where nothing else is said; combinations are checked
 * as a whole. */
struct ns_config {
    uint32_t vocab, hidden, n_layers;
    float rms_eps;
    enum ns_activation act;
    float situ_beta, situ_linear_beta; /* linear_beta 0: the up branch is not capped */
    uint32_t dense_inter, first_dense; /* layers below first_dense have a dense FFN */
    uint32_t moe_layer_freq;
    /* full attention */
    uint32_t n_heads, q_lora /* 0: plain q_proj */, kv_lora, d_nope, d_rope, d_v;
    bool mla_gate;
    /* KDA */
    uint32_t kda_heads, kda_dim, conv_kernel;
    bool kda_full_rank_gate;
    bool has_decay_bound;
    float decay_bound; /* negative */
    /* mixture of experts */
    uint32_t n_experts, top_k, n_shared /* 0: no shared expert */, moe_inter;
    uint32_t latent; /* 0: experts run on hidden */
    bool latent_norm, renormalize;
    float routed_scale;
    uint32_t n_groups, topk_groups; /* 1, 1: no group limit */
    uint32_t attn_res_block;        /* 0: ordinary residual */
    bool tied_embeddings;
    bool mxfp4_experts;      /* quantization_config present; see ns_config_settle */
    int32_t bos, eos, pad;   /* -1: not given */
    uint32_t context_advice; /* max_position_embeddings, advisory; 0: absent */
    bool *is_kda;            /* [n_layers], owned */
    struct ns_budget *budget;
};

/* Reads <dir>/config.json. All problems are collected into one message. Missing architectural fields are never
 * defaulted. Errors: NS_NOINPUT, NS_INPUT. */
NS_MUST_CHECK enum ns_code ns_config_read(const char *dir, struct ns_budget *budget, struct ns_config *out,
                                          struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_config_parse(const char *text, size_t n, struct ns_budget *budget, struct ns_config *out,
                                           struct ns_error *err);
void ns_config_fini(struct ns_config *config);

static inline bool ns_config_is_moe(const struct ns_config *c, uint32_t layer)
{
    return layer >= c->first_dense && layer % c->moe_layer_freq == 0;
}

/* ---- safetensors.c, shards.c: one file, one index over many -------------------------------------------------------- */

enum ns_dtype {
    NS_DTYPE_U8,
    NS_DTYPE_BF16,
    NS_DTYPE_F16,
    NS_DTYPE_F32,
    NS_DTYPE_F64,
    NS_DTYPE_I8,
    NS_DTYPE_I16,
    NS_DTYPE_I32,
    NS_DTYPE_I64,
    NS_DTYPE_BOOL,
    NS_DTYPE_OTHER /* unknown name, ranges checked all the same */
};

size_t ns_dtype_bytes(enum ns_dtype dtype); /* 0 for OTHER */
const char *ns_dtype_name(enum ns_dtype dtype);

#define NS_MAX_RANK 8

struct ns_tensor {
    const char *name; /* borrowed from the shards */
    enum ns_dtype dtype;
    uint32_t shard, rank;
    uint64_t dim[NS_MAX_RANK];
    uint64_t offset; /* of the first byte in the shard file */
    uint64_t bytes;
    char other[8]; /* NS_DTYPE_OTHER: what the file calls it, cut */
};

/* Parses one safetensors header text (without the 8 length bytes). data_start is 8+N, file_bytes the file's size.
 * Calls each per tensor whose range lies in the file; tensor->name is borrowed for the call. Range checks come first for
 * every entry. Errors: NS_INPUT naming tensor and both numbers; a file that is too short is told once, at the end, with
 * the size it should have. Repeated names are the caller's to notice. */
typedef enum ns_code (*ns_tensor_each_fn)(void *arg, const struct ns_tensor *tensor, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_safetensors_parse(const char *header, size_t n, uint64_t data_start, uint64_t file_bytes,
                                                struct ns_budget *budget, ns_tensor_each_fn each, void *arg,
                                                struct ns_error *err);

struct ns_shards; /* all tensors of a checkpoint directory, found by name in constant time */

/* Opens by model.safetensors.index.json when every file it names exists, else by the headers of every *.safetensors
 * ("stale index" noted in the log). Vision tensors (vision_tower., mm_projector.) are skipped by prefix. Duplicate
 * names, overlaps, short files, text pointers in place of weights: refused, all in one message.
 * Linear time and memory in the number of tensors. Files stay closed. */
NS_MUST_CHECK enum ns_code ns_shards_open(const char *dir, struct ns_budget *budget, struct ns_shards **out,
                                          struct ns_error *err);
void ns_shards_close(struct ns_shards *shards);
const struct ns_tensor *ns_shards_find(const struct ns_shards *shards, const char *name);
size_t ns_shards_count(const struct ns_shards *shards); /* tensors, vision skipped */
const struct ns_tensor *ns_shards_at(const struct ns_shards *shards, size_t i);
size_t ns_shards_index(const struct ns_shards *shards, const struct ns_tensor *tensor); /* the i of ns_shards_at */
uint32_t ns_shards_files(const struct ns_shards *shards);
const char *ns_shards_path(const struct ns_shards *shards, uint32_t shard); /* full path */
uint64_t ns_shards_file_bytes(const struct ns_shards *shards, uint32_t shard);
const char *ns_shards_prefix(const struct ns_shards *shards); /* "language_model." or "" */
/* Bytes in gaps between tensors, for the audit. */
uint64_t ns_shards_gap_bytes(const struct ns_shards *shards);

/* mxfp4_experts becomes false when the experts are stored as plain weights. To be called before anything reads them. */
void ns_config_settle(struct ns_config *config, const struct ns_shards *shards);
/* Checks the census: every tensor the config calls for is there with its shape and dtype class, and none is left over.
 * All problems in one message; missing layers as ranges ("incomplete conversion: layers 2, 4-5 and the final norm"). */
NS_MUST_CHECK enum ns_code ns_census_check(const struct ns_config *config, const struct ns_shards *shards,
                                           struct ns_error *err);

/* The model fingerprint: SHA-256 of config, tokenizer files, shard headers and sizes, and 64 KiB at 16 fixed places of
 * each shard; all bytes when the model is under 1 GB. Hex. tokenizer_hex covers the tokenizer files alone. */
NS_MUST_CHECK enum ns_code ns_fingerprint(const char *dir, const struct ns_shards *shards, struct ns_budget *budget,
                                          char hex[NS_SHA256_HEX], char tokenizer_hex[NS_SHA256_HEX],
                                          struct ns_error *err);

/* ---- tokenizer.c ---------------------------------------------------------------------------------------------------- */

#define NS_NO_TOKEN UINT32_MAX

/* Growing array of ids. */
struct ns_ids {
    struct ns_budget *budget;
    uint32_t *id;
    size_t n, capacity;
};

void ns_ids_init(struct ns_ids *ids, struct ns_budget *budget);
void ns_ids_fini(struct ns_ids *ids);
NS_MUST_CHECK enum ns_code ns_ids_add(struct ns_ids *ids, const uint32_t *id, size_t n, struct ns_error *err);

struct ns_tokenizer;

/* *out is NULL with NS_OK when the directory has no tokenizer files: the model then runs on ids. Refused: a line
 * without rank, duplicate ranks, a missing single byte, vocabulary larger than vocab_size. Immutable afterwards. */
NS_MUST_CHECK enum ns_code ns_tokenizer_open(const char *dir, uint32_t vocab_size, struct ns_budget *budget,
                                             struct ns_tokenizer **out, struct ns_error *err);
void ns_tokenizer_close(struct ns_tokenizer *tok);
/* Appends the ids of text (UTF-8; invalid sequences are replaced by U+FFFD). markers: special spellings become single
 * ids; otherwise they are plain characters and no special id can come out. Linear time on any input. */
NS_MUST_CHECK enum ns_code ns_tokenizer_encode(const struct ns_tokenizer *tok, const char *text, size_t n, bool markers,
                                               struct ns_ids *ids, struct ns_error *err);
/* Bytes of one token (special ids: their spelling). Borrowed. NS_INPUT for ids outside the vocabulary. */
NS_MUST_CHECK enum ns_code ns_tokenizer_bytes(const struct ns_tokenizer *tok, uint32_t id, const uint8_t **bytes,
                                              size_t *n, bool *special, struct ns_error *err);
uint32_t ns_tokenizer_longest(const struct ns_tokenizer *tok); /* bytes of a token below base, at most */
uint32_t ns_tokenizer_base(const struct ns_tokenizer *tok);    /* first special id */
uint32_t ns_tokenizer_special(const struct ns_tokenizer *tok, const char *name); /* NS_NO_TOKEN: no such marker */
/* The pieces of the pre-tokeniser, for tests: each gets every piece in order. */
typedef void (*ns_piece_fn)(void *arg, const char *piece, size_t n);
NS_MUST_CHECK enum ns_code ns_tokenizer_split(const struct ns_tokenizer *tok, const char *text, size_t n,
                                              ns_piece_fn each, void *arg, struct ns_error *err);

/* Streaming decode: never emits broken UTF-8. Holds back at most 3 bytes. */
struct ns_decoder {
    uint8_t held[4];
    uint32_t n_held;
};

/* Appends what can be shown of bytes; an impossible byte becomes U+FFFD at once. flush turns what is held into U+FFFD. */
void ns_decoder_add(struct ns_decoder *d, const uint8_t *bytes, size_t n, struct ns_text *out);
void ns_decoder_flush(struct ns_decoder *d, struct ns_text *out);
/* The whole text of ids; skip_special leaves special ids out. */
NS_MUST_CHECK enum ns_code ns_tokenizer_decode(const struct ns_tokenizer *tok, const uint32_t *id, size_t n,
                                               bool skip_special, struct ns_text *out, struct ns_error *err);

/* ---- chat.c: messages to segments to ids (XTML) --------------------------------------------------------------------- */

struct ns_chat_options {
    bool add_generation_prompt;
    bool thinking;                                               /* the think channel is present */
    const char *effort;                                          /* "low", "high", "max", or NULL: no effort message */
    const struct ns_json *tools, *tool_choice, *response_format; /* NULL: none */
};
typedef enum ns_code (*ns_chat_segment_fn)(void *arg, const char *text, size_t n, bool is_marker, bool is_assistant,
                                           struct ns_error *err);
/* Renders messages (a JSON array). Errors: NS_INPUT with the message index and what is wrong (image parts, unknown
 * roles, bad types ...). */
NS_MUST_CHECK enum ns_code ns_chat_render(const struct ns_json *messages, const struct ns_chat_options *options,
                                          struct ns_budget *budget, ns_chat_segment_fn each, void *arg,
                                          struct ns_error *err);
/* Renders and tokenises segment by segment: content can never become a control token. */
NS_MUST_CHECK enum ns_code ns_chat_encode(const struct ns_tokenizer *tok, const struct ns_json *messages,
                                          const struct ns_chat_options *options, struct ns_ids *ids,
                                          struct ns_error *err);

#endif
