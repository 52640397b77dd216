// Exponentials.
//
// exp(x) = 2^n exp(r) with n = rint(x / ln 2) and |r| <= ln 2 / 2. Adding 1.5 * 2^23 (2^52 for
// double) rounds to an integer and leaves it in the low bits, which is how n is had as an integer
// without a conversion: those are undefined out of range, and AVX2 has none to 64 bits.

//@ name: _scale.f32
//@ needs: _bits.f32
//@ method: x * 2^n for -252 <= n <= 254, in two steps, so that only the last one rounds
FX_INLINE float fx_scale(float x, float shifted)
{
    // n + 1.5 * 2^23 + 254: half of it, and what is left, are two exponents as they stand.
    uint32_t bits = fx_bits(shifted);
    uint32_t first = bits >> 1 << 23;
    uint32_t second = (bits << 23) - first;
    return x * fx_from_bits(first) * fx_from_bits(second);
}

//@ name: _scale.f64
//@ needs: _bits.f64
//@ method: x * 2^(n - 2048) for 4 <= n <= 4092, in two steps, so that only the last one rounds
FX_INLINE double fx_scale(double x, uint64_t n)
{
    // Without a sign, because AVX2 has no arithmetic shift of 64 bits.
    uint64_t half = n >> 1;
    double first = fx_from_bits((half - 1) << 52);
    double second = fx_from_bits((n - half - 1) << 52);
    return x * first * second;
}

//@ name: _exp_poly.f32
//@ method: minimax of degree 6, relative error 2^-28
//@ rounded: yes
//@ chains: p
FX_INLINE float fx_exp_poly(float r)
{
    float p = 0x1.6ac5c0p-10f;
    p = __builtin_fmaf(p, r, 0x1.123edep-7f);
    p = __builtin_fmaf(p, r, 0x1.555850p-5f);
    p = __builtin_fmaf(p, r, 0x1.55548ap-3f);
    p = __builtin_fmaf(p, r, 0x1.fffffcp-2f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return p;
}

//@ name: _exp_poly.f64
//@ method: minimax of degree 11, relative error 2^-57
FX_INLINE double fx_exp_poly(double r)
{
    double p = 0x1.ad7c9717644b0p-26;
    p = __builtin_fma(p, r, 0x1.28ae8ff1e2e6dp-22);
    p = __builtin_fma(p, r, 0x1.71df28f6d9f90p-19);
    p = __builtin_fma(p, r, 0x1.a01998e67c70ep-16);
    p = __builtin_fma(p, r, 0x1.a01a0127e862ap-13);
    p = __builtin_fma(p, r, 0x1.6c16c1849022ep-10);
    p = __builtin_fma(p, r, 0x1.1111111128556p-7);
    p = __builtin_fma(p, r, 0x1.55555555506cdp-5);
    p = __builtin_fma(p, r, 0x1.55555555554f7p-3);
    p = __builtin_fma(p, r, 0x1.000000000000ap-1);
    p = __builtin_fma(p, r, 1.0);
    p = __builtin_fma(p, r, 1.0);
    return p;
}

//@ name: exp.f32
//@ needs: _bits.f32 _scale.f32 _exp_poly.f32
//@ accuracy: 0.9 ulp
//@ method: x = n ln 2 + r with ln 2 in two parts
//@ rounded: 1.2 ulp
FX_INLINE float fx_exp(float x)
{
    x = x < -104.0f ? -104.0f : x;
    // A large x overflows by way of r, which also keeps NaN; only n is held back, as an integer.
    int32_t bits = (int32_t)fx_bits(x);
    float y = fx_from_bits((uint32_t)(bits < 0x42b40000 ? bits : 0x42b40000));
    float shifted = __builtin_fmaf(y, 0x1.715476p+0f, 0x1.8001fcp23f);
    float n = shifted - 0x1.8001fcp23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    return fx_scale(fx_exp_poly(r), shifted);
}

//@ name: exp_nonpositive.f32
//@ needs: _bits.f32 _exp_poly.f32
//@ accuracy: 0.9 ulp
//@ method: as exp, for x <= 0
//@ rounded: 1.2 ulp
FX_INLINE float fx_exp_nonpositive(float x)
{
    // Its low bits are the exponent of 2^(n + 64), a normal number: the last product alone rounds.
    float shifted = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.80017ep23f);
    float n = shifted - 0x1.80017ep23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, x);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    float power = fx_exp_poly(r) * fx_from_bits(fx_bits(shifted) << 23) * 0x1p-64f;
    return x < -104.0f ? 0.0f : power;
}

