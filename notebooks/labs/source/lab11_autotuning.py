# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 11: Autotuning: search, noise, verdicts, roofline
#
# A kernel has constants: how large a tile is, how many rows a thread takes. Which values are best
# depends on the machine, so compilers *try*. That sounds easy: time them all and take the fastest.
# But clocks are noisy, the noisiest candidate has the best chance of looking fastest once, and there
# are more candidates than seconds. About 45 minutes; no GPU is needed.

# %%
from importlib.util import find_spec

if not find_spec("fuselab"):  # as in a notebook service
    # %pip install --quiet "fuselab[torch]"
    print("Fuselab is installed now.")

# %load_ext fuselab
import time

import torch

# %%
# %progress 11

# %% [markdown]
# ## 1. When to stop: the roofline
#
# Before searching, ask what can be found. A kernel has to move its bytes and to do its operations;
# the machine does both at the same time, each at its own speed. Whatever takes longer is a limit
# that no tuning beats. A kernel at 95 % of it is done.
#
# And a kernel *above* 100 % is a warning: its result was in the cache, or somebody counted wrongly.

# %% tags=["solution"]
# %%task lab11.roofline
def bound(moved, operations, bandwidth, rate, seconds):
    """Return ("memory" or "arithmetic", share): what limits a kernel, and how near it comes."""
    memory, arithmetic = moved / bandwidth, operations / rate
    limit = "memory" if memory >= arithmetic else "arithmetic"
    share = max(memory, arithmetic) / seconds
    if share > 1:
        return limit, None
    return limit, share

# %% [markdown]
# What does this machine say? A copy shows its bandwidth, a matrix product its arithmetic:

