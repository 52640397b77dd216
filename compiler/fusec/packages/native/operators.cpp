// What a package computes itself where there is no torch: products, convolutions, attention.
//
// Plain code that a compiler makes good vectors of; BLAS is quicker. Strides are in elements and may
// be anything. Each function returns 0, or -1 where there is no memory.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX2__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

template <class T> struct Vector {
    static constexpr int64_t lanes = BYTES / (int64_t)sizeof(T);
    typedef T type __attribute__((vector_size(BYTES), may_alias, aligned(sizeof(T))));
};

// A tile of the result in registers: ROWS x (PAIR vectors).
constexpr int64_t ROWS = 6, PAIR = 2;
constexpr int64_t DEPTH = 256; // of a packed block
constexpr int64_t TALL = 96;   // rows of a block of the left matrix

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Memory of one thread, given back when it is done.
template <class T> struct Memory {
    T* data;
    explicit Memory(int64_t count)
        : data((T*)aligned_alloc(64, (size_t)(((count < 1 ? 1 : count) * (int64_t)sizeof(T) + 63) / 64 * 64)))
    {
    }
    ~Memory() { free(data); }
    Memory(const Memory&) = delete;
};

// rows x depth of the left matrix, in strips of ROWS: depth by depth.
template <class T, class Left>
void pack_left(const Left& left, int64_t row, int64_t rows, int64_t at, int64_t depth, T* packed)
{
    for (int64_t strip = 0; strip < rows; strip += ROWS) {
        for (int64_t r = 0; r < ROWS; ++r) {
            if (strip + r < rows) left.row(row + strip + r, at, depth, packed + r);
            else
                for (int64_t k = 0; k < depth; ++k) packed[k * ROWS + r] = 0;
        }
        packed += ROWS * depth;
    }
}

template <class T>
void pack_right(const T* b, int64_t step_k, int64_t step_n, int64_t depth, int64_t columns, T* packed,
    int64_t threads)
{
    constexpr int64_t WIDE = PAIR * Vector<T>::lanes, SOME = 16;
    const bool many = depth * columns >= 1 << 16;
#pragma omp parallel for num_threads(threads) if (many)
    for (int64_t strip = 0; strip < columns; strip += WIDE) {
        const int64_t there = least(WIDE, columns - strip);
        const T* from = b + strip * step_n;
        T* to = packed + strip * depth;
        if (there < WIDE) memset(to, 0, sizeof(T) * (size_t)(WIDE * depth));
        if (step_n == 1 && there == WIDE) {
            for (int64_t k = 0; k < depth; ++k) memcpy(to + k * WIDE, from + k * step_k, sizeof(T) * WIDE);
        } else { // a few numbers of each column at a time: they are beside each other if transposed
            for (int64_t at = 0; at < depth; at += SOME)
                for (int64_t n = 0; n < there; ++n)
                    for (int64_t k = at; k < least(at + SOME, depth); ++k)
                        to[k * WIDE + n] = from[k * step_k + n * step_n];
        }
    }
}

template <class T> void tile(const T* a, const T* b, int64_t depth, T* sums)
{
    using V = typename Vector<T>::type;
    constexpr int64_t lanes = Vector<T>::lanes;
    V total[ROWS][PAIR] = {};
    for (int64_t k = 0; k < depth; ++k) {
        V right[PAIR];
        for (int64_t p = 0; p < PAIR; ++p) right[p] = *(const V*)(b + p * lanes);
#pragma GCC unroll 8
        for (int64_t r = 0; r < ROWS; ++r) {
            const T left = a[r];
#pragma GCC unroll 4
            for (int64_t p = 0; p < PAIR; ++p) total[r][p] += left * right[p];
        }
        a += ROWS;
        b += PAIR * lanes;
    }
    for (int64_t r = 0; r < ROWS; ++r)
        for (int64_t p = 0; p < PAIR; ++p) *(V*)(sums + (r * PAIR + p) * lanes) = total[r][p];
}

