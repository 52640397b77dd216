"""Writes random programs that run in eager."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from programs.idioms import idiom, parts
from programs.statements import KINDS, Scope, integers, update

MOST_ELEMENTS = 100_000
LARGEST = 1e3
# How often each kind is tried.
ALL_KINDS = (*KINDS, (parts, 2), (idiom, 4))
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 65, 130)


@dataclass(frozen=True)
class Program:
    """A random program.

    Attributes:
        seed: Makes the same one again.
        lines: The statements of ``def f(...)``, its return among them.
        inputs: Its inputs, as they were made; names are ``a``, ``b`` ...
        made: What each input was made by, for a reader.
        train: Whether inputs want gradients.
    """

    seed: int
    lines: tuple[str, ...]
    inputs: dict[str, torch.Tensor]
    made: dict[str, str]
    train: bool

    @cached_property
    def source(self) -> str:
        """The program as text."""
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def f({', '.join(self.inputs)}):\n{body}\n"

    def function(self, dtype: torch.dtype | None = None) -> Callable[..., tuple[torch.Tensor, ...]]:
        """Return the program as a function, with all floating-point types replaced if given."""
        return compiled_text(self.text(dtype), f"<program {self.seed}>")

    def text(self, dtype: torch.dtype | None = None) -> str:
        """Return the source with all floating-point types replaced by one."""
        text = self.source
        if dtype is not None:
            for each in ("float32", "float16", "bfloat16", "float64"):
                text = text.replace(f"torch.{each}", f"@{each}")
            for each in ("float32", "float16", "bfloat16", "float64"):
                text = text.replace(f"@{each}", str(dtype))
        return text

    def fresh(self, change: int = 0) -> list[torch.Tensor]:
        """Return copies of the inputs that lie as they do; with other values for ``change``."""
        generator = torch.Generator().manual_seed(1000 * self.seed + change)
        return [copied(value, generator if change else None) for value in self.inputs.values()]

    def __str__(self) -> str:
        made = "\n".join(f"{name} = {text}" for name, text in self.made.items())
        return f"{made}\n{self.source}"


def compiled_text(text: str, name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the function ``f`` of a text; its lines can be looked up, as a cell's can."""
    import linecache

    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, name, "exec"), space)
    function: Callable[..., tuple[torch.Tensor, ...]] = space["f"]
    return function


