/* safetensors.c - the header of one weight file.
 *
 * FORMAT   bytes 0..7     N, unsigned 64-bit little-endian
 *          bytes 8..8+N-1 one JSON object: name -> {"dtype": "BF16", "shape": [r, c], "data_offsets": [begin, end]};
 *                         the key __metadata__ holds free strings and is skipped
 *          bytes 8+N..    data; offsets count from here, with no alignment whatever
 * WHY      The header is the only description of a hundred gigabytes, and it came over a network. For every entry the
 *          range is checked before anything else is believed, also for element types this program has never heard of.
 * INVARIANTS
 *   1. A tensor that is handed out lies in the file, and for known types its range has exactly the bytes of its shape.
 *                                                  (safetensors_test: c31_unknown_type_is_range_checked, hostile_entries)
 *   2. Memory is one name, time one pass.                                      (shards_test: half_a_million_tensors) */
#include "format/format_impl.h"

#include "json/json.h"

#include <stdio.h>
#include <string.h>

static const struct dtype_row {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [NS_DTYPE_U8] = {"U8", 1},     [NS_DTYPE_BF16] = {"BF16", 2},   [NS_DTYPE_F16] = {"F16", 2},
    [NS_DTYPE_F32] = {"F32", 4},   [NS_DTYPE_F64] = {"F64", 8},     [NS_DTYPE_I8] = {"I8", 1},
    [NS_DTYPE_I16] = {"I16", 2},   [NS_DTYPE_I32] = {"I32", 4},     [NS_DTYPE_I64] = {"I64", 8},
    [NS_DTYPE_BOOL] = {"BOOL", 1}, [NS_DTYPE_OTHER] = {"other", 0},
};

size_t ns_dtype_bytes(enum ns_dtype dtype)
{
    return (unsigned)dtype < NS_COUNT(dtypes) ? dtypes[dtype].bytes : 0;
}

const char *ns_dtype_name(enum ns_dtype dtype)
{
    return (unsigned)dtype < NS_COUNT(dtypes) ? dtypes[dtype].name : "other";
}

/* One entry as it stands in the file. */
struct entry {
    struct ns_tensor tensor;
    bool has_dtype, has_shape, has_offsets, too_many_dims;
    uint64_t begin, end;
};

static enum ns_code read_dtype(struct ns_json_scan *s, struct entry *e, struct ns_error *err)
{
    const char *name;
    size_t n;
    enum ns_code rc = ns_json_scan_string(s, &name, &n, err);
    if (rc != NS_OK)
        return rc;
    e->tensor.dtype = NS_DTYPE_OTHER;
    for (size_t i = 0; i < NS_DTYPE_OTHER; i++)
        if (strcmp(name, dtypes[i].name) == 0)
            e->tensor.dtype = (enum ns_dtype)i;
    if (e->tensor.dtype == NS_DTYPE_OTHER) {
        size_t keep = n < sizeof e->tensor.other - 1 ? n : sizeof e->tensor.other - 1;
        for (size_t i = 0; i < keep; i++)
            e->tensor.other[i] = name[i] > 0x20 && name[i] < 0x7F ? name[i] : '?';
    }
    e->has_dtype = true;
    return NS_OK;
}

static enum ns_code read_shape(struct ns_json_scan *s, struct entry *e, struct ns_error *err)
{
    bool more;
    enum ns_code rc = ns_json_scan_open(s, '[', err);
    while (rc == NS_OK && (rc = ns_json_scan_element(s, &more, err)) == NS_OK && more) {
        uint64_t dim;
        rc = ns_json_scan_u64(s, &dim, err);
        if (rc == NS_OK && e->tensor.rank < NS_MAX_RANK)
            e->tensor.dim[e->tensor.rank++] = dim;
        else
            e->too_many_dims = true;
    }
    e->has_shape = true;
    return rc;
}

static enum ns_code read_offsets(struct ns_json_scan *s, struct entry *e, struct ns_error *err)
{
    bool more;
    uint64_t v[2] = {0, 0};
    size_t n = 0;
    enum ns_code rc = ns_json_scan_open(s, '[', err);
    while (rc == NS_OK && (rc = ns_json_scan_element(s, &more, err)) == NS_OK && more) {
        uint64_t offset;
        rc = ns_json_scan_u64(s, &offset, err);
        if (n < 2)
            v[n] = offset;
        n++;
    }
    if (rc != NS_OK)
        return rc;
    if (n != 2)
        return ns_error_set(err, NS_INPUT, "data_offsets has %zu numbers, 2 were expected", n);
    e->begin = v[0];
    e->end = v[1];
    e->has_offsets = true;
    return NS_OK;
}

static enum ns_code read_entry(struct ns_json_scan *s, struct entry *e, struct ns_error *err)
{
    const char *key;
    size_t n;
    enum ns_code rc = ns_json_scan_open(s, '{', err);
    while (rc == NS_OK && (rc = ns_json_scan_key(s, &key, &n, err)) == NS_OK && key) {
        bool *had = strcmp(key, "dtype") == 0          ? &e->has_dtype
                    : strcmp(key, "shape") == 0        ? &e->has_shape
                    : strcmp(key, "data_offsets") == 0 ? &e->has_offsets
                                                       : NULL;
        if (had && *had)
            return ns_error_set(err, NS_INPUT, "%s stands twice", key);
        if (!had)
            rc = ns_json_scan_skip(s, err);
        else if (had == &e->has_dtype)
            rc = read_dtype(s, e, err);
        else if (had == &e->has_shape)
            rc = read_shape(s, e, err);
        else
            rc = read_offsets(s, e, err);
    }
    if (rc != NS_OK)
        return rc;
    if (!e->has_dtype || !e->has_shape || !e->has_offsets)
        return ns_error_set(err, NS_INPUT, "%s is missing",
                            !e->has_offsets ? "data_offsets"
                            : !e->has_shape ? "shape"
                                            : "dtype");
    return NS_OK;
}

