/* model_impl.h - private to model/: the bound layers, and the helpers that all of them share. */
#ifndef NS_MODEL_IMPL_H
#define NS_MODEL_IMPL_H

#include "model/model.h"

/* A big matrix, streamed. Always bf16 (experts have their own path). */
struct ns_matrix {
    const struct ns_tensor *tensor; /* NULL: the model has none */
    uint32_t rows, cols, tile_rows;
};

struct ns_kda_weights {
    struct ns_matrix q, k, v, f_a, f_b, b, g, g_a, g_b, o; /* g, or g_a and g_b */
    float *conv[3];                                        /* q, k, v: [P][taps] */
    float *a, *dt, *o_norm;                                /* [heads] exp(A_log), [P], [D] */
};

struct ns_mla_weights {
    struct ns_matrix q_a, q_b, q, kv_a, kv_b, g, o; /* q_a and q_b, or q */
    float *q_norm, *kv_norm;
};

struct ns_mlp_weights {
    struct ns_matrix gate, up, down;
};

struct ns_moe_weights {
    struct ns_matrix router, latent_down, latent_up;
    float *bias, *latent_norm;
    struct ns_mlp_weights shared;
};

struct ns_layer {
    bool is_kda, is_moe;
    uint32_t kind_index; /* among the layers of its kind */
    float *attn_norm, *ffn_norm;
    float *attn_mix, *ffn_mix; /* norm * proj folded; NULL without attention residuals */
    struct ns_kda_weights kda;
    struct ns_mla_weights mla;
    struct ns_mlp_weights dense;
    struct ns_moe_weights moe;
};

struct ns_tile_list {
    struct ns_tile *tile;
    size_t n, capacity;
};

struct ns_model {
    const struct ns_config *config;
    const struct ns_shards *shards;
    struct ns_store *store; /* NULL: shapes only */
    struct ns_budget *budget;
    size_t tile_bytes;
    uint32_t n_layers, n_kda, n_mla;
    uint32_t kda_group, mla_group; /* heads worked on together */
    struct ns_act act;
    struct ns_layer *layer;
    float *out_mix, *out_norm;
    const struct ns_tensor *embed;
    struct ns_matrix lm_head;
    struct ns_tile_list tiles;
    size_t *first_tile; /* [n_layers + 2] */
    float *pool;        /* all resident vectors */
    size_t pool_used, pool_floats;
};

/* Calls each for every matrix of the layers (not the head); bind.c. */
typedef void (*ns_matrix_fn)(void *arg, const struct ns_matrix *m);
void ns_model_each_matrix(const struct ns_model *model, ns_matrix_fn each, void *arg);

/* ---- feed.c: the list and its consumption are two readings of the same order ------------------------------------------ */

NS_MUST_CHECK enum ns_code ns_tiles_build(struct ns_model *model, struct ns_error *err);
/* Appends rows first .. first+n-1 of m, cut into tiles. */
NS_MUST_CHECK enum ns_code ns_tiles_add(struct ns_model *model, const struct ns_matrix *m, uint32_t layer,
                                        uint32_t first, uint32_t n, struct ns_error *err);
/* The next tile of the list, which must belong to m. */
NS_MUST_CHECK enum ns_code ns_feed_take(struct ns_pass *pass, const struct ns_matrix *m, struct ns_tile_view *view,
                                        struct ns_error *err);
/* y[i][0 .. n-1] (=|+=) rows first .. first+n-1 of m times the packed rows. */
NS_MUST_CHECK enum ns_code ns_feed_product(struct ns_pass *pass, const struct ns_matrix *m, uint32_t first, uint32_t n,
                                           float *y, size_t ld_y, const void *packed, enum ns_store_mode mode,
                                           struct ns_error *err);

/* Packs n_cols columns of all rows; memory from the arena (pack_take) or given. */
size_t ns_pass_pack_bytes(const struct ns_pass *pass, size_t cols);
void ns_pass_pack(struct ns_pass *pass, void *packed, const float *x, size_t ld_x, size_t cols);
float *ns_pass_take_rows(struct ns_pass *pass, size_t cols); /* [n_rows][cols] from the arena */

