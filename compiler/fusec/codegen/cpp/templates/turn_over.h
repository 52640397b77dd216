// Copies a tile turned over, x[column * step + row] to tile[row][column]: eight by eight elements
// in registers, in three rounds of interleaving, while the rows to come are fetched.
template <typename T, int64_t R, int64_t C>
static inline void turn_over_BITS(
    T (&tile)[R][C], const T* x, int64_t step, int64_t rows, int64_t columns)
{
    typedef uintBITS_t eight __attribute__((vector_size(BITS)));
    constexpr int64_t ahead = 32;
    for (int64_t column = 0; column < columns; column += 8) {
        int64_t row = 0;
        if (column + 8 <= columns) {
            for (int k = 0; k < 8; ++k) __builtin_prefetch(x + (column + ahead + k) * step);
            for (; row + 8 <= rows; row += 8) {
                eight a[8], b[8];
                for (int k = 0; k < 8; ++k) {
                    __builtin_memcpy(&a[k], x + (column + k) * step + row, sizeof(eight));
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
                    __builtin_memcpy(&tile[row + k][column], &a[k], sizeof(eight));
                }
            }
        }
        const int64_t end = column + 8 < columns ? column + 8 : columns;
        for (; row < rows; ++row) {
            for (int64_t k = column; k < end; ++k) tile[row][k] = x[k * step + row];
        }
    }
}