// out[row, column] = alpha * left * right + what start gives; rows are shared out among threads.
template <class T, class Left, class Start, class Out>
int multiply(const Left& left, const T* b, int64_t step_k, int64_t step_n, int64_t rows, int64_t columns,
    int64_t depth, T alpha, const Start& start, const Out& out, int64_t threads)
{
    constexpr int64_t WIDE = PAIR * Vector<T>::lanes;
    const int64_t deep = least(DEPTH, depth);
    if (!rows || !columns) return 0;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column) out(row, column) = start(row, column);
    if (!depth) return 0;
    const int64_t across = least(columns, 4096 / WIDE * WIDE);
    Memory<T> right(pieces(across, WIDE) * WIDE * deep);
    if (!right.data) return -1;
    int failed = 0;
    for (int64_t from = 0; from < columns; from += across) {
        const int64_t some = least(across, columns - from);
        for (int64_t at = 0; at < depth; at += DEPTH) {
            const int64_t part = least(DEPTH, depth - at);
            pack_right(b + at * step_k + from * step_n, step_k, step_n, part, some, right.data, threads);
            // few rows, many columns: threads share out the columns
            const int64_t blocks = pieces(rows, TALL);
            const bool by_columns = blocks < threads;
            const int64_t shares = by_columns ? threads : blocks;
            const bool many = rows * some * part >= 1 << 18;
#pragma omp parallel for num_threads(threads) if (many)
            for (int64_t share = 0; share < shares; ++share) {
                Memory<T> packed(pieces(TALL, ROWS) * ROWS * part);
                if (!packed.data) {
                    __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
                    continue;
                }
                const int64_t strips = pieces(some, WIDE);
                const int64_t first = by_columns ? strips * share / shares : 0;
                const int64_t last = by_columns ? strips * (share + 1) / shares : strips;
                for (int64_t block = by_columns ? 0 : share; block < (by_columns ? blocks : share + 1); ++block) {
                    const int64_t row = block * TALL, high = least(TALL, rows - row);
                    pack_left(left, row, high, at, part, packed.data);
                    for (int64_t strip = first; strip < last; ++strip) {
                        const int64_t column = from + strip * WIDE, broad = least(WIDE, columns - column);
                        for (int64_t r = 0; r < high; r += ROWS) {
                            alignas(64) T sums[ROWS * WIDE];
                            tile(packed.data + r * part, right.data + strip * WIDE * part, part, sums);
                            for (int64_t i = 0; i < least(ROWS, high - r); ++i)
                                for (int64_t j = 0; j < least(broad, from + some - column); ++j)
                                    out(row + r + i, column + j) += alpha * sums[i * WIDE + j];
                        }
                    }
                }
            }
        }
    }
    return failed ? -1 : 0;
}

// A matrix with strides, as the left one.
template <class T> struct Strided {
    const T* data;
    int64_t step_row, step_k;
    void row(int64_t row, int64_t at, int64_t depth, T* packed) const
    {
        const T* from = data + row * step_row + at * step_k;
        for (int64_t k = 0; k < depth; ++k) packed[k * ROWS] = from[k * step_k];
    }
};

// The windows of an image, as rows of a matrix: kernel row, kernel column, channel.
template <class T> struct Windows {
    const T* data;
    int64_t sc, sh, sw, channels, height, width, out_width, kernel_width;
    int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    void row(int64_t row, int64_t at, int64_t depth, T* packed) const
    {
        const int64_t y = row / out_width * stride_h - pad_h, x = row % out_width * stride_w - pad_w;
        int64_t k = 0;
        while (k < depth) {
            const int64_t place = (at + k) / channels, channel = (at + k) % channels;
            const int64_t count = least(channels - channel, depth - k);
            const int64_t h = y + place / kernel_width * dilation_h, w = x + place % kernel_width * dilation_w;
            if (h < 0 || h >= height || w < 0 || w >= width) {
                for (int64_t c = 0; c < count; ++c) packed[(k + c) * ROWS] = 0;
            } else {
                const T* from = data + h * sh + w * sw + channel * sc;
                for (int64_t c = 0; c < count; ++c) packed[(k + c) * ROWS] = from[c * sc];
            }
            k += count;
        }
    }
};

} // namespace

template <class T>
int fuse_product(const T* a, int64_t a_batch, int64_t a_row, int64_t a_k, const T* b, int64_t b_batch, int64_t b_k,
    int64_t b_column, const T* bias, int64_t bias_batch, int64_t bias_row, int64_t bias_column, T* out,
    int64_t out_batch, int64_t out_row, int64_t out_column, int64_t batches, int64_t rows, int64_t columns,
    int64_t depth, double alpha, double beta, int64_t threads)
{
    for (int64_t batch = 0; batch < batches; ++batch) {
        const T* added = bias && beta != 0 ? bias + batch * bias_batch : nullptr;
        T* here = out + batch * out_batch;
        const int status = multiply<T>(
            Strided<T>{a + batch * a_batch, a_row, a_k}, b + batch * b_batch, b_k, b_column, rows, columns, depth,
            (T)alpha,
            [&](int64_t row, int64_t column) -> T {
                return added ? (T)beta * added[row * bias_row + column * bias_column] : T(0);
            },
            [&](int64_t row, int64_t column) -> T& { return here[row * out_row + column * out_column]; }, threads);
        if (status) return status;
    }
    return 0;
}

