// index_put: updates at 40 x 70.
//   reads grad: 40 x 70 float32
//   reads which: 40 int64
//   updates table_grad: 50 x 70 float32
// line 1: table_grad[which] += grad
#include <cmath>
#include <cstdint>

extern "C" int scatter_add(
    const float* grad,
    const int64_t* which,
    float* table_grad,
    int64_t threads)
{
    for (int64_t i = 0; i < 40; ++i) {
        // line 1: table_grad[which] += grad
        const int64_t which_here = which[i];
        const int64_t wrapped = which_here < 0 ? which_here + 50 : which_here;
        if (!(wrapped >= 0 && wrapped < 50)) return 1; // index out of range
        for (int64_t j = 0; j < 70; ++j) {
            table_grad[wrapped * 70 + j] += grad[i * 70 + j];
        }
    }
    return 0;
}
