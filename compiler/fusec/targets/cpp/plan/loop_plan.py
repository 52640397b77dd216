"""What a plan is: all that is decided of a kernel's loops before a line of it is written.

The functions beside this file make plans, ``choose.py`` first; ``loops``, ``memory`` and ``vector``
write what a plan says and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fusec.codegen.common.reduction_passes import ReductionPass
from fusec.ir.body import Body
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Load, Node
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.deinterleave import Deinterleaved
from fusec.targets.cpp.plan.facts import Decision
from fusec.targets.cpp.plan.prefetch import Request
from fusec.targets.cpp.plan.row_passes import RowSteps
from fusec.targets.cpp.plan.row_reuse import Repeated
from fusec.targets.cpp.plan.scan_passes import Stretch
from fusec.targets.cpp.plan.staging import Staging
from fusec.targets.cpp.plan.tiles import Turned
from fusec.targets.cpp.plan.wanted import KINDS, TECHNIQUES, Wanted


@dataclass(frozen=True)
class LoopConstant:
    """A tunable constant of the text: its value, what is worth trying, what it means."""

    name: str
    value: int
    among: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class Sharing:
    """How threads share loops.

    Attributes:
        shared: Whether they do.
        work: Where that is decided by each call: the elements that there are.
        grain: And how many of them make it worth while.
        rows: How many rows a thread takes at a time; None for an even share.
    """

    shared: bool
    work: Expr | None = None
    grain: LoopConstant | None = None
    rows: LoopConstant | None = None


@dataclass(frozen=True)
class InnerLoop:
    """How an innermost loop runs.

    Attributes:
        axis: What it runs along.
        blocks: Whether it is cut into blocks of a few cache lines.
        even: Whether all of these are full.
        requests: What it asks the memory for.
        staging: What goes through arrays: of a block, or of all of a short row.
        marks: The type of the marks that make it take four vectors side by side; or empty.
        angles: Arguments of functions that have a quick form where they are moderate.
        deinterleaved: Rows that it reads with a step of two, put apart before it.
        scalar: Whether it takes one element at a time.
        sharing: How threads share it, where it is the only loop.
        once: Whether it has one turn, and is no loop at all.
        line: Elements of a block.
        turns: How many it has where that is more than there are elements, so that the last vector
            is a whole one; 0 otherwise. Those beyond read nothing and add nothing.
    """

    axis: Symbol
    blocks: bool = False
    even: bool = False
    requests: tuple[Request, ...] = ()
    staging: Staging = field(default_factory=Staging)
    marks: str = ""
    angles: tuple[tuple[Node, ...], ...] = ()
    deinterleaved: tuple[Deinterleaved, ...] = ()
    scalar: bool = False
    sharing: Sharing | None = None
    once: bool = False
    line: int = field(default_factory=lambda: choices.LINE)
    turns: int = 0


@dataclass(frozen=True)
class Nest:
    """A nest of loops without reductions.

    Attributes:
        body: What it computes.
        sharing: How threads share it.
        inner: The innermost loops, one after the other: what each computes, and how it runs.
        block: Elements of the innermost loop that a thread takes, where it is cut for them.
        tile: The tiles that are turned over, if any.
        tables: What is computed once for all rows.
        repeated: What is kept from one row to the next.
        shared: What is computed once for all turns of the second innermost loop.
    """

    body: Body
    sharing: Sharing
    inner: tuple[tuple[Body, InnerLoop], ...] = ()
    block: LoopConstant | None = None
    tile: Turned | None = None
    tile_sizes: tuple[LoopConstant, ...] = ()
    tables: tuple[Node, ...] = ()
    repeated: tuple[Repeated, ...] = ()
    shared: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Pointwise:
    """Loops without reductions: nests that together make up the whole."""

    nests: tuple[Nest, ...]


@dataclass(frozen=True)
class RowPass:
    """One pass over a row, or over a tile of columns.

    Attributes:
        step: What it computes.
        loop: How its innermost loop runs.
        chunk: Elements that are added up, or searched, before they go into the row's result.
        stretches: The loops of a block of it, where it has scans.
        running: Whether its scans are sums that run by vectors.
    """

    step: ReductionPass
    loop: InnerLoop
    chunk: int | None = None
    stretches: tuple[Stretch, ...] = ()
    running: bool = False


@dataclass(frozen=True)
class Rows:
    """Reductions a row at a time.

    Attributes:
        sharing: How threads share the rows; or their pieces.
        steps: The passes over a row, and what is kept between them.
        passes: How each runs.
        next_row: What is asked for of the next row, whose place has to be computed.
        busiest: The pass that asks for it.
        cut: The axis that is cut into pieces, which threads share.
        pieces: Into how many.
    """

    sharing: Sharing
    steps: RowSteps
    passes: tuple[RowPass, ...]
    next_row: tuple[Load, ...] = ()
    busiest: int = -1
    cut: Symbol | None = None
    pieces: LoopConstant | None = None


@dataclass(frozen=True)
class RowAndColumn:
    """Reductions a row at a time that also add to sums of the columns.

    Attributes:
        body: What is computed; the sums are those of a piece.
        piece: The loop over pieces of the rows, which threads share.
        count: How many rows a piece has.
        rows: How each row runs.
    """

    body: Body
    piece: Symbol
    count: int
    rows: Rows


@dataclass(frozen=True)
class Columns:
    """Reductions of columns side by side.

    Attributes:
        column: The axis that vectors run along.
        sharing: How threads share the tiles; or the pieces of the rows.
        steps: The passes.
        passes: How each runs.
        width: Columns of a tile.
        whole: Whether one tile has all columns.
        even: Whether the tiles are full.
        pieces: Into how many pieces the rows are cut for threads; None if they are not.
        busiest: Of short rows turned over, the pass that asks for the next tile; -1 for columns.
    """

    column: Symbol
    sharing: Sharing
    steps: RowSteps
    passes: tuple[RowPass, ...]
    width: LoopConstant
    whole: bool
    even: bool
    pieces: LoopConstant | None = None
    busiest: int = -1


@dataclass(frozen=True)
class Scatter:
    """Updates of elements that the data choose.

    Attributes:
        shared: The loop that threads share; None where none may be, or that cannot pay.
        block: Elements of the innermost loop that a thread takes at least, where it is that one.
        vector: Whether the innermost loop is a vector loop.
    """

    shared: Symbol | None
    block: LoopConstant | None
    vector: bool


Loops = Pointwise | Rows | RowAndColumn | Columns | Scatter


@dataclass(frozen=True)
class LoopPlan:
    """All that is decided of a kernel's loops.

    Attributes:
        kind: ``pointwise``, ``rows``, ``columns``, ``short_rows``, ``split_reduction``,
            ``row_and_column`` or ``scatter``.
        loops: The plan of that kind.
        streamed: Results that are written past the caches.
        wanted: What somebody wanted of them.
        decisions: What was decided and why, in order, for a reader.
    """

    kind: str
    loops: Loops
    streamed: frozenset[str] = frozenset()
    wanted: Wanted = field(default_factory=Wanted)
    decisions: tuple[Decision, ...] = ()

    def __str__(self) -> str:
        return "\n".join(str(decision) for decision in self.decisions)

    def alternatives(self) -> Iterator[str]:
        """Yield what could be asked for instead, as rules about loops say it.

        What somebody has asked for is not among it.
        """
        decided = {decision.name for decision in self.decisions} - dict(self.wanted.settings).keys()
        yield from (f"{name}=0" for name in TECHNIQUES if name in decided)
        if self.kind in KINDS and not self.wanted.kind:
            yield from (kind for kind in KINDS if kind != self.kind)


__all__ = [
    "Columns",
    "InnerLoop",
    "LoopConstant",
    "LoopPlan",
    "Loops",
    "Nest",
    "Pointwise",
    "RowAndColumn",
    "RowPass",
    "Rows",
    "Scatter",
    "Sharing",
]
