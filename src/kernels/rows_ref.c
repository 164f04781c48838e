/* rows_ref.c - the definitions of the row-wise kernels: one function, one row after the other, one rounding at a time.
 * Sums are in 16 lanes (lane = index mod 16, from +0) and fold 8, 4, 2, 1; everything else is one chain or elementwise.
 * rows_lanes.inc says the same in vectors and gives the same bits. */
#include "kernels/kernels_impl.h"

#include <math.h>

static float sum_of_squares(const float *x, size_t n)
{
    return ns_dot_f32(x, x, n);
}

/* y = (x * r) * w with r = 1 / sqrt(sum / n + eps) */
static void rmsnorm(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->ld_x;
        float *y = a->y + i * a->ld_y;
        float r = 1.0f / sqrtf(sum_of_squares(x, a->n) / (float)a->n + a->eps);
        for (size_t j = 0; j < a->n; j++)
            y[j] = (x[j] * r) * a->w[j];
    }
}

/* per head: y = (x * r) * scale with r = 1 / sqrt(sum + eps) */
static void l2norm(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t h = 0; h < a->n_heads; h++) {
            const float *x = a->x + i * a->ld_x + h * a->n;
            float *y = a->y + i * a->ld_y + h * a->n;
            float r = 1.0f / sqrtf(sum_of_squares(x, a->n) + a->eps);
            for (size_t j = 0; j < a->n; j++)
                y[j] = (x[j] * r) * a->scale;
        }
}

/* per head: y = ((x * r) * w) * sigmoid(g) with the r of rmsnorm */
static void gated_norm(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t h = 0; h < a->n_heads; h++) {
            const float *x = a->x + i * a->ld_x + h * a->n;
            const float *g = a->g + i * a->ld_g + h * a->n;
            float *y = a->y + i * a->ld_y + h * a->n;
            float r = 1.0f / sqrtf(sum_of_squares(x, a->n) / (float)a->n + a->eps);
            for (size_t j = 0; j < a->n; j++)
                y[j] = ((x[j] * r) * a->w[j]) * ns_vm_sigmoid(g[j]);
        }
}

static void sigmoid(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < a->n; j++)
            a->y[i * a->ld_y + j] = ns_vm_sigmoid(a->x[i * a->ld_x + j]);
}

static void sigmoid_gate(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < a->n; j++)
            a->y[i * a->ld_y + j] = a->x[i * a->ld_x + j] * ns_vm_sigmoid(a->g[i * a->ld_g + j]);
}

static void silu_mul(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < a->n; j++)
            a->y[i * a->ld_y + j] = ns_vm_silu(a->x[i * a->ld_x + j]) * a->g[i * a->ld_g + j];
}

/* y = ((beta tanh(x / beta)) sigmoid(x)) * (lb tanh(g / lb)), the last bracket g when lb is 0 */
static void situ_mul(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < a->n; j++) {
            float x = a->x[i * a->ld_x + j];
            float up = a->g[i * a->ld_g + j];
            float gate = (a->beta * ns_vm_tanh(x / a->beta)) * ns_vm_sigmoid(x);
            if (a->linear_beta > 0.0f)
                up = a->linear_beta * ns_vm_tanh(up / a->linear_beta);
            a->y[i * a->ld_y + j] = gate * up;
        }
}

static void add(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < a->n; j++)
            a->y[i * a->ld_y + j] = a->x[i * a->ld_x + j] + a->g[i * a->ld_g + j];
}

static bool row_finite(const float *x, size_t n)
{
    for (size_t j = 0; j < n; j++)
        if (!isfinite(x[j]))
            return false;
    return true;
}

static void check_finite(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (!row_finite(a->x + i * a->ld_x, a->n))
            a->ok[i] = 0;
}

/* acc[index[i]] = fma(weight[i], x[i], acc[index[i]]) where x[i] is finite; else acc stays and ok[i] = 0 */
static void expert_add(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->ld_x;
        float *y = a->y + (a->index ? a->index[i] : i) * a->ld_y;
        for (size_t j = 0; j < a->n; j++)
            y[j] = isfinite(x[j]) ? fmaf(a->a[i], x[j], y[j]) : y[j];
        if (a->ok && !row_finite(x, a->n))
            ns_row_fails(&a->ok[i]);
    }
}

/* s_b = dot(v_b, w) * r_b, r_b = 1 / sqrt(dot(v_b, v_b) / n + eps); e_b = exp(s_b - max s); z: e_b in 16 lanes by b;
 * p_b = e_b / z; y[j] = chain over b of fma(p_b, v_b[j], .) from +0. Source n_blocks is x. */
static void mix(const struct ns_rows *a, size_t begin, size_t end)
{
    enum { MOST = 65 };

    for (size_t i = begin; i < end; i++) {
        const float *v[MOST];
        float p[MOST];
        float lane[NS_LANES] = {0};
        float max = -INFINITY;
        size_t n_src = a->n_blocks + 1;
        for (size_t b = 0; b < n_src; b++) {
            v[b] = b < a->n_blocks ? a->block[b] + i * a->ld_block : a->x + i * a->ld_x;
            float r = 1.0f / sqrtf(sum_of_squares(v[b], a->n) / (float)a->n + a->eps);
            p[b] = ns_dot_f32(v[b], a->w, a->n) * r;
            max = p[b] > max ? p[b] : max;
        }
        for (size_t b = 0; b < n_src; b++) {
            p[b] = ns_vm_exp(p[b] - max);
            lane[b % NS_LANES] += p[b];
        }
        float z = ns_fold16(lane);
        for (size_t b = 0; b < n_src; b++)
            p[b] = p[b] / z;
        for (size_t j = 0; j < a->n; j++) {
            float y = 0.0f;
            for (size_t b = 0; b < n_src; b++)
                y = fmaf(p[b], v[b][j], y);
            a->y[i * a->ld_y + j] = y;
        }
    }
}

/* t = x + dt; y = exp(bound * sigmoid(a_h * t)), or exp(-a_h * softplus(t)) without a bound */
static void decay(const struct ns_rows *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < a->n_heads * a->n; j++) {
            float head = a->a[j / a->n];
            float t = a->x[i * a->ld_x + j] + a->w[j];
            float g = a->has_bound ? a->scale * ns_vm_sigmoid(head * t) : -head * ns_vm_softplus(t);
            a->y[i * a->ld_y + j] = ns_vm_exp(g);
        }
}

const ns_rows_fn ns_rows_ref[NS_ROW_OPS] = {
    [NS_ROW_RMSNORM] = rmsnorm,
    [NS_ROW_L2NORM] = l2norm,
    [NS_ROW_GATED_NORM] = gated_norm,
    [NS_ROW_SIGMOID] = sigmoid,
    [NS_ROW_SIGMOID_GATE] = sigmoid_gate,
    [NS_ROW_SILU_MUL] = silu_mul,
    [NS_ROW_SITU_MUL] = situ_mul,
    [NS_ROW_ADD] = add,
    [NS_ROW_FINITE] = check_finite,
    [NS_ROW_MIX] = mix,
    [NS_ROW_DECAY] = decay,
    [NS_ROW_EXPERT_ADD] = expert_add,
};
