/* dot_ref.c - the canonical dot product and the exact values of stored weights. */
#include "kernels/kernels_impl.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const float ns_e2m1[NS_LANES] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float ns_e8m0(uint8_t scale)
{
    if (scale == 0)
        return float_of(0x00400000u); /* 2^-127 is subnormal */
    return scale == 255 ? NAN : float_of((uint32_t)scale << 23);
}

float ns_fold16(float lane[NS_LANES])
{
    for (size_t half = NS_LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

/* dot_f32: sum of a[i] * b[i]. 16 lanes from +0; lane l takes i = l mod 16 in rising order, one fused multiply-add
 * each; then lanes fold 8, 4, 2, 1. n may be 0. The tail goes to its lanes, the others are left as they are. */
float ns_dot_f32(const float *a, const float *b, size_t n)
{
    float lane[NS_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % NS_LANES] = fmaf(a[i], b[i], lane[i % NS_LANES]);
    return ns_fold16(lane);
}

size_t ns_weight_row_bytes(enum ns_weight_type type, size_t cols)
{
    return type == NS_W_BF16 ? cols * 2 : type == NS_W_F32 ? cols * 4 : cols / 2;
}

void ns_widen_bf16(float *out, const uint8_t *bf16, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = float_of((uint32_t)bf16[2 * i] << 16 | (uint32_t)bf16[2 * i + 1] << 24);
}

void ns_decode_row(const struct ns_weights *w, size_t r, float *out)
{
    assert(r < w->rows);
    const uint8_t *row = (const uint8_t *)w->data + r * ns_weight_row_bytes(w->type, w->cols);
    switch (w->type) {
    case NS_W_BF16:
        ns_widen_bf16(out, row, w->cols);
        break;
    case NS_W_F32:
        memcpy(out, row, w->cols * sizeof *out);
        break;
    case NS_W_MXFP4:
        for (size_t c = 0; c < w->cols; c++)
            out[c] = ns_e2m1[c % 2 == 0 ? row[c / 2] & 15 : row[c / 2] >> 4] *
                     ns_e8m0(w->scale[r * (w->cols / 32) + c / 32]);
        break;
    }
}

/* Under 253 (2^126) the codes 4 and 6 overflow, under 254 the code 2 and up; 255 is no number. */
static bool group_sound(uint8_t scale, const uint8_t *packed)
{
    if (scale == 255)
        return false;
    uint8_t first_bad = scale == 254 ? 4 : 6;
    for (size_t i = 0; i < 16; i++)
        if ((packed[i] & 7) >= first_bad || (packed[i] >> 4 & 7) >= first_bad)
            return false;
    return true;
}

bool ns_mxfp4_sound(const struct ns_kernels *k, const struct ns_weights *w)
{
    (void)k;
    const uint8_t *packed = w->data;
    size_t n_groups = w->rows * (w->cols / 32);
    uint8_t largest = 0;
    for (size_t g = 0; g < n_groups; g++)
        largest = w->scale[g] > largest ? w->scale[g] : largest;
    for (size_t g = 0; largest > 252 && g < n_groups; g++)
        if (w->scale[g] > 252 && !group_sound(w->scale[g], packed + g * 16))
            return false;
    return true;
}

void ns_transpose_bf16(uint16_t *out, const uint16_t *w, size_t rows, size_t cols)
{
    enum { TILE = 32 };

    for (size_t r0 = 0; r0 < rows; r0 += TILE)
        for (size_t c0 = 0; c0 < cols; c0 += TILE)
            for (size_t c = c0; c < c0 + TILE && c < cols; c++)
                for (size_t r = r0; r < r0 + TILE && r < rows; r++)
                    out[c * rows + r] = w[r * cols + c];
}

float ns_fma_burst_ref(size_t steps)
{
    float lane[NS_LANES] = {0};
    for (size_t i = 0; i < steps; i++)
        for (size_t l = 0; l < NS_LANES; l++)
            lane[l] = fmaf(1e-9f, (float)l, lane[l]);
    return ns_fold16(lane);
}

float ns_read_burst_ref(const float *p, size_t n)
{
    float lane[NS_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % NS_LANES] += p[i];
    return ns_fold16(lane);
}
