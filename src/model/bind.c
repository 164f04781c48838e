/* bind.c - names become tensors, once, when a model is opened.
 *
 * WHAT   For every layer the matrices it multiplies by (streamed later, tile by tile) and its small vectors, read now,
 *        widened to f32 and kept: norms, convolution taps, decay constants, the router's bias, and the attention
 *        residual's norm and projection folded into one vector. At K3 size that is about 66 MB of 113 GB.
 * WHY    Layer code then speaks of w->q and w->conv[0], never of names, dtypes or files. Which of two variants a layer
 *        has (query factorisation, full or low rank gate, latent experts) follows from the config, which was checked
 *        against the tensors by the census before.
 * INVARIANTS
 *   1. Vectors are f32 whatever the header says; matrices are bf16 or the model is refused.   (fault_test: wrong_dtype)
 *   2. The decay constant uses the first kda_heads entries of the flattened A_log.            (fault_test: a_log_padding)
 *   3. pool_floats computed from shapes is what binding uses, to the last float.               (asserted at open) */
#include "model/model_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct binder {
    struct ns_model *model;
    char prefix[96]; /* of the layer at work */
    struct ns_error *err;
    enum ns_code rc; /* first failure; everything after it does nothing */
};

static const struct ns_tensor *find(struct binder *b, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    const struct ns_tensor *t = ns_shards_find(b->model->shards, full);
    if (!t)
        b->rc = ns_error_set(b->err, NS_INPUT, "tensor %s is missing", full);
    return t;
}

static uint64_t elements(const struct ns_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->dim[i]; /* bounded by t->bytes, checked when the header was read */
    return n;
}

static void bind_matrix(struct binder *b, struct ns_matrix *m, const char *name, uint64_t rows, uint64_t cols)
{
    if (b->rc != NS_OK)
        return;
    const struct ns_tensor *t = find(b, name);
    if (!t)
        return;
    if (t->dtype != NS_DTYPE_BF16 || t->rank != 2 || t->dim[0] != rows || t->dim[1] != cols) {
        b->rc =
            ns_error_set(b->err, NS_INPUT, "tensor %s: BF16 [%" PRIu64 ",%" PRIu64 "] expected, %s found with rank %u",
                         t->name, rows, cols, ns_dtype_name(t->dtype), t->rank);
        return;
    }
    *m = (struct ns_matrix){.tensor = t, .rows = (uint32_t)rows, .cols = (uint32_t)cols};
    uint64_t n = b->model->store ? ns_store_tile_rows(b->model->store, t) : b->model->tile_bytes / (cols * 2);
    m->tile_rows = n < 1 ? 1 : n > rows ? m->rows : (uint32_t)n;
}

/* The first n values of a small tensor (which has at least n), f32, in the pool. */
static float *bind_vector(struct binder *b, const char *name, size_t n)
{
    if (b->rc != NS_OK)
        return NULL;
    const struct ns_tensor *t = find(b, name);
    if (!t)
        return NULL;
    size_t elem = ns_dtype_bytes(t->dtype);
    if ((t->dtype != NS_DTYPE_BF16 && t->dtype != NS_DTYPE_F32) || elements(t) < n) {
        b->rc =
            ns_error_set(b->err, NS_INPUT, "tensor %s: BF16 or F32 with %zu values expected, %s with %" PRIu64 " found",
                         t->name, n, ns_dtype_name(t->dtype), elements(t));
        return NULL;
    }
    struct ns_model *m = b->model;
    if (!m->store)
        return NULL;
    assert(m->pool_used + n <= m->pool_floats);
    float *out = m->pool + m->pool_used;
    if (t->dtype == NS_DTYPE_F32) {
        b->rc = ns_store_read(m->store, t, 0, n * elem, out, b->err);
    } else {
        uint8_t *raw = (uint8_t *)ns_budget_take_raw(m->budget, n * elem, 64, b->err);
        b->rc = raw ? ns_store_read(m->store, t, 0, n * elem, raw, b->err) : NS_BUDGET;
        if (b->rc == NS_OK)
            ns_widen_bf16(out, raw, n);
        ns_budget_give(m->budget, raw);
    }
    m->pool_used += n;
    return b->rc == NS_OK ? out : NULL;
}

