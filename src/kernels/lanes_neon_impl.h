/* lanes_neon_impl.h - the words of *_lanes.inc in NEON: 16 floats are four registers. */
#ifndef NS_LANES_NEON_IMPL_H
#define NS_LANES_NEON_IMPL_H

#include "kernels/kernels_impl.h"

#include <arm_neon.h>
#include <string.h>

#define NS_INLINE static inline __attribute__((always_inline))

typedef struct {
    float32x4_t a, b, c, d;
} v16; /* 16 floats */

typedef struct {
    uint32x4_t a, b, c, d;
} u16; /* their bits */

typedef u16 mask16; /* one truth for each: all bits or none */

#define V_TILE_ROWS 2
#define V_TILE_COLS 3
#define V_WIDE      2

NS_INLINE v16 v_set(float f)
{
    float32x4_t v = vdupq_n_f32(f);
    return (v16){v, v, v, v};
}

NS_INLINE v16 v_load(const float *p)
{
    return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

NS_INLINE void v_store(float *p, v16 a)
{
    vst1q_f32(p, a.a);
    vst1q_f32(p + 4, a.b);
    vst1q_f32(p + 8, a.c);
    vst1q_f32(p + 12, a.d);
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
    return (v16){vaddq_f32(a.a, b.a), vaddq_f32(a.b, b.b), vaddq_f32(a.c, b.c), vaddq_f32(a.d, b.d)};
}

NS_INLINE v16 v_sub(v16 a, v16 b)
{
    return (v16){vsubq_f32(a.a, b.a), vsubq_f32(a.b, b.b), vsubq_f32(a.c, b.c), vsubq_f32(a.d, b.d)};
}

NS_INLINE v16 v_mul(v16 a, v16 b)
{
    return (v16){vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b), vmulq_f32(a.c, b.c), vmulq_f32(a.d, b.d)};
}

NS_INLINE v16 v_div(v16 a, v16 b)
{
    return (v16){vdivq_f32(a.a, b.a), vdivq_f32(a.b, b.b), vdivq_f32(a.c, b.c), vdivq_f32(a.d, b.d)};
}

NS_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b), vfmaq_f32(c.c, a.c, b.c),
                 vfmaq_f32(c.d, a.d, b.d)};
}

NS_INLINE v16 v_max(v16 a, v16 b) /* a > b ? a : b */
{
    return (v16){vbslq_f32(vcgtq_f32(a.a, b.a), a.a, b.a), vbslq_f32(vcgtq_f32(a.b, b.b), a.b, b.b),
                 vbslq_f32(vcgtq_f32(a.c, b.c), a.c, b.c), vbslq_f32(vcgtq_f32(a.d, b.d), a.d, b.d)};
}

NS_INLINE v16 v_min(v16 a, v16 b) /* a < b ? a : b */
{
    return (v16){vbslq_f32(vcltq_f32(a.a, b.a), a.a, b.a), vbslq_f32(vcltq_f32(a.b, b.b), a.b, b.b),
                 vbslq_f32(vcltq_f32(a.c, b.c), a.c, b.c), vbslq_f32(vcltq_f32(a.d, b.d), a.d, b.d)};
}

NS_INLINE mask16 v_lt(v16 a, v16 b)
{
    return (mask16){vcltq_f32(a.a, b.a), vcltq_f32(a.b, b.b), vcltq_f32(a.c, b.c), vcltq_f32(a.d, b.d)};
}

NS_INLINE mask16 v_eq(v16 a, v16 b)
{
    return (mask16){vceqq_f32(a.a, b.a), vceqq_f32(a.b, b.b), vceqq_f32(a.c, b.c), vceqq_f32(a.d, b.d)};
}

NS_INLINE mask16 v_is_nan(v16 a)
{
    return (mask16){vmvnq_u32(vceqq_f32(a.a, a.a)), vmvnq_u32(vceqq_f32(a.b, a.b)), vmvnq_u32(vceqq_f32(a.c, a.c)),
                    vmvnq_u32(vceqq_f32(a.d, a.d))};
}

NS_INLINE v16 v_select(mask16 m, v16 yes, v16 no)
{
    return (v16){vbslq_f32(m.a, yes.a, no.a), vbslq_f32(m.b, yes.b, no.b), vbslq_f32(m.c, yes.c, no.c),
                 vbslq_f32(m.d, yes.d, no.d)};
}

NS_INLINE bool m_all(mask16 m)
{
    return vminvq_u32(vandq_u32(vandq_u32(m.a, m.b), vandq_u32(m.c, m.d))) == UINT32_MAX;
}

NS_INLINE u16 u_set(uint32_t x)
{
    uint32x4_t v = vdupq_n_u32(x);
    return (u16){v, v, v, v};
}

NS_INLINE u16 u_of(v16 a)
{
    return (u16){vreinterpretq_u32_f32(a.a), vreinterpretq_u32_f32(a.b), vreinterpretq_u32_f32(a.c),
                 vreinterpretq_u32_f32(a.d)};
}

NS_INLINE v16 v_of(u16 a)
{
    return (v16){vreinterpretq_f32_u32(a.a), vreinterpretq_f32_u32(a.b), vreinterpretq_f32_u32(a.c),
                 vreinterpretq_f32_u32(a.d)};
}

NS_INLINE u16 u_add(u16 a, u16 b)
{
    return (u16){vaddq_u32(a.a, b.a), vaddq_u32(a.b, b.b), vaddq_u32(a.c, b.c), vaddq_u32(a.d, b.d)};
}

NS_INLINE u16 u_sub(u16 a, u16 b)
{
    return (u16){vsubq_u32(a.a, b.a), vsubq_u32(a.b, b.b), vsubq_u32(a.c, b.c), vsubq_u32(a.d, b.d)};
}

NS_INLINE u16 u_and(u16 a, u16 b)
{
    return (u16){vandq_u32(a.a, b.a), vandq_u32(a.b, b.b), vandq_u32(a.c, b.c), vandq_u32(a.d, b.d)};
}

NS_INLINE u16 u_or(u16 a, u16 b)
{
    return (u16){vorrq_u32(a.a, b.a), vorrq_u32(a.b, b.b), vorrq_u32(a.c, b.c), vorrq_u32(a.d, b.d)};
}

NS_INLINE u16 u_shl(u16 a, int n)
{
    return (u16){vshlq_u32(a.a, vdupq_n_s32(n)), vshlq_u32(a.b, vdupq_n_s32(n)), vshlq_u32(a.c, vdupq_n_s32(n)),
                 vshlq_u32(a.d, vdupq_n_s32(n))};
}

NS_INLINE u16 u_shr(u16 a, int n)
{
    return (u16){vshlq_u32(a.a, vdupq_n_s32(-n)), vshlq_u32(a.b, vdupq_n_s32(-n)), vshlq_u32(a.c, vdupq_n_s32(-n)),
                 vshlq_u32(a.d, vdupq_n_s32(-n))};
}

/* 8+8, 4+4, 2+2, 1+1 */
NS_INLINE float v_fold(v16 a)
{
    float32x4_t b = vaddq_f32(vaddq_f32(a.a, a.c), vaddq_f32(a.b, a.d));
    float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}

#endif
