// index: each of 33 x 20.
//   reads which: 33 int64
//   reads table: 10 x 20 float32
//   writes out: 33 x 20 float32
// line 1: y = table[which] * 2
#include <cmath>
#include <cstdint>

extern "C" int gather(const int64_t* which, const float* table, float* out, int64_t threads)
{
    for (int64_t i = 0; i < 33; ++i) {
        // line 1: y = table[which] * 2
        const int64_t which_here = which[i];
        const int64_t wrapped = which_here < 0 ? which_here + 10 : which_here;
        if (!(wrapped >= 0 && wrapped < 10)) return 1; // index out of range
        for (int64_t j = 0; j < 20; ++j) {
            out[i * 20 + j] = table[wrapped * 20 + j] * 2.0f;
        }
    }
    return 0;
}
