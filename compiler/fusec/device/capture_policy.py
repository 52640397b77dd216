"""When a graph is captured, and which inputs it copies: decided from where inputs are found.

Pure bookkeeping, a ``History`` a key (stream, sizes, alignment):

- the first calls run as they are, so that everything is compiled, and are watched;
- an input that operators take and that was at the same place twice is taken to stay there: it is
  not copied;
- one that moved is copied, unless it alternates between few places: then each of them has a graph;
- one that is a resident of another graph (``residents.py``) is never copied while it is one; calls
  in which it is elsewhere, because that graph could not run, have a history of their own;
- keys, and graphs, are bounded; the least recently used goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

# Calls that run before capture. After the first one, memory that the first one kept (gradients,
# states of an optimizer) has moved what follows to where it stays: the second and third compare.
WARM_UPS = 2
# Graphs of one key, for inputs that alternate between places.
MOST_PLACES = 2
MOST_GRAPHS = 8  # of one part, all keys together
MOST_KEYS = 32  # keys remembered
# Captures of one key, each of which costs as much as hundreds of calls: where graphs are dropped
# for others before they are used again, they are of no use.
MOST_CAPTURES = 8
# Graphs of one part that keep what backward needs: each holds that much memory all the time.
MOST_RESIDING = 2
# Added to keys, for calls that find residents where they belong, or held by somebody.
AT_HOME = -1
HELD = -2


@dataclass
class History:
    """What is known of one key.

    Attributes:
        calls: How many calls there were without a graph that fits.
        places: Where the baked inputs were at the latest of them.
        moved: Inputs that were found in more than one place, and may be copied.
        captured: Graphs captured since the last input was added to ``moved``.
        captures: Graphs captured in all.
        refused: Why there is no graph; empty where there is, or will be.
    """

    calls: int = 0
    places: dict[int, int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    captured: int = 0
    captures: int = 0
    refused: str = ""


@dataclass(frozen=True)
class GraphDecision:
    """What to do with a call that no graph fits.

    Attributes:
        capture: Whether to capture a graph for it.
        copied: Inputs that the graph copies.
        forget: Whether the key's other graphs are of no use any more.
    """

    capture: bool = False
    copied: frozenset[int] = frozenset()
    forget: bool = False


class Policy:
    """Decides, call by call.

    Args:
        unmovable: Inputs that no copy can stand for, with their names.
    """

    def __init__(self, unmovable: Mapping[int, str]) -> None:
        self.unmovable = unmovable
        self.histories: OrderedDict[tuple[int, ...], History] = OrderedDict()

    def history(self, key: tuple[int, ...]) -> History:
        """Return what is known of a key, and note that it was used."""
        found = self.histories.setdefault(key, History())
        self.histories.move_to_end(key)
        while len(self.histories) > MOST_KEYS:
            self.histories.popitem(last=False)
        return found

    def key(self, key: tuple[int, ...], home: Collection[int]) -> tuple[int, ...]:
        """Return the key of the history that a call belongs to.

        Args:
            key: Of the call.
            home: The inputs that are residents of a graph.
        """
        if not home:
            return key
        resident_key = (*key, AT_HOME)
        if resident_key not in self.histories and key in self.histories:
            # It began before there were residents: that these came from elsewhere says nothing.
            before = self.histories.pop(key)
            self.histories[resident_key] = History(before.calls, before.places)
        return resident_key

    def decide(
        self,
        key: tuple[int, ...],
        places: Mapping[int, int],
        baked: Collection[int],
        home: Collection[int] = (),
    ) -> GraphDecision:
        """Decide about a call that no graph fits.

        Args:
            key: Of the history that it belongs to.
            places: Addresses of its inputs.
            baked: The inputs that a graph would know by heart.
            home: Those of them that are residents of a graph.
        """
        history = self.history(key)
        history.calls += 1
        before, history.places = history.places, {i: places[i] for i in baked}
        if history.refused:
            return GraphDecision()
        moved = {i for i in baked if before and before.get(i) != places[i]} - history.moved
        moved -= set(home)
        if history.calls <= WARM_UPS:
            return GraphDecision()
        forget = False
        if not history.captured:
            # Seen to move just now: from the start, a copy.
            history.moved |= moved - set(self.unmovable)
        elif history.captured >= MOST_PLACES:
            stuck = [self.unmovable[i] for i in sorted(moved) if i in self.unmovable]
            if stuck:
                history.refused = (
                    f"{' and '.join(stuck)} moved from call to call and cannot be copied, because "
                    "an operator writes to it or takes a view that reaches beyond it"
                )
                return GraphDecision(forget=True)
            history.moved |= moved
            history.captured = 0
            forget = True
        if history.captures >= MOST_CAPTURES:
            history.refused = (
                f"it was captured {MOST_CAPTURES} times, and dropped for other sizes or places "
                "each time"
            )
            return GraphDecision(forget=True)
        history.captured += 1
        history.captures += 1
        return GraphDecision(True, frozenset(history.moved), forget)

    def refuse(self, key: tuple[int, ...], reason: str) -> None:
        """Capture no more graphs for a key."""
        self.history(key).refused = reason

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why some calls have no graph."""
        found = (each.refused for each in self.histories.values() if each.refused)
        return tuple(dict.fromkeys(found))


__all__ = [
    "AT_HOME",
    "HELD",
    "MOST_CAPTURES",
    "MOST_GRAPHS",
    "MOST_KEYS",
    "MOST_PLACES",
    "MOST_RESIDING",
    "WARM_UPS",
    "GraphDecision",
    "History",
    "Policy",
]
