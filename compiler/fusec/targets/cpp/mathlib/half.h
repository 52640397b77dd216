// Half-precision numbers: storage types, with conversions in integer operations, because g++ 12
// converts its own _Float16 one by one where the machine has no arithmetic for it.

//@ name: _bf16
struct fx_bf16 {
    uint16_t bits;
    // g++ 12 leaves a loop that copies the whole of a struct as it is: no vectors.
    fx_bf16& operator=(const fx_bf16& x) { bits = x.bits; return *this; }
};

//@ name: _f16
struct fx_f16 {
    uint16_t bits;
    // g++ 12 leaves a loop that copies the whole of a struct as it is: no vectors.
    fx_f16& operator=(const fx_f16& x) { bits = x.bits; return *this; }
};

//@ name: to_float.bf16
//@ needs: _bf16 _bits.f32
//@ accuracy: exact
FX_INLINE float fx_to_float(fx_bf16 x) { return fx_from_bits((uint32_t)x.bits << 16); }

//@ name: to_bf16.f32
//@ needs: _bf16 _bits.f32
//@ accuracy: exact rounding
//@ method: to nearest, ties to even; one quiet NaN for all
FX_INLINE fx_bf16 fx_to_bf16(float x)
{
    uint32_t bits = fx_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return fx_bf16{(uint16_t)(x != x ? 0x7fc0u : rounded)};
}

//@ name: to_float.f16
//@ needs: _f16 _bits.f32
//@ accuracy: exact
FX_INLINE float fx_to_float(fx_f16 x)
{
    uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16;
    uint32_t shifted = (uint32_t)(x.bits & 0x7fffu) << 13;
    uint32_t normal = shifted + (112u << 23);
    // A subnormal is its mantissa on top of 2^-14, less 2^-14.
    float small = fx_from_bits(shifted + (113u << 23)) - 0x1p-14f;
    uint32_t bits = shifted < (1u << 23) ? fx_bits(small) : normal;
    bits = shifted >= (31u << 23) ? normal + (112u << 23) : bits;
    return fx_from_bits(bits | sign);
}

//@ name: to_f16.f32
//@ needs: _f16 _bits.f32
//@ accuracy: exact rounding
//@ method: to nearest, ties to even
FX_INLINE fx_f16 fx_to_f16(float x)
{
    uint32_t bits = fx_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    uint32_t normal = (bits - (112u << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
    // Adding 1/2 leaves a subnormal half, rounded, in the low bits.
    uint32_t small = fx_bits(fx_from_bits(bits) + 0.5f) - (126u << 23);
    uint32_t half = bits < (113u << 23) ? small : normal;
    half = bits >= (143u << 23) ? 0x7c00u : half;
    half = bits > (255u << 23) ? 0x7e00u : half;
    return fx_f16{(uint16_t)(half | sign)};
}

//@ name: to_halves.bf16
//@ needs: to_bf16.f32
//@ accuracy: exact rounding
//@ method: sixteen at a time where the processor rounds them; any quiet NaN
FX_INLINE void fx_to_halves(fx_bf16* to, const float* from, int64_t count)
{
    int64_t k = 0;
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    typedef short fx_sixteen_halves __attribute__((vector_size(32)));
    typedef float fx_sixteen_floats __attribute__((vector_size(64)));
    unsigned subnormal = 0;
    #pragma GCC unroll 4
    for (; k + 16 <= count; k += 16) {
        fx_sixteen_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        subnormal |= __builtin_ia32_fpclassps512_mask(floats, 0x20, -1);
        fx_sixteen_halves halves;
        asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(floats));
        __builtin_memcpy(to + k, &halves, sizeof halves);
    }
    // The instruction takes subnormals for zeros; a test for each sixteen takes twice as long.
    if (__builtin_expect(subnormal != 0, 0)) k = 0;
#endif
    for (; k < count; ++k) to[k] = fx_to_bf16(from[k]);
}

//@ name: to_floats.bf16
//@ needs: to_float.bf16
//@ accuracy: exact
//@ method: sixteen at a time: a compiler takes 32, and those apart
FX_INLINE void fx_to_floats(float* to, const fx_bf16* from, int64_t count)
{
    int64_t k = 0;
#if defined(__AVX512F__)
    typedef uint16_t fx_sixteen_halves __attribute__((vector_size(32)));
    typedef uint32_t fx_sixteen_words __attribute__((vector_size(64)));
    for (; k + 16 <= count; k += 16) {
        fx_sixteen_halves halves;
        __builtin_memcpy(&halves, from + k, sizeof halves);
        const fx_sixteen_words words = __builtin_convertvector(halves, fx_sixteen_words) << 16;
        __builtin_memcpy(to + k, &words, sizeof words);
    }
#endif
    for (; k < count; ++k) to[k] = fx_to_float(from[k]);
}

//@ name: to_bf16.f64
//@ needs: to_bf16.f32
//@ method: by way of float, as eager
FX_INLINE fx_bf16 fx_to_bf16(double x) { return fx_to_bf16((float)x); }

//@ name: to_f16.f64
//@ needs: to_f16.f32
//@ method: by way of float, as eager
FX_INLINE fx_f16 fx_to_f16(double x) { return fx_to_f16((float)x); }

//@ name: _vectors.f16
//@ method: vectors, and what masked loads and stores take for a place in memory
#if defined(__F16C__)
typedef short fx_eight_halves __attribute__((vector_size(16)));
typedef float fx_eight_floats __attribute__((vector_size(32)));
FX_INLINE fx_eight_floats fx_eight_to_floats(fx_eight_halves halves)
{
#if defined(__clang__) // which has no such builtin from 22 on
    typedef _Float16 fx_eight_float16 __attribute__((vector_size(16)));
    return __builtin_convertvector((fx_eight_float16)halves, fx_eight_floats);
#else
    return __builtin_ia32_vcvtph2ps256(halves);
#endif
}
#endif
#if defined(__AVX512F__)
typedef short fx_sixteen_halves __attribute__((vector_size(32)));
typedef float fx_sixteen_floats __attribute__((vector_size(64)));
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__F16C__)
#define FX_MASKED_HALVES
#if defined(__clang__)
typedef fx_eight_halves fx_masked;
#else
typedef short fx_masked;
#endif
#endif

