// The error function and its complement.

//@ name: erf.f32
//@ needs: _bits.f32
//@ accuracy: 1.1 ulp
//@ method: x + x P(x^2) up to 0.93, 1 - 2^(|x| Q(|x|)) beyond; minimax of degrees 5 and 6
//@ rounded: 1.2 ulp
//@ exact: r
//@ chains: q e
FX_INLINE float fx_erf(float x)
{
    float z = x * x;
    float p = -0x1.386c94p-11f;
    p = __builtin_fmaf(p, z, 0x1.46d850p-8f);
    p = __builtin_fmaf(p, z, -0x1.b67bd0p-6f);
    p = __builtin_fmaf(p, z, 0x1.ce1984p-4f);
    p = __builtin_fmaf(p, z, -0x1.8126e2p-2f);
    p = __builtin_fmaf(p, z, 0x1.06eba6p-3f);
    float near = __builtin_fmaf(p, x, x);
    float a = __builtin_fabsf(x);
    a = a > 4.0f ? 4.0f : a;
    float q = -0x1.1019bcp-16f;
    q = __builtin_fmaf(q, a, 0x1.e87718p-12f);
    q = __builtin_fmaf(q, a, -0x1.586b08p-8f);
    q = __builtin_fmaf(q, a, 0x1.18d6fep-5f);
    q = __builtin_fmaf(q, a, -0x1.39e4acp-3f);
    q = __builtin_fmaf(q, a, -0x1.d5291cp-1f);
    q = __builtin_fmaf(q, a, -0x1.a0d7fcp+0f);
    // The power is n + r, minimax of degree 6 for 2^r.
    float shifted = __builtin_fmaf(q, a, 0x1.8p23f);
    float r = __builtin_fmaf(q, a, 0x1.8p23f - shifted);
    float e = 0x1.4500bep-13f;
    e = __builtin_fmaf(e, r, 0x1.5ee4f4p-10f);
    e = __builtin_fmaf(e, r, 0x1.3b2a70p-7f);
    e = __builtin_fmaf(e, r, 0x1.c6afdcp-5f);
    e = __builtin_fmaf(e, r, 0x1.ebfbe0p-3f);
    e = __builtin_fmaf(e, r, 0x1.62e430p-1f);
    e = __builtin_fmaf(e, r, 1.0f);
    float far = 1.0f - fx_from_bits(fx_bits(e) + (fx_bits(shifted) << 23));
    // Asked this way round, NaN takes the near side, which keeps it.
    return a > 0.93f ? __builtin_copysignf(far, x) : near;
}

//@ name: one_plus_erf.f32
//@ needs: _bits.f32
//@ accuracy: 2^-23
//@ method: erfc(|x|) = 2^(|x| Q(|x|)), minimax of degree 7
//@ rounded: 2^-23
//@ chains: q e
FX_INLINE float fx_one_plus_erf(float x)
{
    float a = __builtin_fabsf(x);
    // From there on the power is 2^-127, which counts as 0; a NaN stays one.
    a = a > 7.0521f ? 7.0521f : a;
    float q = -0x1.7c2652p-15f;
    q = __builtin_fmaf(q, a, 0x1.d2dea4p-12f);
    q = __builtin_fmaf(q, a, -0x1.86489ap-10f);
    q = __builtin_fmaf(q, a, -0x1.9676c8p-11f);
    q = __builtin_fmaf(q, a, 0x1.cee968p-6f);
    q = __builtin_fmaf(q, a, -0x1.301718p-3f);
    q = __builtin_fmaf(q, a, -0x1.d63aaep-1f);
    q = __builtin_fmaf(q, a, -0x1.a0be9ep+0f);
    float power = q * a;
    // The power is n + r, minimax of degree 6 for 2^r.
    float shifted = power + 0x1.8p23f;
    float r = power - (shifted - 0x1.8p23f);
    float e = 0x1.4500bep-13f;
    e = __builtin_fmaf(e, r, 0x1.5ee4f4p-10f);
    e = __builtin_fmaf(e, r, 0x1.3b2a70p-7f);
    e = __builtin_fmaf(e, r, 0x1.c6afdcp-5f);
    e = __builtin_fmaf(e, r, 0x1.ebfbe0p-3f);
    e = __builtin_fmaf(e, r, 0x1.62e430p-1f);
    e = __builtin_fmaf(e, r, 1.0f);
    float tail = e * fx_from_bits((fx_bits(shifted) << 23) + (127u << 23));
    return x > 0.0f ? 2.0f - tail : tail;
}

