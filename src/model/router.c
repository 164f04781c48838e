/* router.c - which rows go to which experts. Scores and choice are the kernel's; here the choices of all rows are turned
 * round into rows per expert, by a counting sort that keeps rows ascending. Rows that failed are left out: they would
 * only cause reads. */
#include "model/model_impl.h"

#include <string.h>

void ns_router_carve(struct ns_pass *pass, struct ns_routing *routing)
{
    const struct ns_config *c = pass->model->config;
    size_t n = pass->n_rows * c->top_k;
    struct ns_arena *a = pass->arena;
    routing->ids = (uint32_t *)ns_arena_take(a, n * sizeof(uint32_t));
    routing->weights = (float *)ns_arena_take(a, n * sizeof(float));
    routing->wanted = (uint32_t *)ns_arena_take(a, c->n_experts * sizeof(uint32_t));
    routing->n_rows = (uint32_t *)ns_arena_take(a, (c->n_experts + 1) * sizeof(uint32_t));
    routing->row = (uint32_t *)ns_arena_take(a, n * sizeof(uint32_t));
    routing->weight = (float *)ns_arena_take(a, n * sizeof(float));
}

static void sort_by_expert(struct ns_pass *pass, struct ns_routing *r)
{
    const struct ns_config *c = pass->model->config;
    uint32_t *count = r->n_rows, k = c->top_k;
    memset(count, 0, (c->n_experts + 1) * sizeof *count);
    for (size_t i = 0; i < pass->n_rows; i++)
        for (uint32_t j = 0; !pass->dead[i] && j < k; j++)
            count[r->ids[i * k + j] + 1]++;
    for (uint32_t e = 0; e < c->n_experts; e++)
        count[e + 1] += count[e]; /* count[e]: where the rows of e start */
    for (size_t i = 0; i < pass->n_rows; i++)
        for (uint32_t j = 0; !pass->dead[i] && j < k; j++) {
            uint32_t at = count[r->ids[i * k + j]]++;
            r->row[at] = (uint32_t)i;
            r->weight[at] = r->weights[i * k + j];
        }
    r->n_wanted = 0; /* count[e] is now where the rows of e end */
    for (uint32_t e = 0, start = 0; e < c->n_experts; e++) {
        uint32_t n = count[e] - start;
        start = count[e];
        if (n == 0)
            continue;
        r->wanted[r->n_wanted] = e;
        r->n_rows[r->n_wanted++] = n; /* n_wanted <= e: overwrites only what was read */
    }
}

void ns_router_run(struct ns_pass *pass, uint32_t layer, float *logits, struct ns_routing *routing)
{
    const struct ns_config *c = pass->model->config;
    struct ns_router router = {.n_experts = c->n_experts,
                               .top_k = c->top_k,
                               .n_groups = c->n_groups,
                               .topk_groups = c->topk_groups,
                               .renormalize = c->renormalize,
                               .scale = c->routed_scale,
                               .bias = pass->model->layer[layer].moe.bias};
    memset(pass->ok, 1, pass->n_rows);
    ns_route(pass->kernels, routing->ids, routing->weights, logits, c->n_experts, pass->n_rows, &router, pass->ok);
    for (size_t i = 0; i < pass->n_rows; i++)
        if (!pass->ok[i] && !pass->dead[i])
            pass->fault(pass->fault_arg, NS_NONFINITE, layer, (uint32_t)i, NS_NO_EXPERT, "router score");
    for (size_t i = 0; pass->tap.row && i < pass->n_rows; i++)
        pass->tap.row(pass->tap.arg, layer, "routed", (uint32_t)i, routing->weights + i * c->top_k,
                      routing->ids + i * c->top_k, c->top_k);
    sort_by_expert(pass, routing);
}