//@ name: to_floats.f16
//@ needs: to_float.f16 _vectors.f16
//@ accuracy: exact
//@ method: in vectors where it has an instruction; the last is written whole
FX_INLINE void fx_to_floats(float* to, const fx_f16* from, int64_t count)
{
    int64_t k = 0;
#if defined(__AVX512F__)
    // Vectors as wide as those that read them: two halves of one are not forwarded from the
    // store buffer.
    for (; k + 16 <= count; k += 16) {
        fx_sixteen_halves halves;
        __builtin_memcpy(&halves, from + k, sizeof halves);
        const fx_sixteen_floats zeros = {};
        const fx_sixteen_floats floats = __builtin_ia32_vcvtph2ps512_mask(halves, zeros, -1, 4);
        __builtin_memcpy(to + k, &floats, sizeof floats);
    }
#endif
#if defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        fx_eight_halves halves;
        __builtin_memcpy(&halves, from + k, sizeof halves);
        const fx_eight_floats floats = fx_eight_to_floats(halves);
        __builtin_memcpy(to + k, &floats, sizeof floats);
    }
#endif
#if defined(FX_MASKED_HALVES)
    if (k < count) {
        const unsigned char some = (1u << (count - k)) - 1;
        const fx_eight_halves zeros = {};
        const fx_eight_floats floats = fx_eight_to_floats(
            __builtin_ia32_loaddquhi128_mask((const fx_masked*)(from + k), zeros, some));
        __builtin_memcpy(to + k, &floats, sizeof floats);
        return;
    }
#endif
    for (; k < count; ++k) to[k] = fx_to_float(from[k]);
}

//@ name: to_halves.f16
//@ needs: to_f16.f32 _vectors.f16
//@ accuracy: exact rounding
//@ method: in vectors where it has an instruction; the last is read whole
FX_INLINE void fx_to_halves(fx_f16* to, const float* from, int64_t count)
{
    int64_t k = 0;
#if defined(__AVX512F__)
    for (; k + 16 <= count; k += 16) {
        fx_sixteen_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        const fx_sixteen_halves zeros = {};
        const fx_sixteen_halves halves = __builtin_ia32_vcvtps2ph512_mask(floats, 0, zeros, -1);
        __builtin_memcpy(to + k, &halves, sizeof halves);
    }
#endif
#if defined(__F16C__)
    for (; k + 8 <= count; k += 8) {
        fx_eight_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        const fx_eight_halves halves = __builtin_ia32_vcvtps2ph256(floats, 0);
        __builtin_memcpy(to + k, &halves, sizeof halves);
    }
#endif
#if defined(FX_MASKED_HALVES)
    if (k < count) {
        fx_eight_floats floats;
        __builtin_memcpy(&floats, from + k, sizeof floats);
        const fx_eight_halves halves = __builtin_ia32_vcvtps2ph256(floats, 0);
        const unsigned char some = (1u << (count - k)) - 1;
        __builtin_ia32_storedquhi128_mask((fx_masked*)(to + k), halves, some);
        return;
    }
#endif
    for (; k < count; ++k) to[k] = fx_to_f16(from[k]);
}
