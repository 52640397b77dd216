"""Lab 11, autotuning: the roofline, noise, verdicts, and two searches."""

from __future__ import annotations

import math
import random
from statistics import median
from typing import Any

from fuselab.judge.task import PythonTask
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

_MISSED = 0.05  # how often an interval may miss the median

# -- the roofline ---------------------------------------------------------------------------


def _bound_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [
        [8e9, 1e9, 1e10, 1e11, 1.0],
        [1e9, 4e11, 1e10, 1e11, 5.0],
        [1e9, 1e9, 1e10, 1e11, 0.05],  # faster than its bytes
        [1e9, 8e11, 1e10, 1e11, 2.0],  # faster than its operations
    ]
    for _ in range(8):
        moved, operations = rng.randrange(1, 900) * 1e6, rng.randrange(1, 9000) * 1e6
        bandwidth, rate = rng.randrange(5, 50) * 1e9, rng.randrange(20, 400) * 1e9
        least = max(moved / bandwidth, operations / rate)
        found.append([moved, operations, bandwidth, rate, least * rng.uniform(0.7, 4)])
    return found


def bound(
    moved: float, operations: float, bandwidth: float, rate: float, seconds: float
) -> list[Any]:
    """Return what limits a kernel, and the share of that limit that it reaches."""
    memory, arithmetic = moved / bandwidth, operations / rate
    share = max(memory, arithmetic) / seconds
    return ["memory" if memory >= arithmetic else "arithmetic", share if share <= 1 else None]


# -- noise ----------------------------------------------------------------------------------


def _times(rng: random.Random, count: int) -> list[float]:
    """Return times as machines yield them: close together, and some far too long."""
    found = [rng.gauss(100, 2) + (rng.expovariate(0.05) if rng.random() < 0.2 else 0)]
    while len(found) < count:
        value = rng.gauss(100, 2) + (rng.expovariate(0.05) if rng.random() < 0.2 else 0)
        found.append(round(value, 3))
    return found


def _interval_calls(rng: random.Random) -> list[list[Any]]:
    counts = [1, 5, 6, 7, 8, 9, 12, 15, 20, 25, 33, 60]
    return [[_times(rng, count)] for count in counts]


def interval(times: list[float]) -> list[float] | None:
    """Return between which two of the values the median lies, missing it once in twenty."""
    ordered, count = sorted(times), len(times)
    missed, outside = 0.0, -1
    for number in range(count):
        missed += 2 * math.comb(count, number) / 2**count
        if missed > _MISSED:
            break
        outside = number
    return None if outside < 0 else [ordered[outside], ordered[count - 1 - outside]]


def _interval_why(times: list[float], result: Any) -> str:
    count = len(times)
    if interval(times) is None:
        return f"with {count} values, even the smallest and the largest miss it too often"
    if isinstance(result, list) and result and result[0] not in times:
        return "both ends are values that were measured"
    return f"of {count} values, how many may be left out at each end?"


# -- verdicts -------------------------------------------------------------------------------


def _verdict_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    # How much faster, how noisy each pair, how often measured: all four verdicts come up.
    for factor, noise, count in (
        (0.8, 0.01, 30),
        (1.25, 0.01, 30),
        (1.0, 0.005, 40),
        (1.0, 0.3, 9),
        (0.7, 0.01, 4),
        (0.9, 0.01, 20),
        (1.12, 0.01, 20),
        (0.95, 0.004, 30),
        (1.05, 0.004, 30),
        (rng.choice([0.85, 1.2]), 0.02, 25),
    ):
        drift = [100 * (1 + 0.8 * math.sin(n / 3)) + 100 for n in range(count)]
        theirs = [round(each * rng.gauss(1, noise / 2), 3) for each in drift]
        mine = [round(each * factor * rng.gauss(1, noise / 2), 3) for each in drift]
        found.append([mine, theirs, 0.05])
    # Of so many values, sums that are only nearly right leave out another number.
    for count in (6, rng.choice([14, 19]), rng.choice([22, 24, 27, 29, 31, 34])):
        found += _close_calls(rng, count)
    mine, theirs = _times(rng, 20), _times(rng, 20)
    found += [[mine, theirs, 0.0], [mine, mine, 0.02], [mine[:5], mine[:5], 0.5]]
    return found


# Faster or not, slower or not; as fast or far from it, so that no limit but the right one tells.
_USUAL_AND_OTHER = ((80, 110), (120, 90), (100, 200), (100, 20))


