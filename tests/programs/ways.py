"""How eager runs a state program otherwise than it does, where that is no worse."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from programs import prelude
from programs.nodes import StateProgram

# What eager says where a parameter is kept in another type than a product is to be in.
_TWO_TYPES = re.compile(r"same dtype|expected scalar type")


@dataclass(frozen=True)
class Way:
    """How eager runs a program, where torch leaves that open or a compiler may do otherwise.

    Attributes:
        recomputes: Whether checkpoints compute again what they did not keep; or only where a mode
            sees all operators, of which TorchDynamo leaves alone what runs under it.
        strides: Whether hooks return saved tensors with other strides than they had.
        refuses: Whether transforms refuse to run within hooks of saved tensors.  What is compiled
            has none any more, under AOTAutograd neither, and is what eager does without the hooks.
        caches: Whether autocast keeps a parameter that it has cast.  It keeps it by the parameter
            alone: what an inner block has cast to one type is taken in the outer one of another,
            where a product then raises.  What is compiled casts anew, under AOTAutograd as well.
    """

    recomputes: bool | str = True
    strides: bool = True
    refuses: bool = True
    caches: bool = True

    def put(self, space: dict[str, Any]) -> None:
        """Have a program's names do so."""
        if self.recomputes is not True:
            space["checkpoint"] = _once_or_within_modes if self.recomputes else _once
        if not self.refuses:
            hooks = _NoHooks()
            space["saved"], space["state"] = hooks.saved, hooks.state
        elif not self.strides:
            space["saved"] = lambda way: prelude.saved("same")
        if not self.caches:
            _Uncached().put(space)

    @staticmethod
    def others(program: StateProgram, raised: str = "") -> list[Way]:
        """Return the other ways that make a difference to a program, those nearest first.

        Args:
            program: The program.
            raised: What eager raises in it.  That two types do not fit may be for a parameter that
                autocast keeps; no other difference is laid to that.
        """
        text = program.source
        choices = (
            _checkpoints(text),
            (True, False) if 'saved("' in text else (True,),
            (True, False) if 'saved("' in text and "torch.func." in text else (True,),
            (True, False) if "autocast(" in text and _TWO_TYPES.search(raised) else (True,),
        )
        chosen = sorted(itertools.product(*choices), key=lambda each: -sum(map(bool, each)))
        return [Way(*each) for each in chosen[1:]]


AS_EVER = Way()


class _Uncached:
    """Torch with an autocast that keeps nothing, and says that it does as it is told."""

    def __init__(self) -> None:
        self.said = [True]

    def put(self, space: dict[str, Any]) -> None:
        # by name: programs find it under ``torch``
        space["torch"] = self
        state = space["state"]
        space["state"] = lambda: tuple(
            ("cache", self.said[-1]) if isinstance(each, tuple) and each[0] == "cache" else each
            for each in state()
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @contextlib.contextmanager
    def autocast(
        self, *given: Any, cache_enabled: bool | None = None, **named: Any
    ) -> Iterator[None]:
        with torch.autocast(*given, cache_enabled=False, **named):
            self.said.append(self.said[-1] if cache_enabled is None else cache_enabled)
            try:
                yield
            finally:
                self.said.pop()


class _NoHooks:
    """Blocks in which hooks of saved tensors would be, as the state of torch has it."""

    def __init__(self) -> None:
        self.depth = 0

    @contextlib.contextmanager
    def saved(self, way: str) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def state(self) -> tuple[object, ...]:
        hooks = ("hooks", self.depth > 0)
        found = prelude.state()
        return tuple(hooks if each == ("hooks", False) else each for each in found)


def _checkpoints(text: str) -> tuple[bool | str, ...]:
    if "checkpoint(" not in text:
        return (True,)
    return (True, False, "within modes") if "Operators()" in text else (True, False)


def _once_or_within_modes(function: Callable[..., Any], *given: Any, use_reentrant: bool) -> Any:
    if torch._C._len_torch_dispatch_stack():
        return prelude.checkpoint(function, *given, use_reentrant=use_reentrant)
    return function(*given)


def _once(function: Callable[..., Any], *given: Any, use_reentrant: bool) -> Any:
    return function(*given)


__all__ = ["AS_EVER", "Way"]
