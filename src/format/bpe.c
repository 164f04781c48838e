/* bpe.c - one piece of text into token ids by merging byte pairs.
 *
 * WHAT   Parts start as single bytes. Again and again the adjacent pair whose joined bytes have the lowest rank becomes one
 *        part, the leftmost on ties, until no joined pair is a token.
 * WHY    Pieces can be a hundred kilobytes (an unbroken run), so the pairs wait in a heap: n log n instead of n squared.
 *        There is no list of merges; the joined bytes' own rank decides.
 * INVARIANTS
 *   1. A part at byte i has length part[i].n > 0; bytes inside a part have 0; the next part begins at i + n.
 *   2. A heap entry is alive exactly when the part at its place and the next one together still have its length: the
 *      left part only grows, and so does the right one.
 *   3. At most 2 n entries wait: n - 1 at the start, and a merge removes one and adds two. */
#include "format/tokenizer_impl.h"

#include <string.h>

struct ns_bpe_part {
    uint32_t n, previous; /* previous: where the part before begins */
    uint32_t id;
};

void ns_bpe_init(struct ns_bpe *bpe, struct ns_budget *budget)
{
    *bpe = (struct ns_bpe){.budget = budget};
}

void ns_bpe_fini(struct ns_bpe *bpe)
{
    ns_budget_give(bpe->budget, bpe->part);
    ns_budget_give(bpe->budget, bpe->heap);
    ns_budget_give(bpe->budget, bpe->heap_bytes);
    ns_bpe_init(bpe, bpe->budget);
}

static enum ns_code reserve(struct ns_bpe *bpe, size_t n, struct ns_error *err)
{
    size_t capacity = bpe->capacity ? bpe->capacity : 256;
    if (n <= bpe->capacity)
        return NS_OK;
    if (n >= UINT32_MAX / 4)
        return ns_error_set(err, NS_INPUT, "a piece of %zu bytes cannot be encoded", n);
    while (capacity < n)
        capacity *= 2;
    ns_bpe_fini(bpe);
    bpe->part = ns_budget_take_raw(bpe->budget, capacity * sizeof *bpe->part, 64, err);
    bpe->heap = bpe->part ? ns_budget_take_raw(bpe->budget, 2 * capacity * sizeof *bpe->heap, 64, err) : NULL;
    bpe->heap_bytes =
        bpe->heap ? ns_budget_take_raw(bpe->budget, 2 * capacity * sizeof *bpe->heap_bytes, 64, err) : NULL;
    if (!bpe->heap_bytes)
        return NS_BUDGET;
    bpe->capacity = capacity;
    return NS_OK;
}

/* The heap's key is rank above place, so the order of keys is the order of merges. */
static void heap_push(struct ns_bpe *bpe, size_t *n, uint64_t key, uint32_t bytes)
{
    size_t i = (*n)++;
    while (i > 0 && bpe->heap[(i - 1) / 2] > key) {
        bpe->heap[i] = bpe->heap[(i - 1) / 2];
        bpe->heap_bytes[i] = bpe->heap_bytes[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    bpe->heap[i] = key;
    bpe->heap_bytes[i] = bytes;
}

static uint64_t heap_pop(struct ns_bpe *bpe, size_t *n, uint32_t *bytes)
{
    uint64_t top = bpe->heap[0], key = bpe->heap[--*n];
    uint32_t key_bytes = bpe->heap_bytes[*n];
    *bytes = bpe->heap_bytes[0];
    size_t i = 0;
    for (size_t child = 1; child < *n; child = 2 * i + 1) {
        if (child + 1 < *n && bpe->heap[child + 1] < bpe->heap[child])
            child++;
        if (bpe->heap[child] >= key)
            break;
        bpe->heap[i] = bpe->heap[child];
        bpe->heap_bytes[i] = bpe->heap_bytes[child];
        i = child;
    }
    bpe->heap[i] = key;
    bpe->heap_bytes[i] = key_bytes;
    return top;
}

/* Offers the pair that begins at place at, if its joined bytes are a token. */
static void offer(struct ns_bpe *bpe, const struct ns_tokenizer *tok, const uint8_t *piece, size_t n, uint32_t at,
                  size_t *n_heap)
{
    uint32_t next = at + bpe->part[at].n;
    if (next >= n)
        return;
    uint32_t bytes = bpe->part[at].n + bpe->part[next].n;
    uint32_t rank = ns_token_find(tok, piece + at, bytes);
    if (rank != NS_NO_TOKEN)
        heap_push(bpe, n_heap, (uint64_t)rank << 32 | at, bytes);
}

enum ns_code ns_bpe_encode(struct ns_bpe *bpe, const struct ns_tokenizer *tok, const uint8_t *piece, size_t n,
                           struct ns_ids *ids, struct ns_error *err)
{
    uint32_t whole = n > 0 ? ns_token_find(tok, piece, n) : NS_NO_TOKEN;
    if (whole != NS_NO_TOKEN)
        return ns_ids_add(ids, &whole, 1, err);
    enum ns_code rc = reserve(bpe, n, err);
    if (rc != NS_OK)
        return rc;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        bpe->part[i] = (struct ns_bpe_part){.n = 1, .previous = i - 1, .id = tok->byte_id[piece[i]]};
    for (uint32_t i = 0; i + 1 < n; i++)
        offer(bpe, tok, piece, n, i, &n_heap);
    while (n_heap > 0) {
        uint32_t bytes;
        uint64_t key = heap_pop(bpe, &n_heap, &bytes);
        uint32_t at = (uint32_t)key;
        struct ns_bpe_part *part = &bpe->part[at];
        uint32_t next = at + part->n;
        if (part->n == 0 || next >= n || part->n + bpe->part[next].n != bytes)
            continue; /* merged away since it was offered */
        bpe->part[next].n = 0;
        part->n = bytes;
        part->id = (uint32_t)(key >> 32);
        if (at + bytes < n)
            bpe->part[at + bytes].previous = at;
        if (at > 0)
            offer(bpe, tok, piece, n, part->previous, &n_heap);
        offer(bpe, tok, piece, n, at, &n_heap);
    }
    for (uint32_t at = 0; at < n && rc == NS_OK; at += bpe->part[at].n)
        rc = ns_ids_add(ids, &bpe->part[at].id, 1, err);
    return rc;
}
