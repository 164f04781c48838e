/* gemm_tile_avx512_impl.h - the register tile of the AVX-512 product: mr weight rows by nr packed rows, one vector of 16
 * lanes for each output.
 *
 * WHAT   tile_run(form, mr, nr, ahead, t) is expanded for each shape; form, mr, nr and ahead are constants there, so every
 *        `if` on them is gone and every accumulator is a register.
 * WHY    K runs through the lanes, so a lane does exactly the fused multiply-adds of the contract, in its order. Weights
 *        are decoded in registers: shift, add and table look-up mostly use ports that the multiply-adds leave free, while
 *        a decoded panel would move eight times the bytes.
 * MXFP4  A broadcast quadword holds 16 codes; shifting its dwords by 0,0,4,4,...,28,28 leaves code m of the low dword in
 *        position 2m and code 8+m in position 2m+1 (the look-up reads 4 bits only). So position 2m+h is lane 8h+m; x is
 *        packed in that order and the fold undoes it. The table has 127 taken off its exponents, so adding scale << 23
 *        gives code * 2^(scale-127) exactly for scales 2..252; the codes +-0 keep their bits, because after an
 *        accumulator underflowed to -0 the sign of a zero product shows. Other scales multiply, exact to the subnormals.
 * TAIL   The last columns below a whole vector: x is padded with -0 and weights with +0, so that lane adds -0, which
 *        changes nothing. */
#ifndef NS_GEMM_TILE_AVX512_IMPL_H
#define NS_GEMM_TILE_AVX512_IMPL_H

#include "kernels/kernels_impl.h"

#include <immintrin.h>
#include <string.h>

#define NS_INLINE static inline __attribute__((always_inline))

enum tile_form { TILE_BF16, TILE_F32, TILE_MX_ADD, TILE_MX_MUL };

/* prefetch: the next rows into L1, or one stream or two into L2 */
enum tile_ahead { AHEAD_ROWS, AHEAD_STREAM, AHEAD_STREAMS };

struct tile {
    const uint8_t *w; /* mr rows at this K block, w_stride bytes apart */
    size_t w_stride;
    const int32_t *scale; /* [32-block][mr]: scale << 23, or the bits of the factor when multiplying */
    const float *x;       /* [K/16][nr][16] */
    size_t n_blocks;      /* whole blocks of 32 columns */
    size_t tail;          /* columns after them, below 32 */
    float *lanes;         /* [mr * nr][16] between K blocks */
    bool first, last;     /* K block: starts from +0, ends in y */
    float *y;             /* [nr][..] with stride ld_y, mr outputs each */
    size_t ld_y;
    __mmask8 n_store; /* which of the four rows of a group are stored */
    bool add;         /* to y */
    const char *stream[2];
};

/* A pointer the compiler must not trace back: it would keep scales of one half of a block for the other, in registers
 * it does not have. */
NS_INLINE const int32_t *opaque(const int32_t *p)
{
    __asm__("" : "+r"(p));
    return p;
}

NS_INLINE __m512 load_tail(enum tile_form form, const uint8_t *w, __mmask16 mask)
{
    if (form == TILE_F32)
        return _mm512_maskz_loadu_ps(mask, w);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, w)), 16));
}

/* the table of a row's block: 2^scale applied to the sixteen codes */
NS_INLINE __m512i scaled_table(enum tile_form form, __m512i table, const int32_t *scale)
{
    if (form == TILE_MX_ADD)
        return _mm512_mask_add_epi32(table, 0xFEFE, table, _mm512_set1_epi32(*scale));
    return _mm512_castps_si512(
        _mm512_mul_ps(_mm512_castsi512_ps(table), _mm512_castsi512_ps(_mm512_set1_epi32(*scale))));
}

NS_INLINE __m512 look_up(const uint8_t *packed, __m512i table, __m512i shifts)
{
    long long codes;
    memcpy(&codes, packed, sizeof codes);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(codes), shifts), _mm512_castsi512_ps(table));
}

/* 16 weights of one row: half 0 or 1 of a block of 32 */
NS_INLINE __m512 weights16(enum tile_form form, const uint8_t *w, int half, const int32_t *scale, __m512i table,
                           __m512i shifts)
{
    if (form == TILE_BF16)
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(w + 32 * half))), 16));
    if (form == TILE_F32)
        return _mm512_loadu_ps(w + 64 * half);
    return look_up(w + 8 * half, scaled_table(form, table, scale), shifts);
}

/* Four outputs of 16 lanes each: folded 8, 4, 2, 1 together. In the order of MXFP4, lanes l and l + 8 are neighbours, then
 * l and l + 4 are two quarters apart, and so on. */