//@ name: gelu_slope.f32
//@ needs: _bits.f32
//@ accuracy: 2^-22
//@ method: exp(-x^2 / 2) (Q(1 / (1 + 0.36 |x|)) + x / sqrt(2 pi)) below 0, Q of degree 6
//@ rounded: 2^-22
//@ chains: e
FX_INLINE float fx_gelu_slope(float x)
{
    float a = __builtin_fabsf(x);
    // From there on the power is 2^-127, which counts as 0; a NaN stays one.
    a = a > 13.27f ? 13.27f : a;
    float power = a * a * -0x1.715476p-1f;
    // The power is n + r, minimax of degree 6 for 2^r.
    float shifted = power + 0x1.8p23f;
    float r = power - (shifted - 0x1.8p23f);
    float e = 0x1.4500bep-13f;
    e = __builtin_fmaf(e, r, 0x1.5ee4f4p-10f);
    e = __builtin_fmaf(e, r, 0x1.3b2a70p-7f);
    e = __builtin_fmaf(e, r, 0x1.c6afdcp-5f);
    e = __builtin_fmaf(e, r, 0x1.ebfbe0p-3f);
    e = __builtin_fmaf(e, r, 0x1.62e430p-1f);
    e = __builtin_fmaf(e, r, 1.0f);
    float exponential = e * fx_from_bits((fx_bits(shifted) << 23) + (127u << 23));
    float t = __builtin_fmaf(a, 0.36f, 1.0f);
    t = 1.0f / t;
    float q = 0x1.ba7d90p-5f;
    q = __builtin_fmaf(q, t, -0x1.3f0458p-2f);
    q = __builtin_fmaf(q, t, 0x1.31c728p-1f);
    q = __builtin_fmaf(q, t, -0x1.038300p-2f);
    q = __builtin_fmaf(q, t, 0x1.363b08p-2f);
    q = __builtin_fmaf(q, t, 0x1.b75820p-4f);
    q = __builtin_fmaf(q, t, 0x1.cc22dcp-9f);
    float tail = q * exponential;
    // An infinite x makes NaN of the density's 0, as it does in eager.
    return (x > 0.0f ? 1.0f - tail : tail) + x * (exponential * 0x1.988454p-2f);
}

//@ name: one_plus_erf_for_half.f32
//@ needs: _exp2_for_half.f32
//@ accuracy: 2^-16, or 2^-37 absolutely
//@ method: of degrees 6 and 4, for half-precision results
//@ rounded: 2^-16, or 2^-37 absolutely
FX_INLINE float fx_one_plus_erf_for_half(float x)
{
    float a = __builtin_fabsf(x);
    float q = -0x1.2ac304p-16f;
    q = __builtin_fmaf(q, a, 0x1.df94cap-12f);
    q = __builtin_fmaf(q, a, -0x1.4e0972p-8f);
    q = __builtin_fmaf(q, a, 0x1.1395aap-5f);
    q = __builtin_fmaf(q, a, -0x1.379864p-3f);
    q = __builtin_fmaf(q, a, -0x1.d59d34p-1f);
    q = __builtin_fmaf(q, a, -0x1.a0c76ep+0f);
    float tail = fx_exp2_for_half(q * a);
    return x > 0.0f ? 2.0f - tail : tail;
}

//@ name: one_plus_erf_for_bfloat16.f32
//@ needs: _exp2_for_bfloat16.f32
//@ accuracy: 2^-12, or 2^-28 absolutely
//@ method: of degrees 4 and 3, for results of 8 bits
//@ rounded: 2^-12, or 2^-28 absolutely
FX_INLINE float fx_one_plus_erf_for_bfloat16(float x)
{
    float a = __builtin_fabsf(x);
    float q = -0x1.c91eb6p-10f;
    q = __builtin_fmaf(q, a, 0x1.771782p-6f);
    q = __builtin_fmaf(q, a, -0x1.15f292p-3f);
    q = __builtin_fmaf(q, a, -0x1.db59aap-1f);
    q = __builtin_fmaf(q, a, -0x1.a022ccp+0f);
    float tail = fx_exp2_for_bfloat16(q * a);
    return x > 0.0f ? 2.0f - tail : tail;
}

