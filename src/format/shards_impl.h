/* shards_impl.h - private to the room: which files make up a checkpoint. */
#ifndef NS_SHARDS_IMPL_H
#define NS_SHARDS_IMPL_H

#include "format/format_impl.h"

struct ns_shard_file {
    char *path;       /* owned */
    const char *name; /* the last part of path */
    uint64_t bytes;
};

struct ns_file_list {
    struct ns_shard_file *file;
    uint32_t n, capacity;
};

/* The weight files of dir in the order of their names: those of the index when all of them exist, else every
 * *.safetensors there ("stale index" goes to the log). NS_NOINPUT when there is none, NS_INPUT for a bad index. */
NS_MUST_CHECK enum ns_code ns_file_list_read(struct ns_file_list *list, const char *dir, struct ns_budget *budget,
                                             struct ns_error *err);
void ns_file_list_free(struct ns_file_list *list, struct ns_budget *budget);
/* The file names of an index text; for ns_file_list_read and its fuzz target. Paths are dir/name. */
NS_MUST_CHECK enum ns_code ns_index_parse(struct ns_file_list *list, const char *dir, const char *text, size_t n,
                                          struct ns_budget *budget, struct ns_error *err);

#endif
