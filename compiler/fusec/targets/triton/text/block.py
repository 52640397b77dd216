"""Statements: the nodes of one straight stretch of a kernel, as a person would write them.

A value that is used once is written where it is used, as long as the line stays readable; the
others get names, the user's own where a line of theirs says ``name = ...``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from fusec.codegen.common.relaxed_maths import is_softmax_total, is_softmax_weight
from fusec.ir.body import Store
from fusec.ir.bounds import bounds
from fusec.ir.checks import check_parts, is_check
from fusec.ir.index import (
    Expr,
    FloorDiv,
    Mod,
    Monomial,
    Symbol,
    is_nonnegative,
)
from fusec.ir.index_text import expr_text
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op, Reduce, Scan
from fusec.report import SourceLine
from fusec.targets.triton.plan.tiling import LIMIT, Dim, index_guards, payloads
from fusec.targets.triton.rewrite.packed_operands import FUSED, HELPED, INTERLEAVE
from fusec.targets.triton.rewrite.score_patterns import TANH
from fusec.targets.triton.rewrite.word_operands import OF_WORDS, READ
from fusec.targets.triton.text import expressions as ex
from fusec.targets.triton.text.expressions import ATOM, Text
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.masked_load import masked_load
from fusec.targets.triton.text.names import rounds_for_memory, suggested_name
from fusec.targets.triton.text.pairs import write_pair
from fusec.targets.triton.text.scans import write_scan

LINE_LIMIT = 72  # an expression longer than this gets its parts named


def is_often_zero(node: Node) -> bool:
    """Whether a value is zero unless a condition holds."""
    if not (isinstance(node, Op) and node.name == "where"):
        return False
    other = node.args[2]
    return isinstance(other, Const) and other.value == 0


# What Triton has for each kind of update; nothing for a product.
ATOMICS = {"add": "tl.atomic_add", "max": "tl.atomic_max", "min": "tl.atomic_min"}


class Block:
    """A straight stretch of statements; an inner loop's block sees what its outer one named."""

    def __init__(self, kernel: KernelWriter, outer: Block | None = None, number: int = -1) -> None:
        self.kernel = kernel
        self.number = number  # the pass whose loop this is; -1 outside
        self.known: dict[Node, Text] = dict(outer.known) if outer else {}
        self.carries: dict[Scan, tuple[str, ...]] = {}  # what the scans of a loop have so far
        self.pending: dict[Node, tuple[SourceLine | None, ...]] = {}
        self.uses: Counter[Node] = Counter()
        self.must_name: set[Node] = set()
        self.renamed: dict[Dim, str] = {}  # other names of indices, while a text asks for them

    # -- the statements -------------------------------------------------------------------

    def write(
        self,
        nodes: Sequence[Node],
        roots: Sequence[Node] = (),
        stores: Sequence[Store] = (),
        reduce: Callable[[Reduce], None] | None = None,
    ) -> None:
        """Write the statements for ``nodes``.

        Args:
            nodes: In order, arguments first; those already known are skipped.
            roots: Values that something after the statements needs, once for each mention.
            stores: The stores that follow; their values and indices count as used.
            reduce: Writes a reduction that occurs among the nodes.
        """
        todo = [
            node
            for node in nodes
            if node not in self.known
            and node not in self.kernel.compared
            and not isinstance(node, Const)
        ]
        self._count(todo, roots, stores)
        for position, node in enumerate(todo):
            if isinstance(node, Reduce):
                assert reduce is not None, "a reduction among straight statements"
                reduce(node)
                continue
            if isinstance(node, Scan):
                if node not in self.known:  # an extreme is written with its position
                    write_scan(self, node)
                continue
            if is_check(node):
                self._check(node)
                continue
            if isinstance(node, Load) and node in self.kernel.pairs:
                write_pair(self, self.kernel.pairs[node])
                continue
            text = self.text(node)
            sources = self._sources(node)
            if self._inline(node, text, todo[position + 1 :]):
                self.known[node] = text
                self.pending[node] = sources
            else:
                self.assign(node, text, sources)

    def assign(
        self,
        node: Node,
        text: Text,
        sources: tuple[SourceLine | None, ...] = (),
        suggested: str = "",
    ) -> str:
        """Write ``name = text`` and know the node by that name from here on."""
        name = self.kernel.names.get(node) or self.kernel.name(
            suggested or suggested_name(node, self.kernel.favorite, self.kernel.parameters)
        )
        self.kernel.names[node] = name
        self.kernel.writer.mark(node.source, moves=isinstance(node, Load) and not node.args)
        self.kernel.writer.line(f"{name} = {text.source}", sources or (node.source,))
        self.known[node] = Text(name)
        return name

    def within(self, renamed: Mapping[Dim, str]) -> Block:
        """Return a block that knows what this one does, with other names for some indices."""
        inner = Block(self.kernel, self)
        inner.renamed = dict(renamed)
        return inner

    def value(self, node: Node) -> Text:
        """Return the text of a value: its name, or the expression itself."""
        if isinstance(node, Const):
            return ex.number(node.value, node.dtype)
        return self.known[node]

    def _count(self, todo: Sequence[Node], roots: Sequence[Node], stores: Sequence[Store]) -> None:
        self.uses = Counter(roots)
        for node in todo:
            self.uses.update(node.args)
            self.uses.update(index_guards(node.exprs()))
            self.must_name.update(payloads(node.exprs()))
        for store in stores:
            self.uses[store.value] += 1
            self.uses.update(index_guards(store.index))
            self.must_name.update(payloads(store.index))
        for node in reversed(todo):
            if is_check(node) and node in self.must_name:
                self.must_name.add(node.args[1])

    def _inline(self, node: Node, text: Text, later: Sequence[Node]) -> bool:
        if self.uses[node] != 1 or node in self.must_name or node in self.kernel.favorite:
            return False
        user = next((n for n in later if node in n.args), None)
        if isinstance(node, Load):
            return isinstance(user, Cast) and not user.bitcast
        if user is None and rounds_for_memory(node):
            return True  # the store rounds
        if isinstance(user, Reduce) and isinstance(node, Cast):
            return not isinstance(node.args[0], Load) and len(text.source) <= LINE_LIMIT
        if isinstance(node, Cast) and isinstance(node.args[0], Load):
            return node.args[0] in self.kernel.pairs
        if user is None or isinstance(user, Reduce | Scan):
            return len(text.source) <= LINE_LIMIT // 2
        if user.source != node.source and node.source is not None:
            return False
        return len(text.source) <= LINE_LIMIT // 2

    def _sources(self, node: Node) -> tuple[SourceLine | None, ...]:
        found: list[SourceLine | None] = [node.source]
        for arg in node.args:
            found.extend(self.pending.get(arg, ()))
        return tuple(found)

    def _check(self, node: Op) -> None:
        """Write a run-time check: nothing where Triton's debug mode is off."""
        condition, value = node.args
        self.known[node] = self.value(value)
        text = self.value(condition)
        _, message = check_parts(node.name)
        dims = self.kernel.node_dims(condition)
        masks = [d.mask for d in self.ordered(dims) if d.mask]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        self.kernel.writer.mark(node.source)
        self.kernel.writer.line(
            f'tl.device_assert({text.source}, "{message}"{mask})', (node.source,)
        )
        if any(d.place >= 0 for d in dims - self.kernel.node_dims(value)):
            # One position that holds for some elements only: what is read there varies as they do.
            spread, given = self.kernel.tile.shape(self.kernel.node_dims(node)), self.known[node]
            single = given.source
            if given.literal:
                single = f"tl.cast({single}, {ex.triton_type(value.dtype)})"
            self.assign(
                node,
                Text(f"tl.broadcast_to({single}, {spread})"),
                suggested=given.source if given.source.isidentifier() else "position",
            )

    # -- the text of one value ------------------------------------------------------------

    def text(self, node: Node) -> Text:
        """Return the text of one node over the texts of its arguments."""
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, IndexValue):
            return self._index_value(node)
        if isinstance(node, Cast):
            source = node.args[0]
            if source.dtype.is_floating_point and node.dtype == torch.int64 and is_short(node):
                # converting to 64 bits takes several times as long
                text = ex.convert(self.value(source), source.dtype, torch.int32, self.kernel.needs)
                return Text(f"{text.within(ex.ATOM)}.to(tl.int64)")
            return ex.convert(
                self.value(source), source.dtype, node.dtype, self.kernel.needs, node.bitcast
            )
        assert isinstance(node, Op)
        if self.kernel.compares_positions(node):
            # positions fit the index type: comparing them needs no wider one
            args = [
                self._position(a.expr) if isinstance(a, IndexValue) else self.value(a)
                for a in node.args
            ]
        else:
            args = [self.value(arg) for arg in node.args]
        dtypes = [a.dtype for a in node.args]
        relaxed = node in self.kernel.relaxed
        known = node.name in ("lshift", "rshift") and _within_width(node.args[1], node.dtype)
        if known and not args[0].literal:
            return ex.infix("<<" if node.name == "lshift" else ">>", *args)
        if node.name in HELPED or node.name in OF_WORDS or node.name == TANH:
            return ex.call(self.kernel.needs.helper(node.name), *args)
        if node.name == INTERLEAVE:
            return self._interleave(node, args)
        if node.name == FUSED:
            return ex.call("tl.fma", *[ex.typed(arg, node.dtype) for arg in args])
        if is_softmax_weight(node) and (relaxed or self._only_summed(node)):
            # what is too small for a normal number counts nothing beside the row's 1
            return ex.call("libdevice.fast_expf", args[0])
        if relaxed and node.name == "truediv" and is_softmax_total(node.args[1]):
            inverse = ex.infix("/", Text("1.0"), args[1])
            return ex.infix("*", args[0], inverse)
        if node.name == "truediv" and not relaxed and self._divides_rows(node):
            return ex.call(self.kernel.needs.helper("divided"), *args)
        return ex.operation(node.name, dtypes, args, self.kernel.needs, relaxed)

    def _interleave(self, node: Op, args: Sequence[Text]) -> Text:
        """Return two values over half of a dimension, laid in turns along it."""
        (half,) = {d for d in self.kernel.node_dims(node) if d.symbol.name == "pair"}
        if half.place == 1:
            return ex.call("tl.interleave", *args)
        turned = [Text(f"{arg.within(ATOM)}.T") for arg in args]  # it joins the last one
        return Text(f"{ex.call('tl.interleave', *turned).source}.T")

    def _words_at(self, node: Load) -> Text:
        """Return words of a buffer of bytes."""
        name = f"{self.kernel.parameters[node.buffer]}_ptr"
        offset = self.kernel.buffers[node.buffer].offset(node.index)
        masks = [d.mask for d in self.ordered(self.kernel.expr_dims(offset)) if d.mask]
        given = [name, self.index(offset), " & ".join(masks) or "None", "ALIGNED"]
        given.append(f'"{self.kernel.evict.get((self.number, node.buffer), "")}"')
        return ex.call(self.kernel.needs.helper(READ), *map(Text, given))

    def _divides_rows(self, node: Op) -> bool:
        """Whether float32 elements of a row are divided by one value of the row."""
        x, y = node.args
        reduced = self.kernel.tile.reduced
        if node.dtype != torch.float32 or isinstance(y, Const):
            return False
        return bool(reduced & self.kernel.free[x]) and not reduced & self.kernel.free[y]

    def _only_summed(self, node: Node) -> bool:
        """Whether a float32 value is nothing but a term of sums."""
        users = [n for n in self.kernel.tile.body.nodes() if node in n.args]
        sums = all(isinstance(n, Reduce) and n.kind == "sum" for n in users)
        stored = any(s.value is node for s in self.kernel.tile.body.stores)
        return node.dtype == torch.float32 and sums and not stored

    def _index_value(self, node: IndexValue) -> Text:
        narrow = self.kernel.fits_index(node.expr) or self.kernel.index_type == "tl.int64"
        text = self._position(node.expr, wide=not narrow)
        if not any(d.place >= 0 for d in self.kernel.expr_dims(node.expr)):
            # a size and a loop's row are plain numbers to the interpreter, a size of 1 a constant
            return Text(f"tl.cast({text.source}, {ex.triton_type(node.dtype)})")
        return Text(f"{text.within(ex.ATOM)}.to({ex.triton_type(node.dtype)})")

    def _position(self, expr: Expr, wide: bool = False) -> Text:
        single = expr.single_atom is not None  # a name, or a quotient with its parentheses
        return Text(self.index(expr, wide), ex.ATOM if single else ex.SUM)

    def symbol(self, symbol: Symbol, wide: bool = False) -> str:
        """Return the name of a symbol in an index expression."""
        if symbol.kind == "indirect":
            assert isinstance(symbol.payload, Node)
            text = self.value(symbol.payload).within(ex.ATOM)
            narrow = symbol.payload.dtype == torch.int64 and self.kernel.index_type != "tl.int64"
            return f"{text}.to({self.kernel.index_type})" if narrow and not wide else text
        dim = self.kernel.tile.dim_of(symbol)
        if dim is None:
            name = self.kernel.size_names[symbol]
        else:
            name = self.renamed.get(dim, dim.index)
        return f"{name}.to(tl.int64)" if wide and dim is not None else name

    def index(self, expr: Expr, wide: bool = False) -> str:
        """Return the text of an index expression."""
        helpers = None
        if _has_negative_division(expr):
            needs = self.kernel.needs
            helpers = (needs.helper("floor_div"), needs.helper("floor_mod"))
        return expr_text(expr, lambda s: self.symbol(s, wide), "//", helpers)

    def pointer(self, buffer: str, index: tuple[Expr, ...]) -> tuple[str, frozenset[Dim]]:
        """Return the text of the address of an element, and what it varies along."""
        offset = self.kernel.buffers[buffer].offset(index)
        name = f"{self.kernel.parameters[buffer]}_ptr"
        if offset.constant == 0:
            return name, frozenset()
        # What is a number to the program goes first, so that it is added to the address once.
        scalar = {m: c for m, c in offset.terms.items() if m and not self._varies(m)}
        parts = [Expr(scalar), offset - Expr(scalar)]
        texts = []
        for part in parts:
            text = self.index(part)
            if len(part.terms) == 1 and text.startswith("(") and text.endswith(")"):
                text = text[1:-1]  # one quotient or remainder: it binds more tightly than the sum
            texts.append(text)
        shown = [t for t, part in zip(texts, parts, strict=True) if part.constant != 0]
        whole = " + ".join([name, *shown]).replace("+ -", "- ")
        return whole, self.kernel.expr_dims(offset)

    def _varies(self, monomial: Monomial) -> bool:
        """Whether a term of an index differs within the tile."""
        return any(d.place >= 0 for d in self.kernel.expr_dims(Expr({monomial: 1})))

    def _load(self, node: Load) -> Text:
        if node.buffer in self.kernel.views:
            return self._words_at(node)
        line = self.kernel.tile.line_of(node)
        if line in self.kernel.lined and line is not None and not index_guards(node.index):
            self.renamed = {line: line.line}
            address, _ = self.pointer(node.buffer, node.index)
            self.renamed = {}
            mask = line.line_mask if line.mask else ""
            padding = self.kernel.padding
            padded = padding is not None and node in padding.loads
            outside = Text(self._padded(node)) if padded else None
            known = self.kernel.knows_masks
            load = masked_load(address, mask, outside, node.dtype, known=known)
            return Text(f"{load.source}{line.spread(2)}")
        odd, policy = self.kernel.odd, self.kernel.evict.get((self.number, node.buffer))
        if odd is not None and odd.row.is_read_by(node, self.kernel.buffers, self.kernel.tile):
            return Text(odd.load(self._outside(node), policy or ""))
        address, dims = self.pointer(node.buffer, node.index)
        conditions = [d.mask for d in self.ordered(dims) if d.mask]
        spread = dims
        for condition in ([node.mask] if node.mask is not None else []) + index_guards(node.index):
            conditions.append(self.value(condition).within(ex.AND + 1))
            spread = spread | self.kernel.node_dims(condition)
        if not any(d.place >= 0 for d in dims) and any(d.place >= 0 for d in spread):
            # one address under a mask of many: Triton wants as many addresses
            address = f"tl.broadcast_to({address}, {self.kernel.tile.shape(spread)})"
        other: Text | None = None
        if node.mask is not None:
            other = ex.number(node.other, node.dtype)
            if node.dtype == torch.bool:
                other = Text(str(int(node.other)))
        elif self.kernel.padding is not None and node in self.kernel.padding.loads:
            other = Text(self._padded(node))
        varies = any(d.place >= 0 for d in dims)
        mask = " & ".join(dict.fromkeys(conditions))
        policy = policy or "" if varies else ""
        known = self.kernel.knows_masks or node.mask is not None
        return masked_load(address, mask, other, node.dtype, policy, known)

    def _outside(self, node: Load) -> str:
        """Return what a load is to yield outside of its row."""
        padding = self.kernel.padding
        known = padding is not None and node in padding.loads
        return f"tl.cast({self._padded(node) if known else 0}, {ex.triton_type(node.dtype)})"

    def _padded(self, node: Load) -> str:
        assert self.kernel.padding is not None
        value = self.kernel.padding.loads[node]
        if node.dtype == torch.bool:
            return str(int(value))
        return ex.number(value, node.dtype).source

    # -- stores ---------------------------------------------------------------------------

    def store(
        self, store: Store, extra_mask: str = "", along: frozenset[Dim] = frozenset()
    ) -> None:
        """Write one store; the value is known by now.

        Args:
            store: Where and what.
            extra_mask: A condition more.
            along: Dimensions that the value has though the place is the same all along them.
        """
        kernel = self.kernel
        address, dims = self.pointer(store.buffer, store.index)
        value_dims = kernel.node_dims(store.value)
        conditions = [d.mask for d in self.ordered(dims) if d.mask]
        spread = dims
        for guard in index_guards(store.index):
            conditions.append(self.value(guard).within(ex.AND + 1))
            spread = spread | kernel.node_dims(guard)
        if store.updates:
            spread = (
                spread
                | value_dims
                | frozenset(d for d in kernel.tile.dims if self._iterated(d, store))
            )
            conditions += [d.mask for d in self.ordered(spread) if d.mask]
        if along - dims:
            spread = spread | along
            conditions += [d.mask for d in self.ordered(along - dims) if d.mask]
        if extra_mask:
            conditions.append(extra_mask)
        if any(d.place >= 0 for d in spread - dims):
            address = f"tl.broadcast_to({address}, {kernel.tile.shape(spread)})"
        node = store.value
        if store.mode == "set" and rounds_for_memory(node) and node not in kernel.names:
            node = node.args[0]
        if store.condition is not None:
            conditions.append(self.value(store.condition).within(ex.AND + 1))
            node = node.args[1]
        if store.mode == "add" and is_often_zero(node) and node not in kernel.names:
            # adding nothing is left out
            conditions.append(self.value(node.args[0]).within(ex.AND + 1))
            node = node.args[1]
        value = ex.typed(self.value(node), node.dtype)
        mask = " & ".join(dict.fromkeys(conditions))
        if store.mode in ATOMICS:
            arguments = [address, value.source, *([f"mask={mask}"] if mask else [])]
            text = f'{ATOMICS[store.mode]}({", ".join(arguments)}, sem="relaxed")'
        else:
            arguments = [address, value.source, *([mask] if mask else [])]
            text = f"tl.store({', '.join(arguments)})"
        source = store.source
        kernel.writer.mark(source, moves=value.source.isidentifier())
        kernel.writer.line(text, (source, *self.pending.get(store.value, ())))

    def _iterated(self, dim: Dim, store: Store) -> bool:
        """Whether an update happens for every index of ``dim``."""
        return dim in self.kernel.tile.outer or dim in self.kernel.node_dims(store.value)

    def ordered(self, dims: frozenset[Dim]) -> list[Dim]:
        """Return ``dims`` in the order of the tile, so that the text is always the same."""
        return [d for d in self.kernel.tile.dims if d in dims]


def is_short(node: Node) -> bool:
    """Whether a value surely fits into 32 bits."""
    found = bounds(node)
    return found is not None and found[0] > -LIMIT and found[1] < LIMIT


def _within_width(shift: Node, dtype: torch.dtype) -> bool:
    """Whether a shift is surely by less than the type's width; others need care."""
    found = bounds(shift)
    return found is not None and found[0] >= 0 and found[1] < 8 * dtype.itemsize


def _has_negative_division(expr: Expr) -> bool:
    for monomial in expr.terms:
        for atom in monomial:
            if isinstance(atom, (FloorDiv, Mod)) and (
                not is_nonnegative(atom.numerator)
                or _has_negative_division(atom.numerator)
                or _has_negative_division(atom.divisor)
            ):
                return True
    return False
