"""What all writers of expressions do alike: precedence, signs between arguments, bools.

A language's grammar says of each sign how strongly it binds, and how strongly its arguments have
to, so that parentheses stand only where they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fusec.ir.scalars import SCALARS, Scalar


@dataclass(frozen=True)
class Spelled:
    """Text for a value.

    Attributes:
        text: The text.
        strength: How strongly its outermost operator binds; the more, the higher.
    """

    text: str
    strength: int

    def within(self, strength: int) -> str:
        """Return the text for a place that takes what binds at least as strongly."""
        return self.text if self.strength >= strength else f"({self.text})"


@dataclass(frozen=True)
class Sign:
    """How a sign between two arguments binds.

    Attributes:
        strength: What it yields.
        left: What its first argument has to bind with.
        right: What its second one has to.
        chains: Whether its first argument may be of the same sign, whatever else that may be.
    """

    strength: int
    left: int
    right: int
    chains: bool = False


Grammar = Mapping[str, Sign]


def from_left(strength: int) -> Sign:
    """Return a sign that takes from the left: ``a + b + c`` is ``(a + b) + c``."""
    return Sign(strength, strength, strength + 1)


def joined(grammar: Grammar, sign: str, left: Spelled, right: Spelled) -> Spelled:
    """Return ``left sign right`` with the parentheses that it needs."""
    rule = grammar[sign]
    chained = rule.chains and left.strength == rule.strength
    first = left.text if chained else left.within(rule.left)
    text = f"{first} {sign} {right.within(rule.right)}"
    return Spelled(text, rule.strength)


def meaning(name: str, dtype: torch.dtype) -> Scalar | None:
    """Return the operation that is meant on arguments of a type; None for an unknown one."""
    scalar = SCALARS.get(name)
    if scalar is not None and dtype == torch.bool and scalar.on_bool:
        return SCALARS[scalar.on_bool]
    return scalar


__all__ = ["Grammar", "Sign", "Spelled", "from_left", "joined", "meaning"]
