// Exponentials and logarithms.
//
// exp: x = n ln 2 + r with n = rint(x / ln 2), |r| <= ln 2 / 2; a polynomial for exp(r); then
// times 2^n. Adding 1.5 * 2^23 (2^52) rounds to an integer and leaves it in the low bits, which
// is how n is had as an integer with no conversion: those are undefined out of range, and AVX2
// has none for 64 bits.

//@ name: _scale.f32
//@ needs: _bits.f32
//@ method: x * 2^n for -252 <= n <= 254, in two steps, so that only the last one rounds
FX_INLINE float fx_scale(float x, int32_t n)
{
    int32_t half = n >> 1;
    float first = fx_from_bits((uint32_t)(half + 127) << 23);
    float second = fx_from_bits((uint32_t)(n - half + 127) << 23);
    return x * first * second;
}

//@ name: _exp_poly.f32
//@ method: minimax, relative error 2^-28
FX_INLINE float fx_exp_poly(float r)
{
    float p = 0x1.6aeecc0p-10f;
    p = __builtin_fmaf(p, r, 0x1.1240d4p-7f);
    p = __builtin_fmaf(p, r, 0x1.555840p-5f);
    p = __builtin_fmaf(p, r, 0x1.555488p-3f);
    p = __builtin_fmaf(p, r, 0x1.fffffcp-2f);
    p = __builtin_fmaf(p, r, 1.0f);
    return __builtin_fmaf(p, r, 1.0f);
}

//@ name: exp.f32
//@ needs: _bits.f32 _scale.f32 _exp_poly.f32
//@ accuracy: 1 ulp
//@ method: reduction by ln 2 in two parts, minimax polynomial of degree 6
FX_INLINE float fx_exp(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float shifted = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.8p23f);
    float n = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    return fx_scale(fx_exp_poly(r), (int32_t)(fx_bits(shifted) - 0x4b400000u));
}

//@ name: _exp_normal.f32
//@ needs: _bits.f32 _exp_poly.f32
//@ method: exp for -87 <= x <= 88, where the result is a normal number
FX_INLINE float fx_exp_normal(float x)
{
    float shifted = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.8p23f);
    float n = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    return fx_from_bits(fx_bits(fx_exp_poly(r)) + (fx_bits(shifted) << 23));
}

//@ name: exp2.f32
//@ needs: _bits.f32 _scale.f32
//@ accuracy: 1 ulp
//@ method: reduction to [-1/2, 1/2], minimax polynomial of degree 6
FX_INLINE float fx_exp2(float x)
{
    x = x > 129.0f ? 129.0f : x;
    x = x < -151.0f ? -151.0f : x;
    float shifted = x + 0x1.8p23f;
    float r = x - (shifted - 0x1.8p23f);
    float p = 0x1.4cb4cap-13f;
    p = __builtin_fmaf(p, r, 0x1.6098e0p-10f);
    p = __builtin_fmaf(p, r, 0x1.3b20fap-7f);
    p = __builtin_fmaf(p, r, 0x1.c6ac30p-5f);
    p = __builtin_fmaf(p, r, 0x1.ebfbe6p-3f);
    p = __builtin_fmaf(p, r, 0x1.62e432p-1f);
    p = __builtin_fmaf(p, r, 1.0f);
    return fx_scale(p, (int32_t)(fx_bits(shifted) - 0x4b400000u));
}

//@ name: expm1.f32
//@ needs: _bits.f32
//@ accuracy: 1 ulp
//@ method: 2^n (expm1(r) + 1) - 1, minimax polynomial of degree 7 for expm1(r)
FX_INLINE float fx_expm1(float x)
{
    float y = x > 89.0f ? 89.0f : x;
    y = y < -18.0f ? -18.0f : y;
    float shifted = __builtin_fmaf(y, 0x1.715476p+0f, 0x1.8p23f);
    float n = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, y);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.9c77f6p-13f;
    p = __builtin_fmaf(p, r, 0x1.6d4cc8p-10f);
    p = __builtin_fmaf(p, r, 0x1.1113a2p-7f);
    p = __builtin_fmaf(p, r, 0x1.5554eap-5f);
    p = __builtin_fmaf(p, r, 0x1.555554p-3f);
    p = __builtin_fmaf(p, r, 0x1.000000p-1f);
    p = __builtin_fmaf(r * r, p, r);
    // Half of 2^n, so that n = 128 does not overflow before the result does.
    float half = fx_from_bits((fx_bits(shifted) << 23) + 0x3f000000u);
    float result = 2.0f * __builtin_fmaf(half, p, half - 0.5f);
    // n = 0: p is the result, also where half of it would lose a bit; the zero keeps its sign.
    return __builtin_copysignf(n == 0.0f ? p : result, x);
}

