/* census.c - is every tensor there that the config calls for, and nothing else?
 *
 * WHAT   Walks the tensor table of the model (specification 2.4) for one config, looks every name up, checks shape and
 *        element type, and then looks for tensors that nobody asked for.
 * WHY    A switch in the config and the tensors must agree in both directions: a gate whose tensors exist while the
 *        switch is off would give a model that runs and is wrong. Byte counts cannot tell [d, P] from [P, d]; shapes can.
 * HOW IT TELLS  Thousands of missing tensors have one cause, so problems are gathered by cause: whole layers as ranges
 *        ("incomplete conversion"), one tensor missing in many layers as one line, experts as ranges, a layer of the
 *        other kind as one line, left-over tensors under the config key that would have asked for them.
 * INVARIANTS
 *   1. A checkpoint that passes has each tensor of the table with the shape given there and a type the arithmetic knows.
 *                                      (census_test: every_tensor_is_needed, every_shape_is_checked)
 *   2. Time is linear in the number of tensors. */
#include "format/format_impl.h"

#include <stdio.h>
#include <string.h>

enum class { FLOATS, BF16_ONLY, BYTES };

static const struct class_row {
    const char *name;
    uint32_t types; /* bit per ns_dtype */
} classes[] = {
    [FLOATS] = {"BF16 or F32", 1u << NS_DTYPE_BF16 | 1u << NS_DTYPE_F32},
    [BF16_ONLY] = {"BF16", 1u << NS_DTYPE_BF16},
    [BYTES] = {"U8", 1u << NS_DTYPE_U8},
};

/* What a layer or the model should hold. rank 0: any shape with at least dim[0] elements. */
struct want {
    const char *suffix;
    const char *key; /* the config key that asks for it, NULL when every model has it */
    enum class class;
    uint32_t rank;
    uint64_t dim[3];
};

#define MAX_WANTS 48

struct wants {
    struct want w[MAX_WANTS];
    size_t n;
};

struct census {
    const struct ns_config *config;
    const struct ns_shards *shards;
    struct ns_budget *budget;
    struct ns_problems problems;
    uint8_t *seen; /* [tensors] */
    /* one slot per want of the table over all layers: where it was missing */
    const char *suffix[2 * MAX_WANTS];
    const char *suffix_key[2 * MAX_WANTS];
    struct ns_ranges lacking[2 * MAX_WANTS];
    size_t n_suffixes;
    size_t bad_experts[6]; /* per row of expert_wants */
};

/* ---- the table ------------------------------------------------------------------------------------------------------------ */

static void want(struct wants *t, const char *suffix, const char *key, enum class class, uint32_t rank, uint64_t a,
                 uint64_t b, uint64_t c)
{
    t->w[t->n++] = (struct want){suffix, key, class, rank, {a, b, c}};
}

static void vector(struct wants *t, const char *suffix, const char *key, uint64_t n)
{
    want(t, suffix, key, FLOATS, 1, n, 0, 0);
}

/* The products read bf16; vectors are widened when they are bound. */
static void matrix(struct wants *t, const char *suffix, const char *key, uint64_t rows, uint64_t cols)
{
    want(t, suffix, key, BF16_ONLY, 2, rows, cols, 0);
}

static void kda_wants(struct wants *t, const struct ns_config *c)
{
    uint64_t d = c->hidden, D = c->kda_dim, P = (uint64_t)c->kda_heads * c->kda_dim;
    matrix(t, "self_attn.q_proj.weight", NULL, P, d);
    matrix(t, "self_attn.k_proj.weight", NULL, P, d);
    matrix(t, "self_attn.v_proj.weight", NULL, P, d);
    want(t, "self_attn.q_conv1d.weight", NULL, FLOATS, 3, P, 1, c->conv_kernel);
    want(t, "self_attn.k_conv1d.weight", NULL, FLOATS, 3, P, 1, c->conv_kernel);
    want(t, "self_attn.v_conv1d.weight", NULL, FLOATS, 3, P, 1, c->conv_kernel);
    matrix(t, "self_attn.f_a_proj.weight", NULL, D, d);
    matrix(t, "self_attn.f_b_proj.weight", NULL, P, D);
    want(t, "self_attn.A_log", NULL, FLOATS, 0, c->kda_heads, 0, 0);
    vector(t, "self_attn.dt_bias", NULL, P);
    matrix(t, "self_attn.b_proj.weight", NULL, c->kda_heads, d);
    if (c->kda_full_rank_gate) {
        matrix(t, "self_attn.g_proj.weight", "use_full_rank_gate", P, d);
    } else {
        matrix(t, "self_attn.g_a_proj.weight", "use_full_rank_gate", D, d);
        matrix(t, "self_attn.g_b_proj.weight", "use_full_rank_gate", P, D);
    }
    vector(t, "self_attn.o_norm.weight", NULL, D);
    matrix(t, "self_attn.o_proj.weight", NULL, d, P);
}