/* Where the entry must lie. Ends beyond the file are noted in *need_bytes and told at the end of the header. */
static enum ns_code check_range(struct entry *e, uint64_t data_start, uint64_t *need_bytes, struct ns_error *err)
{
    uint64_t last;
    if (e->begin > e->end)
        return ns_error_set(err, NS_INPUT, "begins at %" PRIu64 " and ends at %" PRIu64, e->begin, e->end);
    if (__builtin_add_overflow(data_start, e->end, &last))
        return ns_error_set(err, NS_INPUT, "end %" PRIu64 " overflows", e->end);
    e->tensor.offset = data_start + e->begin;
    e->tensor.bytes = e->end - e->begin;
    *need_bytes = last;
    if (e->too_many_dims)
        return ns_error_set(err, NS_INPUT, "has more than %d dimensions", NS_MAX_RANK);
    uint64_t want = ns_dtype_bytes(e->tensor.dtype);
    if (want == 0)
        return NS_OK; /* unknown type: the range is all there is to check */
    for (uint32_t i = 0; i < e->tensor.rank; i++)
        if (__builtin_mul_overflow(want, e->tensor.dim[i], &want))
            return ns_error_set(err, NS_INPUT, "dimension %" PRIu32 " (%" PRIu64 ") overflows", i, e->tensor.dim[i]);
    if (want != e->tensor.bytes)
        return ns_error_set(err, NS_INPUT, "its shape needs %" PRIu64 " bytes, its range has %" PRIu64, want,
                            e->tensor.bytes);
    return NS_OK;
}

struct header {
    uint64_t data_start, file_bytes;
    uint64_t need_bytes;     /* the largest end beyond the file, or 0 */
    struct ns_text name;     /* of the current tensor */
    struct ns_text furthest; /* the tensor that ends at need_bytes */
    ns_tensor_each_fn each;
    void *arg;
};

static enum ns_code read_tensor(struct header *h, struct ns_json_scan *s, struct ns_error *err)
{
    struct entry e;
    memset(&e, 0, sizeof e);
    uint64_t need = 0;
    enum ns_code rc = read_entry(s, &e, err);
    if (rc == NS_OK)
        rc = check_range(&e, h->data_start, &need, err);
    if (rc != NS_OK)
        return ns_error_wrap(err, rc, "tensor %.100s", h->name.data);
    if (need > h->file_bytes) {
        if (need > h->need_bytes) {
            h->need_bytes = need;
            ns_text_clear(&h->furthest);
            ns_text_format(&h->furthest, "%.100s", h->name.data);
        }
        return NS_OK;
    }
    e.tensor.name = h->name.data;
    return h->each(h->arg, &e.tensor, err);
}

static enum ns_code read_header(struct header *h, struct ns_json_scan *s, struct ns_error *err)
{
    const char *key;
    size_t n;
    bool had_metadata = false;
    enum ns_code rc = ns_json_scan_open(s, '{', err);
    while (rc == NS_OK && (rc = ns_json_scan_key(s, &key, &n, err)) == NS_OK && key) {
        if (strcmp(key, "__metadata__") == 0) {
            if (had_metadata)
                return ns_error_set(err, NS_INPUT, "__metadata__ stands twice");
            had_metadata = true;
            rc = ns_json_scan_skip(s, err);
            continue;
        }
        ns_text_clear(&h->name);
        ns_text_puts(&h->name, key);
        if (!ns_text_ok(&h->name))
            return ns_error_set(err, NS_BUDGET, "no memory for a tensor name of %zu bytes", n);
        rc = read_tensor(h, s, err);
    }
    if (rc == NS_OK)
        rc = ns_json_scan_end(s, err);
    if (rc == NS_OK && h->need_bytes > 0)
        return ns_error_set(err, NS_INPUT,
                            "the file has %" PRIu64 " bytes, its header calls for %" PRIu64 " (tensor %s ends there)",
                            h->file_bytes, h->need_bytes, ns_text_ok(&h->furthest) ? h->furthest.data : "?");
    return rc;
}

enum ns_code ns_safetensors_parse(const char *header, size_t n, uint64_t data_start, uint64_t file_bytes,
                                  struct ns_budget *budget, ns_tensor_each_fn each, void *arg, struct ns_error *err)
{
    struct header h = {.data_start = data_start, .file_bytes = file_bytes, .each = each, .arg = arg};
    struct ns_json_scan s;
    ns_json_scan_init(&s, header, n, budget);
    ns_text_init(&h.name, budget);
    ns_text_init(&h.furthest, budget);
    enum ns_code rc = read_header(&h, &s, err);
    ns_text_fini(&h.furthest);
    ns_text_fini(&h.name);
    ns_json_scan_fini(&s);
    return rc;
}
