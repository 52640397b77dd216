// Writes elements past the caches, in whole lines; nothing is read to be overwritten.
template <int64_t line, typename T>
static inline void stream(T* to, const T* from, int64_t count)
{
#if defined(__x86_64__)
#if defined(__AVX512F__)
    constexpr int64_t width = 64;
#elif defined(__AVX__)
    constexpr int64_t width = 32;
#else
    constexpr int64_t width = 16;
#endif
    typedef long long piece __attribute__((vector_size(width), may_alias));
    if (count == line && (uintptr_t)to % width == 0) {
        #pragma GCC unroll 32
        for (int64_t k = 0; k < (int64_t)sizeof(T) * line / width; ++k) {
            const piece value = ((const piece*)from)[k];
#if defined(__clang__)
            __builtin_nontemporal_store(value, (piece*)to + k);
#elif defined(__AVX512F__)
            __builtin_ia32_movntdq512((piece*)to + k, value);
#elif defined(__AVX__)
            __builtin_ia32_movntdq256((piece*)to + k, value);
#else
            __builtin_ia32_movntdq((piece*)to + k, value);
#endif
        }
        return;
    }
#endif
    for (int64_t k = 0; k < count; ++k) to[k] = from[k];
}
