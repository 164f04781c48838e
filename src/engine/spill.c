/* spill.c - recurrent states in files, for more sequences than memory holds.
 *
 * WHAT   A spilled sequence has one file: for every recurrent layer and group of heads a slice with the state at some
 *        position (the base) and a log of the inputs of the positions since: q, k, v before the convolution, decay and
 *        beta. A wave brings a slice in, replays the log, runs its rows, and either appends those rows to the log or
 *        writes a new base.
 * WHY    A state is 465 MB at K3 size and changes with every token, but the change is fully determined by 14 MB of
 *        inputs. Logging them and rewriting the base every few positions writes about seven times less (drives wear) and
 *        moves fewer bytes in all. Replaying is the same arithmetic in the same order, so the bits are those of a state
 *        in memory.
 *        Only a group of heads is in memory at a time: all sequences of a wave need 0.7 MB each, and reading is under
 *        way while the group's matrices are multiplied.
 * FORMAT [n_kda][groups] slices: base [heads][head floats], log [spill_log][heads][log floats], heads of that group. The
 *        file has no name (it is unlinked when opened): it ends with the process, and tokens are the checkpoint.
 * INVARIANTS
 *   1. A spilled sequence gives the bits of one in memory.                     (spill_test: same_bits)
 *   2. File bytes never exceed the limit.                                       (spill_test: limit_holds)
 *   3. No wave is committed before its writes succeeded.                        (spill_test: failed_io)
 * THREADS  The I/O pool; one request a home at a time. */
#include "engine/engine_impl.h"
#include "sys/sys.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { LOG_DEFAULT = 8, READERS = 4, WINDOW_EXTRA = 8192 };

struct ns_spill {
    struct ns_iopool *pool;
    uint32_t log; /* positions */
    uint32_t group, n_groups, heads;
    size_t head_floats, log_floats; /* of one head: state, logged position */
    size_t slice_bytes;             /* of a full group; every slice has this much room */
    uint64_t file_bytes;            /* of one sequence */
    uint64_t serial;
    struct ns_spill_stats stats;
};

static uint32_t heads_of(const struct ns_spill *s, uint32_t group)
{
    uint32_t left = s->heads - group * s->group;
    return left < s->group ? left : s->group;
}

static uint64_t slice_at(const struct ns_spill *s, uint32_t kda_index, uint32_t group)
{
    return ((uint64_t)kda_index * s->n_groups + group) * s->slice_bytes;
}

void ns_spill_measure(const struct ns_model *model, uint32_t log, struct ns_spill_sizes *out)
{
    const struct ns_config *c = ns_model_config(model);
    uint32_t group = ns_kda_group(model), n_groups = (c->kda_heads + group - 1) / group;
    out->log = log ? log : LOG_DEFAULT;
    out->slice_bytes = group * (ns_kda_head_floats(c) + out->log * ns_kda_log_floats(c)) * sizeof(float);
    out->file_bytes = (uint64_t)ns_model_kda_layers(model) * n_groups * out->slice_bytes;
}

uint64_t ns_spill_limit(const char *dir, uint64_t asked, uint64_t *free_bytes)
{
    char near[4096];
    int n = snprintf(near, sizeof near, "%s", dir);
    char *cut = n > 0 && (size_t)n < sizeof near ? strrchr(near, '/') : NULL;
    *free_bytes = ns_host_free_disk(dir);
    if (*free_bytes == 0 && !ns_path_exists(dir)) { /* it will be made in there */
        if (cut == near)
            cut++;
        if (cut)
            *cut = '\0';
        *free_bytes = ns_host_free_disk(cut ? near : ".");
    }
    uint64_t margin = *free_bytes / 16, most = *free_bytes - margin;
    uint64_t limit = asked ? asked : *free_bytes / 2;
    return limit < most ? limit : most;
}

