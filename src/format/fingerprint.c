/* fingerprint.c - which model is this?
 *
 * WHAT   SHA-256 over config.json, the tokenizer's files, and for every shard its size, its header and 64 KiB at 16
 *        fixed places; below 1 GB all bytes instead of the samples. tokenizer_hex covers the tokenizer's files alone.
 * WHY    A result must name the model it came from, and a resumed run must notice that it is another one. 1.5 TB cannot
 *        be hashed at every start; header, sizes and 96 MiB of samples tell apart everything but a few flipped bits.
 * FORMAT "nightshift model 1\n", then per part: name, NUL, length as 64-bit little-endian, bytes. No paths, no times: the
 *        fingerprint survives a copy to another disk. A new recipe is a new first line.
 * PLACES With n data bytes, place i of 16 starts at i * (n - 64 KiB) / 15; a shard of at most 1 MiB is hashed whole. */
#include "format/format_impl.h"

#include <string.h>

#define PLACES      16
#define PLACE_BYTES ((size_t)64 << 10)
#define WHOLE_BELOW ((uint64_t)1000000000)
#define CHUNK       ((size_t)1 << 20)
#define MAX_SMALL   ((size_t)64 << 20)

static void add_length(struct ns_sha256 *hash, const char *name, uint64_t n)
{
    uint8_t length[8];
    ns_put_le64(length, n);
    ns_sha256_add(hash, name, strlen(name) + 1);
    ns_sha256_add(hash, length, sizeof length);
}

/* A small file of the directory into both hashes (second may be NULL). A missing one counts as no bytes. */
static enum ns_code add_small(struct ns_sha256 *hash, struct ns_sha256 *second, const char *dir, const char *name,
                              struct ns_budget *budget, struct ns_error *err)
{
    char path[4096];
    char *text = NULL;
    size_t n = 0;
    enum ns_code rc = ns_path_join(dir, name, path, err);
    if (rc != NS_OK)
        return rc;
    if (ns_path_exists(path))
        rc = ns_file_slurp(path, MAX_SMALL, budget, &text, &n, err);
    if (rc != NS_OK)
        return rc;
    add_length(hash, name, n);
    ns_sha256_add(hash, text, n);
    if (second) {
        add_length(second, name, n);
        ns_sha256_add(second, text, n);
    }
    ns_budget_give(budget, text);
    return NS_OK;
}

static enum ns_code add_range(struct ns_sha256 *hash, struct ns_file *f, uint64_t from, uint64_t to, uint8_t *buffer,
                              struct ns_error *err)
{
    while (from < to) {
        size_t n = to - from < CHUNK ? (size_t)(to - from) : CHUNK;
        enum ns_code rc = ns_file_read(f, buffer, n, from, err);
        if (rc != NS_OK)
            return rc;
        ns_sha256_add(hash, buffer, n);
        from += n;
    }
    return NS_OK;
}

static enum ns_code add_shard(struct ns_sha256 *hash, struct ns_file *f, uint64_t bytes, bool whole, uint8_t *buffer,
                              struct ns_error *err)
{
    if (ns_file_bytes(f) != bytes)
        return ns_error_set(err, NS_INPUT, "%s has %" PRIu64 " bytes now, it had %" PRIu64 " when it was opened",
                            ns_file_path(f), ns_file_bytes(f), bytes);
    add_length(hash, "shard", bytes);
    uint8_t head[8];
    enum ns_code rc = ns_file_read(f, head, sizeof head, 0, err);
    if (rc != NS_OK)
        return rc;
    uint64_t data = ns_le64(head) <= bytes - 8 ? 8 + ns_le64(head) : bytes;
    if (whole || bytes - data <= PLACES * PLACE_BYTES)
        return add_range(hash, f, 0, bytes, buffer, err);
    rc = add_range(hash, f, 0, data, buffer, err);
    uint64_t step = (bytes - data - PLACE_BYTES) / (PLACES - 1), rest = (bytes - data - PLACE_BYTES) % (PLACES - 1);
    for (uint64_t i = 0; i < PLACES && rc == NS_OK; i++) {
        uint64_t at = data + i * step + i * rest / (PLACES - 1);
        rc = add_range(hash, f, at, at + PLACE_BYTES, buffer, err);
    }
    return rc;
}

static enum ns_code add_shards(struct ns_sha256 *hash, const struct ns_shards *shards, struct ns_budget *budget,
                               struct ns_error *err)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < ns_shards_files(shards); i++)
        if (__builtin_add_overflow(total, ns_shards_file_bytes(shards, i), &total))
            total = UINT64_MAX;
    uint8_t *buffer = ns_budget_take_raw(budget, CHUNK, 4096, err);
    if (!buffer)
        return NS_BUDGET;
    enum ns_code rc = NS_OK;
    for (uint32_t i = 0; i < ns_shards_files(shards) && rc == NS_OK; i++) {
        struct ns_file *f = NULL;
        rc = ns_file_open(ns_shards_path(shards, i), NS_FILE_READ, &f, err);
        if (rc != NS_OK)
            break;
        rc = add_shard(hash, f, ns_shards_file_bytes(shards, i), total < WHOLE_BELOW, buffer, err);
        enum ns_code closed = ns_file_close(f, rc == NS_OK ? err : NULL);
        if (rc == NS_OK)
            rc = closed;
    }
    ns_budget_give(budget, buffer);
    return rc;
}

enum ns_code ns_fingerprint(const char *dir, const struct ns_shards *shards, struct ns_budget *budget,
                            char hex[NS_SHA256_HEX], char tokenizer_hex[NS_SHA256_HEX], struct ns_error *err)
{
    static const char model_recipe[] = "nightshift model 1\n", tokenizer_recipe[] = "nightshift tokenizer 1\n";
    struct ns_sha256 *model = ns_sha256_open(), *tokenizer = ns_sha256_open();
    uint8_t model_sum[NS_SHA256_BYTES], tokenizer_sum[NS_SHA256_BYTES];
    enum ns_code rc = NS_OK;
    if (!model || !tokenizer)
        rc = ns_error_set(err, NS_BUDGET, "no memory for a hash");
    if (rc == NS_OK) {
        ns_sha256_add(model, model_recipe, sizeof model_recipe - 1);
        ns_sha256_add(tokenizer, tokenizer_recipe, sizeof tokenizer_recipe - 1);
        rc = add_small(model, NULL, dir, "config.json", budget, err);
    }
    if (rc == NS_OK)
        rc = add_small(model, tokenizer, dir, "tiktoken.model", budget, err);
    if (rc == NS_OK)
        rc = add_small(model, tokenizer, dir, "tokenizer_config.json", budget, err);
    if (rc == NS_OK)
        rc = add_shards(model, shards, budget, err);
    if (model)
        ns_sha256_close(model, model_sum);
    if (tokenizer)
        ns_sha256_close(tokenizer, tokenizer_sum);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "fingerprint of %s", dir);
    ns_hex(model_sum, sizeof model_sum, hex);
    ns_hex(tokenizer_sum, sizeof tokenizer_sum, tokenizer_hex);
    return NS_OK;
}
