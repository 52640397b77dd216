"""Writes the parts of a kernel that reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusec.codegen.common.identities import CARRIED_WITH, ONLINE_SUM, SQUARES
from fusec.ir.node import Load, Node, Reduce
from fusec.targets.triton.plan.tiling import Dim
from fusec.targets.triton.text import reductions as rt
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import ATOM, SUM, Text, triton_type, typed
from fusec.targets.triton.text.kernel_writer import KernelWriter

# The head of a loop over a row; its end is to be filled in.
LOOP = "for start in tl.range(0, {}, RBLOCK, num_stages=NUM_STAGES, loop_unroll_factor=UNROLL):"


class Reducer:
    """Writes the reductions of one kernel."""

    def __init__(self, kernel: KernelWriter, block: Block) -> None:
        self.kernel = kernel
        self.block = block
        assert kernel.tile.inner is not None
        self.inner: Dim = kernel.tile.inner
        self.axis = max(self.inner.place, 0)
        self.keep = kernel.tile.rank > 1
        self.running: dict[Reduce, tuple[str, ...]] = {}
        self.extremes: dict[Reduce, str] = {}  # the value that goes with an argmax's position
        self.carried = [
            n for n in kernel.tile.body.nodes() if isinstance(n, Reduce) and n.kind in CARRIED_WITH
        ]
        self.mask = " & ".join(
            d.mask for d in (self.inner, kernel.tile.walk) if d is not None and d.mask
        )
        self.first = "0"  # where along the row the loop begins
        self.step = "start"  # and where its step does
        self.part = ""  # the index of the programs' parts while they are combined

    # -- one tile -------------------------------------------------------------------------

    def reduce(self, node: Reduce) -> None:
        """Write a reduction over a tile that holds whole rows."""
        tile = self._tile(node, self.block)
        if node.kind in ("argmax", "argmin"):
            self._finish_arg(node, tile, self._positions())
        else:
            text = rt.finish(node, tile, self.axis, self.keep, self.kernel.needs)
            self.block.assign(node, text, suggested=self.suggested(node))

    def _tile(self, node: Reduce, block: Block) -> Text:
        """Return the argument over the whole tile, the identity where nothing is there."""
        argument = node.args[0]
        value = block.value(argument)
        dims = self.kernel.node_dims(argument)
        if value.literal or self.inner not in dims:
            full = frozenset(d for d in self.kernel.tile.dims if d.place >= 0)
            shape = self.kernel.tile.shape(full)
            value = Text(f"tl.broadcast_to({typed(value, argument.dtype).source}, {shape})")
            if block.value(argument).literal:
                literal = block.value(argument).source
                value = Text(f"tl.full({shape}, {literal}, {triton_type(argument.dtype)})")
        padding = self.kernel.padding
        if not self.mask or (padding is not None and node in padding.clean):
            return value
        outside = rt.padding(node).source
        return Text(f"tl.where({self.mask}, {value.source}, {outside})")

    def _positions(self) -> str:
        """Return the positions along the row, over the whole tile."""
        full = frozenset(d for d in self.kernel.tile.dims if d.place >= 0)
        if len(full) == 1:
            return self.inner.index
        return f"tl.broadcast_to({self.inner.index}, {self.kernel.tile.shape(full)})"

    def _finish_arg(self, node: Reduce, tile: Text, positions: str) -> None:
        helper = self._first(node)
        keep = ", keep_dims=True" if self.keep else ""
        suggested = self.suggested(node)
        extreme = self.kernel.name(f"{suggested}_value")
        position = self.kernel.name(suggested)
        self.kernel.writer.mark(node.source)
        self.kernel.writer.line(
            f"{extreme}, {position} = tl.reduce(({tile.source}, {positions}), {self.axis}, "
            f"{helper}{keep})",
            (node.source,),
        )
        self.kernel.names[node] = position
        self.extremes[node] = extreme
        self.block.known[node] = Text(f"{position}.to({triton_type(node.dtype)})")

    def _first(self, node: Reduce) -> str:
        name = "first_largest" if node.kind == "argmax" else "first_smallest"
        return self.kernel.needs.helper(name)

    def suggested(self, node: Reduce) -> str:
        """Return what a reduction's result should be called."""
        favorite = self.kernel.favorite.get(node)
        if favorite:
            return favorite
        if node in self.kernel.reduction_names:
            return self.kernel.reduction_names[node]
        base = self.block.known.get(node.args[0]) or self.kernel.names.get(node.args[0], "")
        text = base.source if isinstance(base, Text) else base
        suggested = rt.suggested(node, text if text.isidentifier() else "")
        self.kernel.reduction_names[node] = suggested
        return suggested

    # -- running over steps ---------------------------------------------------------------

    def start(self, node: Reduce) -> None:
        """Write the running values that a loop will update."""
        writer, argument = self.kernel.writer, node.args[0]
        full = frozenset(d for d in self.kernel.tile.dims if d.place >= 0)
        shape = self.kernel.tile.shape(full)
        group = self._group(node)
        if group:
            block = self.inner.block
            shape = shape.replace(block, f"{block} // {group}", 1)
        writer.mark(node.source)
        word = "total" if node.kind == ONLINE_SUM else node.kind
        if node.kind == SQUARES and self.kernel.tile.walk is not None:
            size = self.block.index(self.inner.size)
            writer.line(f"tl.static_assert(RBLOCK >= {size} or {size} % RBLOCK == 0)")
        name = self.kernel.name(f"running_{word}")
        first = rt.identity_text(node).source
        writer.line(
            f"{name} = tl.full({shape}, {first}, {triton_type(argument.dtype)})", (node.source,)
        )
        names = [name]
        if node.kind in ("argmax", "argmin"):
            names.append(self.kernel.name(f"{name}_at"))
            index = self.kernel.index_type
            writer.line(f"{names[1]} = tl.full({shape}, {self.first}, {index})", (node.source,))
        self.running[node] = tuple(names)

    def _group(self, node: Reduce) -> str:
        """Return how many elements of a step share a running value, as text; empty for one each.

        They are what one thread holds: the neighbors of a 16-byte access along a row, or the rows
        of a step that come to the same thread.
        """
        carried = [r for r in self.carried if r.args == node.args]
        if not carried or (node is not carried[0] and node.kind != CARRIED_WITH[carried[0].kind]):
            return ""
        sizes = [n.dtype.itemsize for n in nodes_for(self.kernel, node.args) if isinstance(n, Load)]
        access = max(16 // max(sizes, default=4), 1)
        if not self.keep:
            return str(access) if access > 1 and carried[0].kind == ONLINE_SUM else ""
        if self.axis != 0 or self.kernel.tile.rank != 2 or self.kernel.step == 1:
            return ""
        self.kernel.access = access
        return rt.GROUP

    def update(self, node: Reduce, inner: Block) -> None:
        """Write one step of the loop."""
        names = self.running[node]
        writer = self.kernel.writer
        if any(r.args == node.args and CARRIED_WITH[r.kind] == node.kind for r in self.carried):
            return  # the update of what is carried with it includes it
        value = self._tile(node, inner)
        writer.mark(node.source)
        if node.kind in ("argmax", "argmin"):
            # positions grow, so what is equal comes later: keeping where a step began is enough
            helper = "take_largest" if node.kind == "argmax" else "take_smallest"
            args = f"{', '.join(names)}, {value.source}, {self.step}"
            called = self.kernel.needs.helper(helper)
            writer.line(f"{', '.join(names)} = {called}({args})", (node.source,))
        elif node.kind == ONLINE_SUM:
            both = f"{self.running[partner(node, self.running)][0]}, {names[0]}"
            group = self._group(node)
            helpers = {"": "online_sum", rt.GROUP: "online_sum_columns"}
            helper = self.kernel.needs.helper(helpers.get(group, "online_sum_grouped"))
            more = f", {group}" if group else ""
            writer.line(f"{both} = {helper}({both}, {value.source}{more})", (node.source,))
        elif node.kind == SQUARES:
            both = f"{self.running[partner(node, self.running)][0]}, {names[0]}"
            inside = f", {self.mask}" if self.mask else ""
            group = self._group(node)
            helper = "moments_columns" if group else "moments"
            helper = self.kernel.needs.helper(f"{helper}_inside" if inside else helper)
            more = inside
            if group:
                rows = f", {self.block.index(self.inner.size)} - ({self.step})" if inside else ""
                more = f"{rows}, {group}"
            text = f"{helper}({both}, {value.source}, start // {self.inner.block}{more})"
            writer.line(f"{both} = {text}", (node.source,))
        else:
            text = rt.step(node, names[0], value, self.kernel.needs).source
            writer.line(f"{names[0]} = {text}", (node.source,))

    def end(self, node: Reduce, partial: bool = False) -> None:
        """Write what makes the running values one a row, or one a program's part of it."""
        names = self.running[node]
        if node.kind in ("argmax", "argmin"):
            lane = f"tl.arange(0, {self.inner.block}){self.inner.spread(self.kernel.tile.rank)}"
            self._finish_arg(node, Text(names[0]), f"{names[1]} + {lane}")
        elif node.kind == ONLINE_SUM:
            other = partner(node, self.running)
            largest = self.block.value(other).source
            self._finish_online(node, names[0], self.running[other][0], largest, partial)
        elif node.kind == SQUARES:
            self._finish_squares(
                node, names[0], self.running[partner(node, self.running)][0], partial
            )
        else:
            text = rt.finish(node, Text(names[0]), self.axis, self.keep, self.kernel.needs)
            self.block.assign(node, text, suggested=self.suggested(node))

    def _finish_squares(self, node: Reduce, squares: str, sums: str, partial: bool) -> None:
        """Write the squared distances from the row's mean, or from that of a program's part."""
        writer = self.kernel.writer
        keep = ", keep_dims=True" if self.keep else ""
        lane = f"tl.arange(0, {self.inner.block}){self.inner.spread(self.kernel.tile.rank)}"
        writer.mark(node.source)
        count = self.kernel.name("count")
        counts = self._lane_counts(lane, partial)
        if group := self._group(node):
            counts = f"tl.sum(tl.reshape({counts}, [{group}, {self.inner.block} // {group}, 1]), 0)"
        writer.line(f"{count} = {counts}", (node.source,))
        total = self.block.value(partner(node, self.running)).source
        if partial:
            mean = f"{total} / tl.maximum(tl.sum({count}, {self.axis}{keep}), 1)"
        else:
            mean = f"{total} / {self._elements()}"
        helper = self.kernel.needs.helper("around")
        text = f"tl.sum({helper}({mean}, {sums}, {squares}, {count}), {self.axis}{keep})"
        self.block.assign(node, Text(text), suggested=self.suggested(node))

    def _elements(self) -> str:
        """Return the text of the number of elements of a row."""
        walk = self.kernel.tile.walk
        size = self.inner.size if walk is None else self.inner.size * walk.size
        if size.constant is not None:
            return repr(float(size.constant))
        return Text(self.block.index(size), SUM).within(ATOM)

    def _steps_end(self) -> str:
        """Return the text of where the steps over a row end."""
        walk, size = self.kernel.tile.walk, self.block.index(self.inner.size)
        return size if walk is None else f"{self.block.index(walk.size)} * PADDED"

    def _lane_counts(self, lane: str, partial: bool) -> str:
        """Return the text of how many elements each lane of a loop has taken."""
        size, block = self.block.index(self.inner.size), self.inner.block
        if self.kernel.tile.walk is not None:
            steps = f"{self._steps_end()} // {block}"
            if partial:
                rest = f"{self._steps_end()} - split * CHUNK"
                steps = f"tl.maximum(tl.minimum({rest}, CHUNK), 0) // {block}"
            return f"tl.where({lane} < {size}, {steps}, 0)"
        if not partial:
            return f"({size} - {lane} + {block} - 1) // {block}"
        rest = f"({size} - split * CHUNK - {lane} + {block} - 1) // {block}"
        return f"tl.maximum(tl.minimum({rest}, CHUNK // {block}), 0)"

    def _part_counts(self) -> str:
        """Return the text of how many elements each program's part has."""
        found = f"tl.maximum(tl.minimum({self._steps_end()} - {self.part} * CHUNK, CHUNK), 0)"
        if self.kernel.tile.walk is None:
            return found
        size = self.block.index(self.inner.size)
        return f"{found} // RBLOCK * tl.minimum(RBLOCK, {size})"

    def _finish_online(
        self, node: Reduce, sums: str, maxima: str, largest: str, partial: bool
    ) -> None:
        keep = ", keep_dims=True" if self.keep else ""
        weight = f"tl.exp({maxima} - {largest})"
        if partial:  # a part of a row may hold nothing without the row being so
            weight = f"{self.kernel.needs.helper('rescale')}({maxima}, {largest})"
        text = f"tl.sum({sums} * {weight}, {self.axis}{keep})"
        self.block.assign(node, Text(text), suggested=self.suggested(node))

    # -- between programs that share a row ------------------------------------------------

    def save(self, node: Reduce, scratch: Sequence[str], address: str, mask: str) -> None:
        """Write this program's part of a reduction to scratch memory."""
        found = [self.block.value(node).within(ATOM)]
        if node.kind in ("argmax", "argmin"):
            position = self.kernel.names[node]
            found = [self.extremes[node], position]
        for pointer, value in zip(scratch, found, strict=True):
            end = f", {mask})" if mask else ")"
            self.kernel.writer.line(f"tl.store({pointer} + {address}, {value}{end}", (node.source,))

    def combine(
        self,
        nodes: Sequence[Reduce],
        load: Callable[[str, Text], str],
        everything: Sequence[Reduce],
    ) -> None:
        """Write the combination of all programs' parts.

        Args:
            nodes: The reductions, a maximum before the online sum that goes with it.
            load: Writes the load of a scratch tile, padded with an identity; returns its name.
            everything: All reductions of the file, which name the scratch memory.
        """
        parts: dict[Reduce, str] = {}
        for node in nodes:
            self.kernel.writer.mark(node.source)
            scratch = scratch_names(node, everything)
            tile = load(scratch[0], rt.identity_text(node))
            parts[node] = tile
            if node.kind in ("argmax", "argmin"):
                self._finish_arg(node, Text(tile), load(scratch[1], Text("2**31 - 1")))
            elif node.kind == ONLINE_SUM:
                other = partner(node, parts)
                largest = self.block.value(other).source
                self._finish_online(node, tile, parts[other], largest, partial=False)
            elif node.kind == SQUARES:
                other = partner(node, parts)
                mean = f"{self.block.value(other).source} / {self._elements()}"
                helper = self.kernel.needs.helper("around")
                each = f"{helper}({mean}, {parts[other]}, {tile}, {self._part_counts()})"
                keep = ", keep_dims=True" if self.keep else ""
                text = Text(f"tl.sum({each}, {self.axis}{keep})")
                self.block.assign(node, text, suggested=self.suggested(node))
            else:
                text = rt.finish(node, Text(tile), self.axis, self.keep, self.kernel.needs)
                self.block.assign(node, text, suggested=self.suggested(node))


def scratch_names(node: Reduce, nodes: Sequence[Reduce]) -> tuple[str, ...]:
    """Return the names of a reduction's scratch buffers, unique among ``nodes``."""
    base = f"{node.kind}{list(nodes).index(node) or ''}"
    if node.kind in ("argmax", "argmin"):
        return (f"{base}_value_parts", f"{base}_parts")
    return (f"{base}_parts",)


def partner(node: Reduce, among: object) -> Reduce:
    """Return the reduction that an online sum, or a sum of squared distances, is carried with."""
    assert hasattr(among, "__iter__")
    kind = CARRIED_WITH[node.kind]
    for other in among:
        if isinstance(other, Reduce) and other.kind == kind and other.args == node.args:
            return other
    raise AssertionError(f"{node.kind} without its {kind}")


def nodes_for(kernel: KernelWriter, roots: Sequence[Node]) -> list[Node]:
    """Return what a step computes for ``roots``: their elementwise nodes, in order."""
    reduced = kernel.tile.reduced
    wanted: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in wanted or not reduced & kernel.free[node]:
            continue
        wanted.add(node)
        stack.extend(node.args)
    return [n for n in kernel.tile.body.nodes() if n in wanted]


__all__ = ["LOOP", "Reducer", "nodes_for", "partner", "scratch_names"]
