// Writes the sums of `before` and the first values so far, for `count` values; returns the last.
// A vector's own sums take three steps; from vector to vector only the last one is added.
template <typename T>
static inline double running_sums(double* to, const T* from, int64_t count, double before)
{
#if defined(__AVX512F__)
    constexpr int lanes = 8;
#else
    constexpr int lanes = 4;
#endif
    typedef double sums __attribute__((vector_size(8 * lanes)));
    typedef T values __attribute__((vector_size(sizeof(T) * lanes)));
    const sums zeros = {};
    sums carry = zeros + before;
    int64_t k = 0;
    for (; k + lanes <= count; k += lanes) {
        values given;
        __builtin_memcpy(&given, from + k, sizeof given);
        sums x = __builtin_convertvector(given, sums);
#if defined(__AVX512F__)
        x += __builtin_shufflevector(x, zeros, 8, 0, 1, 2, 3, 4, 5, 6);
        x += __builtin_shufflevector(x, zeros, 8, 8, 0, 1, 2, 3, 4, 5);
        x += __builtin_shufflevector(x, zeros, 8, 8, 8, 8, 0, 1, 2, 3);
        const sums last = __builtin_shufflevector(x, x, 7, 7, 7, 7, 7, 7, 7, 7);
#else
        x += __builtin_shufflevector(x, zeros, 4, 0, 1, 2);
        x += __builtin_shufflevector(x, zeros, 4, 4, 0, 1);
        const sums last = __builtin_shufflevector(x, x, 3, 3, 3, 3);
#endif
        x += carry;
        carry += last;
        __builtin_memcpy(to + k, &x, sizeof x);
    }
    double sum = carry[0];
    for (; k < count; ++k) {
        sum += from[k];
        to[k] = sum;
    }
    return sum;
}