/* norm * proj of an attention residual. */
static float *bind_mix(struct binder *b, const char *norm, const char *proj)
{
    size_t d = b->model->config->hidden;
    float *w = bind_vector(b, norm, d);
    float *p = bind_vector(b, proj, d);
    if (!w || !p)
        return NULL;
    for (size_t i = 0; i < d; i++)
        w[i] *= p[i];
    b->model->pool_used -= d; /* the projection is folded in */
    return w;
}

static void bind_kda(struct binder *b, struct ns_kda_weights *w)
{
    const struct ns_config *c = b->model->config;
    uint64_t heads = c->kda_heads, dim = c->kda_dim, p = heads * dim, d = c->hidden;
    bind_matrix(b, &w->q, "self_attn.q_proj.weight", p, d);
    bind_matrix(b, &w->k, "self_attn.k_proj.weight", p, d);
    bind_matrix(b, &w->v, "self_attn.v_proj.weight", p, d);
    bind_matrix(b, &w->f_a, "self_attn.f_a_proj.weight", dim, d);
    bind_matrix(b, &w->f_b, "self_attn.f_b_proj.weight", p, dim);
    bind_matrix(b, &w->b, "self_attn.b_proj.weight", heads, d);
    if (c->kda_full_rank_gate) {
        bind_matrix(b, &w->g, "self_attn.g_proj.weight", p, d);
    } else {
        bind_matrix(b, &w->g_a, "self_attn.g_a_proj.weight", dim, d);
        bind_matrix(b, &w->g_b, "self_attn.g_b_proj.weight", p, dim);
    }
    bind_matrix(b, &w->o, "self_attn.o_proj.weight", d, p);
    static const char *const conv[3] = {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight",
                                        "self_attn.v_conv1d.weight"};
    for (int i = 0; i < 3; i++)
        w->conv[i] = bind_vector(b, conv[i], p * c->conv_kernel);
    w->a = bind_vector(b, "self_attn.A_log", heads);
    for (uint64_t h = 0; w->a && h < heads; h++)
        w->a[h] = ns_vm_exp(w->a[h]);
    w->dt = bind_vector(b, "self_attn.dt_bias", p);
    w->o_norm = bind_vector(b, "self_attn.o_norm.weight", dim);
}

static void bind_mla(struct binder *b, struct ns_mla_weights *w)
{
    const struct ns_config *c = b->model->config;
    uint64_t heads = c->n_heads, d = c->hidden, dq = (uint64_t)c->d_nope + c->d_rope;
    if (c->q_lora) {
        bind_matrix(b, &w->q_a, "self_attn.q_a_proj.weight", c->q_lora, d);
        bind_matrix(b, &w->q_b, "self_attn.q_b_proj.weight", heads * dq, c->q_lora);
        w->q_norm = bind_vector(b, "self_attn.q_a_layernorm.weight", c->q_lora);
    } else {
        bind_matrix(b, &w->q, "self_attn.q_proj.weight", heads * dq, d);
    }
    bind_matrix(b, &w->kv_a, "self_attn.kv_a_proj_with_mqa.weight", (uint64_t)c->kv_lora + c->d_rope, d);
    w->kv_norm = bind_vector(b, "self_attn.kv_a_layernorm.weight", c->kv_lora);
    bind_matrix(b, &w->kv_b, "self_attn.kv_b_proj.weight", heads * ((uint64_t)c->d_nope + c->d_v), c->kv_lora);
    if (c->mla_gate)
        bind_matrix(b, &w->g, "self_attn.g_proj.weight", heads * c->d_v, d);
    bind_matrix(b, &w->o, "self_attn.o_proj.weight", d, heads * c->d_v);
}