# %%
def once(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began

x, out = torch.rand(8_000_000), torch.empty(8_000_000)
a, b = torch.rand(512, 512), torch.rand(512, 512)
bandwidth = 64e6 / min(once(lambda: out.copy_(x)) for _ in range(20))
rate = 2 * 512**3 / min(once(lambda: a @ b) for _ in range(20))
print(f"{bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} billion operations/s")
print("x + 1 and exp(x) of 8 million numbers; let exp be 20 operations:")
for function, operations in ((lambda: torch.add(x, 1, out=out), 8e6), (lambda: torch.exp(x, out=out), 160e6)):
    print(bound(64e6, operations, bandwidth, rate, min(once(function) for _ in range(20))))

# %% [markdown]
# A share far below 1 says that there is something to be found, or that exp takes more than 20. For the
# bytes there is no such excuse.
#
# ## 2. Noise
#
# The same call, 200 times. Each star is a few measurements; look at the right end:

# %%
small, result = torch.rand(100_000), torch.empty(100_000)
series = [once(lambda: torch.exp(small, out=result)) * 1e6 for _ in range(220)][20:]
ordered = sorted(series)
low, high = ordered[0], ordered[-10]
for step in range(12):
    begin, end = (low + (high - low) * (step + part) / 12 for part in (0, 1))
    print(f"{begin:8.1f} µs {'*' * (sum(begin <= t < end for t in series) // 3)}")
print(f"the ten slowest: from {ordered[-10]:.0f} to {ordered[-1]:.0f} µs")
print(f"mean {sum(series) / 200:.1f} µs, median {ordered[100]:.1f} µs")

# %% [markdown]
# Nothing makes a call faster than it is, but much makes it slower: another program, a page fault, a
# clock that was turned down. A mean follows the few slow ones; a *median* does not. But how far can
# it be trusted?
#
# Here is an answer that needs no bell curve. Each measurement is below the true median with
# probability 1/2, whatever the noise looks like, so counting those below it is counting heads of
# coins. Say it with `comb`.

# %% tags=["solution"]
# %%task lab11.noise
from math import comb

def interval(times):
    """Return (low, high), two of the times, as close as possible and alike from both ends."""
    n, ordered = len(times), sorted(times)
    missed, outside = 0.0, None
    for k in range(n):
        missed += 2 * comb(n, k) / 2**n
        if missed > 0.05:
            break
        outside = k
    if outside is None:
        return None
    return ordered[outside], ordered[n - 1 - outside]

# %% [markdown]
# How many measurements does it take? Four times as many make the interval about half as wide, as long
# as the machine stays as it is:

# %%
for count in (5, 10, 40, 160):
    found = interval(series[:count])
    print(count, found and [round(each, 2) for each in found])

# %% [markdown]
# ## 3. Verdicts
#
# Two kernels, one after the other: first all of A, then all of B. In between the laptop's fan comes
# on, and B "is 8 % slower". Measured *in turns*, A B A B A B, both meet the same fan, and the ratio
# of neighbors does not see it.
#
# A verdict has four outcomes, not two. "Not shown to differ" and "shown not to differ" are two
# things: the first says that you have not measured enough.

# %% tags=["solution"]
# %%task lab11.verdict
from math import comb

def interval(times):
    n, ordered = len(times), sorted(times)
    missed, outside = 0.0, None
    for k in range(n):
        missed += 2 * comb(n, k) / 2**n
        if missed > 0.05:
            break
        outside = k
    if outside is None:
        return None
    return ordered[outside], ordered[n - 1 - outside]


def verdict(mine, theirs, margin):
    """Return "faster", "slower", "same" or "unclear": what mine is, beside theirs."""
    found = interval([a / b for a, b in zip(mine, theirs)])
    if found is None:
        return "unclear"
    low, high = found
    if high < 1 - margin:
        return "faster"
    if low > 1 + margin:
        return "slower"
    if low >= 1 - margin and high <= 1 + margin:
        return "same"
    return "unclear"

# %% [markdown]
# Three ways to compute the same cubes, each against `x * x * x`. Which verdict do you expect?

# %%
def cubes(x):
    return x * x * x

rivals = {"the same once more": lambda x: x * x * x, "x ** 3": lambda x: x**3, "x ** 3.0001": lambda x: x**3.0001}
for name, rival in rivals.items():
    pairs = [(once(lambda: rival(small)), once(lambda: cubes(small))) for _ in range(100)]
    print(name, "is", verdict([p[0] for p in pairs], [p[1] for p in pairs], 0.05))

# %% [markdown]
# ## 4. Search: to the fastest neighbor
#
# Tiles of 8, 16, 32, ... rows and as many columns: a table of times, most of which nobody wants to
# measure. One way: begin somewhere and walk to the fastest neighbor, until there is none faster.

# %% tags=["solution"]
# %%task lab11.descend
def descend(times, start):
    """Return the places [row, column] that are walked through, from the start to the end."""
    row, column = start
    walked = [[row, column]]
    while True:
        near = [[row - 1, column], [row + 1, column], [row, column - 1], [row, column + 1]]
        near = [[r, c] for r, c in near if 0 <= r < len(times) and 0 <= c < len(times[0])]
        if not near:
            return walked
        best = min(near, key=lambda place: times[place[0]][place[1]])
        if times[best[0]][best[1]] >= times[row][column]:
            return walked
        row, column = best
        walked.append(best)

# %% [markdown]
# Where does it get stuck? From how many of the 30 places does it reach the 11?

# %%
table = [
    [90, 80, 70, 65, 75, 85],
    [82, 60, 40, 45, 66, 79],
    [78, 52, 50, 61, 55, 72],
    [77, 64, 62, 58, 30, 41],
    [88, 71, 69, 48, 22, 11],
]
ends = [descend(table, [row, column])[-1] for row in range(5) for column in range(6)]
print(f"{ends.count([4, 5])} of {len(ends)}; the others end at {sorted({tuple(e) for e in ends} - {(4, 5)})}")

# %% [markdown]
# What helps: several starts, jumps, or a model of the machine that says where to start. Fuselab has
# rules that choose the first candidate, and searches around the best ones.
#
# ## 5. Search: successive halving
#
# Another way spends its measurements where they matter. A candidate that is twice as slow shows it at
# once; two that are 3 % apart need many measurements. So: measure all once, drop the slower half,
# measure the rest more often, and so on.

# %% tags=["solution"]
# %%task lab11.halving
def median(values):
    ordered, n = sorted(values), len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def halving(times):
    """Return (winner, measured): a candidate's number, and how many times were looked at."""
    alive, each, have, measured = list(range(len(times))), 1, 0, 0
    while len(alive) > 1:
        measured += (each - have) * len(alive)
        have = each
        alive = sorted(alive, key=lambda c: median(times[c][:each]))[: (len(alive) + 1) // 2]
        each *= 2
    return alive[0], measured

# %% [markdown]
# Is it any good? Sixteen candidates from 100 µs upwards, with 5 % noise. How often is the winner one
# of the three best? And if everybody is measured three times, which takes 48 measurements?

# %%
import random

halved = equal = 0
for seed in range(300):
    rng = random.Random(seed)
    speeds = [100 + 2 * n for n in range(16)]
    rng.shuffle(speeds)
    times = [[rng.gauss(speed, 5) for _ in range(16)] for speed in speeds]
    winner, measured = halving(times) or (0, 0)
    halved += speeds[winner] < 106
    equal += speeds[min(range(16), key=lambda c: sorted(times[c][:3])[1])] < 106
print(f"{measured} measurements: {halved / 3:.0f} %; 48 measurements: {equal / 3:.0f} %")

# %% [markdown]
# And a real search, of five seconds. It knows all of this: candidates are timed in turns with the
# best so far, and the winner is checked like an edit before it counts. "Nothing was confirmed as faster"
# is a verdict, too: the rules that chose the start had been good.

# %%
x = torch.rand(2000, 3000)

# %%
# %%fuse --tune 5 --name tuned --out y
y = torch.softmax(x * 2, -1) + x

# %%
# %fuse_report --show limits

# %% [markdown]
# Is that more than 100 % of memory? Then part of it never came from there: it was still in the cache.

# %%
# %progress 11

# %% [markdown] tags=["teacher"]
# **For teachers.** 7, 12, 8, 8 and 10 minutes. Common mistakes: in part 1 the two times are added; in
# part 2 one end is looked at, or the interval is one value too wide; in part 3 the medians of both
# series are compared, so that drift decides, and "unclear" is taken for "same"; in part 4 the first
# faster neighbor is taken, or `times[-1]` counts as one; in part 5 what was measured in an earlier
# round is paid for again.
