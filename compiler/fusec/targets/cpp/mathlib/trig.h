// Trigonometric functions and their inverses.
//
// Reduction of a float: x 2/pi = n + r / (pi / 2), computed in double with 2/pi in three parts,
// the first two so short (29 bits) that their products with the 24 bits of x are exact. For a
// large x the leading bits of 2/pi only add multiples of 4 to n, and the parts start where that
// ends; four sets of them cover the whole range (Payne and Hanek's method, without a table).

//@ name: _trig_reduce.f32
//@ needs: _bits.f64
//@ method: returns r in [-pi/4, pi/4] and sets n, modulo 4, where x = n pi/2 + r
FX_INLINE double fx_trig_reduce(float x, uint32_t& n)
{
    float a = __builtin_fabsf(x);
    double first = a < 0x1p51f ? 0x1.45f306d000000p-1 : 0x1.727220a000000p-27;
    double second = a < 0x1p51f ? 0x1.9391054000000p-30 : 0x1.29fc275000000p-56;
    double third = a < 0x1p51f ? 0x1.4fe13abe8fa9ap-59 : 0x1.f47d4d377036ep-86;
    first = a < 0x1p77f ? first : 0x1.4a7f09c000000p-54;
    second = a < 0x1p77f ? second : 0x1.5f47d4d000000p-82;
    third = a < 0x1p77f ? third : 0x1.bb81b6c52b328p-113;
    first = a < 0x1p103f ? first : 0x1.abe8fa9000000p-79;
    second = a < 0x1p103f ? second : 0x1.4ddc0db000000p-108;
    third = a < 0x1p103f ? third : 0x1.8a5664f10e410p-138;
    // Each part of the product, less the nearest integer; the integers are in the low bits.
    double y = x;
    double high = y * first;
    double high_n = high + 0x1.8p52;
    high -= high_n - 0x1.8p52;
    double middle = y * second;
    double middle_n = middle + 0x1.8p52;
    middle -= middle_n - 0x1.8p52;
    double sum = high + middle;
    double sum_n = sum + 0x1.8p52;
    sum -= sum_n - 0x1.8p52;
    n = (uint32_t)(fx_bits(high_n) + fx_bits(middle_n) + fx_bits(sum_n));
    return __builtin_fma(y, third, sum) * 0x1.921fb54442d18p+0;
}

//@ name: _sin_quadrant.f32
//@ needs: _bits.f32
//@ method: sin(r + n pi/2) for |r| <= pi/4, minimax of degrees 9 and 8
//@ rounded: yes
FX_INLINE float fx_sin_quadrant(float r, uint32_t n)
{
    float z = r * r;
    float s = 0x1.7c2d56p-19f;
    s = __builtin_fmaf(s, z, -0x1.a05956p-13f);
    s = __builtin_fmaf(s, z, 0x1.111174p-7f);
    s = __builtin_fmaf(s, z, -0x1.555556p-3f);
    s = __builtin_fmaf(s * z, r, r);
    float c = 0x1.99e80cp-16f;
    c = __builtin_fmaf(c, z, -0x1.6c0c28p-10f);
    c = __builtin_fmaf(c, z, 0x1.55554ap-5f);
    c = __builtin_fmaf(c, z, -0.5f);
    c = __builtin_fmaf(c, z, 1.0f);
    return fx_from_bits(fx_bits(n & 1u ? c : s) ^ (n & 2u) << 30);
}

//@ name: sin.f32
//@ needs: _trig_reduce.f32 _sin_quadrant.f32
//@ accuracy: 1.5 ulp
//@ rounded: 1.6 ulp
FX_INLINE float fx_sin(float x)
{
    uint32_t n;
    float r = (float)fx_trig_reduce(x, n);
    float result = fx_sin_quadrant(r, n);
    return x == 0.0f ? x : result;
}

