/* config_test.c - the model's numbers: what is read, and everything that is refused. */
#include "checkpoint.h"

#include "json/json.h"

static struct ns_budget budget;

static int setup(void **state)
{
    (void)state;
    ns_json_init();
    ns_budget_init(&budget, "test", 64u << 20);
    return 0;
}

static int no_leak(void **state)
{
    (void)state;
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

static char *config_of(const char *fixture)
{
    char path[400];
    snprintf(path, sizeof path, "%s/fixtures/%s/config.json", NS_TEST_DATA, fixture);
    return whole_file(path, NULL);
}

static void parse_ok(const char *text, struct ns_config *c)
{
    struct ns_error err = {0};
    if (ns_config_parse(text, strlen(text), &budget, c, &err) != NS_OK)
        fail_msg("%s", err.message);
}

/* text must be refused with both words in the message. Frees text. */
static void refused(char *text, const char *word, const char *word2)
{
    struct ns_config c = {0};
    struct ns_error err = {0};
    enum ns_code rc = ns_config_parse(text, strlen(text), &budget, &c, &err);
    if (rc != NS_INPUT)
        fail_msg("%s, expected '%s'", ns_code_name(rc), word);
    if (!strstr(err.message, word) || (word2 && !strstr(err.message, word2)))
        fail_msg("'%s' and '%s' expected in: %s", word, word2 ? word2 : "", err.message);
    free(text);
}

static void reads_k3(void **state)
{
    (void)state;
    struct ns_config c = {0};
    char *text = config_of("k3-tiny");
    parse_ok(text, &c);
    free(text);
    assert_int_equal(c.vocab, 768);
    assert_int_equal(c.hidden, 128);
    assert_int_equal(c.n_layers, 13);
    assert_true(c.rms_eps == 1e-5f);
    assert_int_equal(c.act, NS_ACT_SITU);
    assert_true(c.situ_beta == 4.0f && c.situ_linear_beta == 25.0f);
    assert_int_equal(c.dense_inter, 32);
    assert_int_equal(c.first_dense, 1);
    assert_int_equal(c.n_heads, 3);
    assert_int_equal(c.q_lora, 24);
    assert_int_equal(c.kv_lora, 16);
    assert_int_equal(c.d_nope, 16);
    assert_int_equal(c.d_rope, 8);
    assert_int_equal(c.d_v, 16);
    assert_true(c.mla_gate && c.kda_full_rank_gate && c.latent_norm && c.renormalize && c.mxfp4_experts);
    assert_int_equal(c.kda_heads, 2);
    assert_int_equal(c.kda_dim, 16);
    assert_int_equal(c.conv_kernel, 4);
    assert_true(c.has_decay_bound && c.decay_bound == -5.0f);
    assert_int_equal(c.n_experts, 16);
    assert_int_equal(c.top_k, 4); /* not the sampling default top_k: 50 */
    assert_int_equal(c.n_shared, 2);
    assert_int_equal(c.moe_inter, 32);
    assert_int_equal(c.latent, 64);
    assert_true(c.routed_scale == 1.0f);
    assert_int_equal(c.n_groups, 1);
    assert_int_equal(c.topk_groups, 1);
    assert_int_equal(c.attn_res_block, 3);
    assert_false(c.tied_embeddings);
    assert_int_equal(c.bos, 512);
    assert_int_equal(c.eos, 514);
    assert_int_equal(c.pad, 767);
    assert_int_equal(c.context_advice, 1048576);
    /* layers 4, 8, 12 and 13 of the list, which counts from one */
    for (uint32_t i = 0; i < 13; i++)
        assert_int_equal(c.is_kda[i], i != 3 && i != 7 && i != 11 && i != 12);
    assert_false(ns_config_is_moe(&c, 0));
    assert_true(ns_config_is_moe(&c, 1));
    ns_config_fini(&c);
}

static void reads_kimi_linear(void **state)
{
    (void)state;
    struct ns_config c = {0};
    char *text = config_of("kimi-linear-tiny");
    parse_ok(text, &c);
    free(text);
    assert_int_equal(c.act, NS_ACT_SILU);
    assert_true(c.situ_beta == 0 && c.situ_linear_beta == 0);
    assert_int_equal(c.q_lora, 0);
    assert_false(c.mla_gate || c.kda_full_rank_gate || c.has_decay_bound || c.latent_norm || c.mxfp4_experts);
    assert_int_equal(c.latent, 0);
    assert_int_equal(c.attn_res_block, 0);
    assert_true(c.routed_scale == 2.446f);
    assert_int_equal(c.context_advice, 1048576);
    ns_config_fini(&c);
}

static void reads_from_a_directory(void **state)
{
    (void)state;
    struct ns_config c = {0};
    struct ns_error err = {0};
    assert_int_equal(ns_config_read(NS_SOURCE_DIR "/jobs/demo", &budget, &c, &err), NS_OK);
    assert_int_equal(c.n_experts, 40);
    ns_config_fini(&c);
    assert_int_equal(ns_config_read(NS_SOURCE_DIR "/jobs", &budget, &c, &err), NS_NOINPUT);
}

static const char *const required[] = {
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rms_norm_eps",
    "hidden_act",
    "intermediate_size",
    "num_experts",
    "num_experts_per_token",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "linear_attn_config",
    "num_heads",
    "head_dim",
    "short_conv_kernel_size",
    "kda_layers",
    "full_attn_layers",
    "num_shared_experts",
    "moe_renormalize",
    "routed_scaling_factor",
    "moe_router_activation_func",
    "mla_use_nope",
    "activation_situ_beta",
};

/* Renaming the key makes it missing; both families, except for what only one of them has. */
static void every_required_field_is_required(void **state)
{
    (void)state;
    for (size_t i = 0; i < NS_COUNT(required); i++) {
        char from[64], to[64], said[80];
        snprintf(from, sizeof from, "\"%s\":", required[i]);
        snprintf(to, sizeof to, "\"x_%s\":", required[i]);
        snprintf(said, sizeof said, "%s is missing", required[i]);
        refused(replaced(config_of("k3-tiny"), from, to), said, NULL);
        if (strcmp(required[i], "activation_situ_beta") == 0)
            continue;
        char *flat = config_of("kimi-linear-tiny");
        if (strcmp(required[i], "head_dim") == 0) /* the top level has an unrelated one, which comes first */
            flat = replaced(flat, " \"head_dim\": 32,\n \"hidden_act\"", " \"hidden_act\"");
        refused(replaced(flat, from, to), said, NULL);
    }
}

static void null_is_missing(void **state)
{
    (void)state;
    refused(replaced(config_of("k3-tiny"), "\"hidden_size\": 128", "\"hidden_size\": null"), "hidden_size is null",
            NULL);
    refused(replaced(config_of("k3-tiny"), "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": null"), "rms_norm_eps is null",
            NULL);
}

static void wrong_values_are_refused(void **state)
{
    (void)state;

    static const struct {
        const char *from, *to, *said, *said2;
    } edit[] = {
        {"\"hidden_size\": 128", "\"hidden_size\": \"128\"", "hidden_size is \"128\"", NULL},
        {"\"hidden_size\": 128", "\"hidden_size\": 0", "hidden_size is 0", NULL},
        {"\"hidden_size\": 128", "\"hidden_size\": -128", "hidden_size is -128", NULL},
        {"\"hidden_size\": 128", "\"hidden_size\": 128.5", "hidden_size is 128.5", NULL},
        {"\"hidden_size\": 128", "\"hidden_size\": 4294967424", "hidden_size is 4294967424", NULL},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0", "rms_norm_eps is 0", NULL},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"x\"", "rms_norm_eps is \"x\"", NULL},
        {"\"hidden_act\": \"situ\"", "\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\"", NULL},
        {"\"activation_situ_beta\": 4.0", "\"activation_situ_beta\": 0", "activation_situ_beta is 0", NULL},
        {"\"activation_situ_linear_beta\": 25.0", "\"activation_situ_linear_beta\": -1", "linear_beta is -1", NULL},
        {"\"mla_use_nope\": true", "\"mla_use_nope\": false", "mla_use_nope is false", "rotary"},
        {"\"num_key_value_heads\": 3", "\"num_key_value_heads\": 1", "num_key_value_heads is 1",
         "num_attention_heads is 3"},
        {"\"moe_router_activation_func\": \"sigmoid\"", "\"moe_router_activation_func\": \"softmax\"",
         "moe_router_activation_func is \"softmax\"", NULL},
        {"\"num_shared_experts\": 2", "\"num_shared_experts\": -1", "num_shared_experts is -1", NULL},
        {"\"topk_method\": \"noaux_tc\"", "\"topk_method\": \"greedy\"", "topk_method is \"greedy\"", NULL},
        {"\"num_experts_per_token\": 4", "\"num_experts_per_token\": 17", "17", "16 experts"},
        {"\"num_expert_group\": 1", "\"num_expert_group\": 3", "num_expert_group is 3",
         "16 experts do not divide into 3 groups"},
        {"\"topk_group\": 1", "\"topk_group\": 2", "topk_group is 2", "1 groups"},
        {"\"num_expert_group\": 1", "\"num_expert_group\": 8", "1 groups hold only 2", NULL},
        {"\"attn_res_block_size\": 3", "\"attn_res_block_size\": 0", "attn_res_block_size is 0", NULL},
        {"\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": 0", "gate_lower_bound is 0", NULL},
        {"\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1", "num_nextn_predict_layers is 1", NULL},
        {"\"routed_expert_hidden_size\": 64", "\"routed_expert_hidden_size\": null", "latent_moe_use_norm is true",
         NULL},
        {"\"routed_expert_hidden_size\": 64", "\"routed_expert_hidden_size\": 48", "48 columns", "multiple of 32"},
        {"\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 40", "moe_intermediate_size is 40", NULL},
        {"\"num_bits\": 4", "\"num_bits\": 8", "num_bits is 8, 4 was expected", NULL},
        {"\"group_size\": 32", "\"group_size\": 16", "group_size is 16, 32 was expected", NULL},
        {"\"dynamic\": false", "\"dynamic\": true", "dynamic is true", NULL},
        {"\"symmetric\": true", "\"symmetrix\": true", "symmetric is missing", NULL},
        {"\"actorder\": null", "\"actorder\": \"group\"", "actorder is \"group\", null was expected", NULL},
        {"\"input_activations\": null", "\"input_activations\": {}", "input_activations is {}", NULL},
        {"\"quant_method\": \"compressed-tensors\"", "\"quant_method\": \"fp8\"", "quant_method is \"fp8\"", NULL},
        {"\"quantization_status\": \"compressed\"", "\"quantization_status\": \"frozen\"", "quantization_status is",
         NULL},
        {"\"scale_dtype\": \"torch.uint8\"", "\"scale_dtype\": \"torch.bfloat16\"", "scale_dtype is", "torch.uint8"},
        {"\"group_0\"", "\"group_1\"", "group_0 was expected", NULL},
        {"\"moe_renormalize\": true", "\"moe_renormalize\": 1", "moe_renormalize is 1, true or false", NULL},
        {"\"routed_scaling_factor\": 1.0", "\"routed_scaling_factor\": 0.0", "routed_scaling_factor is 0.0", NULL},
        {"\"tie_word_embeddings\": false,\n  \"top_k\"", "\"tie_word_embeddings\": true,\n  \"top_k\"",
         "tie_word_embeddings is true in text_config and false at the top level", NULL},
        {"\"text_config\": {", "\"text_config\": 7, \"other\": {", "text_config is not an object", NULL},
        {"\"vocab_size\": 768", "\"vocab_size\": 768, \"vocab_size\": 769", "duplicate", NULL},
    };

    for (size_t i = 0; i < NS_COUNT(edit); i++)
        refused(replaced(config_of("k3-tiny"), edit[i].from, edit[i].to), edit[i].said, edit[i].said2);
}

static void groups_that_fit_are_accepted(void **state)
{
    (void)state;
    struct ns_config c = {0};
    char *text = replaced(config_of("k3-tiny"), "\"num_expert_group\": 1", "\"num_expert_group\": 4");
    text = replaced(text, "\"topk_group\": 1", "\"topk_group\": 2");
    parse_ok(text, &c);
    assert_int_equal(c.n_groups, 4);
    assert_int_equal(c.topk_groups, 2);
    ns_config_fini(&c);
    refused(replaced(text, "\"topk_group\"", "\"x\""), "topk_group is missing", NULL);
}

static void layer_lists_must_partition(void **state)
{
    (void)state;
    static const char four_eight[] = "    4,\n    8,\n";
    refused(replaced(config_of("k3-tiny"), four_eight, "    8,\n"), "both lack layer 4", NULL);
    refused(replaced(config_of("k3-tiny"), four_eight, "    4,\n    5,\n    8,\n"), "layer 5 more than once", NULL);
    refused(replaced(config_of("k3-tiny"), four_eight, "    4,\n    4,\n    8,\n"), "layer 4 more than once", NULL);
    refused(replaced(config_of("k3-tiny"), four_eight, "    4,\n    0,\n    8,\n"), "names layer 0", "1 to 13");
    refused(replaced(config_of("k3-tiny"), four_eight, "    4,\n    14,\n    8,\n"), "names layer 14", NULL);
    refused(replaced(config_of("k3-tiny"), four_eight, "    4,\n    \"8\",\n"), "names layer \"8\"", "lack layer 8");
    refused(replaced(config_of("k3-tiny"), "\"num_hidden_layers\": 13", "\"num_hidden_layers\": 16"),
            "both lack layer 14-16", NULL);
    refused(replaced(config_of("k3-tiny"), "\"num_hidden_layers\": 13", "\"num_hidden_layers\": 1000000"),
            "num_hidden_layers is 1000000, at most 65536", NULL);
}

static void all_problems_come_in_one_message(void **state)
{
    (void)state;
    char *text = replaced(config_of("k3-tiny"), "\"hidden_size\": 128", "\"hidden_size\": 0");
    text = replaced(text, "\"num_experts\": 16", "\"x\": 16");
    text = replaced(text, "\"mla_use_nope\": true", "\"mla_use_nope\": false");
    struct ns_config c = {0};
    struct ns_error err = {0};
    assert_int_equal(ns_config_parse(text, strlen(text), &budget, &c, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "3 problems:\n"));
    assert_non_null(strstr(err.message, "text_config.hidden_size is 0"));
    assert_non_null(strstr(err.message, "text_config.num_experts is missing"));
    assert_non_null(strstr(err.message, "text_config.mla_use_nope is false"));
    free(text);
    /* nothing at all: every required field is named */
    memset(&err, 0, sizeof err);
    assert_int_equal(ns_config_parse("{}", 2, &budget, &c, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "vocab_size is missing"));
    assert_non_null(strstr(err.message, "linear_attn_config is missing"));
}

/* The text_config of a nested file, alone. */
static char *flattened(void)
{
    char *text = config_of("k3-tiny");
    struct ns_json *doc = NULL;
    assert_int_equal(ns_json_parse(text, strlen(text), &doc, NULL), NS_OK);
    struct ns_text flat;
    struct ns_json_writer w;
    ns_text_init(&flat, &budget);
    ns_json_begin(&w, &flat);
    ns_json_put_value(&w, ns_json_find(doc, "text_config"));
    char *copy = strdup(flat.data);
    assert_non_null(copy);
    ns_text_fini(&flat);
    ns_json_free(doc);
    free(text);
    return copy;
}

static void c37_nested_and_flat_are_equal(void **state)
{
    (void)state;
    struct ns_config nested = {0}, flat = {0};
    char *a = config_of("k3-tiny"), *b = flattened();
    parse_ok(a, &nested);
    parse_ok(b, &flat);
    assert_memory_equal(nested.is_kda, flat.is_kda, nested.n_layers * sizeof *flat.is_kda);
    ns_budget_give(&budget, nested.is_kda);
    ns_budget_give(&budget, flat.is_kda);
    nested.is_kda = flat.is_kda = NULL;
    assert_memory_equal(&nested, &flat, sizeof flat);
    free(a);
    free(b);
}

static void c37_disagreement_names_key_and_both_values(void **state)
{
    (void)state;
    refused(replaced(config_of("k3-tiny"), "\"text_config\": {", "\"num_hidden_layers\": 14, \"text_config\": {"),
            "num_hidden_layers is 13 in text_config and 14 at the top level", NULL);
    refused(replaced(config_of("k3-tiny"), "\"text_config\": {",
                     "\"linear_attn_config\": {\"num_heads\": 3}, \"text_config\": {"),
            "num_heads is 2 in text_config and 3 at the top level", NULL);
    refused(replaced(config_of("k3-tiny"), "\"text_config\": {",
                     "\"linear_attn_config\": {\"full_attn_layers\": [4, 8, 12]}, \"text_config\": {"),
            "full_attn_layers is [4,8,12,13] in text_config and [4,8,12] at the top level", NULL);
    struct ns_config c = {0}; /* both present and equal is fine */
    char *text = replaced(config_of("k3-tiny"), "\"text_config\": {", "\"num_hidden_layers\": 13, \"text_config\": {");
    parse_ok(text, &c);
    ns_config_fini(&c);
    free(text);
}

static void unknown_keys_are_noted_once(void **state)
{
    (void)state;
    struct heard heard = {.word = "frobnicate"};
    struct ns_config c = {0};
    ns_log_set_sink(hear, &heard, NS_LOG_WARN);
    char *text = replaced(config_of("k3-tiny"), "\"hidden_size\"", "\"frobnicate\": 1, \"hidden_size\"");
    text = replaced(text, "\"gate_lower_bound\"", "\"frobnicate_too\": 2, \"gate_lower_bound\"");
    parse_ok(text, &c);
    assert_int_equal(heard.n, 1);
    ns_config_fini(&c);
    free(text);
    static const char *const fixture[] = {"k3-tiny", "k3-odd", "k3-realhead", "kimi-linear-tiny"};
    heard = (struct heard){.word = ""};
    for (size_t i = 0; i < NS_COUNT(fixture); i++) {
        text = config_of(fixture[i]);
        parse_ok(text, &c);
        ns_config_fini(&c);
        free(text);
    }
    assert_int_equal(heard.n, 0); /* bookkeeping keys are no news */
    ns_log_set_sink(NULL, NULL, NS_LOG_WARN);
}

static void parse_survives_every_failed_allocation(void **state)
{
    (void)state;
    char *text = config_of("k3-tiny");
    enum ns_code rc = NS_BUDGET;
    uint64_t nth = 1;
    for (; rc != NS_OK; nth += nth < 40 ? 1 : 7) {
        struct ns_config c = {0};
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = ns_config_parse(text, strlen(text), &budget, &c, NULL);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        ns_config_fini(&c);
        assert_int_equal(ns_budget_used(&budget), 0);
    }
    assert_true(nth > 40);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(reads_k3, no_leak),
        cmocka_unit_test_teardown(reads_kimi_linear, no_leak),
        cmocka_unit_test_teardown(reads_from_a_directory, no_leak),
        cmocka_unit_test_teardown(every_required_field_is_required, no_leak),
        cmocka_unit_test_teardown(null_is_missing, no_leak),
        cmocka_unit_test_teardown(wrong_values_are_refused, no_leak),
        cmocka_unit_test_teardown(groups_that_fit_are_accepted, no_leak),
        cmocka_unit_test_teardown(layer_lists_must_partition, no_leak),
        cmocka_unit_test_teardown(all_problems_come_in_one_message, no_leak),
        cmocka_unit_test_teardown(c37_nested_and_flat_are_equal, no_leak),
        cmocka_unit_test_teardown(c37_disagreement_names_key_and_both_values, no_leak),
        cmocka_unit_test_teardown(unknown_keys_are_noted_once, no_leak),
        cmocka_unit_test_teardown(parse_survives_every_failed_allocation, no_leak),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
