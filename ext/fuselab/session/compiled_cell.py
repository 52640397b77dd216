"""What was compiled of a fused cell, or of functions fused without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fusec.report import ExternCall, FusionDecision, GraphBreak, Guard, Recompile
from fuselab.display.totals import unused_name

if TYPE_CHECKING:
    from fusec.kernel import Kernel
    from fuselab.cell.plan import CellPlan
    from fuselab.cell.program import Failures


@dataclass(eq=False, repr=False)
class CompiledCell:
    """A fused cell, or a function or module fused without one: its functions and kernels.

    Attributes:
        name: ``cell_3``, or what ``--name`` said.
        source: The code as the user wrote it.
        compiled_so_far: Returns the compiled functions there are so far.
        filename: What tracebacks and kernel comments call it.
        plan: How the cell is run; None for a function.
        lock: Round compile, launch and drawing; re-entrant.
        pending: Names whose compilation waits for their first call.
        live: Whether to measure and check, before showing, what has run since the last time;
            for functions, whose calls nobody announces.
        failures_so_far: Returns what runs in eager without the compiled functions' knowing.
        rules: The fusions that are asked for, by ``apart`` and ``together``: pairs such as
            ``gelu:layer_norm``; shared with whoever compiles further functions.
        notes: What the user should know, a line each.
        stopped: Whether the latest run ended by an error.
        replanned: Whether it was planned anew after its latest run, for the next one.
    """

    name: str
    source: str
    compiled_so_far: Callable[[], Sequence[Any]]
    filename: str = ""
    plan: CellPlan | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    pending: tuple[str, ...] = ()
    live: bool = False
    failures_so_far: Callable[[], Failures] | None = None
    rules: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"apart": (), "together": ()})
    notes: list[str] = field(default_factory=list, init=False)
    stopped: bool = field(default=False, init=False)
    replanned: bool = field(default=False, init=False)
    _shown: tuple[Any, ...] = field(default=(), init=False, repr=False)

    @property
    def functions(self) -> tuple[Any, ...]:
        """The compiled functions (``fusec.CompiledFunction``), in the order they first ran."""
        return tuple(self.compiled_so_far())

    @property
    def graphs(self) -> tuple[Any, ...]:
        """Every graph compiled so far, in order of first run."""
        return tuple(self._each("graphs"))

    @property
    def latest_graphs(self) -> tuple[Any, ...]:
        """The graphs that the latest run called, in order of first run: what results are about.

        Those that were compiled for other inputs, and did not run, are in ``graphs`` alone. All of
        them where nothing tells.
        """
        graphs = self.graphs
        called = tuple(graph for graph in graphs if graph.called)
        return called or tuple(graph for graph in graphs if graph in self._shown) or graphs

    @property
    def latest_kernels(self) -> dict[str, Kernel]:
        """The kernels of these graphs, by the name that ``%%kernel`` takes."""
        latest = {id(kernel) for graph in self.latest_graphs for kernel in graph.kernels}
        return {name: kernel for name, kernel in self.kernels.items() if id(kernel) in latest}

    def begin_run(self) -> None:
        """Tell calls that come from now on from those before."""
        self._shown, self.stopped, self.replanned = self.latest_graphs, False, False
        for graph in self.graphs:
            graph.await_call()

    @property
    def kernels(self) -> dict[str, Kernel]:
        """The kernels by the name that ``%%kernel`` takes, in the order in which they run."""
        found: dict[str, Kernel] = {}
        for function in self.functions:
            for name, kernel in dict(getattr(function, "kernels", {})).items():
                found[unused_name(name, found)] = kernel
        return found

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """Where capture stopped and Python ran in between."""
        known = self.plan.breaks if self.plan is not None else ()
        skips = self.failures_so_far().skips if self.failures_so_far else ()
        ran = tuple(self._each("breaks"))
        if not (self.graphs or skips):  # they break no graph, so that there is nothing to mend
            ran = tuple(replace(b, hint="", expected=True) for b in ran)
        found = dict.fromkeys([*known, *ran, *skips])
        # One that TorchDynamo cannot resume after says the same once more, and what follows of it.
        more = {(b.where, b.hint) for b in skips if b.where is not None}
        return tuple(b for b in found if b in skips or (b.where, b.hint) not in more)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What must hold for the compiled code to be used again."""
        return tuple(dict.fromkeys(self._each("guards")))

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """Why graphs were compiled more than once, and how to avoid it."""
        return tuple(self._each("recompiles"))

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """What runs in eager, and why."""
        mistakes = self.failures_so_far().mistakes if self.failures_so_far else ()
        return (
            # That it does stands in front of them.
            *(reason.replace(": it runs in eager: ", ": ") for reason in self._each("fallbacks")),
            *(f"what the compiler failed on: {reason}" for reason in mistakes),
        )

    @property
    def externs(self) -> tuple[ExternCall, ...]:
        """Operators that run as ATen's own kernels in the latest graphs, and why."""
        calls = (call for graph in self.latest_graphs for call in graph.externs)
        # An operator's only form needs no name of its own: ``aten.mm``.
        return tuple(replace(call, name=call.name.removesuffix(".default")) for call in calls)

    @property
    def fusions(self) -> tuple[FusionDecision, ...]:
        """Which computations share a kernel in the latest graphs, which do not, and why."""
        from fuselab.display.pages.fusion import named_decisions

        return tuple(d for graph in self.latest_graphs for d in named_decisions(graph))

    def _each(self, attribute: str) -> Iterator[Any]:
        for function in self.functions:
            yield from getattr(function, attribute, ())


__all__ = ["CompiledCell"]
