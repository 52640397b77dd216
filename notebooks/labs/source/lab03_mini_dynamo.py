# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 3: A mini TorchDynamo: bytecode, guards, breaks, continuations
#
# `torch.compile` gets its graphs from a strange place: Python is about to run a function, and
# TorchDynamo takes the *bytecode* away from it, runs that itself with tensors that have no values, and
# hands back other bytecode. In this lab you write one, of less than 150 lines, that compiles real
# Python functions. About 45 minutes; neither a GPU nor a C++ compiler is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import dis

import torch

# %%
# %progress 3

# %% [markdown]
# ## Bytecode
#
# Python is compiled too, for a machine with a stack. See what a line becomes:

# %%
def line(x, n):
    return x * n + 1

dis.dis(line)

# %% [markdown]
# Each version of Python has its own instructions, some two hundred. We need nine. This function writes
# real bytecode as those nine (TorchDynamo has such a layer as well):

# %%
import inspect

from fuselab.labs.mini import simple

print(inspect.getsource(simple))

# %%
for number, each in enumerate(simple(line)):
    print(number, *each)

# %% [markdown]
# ## 1. Evaluating a frame
#
# Be Python: run such code. A *frame* is what Python has of a running function: its variables, its
# stack, and where it is. Tensors are plain numbers for now.

# %% tags=["solution"]
# %%task lab03.frame
import math
import operator

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">": operator.gt}
FUNCTIONS = {"relu": lambda v: max(v, 0.0), "sin": math.sin, "abs": abs}


def run(code, given):
    """Return (result, shown): what code returns for the given variables, and what it shows."""
    variables, stack, shown, position = dict(given), [], [], 0
    while True:
        op, argument = code[position]
        position += 1
        if op == "load":
            stack.append(variables[argument])
        elif op == "const":
            stack.append(argument)
        elif op == "store":
            variables[argument] = stack.pop()
        elif op == "pop":
            stack.pop()
        elif op == "binary":
            right = stack.pop()
            stack.append(SIGNS[argument](stack.pop(), right))
        elif op == "call" and argument == "show":
            shown.append(stack[-1])
        elif op == "call":
            stack.append(FUNCTIONS[argument](stack.pop()))
        elif op == "jump":
            position = argument
        elif op == "jump_if_false":
            if not stack.pop():
                position = argument
        else:
            return stack.pop(), shown

# %% [markdown]
# Does it do what Python does?

# %%
def powers(x, n):
    total = x
    while n > 0:
        total = total * x + n
        n = n - 1
    return total

print(powers(1.5, 3), run(simple(powers), {"x": 1.5, "n": 3}))

# %% [markdown]
# ## 2. Capture
#
# Now run the same code *without values*: where a tensor would be, put its name, and where something
# is computed from tensors, write down that it would be. Numbers are still numbers. What comes out is
# the graph: a function's operators with all Python gone. Loops are gone as well: they were run.
#
# The price: the graph is right for these numbers only. So write down what was relied on.

# %% tags=["solution"]
# %%task lab03.capture
import math
import operator

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">": operator.gt}
FUNCTIONS = {"relu": lambda v: max(v, 0.0), "sin": math.sin, "abs": abs}


def capture(code, given):
    """Return {"graph": ..., "guards": ..., "result": ...} of code that does not show anything."""
    graph, guards, stored, stack, position = [], [], {}, [], 0

    def apply(op, function, *values):
        if not any(isinstance(v, str) for v in values):
            return function(*values)
        graph.append([f"%{len(graph)}", op, list(values)])
        return graph[-1][0]

    while True:
        op, argument = code[position]
        position += 1
        if op == "load" and argument in stored:
            stack.append(stored[argument])
        elif op == "load":
            if [argument, given[argument]] not in guards:
                guards.append([argument, given[argument]])
            stack.append(argument if given[argument] == "tensor" else given[argument])
        elif op == "const":
            stack.append(argument)
        elif op == "store":
            stored[argument] = stack.pop()
        elif op == "pop":
            stack.pop()
        elif op == "binary":
            right = stack.pop()
            stack.append(apply(argument, SIGNS[argument], stack.pop(), right))
        elif op == "call":
            stack.append(apply(argument, FUNCTIONS[argument], stack.pop()))
        elif op == "jump":
            position = argument
        elif op == "jump_if_false":
            if not stack.pop():
                position = argument
        else:
            return {"graph": graph, "guards": guards, "result": stack.pop()}

# %%
said = capture(simple(powers), {"x": "tensor", "n": 3}) or {}
for key, found in said.items():
    print(key, found)

# %% [markdown]
# ## 3. Guards
#
# A function has several graphs after a while, each with its guards. At every call somebody has to
# find the one that may be used. It has to be quick, and it has to be strict: one guard too few is a
# wrong result that nobody notices.

# %% tags=["solution"]
# %%task lab03.guards
def find(entries, facts):
    """Return the position of the first entry whose guards all hold, -1 if there is none."""
    for number, guards in enumerate(entries):
        if all(type(facts[n]) is type(v) and facts[n] == v for n, v in guards):
            return number
    return -1

# %% [markdown]
# ## 4. Graph breaks
#
# `show(x)` needs the value, and so does `if x > 0`. A tracer that runs the function once and writes
# down what happens (as `torch.jit.trace` does) would leave the one out and take one side of the
# other: silently wrong. TorchDynamo stops *in front of* such an instruction and gives the graph so
# far, together with all that Python needs to go on: where, and with what on the stack and in which
# variables.

