/* checkpoint.h - makes small checkpoints for tests: a list of tensors that can be edited, written as sparse files whose
 * data is a hole. For tests only. */
#ifndef NS_TESTS_CHECKPOINT_H
#define NS_TESTS_CHECKPOINT_H

#include "scratch.h"

#include "format/format.h"

struct made_tensor {
    char name[120];
    char dtype[8];
    uint32_t rank;
    uint64_t dim[NS_MAX_RANK];
    uint64_t bytes;
};

struct made {
    struct made_tensor *t;
    size_t n, capacity;
};

static inline struct made_tensor *made_add(struct made *m, const char *name, const char *dtype, size_t elem,
                                           uint32_t rank, uint64_t a, uint64_t b, uint64_t c)
{
    if (m->n == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 1024;
        m->t = realloc(m->t, m->capacity * sizeof *m->t);
        assert_non_null(m->t);
    }
    struct made_tensor *t = &m->t[m->n++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->rank = rank;
    t->dim[0] = a;
    t->dim[1] = b;
    t->dim[2] = c;
    t->bytes = elem * a * (rank > 1 ? b : 1) * (rank > 2 ? c : 1);
    return t;
}

static inline void made_free(struct made *m)
{
    free(m->t);
    memset(m, 0, sizeof *m);
}

/* Drops every tensor whose name contains part; says how many. */
static inline size_t made_drop(struct made *m, const char *part)
{
    size_t kept = 0, before = m->n;
    for (size_t i = 0; i < m->n; i++)
        if (!strstr(m->t[i].name, part))
            m->t[kept++] = m->t[i];
    m->n = kept;
    return before - kept;
}

static inline struct made_tensor *made_find(struct made *m, const char *part)
{
    for (size_t i = 0; i < m->n; i++)
        if (strstr(m->t[i].name, part))
            return &m->t[i];
    fail_msg("no tensor %s", part);
    abort(); /* the compiler does not know that a failure jumps */
}

/* The tensors of a checkpoint directory, without the vision ones. */
static inline void made_load(struct made *m, const char *dir, struct ns_budget *budget)
{
    struct ns_shards *s = NULL;
    struct ns_error err = {0};
    if (ns_shards_open(dir, budget, &s, &err) != NS_OK)
        fail_msg("%s: %s", dir, err.message);
    for (size_t i = 0; i < ns_shards_count(s); i++) {
        const struct ns_tensor *t = ns_shards_at(s, i);
        struct made_tensor *x = made_add(m, t->name, ns_dtype_name(t->dtype), 0, t->rank, 0, 0, 0);
        memcpy(x->dim, t->dim, sizeof x->dim);
        x->bytes = t->bytes;
    }
    ns_shards_close(s);
}

/* Writes tensors [from, to) as one file with a true header; the data is a hole. */
static inline void made_write(const struct made *m, size_t from, size_t to, const char *path)
{
    size_t size = 16;
    for (size_t i = from; i < to; i++)
        size += strlen(m->t[i].name) + 256;
    char *text = malloc(size);
    assert_non_null(text);
    size_t n = 0;
    uint64_t at = 0;
    text[n++] = '{';
    for (size_t i = from; i < to; i++) {
        const struct made_tensor *t = &m->t[i];
        n +=
            (size_t)sprintf(text + n, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > from ? "," : "", t->name, t->dtype);
        for (uint32_t d = 0; d < t->rank; d++)
            n += (size_t)sprintf(text + n, "%s%" PRIu64, d ? "," : "", t->dim[d]);
        n += (size_t)sprintf(text + n, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    text[n++] = '}';
    uint8_t length[8];
    ns_put_le64(length, n);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(length, 1, 8, f), 8);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(truncate(path, (off_t)(8 + n + at)), 0);
    free(text);
}

/* A raw file: length word, header text, data_bytes zeros. */
static inline void raw_shard(struct scratch *s, const char *name, uint64_t length, const char *header,
                             size_t data_bytes)
{
    size_t n = strlen(header);
    uint8_t *all = calloc(1, 8 + n + data_bytes);
    assert_non_null(all);
    ns_put_le64(all, length);
    memcpy(all + 8, header, n);
    scratch_write(s, name, all, 8 + n + data_bytes);
    free(all);
}

/* A whole file, NUL-terminated; free it. */
static inline char *whole_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot read %s", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long size = ftell(f);
    assert_true(size >= 0);
    rewind(f);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, f), (size_t)size);
    text[size] = '\0';
    assert_int_equal(fclose(f), 0);
    if (n)
        *n = (size_t)size;
    return text;
}

/* text with the first occurrence of from replaced by to; it must be there. Frees text. */
static inline char *replaced(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from);
    if (!at)
        fail_msg("'%s' is not in the text", from);
    size_t before = (size_t)(at - text), n = strlen(text) - strlen(from) + strlen(to);
    char *out = malloc(n + 1);
    assert_non_null(out);
    memcpy(out, text, before);
    strcpy(out + before, to);
    strcat(out + before, at + strlen(from));
    free(text);
    return out;
}

static inline void copy_into(struct scratch *s, const char *dir, const char *name)
{
    char path[600];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *bytes = whole_file(path, &n);
    scratch_write(s, name, bytes, n);
    free(bytes);
}

/* Log lines that contain a word are counted. */
struct heard {
    const char *word;
    unsigned n;
};

static inline void hear(void *arg, enum ns_log_level level, const char *line)
{
    struct heard *h = arg;
    (void)level;
    if (strstr(line, h->word))
        h->n++;
}

#endif
