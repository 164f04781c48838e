/* census_test.c - a checkpoint fits its config, or the refusal says what does not. */
#include "checkpoint.h"

#include "json/json.h"

static struct ns_budget budget;

static int setup(void **state)
{
    (void)state;
    ns_json_init();
    ns_budget_init(&budget, "test", 256u << 20);
    return 0;
}

static int no_leak(void **state)
{
    (void)state;
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

enum { K3_TINY, K3_ODD, K3_REALHEAD, KIMI_LINEAR, DEMO };

static const char *const fixture[] = {
    [K3_TINY] = NS_TEST_DATA "/fixtures/k3-tiny",
    [K3_ODD] = NS_TEST_DATA "/fixtures/k3-odd",
    [K3_REALHEAD] = NS_TEST_DATA "/fixtures/k3-realhead",
    [KIMI_LINEAR] = NS_TEST_DATA "/fixtures/kimi-linear-tiny",
    [DEMO] = NS_SOURCE_DIR "/jobs/demo",
};

/* The census of the tensors m under a config text; the message goes to *err. */
static enum ns_code census(const struct made *m, const char *config_text, struct ns_error *err)
{
    struct scratch s;
    struct ns_config c = {0};
    struct ns_shards *shards = NULL;
    memset(err, 0, sizeof *err);
    scratch_open(&s);
    made_write(m, 0, m->n, scratch_path(&s, "model.safetensors"));
    enum ns_code rc = ns_config_parse(config_text, strlen(config_text), &budget, &c, err);
    if (rc != NS_OK)
        fail_msg("config: %s", err->message);
    rc = ns_shards_open(s.dir, &budget, &shards, err);
    if (rc != NS_OK)
        fail_msg("shards: %s", err->message);
    ns_config_settle(&c, shards);
    rc = ns_census_check(&c, shards, err);
    ns_shards_close(shards);
    ns_config_fini(&c);
    unlink(s.path);
    assert_int_equal(rmdir(s.dir), 0);
    return rc;
}

static char *config_of(size_t i)
{
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", fixture[i]);
    return whole_file(path, NULL);
}

static void expect(const struct made *m, const char *config, const char *word, const char *word2)
{
    struct ns_error err;
    enum ns_code rc = census(m, config, &err);
    if (rc != NS_INPUT)
        fail_msg("%s, expected '%s'", ns_code_name(rc), word);
    if (!strstr(err.message, word) || (word2 && !strstr(err.message, word2)))
        fail_msg("'%s' and '%s' expected in: %s", word, word2 ? word2 : "", err.message);
}

static void every_fixture_passes(void **state)
{
    (void)state;
    for (size_t i = 0; i < NS_COUNT(fixture); i++) {
        struct ns_config c = {0};
        struct ns_shards *shards = NULL;
        struct ns_error err = {0};
        if (ns_config_read(fixture[i], &budget, &c, &err) != NS_OK ||
            ns_shards_open(fixture[i], &budget, &shards, &err) != NS_OK || ns_census_check(&c, shards, &err) != NS_OK)
            fail_msg("%s: %s", fixture[i], err.message);
        assert_string_equal(ns_shards_prefix(shards), i == KIMI_LINEAR ? "" : "language_model.");
        ns_shards_close(shards);
        ns_config_fini(&c);
    }
}

/* Experts are alike: one of them stands for all. */
static bool is_spare(const char *name)
{
    return strstr(name, ".experts.") && (!strstr(name, ".experts.7.") || !strstr(name, "layers.2."));
}

static void every_tensor_is_needed(void **state)
{
    (void)state;
    static const size_t which[] = {K3_TINY, KIMI_LINEAR};
    for (size_t k = 0; k < NS_COUNT(which); k++) {
        struct made m = {0};
        char *config = config_of(which[k]);
        struct ns_error err;
        made_load(&m, fixture[which[k]], &budget);
        assert_int_equal(census(&m, config, &err), NS_OK);
        for (size_t i = 0; i < m.n; i++) {
            if (is_spare(m.t[i].name))
                continue;
            struct made_tensor kept = m.t[i];
            m.t[i] = m.t[--m.n]; /* without i */
            if (census(&m, config, &err) != NS_INPUT)
                fail_msg("nobody missed %s", kept.name);
            m.t[m.n++] = m.t[i];
            m.t[i] = kept;
        }
        assert_int_equal(census(&m, config, &err), NS_OK);
        made_free(&m);
        free(config);
    }
}

static void every_shape_is_checked(void **state)
{
    (void)state;
    static const size_t which[] = {K3_TINY, KIMI_LINEAR};
    for (size_t k = 0; k < NS_COUNT(which); k++) {
        struct made m = {0};
        char *config = config_of(which[k]);
        struct ns_error err;
        made_load(&m, fixture[which[k]], &budget);
        for (size_t i = 0; i < m.n; i++) {
            struct made_tensor kept = m.t[i], *t = &m.t[i];
            if (is_spare(t->name))
                continue;
            if (t->rank == 2 && t->dim[0] != t->dim[1]) { /* transposed: the same bytes */
                t->dim[0] = kept.dim[1];
                t->dim[1] = kept.dim[0];
                if (census(&m, config, &err) != NS_INPUT || !strstr(err.message, "has shape ["))
                    fail_msg("%s was accepted transposed: %s", t->name, err.message);
                *t = kept;
            }
            /* the right shape in a type of the same size that nobody can compute with */
            const char *wrong = strcmp(t->dtype, "BF16") == 0 ? "I16" : strcmp(t->dtype, "U8") == 0 ? "I8" : "I32";
            strcpy(t->dtype, wrong);
            if (census(&m, config, &err) != NS_INPUT || !strstr(err.message, "supported: "))
                fail_msg("%s was accepted as %s: %s", t->name, wrong, err.message);
            *t = kept;
        }
        made_free(&m);
        free(config);
    }
}

static void c34_missing_layers_are_ranges(void **state)
{
    (void)state;
    struct made m = {0};
    struct ns_error err;
    char *config = config_of(KIMI_LINEAR); /* six layers */
    made_load(&m, fixture[KIMI_LINEAR], &budget);
    assert_true(made_drop(&m, "model.layers.2.") > 0);
    assert_true(made_drop(&m, "model.layers.4.") > 0);
    assert_true(made_drop(&m, "model.layers.5.") > 0);
    assert_int_equal(made_drop(&m, "model.norm.weight"), 1);
    assert_int_equal(census(&m, config, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "incomplete conversion: layers 2, 4-5 and the final norm are missing"));
    assert_null(strstr(err.message, "problems")); /* one cause, one line */
    assert_int_equal(made_drop(&m, "lm_head.weight"), 1);
    expect(&m, config, "incomplete conversion: layers 2, 4-5, the final norm and the head (lm_head) are missing", NULL);
    made_free(&m);
    free(config);
}

static void missing_experts_are_ranges(void **state)
{
    (void)state;
    struct made m = {0};
    char *config = config_of(K3_TINY);
    made_load(&m, fixture[K3_TINY], &budget);
    made_drop(&m, "layers.5.block_sparse_moe.experts.3.w1.weight_scale");
    made_drop(&m, "layers.5.block_sparse_moe.experts.4.w1.weight_scale");
    made_drop(&m, "layers.5.block_sparse_moe.experts.9.w1.weight_scale");
    expect(&m, config, "layer 5: experts 3-4, 9 lack w1.weight_scale", NULL);
    made_drop(&m, "layers.6.block_sparse_moe.experts.");
    expect(&m, config, "layer 6: all 16 experts are missing", "layer 5: experts 3-4, 9");
    made_free(&m);
    free(config);
}

static void c38_wrong_type_names_found_and_supported(void **state)
{
    (void)state;
    struct made m = {0};
    struct ns_error err;
    char *config = config_of(K3_TINY);
    made_load(&m, fixture[K3_TINY], &budget);
    struct made_tensor *embed = made_find(&m, "embed_tokens"), *norm = made_find(&m, "layers.3.input_layernorm");
    strcpy(embed->dtype, "U8");
    embed->bytes /= 2;
    strcpy(norm->dtype, "F64");
    norm->bytes *= 4;
    assert_int_equal(census(&m, config, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "2 problems"));
    assert_non_null(strstr(err.message, "language_model.model.embed_tokens.weight is stored as U8, supported: BF16"));
    assert_non_null(strstr(
        err.message, "language_model.model.layers.3.input_layernorm.weight is stored as F64, supported: BF16 or F32"));
    made_free(&m);
    free(config);
}

/* The same elements in another number of dimensions. */
static void ranks_are_checked(void **state)
{
    (void)state;
    struct made m = {0};
    char *config = config_of(K3_TINY);
    made_load(&m, fixture[K3_TINY], &budget);
    struct made_tensor *norm = made_find(&m, "layers.3.input_layernorm");
    norm->rank = 2;
    norm->dim[1] = 1;
    expect(&m, config, "input_layernorm.weight has shape [128, 1], the config calls for [128]", NULL);
    norm->rank = 1;
    struct made_tensor *mix = made_find(&m, "layers.3.mlp_res_proj");
    mix->rank = 1;
    mix->dim[0] = 128;
    expect(&m, config, "mlp_res_proj.weight has shape [128], the config calls for [1, 128]", NULL);
    made_free(&m);
    free(config);
}

/* A matrix in F32 is refused, a vector in either type is fine: that is what the arithmetic reads. */
static void vectors_may_be_wider_than_matrices(void **state)
{
    (void)state;
    struct made m = {0};
    struct ns_error err;
    char *config = config_of(K3_TINY);
    made_load(&m, fixture[K3_TINY], &budget);
    static const char *const vector[] = {"layers.3.input_layernorm", "mlp_res_proj", "output_attn_res_proj",
                                         "model.norm"};
    for (size_t i = 0; i < NS_COUNT(vector); i++) {
        struct made_tensor *t = made_find(&m, vector[i]);
        assert_string_equal(t->dtype, "BF16");
        strcpy(t->dtype, "F32");
        t->bytes *= 2;
    }
    struct made_tensor *conv = made_find(&m, "q_conv1d");
    assert_string_equal(conv->dtype, "F32");
    strcpy(conv->dtype, "BF16");
    conv->bytes /= 2;
    assert_int_equal(census(&m, config, &err), NS_OK);
    struct made_tensor *q = made_find(&m, "layers.0.self_attn.q_proj");
    strcpy(q->dtype, "F32");
    q->bytes *= 2;
    expect(&m, config, "layers.0.self_attn.q_proj.weight is stored as F32, supported: BF16", NULL);
    made_free(&m);
    free(config);
}

/* C31, second half: a type nobody knows on a tensor that is needed. */
static void c31_unknown_type_on_a_needed_tensor(void **state)
{
    (void)state;
    struct made m = {0};
    char *config = config_of(K3_TINY);
    made_load(&m, fixture[K3_TINY], &budget);
    strcpy(made_find(&m, "embed_tokens")->dtype, "F4_X");
    expect(&m, config, "embed_tokens.weight is stored as F4_X, supported: BF16", NULL);
    made_free(&m);
    free(config);
}

static void c40_irregular_last_layers(void **state)
{
    (void)state;
    struct made m = {0};
    struct ns_error err;
    /* the fixture has full attention at 3, 7, 11 and 12: a stride of four gets the last layer wrong */
    char *config = config_of(K3_TINY);
    made_load(&m, fixture[K3_TINY], &budget);
    config = replaced(config, "    12,\n    13\n", "    12\n");
    config = replaced(config, "    10,\n    11\n", "    10,\n    11,\n    13\n");
    expect(&m, config, "layer 12 is KDA in the config, its tensors are full attention", NULL);
    assert_int_equal(census(&m, config, &err), NS_INPUT);
    assert_null(strstr(err.message, "problems")); /* and nothing else about that layer */
    free(config);
    /* layer 0 is dense; a config that makes two layers dense disagrees */
    config = replaced(config_of(K3_TINY), "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2");
    expect(&m, config, "layers 1 lack mlp.gate_proj.weight", "layers.1.block_sparse_moe");
    free(config);
    made_free(&m);
}

/* Switch and tensors must agree, in both directions (k3-tiny has all of these switched on). */
static void switches_and_tensors_must_agree(void **state)
{
    (void)state;

    static const struct {
        const char *from, *to; /* switches it off in the config */
        const char *said;      /* then the tensors are left over */
        const char *drop[4];   /* or the tensors are gone */
        const char *lacking;
    } s[] = {
        {"\"latent_moe_use_norm\": true",
         "\"latent_moe_use_norm\": false",
         "latent_moe_use_norm is not true",
         {"routed_expert_norm"},
         "asked for by the config's latent_moe_use_norm"},
        {"\"mla_use_output_gate\": true",
         "\"mla_use_output_gate\": false",
         "mla_use_output_gate",
         {"layers.3.self_attn.g_proj", "layers.7.self_attn.g_proj", "layers.11.self_attn.g_proj",
          "layers.12.self_attn.g_proj"},
         "layers 3, 7, 11-12 lack self_attn.g_proj.weight (asked for by the config's mla_use_output_gate)"},
        {"\"attn_res_block_size\": 3",
         "\"attn_res_block_size\": null",
         "attn_res_block_size is absent",
         {"_res_norm", "_res_proj"},
         "layers 0-12 lack self_attention_res_norm.weight"},
        {"\"q_lora_rank\": 24",
         "\"q_lora_rank\": null",
         "q_lora_rank is absent",
         {".q_a_", ".q_b_"},
         "lack self_attn.q_a_proj.weight"},
        {"\"use_full_rank_gate\": true",
         "\"use_full_rank_gate\": false",
         "use_full_rank_gate is not true",
         {"layers.0.self_attn.g_proj"},
         "layers 0 lack self_attn.g_proj.weight (asked for by the config's use_full_rank_gate)"},
        {"\"num_shared_experts\": 2",
         "\"num_shared_experts\": 0",
         "num_shared_experts is 0",
         {"layers.1.block_sparse_moe.shared_experts"},
         "layers 1 lack block_sparse_moe.shared_experts.gate_proj.weight (asked for by the config's "
         "num_shared_experts)"},
    };

    for (size_t i = 0; i < NS_COUNT(s); i++) {
        struct made m = {0};
        made_load(&m, fixture[K3_TINY], &budget);
        char *config = replaced(config_of(K3_TINY), s[i].from, s[i].to);
        expect(&m, config, s[i].said, NULL);
        free(config);
        config = config_of(K3_TINY);
        for (size_t d = 0; d < NS_COUNT(s[i].drop) && s[i].drop[d]; d++)
            assert_true(made_drop(&m, s[i].drop[d]) > 0);
        expect(&m, config, s[i].lacking, NULL);
        free(config);
        made_free(&m);
    }
}

static void latent_and_quantization_must_agree(void **state)
{
    (void)state;
    struct made m = {0};
    made_load(&m, fixture[K3_TINY], &budget);
    char *config = replaced(config_of(K3_TINY), "\"latent_moe_use_norm\": true", "\"latent_moe_use_norm\": false");
    config = replaced(config, "\"routed_expert_hidden_size\": 64", "\"routed_expert_hidden_size\": null");
    expect(&m, config, "routed_expert_hidden_size is absent", NULL);
    free(config);
    config = replaced(config_of(K3_TINY), "\"quantization_config\"", "\"x\"");
    expect(&m, config, "quantization_config is absent", "all 16 experts are missing");
    free(config);
    made_free(&m);
    made_load(&m, fixture[KIMI_LINEAR], &budget);
    config = replaced(config_of(KIMI_LINEAR), "\"hidden_size\"", "\"routed_expert_hidden_size\": 32, \"hidden_size\"");
    expect(&m, config, "lack block_sparse_moe.routed_expert_down_proj.weight", NULL);
    free(config);
    config = replaced(config_of(KIMI_LINEAR), "\"num_heads\": 2", "\"num_heads\": 3");
    expect(&m, config, "A_log has 2 elements, the config calls for 3", NULL);
    free(config);
    made_free(&m);
}

/* A quantization_config beside plain experts: the names decide. */
static void plain_experts_may_have_the_block(void **state)
{
    (void)state;
    static const char block[] =
        "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\", "
        "\"quantization_status\": \"compressed\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, "
        "\"type\": \"float\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32, "
        "\"scale_dtype\": \"torch.uint8\", \"dynamic\": false}}}}, \"hidden_size\"";
    struct made m = {0};
    struct ns_error err;
    made_load(&m, fixture[KIMI_LINEAR], &budget);
    char *config = replaced(config_of(KIMI_LINEAR), "\"hidden_size\"", block);
    assert_int_equal(census(&m, config, &err), NS_OK);
    assert_int_equal(made_drop(&m, "layers.2.block_sparse_moe.experts.0.w1."), 1);
    expect(&m, config, "layer 2: experts 0 lack w1.weight", NULL);
    free(config);
    made_free(&m);
}

static void tied_head_must_agree(void **state)
{
    (void)state;
    struct made m = {0};
    struct ns_error err;
    made_load(&m, fixture[KIMI_LINEAR], &budget);
    char *tied = replaced(config_of(KIMI_LINEAR), "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    expect(&m, tied, "tie_word_embeddings is true, but lm_head.weight exists", NULL);
    assert_int_equal(made_drop(&m, "lm_head"), 1);
    assert_int_equal(census(&m, tied, &err), NS_OK);
    free(tied);
    char *config = config_of(KIMI_LINEAR);
    expect(&m, config, "incomplete conversion: the head (lm_head) is missing", NULL);
    free(config);
    made_free(&m);
}

static void leftovers_are_refused(void **state)
{
    (void)state;
    struct made m = {0};
    char *config = config_of(K3_TINY);
    made_load(&m, fixture[K3_TINY], &budget);
    made_add(&m, "language_model.model.layers.13.input_layernorm.weight", "BF16", 2, 1, 128, 0, 0);
    expect(&m, config, "model.layers.13.input_layernorm.weight is present, but the config has no place for it", NULL);
    m.n--;
    made_add(&m, "audio_tower.x", "BF16", 2, 1, 4, 0, 0);
    made_add(&m, "audio_tower.y", "BF16", 2, 1, 4, 0, 0);
    expect(&m, config, "audio_tower.x and 1 more are present, but the name is not of this model family", NULL);
    m.n -= 2;
    made_add(&m, "model.norm.weight", "BF16", 2, 1, 128, 0, 0); /* without the prefix the others carry */
    expect(&m, config, "model.norm.weight is present, but", NULL);
    made_free(&m);
    free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_fixture_passes, no_leak),
        cmocka_unit_test_teardown(every_tensor_is_needed, no_leak),
        cmocka_unit_test_teardown(every_shape_is_checked, no_leak),
        cmocka_unit_test_teardown(c34_missing_layers_are_ranges, no_leak),
        cmocka_unit_test_teardown(missing_experts_are_ranges, no_leak),
        cmocka_unit_test_teardown(c38_wrong_type_names_found_and_supported, no_leak),
        cmocka_unit_test_teardown(ranks_are_checked, no_leak),
        cmocka_unit_test_teardown(vectors_may_be_wider_than_matrices, no_leak),
        cmocka_unit_test_teardown(c31_unknown_type_on_a_needed_tensor, no_leak),
        cmocka_unit_test_teardown(c40_irregular_last_layers, no_leak),
        cmocka_unit_test_teardown(switches_and_tensors_must_agree, no_leak),
        cmocka_unit_test_teardown(latent_and_quantization_must_agree, no_leak),
        cmocka_unit_test_teardown(plain_experts_may_have_the_block, no_leak),
        cmocka_unit_test_teardown(tied_head_must_agree, no_leak),
        cmocka_unit_test_teardown(leftovers_are_refused, no_leak),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
