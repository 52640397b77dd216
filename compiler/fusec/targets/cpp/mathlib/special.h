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
//@ needs: _bits.f64 _choose.f64
//@ accuracy: 1.4 ulp
//@ method: y + y R(y^2) up to 0.8, s + R(s), s^2 = -log(1 - y), beyond; quotients of degrees 7 and 8
//@ rounded: 3 ulp
FX_INLINE double fx_erfinv(double y)
{
    double a = __builtin_fabs(y);
    double z = 0.640625 - a * a;
    double c = -0x1.3b51e9129f33fp-4;
    c = __builtin_fma(c, z, -0x1.63bc5e60f98d7p+0);
    c = __builtin_fma(c, z, -0x1.8a8636b7f8eb8p+2);
    c = __builtin_fma(c, z, -0x1.4558f5bc61513p+3);
    c = __builtin_fma(c, z, -0x1.adea743640f6dp+2);
    c = __builtin_fma(c, z, -0x1.25d6b4b06b1b1p+0);
    c = __builtin_fma(c, z, 0x1.c5e199ac4e054p-2);
    c = __builtin_fma(c, z, 0x1.10bd1eda75436p-3);
    double r = 0x1.7857492955687p-4;
    r = __builtin_fma(r, z, 0x1.24500b8bb1c34p+1);
    r = __builtin_fma(r, z, 0x1.cf03d3f8de0a9p+3);
    r = __builtin_fma(r, z, 0x1.2751ba0b0698ap+5);
    r = __builtin_fma(r, z, 0x1.69218853e1534p+5);
    r = __builtin_fma(r, z, 0x1.c0a3ca7a85b6cp+4);
    r = __builtin_fma(r, z, 0x1.10584c112c7a5p+3);
    r = __builtin_fma(r, z, 1.0);
    // The logarithm of 1 - a, which is exact where it matters; only where it is below -1.6.
    uint64_t bits = fx_bits(1.0 - a) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double exponent = fx_from_bits((bits >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double f = fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double e = 0x1.f62fd06abe1e8p-6;
    e = __builtin_fma(e, f, -0x1.151e67329b0fap-4);
    e = __builtin_fma(e, f, 0x1.26025d2e5d611p-4);
    e = __builtin_fma(e, f, -0x1.02920926a180cp-4);
    e = __builtin_fma(e, f, 0x1.07c3f6a874c8ap-4);
    e = __builtin_fma(e, f, -0x1.22d24a72e320ap-4);
    e = __builtin_fma(e, f, 0x1.3be39e1097bb2p-4);
    e = __builtin_fma(e, f, -0x1.558d673b9c13ep-4);
    e = __builtin_fma(e, f, 0x1.7452fcee48075p-4);
    e = __builtin_fma(e, f, -0x1.9996249001ebbp-4);
    e = __builtin_fma(e, f, 0x1.c71cb851b3cefp-4);
    e = __builtin_fma(e, f, -0x1.00000f0d5aab0p-3);
    e = __builtin_fma(e, f, 0x1.249248a23f293p-3);
    e = __builtin_fma(e, f, -0x1.5555550e565a7p-3);
    e = __builtin_fma(e, f, 0x1.9999999a7573ap-3);
    e = __builtin_fma(e, f, -0x1.0000000050583p-2);
    e = __builtin_fma(e, f, 0x1.5555555555195p-2);
    e = __builtin_fma(e, f, -0x1.ffffffffffc22p-2);
    double head = exponent * 0x1.62e42fefa3800p-1;
    double sum = head + f;
    double low = __builtin_fma(f * f, e, exponent * 0x1.ef35793c76730p-45);
    low = (f - (sum - head)) + low;
    double s = __builtin_sqrt(-(sum + low));
    double t = s - 1.25;
    double p = 0x1.ef56ee57b4e33p-19;
    p = __builtin_fma(p, t, 0x1.df50b085a7f07p-13);
    p = __builtin_fma(p, t, 0x1.cbfb0940c6ddfp-9);
    p = __builtin_fma(p, t, 0x1.3e98556db66d6p-6);
    p = __builtin_fma(p, t, 0x1.3fd77d540d0e4p-5);
    p = __builtin_fma(p, t, -0x1.687a416573618p-7);
    p = __builtin_fma(p, t, -0x1.30b803343060fp-3);
    p = __builtin_fma(p, t, -0x1.9a4a7ac60b042p-3);
    p = __builtin_fma(p, t, -0x1.4e308cb70b6b1p-4);
    double q = 0x1.bced5a4f9e47dp-17;
    q = __builtin_fma(q, t, 0x1.f15e45fcd7474p-11);
    q = __builtin_fma(q, t, 0x1.3b9a94790db2bp-6);
    q = __builtin_fma(q, t, 0x1.5bc7c6408524bp-3);
    q = __builtin_fma(q, t, 0x1.9181e8695d09dp-1);
    q = __builtin_fma(q, t, 0x1.08c0d77c09757p+1);
    q = __builtin_fma(q, t, 0x1.97a4d2e72cef9p+1);
    q = __builtin_fma(q, t, 0x1.5a16bf98efa66p+1);
    q = __builtin_fma(q, t, 1.0);
    bool far = a > 0.8;
#if defined(__SSE2__) && !defined(__FMA__)
    double part = (far ? p : c * a) / (far ? q : r);
#else
    // With what the root lost; of selects g++ would make two divisions.
    double lost = __builtin_fma(s, s, sum) + low;
    p = __builtin_fma(p, s + s, -lost * q);
    q = q * (s + s);
    double part = fx_choose(far, p, c * a) / fx_choose(far, q, r);
#endif
    double result = (far ? s : a) + (part - (far ? 0.28125 : 0.0));
    // Beyond 1 the sign of 1 - a is taken for part of its exponent, and s is NaN.
    result = a == 1.0 ? __builtin_inf() : result;
    return __builtin_copysign(result, y);
}