//@ name: _exp2_for_half.f32
//@ needs: _bits.f32
//@ method: 2^x for x <= 128, minimax of degree 4, relative error 2^-18
//@ rounded: yes
FX_INLINE float fx_exp2_for_half(float x)
{
    x = x < -126.0f ? -126.0f : x;
    float shifted = x + 0x1.8p23f;
    float r = x - (shifted - 0x1.8p23f);
    // Twice 2^r, so that half the power is a number for all x: down there 0. A NaN stays one.
    float e = 0x1.3b8eb2p-6f;
    e = __builtin_fmaf(e, r, 0x1.ca1350p-4f);
    e = __builtin_fmaf(e, r, 0x1.ebfd22p-2f);
    e = __builtin_fmaf(e, r, 0x1.62e0c2p+0f);
    e = __builtin_fmaf(e, r, 2.0f);
    return e * fx_from_bits((fx_bits(shifted) << 23) + (126u << 23));
}

//@ name: _exp2_for_bfloat16.f32
//@ needs: _bits.f32
//@ method: 2^x for x <= 128, minimax of degree 3, relative error 2^-13.7
FX_INLINE float fx_exp2_for_bfloat16(float x)
{
    x = x < -126.0f ? -126.0f : x;
    float shifted = x + 0x1.8p23f;
    float r = x - (shifted - 0x1.8p23f);
    float e = 0x1.c3f68cp-4f;
    e = __builtin_fmaf(e, r, 0x1.f0dde6p-2f);
    e = __builtin_fmaf(e, r, 0x1.62f31ep+0f);
    e = __builtin_fmaf(e, r, 0x1.fff694p+0f);
    return e * fx_from_bits((fx_bits(shifted) << 23) + (126u << 23));
}

//@ name: exp_for_half.f32
//@ needs: _exp2_for_half.f32
//@ accuracy: 2^-17, subnormal results apart
//@ method: of degree 4, for half-precision results
FX_INLINE float fx_exp_for_half(float x)
{
    float power = x * 0x1.715476p+0f;
    // Up there twice the last power is infinity.
    return fx_exp2_for_half(power > 128.0f ? 128.0f : power);
}

//@ name: sigmoid_for_half.f32
//@ needs: exp_for_half.f32
//@ accuracy: 2^-17, subnormal results apart
//@ method: exp(-|x|) / (1 + exp(-|x|)) below 0, 1 / (1 + exp(-|x|)) above
FX_INLINE float fx_sigmoid_for_half(float x)
{
    float e = fx_exp_for_half(-__builtin_fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

//@ name: exp.f64
//@ needs: _bits.f64 _scale.f64 _exp_poly.f64
//@ accuracy: 1 ulp
//@ method: x = n ln 2 + r with ln 2 in two parts
FX_INLINE double fx_exp(double x)
{
    x = x < -746.0 ? -746.0 : x;
    int64_t bits = (int64_t)fx_bits(x);
    double y = fx_from_bits((uint64_t)(bits < 0x4086380000000000 ? bits : 0x4086380000000000));
    double shifted = __builtin_fma(y, 0x1.71547652b82fep+0, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, x);
    r = __builtin_fma(n, -0x1.ef35793c76730p-45, r);
    return fx_scale(fx_exp_poly(r), fx_bits(shifted) - 0x4338000000000000u + 2048u);
}

//@ name: exp_nonpositive.f64
//@ needs: _bits.f64 _exp_poly.f64
//@ accuracy: 1 ulp
//@ method: as exp, for x <= 0
FX_INLINE double fx_exp_nonpositive(double x)
{
    // Its low bits are the exponent of 2^(n + 512), a normal number: the last product alone rounds.
    double shifted = __builtin_fma(x, 0x1.71547652b82fep+0, 0x1.80000000005ffp52);
    double n = shifted - 0x1.80000000005ffp52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, x);
    r = __builtin_fma(n, -0x1.ef35793c76730p-45, r);
    double power = fx_exp_poly(r) * fx_from_bits(fx_bits(shifted) << 52) * 0x1p-512;
    return x < -746.0 ? 0.0 : power;
}

//@ name: _exp_half.f32
//@ needs: _bits.f32 _exp_poly.f32
//@ method: exp(x) / 2 for x >= 0, which overflows later than exp(x)
//@ rounded: yes
FX_INLINE float fx_exp_half(float x)
{
    float y = x > 90.0f ? 90.0f : x;
    float shifted = __builtin_fmaf(y, 0x1.715476p+0f, 0x1.8p23f);
    float n = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, y);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    return 2.0f * (fx_exp_poly(r) * fx_from_bits((fx_bits(shifted) << 23) + (125u << 23)));
}

//@ name: _exp_half.f64
//@ needs: _bits.f64 _exp_poly.f64
//@ method: exp(x) / 2 for x >= 0, which overflows later than exp(x)
FX_INLINE double fx_exp_half(double x)
{
    double y = x > 711.0 ? 711.0 : x;
    double shifted = __builtin_fma(y, 0x1.71547652b82fep+0, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, y);
    r = __builtin_fma(n, -0x1.ef35793c76730p-45, r);
    return 2.0 * (fx_exp_poly(r) * fx_from_bits((fx_bits(shifted) << 52) + ((uint64_t)1021 << 52)));
}

