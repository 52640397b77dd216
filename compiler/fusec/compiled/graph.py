"""A compiled graph: what TorchDynamo captured in one piece, with all that can be asked of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import fx

from fusec.compiled.calls import GraphCalls, NoInputs
from fusec.kernel import Kernel
from fusec.kernel_source import Runnable
from fusec.report import Timing, Verdict
from fusec.tuning_report import TuningRun

if TYPE_CHECKING:
    from fusec.timing.limits import Limit
    from fusec.verify.comparison.graph_outputs import KeptReferences
    from fusec.verify.trials.references import KeptTrials


class CompiledGraph(GraphCalls):
    """One captured graph and its compiled parts; see ``GraphCalls`` for its attributes."""

    def __init__(self, name: str, eager: fx.GraphModule, keep: bool) -> None:
        super().__init__(name, eager, keep)
        # From the first check of an edit on.
        self._trials: KeptTrials | None = None
        self._references: KeptReferences | None = None

    # -- measuring and checking -------------------------------------------------------------

    def measure(self, seconds: float = 0.3) -> tuple[Timing, Timing]:
        """Return (eager, fused) timings on the inputs of the last call, interleaved.

        Inputs that the graph updates in place are updated further: only the cost counts here, and
        it is done on copies.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        timings = self.measure_beside({}, seconds)
        return timings["eager"], timings["fused"]

    def measure_beside(
        self,
        others: Mapping[str, Callable[..., object]],
        seconds: float = 0.3,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, Timing]:
        """Return the timings of ``eager``, ``fused`` and others from one interleaved run.

        Where backward has run since the graph was compiled, a call is forward and backward.

        Args:
            others: By name: what computes the same from the same inputs.
            seconds: For all of them together.
            stop: Asked between rounds; what was measured so far is returned.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        from fusec.compiled.measuring import measure_beside

        return measure_beside(self, others, seconds, stop)

    def limit(self) -> Limit | None:
        """Return how fast the graph could be; None where a part of it runs in eager.

        Its inputs and outputs are moved once, as in a plain copy; its products of matrices run
        as the machine's best ones do. Backward counts where it has run, as in ``measure``.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        from fusec.compiled.measuring import limit_of

        return limit_of(self)

    def verify(self, *, timed: bool = False) -> Verdict:
        """Compare all outputs with eager and float64, on the real inputs and on fresh ones.

        Raises:
            NoInputs: The graph has not run with its inputs kept.
        """
        from fusec.compiled.checking import verify

        return verify(self, timed=timed)

    def kernel_timings(self, seconds: float = 0.2) -> dict[str, Timing]:
        """Return the time of each kernel alone, on its own inputs of the last call."""
        from fusec.timing.step_times import step_times

        return {step.name: step.timing for step in step_times(self, seconds, externs=False)}

    def artifact(self, kernel: Kernel, kind: str) -> str:
        """Return a lower form of a kernel's text; see ``Kernel.artifact``."""
        from fusec.build.artifacts import artifact

        part = self.part_of(kernel)
        return artifact(kernel, kind, part.state.options.gpu if part is not None else "sm_90")

    def export(self, kernel: Kernel, path: Path, *, form: str) -> Path:
        """Write a kernel's text in use as a file that stands alone; see ``Kernel.export``."""
        from fusec.export.forms import export_kernel

        return export_kernel(kernel, path, form=form)

    # -- KernelHost -------------------------------------------------------------------------

    def build(self, kernel: Kernel, text: str) -> Runnable:
        """Build ``text`` in place of a kernel's source and launch it from now on."""
        from fusec.compiled.checking import watched

        runnable = watched(kernel, text)
        part = self.part_of(kernel)
        if part is not None:
            part.link(kernel.name, runnable)
        return runnable

    def check(
        self,
        kernel: Kernel,
        text: str,
        *,
        timed: bool = True,
        trust: bool = False,
        sanitize: bool = False,
    ) -> Verdict:
        """Check ``text`` for a kernel: guarded worker first, then within the whole graph."""
        from fusec.compiled.checking import check_edit
        from fusec.verify.comparison.graph_outputs import KeptReferences
        from fusec.verify.trials.references import KeptTrials

        with self.lock:
            self._trials = self._trials or KeptTrials()
            self._references = self._references or KeptReferences()
            return check_edit(
                self,
                kernel,
                text,
                self._trials,
                self._references,
                timed=timed,
                trust=trust,
                sanitize=sanitize,
            )

    def tune(
        self,
        kernel: Kernel,
        *,
        budget: float,
        progress: Callable[[TuningRun], None] | None,
        stop: threading.Event | None,
    ) -> TuningRun:
        """Search a kernel's plans and tunables on the inputs of the last call; see ``tune``."""
        from fusec.tune.run import tune_in_graph

        with self.lock:
            part, tensors, sizes = self.kernel_call(kernel)
            inputs = self.copies()
            return tune_in_graph(
                self,
                kernel,
                tensors,
                sizes,
                budget=budget,
                progress=progress,
                stop=stop,
                eager=(lambda: self.held.eager(*inputs)) if not part.is_backward else None,
                eager_is_whole=len(self.kernels) != 1 or bool(self.externs),
            )


__all__ = ["CompiledGraph", "NoInputs"]
