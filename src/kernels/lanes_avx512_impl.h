/* lanes_avx512_impl.h - the words of *_lanes.inc in AVX-512: 16 floats are one register. */
#ifndef NS_LANES_AVX512_IMPL_H
#define NS_LANES_AVX512_IMPL_H

#include "kernels/kernels_impl.h"

#include <immintrin.h>

#define NS_INLINE static inline __attribute__((always_inline))

typedef __m512 v16;       /* 16 floats */
typedef __m512i u16;      /* their bits */
typedef __mmask16 mask16; /* one truth for each */

/* register tiles: rows by columns of a product, columns of the KDA state and of attention values in vectors */
#define V_TILE_ROWS 4
#define V_TILE_COLS 6
#define V_WIDE      4

NS_INLINE v16 v_set(float f)
{
    return _mm512_set1_ps(f);
}

NS_INLINE v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

NS_INLINE void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

NS_INLINE mask16 first_lanes(size_t n)
{
    return (mask16)(n < 16 ? (1u << n) - 1 : 0xFFFF);
}

/* the first n lanes (1 to 16) from p, the others fill */
NS_INLINE v16 v_load_part(const float *p, size_t n, float fill)
{
    return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), first_lanes(n), p);
}

NS_INLINE void v_store_part(float *p, v16 a, size_t n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), a);
}

NS_INLINE v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

NS_INLINE v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

NS_INLINE v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

NS_INLINE v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

NS_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

NS_INLINE v16 v_max(v16 a, v16 b) /* a > b ? a : b */
{
    return _mm512_max_ps(a, b);
}

NS_INLINE v16 v_min(v16 a, v16 b) /* a < b ? a : b */
{
    return _mm512_min_ps(a, b);
}

NS_INLINE mask16 v_lt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

NS_INLINE mask16 v_eq(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

NS_INLINE mask16 v_is_nan(v16 a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

NS_INLINE v16 v_select(mask16 m, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

NS_INLINE bool m_all(mask16 m)
{
    return m == 0xFFFF;
}

NS_INLINE u16 u_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

NS_INLINE u16 u_of(v16 a)
{
    return _mm512_castps_si512(a);
}

NS_INLINE v16 v_of(u16 a)
{
    return _mm512_castsi512_ps(a);
}

NS_INLINE u16 u_add(u16 a, u16 b)
{
    return _mm512_add_epi32(a, b);
}

NS_INLINE u16 u_sub(u16 a, u16 b)
{
    return _mm512_sub_epi32(a, b);
}

NS_INLINE u16 u_and(u16 a, u16 b)
{
    return _mm512_and_si512(a, b);
}

NS_INLINE u16 u_or(u16 a, u16 b)
{
    return _mm512_or_si512(a, b);
}

#define u_shl(a, n) _mm512_slli_epi32(a, n)
#define u_shr(a, n) _mm512_srli_epi32(a, n)

/* 8+8, 4+4, 2+2, 1+1 */
NS_INLINE float v_fold(v16 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#endif