//@ name: _exp_normal.f64
//@ needs: _bits.f64 _exp_poly.f64
//@ method: exp for -708 <= x <= 709, where the result is a normal number; anything for NaN
FX_INLINE double fx_exp_normal(double x)
{
    double shifted = __builtin_fma(x, 0x1.71547652b82fep+0, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, x);
    r = __builtin_fma(n, -0x1.ef35793c76730p-45, r);
    return fx_from_bits(fx_bits(fx_exp_poly(r)) + (fx_bits(shifted) << 52));
}

//@ name: _exp_short.f64
//@ needs: _bits.f64
//@ method: exp for -708 <= x <= 709, relative error 2^-28: for float results; anything for NaN
FX_INLINE double fx_exp_short(double x)
{
    double shifted = __builtin_fma(x, 0x1.71547652b82fep+0, 0x1.8p52);
    double r = __builtin_fma(shifted - 0x1.8p52, -0x1.62e42fefa39efp-1, x);
    double p = 0x1.6a228fea6e02dp-10;
    p = __builtin_fma(p, r, 0x1.123b97b6dcefep-7);
    p = __builtin_fma(p, r, 0x1.5558faa201856p-5);
    p = __builtin_fma(p, r, 0x1.55548f0f1cbbep-3);
    p = __builtin_fma(p, r, 0x1.fffffb880be70p-2);
    p = __builtin_fma(p, r, 1.0);
    p = __builtin_fma(p, r, 1.0);
    return fx_from_bits(fx_bits(p) + (fx_bits(shifted) << 52));
}

//@ name: exp2.f32
//@ needs: _bits.f32 _scale.f32
//@ accuracy: 1 ulp
//@ method: minimax of degree 6 on [-1/2, 1/2]
//@ rounded: 1.2 ulp
//@ chains: p
FX_INLINE float fx_exp2(float x)
{
    float low = x < -151.0f ? -151.0f : x;
    x = x > 129.0f ? 129.0f : low;
    float shifted = x + 0x1.8001fcp23f;
    float r = x - (shifted - 0x1.8001fcp23f);
    float p = 0x1.4500bep-13f;
    p = __builtin_fmaf(p, r, 0x1.5ee4f4p-10f);
    p = __builtin_fmaf(p, r, 0x1.3b2a70p-7f);
    p = __builtin_fmaf(p, r, 0x1.c6afdcp-5f);
    p = __builtin_fmaf(p, r, 0x1.ebfbe0p-3f);
    p = __builtin_fmaf(p, r, 0x1.62e430p-1f);
    p = __builtin_fmaf(p, r, 1.0f);
    return fx_scale(p, shifted);
}

//@ name: exp2.f64
//@ needs: _bits.f64 _scale.f64
//@ accuracy: 1 ulp
//@ method: minimax of degree 11 on [-1/2, 1/2]
//@ rounded: 1.1 ulp
FX_INLINE double fx_exp2(double x)
{
    double low = x < -1076.0 ? -1076.0 : x;
    x = x > 1025.0 ? 1025.0 : low;
    double shifted = x + 0x1.8p52;
    double r = x - (shifted - 0x1.8p52);
    double p = 0x1.c06b714fc9b93p-32;
    p = __builtin_fma(p, r, 0x1.e605f9afade7bp-28);
    p = __builtin_fma(p, r, 0x1.b5416232bcf18p-24);
    p = __builtin_fma(p, r, 0x1.62bfd49e7f4e3p-20);
    p = __builtin_fma(p, r, 0x1.ffcbee3dac0c4p-17);
    p = __builtin_fma(p, r, 0x1.43091309614d7p-13);
    p = __builtin_fma(p, r, 0x1.5d87fe7bbb5a4p-10);
    p = __builtin_fma(p, r, 0x1.3b2ab6fba1e1ap-7);
    p = __builtin_fma(p, r, 0x1.c6b08d7048f34p-5);
    p = __builtin_fma(p, r, 0x1.ebfbdff82c598p-3);
    p = __builtin_fma(p, r, 0x1.62e42fefa39f3p-1);
    p = __builtin_fma(p, r, 1.0);
    return fx_scale(p, fx_bits(shifted) - 0x4338000000000000u + 2048u);
}