static void bind_mlp(struct binder *b, struct ns_mlp_weights *w, const char *where, uint64_t width)
{
    static const char *const part[3] = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};
    uint64_t d = b->model->config->hidden;
    char name[128];
    snprintf(name, sizeof name, "%s.%s", where, part[0]);
    bind_matrix(b, &w->gate, name, width, d);
    snprintf(name, sizeof name, "%s.%s", where, part[1]);
    bind_matrix(b, &w->up, name, width, d);
    snprintf(name, sizeof name, "%s.%s", where, part[2]);
    bind_matrix(b, &w->down, name, d, width);
}

static void bind_moe(struct binder *b, struct ns_moe_weights *w)
{
    const struct ns_config *c = b->model->config;
    bind_matrix(b, &w->router, "block_sparse_moe.gate.weight", c->n_experts, c->hidden);
    w->bias = bind_vector(b, "block_sparse_moe.gate.e_score_correction_bias", c->n_experts);
    if (c->latent) {
        bind_matrix(b, &w->latent_down, "block_sparse_moe.routed_expert_down_proj.weight", c->latent, c->hidden);
        bind_matrix(b, &w->latent_up, "block_sparse_moe.routed_expert_up_proj.weight", c->hidden, c->latent);
        if (c->latent_norm)
            w->latent_norm = bind_vector(b, "block_sparse_moe.routed_expert_norm.weight", c->latent);
    }
    if (c->n_shared)
        bind_mlp(b, &w->shared, "block_sparse_moe.shared_experts", (uint64_t)c->n_shared * c->moe_inter);
}

static void bind_layer(struct binder *b, uint32_t i)
{
    struct ns_model *m = b->model;
    const struct ns_config *c = m->config;
    struct ns_layer *l = &m->layer[i];
    snprintf(b->prefix, sizeof b->prefix, "%smodel.layers.%" PRIu32 ".", ns_shards_prefix(m->shards), i);
    l->is_kda = c->is_kda[i];
    l->is_moe = ns_config_is_moe(c, i);
    l->kind_index = l->is_kda ? m->n_kda++ : m->n_mla++;
    l->attn_norm = bind_vector(b, "input_layernorm.weight", c->hidden);
    l->ffn_norm = bind_vector(b, "post_attention_layernorm.weight", c->hidden);
    if (c->attn_res_block) {
        if (i > 0) /* those of layer 0 exist and are never used */
            l->attn_mix = bind_mix(b, "self_attention_res_norm.weight", "self_attention_res_proj.weight");
        l->ffn_mix = bind_mix(b, "mlp_res_norm.weight", "mlp_res_proj.weight");
    }
    if (l->is_kda)
        bind_kda(b, &l->kda);
    else
        bind_mla(b, &l->mla);
    if (l->is_moe)
        bind_moe(b, &l->moe);
    else
        bind_mlp(b, &l->dense, "mlp", c->dense_inter);
}

static void bind_ends(struct binder *b)
{
    struct ns_model *m = b->model;
    const struct ns_config *c = m->config;
    struct ns_matrix embed = {0};
    snprintf(b->prefix, sizeof b->prefix, "%s", ns_shards_prefix(m->shards));
    bind_matrix(b, &embed, "model.embed_tokens.weight", c->vocab, c->hidden);
    m->embed = embed.tensor;
    if (c->tied_embeddings)
        m->lm_head = embed;
    else
        bind_matrix(b, &m->lm_head, "lm_head.weight", c->vocab, c->hidden);
    if (m->lm_head.tile_rows > NS_HEAD_BLOCK)
        m->lm_head.tile_rows = NS_HEAD_BLOCK;
    m->out_norm = bind_vector(b, "model.norm.weight", c->hidden);
    if (c->attn_res_block)
        m->out_mix = bind_mix(b, "model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight");
}

static size_t pool_floats(const struct ns_config *c, uint32_t n_layers)
{
    size_t d = c->hidden, p = (size_t)c->kda_heads * c->kda_dim;
    size_t kda = p * c->conv_kernel * 3 + c->kda_heads + p + c->kda_dim;
    size_t mla = (size_t)c->q_lora + c->kv_lora;
    size_t n = d + (c->attn_res_block ? 2 * d : 0); /* the ends, and one vector that is folded away */
    for (uint32_t i = 0; i < n_layers; i++) {
        n += 2 * d + (c->is_kda[i] ? kda : mla);
        if (c->attn_res_block)
            n += i > 0 ? 2 * d : d;
        if (ns_config_is_moe(c, i))
            n += c->n_experts + (c->latent_norm ? c->latent : 0);
    }
    return n;
}

