"""What the scripts that time workloads share: their reports, and calls with gradients."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path, *key: str) -> dict[tuple[Any, ...], Row]:
    """Return the rows of a report by what tells them apart; none where there is no report."""
    if not path.exists():
        return {}
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    return {tuple(row[name] for name in key): row for row in rows}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a report, a row a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def flat(result: Any) -> list[Any]:
    """Return the tensors of a result, lists and tuples taken apart."""
    if not isinstance(result, (list, tuple)):
        return [result]
    return [tensor for each in result for tensor in flat(each)]


def total_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def caller(
    reference: Callable[..., Any], inputs: tuple[Any, ...], backward: bool, gradient: Any = None
) -> Callable[[Callable[..., Any]], list[Any]]:
    """Return what runs a function on ``inputs`` and returns its results.

    With ``backward`` the gradients of the inputs that require them follow, for one fixed gradient
    of the result (random where none is given), which comes last.
    """
    import torch

    if not backward:
        return lambda function: flat(function(*inputs))
    wanted = [t for t in inputs if t.requires_grad]
    if gradient is None:
        gradient = torch.randn_like(reference(*inputs).detach())

    def both(function: Callable[..., Any]) -> list[Any]:
        result = function(*inputs)
        return [result, *torch.autograd.grad(result, wanted, gradient), gradient]

    return both
