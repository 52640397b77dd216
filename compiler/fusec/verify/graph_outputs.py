"""Comparing a whole graph, with a checked kernel in it, with eager."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from fusec.devices import is_gpu, where_computed
from fusec.memory.strided import clone_strided
from fusec.report import Timing, Verdict, counted
from fusec.timing.measure import PRECISION, interleave
from fusec.verify.compare import compare_output, describe, mismatch, praise
from fusec.verify.words import same_bits

RunGraph = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def check_graph(
    run_fused: RunGraph,
    run_eager: RunGraph,
    run_float64: RunGraph | None,
    inputs: Sequence[torch.Tensor],
    *,
    names: Sequence[str] | None = None,
    timed: bool = True,
    seconds: float = 0.1,
    reference: RunGraph | None = None,
    calls: int | None = None,
) -> Verdict:
    """Compare a whole graph with eager on ``inputs``, and time the two.

    Each run gets copies of the inputs and the same random numbers; inputs that a run updates
    are compared like outputs.

    Args:
        run_fused: The graph with the kernel in it.
        run_eager: The same graph by eager torch operators.
        run_float64: The same in float64; None where there is no such thing.
        inputs: Not changed.
        names: The outputs' names; numbered by default.
        timed: Whether to time it.
        seconds: Seconds for the timing.
        reference: Eager with the graph's own random numbers, to compare with; ``run_eager`` where
            it has none.
        calls: Time it in no more calls than that: how many a kernel in it has survived elsewhere.
    """
    started = time.perf_counter()
    state = torch.get_rng_state()

    def run(function: RunGraph) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        torch.set_rng_state(state)
        copies = [clone_strided(t) for t in inputs]
        outputs = [t.detach().clone() for t in function(copies)]
        return outputs, copies

    try:
        # The candidate first: no result of eager's may lie about in freed memory.
        fused, fused_inputs = run(run_fused)
        eager, eager_inputs = run(reference or run_eager)
        exact: list[torch.Tensor] | None = None
        exact_inputs: list[torch.Tensor] = []
        if run_float64 is not None:
            try:
                exact, exact_inputs = run(run_float64)
            except (RuntimeError, TypeError, NotImplementedError):
                exact = None
    finally:
        torch.set_rng_state(state)
    labels = list(names) if names is not None else [f"output {i}" for i in range(len(eager))]
    if len(fused) != len(eager):
        reason = f"gives {counted(len(fused), 'output')} where eager gives {len(eager)}"
        return Verdict(False, "wrong", reason, seconds=time.perf_counter() - started)
    for index, (mine, plain, original) in enumerate(
        zip(fused_inputs, eager_inputs, inputs, strict=True)
    ):
        if same_bits(mine, original) and same_bits(plain, original):
            continue
        labels.append(f"input {index}, updated in place")
        fused.append(mine)
        eager.append(plain)
        if exact is not None:
            exact.append(exact_inputs[index])
    references: Sequence[torch.Tensor | None] = exact or [None] * len(eager)
    figures = tuple(map(compare_output, labels, fused, eager, references))
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
