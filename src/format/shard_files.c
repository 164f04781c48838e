/* shard_files.c - which files make up a checkpoint.
 * The index names them; but an index from another sharding lies beside sound files often enough that the directory has
 * the last word: if one file of the index is missing, every *.safetensors there is taken and the log says so. Whether
 * the tensors are complete is the census's question. */
#include "format/shards_impl.h"

#include "json/json.h"

#include <stdlib.h>
#include <string.h>

#define INDEX_NAME "model.safetensors.index.json"
#define MAX_INDEX  ((size_t)1 << 30)
#define MAX_FILES  4096
#define N_SLOTS    8192 /* twice MAX_FILES */

void ns_file_list_free(struct ns_file_list *list, struct ns_budget *budget)
{
    for (uint32_t i = 0; i < list->n; i++)
        ns_budget_give(budget, list->file[i].path);
    ns_budget_give(budget, list->file);
    memset(list, 0, sizeof *list);
}

static enum ns_code add_file(struct ns_file_list *list, const char *dir, const char *name, struct ns_budget *budget,
                             struct ns_error *err)
{
    char path[4096];
    enum ns_code rc = ns_path_join(dir, name, path, err);
    if (rc != NS_OK)
        return rc;
    if (list->n == MAX_FILES)
        return ns_error_set(err, NS_INPUT, "more than %d weight files", MAX_FILES);
    if (list->n == list->capacity) {
        uint32_t capacity = list->capacity ? 2 * list->capacity : 32;
        void *grown = ns_budget_resize(budget, list->file, capacity * sizeof *list->file, err);
        if (!grown)
            return NS_BUDGET;
        list->file = grown;
        list->capacity = capacity;
    }
    size_t n = strlen(path) + 1;
    char *kept = ns_budget_take(budget, n, err);
    if (!kept)
        return NS_BUDGET;
    memcpy(kept, path, n);
    list->file[list->n++] = (struct ns_shard_file){.path = kept, .name = kept + n - 1 - strlen(name)};
    return NS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ns_shard_file *)a)->name, ((const struct ns_shard_file *)b)->name);
}

/* ---- the index ---------------------------------------------------------------------------------------------------------- */

/* The index of name in the list, adding it when new. slot is a hash table of 1-based indices. */
static enum ns_code note_file(struct ns_file_list *list, uint16_t *slot, const char *dir, const char *name,
                              struct ns_budget *budget, struct ns_error *err)
{
    if (list->n > 0 && strcmp(list->file[list->n - 1].name, name) == 0)
        return NS_OK; /* names come in runs */
    uint32_t h = 2166136261u;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        h = (h ^ *p) * 16777619u;
    uint32_t at = (h ^ h >> 15) % N_SLOTS;
    while (slot[at] && strcmp(list->file[slot[at] - 1].name, name) != 0)
        at = (at + 1) % N_SLOTS;
    if (slot[at])
        return NS_OK;
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/'))
        return ns_error_set(err, NS_INPUT, "weight_map names \"%.100s\", a plain file name was expected", name);
    enum ns_code rc = add_file(list, dir, name, budget, err);
    if (rc == NS_OK)
        slot[at] = (uint16_t)list->n;
    return rc;
}

static enum ns_code walk_weight_map(struct ns_json_scan *s, struct ns_file_list *list, const char *dir,
                                    struct ns_budget *budget, struct ns_error *err)
{
    const char *key, *name;
    size_t n;
    uint16_t *slot = ns_budget_take(budget, N_SLOTS * sizeof *slot, err);
    if (!slot)
        return NS_BUDGET;
    enum ns_code rc = ns_json_scan_open(s, '{', err);
    while (rc == NS_OK && (rc = ns_json_scan_key(s, &key, &n, err)) == NS_OK && key) {
        rc = ns_json_scan_string(s, &name, &n, err);
        if (rc == NS_OK)
            rc = note_file(list, slot, dir, name, budget, err);
    }
    ns_budget_give(budget, slot);
    return rc;
}

enum ns_code ns_index_parse(struct ns_file_list *list, const char *dir, const char *text, size_t n,
                            struct ns_budget *budget, struct ns_error *err)
{
    struct ns_json_scan s;
    const char *key;
    size_t n_key;
    bool had = false;
    ns_json_scan_init(&s, text, n, budget);
    enum ns_code rc = ns_json_scan_open(&s, '{', err);
    while (rc == NS_OK && (rc = ns_json_scan_key(&s, &key, &n_key, err)) == NS_OK && key) {
        bool map = strcmp(key, "weight_map") == 0;
        if (map && had)
            rc = ns_error_set(err, NS_INPUT, "weight_map stands twice");
        else if (map)
            rc = walk_weight_map(&s, list, dir, budget, err);
        else
            rc = ns_json_scan_skip(&s, err);
        had |= map;
    }
    if (rc == NS_OK)
        rc = ns_json_scan_end(&s, err);
    if (rc == NS_OK && list->n == 0)
        rc = ns_error_set(err, NS_INPUT, "weight_map names no file");
    ns_json_scan_fini(&s);
    if (rc == NS_OK)
        qsort(list->file, list->n, sizeof *list->file, by_name);
    return rc;
}

/* ---- the directory ------------------------------------------------------------------------------------------------------ */

struct walk {
    struct ns_file_list *list;
    const char *dir;
    struct ns_budget *budget;
};

static enum ns_code take_weights(void *arg, const char *name, uint64_t bytes, struct ns_error *err)
{
    struct walk *w = arg;
    static const char ending[] = ".safetensors";
    size_t n = strlen(name), k = sizeof ending - 1;
    (void)bytes;
    if (n <= k || name[0] == '.' || strcmp(name + n - k, ending) != 0)
        return NS_OK;
    return add_file(w->list, w->dir, name, w->budget, err);
}

static enum ns_code read_directory(struct ns_file_list *list, const char *dir, struct ns_budget *budget,
                                   struct ns_error *err)
{
    struct walk walk = {.list = list, .dir = dir, .budget = budget};
    enum ns_code rc = ns_dir_each(dir, take_weights, &walk, err);
    if (rc == NS_OK && list->n == 0)
        return ns_error_set(err, NS_NOINPUT, "no *.safetensors files in it");
    if (rc == NS_OK)
        qsort(list->file, list->n, sizeof *list->file, by_name);
    return rc;
}

enum ns_code ns_file_list_read(struct ns_file_list *list, const char *dir, struct ns_budget *budget,
                               struct ns_error *err)
{
    char path[4096];
    enum ns_code rc = ns_path_join(dir, INDEX_NAME, path, err);
    if (rc != NS_OK)
        return rc;
    if (!ns_path_exists(path))
        return read_directory(list, dir, budget, err);
    char *text = NULL;
    size_t n = 0;
    rc = ns_file_slurp(path, MAX_INDEX, budget, &text, &n, err);
    if (rc != NS_OK)
        return rc;
    rc = ns_index_parse(list, dir, text, n, budget, err);
    ns_budget_give(budget, text);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "%s", INDEX_NAME);
    for (uint32_t i = 0; i < list->n; i++)
        if (!ns_path_exists(list->file[i].path)) {
            ns_log(NS_LOG_WARN, "%s: stale index: %s is missing, the headers of all *.safetensors decide", path,
                   list->file[i].name);
            ns_file_list_free(list, budget);
            return read_directory(list, dir, budget, err);
        }
    return NS_OK;
}
