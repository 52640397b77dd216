# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 10: Matrix product and attention by hand
#
# Most of a neural network's arithmetic is in matrix products, and compilers leave those to libraries
# or to *templates*, kernels that people have written. This lab writes one: tiles, an *epilogue* (what is
# done to a tile before it is stored), then the softmax in pieces of lab 9, and with all of it flash
# attention. About 45 minutes; no GPU is needed. Parts 2, 3 and 5 need a C++ compiler.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 10

# %% [markdown]
# ## 1. What tiles save
#
# An element of `x @ w` needs a row of `x` and a column of `w`. Computed one by one, each reads `2 k`
# numbers. A tile of 16 x 16 elements needs 16 rows and 16 columns, for 256 elements: a sixteenth each.

# %% tags=["solution"]
# %%task lab10.traffic
import math

def traffic(m, n, k, tile_m, tile_n):
    """Return the bytes that a product (m, k) @ (k, n) of float32 reads and writes, tile by tile."""
    across, down = math.ceil(n / tile_n), math.ceil(m / tile_m)
    return 4 * (across * m * k + down * k * n + m * n)

# %%
for tile in (1, 4, 16, 64, 256):
    print(f"tiles of {tile:3}: {traffic(1024, 1024, 1024, tile, tile) or 0:13,} bytes")

# %% [markdown]
# ## 2. Order of loops, again
#
# The kernel below is the definition, loop by loop. Without any tile, another order of the same three
# loops makes it more than twice as fast: lab 7 tells why.

# %% tags=["solution"]
# %%task lab10.matmul
#include <cmath>
#include <cstdint>

extern "C" int matmul(const float* x, const float* w, float* out, int64_t m,
    int64_t n, int64_t k, int64_t threads)
{
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) out[i * n + j] = 0.0f;
        for (int64_t p = 0; p < k; ++p)
            for (int64_t j = 0; j < n; ++j) out[i * n + j] += x[i * k + p] * w[p * n + j];
    }
    return 0;
}

# %% [markdown]
# ## 3. A tile in registers, and its epilogue
#
# Now `relu(x @ w + b)`. The kernel below goes over `out` a second time for the bias and the relu, and in its
# product it loads and stores an element of `out` for each multiplication. Keep a tile of 4 x 16 sums in
# variables while `p` runs over all of `k`. When it is through, the tile is complete, and the epilogue costs
# nothing: the sums are in registers anyway. (`#pragma omp simd` before the innermost loop tells the C++
# compiler to make vectors of it; some unroll so short a loop first, and then do not see them.)

# %% tags=["solution"]
# %%task lab10.linear
#include <cmath>
#include <cstdint>

static inline float relu(float v) { return v < 0.0f ? 0.0f : v; }

extern "C" int linear(const float* x, const float* w, const float* b, float* out,
    int64_t m, int64_t n, int64_t k, int64_t threads)
{
    const int64_t rows = m / 4 * 4, cols = n / 16 * 16;
    for (int64_t i0 = 0; i0 < rows; i0 += 4)
        for (int64_t j0 = 0; j0 < cols; j0 += 16) {
            float sums[4][16] = {};
            for (int64_t p = 0; p < k; ++p)
                for (int64_t r = 0; r < 4; ++r) {
                    #pragma omp simd
                    for (int64_t c = 0; c < 16; ++c) sums[r][c] += x[(i0 + r) * k + p] * w[p * n + j0 + c];
                }
            for (int64_t r = 0; r < 4; ++r)
                for (int64_t c = 0; c < 16; ++c) out[(i0 + r) * n + j0 + c] = relu(sums[r][c] + b[j0 + c]);
        }
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = i < rows ? cols : 0; j < n; ++j) {
            float sum = 0.0f;
            for (int64_t p = 0; p < k; ++p) sum += x[i * k + p] * w[p * n + j];
            out[i * n + j] = relu(sum + b[j]);
        }
    return 0;
}

