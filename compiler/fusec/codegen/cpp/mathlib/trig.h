// Trigonometric functions and their inverses.

//@ name: sin.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_sin(float x) { return __builtin_sinf(x); }

//@ name: cos.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_cos(float x) { return __builtin_cosf(x); }

//@ name: tan.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_tan(float x) { return __builtin_tanf(x); }

//@ name: asin.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_asin(float x) { return __builtin_asinf(x); }

//@ name: acos.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_acos(float x) { return __builtin_acosf(x); }

//@ name: atan.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_atan(float x) { return __builtin_atanf(x); }

//@ name: atan2.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_atan2(float x, float y) { return __builtin_atan2f(x, y); }

//@ name: sin.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_sin(double x) { return __builtin_sin(x); }

//@ name: cos.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_cos(double x) { return __builtin_cos(x); }

//@ name: tan.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_tan(double x) { return __builtin_tan(x); }

//@ name: asin.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_asin(double x) { return __builtin_asin(x); }

//@ name: acos.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_acos(double x) { return __builtin_acos(x); }

//@ name: atan.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_atan(double x) { return __builtin_atan(x); }

//@ name: atan2.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_atan2(double x, double y) { return __builtin_atan2(x, y); }