static uint32_t layers_of(const struct ns_config *c, uint32_t n_layers)
{
    return n_layers == 0 || n_layers > c->n_layers ? c->n_layers : n_layers;
}

size_t ns_model_resident_bytes(const struct ns_model *model)
{
    size_t tiles = model->tiles.n ? 2 * model->tiles.n : 2 * 256; /* the list doubles as it grows */
    return sizeof *model + model->n_layers * (sizeof *model->layer + sizeof *model->first_tile) +
           model->pool_floats * sizeof(float) + tiles * sizeof *model->tiles.tile;
}

/* Enough heads that every thread has one; few enough that a row of the group stays small. */
static uint32_t group_of(uint32_t heads, uint32_t wish, unsigned n_threads)
{
    uint32_t group = wish ? wish : n_threads < 8 ? 8 : n_threads > 32 ? 32 : n_threads;
    return group < heads ? group : heads;
}

enum ns_code ns_model_open(const struct ns_config *config, const struct ns_shards *shards, struct ns_store *store,
                           const struct ns_model_options *options, struct ns_budget *budget, struct ns_model **out,
                           struct ns_error *err)
{
    struct ns_model *m = (struct ns_model *)ns_budget_take(budget, sizeof *m, err);
    if (!m)
        return NS_BUDGET;
    m->config = config;
    m->shards = shards;
    m->store = store;
    m->budget = budget;
    m->tile_bytes = options->tile_bytes;
    m->n_layers = layers_of(config, options->n_layers);
    m->kda_group = group_of(config->kda_heads, options->head_group, options->n_threads);
    m->mla_group = group_of(config->n_heads, options->head_group, options->n_threads);
    m->act = (struct ns_act){
        .situ = config->act == NS_ACT_SITU, .beta = config->situ_beta, .linear_beta = config->situ_linear_beta};
    m->pool_floats = pool_floats(config, m->n_layers);
    struct binder b = {.model = m, .err = err, .rc = NS_OK};
    m->layer = (struct ns_layer *)ns_budget_take(budget, m->n_layers * sizeof *m->layer, err);
    m->first_tile = (size_t *)ns_budget_take(budget, (m->n_layers + 2) * sizeof *m->first_tile, err);
    m->pool = (float *)ns_budget_take_raw(budget, store ? m->pool_floats * sizeof *m->pool : 0, 64, err);
    if (!m->layer || !m->first_tile || !m->pool)
        b.rc = NS_BUDGET;
    if (b.rc == NS_OK && config->attn_res_block && (m->n_layers - 1) / config->attn_res_block >= NS_MAX_BLOCKS)
        b.rc = ns_error_set(err, NS_INPUT, "attn_res_block_size %" PRIu32 " gives more than %d residual blocks",
                            config->attn_res_block, NS_MAX_BLOCKS);
    for (uint32_t i = 0; b.rc == NS_OK && i < m->n_layers; i++)
        bind_layer(&b, i);
    if (b.rc == NS_OK)
        bind_ends(&b);
    assert(b.rc != NS_OK || !store || m->pool_used + (config->attn_res_block ? config->hidden : 0) == m->pool_floats);
    if (b.rc == NS_OK)
        b.rc = ns_tiles_build(m, err);
    if (b.rc != NS_OK) {
        ns_model_close(m);
        return b.rc;
    }
    *out = m;
    return NS_OK;
}

void ns_model_close(struct ns_model *model)
{
    if (!model)
        return;
    struct ns_budget *budget = model->budget;
    ns_budget_give(budget, model->tiles.tile);
    ns_budget_give(budget, model->pool);
    ns_budget_give(budget, model->first_tile);
    ns_budget_give(budget, model->layer);
    ns_budget_give(budget, model);
}

const struct ns_config *ns_model_config(const struct ns_model *model)
{
    return model->config;
}

