# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 4: A mini AOTAutograd: joint graphs, and what to save
#
# A compiler that trains needs the backward part *ahead of time*: as a graph, so that it can be fused
# like any other, and so that somebody can think about what the forward part keeps in memory for it.
# Four steps lead there: fewer operators, no changes in place, the chain rule, and a choice. About 45
# minutes; neither a GPU nor a C++ compiler is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import torch

# %%
# %progress 4

# %% [markdown]
# ## 1. Decompositions
#
# PyTorch has some two thousand operators. Nobody wants to write a backward rule and a kernel for each,
# so most are *decomposed* into a few. Do it for five of them.

# %% tags=["solution"]
# %%task lab04.decompose
def decompose(graph):
    """Return the graph with primitive operators only."""
    nodes = []
    for name, op, arguments in graph:
        count = 0

        def put(op, *given):
            nonlocal count
            count += 1
            nodes.append([f"{name}.{count}", op, list(given)])
            return nodes[-1][0]

        def sigmoid(a):
            return put("reciprocal", put("add", 1, put("exp", put("neg", a))))

        if op == "sub":
            put("add", arguments[0], put("neg", arguments[1]))
        elif op == "div":
            put("mul", arguments[0], put("reciprocal", arguments[1]))
        elif op == "sigmoid":
            sigmoid(arguments[0])
        elif op == "silu":
            put("mul", arguments[0], sigmoid(arguments[0]))
        elif op == "softplus":
            put("log", put("add", 1, put("exp", arguments[0])))
        else:
            put(op, *arguments)
        nodes[-1][0] = name
    return nodes

# %%
graph = [["t0", "sigmoid", ["x"]], ["t1", "mul", ["t0", "y"]]]
print(decompose(graph))

# %% [markdown]
# ## 2. Functionalization
#
# `y = x.view(-1); x.add_(1); return y * 2`: what is multiplied? A graph in which values change is hard
# to think about, and harder to reorder. So changes in place are replaced by new values. At the end, what
# the caller can see (inputs that were changed) is copied back.

# %% tags=["solution"]
# %%task lab04.functionalize
def functionalize(graph):
    """Return {"graph": ..., "result": ..., "updates": ...} with nothing changed in place."""
    memory = {name: name for name in "xyz"}
    current = {name: name for name in "xyz"}
    nodes, written = [], set()
    for name, op, arguments in graph:
        first = memory.get(arguments[0])
        if op == "view":
            memory[name] = first
            continue
        given = [current[memory[a]] if isinstance(a, str) else a for a in arguments]
        nodes.append([name, op.rstrip("_"), given])
        if op.endswith("_"):
            memory[name] = first
            written.add(first)
        else:
            memory[name] = name
        current[memory[name]] = name
    result = current[memory[graph[-1][0]]]
    updates = {name: current[name] for name in "xyz" if name in written}
    return {"graph": nodes, "result": result, "updates": updates}

# %%
graph = [["y1", "view", ["x"]], ["t0", "add_", ["x", 1]], ["t1", "mul", ["y1", 2]]]
print(functionalize(graph))

# %% [markdown]
# ## 3. The joint graph
#
# Now the chain rule, not on numbers but on names: each step of it *writes nodes*. What comes out is
# forward and backward in one graph.

# %% tags=["solution"]
# %%task lab04.joint
def joint(graph):
    """Return {"graph": ..., "gradients": {"x": ..., "y": ..., "z": ...}}."""
    nodes = list(graph)

    def put(op, *arguments):
        nodes.append([f"g{len(nodes)}", op, list(arguments)])
        return nodes[-1][0]

    known = {graph[-1][0]: 1}
    for name, op, arguments in reversed(graph):
        if name not in known:
            continue
        g = known[name]
        for place, argument in enumerate(arguments):
            if not isinstance(argument, str):
                continue
            if op == "add":
                part = g
            elif op == "mul":
                part = put("mul", g, arguments[1 - place])
            elif op == "neg":
                part = put("neg", g)
            elif op == "exp":
                part = put("mul", g, name)
            elif op == "log":
                part = put("mul", g, put("reciprocal", argument))
            else:
                part = put("neg", put("mul", g, put("mul", name, name)))
            known[argument] = put("add", known[argument], part) if argument in known else part
    return {"graph": nodes, "gradients": {name: known.get(name, 0) for name in "xyz"}}

# %%
found = joint([["t0", "mul", ["x", "y"]], ["t1", "exp", ["t0"]]]) or {}
for node in found.get("graph", []):
    print(*node)
print(found.get("gradients"))

# %% [markdown]
# ## 4. What backward reads
#
# Forward runs now, backward later; in between, whatever backward reads has to stay in memory. For large
# models this, not the weights, is what fills a GPU.

# %% tags=["solution"]
# %%task lab04.saved
def saved(graph, forward):
    """Return, sorted, the names that backward nodes read and that are not backward nodes."""
    backward = {name for name, _, _ in graph[forward:]}
    read = {a for _, _, arguments in graph[forward:] for a in arguments if isinstance(a, str)}
    return sorted(read - backward)

# %% [markdown]
# ## 5. Save it, or compute it again
#
# A value that is read backward need not be saved if it can be computed again from one that is. A
# multiplication costs less than reading its result from memory would; an `exp` is another matter. Which
# names should be saved so that their size is the least?

# %% tags=["solution"]
# %%task lab04.choose
import itertools


def enough(graph, forward, saved):
    there = set(saved)
    for name, op, arguments in graph[:forward]:
        if op in ("add", "mul", "neg", "reciprocal"):
            if all(a in there for a in arguments if isinstance(a, str)):
                there.add(name)
    there |= {name for name, _, _ in graph[forward:]}
    return all(a in there for _, _, args in graph[forward:] for a in args if isinstance(a, str))


def choose(graph, forward, sizes):
    """Return the names to save, inputs and forward nodes, with the least total size."""
    best = list(sizes)
    for chosen in itertools.product((False, True), repeat=len(sizes)):
        saved = [name for name, take in zip(sizes, chosen) if take]
        smaller = sum(sizes[n] for n in saved) < sum(sizes[n] for n in best)
        if smaller and enough(graph, forward, saved):
            best = saved
    return best

# %% [markdown]
# What does a real compiler save? PyTorch's own graph of autograd keeps what each operator's rule asks
# for. Below it, the two parts that Fuselab makes of the same function, and what each reads and writes:
# forward writes its result and nothing else; backward reads that, the inputs and a gradient.

# %%
import fusec

def gated(x, y):
    return (torch.sigmoid(x * 2) * y + x).exp()

kept = []
with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
    gated(torch.rand(100, 100, requires_grad=True), torch.rand(100, 100, requires_grad=True))
print("eager saves", len(kept), "tensors")
fusec.predict(gated, torch.rand(100, 100, requires_grad=True), torch.rand(100, 100, requires_grad=True))

# %%
# %progress 4

# %% [markdown] tags=["teacher"]
# **For teachers.** 8, 12, 13, 3 and 9 minutes. Common mistakes: the result keeps the name of a new node;
# a view made before a change is taken for a copy, or a result that is changed later for its old value;
# gradients that meet are overwritten in place of added, as in `x * x`; the number 2 in `x * 2` gets a
# gradient; inputs are taken to be there for nothing.