//@ name: cos.f32
//@ needs: _trig_reduce.f32 _sin_quadrant.f32
//@ accuracy: 1.5 ulp
//@ rounded: 1.6 ulp
FX_INLINE float fx_cos(float x)
{
    uint32_t n;
    float r = (float)fx_trig_reduce(x, n);
    return fx_sin_quadrant(r, n + 1u);
}

//@ name: _flag
template <bool is>
struct fx_flag
{
    static constexpr bool value = is;
};

//@ name: _trig_reduce_moderate.f32
//@ needs: _bits.f32
//@ method: fx_trig_reduce for |x| < 2^15: pi/2 in three parts
//@ rounded: yes
//@ exact: r
FX_INLINE float fx_trig_reduce_moderate(float x, uint32_t& n)
{
    float shifted = __builtin_fmaf(x, 0x1.45f306p-1f, 0x1.8p23f);
    n = fx_bits(shifted);
    float whole = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(whole, -0x1.921fb6p+0f, x);
    r = __builtin_fmaf(whole, 0x1.777a5cp-25f, r);
    return __builtin_fmaf(whole, 0x1.ee59dap-50f, r);
}

//@ name: is_far.f32
//@ method: whether the quick forms of sin and cos do not hold
FX_INLINE bool fx_is_far(float x) { return !(__builtin_fabsf(x) < 32768.0f); }

//@ name: moderate_sin.f32
//@ needs: _flag _trig_reduce_moderate.f32 _sin_quadrant.f32 sin.f32
//@ accuracy: 1.5 ulp
//@ method: a third of the work where moderate says that |x| < 2^15
//@ rounded: 1.6 ulp
template <typename Moderate>
FX_INLINE float fx_moderate_sin(float x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_sin(x);
    uint32_t n;
    float r = fx_trig_reduce_moderate(x, n);
    float result = fx_sin_quadrant(r, n);
    return x == 0.0f ? x : result;
}

//@ name: moderate_cos.f32
//@ needs: _flag _trig_reduce_moderate.f32 _sin_quadrant.f32 cos.f32
//@ accuracy: 1.5 ulp
//@ method: a third of the work where moderate says that |x| < 2^15
//@ rounded: 1.6 ulp
template <typename Moderate>
FX_INLINE float fx_moderate_cos(float x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_cos(x);
    uint32_t n;
    float r = fx_trig_reduce_moderate(x, n);
    return fx_sin_quadrant(r, n + 1u);
}

//@ name: _tan_quadrant.f32
//@ method: tan(r + rest + n pi/2), minimax of degree 15; -1 / tan in odd quadrants
FX_INLINE float fx_tan_quadrant(float r, float rest, uint32_t n)
{
    float z = r * r;
    float p = 0x1.1ecda4p-8f;
    p = __builtin_fmaf(p, z, 0x1.7fea66p-14f);
    p = __builtin_fmaf(p, z, 0x1.62f388p-7f);
    p = __builtin_fmaf(p, z, 0x1.5cba00p-6f);
    p = __builtin_fmaf(p, z, 0x1.bada4cp-5f);
    p = __builtin_fmaf(p, z, 0x1.110d9cp-3f);
    p = __builtin_fmaf(p, z, 0x1.555560p-2f);
    p = p * z;
    // d tan = (1 + tan^2) d r
    float low = __builtin_fmaf(p, r, __builtin_fmaf(z, rest, rest));
    float t = r + low;
    // -1 / (t + lost) is q + q^2 lost with q = -1 / t
    float lost = low - (t - r);
    float q = -1.0f / t;
    return n & 1u ? __builtin_fmaf(q * q, lost, q) : t;
}

//@ name: tan.f32
//@ needs: _trig_reduce.f32 _tan_quadrant.f32
//@ accuracy: 2 ulp
FX_INLINE float fx_tan(float x)
{
    uint32_t n;
    double reduced = fx_trig_reduce(x, n);
    float r = (float)reduced;
    float result = fx_tan_quadrant(r, (float)(reduced - r), n);
    return x == 0.0f ? x : result;
}

