"""The result of a fused cell: what a notebook shows, a terminal prints and the panel works on.

The object is static for a reader: text/plain, text/html, image/png and JSON.  The workbench,
a live widget, is a second object made from it.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusec.report import (
    ExternCall,
    FusionDecision,
    GraphBreak,
    Guard,
    Recompile,
    SourceLine,
    Timing,
    Verdict,
    seconds_by_stage,
)
from fuselab.display import render, words
from fuselab.display.bounds import Traffic
from fuselab.display.pages.page import picture
from fuselab.display.pages.timings import peer_title
from fuselab.display.render import Summary
from fuselab.display.totals import joined, sum_of, sum_of_limits, total_of, unused_name
from fuselab.session.kernel_views import kernel_view
from fuselab.session.line_views import line_views
from fuselab.session.peers import Peer
from fuselab.session.rescheduling import rule_notes
from fuselab.session.saving import MIME
from fuselab.session.without_gpu import cell_is_simulated, model_lines

if TYPE_CHECKING:
    from fusec.kernel import Kernel
    from fuselab.cell.plan import CellPlan
    from fuselab.cell.program import Failures

LEAST_SPARE = 1 << 20  # bytes: less is not worth a line
MOST_STEPPED = 0.1  # seconds: the calls of what takes longer are timed where somebody asks


class FusedCell:
    """A fused cell, or a function or module fused without one.

    Args:
        functions: Returns the compiled functions there are so far.
        failures: Returns what runs in eager without the compiled functions' knowing.
        pending: Names whose compilation waits for their first call.
        rules: The fusions that are asked for: ``apart`` and ``together``, pairs such as
            ``gelu:layer_norm`` each; shared with whoever compiles further functions.
        live: Whether to measure and check, before showing, what has run since the last time;
            for functions, whose calls nobody announces.

    Attributes:
        name: ``cell_3``, or what ``--name`` said.
        source: The code as the user wrote it.
        filename: What tracebacks and kernel comments call it.
        plan: How the cell is run; None for a function.
        lock: Round compile, launch and drawing; re-entrant.
        eager: Of all graphs in eager, on the inputs of their latest call; None until timed.
        fused: Of the same graphs as compiled; None until timed.
        others: Other compilers on the same graphs, by name.
        failed: Why other compilers have no time, by name.
        verdict: Of all graphs' outputs against eager and float64; None until checked.
        kernel_times: Of each kernel alone.
        extern_times: Of each call of ATen alone; empty until ``measure_steps``.
        limit: How fast all graphs could be, in seconds; None until ``measure_limit``.
        traffic: What eager and the kernels move, and that limit; likewise.
        notes: What the user should know, a line each.
        rules: The fusions that are asked for, by ``apart`` and ``together``.
    """

    def __init__(
        self,
        name: str,
        source: str,
        functions: Callable[[], Sequence[Any]],
        *,
        filename: str = "",
        plan: CellPlan | None = None,
        lock: threading.RLock | None = None,
        pending: Sequence[str] = (),
        live: bool = False,
        failures: Callable[[], Failures] | None = None,
        rules: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.filename = filename
        self.plan = plan
        self.lock = lock if lock is not None else threading.RLock()
        self.eager: Timing | None = None
        self.fused: Timing | None = None
        self.others: dict[str, Timing] = {}
        self.failed: dict[str, str] = {}
        self.verdict: Verdict | None = None
        self.kernel_times: dict[str, Timing] = {}
        self.extern_times: dict[str, Timing] = {}
        self.limit: float | None = None
        self.traffic: Traffic | None = None
        self.notes: list[str] = []
        self.rules: dict[str, tuple[str, ...]] = (
            rules if rules is not None else {"apart": (), "together": ()}
        )
        self._functions = functions
        self._pending = tuple(pending)
        self._live = live
        self._failures = failures
        self._peers: dict[tuple[int, str], Peer] = {}
        self._models: tuple[str, ...] = ()
        self._extern_seconds: dict[SourceLine, float] = {}
        self._stepped: tuple[int, ...] = ()
        self._measured: tuple[Any, ...] = ()
        self._checked: tuple[Any, ...] = ()
        self._drawn: tuple[Any, bytes] | None = None

    # --- what was compiled -------------------------------------------------------------------

    @property
    def functions(self) -> tuple[Any, ...]:
        """The compiled functions (``fusec.CompiledFunction``), in the order they first ran."""
        return tuple(self._functions())

    @property
    def graphs(self) -> tuple[Any, ...]:
        """Every graph compiled so far, in order of first run."""
        return tuple(self._each("graphs"))

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
        skips = self._failures().skips if self._failures else ()
        return tuple(dict.fromkeys([*known, *self._each("breaks"), *skips]))

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
        mistakes = self._failures().mistakes if self._failures else ()
        return (
            *self._each("fallbacks"),
            *(f"what the compiler failed on: {reason}" for reason in mistakes),
        )

    @property
    def externs(self) -> tuple[ExternCall, ...]:
        """Operators that run as ATen's own kernels, and why."""
        return tuple(call for graph in self.graphs for call in graph.externs)

    @property
    def fusions(self) -> tuple[FusionDecision, ...]:
        """Which computations share a kernel, which do not, and why, called as in the graph."""
        from fuselab.display.pages.fusion import named_decisions

        return tuple(d for graph in self.graphs for d in named_decisions(graph))

    @property
    def max_error(self) -> float | None:
        """Largest difference to eager; None where it was not compared."""
        return self.summary().max_error

    def _each(self, attribute: str) -> Iterator[Any]:
        for function in self.functions:
            yield from getattr(function, attribute, ())

    # --- measuring and checking: on graphs, never by running the user's Python again ----------

    def measure(self, seconds: float = 0.3) -> tuple[Timing | None, Timing | None]:
        """Time every graph against eager, interleaved, on the inputs of its latest call.

        Args:
            seconds: For each graph.

        Returns:
            Eager and fused, each summed over the graphs; None where there is no graph.
        """
        if self.simulated:
            with self.lock:
                return self._count_bytes()
        with self.lock:
            graphs = self.graphs
            runs: list[dict[str, Timing]] = []
            times: dict[int, Timing] = {}
            whole = bool(self.externs) and all(getattr(graph, "parts", ()) for graph in graphs)
            for graph in graphs:
                with self._reported(f"{graph.name} could not be timed"):
                    if others := self._ready(graph):
                        runs.append(graph.measure_beside(others, seconds))
                    else:
                        eager, fused = graph.measure(seconds=seconds)
                        runs.append({"eager": eager, "fused": fused})
                    # Which kernel costs how much is one launch away; a tenth will do.
                    if graph.kernels and not whole:
                        alone = graph.kernel_timings(seconds / 3)
                        times |= {id(k): alone[k.name] for k in graph.kernels if k.name in alone}
            self._take(runs if len(runs) == len(graphs) else [])
            self._extern_seconds = {}
            if self._stepped != tuple(map(id, graphs)):
                self.extern_times = {}
            named = self.kernels.items()
            self.kernel_times = {name: times[id(k)] for name, k in named if id(k) in times}
            if whole:
                # Lines that call a library have their share of the time as well.
                short = self.fused is not None and self.fused.median < MOST_STEPPED
                self.kernel_times = self._time_steps(seconds / 3, externs=short)[0]
            self._measure_limit(runs)
            self._measured = self._state()
            return self.eager, self.fused

    refresh = measure

    def measure_limit(self) -> float | None:
        """Measure how fast the graphs could be: their inputs and outputs moved by a plain copy.

        Returns:
            Seconds, summed over the graphs; None where one did not run or runs in eager.
        """
        with self.lock:
            limits = []
            for graph in self.graphs:
                with self._reported(f"the limit of {graph.name} could not be measured"):
                    limits.append(graph.limit())
            known = [each for each in limits if each is not None]
            self.traffic = sum_of_limits(known) if len(known) == len(self.graphs) else None
            self.limit = self.traffic.limit if self.traffic is not None else None
            return self.limit

    @property
    def simulated(self) -> bool:
        """Whether something stands in for the device of a kernel: no time means anything then."""
        return cell_is_simulated(self)

    def _count_bytes(self) -> tuple[None, None]:
        """Take what the cell moves in place of times, which would be an interpreter's."""
        self._take([])
        self.kernel_times, self.extern_times, self._extern_seconds = {}, {}, {}
        self.measure_limit()
        self.limit = None
        if self.traffic is not None:
            self.traffic = replace(self.traffic, copy=0.0, limit=0.0)
        self._models = model_lines(self)
        self._measured = self._state()
        return None, None

    def _measure_limit(self, runs: Sequence[object]) -> None:
        """Measure the limit of what was just timed, where it was and is long enough to ask."""
        self.traffic = self.limit = None
        if len(runs) == len(self.graphs):
            self.measure_limit()

    def check(self) -> Verdict | None:
        """Compare every graph's outputs with eager and float64, on real and on random inputs."""
        with self.lock:
            verdicts = []
            for graph in self.graphs:
                with self._reported(f"{graph.name} could not be checked"):
                    verdicts.append(graph.verify())
            self.verdict = joined(verdicts)
            self._checked = self._state()
            return self.verdict

    def update(self, *, timed: bool = True, checked: bool = True, seconds: float = 0.3) -> None:
        """Measure and check what has changed since the last time, and nothing else."""
        if checked and self._checked != self._state():
            self.check()
        if timed and self._measured != self._state():
            self.measure(seconds)

    def compare(
        self, compiler: str, seconds: float = 0.3, stop: Callable[[], bool] | None = None
    ) -> Timing | None:
        """Time another compiler of ``torch.compile`` in the same run as eager and our own code.

        Args:
            compiler: A backend's name: ``inductor``. It compiles each graph once.
            seconds: For each graph.
            stop: Asked while it compiles and between rounds of measuring; nothing changes then.

        Returns:
            Its time, summed over the graphs; None where it was stopped, or failed: ``failed`` then
            says why.
        """
        if not self.compile_peer(compiler, stop):
            return None
        runs: list[dict[str, Timing]] = []
        try:
            with self.lock:
                for graph in self.graphs:
                    call = self._peer(graph, compiler).wait(stop)
                    if call is None:
                        return None
                    runs.append(graph.measure_beside({compiler: call}, seconds, stop))
                    if stop is not None and stop():
                        return None
        except Exception as error:
            self._peer_failed(compiler, error)
            return None
        self._take(runs)
        return self.others.get(compiler)

    def _take(self, runs: Sequence[Mapping[str, Timing]]) -> None:
        """Take over what was measured, a run a graph; times of earlier runs do not compare."""
        names = set.intersection(*(set(run) for run in runs)) if runs else set()
        total = {name: sum_of([run[name] for run in runs]) for name in names}
        self.eager, self.fused = total.pop("eager", None), total.pop("fused", None)
        self.others = {name: time for name, time in sorted(total.items()) if time is not None}

    def _ready(self, graph: Any) -> dict[str, Callable[..., object]]:
        """Return what other compilers have made of a graph, as far as that was asked for."""
        found = {}
        for name in self.others:
            peer = self._peers.get((id(graph), name))
            if peer is not None and peer.call is not None:
                found[name] = peer.call
        return found

    def compile_peer(self, compiler: str, stop: Callable[[], bool] | None = None) -> bool:
        """Let another compiler compile the graphs, without the lock: cells can run meanwhile.

        Args:
            compiler: As for ``compare``.
            stop: Asked while it compiles. It cannot be interrupted: it goes on behind the scenes.

        Returns:
            Whether all of it is ready; ``failed`` says why it is not, unless it was stopped.
        """
        self.failed.pop(compiler, None)
        try:
            peers = [self._peer(graph, compiler) for graph in self.graphs]
            return all(peer.wait(stop) is not None for peer in peers)
        except Exception as error:
            self._peer_failed(compiler, error)
            return False

    def _peer_failed(self, compiler: str, error: Exception) -> None:
        # The cell itself has run; that a figure about it is missing must not undo that.
        reason = str(error).partition("\n")[0]
        self.failed[compiler] = reason
        note = f"{peer_title(compiler)} failed: {reason}"
        if note not in self.notes:
            self.notes.append(note)

    def _peer(self, graph: Any, compiler: str) -> Peer:
        key = id(graph), compiler
        known = self._peers.get(key)
        if known is None or known.failed:
            known = self._peers[key] = Peer(graph, compiler)
        return known

    def measure_steps(
        self, seconds: float = 0.3, stop: Callable[[], bool] | None = None
    ) -> dict[str, Timing]:
        """Time every kernel and every call of ATen alone, interleaved, on the latest inputs.

        Args:
            seconds: For each graph.
            stop: Asked between rounds.

        Returns:
            The calls' times: ``aten.mm, line 3``; those of one operator on one line are added up.
            The kernels' go to ``kernel_times``.
        """
        with self.lock:
            kernels, calls = self._time_steps(seconds, stop)
            self.kernel_times |= kernels
            found: dict[str, list[Timing]] = {}
            for name, where, timing in calls:
                line = words.where(where, self.filename)
                label = ", ".join(part for part in (name, line) if part)
                found.setdefault(label, []).append(timing)
            self.extern_times = {label: total_of(times) for label, times in found.items()}
            self._stepped = tuple(map(id, self.graphs))
            return self.extern_times

    def _time_steps(
        self, seconds: float, stop: Callable[[], bool] | None = None, *, externs: bool = True
    ) -> tuple[dict[str, Timing], list[tuple[str, SourceLine | None, Timing]]]:
        """Time every step alone: kernels by name, and calls of ATen."""
        from fusec.timing.step_times import step_times  # imports the compiler

        names = {id(kernel): name for name, kernel in self.kernels.items()}
        kernels: dict[str, Timing] = {}
        calls = []
        for graph in self.graphs:
            own = {kernel.name: names.get(id(kernel), "") for kernel in graph.kernels}
            with self._reported(f"the steps of {graph.name} could not be timed"):
                for step in step_times(graph, seconds, externs=externs, stop=stop):
                    if step.kind == "kernel":
                        kernels[own[step.name]] = step.timing
                    else:
                        calls.append((step.name, step.where, step.timing))
        self._extern_seconds = {}
        for _, where, timing in calls:
            if where is not None:
                known = self._extern_seconds.get(where, 0.0)
                self._extern_seconds[where] = known + timing.median
        return kernels, calls

    def _state(self) -> tuple[Any, ...]:
        """Return what timings and verdicts depend on: the graphs and the texts in use."""
        texts = tuple(kernel.source for kernel in self.kernels.values())
        return (*(id(graph) for graph in self.graphs), *texts)

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        # The cell itself has run; that a figure about it is missing must not undo that.
        try:
            yield
        except Exception as error:
            message = str(error).partition("\n")[0]
            note = f"{what}: {type(error).__name__}: {message}"
            if note not in self.notes:
                self.notes.append(note)

    # --- forms -------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """Freeze what there is to show."""
        from fusec.inspect.explain import kept_text  # imports the compiler

        with self.lock:
            graphs = self.graphs
            if self._live and graphs:
                self.update()
            stages = seconds_by_stage(stage for graph in graphs for stage in graph.stages)
            return Summary(
                name=self.name,
                filename=self.filename,
                kernels=tuple(
                    kernel_view(name, k, filename=self.filename, time=self.kernel_times.get(name))
                    for name, k in self.kernels.items()
                ),
                graphs=len(graphs),
                eager=self.eager,
                fused=self.fused,
                others=dict(self.others),
                verdict=self.verdict,
                breaks=self.breaks,
                externs=self.externs,
                fallbacks=self.fallbacks,
                guards=self.guards,
                recompiles=self.recompiles,
                kept=tuple(text for graph in graphs if (text := kept_text(graph))),
                fusions=self.fusions,
                stages=tuple(stages.items()),
                plan=str(self.plan) if self.plan else "",
                notes=tuple(dict.fromkeys([*self._graph_notes(), *self.notes])),
                device=_device(),
                pending=self._pending if not graphs else (),
                traffic=self.traffic,
                lines=line_views(self, self.traffic, self._extern_seconds),
                models=self._models,
                spare=self._spare(),
            )

    def _spare(self) -> tuple[str, int] | None:
        """Return the name to give to ``--out``, and the bytes that are then not written."""
        plan = self.plan
        outputs = self.verdict.outputs if self.verdict else ()
        if plan is None or plan.out is not None or len(outputs) < 2:
            return None
        last = outputs[-1]
        rest = outputs[:-1]
        if not {output.name for output in outputs} <= set(plan.assigns):
            return None
        count = sum(output.bytes for output in rest)
        return (last.name, count) if count >= LEAST_SPARE else None

    def _graph_notes(self) -> Iterator[str]:
        if self.plan is not None:
            yield from self.plan.notes
        for graph in self.graphs:
            yield from getattr(graph, "notes", ())

        yield from rule_notes(self)

    def text(self) -> str:
        """The result for a terminal."""
        return render.summary_text(self.summary())

    def html(self) -> str:
        """The result as static HTML."""
        return render.summary_html(self.summary())

    def png(self) -> bytes | None:
        """The plot of eager against fused; None where nothing was timed."""
        if self.eager is None or self.fused is None:
            return None
        from fuselab.display.plots import figures as plots

        with self.lock:
            # Drawing costs more than all else that a warm re-run does.
            shown = (self.eager, self.fused, dict(self.kernel_times), dict(self.others))
            if self._drawn is None or self._drawn[0] != shown:
                figure = plots.speed_figure(
                    self.eager, self.fused, self.kernel_times, title=self.name, others=self.others
                )
                self._drawn = shown, plots.figure_png(figure)
            return self._drawn[1]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Return every static form at once; frontends pick the one they can show."""
        with self.lock:
            summary = self.summary()
            png = self.png()
        encoded = base64.b64encode(png).decode() if png is not None else ""
        plot = picture(encoded, f"{self.name}: eager against fused") if encoded else ""
        bundle: dict[str, Any] = {
            "text/plain": render.summary_text(summary),
            "text/html": render.summary_html(summary, plot),
            MIME: render.summary_json(summary),
        }
        return bundle | ({"image/png": encoded} if encoded else {})

    def __repr__(self) -> str:
        names = ", ".join(self.kernels) or "no kernels"
        return f"<FusedCell {self.name}: {names}>"

    # --- doing -------------------------------------------------------------------------------

    def workbench(self) -> Any:
        """Return the live panel: source, editor, Check, Keep, Revert, Tune, plots."""
        from fuselab.panel import workbench

        return workbench(self)

    def reschedule(self, *, apart: Sequence[str] = (), together: Sequence[str] = ()) -> list[str]:
        """Use other fusions from now on, after a check; without rules, the compiler's own again.

        Args:
            apart: Pairs of computations, as the fusion graph calls them, that must not share a
                kernel: ``"gelu:layer_norm"``. ``%%fuse --apart`` says the same in the cell.
            together: Pairs that share one wherever it is legal.

        Returns:
            The kernels whose edits went with them; they come back with the schedule before.

        Raises:
            FusecError: A pair that the cell does not compute, or a schedule that is wrong;
                everything is as it was.
        """
        from fuselab.session.rescheduling import reschedule

        return reschedule(self, apart, together)

    def save(self, folder: str | Path) -> Path:
        """Write stages, kernels and report as files; see ``fuselab.session.saving``."""
        from fuselab.session.saving import save

        return save(self, folder)


def _device() -> str:
    import fusec

    describe = getattr(fusec, "device_summary", None)
    return str(describe()) if describe is not None else ""
