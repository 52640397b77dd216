# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 6: Fusion: what may share a kernel, and what should
#
# A compiler sees a graph of operators and has to decide which of them share a loop. Two questions:
# what is *legal*, and what is *worth it*. At the end of this lab you have a fuser of some forty
# lines that answers both, and writes the kernels' expressions. About 45 minutes; no GPU is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab

# %%
# %progress 6

# %% [markdown]
# ## The graph
#
# Nodes stand in an order in which they can run. Inputs that no node yields are the graph's own.
# `output` says that somebody outside wants the result, so that it must be written.

# %%
graph = [
    {"name": "t0", "op": "mul", "inputs": ["x", "y"], "size": 1000, "output": False},
    {"name": "t1", "op": "exp", "inputs": ["t0"], "size": 1000, "output": False},
    {"name": "t2", "op": "matmul", "inputs": ["t0", "y"], "size": 1000, "output": False},
    {"name": "t3", "op": "add", "inputs": ["t1", "t2"], "size": 1000, "output": True},
]

# %% [markdown]
# ## 1. Who reads what
#
# Everything that follows asks who reads a node's result. Here, `t0` is read by `t1` and `t2`.

# %% tags=["solution"]
# %%task lab06.readers
def readers(graph):
    """Return a dictionary: each node's name to the names of the nodes that read it."""
    found = {node["name"]: [] for node in graph}
    for node in graph:
        for name in node["inputs"]:
            if name in found and node["name"] not in found[name]:
                found[name].append(node["name"])
    return found

# %% [markdown]
# ## 2. What may not be fused
#
# Could `t0` and `t3` share a kernel? `t3` needs `t2`, which is a library call, and that needs `t0`.
# The kernel would have to run *before and after* the call. In general: no path may leave the group
# and come back. It need not be a call in between; any node outside of the group will do.

# %% tags=["solution"]
# %%task lab06.circle
def goes_round(graph, group):
    """Return whether some path leaves the group and comes back into it."""
    inside, after = set(group), set()
    for node in graph:
        if node["name"] in inside:
            if any(name in after for name in node["inputs"]):
                return True
        elif any(name in inside or name in after for name in node["inputs"]):
            after.add(node["name"])
    return False

# %% [markdown]
# ## 3. The score
#
# Fusing `a` with its reader `b` saves reading `a`'s result, and writing it too if nobody else wants
# it. Two nodes that read the *same* tensor save one reading of it, though neither reads the other:
# siblings. A number takes 4 bytes.

# %% tags=["solution"]
# %%task lab06.saved
def bytes_saved(graph, a, b):
    """Return how many bytes need not be moved if the nodes named a and b share a kernel."""
    nodes = {node["name"]: node for node in graph}
    first, second = nodes[a], nodes[b]
    saved = 0
    if a in second["inputs"]:
        saved += first["size"]
        wanted = any(a in node["inputs"] for node in graph if node["name"] != b)
        if not wanted and not first["output"]:
            saved += first["size"]
    for name in set(first["inputs"]) & set(second["inputs"]):
        saved += nodes[name]["size"] if name in nodes else second["size"]
    return 4 * saved

# %% [markdown]
# ## 4. A mini fuser
#
# Now put groups together: the best legal pair first, until none saves anything. This is what real
# compilers do ("greedy"); finding the very best plan takes exponential time. A kernel reads each tensor that
# it uses and does not yield itself once, and writes what it yields and somebody outside of it wants.
#
# Mind that two *groups* can wait for each other even if neither goes round by itself: one yields
# what the other reads, and the other way round. After each step there must be an order in which the
# kernels can run. What you return is judged by its legality first, then by the bytes that it moves
# beside those of a greedy reference.

# %% tags=["solution"]
# %%task lab06.fuse
def moved(graph, plan):
    nodes = {node["name"]: node for node in graph}
    total = 0
    for group in plan:
        inside = set(group)
        reads = {name for each in group for name in nodes[each]["inputs"]} - inside
        size = nodes[group[0]]["size"]
        total += sum(nodes[name]["size"] if name in nodes else size for name in reads)
        for each in group:
            others = any(each in node["inputs"] for node in graph if node["name"] not in inside)
            if others or nodes[each]["output"]:
                total += nodes[each]["size"]
    return total


def can_run(graph, plan):
    of = {name: n for n, group in enumerate(plan) for name in group}
    needs = [set() for _ in plan]
    for node in graph:
        mine = of[node["name"]]
        needs[mine] |= {of[name] for name in node["inputs"] if of.get(name, mine) != mine}
    done = set()
    while len(done) < len(plan):
        ready = {n for n in range(len(plan)) if n not in done and needs[n] <= done}
        if not ready:
            return False
        done |= ready
    return True


def fuse(graph):
    """Return the kernels: a list of groups, each a list of names; every node is in one."""
    calls = {node["name"] for node in graph if node["op"] == "matmul"}
    plan = [[node["name"]] for node in graph]
    while True:
        best, better = moved(graph, plan), None
        for i in range(len(plan)):
            for j in range(i + 1, len(plan)):
                union = plan[i] + plan[j]
                if calls & set(union):
                    continue
                merged = [plan[n] for n in range(len(plan)) if n not in (i, j)] + [union]
                if can_run(graph, merged) and moved(graph, merged) < best:
                    best, better = moved(graph, merged), merged
        if better is None:
            return plan
        plan = better

# %% [markdown]
# ## 5. The text of a kernel
#
# What is computed where it is read needs no variable: a chain of operators is one expression. Write
# it, for a graph without products.

# %% tags=["solution"]
# %%task lab06.write
def expression(graph, name):
    """Return the node's value as one expression of the graph's own inputs."""
    nodes = {node["name"]: node for node in graph}
    if name not in nodes:
        return name
    node = nodes[name]
    values = [expression(graph, each) for each in node["inputs"]]
    signs = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
    if node["op"] in signs:
        return f"({values[0]} {signs[node['op']]} {values[1]})"
    return f"{node['op']}({values[0]})"

# %% [markdown]
# A value that is read twice is written out twice here, and so on: the text can grow exponentially.
# Real kernels give a name to what is read more than once. Compare with what `%%fuse` writes:

# %%
import torch

x, y = torch.randn(1_000_000), torch.randn(1_000_000)

# %%
# %%fuse --target plain --no-check --name mine --out r
t = torch.exp(x * y)
r = torch.relu(t + x) / t

# %% [markdown]
# The *Fusion* page has the graph before and after, and what was put together and what was not, with
# the reasons. "Computed once": two readers share a value, so that neither computes it again.

# %%
# %fuse_report --show fusion

# %%
# %progress 6

# %% [markdown] tags=["teacher"]
# **For teachers.** 5, 10, 10, 15 and 5 minutes. Common mistakes: in part 2 only direct readers are
# looked at, so that longer ways round are missed; in part 3 a node that reads the same input twice
# is counted twice; in part 4 each group is legal by itself, but two wait for each other.
