/* lanes_avx2_impl.h - the words of *_lanes.inc in AVX2 with FMA: 16 floats are two registers. */
#ifndef NS_LANES_AVX2_IMPL_H
#define NS_LANES_AVX2_IMPL_H

#include "kernels/kernels_impl.h"

#include <immintrin.h>
#include <string.h>

#define NS_INLINE static inline __attribute__((always_inline))

typedef struct {
    __m256 a, b;
} v16; /* 16 floats */

typedef struct {
    __m256i a, b;
} u16; /* their bits */

typedef v16 mask16; /* one truth for each: all bits or none */

#define V_TILE_ROWS 2
#define V_TILE_COLS 3
#define V_WIDE      2

NS_INLINE v16 v_set(float f)
{
    return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

NS_INLINE v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

NS_INLINE void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}

/* the first n lanes (1 to 16) from p, the others fill */
NS_INLINE v16 v_load_part(const float *p, size_t n, float fill)
{
    float all[16];
    v_store(all, v_set(fill));
    memcpy(all, p, n * sizeof *p);
    return v_load(all);
}

NS_INLINE void v_store_part(float *p, v16 a, size_t n)
{
    float all[16];
    v_store(all, a);
    memcpy(p, all, n * sizeof *p);
}

NS_INLINE v16 v_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}

NS_INLINE v16 v_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)};
}

NS_INLINE v16 v_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)};
}

NS_INLINE v16 v_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)};
}

NS_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

NS_INLINE v16 v_max(v16 a, v16 b) /* a > b ? a : b */
{
    return (v16){_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)};
}

NS_INLINE v16 v_min(v16 a, v16 b) /* a < b ? a : b */
{
    return (v16){_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)};
}

NS_INLINE mask16 v_lt(v16 a, v16 b)
{
    return (mask16){_mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ)};
}

NS_INLINE mask16 v_eq(v16 a, v16 b)
{
    return (mask16){_mm256_cmp_ps(a.a, b.a, _CMP_EQ_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_EQ_OQ)};
}

NS_INLINE mask16 v_is_nan(v16 a)
{
    return (mask16){_mm256_cmp_ps(a.a, a.a, _CMP_UNORD_Q), _mm256_cmp_ps(a.b, a.b, _CMP_UNORD_Q)};
}

NS_INLINE v16 v_select(mask16 m, v16 yes, v16 no)
{
    return (v16){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}

NS_INLINE bool m_all(mask16 m)
{
    return _mm256_movemask_ps(_mm256_and_ps(m.a, m.b)) == 0xFF;
}

NS_INLINE u16 u_set(uint32_t x)
{
    return (u16){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}

NS_INLINE u16 u_of(v16 a)
{
    return (u16){_mm256_castps_si256(a.a), _mm256_castps_si256(a.b)};
}

NS_INLINE v16 v_of(u16 a)
{
    return (v16){_mm256_castsi256_ps(a.a), _mm256_castsi256_ps(a.b)};
}

NS_INLINE u16 u_add(u16 a, u16 b)
{
    return (u16){_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)};
}

NS_INLINE u16 u_sub(u16 a, u16 b)
{
    return (u16){_mm256_sub_epi32(a.a, b.a), _mm256_sub_epi32(a.b, b.b)};
}

NS_INLINE u16 u_and(u16 a, u16 b)
{
    return (u16){_mm256_and_si256(a.a, b.a), _mm256_and_si256(a.b, b.b)};
}

NS_INLINE u16 u_or(u16 a, u16 b)
{
    return (u16){_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)};
}

NS_INLINE u16 u_shl(u16 a, int n)
{
    return (u16){_mm256_slli_epi32(a.a, n), _mm256_slli_epi32(a.b, n)};
}

NS_INLINE u16 u_shr(u16 a, int n)
{
    return (u16){_mm256_srli_epi32(a.a, n), _mm256_srli_epi32(a.b, n)};
}

/* 8+8, 4+4, 2+2, 1+1 */
NS_INLINE float v_fold(v16 a)
{
    __m256 b = _mm256_add_ps(a.a, a.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#endif
