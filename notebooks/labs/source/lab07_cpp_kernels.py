# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 7: C++ kernels: order, accumulators, tiles, threads
#
# Five kernels by hand. Each begins with loops that anyone would write, and becomes several times as
# fast by one idea. About 45 minutes; it needs a C++ compiler, and no GPU.
#
# A kernel is a C++ function that gets pointers and sizes and returns 0. `const float* x` points to the
# first number of an input, so that `x[i]` is number `i`; `out` points to memory for the results. The last
# argument, `threads`, is for part 5. Yours is compiled with `-O3` for this processor and with OpenMP, runs
# in a process of its own between pages of memory that nobody may touch, on several sizes, with one thread
# and with several; whatever goes wrong there does not take the notebook down.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 7

# %% [markdown]
# ## What a compiler writes
#
# `--target plain` writes one loop nest a kernel, and nothing that would only make it faster.

# %%
x = torch.randn(1_000_000)

# %%
# %%fuse --target plain --no-check --name mine
y = torch.relu(2 * x + 1)

# %% [markdown]
# ## 1. A first kernel
#
# Write the same for any size `n`. NaN stays NaN: what does your comparison make of it?

# %% tags=["solution"]
# %%task lab07.scale
#include <cmath>
#include <cstdint>

extern "C" int scale(const float* x, float* out, int64_t n, int64_t threads)
{
    for (int64_t i = 0; i < n; ++i) {
        const float v = 2.0f * x[i] + 1.0f;
        out[i] = v < 0.0f ? 0.0f : v;
    }
    return 0;
}

# %% [markdown]
# ## 2. Order of loops
#
# Memory comes in lines of 64 bytes: 16 `float`s. The kernel below adds up columns, and takes one
# number of each line before it goes on to the next. Make it at least 1.5 times as fast by going
# through the same numbers in another order.

# %% tags=["solution"]
# %%task lab07.columns
#include <cmath>
#include <cstdint>

extern "C" int columns(const float* x, float* out, int64_t rows, int64_t cols,
    int64_t threads)
{
    for (int64_t j = 0; j < cols; ++j) out[j] = 0.0f;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) out[j] += x[i * cols + j];
    return 0;
}

# %% [markdown]
# ## 3. More than one sum
#
# An addition takes some four cycles until its result is there, though a new one can begin twice a
# cycle, with 8 or 16 numbers in each. One sum lets each addition wait for the last. The compiler may
# not change that by itself, because sums in another order round differently. You may.

# %% tags=["solution"]
# %%task lab07.dot
#include <cmath>
#include <cstdint>

extern "C" int dot(const float* x, const float* y, float* out, int64_t n,
    int64_t threads)
{
    float sums[32] = {};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int64_t k = 0; k < 32; ++k) sums[k] += x[i + k] * y[i + k];
    float sum = 0.0f;
    for (; i < n; ++i) sum += x[i] * y[i];
    for (int64_t k = 0; k < 32; ++k) sum += sums[k];
    out[0] = sum;
    return 0;
}

# %% [markdown]
# ## 4. Tiles
#
# Transposing reads along rows and writes down columns, and whichever loop is inside, one of the two
# jumps. With 2048 columns the jumps even fall on the same few places of the cache. Do a small square
# at a time.

# %% tags=["solution"]
# %%task lab07.transpose
#include <cmath>
#include <cstdint>

extern "C" int transpose(const float* x, float* out, int64_t rows, int64_t cols,
    int64_t threads)
{
    const int64_t tile = 16;
    for (int64_t i0 = 0; i0 < rows; i0 += tile)
        for (int64_t j0 = 0; j0 < cols; j0 += tile) {
            const int64_t i1 = i0 + tile < rows ? i0 + tile : rows;
            const int64_t j1 = j0 + tile < cols ? j0 + tile : cols;
            for (int64_t j = j0; j < j1; ++j)
                for (int64_t i = i0; i < i1; ++i) out[j * rows + i] = x[i * cols + j];
        }
    return 0;
}

# %% [markdown]
# ## 5. Vectors, threads, and the roofline
#
# How much is there to gain at all? No kernel is quicker than its bytes: that is the roofline of lab 1, and
# a copy of as many bytes shows where it is on this machine. The kernel below computes the length of each
# row. It does next to nothing with what it reads, and still reaches a few percent of a copy's speed: the
# roofline promises ten times or more. Two lines of OpenMP get you near, each before a loop (which one?):
#
# - `#pragma omp simd reduction(+ : sum)`: the compiler may keep several sums in a vector, as you did by
#   hand in part 3, and add them up at the end;
# - `#pragma omp parallel for num_threads(threads)`: the loop's turns are shared among that many threads.
#   What is declared within the loop is each turn's own. What is declared before it is everybody's: two
#   threads that add to it overwrite each other's sums.
#
# Reach half the speed of a copy. With two cores or more that takes both.

# %% tags=["solution"]
# %%task lab07.lengths
#include <cmath>
#include <cstdint>

extern "C" int lengths(const float* x, float* out, int64_t rows, int64_t cols,
    int64_t threads)
{
    #pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < rows; ++i) {
        float sum = 0.0f;
        #pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < cols; ++j) sum += x[i * cols + j] * x[i * cols + j];
        out[i] = std::sqrt(sum);
    }
    return 0;
}

# %% [markdown]
# The verdict says both: how many times as fast as the plain loops it is, and how much of the roofline that
# is (more than 100 % is possible: a copy writes half of its bytes, which costs more than reading, and this
# kernel only reads). What is left is no matter of arithmetic any more: only fewer bytes would make it faster.

# %% [markdown]
# ## And the compiler?
#
# `%%fuse` writes such kernels, with vectors and threads where they pay. Read one, and beat it with
# `%%kernel` if you can: `%fuse_compare` shows the two side by side.

# %%
m = torch.randn(500, 500)

# %%
# %%fuse --no-check
s = torch.softmax(m, -1)

# %% [markdown]
# ## All of it: a `torch.compile` of your own
#
# What you wrote in labs 3 to 6 are the parts of a compiler: capture, guards and continuations (lab 3),
# gradients (lab 4), loops and their text (lab 5), fusion (lab 6). `mini_compile` puts *your* parts
# together and builds their kernels as yours were built here. It finds your answers in the files that
# `%hand_in` has written, where they lie beside this notebook.

# %%
from fuselab.labs.mini import MiniError, mini_compile

relu = torch.relu

def gated(x, y):
    z = relu(x + y) * y
    if z > 0:
        return z * 2
    return x - y

def product(x, y):
    return x * y * 2 - x

x, y = torch.randn(4, 5), torch.randn(4, 5)
try:
    mine, other = mini_compile(gated), mini_compile(product)
    for v in (1.0, -1.0):
        one = torch.tensor(v)
        print(mine(one, one).item(), "where Python says", gated(one, one).item())
    print("gradients are right:", torch.allclose(other.gradients(x, y)[0], y * 2 - 1))
    print(*mine.texts, *other.texts)
except MiniError as missing:
    print(missing)

# %%
# %progress 7

# %% [markdown] tags=["teacher"]
# **For teachers.** 5, 9, 11, 12 and 8 minutes. Times are taken in turns with the kernel that the task
# starts from, in the same run, so that a slow machine is slow for both; `%%task --untimed` leaves
# them out. Common mistakes: the end of the loop where `n` is no multiple of the block; `out[j]` is
# not set to zero first (memory begins as NaN here); `v > 0 ? v : 0` turns NaN into 0; in part 5 the inner
# loop is shared among threads, which start and wait once a row.
