"""A TorchDynamo backend that lowers and schedules, and lets the interpreter do the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd

from fusec.graph.decompositions import decomposition_table
from fusec.ir.interpret import run_program
from fusec.ir.node import Recorder, recording
from fusec.ir.program import Extern
from fusec.lower import lower_graph
from fusec.options import Options
from fusec.schedule import Schedule, products_of, schedule_program


class Interpreted:
    """The backend; keeps what it made.

    Attributes:
        schedules: Every scheduled program.
        fuse: Whether to schedule at all, or to run the program as it was lowered.
        products: Whether matrix products become bodies, as for Triton kernels.
    """

    def __init__(self, fuse: bool = True, products: bool = False) -> None:
        self.fuse = fuse
        self.products = products
        self.schedules: list[Schedule] = []

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
        return aot_autograd(fw_compiler=self._compile, decompositions=decomposition_table())(
            module, inputs
        )

    def _compile(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with recording(Recorder()) as recorder:
            options = Options(target="triton" if self.products else "cpp")
            program = lower_graph(module, recorder=recorder, abilities=options.abilities)
            schedule = schedule_program(program, None, products_of(program))
            self.schedules.append(schedule)
            chosen = schedule.program if self.fuse else program

        def run(*arguments: Any) -> list[Any]:
            with recording(recorder):
                return run_program(chosen, list(arguments))

        return run

    @property
    def extern_reasons(self) -> list[str]:
        """Why operators ran as ATen's own kernels."""
        return [
            step.reason
            for schedule in self.schedules
            for step in schedule.program.steps
            if isinstance(step, Extern)
        ]

    @property
    def kernel_count(self) -> int:
        """How many kernels there are."""
        return sum(
            not isinstance(step, Extern)
            for schedule in self.schedules
            for step in schedule.program.steps
        )
