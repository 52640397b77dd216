"""Values of a plain kernel: where each is written, and what it is called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch

from fusec.codegen.common.c_language import (
    ATOM,
    CHOICE,
    EQUAL,
    OR,
    SUM,
    UNARY,
    Expression,
    UnsupportedNode,
    literal,
)
from fusec.codegen.common.signatures import identifier
from fusec.codegen.common.value_names import told_word
from fusec.ir.body import Body, Buffer
from fusec.ir.checks import check_parts, is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.index_text import expr_text
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op, Reduce, Scan, indirect_nodes
from fusec.ir.scalars import word_of
from fusec.ir.walk import free_axes
from fusec.targets.cpp.text.writer import Writer
from fusec.targets.plain.expressions import TYPES, conversion, operation

_LONGEST = 48  # characters that are written into what uses them
_LETTERS = "ijklmnpqrstuvw"
_ASSIGNED = re.compile(r"^(?:return\s+)?([A-Za-z_]\w*)\s*(?::[^=]+)?=[^=]")
# Words of plain kernels alone.
_OPERATIONS = {
    "add": "total",
    "neg": "negated",
    "rsqrt": "scale",
    "sqrt": "root",
    "maximum": "larger_one",
    "minimum": "smaller_one",
    "logical_not": "negation",
    "lt": "is_less",
    "le": "is_less",
    "gt": "is_greater",
    "ge": "is_greater",
    "eq": "is_equal",
    "ne": "differs",
}

Values = dict[Node, Expression]


class ValueWriter:
    """Writes values where they are needed.

    Attributes:
        helpers: The helpers that the text calls.
    """

    def __init__(
        self,
        body: Body,
        buffers: Mapping[str, Buffer],
        parameters: Mapping[str, str],
        sizes: Mapping[Symbol, str],
        checks: Sequence[str],
        taken: set[str],
        writer: Writer,
    ) -> None:
        self.body = body
        self.buffers = buffers
        self.parameters = parameters
        self.sizes = sizes
        self.numbers = {text: number for number, text in enumerate(checks, 1)}
        self.taken = taken
        self.writer = writer
        self.helpers: set[str] = set()
        self.running: dict[Scan, tuple[str, str]] = {}  # where each has what it has so far
        self.nodes = body.nodes()
        self.free = free_axes(body.computed)
        self.users: dict[Node, list[Node]] = {}
        self.outcomes: set[Node] = set()  # what follows from a reduction
        for node in self.nodes:
            if any(isinstance(arg, Reduce) or arg in self.outcomes for arg in node.args):
                self.outcomes.add(node)
            for arg in node.args:
                self.users.setdefault(arg, []).append(node)
        self.places = {n for node in self.nodes for n in indirect_nodes(node.exprs())}
        self.places |= {n for store in body.stores for n in indirect_nodes(store.index)}
        self.updated = set(body.reads()) & set(body.writes())
        self.axes: dict[Symbol, Expr] = {}
        self.letters: dict[Symbol, str] = {}
        free_letters = (c for c in _LETTERS if c not in taken)
        for axis in body.axes + body.reduce_axes:
            if axis.size == 1:
                self.axes[axis] = Expr.of(0)
            else:
                letter = next(free_letters, "") or identifier(axis.name, taken, "i")
                self.letters[axis] = letter
                taken.add(letter)

    def closure(self, roots: Iterable[Node], known: Collection[Node]) -> list[Node]:
        """Return the nodes that ``roots`` are computed from, up to those known, in order."""
        live: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in live and node not in known:
                live.add(node)
                if not isinstance(node, Reduce):
                    stack.extend(node.args)
        return [node for node in self.nodes if node in live]

    def compute(
        self, roots: Sequence[Node], values: Values, *, named: Collection[Node] = ()
    ) -> None:
        """Write what computes some values; they are known afterwards.

        Args:
            roots: The values.
            values: What is known; more afterwards.
            named: Those that get a name in any case.
        """
        nodes = self.closure(roots, values)
        here = set(nodes)
        uses = Counter(roots)
        for node in nodes:
            uses.update(arg for arg in node.args if arg in here)
        for node in nodes:
            if is_check(node):
                values[node] = self.check(node, values)
                continue
            text = self.scan(node, values) if isinstance(node, Scan) else self.text(node, values)
            often = uses[node] > 1 and not isinstance(node, Const)
            place = node in self.places and text.strength != ATOM
            long = len(text.text) > _LONGEST and node not in roots
            chosen = text.strength == CHOICE and node not in roots
            if often or place or long or chosen or isinstance(node, Scan) or node in named:
                text = self.named(text, node.dtype, node)
            values[node] = text

    def named(self, value: Expression, dtype: torch.dtype, node: Node) -> Expression:
        """Return a value by name: one that it has, or a new one."""
        if value.strength == ATOM and value.text in self.taken:
            return value
        name = self.name(self.word(node))
        self.writer.line(f"const {TYPES[dtype]} {name} = {value.text};", node.source)
        return Expression(name)

    def name(self, wanted: str) -> str:
        """Return a name that is not taken."""
        return identifier(wanted, self.taken, "value")

    def word(self, node: Node) -> str:
        """Return what a value could be called."""
        if isinstance(node, Load):
            return f"{self.parameters[node.buffer]}_here"
        if isinstance(node, Reduce | Scan):
            return "value"
        source = node.source
        users = self.users.get(node, [])
        if source is not None and all(user.source != source for user in users):
            assigned = _ASSIGNED.match(source.text)
            if assigned and assigned[1] not in self.parameters.values():
                return assigned[1]
        if not isinstance(node, Op):
            return "value"
        word = told_word(node) or _OPERATIONS.get(node.name) or word_of(node.name)
        return f"{word}_value" if word == node.name else word

    def text(self, node: Node, values: Values) -> Expression:
        """Return the text that computes a node from its arguments' texts."""
        if node.dtype not in TYPES:
            raise UnsupportedNode(f"{node.dtype} has no plain C++")
        if isinstance(node, Const):
            return Expression(literal(node.value, node.dtype), UNARY if node.value < 0 else ATOM)
        if isinstance(node, IndexValue):
            position = self.index(node.expr, values)
            level = ATOM if position.isidentifier() or position.isdigit() else SUM
            return conversion(torch.int64, node.dtype, Expression(position, level), self.use)
        if isinstance(node, Load):
            return self.load(node, values)
        if isinstance(node, Cast) and node.bitcast:
            self.use("bits_as")
            arg = values[node.args[0]]
            return Expression(f"bits_as<{TYPES[node.dtype]}>({arg.text})", ATOM, arg.reads)
        if isinstance(node, Cast):
            return conversion(node.args[0].dtype, node.dtype, values[node.args[0]], self.use)
        if not isinstance(node, Op):
            raise UnsupportedNode(f"{type(node).__name__} has no plain C++")
        kinds = [arg.dtype for arg in node.args]
        return operation(node.name, kinds, node.dtype, [values[arg] for arg in node.args], self.use)

    def load(self, node: Load, values: Values) -> Expression:
        """Return the text that reads an element."""
        value = self.element(node.buffer, node.index, values)
        if node.mask is None:
            return value
        other = literal(node.other, node.dtype)
        return Expression(
            f"{values[node.mask].within(OR)} ? {value.within(OR)} : {other}", CHOICE, True
        )

    def check(self, node: Op, values: Values) -> Expression:
        """Write a run-time check: the kernel ends where it fails."""
        condition, value = (values[arg] for arg in node.args)
        message = check_parts(node.name)[1]
        value = self.named(value, node.dtype, node.args[1]) if value.strength != ATOM else value
        line = f"if (!({condition.text})) return {self.numbers[message]};"
        if len(line) + len(message) + 4 <= self.writer.room:
            self.writer.line(f"{line} // {message}", node.source)
        else:  # broken into two, the remark would be none
            self.writer.line(f"// {message}", node.source)
            self.writer.line(line, node.source)
        return value

    def index(self, expr: Expr, values: Values) -> str:
        """Return a position as text."""

        def name(symbol: Symbol) -> str:
            if symbol.kind == "size":
                return self.sizes[symbol]
            if symbol.kind == "indirect":
                assert isinstance(symbol.payload, Node)
                return values[symbol.payload].text
            return self.letters[symbol]

        used = {axis: zero for axis, zero in self.axes.items() if axis in expr.symbols()}
        text = expr_text(expr.substitute(used), name, "/", ("divide_down", "modulo"))
        for helper in ("divide_down", "modulo"):
            if f"{helper}(" in text:
                self.use(helper)
                text = text.replace(f"{helper}(", f"{helper}<int64_t>(")
        return text

    def element(self, buffer: str, index: tuple[Expr, ...], values: Values) -> Expression:
        """Return ``x[i * 4 + j]``; a bool as whether it is not 0."""
        offset = self.buffers[buffer].offset(index)
        text = f"{self.parameters[buffer]}[{self.index(offset, values)}]"
        if self.buffers[buffer].dtype == torch.bool:
            return Expression(f"{text} != 0", EQUAL, True)
        return Expression(text, ATOM, True)

    def use(self, helper: str) -> None:
        """Note that the text calls a helper."""
        self.helpers.add(helper)

    def scan(self, node: Scan, values: Values) -> Expression:
        """Write how a scan takes a value; return what it has then."""
        raise NotImplementedError


__all__ = ["ValueWriter", "Values"]
