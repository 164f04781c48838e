/* line.c - a stored result on its way out: the output line, and the text a person wants of it. */
#include "job/job_impl.h"

#include <stdio.h>
#include <string.h>

/* A stored object with one more member at its end. Stored texts are our own, compact JSON objects. */
static void put_with_local(struct ns_json_writer *w, const char *object, const char *local, struct ns_text *scratch)
{
    size_t n = strlen(object);
    ns_text_clear(scratch);
    if (!local || n < 2 || object[n - 1] != '}') {
        ns_json_put_raw(w, object, n);
        return;
    }
    ns_text_add(scratch, object, n - 1);
    ns_text_puts(scratch, object[n - 2] == '{' ? "\"x_local\":" : ",\"x_local\":");
    ns_text_puts(scratch, local);
    ns_text_puts(scratch, "}");
    ns_json_put_raw(w, scratch->data ? scratch->data : "null", scratch->data ? scratch->n : 4);
}

void ns_output_line(struct ns_text *out, int64_t request_id, const char *custom_id, int status, const char *response,
                    const char *error, const char *local)
{
    struct ns_json_writer w;
    struct ns_text scratch;
    char id[40];
    ns_text_init(&scratch, out->budget);
    ns_json_begin(&w, out);
    ns_json_open_object(&w);
    snprintf(id, sizeof id, "batch_req_%" PRId64, request_id);
    ns_json_put_key(&w, "id");
    ns_json_put_cstring(&w, id);
    ns_json_put_key(&w, "custom_id");
    ns_json_put_cstring(&w, custom_id);
    ns_json_put_key(&w, "response");
    if (response) {
        ns_json_open_object(&w);
        ns_json_put_key(&w, "status_code");
        ns_json_put_int(&w, status);
        snprintf(id, sizeof id, "req_%" PRId64, request_id);
        ns_json_put_key(&w, "request_id");
        ns_json_put_cstring(&w, id);
        ns_json_put_key(&w, "body");
        put_with_local(&w, response, local, &scratch);
        ns_json_close_object(&w);
    } else {
        ns_json_put_null(&w);
    }
    ns_json_put_key(&w, "error");
    if (error)
        put_with_local(&w, error, local, &scratch);
    else
        ns_json_put_null(&w);
    ns_json_close_object(&w);
    if (!ns_text_ok(&scratch))
        out->failed = true;
    ns_text_fini(&scratch);
}

enum ns_code ns_result_text(const char *response, const char *error, struct ns_text *out, struct ns_error *err)
{
    struct ns_json *doc = NULL;
    const char *stored = response ? response : error;
    if (!stored)
        return ns_error_set(err, NS_INPUT, "the result is empty");
    enum ns_code rc = ns_json_parse(stored, strlen(stored), &doc, err);
    if (rc != NS_OK)
        return rc;
    const struct ns_json *choices = ns_json_find(doc, "choices");
    int64_t best = 0;
    if (!ns_json_int(ns_json_find(doc, "best"), &best) || best < 0)
        best = 0;
    const struct ns_json *choice = ns_json_type(choices) == NS_JSON_ARRAY ? ns_json_item(choices, (size_t)best) : NULL;
    const struct ns_json *failure = response ? ns_json_find(doc, "error") : doc;
    const char *s = "";
    size_t n = 0;
    bool found = ns_json_string(ns_json_find(ns_json_find(choice, "message"), "content"), &s, &n) ||
                 ns_json_string(ns_json_find(choice, "text"), &s, &n) ||
                 ns_json_string(ns_json_find(failure, "message"), &s, &n);
    ns_text_add(out, s, n);
    ns_json_free(doc);
    if (!found)
        return ns_error_set(err, NS_INPUT, "the result holds no text");
    return ns_text_ok(out) ? NS_OK : ns_error_set(err, NS_BUDGET, "no memory for a text of %zu bytes", n);
}

enum ns_code ns_result_content_hash(const char *stored, struct ns_budget *budget, char hex[NS_SHA256_HEX],
                                    struct ns_error *err)
{
    struct ns_json *doc = NULL;
    enum ns_code rc = ns_json_parse(stored, strlen(stored), &doc, err);
    if (rc != NS_OK)
        return rc;
    struct ns_text bare;
    struct ns_json_writer w;
    ns_text_init(&bare, budget);
    ns_json_begin(&w, &bare);
    ns_json_open_object(&w);
    for (void *it = ns_json_type(doc) == NS_JSON_OBJECT ? ns_json_first(doc) : NULL; it; it = ns_json_next(doc, it)) {
        if (strcmp(ns_json_key(it), "id") == 0 || strcmp(ns_json_key(it), "created") == 0)
            continue;
        ns_json_put_key(&w, ns_json_key(it));
        ns_json_put_value(&w, ns_json_value(it));
    }
    ns_json_close_object(&w);
    if (ns_text_ok(&bare)) {
        uint8_t sum[NS_SHA256_BYTES];
        ns_sha256_of(bare.data, bare.n, sum);
        ns_hex(sum, sizeof sum, hex);
    } else {
        rc = ns_error_set(err, NS_BUDGET, "no memory for %zu bytes of JSON", strlen(stored));
    }
    ns_text_fini(&bare);
    ns_json_free(doc);
    return rc;
}
