"""What a kernel is made of while it is written: its names, its helpers, its open loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fusec.codegen.common.c_language import (
    ATOM,
    BIT_OR,
    CHOICE,
    HALVES,
    SUM,
    UNARY,
    Expression,
    UnsupportedNode,
)
from fusec.codegen.common.identities import COMBINES
from fusec.codegen.common.signatures import identifier
from fusec.codegen.common.value_names import reduction_word, told_word
from fusec.ir.body import Store
from fusec.ir.checks import check_parts, is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.index_text import expr_text
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op, Reduce, Scan
from fusec.ir.scalars import root_of, word_of
from fusec.kernel_source import Signature
from fusec.targets.cpp.dtypes import C_TYPES, literal
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.facts import Facts, may_be_empty
from fusec.targets.cpp.plan.loop_plan import LoopConstant
from fusec.targets.cpp.plan.loop_tables import is_short_position
from fusec.targets.cpp.plan.moderate_angles import has_moderate_form
from fusec.targets.cpp.text.expressions import (
    LAZY,
    cast_expression,
    cast_node,
    const_expression,
    from_memory,
    op_expression,
)
from fusec.targets.cpp.text.scans import Running, is_extreme, take_next
from fusec.targets.cpp.text.selects import without_branch
from fusec.targets.cpp.text.writer import Writer

# Words of C++ kernels alone.
_WORDS = {
    "add": "total",
    "neg": "negated",
    "logical_not": "negation",
    "lt": "is_less",
    "le": "is_less",
    "gt": "is_greater",
    "ge": "is_greater",
    "eq": "is_equal",
    "ne": "differs",
    "exp": "exponential",
    "sqrt": "root",
}
_ASSIGNED = re.compile(r"^(?:return\s+)?([A-Za-z_]\w*)\s*(?::[^=]+)?=[^=]")


@dataclass
class KernelWriter(Facts):
    """The kernel being written.

    Attributes:
        names: Buffer name to parameter name.
        signature: Its parameters and checks.
        size_names: Symbolic size to the parameter's name.
        helpers: Names of the helper functions that the text calls so far.
        tunables: The constants that a search may change, by name.
        asserts: What has to hold of them.
    """

    names: Mapping[str, str]
    signature: Signature
    size_names: Mapping[Symbol, str]
    helpers: set[str] = field(default_factory=set)
    tunables: dict[str, str] = field(default_factory=dict)
    asserts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_numbers = {text: n for n, text in enumerate(self.signature.checks, 1)}

    def use(self, helper: str) -> None:
        """Note that the text calls a helper."""
        self.helpers.add(helper)

    def tunable(self, size: LoopConstant) -> str:
        """Declare a named constant that a search may change; return its name."""
        among = " ".join(str(v) for v in sorted({*size.among, size.value}))
        self.tunables[size.name] = (
            f"constexpr int64_t {size.name} = {size.value}; // tunable: {among} ({size.meaning})"
        )
        return size.name

    def at_most(self, value: str, limit: str) -> str:
        """Return the text of the lesser of two positions."""
        self.use("at_most")
        return f"at_most({value}, {limit})"

    def extent(self, axis: Symbol) -> str:
        """Return an axis's extent as text."""
        return "1" if axis.size is None else self.index_text(axis.size, {})

    def index_text(self, expr: Expr, texts: Mapping[Symbol, str]) -> str:
        """Return an index expression as text; ``texts`` names axes and loaded indices."""

        def name(symbol: Symbol) -> str:
            return self.size_names[symbol] if symbol.kind == "size" else texts[symbol]

        text = expr_text(expr, name, "/", ("div_floor", "mod_floor"))
        for helper in ("div_floor", "mod_floor"):
            if f"{helper}(" in text:
                self.use(helper)
        return text


