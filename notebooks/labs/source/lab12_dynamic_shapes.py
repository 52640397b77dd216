# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 12: Dynamic shapes: guards, symbols, recompiles
#
# Compiled code is made for what was seen: types, sizes, Python numbers. *Guards* check that a call is
# like it; if not, the function is compiled again, this time perhaps with a *symbol* in place of a
# size. This lab writes the pieces. About 35 minutes; neither a GPU nor a C++ compiler is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

import fusec

# %%
# %progress 12

# %% [markdown]
# ## 1. Checking guards
#
# What does compiled code rely on? Read the last part of this, "used again as long as":

# %%
def scale(x, factor):
    return x * factor + 1

fusec.predict(scale, torch.rand(3, 4), 2.0)

# %% [markdown]
# Write the check. Which guard fails first matters: it is the reason that is shown for a recompile.

# %% tags=["solution"]
# %%task lab12.guards
def first_failing(guards, facts):
    """Return the position of the first guard that does not hold, -1 if all do."""
    for number, (name, test, value) in enumerate(guards):
        found = facts[name]
        if test == "==":
            holds = found == value
        elif test == "!=":
            holds = found != value
        elif test == ">=":
            holds = found >= value
        else:
            holds = found <= value
        if not holds:
            return number
    return -1

# %% [markdown]
# ## 2. Broadcasting with symbols
#
# `x + y` of sizes `s0` and `1` is easy: `s0`, for a symbol stands for sizes from 2 on (that is why
# compilers make code of their own for 1). But what of `s0` and `s1`? They must be equal for the
# addition to make sense, so a guard says that they are, and from then on they are one.

# %% tags=["solution"]
# %%task lab12.broadcast
def broadcast(a, b):
    """Return (shape, guards) of two tensors of shapes a and b together."""
    rank = max(len(a), len(b))
    a = [1] * (rank - len(a)) + list(a)
    b = [1] * (rank - len(b)) + list(b)
    shape, guards = [], []
    for x, y in zip(a, b):
        if x == 1 or y == 1:
            shape.append(y if x == 1 else x)
            continue
        if x == y:
            shape.append(x)
            continue
        if isinstance(x, str) and isinstance(y, str):
            guard, size = sorted([x, y]), min(x, y)
        elif isinstance(x, str):
            guard, size = [x, y], y
        else:
            guard, size = [y, x], x
        if guard not in guards:
            guards.append(guard)
        shape.append(size)
    return shape, guards

# %% [markdown]
# See the compiler do it. The second call changes a size, the third changes another. That makes three
# versions of the function, each with guards of its own:

# %%
def add(x, y):
    return (x + y).relu()

calls = [
    (torch.rand(4, 6), torch.rand(4, 6)),
    (torch.rand(5, 6), torch.rand(5, 6)),
    (torch.rand(5, 7), torch.rand(1, 7)),
]
said = fusec.predict_calls(add, calls)
said

# %% [markdown]
# ## 3. Strides with symbols
#
# A kernel for symbolic sizes has to compute addresses with them: the stride of a dimension is the
# product of the sizes behind it. Constants are multiplied out when compiling, symbols when running.

# %% tags=["solution"]
# %%task lab12.strides
def strides(shape):
    """Return the strides of a contiguous tensor: of each dimension (number, sorted symbols)."""
    found, number, symbols = [], 1, []
    for size in reversed(shape):
        found.append((number, sorted(symbols)))
        if isinstance(size, str):
            symbols.append(size)
        else:
            number *= size
    return found[::-1]

# %% [markdown]
# That is one cost of symbols; another is that loops of unknown length are harder to unroll. What one
# gets for it is one kernel for all sizes. `%%fuse --dynamic` asks for symbols at once:

# %%
m = torch.rand(30, 50)

# %%
# %%predict --kernels 1 --dynamic
r = (m * 2 + 1).sum(-1)

# %%
# %progress 12

# %% [markdown] tags=["teacher"]
# **For teachers.** 8, 15 and 7 minutes. Common mistakes: shapes are lined up at the front in place of
# the end; `1` against a symbol gets a guard; a guard stands twice; a dimension's own size is multiplied
# into its stride.