def _close_calls(rng: random.Random, count: int) -> list[list[Any]]:
    """Return times of which one ratio more or less on a side decides."""
    outside = next(n for n in range(count) if interval([*range(count)])[0] == n)  # type: ignore[index]
    found: list[list[Any]] = []
    for few in (outside, outside + 1):
        for usual, other in _USUAL_AND_OTHER:
            mine = [other + rng.random()] * few + [usual + rng.random() for _ in range(count - few)]
            rng.shuffle(mine)
            found.append([mine, [100.0] * count, 0.05])
    return found


def verdict(mine: list[float], theirs: list[float], margin: float) -> str:
    """Return what times taken in turns say."""
    found = interval([a / b for a, b in zip(mine, theirs, strict=True)])
    if found is None:
        return "unclear"
    low, high = found
    if high < 1 - margin:
        return "faster"
    if low > 1 + margin:
        return "slower"
    return "same" if 1 - margin <= low and high <= 1 + margin else "unclear"


# -- searches -------------------------------------------------------------------------------


def _grid(rng: random.Random, rows: int, columns: int) -> list[list[int]]:
    """Return times without equals, lower towards a place, with hollows elsewhere."""
    row, column = rng.randrange(rows), rng.randrange(columns)
    times = [
        [40 * (abs(r - row) + abs(c - column)) + rng.randrange(60) for c in range(columns)]
        for r in range(rows)
    ]
    return [
        [1000 * t + r * columns + c for c, t in enumerate(line)] for r, line in enumerate(times)
    ]


def _descend_calls(rng: random.Random) -> list[list[Any]]:
    # Nowhere to go; to the left, down, up, and to the right, as far as it goes.
    found: list[list[Any]] = [[[[7]], [0, 0]], [[[1, 2, 3]], [0, 2]], [[[3], [2], [1]], [0, 0]]]
    found += [[[[1], [2], [3]], [2, 0]], [[[3, 2, 1]], [0, 0]]]
    # The first neighbor that is faster is not the fastest one.
    found.append([[[9, 7, 9], [8, 10, 2], [9, 6, 1]], [1, 1]])
    for rows, columns in ((3, 3), (4, 5), (6, 4), (6, 6), (7, 7), (8, 8)):
        start = [rng.randrange(rows), rng.randrange(columns)]
        found.append([_grid(rng, rows, columns), start])
    return found


def descend(times: list[list[int]], start: list[int]) -> list[list[int]]:
    """Return the places from a start to where no neighbor is faster."""
    row, column = start
    walked = [[row, column]]
    while True:
        near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        inside = [(r, c) for r, c in near if 0 <= r < len(times) and 0 <= c < len(times[0])]
        best = min(inside, key=lambda place: times[place[0]][place[1]], default=(row, column))
        if times[best[0]][best[1]] >= times[row][column]:
            return walked
        row, column = best
        walked.append([row, column])


def _halving_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    for candidates in (1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 16, 20, 24, 31, 32):
        longest = 2 ** math.ceil(math.log2(candidates)) if candidates > 1 else 1
        speeds = [rng.uniform(99, 101) for _ in range(candidates)]
        found.append(
            [[[round(s + rng.expovariate(0.1), 4) for _ in range(longest)] for s in speeds]]
        )
    return found


