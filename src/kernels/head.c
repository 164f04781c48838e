/* head.c - log-softmax over the vocabulary in blocks, and the best tokens of each row. */
#include "kernels/kernels_impl.h"

#include <assert.h>
#include <math.h>

/* max and the 16-lane sum of exp(l - max), lane = place in the block mod 16 */
bool ns_head_block_ref(const float *logits, size_t n, float *max, float *sum)
{
    float lane[NS_LANES] = {0};
    float m = -INFINITY;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        m = logits[i] > m ? logits[i] : m;
        finite = finite && isfinite(logits[i]);
    }
    m = m + 0.0f; /* -0 becomes +0 */
    for (size_t i = 0; i < n; i++)
        lane[i % NS_LANES] += ns_vm_exp(logits[i] - m);
    *max = m;
    *sum = ns_fold16(lane);
    return finite;
}

/* Behind everything that is not smaller: equal logits keep the lower id, which came first. */
static void keep_top(struct ns_head_row *row, float logit, uint32_t id)
{
    uint32_t at = row->n_kept;
    if (at == row->n_top) {
        if (!(logit > row->top_logit[at - 1]))
            return;
        at--;
    } else {
        row->n_kept++;
    }
    for (; at > 0 && logit > row->top_logit[at - 1]; at--) {
        row->top_logit[at] = row->top_logit[at - 1];
        row->top_id[at] = row->top_id[at - 1];
    }
    row->top_logit[at] = logit;
    row->top_id[at] = id;
}

static void top_of_block(struct ns_head_row *row, const float *logits, size_t n, size_t first, float max)
{
    if (row->n_kept == row->n_top && !(max > row->top_logit[row->n_top - 1]))
        return; /* nothing here is better than the worst kept */
    for (size_t i = 0; i < n; i++)
        if (row->n_kept < row->n_top || logits[i] > row->top_logit[row->n_top - 1])
            keep_top(row, logits[i], (uint32_t)(first + i));
}

struct head_call {
    const struct ns_kernel_table *table;
    struct ns_head_row *row;
    float *block_max, *block_sum;
    size_t ld_b;
    const float *logits;
    size_t ld, first, n;
};

static void head_range(void *arg, size_t begin, size_t end, unsigned thread)
{
    (void)thread;
    const struct head_call *c = arg;
    for (size_t i = begin; i < end; i++)
        for (size_t at = 0; at < c->n; at += NS_HEAD_BLOCK) {
            size_t n = c->n - at < NS_HEAD_BLOCK ? c->n - at : NS_HEAD_BLOCK;
            size_t slot = i * c->ld_b + (c->first + at) / NS_HEAD_BLOCK;
            const float *l = c->logits + i * c->ld + at;
            if (!c->table->head_block(l, n, &c->block_max[slot], &c->block_sum[slot]))
                c->row[i].finite = false;
            top_of_block(&c->row[i], l, n, c->first + at, c->block_max[slot]);
        }
}

void ns_head_blocks(const struct ns_kernels *k, struct ns_head_row *row, float *block_max, float *block_sum,
                    size_t ld_b, const float *logits, size_t ld, size_t n_rows, size_t first, size_t n)
{
    assert(first % NS_HEAD_BLOCK == 0);
    struct head_call c = {k->table, row, block_max, block_sum, ld_b, logits, ld, first, n};
    unsigned n_threads = ns_threads_for(k, 0.6 * (double)n_rows * (double)n);
    ns_parallel(n_threads, n_rows, 1, head_range, &c);
}

void ns_head_finish(const struct ns_kernels *k, const float *block_max, const float *block_sum, size_t n_blocks,
                    float *max, float *log_sum)
{
    (void)k;
    float m = -INFINITY;
    for (size_t b = 0; b < n_blocks; b++)
        m = block_max[b] > m ? block_max[b] : m;
    float z = 0.0f;
    for (size_t b = 0; b < n_blocks; b++)
        z = fmaf(block_sum[b], ns_vm_exp(block_max[b] - m), z);
    *max = m;
    *log_sum = ns_vm_log(z);
}
