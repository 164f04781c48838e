/* route.c - from router logits to chosen experts and their weights, grouped top-k included.
 * The sigmoid is a row kernel; the choice is a few compares a row and has one form for every instruction set. */
#include "kernels/kernels_impl.h"

#include <assert.h>
#include <math.h>

enum { MOST_CHOSEN = 64, MOST_GROUPS = 64 };

struct choice {
    float score; /* biased, decides */
    uint32_t id;
};

/* Insertion into best[0..n), which falls; a later equal score goes behind, so ties keep the lower id first. */
static void keep_best(struct choice *best, size_t n, float score, uint32_t id)
{
    if (!(score > best[n - 1].score))
        return;
    size_t at = n - 1;
    for (; at > 0 && score > best[at - 1].score; at--)
        best[at] = best[at - 1];
    best[at] = (struct choice){score, id};
}

static void clear_best(struct choice *best, size_t n)
{
    for (size_t i = 0; i < n; i++)
        best[i] = (struct choice){-INFINITY, 0};
}

/* the sum of the two largest biased scores of one group */
static float group_score(const float *r, const struct ns_router *router, size_t first, size_t n)
{
    struct choice best[2];
    clear_best(best, 2);
    for (size_t e = first; e < first + n; e++)
        keep_best(best, 2, r[e] + router->bias[e], 0);
    return n > 1 ? best[0].score + best[1].score : best[0].score;
}

/* which groups may be chosen from; all of them unless groups are limited */
static void open_groups(bool open[MOST_GROUPS], const float *r, const struct ns_router *router)
{
    bool limited = router->n_groups > 1 && router->n_groups > router->topk_groups;
    size_t n = router->n_experts / router->n_groups;
    struct choice best[MOST_GROUPS];
    for (size_t g = 0; g < router->n_groups; g++)
        open[g] = !limited;
    if (!limited)
        return;
    clear_best(best, router->topk_groups);
    for (size_t g = 0; g < router->n_groups; g++)
        keep_best(best, router->topk_groups, group_score(r, router, g * n, n), (uint32_t)g);
    for (size_t i = 0; i < router->topk_groups; i++)
        open[best[i].id] = true;
}

static bool scores_finite(const float *r, const struct ns_router *router)
{
    for (size_t e = 0; e < router->n_experts; e++)
        if (!isfinite(r[e] + router->bias[e]))
            return false;
    return true;
}

static void route_row(uint32_t *ids, float *weights, const float *r, const struct ns_router *router)
{
    struct choice best[MOST_CHOSEN];
    bool open[MOST_GROUPS];
    size_t top_k = router->top_k;
    size_t group = router->n_experts / router->n_groups;
    open_groups(open, r, router);
    clear_best(best, top_k);
    for (size_t e = 0; e < router->n_experts; e++)
        if (open[e / group])
            keep_best(best, top_k, r[e] + router->bias[e], (uint32_t)e);
    float sum = 0.0f;
    for (size_t i = 0; i < top_k; i++)
        sum = sum + r[best[i].id];
    bool divide = router->renormalize && top_k > 1;
    for (size_t i = 0; i < top_k; i++) { /* insertion sort by id; weights follow */
        size_t at = i;
        for (; at > 0 && ids[at - 1] > best[i].id; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        float w = r[best[i].id];
        ids[at] = best[i].id;
        weights[at] = (divide ? w / (sum + 1e-20f) : w) * router->scale;
    }
}

struct route_call {
    const struct ns_router *router;
    uint32_t *ids;
    float *weights;
    const float *scores;
    size_t ld;
    uint8_t *ok;
};

static void route_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    (void)thread;
    const struct route_call *c = arg;
    size_t top_k = c->router->top_k;
    for (size_t i = begin; i < end; i++) {
        const float *r = c->scores + i * c->ld;
        if (scores_finite(r, c->router)) {
            route_row(c->ids + i * top_k, c->weights + i * top_k, r, c->router);
            continue;
        }
        c->ok[i] = 0;
        for (size_t j = 0; j < top_k; j++) {
            c->ids[i * top_k + j] = (uint32_t)j;
            c->weights[i * top_k + j] = 0.0f;
        }
    }
}

void ns_route(const struct ns_kernels *k, uint32_t *ids, float *weights, float *logits, size_t ld, size_t n_rows,
              const struct ns_router *router, uint8_t *ok)
{
    assert(router->top_k > 0 && router->top_k <= MOST_CHOSEN && router->top_k <= router->n_experts);
    assert(router->n_groups > 0 && router->n_groups <= MOST_GROUPS && router->n_experts % router->n_groups == 0);
    assert(router->topk_groups > 0 && router->topk_groups <= router->n_groups);
    assert(router->n_experts / router->n_groups * router->topk_groups >= router->top_k);
    ns_sigmoid_rows(k, logits, ld, logits, ld, n_rows, router->n_experts);
    struct route_call c = {router, ids, weights, logits, ld, ok};
    unsigned n_threads = ns_threads_for(k, 3.5 * (double)n_rows * (double)router->n_experts);
    ns_parallel(n_threads, n_rows, 1, route_range, &c);
}