static void mla_wants(struct wants *t, const struct ns_config *c)
{
    uint64_t d = c->hidden, heads = c->n_heads, q = heads * ((uint64_t)c->d_nope + c->d_rope);
    if (c->q_lora > 0) {
        matrix(t, "self_attn.q_a_proj.weight", "q_lora_rank", c->q_lora, d);
        vector(t, "self_attn.q_a_layernorm.weight", "q_lora_rank", c->q_lora);
        matrix(t, "self_attn.q_b_proj.weight", "q_lora_rank", q, c->q_lora);
    } else {
        matrix(t, "self_attn.q_proj.weight", "q_lora_rank", q, d);
    }
    matrix(t, "self_attn.kv_a_proj_with_mqa.weight", NULL, (uint64_t)c->kv_lora + c->d_rope, d);
    vector(t, "self_attn.kv_a_layernorm.weight", NULL, c->kv_lora);
    matrix(t, "self_attn.kv_b_proj.weight", NULL, heads * ((uint64_t)c->d_nope + c->d_v), c->kv_lora);
    if (c->mla_gate)
        matrix(t, "self_attn.g_proj.weight", "mla_use_output_gate", heads * c->d_v, d);
    matrix(t, "self_attn.o_proj.weight", NULL, d, heads * c->d_v);
}

static void ffn_wants(struct wants *t, const struct ns_config *c, bool moe)
{
    uint64_t d = c->hidden, f = c->dense_inter, ms = (uint64_t)c->n_shared * c->moe_inter;
    if (!moe) {
        matrix(t, "mlp.gate_proj.weight", NULL, f, d);
        matrix(t, "mlp.up_proj.weight", NULL, f, d);
        matrix(t, "mlp.down_proj.weight", NULL, d, f);
        return;
    }
    matrix(t, "block_sparse_moe.gate.weight", NULL, c->n_experts, d);
    vector(t, "block_sparse_moe.gate.e_score_correction_bias", NULL, c->n_experts);
    if (c->latent > 0) {
        matrix(t, "block_sparse_moe.routed_expert_down_proj.weight", "routed_expert_hidden_size", c->latent, d);
        matrix(t, "block_sparse_moe.routed_expert_up_proj.weight", "routed_expert_hidden_size", d, c->latent);
    }
    if (c->latent_norm)
        vector(t, "block_sparse_moe.routed_expert_norm.weight", "latent_moe_use_norm", c->latent);
    if (c->n_shared > 0) {
        matrix(t, "block_sparse_moe.shared_experts.gate_proj.weight", "num_shared_experts", ms, d);
        matrix(t, "block_sparse_moe.shared_experts.up_proj.weight", "num_shared_experts", ms, d);
        matrix(t, "block_sparse_moe.shared_experts.down_proj.weight", "num_shared_experts", d, ms);
    }
}

static void layer_wants(struct wants *t, const struct ns_config *c, uint32_t layer)
{
    t->n = 0;
    vector(t, "input_layernorm.weight", NULL, c->hidden);
    vector(t, "post_attention_layernorm.weight", NULL, c->hidden);
    if (c->attn_res_block > 0) {
        vector(t, "self_attention_res_norm.weight", "attn_res_block_size", c->hidden);
        want(t, "self_attention_res_proj.weight", "attn_res_block_size", FLOATS, 2, 1, c->hidden, 0);
        vector(t, "mlp_res_norm.weight", "attn_res_block_size", c->hidden);
        want(t, "mlp_res_proj.weight", "attn_res_block_size", FLOATS, 2, 1, c->hidden, 0);
    }
    if (c->is_kda[layer])
        kda_wants(t, c);
    else
        mla_wants(t, c);
    ffn_wants(t, c, ns_config_is_moe(c, layer));
}

