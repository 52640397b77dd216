// Integers: division as Python has it, shifts for every count, casts that never trap.
//
// A division by zero gives 0 here and must be found by the caller: eager raises an error.

//@ name: divides.int
//@ method: whether x / y is defined: what a kernel checks before it uses a quotient
template <typename T>
FX_INLINE bool fx_divides(T y)
{
    return y != 0;
}

//@ name: truncdiv.int
//@ method: rounds to zero; 0 for y = 0; wraps for the least value / -1; in double up to 32 bits
template <typename T>
FX_INLINE T fx_truncdiv(T x, T y)
{
    // -1 is done by hand: the least value / -1 traps.
    bool negate = ((T)-1 < (T)0) & (y == (T)-1);
    T divisor = ((y == 0) | negate) ? (T)1 : y;
    T q;
    if constexpr (sizeof(T) < 4) {
        // No machine divides vectors of integers, and a quotient in double is exact enough.
        q = (T)(int32_t)((float)x / (float)divisor);
    } else if constexpr (sizeof(T) == 4 && (T)-1 < (T)0) {
        q = (T)(int32_t)((double)x / (double)divisor);
    } else {
        q = (T)(x / divisor);
    }
    q = negate ? (T)(0 - (uint64_t)x) : q;
    return y == 0 ? (T)0 : q;
}

//@ name: floordiv.int
//@ needs: truncdiv.int
//@ method: Python's //; 0 for y = 0
template <typename T>
FX_INLINE T fx_floordiv(T x, T y)
{
    T q = fx_truncdiv(x, y);
    T r = (T)((uint64_t)x - (uint64_t)q * (uint64_t)y);
    return ((r != 0) & ((r < 0) != (y < 0)) & (y != 0)) ? (T)(q - 1) : q;
}

//@ name: fmod.int
//@ needs: truncdiv.int
//@ method: C's %: the sign is that of x; 0 for y = 0
template <typename T>
FX_INLINE T fx_fmod(T x, T y)
{
    T r = (T)((uint64_t)x - (uint64_t)fx_truncdiv(x, y) * (uint64_t)y);
    return y == 0 ? (T)0 : r;
}

//@ name: remainder.int
//@ needs: floordiv.int
//@ method: Python's %: the sign is that of y; 0 for y = 0
template <typename T>
FX_INLINE T fx_remainder(T x, T y)
{
    T r = (T)((uint64_t)x - (uint64_t)fx_floordiv(x, y) * (uint64_t)y);
    return y == 0 ? (T)0 : r;
}

//@ name: pow.int
//@ vector: no
//@ method: by squaring, wraps; a negative exponent gives 0 but for x = 1 and x = -1
template <typename T>
FX_INLINE T fx_pow(T x, T y)
{
    if (y < 0) return (T)(x == (T)1 ? 1 : x == (T)-1 ? (y % 2 ? -1 : 1) : 0);
    uint64_t result = 1;
    uint64_t base = (uint64_t)x;
    for (uint64_t n = (uint64_t)y; n != 0; n >>= 1) {
        result *= n & 1 ? base : 1;
        base *= base;
    }
    return (T)result;
}

//@ name: lshift.int
//@ method: 0 for a count that is negative or too large
template <typename T>
FX_INLINE T fx_lshift(T x, T count)
{
    constexpr uint64_t width = sizeof(T) * 8;
    uint64_t n = (uint64_t)count;
    return n < width ? (T)((uint64_t)x << (n < width ? n : 0)) : (T)0;
}

//@ name: rshift.int
//@ method: arithmetic; all sign bits for a count that is negative or too large
template <typename T>
FX_INLINE T fx_rshift(T x, T count)
{
    constexpr uint64_t width = sizeof(T) * 8;
    constexpr bool is_signed = (T)-1 < (T)0;
    uint64_t n = (uint64_t)count;
    T all = is_signed ? (T)(x >> (width - 1)) : (T)0;
    return n < width ? (T)(x >> (n < width ? n : 0)) : all;
}

