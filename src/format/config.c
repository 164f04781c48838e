/* config.c - the model's numbers, from config.json.
 *
 * WHAT   Reads the text model's settings into struct ns_config: Kimi K3 (inside "text_config") and Kimi-Linear (at the
 *        top level) by the presence of fields, never by model_type, which is the same for both.
 * WHY    A wrong number here gives a model that runs and talks nonsense. So nothing architectural has a default; what is
 *        missing, of the wrong type, out of range or in contradiction to something else is refused, and all problems are
 *        listed at once. Only switches whose absence has one meaning in the released files may be absent: they are
 *        marked OPTIONAL in the table, and null counts as absent.
 * INVARIANTS
 *   1. Every number in ns_config comes from the file or is the documented meaning of an absent switch.
 *                                                              (config_test: every_required_field_is_required)
 *   2. kda_layers and full_attn_layers partition 1..L exactly; is_kda is their zero-based form.
 *                                                              (config_test: layer_lists_must_partition)
 *   3. Nested and flat files give equal settings.              (config_test: c37_nested_and_flat_are_equal)
 *   4. Counts are at most 2^24, layers at most 65,536: products of two fit 64 bits.
 * READING  Specification of the model: sections 1.1-1.5; the layer lists in the file count from one. */
#include "format/format_impl.h"

#include "json/json.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define MAX_COUNT  (1 << 24)
#define MAX_LAYERS 65536
#define MAX_CONFIG ((size_t)16 << 20)

/* One reading. places: the objects a key may stand in, the one in force first. */
struct reader {
    const struct ns_json *text, *linear, *root; /* root NULL when the file is flat */
    struct ns_problems problems;
    struct ns_budget *budget;
    bool no_memory; /* a value could not be written down: nothing that was said about it counts */
};

enum kind { COUNT, COUNT_OR_NONE, NUMBER, SWITCH };

enum presence { REQUIRED, OPTIONAL };

enum place { IN_TEXT, IN_LINEAR };

struct field {
    const char *key;
    enum place place;
    enum kind kind;
    enum presence presence;
    size_t offset;
};

#define AT(member) offsetof(struct ns_config, member)
/* clang-format off */
static const struct field fields[] = {
    {"vocab_size",                IN_TEXT,   COUNT,  REQUIRED, AT(vocab)},
    {"hidden_size",               IN_TEXT,   COUNT,  REQUIRED, AT(hidden)},
    {"num_hidden_layers",         IN_TEXT,   COUNT,  REQUIRED, AT(n_layers)},
    {"rms_norm_eps",              IN_TEXT,   NUMBER, REQUIRED, AT(rms_eps)},
    {"activation_situ_beta",      IN_TEXT,   NUMBER, OPTIONAL, AT(situ_beta)},
    {"activation_situ_linear_beta", IN_TEXT, NUMBER, OPTIONAL, AT(situ_linear_beta)},
    {"intermediate_size",         IN_TEXT,   COUNT,  REQUIRED, AT(dense_inter)},
    {"first_k_dense_replace",     IN_TEXT,   COUNT,  REQUIRED, AT(first_dense)},
    {"moe_layer_freq",            IN_TEXT,   COUNT,  OPTIONAL, AT(moe_layer_freq)},
    {"num_attention_heads",       IN_TEXT,   COUNT,  REQUIRED, AT(n_heads)},
    {"q_lora_rank",               IN_TEXT,   COUNT,  OPTIONAL, AT(q_lora)},
    {"kv_lora_rank",              IN_TEXT,   COUNT,  REQUIRED, AT(kv_lora)},
    {"qk_nope_head_dim",          IN_TEXT,   COUNT,  REQUIRED, AT(d_nope)},
    {"qk_rope_head_dim",          IN_TEXT,   COUNT,  REQUIRED, AT(d_rope)},
    {"v_head_dim",                IN_TEXT,   COUNT,  REQUIRED, AT(d_v)},
    {"mla_use_output_gate",       IN_TEXT,   SWITCH, OPTIONAL, AT(mla_gate)},
    {"num_heads",                 IN_LINEAR, COUNT,  REQUIRED, AT(kda_heads)},
    {"head_dim",                  IN_LINEAR, COUNT,  REQUIRED, AT(kda_dim)},
    {"short_conv_kernel_size",    IN_LINEAR, COUNT,  REQUIRED, AT(conv_kernel)},
    {"use_full_rank_gate",        IN_LINEAR, SWITCH, OPTIONAL, AT(kda_full_rank_gate)},
    {"gate_lower_bound",          IN_LINEAR, NUMBER, OPTIONAL, AT(decay_bound)},
    {"num_experts",               IN_TEXT,   COUNT,  REQUIRED, AT(n_experts)},
    {"num_experts_per_token",     IN_TEXT,   COUNT,  REQUIRED, AT(top_k)},
    {"num_shared_experts",        IN_TEXT,   COUNT_OR_NONE, REQUIRED, AT(n_shared)},
    {"moe_intermediate_size",     IN_TEXT,   COUNT,  REQUIRED, AT(moe_inter)},
    {"routed_expert_hidden_size", IN_TEXT,   COUNT,  OPTIONAL, AT(latent)},
    {"latent_moe_use_norm",       IN_TEXT,   SWITCH, OPTIONAL, AT(latent_norm)},
    {"moe_renormalize",           IN_TEXT,   SWITCH, REQUIRED, AT(renormalize)},
    {"routed_scaling_factor",     IN_TEXT,   NUMBER, REQUIRED, AT(routed_scale)},
    {"num_expert_group",          IN_TEXT,   COUNT,  OPTIONAL, AT(n_groups)},
    {"topk_group",                IN_TEXT,   COUNT,  OPTIONAL, AT(topk_groups)},
    {"attn_res_block_size",       IN_TEXT,   COUNT,  OPTIONAL, AT(attn_res_block)},
    {"tie_word_embeddings",       IN_TEXT,   SWITCH, OPTIONAL, AT(tied_embeddings)},
};

