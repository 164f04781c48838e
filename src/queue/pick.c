/* pick.c - who is next: classes, age, fair shares, look-ahead, and suspects alone.
 *
 * WHAT   Each (batch, priority) with waiting requests is a stream in the order of the pick index. Of the streams with
 *        the best class the batch that was served least (tokens per weight) gives the next request; within a stream up
 *        to LOOK_AHEAD requests are looked at and one of the same group as the last is preferred.
 * WHY    Small jobs must not wait behind a big one, and requests with a common beginning should travel together; both
 *        reorder, so both are bounded: a request is passed over at most PASS_LIMIT times, it rises a class per day, and
 *        every eighth place goes to the oldest of all.
 *        Requests that were in flight when runners died are suspects. Half of those with the highest count run, with
 *        nobody innocent; a committed wave clears them, a death doubles down on them. So a culprit is alone after about
 *        log2 of the set, and no innocent request is ever blamed for it.
 * INVARIANTS
 *   1. No request is passed over more than PASS_LIMIT times in its stream.   (claim_test: overtaking_is_bounded)
 *   2. A batch of long requests cannot starve one of short ones.             (claim_test: shares_are_fair)
 *   3. While there are suspects, only suspects run.                          (claim_test: suspects_are_halved) */
#include "queue/queue_impl.h"

#include <string.h>

#define LOOK_AHEAD   64
#define PASS_LIMIT   64
#define STREAMS_MAX  256
#define OLDEST_EVERY 8
#define DAY_MS       INT64_C(86400000)

struct candidate {
    int64_t id, enqueued_at, group_key, cost, skips;
    bool passed;
};

struct stream {
    int64_t batch_id, priority, weight;
    sqlite3_stmt *stmt;      /* owned; NULL when exhausted */
    struct candidate *ahead; /* [LOOK_AHEAD], owned */
    size_t n;
    int64_t last_group;
    bool has_last;
};

struct picking {
    struct ns_runner *r;
    int64_t now;
    struct stream *stream; /* [STREAMS_MAX], owned */
    size_t n;
};

/* ---- streams --------------------------------------------------------------------------------------------------------- */

static enum ns_code fill(struct picking *p, struct stream *s, struct ns_error *err)
{
    while (s->stmt && s->n < LOOK_AHEAD) {
        int rc = sqlite3_step(s->stmt);
        if (rc != SQLITE_ROW) {
            enum ns_code code = rc == SQLITE_DONE ? NS_OK : ns_sql_fail(p->r->q, rc, "reading candidates", err);
            sqlite3_finalize(s->stmt);
            s->stmt = NULL;
            return code;
        }
        s->ahead[s->n++] = (struct candidate){.id = sqlite3_column_int64(s->stmt, 0),
                                              .enqueued_at = sqlite3_column_int64(s->stmt, 1),
                                              .group_key = sqlite3_column_int64(s->stmt, 2),
                                              .cost = sqlite3_column_int64(s->stmt, 3),
                                              .skips = sqlite3_column_int64(s->stmt, 4)};
    }
    return NS_OK;
}

static enum ns_code open_stream(struct picking *p, int64_t batch_id, int64_t priority, int64_t weight,
                                struct ns_error *err)
{
    struct stream *s = &p->stream[p->n];
    *s = (struct stream){.batch_id = batch_id, .priority = priority, .weight = weight};
    s->ahead = ns_budget_take(p->r->budget, LOOK_AHEAD * sizeof *s->ahead, err);
    if (!s->ahead)
        return NS_BUDGET;
    p->n++;
    static const char sql[] = "SELECT id, enqueued_at, IFNULL(group_key, 0), cost, skips FROM requests"
                              " WHERE batch_id = ? AND priority = ? AND state = 'queued' AND not_before <= ?"
                              " ORDER BY not_before, id";
    int rc = sqlite3_prepare_v2(p->r->q->db, sql, -1, &s->stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(s->stmt, 1, batch_id);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(s->stmt, 2, priority);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(s->stmt, 3, p->now);
    return rc == SQLITE_OK ? fill(p, s, err) : ns_sql_fail(p->r->q, rc, "reading candidates", err);
}

static enum ns_code open_streams(struct picking *p, struct ns_error *err)
{
    sqlite3_stmt *stmt = NULL;
    enum ns_code rc = ns_sql_rows(
        p->r->q, &stmt, err,
        "SELECT DISTINCT b.id, r.priority, b.weight FROM batches b JOIN requests r ON r.batch_id = b.id AND"
        " r.state = 'queued' WHERE b.status = 'in_progress' AND b.held = 0 AND (b.model_id IS NULL OR b.model_id = ?1)"
        " AND NOT EXISTS (SELECT 1 FROM batches a WHERE a.id = b.after_batch AND (a.status NOT IN ('completed', "
        "'failed',"
        "   'expired', 'cancelled') OR (b.after_rule = 'ok' AND (a.status <> 'completed' OR EXISTS"
        "   (SELECT 1 FROM requests f WHERE f.batch_id = a.id AND f.state <> 'done')))))"
        " ORDER BY r.priority, b.id LIMIT 256",
        "i", p->r->model_id);
    while (ns_sql_more(p->r->q, stmt, &rc, err))
        if (p->n < STREAMS_MAX)
            rc = open_stream(p, sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1),
                             sqlite3_column_int64(stmt, 2), err);
    return rc;
}

