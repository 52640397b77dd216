// add, mul: pointwise over 300 x 333.
//   reads x: 300 x 333 float32
//   reads bias: 333 float32
//   reads scale: 300 x 1 float32
//   reads gain: scalar float32
//   writes out: 300 x 333 float32
// line 1: y = (x + bias) * scale * gain
#include <stdint.h>

constexpr int64_t UNROLL = 1; // tunable: 1 2 4 8 (vectors a turn of the loop takes)

extern "C" int broadcast_add(const float* __restrict__ x, const float* __restrict__ bias,
    const float* __restrict__ scale, const float* __restrict__ gain, float* __restrict__ out,
    int64_t threads)
{
    // line 1: y = (x + bias) * scale * gain
    const float gain_val = gain[0];
    #pragma omp parallel for num_threads(threads)
    for (int64_t i0 = 0; i0 < 300; ++i0) {
        const float scale_val = scale[i0];
        #pragma GCC unroll UNROLL
        #pragma GCC ivdep
        for (int64_t i1 = 0; i1 < 333; ++i1) {
            const float product = (x[i0 * 333 + i1] + bias[i1]) * scale_val;
            out[i0 * 333 + i1] = product * gain_val;
        }
    }
    return 0;
}