/* Read by hand below; together with the table these are the keys that may not disagree between the two levels. */
static const char *const other_keys[] = {
    "hidden_act", "num_key_value_heads", "mla_use_nope", "moe_router_activation_func", "topk_method",
    "num_nextn_predict_layers", "quantization_config", "use_grouped_topk",
};
static const char *const layer_keys[] = {"kda_layers", "full_attn_layers"};

/* Keys that say nothing about the maths of this family. Anything else unknown is worth a line in the log. */
static const char *const bookkeeping[] = {
    "linear_attn_config", "max_position_embeddings", "model_max_length", "bos_token_id", "eos_token_id", "pad_token_id",
    "architectures", "model_type", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path",
    "initializer_range", "use_cache", "rope_theta", "rope_scaling", "rope_parameters", "head_dim", "attention_dropout",
    "_attn_implementation", "_commit_hash", "gradient_checkpointing", "add_cross_attention", "bad_words_ids",
    "begin_suppress_tokens", "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label",
    "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "prefix", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript", "typical_p",
    "use_bfloat16", "vision_config", "image_placeholder", "media_placeholder_token_id", "ignore_index",
};

/* clang-format on */

/* ---- looking things up --------------------------------------------------------------------------------------------- */

/* The value in force, NULL when absent or null. */
static const struct ns_json *lookup(const struct reader *r, enum place place, const char *key)
{
    const struct ns_json *v = ns_json_find(place == IN_LINEAR ? r->linear : r->text, key);
    return ns_json_is_null(v) ? NULL : v;
}

static const char *prefix_of(const struct reader *r, enum place place)
{
    if (place == IN_LINEAR)
        return r->root ? "text_config.linear_attn_config." : "linear_attn_config.";
    return r->root ? "text_config." : "";
}

/* A value as JSON, cut to the size of out; for messages. */
static const char *shown(struct reader *r, const struct ns_json *value, char out[64])
{
    struct ns_text text;
    struct ns_json_writer w;
    ns_text_init(&text, r->budget);
    ns_json_begin(&w, &text);
    ns_json_put_value(&w, value);
    r->no_memory |= !ns_text_ok(&text);
    size_t n = ns_text_ok(&text) ? text.n : 0, keep = n;
    if (keep > 59) {
        keep = 59;
        while (keep > 0 && ((unsigned char)text.data[keep] & 0xC0) == 0x80) /* not inside a character */
            keep--;
    }
    if (keep > 0)
        memcpy(out, text.data, keep);
    memcpy(out + keep, n > keep ? "..." : "", n > keep ? 4 : 1);
    ns_text_fini(&text);
    return out;
}

