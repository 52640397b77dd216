"""Comparing a whole graph, with a checked kernel in it, with eager."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fusec.devices import CPU, is_gpu, where_computed
from fusec.memory.strided import clone_strided
from fusec.random import Generators
from fusec.report import OutputError, Timing, Verdict, counted
from fusec.timing.measure import PRECISION, interleave
from fusec.verify.comparison.compare import compare_output
from fusec.verify.comparison.kept_bytes import KeptBytes
from fusec.verify.comparison.rounding import Rounding
from fusec.verify.comparison.words import describe, mismatch, praise
from fusec.verify.words import alike, same_bits

RunGraph = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
# The same with a seed, by which roundings are drawn, and with results that are judged: they decide
# which of several elements is the greatest where rounding may decide either way (``near_ties``).
RunDrawn = Callable[[Sequence[torch.Tensor], int, Sequence[torch.Tensor]], Sequence[torch.Tensor]]

# What is kept between checks at most, of all graphs.
_KEPT_BYTES = 64 << 20
KEPT = KeptBytes()
# In how many runs roundings are drawn; in few of large graphs, whose many elements say as much.
_RUNS = 16
_RUNS_LARGE = 4
_LARGE = 1 << 22


def check_graph(
    run_fused: RunGraph,
    run_eager: RunGraph,
    run_float64: RunGraph | None,
    inputs: Sequence[torch.Tensor],
    *,
    names: Sequence[str] | None = None,
    input_names: Sequence[str] = (),
    timed: bool = True,
    seconds: float = 0.1,
    reference: RunGraph | None = None,
    calls: int | None = None,
    known: GraphReferences | None = None,
    run_drawn: RunDrawn | None = None,
    halves: bool = False,
    draws: bool = True,
) -> Verdict:
    """Compare a whole graph with eager on ``inputs``, and time the two.

    Each run gets copies of the inputs and the same random numbers; inputs that a run updates
    are compared like outputs.

    Args:
        run_fused: The graph with the kernel in it.
        run_eager: The same graph by eager torch operators.
        run_float64: The same in float64, on inputs of that type; None where there is no such thing.
        inputs: Not changed.
        names: The outputs' names; numbered by default.
        input_names: The inputs' names; one that is empty is numbered.
        timed: Whether to time it.
        seconds: Seconds for the timing.
        reference: Eager with the graph's own random numbers, to compare with; ``run_eager`` where
            it has none.
        calls: Time it in no more calls than that: how many a kernel in it has survived elsewhere.
        known: What eager and float64 gave before on the same inputs, used again.
        run_drawn: In float64, with roundings drawn by chance: asked where something is off.
        halves: Whether eager has values of float16 or bfloat16 on the way.
        draws: Whether it draws from torch's generators: see ``Generators``.
    """
    started = time.perf_counter()
    state = Generators(draws=draws)

    try:
        # The candidate first: no result of eager's may lie about in freed memory.
        fused, fused_inputs, _ = _run(run_fused, inputs, state)
        found = known or GraphReferences.made(reference or run_eager, run_float64, inputs, state)
    finally:
        state.restore()
    eager, eager_inputs = list(found.eager), found.eager_inputs
    exact = None if found.exact is None else list(found.exact)
    exact_inputs = found.exact_inputs
    labels = list(names) if names is not None else [f"output {i}" for i in range(len(eager))]
    if len(fused) != len(eager):
        reason = f"gives {counted(len(fused), 'output')} where eager gives {len(eager)}"
        return Verdict(False, "wrong", reason, seconds=time.perf_counter() - started)
    updated = []
    for index, (mine, plain, original) in enumerate(
        zip(fused_inputs, eager_inputs, inputs, strict=True)
    ):
        if same_bits(mine, original) and same_bits(plain, original):
            continue
        updated.append(index)
        labels.append(_updated_label(index, input_names, labels))
        fused.append(mine)
        eager.append(plain)
        if exact is not None:
            exact.append(exact_inputs[index])
    references: Sequence[torch.Tensor | None] = exact or [None] * len(eager)
    figures = tuple(map(compare_output, labels, fused, eager, references))
    if run_drawn is not None and exact is not None and not all(each.ok for each in figures):
        # Of a small graph each element that a rounding can change is met in one of its many runs.
        judged = fused[: len(fused) - len(updated)] if _is_large(exact) else []

        def drawn(seed: int) -> list[torch.Tensor]:
            outputs, left, _ = _run(
                lambda given: run_drawn(given, seed, judged), inputs, state, torch.float64
            )
            return [*outputs, *(left[index] for index in updated)]

        figures = _with_roundings(figures, fused, eager, exact, drawn, halves, state)
    bad = next((i for i, figure in enumerate(figures) if not figure.ok), None)
    if bad is not None:
        reason = describe(figures[bad])
        difference = mismatch(fused[bad], eager[bad])
        if difference:
            reason = f"`{labels[bad]}` {difference}"
        elapsed = time.perf_counter() - started
        return Verdict(False, "wrong", reason, outputs=figures, seconds=elapsed)
    graph = plain_timing = None
    if timed:
        graph, plain_timing = _time_graph(run_fused, run_eager, inputs, seconds, calls)
    return Verdict(
        True,
        "passed",
        praise(figures, None, None),
        outputs=figures,
        graph=graph,
        eager=plain_timing,
        seconds=time.perf_counter() - started,
    )


def _updated_label(index: int, names: Sequence[str], taken: Sequence[str]) -> str:
    """Return what an updated input is called in a verdict: ``weight, updated in place``."""
    name = names[index] if index < len(names) and names[index] else f"input {index}"
    label, number = f"{name}, updated in place", 2
    while label in taken:
        label, number = f"{name} #{number}, updated in place", number + 1
    return label


def _is_large(results: Sequence[torch.Tensor]) -> bool:
    return sum(t.numel() for t in results) > _LARGE


def _with_roundings(
    figures: tuple[OutputError, ...],
    fused: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    run: Callable[[int], list[torch.Tensor]],
    halves: bool,
    state: Generators,
) -> tuple[OutputError, ...]:
    """Compare what is off once more, beside runs whose roundings are drawn by chance."""
    off = [i for i, figure in enumerate(figures) if not figure.ok]
    for i in off:
        wrong_kind = mismatch(fused[i], eager[i]) or exact[i].shape != eager[i].shape
        if wrong_kind or eager[i].is_complex():
            return figures
    roundings = {i: Rounding(exact[i], halves) for i in off}
    try:
        for seed in range(_RUNS_LARGE if _is_large(exact) else _RUNS):
            outputs = run(seed)
            for i, rounding in roundings.items():
                rounding.add(outputs[i])
    except (RuntimeError, TypeError, NotImplementedError):
        return figures  # as where there is no float64 run
    finally:
        state.restore()
    found = list(figures)
    for i, rounding in roundings.items():
        found[i] = compare_output(figures[i].name, fused[i], eager[i], exact[i], rounding=rounding)
    return tuple(found)


def _run(
    function: RunGraph,
    inputs: Sequence[torch.Tensor],
    state: Generators,
    precision: torch.dtype | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return copies of what a graph gives, the inputs as it leaves them, and what it gave."""
    state.restore()
    copies = [clone_strided(t) for t in inputs]
    if precision is not None:
        copies = [t.to(precision) if t.is_floating_point() else t for t in copies]
    given = [t.detach() for t in function(copies)]
    return [t.clone() for t in given], copies, given


