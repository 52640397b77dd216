# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 5: A loop-level IR, define by run
#
# A graph says `relu(x + y)`; a kernel says `for i0: for i1: out[...] = ...`. In between, compilers have
# a representation that says *what one element is*, and leaves the loops open. In TorchInductor it is a
# Python function of the index: to see what it computes, *call* it, with names in place of numbers.
# Fusion then needs no code at all: one function calls the other. About 45 minutes; no GPU is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab

# %%
# %progress 5

# %% [markdown]
# ## 1. An interpreter
#
# First what comes out of such a function, so that you can try all that follows: a value, as nested
# lists. This is `relu(x + y)` where `y` has one dimension:

# %%
value = ["relu", ["add", ["load", "x", ["i0", "i1"]], ["load", "y", ["i1"]]]]

# %% tags=["solution"]
# %%task lab05.interpret
import itertools


def place_of(index, variables):
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return variables[index]
    sign, a, b = index[0], place_of(index[1], variables), place_of(index[2], variables)
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def value_of(value, variables, data):
    if not isinstance(value, list):
        return value
    op = value[0]
    if op == "load":
        found = data[value[1]]
        for index in value[2]:
            found = found[place_of(index, variables)]
        return found
    if op == "sum":
        _, name, size, body = value
        return sum(value_of(body, {**variables, name: n}, data) for n in range(size))
    values = [value_of(each, variables, data) for each in value[1:]]
    if op == "relu":
        return max(values[0], 0)
    a, b = values
    return a + b if op == "add" else a - b if op == "sub" else a * b


def interpret(value, shape, data):
    """Return the list of all elements of a tensor of that shape, the last dimension fastest."""
    found = []
    for places in itertools.product(*(range(size) for size in shape)):
        variables = {f"i{n}": place for n, place in enumerate(places)}
        found.append(value_of(value, variables, data))
    return found

# %%
print(interpret(value, [2, 2], {"x": [[1, 2], [3, 4]], "y": [-2, 10]}))

# %% [markdown]
# ## 2. Lowering pointwise operators
#
# Of each tensor keep its shape and a function from indices to a value. An operator's function calls
# those of its inputs; nothing is stored in between, so everything is fused. Of `relu(x)` by hand:

# %%
shape, x_at = [2, 3], lambda index: ["load", "x", index]
relu_at = lambda index: ["relu", x_at(index)]  # of the same shape
print(relu_at(["i0", "i1"]))

# %% [markdown]
# `lower` does that for a whole program, step by step, and calls the last step's function at the end. The only
# thing to think about is broadcasting: where an input has size 1, its index is 0, whatever the result's index is.

# %% tags=["solution"]
# %%task lab05.pointwise
def load(name, shape):
    return shape, lambda index: ["load", name, index]


def pointwise(op, inputs):
    rank = max(len(shape) for shape, _ in inputs)
    shape = [1] * rank
    for mine, _ in inputs:
        for n, size in enumerate(mine, rank - len(mine)):
            shape[n] = size if shape[n] == 1 else shape[n]

    def at(mine, inner, index):
        last = index[rank - len(mine):]
        return inner([0 if size == 1 else i for size, i in zip(mine, last)])

    return shape, lambda index: [op] + [at(mine, inner, index) for mine, inner in inputs]


def lower(program):
    """Return (shape, value): of the last step's result, with its element at i0, i1, ..."""
    known = {name: load(name, shape) for name, shape in program["inputs"].items()}
    for name, op, inputs, argument in program["steps"]:
        known[name] = pointwise(op, [known[each] for each in inputs])
    shape, inner = known[name]
    return shape, inner([f"i{n}" for n in range(len(shape))])

# %%
program = {
    "inputs": {"x": [2, 3], "y": [3], "z": [2, 1]},
    "steps": [["t0", "add", ["x", "y"], None], ["t1", "mul", ["t0", "z"], None], ["t2", "relu", ["t1"], None]],
}
print(lower(program))

# %% [markdown]
# ## 3. Views are indices
#
# `x.T`, `x.flip(0)`, `x[1::2]`: none of them computes anything. In eager a view is cheap since it shares
# the memory (but `flip` copies); here all of them are free, for a view only *changes the question*. (An answer
# stands alone: take along from part 2 what it needs.)

# %% tags=["solution"]
# %%task lab05.views
def load(name, shape):
    return shape, lambda index: ["load", name, index]


def pointwise(op, inputs):
    rank = max(len(shape) for shape, _ in inputs)
    shape = [1] * rank
    for mine, _ in inputs:
        for n, size in enumerate(mine, rank - len(mine)):
            shape[n] = size if shape[n] == 1 else shape[n]

    def at(mine, inner, index):
        last = index[rank - len(mine):]
        return inner([0 if size == 1 else i for size, i in zip(mine, last)])

    return shape, lambda index: [op] + [at(mine, inner, index) for mine, inner in inputs]


def permute(shape, inner, dims):
    back = [dims.index(n) for n in range(len(dims))]
    return [shape[d] for d in dims], lambda index: inner([index[n] for n in back])


def flip(shape, inner, dim):
    last = shape[dim] - 1
    return shape, lambda index: inner(index[:dim] + [["-", last, index[dim]]] + index[dim + 1:])


def slice_of(shape, inner, argument):
    dim, start, step = argument
    size = len(range(start, shape[dim], step))

    def at(index):
        return inner(index[:dim] + [["+", start, ["*", step, index[dim]]]] + index[dim + 1:])

    return shape[:dim] + [size] + shape[dim + 1:], at