static void wrong_type(struct reader *r, enum place place, const char *key, const struct ns_json *v, const char *wanted)
{
    char text[64];
    ns_problems_add(&r->problems, "%s%s is %s, %s was expected", prefix_of(r, place), key, shown(r, v, text), wanted);
}

static void missing(struct reader *r, enum place place, const char *key)
{
    bool null = ns_json_find(place == IN_LINEAR ? r->linear : r->text, key) != NULL;
    ns_problems_add(&r->problems, "%s%s is %s", prefix_of(r, place), key, null ? "null" : "missing");
}

/* ---- plain fields ---------------------------------------------------------------------------------------------------- */

static void read_field(struct reader *r, const struct field *f, struct ns_config *out)
{
    void *at = (char *)out + f->offset;
    const struct ns_json *v = lookup(r, f->place, f->key);
    int64_t count, least = f->kind == COUNT ? 1 : 0;
    double number;
    bool flag;
    if (!v) {
        if (f->presence == REQUIRED && (f->place == IN_TEXT || r->linear))
            missing(r, f->place, f->key);
        return;
    }
    switch (f->kind) {
    case COUNT:
    case COUNT_OR_NONE:
        if (ns_json_type(v) != NS_JSON_INT || !ns_json_int(v, &count) || count < least || count > MAX_COUNT)
            wrong_type(r, f->place, f->key, v,
                       least ? "a whole number from 1 to 16777216" : "a whole number from 0 to 16777216");
        else
            *(uint32_t *)at = (uint32_t)count;
        return;
    case NUMBER:
        if (!ns_json_number(v, &number) || !isfinite((float)number))
            wrong_type(r, f->place, f->key, v, "a number");
        else
            *(float *)at = (float)number;
        return;
    case SWITCH:
        if (!ns_json_bool(v, &flag))
            wrong_type(r, f->place, f->key, v, "true or false");
        else
            *(bool *)at = flag;
        return;
    }
}

static bool is_string(const struct ns_json *v, const char *text)
{
    const char *s;
    size_t n;
    return ns_json_string(v, &s, &n) && n == strlen(text) && memcmp(s, text, n) == 0;
}

static void read_activation(struct reader *r, struct ns_config *out)
{
    const struct ns_json *v = lookup(r, IN_TEXT, "hidden_act");
    if (!v)
        missing(r, IN_TEXT, "hidden_act");
    else if (is_string(v, "situ"))
        out->act = NS_ACT_SITU;
    else if (is_string(v, "silu"))
        out->act = NS_ACT_SILU;
    else
        wrong_type(r, IN_TEXT, "hidden_act", v, "\"situ\" or \"silu\"");
    if (!is_string(v, "situ")) {
        out->situ_beta = out->situ_linear_beta = 0;
        return;
    }
    const struct ns_json *beta = lookup(r, IN_TEXT, "activation_situ_beta");
    const struct ns_json *linear = lookup(r, IN_TEXT, "activation_situ_linear_beta");
    if (!beta)
        missing(r, IN_TEXT, "activation_situ_beta");
    else if (!(out->situ_beta > 0))
        wrong_type(r, IN_TEXT, "activation_situ_beta", beta, "a number above 0");
    if (linear && !(out->situ_linear_beta > 0))
        wrong_type(r, IN_TEXT, "activation_situ_linear_beta", linear, "a number above 0");
}

