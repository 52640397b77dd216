"""The operations that bodies are written in: typed, folded, simplified as they are recorded.

Scalar maths is strictly typed: all arguments of an operation have one dtype (the condition of a
``where`` aside), and lowering inserts the casts.  Floating-point maths happens in float32 or
float64 only; the half types are storage.

Simplifications done here hold for every input, NaN, infinities and signed zeros included; that
is why ``x * 0`` and ``x + 0`` stay (``-0.0 + 0`` is ``0.0``) while ``x * 1`` goes.
"""

from __future__ import annotations

import math

import torch

from fusec.ir.bounds import decide
from fusec.ir.checks import CheckKind, check_name, check_parts, is_check
from fusec.ir.index import Expr
from fusec.ir.node import (
    Cast,
    Const,
    IndexValue,
    Load,
    Node,
    Number,
    Op,
    cast,
    const,
    float32_value,
    index_value,
    indirect,
    indirect_nodes,
    known_value,
    load,
    op,
    reduce,
    scan,
    source_line,
)
from fusec.ir.scalars import COMPARISONS, RANDOM_BITS, RANDOM_WORD, SCALARS, Scalar


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the register type that values of ``dtype`` are computed in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def unary(name: str, x: Node) -> Node:
    """Return ``name(x)``; ``scalars`` has the names."""
    if name == "bitwise_not" and x.dtype == torch.bool:
        return logical_not(x)
    if name == "neg" and isinstance(x, Const) and x.dtype != torch.bool:
        return const(-x.value, x.dtype)
    return op(name, (x,), SCALARS[name].gives or x.dtype)


def binary(name: str, x: Node, y: Node) -> Node:
    """Return ``name(x, y)``; both of one dtype.

    Raises:
        TypeError: The dtypes differ.
    """
    if x.dtype != y.dtype:
        raise TypeError(f"{name} of {x.dtype} and {y.dtype}")
    result = SCALARS[name].gives or x.dtype
    folded = _fold(name, x, y, result)
    return folded if folded is not None else op(name, (x, y), result)


def _fold(name: str, x: Node, y: Node, result: torch.dtype) -> Node | None:
    scalar = SCALARS[name]
    if isinstance(x, Const) and isinstance(y, Const) and scalar.fold is not None:
        if x.dtype == torch.bool and scalar.gives is None:
            return None
        value = scalar.fold(known_value(x), known_value(y))
        if result in (torch.float32, torch.bool, torch.float64):
            # one operation on float32 values, computed in float64 and rounded, is exact enough:
            # +, -, * round correctly twice over (53 >= 2 * 24 + 2 bits)
            return _rounded(value, result)
        return None if result.is_floating_point else const(value, result)  # which wraps round
    if _changes_nothing(scalar, y):
        return x
    if scalar.commutes and _changes_nothing(scalar, x):
        return y
    if name == "logical_and":
        return _absorb(x, y, neutral=True)
    if name == "logical_or":
        return _absorb(x, y, neutral=False)
    if name in COMPARISONS and isinstance(x, IndexValue):
        decided = _compare_index(name, x, y)
        if decided is not None:
            return decided
    if name in COMPARISONS:
        outcome = decide(name, x, y)
        return None if outcome is None else const(outcome, torch.bool)
    return None


def _changes_nothing(scalar: Scalar, node: Node) -> bool:
    """Whether an operation with this argument yields the other one."""
    if not isinstance(node, Const):
        return False
    identity = scalar.identity
    if identity is None and not node.dtype.is_floating_point:
        identity = scalar.integer_identity
    # the identity of subtraction is 0.0, not -0.0
    return node.value == identity and math.copysign(1, node.value) > 0


def _rounded(value: Number, dtype: torch.dtype) -> Node:
    return const(float32_value(value) if dtype == torch.float32 else value, dtype)


def _absorb(x: Node, y: Node, neutral: bool) -> Node | None:
    for known, other in ((x, y), (y, x)):
        if isinstance(known, Const):
            return other if known.value == neutral else known
    return x if x is y else None


def _compare_index(name: str, x: IndexValue, y: Node) -> Node | None:
    """Decide comparisons of positions that the loop bounds settle."""
    from fusec.ir.index import is_nonnegative

    if isinstance(y, Const) and not isinstance(y.value, float):
        right = Expr.of(int(y.value))
    elif isinstance(y, IndexValue):
        right = y.expr
    else:
        return None
    difference = x.expr - right
    outcomes: dict[str, tuple[Expr, Expr]] = {
        # name: (proves true where >= 0, proves false where >= 0)
        "ge": (difference, -difference - 1),
        "gt": (difference - 1, -difference),
        "le": (-difference, difference - 1),
        "lt": (-difference - 1, difference),
    }
    if name not in outcomes:
        return None
    proves_true, proves_false = outcomes[name]
    if is_nonnegative(proves_true):
        return const(True, torch.bool)
    if is_nonnegative(proves_false):
        return const(False, torch.bool)
    return None


def where(condition: Node, x: Node, y: Node) -> Node:
    """Return ``x`` where ``condition`` holds, else ``y``; both are computed."""
    if x.dtype != y.dtype:
        raise TypeError(f"where of {x.dtype} and {y.dtype}")
    if isinstance(condition, Const):
        return x if condition.value else y
    if x is y:
        return x
    return op("where", (condition, x, y), x.dtype)


def random_bits(seed: Node, position: Node, stream: Node, word: int) -> Node:
    """Return 32 random bits as an int32: see ``fusec.random``.

    Args:
        seed: int64, the graph's.
        position: int64, of the element in its random tensor.
        stream: An int64 constant, which of the graph's random tensors it is.
        word: Which of the four words that a position has.
    """
    return op(RANDOM_BITS, (seed, position, stream, const(word, torch.int64)), torch.int32)


