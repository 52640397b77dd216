"""What the kernels of a target can do: lowering asks for this, and never for a target's name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Abilities:
    """What is worth lowering to kernels of a target.

    Attributes:
        products: Whether a kernel may compute products of matrices.
        many_programs: Whether thousands of programs run at once, so that additions to few places
            wait for each other, and reading the same elements again costs next to nothing.
        atomics: Whether updates are atomic operations of the hardware, of which there is no
            product, and no extreme of floats that heeds NaN.
        attention: Whether a kernel may compute attention, scores and all.
        float8: Whether kernels convert from and to ``float8_e4m3fn``.
    """

    products: bool = False
    many_programs: bool = False
    atomics: bool = False
    attention: bool = False
    float8: bool = False


__all__ = ["Abilities"]
