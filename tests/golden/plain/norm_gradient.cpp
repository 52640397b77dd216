// norm backward: sum over 40 for each of 300, and sums of the columns.
//   reads dy: 300 x 40 float32
//   reads w: 40 float32
//   reads x: 300 x 40 float32
//   reads scale: 300 x 1 float32
//   writes dx: 300 x 40 float32
//   writes dw_parts: 5 x 40 float32
//   writes db_parts: 5 x 40 float32
// line 1: n = x * scale
// line 2: dn = dy * w
// line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
// line 4: dw, db = (dy * n).sum(0), dy.sum(0)
#include <cmath>
#include <cstdint>

extern "C" int norm_gradient(
    const float* dy,
    const float* w,
    const float* x,
    const float* scale,
    float* dx,
    float* dw_parts,
    float* db_parts,
    int64_t threads)
{
    for (int64_t i = 0; i < 300; ++i) {
        // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
        double sum = 0.0;
        for (int64_t j = 0; j < 40; ++j) {
            sum += dy[i * 40 + j] * w[j] * (x[i * 40 + j] * scale[i]);
        }
        for (int64_t j = 0; j < 40; ++j) {
            // line 1: n = x * scale
            const float dy_here = dy[i * 40 + j];
            // line 4: dw, db = (dy * n).sum(0), dy.sum(0)
            if (i % 64 == 0) dw_parts[(i / 64) * 40 + j] = 0.0f;
            dw_parts[(i / 64) * 40 + j] += dy_here * (x[i * 40 + j] * scale[i]);
            if (i % 64 == 0) db_parts[(i / 64) * 40 + j] = 0.0f;
            db_parts[(i / 64) * 40 + j] += dy_here;
        }
        // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
        const float mean = (float)sum / 40.0f;
        for (int64_t j = 0; j < 40; ++j) {
            // line 1: n = x * scale
            const float scale_here = scale[i];
            // line 3: dx = (dn - n * (dn * n).mean(-1)) * scale
            const float difference = dy[i * 40 + j] * w[j] - x[i * 40 + j] * scale_here * mean;
            dx[i * 40 + j] = difference * scale_here;
        }
    }
    return 0;
}
