// gelu, layer_norm: sum over 200 for each of 60.
//   reads x: 60 x 200 float32
//   reads w: 200 float32
//   reads b: 200 float32
//   reads gamma: 200 float32
//   reads beta: 200 float32
//   writes out: 60 x 200 float32
// line 2: h = gelu(x * w + b)
// line 3: y = layer_norm(h, (n,), gamma, beta)
#include <cmath>
#include <cstdint>

extern "C" int gelu_layer_norm(
    const float* x,
    const float* w,
    const float* b,
    const float* gamma,
    const float* beta,
    float* out,
    int64_t threads)
{
    for (int64_t i = 0; i < 60; ++i) {
        // line 3: y = layer_norm(h, (n,), gamma, beta)
        double sum = 0.0;
        for (int64_t j = 0; j < 200; ++j) {
            // line 2: h = gelu(x * w + b)
            const float total = x[i * 200 + j] * w[j] + b[j];
            // line 3: y = layer_norm(h, (n,), gamma, beta)
            sum += total * 0.5f * (std::erf(total * 0.70710677f) + 1.0f);
        }
        const float mean = (float)sum / 200.0f;
        double squares = 0.0;
        for (int64_t j = 0; j < 200; ++j) {
            // line 2: h = gelu(x * w + b)
            const float total2 = x[i * 200 + j] * w[j] + b[j];
            const float h = total2 * 0.5f * (std::erf(total2 * 0.70710677f) + 1.0f);
            // line 3: y = layer_norm(h, (n,), gamma, beta)
            const float difference = h - mean;
            squares += difference * difference;
        }
        const float rstd = 1.0f / std::sqrt((float)squares / 200.0f + 1e-05f);
        for (int64_t j = 0; j < 200; ++j) {
            // line 2: h = gelu(x * w + b)
            const float total3 = x[i * 200 + j] * w[j] + b[j];
            const float h2 = total3 * 0.5f * (std::erf(total3 * 0.70710677f) + 1.0f);
            // line 3: y = layer_norm(h, (n,), gamma, beta)
            out[i * 200 + j] = (h2 - mean) * rstd * gamma[j] + beta[j];
        }
    }
    return 0;
}