static void say_limits(const struct ns_engine *e)
{
    const struct ns_plan *p = &e->plan;
    char one[16], limit[16], room[16];
    ns_size_text(p->spill_file_bytes, one);
    ns_size_text(p->spill_bytes, limit);
    ns_size_text(p->spill_free_bytes, room);
    if (p->spill_bytes < p->spill_file_bytes)
        ns_log(NS_LOG_WARN, "a state takes %s, %s may be used in %s: no state is spilled", one, limit,
               e->options.spill_dir);
    else if (p->spill_bytes < e->options.spill_bytes)
        ns_log(NS_LOG_WARN, "%s has %s free: spilled states may take %s", e->options.spill_dir, room, limit);
}

enum ns_code ns_spill_open(struct ns_engine *e, struct ns_error *err)
{
    struct ns_spill *s = (struct ns_spill *)ns_budget_take(e->budget, sizeof *s, err);
    if (!s)
        return NS_BUDGET;
    e->spill = s;
    struct ns_spill_sizes sizes;
    ns_spill_measure(e->model, e->options.spill_log, &sizes);
    s->log = sizes.log;
    s->group = ns_kda_group(e->model);
    s->heads = e->config.kda_heads;
    s->n_groups = (s->heads + s->group - 1) / s->group;
    s->head_floats = ns_kda_head_floats(&e->config);
    s->log_floats = ns_kda_log_floats(&e->config);
    s->slice_bytes = sizes.slice_bytes;
    s->file_bytes = sizes.file_bytes;
    enum ns_code rc = ns_dir_make(e->options.spill_dir, err);
    if (rc == NS_OK)
        say_limits(e);
    if (rc == NS_OK)
        rc = ns_iopool_open(READERS, &s->pool, err);
    return rc;
}

void ns_spill_close(struct ns_engine *e)
{
    if (!e->spill)
        return;
    ns_iopool_close(e->spill->pool);
    ns_budget_give(e->budget, e->spill);
    e->spill = NULL;
}

void ns_engine_spill_stats(const struct ns_engine *e, struct ns_spill_stats *out)
{
    *out = e->spill ? e->spill->stats : (struct ns_spill_stats){0};
}

/* ---- files --------------------------------------------------------------------------------------------------------------------- */

enum ns_code ns_spill_take(struct ns_engine *e, struct ns_spill_file **out, struct ns_error *err)
{
    struct ns_spill *s = e->spill;
    if (s->stats.file_bytes + s->file_bytes > e->plan.spill_bytes)
        return ns_error_set(err, NS_BUDGET,
                            "a spilled state takes %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64 " are used",
                            s->file_bytes, s->stats.file_bytes, e->plan.spill_bytes);
    struct ns_spill_file *file = (struct ns_spill_file *)ns_budget_take(e->budget, sizeof *file, err);
    if (!file)
        return NS_BUDGET;
    char path[4200];
    snprintf(path, sizeof path, "%s/state-%" PRId64 "-%" PRIu64, e->options.spill_dir, ns_host_pid(), s->serial++);
    enum ns_code rc = ns_file_open(path, NS_FILE_CREATE, &file->file, err);
    if (rc == NS_OK)
        rc = ns_file_unlink(path, err);
    if (rc != NS_OK) {
        ns_code_ignore(ns_file_close(file->file, NULL));
        ns_budget_give(e->budget, file);
        return rc;
    }
    s->stats.file_bytes += s->file_bytes;
    s->stats.n_files++;
    *out = file;
    return NS_OK;
}

void ns_spill_give(struct ns_engine *e, struct ns_spill_file *file)
{
    if (!file)
        return;
    e->spill->stats.file_bytes -= e->spill->file_bytes;
    e->spill->stats.n_files--;
    ns_code_ignore(ns_file_close(file->file, NULL)); /* scratch: nobody reads it again */
    ns_budget_give(e->budget, file);
}

bool ns_spill_has_room(const struct ns_engine *e)
{
    return e->spill && e->spill->stats.file_bytes + e->spill->file_bytes <= e->plan.spill_bytes;
}