//@ name: moderate_tan.f32
//@ needs: _flag _bits.f32 _tan_quadrant.f32 tan.f32
//@ accuracy: 1.5 ulp
//@ method: without double where moderate says that |x| < 2^15: pi/2 in three parts, r in two
template <typename Moderate>
FX_INLINE float fx_moderate_tan(float x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_tan(x);
    float shifted = __builtin_fmaf(x, 0x1.45f306p-1f, 0x1.8p23f);
    uint32_t n = fx_bits(shifted);
    float whole = shifted - 0x1.8p23f;
    float high = __builtin_fmaf(whole, -0x1.921fb6p+0f, x);
    // The second product and the sum with what each loses: they nearly cancel near a pole.
    float middle = whole * 0x1.777a5cp-25f;
    float lost = __builtin_fmaf(whole, 0x1.777a5cp-25f, -middle);
    float r = high + middle;
    float back = r - high;
    float rest = (high - (r - back)) + (middle - back);
    rest = __builtin_fmaf(whole, 0x1.ee59dap-50f, rest + lost);
    float result = fx_tan_quadrant(r, rest, n);
    return x == 0.0f ? x : result;
}

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

//@ name: _trig_reduce_moderate.f64
//@ needs: _bits.f64
//@ method: r + rest in [-pi/4, pi/4] for |x| < 2^20: pi/2 in three parts, the first product exact
FX_INLINE double fx_trig_reduce_moderate(double x, double& rest, uint64_t& n)
{
    double shifted = __builtin_fma(x, 0x1.45f306dc9c883p-1, 0x1.8p52);
    n = fx_bits(shifted);
    double whole = shifted - 0x1.8p52;
    double high = __builtin_fma(whole, -0x1.921fb54442d18p+0, x);
    // The second product and the difference with what each loses: near a multiple of pi/2 high and
    // the product are nearly the same.
    double middle = whole * 0x1.1a62633145c07p-54;
    double lost = __builtin_fma(whole, 0x1.1a62633145c07p-54, -middle);
    double r = high - middle;
    double back = r - high;
    rest = (high - (r - back)) - (middle + back);
    rest = __builtin_fma(whole, 0x1.f1976b7ed8fbcp-110, rest - lost);
    return r;
}

//@ name: _sin_quadrant.f64
//@ needs: _bits.f64
//@ method: sin(r + rest + n pi/2) for |r| <= pi/4, fdlibm's polynomials of degrees 13 and 14
FX_INLINE double fx_sin_quadrant(double r, double rest, uint64_t n)
{
    double z = r * r;
    double s = 0x1.5d93a5acfd57cp-33;
    s = __builtin_fma(s, z, -0x1.ae5e68a2b9cebp-26);
    s = __builtin_fma(s, z, 0x1.71de357b1fe7dp-19);
    s = __builtin_fma(s, z, -0x1.a01a019c161d5p-13);
    s = __builtin_fma(s, z, 0x1.111111110f8a6p-7);
    double cube = z * r;
    // sin(r + rest) = sin(r) + cos(r) rest, of which 1 - z / 2 is enough
    s = __builtin_fma(s, cube, -0.5 * rest);
    s = __builtin_fma(z, s, rest);
    s = r + __builtin_fma(cube, -0x1.5555555555549p-3, s);
    double c = -0x1.8fae9be8838d4p-37;
    c = __builtin_fma(c, z, 0x1.1ee9ebdb4b1c4p-29);
    c = __builtin_fma(c, z, -0x1.27e4f809c52adp-22);
    c = __builtin_fma(c, z, 0x1.a01a019cb1590p-16);
    c = __builtin_fma(c, z, -0x1.6c16c16c15177p-10);
    c = __builtin_fma(c, z, 0x1.555555555554cp-5);
    double half = 0.5 * z;
    double w = 1.0 - half;
    double low = __builtin_fma(z * z, c, -(r * rest));
    c = w + (((1.0 - w) - half) + low);
    return fx_from_bits(fx_bits(n & 1u ? c : s) ^ (n & 2u) << 62);
}

