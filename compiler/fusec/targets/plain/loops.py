"""The loops of a plain kernel, and what is computed in each.

A value is computed where it is used: in the innermost loop, unless it takes a while (a function, a
check, what follows from a reduction) and an outer loop decides it.  Values that are used once are
written into what uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack

import torch

from fusec.codegen.common.c_language import EQUAL, SUM, Expression, UnsupportedNode, literal
from fusec.codegen.common.identities import COMBINES, identity
from fusec.codegen.common.reduction_passes import ReductionPass, plan_passes
from fusec.codegen.common.value_names import reduction_word
from fusec.ir.body import Store
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, Op, Reduce, Scan, indirect_nodes
from fusec.ir.scalars import cost_of
from fusec.ir.shapes import flatten
from fusec.targets.plain.expressions import TYPES, conversion, operation
from fusec.targets.plain.values import Values, ValueWriter

_COSTLY = 4  # additions that an outer loop is worth
_WORDS = {
    "sum": "sum",
    "prod": "product",
    "max": "largest",
    "min": "smallest",
    "any": "any",
    "all": "all",
    "xor": "parity",
    "argmax": "place",
    "argmin": "place",
    "logsumexp": "log_sum",
}


class Loops(ValueWriter):
    """Writes one kernel's loops."""

    # -- the kernel -------------------------------------------------------------------------

    def write(self) -> None:
        """Write them all."""
        rows = bool(self.body.reduce_axes) or self.body.has_reduction
        plan = plan_passes(self.body)
        later = {n for n in self.nodes if n in plan.elementwise or plan.ready[n]}

        def innermost(values: Values) -> None:
            if rows:
                self.row(values, plan.passes)
            else:
                self.stores(values, self.body.stores)

        self.nest(self.body.axes, {}, [n for n in self.nodes if n not in later], innermost)

    def nest(
        self,
        axes: Sequence[Symbol],
        values: Values,
        nodes: Sequence[Node],
        innermost: Callable[[Values], None],
    ) -> None:
        """Write loops, one in the other, with what each decides and is worth it.

        Args:
            axes: Of the loops, the outermost first.
            values: What is known outside of them.
            nodes: Those that may be computed in them.
            innermost: Writes what is in the innermost one, given what is known there.
        """
        known = dict(values)
        opened = {axis for axis in self.body.axes + self.body.reduce_axes if axis not in axes}
        with ExitStack() as stack:
            for number, axis in enumerate((None, *axes)):
                if axis is not None:
                    opened.add(axis)
                    if axis in self.letters:
                        stack.enter_context(self.loop(axis))
                if number < len(axes):
                    here = [n for n in nodes if self.is_costly(n) and self.free[n] <= opened]
                    self.compute(here, known, named=here)
            innermost(known)

    def loop(self, axis: Symbol) -> AbstractContextManager[None]:
        """Open a loop."""
        assert axis.size is not None
        i, size = self.letters[axis], self.index(axis.size, {})
        return self.writer.block(f"for (int64_t {i} = 0; {i} < {size}; ++{i})")

    def is_costly(self, node: Node) -> bool:
        """Whether a value is computed no more often than it has to be."""
        if isinstance(node, Op):
            check = is_check(node)
            return check or cost_of(node.name) >= _COSTLY
        return False

    # -- rows -------------------------------------------------------------------------------

    def row(self, values: Values, passes: Sequence[ReductionPass]) -> None:
        """Write the passes over the reduced loops for one point of the outer ones."""
        rows: list[Store] = []
        for step in passes:
            before = [n for n in step.before if self.is_costly(n) or n in self.outcomes]
            wanted = [n for n in before if self.used_elsewhere(n, before)]
            self.compute(wanted, values, named=wanted)
            rows += step.row_stores
            if step.row_stores:
                # before a loop overwrites what they are computed from
                made = [store.value for store in step.row_stores]
                self.compute(made, values, named=made if step.stores else ())
            if step.reductions:
                self.reduce(values, step.reductions)
            if step.stores:
                self.elements(values, step.stores)
        self.stores(values, rows)

    def used_elsewhere(self, node: Node, here: Collection[Node]) -> bool:
        """Whether what is not computed together with a value uses it."""
        users = self.users.get(node, [])
        return not users or any(user not in here for user in users)

    def elements(self, values: Values, stores: Sequence[Store]) -> None:
        """Write the loop that stores an element for each point of the reduced loops."""
        inside = self.closure(self.roots(stores), values)
        self.start_scans(inside)
        sums = {store.buffer for store in self.body.sums}

        def innermost(known: Values) -> None:
            self.stores(known, stores, sums)

        self.nest(self.body.reduce_axes, values, inside, innermost)

    def reduce(self, values: Values, reductions: Sequence[Reduce]) -> None:
        """Write one loop for several reductions; their results are known afterwards."""
        long = {axis for axis in self.body.reduce_axes if axis.size != 1}
        started = []
        inside = self.closure([node.args[0] for node in reductions], values)
        for node in reductions:
            if {axis for axis in node.axes if axis.size != 1} != long:
                raise UnsupportedNode("a reduction over a part of the body's reduced axes")
            started.append((node, *self.start(node)))
        self.start_scans(inside)

        def innermost(known: Values) -> None:
            self.compute([node.args[0] for node in reductions], known)
            for node, place, best in started:
                self.take(node, known[node.args[0]], place, best)

        self.nest(self.body.reduce_axes, values, inside, innermost)
        for node, place, _ in started:
            wide = self.kept_type(node)
            whole = node.kind.startswith("arg") or wide == node.dtype
            result = (
                Expression(place)
                if whole
                else conversion(wide, node.dtype, Expression(place), self.use)
            )
            values[node] = result

    def kept_type(self, node: Reduce | Scan) -> torch.dtype:
        """Return the type in which something is added up: floats as doubles."""
        kind = node.kind.removeprefix("arg")
        if kind in ("max", "min"):
            return node.args[0].dtype
        summed = kind in ("sum", "logsumexp") or isinstance(node, Scan)
        return torch.float64 if summed and node.dtype.is_floating_point else node.dtype

    def start(self, node: Reduce) -> tuple[str, str]:
        """Declare what a reduction has so far; return its name, and that of the best value."""
        dtype, kind = self.kept_type(node), node.kind
        word = reduction_word(node) if kind == "sum" else _WORDS[kind]
        place, best = self.name(word), ""
        if kind.startswith("arg"):
            self.writer.line(f"int64_t {place} = 0;", node.source)
            best = self.name("largest" if kind == "argmax" else "smallest")
        first = literal(identity(kind, dtype), dtype)
        self.writer.line(f"{TYPES[dtype]} {best or place} = {first};", node.source)
        return place, best

    def take(self, node: Reduce, value: Expression, place: str, best: str) -> None:
        """Write how a reduction takes a value."""
        kind, given, kept = node.kind, node.args[0].dtype, self.kept_type(node)
        if given != torch.float32 or kept != torch.float64:  # which C++ adds as doubles by itself
            value = conversion(given, kept, value, self.use)
        if kind.startswith("arg"):
            where = self.index(flatten(tuple(map(Expr.of, node.axes)), _sizes(node.axes)), {})
            value = self.named(value, kept, node)
            sign = ">" if kind == "argmax" else "<"
            newer = f"{value.text} {sign} {best}"
            if kept.is_floating_point:
                newer += f" || ({value.text} != {value.text} && {best} == {best})"
            with self.writer.block(f"if ({newer})", node.source):
                self.writer.line(f"{best} = {value.text};", node.source)
                self.writer.line(f"{place} = {where};", node.source)
        elif kind in ("max", "min"):
            value = self.named(value, kept, node)
            newer = f"{value.text} {'>' if kind == 'max' else '<'} {place}"
            if kept.is_floating_point:
                newer += f" || {value.text} != {value.text}"
            self.writer.line(f"if ({newer}) {place} = {value.text};", node.source)
        elif kind in ("sum", "prod") and (kept.is_floating_point or kept.itemsize >= 4):
            sign = "+" if kind == "sum" else "*"
            self.writer.line(f"{place} {sign}= {value.text};", node.source)
        else:
            both = [Expression(place), value]
            text = operation(COMBINES[kind], [kept, kept], kept, both, self.use)
            self.writer.line(f"{place} = {text.text};", node.source)

    # -- scans ------------------------------------------------------------------------------

    def start_scans(self, nodes: Iterable[Node]) -> None:
        """Declare what the scans among some nodes have before their first value."""
        for node in nodes:
            if not isinstance(node, Scan):
                continue
            kind = node.kind.removeprefix("arg")
            kept, second = self.kept_type(node), ""
            first = literal(identity("max" if kind == "logsumexp" else kind, kept), kept)
            word = "largest" if kind == "logsumexp" else _WORDS[kind]
            place = self.name(f"{word}_so_far")
            self.writer.line(f"{TYPES[kept]} {place} = {first};", node.source)
            if node.kind.startswith("arg"):
                second = self.name("place_so_far")
                self.writer.line(f"int64_t {second} = 0;", node.source)
            elif kind == "logsumexp":
                second = self.name("total_so_far")
                self.writer.line(f"double {second} = 0.0;", node.source)
            self.running[node] = place, second

    def scan(self, node: Scan, values: Values) -> Expression:
        """Write how a scan takes a value; return what it has then."""
        place, second = self.running[node]
        given, kept = node.args[0].dtype, self.kept_type(node)
        kind = node.kind.removeprefix("arg")
        value = values[node.args[0]]
        if given != torch.float32 or kept != torch.float64:
            value = conversion(given, kept, value, self.use)
        if kind in ("sum", "prod"):
            sign = "+" if kind == "sum" else "*"
            if kept.is_floating_point or kept.itemsize >= 4:
                self.writer.line(f"{place} {sign}= {value.text};", node.source)
            else:
                both = [Expression(place), value]
                text = operation(COMBINES[kind], [kept, kept], kept, both, self.use)
                self.writer.line(f"{place} = {text.text};", node.source)
            result = conversion(kept, node.dtype, Expression(place), self.use)
        elif kind == "logsumexp":
            value = self.named(value, kept, node)
            x = value.text
            with self.writer.block(f"if ({x} > {place})", node.source):
                self.writer.line(f"{second} = {second} * std::exp({place} - {x}) + 1;", node.source)
                self.writer.line(f"{place} = {x};", node.source)
            with self.writer.block("else", node.source):
                same = f"{x} == {place} ? 1 : std::exp({x} - {place})"
                self.writer.line(f"{second} += {same};", node.source)
            log = Expression(f"{place} + std::log({second})", SUM)
            result = conversion(kept, node.dtype, log, self.use)
        else:  # the last of equal values; NaN comes before all numbers
            value = self.named(value, kept, node)
            newer = f"{value.text} {'>=' if kind == 'max' else '<='} {place}"
            if kept.is_floating_point:
                newer += f" || {value.text} != {value.text}"
            with self.writer.block(f"if ({newer})", node.source):
                self.writer.line(f"{place} = {value.text};", node.source)
                if second:
                    where = self.index(Expr.of(node.axis), {})
                    self.writer.line(f"{second} = {where};", node.source)
            result = conversion(
                torch.int64 if second else kept, node.dtype, Expression(second or place), self.use
            )
        return result

    def roots(self, stores: Sequence[Store]) -> list[Node]:
        """Return what stores write, and the integers that say where."""
        values = [store.value for store in stores]
        values += [store.condition for store in stores if store.condition is not None]
        return values + [n for store in stores for n in indirect_nodes(store.index)]

    # -- stores -----------------------------------------------------------------------------

    def stores(self, values: Values, stores: Sequence[Store], sums: Collection[str] = ()) -> None:
        """Write stores, of which none changes what another one writes."""
        self.compute(self.roots(stores), values)
        for store in stores:
            read = values[store.value].reads and self.updated and len(stores) > 1
            if read:
                kept = self.named(values[store.value], store.value.dtype, store.value)
                values[store.value] = kept
        for store in stores:
            self.store(store, values, first=store.buffer in sums and store.mode == "sum")

    def store(self, store: Store, values: Values, *, first: bool) -> None:
        """Write one store; its value is known."""
        dtype, source = self.buffers[store.buffer].dtype, store.source
        offset = self.index(self.buffers[store.buffer].offset(store.index), values)
        target = f"{self.parameters[store.buffer]}[{offset}]"
        value = values[store.value]
        guard = f"if ({values[store.condition].text}) " if store.condition is not None else ""
        if first:  # the sums of a piece begin with its first row
            (row,) = self.body.axes
            count = self.body.rows_of_piece
            at = self.letters.get(row, "0")
            zero = literal(0, dtype)
            self.writer.line(f"if ({at} % {count} == 0) {target} = {zero};", source)
        if store.mode in ("set", "put", "some"):
            self.writer.line(f"{guard}{target} = {value.text};", source)
            return
        simple = dtype.is_floating_point and dtype.itemsize >= 4
        if store.mode in ("add", "sum") and simple:
            self.writer.line(f"{guard}{target} += {value.text};", source)
            return
        there = (
            Expression(f"{target} != 0", EQUAL, True) if dtype == torch.bool else Expression(target)
        )
        combine = COMBINES[store.mode]
        text = operation(combine, [dtype, dtype], dtype, [there, value], self.use)
        self.writer.line(f"{guard}{target} = {text.text};", source)


def _sizes(axes: Sequence[Symbol]) -> tuple[Expr, ...]:
    return tuple(Expr.of(1) if axis.size is None else axis.size for axis in axes)


__all__ = ["Loops"]
