# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 9: Reductions: in one pass, in pieces
#
# A sum is easy: in any order, in any pieces. A softmax needs the largest value before the first
# exponential; a variance needs the mean before the first distance. Read the row twice? Memory is what
# takes the time. This lab does both in one pass, then in pieces for many cores, and chooses a plan.
# About 40 minutes; no GPU is needed, and a C++ compiler for the last task only.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 9

# %% [markdown]
# ## 1. A softmax in one pass
#
# Keep a *state* while reading: the largest value so far, and the sum of `exp(v - largest)` so far.
# A larger value changes what all earlier terms were measured from, but one factor mends them all.
# (Without taking off the largest value, `exp(1000)` would be infinite.)

# %% tags=["solution"]
# %%task lab09.online
import math

def update(state, value):
    """Return the state with one more value: (largest, sum of exp(v - largest))."""
    largest, total = state
    new = max(largest, value)
    return new, total * math.exp(largest - new) + math.exp(value - new)

# %% [markdown]
# ## 2. A softmax in pieces
#
# If several cores read a piece of the row each, somebody has to put their states together. This is
# the heart of flash attention, too: there the pieces are blocks of keys.

# %% tags=["solution"]
# %%task lab09.merge
import math

def merge(one, other):
    """Return the state of two pieces together, each (largest, sum of exp(v - largest))."""
    new = max(one[0], other[0])
    return new, one[1] * math.exp(one[0] - new) + other[1] * math.exp(other[0] - new)

# %% [markdown]
# ## 3. A variance in pieces
#
# The same for the mean and the squared distances from it (Welford; Chan, Golub and LeVeque).

# %% tags=["solution"]
# %%task lab09.welford
def merge_variance(one, other):
    """Return the state of both: (count, mean, sum of squared distances from the mean)."""
    count = one[0] + other[0]
    apart = other[1] - one[1]
    mean = one[1] + apart * other[0] / count
    return count, mean, one[2] + other[2] + apart * apart * one[0] * other[0] / count

# %% [markdown]
# ## 4. Which plan
#
# - **persistent**: a core reads a whole row, holds it, and looks at it as often as it likes;
# - **looped**: a row does not fit; a core goes over it in pieces, one after the other;
# - **split**: there are fewer rows than cores; several cores share a row, and their states are merged.
#
# Holding a row is best where it fits, however many rows there are.

# %% tags=["solution"]
# %%task lab09.plan
def plan(rows, columns, cores, held):
    """Return "persistent", "looped" or "split" for reductions over the rows of a matrix."""
    if columns <= held:
        return "persistent"
    return "looped" if rows >= cores else "split"

# %% [markdown]
# What does the compiler do? A softmax and a variance of rows, one kernel each:

# %%
x = torch.randn(300, 517)

# %%
# %%predict --kernels 1 --out y
y = torch.softmax(x, -1)

# %%
# %%fuse --target plain --no-check --out v
v = x.var(-1)

# %% [markdown]
# ## 5. A variance that is right
#
# "The mean of the squares less the square of the mean" needs one pass and no state of three numbers.
# It is in many textbooks, and it is wrong in floating point: for values near 1000, a million less a
# million is left with no digits at all. Try the start, read the verdict, and mend it.

# %% tags=["solution"]
# %%task lab09.variance
#include <cmath>
#include <cstdint>

extern "C" int variance(const float* x, float* out, int64_t rows, int64_t cols,
    int64_t threads)
{
    for (int64_t i = 0; i < rows; ++i) {
        const float near = x[i * cols];
        float sum = 0.0f, squares = 0.0f;
        for (int64_t j = 0; j < cols; ++j) {
            const float v = x[i * cols + j] - near;
            sum += v;
            squares += v * v;
        }
        const float mean = sum / cols;
        out[i] = squares / cols - mean * mean;
    }
    return 0;
}

# %%
# %progress 9

# %% [markdown] tags=["teacher"]
# **For teachers.** 8 minutes each. Common mistakes: the factor is put on the new term in place of the
# old sum; in part 3 the two sums of squares are added and that is all (right only if the means are
# equal); in part 4 rows are compared with cores first.
