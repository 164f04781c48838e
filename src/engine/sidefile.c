/* sidefile.c - checked files for states that are too large for the database: snapshots and suspended waves.
 *
 * FORMAT  (little-endian)
 *     0     8   magic: "ns-state" or "ns-wave\0"
 *     8     4   format number, 1
 *     12    4   NS_ENGINE_ABI: what the payload means
 *     16   64   model fingerprint, hex
 *     80   32   contract, zero padded
 *     112   8   payload bytes
 *     120 120   15 fields of 8 bytes, by kind
 *     240  12   zero
 *     252   4   CRC32C of bytes 0 .. 251
 *     256       payload in blocks of 1 MiB (the last one shorter), each followed by its CRC32C
 *     end  16   first half of the SHA-256 of all block sums in order
 * A change of layout raises the format number; a change of what the engine puts in raises NS_ENGINE_ABI. Files of other
 * numbers are refused: they are accelerators, and replaying from tokens gives the same bits.
 * INVARIANTS
 *   1. The head is written last, after the data was synced: a torn file has no valid head.   (suspend_test: torn_and_flipped_states)
 *   2. No byte of the payload is believed before its block's sum was checked.                 (suspend_test: useless_files)
 *   3. What this version does not know is refused, not passed over.   (side_file_test: c62_c64_c65_...) */
#include "engine/sidefile_impl.h"

#include <stdio.h>
#include <string.h>

enum { HEAD = 256, BLOCK = 1 << 20, SUM = 4, FOOT = 16, AT_FIELDS = 120 };

static const char *magic_of(enum ns_side_kind kind)
{
    return kind == NS_SIDE_STATE ? "ns-state" : "ns-wave\0";
}

/* ---- writing --------------------------------------------------------------------------------------------------------------------- */

enum ns_code ns_side_create(const char *path, struct ns_budget *budget, struct ns_side_out *out, struct ns_error *err)
{
    *out = (struct ns_side_out){.budget = budget, .at = HEAD};
    out->buffer = (uint8_t *)ns_budget_take_raw(budget, BLOCK + SUM, 4096, err);
    out->hash = ns_sha256_open();
    enum ns_code rc = out->buffer ? NS_OK : NS_BUDGET;
    if (rc == NS_OK && !out->hash)
        rc = ns_error_set(err, NS_BUDGET, "no memory for a checksum");
    if (rc == NS_OK)
        rc = ns_file_unlink(path, err);
    if (rc == NS_OK)
        rc = ns_file_open(path, NS_FILE_CREATE, &out->file, err);
    if (rc != NS_OK)
        ns_side_abort(out);
    return rc;
}

static enum ns_code flush(struct ns_side_out *out, struct ns_error *err)
{
    uint8_t *sum = out->buffer + out->n;
    ns_put_le32(sum, ns_crc32c(0, out->buffer, out->n));
    ns_sha256_add(out->hash, sum, SUM);
    enum ns_code rc = ns_file_write(out->file, out->buffer, out->n + SUM, out->at, err);
    out->at += out->n + SUM;
    out->n = 0;
    return rc;
}

enum ns_code ns_side_put(struct ns_side_out *out, const void *bytes, size_t n, struct ns_error *err)
{
    const uint8_t *p = (const uint8_t *)bytes;
    out->payload += n;
    while (n > 0) {
        size_t part = BLOCK - out->n < n ? BLOCK - out->n : n;
        memcpy(out->buffer + out->n, p, part);
        out->n += part;
        p += part;
        n -= part;
        if (out->n == BLOCK) {
            enum ns_code rc = flush(out, err);
            if (rc != NS_OK)
                return rc;
        }
    }
    return NS_OK;
}

enum ns_code ns_side_put_u64(struct ns_side_out *out, uint64_t v, struct ns_error *err)
{
    uint8_t bytes[8];
    ns_put_le64(bytes, v);
    return ns_side_put(out, bytes, sizeof bytes, err);
}

static void make_head(uint8_t head[HEAD], const struct ns_side_head *h, uint64_t payload)
{
    memset(head, 0, HEAD);
    memcpy(head, magic_of(h->kind), 8);
    ns_put_le32(head + 8, 1);
    ns_put_le32(head + 12, NS_ENGINE_ABI);
    memcpy(head + 16, h->fingerprint, 64);
    snprintf((char *)head + 80, 32, "%s", NS_CONTRACT);
    ns_put_le64(head + 112, payload);
    for (size_t i = 0; i < NS_SIDE_FIELDS; i++)
        ns_put_le64(head + AT_FIELDS + 8 * i, h->field[i]);
    ns_put_le32(head + HEAD - 4, ns_crc32c(0, head, HEAD - 4));
}