/* Marks the layers of one list. seen counts how often each layer (zero-based) was named. */
static void mark_layers(struct reader *r, const char *key, uint8_t *seen, bool *is_kda, bool value, uint32_t n_layers)
{
    const struct ns_json *list = lookup(r, IN_LINEAR, key);
    if (!list) {
        if (r->linear)
            missing(r, IN_LINEAR, key);
        return;
    }
    if (ns_json_type(list) != NS_JSON_ARRAY) {
        wrong_type(r, IN_LINEAR, key, list, "a list of layers");
        return;
    }
    for (size_t i = 0; i < ns_json_count(list); i++) {
        int64_t layer;
        char text[64];
        const struct ns_json *item = ns_json_item(list, i);
        if (ns_json_type(item) != NS_JSON_INT || !ns_json_int(item, &layer) || layer < 1 || layer > n_layers) {
            ns_problems_add(&r->problems, "%s%s names layer %s, the layers are 1 to %" PRIu32, prefix_of(r, IN_LINEAR),
                            key, shown(r, item, text), n_layers);
            continue;
        }
        if (seen[layer - 1] < 2)
            seen[layer - 1]++;
        is_kda[layer - 1] = value;
    }
}

/* is_kda is allocated whenever the layer count is known; the caller frees it with the config. */
static enum ns_code read_layers(struct reader *r, struct ns_config *out, struct ns_error *err)
{
    if (out->n_layers == 0 || !r->linear)
        return NS_OK; /* told already */
    if (out->n_layers > MAX_LAYERS) {
        ns_problems_add(&r->problems, "%snum_hidden_layers is %" PRIu32 ", at most %d are supported",
                        prefix_of(r, IN_TEXT), out->n_layers, MAX_LAYERS);
        return NS_OK;
    }
    uint8_t *seen = ns_budget_take(r->budget, out->n_layers, err);
    out->is_kda = ns_budget_take(r->budget, out->n_layers * sizeof *out->is_kda, err);
    if (!seen || !out->is_kda) {
        ns_budget_give(r->budget, seen);
        return NS_BUDGET;
    }
    mark_layers(r, "kda_layers", seen, out->is_kda, true, out->n_layers);
    mark_layers(r, "full_attn_layers", seen, out->is_kda, false, out->n_layers);
    struct ns_ranges none, twice;
    ns_ranges_init(&none, r->budget);
    ns_ranges_init(&twice, r->budget);
    for (uint32_t i = 0; i < out->n_layers; i++) {
        if (seen[i] == 0)
            ns_ranges_add(&none, i + 1);
        else if (seen[i] > 1)
            ns_ranges_add(&twice, i + 1);
    }
    if (none.n > 0 && lookup(r, IN_LINEAR, "kda_layers") && lookup(r, IN_LINEAR, "full_attn_layers"))
        ns_problems_add(&r->problems, "kda_layers and full_attn_layers both lack layer %s (counted from 1)",
                        ns_ranges_text(&none));
    if (twice.n > 0)
        ns_problems_add(&r->problems, "kda_layers and full_attn_layers name layer %s more than once (counted from 1)",
                        ns_ranges_text(&twice));
    ns_ranges_fini(&none);
    ns_ranges_fini(&twice);
    ns_budget_give(r->budget, seen);
    return NS_OK;
}

/* ---- quantization_config --------------------------------------------------------------------------------------------- */

/* wanted NULL: must be null or absent. Otherwise a JSON literal compared as written by the writer. */
static void expect_value(struct reader *r, const struct ns_json *object, const char *path, const char *key,
                         const char *wanted)
{
    const struct ns_json *v = ns_json_find(object, key);
    char text[64];
    if (ns_json_is_null(v)) {
        if (wanted)
            ns_problems_add(&r->problems, "%s%s is %s, %s was expected", path, key, v ? "null" : "missing", wanted);
        return;
    }
    shown(r, v, text);
    if (!wanted || strcmp(text, wanted) != 0)
        ns_problems_add(&r->problems, "%s%s is %s, %s was expected", path, key, text, wanted ? wanted : "null");
}

