// What plain kernels call that <cmath> does not have; each kernel's file holds those that it uses.

//@ name: from_half
// The number that 16 bits of half precision stand for.
static float from_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size;
    if (exponent == 31)
        size = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        size = std::ldexp((float)fraction, -24);
    else
        size = std::ldexp((float)(fraction + 1024), exponent - 25);
    return bits >> 15 ? -size : size;
}

//@ name: to_half
// The 16 bits of half precision that are nearest to a number; of two as near, the even ones.
static uint16_t to_half(float x)
{
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (x != x) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < std::ldexp(1.0f, -14)) return sign | (uint16_t)std::nearbyint(std::ldexp(size, 24));
    int exponent;
    std::frexp(size, &exponent); // size is below 2 to the power of it, not below half of that
    const int units = (int)std::nearbyint(std::ldexp(size, 11 - exponent));
    return sign | (uint16_t)(((exponent + 13) << 10) + units);
}

//@ name: from_bfloat16
// The number that 16 bits of bfloat16 stand for: the upper half of a float.
static float from_bfloat16(uint16_t bits)
{
    const uint32_t all = (uint32_t)bits << 16;
    float x;
    std::memcpy(&x, &all, sizeof x);
    return x;
}

//@ name: to_bfloat16
// The 16 bits of bfloat16 that are nearest to a number; of two as near, the even ones.
static uint16_t to_bfloat16(float x)
{
    if (x != x) return 0x7fc0;
    uint32_t all;
    std::memcpy(&all, &x, sizeof all);
    return (uint16_t)((all + 0x7fff + (all >> 16 & 1)) >> 16);
}

//@ name: bits_as
// The same bits as another type.
template <typename To, typename From>
static To bits_as(From x)
{
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}

//@ name: larger
// The larger of two numbers; NaN if either is.
template <typename T>
static T larger(T a, T b)
{
    return a != a || a > b ? a : b;
}

//@ name: smaller
// The smaller of two numbers; NaN if either is.
template <typename T>
static T smaller(T a, T b)
{
    return a != a || a < b ? a : b;
}

//@ name: larger_number
// The larger of two numbers; the other one if one is NaN.
template <typename T>
static T larger_number(T a, T b)
{
    return a != a || b > a ? b : a;
}

//@ name: smaller_number
// The smaller of two numbers; the other one if one is NaN.
template <typename T>
static T smaller_number(T a, T b)
{
    return a != a || b < a ? b : a;
}

//@ name: sigmoid
template <typename T>
static T sigmoid(T x)
{
    return 1 / (1 + std::exp(-x));
}

//@ name: sign
template <typename T>
static T sign(T x)
{
    return (T)((0 < x) - (x < 0));
}

//@ name: absolute
// The size of an integer; it wraps around for the least one.
template <typename T>
static T absolute(T x)
{
    return (T)(x < 0 ? -x : x);
}

//@ name: divide_down
// A quotient of integers rounded down, as Python's; 0 where the divisor is.
template <typename T>
static T divide_down(T x, T y)
{
    if (y == 0) return 0;
    if (y < 0 && y == (T)-1) return (T)(0 - x);
    const T quotient = (T)(x / y);
    return x % y != 0 && (x < 0) != (y < 0) ? (T)(quotient - 1) : quotient;
}

//@ name: divide_to_zero
// A quotient of integers without its fraction; 0 where the divisor is.
template <typename T>
static T divide_to_zero(T x, T y)
{
    if (y == 0) return 0;
    return y < 0 && y == (T)-1 ? (T)(0 - x) : (T)(x / y);
}

//@ name: modulo
//@ needs: divide_down
// What is left of x by a division that rounds down, as Python's %.
template <typename T>
static T modulo(T x, T y)
{
    return y == 0 ? (T)0 : (T)(x - divide_down(x, y) * y);
}

//@ name: rest
//@ needs: divide_to_zero
// What is left of x by a division that rounds to zero, as C's %.
template <typename T>
static T rest(T x, T y)
{
    return y == 0 ? (T)0 : (T)(x - divide_to_zero(x, y) * y);
}

//@ name: modulo_real
// What is left of x by a division that rounds down: it has the sign of y.
template <typename T>
static T modulo_real(T x, T y)
{
    const T left = std::fmod(x, y);
    return left != 0 && (y < 0) != (left < 0) ? left + y : left;
}

