/* shards_test.c - a checkpoint directory: which files, which tensors, and every way it can be broken. */
#include "checkpoint.h"

#include "json/json.h"

#include <time.h>

static struct ns_budget budget;

static int setup(void **state)
{
    (void)state;
    ns_json_init();
    ns_budget_init(&budget, "test", 512u << 20);
    return 0;
}

static int no_leak(void **state)
{
    (void)state;
    assert_int_equal(ns_budget_used(&budget), 0);
    return 0;
}

#define K3_TINY NS_TEST_DATA "/fixtures/k3-tiny"
#define SHARD_2 "model-00002-of-00003.safetensors"
#define SHARD_3 "model-00003-of-00003.safetensors"

/* A copy of the three-shard fixture. */
static void copy_fixture(struct scratch *s)
{
    scratch_open(s);
    copy_into(s, K3_TINY, "config.json");
    copy_into(s, K3_TINY, "model.safetensors.index.json");
    copy_into(s, K3_TINY, "model-00001-of-00003.safetensors");
    copy_into(s, K3_TINY, SHARD_2);
    copy_into(s, K3_TINY, SHARD_3);
}

static enum ns_code open_dir(struct scratch *s, struct ns_shards **out, struct ns_error *err)
{
    memset(err, 0, sizeof *err);
    *out = NULL;
    return ns_shards_open(s->dir, &budget, out, err);
}

static void refused(struct scratch *s, const char *word, const char *word2)
{
    struct ns_shards *shards;
    struct ns_error err;
    enum ns_code rc = open_dir(s, &shards, &err);
    if (rc != NS_INPUT || !strstr(err.message, word) || (word2 && !strstr(err.message, word2)))
        fail_msg("%s: %s; '%s' and '%s' expected", ns_code_name(rc), err.message, word, word2 ? word2 : "");
    assert_null(shards);
}