static void expert_wants(struct wants *t, const struct ns_config *c)
{
    uint64_t in = c->latent ? c->latent : c->hidden, m = c->moe_inter;
    t->n = 0;
    if (!c->mxfp4_experts) {
        want(t, "w1.weight", "quantization_config", BF16_ONLY, 2, m, in, 0);
        want(t, "w2.weight", "quantization_config", BF16_ONLY, 2, in, m, 0);
        want(t, "w3.weight", "quantization_config", BF16_ONLY, 2, m, in, 0);
        return;
    }
    want(t, "w1.weight_packed", "quantization_config", BYTES, 2, m, in / 2, 0);
    want(t, "w1.weight_scale", "quantization_config", BYTES, 2, m, in / 32, 0);
    want(t, "w2.weight_packed", "quantization_config", BYTES, 2, in, m / 2, 0);
    want(t, "w2.weight_scale", "quantization_config", BYTES, 2, in, m / 32, 0);
    want(t, "w3.weight_packed", "quantization_config", BYTES, 2, m, in / 2, 0);
    want(t, "w3.weight_scale", "quantization_config", BYTES, 2, m, in / 32, 0);
}

/* ---- one tensor -------------------------------------------------------------------------------------------------------------- */

static void shape_text(const uint64_t *dim, uint32_t rank, char out[80])
{
    size_t n = 0;
    out[n++] = '[';
    for (uint32_t i = 0; i < rank && n < 60; i++)
        n += (size_t)snprintf(out + n, 80 - n, "%s%" PRIu64, i ? ", " : "", dim[i]);
    snprintf(out + n, 80 - n, "]");
}

/* What is wrong with the shape of t into out, or false. */
static bool wrong_shape(const struct ns_tensor *t, const struct want *w, char out[256])
{
    if (w->rank == 0) {
        uint64_t n = 1;
        for (uint32_t i = 0; i < t->rank; i++)
            if (__builtin_mul_overflow(n, t->dim[i], &n))
                n = 0;
        snprintf(out, 256, "has %" PRIu64 " elements, the config calls for %" PRIu64, n, w->dim[0]);
        return n < w->dim[0];
    }
    bool same = t->rank == w->rank;
    for (uint32_t i = 0; same && i < w->rank; i++)
        same = t->dim[i] == w->dim[i];
    if (same)
        return false;
    char found[80], wanted[80];
    shape_text(t->dim, t->rank, found);
    shape_text(w->dim, w->rank, wanted);
    snprintf(out, 256, "has shape %s, the config calls for %s", found, wanted);
    return true;
}

/* Finds name, marks it and checks it. False when it is missing. n_bad counts what is wrong and only the first is told
 * (NULL: all are told). */
static bool check_one(struct census *s, const char *name, const struct want *w, size_t *n_bad)
{
    const struct ns_tensor *t = ns_shards_find(s->shards, name);
    if (!t)
        return false;
    char what[256];
    bool bad = !(classes[w->class].types >> t->dtype & 1);
    s->seen[ns_shards_index(s->shards, t)] = 1;
    if (bad)
        snprintf(what, sizeof what, "is stored as %s, supported: %s",
                 t->dtype == NS_DTYPE_OTHER ? t->other : ns_dtype_name(t->dtype), classes[w->class].name);
    else
        bad = wrong_shape(t, w, what);
    if (bad && (!n_bad || (*n_bad)++ == 0))
        ns_problems_add(&s->problems, "%s %s", name, what);
    return true;
}

