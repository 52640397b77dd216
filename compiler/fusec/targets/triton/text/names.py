"""What the values of a kernel are called: as the user called them, where that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fusec.codegen.common.value_names import told_word
from fusec.ir.checks import is_check
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op
from fusec.ir.scalars import word_of
from fusec.ir.walk import walk
from fusec.report import SourceLine

_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)\s*(?::[^=]+)?(?:[-+*/@%&|^]|//|\*\*|<<|>>)?=(?!=)")

# Words of Triton's kernels alone.
_OP_NAMES = {"add": "added", "logical_not": "not_", "eq": "same", "lt": "less", "gt": "greater"}


def favorite_names(roots: tuple[Node, ...]) -> dict[Node, str]:
    """Return the nodes that are the results of the user's assignments, with the names."""
    last: dict[tuple[SourceLine, str], Node] = {}
    for node in walk(roots):
        if node.source is None or isinstance(node, (Const, Load)):
            continue
        match = _ASSIGNED.match(node.source.text)
        if match:
            last[(node.source, match[1])] = node
    names: dict[Node, str] = {}
    for (_, name), node in last.items():
        while rounds_for_memory(node) and not isinstance(node.args[0], Load):
            node = node.args[0]  # the store rounds
        if not is_check(node):
            names.setdefault(node, name)
    for node in walk(roots):
        if is_check(node):
            names.setdefault(node.args[0], "in_range")
    return names


def suggested_name(node: Node, favorite: Mapping[Node, str], parameters: Mapping[str, str]) -> str:
    """Return what a value should be called, if the name is free.

    Args:
        node: The value.
        favorite: ``favorite_names``.
        parameters: Buffer name to the name of the kernel's argument.
    """
    if node in favorite:
        return favorite[node]
    inner = node.args[0] if isinstance(node, Cast) and node.args else node
    if isinstance(inner, Load):
        return parameters[inner.buffer]
    if isinstance(node, IndexValue):
        return "position"
    if isinstance(node, Cast):
        return "as_" + str(node.dtype).removeprefix("torch.")
    assert isinstance(node, Op)
    return told_word(node) or _OP_NAMES.get(node.name) or word_of(node.name)


def rounds_for_memory(node: Node) -> bool:
    """Whether ``node`` rounds a float for memory: a store does that by itself.

    Not to float8, where torch and Triton differ in what is too large.
    """
    return (
        isinstance(node, Cast)
        and not node.bitcast
        and node.dtype.is_floating_point
        and node.dtype.itemsize > 1
        and node.args[0].dtype.is_floating_point
    )
