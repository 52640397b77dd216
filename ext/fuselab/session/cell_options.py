"""What decides how a cell is compiled, and what it needs to know of the shell that runs it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class CellOptions:
    """What decides how a cell is compiled; a cell with other options is another program.

    Attributes:
        target: ``auto``, or the name of a target.
        name: The cell's name and the prefix of its kernels' names; empty for ``cell_N``.
        dynamic: As ``torch.compile``.
        matmul: How matrix products run in Triton: ``small``, ``extern``, ``template`` or ``auto``.
        eager_random: Whether random numbers are exactly those that eager would draw.
        cuda_graphs: Whether launches on a GPU are captured as CUDA graphs.
        memory_budget: Bytes that the logits of a loss may take, ``400MiB``; None for all.
        gpu: Architecture that Triton kernels are cross-compiled for without a GPU.
        apart: Pairs of computations that must not share a kernel: ``gelu:layer_norm``.
        together: Pairs that share one wherever it is legal.
        loops: How the loops of kernels are to run: ``softmax: rows prefetch=0``.
        without: Passes over the graph that are left out.
        out: The only names that land, or None for all.
    """

    target: str = "auto"
    name: str = ""
    dynamic: bool | None = None
    matmul: str = "small"
    eager_random: bool = False
    cuda_graphs: bool = False
    memory_budget: str | None = None
    gpu: str = "sm_90"
    apart: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    out: tuple[str, ...] | None = None

    def for_compiler(self) -> dict[str, Any]:
        """Return the options that ``fusec.compile`` takes."""
        own = {field.name for field in fields(self)} - {"out"}
        return {name: getattr(self, name) for name in sorted(own)}


@dataclass(frozen=True)
class Frontend:
    """What a cell needs to know of the shell that runs it.

    Attributes:
        number: The cell's execution count.
        cell_id: The notebook's own name for the cell, where the frontend sends one.
        transform: IPython's ``transform_cell``.
        transform_ast: IPython's ``transform_ast``.
        interactivity: IPython's ``ast_node_interactivity``.
    """

    number: int = 1
    cell_id: str | None = None
    transform: Callable[[str], str] | None = None
    transform_ast: Callable[[ast.Module], ast.Module] | None = None
    interactivity: str = "last_expr"