//@ name: _whole
//@ method: x; g++ takes a conversion to it and back for trunc, which makes -0.0 of -0.5
template <typename T>
FX_INLINE T fx_whole(T x)
{
#ifdef __clang__
    return x;
#elif __GNUC__ >= 12
    return __builtin_assoc_barrier(x);
#else
    asm("" : "+r"(x));
    return x;
#endif
}

//@ name: to_i8.f32
//@ method: to zero; out of range 0, the low bits of what x86 converts to
FX_INLINE int8_t fx_to_i8(float x)
{
    bool fits = (x > -0x1.000002p31f) & (x < 0x1p31f);
    return (int8_t)(int32_t)(fits ? x : 0);
}

//@ name: to_i16.f32
//@ method: to zero; out of range 0, the low bits of what x86 converts to
FX_INLINE int16_t fx_to_i16(float x)
{
    bool fits = (x > -0x1.000002p31f) & (x < 0x1p31f);
    return (int16_t)(int32_t)(fits ? x : 0);
}

//@ name: to_i32.f32
//@ needs: _whole
//@ method: to zero; out of range as x86 converts
FX_INLINE int32_t fx_to_i32(float x)
{
    bool fits = (x > -0x1.000002p31f) & (x < 0x1p31f);
    int32_t whole = fx_whole((int32_t)(fits ? x : 0));
    return fits ? whole : INT32_MIN;
}

//@ name: to_i64.f32
//@ needs: _whole
//@ method: to zero; out of range as x86 converts
FX_INLINE int64_t fx_to_i64(float x)
{
    bool fits = (x >= -0x1p63f) & (x < 0x1p63f);
    int64_t whole = fx_whole((int64_t)(fits ? x : 0));
    return fits ? whole : INT64_MIN;
}

//@ name: to_u8.f32
//@ method: to zero, modulo 256; out of range 0
FX_INLINE uint8_t fx_to_u8(float x)
{
    bool fits = (x > -0x1.000002p31f) & (x < 0x1p31f);
    return (uint8_t)(int32_t)(fits ? x : 0);
}

//@ name: to_bool.f32
//@ method: true for all but 0; also for NaN
FX_INLINE bool fx_to_bool(float x) { return x != 0; }

//@ name: to_i8.f64
//@ method: to zero; out of range 0, the low bits of what x86 converts to
FX_INLINE int8_t fx_to_i8(double x)
{
    bool fits = (x > -0x1.00000002p31) & (x < 0x1p31);
    return (int8_t)(int32_t)(fits ? x : 0);
}

//@ name: to_i16.f64
//@ method: to zero; out of range 0, the low bits of what x86 converts to
FX_INLINE int16_t fx_to_i16(double x)
{
    bool fits = (x > -0x1.00000002p31) & (x < 0x1p31);
    return (int16_t)(int32_t)(fits ? x : 0);
}

//@ name: to_i32.f64
//@ needs: _whole
//@ method: to zero; out of range as x86 converts
FX_INLINE int32_t fx_to_i32(double x)
{
    bool fits = (x > -0x1.00000002p31) & (x < 0x1p31);
    int32_t whole = fx_whole((int32_t)(fits ? x : 0));
    return fits ? whole : INT32_MIN;
}

//@ name: to_i64.f64
//@ needs: _whole
//@ method: to zero; out of range as x86 converts
FX_INLINE int64_t fx_to_i64(double x)
{
    bool fits = (x >= -0x1p63) & (x < 0x1p63);
    int64_t whole = fx_whole((int64_t)(fits ? x : 0));
    return fits ? whole : INT64_MIN;
}

//@ name: to_u8.f64
//@ needs: to_i64.f64
//@ method: to zero, modulo 256
FX_INLINE uint8_t fx_to_u8(double x) { return (uint8_t)fx_to_i64(x); }

//@ name: to_bool.f64
//@ method: true for all but 0; also for NaN
FX_INLINE bool fx_to_bool(double x) { return x != 0; }
