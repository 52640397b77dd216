"""Python numbers beside tensors that eager may refuse.

A fraction as ``alpha`` of integers, ``1e40`` beside a half, ``True`` as a factor, a complex number
beside a real tensor: whether an operator converts such a number, rounds it or raises is up to its
kernel.  Tracing makes a constant of the number and knows nothing of this.  What raises with it, and
does not with another number, is left to eager (``asked.py``).
Sizes, dimensions and places are no such numbers, however few of them the tensors' type has.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from fusec.graph.refusals.asked import Given, raises_for

_NUMBERS = (int, float, complex)
_FACTORS = ("alpha", "beta")
_BOUNDS = frozenset({"random_", "randint_like"})  # their integers are bounds of elements
_OPERATORS = frozenset(value for value in vars(operator).values() if callable(value))


def has_odd_number(node: fx.Node) -> bool:
    """Whether a call of torch's has a number that tensors beside it may be unable to hold."""
    if not _is_torchs(node):
        return False
    numbers = _numbers(node)
    if not numbers:
        return False
    types = _types(node)
    return any(_is_odd(number, types) for number in numbers) or bool(_flags(node, types))


def _numbers(node: fx.Node) -> list[int | float | complex]:
    """Return the arguments of a call that are elements' values."""
    found = [value for n, value in enumerate(node.args) if _is_value(node, n, value)]
    found += [value for name, value in node.kwargs.items() if _is_value(node, name, value)]
    return found  # type: ignore[return-value]


def _is_value(node: fx.Node, place: int | str, value: object) -> bool:
    if not isinstance(value, _NUMBERS):
        return False
    if node.target in _OPERATORS:
        if node.target is operator.setitem:
            return place == 2
        return node.target is not operator.getitem
    name = getattr(node.target, "__name__", None) or str(node.target)
    places = _places_of_values(name)
    if name in _BOUNDS:
        return True
    if places is None:  # nobody knows which; a size is an integer
        return not isinstance(value, int)
    return place in places


@functools.cache
def _places_of_values(name: str) -> frozenset[int | str] | None:
    """Return where an operator takes numbers, by its overloads; None if there is none of the name.

    What it takes integers for by its schema are sizes, dimensions, places.
    """
    # ``x == 2`` is ``__eq__`` to torch 2.11, which is a method of the namespace as of any object
    names = (name, name.removeprefix("__").removesuffix("__"))
    packets = (getattr(torch.ops.aten, each, None) for each in names)
    packet = next((p for p in packets if isinstance(p, torch._ops.OpOverloadPacket)), None)
    if packet is None:
        return None
    found: set[int | str] = set()
    for overload in packet.overloads():
        for place, argument in enumerate(getattr(packet, overload)._schema.arguments):
            if str(argument.type).removeprefix("Optional[").rstrip("]") in ("number", "float"):
                found |= {place, argument.name}
    return frozenset(found)


def _types(node: fx.Node) -> set[torch.dtype]:
    found = set()
    for leaf in tree_leaves((node.args, node.kwargs)):
        value = leaf.meta.get("example_value") if isinstance(leaf, fx.Node) else None
        if isinstance(leaf, torch.dtype):
            found.add(leaf)
        if isinstance(value, torch.Tensor):
            found.add(value.dtype)
    return found


def _flags(node: fx.Node, types: set[torch.dtype]) -> list[str]:
    """Return which factors are bools, where not all operands are."""
    found = [name for name in _FACTORS if isinstance(node.kwargs.get(name), bool)]
    all_bools = types == {torch.bool} and all(isinstance(n, bool) for n in _numbers(node))
    return [] if all_bools else found


def _with_plain_numbers(node: fx.Node) -> Given:
    """Return a call's arguments with 1 in place of each odd number."""
    types = _types(node)

    def plain(place: int | str, value: object) -> object:
        return 1 if _is_value(node, place, value) and _is_odd(value, types) else value

    args = tuple(plain(n, value) for n, value in enumerate(node.args))
    kwargs = {name: plain(name, value) for name, value in node.kwargs.items()}
    return args, kwargs | dict.fromkeys(_flags(node, types), 1)


def _is_torchs(node: fx.Node) -> bool:
    if node.op == "call_method":
        return True
    module = getattr(node.target, "__module__", None) or ""
    return node.target in _OPERATORS or module.split(".")[0] in ("torch", "")


def _is_odd(number: object, types: Iterable[torch.dtype]) -> bool:
    if isinstance(number, bool):
        return False
    if isinstance(number, complex):
        return not any(dtype.is_complex for dtype in types)
    assert isinstance(number, (int, float))
    return any(_is_odd_beside(number, dtype) for dtype in types)


def _is_odd_beside(number: float, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).max < abs(number) < float("inf")
    if not isinstance(number, int) or dtype == torch.bool:
        return True
    return not torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def raises_in_eager(node: fx.Node) -> bool:
    """Whether a call raises for a number that it has."""
    return raises_for(node, _with_plain_numbers(node))


__all__ = ["has_odd_number", "raises_in_eager"]
