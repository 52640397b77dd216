"""One kernel of a file while it is written: what it computes, and which names are in use."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusec.codegen.common.signatures import identifier
from fusec.ir.body import Buffer
from fusec.ir.index import Expr, Symbol, lower_bound, upper_bound
from fusec.ir.node import Const, IndexValue, Load, Node, Op
from fusec.ir.scalars import COMPARISONS
from fusec.targets.triton.plan.padding import Padding
from fusec.targets.triton.plan.pairs import Pair, StorePair
from fusec.targets.triton.plan.tiling import LIMIT, MOST_TIMES, Dim, Tile, extents, times_reach
from fusec.targets.triton.text.expressions import Needs
from fusec.targets.triton.text.odd_loop import OddLoop
from fusec.targets.triton.text.writer import Writer


@dataclass
class KernelWriter:
    """One ``@triton.jit`` function being written.

    Attributes:
        tile: What a program computes.
        buffers: By name.
        parameters: Buffer name to the name in the text.
        needs: What the file's text relies on.
        writer: Where the lines go.
        taken: Names in use.
        free: Node to the axes that it depends on.
        index_type: ``tl.int32``, ``tl.int64``, or ``INDEX`` where the sizes decide.
        favorite: Node to the name that the user gave it.
        size_names: Symbolic size to its name in the text.
        relaxed: The nodes that quick instructions may compute.
        padding: What loads yield outside the row; None without a reduction.
        evict: Number of the pass and buffer to how long the cache should keep it.
        names: Node to the name it got in this kernel.
        reduction_names: Reduction to the name it should get in every kernel of the file.
        lined: The dimensions whose index the text has as a vector, too.
        pairs: Load to the pair that it is loaded as a part of.
        store_pairs: Pairs of stores that are written as one.
        step: Rows, or elements of a row, that a loop takes at a time, as generated.
        access: Elements of a 16-byte access, where running values are shared by ``GROUP`` rows.
        odd: How a loop reads rows that begin anywhere; None where there are none.
        views: Buffers of bytes as buffers of words.
        knows_masks: Whether the mask of a lane may be known to be false as the kernel is compiled.
    """

    tile: Tile
    buffers: Mapping[str, Buffer]
    parameters: Mapping[str, str]
    needs: Needs
    writer: Writer
    taken: set[str]
    free: Mapping[Node, frozenset[Symbol]]
    index_type: str
    favorite: Mapping[Node, str]
    size_names: Mapping[Symbol, str] = field(default_factory=dict)
    relaxed: frozenset[Node] = frozenset()
    padding: Padding | None = None
    evict: Mapping[tuple[int, str], str] = field(default_factory=dict)
    names: dict[Node, str] = field(default_factory=dict)
    reduction_names: dict[Node, str] = field(default_factory=dict)
    lined: set[Dim] = field(default_factory=set)
    pairs: Mapping[Load, Pair] = field(default_factory=dict)
    store_pairs: tuple[StorePair, ...] = ()
    step: int = 0
    access: int = 0
    odd: OddLoop | None = None
    views: frozenset[str] = frozenset()
    knows_masks: bool = True

    @functools.cached_property
    def reach(self) -> list[Expr]:
        """How far positions go: what ``extents`` says."""
        return extents(self.tile.body, self.buffers)

    @functools.cached_property
    def compared(self) -> frozenset[Node]:
        """The positions that are written in comparisons only, as what they are of the indices."""
        nodes = self.tile.body.nodes()
        used = {a for n in nodes if not self.compares_positions(n) for a in n.args}
        used |= {store.value for store in self.tile.body.stores}
        return frozenset(n for n in nodes if isinstance(n, IndexValue) and n not in used)

    def compares_positions(self, node: Node) -> bool:
        """Whether a node compares integers that the index type holds for sure."""
        if not (isinstance(node, Op) and node.name in COMPARISONS):
            return False
        return all(self.is_position(arg) for arg in node.args)

    def is_position(self, node: Node) -> bool:
        """Whether the index type holds an integer for sure."""
        if isinstance(node, Const):
            return not node.dtype.is_floating_point and -LIMIT < node.value < LIMIT
        if not isinstance(node, IndexValue) or node.dtype.is_floating_point:
            return False
        return self.fits_index(node.expr)

    def fits_index(self, expr: Expr) -> bool:
        """Whether the index type holds a position: by its bounds, or as it lies beside a tensor."""
        low, high = lower_bound(expr), upper_bound(expr)
        if low is not None and high is not None and low > -LIMIT and high < LIMIT:
            return True
        times = times_reach(expr, self.reach) if self.index_type == "INDEX" else None
        if times is None or times > MOST_TIMES:
            return False
        self.needs.reaching |= times > 1
        return True

    def dims(self, symbols: Iterable[Symbol]) -> frozenset[Dim]:
        """Return the tile dimensions of loop axes."""
        found = (self.tile.dim_of(s) for s in symbols)
        return frozenset(d for d in found if d is not None)

    def node_dims(self, node: Node) -> frozenset[Dim]:
        """Return the dimensions that a value varies along."""
        return self.dims(self.free[node])

    def expr_dims(self, expr: Expr) -> frozenset[Dim]:
        """Return the dimensions that an index varies along, computed parts included."""
        found: frozenset[Dim] = frozenset()
        for symbol in expr.symbols():
            if isinstance(symbol.payload, Node):
                found |= self.node_dims(symbol.payload)
        return found | self.dims(s for s in expr.symbols() if s.kind == "axis")

    def name(self, suggested: str, fallback: str = "value") -> str:
        """Return a name that is not in use."""
        return identifier(suggested, self.taken, fallback)
