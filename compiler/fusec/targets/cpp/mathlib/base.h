// What the other families are built on: inlining, bits of floating-point numbers, powers of two.

//@ name: _inline
#define FX_INLINE static inline __attribute__((always_inline))

//@ name: _fma.f32
//@ method: a * b + c where no instruction does it: the product is exact in double
FX_INLINE float fx_fma(float a, float b, float c) { return (float)((double)a * b + c); }

//@ name: _multiply_add.f64
//@ method: as fma for what becomes a float: the product's rounding is far below that
FX_INLINE double fx_multiply_add(double a, double b, double c) { return a * b + c; }

//@ name: _bits.f32
FX_INLINE uint32_t fx_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FX_INLINE float fx_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

//@ name: _bits.f64
FX_INLINE uint64_t fx_bits(double x) { return __builtin_bit_cast(uint64_t, x); }
FX_INLINE double fx_from_bits(uint64_t x) { return __builtin_bit_cast(double, x); }

//@ name: _choose.f32
//@ needs: _bits.f32
//@ method: one of the two without a branch, which g++ would join with the next one
FX_INLINE float fx_choose(bool condition, float yes, float no)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return fx_from_bits((fx_bits(yes) & mask) | (fx_bits(no) & ~mask));
}

//@ name: _choose.f64
//@ needs: _bits.f64
//@ method: one of the two without a branch, which g++ would join with the next one
FX_INLINE double fx_choose(bool condition, double yes, double no)
{
    uint64_t mask = 0u - (uint64_t)condition;
    return fx_from_bits((fx_bits(yes) & mask) | (fx_bits(no) & ~mask));
}

//@ name: abs.f32
FX_INLINE float fx_abs(float x) { return __builtin_fabsf(x); }

//@ name: abs.f64
FX_INLINE double fx_abs(double x) { return __builtin_fabs(x); }

//@ name: abs.int
//@ method: wraps for the least value, as eager does
template <typename T>
FX_INLINE T fx_abs(T x)
{
    return (T)(x < 0 ? 0 - (uint64_t)x : (uint64_t)x);
}

//@ name: sqrt.f32
//@ accuracy: exact rounding
FX_INLINE float fx_sqrt(float x) { return __builtin_sqrtf(x); }

//@ name: sqrt.f64
//@ accuracy: exact rounding
FX_INLINE double fx_sqrt(double x) { return __builtin_sqrt(x); }

//@ name: rsqrt.f32
//@ accuracy: 1.5 ulp
FX_INLINE float fx_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

//@ name: rsqrt.f64
//@ accuracy: 1.5 ulp
FX_INLINE double fx_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

//@ name: floor.f32
FX_INLINE float fx_floor(float x) { return __builtin_floorf(x); }

//@ name: floor.f64
FX_INLINE double fx_floor(double x) { return __builtin_floor(x); }

//@ name: ceil.f32
FX_INLINE float fx_ceil(float x) { return __builtin_ceilf(x); }

//@ name: ceil.f64
FX_INLINE double fx_ceil(double x) { return __builtin_ceil(x); }

//@ name: trunc.f32
FX_INLINE float fx_trunc(float x) { return __builtin_truncf(x); }

//@ name: trunc.f64
FX_INLINE double fx_trunc(double x) { return __builtin_trunc(x); }

//@ name: round.f32
//@ method: to nearest, ties to even
FX_INLINE float fx_round(float x) { return __builtin_rintf(x); }

//@ name: round.f64
//@ method: to nearest, ties to even
FX_INLINE double fx_round(double x) { return __builtin_rint(x); }

//@ name: copysign.f32
FX_INLINE float fx_copysign(float x, float sign) { return __builtin_copysignf(x, sign); }

//@ name: copysign.f64
FX_INLINE double fx_copysign(double x, double sign) { return __builtin_copysign(x, sign); }

//@ name: isnan.f32
FX_INLINE bool fx_isnan(float x) { return x != x; }

//@ name: isnan.f64
FX_INLINE bool fx_isnan(double x) { return x != x; }

//@ name: isinf.f32
FX_INLINE bool fx_isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }

//@ name: isinf.f64
FX_INLINE bool fx_isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }

//@ name: signbit.f32
//@ needs: _bits.f32
FX_INLINE bool fx_signbit(float x) { return fx_bits(x) >> 31; }

//@ name: signbit.f64
//@ needs: _bits.f64
FX_INLINE bool fx_signbit(double x) { return fx_bits(x) >> 63; }

//@ name: sign.f32
//@ method: 0 for NaN, as eager
FX_INLINE float fx_sign(float x) { return (float)(0.0f < x) - (float)(x < 0.0f); }

//@ name: sign.f64
//@ method: 0 for NaN, as eager
FX_INLINE double fx_sign(double x) { return (double)(0.0 < x) - (double)(x < 0.0); }

//@ name: sign.int
template <typename T>
FX_INLINE T fx_sign(T x)
{
    return (T)((0 < x) - (x < 0));
}

//@ name: maximum.f32
//@ needs: _choose.f32
//@ method: NaN if either is
FX_INLINE float fx_maximum(float a, float b)
{
    // If b is NaN, the comparison fails and gives it.
    float result = a > b ? a : b;
    return fx_choose(a != a, a, result);
}

//@ name: maximum.f64
//@ needs: _choose.f64
//@ method: NaN if either is
FX_INLINE double fx_maximum(double a, double b)
{
    // If b is NaN, the comparison fails and gives it.
    double result = a > b ? a : b;
    return fx_choose(a != a, a, result);
}

//@ name: maximum.int
template <typename T>
FX_INLINE T fx_maximum(T a, T b)
{
    return a > b ? a : b;
}

//@ name: minimum.f32
//@ needs: _choose.f32
//@ method: NaN if either is
FX_INLINE float fx_minimum(float a, float b)
{
    // If b is NaN, the comparison fails and gives it.
    float result = a < b ? a : b;
    return fx_choose(a != a, a, result);
}

//@ name: minimum.f64
//@ needs: _choose.f64
//@ method: NaN if either is
FX_INLINE double fx_minimum(double a, double b)
{
    // If b is NaN, the comparison fails and gives it.
    double result = a < b ? a : b;
    return fx_choose(a != a, a, result);
}

//@ name: minimum.int
template <typename T>
FX_INLINE T fx_minimum(T a, T b)
{
    return a < b ? a : b;
}

//@ name: fmax.f32
//@ needs: _choose.f32
//@ method: the other one if one is NaN
FX_INLINE float fx_fmax(float a, float b)
{
    // If b is NaN, the comparison fails and gives a.
    float result = b > a ? b : a;
    return fx_choose(a != a, b, result);
}

//@ name: fmax.f64
//@ needs: _choose.f64
//@ method: the other one if one is NaN
FX_INLINE double fx_fmax(double a, double b)
{
    // If b is NaN, the comparison fails and gives a.
    double result = b > a ? b : a;
    return fx_choose(a != a, b, result);
}

//@ name: fmin.f32
//@ needs: _choose.f32
//@ method: the other one if one is NaN
FX_INLINE float fx_fmin(float a, float b)
{
    // If b is NaN, the comparison fails and gives a.
    float result = b < a ? b : a;
    return fx_choose(a != a, b, result);
}

//@ name: fmin.f64
//@ needs: _choose.f64
//@ method: the other one if one is NaN
FX_INLINE double fx_fmin(double a, double b)
{
    // If b is NaN, the comparison fails and gives a.
    double result = b < a ? b : a;
    return fx_choose(a != a, b, result);
}