//@ name: erf.f64
//@ needs: _exp_normal.f64
//@ accuracy: 1 ulp
//@ method: x + x P(x^2) up to 1, 1 - exp(-|x| + |x| Q(|x|)) beyond; minimax of degrees 11 and 19
FX_INLINE double fx_erf(double x)
{
    double z = x * x;
    double p = -0x1.a1e9b6ed7af81p-31;
    p = __builtin_fma(p, z, 0x1.d3c2fb3ea1ba6p-27);
    p = __builtin_fma(p, z, -0x1.5b88d0f5bd9a4p-23);
    p = __builtin_fma(p, z, 0x1.b96acc1ccea1bp-20);
    p = __builtin_fma(p, z, -0x1.f4c822306c1e9p-17);
    p = __builtin_fma(p, z, 0x1.f9a295f744c2cp-14);
    p = __builtin_fma(p, z, -0x1.c02daeb04692ap-11);
    p = __builtin_fma(p, z, 0x1.565bcceeb65b5p-8);
    p = __builtin_fma(p, z, -0x1.b82ce311a8ba4p-6);
    p = __builtin_fma(p, z, 0x1.ce2f21a03f8a1p-4);
    p = __builtin_fma(p, z, -0x1.812746b03799dp-2);
    p = __builtin_fma(p, z, 0x1.06eba8214db68p-3);
    double near = __builtin_fma(p, x, x);
    double a = __builtin_fabs(x);
    a = a > 6.0 ? 6.0 : a;
    double q = 0x1.94a72e5c34646p-47;
    q = __builtin_fma(q, a, -0x1.90d0b5c11b2b6p-41);
    q = __builtin_fma(q, a, 0x1.6e10bcd7db054p-36);
    q = __builtin_fma(q, a, -0x1.9ca594a56f34bp-32);
    q = __builtin_fma(q, a, 0x1.4353dd3109685p-28);
    q = __builtin_fma(q, a, -0x1.7746b7176643cp-25);
    q = __builtin_fma(q, a, 0x1.4ee1645b77506p-22);
    q = __builtin_fma(q, a, -0x1.d566d4c4f0983p-20);
    q = __builtin_fma(q, a, 0x1.0476f0931c535p-17);
    q = __builtin_fma(q, a, -0x1.c5f0ccdb9c94dp-16);
    q = __builtin_fma(q, a, 0x1.2a8707da4f6b8p-14);
    q = __builtin_fma(q, a, -0x1.01a7ca7d5741cp-13);
    q = __builtin_fma(q, a, 0x1.53db86bbb65fdp-15);
    q = __builtin_fma(q, a, 0x1.158f31f88b97fp-11);
    q = __builtin_fma(q, a, -0x1.b1189f394a980p-10);
    q = __builtin_fma(q, a, 0x1.82a92a363b6ddp-13);
    q = __builtin_fma(q, a, 0x1.39925f10ceadep-6);
    q = __builtin_fma(q, a, -0x1.a4f8225f7e0b3p-4);
    q = __builtin_fma(q, a, -0x1.45f2f38895fe9p-1);
    q = __builtin_fma(q, a, -0x1.06ebaee8a7b7bp-3);
    double far = 1.0 - fx_exp_normal(__builtin_fma(q, a, -a));
    return a > 1.0 ? __builtin_copysign(far, x) : near;
}