static long size_of(struct scratch *s, const char *name)
{
    FILE *f = fopen(scratch_path(s, name), "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long n = ftell(f);
    assert_int_equal(fclose(f), 0);
    return n;
}

static void finds_tensors_by_name(void **state)
{
    (void)state;
    struct ns_shards *s = NULL;
    assert_int_equal(ns_shards_open(K3_TINY, &budget, &s, NULL), NS_OK);
    assert_int_equal(ns_shards_files(s), 3);
    assert_string_equal(ns_shards_prefix(s), "language_model.");
    for (size_t i = 0; i < ns_shards_count(s); i++) {
        const struct ns_tensor *t = ns_shards_at(s, i);
        assert_ptr_equal(ns_shards_find(s, t->name), t);
        assert_int_equal(ns_shards_index(s, t), i);
        assert_true(t->shard < 3);
        assert_true(t->offset + t->bytes <= ns_shards_file_bytes(s, t->shard));
    }
    const struct ns_tensor *embed = ns_shards_find(s, "language_model.model.embed_tokens.weight");
    assert_non_null(embed);
    assert_int_equal(embed->dim[0], 768);
    assert_int_equal(embed->dim[1], 128);
    assert_null(ns_shards_find(s, "language_model.model.embed_tokens.weigh"));
    assert_null(ns_shards_find(s, ""));
    for (uint32_t i = 0; i < 3; i++)
        assert_true(access(ns_shards_path(s, i), R_OK) == 0);
    ns_shards_close(s);
    ns_shards_close(NULL);
}

static void vision_is_checked_and_skipped(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_shards *shards;
    struct ns_error err;
    struct made m = {0};
    made_add(&m, "vision_tower.a", "F32", 4, 1, 3, 0, 0);
    made_add(&m, "language_model.x", "F32", 4, 1, 3, 0, 0);
    made_add(&m, "mm_projector.b", "F32", 4, 1, 3, 0, 0);
    made_add(&m, "language_model.y", "F32", 4, 1, 3, 0, 0);
    scratch_open(&s);
    made_write(&m, 0, 4, scratch_path(&s, "model.safetensors"));
    assert_int_equal(open_dir(&s, &shards, &err), NS_OK);
    assert_int_equal(ns_shards_count(shards), 2);
    assert_null(ns_shards_find(shards, "vision_tower.a"));
    assert_null(ns_shards_find(shards, "mm_projector.b"));
    assert_string_equal(ns_shards_at(shards, 1)->name, "language_model.y");
    assert_int_equal(ns_shards_gap_bytes(shards), 0); /* their bytes are no gaps */
    ns_shards_close(shards);
    strcpy(m.t[2].name, "vision_tower.a");
    made_write(&m, 0, 4, scratch_path(&s, "model.safetensors"));
    refused(&s, "tensor vision_tower.a stands in model.safetensors and again in model.safetensors", NULL);
    made_free(&m);
    scratch_close(&s);
}

static void c26_shard_short_by_4096_bytes(void **state)
{
    (void)state;
    struct scratch s;
    copy_fixture(&s);
    long n = size_of(&s, SHARD_2);
    char expected[200];
    assert_int_equal(truncate(s.path, n - 4096), 0);
    snprintf(expected, sizeof expected, SHARD_2 ": the file has %ld bytes, its header calls for %ld", n - 4096, n);
    refused(&s, expected, NULL);
    scratch_close(&s);
}

static void c26_shard_short_by_one_byte(void **state)
{
    (void)state;
    struct scratch s;
    copy_fixture(&s);
    long n = size_of(&s, SHARD_2);
    char expected[200];
    assert_int_equal(truncate(s.path, n - 1), 0);
    snprintf(expected, sizeof expected, SHARD_2 ": the file has %ld bytes, its header calls for %ld", n - 1, n);
    refused(&s, expected, NULL);
    scratch_close(&s);
}

static void c28_text_pointers_are_listed_with_their_sizes(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
                                  "size 123456789\n";
    struct scratch s;
    copy_fixture(&s);
    scratch_write(&s, SHARD_2, pointer, sizeof pointer - 1);
    refused(&s, SHARD_2 " is a text pointer of 134 bytes", "the real file has 123456789 bytes");
    char *other = replaced(strdup(pointer), "size 123456789\n", "size 987\r\n");
    scratch_write(&s, SHARD_3, other, strlen(other));
    free(other);
    refused(&s, "2 problems", "the real file has 123456789 bytes");
    refused(&s, SHARD_3 " is a text pointer", "the real file has 987 bytes");
    scratch_write(&s, SHARD_3, "version 1\nno more", 17);
    refused(&s, "the real file has an unknown number of bytes", NULL);
    scratch_close(&s);
}

static void c29_absurd_header_lengths(void **state)
{
    (void)state;
    struct scratch s;
    scratch_open(&s);
    size_t peak = ns_budget_peak(&budget);
    raw_shard(&s, "model.safetensors", UINT64_MAX, "{}", 54); /* FF ... on 64 bytes */
    refused(&s, "model.safetensors has 64 bytes, its header calls for 8 + 18446744073709551615", NULL);
    raw_shard(&s, "model.safetensors", 64 - 7, "{}", 54);
    refused(&s, "model.safetensors has 64 bytes, its header calls for 8 + 57", NULL);
    raw_shard(&s, "model.safetensors", 0x0FFFFFFF, "{}", 54);
    refused(&s, "model.safetensors has 64 bytes, its header calls for 8 + 268435455", NULL);
    raw_shard(&s, "model.safetensors", 64 - 8, "{}", 54); /* the whole file is header; after {} come zeros */
    refused(&s, "byte 3: byte 0x00 where the end was expected", NULL);
    scratch_write(&s, "model.safetensors", "\1\0\0", 3);
    refused(&s, "model.safetensors has 3 bytes, its header calls for at least 8", NULL);
    scratch_write(&s, "model.safetensors", "", 0);
    refused(&s, "model.safetensors has 0 bytes", NULL);
    assert_true(ns_budget_peak(&budget) <= peak + (1u << 20)); /* no allocation followed the length */
    /* above the cap, in a (sparse) file that would have room for it */
    raw_shard(&s, "model.safetensors", (uint64_t)300 << 20, "{}", 0);
    assert_int_equal(truncate(s.path, 400 << 20), 0);
    refused(&s, "at most 268435456 are supported", NULL);
    assert_true(ns_budget_peak(&budget) <= peak + (1u << 20));
    scratch_close(&s);
}

static void c31_unknown_type_on_an_unneeded_tensor(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_shards *shards;
    struct ns_error err;
    scratch_open(&s);
    static const char beyond[] = "{\"vision_tower.x\":{\"dtype\":\"F4_X\",\"shape\":[4],\"data_offsets\":[9000,9002]}}";
    raw_shard(&s, "model.safetensors", sizeof beyond - 1, beyond, 16);
    refused(&s, "its header calls for", "vision_tower.x");
    static const char inside[] = "{\"vision_tower.x\":{\"dtype\":\"F4_X\",\"shape\":[4],\"data_offsets\":[0,2]}}";
    raw_shard(&s, "model.safetensors", sizeof inside - 1, inside, 2);
    assert_int_equal(open_dir(&s, &shards, &err), NS_OK); /* nobody needs it */
    assert_int_equal(ns_shards_count(shards), 0);
    ns_shards_close(shards);
    scratch_close(&s);
}

static void c32_overlaps_gaps_repeated_names(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_shards *shards;
    struct ns_error err;
    scratch_open(&s);
#define U8_TENSOR(name, n, from, to)                                                                                   \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" n "],\"data_offsets\":[" from "," to "]}"
    static const char twice[] = "{" U8_TENSOR("a", "4", "0", "4") "," U8_TENSOR("a", "4", "4", "8") "}";
    raw_shard(&s, "model.safetensors", sizeof twice - 1, twice, 8);
    refused(&s, "tensor a stands in model.safetensors and again in model.safetensors", NULL);
    static const char shared[] = "{" U8_TENSOR("b", "100", "50", "150") "," U8_TENSOR("a", "100", "0", "100") "}";
    raw_shard(&s, "model.safetensors", sizeof shared - 1, shared, 150);
    refused(&s, "model.safetensors: tensors a and b share 50 bytes", NULL);
    static const char within[] = "{" U8_TENSOR("a", "100", "0", "100") "," U8_TENSOR(
        "b", "10", "20", "30") "," U8_TENSOR("c", "10", "90", "100") "}";
    raw_shard(&s, "model.safetensors", sizeof within - 1, within, 100);
    refused(&s, "tensors a and b share 10 bytes", "tensors a and c share 10 bytes");
    static const char hole[] = "{" U8_TENSOR("a", "4", "0", "4") "," U8_TENSOR("b", "4", "20", "24") "}";
    raw_shard(&s, "model.safetensors", sizeof hole - 1, hole, 24 + 5);
    assert_int_equal(open_dir(&s, &shards, &err), NS_OK);
    assert_int_equal(ns_shards_gap_bytes(shards), 16 + 5); /* the hole, and what follows the last tensor */
    ns_shards_close(shards);
    static const char empty[] = "{" U8_TENSOR("a", "4", "0", "4") "," U8_TENSOR("e", "0", "2", "2") "}";
    raw_shard(&s, "model.safetensors", sizeof empty - 1, empty, 4);
    assert_int_equal(open_dir(&s, &shards, &err), NS_OK); /* an empty tensor shares nothing */
    ns_shards_close(shards);
    static const char one[] = "{" U8_TENSOR("a", "4", "0", "4") "}";
    raw_shard(&s, "model.safetensors", sizeof one - 1, one, 4);
    raw_shard(&s, "more.safetensors", sizeof one - 1, one, 4);
    refused(&s, "tensor a stands in model.safetensors and again in more.safetensors", NULL);
    scratch_close(&s);
}

static void c35_stale_index(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_shards *shards;
    struct ns_error err;
    struct heard heard = {.word = "stale index"};
    struct made m = {0};
    made_load(&m, K3_TINY, &budget);
    scratch_open(&s);
    made_write(&m, 0, m.n / 2, scratch_path(&s, "model-00001-of-00002.safetensors"));
    made_write(&m, m.n / 2, m.n, scratch_path(&s, "model-00002-of-00002.safetensors"));
    static const char four[] =
        "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\":\"model-00001-of-00004.safetensors\","
        "\"b\":\"model-00002-of-00004.safetensors\",\"c\":\"model-00003-of-00004.safetensors\","
        "\"d\":\"model-00004-of-00004.safetensors\"}}";
    scratch_write(&s, "model.safetensors.index.json", four, sizeof four - 1);
    ns_log_set_sink(hear, &heard, NS_LOG_WARN);
    assert_int_equal(open_dir(&s, &shards, &err), NS_OK);
    assert_int_equal(heard.n, 1);
    assert_int_equal(ns_shards_files(shards), 2);
    struct ns_config c = {0};
    assert_int_equal(ns_config_read(K3_TINY, &budget, &c, NULL), NS_OK);
    assert_int_equal(ns_census_check(&c, shards, NULL), NS_OK); /* a sound model */
    ns_shards_close(shards);
    made_free(&m);
    scratch_close(&s);
    /* one missing of three: the headers decide, and the census says what is missing */
    copy_fixture(&s);
    assert_int_equal(unlink(scratch_path(&s, SHARD_3)), 0);
    assert_int_equal(open_dir(&s, &shards, &err), NS_OK);
    assert_int_equal(heard.n, 2);
    assert_int_equal(ns_shards_files(shards), 2);
    assert_int_equal(ns_census_check(&c, shards, &err), NS_INPUT);
    assert_non_null(strstr(err.message, "incomplete conversion"));
    ns_log_set_sink(NULL, NULL, NS_LOG_WARN);
    ns_shards_close(shards);
    ns_config_fini(&c);
    scratch_close(&s);
}

static void a_good_index_decides(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_shards *shards;
    struct ns_error err;
    copy_fixture(&s);
    scratch_write(&s, "unrelated.safetensors", "rubbish", 7); /* nobody looks at it */
    assert_int_equal(open_dir(&s, &shards, &err), NS_OK);
    assert_int_equal(ns_shards_files(shards), 3);
    ns_shards_close(shards);
    scratch_close(&s);
}

static void bad_indexes_are_refused(void **state)
{
    (void)state;

    static const struct {
        const char *text, *word;
    } bad[] = {
        {"{", "byte"},
        {"{\"metadata\":{}}", "names no file"},
        {"{\"weight_map\":{}}", "names no file"},
        {"{\"weight_map\":[]}", "object"},
        {"{\"weight_map\":{\"a\":7}}", "string"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "a plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "a plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "a plain file name"},
        {"{\"weight_map\":{\"a\":\".hidden\"}}", "a plain file name"},
        {"{\"weight_map\":{\"a\":\"x\"},\"weight_map\":{\"a\":\"y\"}}", "stands twice"},
        {"{\"weight_map\":{\"a\":\"x\"}} 1", "the end"},
    };
    struct scratch s;
    copy_fixture(&s);
    for (size_t i = 0; i < NS_COUNT(bad); i++) {
        struct ns_shards *shards;
        struct ns_error err;
        scratch_write(&s, "model.safetensors.index.json", bad[i].text, strlen(bad[i].text));
        if (open_dir(&s, &shards, &err) != NS_INPUT || !strstr(err.message, bad[i].word) ||
            !strstr(err.context, "model.safetensors.index.json"))
            fail_msg("%s: %s: %s", bad[i].text, err.context, err.message);
    }
    scratch_close(&s);
}

static void an_empty_directory_has_no_model(void **state)
{
    (void)state;
    struct scratch s;
    struct ns_shards *shards;
    struct ns_error err;
    scratch_open(&s);
    assert_int_equal(open_dir(&s, &shards, &err), NS_NOINPUT);
    scratch_write(&s, ".safetensors", "", 0);
    assert_int_equal(open_dir(&s, &shards, &err), NS_NOINPUT);
    scratch_close(&s);
}

static void every_file_is_told_in_one_message(void **state)
{
    (void)state;
    struct scratch s;
    copy_fixture(&s);
    assert_int_equal(truncate(scratch_path(&s, "model-00001-of-00003.safetensors"), 100), 0);
    assert_int_equal(truncate(scratch_path(&s, SHARD_2), size_of(&s, SHARD_2) - 1), 0);
    scratch_write(&s, SHARD_3, "version 1\nsize 5\n", 17);
    refused(&s, "3 problems", "model-00001-of-00003.safetensors has 100 bytes");
    refused(&s, SHARD_2 ": the file has", SHARD_3 " is a text pointer");
    scratch_close(&s);
}

static void open_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct scratch s;
    struct made m = {0};
    made_add(&m, "language_model.x", "F32", 4, 1, 3, 0, 0);
    made_add(&m, "vision_tower.a", "F32", 4, 1, 3, 0, 0);
    scratch_open(&s);
    made_write(&m, 0, 2, scratch_path(&s, "model.safetensors"));
    static const char index[] = "{\"weight_map\":{\"language_model.x\":\"model.safetensors\"}}";
    scratch_write(&s, "model.safetensors.index.json", index, sizeof index - 1);
    enum ns_code rc = NS_BUDGET;
    uint64_t nth = 1;
    for (; rc != NS_OK; nth++) {
        struct ns_shards *shards = NULL;
        ns_fault_arm(NS_FAULT_ALLOC, nth);
        rc = ns_shards_open(s.dir, &budget, &shards, NULL);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_BUDGET);
        ns_shards_close(shards);
        assert_int_equal(ns_budget_used(&budget), 0);
    }
    assert_true(nth > 8);
    made_free(&m);
    scratch_close(&s);
}