NS_INLINE __m128 fold4(bool mx, __m512 a, __m512 b, __m512 c, __m512 d)
{
    if (mx) {
        __m512 ab = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
        __m512 cd = _mm512_add_ps(_mm512_shuffle_ps(c, d, 0x88), _mm512_shuffle_ps(c, d, 0xDD));
        __m512 v = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x44), _mm512_shuffle_f32x4(ab, cd, 0xEE));
        v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xB1));
        v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xB1));
        return _mm512_castps512_ps128(
            _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), v));
    }
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    __m512 v = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4E));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xB1));
    return _mm512_castps512_ps128(
        _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), v));
}

NS_INLINE void store4(const struct tile *t, float *y, __m128 v)
{
    if (t->add)
        v = _mm_add_ps(_mm_maskz_loadu_ps(t->n_store, y), v);
    _mm_mask_storeu_ps(y, t->n_store, v);
}

/* M(i) for i below n, written out: the accumulators must have constant indices before any loop pass runs */
#define NS_EACH2(M) M(0) M(1)
#define NS_EACH4(M) M(0) M(1) M(2) M(3)
#define NS_EACH6(M) M(0) M(1) M(2) M(3) M(4) M(5)
#define NS_EACH8(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)

/* one step of 16 columns: acc[column][row] += w[row] * x[column] */
NS_INLINE void step4(int nr, __m512 acc[6][8], const __m512 w[4], const float *x)
{
#define NS_COLUMN(c)                                                                                                   \
    if (c < nr) {                                                                                                      \
        const __m512 xc = _mm512_load_ps(x + 16 * c);                                                                  \
        acc[c][0] = _mm512_fmadd_ps(w[0], xc, acc[c][0]);                                                              \
        acc[c][1] = _mm512_fmadd_ps(w[1], xc, acc[c][1]);                                                              \
        acc[c][2] = _mm512_fmadd_ps(w[2], xc, acc[c][2]);                                                              \
        acc[c][3] = _mm512_fmadd_ps(w[3], xc, acc[c][3]);                                                              \
    }
    NS_EACH6(NS_COLUMN)
#undef NS_COLUMN
}

/* Eight rows by one or two: the decode is the limit, so both halves of a block share one scaled table. */
NS_INLINE void block8(enum tile_form form, int nr, __m512 acc[6][8], const struct tile *t, const uint8_t *w,
                      const int32_t *scale, const float *x, __m512i table, __m512i shifts)
{
    const __m512 x00 = _mm512_load_ps(x), x10 = _mm512_load_ps(x + 16 * nr);
    const __m512 x01 = nr > 1 ? _mm512_load_ps(x + 16) : x00, x11 = nr > 1 ? _mm512_load_ps(x + 48) : x10;
#define NS_ROW(r)                                                                                                      \
    {                                                                                                                  \
        const uint8_t *row = w + r * t->w_stride;                                                                      \
        const bool mx = form >= TILE_MX_ADD;                                                                           \
        const __m512i scaled = mx ? scaled_table(form, table, scale + r) : table;                                      \
        const __m512 w0 = mx ? look_up(row, scaled, shifts) : weights16(form, row, 0, scale, table, shifts);           \
        const __m512 w1 = mx ? look_up(row + 8, scaled, shifts) : weights16(form, row, 1, scale, table, shifts);       \
        acc[0][r] = _mm512_fmadd_ps(w0, x00, acc[0][r]);                                                               \
        if (nr > 1)                                                                                                    \
            acc[1][r] = _mm512_fmadd_ps(w0, x01, acc[1][r]);                                                           \
        acc[0][r] = _mm512_fmadd_ps(w1, x10, acc[0][r]);                                                               \
        if (nr > 1)                                                                                                    \
            acc[1][r] = _mm512_fmadd_ps(w1, x11, acc[1][r]);                                                           \
    }
    NS_EACH8(NS_ROW)
#undef NS_ROW
}

NS_INLINE void block4(enum tile_form form, int nr, __m512 acc[6][8], const struct tile *t, const uint8_t *w,
                      const int32_t *scale, const float *x, __m512i table, __m512i shifts)
{
    for (int half = 0; half < 2; half++) {
        __m512 wv[4];
        scale = opaque(scale);
#define NS_ROW(r) wv[r] = weights16(form, w + r * t->w_stride, half, scale + r, table, shifts);
        NS_EACH4(NS_ROW)
#undef NS_ROW
        step4(nr, acc, wv, x + 16 * nr * half);
    }
}