static void close_streams(struct picking *p)
{
    for (size_t i = 0; i < p->n; i++) {
        sqlite3_finalize(p->stream[i].stmt);
        ns_budget_give(p->r->budget, p->stream[i].ahead);
    }
    ns_budget_give(p->r->budget, p->stream);
}

/* ---- shares ------------------------------------------------------------------------------------------------------------ */

static struct ns_share *find_share(struct ns_runner *r, int64_t batch_id)
{
    for (size_t i = 0; i < r->n_shares; i++)
        if (r->share[i].batch_id == batch_id)
            return &r->share[i];
    return NULL;
}

/* Every batch in the race has a share; a new one, or one that was away, starts level with the least served. */
static enum ns_code level_shares(struct picking *p, struct ns_error *err)
{
    struct ns_runner *r = p->r;
    double least = -1;
    for (size_t i = 0; i < p->n; i++) {
        struct ns_share *s = find_share(r, p->stream[i].batch_id);
        if (s && (least < 0 || s->served < least))
            least = s->served;
    }
    for (size_t i = 0; i < p->n; i++) {
        if (find_share(r, p->stream[i].batch_id))
            continue;
        if (r->n_shares == r->share_capacity) {
            size_t capacity = r->share_capacity ? r->share_capacity * 2 : 16;
            struct ns_share *grown = ns_budget_resize(r->budget, r->share, capacity * sizeof *grown, err);
            if (!grown)
                return NS_BUDGET;
            r->share = grown;
            r->share_capacity = capacity;
        }
        r->share[r->n_shares++] = (struct ns_share){p->stream[i].batch_id, least < 0 ? 0 : least};
    }
    /* forget batches that are not in the race any more */
    size_t kept = 0;
    for (size_t k = 0; k < r->n_shares; k++) {
        bool racing = false;
        for (size_t i = 0; i < p->n; i++)
            racing = racing || p->stream[i].batch_id == r->share[k].batch_id;
        if (racing)
            r->share[kept++] = r->share[k];
    }
    r->n_shares = kept;
    return NS_OK;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------------- */

/* Age raises a request by one class per day, never above 1. */
static int64_t class_of(const struct picking *p, const struct stream *s)
{
    int64_t days = (p->now - s->ahead[0].enqueued_at) / DAY_MS;
    int64_t raised = s->priority - (days > 0 ? days : 0);
    return s->priority <= 1 ? s->priority : raised < 1 ? 1 : raised;
}

static struct stream *choose_stream(struct picking *p)
{
    struct stream *best = NULL;
    bool oldest = p->r->picks % OLDEST_EVERY == OLDEST_EVERY - 1;
    for (size_t i = 0; i < p->n; i++) {
        struct stream *s = &p->stream[i];
        if (s->n == 0)
            continue;
        bool better;
        if (!best) {
            better = true;
        } else if (oldest) {
            better = s->ahead[0].enqueued_at < best->ahead[0].enqueued_at;
        } else {
            int64_t mine = class_of(p, s), theirs = class_of(p, best);
            double served = find_share(p->r, s->batch_id)->served, beats = find_share(p->r, best->batch_id)->served;
            better = mine < theirs || (mine == theirs && served < beats);
        }
        if (better)
            best = s;
    }
    return best;
}

static size_t choose_ahead(const struct stream *s)
{
    if (!s->has_last || s->ahead[0].skips >= PASS_LIMIT)
        return 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->ahead[i].group_key == s->last_group)
            return i;
        if (s->ahead[i].skips >= PASS_LIMIT) /* nobody behind it may pass it */
            return 0;
    }
    return 0;
}

