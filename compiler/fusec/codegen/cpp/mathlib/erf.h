// The error function and its complement.

//@ name: erf.f32
//@ needs: _exp_normal.f32
//@ accuracy: 1 ulp
//@ method: x + x P(x^2) up to 0.93, 1 - exp(-|x| + |x| Q(|x|)) beyond; minimax, degrees 5 and 7
FX_INLINE float fx_erf(float x)
{
    float s = x * x;
    float p = -0x1.31d2bcp-11f;
    p = __builtin_fmaf(p, s, 0x1.455d4ap-8f);
    p = __builtin_fmaf(p, s, -0x1.b6463ap-6f);
    p = __builtin_fmaf(p, s, 0x1.ce172cp-4f);
    p = __builtin_fmaf(p, s, -0x1.8126e2p-2f);
    p = __builtin_fmaf(p, s, 0x1.06eba6p-3f);
    float near = __builtin_fmaf(p, x, x);
    float t = __builtin_fabsf(x);
    t = t > 4.0f ? 4.0f : t;
    float q = -0x1.859e84p-17f;
    q = __builtin_fmaf(q, t, 0x1.567ba0p-12f);
    q = __builtin_fmaf(q, t, -0x1.df75fep-9f);
    q = __builtin_fmaf(q, t, 0x1.85db76p-6f);
    q = __builtin_fmaf(q, t, -0x1.b34da2p-4f);
    q = __builtin_fmaf(q, t, -0x1.452f82p-1f);
    q = __builtin_fmaf(q, t, -0x1.077bdep-3f);
    q = __builtin_fmaf(q, t, -t);
    float far = __builtin_copysignf(1.0f - fx_exp_normal(q), x);
    // NaN takes the near side, which keeps it.
    return t > 0.93f ? far : near;
}

//@ name: erfc.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_erfc(float x) { return __builtin_erfcf(x); }

//@ name: erf.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_erf(double x) { return __builtin_erf(x); }

//@ name: erfc.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_erfc(double x) { return __builtin_erfc(x); }
