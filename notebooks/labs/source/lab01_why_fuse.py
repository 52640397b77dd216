# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 1: Why fuse
#
# A processor adds two numbers in a fraction of a nanosecond. Fetching them from memory takes a
# hundred times as long. This lab counts what tensor code *moves*, predicts from that how long it
# takes, and then measures. About 35 minutes; no GPU is needed.
#
# You will say first what you expect, and only then look. Being wrong is fine: the surprise is what
# one remembers.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 1

# %% [markdown]
# ## 1. A chain of operators
#
# `torch.relu(x * 2 + 1)` is three operators. PyTorch runs them one after the other ("eager"): each
# reads its whole input from memory and writes its whole result there. For ten million `float32`
# numbers, that is three times 80 MB. One loop could read a number, do all three things with it while
# it is in a register, and write it: 80 MB in all. Such a loop, compiled, is a *kernel*; making one kernel of
# several operators is called *fusing* them.
#
# What will `%%fuse`, which compiles a cell, make of it? Say so, then run the cell: after `%%predict` stands
# your guess, how many kernels there will be and what they read and write. `%%predict` builds nothing and
# runs nothing: it shows your guess beside what will be.

# %%
x = torch.randn(1_000_000)

# %%
# %%predict --kernels 3 --reads 12MB --writes 12MB
y = torch.relu(x * 2 + 1)

# %% [markdown]
# The guess in the cell is what *eager* does. Change it until everything is right, then write the
# rule down as a function. `...` is where your code goes; `%hint` gives the next of three hints.

# %% tags=["solution"]
# %%task lab01.bytes
def bytes_moved(n, operators):
    """Return (bytes in eager, bytes in one kernel) of a chain of pointwise operators."""
    return operators * 2 * 4 * n, 2 * 4 * n

# %% [markdown]
# ## 2. A softmax
#
# Some operators have smaller results than inputs. A softmax over the rows of a matrix, written out:
#
# ```python
# largest = x.amax(-1, keepdim=True)      # one number a row
# shifted = x - largest
# e = shifted.exp()
# total = e.sum(-1, keepdim=True)         # one number a row
# result = e / total
# ```
#
# Count what each of the five reads and writes. In one kernel, every number of `x` is read from
# memory once (a row stays in the cache while it is looked at again), and every result is written once.

# %% tags=["solution"]
# %%task lab01.softmax
def softmax_bytes(rows, columns):
    """Return (bytes in eager, bytes in one kernel) of a softmax in five operators."""
    n = rows * columns
    largest = n + rows
    shifted = n + rows + n
    e = n + n
    total = n + rows
    result = n + rows + n
    return 4 * (largest + shifted + e + total + result), 4 * 2 * n

# %% [markdown]
# Now measure. `%%fuse` compiles the five operators, and times them one by one ("eager") beside that
# (`--no-check` leaves out comparing the two results, which is done otherwise).
# The *ratio of times* should be the *ratio of bytes* at least, as long as the tensors fit in no cache.
# It can be more: eager also asks the system for new memory for each of its results.

# %%
x = torch.randn(2000, 2000)

# %%
# %%fuse --no-check
largest = x.amax(-1, keepdim=True)
shifted = x - largest
e = shifted.exp()
total = e.sum(-1, keepdim=True)
result = e / total

# %% [markdown]
# Look at what was written: `%%fuse` lets every name of the cell land in the notebook, so `shifted`
# and `e` had to be written too. With `--out result` they never leave the registers:

# %%
# %%predict --kernels 1 --reads 16MB --writes 16MB --out result
largest = x.amax(-1, keepdim=True)
shifted = x - largest
e = shifted.exp()
total = e.sum(-1, keepdim=True)
result = e / total

# %% [markdown]
# ## 3. One kernel
#
# A compiler has to know what a function does before it runs. Where Python asks for a number out of a
# tensor, the graph of operators that it has seen so far ends, and Python goes on: a *graph break*. What stands
# before it and what stands after it share no kernel.
#
# The function below is right, and becomes more than one kernel. Run it as it is; then type
# `%predict normalize(x)` into a cell of its own, which says why. Mend it: one kernel, no graph break, every
# number read once and written once. Computing it with the operator that does just this would be no fun, and
# is not allowed.

# %% tags=["solution"]
# %%task lab01.normalize
import torch

def normalize(x):
    """Return x with each row's mean taken off, divided by its standard deviation."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)

# %% [markdown]
# ## 4. The roofline
#
# Bytes are not everything: a product of two large matrices does a thousand operations with every
# number that it reads. A kernel takes at least the time of its bytes, and at least the time of its
# operations; whichever is longer holds it up. Drawn over operations a byte, that is the *roofline*.

# %% tags=["solution"]
# %%task lab01.roofline
def roofline(moved, operations, bandwidth, speed):
    """Return (seconds at best, "memory" or "compute": what holds it up)."""
    memory, compute = moved / bandwidth, operations / speed
    return max(memory, compute), "memory" if memory >= compute else "compute"

# %% [markdown]
# How fast is *this* machine? `fusec.timing.limits` has measured a copy and a product of matrices:

# %%
from fusec.timing.limits import machine

here = machine()
print(f"{here.memory / 1e9:.1f} GB/s, {here.operations / 1e9:.0f} billion operations a second")
print(f"memory holds up what does less than {here.operations / here.memory:.0f} operations a byte")

# %% [markdown]
# Almost everything in a neural network that is no matrix product or convolution does fewer. That is
# why one fuses.

# %%
# %progress 1

# %% [markdown] tags=["teacher"]
# **For teachers.** 10 minutes each for parts 1 and 2, 10 for part 3, 5 for part 4. Common mistakes:
# bytes read are counted and bytes written are not; `rows` is forgotten in `softmax_bytes` (it hardly
# matters for long rows, which is worth saying); in part 3 the `if` is replaced by `torch.where`,
# which works and is not needed.