def lower(program):
    """Return (shape, value), as in part 2, of programs that have views as well."""
    others = {"permute": permute, "flip": flip, "slice": slice_of}
    known = {name: load(name, shape) for name, shape in program["inputs"].items()}
    for name, op, inputs, argument in program["steps"]:
        if op in others:
            known[name] = others[op](*known[inputs[0]], argument)
        else:
            known[name] = pointwise(op, [known[each] for each in inputs])
    shape, inner = known[name]
    return shape, inner([f"i{n}" for n in range(len(shape))])

# %%
program = {
    "inputs": {"x": [4, 6]},
    "steps": [["t0", "permute", ["x"], [1, 0]], ["t1", "flip", ["t0"], 0], ["t2", "slice", ["t1"], [0, 1, 2]]],
}
print(lower(program))

# %% [markdown]
# Simplify the index by hand: which elements of `x` are read?
#
# ## 4. Reductions
#
# A sum is a loop within an element. It takes an index that the result does not have: `["sum", "r0", 3, value]`
# adds up the value for `r0` = 0, 1 and 2.

# %% tags=["solution"]
# %%task lab05.sums
import itertools


def load(name, shape):
    return shape, lambda index: ["load", name, index]


def pointwise(op, inputs):
    rank = max(len(shape) for shape, _ in inputs)
    shape = [1] * rank
    for mine, _ in inputs:
        for n, size in enumerate(mine, rank - len(mine)):
            shape[n] = size if shape[n] == 1 else shape[n]

    def at(mine, inner, index):
        last = index[rank - len(mine):]
        return inner([0 if size == 1 else i for size, i in zip(mine, last)])

    return shape, lambda index: [op] + [at(mine, inner, index) for mine, inner in inputs]


def permute(shape, inner, dims):
    back = [dims.index(n) for n in range(len(dims))]
    return [shape[d] for d in dims], lambda index: inner([index[n] for n in back])


def flip(shape, inner, dim):
    last = shape[dim] - 1
    return shape, lambda index: inner(index[:dim] + [["-", last, index[dim]]] + index[dim + 1:])


def slice_of(shape, inner, argument):
    dim, start, step = argument
    size = len(range(start, shape[dim], step))

    def at(index):
        return inner(index[:dim] + [["+", start, ["*", step, index[dim]]]] + index[dim + 1:])

    return shape[:dim] + [size] + shape[dim + 1:], at


SUMS = itertools.count()


def sum_of(shape, inner, dim):
    def at(index):
        name = f"r{next(SUMS)}"
        return ["sum", name, shape[dim], inner(index[:dim] + [name] + index[dim:])]

    return shape[:dim] + shape[dim + 1:], at


def lower(program):
    """Return (shape, value), as in part 3, of programs that have sums as well."""
    others = {"permute": permute, "flip": flip, "slice": slice_of, "sum": sum_of}
    known = {name: load(name, shape) for name, shape in program["inputs"].items()}
    for name, op, inputs, argument in program["steps"]:
        if op in others:
            known[name] = others[op](*known[inputs[0]], argument)
        else:
            known[name] = pointwise(op, [known[each] for each in inputs])
    shape, inner = known[name]
    return shape, inner([f"i{n}" for n in range(len(shape))])

# %% [markdown]
# Now fusing everything shows its price. What is computed for one element of `x - x.sum()`?

# %%
program = {
    "inputs": {"x": [1000]},
    "steps": [["t0", "sum", ["x"], 0], ["t1", "sub", ["x", "t0"], None]],
}
print(lower(program))

# %% [markdown]
# The whole sum, a thousand times over: a million operations in place of two thousand. So a compiler
# must decide which values are *realized*, that is, stored. Sums are, in general; so is what many read.
#
# ## 5. The text
#
# The last step writes the body of the loop. Memory has one dimension, so the indices become one.

# %% tags=["solution"]
# %%task lab05.text
def index_text(index):
    if not isinstance(index, list):
        return str(index)
    return f"({index_text(index[1])} {index[0]} {index_text(index[2])})"


def text(value, shapes):
    """Return a value without sums as an expression in C: "relu(x[i0 * 3 + i1] - y[i1])"."""
    if not isinstance(value, list):
        return str(value)
    op = value[0]
    if op == "load":
        _, name, indices = value
        place = "0"
        for size, index in zip(shapes[name], indices):
            place = f"({place} * {size} + {index_text(index)})"
        return f"{name}[{place}]"
    if op == "relu":
        return f"relu({text(value[1], shapes)})"
    sign = {"add": "+", "sub": "-", "mul": "*"}[op]
    return f"({text(value[1], shapes)} {sign} {text(value[2], shapes)})"

# %% [markdown]
# Beside it, what Fuselab writes for the same thing: names for what is used twice, indices simplified,
# and the loops, which are decided last. (`--target plain` writes loops to be read, with no vectors and
# no threads; they may well be slower than eager. Lab 7 makes such loops fast.)

# %%
import torch

print(text(value, {"x": [2000, 300], "y": [300]}))
x, y = torch.randn(2000, 300), torch.randn(300)

# %%
# %%fuse --target plain --no-check --name mine --out r
r = torch.relu(x + y)

# %% [markdown]
# And its own loop-level IR on the way there, before anything is fused:

# %%
# %fuse_report --stage before

# %%
# %progress 5

# %% [markdown] tags=["teacher"]
# **For teachers.** 10, 12, 10, 5 and 8 minutes. Common mistakes: shapes are lined up at the front; the
# index of a size of 1 is not 0; a function made in a loop sees the loop's last values; `permute` goes
# the wrong way round, which a matrix does not show; two sums share a variable.
