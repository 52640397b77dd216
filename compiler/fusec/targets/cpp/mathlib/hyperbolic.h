// Hyperbolic functions and their inverses.

//@ name: tanh.f32
//@ needs: _bits.f32
//@ accuracy: 1.6 ulp
//@ method: x + x^3 P(x^2) up to 0.6, minimax of degree 4; 1 - 2 / (exp(2 |x|) + 1) beyond
//@ rounded: 1.6 ulp
//@ exact: r
//@ chains: e
FX_INLINE float fx_tanh(float x)
{
    float z = x * x;
    float p = -0x1.8287a6p-8f;
    p = __builtin_fmaf(p, z, 0x1.54c3c6p-6f);
    p = __builtin_fmaf(p, z, -0x1.b89abap-5f);
    p = __builtin_fmaf(p, z, 0x1.1109bep-3f);
    p = __builtin_fmaf(p, z, -0x1.55553ep-2f);
    float near = __builtin_fmaf(p * z, x, x);
    float a = __builtin_fabsf(x);
    a = a > 9.1f ? 9.1f : a;
    // exp(2 a) = 2^n 2^r with n + r = a 2 / ln 2, minimax of degree 6 for 2^r
    float shifted = __builtin_fmaf(a, 0x1.715476p+1f, 0x1.8p23f);
    float r = __builtin_fmaf(a, 0x1.715476p+1f, 0x1.8p23f - shifted);
    float e = 0x1.4500bep-13f;
    e = __builtin_fmaf(e, r, 0x1.5ee4f4p-10f);
    e = __builtin_fmaf(e, r, 0x1.3b2a70p-7f);
    e = __builtin_fmaf(e, r, 0x1.c6afdcp-5f);
    e = __builtin_fmaf(e, r, 0x1.ebfbe0p-3f);
    e = __builtin_fmaf(e, r, 0x1.62e430p-1f);
    e = __builtin_fmaf(e, r, 1.0f);
    e = fx_from_bits(fx_bits(e) + (fx_bits(shifted) << 23));
    float far = 1.0f - 2.0f / (e + 1.0f);
    // Asked this way round, NaN takes the near side, which keeps it. A zero keeps its sign.
    return __builtin_copysignf(a >= 0.6f ? far : near, x);
}

//@ name: tanh.f64
//@ needs: _bits.f64
//@ accuracy: 2 ulp
//@ method: t / (t + 2) with t = expm1(2 |x|), refined once
FX_INLINE double fx_tanh(double x)
{
    double a = __builtin_fabs(x);
    a = 2.0 * (a > 19.1 ? 19.1 : a);
    double shifted = __builtin_fma(a, 0x1.71547652b82fep+0, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, a);
    r = __builtin_fma(n, -0x1.ef35793c76730p-45, r);
    double p = 0x1.e6375b077690dp-30;
    p = __builtin_fma(p, r, 0x1.af4f2b3250127p-26);
    p = __builtin_fma(p, r, 0x1.28024e2273c19p-22);
    p = __builtin_fma(p, r, 0x1.71de019813a49p-19);
    p = __builtin_fma(p, r, 0x1.a019f36e3f8a1p-16);
    p = __builtin_fma(p, r, 0x1.a01a01ac17ed3p-13);
    p = __builtin_fma(p, r, 0x1.6c16c16f1729ap-10);
    p = __builtin_fma(p, r, 0x1.1111111110085p-7);
    p = __builtin_fma(p, r, 0x1.5555555554d0dp-5);
    p = __builtin_fma(p, r, 0x1.5555555555557p-3);
    p = __builtin_fma(p, r, 0x1.0000000000001p-1);
    p = __builtin_fma(r * r, p, r);
    double power = fx_from_bits((fx_bits(shifted) << 52) + 0x3ff0000000000000u);
    double t = __builtin_fma(power, p, power - 1.0);
    double sum = t + 2.0;
    double lost = t - (sum - 2.0);
    double inverse = 1.0 / sum;
    double q = t * inverse;
    double rest = __builtin_fma(-q, lost, __builtin_fma(-q, sum, t));
    double result = __builtin_copysign(__builtin_fma(rest, inverse, q), x);
    return x != x ? x : result;
}

//@ name: sinh.f32
//@ needs: _exp_half.f32
//@ accuracy: 1.7 ulp
//@ method: x + x^3 P(x^2) up to 1, minimax of degree 3; exp(|x|) / 2 - exp(-|x|) / 2 beyond
FX_INLINE float fx_sinh(float x)
{
    float z = x * x;
    float p = 0x1.756c1ep-19f;
    p = __builtin_fmaf(p, z, 0x1.a022bcp-13f);
    p = __builtin_fmaf(p, z, 0x1.1110e0p-7f);
    p = __builtin_fmaf(p, z, 0x1.555556p-3f);
    float near = __builtin_fmaf(p * z, x, x);
    float a = __builtin_fabsf(x);
    float half = fx_exp_half(a);
    float far = half - 0.25f / half;
    return a > 1.0f ? __builtin_copysignf(far, x) : near;
}

