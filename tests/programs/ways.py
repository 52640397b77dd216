"""How eager runs a state program otherwise than it does, where that is no worse."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from programs import prelude
from programs.nodes import StateProgram


@dataclass(frozen=True)
class Way:
    """How eager runs a program, where torch leaves that open or a compiler may do otherwise.

    Attributes:
        recomputes: Whether checkpoints compute again what they did not keep.
        strides: Whether hooks return saved tensors with other strides than they had.
        zeros: Whether what no gradient reaches gets zeros: a function of autograd's, which is what
            AOTAutograd makes of a graph, gets and gives gradients of zeros for none.
    """

    recomputes: bool = True
    strides: bool = True
    zeros: bool = False

    def put(self, space: dict[str, Any]) -> None:
        """Have a program's names do so."""
        if not self.recomputes:
            space["checkpoint"] = _once
        if not self.strides:
            space["saved"] = lambda way: prelude.saved("same")

    @staticmethod
    def others(program: StateProgram) -> list[Way]:
        """Return the other ways that make a difference to a program, those nearest first."""
        text = program.source
        choices = (
            (True, False) if "checkpoint(" in text else (True,),
            (True, False) if 'saved("' in text else (True,),
            (False, True) if "backward(" in text or "gradients(" in text else (False,),
        )
        ways = [Way(*each) for each in itertools.product(*choices)]
        return sorted(ways, key=lambda w: (not w.recomputes) + (not w.strides) + w.zeros)[1:]


AS_EVER = Way()


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> Any:
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        return slopes  # zeros for None


def joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results get gradients all at once, or none of them."""

    def call(*given: Any) -> Any:
        results = list(function(*given))
        places = [i for i, each in enumerate(results) if each.grad_fn is not None]
        if places and torch._C._functorch.peek_interpreter_stack() is None:
            made = _Joined.apply(*(results[i] for i in places))
            for place, each in zip(places, made, strict=True):
                results[place] = each
        return tuple(results)

    return call


def _once(function: Callable[..., Any], *given: Any, use_reentrant: bool) -> Any:
    return function(*given)


__all__ = ["AS_EVER", "Way", "joined"]
