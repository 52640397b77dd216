"""How long a compiled graph takes, and how fast it could be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fusec.compiled.calls import GraphCalls
from fusec.compiled.part import CompiledPart
from fusec.devices import is_gpu
from fusec.ir.interpret import size_values
from fusec.report import Timing
from fusec.timing.eager_traffic import EagerTraffic
from fusec.timing.limits import Limit, ProductCounter, least_bytes, limit, moved_bytes
from fusec.timing.measure import PRECISION, interleave
from fusec.timing.training_step import with_backward


def _forward(call: Callable[..., object], inputs: Sequence[Any]) -> Callable[[], object]:
    return partial(call, *inputs)


def measure_beside(
    graph: GraphCalls,
    others: Mapping[str, Callable[..., object]],
    seconds: float,
    stop: Callable[[], bool] | None,
) -> dict[str, Timing]:
    """Return ``CompiledGraph.measure_beside``."""
    with graph.lock, torch.set_grad_enabled(graph.records_gradients):
        inputs = graph.copies()
        device = _device(inputs)
        with graph.keeping_nothing():
            assert graph.compiled is not None
            # Past ``call_copies`` where there is nothing to it.
            fused = graph.call_copies if graph.held.tensors else graph.compiled
            calls: dict[str, Callable[..., object]] = {"eager": graph.held.eager}
            calls |= {"fused": fused, **others}
            whole = with_backward if graph.ran_backward else _forward
            found = interleave(
                {name: whole(call, inputs) for name, call in calls.items()},
                seconds=seconds,
                device=device,
                flush_l2=is_gpu(device),
                precision=PRECISION,
                stop=stop,
            )
    if not graph.ran_backward:
        return found
    return {
        name: replace(timing, method=f"forward and backward, {timing.method}")
        for name, timing in found.items()
    }


def limit_of(graph: GraphCalls) -> Limit | None:
    """Return ``CompiledGraph.limit``."""
    forward = [part for part in graph.parts if not part.is_backward]
    if len(forward) != 1 or forward[0].last_inputs is None:
        return None
    backward = [part for part in graph.parts if part.is_backward and part.last_inputs]
    backward.sort(key=lambda part: part.kind)  # of its forms the one that takes all gradients
    timed = forward + (backward[:1] if graph.ran_backward else [])
    whole = with_backward if graph.ran_backward else _forward
    with graph.lock, torch.set_grad_enabled(graph.ran_backward):
        inputs = graph.copies()
        device = _device(inputs)
        counter = ProductCounter()
        traffic = EagerTraffic()
        with counter, traffic:
            whole(graph.held.eager, inputs)()
    least = moved = 0
    for part in timed:
        assert part.last_inputs is not None
        program = part.state.scheduled
        sizes = size_values(program, part.last_inputs)
        least += least_bytes(program, sizes)
        moved += moved_bytes(program, sizes, _traffic(part))
    if moved > 0:
        least = min(least, moved)  # of a large input a few rows may be read
    found = limit(least, counter.operations, device)
    return replace(found, eager=traffic.bytes, moved=moved)


def _device(inputs: Sequence[Any]) -> str:
    return next((t.device.type for t in inputs if isinstance(t, torch.Tensor)), "cpu")


def _traffic(part: CompiledPart) -> dict[str, int]:
    """Return the bytes that each kernel of a part moves, where they are known."""
    sources = {name: kernel.generated for name, kernel in part.kernels.items()}
    return {
        name: source.read_bytes + source.written_bytes
        for name, source in sources.items()
        if min(source.read_bytes, source.written_bytes) >= 0
    }


__all__ = ["limit_of", "measure_beside"]