static void a_failed_read_is_told(void **state)
{
    (void)state;
    struct ns_shards *shards = NULL;
    struct ns_error err = {0};
    enum ns_code rc = NS_IO;
    uint64_t nth = 1;
    for (; rc != NS_OK; nth++) {
        memset(&err, 0, sizeof err);
        ns_fault_arm(NS_FAULT_READ, nth);
        rc = ns_shards_open(K3_TINY, &budget, &shards, &err);
        ns_fault_disarm();
        assert_true(rc == NS_OK || rc == NS_IO);
        assert_true(rc == NS_OK || strstr(err.message, "model"));
    }
    assert_true(nth > 6); /* two reads a shard */
    ns_shards_close(shards);
}

/* ---- the size of the released model ----------------------------------------------------------------------------------- */

enum { D = 7168, V = 163840, P = 12288, HK = 96, DK = 128, HM = 96, RQ = 1536, RKV = 512, E = 896, M = 3072, L = 3584 };

static void layer_tensors(struct made *m, uint32_t i, bool mla)
{
    char name[120], pre[48];
    snprintf(pre, sizeof pre, "language_model.model.layers.%" PRIu32, i);
#define BF(suffix, rank, a, b)                                                                                         \
    (snprintf(name, sizeof name, "%s.%s", pre, suffix), made_add(m, name, "BF16", 2, rank, a, b, 0))
#define F(suffix, rank, a, b, c)                                                                                       \
    (snprintf(name, sizeof name, "%s.%s", pre, suffix), made_add(m, name, "F32", 4, rank, a, b, c))
    BF("input_layernorm.weight", 1, D, 0);
    BF("post_attention_layernorm.weight", 1, D, 0);
    BF("self_attention_res_norm.weight", 1, D, 0);
    BF("self_attention_res_proj.weight", 2, 1, D);
    BF("mlp_res_norm.weight", 1, D, 0);
    BF("mlp_res_proj.weight", 2, 1, D);
    if (mla) {
        BF("self_attn.q_a_proj.weight", 2, RQ, D);
        BF("self_attn.q_a_layernorm.weight", 1, RQ, 0);
        BF("self_attn.q_b_proj.weight", 2, HM * 192, RQ);
        BF("self_attn.kv_a_proj_with_mqa.weight", 2, RKV + 64, D);
        BF("self_attn.kv_a_layernorm.weight", 1, RKV, 0);
        BF("self_attn.kv_b_proj.weight", 2, HM * 256, RKV);
        BF("self_attn.g_proj.weight", 2, HM * 128, D);
        BF("self_attn.o_proj.weight", 2, D, HM * 128);
    } else {
        BF("self_attn.q_proj.weight", 2, P, D);
        BF("self_attn.k_proj.weight", 2, P, D);
        BF("self_attn.v_proj.weight", 2, P, D);
        F("self_attn.q_conv1d.weight", 3, P, 1, 4);
        F("self_attn.k_conv1d.weight", 3, P, 1, 4);
        F("self_attn.v_conv1d.weight", 3, P, 1, 4);
        BF("self_attn.f_a_proj.weight", 2, DK, D);
        BF("self_attn.f_b_proj.weight", 2, P, DK);
        F("self_attn.A_log", 1, 128, 0, 0);
        F("self_attn.dt_bias", 1, P, 0, 0);
        BF("self_attn.b_proj.weight", 2, HK, D);
        BF("self_attn.g_proj.weight", 2, P, D);
        F("self_attn.o_norm.weight", 1, DK, 0, 0);
        BF("self_attn.o_proj.weight", 2, D, P);
    }
    if (i == 0) {
        BF("mlp.gate_proj.weight", 2, 33792, D);
        BF("mlp.up_proj.weight", 2, 33792, D);
        BF("mlp.down_proj.weight", 2, D, 33792);
        return;
    }
    BF("block_sparse_moe.gate.weight", 2, E, D);
    F("block_sparse_moe.gate.e_score_correction_bias", 1, E, 0, 0);
    BF("block_sparse_moe.routed_expert_down_proj.weight", 2, L, D);
    BF("block_sparse_moe.routed_expert_norm.weight", 1, L, 0);
    BF("block_sparse_moe.routed_expert_up_proj.weight", 2, D, L);
    BF("block_sparse_moe.shared_experts.gate_proj.weight", 2, 2 * M, D);
    BF("block_sparse_moe.shared_experts.up_proj.weight", 2, 2 * M, D);
    BF("block_sparse_moe.shared_experts.down_proj.weight", 2, D, 2 * M);
    for (uint32_t e = 0; e < E; e++)
        for (int k = 1; k <= 3; k++) {
            uint64_t rows = k == 2 ? L : M, cols = k == 2 ? M : L;
            snprintf(name, sizeof name, "%s.block_sparse_moe.experts.%" PRIu32 ".w%d.weight_packed", pre, e, k);
            made_add(m, name, "U8", 1, 2, rows, cols / 2, 0);
            snprintf(name, sizeof name, "%s.block_sparse_moe.experts.%" PRIu32 ".w%d.weight_scale", pre, e, k);
            made_add(m, name, "U8", 1, 2, rows, cols / 32, 0);
        }
}

