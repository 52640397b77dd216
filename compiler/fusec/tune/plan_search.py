"""The search over plans of a kernel's loops, and over the tunables of each.

A plan is a text of its own, with tunables of its own.  Each is tried as it is written, first the
one in use; then the tunables of the fastest are searched, then those of plans close to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fusec.tune.knobs import Config, Knobs
from fusec.tune.search import Search

# Plans whose first time is up to this many times the fastest one's are searched as well.
_CLOSE = 1.15


@dataclass(frozen=True)
class Point:
    """A plan, and values of its tunables."""

    plan: str
    values: Config


class PlanSearch:
    """Proposes points, each once, and is told their times; as ``Search`` does of one text.

    Args:
        plans: The tunables of each plan by its name, the plan in use first.
        seed: Of the random part.
        whole: Whether to try everything.
    """

    def __init__(
        self, plans: Mapping[str, Knobs], *, seed: int | None = None, whole: bool = False
    ) -> None:
        self._searches = {
            name: Search(knobs, seed=seed, whole=whole) for name, knobs in plans.items()
        }
        self._whole = whole
        self._first = dict.fromkeys(plans, math.inf)  # the time of each as it is written
        self._unseen = list(plans)
        self._answered = 0

    @property
    def total(self) -> int:
        """How many points the search means to try, as far as it can tell."""
        meant = set(self._searches) if self._unseen and self._whole else set(self._order())
        return sum(s.total if name in meant else 1 for name, s in self._searches.items())

    def propose(self) -> Point | None:
        """Return a point to try, or None if there is none for now.

        It is over when this returns None though every earlier proposal was answered.
        """
        if self._unseen:
            return self._next(self._unseen.pop(0))
        if self._answered < len(self._searches):
            return None  # which plan to go on with, the answers say
        for name in self._order():
            search = self._searches[name]
            point = self._next(name)
            if point is not None or search.waits:
                return point
        return None

    def tell(self, point: Point, seconds: float | None) -> None:
        """Say what a point took; None where it failed."""
        search = self._searches[point.plan]
        if point.values == search.knobs.start:
            self._answered += 1
            self._first[point.plan] = math.inf if seconds is None else seconds
        search.tell(point.values, seconds)

    def _next(self, name: str) -> Point | None:
        values = self._searches[name].propose()
        return None if values is None else Point(name, values)

    def _order(self) -> list[str]:
        """Return the plans whose tunables are searched, the most promising first."""
        ranked = sorted(self._first, key=lambda name: self._first[name])
        limit = math.inf if self._whole else _CLOSE * self._first[ranked[0]]
        return [name for name in ranked if self._first[name] <= limit]


__all__ = ["PlanSearch", "Point"]
