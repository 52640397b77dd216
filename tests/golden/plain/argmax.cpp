// argmax: place of the largest over 100 for each of 9.
//   reads x: 9 x 100 float32
//   writes out: 9 int64
// line 1: y = x.argmax(-1)
#include <cmath>
#include <cstdint>

extern "C" int row_argmax(const float* x, int64_t* out, int64_t threads)
{
    for (int64_t i = 0; i < 9; ++i) {
        // line 1: y = x.argmax(-1)
        int64_t place = 0;
        float largest = -INFINITY;
        for (int64_t j = 0; j < 100; ++j) {
            const float value = x[i * 100 + j];
            if (value > largest || (value != value && largest == largest)) {
                largest = value;
                place = j;
            }
        }
        out[i] = place;
    }
    return 0;
}
