// The logarithm of the gamma function.
//
// Up to 8, lgamma(n + t) = t Q(t) + log of a product, where t Q(t) is lgamma(2 + t) for |t| <= 1/2;
// beyond, Stirling's formula; below -1/2, Euler's reflection. There is one path without branches,
// with two logarithms; a table or a branch a region would leave vectors.

//@ name: _log_parts.f64
//@ needs: _bits.f64
//@ method: log(x) as a sum of two numbers, the first x - 1 from 3/4 to 3/2, for finite x > 0
FX_INLINE double fx_log_parts(double x, double& low)
{
    bool tiny = x < 0x1p-1022;
    double scaled = tiny ? x * 0x1p54 : x;
    double bias = tiny ? 0x1p52 + 1077.0 : 0x1p52 + 1023.0;
    uint64_t bits = fx_bits(scaled) + (0x3ff0000000000000u - 0x3fe8000000000000u);
    double e = fx_from_bits((bits >> 52) | 0x4330000000000000u) - bias;
    double f = fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe8000000000000u) - 1.0;
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 0x1.1b85e912f8089p-3;
    p = __builtin_fma(p, z, 0x1.0dcaf369105bep-3);
    p = __builtin_fma(p, z, 0x1.3b35ca4dbe341p-3);
    p = __builtin_fma(p, z, 0x1.745c4a92fe86cp-3);
    p = __builtin_fma(p, z, 0x1.c71c7490e72d6p-3);
    p = __builtin_fma(p, z, 0x1.24924921e3201p-2);
    p = __builtin_fma(p, z, 0x1.999999999c188p-2);
    p = __builtin_fma(p, z, 0x1.555555555554fp-1);
    double half = 0.5 * f * f;
    // The larger part of ln 2 ends with so many zeros that the product is exact.
    double head = e * 0x1.62e42fefa3800p-1;
    double sum = head + f;
    low = (s * (z * p + half) - half) + (e * 0x1.ef35793c76730p-45 + (f - (sum - head)));
    return sum;
}

