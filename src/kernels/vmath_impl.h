/* vmath_impl.h - the constants that vmath.c and vmath_lanes.inc share. */
#ifndef NS_VMATH_IMPL_H
#define NS_VMATH_IMPL_H

#define NS_LOG2_E           0x1.715476p+0f
#define NS_LN2_HIGH         0x1.62e4p-1f /* 15 bits: exact times any k */
#define NS_LN2_LOW          0x1.7f7d1cp-20f
#define NS_ROUND_MAGIC      0x1.8p23f /* x + this rounds x to an integer, for |x| < 2^22 */
#define NS_ROUND_MAGIC_BITS 0x4b400000u
#define NS_ONE_BITS         0x3f800000u
#define NS_SQRT_HALF_BITS   0x3f3504f3u

/* (e^r - 1 - r) / r^2 on |r| <= ln2 / 2: interpolation in the Chebyshev points */
#define NS_EXP_2 0x1p-1f
#define NS_EXP_3 0x1.5554dcp-3f
#define NS_EXP_4 0x1.55551ap-5f
#define NS_EXP_5 0x1.120b6ep-7f
#define NS_EXP_6 0x1.6d110ap-10f

/* (2 atanh(s) - 2 s) / s^3 in z = s^2 on [0, 0.02945]: the same */
#define NS_LOG_1 0x1.555556p-1f
#define NS_LOG_2 0x1.9999ecp-2f
#define NS_LOG_3 0x1.245c3ap-2f
#define NS_LOG_4 0x1.ddd0bep-3f

#endif
