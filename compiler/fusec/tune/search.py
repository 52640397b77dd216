"""The search: which configuration to try next, given what the others took.

Coordinate descent from the current values: the neighbors of the best, then everything one knob
away, then random restarts, each with its own descent.  It only proposes and listens; compiling
and measuring are the caller's, so that several proposals can be compiled while one is measured.
"""

from __future__ import annotations

import math
import random
from collections import deque

from fusec.tune.knobs import Config, Knobs

# Spaces up to this size are tried as a whole, nearest to the start first.
_WHOLE = 24
# Random configurations in a row without a better best before it gives up.
_RESTARTS = 12


class Search:
    """Proposes configurations, each once, and is told their times.

    Args:
        knobs: The space.
        seed: Of its random part.
        whole: Whether to try all of it, however large, nearest to the start first.

    Attributes:
        best: The fastest so far, or None.
        total: How many it means to try; grows as the descent goes on.
    """

    def __init__(self, knobs: Knobs, *, seed: int | None = None, whole: bool = False) -> None:
        self.knobs = knobs
        self.whole = whole or len(knobs) <= _WHOLE
        self.best: Config | None = None
        self._random = random.Random(seed)
        self._times: dict[Config, float] = {}
        self._proposed: set[Config] = set()
        self._waiting: set[Config] = set()
        self._queue: deque[Config] = deque([knobs.start])
        self._center = knobs.start
        self._restarts = 0

    @property
    def total(self) -> int:
        """How many configurations the search means to try, as far as it can tell."""
        if self.whole:
            return len(self.knobs)
        known = len(self._proposed) + len(self._queue)
        return min(len(self.knobs), max(known, 1 + len(self.knobs.lines(self.knobs.start))))

    @property
    def waits(self) -> bool:
        """Whether a proposal has not been answered."""
        return bool(self._waiting)

    def propose(self) -> Config | None:
        """Return a configuration to try, or None if there is none for now.

        It is over when this returns None though every earlier proposal was answered.
        """
        while True:
            while self._queue:
                config = self._queue.popleft()
                if config not in self._proposed:
                    self._proposed.add(config)
                    self._waiting.add(config)
                    return config
            if self._waiting or not self._plan():
                return None

    def tell(self, config: Config, seconds: float | None) -> None:
        """Say what a configuration took; None where it failed."""
        self._waiting.discard(config)
        time = math.inf if seconds is None else seconds
        self._times[config] = time
        if time < (math.inf if self.best is None else self._times[self.best]):
            self.best = config
            self._restarts = 0
        if time < self._times.get(self._center, math.inf):
            # Downhill: what was planned around the old center is less interesting now.
            self._center = config
            if not self.whole:
                self._queue.clear()

    def _plan(self) -> bool:
        """Fill the queue; return whether there is anything left to try."""
        if self.whole:
            return self._add(sorted(self.knobs.all(), key=self._distance))
        if self._add(self.knobs.neighbors(self._center)):
            return True
        if self._center == self.best and self._add(self.knobs.lines(self._center)):
            return True
        if self._restarts >= _RESTARTS:
            return False
        self._restarts += 1
        for _ in range(100):
            config = self.knobs.random(self._random)
            if self._add([config]):
                self._center = config
                return True
        return False

    def _distance(self, config: Config) -> int:
        steps = 0
        for values, (_, now), (_, then) in zip(
            self.knobs.choices, config, self.knobs.start, strict=True
        ):
            steps += abs(values.index(now) - values.index(then))
        return steps

    def _add(self, configs: list[Config]) -> bool:
        new = [config for config in configs if config not in self._proposed]
        self._queue.extend(new)
        return bool(new)
