"""Operands of a call, drawn by a seed: sizes, types, layouts, whether they need gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from operands.tables import Call

_SIZES: list[tuple[int, ...]] = [(4, 3), (4,), (), (2, 3), (1,), (2, 4), (3, 3), (0, 3)]
_PLACES: list[tuple[int, ...]] = [(2,), (), (1,), (4,), (1, 2), (2, 3), (4, 3), (0,)]
_INDEX_TYPES = [*[torch.int64] * 8, torch.int32, torch.float32, torch.uint8, torch.bool]
_UPDATED: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), (4,)),
    ((1,), (4,)),
    ((2, 4), (1, 4)),
    ((2, 4), (2, 4)),
    ((4,), (2, 4)),
    ((4,), ()),
    ((0, 4), (1, 4)),
]
_FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
_OTHERS = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.int8, torch.int16]
_TYPES = [*_FLOATS, *_OTHERS]


@dataclass
class Case:
    """A call and its operands.

    Attributes:
        call: What is called.
        seed: What they were drawn by.
        function: The call, as a function of ``given``.
        given: Name and value of each operand.
        dynamic: Whether every size is symbolic.
        learns: Whether gradients are asked for.
    """

    call: Call
    seed: int
    function: Callable[..., Any]
    given: dict[str, Any]
    dynamic: bool
    learns: bool

    def __str__(self) -> str:
        """Return the call, its seed and its operands."""
        said = [f"{name} {_said(value)}" for name, value in self.given.items()]
        how = [*(["dynamic"] if self.dynamic else []), *(["gradients"] if self.learns else [])]
        return f"{self.call.text}  # {self.seed}: {', '.join([*said, *how])}"


def _said(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype)[6:]}{list(value.shape)}{list(value.stride())}"


def drawn(call: Call, seed: int) -> Case:
    """Return a call with operands that a seed says."""
    dice = random.Random(f"{call.table} {call.text} {seed}")
    draw = {"any": _any, "fitting": _fitting, "updates": _updates}[call.table]
    given = draw(dice, call)
    learns = dice.random() < 0.3 and given["a"].is_floating_point()
    names = ", ".join(given)
    space = {"torch": torch, "F": F, "setitem": _setitem}
    function = eval(f"lambda {names}: {call.text}", space)
    return Case(call, seed, function, given, dice.random() < 0.5, learns)


def _setitem(target: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    target[index] = value
    return target


def _any(dice: random.Random, call: Call) -> dict[str, Any]:
    # Most cases are near to what eager takes: it is the one that is a little off that counts.
    shape = dice.choice([(4, 3), (3, 3), *_SIZES])
    other = shape if dice.random() < 0.55 else dice.choice(_SIZES)
    kind = torch.float32 if dice.random() < 0.5 else dice.choice(_TYPES)
    second = kind if dice.random() < 0.7 else dice.choice(_TYPES)
    place = other if dice.random() < 0.3 else dice.choice(_PLACES)
    index = torch.zeros(place, dtype=torch.int64)
    if dice.random() < 0.3:
        index += dice.choice([1, 2, -1])
    given: dict[str, Any] = {"a": _tensor(dice, shape, kind), "b": _alike(dice, other, second)}
    if "dim" in call.text:
        given["dim"] = dice.choice([0, 0, -1, 1])
    if "index" in call.text.replace("index_", ""):
        given["index"] = index.to(dice.choice(_INDEX_TYPES))
    return given


def _fitting(dice: random.Random, call: Call) -> dict[str, Any]:
    kind = dice.choice(_TYPES)
    return {
        name: _tensor(dice, shape, kind if dice.random() < 0.6 else dice.choice(_TYPES))
        for name, shape in zip("abcde", call.shapes, strict=False)
    }


def _updates(dice: random.Random, call: Call) -> dict[str, Any]:
    shape, other = dice.choice(_UPDATED)
    kind = dice.choice([torch.float32, torch.int64, *_TYPES])
    second = kind if dice.random() < 0.6 else dice.choice(_TYPES)
    return {"a": _tensor(dice, shape, kind), "b": _alike(dice, other, second)}


def _tensor(dice: random.Random, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    """Return values from 0 to 2 in one of some layouts."""
    generator = torch.Generator().manual_seed(dice.randrange(1 << 30))
    made = (torch.rand(shape, generator=generator) * 2).to(kind)
    layout = dice.choice(["dense", "dense", "turned", "gaps"])
    if layout == "turned" and made.dim() > 1:
        return made.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gaps" and made.dim():
        return made.repeat_interleave(2, -1)[..., ::2]
    return made


def _alike(dice: random.Random, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    """Return equal elements: where places repeat it is all the same which one is taken."""
    value = dice.choice([1.0, 1.0, 2.0, 0.5])
    if shape and dice.random() < 0.2:
        return torch.tensor(value).to(kind).expand(shape)
    return torch.full(shape, value).to(kind)


__all__ = ["Case", "drawn"]
