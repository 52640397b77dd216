"""How far roundings carry a result where everything cancels: the variance of one number alone.

Eager has exactly zero there, or whatever its order of sums leaves; another order, which is as
right, leaves something else, and neither has a digit of what it is held against.  What changes by
as much where the inputs change in their last digits is no mistake.  Nor are roundings that all go
one way, as those of a sum of equal numbers do.
Where a kernel does nothing but add and multiply this holds for all inputs: eager may have had luck
with a sum, and another order of it is right. Of every kernel what its steps round
(``running_errors``) and what its sums may be off by (``other_orders``) is propagated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from fusec.ir.body import Body
from fusec.ir.node import Const, Dot, Load, Node, Op, Reduce, Scan
from fusec.verify.trials.other_orders import with_other_orders
from fusec.verify.trials.running_errors import RunningErrors

if TYPE_CHECKING:
    from fusec.verify.trials.candidate import Candidate
    from fusec.verify.trials.references import ReferencedCase, References

# How inputs are changed: by chance, all further from zero, all larger.
_How = Literal["chance", "scaled", "shifted"]

# Kinds of input in which differences and variances are zero.
_LEVEL = frozenset({"constant", "ones", "equal rows"})
_WIDE = frozenset({torch.float32, torch.float64})
_ADD = frozenset({"add", "sub", "mul", "neg"})
_DRAWN = 2
# By how many roundings of float32 inputs are off, as a sum of some hundred may be, and how many
# times what that does a result may be off.
_ROUNDINGS = 16.0
# The same of roundings that all go one way, as of a thousand equal numbers added one by one.
_ONE_WAY = 64.0
_TIMES = 2.0
# How many values of a kernel's steps are worked out at most; each takes 16 bytes.
_MOST_VALUES = 1 << 27
# In how many runs sums are off, each in either direction: with a kernel's own roundings as lucky
# as those of a run, one more than twice as far off as all of n runs is one of (n + 1) 2^n.  So
# many at least, so many at most, and between them as many as work out so many values in all.
_ORDERS_LEAST, _ORDERS_MOST = 3, 16
_ORDERS_VALUES = 1 << 24


def _only_adds(body: Body | None, tensors: Sequence[torch.Tensor]) -> bool:
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


def _has_sums(body: Body | None) -> bool:
    """Whether a kernel adds up many elements, so that its roundings may go one way."""
    return body is not None and any(isinstance(n, Reduce | Scan | Dot) for n in body.nodes())


def _values(candidate: Candidate, trial: ReferencedCase) -> int:
    body = candidate.kernel.body
    return candidate.points(trial.case) * sum(1 for _ in body.nodes()) if body else 0


def explained_by_rounding(
    candidate: Candidate, trial: ReferencedCase, outputs: Sequence[torch.Tensor]
) -> bool:
    """Whether results are as near to float64's as roundings bring them.

    Args:
        candidate: What gave them.
        trial: What they are held against.
        outputs: The results.
    """
    references, body = trial.references, candidate.kernel.body
    tensors = [t for t in (*trial.case.tensors, *outputs) if t.is_floating_point()]
    if not all(out.is_floating_point() for out in outputs):
        return False
    adds, sums = _only_adds(body, trial.case.tensors), _has_sums(body)
    # Of halves what is allowed is more than that.
    again = candidate.reorder if all(t.dtype in _WIDE for t in tensors) else None
    inputs = adds or trial.kind in _LEVEL
    right = [each for each in references.float64 if each is not None]
    if not (again or inputs) or len(right) < len(outputs):
        return False
    spread = [torch.zeros_like(each, dtype=torch.float64) for each in right]

    def widen(found: Sequence[torch.Tensor], times: float) -> None:
        for reach, one, other in zip(spread, found, right, strict=True):
            off = times * (one.double() - other.double()).abs()
            torch.maximum(reach, torch.where(off.isfinite(), off, 0.0), out=reach)

    def explains() -> bool:
        return all(map(_within, outputs, right, references.eager, spread))

    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError, ValueError):
        if inputs:
            ways: list[tuple[_How, float]] = [("scaled", _ONE_WAY)]
            ways += [("chance", _ROUNDINGS)] * _DRAWN
            if adds and sums:
                ways.append(("shifted", _ONE_WAY))
            for way in ways:
                widen(_disturbed(references, *way), _TIMES)
        if again is not None and _values(candidate, trial) <= _MOST_VALUES:
            widen(again(trial.case.tensors, trial.case.sizes, RunningErrors), 1.0)
        if again is not None and sums:
            # A kernel may add up in more than its tensors hold, and need not.
            types = {t.dtype for t in tensors}
            dtype = torch.float32 if torch.float32 in types else torch.float64
            evaluate = with_other_orders(dtype)
            for _ in range(_orders(_values(candidate, trial))):
                widen(again(trial.case.tensors, trial.case.sizes, evaluate), 1.0)
                if explains():
                    return True
        return explains()
    return False


def _orders(values: int) -> int:
    """Return in how many runs sums are off where each works out so many values."""
    return min(max(_ORDERS_VALUES // max(values, 1), _ORDERS_LEAST), _ORDERS_MOST)


def _within(
    out: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, reach: torch.Tensor
) -> bool:
    """Whether a result is as near as roundings bring it; NaN and infinities are eager's."""
    close = (out.double() - exact.double()).abs() <= _allowed(out, exact, reach)
    same = (out == eager) | (out.isnan() & eager.isnan())
    return bool(torch.where(out.isfinite() & exact.isfinite(), close, same).all())


def _allowed(out: torch.Tensor, exact: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    return reach + 4 * torch.finfo(out.dtype).eps * exact.double().abs()


def _disturbed(references: References, how: _How, roundings: float) -> Any:
    """Return the results in float64 of inputs whose last digits are others.

    Args:
        references: Whose inputs.
        how: In which way: "shifted" since a sum of what is sorted first falls and then rises, and
            rounds one way in each half.
        roundings: By how many, at most.
    """
    case = references.case
    tensors = []
    for tensor in case.tensors:
        if not tensor.is_floating_point():
            tensors.append(tensor)
            continue
        noise = torch.ones(tensor.shape, dtype=torch.float64)
        if how == "chance":
            noise = torch.rand(tensor.shape, dtype=torch.float64) * 2 - 1
        elif how == "shifted":
            noise = noise * tensor.sign()
        off = roundings * torch.finfo(torch.float32).eps
        if tensor.dtype == torch.float64:
            off = roundings * torch.finfo(torch.float64).eps
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.float64)
        tensors.append(made.copy_(tensor.double() * (1 + off * noise)))
    return references.interpret(tuple(tensors), case.sizes, torch.float64)


__all__ = ["explained_by_rounding"]
