"""Corner inputs: the shapes, layouts and values on which compilers go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, ReductionOpInfo
from torch.testing._internal.opinfo.core import UnaryUfuncInfo as UnaryInfo
from torch.utils._pytree import tree_leaves, tree_map

# Elements between neighbors of the outermost dimension; memory for them is reserved, not touched.
_HUGE = 1_000_003
_MOST_BYTES = 1 << 29

Change = Callable[[torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True)
class Corner:
    """A sample of the database, changed.

    Attributes:
        name: How.
        values: Input, positional and named arguments.
        flipped: Whether the compiled function flips its tensors first: negative strides.
    """

    name: str
    values: tuple[Any, tuple[Any, ...], dict[str, Any]]
    flipped: bool = False


def corners(op: OpInfo, dtype: torch.dtype) -> Iterator[Corner]:
    """Yield what can be made of an operator's first samples; eager may refuse some of it."""
    samples = [s for s, _ in zip(op.sample_inputs("cpu", dtype), range(3), strict=False)]
    for sample in samples[:1]:
        if op.name == "_chunk_cat":
            return  # eager itself ends the process for a 0-dimensional input
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))
        for name, change in _LAYOUTS.items():
            if "as_strided" not in op.name:  # which would read what lies in the gaps
                yield from _changed(name, given, change)
        yield Corner("flipped", given, flipped=True)
        for name, change in _SHAPES.items():
            yield from _changed(name, given, change)
        if isinstance(op, (UnaryInfo, BinaryUfuncInfo, ReductionOpInfo)):
            yield from _changed("special values", given, _special)


def _changed(name: str, given: Any, change: Change) -> Iterator[Corner]:
    done = 0

    def one(value: Any) -> Any:
        nonlocal done
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        made = change(value)
        done += made is not None
        return value if made is None else made

    with torch.no_grad():
        values = tree_map(one, given)
    if done:
        yield Corner(name, values)


# -- layouts: the same values -----------------------------------------------------------------


def _strided(x: torch.Tensor) -> torch.Tensor | None:
    if x.ndim == 0 or x.numel() == 0:
        return None
    wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def _turned(x: torch.Tensor) -> torch.Tensor | None:
    return x.mT.contiguous().mT if x.ndim >= 2 else None


def _channels_last(x: torch.Tensor) -> torch.Tensor | None:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else None


def _huge_strides(x: torch.Tensor) -> torch.Tensor | None:
    if x.ndim == 0 or x.numel() == 0 or x.shape[0] * _HUGE * x.itemsize > _MOST_BYTES:
        return None
    if x[0].numel() > _HUGE:
        return None
    storage = torch.empty(x.shape[0] * _HUGE, dtype=x.dtype)
    inner = torch.empty(x.shape[1:], device="meta").stride()
    view = storage.as_strided(x.shape, (_HUGE, *inner))
    return view.copy_(x)


def _expanded(x: torch.Tensor) -> torch.Tensor | None:
    return x[:1].expand(x.shape) if x.ndim and x.shape[0] > 1 else None


def _inside(x: torch.Tensor) -> torch.Tensor | None:
    """Return x inside memory that begins and ends with what nothing may read."""
    before = 3
    around = torch.full((before + x.numel() + before,), 1, dtype=x.dtype)
    if x.is_floating_point() or x.is_complex():
        around.fill_(float("nan"))
    inner = torch.empty(x.shape, device="meta").stride()
    return around.as_strided(x.shape, inner, before).copy_(x)


_LAYOUTS: dict[str, Change] = {
    "inside its memory": _inside,
    "strided": _strided,
    "transposed": _turned,
    "channels last": _channels_last,
    "huge strides": _huge_strides,
    "expanded": _expanded,
}

# -- shapes -----------------------------------------------------------------------------------

_SHAPES: dict[str, Change] = {
    "empty": lambda x: x[:0] if x.ndim else None,
    "empty inside": lambda x: x[..., :0] if x.ndim > 1 else None,
    "one element": lambda x: x.reshape(-1)[:1].reshape([1] * x.ndim) if x.numel() else None,
    "0-dimensional": lambda x: x.reshape(-1)[0] if x.numel() else None,
}

# -- values -----------------------------------------------------------------------------------


def _special(x: torch.Tensor) -> torch.Tensor | None:
    """Return x with NaN, infinities, zeros of both signs, extremes and denormals in it."""
    if x.dtype.is_floating_point:
        info = torch.finfo(x.dtype)
        numbers = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0]
        numbers += [info.tiny, -info.tiny, info.tiny / 4, 0.5, -2.5]
    elif x.dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(x.dtype)
        numbers = [limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1]
    else:
        return None
    if x.numel() < 2:
        return None
    generator = torch.Generator().manual_seed(len(tree_leaves(x)) + x.numel())
    drawn = torch.randint(2 * len(numbers), (x.numel(),), generator=generator)
    special = torch.tensor(numbers, dtype=x.dtype)
    chosen = special[drawn % len(numbers)].reshape(x.shape)
    return torch.where((drawn < len(numbers)).reshape(x.shape), chosen, x.detach())


__all__ = ["Corner", "corners"]