@dataclass(frozen=True)
class GraphReferences:
    """What a whole graph's outputs are held against.

    Attributes:
        inputs: What it was run on.
        eager: What eager gave.
        eager_inputs: The inputs as eager left them.
        exact: What float64 gave; None where there is no such thing.
        exact_inputs: The inputs as float64 left them.
        held: Memory that held results: what is freed, a graph that writes nothing may find.
        drew: Whether a run took random numbers.
    """

    inputs: Sequence[torch.Tensor]
    eager: Sequence[torch.Tensor]
    eager_inputs: Sequence[torch.Tensor]
    exact: Sequence[torch.Tensor] | None
    exact_inputs: Sequence[torch.Tensor]
    held: Sequence[torch.Tensor]
    drew: bool

    @classmethod
    def made(
        cls,
        run_eager: RunGraph,
        run_float64: RunGraph | None,
        inputs: Sequence[torch.Tensor],
        state: Generators,
    ) -> GraphReferences:
        """Run eager and float64 on copies of ``inputs``, from ``state`` of the random numbers."""
        eager, eager_inputs, held = _run(run_eager, inputs, state)
        drew = state.now() != state
        exact: list[torch.Tensor] | None = None
        exact_inputs: list[torch.Tensor] = []
        if run_float64 is not None:
            with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
                exact, exact_inputs, _ = _run(run_float64, inputs, state, torch.float64)
        return cls(inputs, eager, eager_inputs, exact, exact_inputs, held, drew)

    @property
    def nbytes(self) -> int:
        """The size of all that it holds."""
        tensors = [*self.inputs, *self.eager, *self.eager_inputs, *self.held, *self.exact_inputs]
        return sum(t.numel() * t.element_size() for t in [*tensors, *(self.exact or ())])