/* What one more sequence takes of memory for its recurrent state. With N sequences of which S may be in files, N - S are
 * in memory, and each of those in files has a window: the straight line between no sequences and as many as there could
 * ever be is never below that. */
size_t ns_spill_cost(const struct ns_engine *e)
{
    const struct ns_spill *s = e->spill;
    size_t state = e->n_kda * e->kda_layer_floats * sizeof(float);
    if (!s || e->plan.spill_bytes < s->file_bytes)
        return state;
    size_t window = s->slice_bytes + WINDOW_EXTRA, page = ns_page_bytes(e) + sizeof(struct ns_page);
    double most = (double)(ns_pool_bytes(e) / (window + page) + 1),
           files = (double)(e->plan.spill_bytes / s->file_bytes);
    double part = files < most ? 1 - files / most : 0;
    double cost = (double)window + part * (double)state;
    return cost < (double)state ? (size_t)cost : state;
}

enum ns_code ns_spill_out(struct ns_seq *seq, struct ns_error *err)
{
    struct ns_engine *e = seq->engine;
    struct ns_spill_file *file = NULL;
    enum ns_code rc = ns_spill_take(e, &file, err);
    for (uint32_t k = 0; rc == NS_OK && seq->n_positions > 0 && k < e->n_kda; k++)
        rc = ns_spill_put_layer(e, file, k, ns_seq_kda_layer(seq, k), err);
    if (rc != NS_OK) {
        ns_spill_give(e, file);
        return ns_error_wrap(err, rc, "spilled state");
    }
    ns_budget_give(&e->state_share, seq->kda);
    seq->kda = NULL;
    seq->spilled = file;
    return NS_OK;
}

/* The number of the recurrent layer that is the kda_index-th of its kind. */
static uint32_t layer_of(const struct ns_engine *e, uint32_t kda_index)
{
    uint32_t layer = 0;
    for (uint32_t seen = 0;; layer++)
        if (e->config.is_kda[layer] && seen++ == kda_index)
            return layer;
}

enum ns_code ns_spill_get_layer(struct ns_engine *e, const struct ns_spill_file *file, uint32_t kda_index,
                                uint32_t n_logged, float *out, struct ns_error *err)
{
    struct ns_spill *s = e->spill;
    size_t scratch = ns_kda_replay_floats(&e->config) * sizeof(float);
    float *slice = (float *)ns_budget_take_raw(e->budget, s->slice_bytes + scratch, 64, err);
    if (!slice)
        return NS_BUDGET;
    enum ns_code rc = NS_OK;
    for (uint32_t g = 0; rc == NS_OK && g < s->n_groups; g++) {
        uint32_t heads = heads_of(s, g);
        size_t bytes = heads * (s->head_floats + n_logged * s->log_floats) * sizeof(float);
        rc = ns_file_read(file->file, slice, bytes, slice_at(s, kda_index, g), err);
        s->stats.read_bytes += bytes;
        for (uint32_t h = 0; rc == NS_OK && h < heads; h++) {
            float *state = slice + h * s->head_floats, *row = slice + heads * s->head_floats + h * s->log_floats;
            uint32_t head = g * s->group + h;
            ns_kda_replay(e->model, &e->kernels, layer_of(e, kda_index), head, row, heads * s->log_floats, n_logged,
                          state, slice + s->slice_bytes / sizeof(float));
            memcpy(out + head * s->head_floats, state, s->head_floats * sizeof *out);
        }
    }
    ns_budget_give(e->budget, slice);
    return rc;
}

enum ns_code ns_spill_put_layer(struct ns_engine *e, struct ns_spill_file *file, uint32_t kda_index, const float *in,
                                struct ns_error *err)
{
    struct ns_spill *s = e->spill;
    enum ns_code rc = NS_OK;
    for (uint32_t g = 0; rc == NS_OK && g < s->n_groups; g++) {
        size_t bytes = heads_of(s, g) * s->head_floats * sizeof(float);
        rc = ns_file_write(file->file, in + g * s->group * s->head_floats, bytes, slice_at(s, kda_index, g), err);
        s->stats.written_bytes += bytes;
    }
    return rc;
}