/* ---- the parts of a layer. in [n_rows][hidden] is the normalised input, packed the same packed; out may be in, which
 * is dead once it is packed unless said otherwise. Each part has a list function (its tiles, in order), a measure
 * function (the arena it takes) and a run function. ------------------------------------------------------------------------ */

NS_MUST_CHECK enum ns_code ns_kda_list(struct ns_model *model, uint32_t layer, struct ns_error *err);
void ns_kda_measure(struct ns_pass *pass);
NS_MUST_CHECK enum ns_code ns_kda_attend(struct ns_pass *pass, uint32_t layer, const struct ns_kda_work *work,
                                         const void *packed, float *out, struct ns_error *err);

NS_MUST_CHECK enum ns_code ns_mla_list(struct ns_model *model, uint32_t layer, struct ns_error *err);
void ns_mla_measure(struct ns_pass *pass);
NS_MUST_CHECK enum ns_code ns_mla_attend(struct ns_pass *pass, uint32_t layer, const struct ns_mla_work *work,
                                         const void *packed, float *out, struct ns_error *err);

NS_MUST_CHECK enum ns_code ns_mlp_list_up(struct ns_model *model, const struct ns_mlp_weights *w, uint32_t layer,
                                          struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_mlp_list_down(struct ns_model *model, const struct ns_mlp_weights *w, uint32_t layer,
                                            struct ns_error *err);
void ns_mlp_measure(struct ns_pass *pass, const struct ns_mlp_weights *w);
/* out = down(act(gate x, up x)). out may be the unpacked input. */
NS_MUST_CHECK enum ns_code ns_mlp_run(struct ns_pass *pass, const struct ns_mlp_weights *w, const void *packed,
                                      float *out, struct ns_error *err);

NS_MUST_CHECK enum ns_code ns_moe_list(struct ns_model *model, uint32_t layer, struct ns_error *err);
void ns_moe_measure(struct ns_pass *pass, uint32_t layer);
/* *out: where the result is (in, or memory of the arena). */
NS_MUST_CHECK enum ns_code ns_moe_run(struct ns_pass *pass, uint32_t layer, float *in, const void *packed, float **out,
                                      struct ns_error *err);

/* router.c: who goes where. */
struct ns_routing {
    uint32_t *ids, n_wanted; /* ids [n_rows][top_k] */
    float *weights;          /* [n_rows][top_k] */
    uint32_t *wanted;        /* [n_wanted] experts ascending */
    uint32_t *n_rows;        /* [n_wanted] rows of each */
    uint32_t *row;           /* rows of wanted[0], then of wanted[1], ...; ascending inside one */
    float *weight;           /* the same order */
};

void ns_router_carve(struct ns_pass *pass, struct ns_routing *routing);
void ns_router_run(struct ns_pass *pass, uint32_t layer, float *logits, struct ns_routing *routing);

NS_MUST_CHECK enum ns_code ns_head_list(struct ns_model *model, struct ns_error *err);
void ns_head_measure(struct ns_pass *pass);
void ns_embed_measure(struct ns_pass *pass);

/* ---- attn_res.c: the residual stream ---- */

/* in [n_rows][hidden] <- norm of (the mix of) the residual; mix is the folded vector, unused without blocks. */
void ns_residual_input(struct ns_pass *pass, float *in, const float *mix, const float *norm);
/* Does a block end, and the accumulator start anew, in front of this layer's attention? */
bool ns_residual_is_boundary(const struct ns_model *model, uint32_t layer);
/* Memory for the next accumulator; must be taken before the layer's scratch, because it outlives it. */
float *ns_residual_reserve(struct ns_pass *pass);
/* The accumulator becomes a source, unmixed; fresh (uninitialised: the next write assigns) is the new one. */
void ns_residual_close_block(struct ns_pass *pass, float *fresh);

/* Reports the rows of v that are not finite. */
void ns_pass_check(struct ns_pass *pass, uint32_t layer, const float *v, const char *what);
void ns_pass_tap(struct ns_pass *pass, uint32_t layer, const char *name, const float *v, size_t n);

#endif