//@ name: is_far.f64
//@ method: whether the quick forms of sin and cos do not hold
FX_INLINE bool fx_is_far(double x) { return !(__builtin_fabs(x) < 0x1p20); }

//@ name: moderate_sin.f64
//@ needs: _flag _trig_reduce_moderate.f64 _sin_quadrant.f64 sin.f64
//@ accuracy: 1 ulp
//@ method: vectors where moderate says that |x| < 2^20
template <typename Moderate>
FX_INLINE double fx_moderate_sin(double x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_sin(x);
    double rest;
    uint64_t n;
    double r = fx_trig_reduce_moderate(x, rest, n);
    double result = fx_sin_quadrant(r, rest, n);
    return x == 0.0 ? x : result;
}

//@ name: moderate_cos.f64
//@ needs: _flag _trig_reduce_moderate.f64 _sin_quadrant.f64 cos.f64
//@ accuracy: 1 ulp
//@ method: vectors where moderate says that |x| < 2^20
template <typename Moderate>
FX_INLINE double fx_moderate_cos(double x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_cos(x);
    double rest;
    uint64_t n;
    double r = fx_trig_reduce_moderate(x, rest, n);
    return fx_sin_quadrant(r, rest, n + 1u);
}

//@ name: moderate_tan.f64
//@ needs: _flag _trig_reduce_moderate.f64 tan.f64
//@ accuracy: 1 ulp
//@ method: sin / cos, each in two parts, as vectors where moderate says that |x| < 2^20
template <typename Moderate>
FX_INLINE double fx_moderate_tan(double x, Moderate moderate)
{
    if constexpr (!moderate.value) return fx_tan(x);
    double rest;
    uint64_t n;
    double r = fx_trig_reduce_moderate(x, rest, n);
    // As for the sine and the cosine, but for the last additions.
    double z = r * r;
    double s = 0x1.5d93a5acfd57cp-33;
    s = __builtin_fma(s, z, -0x1.ae5e68a2b9cebp-26);
    s = __builtin_fma(s, z, 0x1.71de357b1fe7dp-19);
    s = __builtin_fma(s, z, -0x1.a01a019c161d5p-13);
    s = __builtin_fma(s, z, 0x1.111111110f8a6p-7);
    double cube = z * r;
    s = __builtin_fma(s, cube, -0.5 * rest);
    s = __builtin_fma(z, s, rest);
    s = __builtin_fma(cube, -0x1.5555555555549p-3, s);
    double c = -0x1.8fae9be8838d4p-37;
    c = __builtin_fma(c, z, 0x1.1ee9ebdb4b1c4p-29);
    c = __builtin_fma(c, z, -0x1.27e4f809c52adp-22);
    c = __builtin_fma(c, z, 0x1.a01a019cb1590p-16);
    c = __builtin_fma(c, z, -0x1.6c16c16c15177p-10);
    c = __builtin_fma(c, z, 0x1.555555555554cp-5);
    double half = 0.5 * z;
    double w = 1.0 - half;
    c = ((1.0 - w) - half) + __builtin_fma(z * z, c, -(r * rest));
    // sin is r + s, cos w + c; in odd quadrants their quotient is the other way round.
    bool odd = n & 1u;
    double above = odd ? -w : r;
    double below = odd ? r : w;
    double above_low = odd ? -c : s;
    double below_low = odd ? s : c;
    double bottom = below + below_low;
    below_low = below_low - (bottom - below);
    double inverse = 1.0 / bottom;
    double q = above * inverse;
    double miss = __builtin_fma(-q, bottom, above) + __builtin_fma(-q, below_low, above_low);
    double result = __builtin_fma(miss, inverse, q);
    return x == 0.0 ? x : result;
}

