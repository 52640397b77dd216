// Powers, and the remainders of floating-point division.

//@ name: pow.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_pow(float x, float y) { return __builtin_powf(x, y); }

//@ name: hypot.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_hypot(float x, float y) { return __builtin_hypotf(x, y); }

//@ name: fmod.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_fmod(float x, float y) { return __builtin_fmodf(x, y); }

//@ name: nextafter.f32
//@ vector: no
//@ method: C library
FX_INLINE float fx_nextafter(float x, float y) { return __builtin_nextafterf(x, y); }

//@ name: remainder.f32
//@ vector: no
//@ method: Python's %: the sign is that of the divisor
FX_INLINE float fx_remainder(float x, float y)
{
    float r = __builtin_fmodf(x, y);
    return r != 0 && (y < 0) != (r < 0) ? r + y : r;
}

//@ name: floordiv.f32
//@ needs: 
//@ vector: no
//@ method: Python's //, as eager computes it
FX_INLINE float fx_floordiv(float x, float y)
{
    float r = __builtin_fmodf(x, y);
    float q = (x - r) / y;
    q = r != 0 && (y < 0) != (r < 0) ? q - 1 : q;
    float whole = __builtin_floorf(q);
    whole = q - whole > (float)0.5 ? whole + 1 : whole;
    float result = q != 0 ? whole : __builtin_copysignf(0, x / y);
    return y == 0 ? x / y : result;
}

//@ name: pow.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_pow(double x, double y) { return __builtin_pow(x, y); }

//@ name: hypot.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_hypot(double x, double y) { return __builtin_hypot(x, y); }

//@ name: fmod.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_fmod(double x, double y) { return __builtin_fmod(x, y); }

//@ name: nextafter.f64
//@ vector: no
//@ method: C library
FX_INLINE double fx_nextafter(double x, double y) { return __builtin_nextafter(x, y); }

//@ name: remainder.f64
//@ vector: no
//@ method: Python's %: the sign is that of the divisor
FX_INLINE double fx_remainder(double x, double y)
{
    double r = __builtin_fmod(x, y);
    return r != 0 && (y < 0) != (r < 0) ? r + y : r;
}

//@ name: floordiv.f64
//@ needs: 
//@ vector: no
//@ method: Python's //, as eager computes it
FX_INLINE double fx_floordiv(double x, double y)
{
    double r = __builtin_fmod(x, y);
    double q = (x - r) / y;
    q = r != 0 && (y < 0) != (r < 0) ? q - 1 : q;
    double whole = __builtin_floor(q);
    whole = q - whole > (double)0.5 ? whole + 1 : whole;
    double result = q != 0 ? whole : __builtin_copysign(0, x / y);
    return y == 0 ? x / y : result;
}
