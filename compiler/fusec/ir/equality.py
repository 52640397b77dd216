"""When two bodies are the same computation under other names.

The layers of a model give the same kernel over and over; one build serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.index_text import expr_text
from fusec.ir.node import Node


def body_key(
    body: Body,
    buffers: Mapping[str, Buffer],
    arguments: Sequence[str],
    sizes: Sequence[Symbol],
) -> str:
    """Return a text that two bodies share only if one kernel serves for both.

    It has everything that a kernel depends on but names and the user's lines. Two equal bodies
    may have different keys, where their expressions were made in another order.

    Args:
        body: The body.
        buffers: Every buffer that the body names.
        arguments: The names of its buffers, in the order that a kernel takes them.
        sizes: The symbolic sizes, likewise.
    """
    return _Writer(body, buffers, arguments, sizes).text()


class _Writer:
    def __init__(
        self,
        body: Body,
        buffers: Mapping[str, Buffer],
        arguments: Sequence[str],
        sizes: Sequence[Symbol],
    ) -> None:
        self.body = body
        self.buffers = buffers
        self.places = {name: f"b{n}" for n, name in enumerate(arguments)}
        self.numbers: dict[Node, str] = {}
        self.symbols = {s: f"s{n}:{s.low}:{s.size}" for n, s in enumerate(sizes)}
        axes = (*body.axes, *body.reduce_axes)
        self.symbols |= {axis: f"i{n}" for n, axis in enumerate(axes)}

    def text(self) -> str:
        body = self.body
        lines = [self.buffer(name) for name in self.places]
        lines += [f"{len(body.axes)} of {[self.value(a.size) for a in body.axes]}"]
        lines += [f"over {[self.value(a.size) for a in body.reduce_axes]}"]
        for node in body.nodes():
            lines.append(self.node(node))
            self.numbers[node] = f"n{len(self.numbers)}"
        for store in body.stores:
            index = self.value(store.index)
            value = self.numbers[store.value]
            lines.append(f"{self.places[store.buffer]}[{index}] {store.mode} {value}")
        return "\n".join(lines)

    def buffer(self, name: str) -> str:
        each = self.buffers[name]
        shape, strides = self.value(each.shape), self.value(each.strides)
        return f"{self.places[name]}: {each.dtype} {each.device} {shape} {strides}"

    def node(self, node: Node) -> str:
        """Return a node's class, type, arguments and every attribute of its own."""
        words = [type(node).__name__, str(node.dtype)]
        words += [self.numbers[arg] for arg in node.args]
        for kind in type(node).__mro__:
            for name in sorted(getattr(kind, "__slots__", ())) if kind is not Node else ():
                if hasattr(node, name) and not name.startswith("__") and name not in _SHARED:
                    value = getattr(node, name)
                    text = self.places[value] if name == "buffer" else self.value(value)
                    words.append(f"{name}={text}")
        return " ".join(words)

    def value(self, value: object) -> str:
        if isinstance(value, Expr):
            return expr_text(value, self.symbol)
        if isinstance(value, Symbol):
            return self.symbol(value)
        if isinstance(value, Node):
            return self.numbers[value]
        if isinstance(value, tuple):
            return f"({', '.join(self.value(each) for each in value)})"
        return repr(value)

    def symbol(self, symbol: Symbol) -> str:
        if isinstance(symbol.payload, Node):
            return f"{self.numbers[symbol.payload]}<{self.value(symbol.size)}"
        return self.symbols[symbol]


_SHARED = frozenset(Node.__slots__)

__all__ = ["body_key"]