//@ name: _asin_poly.f32
//@ method: (asin(s) - s) / s^3 in z = s^2 <= 0.36, minimax of degree 5
FX_INLINE float fx_asin_poly(float z)
{
    float p = 0x1.caf10cp-5f;
    p = __builtin_fmaf(p, z, -0x1.25a5cap-10f);
    p = __builtin_fmaf(p, z, 0x1.2c8ccap-5f);
    p = __builtin_fmaf(p, z, 0x1.66fbf8p-5f);
    p = __builtin_fmaf(p, z, 0x1.3365cap-4f);
    p = __builtin_fmaf(p, z, 0x1.5554d8p-3f);
    return p;
}

//@ name: asin.f32
//@ needs: _choose.f32 _asin_poly.f32
//@ accuracy: 1.5 ulp
//@ method: beyond 0.6, pi/2 - 2 asin(sqrt((1 - |x|) / 2))
FX_INLINE float fx_asin(float x)
{
    float a = __builtin_fabsf(x);
    bool large = a > 0.6f;
    float z = large ? 0.5f * (1.0f - a) : a * a;
    float s = large ? __builtin_sqrtf(z) : a;
    float r = __builtin_fmaf(s * z, fx_asin_poly(z), s);
    float far = 0x1.921fb6p+0f - (2.0f * r + 0x1.777a5cp-25f);
    return __builtin_copysignf(fx_choose(large, far, r), x);
}

//@ name: acos.f32
//@ needs: _asin_poly.f32
//@ accuracy: 1.2 ulp
//@ method: pi/2 - asin(x); beyond 0.6, 2 asin(sqrt((1 - |x|) / 2)), from pi below 0
FX_INLINE float fx_acos(float x)
{
    float a = __builtin_fabsf(x);
    bool large = a > 0.6f;
    float z = large ? 0.5f * (1.0f - a) : a * a;
    float s = large ? __builtin_sqrtf(z) : x;
    float r = __builtin_fmaf(s * z, fx_asin_poly(z), s);
    float near = 0x1.921fb6p+0f - (r + 0x1.777a5cp-25f);
    float far = x < 0.0f ? 2.0f * (0x1.921fb6p+0f - (r + 0x1.777a5cp-25f)) : 2.0f * r;
    return large ? far : near;
}

//@ name: _atan_unit.f32
//@ method: atan(t) for 0 <= t <= 1, minimax of degree 17
//@ rounded: yes
//@ chains: p
FX_INLINE float fx_atan_unit(float t)
{
    float z = t * t;
    float p = 0x1.7ea242p-9f;
    p = __builtin_fmaf(p, z, -0x1.0c15f2p-6f);
    p = __builtin_fmaf(p, z, 0x1.61ed68p-5f);
    p = __builtin_fmaf(p, z, -0x1.35506ep-4f);
    p = __builtin_fmaf(p, z, 0x1.b4de8ep-4f);
    p = __builtin_fmaf(p, z, -0x1.230a92p-3f);
    p = __builtin_fmaf(p, z, 0x1.9978ecp-3f);
    p = __builtin_fmaf(p, z, -0x1.5554dcp-2f);
    return __builtin_fmaf(p * z, t, t);
}

//@ name: atan.f32
//@ needs: _choose.f32 _atan_unit.f32
//@ accuracy: 1.5 ulp
//@ method: pi/2 - atan(1 / |x|) beyond 1
//@ rounded: 1.7 ulp
FX_INLINE float fx_atan(float x)
{
    float a = __builtin_fabsf(x);
    bool large = a > 1.0f;
    float r = fx_atan_unit((large ? 1.0f : a) / (large ? a : 1.0f));
    float far = 0x1.921fb6p+0f - (r + 0x1.777a5cp-25f);
    return __builtin_copysignf(fx_choose(large, far, r), x);
}

