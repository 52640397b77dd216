"""Which calls get a plan: those that return, as long as there is room for their plans."""

from __future__ import annotations

from collections import OrderedDict

# Of one part. A mixture of experts has a call an expert and layer, each of other sizes.
MOST_PLANS = 64
MOST_REMEMBERED = 1024
MOST_PATIENCE = 1024  # sightings


class Returning:
    """Counts how often each key is seen.

    Making a plan costs as much as dozens of calls without one: sizes that never return shall not
    pay for it.  Nor shall those that return only after their plan has made room for others; so
    each time that this happens, twice as many sightings are asked for.

    Args:
        patience: Sightings of a key before the one that a plan is made at.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._seen: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._planned: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def due(self, key: tuple[int, ...]) -> bool:
        """Take note of a call that has no plan; return whether it is to get one."""
        if key in self._planned:  # it had one
            del self._planned[key]
            self.patience = min(max(2 * self.patience, 2), MOST_PATIENCE)
        before = self._seen.pop(key, 0)
        if before >= self.patience:
            self._planned[key] = None
        else:
            self._seen[key] = before + 1
        for remembered in (self._planned, self._seen):
            if len(remembered) > MOST_REMEMBERED:
                remembered.popitem(last=False)
        return key in self._planned


__all__ = ["MOST_PLANS", "Returning"]
