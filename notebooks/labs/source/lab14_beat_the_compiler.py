# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 14: Beat the compiler: an open kernel
#
# In a *mixture of experts*, a router gives each token 64 scores, keeps the two largest probabilities, and
# divides them by their sum. It is a small thing, it stands in every layer, and compilers do badly at it. You
# will know something that the compiler does not. Part 4 is open: your class is ranked by it. About 45
# minutes; no GPU is needed. Part 4 needs a C++ compiler.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 14

# %% [markdown]
# ## 1. What it must move
#
# First the goal. What does the compiler make of it as it stands in papers?

# %%
x = torch.randn(20_000, 64)

# %%
# %%predict --kernels 1 --reads 5MB --out gate
best = torch.softmax(x, -1).topk(2).values
gate = best / best.sum(-1, keepdim=True)

# %% [markdown]
# Three steps, for `topk` is nothing that it fuses. Count the bytes: the least that there can be, and those of
# the three steps.

# %% tags=["solution"]
# %%task lab14.least
def bytes_moved(rows, experts):
    """Return [least bytes, bytes of three steps] of the router, all numbers of 4 bytes."""
    scores, best = 4 * rows * experts, 4 * rows * 2
    softmax = scores + scores
    largest = scores + best + 2 * best
    division = best + best
    return [scores + best, softmax + largest + division]

# %%
print(bytes_moved(20_000, 64), "bytes: the least, and those of the three steps")

# %% [markdown]
# ## 2. In tensor code
#
# No compiler does algebra for you. Write down what becomes of a sum that both numbers are divided by, and
# find the two largest without `topk`. At most 1.1 times the least bytes, and no call of ATen's own kernels.

# %% tags=["solution"]
# %%task lab14.gates
import torch

def gates(x):
    """Return the two largest probabilities of each row, as shares of their sum."""
    first = x.amax(-1, keepdim=True)
    others = torch.where(torch.arange(x.shape[-1]) == x.argmax(-1, keepdim=True), float("-inf"), x)
    second = others.amax(-1, keepdim=True)
    return torch.cat([torch.sigmoid(first - second), torch.sigmoid(second - first)], -1)

# %% [markdown]
# Was it worth it? The first cell compiles the three steps, the second one your function:

# %%
# %%fuse --no-check --out gate
best = torch.softmax(x, -1).topk(2).values
gate = best / best.sum(-1, keepdim=True)

# %%
# %%fuse --no-check --out gate
gate = gates(x)

# %% [markdown]
# ## 3. How good it is
#
# Microseconds say little about a kernel: they depend on the machine. Its *share of a copy* says how far it is
# from the best that this machine could do. This is what the ranking goes by.

# %% tags=["solution"]
# %%task lab14.share
def share(moved, seconds, copy_speed):
    """Return a kernel's share of the speed of a copy: 1.0 if it takes as long as a copy would."""
    return moved / copy_speed / seconds

# %% [markdown]
# ## 4. By hand, as fast as you can
#
# Now in C++. The kernel below is the definition. Make it at least three times as fast; then go on as long as you
# like: the verdict says which share of a copy you have reached. `%hand_in` takes your best answer, and
# `python -m fuselab.labs rank FOLDER` makes a ranking of a class: part 2 by bytes and kernels, part 4 by its share,
# all measured anew on one machine. There are always 64 experts.

# %% tags=["solution"]
# %%task lab14.router
#include <algorithm>
#include <cmath>
#include <cstdint>

extern "C" int router(const float* x, float* out, int64_t rows, int64_t experts,
    int64_t threads)
{
    for (int64_t i = 0; i < rows; ++i) {
        float a = -INFINITY, b = -INFINITY;
        for (int64_t j = 0; j < experts; ++j) {
            const float v = x[i * experts + j];
            b = std::max(b, std::min(a, v));
            a = std::max(a, v);
        }
        const float e = std::exp(b - a);
        out[i * 2] = 1.0f / (1.0f + e);
        out[i * 2 + 1] = e / (1.0f + e);
    }
    return 0;
}

# %% [markdown]
# Ideas: 16 columns at once, each with a pair of its own, put together at the end of the row; several rows at
# once; threads (`#pragma omp parallel for num_threads(threads)`), where they pay; fewer branches (`std::max` is one instruction, an `if` may be mispredicted 64 times a
# row). Which of them helps is what lab 11 is about: measure in turns, and believe no single number.

# %%
# %progress 14

# %% [markdown] tags=["teacher"]
# **For teachers.** 8, 15, 4 and 18 minutes. Common mistakes: indices are forgotten in part 1 (`topk` writes them,
# too, eight bytes each); in part 2 `x == x.amax(...)` masks both of two equal scores; in part 4 the second largest is
# kept without `min(a, v)`, which loses a largest score that becomes the second one. Grade with
# `grade`, rank with `rank`, on an idle machine; a ranking compares shares within a few hundredths of each other
# as the same.
