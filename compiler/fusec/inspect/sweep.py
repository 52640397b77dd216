"""A graph over a range of sizes: eager and compiled, a size at a time."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusec.compiled.graph import CompiledGraph, NoInputs
from fusec.devices import is_gpu
from fusec.errors import FusecError
from fusec.options import Options
from fusec.report import Timing
from fusec.timing.measure import interleave


class FixedSize(FusecError):
    """A graph that was captured for one size and runs at no other."""


@dataclass(frozen=True)
class SweptSize:
    """A size of a graph's inputs that can be varied.

    Attributes:
        value: What it was in the latest call.
        places: Input number and dimension of each size of that value: they vary together.
        name: For people: ``x.size(0)``.
    """

    value: int
    places: tuple[tuple[int, int], ...]
    name: str

    @property
    def label(self) -> str:
        """The name with the value: ``x.size(0) = 64``."""
        return f"{self.name} = {self.value}"


@dataclass(frozen=True)
class SweepPoint:
    """One size.

    Attributes:
        size: Of the dimension that varies.
        eager: Time of a call in eager.
        fused: Time of a compiled call, interleaved with ``eager``.
    """

    size: int
    eager: Timing
    fused: Timing


def sizes_of(graph: CompiledGraph) -> list[SweptSize]:
    """Return the sizes that can be varied, the leading dimension of the largest input first.

    A module's parameters come last: a batch of as many rows as a parameter has says nothing of it.

    Args:
        graph: Its latest inputs tell.

    Raises:
        NoInputs: It has not run with its inputs kept.
    """
    inputs = graph.last_inputs
    if inputs is None:
        raise NoInputs(graph.name)
    nodes = [node for node in graph.eager.graph.nodes if node.op == "placeholder"]
    names = [_readable(node.name) for node in nodes]
    fixed = {n for n, node in enumerate(nodes) if _PARAMETER.search(node.name)}
    places: dict[int, list[tuple[int, int]]] = {}
    for number, tensor in enumerate(inputs):
        if isinstance(tensor, torch.Tensor):
            for dim, size in enumerate(tensor.shape):
                if size > 1:
                    places.setdefault(int(size), []).append((number, dim))
    found = []
    for value, where in places.items():
        first = min(where, key=lambda place: (place[0] in fixed, place[1], place[0]))
        number, dim = first
        if dim == 0 and number not in fixed:
            where = [place for place in where if place[0] not in fixed]
        name = names[number] if number < len(names) else f"input {number}"
        # The first place is the one that it is called by.
        where = [first, *(place for place in where if place != first)]
        found.append(SweptSize(value, tuple(where), f"{name}.size({dim})"))
    tensors = [
        (n not in fixed, t.numel(), -n) for n, t in enumerate(inputs) if isinstance(t, torch.Tensor)
    ]
    largest = -max(tensors)[2] if tensors else 0

    def order(size: SweptSize) -> tuple[bool, int, int]:
        dims = [dim for number, dim in size.places if number == largest]
        return size.places[0][0] in fixed, min(dims, default=99), -size.value

    return sorted(found, key=order)


# As TorchDynamo names what it takes from a module: ``L_model_modules_0_parameters_weight_``.
_PARAMETER = re.compile(r"_(?:parameters|buffers)_")


def _readable(name: str) -> str:
    """Return an input's name as the user writes it: ``x``, ``model.0.weight``."""
    bare = re.sub(r"(?i)^[LG]_(?:self_)?|_$", "", name)
    return re.sub(r"_?(?:modules|parameters|buffers)_", ".", bare).strip(".")


def sweep(
    graph: CompiledGraph,
    size: SweptSize,
    values: list[int],
    *,
    compile: Callable[..., Callable[..., Any]],
    seconds: float = 0.08,
    stop: threading.Event | None = None,
) -> Iterator[SweepPoint]:
    """Time a graph at several values of one size, compiled once with that size symbolic.

    Args:
        graph: Stays as it is; a copy is compiled.
        size: Which size varies.
        values: In the order wanted.
        compile: ``fusec.compile``.
        seconds: For each.
        stop: Set it to end after the value that is measured.

    Raises:
        NoInputs: It has not run with its inputs kept.
        FixedSize: It runs at no other size: a view or a constant in it is for this one alone.
    """
    inputs = graph.last_inputs
    if inputs is None:
        raise NoInputs(graph.name)
    options = graph.parts[0].state.options if graph.parts else Options()
    eager = copy.deepcopy(graph.eager)
    compiled = compile(eager, target=options.target, dynamic=True)
    for value in values:
        if stop is not None and stop.is_set():
            return
        given = [_resized(t, n, size, value) for n, t in enumerate(inputs)]
        with torch.no_grad():
            try:
                eager(*given)
            except (RuntimeError, IndexError, TypeError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise FixedSize(
                    f"{graph.name} was captured for {size.label} alone: {reason}",
                    "run the cell with --dynamic, or vary another size",
                ) from None
            compiled(*given)
            tensors = [t for t in given if isinstance(t, torch.Tensor)]
            device = tensors[0].device.type if tensors else "cpu"
            times = interleave(
                {"eager": lambda g=given: eager(*g), "fused": lambda g=given: compiled(*g)},  # type: ignore[misc]
                seconds=seconds,
                device=device,
                flush_l2=is_gpu(device),
            )
            if any(t.requires_grad for t in inputs if isinstance(t, torch.Tensor)):
                times = {
                    name: replace(timing, method=f"forward alone, {timing.method}")
                    for name, timing in times.items()
                }
        yield SweepPoint(value, times["eager"], times["fused"])


def _resized(value: Any, number: int, size: SweptSize, wanted: int) -> Any:
    """Return an input with another size: its own elements, repeated or cut."""
    if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
        return wanted if int(value) == size.value else value
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach()
    for place, dim in size.places:
        if place == number:
            index = torch.arange(wanted, device=tensor.device) % max(tensor.shape[dim], 1)
            tensor = tensor.index_select(dim, index)
    return tensor.clone()


__all__ = ["FixedSize", "SweepPoint", "SweptSize", "sizes_of", "sweep"]