static struct candidate take_ahead(struct stream *s, size_t at)
{
    struct candidate c = s->ahead[at];
    for (size_t i = 0; i < at; i++) {
        s->ahead[i].skips++;
        s->ahead[i].passed = true;
    }
    memmove(s->ahead + at, s->ahead + at + 1, (s->n - at - 1) * sizeof *s->ahead);
    s->n--;
    s->last_group = c.group_key;
    s->has_last = true;
    return c;
}

static enum ns_code keep_skips(struct picking *p, struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    for (size_t i = 0; rc == NS_OK && i < p->n; i++)
        for (size_t k = 0; rc == NS_OK && k < p->stream[i].n; k++)
            if (p->stream[i].ahead[k].passed)
                rc = ns_sql_run(p->r->q, err, "UPDATE requests SET skips = ? WHERE id = ?", "ii",
                                p->stream[i].ahead[k].skips, p->stream[i].ahead[k].id);
    return rc;
}

static enum ns_code pick_streams(struct picking *p, size_t max, uint64_t bytes, int64_t *id, size_t *n,
                                 struct ns_error *err)
{
    enum ns_code rc = open_streams(p, err);
    if (rc == NS_OK)
        rc = level_shares(p, err);
    uint64_t used = 0;
    while (rc == NS_OK && *n < max) {
        struct stream *s = choose_stream(p);
        if (!s)
            break;
        size_t at = choose_ahead(s);
        uint64_t estimate = (uint64_t)s->ahead[at].cost * 4;
        if (bytes > 0 && *n > 0 && used + estimate > bytes)
            break;
        struct candidate c = take_ahead(s, at);
        used += estimate;
        id[(*n)++] = c.id;
        find_share(p->r, s->batch_id)->served += (double)c.cost / (double)s->weight;
        p->r->picks++;
        rc = fill(p, s, err);
    }
    for (size_t i = 0; i < p->n; i++) { /* no open cursor while rows change */
        sqlite3_finalize(p->stream[i].stmt);
        p->stream[i].stmt = NULL;
    }
    return rc == NS_OK ? keep_skips(p, err) : rc;
}

/* ---- suspects ------------------------------------------------------------------------------------------------------------ */

static enum ns_code pick_suspects(struct ns_runner *r, size_t max, int64_t *id, size_t *n, struct ns_error *err)
{
    int64_t worst = 0, count = 0;
    bool found = false;
    enum ns_code rc = ns_sql_value(r->q, &worst, &found, err,
                                   "SELECT MAX(suspect) FROM requests WHERE suspect >= 2 AND state = 'queued'", "");
    if (rc != NS_OK || !found)
        return rc;
    rc = ns_sql_value(r->q, &count, NULL, err,
                      "SELECT COUNT(*) FROM requests WHERE suspect >= 2 AND state = 'queued' AND suspect = ?", "i",
                      worst);
    if (rc != NS_OK)
        return rc;
    int64_t half = (count + 1) / 2;
    sqlite3_stmt *stmt = NULL;
    rc = ns_sql_rows(
        r->q, &stmt, err,
        "SELECT id FROM requests WHERE suspect >= 2 AND state = 'queued' AND suspect = ? ORDER BY id LIMIT ?", "ii",
        worst, half < (int64_t)max ? half : (int64_t)max);
    while (ns_sql_more(r->q, stmt, &rc, err))
        id[(*n)++] = sqlite3_column_int64(stmt, 0);
    return rc;
}

enum ns_code ns_pick(struct ns_runner *r, int64_t now_ms, size_t max, uint64_t estimate_bytes, int64_t *id, size_t *n,
                     bool *alone, struct ns_error *err)
{
    *n = 0;
    enum ns_code rc = pick_suspects(r, max, id, n, err);
    *alone = *n > 0;
    if (rc != NS_OK || *alone)
        return rc;
    struct picking p = {.r = r, .now = now_ms};
    p.stream = ns_budget_take(r->budget, STREAMS_MAX * sizeof *p.stream, err);
    if (!p.stream)
        return NS_BUDGET;
    rc = pick_streams(&p, max, estimate_bytes, id, n, err);
    close_streams(&p);
    return rc;
}
