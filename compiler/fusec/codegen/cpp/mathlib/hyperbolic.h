// Hyperbolic functions and their inverses.

//@ name: tanh.f32
//@ needs: _exp_normal.f32
//@ accuracy: 2 ulp
//@ method: x + x^3 P(x^2) up to 0.6, minimax of degree 4; 1 - 2 / (exp(2 |x|) + 1) beyond
FX_INLINE float fx_tanh(float x)
{
    float s = x * x;
    float p = -0x1.828770p-8f;
    p = __builtin_fmaf(p, s, 0x1.54c3c2p-6f);
    p = __builtin_fmaf(p, s, -0x1.b89abap-5f);
    p = __builtin_fmaf(p, s, 0x1.1109bep-3f);
    p = __builtin_fmaf(p, s, -0x1.55553ep-2f);
    float near = __builtin_fmaf(p * s, x, x);
    float y = __builtin_fabsf(x);
    y = y > 9.1f ? 9.1f : y;
    float far = 1.0f - 2.0f / (fx_exp_normal(2.0f * y) + 1.0f);
    // Asked this way round, NaN takes the near side, which keeps it.
    return y >= 0.6f ? __builtin_copysignf(far, x) : near;
}

//@ name: sinh.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_sinh(float x) { return __builtin_sinhf(x); }

//@ name: cosh.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_cosh(float x) { return __builtin_coshf(x); }

//@ name: asinh.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_asinh(float x) { return __builtin_asinhf(x); }

//@ name: acosh.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_acosh(float x) { return __builtin_acoshf(x); }

//@ name: atanh.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_atanh(float x) { return __builtin_atanhf(x); }

//@ name: tanh.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_tanh(double x) { return __builtin_tanh(x); }

//@ name: sinh.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_sinh(double x) { return __builtin_sinh(x); }

//@ name: cosh.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_cosh(double x) { return __builtin_cosh(x); }

//@ name: asinh.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_asinh(double x) { return __builtin_asinh(x); }

//@ name: acosh.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_acosh(double x) { return __builtin_acosh(x); }

//@ name: atanh.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_atanh(double x) { return __builtin_atanh(x); }
