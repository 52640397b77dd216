"""Lab 7, C++ kernels: from one loop to order, accumulators, tiles, vectors and threads."""

from __future__ import annotations

import re
import textwrap

import torch

from fuselab.judge.task import CppTask, Limits
from fuselab.labs.lab import Lab

_SCALE = 'extern "C" int scale(const float* x, float* out, int64_t n, int64_t threads)'
_COLUMNS = (
    'extern "C" int columns(const float* x, float* out, int64_t rows, int64_t cols, '
    "int64_t threads)"
)
_DOT = 'extern "C" int dot(const float* x, const float* y, float* out, int64_t n, int64_t threads)'
_TRANSPOSE = (
    'extern "C" int transpose(const float* x, float* out, int64_t rows, int64_t cols, '
    "int64_t threads)"
)
_LENGTHS = (
    'extern "C" int lengths(const float* x, float* out, int64_t rows, int64_t cols, '
    "int64_t threads)"
)


def kernel(declaration: str, body: str) -> str:
    """Return the text of a kernel."""
    # A parameter stays on one line: within it, spaces that are none to textwrap.
    whole = re.sub(r"(?<=[a-z0-9*_]) (?=[a-z*])", "\u00a0", declaration)
    head = textwrap.fill(whole, 84, subsequent_indent="    ").replace("\u00a0", " ")
    return f"#include <cmath>\n#include <cstdint>\n\n{head}\n{{\n{body}\n    return 0;\n}}\n"


_PLAIN_LENGTHS = kernel(
    _LENGTHS,
    "    for (int64_t i = 0; i < rows; ++i) {\n"
    "        float sum = 0.0f;\n"
    "        for (int64_t j = 0; j < cols; ++j) sum += x[i * cols + j] * x[i * cols + j];\n"
    "        out[i] = std::sqrt(sum);\n"
    "    }",
)


