"""How eager runs a state program otherwise than it does, where that is no worse."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from programs import prelude
from programs.nodes import StateProgram


@dataclass(frozen=True)
class Way:
    """How eager runs a program, where torch leaves that open or a compiler may do otherwise.

    Attributes:
        recomputes: Whether checkpoints compute again what they did not keep.
        strides: Whether hooks return saved tensors with other strides than they had.
    """

    recomputes: bool = True
    strides: bool = True

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
        )
        ways = [Way(*each) for each in itertools.product(*choices)]
        return sorted(ways, key=lambda w: (not w.recomputes) + (not w.strides))[1:]


AS_EVER = Way()


def _once(function: Callable[..., Any], *given: Any, use_reentrant: bool) -> Any:
    return function(*given)


__all__ = ["AS_EVER", "Way"]
