"""What a compilation asks of tuning, which is imported when it does: most graphs never ask."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusec.ir.program import Program
    from fusec.kernel import Kernel
    from fusec.schedule import Schedule
    from fusec.schedule.overrides import Overrides


def pin(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    """Give kernels the settings that tuning found for them; see ``tune.pins``."""
    from fusec.tune import pins

    return pins.pin(kernels)


def choose_products(
    program: Program, products: Collection[str], *, overrides: Overrides
) -> Schedule:
    """Schedule a program, its products of matrices measured; see ``tune.products``."""
    from fusec.tune import products as measured

    return measured.choose_products(program, products, overrides=overrides)


__all__ = ["choose_products", "pin"]