/* The list of layers that lack suffix. */
static struct ns_ranges *lacking(struct census *s, const struct want *w)
{
    for (size_t i = 0; i < s->n_suffixes; i++)
        if (strcmp(s->suffix[i], w->suffix) == 0)
            return &s->lacking[i];
    s->suffix[s->n_suffixes] = w->suffix;
    s->suffix_key[s->n_suffixes] = w->key;
    ns_ranges_init(&s->lacking[s->n_suffixes], s->budget);
    return &s->lacking[s->n_suffixes++];
}

/* ---- one layer ----------------------------------------------------------------------------------------------------------------- */

#define NAME_BYTES 192

static void layer_name(const struct ns_shards *shards, uint32_t layer, const char *suffix, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%smodel.layers.%" PRIu32 ".%s", ns_shards_prefix(shards), layer, suffix);
}

static bool has(const struct census *s, uint32_t layer, const char *suffix)
{
    char name[NAME_BYTES];
    layer_name(s->shards, layer, suffix, name);
    return ns_shards_find(s->shards, name) != NULL;
}

/* The tensors of the other attention kind are explained by one line; they are neither missing nor left over. */
static bool other_kind(struct census *s, uint32_t layer)
{
    bool kda = s->config->is_kda[layer];
    if (!has(s, layer, kda ? "self_attn.kv_b_proj.weight" : "self_attn.A_log") ||
        has(s, layer, kda ? "self_attn.A_log" : "self_attn.kv_b_proj.weight"))
        return false;
    ns_problems_add(&s->problems, "layer %" PRIu32 " is %s in the config, its tensors are %s (layers counted from 0)",
                    layer, kda ? "KDA" : "full attention", kda ? "full attention" : "KDA");
    static const char *const all[] = {
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
        "q_conv1d.weight",
        "k_conv1d.weight",
        "v_conv1d.weight",
        "f_a_proj.weight",
        "f_b_proj.weight",
        "A_log",
        "dt_bias",
        "b_proj.weight",
        "g_proj.weight",
        "g_a_proj.weight",
        "g_b_proj.weight",
        "o_norm.weight",
        "o_proj.weight",
        "q_a_proj.weight",
        "q_a_layernorm.weight",
        "q_b_proj.weight",
        "kv_a_proj_with_mqa.weight",
        "kv_a_layernorm.weight",
        "kv_b_proj.weight",
    };
    for (size_t i = 0; i < NS_COUNT(all); i++) {
        char suffix[64], name[NAME_BYTES];
        snprintf(suffix, sizeof suffix, "self_attn.%s", all[i]);
        layer_name(s->shards, layer, suffix, name);
        const struct ns_tensor *t = ns_shards_find(s->shards, name);
        if (t)
            s->seen[ns_shards_index(s->shards, t)] = 1;
    }
    return true;
}

/* Returns how many of the layer's experts' tensors are there; says which are not unless none is. */
static size_t check_experts(struct census *s, uint32_t layer)
{
    struct wants t;
    struct ns_ranges none[6];
    size_t n_found = 0, found[6] = {0};
    expert_wants(&t, s->config);
    for (size_t i = 0; i < t.n; i++)
        ns_ranges_init(&none[i], s->budget);
    for (uint32_t e = 0; e < s->config->n_experts; e++)
        for (size_t i = 0; i < t.n; i++) {
            char suffix[80], name[NAME_BYTES];
            snprintf(suffix, sizeof suffix, "block_sparse_moe.experts.%" PRIu32 ".%s", e, t.w[i].suffix);
            layer_name(s->shards, layer, suffix, name);
            if (check_one(s, name, &t.w[i], &s->bad_experts[i]))
                found[i]++;
            else
                ns_ranges_add(&none[i], e);
        }
    for (size_t i = 0; i < t.n; i++)
        n_found += found[i];
    for (size_t i = 0; i < t.n; i++) {
        if (n_found > 0 && found[i] < s->config->n_experts)
            ns_problems_add(&s->problems, "layer %" PRIu32 ": experts %.200s lack %s (quantization_config is %s)",
                            layer, ns_ranges_text(&none[i]), t.w[i].suffix,
                            s->config->mxfp4_experts ? "present" : "absent");
        ns_ranges_fini(&none[i]);
    }
    return n_found;
}

