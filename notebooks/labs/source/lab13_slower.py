# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 13: Where compiled code is slower, and why
#
# Compiling is not free, calling compiled code is not free, and some work has nothing to fuse. This
# lab finds the places where eager wins. About 40 minutes; no GPU is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 13

# %% [markdown]
# ## 1. When compiling pays
#
# Compiling costs once, and saves something with every call, or does not.

# %% tags=["solution"]
# %%task lab13.pays
import math

def calls_until_it_pays(compiling, eager, compiled):
    """Return after how many calls compiling has paid off, -1 if it never does."""
    if compiled >= eager:
        return -1
    return math.ceil(compiling / (eager - compiled) - 1e-9)

# %% [markdown]
# Put in what this machine says:

# %%
import time

import fusec

def chain(x):
    return torch.relu(x * 2 + 1).sqrt()

x = torch.rand(1_000_000)
compiled = fusec.compile(chain)
began = time.perf_counter()
compiled(x)
compiling = time.perf_counter() - began

def seconds(function, calls=20):
    times = []
    for _ in range(5):  # the best of five: whatever else runs here only makes it slower
        began = time.perf_counter()
        for _ in range(calls):
            function(x)
        times.append((time.perf_counter() - began) / calls)
    return min(times)

eager, fused = seconds(chain), seconds(compiled)
print(f"compiling {compiling:.2f} s; {eager * 1e6:.0f} and {fused * 1e6:.0f} µs a call")
print("calls until it pays:", calls_until_it_pays(compiling, eager, fused))

# %% [markdown]
# ## 2. What a call costs
#
# For tensors of a hundred numbers, the arithmetic takes no time. What counts is starting things: an
# operator in eager takes a microsecond or so, a compiled call has its guards to check.

# %% tags=["solution"]
# %%task lab13.overhead
def saved(kernels, operators, launch, call):
    """Return the microseconds that fusing saves a call, where tensors are tiny."""
    return (operators - kernels) * launch - call

# %% [markdown]
# With one operator there is nothing to fuse, and which of the two is quicker is decided by what
# starting an operator and calling compiled code cost: either takes a few microseconds. Compilers whose
# guards are checked in Python take tens of them. (Here a small C++ part checks them, which is built
# once, while you work; `await_types` waits for it.)

# %%
from fusec.call.native import await_types

built = await_types(20)
x = torch.rand(100)
one = fusec.compile(lambda x: x + 1)
one(x)
times = seconds(lambda x: x + 1, 2000), seconds(one, 2000)
print(f"eager {times[0] * 1e6:.2f} µs, compiled {times[1] * 1e6:.2f} µs")
if not built:
    print("The C++ part is not built yet, others have the machine: run this cell again in a minute.")

# %% [markdown]
# ## 3. softmax(x @ y) of 100 x 100
#
# Most of the time goes into the product, which is BLAS's in either case; what is left to fuse is a
# small softmax. Anything clumsy around it costs more than fusing saves. Mend this one: one call of
# BLAS, one kernel, no break.

# %% tags=["solution"]
# %%task lab13.scores
import torch

def scores(x, y):
    """Return the softmax of the rows of x @ y."""
    return torch.softmax(x @ y, -1)

# %% [markdown]
# What is left to win? Time both. Near 1, compiling has changed nothing; below, it has made it slower.

# %%
x, y = torch.rand(100, 100), torch.rand(100, 100)
both = fusec.compile(scores)
both(x, y)
ratio = seconds(lambda x: scores(x, y), 500) / seconds(lambda x: both(x, y), 500)
print(f"compiled is {ratio:.2f} times as fast as eager")

# %% [markdown]
# ## 4. How often it is compiled
#
# A compiled function checks its *guards*, and where they fail it is compiled again. Sizes are the
# usual reason. `fusec.predict_calls` says what would be compiled, without building anything:

# %%
def another(x):
    return torch.relu(x * 3 + 1)

fusec.predict_calls(another, [(torch.rand(n),) for n in (5, 6, 7)])

# %% tags=["solution"]
# %%task lab13.compiles
def compiles(sizes):
    """Return how often f(torch.randn(n)) is compiled if n runs through sizes."""
    known, symbolic, count = set(), False, 0
    for size in sizes:
        if size in known or (symbolic and size > 1):
            continue
        count += 1
        if known and size > 1:
            symbolic = True
        else:
            known.add(size)
    return count

# %% [markdown]
# On a GPU there is one cost more, starting kernels, and a way round it: CUDA graphs start all of
# them at once. `%%fuse --cuda-graphs` asks for it where there is a GPU.

# %%
# %progress 13

# %% [markdown] tags=["teacher"]
# **For teachers.** 10 minutes each. Common mistakes: `-1` is forgotten where both times are equal;
# in part 4 every new size is counted, or 1 is taken for an ordinary size. A sum in the guise of
# `-1e-9` in the solution of part 1 keeps rounding from adding a call.
