// Special functions. Loops over digamma stay scalar; it is rare in tensor code.

//@ name: digamma.f64
//@ vector: no
//@ accuracy: 1e-15 relative, but near its zeros
//@ method: reflection below 0, recurrence up to 10, then the asymptotic series
FX_INLINE double fx_digamma(double x)
{
    if (x == 0.0) return __builtin_copysign(__builtin_inf(), -x);
    double result = 0.0;
    if (x < 0.0) {
        double whole = __builtin_trunc(x);
        if (whole == x) return __builtin_nan("");
        // The fraction is exact, the product with pi would not be.
        result = -0x1.921fb54442d18p+1 / __builtin_tan(0x1.921fb54442d18p+1 * (x - whole));
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0) result -= 1.0 / x;
    double z = 1.0 / (x * x);
    double p = 8.33333333333333333333e-2;
    p = __builtin_fma(p, z, -2.10927960927960927961e-2);
    p = __builtin_fma(p, z, 7.57575757575757575758e-3);
    p = __builtin_fma(p, z, -4.16666666666666666667e-3);
    p = __builtin_fma(p, z, 3.96825396825396825397e-3);
    p = __builtin_fma(p, z, -8.33333333333333333333e-3);
    p = __builtin_fma(p, z, 8.33333333333333333333e-2);
    return result + __builtin_log(x) - 0.5 / x - z * p;
}

//@ name: digamma.f32
//@ needs: digamma.f64
//@ vector: no
//@ method: in double
FX_INLINE float fx_digamma(float x) { return (float)fx_digamma((double)x); }

//@ name: _erfinv_guess.f64
//@ needs: log.f64
//@ method: x P(w) with w = -log(1 - x^2), or P(sqrt(w)) in the tails; relative error 2^-26
FX_INLINE double fx_erfinv_guess(double y)
{
    // 1 - a is exact where it matters.
    double a = __builtin_fabs(y);
    double w = -fx_log((1.0 - a) * (1.0 + a));
    double near = w - 3.0;
    double p = 0x1.1b799df9c489cp-40;
    p = __builtin_fma(p, near, -0x1.01e814c24a26ep-36);
    p = __builtin_fma(p, near, -0x1.f46825660fe3fp-38);
    p = __builtin_fma(p, near, 0x1.2665af1aeecd5p-30);
    p = __builtin_fma(p, near, -0x1.846c69b41b9b7p-28);
    p = __builtin_fma(p, near, -0x1.9298f9f4af44bp-26);
    p = __builtin_fma(p, near, 0x1.e3feb15d5865ap-22);
    p = __builtin_fma(p, near, -0x1.d57069f03a8cbp-20);
    p = __builtin_fma(p, near, -0x1.aabf8bd0c6329p-17);
    p = __builtin_fma(p, near, 0x1.99135dd0bfcb7p-13);
    p = __builtin_fma(p, near, -0x1.b66633e2cd448p-11);
    p = __builtin_fma(p, near, -0x1.780df1b1bce1dp-8);
    p = __builtin_fma(p, near, 0x1.eedbebcd55011p-3);
    p = __builtin_fma(p, near, 0x1.9fa072eda8fccp+0);
    double far = __builtin_sqrt(w) - 4.0;
    double q = -0x1.6a5f87e9167a6p-22;
    q = __builtin_fma(q, far, 0x1.6414f77eaf8bcp-20);
    q = __builtin_fma(q, far, 0x1.6f274f2178c8dp-20);
    q = __builtin_fma(q, far, -0x1.cc74f0f40488bp-17);
    q = __builtin_fma(q, far, 0x1.9f2ac8f61fbe9p-16);
    q = __builtin_fma(q, far, -0x1.af74db97d9966p-16);
    q = __builtin_fma(q, far, 0x1.8a1488fa97ba7p-15);
    q = __builtin_fma(q, far, -0x1.01d1603ea7e8cp-13);
    q = __builtin_fma(q, far, 0x1.56328935c2252p-12);
    q = __builtin_fma(q, far, -0x1.c6aa5fb67457ap-11);
    q = __builtin_fma(q, far, 0x1.49f2f1fc319c4p-10);
    q = __builtin_fma(q, far, 0x1.026e22ffbbad2p+0);
    q = __builtin_fma(q, far, 0x1.eb7e096d60b11p+1);
    return y * (w < 6.0 ? p : q);
}

