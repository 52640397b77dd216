"""Candidates that are built side by side, ahead of their being timed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType

from fusec.timing.measure import Call
from fusec.tune.plan_search import PlanSearch, Point

# Where the processors that build are those that are timed.
_AHEAD = max(2, min(4, os.cpu_count() or 2))
_LOOK = 0.05  # seconds between looks at whether the search has to end


@dataclass(eq=False)
class CandidateBuild:
    """What is tried, its text, and what comes of building it."""

    point: Point
    text: str
    call: Future[Call]


class Builds:
    """Keeps a few proposals of a search under construction.

    Args:
        search: Proposes.
        text_of: Returns the text of what is proposed.
        build: Builds a text; called from several threads at once.
        depth: How many are built side by side; 0 for what the processors allow.
        overlap: Whether one may be timed while others are built. Else all wait for each other:
            timed calls want the cores for themselves.
    """

    def __init__(
        self,
        search: PlanSearch,
        text_of: Callable[[Point], str],
        build: Callable[[str], Call],
        *,
        depth: int,
        overlap: bool,
    ) -> None:
        self.search = search
        self.text_of = text_of
        self.build = build
        self.depth = depth or _AHEAD
        self.overlap = overlap
        self._pool = ThreadPoolExecutor(self.depth, "fusec-tune")
        self._waiting: deque[CandidateBuild] = deque()
        self._begun = False

    def __enter__(self) -> Builds:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Begin nothing more; a compiler still at work is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._waiting.clear()

    def ready(self, over: Callable[[], str]) -> list[CandidateBuild] | str:
        """Return candidates that are built, in the order proposed; the search's first comes alone.

        Args:
            over: Returns why the search has to end now; empty while it may go on.

        Returns:
            The candidates, or why there are none: ``finished`` where nothing is left to try.
        """
        while len(self._waiting) < self.depth:
            point = self.search.propose()
            if point is None:
                break
            text = self.text_of(point)
            self._waiting.append(CandidateBuild(point, text, self._pool.submit(self.build, text)))
        if not self._waiting:
            return "finished"
        wanted = list(self._waiting)
        if self.overlap and not self._begun:
            wanted = wanted[:1]  # everything is measured against what the search starts from
        when = FIRST_COMPLETED if self.overlap else ALL_COMPLETED
        while True:
            done = [each for each in wanted if each.call.done()]
            if done and (self.overlap or len(done) == len(wanted)):
                break
            if reason := over():
                return reason
            wait([each.call for each in wanted], timeout=_LOOK, return_when=when)
        self._begun = True
        for each in done:
            self._waiting.remove(each)
        return done


__all__ = ["Builds", "CandidateBuild"]