//@ name: erfc.f32
//@ needs: _bits.f32 _exp_short.f64
//@ accuracy: 1.9 ulp
//@ method: exp(-x^2) P(u) / (|x| + 2), u = (|x| - 2) / (|x| + 2), degree 10, with what is lost
FX_INLINE float fx_erfc(float x)
{
#if defined(__SSE2__) && !defined(__FMA__)
    // Exact products would be in double, one by one: all of it is.
    double a = __builtin_fabs((double)x);
    a = a > 10.5 ? 10.5 : a;
    double u = (a - 4.0) / (a + 4.0);
    double r = -0x1.4ab6f6241ec99p-11;
    r = __builtin_fma(r, u, -0x1.20031283af29dp-10);
    r = __builtin_fma(r, u, 0x1.4d5ac3455132fp-8);
    r = __builtin_fma(r, u, -0x1.065aecf40a091p-6);
    r = __builtin_fma(r, u, 0x1.30d2e32825436p-5);
    r = __builtin_fma(r, u, -0x1.0fd1997c7196ap-4);
    r = __builtin_fma(r, u, 0x1.7fe26b7e756d6p-4);
    r = __builtin_fma(r, u, -0x1.9dd8d64e090d3p-4);
    r = __builtin_fma(r, u, 0x1.16edcef70c133p-4);
    r = __builtin_fma(r, u, 0x1.f7f5600fdbef9p-7);
    r = __builtin_fma(r, u, -0x1.1df1af35c2803p-3);
    r = __builtin_fma(r, u, 0x1.3ba5917015c96p+0);
    double result = fx_exp_short(-(a * a)) * (r / __builtin_fma(2.0, a, 1.0));
    return (float)(x < 0.0f ? 2.0 - result : x != x ? x : result);
#else
    float a = __builtin_fabsf(x);
    a = a > 10.1f ? 10.1f : a;
    float square = a * a;
    float square_low = __builtin_fmaf(a, a, -square);
    // The low bits are the exponent of 2^(n + 64), a normal number, as in exp_nonpositive.
    float shifted = __builtin_fmaf(square, -0x1.715476p+0f, 0x1.80017ep23f);
    float n = shifted - 0x1.80017ep23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, -square);
    r += __builtin_fmaf(n, -0x1.7f7d1cp-20f, -square_low);
    float e = 0x1.6ac5c0p-10f;
    e = __builtin_fmaf(e, r, 0x1.123edep-7f);
    e = __builtin_fmaf(e, r, 0x1.555850p-5f);
    e = __builtin_fmaf(e, r, 0x1.55548ap-3f);
    e = __builtin_fmaf(e, r, 0x1.fffffcp-2f);
    e = __builtin_fmaf(r * r, e, r);
    float sum = a + 2.0f;
    float t = 1.0f / sum;
    float lost = __builtin_fmaf(-t, sum, 1.0f);
    lost = __builtin_fmaf(-t, a - (sum - 2.0f), lost);
    // 1 - 4 / sum; lost is of t what it is times.
    float u = __builtin_fmaf(-4.0f, t, 1.0f);
    float u_low = __builtin_fmaf(-4.0f * t, lost, __builtin_fmaf(-4.0f, t, 1.0f - u));
    float q = 0x1.23bc8cp-14f;
    q = __builtin_fmaf(q, u, 0x1.8ae9fap-15f);
    q = __builtin_fmaf(q, u, -0x1.36ad1cp-11f);
    q = __builtin_fmaf(q, u, -0x1.b44e00p-11f);
    q = __builtin_fmaf(q, u, 0x1.916af6p-9f);
    q = __builtin_fmaf(q, u, 0x1.a867d2p-8f);
    q = __builtin_fmaf(q, u, -0x1.60597ep-6f);
    q = __builtin_fmaf(q, u, -0x1.2a87f8p-5f);
    q = __builtin_fmaf(q, u, 0x1.1e2dd8p-2f);
    q = __builtin_fmaf(q, u, -0x1.5fd386p-1f);
    float p = __builtin_fmaf(q, u, 0x1.058672p+0f);
    float p_low = __builtin_fmaf(q, u, 0x1.058672p+0f - p);
    // The slope is nearly Q, where P is c + u Q.
    p_low += __builtin_fmaf(q, u_low, -0x1.dfd46ap-27f);
    float scaled = p * t;
    float low = __builtin_fmaf(p_low, t, __builtin_fmaf(p, t, -scaled));
    low = __builtin_fmaf(scaled, lost, low);
    low = __builtin_fmaf(low, e, low);
    float tail = __builtin_fmaf(scaled, e, low) + scaled;
    tail = tail * fx_from_bits(fx_bits(shifted) << 23) * 0x1p-64f;
    return x < 0.0f ? 2.0f - tail : tail;
