"""Through the graph of values: in order, rewritten, and what each depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, Reduce, current_recorder, indirect

Leaf = type[Node] | tuple[type[Node], ...]


def walk(roots: tuple[Node, ...], leaf: Leaf | None = None) -> list[Node]:
    """Return every node below ``roots``, arguments before their users, each once.

    What lies below nodes of type ``leaf`` is left out.
    """
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if leaf is None or not isinstance(node, leaf):
                stack.extend((arg, False) for arg in reversed(node.args))
    return order


def rewrite(
    roots: tuple[Node, ...],
    mapping: Mapping[Symbol, Expr],
    replace: Callable[[Node], Node | None] | None = None,
    leaf: Leaf | None = None,
) -> tuple[Node, ...]:
    """Rebuild ``roots`` with symbols substituted and nodes replaced.

    Args:
        roots: The nodes to rebuild.
        mapping: Symbols to expressions.
        replace: Called on each rebuilt node; returns its replacement, or None to keep it.
        leaf: Nodes of this type stay as they are, with all that lies below them.
    """
    done: dict[int, Node] = {}
    indirect_moves: dict[Symbol, Expr] = {}

    def move(expr: Expr) -> Expr:
        symbols = expr.symbols()
        moves: dict[Symbol, Expr] = {}
        for symbol in symbols:
            if symbol.kind == "indirect":
                moved = indirect_moves.get(symbol)
                if moved is None:
                    payload, size = symbol.payload, symbol.size
                    assert isinstance(payload, Node)
                    assert size is not None
                    moved = indirect(done[id(payload)], size.substitute(mapping))
                    indirect_moves[symbol] = moved
                moves[symbol] = moved
            elif symbol in mapping:
                moves[symbol] = mapping[symbol]
        return expr.substitute(moves) if moves else expr

    recorder = current_recorder()
    outer_source = recorder.source
    for node in walk(roots, leaf):
        if leaf is not None and isinstance(node, leaf):
            done[id(node)] = node
            continue
        args = tuple(done[id(arg)] for arg in node.args)
        recorder.source = node.source
        rebuilt = node.rebuild(args, move)
        if replace is not None:
            rebuilt = replace(rebuilt) or rebuilt
        done[id(node)] = rebuilt
    recorder.source = outer_source
    return tuple(done[id(root)] for root in roots)


def free_axes(roots: tuple[Node, ...]) -> dict[Node, frozenset[Symbol]]:
    """Return, for every node below ``roots``, the loop axes that its value depends on."""
    free: dict[Node, frozenset[Symbol]] = {}
    for node in walk(roots):
        axes = {s for expr in node.exprs() for s in expr.symbols() if s.kind == "axis"}
        for arg in node.args:
            axes |= free[arg]
        if isinstance(node, Reduce):
            axes -= set(node.axes)
        free[node] = frozenset(axes)
    return free
