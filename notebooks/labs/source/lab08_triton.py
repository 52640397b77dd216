# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 8: Triton without a GPU: programs, masks, blocks
#
# A Triton kernel is Python that says what one *program* does. Many programs run at once, each with a
# number, and each works on *blocks*: arrays whose size is known when the kernel is compiled. This lab
# writes four kernels and reads what becomes of one. About 45 minutes. No GPU is needed: programs run
# one after the other in Triton's interpreter, and every load and store is looked at.
#
# Triton is installed with PyTorch on Linux. On macOS and Windows there is no Triton: there, part 5 alone
# works (it reads a text).

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 8

# %% [markdown]
# ## 1. Programs and masks
#
# In the kernel below, `tl.program_id(0)` is the program's number and `i` is a block of 16 numbers, its
# *lanes*. `x` is the address of the first element, so `x + i` are 16 addresses: `tl.load` reads them all,
# `tl.store` writes them all, and arithmetic on blocks works lane by lane. `scale` is what one calls:
# `scale_kernel[(7,)](...)` starts seven programs.
#
# Run it as it is: 103 elements take seven programs, and the last one has more lanes than elements. A GPU would
# not say so; it would read what lies there, and overwrite it. Give the load and the store a mask: a block of
# truth values, such as `i < n`, that says which lanes take part.

# %% tags=["solution"]
# %%task lab08.scale
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x, out, n, BLOCK: tl.constexpr):
    """Compute relu(2 * x + 1) for BLOCK elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.maximum(2 * v + 1, 0.0), mask=i < n)

def scale(x, out):
    """Start as many programs as it takes."""
    n = x.numel()
    scale_kernel[(triton.cdiv(n, 16),)](x, out, n, BLOCK=16)

# %% [markdown]
# `programs` shows who touches what. Nothing outside of a tensor is really touched here, so you may try
# out any mistake.

# %%
from fuselab.labs import programs

TRITON = find_spec("triton") is not None
x, out = torch.randn(40), torch.empty(40)
programs(scale, x, out) if TRITON else "there is no Triton here"

# %% [markdown]
# ## 2. A row a program
#
# The softmax of a row needs the whole row, so a program takes one. Blocks have a power of two of lanes;
# a row of 77 numbers takes 128, and 51 of them are masked. What a masked lane gets is *undefined* unless
# `other=` says what it is (here it is NaN, so that you see it). Load the row once, store it once.
#
# What you need: `tl.exp(v)` works lane by lane; `tl.max(v, 0)` and `tl.sum(v, 0)` make one number of a block.
# A softmax takes the row's largest number off first, so that no exponential overflows.

# %% tags=["solution"]
# %%task lab08.softmax
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    """Compute the softmax of one row: BLOCK is a power of two, and no less than columns."""
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + j, mask=j < columns, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * columns + j, e / tl.sum(e, 0), mask=j < columns)

def softmax(x, out):
    """Start a program a row."""
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))

# %% [markdown]
# ## 3. Blocks of two dimensions
#
# `i[:, None]` is a column, `j[None, :]` a row; together they are a block of all pairs. Write a transpose:
# read a block where it lies, write it where it belongs. Both directions have an edge.

# %% tags=["solution"]
# %%task lab08.transpose
import triton
import triton.language as tl

@triton.jit
def transpose_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    """Write a block of BLOCK x BLOCK elements of x to where it belongs in out."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (i[:, None] < rows) & (j[None, :] < columns)
    v = tl.load(x + i[:, None] * columns + j[None, :], mask=mask)
    tl.store(out + j[None, :] * rows + i[:, None], v, mask=mask)

def transpose(x, out):
    """Start a program a block."""
    rows, columns = x.shape
    grid = (triton.cdiv(rows, 16), triton.cdiv(columns, 16))
    transpose_kernel[grid](x, out, rows, columns, BLOCK=16)

# %%
x, out = torch.randn(20, 18), torch.empty(18, 20)
programs(transpose, x, out) if TRITON else "there is no Triton here"

# %% [markdown]
# ## 4. A loop over blocks
#
# A row may be longer than a block that a processor can hold. Then the program goes over it, block by
# block, with a block of sums that it adds up at the end. `tl.zeros([BLOCK], tl.float32)` is a block to begin
# with; a `for` over `range(...)` is a loop as in Python.

# %% tags=["solution"]
# %%task lab08.norms
import triton
import triton.language as tl

@triton.jit
def norms_kernel(x, out, columns, BLOCK: tl.constexpr):
    """Compute the sum of squares of a row that is longer than a block."""
    row = tl.program_id(0)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        j = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * columns + j, mask=j < columns, other=0.0)
        sums += v * v
    tl.store(out + row, tl.sum(sums, 0))

def norms(x, out):
    """Start a program a row."""
    rows, columns = x.shape
    norms_kernel[(rows,)](x, out, columns, BLOCK=32)

# %% [markdown]
# ## 5. What becomes of it
#
# Triton compiles a kernel to PTX, an assembler for a GPU that does not exist, and NVIDIA's assembler
# makes machine code (SASS) of that. Both can be done without a GPU. Beside each line of your first
# kernel, what became of it on an H100:

# %%
from fuselab.labs import machine_code
from fuselab.labs.content.ptx import EXAMPLE

x, out = torch.randn(1000), torch.empty(1000)
code = machine_code(scale, x, out) if TRITON else EXAMPLE
code if TRITON else print(code)

# %% [markdown]
# A load is `ld.global.b32`: 32 bits. `@%p1` before it is a predicate: the mask. `ld.global.v4.b32` would
# load four at once, `.v2` two; a store is `st.global`. Threads take most of the time waiting for loads,
# so one looks at these first. Write a function that does.

# %% tags=["solution"]
# %%task lab08.loads
import re

def loads(text):
    """Return [instructions, bytes, masked] of the loads from global memory in a PTX text."""
    count, moved, masked = 0, 0, False
    for line in text.splitlines():
        found = re.search(r"ld\.global(\S*)", line)
        if not found:
            continue
        lanes = re.search(r"\.v(\d)", found[1])
        bits = re.search(r"\.[bfus](\d+)$", found[1])
        count += 1
        moved += int(bits[1]) // 8 * (int(lanes[1]) if lanes else 1)
        masked = masked or line.strip().startswith("@")
    return [count, moved, masked]

# %%
print(loads(code.ptx if TRITON else EXAMPLE))

# %% [markdown]
# In the machine code, look for `LDG` (load from global memory), `STG` (store), `FFMA` (multiply and add in
# one) and `ISETP` (compare, for the mask). What did the assembler turn `2 * v + 1` into?

# %%
# %progress 8

# %% [markdown] tags=["teacher"]
# **For teachers.** 8, 10, 10, 7 and 10 minutes. Common mistakes: a mask on the load and none on the store;
# `other=0.0` in the softmax, which makes the maximum 0 and adds terms to the sum; the transpose's masks
# are swapped (a square matrix does not show it); the last block of the loop is added without a mask. On a
# GPU, where there is one, the same answers are compiled and run there as well, and part 2 has to reach 15 % of
# the speed of a copy.