static void read_quantization(struct reader *r, struct ns_config *out)
{
    static const char *const weight[][2] = {
        {"num_bits", "4"},         {"type", "\"float\""}, {"symmetric", "true"},
        {"strategy", "\"group\""}, {"group_size", "32"},  {"scale_dtype", "\"torch.uint8\""},
        {"dynamic", "false"},      {"actorder", NULL},    {"block_structure", NULL},
    };
    const struct ns_json *q = lookup(r, IN_TEXT, "quantization_config");
    if (!q)
        return;
    out->mxfp4_experts = true;
    if (ns_json_type(q) != NS_JSON_OBJECT) {
        wrong_type(r, IN_TEXT, "quantization_config", q, "an object");
        return;
    }
    expect_value(r, q, "quantization_config.", "quant_method", "\"compressed-tensors\"");
    expect_value(r, q, "quantization_config.", "format", "\"mxfp4-pack-quantized\"");
    expect_value(r, q, "quantization_config.", "quantization_status", "\"compressed\"");
    const struct ns_json *groups = ns_json_find(q, "config_groups"), *group = ns_json_find(groups, "group_0");
    if (ns_json_count(groups) != 1 || ns_json_type(group) != NS_JSON_OBJECT) {
        ns_problems_add(&r->problems,
                        "quantization_config.config_groups has %zu groups, one object group_0 was expected",
                        ns_json_count(groups));
        return;
    }
    if (ns_json_find(group, "format"))
        expect_value(r, group, "quantization_config group_0.", "format", "\"mxfp4-pack-quantized\"");
    expect_value(r, group, "quantization_config group_0.", "input_activations", NULL);
    expect_value(r, group, "quantization_config group_0.", "output_activations", NULL);
    const struct ns_json *weights = ns_json_find(group, "weights");
    for (size_t i = 0; i < NS_COUNT(weight); i++)
        expect_value(r, weights, "quantization_config group_0.weights.", weight[i][0], weight[i][1]);
    uint32_t in = out->latent ? out->latent : out->hidden;
    if (in % 32 != 0)
        ns_problems_add(&r->problems, "experts read %" PRIu32 " columns, packed groups need a multiple of 32", in);
    if (out->moe_inter % 32 != 0)
        ns_problems_add(&r->problems, "moe_intermediate_size is %" PRIu32 ", packed groups need a multiple of 32",
                        out->moe_inter);
}

/* ---- what must hold together ------------------------------------------------------------------------------------------- */

static void check_attention(struct reader *r, const struct ns_config *c)
{
    const struct ns_json *v = lookup(r, IN_TEXT, "mla_use_nope");
    bool nope = false;
    if (!v)
        missing(r, IN_TEXT, "mla_use_nope");
    else if (!ns_json_bool(v, &nope) || !nope)
        wrong_type(r, IN_TEXT, "mla_use_nope", v, "true (rotary attention is not defined for this family)");
    v = lookup(r, IN_TEXT, "num_key_value_heads");
    int64_t n;
    if (v && c->n_heads > 0 && (!ns_json_int(v, &n) || n != c->n_heads)) {
        char text[64];
        ns_problems_add(&r->problems,
                        "num_key_value_heads is %s, num_attention_heads is %" PRIu32 ": they must be equal",
                        shown(r, v, text), c->n_heads);
    }
    if (!(c->rms_eps > 0) && (v = lookup(r, IN_TEXT, "rms_norm_eps")) != NULL && ns_json_number(v, &(double){0}))
        wrong_type(r, IN_TEXT, "rms_norm_eps", v, "a number above 0");
    v = lookup(r, IN_LINEAR, "gate_lower_bound");
    if (v && ns_json_number(v, &(double){0}) && !(c->decay_bound < 0))
        wrong_type(r, IN_LINEAR, "gate_lower_bound", v, "a number below 0");
}

