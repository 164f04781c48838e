/* shards.c - one index over all the weight files of a checkpoint.
 *
 * WHAT   Opens every shard's header, keeps name, type, shape and place of each tensor, and finds a tensor by name in
 *        constant time. Nothing of the data is read; files are closed again.
 * WHY    The released model has 497,220 tensors in 96 files and 76 MB of headers whose names share prefixes of forty
 *        characters. So names live in large blocks, tensors in pages that never move, the hash mixes every byte, and
 *        everything is linear (sorting within one file aside). All that is wrong with any file is told at once: a user
 *        who has to download 20 GB again wants the list.
 * WHICH  The files named by model.safetensors.index.json when all of them exist; else every *.safetensors in the
 *        directory, because an index of another sharding is a common leftover and the headers tell the truth.
 * INVARIANTS
 *   1. No name appears twice and no two ranges of a file overlap.       (shards_test: c32_overlaps_gaps_repeated_names)
 *   2. Tensor pointers and names are stable until close.
 *   3. Vision tensors take part in every check and are found by nobody.  (shards_test: vision_is_checked_and_skipped)
 * THREADS  Immutable after open. */
#include "format/shards_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER ((uint64_t)256 << 20)
#define NAME_BLOCK ((size_t)1 << 18)
#define PAGE       4096 /* tensors */

struct name_block {
    struct name_block *next;
    size_t used, size;
    char bytes[];
};

/* Pages of tensors: growing moves the page table only. */
struct tensor_list {
    struct ns_tensor **page;
    size_t n, n_pages;
};

struct ns_shards {
    struct ns_budget *budget;
    struct ns_file_list files;
    struct tensor_list text, vision;
    struct name_block *names;
    uint32_t *slot; /* [n_slots], 1-based index into text then vision; 0 is empty */
    size_t n_slots;
    uint64_t gap_bytes;
    const char *prefix;
};

/* ---- storage --------------------------------------------------------------------------------------------------------- */

static const char *keep_name(struct ns_shards *s, const char *name, struct ns_error *err)
{
    size_t n = strlen(name) + 1;
    struct name_block *b = s->names;
    if (!b || b->size - b->used < n) {
        size_t size = n > NAME_BLOCK ? n : NAME_BLOCK;
        b = ns_budget_take_raw(s->budget, sizeof *b + size, 64, err);
        if (!b)
            return NULL;
        *b = (struct name_block){.next = s->names, .size = size};
        s->names = b;
    }
    char *at = b->bytes + b->used;
    memcpy(at, name, n);
    b->used += n;
    return at;
}

static struct ns_tensor *list_at(const struct tensor_list *list, size_t i)
{
    return &list->page[i / PAGE][i % PAGE];
}

static struct ns_tensor *list_add(struct ns_shards *s, struct tensor_list *list, struct ns_error *err)
{
    if (list->n == list->n_pages * PAGE) {
        void *table = ns_budget_resize(s->budget, list->page, (list->n_pages + 1) * sizeof *list->page, err);
        if (!table)
            return NULL;
        list->page = table;
        list->page[list->n_pages] = ns_budget_take_raw(s->budget, PAGE * sizeof(struct ns_tensor), 64, err);
        if (!list->page[list->n_pages])
            return NULL;
        list->n_pages++;
    }
    return list_at(list, list->n++);
}

static void list_free(struct ns_shards *s, struct tensor_list *list)
{
    for (size_t i = 0; i < list->n_pages; i++)
        ns_budget_give(s->budget, list->page[i]);
    ns_budget_give(s->budget, list->page);
}

static struct ns_tensor *any_at(const struct ns_shards *s, size_t i)
{
    return i < s->text.n ? list_at(&s->text, i) : list_at(&s->vision, i - s->text.n);
}

/* FNV-1a over every byte, then a full mix: names differ only in a few digits in the middle. */
static uint64_t hash_name(const char *name)
{
    uint64_t h = 14695981039346656037u;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        h = (h ^ *p) * 1099511628211u;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    return h;
}

/* The slot of name, or the empty slot where it belongs. */
static size_t slot_of(const struct ns_shards *s, const char *name)
{
    size_t at = (size_t)hash_name(name) & (s->n_slots - 1);
    while (s->slot[at] && strcmp(any_at(s, s->slot[at] - 1)->name, name) != 0)
        at = (at + 1) & (s->n_slots - 1);
    return at;
}