# %% [markdown]
# What does the compiler do? It leaves the product to the library, and says so. On a GPU, where it has a
# template of its own, the rest becomes the product's epilogue.

# %%
x, w, b = torch.randn(300, 200), torch.randn(200, 400), torch.randn(400)

# %%
# %%predict --out y
y = torch.relu(x @ w + b)

# %% [markdown]
# ## 4. Attention in blocks of keys
#
# Attention gives each query a mean of the values, weighted with a softmax of its scores. Written down as
# it is defined, it holds a matrix of all scores: for 16,000 tokens, a billion bytes for each head. But the
# softmax can be had in pieces (lab 9), and so can the weighted sum: it is one more thing in the state.

# %% tags=["solution"]
# %%task lab10.step
import math

def step(state, scores, values):
    """Return the state with one more block of keys: (largest, total, sums)."""
    largest, total, sums = state
    new = max(largest, *scores)
    factor = math.exp(largest - new)
    weights = [math.exp(score - new) for score in scores]
    total = total * factor + sum(weights)
    sums = [s * factor + sum(w * v[d] for w, v in zip(weights, values)) for d, s in enumerate(sums)]
    return new, total, sums

# %% [markdown]
# Begin with a largest score of minus infinity and nothing in the sums; at the end, divide.

# %%
state = (-math.inf, 0.0, [0.0, 0.0])
for scores, values in (([1.0, 3.0], [[1.0, 0.0], [0.0, 1.0]]), ([500.0], [[2.0, 2.0]])):
    state = step(state, scores, values) or state
    largest, total, sums = state
    print([round(entry / total, 4) for entry in sums] if total else "part 4 is not solved yet")

# %% [markdown]
# ## 5. Flash attention
#
# The kernel below holds no matrix of scores either, and computes every score twice instead. With the state
# of part 4, once is enough. Memory may not grow with the number of keys. Entries are 64 here.

# %% tags=["solution"]
# %%task lab10.attention
#include <cmath>
#include <cstdint>

static inline float score(const float* q, const float* k)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < 64; ++d) sum += q[d] * k[d];
    return sum * 0.125f;
}

extern "C" int attention(const float* q, const float* k, const float* v, float* out,
    int64_t queries, int64_t keys, int64_t threads)
{
    for (int64_t i = 0; i < queries; ++i) {
        float largest = -INFINITY, total = 0.0f, sums[64] = {};
        for (int64_t j = 0; j < keys; ++j) {
            const float s = score(q + i * 64, k + j * 64);
            if (s > largest) {
                const float factor = std::exp(largest - s);
                total *= factor;
                for (int64_t d = 0; d < 64; ++d) sums[d] *= factor;
                largest = s;
            }
            const float p = std::exp(s - largest);
            total += p;
            for (int64_t d = 0; d < 64; ++d) sums[d] += p * v[j * 64 + d];
        }
        for (int64_t d = 0; d < 64; ++d) out[i * 64 + d] = sums[d] / total;
    }
    return 0;
}

# %% [markdown]
# Of attention that is written out, the compiler makes three steps here, and the scores go to memory and come
# back:

# %%
q, k, v = (torch.randn(2, 4, 128, 64) for _ in range(3))

# %%
# %%predict --out y
y = torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v

# %% [markdown]
# PyTorch has a function for all of it, and a kernel behind it that works like yours. Look at the bytes:

# %%
# %%predict --out y
y = torch.nn.functional.scaled_dot_product_attention(q, k, v)

# %%
# %progress 10

# %% [markdown] tags=["teacher"]
# **For teachers.** 5, 7, 13, 8 and 12 minutes. Common mistakes: a tile at the edge is counted as a whole one;
# `out` is not set to zero first (memory begins as NaN here); the epilogue is applied before the last `p`; rows
# or columns that are left over are forgotten; `total` is brought to the new largest score and `sums` is not.
# Part 3's limit is 1.15 times the kernel that it begins with, part 5's 1.2 times.
