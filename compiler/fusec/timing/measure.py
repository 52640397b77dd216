"""How long things take, measured so that the figures can be believed.

Candidates are timed in blocks that alternate in random order, so that whatever else the
machine does hits all of them alike.  Blocks are long enough for the clock, medians and
quartiles are reported rather than the luckiest run, and two series are called different only
where the ratio of neighboring blocks says so.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fusec.devices import GPU, is_gpu
from fusec.gc_pause import collector_off
from fusec.report import Timing, counted

Call = Callable[[], object]
Judgment = Literal["FASTER", "SLOWER", "SAME", "UNCLEAR"]

# A block this long is some hundred times what reading the clock costs and jitters.
_BLOCK = 200e-6
_MAX_CALLS = 10_000
_WARM_UP_CALLS = 3
# Whoever may stop early looks at the spread after so many rounds, and not before this long: what
# disturbs a machine for a moment should not be all that was seen of it.
_LOOK_EVERY = 8
_LEAST_SECONDS = 0.04
# More say nothing more: a median of so many is known to a hundredth of the spread.
MOST_ROUNDS = 2000
# A figure that is only shown is exact enough once its median is: what differs by less is the same.
PRECISION = 0.02
# Overwriting this takes a fast GPU some hundred microseconds.
_FLUSH = 512 << 20
# So often at most: a call that waits for the device is never ahead of it.
_MOST_FLUSHES = 8
# Differences below this are the same for a user, and within what layout alone can do.
_INDIFFERENT = 0.02


@dataclass(frozen=True)
class Series:
    """Raw samples of one candidate.

    Attributes:
        samples: Seconds a call, a sample a block, in the order of the rounds.
        calls: Calls in each block.
        method: One sentence on how they were taken.
    """

    samples: tuple[float, ...]
    calls: int
    method: str

    def timing(self) -> Timing:
        """Return the median and quartiles."""
        low, median, high = quartiles(self.samples)
        return Timing(median, low, high, len(self.samples), self.method)


def interleave(
    candidates: Mapping[str, Call],
    *,
    seconds: float = 0.2,
    min_samples: int = 7,
    before: Call | Mapping[str, Call] | None = None,
    synchronize: Call | None = None,
    flush_l2: bool = False,
    device: str = "cpu",
    stop: Callable[[], bool] | None = None,
    precision: float = 0.0,
) -> dict[str, Timing]:
    """Time ``candidates`` against each other; see ``interleave_series``."""
    measured = interleave_series(
        candidates,
        seconds=seconds,
        min_samples=min_samples,
        before=before,
        synchronize=synchronize,
        flush_l2=flush_l2,
        device=device,
        stop=stop,
        precision=precision,
    )
    return {name: series.timing() for name, series in measured.items()}


def interleave_series(
    candidates: Mapping[str, Call],
    *,
    seconds: float = 0.2,
    min_samples: int = 7,
    before: Call | Mapping[str, Call] | None = None,
    synchronize: Call | None = None,
    flush_l2: bool = False,
    device: str = "cpu",
    stop: Callable[[], bool] | None = None,
    precision: float = 0.0,
) -> dict[str, Series]:
    """Time ``candidates`` in alternating blocks and return the raw samples.

    Args:
        candidates: Name to a call without arguments.
        seconds: Time for all of them together, warm-up included.
        min_samples: Rounds to take even if that takes longer.
        before: Run untimed before every call, to restore what a call changes; one for all or
            one a candidate. Blocks then hold a single call.
        synchronize: Waits for work that a call only starts.
        flush_l2: On a GPU, overwrite its cache before every call.
        device: ``cuda`` times with the device's own events, ``cpu`` with the clock.
        stop: Asked between rounds; what was measured so far is returned.
        precision: Stop before the time is up once every median is known to this share of itself;
            0 to use all of the time. Events of a device are read at the end, so it has no effect.
    """
    if not candidates:
        return {}
    prepare = _per_candidate(before, candidates)
    clock: _Clock
    if is_gpu(device):
        clock = _EventClock(flush_l2, synchronize)
    else:
        clock = _WallClock(synchronize)
    started = time.perf_counter()
    deadline = started + seconds
    calls = {}
    for name, call in candidates.items():
        calls[name] = _warm_up(clock, call, prepare[name], deadline)
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    shuffle = random.Random(time.perf_counter_ns()).shuffle
    rounds = 0
    with collector_off():
        while rounds < min_samples or time.perf_counter() < deadline:
            if rounds and stop is not None and stop():
                break
            shuffle(order)
            for name in order:
                samples[name].append(clock.block(candidates[name], prepare[name], calls[name]))
            rounds += 1
            if rounds >= MOST_ROUNDS:
                break
            if precision and rounds % _LOOK_EVERY == 0 and clock.reads_at_once:
                long_enough = time.perf_counter() - started > _LEAST_SECONDS
                if long_enough and converged(samples.values(), precision):
                    break
    samples = {name: clock.finish(values) for name, values in samples.items()}
    return {
        name: Series(tuple(values), calls[name], clock.describe(calls[name], len(candidates)))
        for name, values in samples.items()
    }


def converged(series: Iterable[Sequence[float]], precision: float) -> bool:
    """Say whether the median of each series is known to ``precision`` of itself.

    The interval is that of the notches of a box plot: 1.57 quartile distances over the root of
    the number of samples, in either direction.
    """
    for samples in series:
        low, middle, high = quartiles(samples)
        if 1.57 * (high - low) > precision * middle * math.sqrt(len(samples)):
            return False
    return True


def judge(candidate: Series, base: Series, *, confidence: float = 0.99) -> tuple[Judgment, float]:
    """Say whether ``candidate`` is faster than ``base``, from one interleaved measurement.

    The ratio of the two blocks of a round is free of what slowed both.  The median ratio's
    bootstrap interval decides: ``SAME`` where it lies within 2 %, ``FASTER`` or ``SLOWER``
    where it lies more than 1 % and the median more than 2 % off, else ``UNCLEAR``.

    Returns:
        The judgment, and the median of candidate / base.
    """
    ratios = [a / b for a, b in zip(candidate.samples, base.samples, strict=True) if b > 0]
    if not ratios:
        return "UNCLEAR", math.nan
    middle = statistics.median(ratios)
    low, high = bootstrap(ratios, confidence=confidence)
    if low > 1 - _INDIFFERENT and high < 1 + _INDIFFERENT:
        return "SAME", middle
    if high < 1 - _INDIFFERENT / 2 and middle < 1 - _INDIFFERENT:
        return "FASTER", middle
    if low > 1 + _INDIFFERENT / 2 and middle > 1 + _INDIFFERENT:
        return "SLOWER", middle
    return "UNCLEAR", middle


def bootstrap(
    values: Sequence[float], *, confidence: float = 0.95, repeats: int = 400
) -> tuple[float, float]:
    """Return an interval for the median of ``values``."""
    source = random.Random(len(values))
    medians = sorted(
        statistics.median(source.choices(values, k=len(values))) for _ in range(repeats)
    )
    skip = int(repeats * (1 - confidence) / 2)
    return medians[skip], medians[-1 - skip]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 25th percentile, the median and the 75th percentile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _per_candidate(
    before: Call | Mapping[str, Call] | None, candidates: Mapping[str, Call]
) -> dict[str, Call | None]:
    if before is None or callable(before):
        return dict.fromkeys(candidates, before)
    return {name: before.get(name) for name in candidates}


def _warm_up(clock: _Clock, call: Call, prepare: Call | None, deadline: float) -> int:
    """Call until it is warm, and return how many calls make a block long enough."""
    best = math.inf
    for attempt in range(_WARM_UP_CALLS):
        best = min(best, clock.once(call, prepare))
        if attempt and time.perf_counter() > deadline:
            break
    if prepare is not None or not clock.groups:
        return 1
    # Longer looks, the best of which counts: a block that is shorter than another's because
    # something disturbed its warm-up would be disturbed less often from then on.
    for _ in range(3):
        calls = min(_MAX_CALLS, max(1, math.ceil(_BLOCK / max(best, 1e-9))))
        if calls == 1 or time.perf_counter() > deadline:
            break
        best = min(best, clock.block(call, None, calls))
    calls = min(_MAX_CALLS, max(1, math.ceil(_BLOCK / max(best, 1e-9))))
    return calls


class _Clock:
    """Times blocks of calls."""

    groups = True
    reads_at_once = True

    def once(self, call: Call, prepare: Call | None) -> float:
        """Return the seconds of one call, now."""
        raise NotImplementedError

    def block(self, call: Call, prepare: Call | None, calls: int) -> float:
        """Return the seconds a call of a block, or a token that ``finish`` turns into them."""
        raise NotImplementedError

    def finish(self, values: list[float]) -> list[float]:
        """Return the seconds for what ``block`` returned."""
        return values

    def describe(self, calls: int, candidates: int) -> str:
        """Say in one sentence how a block was taken."""
        raise NotImplementedError


def _interleaving(candidates: int) -> str:
    if candidates == 1:
        return "alone"
    return f"interleaved in random order with {candidates - 1} other" + "s" * (candidates > 2)


class _WallClock(_Clock):
    def __init__(self, synchronize: Call | None) -> None:
        self.synchronize = synchronize
        self.prepared = False

    def once(self, call: Call, prepare: Call | None) -> float:
        return self.block(call, prepare, 1)

    def block(self, call: Call, prepare: Call | None, calls: int) -> float:
        if prepare is not None:
            self.prepared = True
            prepare()
        now = time.perf_counter_ns
        if self.synchronize is not None:
            self.synchronize()
        repeat = range(calls)
        start = now()
        for _ in repeat:
            call()
        if self.synchronize is not None:
            self.synchronize()
        return (now() - start) * 1e-9 / calls

    def describe(self, calls: int, candidates: int) -> str:
        plural = "call" if calls == 1 else "calls"
        restored = ", inputs restored before each" if self.prepared else ""
        return (
            f"median of blocks of {calls} {plural}{restored}, {_interleaving(candidates)}, "
            f"after warm-up, by the monotonic clock, data left in the cache, "
            f"{counted(torch.get_num_threads(), 'thread')}"
        )


class _EventClock(_Clock):
    """One call a block between two events; the host runs ahead of the device."""

    groups = False
    reads_at_once = False

    def __init__(self, flush: bool, synchronize: Call | None) -> None:
        self.synchronize = synchronize or torch.cuda.synchronize
        self.buffer: torch.Tensor | None = None
        if flush:
            cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            # Twice the cache, and enough work for the host to run ahead of the device: else
            # the events would time how fast Python starts kernels.
            free, _ = torch.cuda.mem_get_info()
            size = max(2 * cache, min(_FLUSH, free // 8))
            self.buffer = torch.empty(size // 4, dtype=torch.int32, device=GPU)
        self.flushes = 1
        self.pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def once(self, call: Call, prepare: Call | None) -> float:
        if prepare is not None:
            prepare()
        self.pairs.append(self.record(call))
        return self.finish([float(len(self.pairs) - 1)])[0]

    def block(self, call: Call, prepare: Call | None, calls: int) -> float:
        if prepare is not None:
            prepare()
        pair = self.record(call)
        if self.buffer is not None and pair[0].query() and self.flushes < _MOST_FLUSHES:
            # The device came to the call before the host was through with it, and waited.
            self.flushes *= 2
            if prepare is not None:
                prepare()
            pair = self.record(call)
        self.pairs.append(pair)
        if len(self.pairs) % 64 == 0:
            # Lets the time limit see how much was done.
            self.synchronize()
        return float(len(self.pairs) - 1)

    def record(self, call: Call) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        if self.buffer is not None:
            for _ in range(self.flushes):
                self.buffer.zero_()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        return first, last

    def finish(self, values: list[float]) -> list[float]:
        self.synchronize()
        return [self.pairs[int(v)][0].elapsed_time(self.pairs[int(v)][1]) * 1e-3 for v in values]

    def describe(self, calls: int, candidates: int) -> str:
        cache = "L2 overwritten before each call" if self.buffer is not None else "data left in L2"
        return (
            f"median of single calls between device events, {_interleaving(candidates)}, "
            f"after warm-up, {cache}"
        )
