# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 2: Capture: six ways to get a graph
#
# A compiler wants a *graph*: which operators, on what. What it gets is a Python function, in which
# anything may happen. PyTorch has had six ways from the one to the other in ten years. Each of them works
# on simple functions. What matters is what happens on the others: is it right, is it refused with an error,
# or is it *wrong without a word*? About 40 minutes; no GPU and no C++ compiler is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 2

# %% [markdown]
# ## 1. A tracer in twenty lines
#
# The simplest way: call the function with something that is no tensor but behaves like one, and notes
# what is done to it. In Python, `x * 2` calls `x.__mul__(2)`, and `2 * x` calls `x.__rmul__(2)`. This is how
# `torch.fx.symbolic_trace` works, and `jax.jit`, too.

# %% tags=["solution"]
# %%task lab02.tracer
class Stand:
    """Stands for a tensor, and notes what is done to it: x * 2, 2 * x, x - y, x.relu()."""

    def __init__(self, name, steps):
        self.name = name
        self.steps = steps

    def step(self, op, *inputs):
        found = Stand(f"t{len(self.steps)}", self.steps)
        self.steps.append([found.name, op, [i.name if isinstance(i, Stand) else i for i in inputs]])
        return found

    def __add__(self, other):
        return self.step("add", self, other)

    def __radd__(self, other):
        return self.step("add", other, self)

    def __sub__(self, other):
        return self.step("sub", self, other)

    def __rsub__(self, other):
        return self.step("sub", other, self)

    def __mul__(self, other):
        return self.step("mul", self, other)

    def __rmul__(self, other):
        return self.step("mul", other, self)

    def relu(self):
        return self.step("relu", self)

    def __gt__(self, other):
        return self.step("gt", self, other)

    def __bool__(self):
        raise TypeError("a stand-in has no value")

def trace(function, names):
    """Return [steps, name of the result] of a function whose arguments have these names."""
    steps = []
    result = function(*[Stand(name, steps) for name in names])
    return [steps, result.name]

# %%
print(trace(lambda x, y: (2 * x + y).relu(), ["x", "y"]))

# %% [markdown]
# ## Six ways, one function
#
# Beside one another, what each way makes of `torch.relu(x * 2 + 1)`. The first needs an input to run the
# function with, the second reads its text, and so on:

# %%
from fuselab.labs.content.captures import PROGRAMS, WAYS
from fuselab.labs.content.captures import attempt, chain, graph, listing

for way, says in WAYS.items():
    print(f"## {way}: {says}")
    print(graph(way, chain, torch.ones(3)), end="\n\n")

# %% [markdown]
# JAX traces with stand-ins, too. `jax.make_jaxpr` of the same function prints (JAX need not be installed):
#
# ```
# { lambda ; a:f32[3]. let
#     b:f32[3] = mul a 2.0:f32[]
#     c:f32[3] = add b 1.0:f32[]
#     d:f32[3] = max c 0.0:f32[]
#   in (d,) }
# ```
#
# ## 2. Break `jit.trace`, silently
#
# It runs the function once, on four positive numbers here, and keeps the operators that ran. Write a function
# on which that is wrong for other inputs, with no error anywhere.

# %% tags=["solution"]
# %%task lab02.trace
import torch

def f(x):
    """Return a tensor; torch.jit.trace of this is wrong for some inputs, without any error."""
    if x.sum() > 0:
        return x * 2
    return x - 1

# %% [markdown]
# ## 3. Break `fx.symbolic_trace`, silently
#
# Your function of part 2 raises here: a stand-in has no value that `if` could ask for. That is loud, and
# good. Find something that goes wrong without a word.

# %% tags=["solution"]
# %%task lab02.symbolic
import torch

def f(x):
    """Return a tensor; torch.fx.symbolic_trace of this is wrong, without any error."""
    if isinstance(x, torch.Tensor):
        return x + 1
    return x - 1

# %% [markdown]
# ## 4. What lazy tensors cost
#
# Lazy tensors run the Python function anew at each call, so they are right; operators only *wait* until a
# value is needed, and then run as one graph. The graph is looked up by its operators, and compiled if it is
# new. A `print` in a loop cuts it into pieces.

# %% tags=["solution"]
# %%task lab02.lazy
def runs(events):
    """Return [graphs compiled, graphs run] by lazy tensors."""
    pending, seen, count = [], set(), 0
    for event in events:
        if event != "print":
            pending.append(event)
        elif pending:
            seen.add(tuple(pending))
            count += 1
            pending = []
    return [len(seen), count]

# %% [markdown]
# ## 5. Who is right, who is wrong, who refuses
#
# Six small functions. Each is captured with one input and then called with another one (for `outside`,
# after the number outside has changed; for `loop`, with five elements in place of three):

# %%
for program in PROGRAMS:
    print(listing(program))

# %% [markdown]
# Say what you expect of each pair, then try: `attempt("jit.trace", "branch")` really does it.

# %% tags=["solution"]
# %%task lab02.outcomes
WRONG = {
    "jit.trace": ["branch", "loop", "number", "outside"],
    "fx.symbolic_trace": ["outside", "kind"],
    "export": ["outside"],
}
REFUSED = {
    "jit.script": ["outside"],
    "fx.symbolic_trace": ["branch", "loop"],
    "export": ["branch", "loop"],
}

def outcome(way, program):
    """Return "right", "wrong" (another result, and no error) or "refused" (an error)."""
    if program in WRONG.get(way, []):
        return "wrong"
    return "refused" if program in REFUSED.get(way, []) else "right"

# %%
print(f"{'':17}", *[f"{name:8}" for name in PROGRAMS])
for way in WAYS:
    print(f"{way:17}", *[f"{attempt(way, name):8}" for name in PROGRAMS])

# %% [markdown]
# TorchDynamo is never wrong here because it *guards*: it writes down all that it relied on (types, sizes, the
# number outside), and captures again where that no longer holds; where it cannot go on, it breaks the graph and
# lets Python run. Lab 3 builds one.

# %%
# %progress 2

# %% [markdown] tags=["teacher"]
# **For teachers.** 15, 4, 6, 5 and 8 minutes. Common mistakes: `2 * x` and `3 - x` are forgotten, or the inputs
# of `__rsub__` are the wrong way round; a branch that raises is taken for silence; a graph is counted where
# nothing waits. The table holds for torch 2.11 and 2.13 (a test does it all); lazy tensors are missing in some builds,
# and are said to be.