template <class T>
int fuse_convolution(const T* x, int64_t images, int64_t channels, int64_t height, int64_t width, int64_t x_image,
    int64_t x_channel, int64_t x_h, int64_t x_w, const T* weight, int64_t features, int64_t each, int64_t kernel_h,
    int64_t kernel_w, int64_t w_feature, int64_t w_channel, int64_t w_h, int64_t w_w, T* out, int64_t, int64_t,
    int64_t out_height, int64_t out_width, int64_t o_image, int64_t o_feature, int64_t o_h, int64_t o_w,
    const T* bias, int64_t bias_step, int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w,
    int64_t dilation_h, int64_t dilation_w, int64_t groups, int64_t threads)
{
    (void)channels;
    const int64_t own = features / groups, depth = each * kernel_h * kernel_w;
    Memory<T> turned(depth * own); // the weights of a group: kernel row, kernel column, channel by feature
    if (!turned.data) return -1;
    for (int64_t group = 0; group < groups; ++group) {
        const T* from = weight + group * own * w_feature;
        for (int64_t h = 0; h < kernel_h; ++h)
            for (int64_t w = 0; w < kernel_w; ++w)
                for (int64_t c = 0; c < each; ++c)
                    for (int64_t f = 0; f < own; ++f)
                        turned.data[((h * kernel_w + w) * each + c) * own + f]
                            = from[f * w_feature + c * w_channel + h * w_h + w * w_w];
        for (int64_t image = 0; image < images; ++image) {
            const Windows<T> windows{x + image * x_image + group * each * x_channel, x_channel, x_h, x_w, each,
                height, width, out_width, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w};
            T* here = out + image * o_image + group * own * o_feature;
            const int status = multiply<T>(
                windows, turned.data, own, int64_t(1), out_height * out_width, own, depth, T(1),
                [&](int64_t, int64_t f) -> T { return bias ? bias[(group * own + f) * bias_step] : T(0); },
                [&](int64_t row, int64_t f) -> T& {
                    return here[row / out_width * o_h + row % out_width * o_w + f * o_feature];
                },
                threads);
            if (status) return status;
        }
    }
    return 0;
}

template <class T>
int fuse_attention(const T* q, int64_t q_batch, int64_t q_head, int64_t q_row, int64_t q_d, const T* k,
    int64_t k_batch, int64_t k_head, int64_t k_row, int64_t k_d, const T* v, int64_t v_batch, int64_t v_head,
    int64_t v_row, int64_t v_d, T* out, int64_t o_batch, int64_t o_head, int64_t o_row, int64_t o_d, const T* mask,
    int64_t m_batch, int64_t m_head, int64_t m_row, int64_t m_column, int64_t batches, int64_t heads, int64_t rows,
    int64_t depth, int64_t keys, int64_t wide, int64_t causal, double scale, int64_t threads)
{
    int failed = 0;
    const bool many = batches * heads * rows * keys * depth >= 1 << 18;
#pragma omp parallel for num_threads(threads) if (many)
    for (int64_t each = 0; each < batches * heads * rows; ++each) {
        const int64_t row = each % rows, head = each / rows % heads, batch = each / rows / heads;
        Memory<T> memory(keys + wide);
        if (!memory.data) {
            __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
            continue;
        }
        T* scores = memory.data;
        T* sums = memory.data + keys;
        const T* query = q + batch * q_batch + head * q_head + row * q_row;
        const T* bias = mask ? mask + batch * m_batch + head * m_head + row * m_row : nullptr;
        const int64_t seen = causal ? least(keys, row + 1) : keys;
        T most = -(T)INFINITY;
        bool nan = false;
        for (int64_t column = 0; column < seen; ++column) {
            const T* key = k + batch * k_batch + head * k_head + column * k_row;
            T sum = 0;
            if (q_d == 1 && k_d == 1) {
#pragma omp simd reduction(+ : sum)
                for (int64_t d = 0; d < depth; ++d) sum += query[d] * key[d];
            } else
                for (int64_t d = 0; d < depth; ++d) sum += query[d * q_d] * key[d * k_d];
            sum = sum * (T)scale + (bias ? bias[column * m_column] : T(0));
            scores[column] = sum;
            nan |= sum != sum;
            most = most > sum ? most : sum;
        }
        for (int64_t d = 0; d < wide; ++d) sums[d] = 0;
        T total = 0;
        if (nan) most = (T)NAN;
        // a row that sees nothing is zero, as ATen's is
        const bool empty = !nan && most == -(T)INFINITY;
        for (int64_t column = 0; !empty && column < seen; ++column) {
            const T share = (T)exp((double)(scores[column] - most));
            total += share;
            const T* value = v + batch * v_batch + head * v_head + column * v_row;
            if (v_d == 1)
                for (int64_t d = 0; d < wide; ++d) sums[d] += share * value[d];
            else
                for (int64_t d = 0; d < wide; ++d) sums[d] += share * value[d * v_d];
        }
        T* to = out + batch * o_batch + head * o_head + row * o_row;
        for (int64_t d = 0; d < wide; ++d) to[d * o_d] = empty ? T(0) : sums[d] / total;
    }
    return failed ? -1 : 0;
}