/* ---- the window of a wave --------------------------------------------------------------------------------------------------------- */

enum use { USE_READ, USE_APPEND, USE_REWRITE };

struct paged {
    struct ns_spill_file *file;
    uint32_t home, n_before, n_new;
    enum use use;
    bool reads, busy;
    float *slice;
    struct ns_io io;
};

struct ns_spill_window {
    struct ns_engine *engine;
    struct ns_kda_log *log; /* [n_homes] */
    size_t n_homes, n_paged;
    struct paged *paged;
    float *memory;
    float **home_state; /* of the lineage */
    uint32_t kda_index, group;
    bool reading;
    struct ns_kda_pager pager;
};

enum ns_code ns_spill_window_settle(struct ns_spill_window *w, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (size_t i = 0; w && i < w->n_paged; i++) {
        struct paged *p = &w->paged[i];
        if (!p->busy)
            continue;
        enum ns_code one = ns_io_wait(w->engine->spill->pool, &p->io, rc == NS_OK ? err : NULL);
        p->busy = false;
        if (rc == NS_OK && one != NS_OK)
            rc = ns_error_wrap(err, one, "spilled state");
    }
    return rc;
}

static void start(struct ns_spill_window *w, struct paged *p, bool is_write, size_t first_float, size_t n_floats)
{
    struct ns_spill *s = w->engine->spill;
    size_t bytes = n_floats * sizeof(float);
    *(is_write ? &s->stats.written_bytes : &s->stats.read_bytes) += bytes;
    p->io = (struct ns_io){.file = p->file->file,
                           .buffer = p->slice + first_float,
                           .n = bytes,
                           .offset = slice_at(s, w->kda_index, w->group) + first_float * sizeof(float),
                           .is_write = is_write};
    p->busy = true;
    ns_io_start(s->pool, &p->io);
}

static enum ns_code page_begin(void *arg, uint32_t first_head, uint32_t n_heads, struct ns_error *err)
{
    struct ns_spill_window *w = (struct ns_spill_window *)arg;
    struct ns_spill *s = w->engine->spill;
    enum ns_code rc = ns_spill_window_settle(w, err);
    if (rc != NS_OK)
        return rc;
    w->group = first_head / s->group;
    assert(heads_of(s, w->group) == n_heads);
    for (size_t i = 0; i < w->n_paged; i++) {
        struct paged *p = &w->paged[i];
        w->home_state[p->home] = p->slice;
        w->log[p->home] = (struct ns_kda_log){.n = p->reads ? p->n_before : 0,
                                              .first_head = first_head,
                                              .append = p->use == USE_APPEND,
                                              .row = p->slice + n_heads * s->head_floats};
        if (p->reads)
            start(w, p, false, 0, n_heads * (s->head_floats + p->n_before * s->log_floats));
    }
    return NS_OK;
}

static enum ns_code page_ready(void *arg, struct ns_error *err)
{
    return ns_spill_window_settle((struct ns_spill_window *)arg, err);
}

static enum ns_code page_end(void *arg, struct ns_error *err)
{
    struct ns_spill_window *w = (struct ns_spill_window *)arg;
    struct ns_spill *s = w->engine->spill;
    size_t n_heads = heads_of(s, w->group), base = n_heads * s->head_floats, row = n_heads * s->log_floats;
    (void)err;
    for (size_t i = 0; i < w->n_paged; i++) {
        struct paged *p = &w->paged[i];
        if (p->use == USE_APPEND)
            start(w, p, true, base + p->n_before * row, p->n_new * row);
        else if (p->use == USE_REWRITE)
            start(w, p, true, 0, base);
    }
    return NS_OK;
}

static size_t count_spilled(const struct ns_spill_home *home, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += home[i].seq->spilled != NULL;
    return count;
}

