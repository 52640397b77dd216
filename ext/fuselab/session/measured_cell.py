"""How fast a fused cell is and whether it is right, measured and checked on its graphs.

The user's Python is never run again for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fusec.report import SourceLine, Timing, Verdict
from fuselab.display import noise, words
from fuselab.display.bounds import Traffic, beaten
from fuselab.display.totals import joined, sum_of, sum_of_limits, total_of
from fuselab.session.compiled_cell import CompiledCell
from fuselab.session.peers import Peer
from fuselab.session.without_gpu import cell_is_simulated, model_lines

if TYPE_CHECKING:
    from fusec.timing.line_counts import LineCounts

# Seconds, in all cells together: the native part of calls is built once a machine, beside the first
# cell. What is timed without it takes up to five times as long as it will from then on.
MOST_AWAITED = 10.0
MOST_STEPPED = 0.1  # seconds: the calls of what takes longer are timed where somebody asks


def multiplies(name: str) -> bool:
    """Whether a call multiplies matrices: ATen's that torch counts operations of, and oneDNN's.

    Args:
        name: As ``aten.addmm``.
    """
    import torch
    from torch.utils.flop_counter import flop_registry

    space, _, operator = name.partition(".")
    operator = operator.partition(".")[0]
    return space != "aten" or getattr(torch.ops.aten, operator, None) in flop_registry


def call_facts(graph: Any) -> tuple[Any, ...]:
    """Return what a graph's figures depend on of the inputs of its latest call: not their values.

    Args:
        graph: A compiled graph.
    """
    import torch

    return (
        getattr(graph, "ran_backward", False),
        *(
            (value.dtype, tuple(value.shape), value.stride(), str(value.device))
            if isinstance(value, torch.Tensor) and value.layout is torch.strided
            else value
            if isinstance(value, int)
            else type(value)
            for value in graph.last_inputs or ()
        ),
    )


def _drawing_nothing() -> AbstractContextManager[None]:
    """Put torch's generators back: a cell draws what it would without being looked at."""
    from fusec.random import generators_kept  # imports the compiler

    return generators_kept()


