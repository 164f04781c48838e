/* kda_ref.c - short convolution and the gated delta rule, by their definitions. */
#include "kernels/kernels_impl.h"

#include <math.h>
#include <string.h>

/* the input of position t - back, which may lie before the first row */
static const float *input_row(const float *x, size_t ld_x, const float *history, size_t ld_h, size_t n_taps, size_t t,
                              size_t back)
{
    return t >= back ? x + (t - back) * ld_x : history + (n_taps - 1 + t - back) * ld_h;
}

/* y[t][c] = silu(chain over rising j of fma(w[c][j], in[t - (n_taps - 1) + j][c], .) from +0) */
void ns_short_conv_ref(float *y, size_t ld_y, const float *x, size_t ld_x, const float *w, size_t n_taps,
                       const float *history, size_t ld_h, size_t n, size_t n_ch)
{
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < n_ch; c++) {
            float sum = 0.0f;
            for (size_t j = 0; j < n_taps; j++)
                sum = fmaf(w[c * n_taps + j], input_row(x, ld_x, history, ld_h, n_taps, t, n_taps - 1 - j)[c], sum);
            y[t * ld_y + c] = ns_vm_silu(sum);
        }
}

void ns_short_conv(const struct ns_kernels *k, float *y, size_t ld_y, const float *x, size_t ld_x, const float *w,
                   size_t n_taps, float *history, size_t ld_h, size_t n, size_t n_ch)
{
    k->table->short_conv(y, ld_y, x, ld_x, w, n_taps, history, ld_h, n, n_ch);
    /* what comes before position n; rising order, so a row is read before it is overwritten */
    for (size_t j = 0; j + 1 < n_taps; j++)
        memmove(history + j * ld_h, input_row(x, ld_x, history, ld_h, n_taps, n, n_taps - 1 - j),
                n_ch * sizeof *history);
}

/* S *= alpha by key row; u = k S, c = beta (v - u), S += k c, o = q S; u and o are chains over the key index from +0 */
void ns_kda_run_ref(float *state, float *o, size_t ld_o, const float *q, size_t ld_q, const float *key, size_t ld_k,
                    const float *v, size_t ld_v, const float *alpha, size_t ld_alpha, const float *beta, size_t ld_beta,
                    size_t n, size_t d, float *scratch)
{
    float *c = scratch;
    float *out = scratch + d;
    for (size_t t = 0; t < n; t++) {
        memset(c, 0, d * sizeof *c);
        memset(out, 0, d * sizeof *out);
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++) {
                state[i * d + j] = state[i * d + j] * alpha[t * ld_alpha + i];
                c[j] = fmaf(key[t * ld_k + i], state[i * d + j], c[j]);
            }
        for (size_t j = 0; j < d; j++)
            c[j] = beta[t * ld_beta] * (v[t * ld_v + j] - c[j]);
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++) {
                state[i * d + j] = fmaf(key[t * ld_k + i], c[j], state[i * d + j]);
                out[j] = fmaf(q[t * ld_q + i], state[i * d + j], out[j]);
            }
        memcpy(o + t * ld_o, out, d * sizeof *out);
    }
}

void ns_kda_run(const struct ns_kernels *k, float *state, float *o, size_t ld_o, const float *q, size_t ld_q,
                const float *key, size_t ld_k, const float *v, size_t ld_v, const float *alpha, size_t ld_alpha,
                const float *beta, size_t ld_beta, size_t n, size_t d, float *scratch)
{
    k->table->kda_run(state, o, ld_o, q, ld_q, key, ld_k, v, ld_v, alpha, ld_alpha, beta, ld_beta, n, d, scratch);
}
