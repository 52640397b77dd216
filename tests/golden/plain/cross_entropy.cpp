// cross_entropy: largest, sum over 500 for each of 5.
//   reads logits: 5 x 500 float32
//   reads target: 5 int64
//   writes loss: 5 float32
// line 5: loss = cross_entropy(logits, target, reduction="none")
#include <cmath>
#include <cstdint>

extern "C" int cross_entropy(
    const float* logits,
    const int64_t* target,
    float* loss,
    int64_t threads)
{
    for (int64_t i = 0; i < 5; ++i) {
        // line 5: loss = cross_entropy(logits, target, reduction="none")
        const int64_t target_here = target[i];
        const int64_t wrapped = target_here < 0 ? target_here + 500 : target_here;
        if (!(wrapped >= 0 && wrapped < 500)) return 1; // target out of range
        float largest = -INFINITY;
        for (int64_t j = 0; j < 500; ++j) {
            const float value = logits[i * 500 + j];
            if (value > largest || value != value) largest = value;
        }
        const float difference = logits[i * 500 + wrapped] - largest;
        double sum = 0.0;
        for (int64_t j = 0; j < 500; ++j) {
            sum += std::exp(logits[i * 500 + j] - largest);
        }
        const float difference2 = std::log((float)sum) - difference;
        loss[i] = difference2;
    }
    return 0;
}