# %% tags=["solution"]
# %%task lab03.breaks
import math
import operator

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">": operator.gt}
FUNCTIONS = {"relu": lambda v: max(v, 0.0), "sin": math.sin, "abs": abs}


def capture(code, given):
    """Return {"graph", "guards", "stop", "stack", "stored"}, as far as code can be captured."""
    graph, guards, stored, stack, position = [], [], {}, [], 0

    def apply(op, function, *values):
        if not any(isinstance(v, str) for v in values):
            return function(*values)
        graph.append([f"%{len(graph)}", op, list(values)])
        return graph[-1][0]

    def state(stop):
        return {"graph": graph, "guards": guards, "stop": stop, "stack": stack, "stored": stored}

    while True:
        op, argument = code[position]
        if op == "call" and argument == "show":
            return state(position)
        if op == "jump_if_false" and isinstance(stack[-1], str):
            return state(position)
        position += 1
        if op == "load" and argument in stored:
            stack.append(stored[argument])
        elif op == "load":
            if [argument, given[argument]] not in guards:
                guards.append([argument, given[argument]])
            stack.append(argument if given[argument] == "tensor" else given[argument])
        elif op == "const":
            stack.append(argument)
        elif op == "store":
            stored[argument] = stack.pop()
        elif op == "pop":
            stack.pop()
        elif op == "binary":
            right = stack.pop()
            stack.append(apply(argument, SIGNS[argument], stack.pop(), right))
        elif op == "call":
            stack.append(apply(argument, FUNCTIONS[argument], stack.pop()))
        elif op == "jump":
            position = argument
        elif op == "jump_if_false":
            if not stack.pop():
                position = argument
        else:
            return state(None)

# %% [markdown]
# ## 5. The continuation
#
# After the break Python does the one instruction itself, and then? The rest of the function is code
# as well, so it can be captured like any other, if it is made a function: one that is given what was
# on the stack, and jumps to the middle.

# %% tags=["solution"]
# %%task lab03.continuation
def continuation(code, position, depth):
    """Return code that does what is left of code from a position on."""
    moved = depth + 1
    rest = [["load", f"stack{n}"] for n in range(depth)] + [["jump", position + moved]]
    for op, argument in code:
        rest.append([op, argument + moved if op in ("jump", "jump_if_false") else argument])
    return rest

# %% [markdown]
# ## All of it
#
# With your five functions, this is a compiler of real Python functions. It runs graphs operator by
# operator; a real one would generate a kernel here, and in lab 7 it will.

# %%
import operator

OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">": operator.gt,
    "relu": torch.relu, "sin": torch.sin, "abs": torch.abs,
}
CACHE = {}

def show(v):
    print("   shown:", v.tolist())
    return v

def enter(code, given):
    """Run code with real tensors, by graphs."""
    facts = {n: "tensor" if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    known = CACHE.setdefault(repr(code), [])
    number = find([each["guards"] for each in known], facts)
    if number < 0:
        number = len(known)
        known.append(capture(code, facts))
        print("   compiled a graph of", len(known[-1]["graph"]), "operators; guards:", known[-1]["guards"])
    graph = known[number]
    values = dict(given)
    value = lambda v: values[v] if isinstance(v, str) else v
    for name, op, arguments in graph["graph"]:
        values[name] = OPERATORS[op](*map(value, arguments))
    stack = [value(v) for v in graph["stack"]]
    if graph["stop"] is None:
        return stack[-1]
    variables = {**given, **{name: value(v) for name, v in graph["stored"].items()}}
    op, argument = code[graph["stop"]]
    position = graph["stop"] + 1
    if op == "call":
        stack.append(show(stack.pop()))
    elif not stack.pop():
        position = argument
    variables |= {f"stack{n}": v for n, v in enumerate(stack)}
    return enter(continuation(code, position, len(stack)), variables)

def mini_compile(function):
    code = simple(function)
    names = function.__code__.co_varnames
    return lambda *args: enter(code, dict(zip(names, args)))

# %%
relu, sin = torch.relu, torch.sin

def function(x, n):
    y = relu(x)
    while n > 0:
        y = y * 2 + n
        n = n - 1
    y = x - show(sin(y))
    if y > 0:
        return y * 10
    return y - 1

from fuselab.labs import points

compiled = mini_compile(function)
if all(points(f"lab03.{part}") for part in ("guards", "breaks", "continuation")):
    for x, n in ((1.0, 3), (1.5, 3), (-1.0, 3), (1.0, 2)):
        print(f"x = {x}, n = {n}")
        result = compiled(torch.tensor(x), n)
        print(f"   gives {result.item():.4f}; now Python itself:")
        assert result == function(torch.tensor(x), n)
else:
    print("Run this cell when parts 3, 4 and 5 have passed.")

# %% [markdown]
# Which calls compiled something, and why? And what does the real TorchDynamo do with it? (`print` in
# place of `show`; what is behind the `if` becomes two continuations, and each is compiled when it is
# first reached.)

# %%
import fusec

def real(x, n):
    y = torch.relu(x)
    while n > 0:
        y = y * 2 + n
        n = n - 1
    y = x - torch.sin(y)
    print("shown", y.shape)
    if y.sum() > 0:
        return y * 10
    return y - 1

fusec.predict(real, torch.tensor([1.0, 2.0]), 3)

# %%
# %progress 3

# %% [markdown] tags=["teacher"]
# **For teachers.** 10, 12, 3, 10 and 7 minutes. Common mistakes: left and right of `-` are swapped;
# variables that the code stored get guards; `1`, `1.0` and `True` are taken for equal; capture stops
# behind the instruction, or has taken its operand off the stack; the continuation leaves out what
# stands before the position, to which a loop jumps back.
