"""How far roundings carry a result where everything cancels: the variance of one number alone.

Eager has exactly zero there, or whatever its order of sums leaves; another order, which is as
right, leaves something else, and neither has a digit of what it is held against.  What changes by
as much where the inputs change in their last digits is no mistake.  Nor are roundings that all go
one way, as those of a sum of equal numbers do.
Where a kernel does nothing but add and multiply this holds for all inputs: eager may have had luck
with a sum, and another order of it is right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fusec.ir.body import Body
from fusec.ir.node import Const, Load, Node, Op, Reduce, Scan

if TYPE_CHECKING:
    from fusec.verify.trials.references import References

# Kinds of input in which differences and variances are zero.
LEVEL = frozenset({"constant", "ones", "equal rows"})
_WIDE = frozenset({torch.float32, torch.float64})
_ADD = frozenset({"add", "sub", "mul", "neg"})
_DRAWN = 3
# By how many roundings of float32 inputs are off, as a sum of some hundred may be, and how many
# times what that does a result may be off.
_ROUNDINGS = 16.0
# The same of roundings that all go one way, as of a thousand equal numbers added one by one.
_ONE_WAY = 64.0
_TIMES = 2.0


def only_adds(body: Body | None, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a kernel does nothing but add and multiply: no step magnifies what it rounds."""
    wide = all(tensor.dtype in _WIDE for tensor in tensors)
    return wide and body is not None and all(map(_adds, body.nodes()))


def _adds(node: Node) -> bool:
    if isinstance(node, Op):
        by_number = node.name == "truediv" and isinstance(node.args[1], Const)
        return by_number or node.name in _ADD
    if isinstance(node, Reduce | Scan):
        return node.kind == "sum"
    return isinstance(node, Const | Load)


def has_sums(body: Body | None) -> bool:
    """Whether a kernel adds up many elements, so that its roundings may go one way."""
    return body is not None and any(isinstance(node, Reduce | Scan) for node in body.nodes())


def explained_by_rounding(
    references: References, outputs: Sequence[torch.Tensor], *, sums: bool = False
) -> bool:
    """Whether results are as near to float64's as inputs that are off in their last digits give.

    Args:
        references: What they are held against.
        outputs: The results.
        sums: Whether many elements are added up, and nothing else is done with them.
    """
    right = [each for each in references.float64 if each is not None]
    if len(right) < len(outputs) or not all(out.is_floating_point() for out in outputs):
        return False
    spread = [torch.zeros_like(each, dtype=torch.float64) for each in right]
    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError, ValueError):
        for turn in range(_DRAWN):
            found = _disturbed(references, one_way=turn == 0, sums=sums)
            for reach, one, other in zip(spread, found, right, strict=True):
                torch.maximum(reach, (one.double() - other.double()).abs(), out=reach)
        return all(
            bool(((out.double() - one.double()).abs() <= _allowed(out, one, reach)).all())
            for out, one, reach in zip(outputs, right, spread, strict=True)
        )
    return False


def _allowed(out: torch.Tensor, exact: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    return _TIMES * reach + 4 * torch.finfo(out.dtype).eps * exact.double().abs()


def _disturbed(references: References, *, one_way: bool, sums: bool) -> Any:
    """Return the results in float64 of inputs whose last digits are others, or all larger.

    Where there are ``sums`` negative ones become larger as well: what is sorted first falls and
    then rises, and rounds one way in each half.
    """
    case = references.case
    tensors = []
    for tensor in case.tensors:
        if not tensor.is_floating_point():
            tensors.append(tensor)
            continue
        noise = torch.rand(tensor.shape, dtype=torch.float64) * 2 - 1
        if one_way:
            noise = torch.full_like(noise, _ONE_WAY / _ROUNDINGS)
            noise = noise * tensor.sign() if sums else noise
        off = _ROUNDINGS * torch.finfo(torch.float32).eps
        if tensor.dtype == torch.float64:
            off = _ROUNDINGS * torch.finfo(torch.float64).eps
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.float64)
        tensors.append(made.copy_(tensor.double() * (1 + off * noise)))
    return references.interpret(tuple(tensors), case.sizes, torch.float64)


__all__ = ["LEVEL", "explained_by_rounding", "has_sums", "only_adds"]