static char *k3_config(uint32_t n_layers)
{
    char *text = whole_file(K3_TINY "/config.json", NULL);
    static const char *const edit[][2] = {
        {"\"hidden_size\": 128", "\"hidden_size\": 7168"},
        {"\"intermediate_size\": 32", "\"intermediate_size\": 33792"},
        {"\"kv_lora_rank\": 16", "\"kv_lora_rank\": 512"},
        {"\"head_dim\": 16", "\"head_dim\": 128"},
        {"\"num_heads\": 2", "\"num_heads\": 96"},
        {"\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 3072"},
        {"\"num_attention_heads\": 3", "\"num_attention_heads\": 96"},
        {"\"num_key_value_heads\": 3", "\"num_key_value_heads\": 96"},
        {"\"num_experts\": 16", "\"num_experts\": 896"},
        {"\"num_experts_per_token\": 4", "\"num_experts_per_token\": 16"},
        {"\"q_lora_rank\": 24", "\"q_lora_rank\": 1536"},
        {"\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 128"},
        {"\"qk_rope_head_dim\": 8", "\"qk_rope_head_dim\": 64"},
        {"\"routed_expert_hidden_size\": 64", "\"routed_expert_hidden_size\": 3584"},
        {"\"v_head_dim\": 16", "\"v_head_dim\": 128"},
        {"\"vocab_size\": 768", "\"vocab_size\": 163840"},
        {"    4,\n    8,\n    12,\n    13\n", "%FULL"},
        {"    1,\n    2,\n    3,\n    5,\n    6,\n    7,\n    9,\n    10,\n    11\n", "%KDA"},
    };
    for (size_t i = 0; i < NS_COUNT(edit); i++)
        text = replaced(text, edit[i][0], edit[i][1]);
    char full[600] = "", kda[600] = "", layers[60];
    for (uint32_t i = 1; i <= n_layers; i++) {
        char *list = i % 4 == 0 || i == n_layers ? full : kda;
        sprintf(list + strlen(list), "%s%" PRIu32, *list ? "," : "", i);
    }
    snprintf(layers, sizeof layers, "\"num_hidden_layers\": %" PRIu32, n_layers);
    text = replaced(text, "\"num_hidden_layers\": 13", layers);
    return replaced(replaced(text, "%FULL", full), "%KDA", kda);
}