uint32_t ns_model_layers(const struct ns_model *model)
{
    return model->n_layers;
}

uint32_t ns_model_kind_index(const struct ns_model *model, uint32_t layer)
{
    return model->layer[layer].kind_index;
}

uint32_t ns_model_kda_layers(const struct ns_model *model)
{
    return model->n_kda;
}

uint32_t ns_model_mla_layers(const struct ns_model *model)
{
    return model->n_mla;
}

size_t ns_kda_head_floats(const struct ns_config *config)
{
    size_t d = config->kda_dim;
    return d * d + 3 * (config->conv_kernel - 1) * d;
}

size_t ns_kda_log_floats(const struct ns_config *config)
{
    return 4 * (size_t)config->kda_dim + 4; /* beta, and padding to whole vectors */
}

uint32_t ns_kda_group(const struct ns_model *model)
{
    return model->kda_group;
}

size_t ns_mla_key_floats(const struct ns_config *config)
{
    return (size_t)config->kv_lora + config->d_rope;
}

const struct ns_tile *ns_model_tiles(const struct ns_model *model, const size_t **first)
{
    *first = model->first_tile;
    return model->tiles.tile;
}

void ns_model_each_matrix(const struct ns_model *model, ns_matrix_fn each, void *arg)
{
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const struct ns_layer *l = &model->layer[i];
        const struct ns_matrix *m[] = {&l->kda.q,           &l->kda.k,          &l->kda.v,           &l->kda.f_a,
                                       &l->kda.f_b,         &l->kda.b,          &l->kda.g,           &l->kda.g_a,
                                       &l->kda.g_b,         &l->kda.o,          &l->mla.q_a,         &l->mla.q_b,
                                       &l->mla.q,           &l->mla.kv_a,       &l->mla.kv_b,        &l->mla.g,
                                       &l->mla.o,           &l->dense.gate,     &l->dense.up,        &l->dense.down,
                                       &l->moe.router,      &l->moe.latent_up,  &l->moe.shared.gate, &l->moe.shared.up,
                                       &l->moe.shared.down, &l->moe.latent_down};
        for (size_t j = 0; j < NS_COUNT(m); j++)
            if (m[j]->tensor)
                each(arg, m[j]);
    }
}

static void count_matrix(void *arg, const struct ns_matrix *m)
{
    struct ns_model_bytes *b = (struct ns_model_bytes *)arg;
    b->trunk += m->tensor->bytes;
    if (b->largest_row < (size_t)m->cols * 2)
        b->largest_row = (size_t)m->cols * 2;
}

void ns_model_bytes_get(const struct ns_model *model, struct ns_model_bytes *out)
{
    const struct ns_config *c = model->config;
    *out = (struct ns_model_bytes){.head = model->lm_head.tensor->bytes,
                                   .embed_row = (uint64_t)c->hidden * 2,
                                   .largest_row = (size_t)c->hidden * 2,
                                   .n_tiles = model->tiles.n};
    ns_model_each_matrix(model, count_matrix, out);
    uint64_t weights = 3ull * c->moe_inter * (c->latent ? c->latent : c->hidden);
    out->expert = c->mxfp4_experts ? weights / 2 + weights / 32 : weights * 2;
}

static void count_products(void *arg, const struct ns_matrix *m)
{
    *(uint64_t *)arg += (uint64_t)m->rows * m->cols;
}

void ns_model_work_get(const struct ns_model *model, struct ns_model_work *out)
{
    const struct ns_config *c = model->config;
    *out = (struct ns_model_work){.head = (uint64_t)c->vocab * c->hidden};
    ns_model_each_matrix(model, count_products, &out->trunk);
    out->trunk += (uint64_t)model->n_kda * c->kda_heads * 3 * c->kda_dim * c->kda_dim;
    out->attend = (uint64_t)model->n_mla * c->n_heads * ((uint64_t)2 * c->kv_lora + c->d_rope);
    for (uint32_t i = 0; i < model->n_layers; i++)
        if (model->layer[i].is_moe)
            out->experts += (uint64_t)c->top_k * 3 * c->moe_inter * (c->latent ? c->latent : c->hidden);
}
