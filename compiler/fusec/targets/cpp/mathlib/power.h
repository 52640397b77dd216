// Powers, and the remainders of floating-point division.

//@ name: _pow_special.f32
//@ method: what C says of zeros, infinities, negative bases and 1, given |x|^y
FX_INLINE float fx_pow_special(float x, float y, float result)
{
    float a = __builtin_fabsf(x);
    float infinity = __builtin_inff();
    bool whole = __builtin_truncf(y) == y;
    bool odd = whole & (__builtin_truncf(0.5f * y) != 0.5f * y);
    result = a == 0.0f ? (y < 0.0f ? infinity : 0.0f) : result;
    result = a == infinity ? (y < 0.0f ? 0.0f : infinity) : result;
    result = a == 1.0f ? 1.0f : result;
    result = ((x < 0.0f) & !whole & (a != infinity)) ? __builtin_nanf("") : result;
    result = odd ? __builtin_copysignf(result, x) : result;
    result = ((x != x) | (y != y)) ? x + y : result;
    return ((y == 0.0f) | (x == 1.0f)) ? 1.0f : result;
}

//@ name: _pow_special.f64
//@ method: what C says of zeros, infinities, negative bases and 1, given |x|^y
FX_INLINE double fx_pow_special(double x, double y, double result)
{
    double a = __builtin_fabs(x);
    double infinity = __builtin_inf();
    bool whole = __builtin_trunc(y) == y;
    bool odd = whole & (__builtin_trunc(0.5 * y) != 0.5 * y);
    result = a == 0.0 ? (y < 0.0 ? infinity : 0.0) : result;
    result = a == infinity ? (y < 0.0 ? 0.0 : infinity) : result;
    result = a == 1.0 ? 1.0 : result;
    result = ((x < 0.0) & !whole & (a != infinity)) ? __builtin_nan("") : result;
    result = odd ? __builtin_copysign(result, x) : result;
    result = ((x != x) | (y != y)) ? x + y : result;
    return ((y == 0.0) | (x == 1.0)) ? 1.0 : result;
}