//@ name: sinh.f64
//@ needs: _exp_half.f64
//@ accuracy: 1.7 ulp
//@ method: x + x^3 P(x^2) up to 1, minimax of degree 7; exp(|x|) / 2 - exp(-|x|) / 2 beyond
FX_INLINE double fx_sinh(double x)
{
    double z = x * x;
    double p = 0x1.d2be4b1914b19p-48;
    p = __builtin_fma(p, z, 0x1.a664aa80f29a9p-41);
    p = __builtin_fma(p, z, 0x1.61314dec1fb01p-33);
    p = __builtin_fma(p, z, 0x1.ae644122247c7p-26);
    p = __builtin_fma(p, z, 0x1.71de3a68d04f6p-19);
    p = __builtin_fma(p, z, 0x1.a01a01a00735bp-13);
    p = __builtin_fma(p, z, 0x1.111111111119bp-7);
    p = __builtin_fma(p, z, 0x1.5555555555555p-3);
    double near = __builtin_fma(p * z, x, x);
    double a = __builtin_fabs(x);
    double half = fx_exp_half(a);
    double far = half - 0.25 / half;
    return a > 1.0 ? __builtin_copysign(far, x) : near;
}

//@ name: cosh.f32
//@ needs: _exp_half.f32
//@ accuracy: 1.4 ulp
//@ rounded: 1.6 ulp
FX_INLINE float fx_cosh(float x)
{
    float half = fx_exp_half(__builtin_fabsf(x));
    return half + 0.25f / half;
}

//@ name: cosh.f64
//@ needs: _exp_half.f64
//@ accuracy: 1.4 ulp
FX_INLINE double fx_cosh(double x)
{
    double half = fx_exp_half(__builtin_fabs(x));
    return half + 0.25 / half;
}

//@ name: asinh.f32
//@ needs: _log1p_short.f64
//@ accuracy: 0.6 ulp
//@ method: log1p(a + a^2 / (1 + sqrt(a^2 + 1))) with a = |x|, in double
FX_INLINE float fx_asinh(float x)
{
    double a = __builtin_fabs((double)x);
    double z = a * a;
    float result = (float)fx_log1p_short(a + z / (1.0 + __builtin_sqrt(z + 1.0)));
    return __builtin_fabsf(x) < __builtin_inff() ? __builtin_copysignf(result, x) : x;
}

//@ name: asinh.f64
//@ needs: log1p.f64
//@ accuracy: 2 ulp
//@ method: log1p(a + a^2 / (1 + sqrt(a^2 + 1))) with a = |x|; log1p(a) + ln 2 beyond 2^60
FX_INLINE double fx_asinh(double x)
{
    double a = __builtin_fabs(x);
    bool large = a > 0x1p60;
    double z = large ? 0.0 : a * a;
    double result = fx_log1p(a + z / (1.0 + __builtin_sqrt(z + 1.0)));
    return __builtin_copysign(result + (large ? 0x1.62e42fefa39efp-1 : 0.0), x);
}

//@ name: acosh.f32
//@ needs: _log1p_short.f64
//@ accuracy: 0.6 ulp
//@ method: log1p(t + sqrt(t (t + 2))) with t = x - 1, in double
FX_INLINE float fx_acosh(float x)
{
    double t = (double)x - 1.0;
    float result = (float)fx_log1p_short(t + __builtin_sqrt(t * (t + 2.0)));
    result = x < __builtin_inff() ? result : x;
    return x < 1.0f ? __builtin_nanf("") : result;
}

//@ name: acosh.f64
//@ needs: log1p.f64
//@ accuracy: 2.5 ulp
//@ method: log1p(t + sqrt(t (t + 2))) with t = x - 1; log1p(t) + ln 2 beyond 2^60
FX_INLINE double fx_acosh(double x)
{
    double t = x - 1.0;
    bool large = t > 0x1p60;
    double z = large ? 0.0 : t * (t + 2.0);
    double result = fx_log1p(t + __builtin_sqrt(z)) + (large ? 0x1.62e42fefa39efp-1 : 0.0);
    return x < 1.0 ? __builtin_nan("") : result;
}

//@ name: atanh.f32
//@ needs: _log1p_short.f64
//@ accuracy: 0.6 ulp
//@ method: log1p(2 a / (1 - a)) / 2 with a = |x|, in double
FX_INLINE float fx_atanh(float x)
{
    double a = __builtin_fabs((double)x);
    float result = (float)(0.5 * fx_log1p_short(2.0 * a / (1.0 - a)));
    result = a < 1.0 ? result : __builtin_inff();
    result = a <= 1.0 ? result : __builtin_nanf("");
    return __builtin_copysignf(result, x);
}

//@ name: atanh.f64
//@ needs: log1p.f64
//@ accuracy: 2.5 ulp
//@ method: log1p(2 a / (1 - a)) / 2 with a = |x|
FX_INLINE double fx_atanh(double x)
{
    double a = __builtin_fabs(x);
    // At 1 the quotient is infinite, beyond it below -2.
    return __builtin_copysign(0.5 * fx_log1p(2.0 * a / (1.0 - a)), x);
}