class KeptReferences:
    """A graph's latest references, for the next check on the same inputs."""

    def __init__(self) -> None:
        self._values: Sequence[object] = ()
        self._kept: GraphReferences | None = None

    def prepare(
        self,
        run_eager: RunGraph,
        run_float64: RunGraph | None,
        values: Sequence[object],
        *,
        draws: bool = True,
    ) -> None:
        """Make the references that ``check_graph`` will want, if there are none yet.

        Not where they are large, nor those of a graph that takes random numbers.

        Args:
            run_eager: As for ``check_graph``.
            run_float64: Likewise.
            values: The graph's inputs, numbers among them; not to be changed from now on.
            draws: As for ``check_graph``.
        """
        inputs = [value for value in values if isinstance(value, torch.Tensor)]
        large = sum(t.numel() * t.element_size() for t in inputs) > _KEPT_BYTES
        if large or where_computed(inputs) != CPU or self.find(values) is not None:
            return
        self._kept = None
        state = Generators(draws=draws)
        try:
            made = GraphReferences.made(run_eager, run_float64, inputs, state)
        except RuntimeError:
            return  # the check will say so
        finally:
            state.restore()
        if not made.drew and made.nbytes <= _KEPT_BYTES:
            self._kept, self._values = made, values
            KEPT.used(self, _KEPT_BYTES)

    def find(self, values: Sequence[object]) -> GraphReferences | None:
        """Return the references made on inputs with the same bits."""
        kept, known = self._kept, self._values  # another graph's may take their place any time
        if kept is None or len(known) != len(values):
            return None
        return kept if all(map(_same_value, known, values)) else None

    @property
    def nbytes(self) -> int:
        """The size of what is kept."""
        return self._kept.nbytes if self._kept is not None else 0

    def forget(self) -> None:
        """Keep nothing."""
        self._kept, self._values = None, ()


def _same_value(first: object, second: object) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return alike(first, second)
    return type(first) is type(second) and repr(first) == repr(second)


def _time_graph(
    run_fused: RunGraph,
    run_eager: RunGraph,
    inputs: Sequence[torch.Tensor],
    seconds: float,
    calls: int | None = None,
) -> tuple[Timing, Timing]:
    # Half of what is left is for the round that is on when this is asked.
    made, most = 0, math.inf if calls is None else calls // 2
    copies = [clone_strided(t) for t in inputs]
    device = where_computed(inputs)
    run_fused(copies)
    updated = [
        (copy, original)
        for copy, original in zip(copies, inputs, strict=True)
        if not same_bits(copy, original)
    ]

    def put_back() -> None:
        for copy, original in updated:
            copy.copy_(original)

    put_back()

    def graph() -> object:
        nonlocal made
        made += 1
        return run_fused(copies)

    figures = interleave(
        {"graph": graph, "eager": lambda: run_eager(copies)},
        seconds=seconds,
        before=put_back if updated else None,
        device=device,
        flush_l2=is_gpu(device),
        precision=PRECISION,
        stop=lambda: made >= most,
    )
    return figures["graph"], figures["eager"]
