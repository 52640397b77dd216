"""What somebody wants of a kernel's loops, whatever the heuristics say: to try it, to measure it.

A wish never makes a loop wrong: what a body does not allow stays as the heuristics have it, and
the plan's decisions say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.errors import BadOption

KINDS = {
    "rows": "a row at a time, in passes",
    "columns": "columns side by side",
    "short_rows": "short rows turned over, side by side",
    "split_reduction": "each row in pieces that threads share",
}
TECHNIQUES = {
    "threads": "threads share the outer loops",
    "prefetch": "the memory is asked for what comes later",
    "staging": "halves and random words go through arrays, a block at a time",
    "interleave": "costly loops take four vectors side by side",
    "nontemporal": "what is larger than the caches is written past them",
    "split_ranges": "loops are cut where a condition changes",
    "split_axes": "an axis that is several in one has a loop for each",
    "tiles": "what lies the other way is turned over, a tile at a time",
    "tables": "what only the innermost loop decides is computed once",
    "row_reuse": "rows that several rows are made from are kept",
    "deinterleave": "rows read with a step of two are put apart first",
    "moderate_angles": "sines and remainders have a quick form where they are moderate",
    "full_vectors": "a short row's last vector is a whole one, of which a part counts",
    "keep_rows": "costly values of a row are kept for later passes",
    "split_rows": "threads share the rows of a reduction down columns",
}
# Sizes that a plan fixes; each is a tunable constant of the text as well.
SIZES = ("GRAIN", "ROWS", "COLUMNS", "PIECES", "BLOCK", "TILE_ROWS", "TILE_COLUMNS", "UNROLL")


@dataclass(frozen=True)
class Wanted:
    """Overrides for one kernel.

    Attributes:
        kind: One of ``KINDS``; empty for the heuristics' own.
        settings: Techniques to leave out, with 0, and sizes with their values.
    """

    kind: str = ""
    settings: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind and self.kind not in KINDS:
            raise BadOption("kind of loops", self.kind, KINDS)
        for name, _ in self.settings:
            if name not in TECHNIQUES and name not in SIZES:
                raise BadOption("setting of loops", name, [*TECHNIQUES, *SIZES])

    def allows(self, technique: str) -> bool:
        """Whether nobody asked for a technique to be left out."""
        assert technique in TECHNIQUES, technique
        return dict(self.settings).get(technique, 1) != 0

    def size(self, name: str, value: int, among: tuple[int, ...]) -> int:
        """Return what was asked for, if it is one of the choices; else ``value``."""
        wanted = dict(self.settings).get(name, value)
        return wanted if wanted in among else value


__all__ = ["KINDS", "SIZES", "TECHNIQUES", "Wanted"]