@dataclass(eq=False, repr=False)
class MeasuredCell(CompiledCell):
    """A compiled cell with its times and its verdict.

    Attributes:
        eager: Of all graphs in eager, on the inputs of their latest call; None until timed.
        fused: Of the same graphs as compiled; None until timed.
        others: Other compilers on the same graphs, by name.
        failed: Why other compilers have no time, by name.
        verdict: Of all graphs' outputs against eager and float64; None until checked.
        kernel_times: Of each kernel alone.
        extern_times: Of each call of ATen alone; empty until ``measure_steps``.
        early: Whether it was timed while the native part of calls was still being built.
        awaited: Whether it is timed again by itself when that is there.
        line_counts: What was seen of a kernel's lines while it ran, by the kernel's name.
        limit: How fast all graphs could be, in seconds; None until ``measure_limit``.
        traffic: What eager and the kernels move, and that limit; likewise.
    """

    eager: Timing | None = field(default=None, init=False)
    fused: Timing | None = field(default=None, init=False)
    others: dict[str, Timing] = field(default_factory=dict, init=False)
    failed: dict[str, str] = field(default_factory=dict, init=False)
    verdict: Verdict | None = field(default=None, init=False)
    kernel_times: dict[str, Timing] = field(default_factory=dict, init=False)
    extern_times: dict[str, Timing] = field(default_factory=dict, init=False)
    limit: float | None = field(default=None, init=False)
    early: bool = field(default=False, init=False)
    awaited: bool = field(default=False, init=False)
    line_counts: dict[str, LineCounts] = field(default_factory=dict, init=False, repr=False)
    traffic: Traffic | None = field(default=None, init=False)
    _peers: dict[tuple[int, str], Peer] = field(default_factory=dict, init=False)
    _models: tuple[str, ...] = field(default=(), init=False)
    _extern_seconds: dict[SourceLine, float] = field(default_factory=dict, init=False)
    _other_seconds: dict[str, float] = field(default_factory=dict, init=False)  # no products
    _seen: tuple[Any, ...] = field(default=(), init=False)
    _measured: tuple[Any, ...] = field(default=(), init=False)
    _limited: tuple[Any, ...] = field(default=(), init=False)  # calls whose limit is known
    # The calls of ATen that were timed in one run with the kernels; None where they were not.
    _stepped: list[tuple[str, SourceLine | None, Timing]] | None = field(default=None, init=False)
    _checked: tuple[Any, ...] = field(default=(), init=False)

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
        from fusec.call import native  # imports the compiler

        # What is not called through it need not wait for it.
        ready = native.await_types(MOST_AWAITED) if self._is_native() else True
        with self.lock, _drawing_nothing():
            graphs = self.latest_graphs
            self._begin_measuring()
            self.early = not ready and self._is_native()
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
            self._extern_seconds, self._other_seconds = {}, {}
            named = self.kernels.items()
            self.kernel_times = {name: times[id(k)] for name, k in named if id(k) in times}
            self._stepped = None if self.externs else []
            if whole:
                # Lines that call a library have their share of the time as well.
                short = self.fused is not None and self.fused.median < MOST_STEPPED
                self.kernel_times, calls = self._time_steps(seconds / 3, externs=short)
                self._stepped = calls if short else None
            self._measure_limit(runs)
            self._measured = self._timed_state()
            return self.eager, self.fused

    refresh = measure

    def _is_native(self) -> bool:
        """Whether anything of the latest run is called through the native part, if it is there."""
        with self.lock:
            return any(graph.parts for graph in self.latest_graphs)

    def measure_limit(self) -> float | None:
        """Measure how fast the graphs could be: their inputs and outputs moved by a plain copy.

        Returns:
            Seconds, summed over the graphs; None where one did not run or runs in eager.
        """
        with self.lock, _drawing_nothing():
            limits = []
            graphs = self.latest_graphs
            for graph in graphs:
                with self._reported(f"the limit of {graph.name} could not be measured"):
                    limits.append(graph.limit())
            known = [each for each in limits if each is not None]
            self.traffic = sum_of_limits(known) if len(known) == len(graphs) else None
            self._limited = self._calls()
            self._set_limit()
            return self.limit

    def know_limit(self) -> float | None:
        """Return the limit, measured unless that of the latest calls is known.

        What a page shows is then what the result shows: two measurements would differ.  Where the
        result shows none, as the machine was busy when it was timed, it is measured again.
        """
        with self.lock:
            if self.limit is None or self._limited != self._calls():
                return self.measure_limit()
            return self.limit

    def _set_limit(self) -> None:
        """Take over the limit, unless it was beaten: then the machine was slower when timed."""
        found = self.traffic.limit if self.traffic is not None else 0.0
        faster = self.fused is not None and noise.pace(self.fused, found) is noise.Pace.FASTER
        self.limit = None if found <= 0 or faster or beaten(found, self.eager) else found

    @property
    def simulated(self) -> bool:
        """Whether something stands in for the device of a kernel: no time means anything then."""
        return cell_is_simulated(self)

    def _count_bytes(self) -> tuple[None, None]:
        """Take what the cell moves in place of times, which would be an interpreter's."""
        self._begin_measuring()
        self._take([])
        self.kernel_times, self.extern_times = {}, {}
        self._extern_seconds, self._other_seconds = {}, {}
        self.measure_limit()
        self.limit = None
        if self.traffic is not None:
            self.traffic = replace(self.traffic, copy=0.0, limit=0.0)
        self._models = model_lines(self)
        self._measured = self._timed_state()
        return None, None

    def _measure_limit(self, runs: Sequence[object]) -> None:
        """Measure the limit of what was just timed, where it was and is long enough to ask."""
        self.traffic = self.limit = None
        if len(runs) == len(self.latest_graphs):
            self.measure_limit()

    def check(self) -> Verdict | None:
        """Compare every graph's outputs with eager and float64, on real and on random inputs."""
        with self.lock, _drawing_nothing():
            verdicts = []
            for graph in self.latest_graphs:
                with self._reported(f"{graph.name} could not be checked"):
                    verdicts.append(graph.verify())
            self.verdict = joined(verdicts)
            self._checked = self._state()
            return self.verdict

    def update(
        self,
        *,
        timed: bool = True,
        checked: bool = True,
        seconds: float = 0.3,
        phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Measure and check what has changed since the last time, and nothing else.

        Args:
            timed: Whether to measure.
            checked: Whether to check.
            seconds: To measure each graph.
            phase: Told what is done next.
        """
        if checked and self._checked != self._state():
            phase("checking")
            self.check()
        if timed and self._measured != self._timed_state():
            phase("measuring")
            self.measure(seconds)
        if self.live or self.pending:
            self.begin_run()  # nobody announces the calls of functions

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
            with self.lock, _drawing_nothing():
                for graph in self.latest_graphs:
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
        self._set_limit()

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
            peers = [self._peer(graph, compiler) for graph in self.latest_graphs]
            return all(peer.wait(stop) is not None for peer in peers)
        except Exception as error:
            self._peer_failed(compiler, error)
            return False

    def _peer_failed(self, compiler: str, error: Exception) -> None:
        # The cell itself has run; that a figure about it is missing must not undo that.
        reason = str(error).partition("\n")[0]
        self.failed[compiler] = reason
        note = f"{words.peer_title(compiler)} failed: {reason}"
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

        What ``measure`` has timed of the same calls is taken: other times of the same kernels would
        stand beside a result's.

        Args:
            seconds: For each graph.
            stop: Asked between rounds.

        Returns:
            The calls' times: ``aten.mm, line 3``; those of one operator on one line are added up.
            The kernels' go to ``kernel_times``.
        """
        with self.lock:
            calls = self._stepped if self._measured == self._timed_state() else None
            if calls is None or not self.kernel_times:
                with _drawing_nothing():
                    kernels, calls = self._time_steps(seconds, stop)
                self.kernel_times |= kernels
            found: dict[str, list[Timing]] = {}
            for name, where, timing in calls:
                line = words.where(where, self.filename)
                label = ", ".join(part for part in (name, line) if part)
                found.setdefault(label, []).append(timing)
            self.extern_times = {label: total_of(times) for label, times in found.items()}
            return self.extern_times

    def _time_steps(
        self, seconds: float, stop: Callable[[], bool] | None = None, *, externs: bool = True
    ) -> tuple[dict[str, Timing], list[tuple[str, SourceLine | None, Timing]]]:
        """Time every step alone: kernels by name, and calls of ATen."""
        from fusec.timing.step_times import step_times  # imports the compiler

        names = {id(kernel): name for name, kernel in self.kernels.items()}
        kernels: dict[str, Timing] = {}
        calls = []
        for graph in self.latest_graphs:
            own = {kernel.name: names.get(id(kernel), "") for kernel in graph.kernels}
            with self._reported(f"the steps of {graph.name} could not be timed"):
                for step in step_times(graph, seconds, externs=externs, stop=stop):
                    if step.kind == "kernel":
                        kernels[own[step.name]] = step.timing
                    else:
                        calls.append((step.name, step.where, step.timing))
        self._extern_seconds, self._other_seconds = {}, {}
        for name, where, timing in calls:
            if not multiplies(name):
                known = self._other_seconds.get(name, 0.0)
                self._other_seconds[name] = known + timing.median
            if where is not None:
                known = self._extern_seconds.get(where, 0.0)
                self._extern_seconds[where] = known + timing.median
        return kernels, calls

    def _begin_measuring(self) -> None:
        """Let go of what was seen of other calls: of lines, and of calls of ATen."""
        calls = self._calls()
        if self._seen != calls:
            self.extern_times, self.line_counts, self._seen = {}, {}, calls

    def _calls(self) -> tuple[Any, ...]:
        """Return what tells calls apart whose figures do not compare."""
        return tuple((id(graph), call_facts(graph)) for graph in self.latest_graphs)

    def _state(self) -> tuple[Any, ...]:
        """Return what timings and verdicts depend on: the latest calls and the texts in use."""
        texts = tuple(kernel.source for kernel in self.latest_kernels.values())
        return (*self._calls(), *texts)

    def _timed_state(self) -> tuple[Any, ...]:
        """Return the same for times, which the native part of calls changes as well."""
        from fusec.call import native  # imports the compiler

        return (*self._state(), native.await_types(0))

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


__all__ = ["MeasuredCell"]
