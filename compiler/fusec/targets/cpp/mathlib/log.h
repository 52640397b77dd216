// Logarithms.
//
// log(x) = e ln 2 + log(1 + f) with x = 2^e (1 + f) and 1 + f between sqrt(1/2) and sqrt(2). The
// exponent becomes a double by way of the low bits of 2^52, for want of a conversion in AVX2.

//@ name: _log_poly.f32
//@ method: (log(1 + f) - f) / f^2, minimax of degree 8
//@ rounded: yes
//@ chains: p
FX_INLINE float fx_log_poly(float f)
{
    float p = -0x1.38fb50p-4f;
    p = __builtin_fmaf(p, f, 0x1.0574c2p-3f);
    p = __builtin_fmaf(p, f, -0x1.0d8410p-3f);
    p = __builtin_fmaf(p, f, 0x1.22d67ep-3f);
    p = __builtin_fmaf(p, f, -0x1.54720cp-3f);
    p = __builtin_fmaf(p, f, 0x1.99a030p-3f);
    p = __builtin_fmaf(p, f, -0x1.000228p-2f);
    p = __builtin_fmaf(p, f, 0x1.555554p-2f);
    p = __builtin_fmaf(p, f, -0.5f);
    return p;
}

//@ name: _log_poly.f64
//@ method: log(1 + f) - f, by way of s = f / (2 + f), minimax of degree 6 in s^2
FX_INLINE double fx_log_poly(double f)
{
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 0x1.2f592001c4943p-3;
    p = __builtin_fma(p, z, 0x1.3999c5aaa0bccp-3);
    p = __builtin_fma(p, z, 0x1.74668a2d450f8p-3);
    p = __builtin_fma(p, z, 0x1.c71c50ad5d1d6p-3);
    p = __builtin_fma(p, z, 0x1.2492494384dafp-2);
    p = __builtin_fma(p, z, 0x1.999999997e309p-2);
    p = __builtin_fma(p, z, 0x1.5555555555597p-1);
    double half = 0.5 * f * f;
    return __builtin_fma(s, __builtin_fma(z, p, half), -half);
}

//@ name: _log_split.f32
//@ needs: _bits.f32
//@ method: returns f and sets e, where x = 2^e (1 + f)
FX_INLINE float fx_log_split(float x, float& e)
{
    // A subnormal is scaled up first.
    bool tiny = x < 0x1p-126f;
    float scaled = tiny ? x * 0x1p23f : x;
    float shift = tiny ? 23.0f : 0.0f;
    uint32_t bits = fx_bits(scaled) - 0x3f3504f3u;
    e = (float)((int32_t)bits >> 23) - shift;
    return fx_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}

//@ name: _log_split.f64
//@ needs: _bits.f64
//@ method: returns f and sets e, where x = 2^e (1 + f)
FX_INLINE double fx_log_split(double x, double& e)
{
    // A subnormal is scaled up first.
    bool tiny = x < 0x1p-1022;
    double scaled = tiny ? x * 0x1p54 : x;
    double bias = tiny ? 0x1p52 + 1077.0 : 0x1p52 + 1023.0;
    uint64_t bits = fx_bits(scaled) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    e = fx_from_bits((bits >> 52) | 0x4330000000000000u) - bias;
    return fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
}

//@ name: _log_special.f32
//@ method: what a logarithm is at 0, below it, at infinity and at NaN
FX_INLINE float fx_log_special(float x, float result)
{
    result = x < __builtin_inff() ? result : x;
    result = x < 0.0f ? __builtin_nanf("") : result;
    return x == 0.0f ? -__builtin_inff() : result;
}

//@ name: _log_special.f64
//@ method: what a logarithm is at 0, below it, at infinity and at NaN
FX_INLINE double fx_log_special(double x, double result)
{
    result = x < __builtin_inf() ? result : x;
    result = x < 0.0 ? __builtin_nan("") : result;
    return x == 0.0 ? -__builtin_inf() : result;
}

//@ name: log.f32
//@ needs: _log_split.f32 _log_poly.f32 _log_special.f32
//@ accuracy: 0.9 ulp
FX_INLINE float fx_log(float x)
{
    float e;
    float f = fx_log_split(x, e);
    float low = __builtin_fmaf(f * f, fx_log_poly(f), e * -0x1.05c610p-29f);
    return fx_log_special(x, __builtin_fmaf(e, 0x1.62e430p-1f, f + low));
}

//@ name: log.f64
//@ needs: _log_split.f64 _log_poly.f64 _log_special.f64
//@ accuracy: 1 ulp
FX_INLINE double fx_log(double x)
{
    double e;
    double f = fx_log_split(x, e);
    double low = __builtin_fma(e, 0x1.ef35793c76730p-45, fx_log_poly(f));
    return fx_log_special(x, __builtin_fma(e, 0x1.62e42fefa3800p-1, f + low));
}

//@ name: log2.f32
//@ needs: _log_split.f32 _log_poly.f32 _log_special.f32
//@ accuracy: 1.1 ulp
//@ method: e + log(1 + f) / ln 2, with 1 / ln 2 in two parts
FX_INLINE float fx_log2(float x)
{
    float e;
    float f = fx_log_split(x, e);
    float low = __builtin_fmaf(f * f * fx_log_poly(f), 0x1.715476p+0f, f * 0x1.4ae0c0p-26f);
    return fx_log_special(x, e + __builtin_fmaf(f, 0x1.715476p+0f, low));
}