//@ name: expm1.f32
//@ needs: _bits.f32
//@ accuracy: 1.5 ulp
//@ method: 2^n expm1(r) + (2^n - 1), minimax of degree 7
//@ rounded: 1.5 ulp
FX_INLINE float fx_expm1(float x)
{
    float y = x > 89.0f ? 89.0f : x;
    y = x < -18.0f ? -18.0f : y;
    float shifted = __builtin_fmaf(y, 0x1.715476p+0f, 0x1.8p23f);
    float n = shifted - 0x1.8p23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, y);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.9c8e7ep-13f;
    p = __builtin_fmaf(p, r, 0x1.6d4bdcp-10f);
    p = __builtin_fmaf(p, r, 0x1.1113a2p-7f);
    p = __builtin_fmaf(p, r, 0x1.5554eap-5f);
    p = __builtin_fmaf(p, r, 0x1.555554p-3f);
    p = __builtin_fmaf(p, r, 0x1.000000p-1f);
    p = __builtin_fmaf(r * r, p, r);
    // Half of 2^n, so that n = 128 does not overflow before the result does.
    float half = fx_from_bits((fx_bits(shifted) << 23) + 0x3f000000u);
    float result = 2.0f * __builtin_fmaf(half, p, half - 0.5f);
    // For n = 0 it is p, of which half would lose a bit; a zero keeps its sign.
    return __builtin_copysignf(n == 0.0f ? p : result, x);
}

//@ name: expm1.f64
//@ needs: _bits.f64
//@ accuracy: 2 ulp
//@ method: 2^n expm1(r) + (2^n - 1), minimax of degree 12
FX_INLINE double fx_expm1(double x)
{
    double y = x > 710.0 ? 710.0 : x;
    y = x < -38.0 ? -38.0 : y;
    double shifted = __builtin_fma(y, 0x1.71547652b82fep+0, 0x1.8p52);
    double n = shifted - 0x1.8p52;
    double r = __builtin_fma(n, -0x1.62e42fefa3800p-1, y);
    r = __builtin_fma(n, -0x1.ef35793c76730p-45, r);
    double p = 0x1.e6375b077690dp-30;
    p = __builtin_fma(p, r, 0x1.af4f2b3250127p-26);
    p = __builtin_fma(p, r, 0x1.28024e2273c19p-22);
    p = __builtin_fma(p, r, 0x1.71de019813a49p-19);
    p = __builtin_fma(p, r, 0x1.a019f36e3f8a1p-16);
    p = __builtin_fma(p, r, 0x1.a01a01ac17ed3p-13);
    p = __builtin_fma(p, r, 0x1.6c16c16f1729ap-10);
    p = __builtin_fma(p, r, 0x1.1111111110085p-7);
    p = __builtin_fma(p, r, 0x1.5555555554d0dp-5);
    p = __builtin_fma(p, r, 0x1.5555555555557p-3);
    p = __builtin_fma(p, r, 0x1.0000000000001p-1);
    p = __builtin_fma(r * r, p, r);
    double half = fx_from_bits((fx_bits(shifted) << 52) + 0x3fe0000000000000u);
    double result = 2.0 * __builtin_fma(half, p, half - 0.5);
    return __builtin_copysign(n == 0.0 ? p : result, x);
}

//@ name: sigmoid.f32
//@ needs: _bits.f32 _scale.f32 _exp_poly.f32
//@ accuracy: 2 ulp
//@ method: exp(-|x|) / (1 + exp(-|x|)) below 0, 1 / (1 + exp(-|x|)) above: no tail loses bits
//@ rounded: 2 ulp
FX_INLINE float fx_sigmoid(float x)
{
    // exp as above, without the care for large x.
    float y = -__builtin_fabsf(x);
    y = y < -104.0f ? -104.0f : y;
    float shifted = __builtin_fmaf(y, 0x1.715476p+0f, 0x1.8001fcp23f);
    float n = shifted - 0x1.8001fcp23f;
    float r = __builtin_fmaf(n, -0x1.62e400p-1f, y);
    r = __builtin_fmaf(n, -0x1.7f7d1cp-20f, r);
    float e = fx_scale(fx_exp_poly(r), shifted);
    float sum = 1.0f + e;
    float lost = e - (sum - 1.0f);
    float q = (x < 0.0f ? e : 1.0f) / sum;
    // The quotient for sum + lost is q - q lost / sum, and sum is near 1 where that counts.
    return __builtin_fmaf(-q, lost, q);
}

//@ name: sigmoid.f64
//@ needs: exp.f64
//@ accuracy: 1.5 ulp
//@ method: exp(-|x|) / (1 + exp(-|x|)) below 0, 1 / (1 + exp(-|x|)) above: no tail loses bits
FX_INLINE double fx_sigmoid(double x)
{
    double e = fx_exp(-__builtin_fabs(x));
    double top = x < 0.0 ? e : 1.0;
    double sum = 1.0 + e;
    double lost = e - (sum - 1.0);
    double inverse = 1.0 / sum;
    double q = top * inverse;
    double rest = __builtin_fma(-q, lost, __builtin_fma(-q, sum, top));
    return __builtin_fma(rest, inverse, q);
}
