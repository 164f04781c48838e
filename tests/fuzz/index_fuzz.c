/* index_fuzz.c - an index names plain files of the directory, each once, in order. */
#include "fuzz.h"

#include "format/shards_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_budget budget;
    struct ns_file_list list = {0};
    struct ns_error err = {0};
    ns_budget_init(&budget, "fuzz", 64u << 20);
    enum ns_code rc = ns_index_parse(&list, "d", (const char *)data, size, &budget, &err);
    must_explain(rc, &err);
    if (rc == NS_OK) {
        MUST(list.n > 0);
        for (uint32_t i = 0; i < list.n; i++) {
            MUST(list.file[i].name[0] != '\0' && list.file[i].name[0] != '.' && !strchr(list.file[i].name, '/'));
            MUST(strncmp(list.file[i].path, "d/", 2) == 0 && strcmp(list.file[i].path + 2, list.file[i].name) == 0);
            MUST(i == 0 || strcmp(list.file[i - 1].name, list.file[i].name) < 0);
        }
    }
    ns_file_list_free(&list, &budget);
    MUST(ns_budget_used(&budget) == 0);
    return 0;
}
