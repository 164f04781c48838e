/* sidefile_impl.h - private to engine/: streams into and out of checked side files. */
#ifndef NS_ENGINE_SIDEFILE_IMPL_H
#define NS_ENGINE_SIDEFILE_IMPL_H

#include "engine/engine.h"
#include "sys/sys.h"

enum ns_side_kind { NS_SIDE_STATE, NS_SIDE_WAVE };

enum { NS_SIDE_FIELDS = 15 };

struct ns_side_head {
    enum ns_side_kind kind;
    char fingerprint[NS_SHA256_HEX];
    uint64_t field[NS_SIDE_FIELDS];
};

struct ns_side_out {
    struct ns_budget *budget;
    struct ns_file *file;
    struct ns_sha256 *hash;
    uint8_t *buffer;
    size_t n;
    uint64_t at, payload;
};
/* An older file at path goes. After an error of any call: ns_side_abort. finish syncs, closes and frees in any case. */
NS_MUST_CHECK enum ns_code ns_side_create(const char *path, struct ns_budget *budget, struct ns_side_out *out,
                                          struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_side_put(struct ns_side_out *out, const void *bytes, size_t n, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_side_put_u64(struct ns_side_out *out, uint64_t v, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_side_finish(struct ns_side_out *out, const struct ns_side_head *head, uint64_t *bytes,
                                          char checksum[NS_SHA256_HEX], struct ns_error *err);
void ns_side_abort(struct ns_side_out *out);

struct ns_side_in {
    struct ns_budget *budget;
    struct ns_file *file;
    struct ns_sha256 *hash;
    uint8_t *buffer;
    size_t n, used;
    uint64_t at, left;
};
/* fingerprint NULL: any model, and any kind. Errors: NS_CORRUPT with what does not fit, NS_NOINPUT, NS_IO. end: everything was read, and the sums agree. */
NS_MUST_CHECK enum ns_code ns_side_open(const char *path, const char *fingerprint, enum ns_side_kind kind,
                                        struct ns_budget *budget, struct ns_side_in *in, struct ns_side_head *head,
                                        struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_side_get(struct ns_side_in *in, void *bytes, size_t n, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_side_get_u64(struct ns_side_in *in, uint64_t most, uint64_t *out, struct ns_error *err);
NS_MUST_CHECK enum ns_code ns_side_end(struct ns_side_in *in, char checksum[NS_SHA256_HEX], struct ns_error *err);
void ns_side_close(struct ns_side_in *in);

#endif