//@ name: atan2.f32
//@ needs: _bits.f32 _atan_unit.f32
//@ accuracy: 1.8 ulp
//@ method: atan of the smaller over the larger, then into its octant
//@ rounded: 1.9 ulp
FX_INLINE float fx_atan2(float y, float x)
{
    float ay = __builtin_fabsf(y);
    float ax = __builtin_fabsf(x);
    bool steep = ay > ax;
    float top = steep ? ax : ay;
    float bottom = steep ? ay : ax;
    // 0 / 0 is 0 here, infinity / infinity is 1.
    float quotient = top / (bottom == 0.0f ? 1.0f : bottom);
    quotient = top == __builtin_inff() ? 1.0f : quotient;
    float r = fx_atan_unit(quotient);
    bool left = fx_bits(x) >> 31;
    r = steep ? 0x1.921fb6p+0f - (r + 0x1.777a5cp-25f) : r;
    r = left ? 2.0f * 0x1.921fb6p+0f - (r - 2.0f * -0x1.777a5cp-25f) : r;
    r = ((x != x) | (y != y)) ? x + y : r;
    return __builtin_copysignf(r, y);
}

//@ name: _asin_poly.f64
//@ method: (asin(s) - s) / s^3 in z = s^2 <= 0.36, minimax of degree 14
FX_INLINE double fx_asin_poly(double z)
{
    double p = 0x1.9829b5292206ep-4;
    p = __builtin_fma(p, z, -0x1.70042db8b381ep-3);
    p = __builtin_fma(p, z, 0x1.7570045e7581fp-3);
    p = __builtin_fma(p, z, -0x1.915d4523fc0eap-4);
    p = __builtin_fma(p, z, 0x1.92c935ee4aa04p-5);
    p = __builtin_fma(p, z, -0x1.c846ad472aa83p-9);
    p = __builtin_fma(p, z, 0x1.8f87803af9033p-7);
    p = __builtin_fma(p, z, 0x1.6eb087aea8a84p-7);
    p = __builtin_fma(p, z, 0x1.cade65224ace8p-7);
    p = __builtin_fma(p, z, 0x1.1c4273da10db2p-6);
    p = __builtin_fma(p, z, 0x1.6e8c46aff62bep-6);
    p = __builtin_fma(p, z, 0x1.f1c716ec196b8p-6);
    p = __builtin_fma(p, z, 0x1.6db6db7bdf992p-5);
    p = __builtin_fma(p, z, 0x1.3333333320d40p-4);
    p = __builtin_fma(p, z, 0x1.55555555555dbp-3);
    return p;
}

//@ name: asin.f64
//@ needs: _asin_poly.f64
//@ accuracy: 1.5 ulp
//@ method: beyond 0.6, pi/2 - 2 asin(sqrt((1 - |x|) / 2))
FX_INLINE double fx_asin(double x)
{
    double a = __builtin_fabs(x);
    bool large = a > 0.6;
    double z = large ? 0.5 * (1.0 - a) : a * a;
    double s = large ? __builtin_sqrt(z) : a;
    double r = __builtin_fma(s * z, fx_asin_poly(z), s);
    double far = 0x1.921fb54442d18p+0 - (2.0 * r - 0x1.1a62633145c07p-54);
    return __builtin_copysign(large ? far : r, x);
}

//@ name: acos.f64
//@ needs: _asin_poly.f64
//@ accuracy: 1.2 ulp
//@ method: pi/2 - asin(x); beyond 0.6, 2 asin(sqrt((1 - |x|) / 2)), from pi below 0
FX_INLINE double fx_acos(double x)
{
    double a = __builtin_fabs(x);
    bool large = a > 0.6;
    double z = large ? 0.5 * (1.0 - a) : a * a;
    double s = large ? __builtin_sqrt(z) : x;
    double r = __builtin_fma(s * z, fx_asin_poly(z), s);
    double near = 0x1.921fb54442d18p+0 - (r - 0x1.1a62633145c07p-54);
    double far = x < 0.0 ? 2.0 * (0x1.921fb54442d18p+0 - (r - 0x1.1a62633145c07p-54)) : 2.0 * r;
    return large ? far : near;
}