enum ns_code ns_side_finish(struct ns_side_out *out, const struct ns_side_head *h, uint64_t *bytes,
                            char checksum[NS_SHA256_HEX], struct ns_error *err)
{
    uint8_t digest[NS_SHA256_BYTES], head[HEAD];
    enum ns_code rc = out->n ? flush(out, err) : NS_OK;
    ns_sha256_close(out->hash, digest);
    out->hash = NULL;
    if (rc == NS_OK)
        rc = ns_file_write(out->file, digest, FOOT, out->at, err);
    ns_crash_point("side.written");
    if (rc == NS_OK)
        rc = ns_file_sync(out->file, err);
    ns_crash_point("side.data_synced");
    make_head(head, h, out->payload);
    if (rc == NS_OK)
        rc = ns_file_write(out->file, head, HEAD, 0, err);
    if (rc == NS_OK)
        rc = ns_file_sync(out->file, err);
    *bytes = out->at + FOOT;
    ns_hex(digest, FOOT, checksum);
    enum ns_code closed = ns_file_close(out->file, rc == NS_OK ? err : NULL);
    out->file = NULL;
    ns_side_abort(out);
    return rc != NS_OK ? rc : closed;
}

void ns_side_abort(struct ns_side_out *out)
{
    ns_code_ignore(ns_file_close(out->file, NULL));
    if (out->hash)
        ns_sha256_close(out->hash, NULL);
    ns_budget_give(out->budget, out->buffer);
    *out = (struct ns_side_out){0};
}

/* ---- reading ----------------------------------------------------------------------------------------------------------------------- */

static enum ns_code refuse(struct ns_error *err, const char *why)
{
    return ns_error_set(err, NS_CORRUPT, "%s", why);
}

static enum ns_code check_head(struct ns_side_in *in, const uint8_t head[HEAD], const char *fingerprint,
                               enum ns_side_kind kind, struct ns_side_head *out, struct ns_error *err)
{
    bool any = !fingerprint && memcmp(head, magic_of(NS_SIDE_STATE), 8) == 0;
    kind = any ? NS_SIDE_STATE : kind;
    if (memcmp(head, magic_of(kind), 8) != 0 || ns_le32(head + HEAD - 4) != ns_crc32c(0, head, HEAD - 4))
        return refuse(err, "the head is torn or not ours");
    if (ns_le32(head + 8) != 1 || ns_le32(head + 12) != NS_ENGINE_ABI)
        return refuse(err, "written by another version of the engine");
    if (fingerprint && memcmp(head + 16, fingerprint, 64) != 0)
        return refuse(err, "belongs to another model");
    char contract[33] = {0};
    memcpy(contract, head + 80, 32);
    if (strcmp(contract, NS_CONTRACT) != 0)
        return refuse(err, "belongs to another numeric contract");
    for (size_t i = AT_FIELDS + 8 * NS_SIDE_FIELDS; i < HEAD - 4; i++)
        if (head[i] != 0)
            return refuse(err, "the head holds something that this version does not know");
    in->left = ns_le64(head + 112);
    uint64_t file = ns_file_bytes(in->file), blocks = in->left / BLOCK + (in->left % BLOCK != 0);
    if (in->left > file || file != HEAD + in->left + blocks * SUM + FOOT)
        return refuse(err, "the size is not what the head says");
    out->kind = kind;
    memcpy(out->fingerprint, head + 16, 64);
    for (size_t i = 0; i < NS_SIDE_FIELDS; i++)
        out->field[i] = ns_le64(head + AT_FIELDS + 8 * i);
    return NS_OK;
}

enum ns_code ns_side_open(const char *path, const char *fingerprint, enum ns_side_kind kind, struct ns_budget *budget,
                          struct ns_side_in *in, struct ns_side_head *out, struct ns_error *err)
{
    uint8_t head[HEAD];
    *in = (struct ns_side_in){.budget = budget, .at = HEAD};
    memset(out, 0, sizeof *out);
    enum ns_code rc = ns_file_open(path, NS_FILE_READ, &in->file, err);
    if (rc == NS_OK && ns_file_bytes(in->file) < HEAD + FOOT)
        rc = refuse(err, "too short");
    if (rc == NS_OK)
        rc = ns_file_read(in->file, head, HEAD, 0, err);
    if (rc == NS_OK)
        rc = check_head(in, head, fingerprint, kind, out, err);
    if (rc == NS_OK) {
        in->buffer = (uint8_t *)ns_budget_take_raw(budget, BLOCK + SUM, 4096, err);
        in->hash = ns_sha256_open();
        if (!in->buffer || !in->hash)
            rc = ns_error_set(err, NS_BUDGET, "no memory to read a state file");
    }
    if (rc != NS_OK) {
        ns_side_close(in);
        return ns_error_wrap(err, rc, "%s", path);
    }
    return NS_OK;
}