#endif
}

//@ name: erfc.f64
//@ needs: exp.f64
//@ accuracy: 2.7 ulp
//@ method: exp(-x^2) R(u) / (1 + 2 |x|), u = (|x| - 4) / (|x| + 4), degree 23; 1 - erf up to 1/2
FX_INLINE double fx_erfc(double x)
{
    double z = x * x;
    double p = 0x1.8b393a0ec8b11p-20;
    p = __builtin_fma(p, z, -0x1.f222988b5841ep-17);
    p = __builtin_fma(p, z, 0x1.f98d958c195cbp-14);
    p = __builtin_fma(p, z, -0x1.c02d4ea3b289cp-11);
    p = __builtin_fma(p, z, 0x1.565bcbf5e3591p-8);
    p = __builtin_fma(p, z, -0x1.b82ce30f1ee3bp-6);
    p = __builtin_fma(p, z, 0x1.ce2f21a03d687p-4);
    p = __builtin_fma(p, z, -0x1.812746b0379b3p-2);
    p = __builtin_fma(p, z, 0x1.06eba8214db68p-3);
    double near = 1.0 - __builtin_fma(p, x, x);
    double a = __builtin_fabs(x);
    a = a > 27.5 ? 27.5 : a;
    double u = (a - 4.0) / (a + 4.0);
    double r = 0x1.46ceb3b5b5e92p-30;
    r = __builtin_fma(r, u, 0x1.c439d5be921f0p-30);
    r = __builtin_fma(r, u, -0x1.e3f07024f5ae8p-27);
    r = __builtin_fma(r, u, -0x1.2aee0a1f408cep-26);
    r = __builtin_fma(r, u, 0x1.da33a69db6a2bp-24);
    r = __builtin_fma(r, u, 0x1.3e0d110d89b52p-24);
    r = __builtin_fma(r, u, -0x1.bb7ddb9f0b406p-21);
    r = __builtin_fma(r, u, 0x1.3bdd526d696b2p-22);
    r = __builtin_fma(r, u, 0x1.7f359c3b47946p-18);
    r = __builtin_fma(r, u, -0x1.788dbc09e1e27p-17);
    r = __builtin_fma(r, u, -0x1.995aec706e78dp-16);
    r = __builtin_fma(r, u, 0x1.3be06b08a783bp-13);
    r = __builtin_fma(r, u, -0x1.a1df152b2cf97p-13);
    r = __builtin_fma(r, u, -0x1.8d4a9c39a48c7p-11);
    r = __builtin_fma(r, u, 0x1.49c6726dea852p-8);
    r = __builtin_fma(r, u, -0x1.09623882b65cep-6);
    r = __builtin_fma(r, u, 0x1.3079edf6d7e42p-5);
    r = __builtin_fma(r, u, -0x1.0fb06dfe5496fp-4);
    r = __builtin_fma(r, u, 0x1.7fee004e0fccdp-4);
    r = __builtin_fma(r, u, -0x1.9ddb23c3e89c7p-4);
    r = __builtin_fma(r, u, 0x1.16ecefcfa54abp-4);
    r = __builtin_fma(r, u, 0x1.f7f5df66fd6dcp-7);
    r = __builtin_fma(r, u, -0x1.1df1ad154a28fp-3);
    r = __builtin_fma(r, u, 0x1.3ba5916e9fd7fp+0);
    // What the square, the sum and the quotient lost goes in at first order.
    z = a * a;
    double lost = __builtin_fma(a, a, -z);
    double sum = __builtin_fma(2.0, a, 1.0);
    double inverse = 1.0 / sum;
    double t = r * inverse;
    double rest = __builtin_fma(-t, __builtin_fma(2.0, a, 1.0 - sum), __builtin_fma(-t, sum, r));
    double e = fx_exp(-z);
    double tail = __builtin_fma(e, t, e * __builtin_fma(rest, inverse, -lost * t));
    double far = x < 0.0 ? 2.0 - tail : tail;
    return a > 0.5 ? far : near;
}