//@ name: log2.f64
//@ needs: _log_split.f64 _log_poly.f64 _log_special.f64
//@ accuracy: 1 ulp
//@ method: e + log(1 + f) / ln 2, with 1 / ln 2 in two parts
FX_INLINE double fx_log2(double x)
{
    double e;
    double f = fx_log_split(x, e);
    double low = __builtin_fma(fx_log_poly(f), 0x1.71547652b82fep+0, f * 0x1.777d0ffda0d24p-56);
    return fx_log_special(x, e + __builtin_fma(f, 0x1.71547652b82fep+0, low));
}

//@ name: log10.f32
//@ needs: _log_split.f32 _log_poly.f32 _log_special.f32
//@ accuracy: 1 ulp
//@ method: e log10(2) + log(1 + f) / ln 10, with both constants in two parts
FX_INLINE float fx_log10(float x)
{
    float e;
    float f = fx_log_split(x, e);
    float low = __builtin_fmaf(f * f * fx_log_poly(f), 0x1.bcb7b2p-2f, f * -0x1.5b235ep-27f);
    low = __builtin_fmaf(e, -0x1.ec10c0p-27f, low);
    float part = __builtin_fmaf(f, 0x1.bcb7b2p-2f, low);
    return fx_log_special(x, __builtin_fmaf(e, 0x1.344136p-2f, part));
}

//@ name: log10.f64
//@ needs: _log_split.f64 _log_poly.f64 _log_special.f64
//@ accuracy: 1 ulp
//@ method: e log10(2) + log(1 + f) / ln 10, with both constants in two parts
FX_INLINE double fx_log10(double x)
{
    double e;
    double f = fx_log_split(x, e);
    double low = __builtin_fma(fx_log_poly(f), 0x1.bcb7b1526e50ep-2, f * 0x1.95355baaafad3p-57);
    low = __builtin_fma(e, 0x1.fef311f12b358p-46, low);
    double part = __builtin_fma(f, 0x1.bcb7b1526e50ep-2, low);
    return fx_log_special(x, __builtin_fma(e, 0x1.34413509f7800p-2, part));
}

//@ name: log1p.f32
//@ needs: _choose.f32 _bits.f32 _log_poly.f32
//@ accuracy: 1.5 ulp
//@ method: log of 1 + x in two parts
FX_INLINE float fx_log1p(float x)
{
    float sum = 1.0f + x;
    float rest = sum - 1.0f;
    // What the sum lost; nothing that counts once x is large.
    float lost = (1.0f - (sum - rest)) + (x - rest);
    lost = x > 0x1p30f ? 0.0f : lost;
    uint32_t bits = fx_bits(sum) - 0x3f3504f3u;
    int32_t e = (int32_t)bits >> 23;
    float f = fx_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    f += lost * fx_from_bits((uint32_t)(127 - (e > 31 ? 31 : e)) << 23);
    float low = __builtin_fmaf(f * f, fx_log_poly(f), (float)e * -0x1.05c610p-29f);
    float result = __builtin_fmaf((float)e, 0x1.62e430p-1f, f + low);
    result = x < __builtin_inff() ? result : x;
    result = x < -1.0f ? __builtin_nanf("") : result;
    result = fx_choose(x == -1.0f, -__builtin_inff(), result);
    return x == 0.0f ? x : result;
}

//@ name: log1p.f64
//@ needs: _choose.f64 _bits.f64 _log_poly.f64
//@ accuracy: 1.5 ulp
//@ method: log of 1 + x in two parts
FX_INLINE double fx_log1p(double x)
{
    double sum = 1.0 + x;
    double rest = sum - 1.0;
    double lost = (1.0 - (sum - rest)) + (x - rest);
    lost = x > 0x1p60 ? 0.0 : lost;
    uint64_t bits = fx_bits(sum) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    uint64_t exponent = bits >> 52;
    double e = fx_from_bits(exponent | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double f = fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    // 2^-e; beyond 2^64 nothing was lost, and an exponent that is too large must not wrap.
    f += lost * fx_from_bits(x > 0x1p60 ? 0u : (2046u - exponent) << 52);
    double low = __builtin_fma(e, 0x1.ef35793c76730p-45, fx_log_poly(f));
    double result = __builtin_fma(e, 0x1.62e42fefa3800p-1, f + low);
    result = x < __builtin_inf() ? result : x;
    result = x < -1.0 ? __builtin_nan("") : result;
    result = fx_choose(x == -1.0, -__builtin_inf(), result);
    return x == 0.0 ? x : result;
}

//@ name: _log1p_short.f64
//@ needs: _bits.f64
//@ method: log(1 + x) for finite x > -1, relative error 2^-35: for float results
FX_INLINE double fx_log1p_short(double x)
{
    uint64_t bits = fx_bits(1.0 + x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double e = fx_from_bits((bits >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double f = fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    // Near 0 the sum loses what x itself has.
    f = e == 0.0 ? x : f;
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 0x1.e340c2345e857p-3;
    p = __builtin_fma(p, z, 0x1.2436fd724a15bp-2);
    p = __builtin_fma(p, z, 0x1.999a818773528p-2);
    p = __builtin_fma(p, z, 0x1.555554f9f7518p-1);
    p = __builtin_fma(p, z, 2.0);
    return __builtin_fma(e, 0x1.62e42fefa39efp-1, s * p);
}