//@ name: _atan_unit.f64
//@ method: atan(t) for 0 <= t <= 1, minimax of degree 39
FX_INLINE double fx_atan_unit(double t)
{
    double z = t * t;
    double p = -0x1.53a3bc3afc410p-16;
    p = __builtin_fma(p, z, 0x1.d378f9da960acp-13);
    p = __builtin_fma(p, z, -0x1.310bdf178ba9ap-10);
    p = __builtin_fma(p, z, 0x1.f94a9a86f0a48p-9);
    p = __builtin_fma(p, z, -0x1.2cea2bbe92c52p-7);
    p = __builtin_fma(p, z, 0x1.1624aa5a9a051p-6);
    p = __builtin_fma(p, z, -0x1.a71ffd75668f4p-6);
    p = __builtin_fma(p, z, 0x1.1713876104545p-5);
    p = __builtin_fma(p, z, -0x1.4f43d421685d4p-5);
    p = __builtin_fma(p, z, 0x1.7ee3604be144ap-5);
    p = __builtin_fma(p, z, -0x1.ad32851801794p-5);
    p = __builtin_fma(p, z, 0x1.e17808a090508p-5);
    p = __builtin_fma(p, z, -0x1.11089b82ef745p-4);
    p = __builtin_fma(p, z, 0x1.3b12b2af48ac0p-4);
    p = __builtin_fma(p, z, -0x1.745d022ae059ep-4);
    p = __builtin_fma(p, z, 0x1.c71c709da5d5ap-4);
    p = __builtin_fma(p, z, -0x1.2492491f9f490p-3);
    p = __builtin_fma(p, z, 0x1.9999999983fecp-3);
    p = __builtin_fma(p, z, -0x1.555555555544bp-2);
    return __builtin_fma(p * z, t, t);
}

//@ name: atan.f64
//@ needs: _atan_unit.f64
//@ accuracy: 1.7 ulp
//@ method: pi/2 - atan(1 / |x|) beyond 1
FX_INLINE double fx_atan(double x)
{
    double a = __builtin_fabs(x);
    bool large = a > 1.0;
    double r = fx_atan_unit((large ? 1.0 : a) / (large ? a : 1.0));
    return __builtin_copysign(large ? 0x1.921fb54442d18p+0 - (r - 0x1.1a62633145c07p-54) : r, x);
}

//@ name: atan2.f64
//@ needs: _bits.f64 _atan_unit.f64
//@ accuracy: 1.7 ulp
//@ method: atan of the smaller over the larger, then into its octant
FX_INLINE double fx_atan2(double y, double x)
{
    double ay = __builtin_fabs(y);
    double ax = __builtin_fabs(x);
    bool steep = ay > ax;
    double top = steep ? ax : ay;
    double bottom = steep ? ay : ax;
    // 0 / 0 is 0 here, infinity / infinity is 1.
    double quotient = top / (bottom == 0.0 ? 1.0 : bottom);
    quotient = top == __builtin_inf() ? 1.0 : quotient;
    double r = fx_atan_unit(quotient);
    bool left = fx_bits(x) >> 63;
    r = steep ? 0x1.921fb54442d18p+0 - (r - 0x1.1a62633145c07p-54) : r;
    r = left ? 2.0 * 0x1.921fb54442d18p+0 - (r - 2.0 * 0x1.1a62633145c07p-54) : r;
    r = ((x != x) | (y != y)) ? x + y : r;
    return __builtin_copysign(r, y);
}
