"""What lies beyond the end of a row: choosing it so that reductions need no mask of their own.

A masked load yields some number where nothing is read.  If that number is chosen well - minus
infinity under a maximum, zero under a sum - then the elements outside the row change nothing,
and the reduction needs no ``tl.where``.  ``Padding`` chooses the numbers and proves, by computing
with them, which reductions come out clean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fusec.codegen.common.identities import padding_value
from fusec.codegen.common.relaxed_maths import follows_maximum
from fusec.ir.body import Buffer
from fusec.ir.index import Symbol
from fusec.ir.node import Cast, Const, Load, Node, Number, Op, Reduce
from fusec.ir.scalars import SCALARS

_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}
_ZERO_TO_ZERO = frozenset(name for name, scalar in SCALARS.items() if scalar.keeps_zero)


class Padding:
    """The padding of the loads of one kernel.

    Attributes:
        loads: Load to what it yields outside the row.
        clean: The reductions whose argument is their own identity there.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inner: Symbol,
        free: Mapping[Node, frozenset[Symbol]],
        buffers: Mapping[str, Buffer],
    ) -> None:
        self._free = free
        self._inner = inner
        self._buffers = buffers
        self.loads: dict[Load, Number] = {}
        self.clean: set[Reduce] = set()
        reductions = [n for n in nodes if isinstance(n, Reduce)]
        self._choose(reductions)
        chosen = self.loads
        self.clean = {r for r in reductions if self._is_clean(r)}
        needed = {n for r in self.clean for n in self._reach(r) if isinstance(n, Load)}
        self.loads = {load: value for load, value in chosen.items() if load in needed}

    def _choose(self, reductions: Sequence[Reduce]) -> None:
        wanted: dict[Load, set[Number]] = {}
        for reduction in reductions:
            node = reduction.args[0]
            while isinstance(node, Cast) and not node.bitcast:
                node = node.args[0]
            if isinstance(node, Load) and self._is_free(node):
                wanted.setdefault(node, set()).add(padding_value(reduction))
        for reduction in reductions:
            for node in self._reach(reduction):
                if isinstance(node, Load) and self._is_free(node):
                    values = wanted.get(node, {0})
                    if len(values) == 1:
                        self.loads[node] = next(iter(values))

    def _is_free(self, load: Load) -> bool:
        """Whether a load's mask is that of the row, for its address varies along the row.

        That of an expanded tensor does not: it is loaded once, and the same outside.  What stands
        in for a product has no buffer; it is a tile, with a value for each index.
        """
        if load.mask is not None or self._inner not in self._free[load]:
            return False
        buffer = self._buffers.get(load.buffer)
        places = load.index if buffer is None else (buffer.offset(load.index),)
        symbols = {symbol for place in places for symbol in place.symbols()}
        computed = (s.payload for s in symbols if isinstance(s.payload, Node))
        return self._inner in symbols or any(self._inner in self._free[node] for node in computed)

    def _reach(self, reduction: Reduce) -> list[Node]:
        """Return the nodes below a reduction, not looking behind other reductions."""
        found: list[Node] = []
        stack = [reduction.args[0]]
        while stack:
            node = stack.pop()
            if node in found or isinstance(node, Reduce):
                continue
            found.append(node)
            stack.extend(node.args)
        return found

    def _is_clean(self, reduction: Reduce) -> bool:
        value = self.outside(reduction.args[0])
        return value is not None and value == padding_value(reduction)

    def outside(self, node: Node) -> Number | None:
        """Return what ``node`` is outside the row; None where that is not known."""
        if isinstance(node, Const):
            return node.value
        if self._inner not in self._free[node]:
            return None
        if isinstance(node, Load):
            return self.loads.get(node)
        if isinstance(node, Cast) and not node.bitcast:
            value = self.outside(node.args[0])
            # small whole numbers and infinities survive every conversion between floats
            both = node.dtype.is_floating_point and node.args[0].dtype.is_floating_point
            return value if value == 0 or both else None
        if not isinstance(node, Op):
            return None
        if node.name == "exp" and self._is_below_maximum(node.args[0]):
            return 0.0
        values = [self.outside(arg) for arg in node.args]
        if node.name == "where":
            return None if values[0] is None else values[1 if values[0] else 2]
        if node.name in ("logical_and", "bitwise_and") and 0 in values:
            return 0
        if any(v is None for v in values):
            return None
        known = [float(v) for v in values if v is not None]
        result: float | None = None
        if node.name in _FOLD and len(known) == 2:
            result = _FOLD[node.name](*known)
        elif node.name in _ZERO_TO_ZERO and known[0] == 0:
            result = 0.0
        return result if result is not None and not math.isnan(result) else None

    def _is_below_maximum(self, difference: Node) -> bool:
        """Whether this is ``x - max(x)``, with minus infinity for ``x`` outside the row.

        Where the maximum is minus infinity itself the difference is NaN, but so it is inside.
        """
        if not (isinstance(difference, Op) and difference.name == "sub"):
            return False
        value, shift = difference.args
        if self.outside(value) != -math.inf or self._inner in self._free[shift]:
            return False
        return follows_maximum(shift, value)