def random_word(seed: Node, position: Node, stream: Node) -> Node:
    """Return 32 random bits as an int32, a quarter of a number: see ``fusec.random``.

    Arguments as for ``random_bits``.
    """
    return op(RANDOM_WORD, (seed, position, stream), torch.int32)


def logical_not(x: Node) -> Node:
    """Return ``not x`` of a bool."""
    if isinstance(x, Const):
        return const(not x.value, torch.bool)
    return op("logical_not", (x,), torch.bool)


def logical_and(*conditions: Node | None) -> Node | None:
    """Return the conjunction of the given conditions; None stands for true."""
    total: Node | None = None
    for condition in conditions:
        if condition is None:
            continue
        total = condition if total is None else binary("logical_and", total, condition)
    return total


def masked(condition: Node, value: Node, other: Number) -> Node:
    """Return ``value`` where ``condition`` holds, else ``other``, reading nothing there.

    Every load below ``value`` gets the condition as (a part of) its mask, so that positions
    outside a buffer are never touched.
    """
    if isinstance(condition, Const):
        return value if condition.value else const(other, value.dtype)
    guarded = guard_loads(value, condition)
    return where(condition, guarded, const(other, value.dtype))


def guard_loads(value: Node, condition: Node) -> Node:
    """Return ``value`` with ``condition`` added to the mask of every load below it.

    Checks below it are guarded as well: they fail only where the condition holds.  Reductions and
    scans stay as they are: they read other elements than those that the condition is about.
    Numbers that are by themselves in memory are there whatever holds.
    """
    from fusec.ir.node import Reduce, Scan
    from fusec.ir.walk import rewrite

    def guard(node: Node) -> Node | None:
        if isinstance(node, Load):
            if not node.index:
                return None
            mask = logical_and(condition, node.mask)
            return load(node.buffer, node.index, node.dtype, mask, node.other)
        if is_check(node):
            holds = binary("logical_or", node.args[0], logical_not(condition))
            return op(node.name, (holds, node.args[1]), node.dtype)
        return None

    return rewrite((value,), {}, guard, leaf=(Reduce, Scan))[0]


def check(condition: Node, value: Node, message: str, kind: CheckKind = CheckKind.INDEX) -> Node:
    """Return ``value``; the kernel fails with ``message`` where ``condition`` does not hold."""
    if isinstance(condition, Const) and condition.value:
        return value
    return op(check_name(kind, message), (condition, value), value.dtype)


def decided(node: Node) -> Node | None:
    """Return what a choice or a comparison comes to, now that more is known of what it is about.

    For ``rewrite``: None where the node is neither.
    """
    if not isinstance(node, Op):
        return None
    if node.name == "where":
        return where(*node.args)
    if node.name == "logical_not":
        return logical_not(node.args[0])
    if node.name in COMPARISONS or node.name in ("logical_and", "logical_or"):
        return binary(node.name, *node.args)
    if is_check(node):
        condition, value = node.args
        kind, message = check_parts(node.name)
        return check(condition, value, message, kind)
    return None


def checked_index(index: Node, size: Expr, *, wrap: bool = True, what: str = "index") -> Expr:
    """Return an index expression for a run-time integer, wrapped if negative and checked.

    Args:
        index: An integer node.
        size: The dimension's size.
        wrap: Whether -1 means the last one.
        what: What the failure message calls it.
    """
    index = cast(index, torch.int64)
    if isinstance(index, IndexValue):
        from fusec.ir.index import is_nonnegative, provably_less

        if is_nonnegative(index.expr) and provably_less(index.expr, size):
            return index.expr
    if isinstance(index, Const) and size.constant is not None:
        position = int(index.value) + (size.constant if wrap and index.value < 0 else 0)
        if 0 <= position < size.constant:
            return Expr.of(position)
    return indirect(checked_place(index, size, wrap=wrap, what=what), size)


def checked_place(index: Node, size: Expr, *, wrap: bool = True, what: str = "index") -> Node:
    """Return what ``checked_index`` does, as a number to compute with; arguments as there."""
    index = cast(index, torch.int64)
    limit = index_value(size, torch.int64)
    zero = const(0, torch.int64)
    if wrap:
        negative = binary("lt", index, zero)
        index = where(negative, binary("add", index, limit), index)
    inside = logical_and(binary("ge", index, zero), binary("lt", index, limit))
    assert inside is not None
    return check(inside, index, f"{what} out of range")


def keeping_checks(value: Node, places: tuple[Node, ...]) -> Node:
    """Return a value, with the checks of the places it is read at that it does not depend on.

    What is read along a dimension of one element, or of a constant, is the same at every place.
    """
    from fusec.ir.walk import walk

    read = set(walk((value,)))
    for node in walk(places):
        if is_check(node) and node not in read:
            kind, message = check_parts(node.name)
            value = check(node.args[0], value, message, kind)
    return value


__all__ = [
    "COMPARISONS",
    "RANDOM_BITS",
    "RANDOM_WORD",
    "Cast",
    "Const",
    "IndexValue",
    "Load",
    "Node",
    "binary",
    "cast",
    "check",
    "checked_index",
    "checked_place",
    "compute_dtype",
    "const",
    "decided",
    "guard_loads",
    "index_value",
    "indirect",
    "indirect_nodes",
    "keeping_checks",
    "load",
    "logical_and",
    "logical_not",
    "masked",
    "op",
    "random_bits",
    "random_word",
    "reduce",
    "scan",
    "source_line",
    "unary",
    "where",
]
