// softmax: largest, sum over 200 for each of 24.
//   reads x: 24 x 200 float32
//   writes out: 24 x 200 float32
// line 4: y = torch.softmax(x, -1)
#include <cmath>
#include <cstdint>

extern "C" int softmax(const float* x, float* out, int64_t threads)
{
    for (int64_t i = 0; i < 24; ++i) {
        // line 4: y = torch.softmax(x, -1)
        float largest = -INFINITY;
        for (int64_t j = 0; j < 200; ++j) {
            const float value = x[i * 200 + j];
            if (value > largest || value != value) largest = value;
        }
        double sum = 0.0;
        for (int64_t j = 0; j < 200; ++j) {
            sum += std::exp(x[i * 200 + j] - largest);
        }
        for (int64_t j = 0; j < 200; ++j) {
            out[i * 200 + j] = std::exp(x[i * 200 + j] - largest) / (float)sum;
        }
    }
    return 0;
}