//@ name: _log_poly.f32
//@ method: (log(1 + f) - f) / f^2 for sqrt(1/2) <= 1 + f <= sqrt(2), minimax
FX_INLINE float fx_log_poly(float f)
{
    float p = -0x1.394b9ap-4f;
    p = __builtin_fmaf(p, f, 0x1.058f3ap-3f);
    p = __builtin_fmaf(p, f, -0x1.0d876ap-3f);
    p = __builtin_fmaf(p, f, 0x1.22d540p-3f);
    p = __builtin_fmaf(p, f, -0x1.547198p-3f);
    p = __builtin_fmaf(p, f, 0x1.99a028p-3f);
    p = __builtin_fmaf(p, f, -0x1.000228p-2f);
    p = __builtin_fmaf(p, f, 0x1.555554p-2f);
    return __builtin_fmaf(p, f, -0.5f);
}

//@ name: _log_special.f32
//@ method: what a logarithm is at 0, below it, at infinity and at NaN
FX_INLINE float fx_log_special(float x, float result)
{
    result = x < __builtin_inff() ? result : x;
    result = x > 0.0f ? result : __builtin_nanf("");
    result = x == 0.0f ? -__builtin_inff() : result;
    return x != x ? x : result;
}

//@ name: log.f32
//@ needs: _bits.f32 _log_poly.f32 _log_special.f32
//@ accuracy: 1 ulp
//@ method: x = 2^e (1 + f), minimax polynomial of degree 10 in f
FX_INLINE float fx_log(float x)
{
    // A subnormal is scaled up first; its exponent is put right below.
    bool tiny = x < 0x1p-126f;
    uint32_t bits = fx_bits(tiny ? x * 0x1p23f : x) - 0x3f3504f3u;
    float e = (float)((int32_t)bits >> 23) - (tiny ? 23.0f : 0.0f);
    float f = fx_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float low = __builtin_fmaf(f * f, fx_log_poly(f), e * -0x1.05c610p-29f);
    return fx_log_special(x, __builtin_fmaf(e, 0x1.62e430p-1f, f + low));
}

//@ name: log1p.f32
//@ needs: _bits.f32 _log_poly.f32
//@ accuracy: 1 ulp
//@ method: as log, of 1 + x in two parts
FX_INLINE float fx_log1p(float x)
{
    float sum = 1.0f + x;
    float rest = sum - 1.0f;
    // What the sum lost; nothing that counts once x is large.
    float lost = (1.0f - (sum - rest)) + (x - rest);
    lost = x > 0x1p30f ? 0.0f : lost;
    uint32_t bits = fx_bits(sum) - 0x3f3504f3u;
    int32_t exponent = (int32_t)bits >> 23;
    float e = (float)exponent;
    float f = fx_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    int32_t scale = exponent > 31 ? 31 : exponent;
    f += lost * fx_from_bits((uint32_t)(127 - scale) << 23);
    float low = __builtin_fmaf(f * f, fx_log_poly(f), e * -0x1.05c610p-29f);
    float result = __builtin_fmaf(e, 0x1.62e430p-1f, f + low);
    result = x < __builtin_inff() ? result : x;
    result = x > -1.0f ? result : __builtin_nanf("");
    result = x == -1.0f ? -__builtin_inff() : result;
    return x != x || x == 0.0f ? x : result;
}

//@ name: sigmoid.f32
//@ needs: exp.f32
//@ accuracy: 2 ulp
//@ method: exp(-|x|) / (1 + exp(-|x|)) below 0, 1 / (1 + exp(-|x|)) above: both tails keep their bits
FX_INLINE float fx_sigmoid(float x)
{
    float e = fx_exp(-__builtin_fabsf(x));
    float top = x < 0.0f ? e : 1.0f;
    float sum = 1.0f + e;
    float lost = e - (sum - 1.0f);
    float inverse = 1.0f / sum;
    // One step of refinement takes back what the sum and the product lost.
    float q = top * inverse;
    float rest = __builtin_fmaf(-q, lost, __builtin_fmaf(-q, sum, top));
    return __builtin_fmaf(rest, inverse, q);
}

//@ name: log2.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_log2(float x) { return __builtin_log2f(x); }

//@ name: log10.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_log10(float x) { return __builtin_log10f(x); }

//@ name: exp.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_exp(double x) { return __builtin_exp(x); }

//@ name: exp2.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_exp2(double x) { return __builtin_exp2(x); }

//@ name: expm1.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_expm1(double x) { return __builtin_expm1(x); }

//@ name: log.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_log(double x) { return __builtin_log(x); }

//@ name: log2.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_log2(double x) { return __builtin_log2(x); }

//@ name: log10.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_log10(double x) { return __builtin_log10(x); }

//@ name: log1p.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_log1p(double x) { return __builtin_log1p(x); }

//@ name: sigmoid.f64
//@ vector: no
FX_INLINE double fx_sigmoid(double x)
{
    double e = __builtin_exp(-__builtin_fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
