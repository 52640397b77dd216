// Special functions: calls of the C library, or loops that it takes to compute them.

//@ name: lgamma.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_lgamma(float x) { return __builtin_lgammaf(x); }

//@ name: lgamma.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_lgamma(double x) { return __builtin_lgamma(x); }