//@ name: erfinv.f32
//@ needs: _bits.f32
//@ accuracy: 1.95 ulp
//@ method: y + y P(w) with w = log(1 - y^2), or P(sqrt(-w)) in the tails; degrees 10 and 8
//@ rounded: 3 ulp
//@ chains: e p q
FX_INLINE float fx_erfinv(float y)
{
    // 1 - a is exact where it matters, and never subnormal.
    float a = __builtin_fabsf(y);
    float rest = (1.0f - a) * (1.0f + a);
    uint32_t bits = fx_bits(rest) - 0x3f3504f3u;
    float exponent = (float)((int32_t)bits >> 23);
    float f = fx_from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    // P changes by a quarter of what w does where it is small, so that an absolute error will do.
    float e = -0x1.9b0778p-4f;
    e = __builtin_fmaf(e, f, 0x1.4e8db8p-3f);
    e = __builtin_fmaf(e, f, -0x1.62d59cp-3f);
    e = __builtin_fmaf(e, f, 0x1.974fc8p-3f);
    e = __builtin_fmaf(e, f, -0x1.ff35fcp-3f);
    e = __builtin_fmaf(e, f, 0x1.555a64p-2f);
    e = __builtin_fmaf(e, f, -0x1.0000c4p-1f);
    float log = __builtin_fmaf(f * f, e, f);
    float w = __builtin_fmaf(exponent, 0x1.62e430p-1f, log);
    float p = 0x1.5c359ap-31f;
    p = __builtin_fmaf(p, w, 0x1.a40430p-26f);
    p = __builtin_fmaf(p, w, 0x1.9d836ep-22f);
    p = __builtin_fmaf(p, w, 0x1.88b082p-19f);
    p = __builtin_fmaf(p, w, 0x1.e95390p-18f);
    p = __builtin_fmaf(p, w, -0x1.3a3126p-15f);
    p = __builtin_fmaf(p, w, -0x1.efd07ep-14f);
    p = __builtin_fmaf(p, w, 0x1.32de22p-9f);
    p = __builtin_fmaf(p, w, 0x1.7a8314p-7f);
    p = __builtin_fmaf(p, w, -0x1.db29dcp-3f);
    p = __builtin_fmaf(p, w, -0x1.d203b6p-4f);
    float t = __builtin_sqrtf(-w) - 0x1.800056p+1f;
    float q = -0x1.f0b98ap-15f;
    q = __builtin_fmaf(q, t, -0x1.2efa84p-13f);
    q = __builtin_fmaf(q, t, 0x1.636d32p-10f);
    q = __builtin_fmaf(q, t, -0x1.cce5dep-9f);
    q = __builtin_fmaf(q, t, 0x1.75cb6cp-8f);
    q = __builtin_fmaf(q, t, -0x1.f5929ap-8f);
    q = __builtin_fmaf(q, t, 0x1.357dd0p-7f);
    q = __builtin_fmaf(q, t, 0x1.006dd8p+0f);
    q = __builtin_fmaf(q, t, 0x1.d53ea4p+0f);
    // Of erfinv(y) / y - 1, so that only what is below it is rounded twice.
    float result = __builtin_fmaf(w > -6.0f ? p : q, y, y);
    result = a == 1.0f ? __builtin_inff() : result;
    result = a > 1.0f ? __builtin_nanf("") : result;
    return __builtin_copysignf(result, y);  // a sum with -0 may be 0
}

//@ name: erfinv.f64
//@ needs: _erfinv_guess.f64 erf.f64 erfc.f64 exp.f64
//@ accuracy: 3 ulp
//@ method: a guess and one step of Halley's method, on erf or, in the tails, on erfc
FX_INLINE double fx_erfinv(double y)
{
    double a = __builtin_fabs(y);
    double x = fx_erfinv_guess(a);
    double miss = a < 0.5 ? fx_erf(x) - a : (1.0 - a) - fx_erfc(x);
    double u = miss * 0x1.c5bf891b4ef6bp-1 * fx_exp(x * x);
    x -= u / __builtin_fma(u, x, 1.0);
    x = a == 1.0 ? __builtin_inf() : x;
    return y == 0.0 ? y : __builtin_copysign(x, y);
}