enum ns_code ns_spill_window_open(struct ns_engine *e, const struct ns_spill_home *home, size_t n, bool may_append,
                                  struct ns_spill_window **out, struct ns_error *err)
{
    struct ns_spill *s = e->spill;
    size_t n_paged = count_spilled(home, n), next = 0,
           slice = s ? (s->slice_bytes + 63) / 64 * 16 : 0; /* floats, 64-byte steps */
    *out = NULL;
    if (n_paged == 0)
        return NS_OK;
    /* room for the window may push more homes into files */
    for (size_t before = SIZE_MAX; n_paged != before;) {
        before = n_paged;
        enum ns_code rc = ns_pool_make_room(e,
                                            sizeof(struct ns_spill_window) + n * sizeof(struct ns_kda_log) +
                                                n_paged * (sizeof(struct paged) + slice * sizeof(float)),
                                            err);
        if (rc != NS_OK)
            return rc;
        n_paged = count_spilled(home, n);
    }
    struct ns_spill_window *w = (struct ns_spill_window *)ns_budget_take(&e->state_share, sizeof *w, err);
    if (!w)
        return NS_BUDGET;
    w->engine = e;
    w->n_homes = n;
    w->log = (struct ns_kda_log *)ns_budget_take(&e->state_share, n * sizeof *w->log, err);
    w->paged = (struct paged *)ns_budget_take(&e->state_share, n_paged * sizeof *w->paged, err);
    w->memory = (float *)ns_budget_take_raw(&e->state_share, n_paged * slice * sizeof(float), 64, err);
    w->pager = (struct ns_kda_pager){.begin = page_begin, .ready = page_ready, .end = page_end, .arg = w};
    if (!w->log || !w->paged || !w->memory) {
        ns_spill_window_close(w);
        return NS_BUDGET;
    }
    for (size_t i = 0; i < n; i++) {
        const struct ns_spill_home *h = &home[i];
        if (!h->seq->spilled)
            continue;
        uint32_t logged = h->seq->spilled->n_logged;
        bool fits = may_append && h->goes_on && logged + h->n_new <= s->log;
        w->paged[next] = (struct paged){.file = h->seq->spilled,
                                        .home = (uint32_t)i,
                                        .n_before = logged,
                                        .n_new = h->n_new,
                                        .use = h->n_new == 0 ? USE_READ
                                               : fits        ? USE_APPEND
                                                             : USE_REWRITE,
                                        .reads = h->seq->n_positions > 0,
                                        .slice = w->memory + next * slice};
        next++;
    }
    w->n_paged = next;
    *out = w;
    return NS_OK;
}

void ns_spill_window_layer(struct ns_spill_window *w, uint32_t kda_index, float **home_state, struct ns_kda_work *work)
{
    if (!w)
        return;
    w->kda_index = kda_index;
    w->home_state = home_state;
    work->log = w->log;
    work->pager = &w->pager;
}

uint32_t ns_spill_window_logged(const struct ns_spill_window *w, size_t home)
{
    for (size_t i = 0; w && i < w->n_paged; i++)
        if (w->paged[i].home == home)
            return w->paged[i].use == USE_REWRITE
                       ? 0
                       : w->paged[i].n_before + (w->paged[i].use == USE_APPEND ? w->paged[i].n_new : 0);
    return 0;
}

void ns_spill_window_commit(struct ns_spill_window *w)
{
    for (size_t i = 0; w && i < w->n_paged; i++)
        w->paged[i].file->n_logged = ns_spill_window_logged(w, w->paged[i].home);
}

void ns_spill_window_close(struct ns_spill_window *w)
{
    if (!w)
        return;
    ns_code_ignore(ns_spill_window_settle(w, NULL));
    struct ns_budget *share = &w->engine->state_share;
    ns_budget_give(share, w->memory);
    ns_budget_give(share, w->paged);
    ns_budget_give(share, w->log);
    ns_budget_give(share, w);
}
