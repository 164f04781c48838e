/* attend_ref.c - absorbed attention by its definition: one query, one position at a time. */
#include "kernels/kernels_impl.h"

#include <assert.h>
#include <math.h>

size_t ns_attend_scratch_ref(size_t n_q, size_t n_positions, size_t d_key)
{
    (void)n_q;
    (void)d_key;
    return n_positions * sizeof(float);
}

/* s = scale * dot(q, key), m = max s, p = exp(s - m), z = p in 16 lanes by position, out = (chain of fma(p, key)) / z */
static void one_query(float *out, const float *q, size_t n_visible, const struct ns_key_run *span, size_t n_spans,
                      size_t d_key, size_t d_value, float scale, float *p)
{
    float lane[NS_LANES] = {0};
    float max = -INFINITY;
    size_t at = 0;
    for (size_t r = 0; r < n_spans; r++)
        for (size_t s = 0; s < span[r].n && at < n_visible; s++, at++) {
            p[at] = scale * ns_dot_f32(q, span[r].rows + s * span[r].ld, d_key);
            max = p[at] > max ? p[at] : max;
        }
    assert(at == n_visible);
    for (size_t s = 0; s < n_visible; s++) {
        p[s] = ns_vm_exp(p[s] - max);
        lane[s % NS_LANES] += p[s];
    }
    float z = ns_fold16(lane);
    for (size_t c = 0; c < d_value; c++)
        out[c] = 0.0f;
    at = 0;
    for (size_t r = 0; r < n_spans; r++)
        for (size_t s = 0; s < span[r].n && at < n_visible; s++, at++)
            for (size_t c = 0; c < d_value; c++)
                out[c] = fmaf(p[at], span[r].rows[s * span[r].ld + c], out[c]);
    for (size_t c = 0; c < d_value; c++)
        out[c] = out[c] / z;
}

void ns_attend_ref(float *out, size_t ld_out, const float *q, size_t ld_q, size_t n_q, const uint32_t *n_visible,
                   const struct ns_key_run *span, size_t n_spans, size_t d_key, size_t d_value, float scale,
                   void *scratch)
{
    for (size_t i = 0; i < n_q; i++)
        one_query(out + i * ld_out, q + i * ld_q, n_visible[i], span, n_spans, d_key, d_value, scale, scratch);
}

size_t ns_attend_scratch(const struct ns_kernels *k, size_t n_q, size_t n_positions, size_t d_key)
{
    return ns_round_up(k->table->attend_scratch(n_q, n_positions, d_key), NS_ALIGN);
}

void ns_attend(const struct ns_kernels *k, float *out, size_t ld_out, const float *q, size_t ld_q, size_t n_q,
               const uint32_t *n_visible, const struct ns_key_run *span, size_t n_spans, size_t d_key, size_t d_value,
               float scale, void *scratch)
{
    k->table->attend(out, ld_out, q, ld_q, n_q, n_visible, span, n_spans, d_key, d_value, scale, scratch);
}