/* the columns after the last whole block, bf16 and f32 only */
NS_INLINE void tail_step(enum tile_form form, int mr, int nr, __m512 acc[6][8], const struct tile *t, const uint8_t *w,
                         const float *x, __mmask16 mask)
{
    __m512 wv[4];
#define NS_ROW(r) wv[r] = load_tail(form, w + r * t->w_stride, mask);
    NS_EACH4(NS_ROW)
#undef NS_ROW
    step4(nr, acc, wv, x);
    if (mr == 8) {
#define NS_ROW(r)                                                                                                      \
    wv[r] = load_tail(form, w + (r + 4) * t->w_stride, mask);                                                          \
    acc[0][r + 4] = _mm512_fmadd_ps(wv[r], _mm512_load_ps(x), acc[0][r + 4]);                                          \
    if (nr > 1)                                                                                                        \
        acc[1][r + 4] = _mm512_fmadd_ps(wv[r], _mm512_load_ps(x + 16), acc[1][r + 4]);
        NS_EACH4(NS_ROW)
#undef NS_ROW
    }
}

NS_INLINE void prefetch_rows(enum tile_form form, int mr, const struct tile *t, const uint8_t *w, size_t block)
{
    if (form >= TILE_MX_ADD && block % 4 != 0) /* a line holds four blocks of a row */
        return;
#define NS_ROW(r)                                                                                                      \
    if (r < mr)                                                                                                        \
        _mm_prefetch((const char *)(w + (size_t)(r + mr) * t->w_stride), _MM_HINT_T0);
    NS_EACH8(NS_ROW)
#undef NS_ROW
}

NS_INLINE void tile_run(const enum tile_form form, const int mr, const int nr, const enum tile_ahead ahead,
                        const struct tile *t)
{
    const bool mx = form >= TILE_MX_ADD;
    const size_t block_bytes = form == TILE_BF16 ? 64 : form == TILE_F32 ? 128 : 16;
    const __m512i shifts = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    __m512i table = _mm512_loadu_si512(ns_e2m1);
    if (form == TILE_MX_ADD)
        table = _mm512_mask_sub_epi32(table, 0xFEFE, table, _mm512_set1_epi32(127 << 23));
    __m512 acc[6][8];
#define NS_ROW(c, r)                                                                                                   \
    if (c < nr && r < mr)                                                                                              \
        acc[c][r] = t->first ? _mm512_setzero_ps() : _mm512_load_ps(t->lanes + 16 * (c * mr + r));
#define NS_COLUMN(c)                                                                                                   \
    NS_ROW(c, 0) NS_ROW(c, 1) NS_ROW(c, 2) NS_ROW(c, 3) NS_ROW(c, 4) NS_ROW(c, 5) NS_ROW(c, 6) NS_ROW(c, 7)
    NS_EACH6(NS_COLUMN)
#undef NS_ROW
    const uint8_t *w = t->w;
    const float *x = t->x;
    const int32_t *scale = t->scale;
    const char *stream = t->stream[0], *other = t->stream[1];
    for (size_t b = 0; b < t->n_blocks; b++) {
        if (ahead == AHEAD_ROWS)
            prefetch_rows(form, mr, t, w, b);
        else
            _mm_prefetch(stream + 64 * b, _MM_HINT_T1);
        if (ahead == AHEAD_STREAMS)
            _mm_prefetch(other + 64 * b, _MM_HINT_T1);
        if (mr == 8)
            block8(form, nr, acc, t, w, scale, x, table, shifts);
        else
            block4(form, nr, acc, t, w, scale, x, table, shifts);
        w += block_bytes;
        x += 32 * nr;
        scale += mr;
    }
    if (!mx)
        for (size_t left = t->tail; left > 0; left -= left < 16 ? left : 16) {
            tail_step(form, mr, nr, acc, t, w, x, (__mmask16)(left < 16 ? (1u << left) - 1 : 0xFFFF));
            w += block_bytes / 2;
            x += 16 * nr;
        }
    if (!t->last) {
#define NS_ROW(c, r)                                                                                                   \
    if (c < nr && r < mr)                                                                                              \
        _mm512_store_ps(t->lanes + 16 * (c * mr + r), acc[c][r]);
        NS_EACH6(NS_COLUMN)
#undef NS_ROW
#undef NS_COLUMN
        return;
    }
#define NS_COLUMN(c)                                                                                                   \
    if (c < nr) {                                                                                                      \
        store4(t, t->y + c * t->ld_y, fold4(mx, acc[c][0], acc[c][1], acc[c][2], acc[c][3]));                          \
        if (mr == 8)                                                                                                   \
            store4(t, t->y + c * t->ld_y + 4, fold4(mx, acc[c][4], acc[c][5], acc[c][6], acc[c][7]));                  \
    }
    NS_EACH6(NS_COLUMN)
#undef NS_COLUMN
}

#endif