static enum ns_code fill(struct ns_side_in *in, struct ns_error *err)
{
    size_t n = in->left < BLOCK ? (size_t)in->left : BLOCK;
    enum ns_code rc = ns_file_read(in->file, in->buffer, n + SUM, in->at, err);
    if (rc != NS_OK)
        return rc;
    if (ns_le32(in->buffer + n) != ns_crc32c(0, in->buffer, n))
        return ns_error_set(err, NS_CORRUPT, "block at byte %" PRIu64 ": checksum mismatch", in->at);
    ns_sha256_add(in->hash, in->buffer + n, SUM);
    in->at += n + SUM;
    in->left -= n;
    in->n = n;
    in->used = 0;
    return NS_OK;
}

enum ns_code ns_side_get(struct ns_side_in *in, void *bytes, size_t n, struct ns_error *err)
{
    uint8_t *p = (uint8_t *)bytes;
    while (n > 0) {
        if (in->used == in->n) {
            if (in->left == 0)
                return refuse(err, "ends too early");
            enum ns_code rc = fill(in, err);
            if (rc != NS_OK)
                return rc;
        }
        size_t part = in->n - in->used < n ? in->n - in->used : n;
        memcpy(p, in->buffer + in->used, part);
        in->used += part;
        p += part;
        n -= part;
    }
    return NS_OK;
}

enum ns_code ns_side_get_u64(struct ns_side_in *in, uint64_t most, uint64_t *out, struct ns_error *err)
{
    uint8_t bytes[8];
    enum ns_code rc = ns_side_get(in, bytes, sizeof bytes, err);
    if (rc != NS_OK)
        return rc;
    uint64_t v = ns_le64(bytes);
    if (v > most)
        return ns_error_set(err, NS_CORRUPT, "%" PRIu64 " where at most %" PRIu64 " can stand", v, most);
    *out = v;
    return NS_OK;
}

enum ns_code ns_side_end(struct ns_side_in *in, char checksum[NS_SHA256_HEX], struct ns_error *err)
{
    uint8_t digest[NS_SHA256_BYTES], foot[FOOT];
    if (in->left > 0 || in->used != in->n)
        return refuse(err, "holds more than it should");
    ns_sha256_close(in->hash, digest);
    in->hash = NULL;
    enum ns_code rc = ns_file_read(in->file, foot, FOOT, in->at, err);
    if (rc == NS_OK && memcmp(foot, digest, FOOT) != 0)
        rc = refuse(err, "the sum of all blocks does not match");
    ns_hex(digest, FOOT, checksum);
    return rc;
}

void ns_side_close(struct ns_side_in *in)
{
    ns_code_ignore(ns_file_close(in->file, NULL));
    if (in->hash)
        ns_sha256_close(in->hash, NULL);
    ns_budget_give(in->budget, in->buffer);
    *in = (struct ns_side_in){0};
}

/* What the file ends with, without a look at what it is the sum of. */
static enum ns_code read_foot(struct ns_side_in *in, char checksum[NS_SHA256_HEX], struct ns_error *err)
{
    uint8_t foot[FOOT];
    enum ns_code rc = ns_file_read(in->file, foot, FOOT, ns_file_bytes(in->file) - FOOT, err);
    if (rc == NS_OK)
        ns_hex(foot, FOOT, checksum);
    return rc;
}

enum ns_code ns_side_verify(const char *path, const char *checksum, bool whole, struct ns_budget *budget,
                            struct ns_error *err)
{
    struct ns_side_in in;
    struct ns_side_head head;
    char found[NS_SHA256_HEX];
    enum ns_code rc = ns_side_open(path, NULL, NS_SIDE_WAVE, budget, &in, &head, err);
    if (rc != NS_OK)
        return rc;
    while (rc == NS_OK && whole && in.left > 0) {
        rc = fill(&in, err);
        in.used = in.n;
    }
    if (rc == NS_OK)
        rc = whole ? ns_side_end(&in, found, err) : read_foot(&in, found, err);
    if (rc == NS_OK && strcmp(found, checksum) != 0)
        rc = ns_error_set(err, NS_CORRUPT, "checksum %s, %s expected", found, checksum);
    ns_side_close(&in);
    return rc == NS_OK ? rc : ns_error_wrap(err, rc, "%s", path);
}
