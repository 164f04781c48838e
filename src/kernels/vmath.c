/* vmath.c - exp and friends, the scalar definitions.
 *
 * WHAT   One short recipe for each function, built from fused multiply-adds, additions, divisions and integer work on
 *        the bits of a float. vmath_lanes.inc says the same recipes in 16 lanes; both give the same bits.
 * WHY    libm changes its last bits from version to version, and a result must not depend on the machine it ran on.
 *        Every operation used here is rounded once, as IEEE 754 says, on every processor.
 * HOW    exp: x = k ln2 + r with |r| <= ln2/2, e^r - 1 = r + r^2 Q(r), Q of degree 4; 2^k is applied as two factors so
 *        that the subnormal results are rounded once. k comes from adding 1.5 * 2^23, which rounds to an integer.
 *        log: x = 2^k m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(s) with s = f / (2 + f), f = m - 1.
 *        tanh, sigmoid, silu and softplus are those two with care where a difference would cancel or a factor would
 *        be subnormal. Not-a-number in gives not-a-number out; infinities give the limits.
 * ERROR  Worst over all floats, in units in the last place of the exact result (vmath_exhaustive_test):
 *        exp 1.1, log 0.9, log1p 1.4, sigmoid 2.5, tanh 2.5, softplus 1.8, silu 3.4.
 * READING  Cody and Waite, Software Manual for the Elementary Functions, 1980, for the reductions. */
#include "kernels/kernels.h"
#include "kernels/vmath_impl.h"

#include <math.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* e^x = (1 + q) * s1 * s2 with s1 s2 = 2^k. x in [-150, 150]; anything for a not-a-number. */
struct exp_parts {
    float q, s1, s2;
};

static struct exp_parts exp_split(float x)
{
    struct exp_parts e;
    float t = fmaf(x, NS_LOG2_E, NS_ROUND_MAGIC);
    float k = t - NS_ROUND_MAGIC;
    float r = fmaf(k, -NS_LN2_HIGH, x);
    r = fmaf(k, -NS_LN2_LOW, r);
    float p = fmaf(NS_EXP_6, r, NS_EXP_5);
    p = fmaf(p, r, NS_EXP_4);
    p = fmaf(p, r, NS_EXP_3);
    p = fmaf(p, r, NS_EXP_2);
    e.q = fmaf(r * r, p, r);
    uint32_t n = bits_of(t) - NS_ROUND_MAGIC_BITS; /* k, two's complement */
    uint32_t half = ((n + 512) >> 1) - 256;        /* floor(k / 2) without a signed shift */
    e.s1 = float_of((half + 127) << 23);
    e.s2 = float_of((n - half + 127) << 23);
    return e;
}

static float clamp_150(float x)
{
    x = x < -150.0f ? -150.0f : x;
    return x > 150.0f ? 150.0f : x;
}

float ns_vm_exp(float x)
{
    struct exp_parts e = exp_split(clamp_150(x));
    float y = ((1.0f + e.q) * e.s1) * e.s2;
    return x != x ? x : y;
}

/* e^-|x|, never above 1 */
static struct exp_parts exp_split_negative(float x)
{
    float z = -fabsf(x);
    return exp_split(z < -150.0f ? -150.0f : z);
}

float ns_vm_sigmoid(float x)
{
    struct exp_parts p = exp_split_negative(x);
    float e = ((1.0f + p.q) * p.s1) * p.s2;
    float y = (x < 0.0f ? e : 1.0f) / (1.0f + e);
    return x != x ? x : y;
}

float ns_vm_silu(float x)
{
    struct exp_parts p = exp_split_negative(x);
    float m = 1.0f + p.q;
    float e = (m * p.s1) * p.s2;
    float z = x < -150.0f ? -150.0f : x;
    float low = ((z * m) * p.s1) * p.s2; /* x e^x, its subnormal results rounded once */
    float y = (x < 0.0f ? low : x) / (1.0f + e);
    return x != x ? x : y;
}

float ns_vm_tanh(float x)
{
    float a = fabsf(x);
    a = a > 10.0f ? 10.0f : a;
    struct exp_parts p = exp_split(a + a);
    float s = p.s1 * p.s2;
    float t = fmaf(s, p.q, s - 1.0f); /* e^2a - 1 */
    float y = copysignf(t / (t + 2.0f), x);
    return x != x ? x : y;
}

/* log(1 + f) + k ln2 for f in [sqrt(1/2) - 1, sqrt(2) - 1] */
static float log_join(float f, float k)
{
    float s = f / (2.0f + f);
    float z = s * s;
    float p = fmaf(NS_LOG_4, z, NS_LOG_3);
    p = fmaf(p, z, NS_LOG_2);
    p = fmaf(p, z, NS_LOG_1);
    float h = (0.5f * f) * f;
    float low = fmaf(k, NS_LN2_LOW, s * fmaf(p, z, h));
    return fmaf(k, NS_LN2_HIGH, f - (h - low));
}

/* x > 0 normal: k with x 2^-k = 1 + *f */
static uint32_t log_split(float x, float *f)
{
    uint32_t b = bits_of(x) + (NS_ONE_BITS - NS_SQRT_HALF_BITS);
    *f = float_of((b & 0x007fffffu) + NS_SQRT_HALF_BITS) - 1.0f;
    return (b >> 23) - 127;
}

static float float_from_small(uint32_t k) /* |k| < 2^22, two's complement */
{
    return float_of(NS_ROUND_MAGIC_BITS + k) - NS_ROUND_MAGIC;
}

float ns_vm_log(float x)
{
    bool tiny = x < 0x1p-126f;
    float f;
    uint32_t k = log_split(tiny ? x * 0x1p25f : x, &f) - (tiny ? 25u : 0u);
    float y = log_join(f, float_from_small(k));
    y = x == INFINITY ? INFINITY : y;
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x != x ? x : y;
}

float ns_vm_log1p(float x)
{
    float u = 1.0f + x;
    float lost = x - (u - 1.0f); /* what the sum rounded away */
    float f;
    uint32_t k = log_split(u, &f);
    float scale = float_of((127u - k) << 23);
    float g = u < 0x1p60f ? f + lost * scale : f;
    float y = log_join(k == 0 ? x : g, float_from_small(k));
    y = x == INFINITY ? INFINITY : y;
    y = x == -1.0f ? -INFINITY : y;
    y = x < -1.0f ? NAN : y;
    y = x == 0.0f ? x : y;
    return x != x ? x : y;
}

float ns_vm_softplus(float x)
{
    float e = ns_vm_exp(-fabsf(x));
    float y = (x > 0.0f ? x : 0.0f) + ns_vm_log1p(e);
    return x != x ? x : y;
}
