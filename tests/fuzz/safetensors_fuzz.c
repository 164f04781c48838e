/* safetensors_fuzz.c - a tensor that is handed out lies in the file and has the bytes of its shape. */
#include "fuzz.h"

#include "format/format.h"

struct bounds {
    uint64_t data_start, file_bytes;
};

static enum ns_code check(void *arg, const struct ns_tensor *t, struct ns_error *err)
{
    const struct bounds *b = arg;
    (void)err;
    MUST(t->offset >= b->data_start && t->offset <= b->file_bytes && t->bytes <= b->file_bytes - t->offset);
    MUST(t->rank <= NS_MAX_RANK);
    MUST(ns_utf8_valid(t->name, strlen(t->name)));
    uint64_t n = ns_dtype_bytes(t->dtype);
    if (t->dtype != NS_DTYPE_OTHER) {
        bool empty = false;
        for (uint32_t i = 0; i < t->rank; i++)
            empty |= t->dim[i] == 0;
        for (uint32_t i = 0; i < t->rank && !empty; i++) {
            MUST(t->dim[i] <= UINT64_MAX / n);
            n *= t->dim[i];
        }
        MUST(t->bytes == (empty ? 0 : n));
    }
    return NS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_budget budget;
    struct ns_error err = {0};
    ns_budget_init(&budget, "fuzz", 64u << 20);
    if (size < 2)
        return 0;
    uint64_t room = (uint64_t)data[0] | (uint64_t)data[1] << 8; /* bytes of data behind the header */
    struct bounds b = {.data_start = 8 + size - 2, .file_bytes = 8 + size - 2 + room};
    must_explain(
        ns_safetensors_parse((const char *)data + 2, size - 2, b.data_start, b.file_bytes, &budget, check, &b, &err),
        &err);
    MUST(ns_budget_used(&budget) == 0);
    return 0;
}