def copied(value: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Return a copy with the same strides; of other values if there is a generator."""
    span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    memory = torch.zeros(max(span, 1), dtype=value.dtype)
    found = memory.as_strided(value.shape, value.stride())
    if generator is None:
        memory.copy_(value.detach().as_strided((max(span, 1),), (1,)) if value.numel() else memory)
    elif value.is_floating_point():
        memory.copy_(torch.randn(memory.shape, generator=generator))
    else:
        most = 2 if value.dtype == torch.bool else 7
        memory.copy_(torch.randint(0, most, memory.shape, generator=generator))
    return found.requires_grad_(value.requires_grad)


def make_inputs(
    rng: random.Random, train: bool, halves: bool
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return some inputs whose shapes have to do with each other, and how each was made."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    rank = rng.choice([1, 2, 2, 2, 3, 3, 4, 4])
    while True:
        shape = [rng.choice(SIZES) for _ in range(rank)]
        if rng.random() < 0.15:
            shape[rng.randrange(rank)] = rng.choice([257, 1000, 1025, 2050])
        if rng.random() < 0.03:
            shape[rng.randrange(rank)] = 0
        if math.prod(shape) <= 20_000:
            break
    dtype = rng.choice([torch.float16, torch.bfloat16]) if halves else torch.float32
    inputs: dict[str, torch.Tensor] = {}
    made: dict[str, str] = {}
    for name in "abcde"[: rng.randint(1, 5)]:
        own = [1 if rng.random() < 0.15 else n for n in shape]
        if rng.random() < 0.2:
            own = own[rng.randrange(rank) :]
        if rank >= 2 and rng.random() < 0.25:
            own = [shape[1]]
        value, text = _laid_out(rng, own, dtype, generator)
        if rng.random() < 0.15:
            value, text = torch.randint(0, 7, own, generator=generator), f"randint(0, 7, {own})"
        if train and value.is_floating_point() and rng.random() < 0.8:
            value.requires_grad_()
        inputs[name], made[name] = value, f"{text}{', requires_grad' * value.requires_grad}"
    return inputs, made


def _laid_out(
    rng: random.Random, shape: list[int], dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, str]:
    way = rng.randrange(6)
    value = torch.randn(shape, generator=generator).to(dtype)
    text = f"randn({shape}, {dtype})"
    if way == 0 and len(shape) > 1:
        order = rng.sample(range(len(shape)), len(shape))
        back = [order.index(n) for n in range(len(shape))]
        return value.permute(order).contiguous().permute(back), f"{text} that lies as {order}"
    if way == 1:
        wide = torch.randn([*shape[:-1], shape[-1] * 2], generator=generator).to(dtype)
        return wide[..., ::2], f"{text}, every other one"
    if way == 2 and len(shape) == 4:
        return value.contiguous(memory_format=torch.channels_last), f"{text}, channels last"
    return value, text


def write(seed: int, *, train: bool = False, halves: bool = False, length: int = 0) -> Program:
    """Write the program of a seed.

    Args:
        seed: Any number.
        train: Whether its inputs want gradients; nothing is updated in place then but what the
            program made itself.
        halves: Inputs of half precision.
        length: Statements; by default 3 to 14.
    """
    rng = random.Random(seed)
    while True:
        inputs, made = make_inputs(rng, train, halves)
        if any(v.is_floating_point() for v in inputs.values()):
            break
    values = {name: copied(value, None) for name, value in inputs.items()}
    mutates = rng.random() < 0.6
    lines: list[str] = []
    # what is rounded otherwise, or not at all, comes out as another whole number
    kinds = [k for k, often in ALL_KINDS for _ in range(often) if not (halves and k is integers)]
    space: dict[str, Any] = {"torch": torch, "F": F}
    wanted = length or rng.randint(3, 14)
    for _ in range(wanted * 8):
        if len(lines) >= wanted:
            break
        kind = rng.choice(kinds)
        if kind is update and not mutates:
            continue
        scope = Scope(rng, values, tuple(inputs), mutates and not train)
        try:
            text = kind(scope)
            name = f"v{len(lines)}"
            line = text if kind is update else f"{name} = {text}"
            if kind is update and not _may_update(line, values, inputs, train):
                continue
            exec(line, {**space, **values}, found := {})
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            continue
        if kind is not update:
            value = found[name]
            if not _is_tame(value):
                continue
            values[name] = value
        elif not _are_tame(values):
            # the update has happened, and is taken back by starting again without it
            return write(seed + (1 << 20), train=train, halves=halves, length=length)
        lines.append(line)
    made_names = [name for name in values if name not in inputs]
    chosen = rng.sample(made_names, min(len(made_names), rng.randint(1, 4)))
    if made_names and made_names[-1] not in chosen:
        chosen.append(made_names[-1])
    if rng.random() < 0.1:
        chosen.append(rng.choice(list(inputs)))
    lines.append(f"return ({''.join(f'{name}, ' for name in chosen)})")
    return Program(seed, tuple(lines), inputs, made, train)


def _may_update(
    line: str, values: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor], train: bool
) -> bool:
    """Whether autograd and memory allow what the line updates."""
    name = line.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0].strip()
    target = values[name]
    if any(s == 0 and n > 1 for n, s in zip(target.shape, target.stride(), strict=True)):
        return False
    if not train:
        return True
    own = target.untyped_storage().data_ptr()
    return all(values[each].untyped_storage().data_ptr() != own for each in inputs)


def _are_tame(values: dict[str, torch.Tensor]) -> bool:
    try:
        return all(_is_tame(value) for value in values.values())
    except RuntimeError:  # a view that autograd has lost
        return False


def _is_tame(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.numel() > MOST_ELEMENTS:
        return False
    if not value.is_floating_point():
        return True
    value = value.detach()
    return bool(torch.isfinite(value).all()) and bool((value.abs() <= LARGEST).all())


__all__ = ["Program", "copied", "write"]
