// Copies turned over, from[column * from_step + row] to to[row * to_step + column]: eight by eight
// elements in registers, in three rounds of interleaving, while the rows to come are fetched.
template <typename T>
static inline void turn_over_BITS(
    T* to, int64_t to_step, const T* from, int64_t from_step, int64_t rows, int64_t columns)
{
    typedef uintBITS_t eight __attribute__((vector_size(BITS)));
    constexpr int64_t ahead = 32;
    for (int64_t column = 0; column < columns; column += 8) {
        int64_t row = 0;
        if (column + 8 <= columns) {
            for (int k = 0; k < 8; ++k) __builtin_prefetch(from + (column + ahead + k) * from_step);
            for (; row + 8 <= rows; row += 8) {
                eight a[8], b[8];
                for (int k = 0; k < 8; ++k) {
                    const T* place = from + (column + k) * from_step + row;
                    __builtin_memcpy(&a[k], place, sizeof(eight));
                }
                for (int round = 0; round < 3; ++round) {
                    for (int k = 0; k < 4; ++k) {
                        b[2 * k] =
                            __builtin_shufflevector(a[k], a[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
                        b[2 * k + 1] =
                            __builtin_shufflevector(a[k], a[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
                    }
                    for (int k = 0; k < 8; ++k) a[k] = b[k];
                }
                for (int k = 0; k < 8; ++k) {
                    __builtin_memcpy(to + (row + k) * to_step + column, &a[k], sizeof(eight));
                }
            }
        }
        const int64_t end = column + 8 < columns ? column + 8 : columns;
        const int64_t left = rows - row;
        for (int64_t j = 0; j < left; ++j, ++row) {
            T* line = to + row * to_step;
            const T* place = from + row;
            for (int64_t k = column; k < end; ++k) line[k] = place[k * from_step];
        }
    }
}