struct big {
    size_t n, peak_bytes;
    uint64_t tensor_bytes;
    double cpu_s;
};

/* Headers only: n_layers layers of the released shapes, one shard each, one for the rest, two for vision. */
static void open_big(uint32_t n_layers, struct big *out)
{
    struct scratch s;
    struct made m = {0};
    struct ns_shards *shards;
    struct ns_error err;
    char name[120];
    scratch_open(&s);
    FILE *index = fopen(scratch_path(&s, "model.safetensors.index.json"), "wb");
    assert_non_null(index);
    fprintf(index,
            "{\"metadata\":{\"total_size\":0},\"weight_map\":{\"none\":\"model-00001-of-%06" PRIu32 ".safetensors\"",
            n_layers + 3);
    for (uint32_t i = 0; i <= n_layers + 2; i++) {
        size_t from = m.n;
        if (i < n_layers) {
            layer_tensors(&m, i, (i + 1) % 4 == 0 || i + 1 == n_layers);
        } else if (i == n_layers) {
            made_add(&m, "language_model.model.embed_tokens.weight", "BF16", 2, 2, V, D, 0);
            made_add(&m, "language_model.lm_head.weight", "BF16", 2, 2, V, D, 0);
            made_add(&m, "language_model.model.norm.weight", "BF16", 2, 1, D, 0, 0);
            made_add(&m, "language_model.model.output_attn_res_norm.weight", "BF16", 2, 1, D, 0, 0);
            made_add(&m, "language_model.model.output_attn_res_proj.weight", "BF16", 2, 2, 1, D, 0);
        } else {
            for (int k = 0; k < 84; k++) {
                snprintf(name, sizeof name, "vision_tower.%" PRIu32 ".%d", i, k);
                made_add(&m, name, "BF16", 2, 1, 2662851, 0, 0); /* the mean of the 168 */
            }
        }
        snprintf(name, sizeof name, "model-%05" PRIu32 "-of-%06" PRIu32 ".safetensors", i + 1, n_layers + 3);
        made_write(&m, from, m.n, scratch_path(&s, name));
        for (size_t k = from; k < m.n; k++)
            fprintf(index, ",\n\"%s\":\"%s\"", m.t[k].name, name);
    }
    fprintf(index, "}}");
    assert_int_equal(fclose(index), 0);
    out->n = m.n;
    made_free(&m);
    char *text = k3_config(n_layers);
    struct ns_config c = {0};
    struct ns_budget own;
    ns_budget_init(&own, "big", 512u << 20);
    if (ns_config_parse(text, strlen(text), &own, &c, memset(&err, 0, sizeof err)) != NS_OK)
        fail_msg("%s", err.message);
    clock_t start = clock();
    if (ns_shards_open(s.dir, &own, &shards, &err) != NS_OK || ns_census_check(&c, shards, &err) != NS_OK)
        fail_msg("%s: %s", err.context, err.message);
    out->cpu_s = (double)(clock() - start) / CLOCKS_PER_SEC;
    out->peak_bytes = ns_budget_peak(&own);
    out->tensor_bytes = 0;
    for (size_t i = 0; i < ns_shards_count(shards); i++)
        out->tensor_bytes += ns_shards_at(shards, i)->bytes;
    assert_int_equal(ns_shards_count(shards), out->n - 168);
    assert_int_equal(ns_shards_files(shards), n_layers + 3);
    ns_shards_close(shards);
    ns_config_fini(&c);
    assert_int_equal(ns_budget_used(&own), 0);
    free(text);
    scratch_close(&s);
}

