"""What somebody wants of the fusion, whatever the heuristics say: for trying it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Why a pair stayed apart that nothing else keeps apart.
FORBIDDEN = "you asked for them apart"


@dataclass(frozen=True)
class LoopOverride:
    """How the loops of a kernel are to run, whatever the heuristics of its target say.

    Attributes:
        step: A computation that the kernel is made of, by the name that lowering gave it.
        strategy: The kind of loops, as the target calls it; empty for the heuristics' own.
        settings: Techniques to leave out, with 0, and sizes with their values.
    """

    step: str
    strategy: str = ""
    settings: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Overrides:
    """Pairs of computations, by the names that lowering gave them, and how loops are to run.

    None of it makes a fusion legal: what the dependencies or the loops forbid stays apart, and the
    decision says why.

    Attributes:
        apart: Pairs that must not share a kernel.
        together: Pairs that share one wherever it is legal, however little it saves.
        loops: How the loops of kernels are to run.
    """

    apart: frozenset[frozenset[str]] = frozenset()
    together: frozenset[frozenset[str]] = frozenset()
    loops: tuple[LoopOverride, ...] = ()

    def over(self, others: Overrides) -> Overrides:
        """Return both: these, and the others as far as these do not want the opposite."""
        return Overrides(
            self.apart | (others.apart - self.together),
            self.together | (others.together - self.apart),
            self.loops + tuple(each for each in others.loops if each not in self.loops),
        )

    def forbids(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Whether one of ``first`` must stay apart from one of ``second``."""
        return bool(self.apart) and _between(self.apart, set(first), set(second))

    def wants(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Whether one of ``first`` is wanted together with one of ``second``."""
        return bool(self.together) and _between(self.together, set(first), set(second))


def pair(first: str, second: str) -> frozenset[str]:
    """Return a pair as ``Overrides`` holds it."""
    return frozenset((first, second))


def _between(pairs: frozenset[frozenset[str]], first: set[str], second: set[str]) -> bool:
    return any(
        (a in first and b in second) or (b in first and a in second)
        for a, b in (sorted(each) for each in pairs if len(each) == 2)
    )
