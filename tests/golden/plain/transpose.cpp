// add: each of 30 x 20.
//   reads a: 30 x 20 float32
//   reads b: 20 x 30 float32
//   writes out: 30 x 20 float32
// line 1: y = a + b.T
#include <cmath>
#include <cstdint>

extern "C" int transpose_add(const float* a, const float* b, float* out, int64_t threads)
{
    for (int64_t i = 0; i < 30; ++i) {
        for (int64_t j = 0; j < 20; ++j) {
            // line 1: y = a + b.T
            out[i * 20 + j] = a[i * 20 + j] + b[j * 30 + i];
        }
    }
    return 0;
}
