// sum: sum over 30 x 40.
//   reads x: 30 x 40 float32
//   writes out: a number float32
// line 1: total = x.sum()
#include <cmath>
#include <cstdint>

extern "C" int sum_all(const float* x, float* out, int64_t threads)
{
    // line 1: total = x.sum()
    double sum = 0.0;
    for (int64_t i = 0; i < 30; ++i) {
        for (int64_t j = 0; j < 40; ++j) {
            sum += x[i * 40 + j];
        }
    }
    out[0] = (float)sum;
    return 0;
}
