"""One case in eager and compiled: what each returns or raises, and whether that is the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from operands.draw import Case
from support.compare import difference


@dataclass
class Outcome:
    """What came of a call: results and what the operands are afterwards, or an error."""

    results: Any = None
    error: Exception | None = None

    def __str__(self) -> str:
        """Return the error, or what kind of results there are."""
        if self.error is not None:
            words = " ".join(str(self.error).split())
            return f"{type(self.error).__name__}: {words[:110]}"
        return ", ".join(_kind(each) for each in tree_leaves(self.results[0]))


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype)[6:]}{list(value.shape)}{list(value.stride())}"


def outcome(case: Case, wrap: Callable[..., Any]) -> Outcome:
    """Run a case from the beginning, with its function passed through ``wrap``."""
    torch._dynamo.reset()
    torch.manual_seed(7)
    given = {name: _copy(value, case) for name, value in case.given.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = wrap(case.function)(**given)
            left = [each for each in given.values() if isinstance(each, torch.Tensor)]
            gradients = _gradients(results, left) if case.learns else []
        except Exception as error:
            return Outcome(error=error)
    return Outcome((results, gradients, left))


def _copy(value: Any, case: Case) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if value.numel():
        # Elements of an expanded tensor lie in one place; they are equal.
        at = tuple(slice(0, 1) if s == 0 else slice(None) for s in value.stride())
        copy[at].copy_(value[at]) if value.dim() else copy.copy_(value)
    if case.learns and case.call.table != "updates" and value.is_floating_point():
        return copy.requires_grad_()
    return copy


def _gradients(results: Any, given: list[torch.Tensor]) -> list[Any]:
    roots = [each for each in tree_leaves(results) if isinstance(each, torch.Tensor)]
    roots = [each for each in roots if each.requires_grad]
    leaves = [each for each in given if each.requires_grad and each.is_leaf]
    if not roots or not leaves:
        return []
    slopes = [torch.full_like(root, 0.5) for root in roots]
    return list(torch.autograd.grad(roots, leaves, slopes, allow_unused=True))


def differs(eager: Outcome, mine: Outcome) -> str:
    """Return how two outcomes differ, or an empty string.

    Strides are not compared: see ``lies_otherwise``.
    """
    if eager.error is None and mine.error is None:
        names = ("", "gradients: ", "operands afterwards: ")
        parts = zip(names, mine.results, eager.results, strict=True)
        narrow = _narrowest(eager.results[2])
        for name, ours, theirs in parts:
            if words := difference(ours, theirs):
                rounded = (_rounded(each, narrow) for each in (ours, theirs))
                if narrow is None or _types(ours) != _types(theirs) or difference(*rounded):
                    return name + words
        return ""
    if eager.error is None:
        return "an error that eager does not raise"
    if mine.error is None:
        return "no error where eager raises"
    cause = getattr(mine.error, "inner_exception", mine.error)
    captured = isinstance(mine.error, torch._dynamo.exc.TorchRuntimeError)
    kind = type(eager.error)
    if captured or isinstance(cause, kind) or isinstance(eager.error, type(cause)):
        return ""
    return "an error of another class"


def _narrowest(given: list[torch.Tensor]) -> torch.dtype | None:
    """Return the narrowest type of floating point among operands: eager rounds to it in between."""
    types = [each.dtype for each in given if each.dtype.is_floating_point]
    return min(types, key=lambda dtype: torch.finfo(dtype).bits, default=None)


def _types(values: Any) -> list[object]:
    return [getattr(each, "dtype", None) for each in tree_leaves(values)]


def _rounded(values: Any, dtype: torch.dtype | None) -> list[Any]:
    return [
        each.to(dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for each in tree_leaves(values)
    ]


def lies_otherwise(eager: Outcome, mine: Outcome) -> bool:
    """Whether a result has other strides than eager's, dimensions of one element left out."""
    if eager.error is not None or mine.error is not None:
        return False
    pairs = zip(tree_leaves(eager.results[0]), tree_leaves(mine.results[0]), strict=True)
    return any(
        isinstance(e, torch.Tensor) and e.numel() and _steps(e) != _steps(m) for e, m in pairs
    )


def _steps(value: torch.Tensor) -> list[int]:
    pairs = zip(value.stride(), value.shape, strict=True)
    return [stride for stride, size in pairs if size != 1]


def examine(case: Case) -> tuple[str, str]:
    """Run a case; return a verdict and, where it is none of ``ok``, what differs.

    The verdicts: ``ok``; ``raises`` (as eager does); ``torch`` (TorchDynamo alone differs from
    eager in the same way, or AOTAutograd with eager's kernels gives those strides); ``eager`` (it
    is the one that is far from what it computes in float64); ``wrong``.
    """
    eager = outcome(case, lambda function: function)
    mine = outcome(case, _compiler("fusec", case))
    found = differs(eager, mine)
    if found:
        alone = outcome(case, _compiler("eager", case))
        verdict = "torch" if differs(eager, alone) and not differs(alone, mine) else "wrong"
        if verdict == "wrong" and _is_exact(case, eager, mine):
            verdict = "eager"
    elif lies_otherwise(eager, mine):
        found = "strides"
        other = outcome(case, _compiler("aot_eager", case))
        verdict = "torch" if lies_otherwise(eager, other) else "wrong"
    else:
        return ("ok" if eager.error is None else "raises"), ""
    return verdict, f"{case}\n    {found}\n    eager: {eager}\n    fusec: {mine}"


def _is_exact(case: Case, eager: Outcome, mine: Outcome) -> bool:
    """Whether what is compiled is of eager's types and near to what eager computes in float64."""
    if eager.error is not None or mine.error is not None:
        return False
    given = {
        name: each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for name, each in case.given.items()
    }
    exact = outcome(replace(case, given=given), lambda function: function)
    if exact.error is not None or _types(eager.results) != _types(mine.results):
        return False
    wanted, found = tree_leaves(exact.results), tree_leaves(mine.results)
    if len(wanted) != len(found):
        return False
    pairs = zip(wanted, found, strict=True)
    rounded = [each.to(m.dtype) if isinstance(m, torch.Tensor) else each for each, m in pairs]
    return not difference(found, rounded)


def _compiler(backend: str, case: Case) -> Callable[..., Any]:
    return lambda function: torch.compile(function, backend=backend, dynamic=case.dynamic)


__all__ = ["Outcome", "differs", "examine", "outcome"]