static enum ns_code build_table(struct ns_shards *s, struct ns_problems *problems, struct ns_error *err)
{
    size_t n = s->text.n + s->vision.n;
    if (n >= UINT32_MAX / 4)
        return ns_error_set(err, NS_INPUT, "%zu tensors are more than this program can index", n);
    for (s->n_slots = 16; s->n_slots < 2 * n;)
        s->n_slots *= 2;
    s->slot = ns_budget_take(s->budget, s->n_slots * sizeof *s->slot, err);
    if (!s->slot)
        return NS_BUDGET;
    for (size_t i = 0; i < n; i++) {
        const struct ns_tensor *t = any_at(s, i);
        size_t at = slot_of(s, t->name);
        if (s->slot[at])
            ns_problems_add(problems, "tensor %.100s stands in %s and again in %s", t->name,
                            s->files.file[any_at(s, s->slot[at] - 1)->shard].name, s->files.file[t->shard].name);
        else
            s->slot[at] = (uint32_t)(i + 1);
    }
    return NS_OK;
}

/* ---- one file ---------------------------------------------------------------------------------------------------------- */

struct filling {
    struct ns_shards *shards;
    uint32_t shard;
};

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static enum ns_code fill(void *arg, const struct ns_tensor *tensor, struct ns_error *err)
{
    struct filling *f = arg;
    struct ns_shards *s = f->shards;
    bool vision = starts_with(tensor->name, "vision_tower.") || starts_with(tensor->name, "mm_projector.");
    const char *name = keep_name(s, tensor->name, err);
    struct ns_tensor *at = name ? list_add(s, vision ? &s->vision : &s->text, err) : NULL;
    if (!at)
        return NS_BUDGET;
    *at = *tensor;
    at->name = name;
    at->shard = f->shard;
    if (starts_with(name, "language_model."))
        s->prefix = "language_model.";
    return NS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct ns_tensor *x = *(const struct ns_tensor *const *)a, *y = *(const struct ns_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Overlaps and gaps of the tensors that were added since the lists had text_from and vision_from entries. */
static enum ns_code check_layout(struct ns_shards *s, size_t text_from, size_t vision_from, uint64_t data_start,
                                 const struct ns_shard_file *file, struct ns_problems *problems, struct ns_error *err)
{
    size_t n_text = s->text.n - text_from, n = n_text + s->vision.n - vision_from;
    struct ns_tensor **order = ns_budget_take_raw(s->budget, n * sizeof *order, 64, err);
    if (!order)
        return NS_BUDGET;
    for (size_t i = 0; i < n; i++)
        order[i] = i < n_text ? list_at(&s->text, text_from + i) : list_at(&s->vision, vision_from + i - n_text);
    qsort(order, n, sizeof(struct ns_tensor *), by_offset);
    uint64_t end = data_start;
    const struct ns_tensor *last = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct ns_tensor *t = order[i];
        if (t->bytes == 0)
            continue;
        if (t->offset > end)
            s->gap_bytes += t->offset - end;
        else if (last && t->offset < end)
            ns_problems_add(problems, "%s: tensors %.100s and %.100s share %" PRIu64 " bytes", file->name, last->name,
                            t->name, (t->offset + t->bytes < end ? t->offset + t->bytes : end) - t->offset);
        if (t->offset + t->bytes > end) {
            end = t->offset + t->bytes;
            last = t;
        }
    }
    s->gap_bytes += file->bytes - end;
    ns_budget_give(s->budget, order);
    return NS_OK;
}

/* A clone without large-file support leaves a short text in place of the weights. */
static bool is_text_pointer(const char *text, const char **size, int *n_size)
{
    if (!starts_with(text, "version "))
        return false;
    const char *line = strstr(text, "\nsize ");
    *size = line ? line + 6 : "an unknown number of";
    *n_size = (int)strcspn(*size, line ? " \r\n" : "");
    return true;
}

static enum ns_code read_header(struct ns_shards *s, uint32_t shard, struct ns_file *f, struct ns_problems *problems,
                                struct ns_error *err)
{
    const struct ns_shard_file *file = &s->files.file[shard];
    char head[513] = {0};
    size_t got = 0;
    enum ns_code rc = ns_file_read_some(f, head, sizeof head - 1, 0, &got, err);
    if (rc != NS_OK)
        return rc;
    const char *size;
    int n_size;
    if (is_text_pointer(head, &size, &n_size)) {
        ns_problems_add(problems,
                        "%s is a text pointer of %" PRIu64 " bytes to the weights, not the weights: the real "
                        "file has %.*s bytes (fetch it with large-file support)",
                        file->name, file->bytes, n_size, size);
        return NS_OK;
    }
    uint64_t n = got >= 8 ? ns_le64((const uint8_t *)head) : 0;
    if (got < 8 || n > file->bytes - 8) {
        ns_problems_add(problems, "%s has %" PRIu64 " bytes, its header calls for %s%" PRIu64, file->name, file->bytes,
                        got < 8 ? "at least " : "8 + ", got < 8 ? (uint64_t)8 : n);
        return NS_OK;
    }
    if (n > MAX_HEADER) {
        ns_problems_add(problems, "%s has a header of %" PRIu64 " bytes, at most %" PRIu64 " are supported", file->name,
                        n, MAX_HEADER);
        return NS_OK;
    }
    char *text = ns_budget_take_raw(s->budget, (size_t)n, 64, err);
    if (!text)
        return NS_BUDGET;
    rc = ns_file_read(f, text, (size_t)n, 8, err);
    size_t text_from = s->text.n, vision_from = s->vision.n;
    struct ns_error fault = {0};
    if (rc == NS_OK) {
        struct filling filling = {.shards = s, .shard = shard};
        rc = ns_safetensors_parse(text, (size_t)n, 8 + n, file->bytes, s->budget, fill, &filling, &fault);
        if (rc == NS_INPUT) {
            ns_problems_add(problems, "%s: %s%s%.300s", file->name, fault.context, fault.context[0] ? ": " : "",
                            fault.message);
            rc = NS_OK;
        } else if (rc != NS_OK) {
            ns_error_set(err, rc, "%s", fault.message);
        } else {
            rc = check_layout(s, text_from, vision_from, 8 + n, file, problems, err);
        }
    }
    ns_budget_give(s->budget, text);
    return rc;
}

static enum ns_code read_file(struct ns_shards *s, uint32_t shard, struct ns_problems *problems, struct ns_error *err)
{
    struct ns_shard_file *file = &s->files.file[shard];
    struct ns_file *f = NULL;
    enum ns_code rc = ns_file_open(file->path, NS_FILE_READ, &f, err);
    if (rc != NS_OK)
        return rc;
    file->bytes = ns_file_bytes(f);
    rc = read_header(s, shard, f, problems, err);
    enum ns_code closed = ns_file_close(f, rc == NS_OK ? err : NULL);
    return rc != NS_OK ? rc : closed;
}

/* ---- the door ------------------------------------------------------------------------------------------------------------ */

static enum ns_code open_all(struct ns_shards *s, const char *dir, struct ns_error *err)
{
    struct ns_problems problems;
    enum ns_code rc = ns_file_list_read(&s->files, dir, s->budget, err);
    if (rc != NS_OK)
        return rc;
    ns_problems_init(&problems, s->budget);
    for (uint32_t i = 0; i < s->files.n && rc == NS_OK; i++)
        rc = read_file(s, i, &problems, err);
    if (rc == NS_OK)
        rc = build_table(s, &problems, err);
    enum ns_code found = ns_problems_close(&problems, NS_INPUT, "", err);
    return rc != NS_OK ? rc : found;
}

enum ns_code ns_shards_open(const char *dir, struct ns_budget *budget, struct ns_shards **out, struct ns_error *err)
{
    struct ns_shards *s = ns_budget_take(budget, sizeof *s, err);
    if (!s)
        return NS_BUDGET;
    s->budget = budget;
    s->prefix = "";
    enum ns_code rc = open_all(s, dir, err);
    if (rc != NS_OK) {
        ns_shards_close(s);
        return ns_error_wrap(err, rc, "checkpoint %s", dir);
    }
    *out = s;
    return NS_OK;
}

void ns_shards_close(struct ns_shards *shards)
{
    if (!shards)
        return;
    list_free(shards, &shards->text);
    list_free(shards, &shards->vision);
    while (shards->names) {
        struct name_block *next = shards->names->next;
        ns_budget_give(shards->budget, shards->names);
        shards->names = next;
    }
    ns_budget_give(shards->budget, shards->slot);
    ns_file_list_free(&shards->files, shards->budget);
    ns_budget_give(shards->budget, shards);
}

const struct ns_tensor *ns_shards_find(const struct ns_shards *shards, const char *name)
{
    uint32_t slot = shards->slot[slot_of(shards, name)];
    return slot == 0 || slot > shards->text.n ? NULL : list_at(&shards->text, slot - 1);
}

size_t ns_shards_count(const struct ns_shards *shards)
{
    return shards->text.n;
}

const struct ns_tensor *ns_shards_at(const struct ns_shards *shards, size_t i)
{
    return list_at(&shards->text, i);
}

/* Tensors live in pages: the index is looked up as the name is. */
size_t ns_shards_index(const struct ns_shards *shards, const struct ns_tensor *tensor)
{
    uint32_t slot = shards->slot[slot_of(shards, tensor->name)];
    assert(slot > 0 && slot <= shards->text.n);
    return slot - 1;
}

uint32_t ns_shards_files(const struct ns_shards *shards)
{
    return shards->files.n;
}

const char *ns_shards_path(const struct ns_shards *shards, uint32_t shard)
{
    return shards->files.file[shard].path;
}

uint64_t ns_shards_file_bytes(const struct ns_shards *shards, uint32_t shard)
{
    return shards->files.file[shard].bytes;
}

const char *ns_shards_prefix(const struct ns_shards *shards)
{
    return shards->prefix;
}

uint64_t ns_shards_gap_bytes(const struct ns_shards *shards)
{
    return shards->gap_bytes;
}