LAB = Lab(
    7,
    "cpp_kernels",
    "C++ kernels: order, accumulators, tiles, threads",
    45,
    (
        CppTask(
            "lab07.scale",
            "a first kernel",
            "scale",
            start=kernel(_SCALE, "    // out[i] = relu(2 * x[i] + 1), and NaN stays NaN"),
            hints=(
                "One loop over n; read x[i], compute, write out[i].",
                "relu is `v < 0 ? 0 : v`. What does it make of NaN, and what does `v > 0 ? v : 0`?",
                "for (int64_t i = 0; i < n; ++i) { const float v = 2.0f * x[i] + 1.0f; "
                "out[i] = v < 0.0f ? 0.0f : v; }",
            ),
            reference=lambda x: torch.relu(2 * x + 1),
            inputs=lambda g, n: [torch.randn(n, generator=g)],
            sizes=(1, 7, 1003),
            timed_size=100_003,
            declaration=_SCALE,
            arguments=("x", "out"),
            numbers=lambda x: (x.numel(),),
        ),
        CppTask(
            "lab07.columns",
            "order of loops",
            "columns",
            points=2,
            given=1,  # it is right
            start=kernel(
                _COLUMNS,
                "    for (int64_t j = 0; j < cols; ++j) {\n"
                "        float sum = 0.0f;\n"
                "        for (int64_t i = 0; i < rows; ++i) sum += x[i * cols + j];\n"
                "        out[j] = sum;\n"
                "    }",
            ),
            hints=(
                "The inner loop jumps by a whole row from one read to the next. How many of the "
                "16 numbers in a line of the cache does it use?",
                "Let the inner loop run along a row. Then a row's numbers go into different sums.",
                "Set out to zero; then for each row i, for each column j: "
                "out[j] += x[i * cols + j].",
            ),
            reference=lambda x: x.sum(0),
            inputs=lambda g, n: [torch.randn(n, 1030, generator=g)],
            sizes=(1, 5, 33),
            timed_size=2000,
            kinds=("similar", "nonfinite"),
            declaration=_COLUMNS,
            arguments=("x", "out"),
            numbers=lambda x: tuple(x.shape),
            slack=1e-4,
            limits=Limits(factor=1.5),
            baseline=kernel(
                _COLUMNS,
                "    for (int64_t j = 0; j < cols; ++j) {\n"
                "        float sum = 0.0f;\n"
                "        for (int64_t i = 0; i < rows; ++i) sum += x[i * cols + j];\n"
                "        out[j] = sum;\n"
                "    }",
            ),
        ),
        CppTask(
            "lab07.dot",
            "more than one sum",
            "dot",
            points=2,
            given=1,  # it is right
            start=kernel(
                _DOT,
                "    float sum = 0.0f;\n"
                "    for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];\n"
                "    out[0] = sum;",
            ),
            hints=(
                "Each addition waits for the one before it, four cycles or so. The compiler may "
                "not change the order of your additions: they would round otherwise.",
                "Keep several sums that do not wait for each other, and add them up at the end. "
                "Mind what is left over if n is no multiple of their number.",
                "float sums[32] = {}; for i in steps of 32 add x[i + k] * y[i + k] to sums[k]; "
                "then the rest, then the sum of sums. Or `#pragma omp simd reduction(+ : sum)`.",
            ),
            reference=lambda x, y: (x * y).sum().reshape(1),
            inputs=lambda g, n: [torch.rand(n, generator=g), torch.rand(n, generator=g)],
            sizes=(1, 31, 1025),
            timed_size=32_768,
            kinds=("similar", "nonfinite"),
            declaration=_DOT,
            arguments=("x", "y", "out"),
            numbers=lambda x, y: (x.numel(),),
            slack=1e-5,
            limits=Limits(factor=2.0),
            baseline=kernel(
                _DOT,
                "    float sum = 0.0f;\n"
                "    for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];\n"
                "    out[0] = sum;",
            ),
        ),
        CppTask(
            "lab07.transpose",
            "tiles",
            "transpose",
            points=3,
            given=1,  # it is right
            start=kernel(
                _TRANSPOSE,
                "    for (int64_t i = 0; i < rows; ++i)\n"
                "        for (int64_t j = 0; j < cols; ++j) out[j * rows + i] = x[i * cols + j];",
            ),
            hints=(
                "Reads run along rows, writes jump down columns, and by the time that the next "
                "row's writes come the lines of the cache are gone. Swapping the loops moves the "
                "jumps from the writes to the reads.",
                "Do a tile of 16 x 16 at a time: its reads and its writes both stay in the cache.",
                "Two outer loops in steps of 16 over i0 and j0, two inner ones from i0 to "
                "min(i0 + 16, rows) and from j0 to min(j0 + 16, cols).",
            ),
            reference=lambda x: x.t().contiguous(),
            inputs=lambda g, n: [torch.randn(n, n + n % 2, generator=g)],
            sizes=(1, 17, 65),
            timed_size=2048,
            kinds=("similar", "nonfinite"),
            declaration=_TRANSPOSE,
            arguments=("x", "out"),
            numbers=lambda x: tuple(x.shape),
            limits=Limits(factor=1.5),
            baseline=kernel(
                _TRANSPOSE,
                "    for (int64_t i = 0; i < rows; ++i)\n"
                "        for (int64_t j = 0; j < cols; ++j) out[j * rows + i] = x[i * cols + j];",
            ),
        ),
        CppTask(
            "lab07.lengths",
            "vectors, threads, and the roofline",
            "lengths",
            points=3,
            given=1,  # it is right
            start=_PLAIN_LENGTHS,
            hints=(
                "Each addition waits for the one before it, as in part 3. And one core does it "
                "all: which of the two loops has turns that do not need each other?",
                "The inner loop adds up, so it takes the pragma with `reduction`. The outer loop's "
                "turns write different elements of out: they may run on different threads.",
                "`#pragma omp parallel for num_threads(threads)` on the line before the loop over "
                "i, `#pragma omp simd reduction(+ : sum)` on the line before the loop over j.",
            ),
            reference=lambda x: (x * x).sum(-1).sqrt(),
            inputs=lambda g, n: [torch.randn(n, 1030, generator=g)],
            sizes=(1, 5, 33),
            timed_size=4000,
            kinds=("similar", "nonfinite"),
            declaration=_LENGTHS,
            arguments=("x", "out"),
            numbers=lambda x: tuple(x.shape),
            slack=1e-5,
            limits=Limits(share=0.5, factor=3.0),
            baseline=_PLAIN_LENGTHS,
        ),
    ),
    needs=("C++ compiler",),
)