//@ name: _log_of_short.f64
//@ needs: _bits.f64
//@ method: log(x) for normal x > 0, relative error 2^-44: for float results
FX_INLINE double fx_log_of_short(double x)
{
    uint64_t bits = fx_bits(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double e = fx_from_bits((bits >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double f = fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double s = f / (2.0 + f);
    double z = s * s;
    double p = 0x1.9161ac8fa6bd8p-3;
    p = __builtin_fma(p, z, 0x1.c6262366d386cp-3);
    p = __builtin_fma(p, z, 0x1.24941fea3c4aap-2);
    p = __builtin_fma(p, z, 0x1.9999968a9b257p-2);
    p = __builtin_fma(p, z, 0x1.55555556287bcp-1);
    p = __builtin_fma(p, z, 2.0);
    return __builtin_fma(e, 0x1.62e42fefa39efp-1, s * p);
}

//@ name: lgamma.f64
//@ needs: _log_parts.f64
//@ accuracy: 3 ulp
//@ method: polynomials, Stirling's formula, reflection; where it crosses 0, of lgamma(-x)
FX_INLINE double fx_lgamma(double x)
{
#if defined(__SSE2__) && !defined(__FMA__)
    // Two at a time, with masks for selects, take longer than branches do.
    return __builtin_lgamma(x);
#else
    double size = __builtin_fabs(x);
    bool reflected = x < -0.5;
    double y = reflected ? size : x;
    // y = n + t with n up to 8, by way of the low bits of 2^52.
    double near = y > 8.0 ? 8.0 : y;
    double n = (near + 0x1.8p52) - 0x1.8p52;
    double t = near - n;
    double q = 0x1.290a0a1958e71p-24;
    q = __builtin_fma(q, t, -0x1.1fc738cdad46dp-23);
    q = __builtin_fma(q, t, 0x1.a659eb5f0dfd7p-23);
    q = __builtin_fma(q, t, -0x1.ce3cc2e7df522p-22);
    q = __builtin_fma(q, t, 0x1.01fb1b4a04eedp-20);
    q = __builtin_fma(q, t, -0x1.1274b9fb87444p-19);
    q = __builtin_fma(q, t, 0x1.258037bc33042p-18);
    q = __builtin_fma(q, t, -0x1.3cb3e1be0556ep-17);
    q = __builtin_fma(q, t, 0x1.580ea6a820d6ep-16);
    q = __builtin_fma(q, t, -0x1.78de99680b123p-15);
    q = __builtin_fma(q, t, 0x1.a127ac1be8a06p-14);
    q = __builtin_fma(q, t, -0x1.d3fd4b6edf5adp-13);
    q = __builtin_fma(q, t, 0x1.0b36af8e87df8p-11);
    q = __builtin_fma(q, t, -0x1.38ac5c2d3cceep-10);
    q = __builtin_fma(q, t, 0x1.7add6eada7159p-9);
    q = __builtin_fma(q, t, -0x1.e404fc218dcc9p-8);
    q = __builtin_fma(q, t, 0x1.51322ac7d84f0p-6);
    q = __builtin_fma(q, t, -0x1.13e001a55760ap-4);
    q = __builtin_fma(q, t, 0x1.4a34cc4a60fa6p-2);
    // Near 1, where the logarithm is t and little more, t (Q(t) - 1) has all digits.
    bool one = (y >= 0.75) & (y < 1.5);
    q = q * t + (one ? -0x1.2788cfc6fb619p-1 : 0x1.b0ee6072093cep-2);
    // What is left is log of (t + 2) ... (t + n - 1), or -log of (t + 1), or of t (t + 1).
    double product = n > 2.5 ? t + 2.0 : 1.0;
    product *= n > 3.5 ? t + 3.0 : 1.0;
    product *= n > 4.5 ? t + 4.0 : 1.0;
    product *= n > 5.5 ? t + 5.0 : 1.0;
    product *= n > 6.5 ? t + 6.0 : 1.0;
    product *= n > 7.5 ? t + 7.0 : 1.0;
    product = n < 1.5 ? y : product;
    product = n < 0.5 ? y * (t + 1.0) : product;
    product = y < 8.0 ? product : y;
    double low;
    double log = fx_log_parts(__builtin_fabs(product), low);
    double small = q * t + (n < 1.5 ? -low : low);
    small += one ? 0.0 : n < 1.5 ? -log : log;
    double inverse = 1.0 / y;
    double u = inverse * inverse;
    double s = 0x1.4035e679781f1p-8;
    s = __builtin_fma(s, u, -0x1.ed0e6a16f269ep-10);
    s = __builtin_fma(s, u, 0x1.b911d83ca3ec8p-11);
    s = __builtin_fma(s, u, -0x1.3813092bcae77p-11);
    s = __builtin_fma(s, u, 0x1.a01a012545197p-11);
    s = __builtin_fma(s, u, -0x1.6c16c16c077d2p-9);
    s = __builtin_fma(s, u, 0x1.5555555555554p-4);
    s = s * inverse + 0x1.acfe390c97d69p-2;
    double half_less = y - 0.5;
    s = half_less * low + s;
    double large = half_less * (log - 1.0) + s;
    double result = y < 8.0 ? small : large;
    // Gamma(-y) Gamma(y) = -pi / (y sin(pi y)).
    double whole = (size + 0x1.0p52) - 0x1.0p52;
    double r = size < 0x1.0p52 ? size - whole : 0.0;
    double z = r * r;
    double p = 0x1.0743116017b72p-22;
    p = __builtin_fma(p, z, -0x1.d3e69e9dfa6fcp-18);
    p = __builtin_fma(p, z, 0x1.3746a177a8fa4p-13);
    p = __builtin_fma(p, z, -0x1.338169979ad9cp-9);
    p = __builtin_fma(p, z, 0x1.ac6805cc89514p-6);
    p = __builtin_fma(p, z, -0x1.86a8e4720a1d7p-3);
    p = __builtin_fma(p, z, 0x1.9f9cb402bc429p-1);
    p = __builtin_fma(p, z, -0x1.a51a6625307d3p+0);
    p = __builtin_fma(p, z, 0x1.0000000000000p+0);
    double sine = __builtin_fabs(p * r);
    double rest;
    log = fx_log_parts(reflected ? size * sine : 1.0, rest);
    double other = -((log + result) + rest);
    result = reflected ? other : result;
    bool pole = (x == 0.0) | (reflected & (sine == 0.0));
    result = pole ? __builtin_inf() : result;
    return size == __builtin_inf() ? size : result;
#endif
}

//@ name: _lgamma_short.f64
//@ needs: _log_of_short.f64
//@ method: as lgamma of doubles, relative error 2^-43: for float results
FX_INLINE double fx_lgamma_short(double x)
{
    double size = __builtin_fabs(x);
    bool reflected = x < -0.5;
    double y = reflected ? size : x;
    // y = n + t with n up to 8, by way of the low bits of 2^52.
    double near = y > 8.0 ? 8.0 : y;
    double n = (near + 0x1.8p52) - 0x1.8p52;
    double t = near - n;
    double q = 0x1.821f8b9692076p-18;
    q = __builtin_fma(q, t, -0x1.80008a18d2aa3p-17);
    q = __builtin_fma(q, t, 0x1.4c78ffbfa4c76p-16);
    q = __builtin_fma(q, t, -0x1.72e5040fbc466p-15);
    q = __builtin_fma(q, t, 0x1.a1dcfba1983c0p-14);
    q = __builtin_fma(q, t, -0x1.d43f3f93b9a6dp-13);
    q = __builtin_fma(q, t, 0x1.0b33c56de6bf8p-11);
    q = __builtin_fma(q, t, -0x1.38aba319181aap-10);
    q = __builtin_fma(q, t, 0x1.7add7ae5e8dbdp-9);
    q = __builtin_fma(q, t, -0x1.e404fe0d02f18p-8);
    q = __builtin_fma(q, t, 0x1.51322abc8e35ep-6);
    q = __builtin_fma(q, t, -0x1.13e001a4ddc40p-4);
    q = __builtin_fma(q, t, 0x1.4a34cc4a627f0p-2);
    q = __builtin_fma(q, t, 0x1.b0ee607209296p-2);
    // What is left is log of (t + 2) ... (t + n - 1), or -log of (t + 1), or of t (t + 1).
    double product = n > 2.5 ? t + 2.0 : 1.0;
    product *= n > 3.5 ? t + 3.0 : 1.0;
    product *= n > 4.5 ? t + 4.0 : 1.0;
    product *= n > 5.5 ? t + 5.0 : 1.0;
    product *= n > 6.5 ? t + 6.0 : 1.0;
    product *= n > 7.5 ? t + 7.0 : 1.0;
    product = n < 1.5 ? y : product;
    product = n < 0.5 ? y * (t + 1.0) : product;
    product = y < 8.0 ? product : y;
    double log = fx_log_of_short(__builtin_fabs(product));
    double small = __builtin_fma(q, t, n < 1.5 ? -log : log);
    double inverse = 1.0 / y;
    double u = inverse * inverse;
    double s = -0x1.2793762e6d135p-11;
    s = __builtin_fma(s, u, 0x1.9fe0b62771127p-11);
    s = __builtin_fma(s, u, -0x1.6c16ad335bffep-9);
    s = __builtin_fma(s, u, 0x1.555555550b28fp-4);
    s = __builtin_fma(s, inverse, 0x1.acfe390c97d69p-2);
    double large = __builtin_fma(y - 0.5, log - 1.0, s);
    double result = y < 8.0 ? small : large;
    // Gamma(-y) Gamma(y) = -pi / (y sin(pi y)).
    double whole = (size + 0x1.0p52) - 0x1.0p52;
    double r = size < 0x1.0p52 ? size - whole : 0.0;
    double z = r * r;
    double p = 0x1.2a85079f7f7a9p-13;
    p = __builtin_fma(p, z, -0x1.333a5c93b326fp-9);
    p = __builtin_fma(p, z, 0x1.ac667a9c46daep-6);
    p = __builtin_fma(p, z, -0x1.86a8e002b9c16p-3);
    p = __builtin_fma(p, z, 0x1.9f9cb3f68317ep-1);
    p = __builtin_fma(p, z, -0x1.a51a662516f77p+0);
    p = __builtin_fma(p, z, 0x1.ffffffffffdcap-1);
    double sine = __builtin_fabs(p * r);
    double other = -fx_log_of_short(reflected ? size * sine : 1.0) - result;
    result = reflected ? other : result;
    bool pole = (x == 0.0) | (reflected & (sine == 0.0));
    result = pole ? __builtin_inf() : result;
    return size == __builtin_inf() ? size : result;
}

//@ name: lgamma.f32
//@ needs: _lgamma_short.f64
//@ accuracy: 0.6 ulp
//@ method: in double
FX_INLINE float fx_lgamma(float x) { return (float)fx_lgamma_short((double)x); }