//@ name: pow.f32
//@ needs: _bits.f64 _pow_special.f32
//@ accuracy: 0.6 ulp
//@ method: 2^(y log2 |x|) in double, minimax of degree 14 for log2 and 7 for 2^r
//@ rounded: 0.6 ulp
//@ chains: p q
FX_INLINE float fx_pow(float x, float y)
{
    double a = __builtin_fabs((double)x);
    uint64_t bits = fx_bits(a) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double e = fx_from_bits((bits >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double f = fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double p = -0x1.1da5d8727ee42p-4;
    p = __builtin_fma(p, f, 0x1.0f61643dd814cp-3);
    p = __builtin_fma(p, f, -0x1.13b817fecb580p-3);
    p = __builtin_fma(p, f, 0x1.0ace19594305dp-3);
    p = __builtin_fma(p, f, -0x1.23d66c04efc16p-3);
    p = __builtin_fma(p, f, 0x1.481fab9de0ad0p-3);
    p = __builtin_fma(p, f, -0x1.7188d1095b742p-3);
    p = __builtin_fma(p, f, 0x1.a61b7dc9c80e3p-3);
    p = __builtin_fma(p, f, -0x1.ec6f2e0feae83p-3);
    p = __builtin_fma(p, f, 0x1.2776b6cd024d9p-2);
    p = __builtin_fma(p, f, -0x1.715478882b6bdp-2);
    p = __builtin_fma(p, f, 0x1.ec709de33d507p-2);
    p = __builtin_fma(p, f, -0x1.71547651b7062p-1);
    p = __builtin_fma(p, f, 0x1.71547652b58f3p+0);
    double power = (double)y * __builtin_fma(p, f, e);
    power = power > 129.0 ? 129.0 : power;
    power = power < -151.0 ? -151.0 : power;
    double shifted = power + 0x1.8p52;
    double r = power - (shifted - 0x1.8p52);
    double q = 0x1.c04b57c372a9cp-17;
    q = __builtin_fma(q, r, 0x1.443f828dc9fcep-13);
    q = __builtin_fma(q, r, 0x1.5dc04b310137bp-10);
    q = __builtin_fma(q, r, 0x1.3b2a1c0b7c471p-7);
    q = __builtin_fma(q, r, 0x1.c6b055273a443p-5);
    q = __builtin_fma(q, r, 0x1.ebfbe0455df0ap-3);
    q = __builtin_fma(q, r, 0x1.62e4300b969c0p-1);
    q = __builtin_fma(q, r, 1.0);
    float result = (float)fx_from_bits(fx_bits(q) + (fx_bits(shifted) << 52));
    return fx_pow_special(x, y, result);
}

//@ name: pow.f64
//@ needs: _bits.f64 _exp_poly.f64 _scale.f64 _pow_special.f64
//@ accuracy: 1 ulp
//@ method: exp(y log |x|) with the logarithm in two doubles
FX_INLINE double fx_pow(double x, double y)
{
    double a = __builtin_fabs(x);
    bool tiny = a < 0x1p-1022;
    uint64_t bits = fx_bits(tiny ? a * 0x1p54 : a) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double bias = tiny ? 0x1p52 + 1077.0 : 0x1p52 + 1023.0;
    double e = fx_from_bits((bits >> 52) | 0x4330000000000000u) - bias;
    double m = fx_from_bits((bits & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu);
    // s = (m - 1) / (m + 1), log m = 2 s + 2/3 s^3 + ..., each of the two in two doubles.
    double f = m - 1.0;
    double sum = m + 1.0;
    double sum_low = m - (sum - 1.0);
    double inverse = 1.0 / sum;
    double s = f * inverse;
    double s_low = __builtin_fma(-s, sum_low, __builtin_fma(-s, sum, f)) * inverse;
    double z = s * s;
    double z_low = __builtin_fma(s, s, -z) + 2.0 * s * s_low;
    double p = 0x1.ec143d971f999p-4;
    p = __builtin_fma(p, z, 0x1.de142426f1f13p-4);
    p = __builtin_fma(p, z, 0x1.11217c30125f7p-3);
    p = __builtin_fma(p, z, 0x1.3b135d84b3e3ap-3);
    p = __builtin_fma(p, z, 0x1.745d1845ee46dp-3);
    p = __builtin_fma(p, z, 0x1.c71c71c5573c0p-3);
    p = __builtin_fma(p, z, 0x1.2492492493192p-2);
    p = __builtin_fma(p, z, 0x1.9999999999995p-2);
    // (2/3 + z p) z, then times s.
    double c = z * p;
    double c_sum = 0x1.5555555555555p-1 + c;
    double c_low = (0x1.5555555555555p-1 - c_sum + c) + 0x1.5555555555555p-55;
    double t = z * c_sum;
    double t_low = __builtin_fma(z, c_sum, -t) + __builtin_fma(z, c_low, z_low * c_sum);
    double u = s * t;
    double u_low = __builtin_fma(s, t, -u) + __builtin_fma(s, t_low, s_low * t);
    // e ln 2 + 2 s + u, from the largest to the smallest.
    double high = e * 0x1.62e42fefa3800p-1;
    double low = __builtin_fma(e, 0x1.ef35793c76730p-45, __builtin_fma(2.0, s_low, u_low));
    double next = __builtin_fma(2.0, s, high);
    low += e == 0.0 ? 0.0 : __builtin_fma(2.0, s, high - next);
    double log = next + u;
    low += next - log + u;
    double exponent = y * log;
    double exponent_low = __builtin_fma(y, low, __builtin_fma(y, log, -exponent));
    bool out = __builtin_fabs(exponent) > 746.0;
    exponent_low = out ? 0.0 : exponent_low;
    exponent = exponent > 746.0 ? 746.0 : exponent;
    exponent = exponent < -746.0 ? -746.0 : exponent;
    double shifted = __builtin_fma(exponent, 0x1.71547652b82fep+0, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, exponent);
    r += __builtin_fma(n, -0x1.ef35793c76730p-45, exponent_low);
    double result = fx_scale(fx_exp_poly(r), fx_bits(shifted) - 0x4338000000000000u + 2048u);
    return fx_pow_special(x, y, result);
}

//@ name: hypot.f32
//@ accuracy: 0.6 ulp
//@ method: in double, where nothing overflows
FX_INLINE float fx_hypot(float x, float y)
{
    double sum = __builtin_fma((double)x, (double)x, (double)y * (double)y);
    float result = (float)__builtin_sqrt(sum);
    float infinity = __builtin_inff();
    bool infinite = (__builtin_fabsf(x) == infinity) | (__builtin_fabsf(y) == infinity);
    return infinite ? infinity : result;
}

//@ name: hypot.f64
//@ needs: _bits.f64
//@ accuracy: 1.3 ulp
//@ method: scaled by a power of two near the larger one
FX_INLINE double fx_hypot(double x, double y)
{
    double a = __builtin_fabs(x);
    double b = __builtin_fabs(y);
    double larger = a > b ? a : b;
    double infinity = __builtin_inf();
    bool big = larger > 0x1p500;
    bool small = larger < 0x1p-500;
    double down = big ? 0x1p-600 : small ? 0x1p600 : 1.0;
    double up = big ? 0x1p600 : small ? 0x1p-600 : 1.0;
    a *= down;
    b *= down;
    double result = __builtin_sqrt(__builtin_fma(a, a, b * b)) * up;
    return ((a == infinity) | (b == infinity)) ? infinity : result;
}

//@ name: fmod.f32
//@ accuracy: exact
//@ method: in float64 the quotient loses 51 bits a step, of 277 at most
FX_INLINE float fx_fmod(float x, float y)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    double divisor = y, inverse = 1.0 / divisor, r = x;
    r = __builtin_fma(-__builtin_rint(r * inverse), divisor, r);
    r = __builtin_fma(-__builtin_rint(r * inverse), divisor, r);
    r = __builtin_fma(-__builtin_rint(r * inverse), divisor, r);
    r = __builtin_fma(-__builtin_rint(r * inverse), divisor, r);
    r = __builtin_fma(-__builtin_rint(r * inverse), divisor, r);
    r = __builtin_fma(-__builtin_rint(r * inverse), divisor, r);
    // The last quotient was rounded to the nearest: what is left may be on the other side of zero.
    r = ((r != 0.0) & ((r < 0.0) != (x < 0.0f))) ? r + __builtin_copysign(divisor, -r) : r;
    float infinity = __builtin_inff();
    bool whole = (__builtin_fabsf(y) == infinity) & (__builtin_fabsf(x) < infinity);
    return whole ? x : __builtin_copysignf((float)r, x);
#else
    return __builtin_fmodf(x, y);
#endif
}

//@ name: fmod.f64
//@ vector: no
//@ accuracy: exact
//@ method: C library
FX_INLINE double fx_fmod(double x, double y) { return __builtin_fmod(x, y); }

//@ name: is_far_quotient.f32
//@ method: whether the quick forms of fmod and remainder do not hold
FX_INLINE bool fx_is_far_quotient(float x, float y)
{
    float size = __builtin_fabsf(y);
    return !((__builtin_fabsf(x) < 0x1p22f * size) & (size < __builtin_inff()));
}

//@ name: is_far_quotient.f64
//@ method: whether the quick forms of fmod and remainder do not hold
FX_INLINE bool fx_is_far_quotient(double x, double y)
{
    double size = __builtin_fabs(y);
    return !((__builtin_fabs(x) < 0x1p51 * size) & (size < __builtin_inf()));
}

//@ name: moderate_fmod.f32
//@ needs: _flag fmod.f32
//@ accuracy: exact
//@ method: one step where moderate says that |x / y| < 2^22
template <typename Moderate>
FX_INLINE float fx_moderate_fmod(float x, float y, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_fmod(x, y);
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    float r = __builtin_fmaf(-__builtin_truncf(x / y), y, x);
    // A quotient just below a whole number is rounded to it.
    r = ((r != 0.0f) & ((r < 0.0f) != (x < 0.0f))) ? r + __builtin_copysignf(y, x) : r;
#else
    double quotient = (double)(int32_t)((double)x / (double)y); // a double has all of its bits
    float r = (float)((double)x - quotient * (double)y);
#endif
    return __builtin_copysignf(r, x);
}

//@ name: moderate_fmod.f64
//@ needs: _flag fmod.f64
//@ accuracy: exact
//@ method: one step where moderate says that |x / y| < 2^51
template <typename Moderate>
FX_INLINE double fx_moderate_fmod(double x, double y, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_fmod(x, y);
    double r = __builtin_fma(-__builtin_trunc(x / y), y, x);
    r = ((r != 0.0) & ((r < 0.0) != (x < 0.0))) ? r + __builtin_copysign(y, x) : r;
    return __builtin_copysign(r, x);
}

//@ name: _with_sign_of.f32
//@ method: a remainder on the side of zero that y is on
FX_INLINE float fx_with_sign_of(float r, float y)
{
    return ((r != 0.0f) & ((y < 0.0f) != (r < 0.0f))) ? r + y : r;
}

//@ name: _with_sign_of.f64
//@ method: a remainder on the side of zero that y is on
FX_INLINE double fx_with_sign_of(double r, double y)
{
    return ((r != 0.0) & ((y < 0.0) != (r < 0.0))) ? r + y : r;
}

//@ name: remainder.f32
//@ needs: fmod.f32 _with_sign_of.f32
//@ method: Python's %: the sign is that of y
FX_INLINE float fx_remainder(float x, float y) { return fx_with_sign_of(fx_fmod(x, y), y); }

//@ name: remainder.f64
//@ needs: fmod.f64 _with_sign_of.f64
//@ vector: no
//@ method: Python's %: the sign is that of y
FX_INLINE double fx_remainder(double x, double y) { return fx_with_sign_of(fx_fmod(x, y), y); }

//@ name: moderate_remainder.f32
//@ needs: moderate_fmod.f32 _with_sign_of.f32
//@ method: one step where moderate says that |x / y| < 2^22
template <typename Moderate>
FX_INLINE float fx_moderate_remainder(float x, float y, Moderate moderate)
{
    return fx_with_sign_of(fx_moderate_fmod(x, y, moderate), y);
}

//@ name: moderate_remainder.f64
//@ needs: moderate_fmod.f64 _with_sign_of.f64
//@ method: one step where moderate says that |x / y| < 2^51
template <typename Moderate>
FX_INLINE double fx_moderate_remainder(double x, double y, Moderate moderate)
{
    return fx_with_sign_of(fx_moderate_fmod(x, y, moderate), y);
}

//@ name: floordiv.f32
//@ needs: fmod.f32
//@ method: Python's //, step by step as eager computes it
FX_INLINE float fx_floordiv(float x, float y)
{
    float r = fx_fmod(x, y);
    float q = (x - r) / y;
    q = ((r != 0.0f) & ((y < 0.0f) != (r < 0.0f))) ? q - 1.0f : q;
    float whole = __builtin_floorf(q);
    whole = q - whole > 0.5f ? whole + 1.0f : whole;
    whole = q != 0.0f ? whole : __builtin_copysignf(0.0f, x / y);
    return y == 0.0f ? x / y : whole;
}

//@ name: floordiv.f64
//@ vector: no
//@ method: Python's //, step by step as eager computes it
FX_INLINE double fx_floordiv(double x, double y)
{
    double r = __builtin_fmod(x, y);
    double q = (x - r) / y;
    q = ((r != 0.0) & ((y < 0.0) != (r < 0.0))) ? q - 1.0 : q;
    double whole = __builtin_floor(q);
    whole = q - whole > 0.5 ? whole + 1.0 : whole;
    whole = q != 0.0 ? whole : __builtin_copysign(0.0, x / y);
    return y == 0.0 ? x / y : whole;
}

//@ name: nextafter.f32
//@ needs: _bits.f32
//@ accuracy: exact
FX_INLINE float fx_nextafter(float x, float y)
{
    uint32_t bits = fx_bits(x);
    // Away from zero is one up, whatever the sign; off zero itself it is the least subnormal.
    bool away = (x < y) == (x > 0.0f);
    uint32_t next = x == 0.0f ? (fx_bits(y) & 0x80000000u) | 1u : away ? bits + 1u : bits - 1u;
    float result = x == y ? y : fx_from_bits(next);
    return ((x != x) | (y != y)) ? x + y : result;
}

//@ name: nextafter.f64
//@ needs: _bits.f64
//@ accuracy: exact
FX_INLINE double fx_nextafter(double x, double y)
{
    uint64_t bits = fx_bits(x);
    bool away = (x < y) == (x > 0.0);
    uint64_t next =
        x == 0.0 ? (fx_bits(y) & 0x8000000000000000u) | 1u : away ? bits + 1u : bits - 1u;
    double result = x == y ? y : fx_from_bits(next);
    return ((x != x) | (y != y)) ? x + y : result;
}
