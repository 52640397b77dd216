// running sum, running logsumexp: running sum, running logsumexp over 100 for each of 40.
//   reads x: 100 x 40 float32
//   writes sum_out: 100 x 40 float32
//   writes logsumexp_out: 100 x 40 float32
// line 2: y = running(x)
#include <cmath>
#include <cstdint>

extern "C" int scans(const float* x, float* sum_out, float* logsumexp_out, int64_t threads)
{
    for (int64_t i = 0; i < 40; ++i) {
        // line 2: y = running(x)
        double sum_so_far = 0.0;
        double largest_so_far = -INFINITY;
        double total_so_far = 0.0;
        for (int64_t j = 0; j < 100; ++j) {
            const float product = x[j * 40 + i] * 0.5f;
            sum_so_far += product;
            const float value = (float)sum_so_far;
            if (product > largest_so_far) {
                total_so_far = total_so_far * std::exp(largest_so_far - product) + 1;
                largest_so_far = product;
            }
            else {
                total_so_far += product == largest_so_far ? 1 : std::exp(product - largest_so_far);
            }
            const float value2 = (float)(largest_so_far + std::log(total_so_far));
            sum_out[j * 40 + i] = value + product;
            logsumexp_out[j * 40 + i] = value2 + product;
        }
    }
    return 0;
}
