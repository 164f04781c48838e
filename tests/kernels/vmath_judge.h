/* vmath_judge.h - worst error of a scalar function over a range of bit patterns, against double precision. */
#ifndef NS_TEST_VMATH_JUDGE_H
#define NS_TEST_VMATH_JUDGE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

struct judged {
    const char *name;
    float (*ours)(float);
    double (*exact)(double);
    double limit_ulp; /* as stated in vmath.c */
};

struct judgement {
    double worst_ulp;
    float at;
};

static double exact_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

static double exact_silu(double x)
{
    return isinf(x) ? fmax(x, 0) : x * exact_sigmoid(x);
}

static double exact_softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

static const struct judged judged[] = {
    {"exp", ns_vm_exp, exp, 1.1},          {"log", ns_vm_log, log, 0.9},
    {"log1p", ns_vm_log1p, log1p, 1.4},    {"sigmoid", ns_vm_sigmoid, exact_sigmoid, 2.5},
    {"tanh", ns_vm_tanh, tanh, 2.5},       {"softplus", ns_vm_softplus, exact_softplus, 1.8},
    {"silu", ns_vm_silu, exact_silu, 3.4},
};
static const size_t judged_count = sizeof judged / sizeof judged[0];

/* in units in the last place of the exact value, subnormals included */
static double error_ulp(float ours, double exact)
{
    if (isnan(exact) || isnan(ours))
        return isnan(exact) && isnan(ours) ? 0 : INFINITY;
    float rounded = (float)exact;
    if (isinf(rounded) || isinf(ours))
        return rounded == ours ? 0 : INFINITY;
    uint64_t bits; /* the exponent alone is the power of two below */
    memcpy(&bits, &exact, sizeof bits);
    bits &= (uint64_t)0x7ff << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return fabs((double)ours - exact) / (fmax(power, 0x1p-126) * 0x1p-23);
}

static struct judgement judge(const struct judged *f, uint64_t first, uint64_t end, uint64_t step)
{
    struct judgement j = {0, 0};
    for (uint64_t b = first; b < end; b += step) {
        uint32_t u = (uint32_t)b;
        float x;
        memcpy(&x, &u, sizeof x);
        double d = error_ulp(f->ours(x), f->exact((double)x));
        if (!(d <= j.worst_ulp)) {
            j.worst_ulp = d;
            j.at = x;
        }
    }
    return j;
}

#endif