/* False when nothing of the layer is there. */
static bool check_layer(struct census *s, uint32_t layer)
{
    struct wants t;
    bool missing[MAX_WANTS] = {false}, moe = ns_config_is_moe(s->config, layer);
    size_t n_missing = 0, n_experts = 0;
    bool other = other_kind(s, layer);
    layer_wants(&t, s->config, layer);
    for (size_t i = 0; i < t.n; i++) {
        char name[NAME_BYTES];
        if (other && strncmp(t.w[i].suffix, "self_attn.", 10) == 0)
            continue;
        layer_name(s->shards, layer, t.w[i].suffix, name);
        missing[i] = !check_one(s, name, &t.w[i], NULL);
        n_missing += missing[i];
    }
    if (moe)
        n_experts = check_experts(s, layer);
    if (n_missing == t.n && n_experts == 0 && !other)
        return false;
    for (size_t i = 0; i < t.n; i++)
        if (missing[i])
            ns_ranges_add(lacking(s, &t.w[i]), layer);
    if (moe && n_experts == 0)
        ns_problems_add(&s->problems, "layer %" PRIu32 ": all %" PRIu32 " experts are missing", layer,
                        s->config->n_experts);
    return true;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------- */

static bool check_top(struct census *s, const char *suffix, enum class class, uint32_t rank, uint64_t a, uint64_t b)
{
    char name[NAME_BYTES];
    struct want w = {suffix, NULL, class, rank, {a, b, 0}};
    snprintf(name, sizeof name, "%s%s", ns_shards_prefix(s->shards), suffix);
    return check_one(s, name, &w, NULL);
}

static void check_model(struct census *s)
{
    const struct ns_config *c = s->config;
    struct ns_ranges layers;
    struct ns_text parts;
    ns_ranges_init(&layers, s->budget);
    ns_text_init(&parts, s->budget);
    uint32_t n_gone = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (!check_layer(s, i)) {
            ns_ranges_add(&layers, i);
            n_gone++;
        }
    const char *gone[4];
    size_t n = 0;
    char head[NAME_BYTES];
    if (!check_top(s, "model.embed_tokens.weight", BF16_ONLY, 2, c->vocab, c->hidden))
        gone[n++] = "the embedding";
    if (!check_top(s, "model.norm.weight", FLOATS, 1, c->hidden, 0))
        gone[n++] = "the final norm";
    snprintf(head, sizeof head, "%slm_head.weight", ns_shards_prefix(s->shards));
    if (!check_top(s, "lm_head.weight", BF16_ONLY, 2, c->vocab, c->hidden)) {
        if (!c->tied_embeddings)
            gone[n++] = "the head (lm_head)";
    } else if (c->tied_embeddings) {
        ns_problems_add(&s->problems, "tie_word_embeddings is true, but %s exists", head);
    }
    if (c->attn_res_block > 0) {
        bool norm = check_top(s, "model.output_attn_res_norm.weight", FLOATS, 1, c->hidden, 0);
        if (!check_top(s, "model.output_attn_res_proj.weight", FLOATS, 2, 1, c->hidden) || !norm)
            gone[n++] = "the output residual mix (output_attn_res)";
    }
    if (n_gone > 0)
        ns_text_format(&parts, "layer%s %s", n_gone > 1 ? "s" : "", ns_ranges_text(&layers));
    for (size_t i = 0; i < n; i++)
        ns_text_format(&parts, "%s%s", parts.n == 0 ? "" : i + 1 < n ? ", " : " and ", gone[i]);
    if (n_gone + n > 0)
        ns_problems_add(&s->problems, "incomplete conversion: %.300s %s missing (layers counted from 0)",
                        ns_text_ok(&parts) ? parts.data : "parts", n_gone + n > 1 ? "are" : "is");
    ns_text_fini(&parts);
    ns_ranges_fini(&layers);
}

static void tell_lacking(struct census *s)
{
    for (size_t i = 0; i < s->n_suffixes; i++) {
        const char *key = s->suffix_key[i];
        ns_problems_add(&s->problems, "layers %.200s lack %s%s%s%s", ns_ranges_text(&s->lacking[i]), s->suffix[i],
                        key ? " (asked for by the config's " : "", key ? key : "", key ? ")" : "");
        ns_ranges_fini(&s->lacking[i]);
    }
}

static void tell_bad_experts(struct census *s)
{
    struct wants t;
    expert_wants(&t, s->config);
    for (size_t i = 0; i < t.n; i++)
        if (s->bad_experts[i] > 1)
            ns_problems_add(&s->problems, "%zu more experts have such a %s", s->bad_experts[i] - 1, t.w[i].suffix);
}

/* Tensors nobody asked for, under the key that would have asked. The first pattern that occurs in the name decides. */
static const struct explanation {
    const char *pattern, *key;
} explanations[] = {
    {".routed_expert_norm.", "latent_moe_use_norm is not true"},
    {".routed_expert_", "routed_expert_hidden_size is absent"},
    {"_attn_res_", "attn_res_block_size is absent"},
    {"_res_norm.", "attn_res_block_size is absent"},
    {"_res_proj.", "attn_res_block_size is absent"},
    {".self_attn.q_a_", "q_lora_rank is absent"},
    {".self_attn.q_b_", "q_lora_rank is absent"},
    {".self_attn.q_proj.", "q_lora_rank is given"},
    {".self_attn.g_a_proj.", "use_full_rank_gate is true"},
    {".self_attn.g_b_proj.", "use_full_rank_gate is true"},
    {".self_attn.g_proj.", "mla_use_output_gate or use_full_rank_gate is not true"},
    {".shared_experts.", "num_shared_experts is 0, or the layer is dense"},
    {".weight_packed", "quantization_config is absent, or the expert is beyond num_experts"},
    {".weight_scale", "quantization_config is absent, or the expert is beyond num_experts"},
    {".experts.", "quantization_config or num_experts says otherwise"},
    {"model.layers.", "the config has no place for it"},
    {"", "the name is not of this model family"},
};

static void tell_leftovers(struct census *s)
{
    size_t count[NS_COUNT(explanations)] = {0};
    const char *first[NS_COUNT(explanations)] = {NULL};
    for (size_t i = 0; i < ns_shards_count(s->shards); i++) {
        if (s->seen[i])
            continue;
        const char *name = ns_shards_at(s->shards, i)->name;
        size_t k = 0;
        while (!strstr(name, explanations[k].pattern))
            k++;
        if (count[k]++ == 0)
            first[k] = name;
    }
    for (size_t k = 0; k < NS_COUNT(explanations); k++)
        if (count[k] == 1)
            ns_problems_add(&s->problems, "%.150s is present, but %s", first[k], explanations[k].key);
        else if (count[k] > 1)
            ns_problems_add(&s->problems, "%.150s and %zu more are present, but %s", first[k], count[k] - 1,
                            explanations[k].key);
}

/* Storage is a matter of names: plain weights are plain whatever quantization_config says. Packed weights need the block,
 * which says how they are packed. */
void ns_config_settle(struct ns_config *config, const struct ns_shards *shards)
{
    for (uint32_t i = 0; config->mxfp4_experts && i < config->n_layers; i++) {
        char plain[NAME_BYTES], packed[NAME_BYTES];
        if (!ns_config_is_moe(config, i))
            continue;
        layer_name(shards, i, "block_sparse_moe.experts.0.w1.weight", plain);
        layer_name(shards, i, "block_sparse_moe.experts.0.w1.weight_packed", packed);
        if (ns_shards_find(shards, packed))
            return;
        config->mxfp4_experts = !ns_shards_find(shards, plain);
    }
}

enum ns_code ns_census_check(const struct ns_config *config, const struct ns_shards *shards, struct ns_error *err)
{
    struct census s = {.config = config, .shards = shards, .budget = config->budget};
    s.seen = ns_budget_take(s.budget, ns_shards_count(shards), err);
    if (!s.seen)
        return NS_BUDGET;
    ns_problems_init(&s.problems, s.budget);
    check_model(&s);
    tell_bad_experts(&s);
    tell_lacking(&s);
    tell_leftovers(&s);
    ns_budget_give(s.budget, s.seen);
    return ns_problems_close(&s.problems, NS_INPUT, "the tensors do not fit the config:", err);
}