//@ name: divide_real_down
// A quotient rounded down, step by step as eager computes it.
template <typename T>
static T divide_real_down(T x, T y)
{
    if (y == 0) return x / y;
    const T left = std::fmod(x, y);
    T quotient = (x - left) / y;
    if (left != 0 && (y < 0) != (left < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign((T)0, x / y);
    const T whole = std::floor(quotient);
    return quotient - whole > (T)0.5 ? whole + 1 : whole;
}

//@ name: power
// x to the power of an integer; it wraps around.
template <typename T>
static T power(T x, T y)
{
    if (y < 0) return (T)(x == 1 ? 1 : x == (T)-1 ? (y % 2 ? -1 : 1) : 0);
    T result = 1;
    for (; y > 0; y >>= 1, x = (T)(x * x))
        if (y & 1) result = (T)(result * x);
    return result;
}

//@ name: shift_left
// 0 for a count that is negative or too large.
template <typename T>
static T shift_left(T x, T count)
{
    return count < 0 || count >= (T)(8 * sizeof(T)) ? (T)0 : (T)(x << count);
}

//@ name: shift_right
// All sign bits for a count that is negative or too large.
template <typename T>
static T shift_right(T x, T count)
{
    if (count < 0 || count >= (T)(8 * sizeof(T))) return x < 0 ? (T)-1 : (T)0;
    return (T)(x >> count);
}

//@ name: to_integer
// A number without its fraction; the least integer where it does not fit, as processors convert.
template <typename T, typename Real>
static T to_integer(Real x)
{
    const Real end = std::ldexp((Real)1, 8 * sizeof(T) - 1);
    return x > -end - 1 && x < end ? (T)x : std::numeric_limits<T>::min();
}

//@ name: digamma
// The slope of the logarithm of gamma: by reflection, recurrence, then its asymptotic series.
static double digamma(double x)
{
    const double pi = 3.141592653589793;
    if (x == 0) return std::copysign(INFINITY, -x);
    double result = 0;
    if (x < 0) {
        const double fraction = x - std::trunc(x);
        if (fraction == 0) return NAN;
        result = -pi / std::tan(pi * fraction);
        x = 1 - x;
    }
    for (; x < 10; x += 1) result -= 1 / x;
    const double z = 1 / (x * x);
    const double series =
        z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (5.0 / 660 -
        z * (691.0 / 32760 - z / 12))))));
    return result + std::log(x) - 0.5 / x - series;
}

//@ name: inverse_erf
// Where erf is y: Winitzki's guess (2008), then steps of Newton's, on erfc in the tails.
static double inverse_erf(double y)
{
    const double size = std::fabs(y);
    if (!(size < 1)) return size == 1 ? std::copysign(INFINITY, y) : NAN;
    const double w = -std::log((1 - size) * (1 + size));
    const double a = 2 / (3.141592653589793 * 0.147) - w / 2;
    double x = std::sqrt(std::sqrt(a * a + w / 0.147) - a);
    for (int step = 0; step < 4; ++step) {
        const double miss = size < 0.5 ? std::erf(x) - size : (1 - size) - std::erfc(x);
        x -= miss * 0.886226925452758 * std::exp(x * x); // by the slope of erf
    }
    return std::copysign(x, y);
}

//@ name: random_bits
// 32 random bits: a word of Philox 4x32-7 (Salmon et al. 2011) of a position in a stream.
static int32_t random_bits(int64_t seed, int64_t position, int64_t stream, int64_t word)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)((uint64_t)position >> 32), (uint32_t)stream, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
    for (int round = 0; round < 7; ++round) {
        const uint64_t p0 = (uint64_t)c[0] * 0xD2511F53u, p2 = (uint64_t)c[2] * 0xCD9E8D57u;
        c[0] = (uint32_t)(p2 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p2;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (int32_t)c[word];
}

//@ name: random_word
//@ needs: random_bits
// 32 random bits: 64 positions share the words of 16 numbers.
static int32_t random_word(int64_t seed, int64_t position, int64_t stream)
{
    const int64_t number = position >> 6 << 4 | (position & 15);
    return random_bits(seed, number, stream, position >> 4 & 3);
}