static void check_experts(struct reader *r, const struct ns_config *c)
{
    const struct ns_json *v = lookup(r, IN_TEXT, "moe_router_activation_func");
    if (!v)
        missing(r, IN_TEXT, "moe_router_activation_func");
    else if (!is_string(v, "sigmoid"))
        wrong_type(r, IN_TEXT, "moe_router_activation_func", v, "\"sigmoid\"");
    v = lookup(r, IN_TEXT, "topk_method");
    if (v && !is_string(v, "noaux_tc"))
        wrong_type(r, IN_TEXT, "topk_method", v, "\"noaux_tc\"");
    v = lookup(r, IN_TEXT, "routed_scaling_factor");
    if (v && ns_json_number(v, &(double){0}) && !(c->routed_scale > 0))
        wrong_type(r, IN_TEXT, "routed_scaling_factor", v, "a number above 0");
    v = lookup(r, IN_TEXT, "num_nextn_predict_layers");
    int64_t n;
    if (v && (!ns_json_int(v, &n) || n != 0))
        wrong_type(r, IN_TEXT, "num_nextn_predict_layers", v, "0");
    if (c->latent_norm && c->latent == 0)
        ns_problems_add(&r->problems, "latent_moe_use_norm is true, but routed_expert_hidden_size is absent");
    if (c->n_experts == 0 || c->top_k == 0)
        return; /* told already */
    if (c->top_k > c->n_experts)
        ns_problems_add(&r->problems, "num_experts_per_token is %" PRIu32 ", there are only %" PRIu32 " experts",
                        c->top_k, c->n_experts);
    if (c->n_experts % c->n_groups != 0) {
        ns_problems_add(&r->problems,
                        "num_expert_group is %" PRIu32 ": %" PRIu32 " experts do not divide into %" PRIu32 " groups",
                        c->n_groups, c->n_experts, c->n_groups);
        return;
    }
    if (c->topk_groups > c->n_groups)
        ns_problems_add(&r->problems, "topk_group is %" PRIu32 ", there are only %" PRIu32 " groups", c->topk_groups,
                        c->n_groups);
    else if ((uint64_t)c->topk_groups * (c->n_experts / c->n_groups) < c->top_k)
        ns_problems_add(&r->problems, "num_experts_per_token is %" PRIu32 ", %" PRIu32 " groups hold only %" PRIu64,
                        c->top_k, c->topk_groups, (uint64_t)c->topk_groups * (c->n_experts / c->n_groups));
    v = lookup(r, IN_TEXT, "use_grouped_topk");
    bool grouped = true;
    if (v && (!ns_json_bool(v, &grouped) || !grouped) && c->n_groups > 1)
        wrong_type(r, IN_TEXT, "use_grouped_topk", v, "true, because num_expert_group is above 1");
}

/* ---- the two levels ------------------------------------------------------------------------------------------------------ */

static void compare_key(struct reader *r, const struct ns_json *in, const struct ns_json *out, const char *key)
{
    const struct ns_json *a = ns_json_find(in, key), *b = ns_json_find(out, key);
    char ta[64], tb[64];
    if (a && b && !ns_json_equal(a, b))
        ns_problems_add(&r->problems, "%s is %s in text_config and %s at the top level", key, shown(r, a, ta),
                        shown(r, b, tb));
}

static void compare_levels(struct reader *r)
{
    if (!r->root)
        return;
    const struct ns_json *outer = ns_json_find(r->root, "linear_attn_config");
    for (size_t i = 0; i < NS_COUNT(fields); i++) {
        if (fields[i].place == IN_TEXT)
            compare_key(r, r->text, r->root, fields[i].key);
        else
            compare_key(r, r->linear, outer, fields[i].key);
    }
    for (size_t i = 0; i < NS_COUNT(other_keys); i++)
        compare_key(r, r->text, r->root, other_keys[i]);
    for (size_t i = 0; i < NS_COUNT(layer_keys); i++)
        compare_key(r, r->linear, outer, layer_keys[i]);
}