class Scope:
    """An open block of the kernel: the values and the names that are known in it."""

    def __init__(self, kernel: KernelWriter, outer: Scope | None = None) -> None:
        self.kernel = kernel
        self.values: dict[Node, Expression] = dict(outer.values) if outer else {}
        self.valid: dict[Node, str] = dict(outer.valid) if outer else {}
        self.axes: dict[Symbol, str] = dict(outer.axes) if outer else {}
        self.taken: set[str] = set(outer.taken) if outer else set()
        self.running: dict[Scan, Running] = dict(outer.running) if outer else {}
        # what elements fulfil that are there, in a loop that goes on beyond them: an innermost one
        self.within = ""
        # what is loaded under that condition alone, without it
        self.there: dict[Node, Expression] = {}
        # stores whose values go into an array first, as float; the element for each
        self.staged: dict[Store, str] = dict(outer.staged) if outer else {}
        # the same as they are
        self.streamed: dict[Store, str] = dict(outer.streamed) if outer else {}
        # what says, where the text is compiled, that arguments are moderate: angles, quotients
        self.moderate: str = outer.moderate if outer else ""

    def offset(self, axis: Symbol, begin: str) -> str:
        """Return how far the loop along ``axis`` is from where it began."""
        return self.axes[axis] if begin == "0" else f"{self.axes[axis]} - {begin}"

    def name(self, text: str) -> str:
        """Return a name that is free here, and take it."""
        return identifier(text, self.taken, "value")

    def bind(self, axis: Symbol, name: str | None = None) -> str:
        """Name the loop variable of ``axis``."""
        self.axes[axis] = name or self.name(axis.name)
        return self.axes[axis]

    def index(self, expr: Expr) -> str:
        """Return an index expression as text."""
        texts = dict(self.axes)
        at_zero = {axis: Expr.of(0) for axis, text in texts.items() if text == "0"}
        expr = expr.substitute(at_zero) if at_zero else expr
        for symbol in expr.symbols():
            if symbol.kind == "indirect" and isinstance(symbol.payload, Node):
                texts[symbol] = self.values[symbol.payload].within(ATOM)
        return self.kernel.index_text(expr, texts)

    def element(self, buffer: str, index: tuple[Expr, ...]) -> str:
        """Return ``x[i * 4 + j]``."""
        offset = self.kernel.buffers[buffer].offset(index)
        return f"{self.kernel.names[buffer]}[{self.index(offset)}]"

    # -- values ---------------------------------------------------------------------------

    def compute(
        self,
        nodes: Sequence[Node],
        writer: Writer,
        *,
        ends: Collection[Node] = (),
        stores: Sequence[Store] = (),
        later: Collection[Node] = (),
        named: Collection[Node] = (),
        kept: Collection[Node] = (),
    ) -> None:
        """Write what computes ``nodes`` (arguments first) that are not known yet.

        A value that is used once is written into its user, where that reads well.

        Args:
            nodes: What to compute.
            writer: Where to.
            ends: Reductions that take a value where they are written.
            stores: Stores that do.
            later: Nodes that will use the values further on: what they use gets a name.
            named: Nodes that get a name in any case.
            kept: Nodes that go into arrays of the kernel's own.
        """
        group = {node for node in nodes if node not in self.values}
        stored = Counter(store.value for store in stores)
        for node in nodes:
            if node not in group:
                continue
            users = self.kernel.users.get(node, [])
            here = [user for user in users if user in group or user in ends]
            count = len(here) + stored[node] + (node in kept)
            if node in named or any(user in later for user in users):
                count = 2
            self._compute(node, writer, here[0] if here else None, count)

    def _compute(self, node: Node, writer: Writer, user: Node | None, uses: int) -> None:
        if isinstance(node, Const):
            self.values[node] = const_expression(node)
            return
        if is_check(node):
            self._check(node, writer)
            return
        if isinstance(node, Scan):
            if node not in self.values:  # an extreme is taken together with its position
                self._scan(node, writer)
            return
        expression = self.expression(node)
        if uses <= 1 and self._may_inline(node, expression, user):
            self.values[node] = expression
            return
        if expression.strength == ATOM and expression.text in self.taken:
            self.values[node] = expression  # a name already
            return
        name = self.name(self.word(node))
        text = f"const {C_TYPES[node.dtype]} {name} = {expression.text};"
        writer.line(text, node.source, moves=isinstance(node, Load) and not node.args)
        self.values[node] = Expression(name)

    def _may_inline(self, node: Node, expression: Expression, user: Node | None) -> bool:
        width = choices.INLINE_WIDTH if user is not None else choices.STORED_WIDTH
        if len(expression.text) > width or isinstance(user, Load | IndexValue):
            return False
        if isinstance(user, Scan) and is_extreme(user):
            return False  # it is compared, and taken
        lazy = isinstance(user, Op) and user.name in LAZY and node in user.args[1:]
        check = is_check(user)
        if expression.reads:
            # Every read comes before every write; and a read under a condition, which must not
            # happen where the condition fails, does not become a vector read.
            masked = isinstance(node, Load) and node.mask is not None
            if self.kernel.updated or masked or lazy or check:
                return False
        if lazy and expression.strength == CHOICE:
            return False
        if user is not None and user.source != node.source:
            return isinstance(node, Load | Cast | IndexValue)
        return True

    def word(self, node: Node) -> str:
        """Return a name that says what a node is."""
        if isinstance(node, Load):
            return f"{self.kernel.names[node.buffer]}_val"
        if isinstance(node, IndexValue):
            return "position"
        if isinstance(node, Reduce):
            return f"row_{reduction_word(node)}"
        if isinstance(node, Scan):
            return f"{node.kind}_so_far"
        source = node.source
        users = self.kernel.users.get(node, [])
        read = isinstance(node, Cast) and isinstance(node.args[0], Load)  # and widened
        if source is not None and not read and all(user.source != source for user in users):
            assigned = _ASSIGNED.match(source.text)
            if assigned:
                own = assigned[1]
                return f"{own}_val" if own in self.taken else own
        told = told_word(node)
        if told:
            return told
        if isinstance(node, Cast):
            inner = self.values.get(node.args[0])
            stem = inner.text if inner is not None and inner.text.isidentifier() else "value"
            return f"{stem}_{_TYPE_WORDS.get(node.dtype, 'cast')}"
        if isinstance(node, Op):
            whole = root_of(node.name)
            word = _WORDS.get(whole) or word_of(whole)
            # a function's own name is that of its helper
            return f"{word}_val" if word == node.name else word
        return "value"

    def _scan(self, node: Scan, writer: Writer) -> None:
        """Write how a scan takes the current value; an extreme and its position take it at once."""
        item = self.running[node]
        arg = node.args[0]
        value = self.cast_to(arg, item.dtype)
        if is_extreme(node):
            value = Expression(value.within(ATOM))
        place = self.index(Expr.of(node.axis))
        for text in take_next(item, value, place, self.taken, self.kernel.use):
            writer.line(text, node.source)
        for same in [n for n, other in self.running.items() if other == item]:
            result = item.result(same)
            narrow = same.dtype != item.dtype and not same.kind.startswith("arg")
            if narrow or result.strength != ATOM:
                name = self.name(self.word(same))
                kind = C_TYPES[same.dtype]
                text = f"({kind}){result.within(ATOM)}" if narrow else result.text
                writer.line(f"const {kind} {name} = {text};", same.source)
                result = Expression(name)
            self.values[same] = result

    def _check(self, node: Op, writer: Writer) -> None:
        """Write a run-time check: the value is 0 where it fails, which is a safe index."""
        condition, value = (self.values[arg] for arg in node.args)
        number = self.kernel.check_numbers[check_parts(node.name)[1]]
        valid = self.name("valid")
        writer.line(f"const bool {valid} = {condition.text};", node.source)
        writer.line(f"if (!{valid}) failed = {number};", node.source)
        self.valid[node] = valid
        self.values[node] = value
        if node.dtype == torch.int64:  # it may be an index
            safe = self.name("checked")
            writer.line(
                f"const int64_t {safe} = {valid} ? {value.within(BIT_OR)} : 0;", node.source
            )
            self.values[node] = Expression(safe)

    def expression(self, node: Node) -> Expression:
        """Return the text that computes one node from its arguments' texts.

        Raises:
            UnsupportedNode: It has no C++.
        """
        if node.dtype not in C_TYPES:
            raise UnsupportedNode(f"{node.dtype} has no C++")
        kernel = self.kernel
        if isinstance(node, Const):
            return const_expression(node)
        if isinstance(node, IndexValue):
            text = self.index(node.expr)
            level = ATOM if text.isidentifier() or text.isdigit() else SUM
            return cast_expression(torch.int64, node.dtype, Expression(text, level), kernel.use)
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, Cast):
            short = is_short_position(node)
            return cast_node(node, self.values[node.args[0]], kernel.use, short=short)
        assert isinstance(node, Op), node
        if self.moderate and has_moderate_form(node):
            arguments = [self.values[arg] for arg in node.args]
            kernel.use(f"moderate_{node.name}.f{node.dtype.itemsize * 8}")
            texts = ", ".join(argument.text for argument in arguments)
            reads = any(argument.reads for argument in arguments)
            return Expression(f"fx_moderate_{node.name}({texts}, {self.moderate})", ATOM, reads)
        args = tuple(self.values[arg] for arg in node.args)
        chosen = without_branch(node, args, kernel.users, kernel.use)
        return chosen or op_expression(node, args, kernel.use)

    def _load(self, node: Load) -> Expression:
        buffer = self.kernel.buffers[node.buffer]
        text = self.element(node.buffer, node.index)
        conditions = [self.within] if self.within else []
        if node.mask is not None:
            conditions.append(self.values[node.mask].within(UNARY))
        for expr in node.index:
            conditions += self._emptiness(expr)
        self.use_type(buffer.dtype)
        value = from_memory(text, buffer.dtype)
        if not conditions:
            return value
        if conditions == [self.within]:
            self.there[node] = value
        other = literal(node.other, node.dtype)
        return Expression(f"{' & '.join(conditions)} ? {value.text} : {other}", CHOICE, True)

    def use_type(self, dtype: torch.dtype) -> None:
        """Note that the text names a type that a helper defines."""
        if dtype in HALVES:
            self.kernel.use("to_float.bf16" if dtype == torch.bfloat16 else "to_float.f16")

    def bind_result(self, node: Node, result: Expression, writer: Writer) -> None:
        """Make the result of a reduction known; give it a name if it is not one."""
        if not result.text.isidentifier():
            name = self.name(self.word(node))
            writer.line(f"const {C_TYPES[node.dtype]} {name} = {result.text};", node.source)
            result = Expression(name)
        self.values[node] = result

    def cast_to(self, arg: Node, dtype: torch.dtype) -> Expression:
        """Return a known value as another type."""
        return cast_expression(arg.dtype, dtype, self.values[arg], self.kernel.use)

    def where_there(self, arg: Node, dtype: torch.dtype, other: str) -> Expression:
        """Return a known value as another type, or ``other`` beyond the end of the loop."""
        value = self.cast_to(arg, dtype)
        if not self.within:
            return value
        if arg in self.there and not self.values[arg].text.isidentifier():
            # One choice says it: what is loaded beyond the end does not matter.
            value = cast_expression(arg.dtype, dtype, self.there[arg], self.kernel.use)
        return Expression(f"{self.within} ? {value.text} : {other}", CHOICE, True)

    def store(self, store: Store, writer: Writer) -> None:
        """Write a store; its value is known."""
        if store in self.staged:
            value = self.values[store.value.args[0]]
            writer.line(f"{self.staged[store]} = {value.text};", store.source)
            return
        target = self.streamed.get(store) or self.element(store.buffer, store.index)
        value = self.values[store.value]
        dtype = self.kernel.buffers[store.buffer].dtype
        source = store.source
        self.use_type(dtype)
        guard = ""
        if store.updates:
            # where there is no such element at all, not even the first one may be touched
            valid = [v for e in store.index for v in self._emptiness(e)]
            guard = f"if ({' & '.join(dict.fromkeys(valid))}) " if valid else ""
        condition = store.condition
        if condition is not None:
            guard = f"{guard}if ({self.values[condition].text}) "
        if store.mode in ("set", "put", "some"):
            moves = value.text.isidentifier()
            writer.line(f"{guard}{target} = {value.text};", source, moves=moves)
            return
        if store.mode in ("add", "sum") and dtype.is_floating_point and dtype not in HALVES:
            writer.line(f"{guard}{target} += {value.text};", source)
            return
        total = op_expression(
            Op(COMBINES[store.mode], (store.value, store.value), dtype),
            (from_memory(target, dtype), value),
            self.kernel.use,
        )
        writer.line(f"{guard}{target} = {total.text};", source)

    def _emptiness(self, index: Expr) -> list[str]:
        """Return the conditions under which there is any element at a checked index."""
        found = []
        for symbol in sorted(index.symbols(), key=lambda s: s.serial):
            payload = symbol.payload
            if isinstance(payload, Node) and payload in self.valid and may_be_empty(symbol):
                found.append(self.valid[payload])
        return found


_TYPE_WORDS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.bool: "bool",
    torch.int64: "i64",
    torch.int32: "i32",
}


__all__ = ["KernelWriter", "Scope"]