def halving(times: list[list[float]]) -> list[int]:
    """Return who is left when the slower half goes again and again, and what it took."""
    alive, each, measured, have = list(range(len(times))), 1, 0, 0
    while len(alive) > 1:
        measured += (each - have) * len(alive)
        have = each
        alive.sort(key=lambda n: median(times[n][:each]))
        alive = alive[: (len(alive) + 1) // 2]
        each *= 2
    return [alive[0], measured]


LAB = Lab(
    11,
    "autotuning",
    "Autotuning: search, noise, verdicts, roofline",
    45,
    (
        PythonTask(
            "lab11.roofline",
            "the roofline",
            "bound",
            points=2,
            start="""
def bound(moved, operations, bandwidth, rate, seconds):
    \"\"\"Return ("memory" or "arithmetic", share): what limits a kernel, and how near it comes.

    moved: bytes. bandwidth: bytes a second. rate: operations a second. seconds: as measured.
    The share is that of the least possible time in the measured one; None if it is above 1, for
    then something was counted wrongly. If both limits are equal, it is "memory".
    \"\"\"
    ...
""",
            hints=(
                "How long do the bytes take at the least? How long the operations? Both go on at "
                "the same time.",
                "The least time is the longer of moved / bandwidth and operations / rate; which "
                "one it is names the limit.",
                "share = least / seconds. A share above 1 says that the kernel beat the machine, "
                "which it cannot: return None in its place.",
            ),
            calls=_bound_calls,
            check=lambda calls, results: first_wrong("bound", calls, results, bound),
        ),
        PythonTask(
            "lab11.noise",
            "where the median lies",
            "interval",
            points=3,
            start="""
def interval(times):
    \"\"\"Return (low, high), two of the times, as close as possible and alike from both ends.

    The true median lies outside of them in at most 5 of 100 series. None if there are too few.
    \"\"\"
    return min(times), max(times)
""",
            hints=(
                "Each time is below the true median with probability 1/2, like a coin. If you take "
                "the smallest and the largest of n, you miss it when all coins fall alike.",
                "With k values left out at each end, it is missed if at most k of the n coins show "
                "heads, or at most k tails: 2 * (comb(n, 0) + ... + comb(n, k)) / 2 ** n.",
                "Add up for k = 0, 1, ... while the sum is at most 0.05; with the last such k, "
                "return ordered[k] and ordered[n - 1 - k]. If there is none at all, return None.",
            ),
            calls=_interval_calls,
            check=lambda calls, results: first_wrong(
                "interval", calls, results, interval, _interval_why
            ),
        ),
        PythonTask(
            "lab11.verdict",
            "faster, slower, or what?",
            "verdict",
            points=3,
            start="""
def verdict(mine, theirs, margin):
    \"\"\"Return "faster", "slower", "same" or "unclear": what mine is, beside theirs.

    mine[i] and theirs[i] were taken one right after the other. Look at the interval (of part 2)
    of the ratios mine / theirs: is all of it below 1 - margin, all of it above 1 + margin, all of
    it between the two, or none of that? Too few ratios are unclear as well.

    An answer is judged by itself, so copy `interval` into this cell.
    \"\"\"
    ...
""",
            hints=(
                "The machine gets slower and faster while it measures. What of that is left in "
                "mine[i] / theirs[i]?",
                "low, high = interval of the ratios. All of it is below a limit if `high` is; all "
                "of it is above one if `low` is.",
                'None: "unclear". high < 1 - margin: "faster". low > 1 + margin: "slower". '
                'low >= 1 - margin and high <= 1 + margin: "same". Else "unclear".',
            ),
            calls=_verdict_calls,
            check=lambda calls, results: first_wrong("verdict", calls, results, verdict),
        ),
        PythonTask(
            "lab11.descend",
            "to the fastest neighbor",
            "descend",
            points=2,
            start="""
def descend(times, start):
    \"\"\"Return the places [row, column] that are walked through, from the start to the end.

    Each step goes to the fastest of the up to four neighbors (up, down, left, right), as long as
    that is faster than where one stands. No two times are equal.
    \"\"\"
    return [start]
""",
            hints=(
                "List the neighbors of the place you stand on; leave out those beyond the edge. "
                "Python's times[-1] is no neighbor.",
                "The least of the neighbors' times: is it less than the time where you stand? "
                "Then go there, and write it down; otherwise you are done.",
                "A loop with min(neighbors, key=lambda p: times[p[0]][p[1]]). A table of one "
                "place has no neighbors at all.",
            ),
            calls=_descend_calls,
            check=lambda calls, results: first_wrong("descend", calls, results, descend),
        ),
        PythonTask(
            "lab11.halving",
            "successive halving",
            "halving",
            points=3,
            start="""
def halving(times):
    \"\"\"Return (winner, measured): a candidate's number, and how many times were looked at.

    times[c] are candidate c's times in the order in which they would be measured. Measure each
    once, and keep the faster half (the larger half if their number is odd). Measure those until
    each has two times, and keep the half with the lower medians; then until each has four, and so
    on, until one is left. A single candidate need not be measured.
    \"\"\"
    ...
""",
            hints=(
                "Keep a list of who is still in. In each round, the first `each` times of a "
                "candidate count: 1, 2, 4, ...",
                "In a round, a candidate needs only what it does not have yet: each - have times. "
                "Sort by the median of times[c][:each] and keep (n + 1) // 2.",
                "The median of an even number of times is the mean of the middle two: of the "
                "sorted ones s, (s[(n - 1) // 2] + s[n // 2]) / 2 is right for odd ones as well.",
            ),
            calls=_halving_calls,
            check=lambda calls, results: first_wrong("halving", calls, results, halving),
        ),
    ),
)