static bool is_listed(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

static bool is_known(enum place place, const char *key)
{
    for (size_t i = 0; i < NS_COUNT(fields); i++)
        if (fields[i].place == place && strcmp(key, fields[i].key) == 0)
            return true;
    if (place == IN_LINEAR)
        return is_listed(key, layer_keys, NS_COUNT(layer_keys));
    return is_listed(key, other_keys, NS_COUNT(other_keys)) || is_listed(key, bookkeeping, NS_COUNT(bookkeeping));
}

static void note_unknown(struct reader *r)
{
    struct ns_text names;
    ns_text_init(&names, r->budget);
    for (int place = IN_TEXT; place <= IN_LINEAR; place++) {
        const struct ns_json *object = place == IN_LINEAR ? r->linear : r->text;
        for (void *it = ns_json_first(object); it; it = ns_json_next(object, it))
            if (!is_known((enum place)place, ns_json_key(it)))
                ns_text_format(&names, "%s%s%.100s", names.n ? ", " : "", prefix_of(r, (enum place)place),
                               ns_json_key(it));
    }
    if (names.n > 0 && ns_text_ok(&names))
        ns_log(NS_LOG_WARN, "config.json: keys that mean nothing here: %.900s", names.data);
    ns_text_fini(&names);
}

/* A token id from the text level, else the top level; the first of a list. */
static int32_t token_id(const struct reader *r, const char *key)
{
    const struct ns_json *v = lookup(r, IN_TEXT, key);
    if (!v && r->root)
        v = ns_json_find(r->root, key);
    if (ns_json_type(v) == NS_JSON_ARRAY)
        v = ns_json_item(v, 0);
    int64_t id;
    return ns_json_int(v, &id) && id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

static uint32_t context_advice(const struct reader *r)
{
    const struct ns_json *v = lookup(r, IN_TEXT, "max_position_embeddings");
    int64_t n;
    if (!v)
        v = lookup(r, IN_TEXT, "model_max_length");
    return ns_json_int(v, &n) && n > 0 && n <= UINT32_MAX ? (uint32_t)n : 0;
}

static enum ns_code read_all(struct reader *r, struct ns_config *c, struct ns_error *err)
{
    if (!r->linear)
        missing(r, IN_TEXT, "linear_attn_config");
    for (size_t i = 0; i < NS_COUNT(fields); i++)
        read_field(r, &fields[i], c);
    if (c->moe_layer_freq == 0)
        c->moe_layer_freq = 1;
    if (c->n_groups == 0)
        c->n_groups = 1;
    if (c->n_groups > 1 && !lookup(r, IN_TEXT, "topk_group"))
        missing(r, IN_TEXT, "topk_group");
    if (c->topk_groups == 0)
        c->topk_groups = 1;
    c->has_decay_bound = lookup(r, IN_LINEAR, "gate_lower_bound") != NULL;
    read_activation(r, c);
    read_quantization(r, c);
    check_attention(r, c);
    check_experts(r, c);
    compare_levels(r);
    c->bos = token_id(r, "bos_token_id");
    c->eos = token_id(r, "eos_token_id");
    c->pad = token_id(r, "pad_token_id");
    c->context_advice = context_advice(r);
    return read_layers(r, c, err);
}

enum ns_code ns_config_parse(const char *text, size_t n, struct ns_budget *budget, struct ns_config *out,
                             struct ns_error *err)
{
    struct ns_json *doc = NULL;
    enum ns_code rc = ns_json_parse(text, n, &doc, err);
    if (rc != NS_OK)
        return rc;
    struct reader r = {.text = doc, .budget = budget};
    struct ns_config c = {.budget = budget};
    ns_problems_init(&r.problems, budget);
    const struct ns_json *inner = ns_json_find(doc, "text_config");
    if (!ns_json_is_null(inner)) {
        r.text = inner;
        r.root = doc;
    }
    const struct ns_json *linear = ns_json_find(r.text, "linear_attn_config");
    if (ns_json_type(linear) == NS_JSON_OBJECT)
        r.linear = linear;
    if (ns_json_type(r.text) != NS_JSON_OBJECT)
        ns_problems_add(&r.problems, "%s is not an object", r.root ? "text_config" : "the file");
    else
        rc = read_all(&r, &c, err);
    if (rc == NS_OK && r.no_memory)
        rc = ns_error_set(err, NS_BUDGET, "no memory to check the values");
    enum ns_code found = ns_problems_close(&r.problems, NS_INPUT, "", err);
    if (rc == NS_OK)
        rc = found;
    if (rc == NS_OK) {
        note_unknown(&r);
        *out = c;
    } else {
        ns_config_fini(&c);
    }
    ns_json_free(doc);
    return rc;
}

enum ns_code ns_config_read(const char *dir, struct ns_budget *budget, struct ns_config *out, struct ns_error *err)
{
    char path[4096];
    char *text = NULL;
    size_t n = 0;
    enum ns_code rc = ns_path_join(dir, "config.json", path, err);
    if (rc == NS_OK)
        rc = ns_file_slurp(path, MAX_CONFIG, budget, &text, &n, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_config_parse(text, n, budget, out, err);
    ns_budget_give(budget, text);
    return rc == NS_OK ? NS_OK : ns_error_wrap(err, rc, "%s", path);
}

void ns_config_fini(struct ns_config *config)
{
    if (config->budget)
        ns_budget_give(config->budget, config->is_kda);
    memset(config, 0, sizeof *config);
}