static void half_a_million_tensors(void **state)
{
    (void)state;
    struct big quarter, whole;
    open_big(24, &quarter);
    open_big(93, &whole);
    assert_int_equal(whole.n, 497220);
    /* the published size of the text model, to the byte: the census knows every shape */
    assert_true(whole.tensor_bytes == UINT64_C(1560860324864) - UINT64_C(894717952));
    print_message("497,220 tensors: %.2f s of processor, %.0f MB at most; a quarter: %.2f s, %.0f MB\n", whole.cpu_s,
                  (double)whole.peak_bytes / 1e6, quarter.cpu_s, (double)quarter.peak_bytes / 1e6);
    assert_true(whole.peak_bytes < 260u << 20);
    assert_true(whole.peak_bytes < 8 * quarter.peak_bytes);
    assert_true(whole.cpu_s < 10 * quarter.cpu_s + 1); /* a square would be sixteen times */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(finds_tensors_by_name, no_leak),
        cmocka_unit_test_teardown(vision_is_checked_and_skipped, no_leak),
        cmocka_unit_test_teardown(c26_shard_short_by_4096_bytes, no_leak),
        cmocka_unit_test_teardown(c26_shard_short_by_one_byte, no_leak),
        cmocka_unit_test_teardown(c28_text_pointers_are_listed_with_their_sizes, no_leak),
        cmocka_unit_test_teardown(c29_absurd_header_lengths, no_leak),
        cmocka_unit_test_teardown(c31_unknown_type_on_an_unneeded_tensor, no_leak),
        cmocka_unit_test_teardown(c32_overlaps_gaps_repeated_names, no_leak),
        cmocka_unit_test_teardown(c35_stale_index, no_leak),
        cmocka_unit_test_teardown(a_good_index_decides, no_leak),
        cmocka_unit_test_teardown(bad_indexes_are_refused, no_leak),
        cmocka_unit_test_teardown(an_empty_directory_has_no_model, no_leak),
        cmocka_unit_test_teardown(every_file_is_told_in_one_message, no_leak),
        cmocka_unit_test_teardown(open_survives_every_failed_allocation, no_leak),
        cmocka_unit_test_teardown(a_failed_read_is_told, no_leak),
        cmocka_unit_test_teardown(half_a_million_tensors, no_leak),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
