// running sum, running max, running argmax: running sum, running largest, running place of the
// largest over 100 for each of 9.
//   reads x: 9 x 100 float32
//   writes sum_out: 9 x 100 float32
//   writes max_out: 9 x 100 float32
//   writes argmax_out: 9 x 100 int64
// line 2: y = running(x)
#include <cmath>
#include <cstdint>

extern "C" int scans(
    const float* x,
    float* sum_out,
    float* max_out,
    int64_t* argmax_out,
    int64_t threads)
{
    for (int64_t i = 0; i < 9; ++i) {
        // line 2: y = running(x)
        double sum_so_far = 0.0;
        float largest_so_far = -INFINITY;
        float largest_so_far2 = -INFINITY;
        int64_t place_so_far = 0;
        for (int64_t j = 0; j < 100; ++j) {
            const float product = x[i * 100 + j] * 0.5f;
            sum_so_far += product;
            const float value = (float)sum_so_far;
            if (product >= largest_so_far || product != product) {
                largest_so_far = product;
            }
            if (product >= largest_so_far2 || product != product) {
                largest_so_far2 = product;
                place_so_far = j;
            }
            sum_out[i * 100 + j] = value + product;
            max_out[i * 100 + j] = largest_so_far + product;
            argmax_out[i * 100 + j] = place_so_far;
        }
    }
    return 0;
}
