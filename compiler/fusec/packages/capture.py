"""A call of a function as one program: which of its inputs the call gives, which are weights.

The function is compiled (or is compiled already, with edited kernels) and runs twice on copies of
the arguments, with TorchDynamo's code watched: what it gives the graph, what the graph returns, and
what it makes of that. So nothing is guessed of how arguments arrive.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fusec.capture.limits import as_often_as_asked
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.compiled_function import CompiledFunction
from fusec.freezing import FrozenMiss
from fusec.inspect.planner import Call
from fusec.packages.errors import CannotPackage
from fusec.packages.runtime.structure import flatten, names_of
from fusec.packages.watched_call import PLAIN, CallWatch, Number, Seen

_LOOKS = 4  # at a call that other threads disturb


@dataclass(frozen=True)
class CapturedCall:
    """A call and the program that it became.

    Attributes:
        name: Of the function.
        signature: Its parameters.
        form: The arguments as a tree of leaves.
        names: What each leaf is called.
        leaves: The leaves: tensors and plain values.
        asked: By a leaf's number, the dimensions that were to stay dynamic.
        graph: The captured graph.
        part: Its compiled part.
        inputs: For each input of the part the leaf's number, or the tensor that is a weight.
        views: By the number of a graph's output that lies in a leaf's memory, the leaf's.
        result: How the result is put together of the graph's outputs.
        expected: What the compiled function returned for ``leaves``.
        sharing: Which of the result's tensors and the leaves share memory.
    """

    name: str
    signature: inspect.Signature
    form: Any
    names: tuple[str, ...]
    leaves: tuple[Any, ...]
    asked: Mapping[int, tuple[int, ...]]
    graph: CompiledGraph
    part: CompiledPart
    inputs: tuple[int | torch.Tensor, ...]
    views: Mapping[int, int]
    result: Any
    expected: Any
    sharing: frozenset[tuple[int, int]]


def parameters_of(compiled: CompiledFunction) -> inspect.Signature:
    """Return the parameters of what was compiled, without ``self``."""
    function = compiled.function
    return inspect.signature(function.forward if isinstance(function, nn.Module) else function)


def capture(
    compiled: CompiledFunction, call: Call, dynamic: Mapping[str, Sequence[int]]
) -> CapturedCall:
    """Compile and watch one call.

    Args:
        compiled: The function.
        call: Its arguments; they are not changed.
        dynamic: By a leaf's name, the dimensions whose sizes are to stay dynamic if they can.

    Raises:
        CannotPackage: The call is more than one graph and what it returns.
    """
    signature, name = parameters_of(compiled), compiled._name()
    form, leaves, names = _leaves_of(compiled, call)
    _require_plain(names, leaves)
    asked = _asked_of(names, leaves, dynamic)
    watch = CallWatch(compiled, signature, form, leaves, asked)
    for look in range(_LOOKS):
        try:
            seen, again = _looked_at(watch)
            break
        except (CannotPackage, FrozenMiss):
            # Other threads that call it meanwhile have it compiled, given up and frozen as well.
            if look == _LOOKS - 1 or compiled.breaks or threading.active_count() == 1:
                raise
    return CapturedCall(
        name,
        signature,
        form,
        tuple(names),
        tuple(leaves),
        asked,
        seen.graph,
        seen.part,
        _inputs(name, seen, again),
        _views(seen),
        _result(watch, seen),
        seen.result,
        sharing(seen.result, seen.leaves),
    )


def _leaves_of(compiled: CompiledFunction, call: Call) -> tuple[Any, list[Any], list[str]]:
    """Return a call's arguments as a tree of leaves, the leaves, and their names.

    Raises:
        CannotPackage: The function takes other arguments.
    """
    try:
        bound = parameters_of(compiled).bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise CannotPackage(
            f"{compiled._name()}: {error}", "give the arguments of a call"
        ) from None
    bound.apply_defaults()
    leaves: list[Any] = []
    form = flatten(dict(bound.arguments), leaves)
    return form, leaves, [n.removeprefix("['").replace("']", "", 1) for n in names_of(form, "")]


def require_tensors(
    compiled: CompiledFunction, calls: Sequence[Call], dynamic: Mapping[str, Sequence[int]]
) -> None:
    """Refuse names whose sizes are to stay dynamic and that are a tensor in none of the calls.

    Raises:
        CannotPackage: There is one.
    """
    tensors: dict[str, None] = {}
    for call in calls:
        _, leaves, names = _leaves_of(compiled, call)
        pairs = zip(names, leaves, strict=True)
        tensors |= dict.fromkeys(n for n, leaf in pairs if isinstance(leaf, torch.Tensor))
    for name in dynamic:
        if name not in tensors:
            raise CannotPackage(
                f"dynamic= names {name!r}, which is a tensor in none of the calls",
                f"there is: {', '.join(tensors) or 'none'}",
            )


def _looked_at(watch: CallWatch) -> tuple[Seen, Seen]:
    """Return what two calls did.

    Raises:
        CannotPackage: One was not one whole graph.
    """
    compiled = watch.compiled
    with as_often_as_asked(compiled._optimized, apart=True):
        # A package computes; it records nothing for autograd. What was compiled where gradients
        # are on and nobody asked for any does as well, with its edits.
        kinds = {part.kind for graph in compiled.graphs for part in graph.parts}
        records = torch.is_grad_enabled() and kinds == {"inference"}
        seen = watch.run(records)
        for _ in range(_LOOKS):  # other threads called it meanwhile, and it is not known what ran
            if seen is not None or not records or compiled.breaks or threading.active_count() == 1:
                break
            seen = watch.run(records)
        if records and (seen is None or seen.part.kind != "inference"):
            seen = watch.run(False)
        if seen is None or seen.part.kind != "inference":
            raise watch.refusal()
        again = watch.run(seen.records)
    if again is None:
        raise watch.refusal()
    return seen, again


def _require_plain(names: Sequence[str], leaves: Sequence[Any]) -> None:
    known: dict[int, str] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in known:
                raise CannotPackage(
                    f"{known[id(leaf)]} and {name} are one tensor", "give an example for each"
                )
            known[id(leaf)] = name
            if type(leaf) not in (torch.Tensor, nn.Parameter) or leaf.layout != torch.strided:
                raise CannotPackage(f"{name} is a {type(leaf).__name__}, not a plain tensor")
        elif type(leaf) not in PLAIN:
            raise CannotPackage(
                f"{name} is a {type(leaf).__name__}",
                "arguments may be tensors, numbers, texts, None, and tuples, lists and "
                "dictionaries of those",
            )


def _asked_of(
    names: Sequence[str], leaves: Sequence[Any], dynamic: Mapping[str, Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            marked = set(getattr(leaf, "_dynamo_dynamic_indices", ()))
            marked |= set(getattr(leaf, "_dynamo_weak_dynamic_indices", ()))
            if marked:
                found[position] = tuple(sorted(marked))
    for name, dims in dynamic.items():
        if name not in names or not isinstance(leaves[names.index(name)], torch.Tensor):
            continue  # in another call it is one: what prefill has no past of, decoding has
        position = names.index(name)
        rank = leaves[position].dim()
        given = (dims,) if isinstance(dims, int) else tuple(dims)
        if not all(type(d) is int and -rank <= d < rank for d in given):
            raise CannotPackage(f"dynamic= asks for dimensions {given} of {name}, which has {rank}")
        found[position] = tuple(sorted({d % rank for d in given} | set(found.get(position, ()))))
    return found


def _inputs(name: str, seen: Seen, again: Seen) -> tuple[int | torch.Tensor, ...]:
    """Return what each input of the graph is: a leaf, or a tensor that stays the same."""
    if len(seen.given) != len(seen.part.state.scheduled.inputs):
        raise CannotPackage(
            f"{name}: {len(seen.given)} inputs were captured and "
            f"{len(seen.part.state.scheduled.inputs)} are computed with",
            "inputs that share memory cannot be packaged",
        )
    found: list[int | torch.Tensor] = []
    for value, other in zip(seen.given, again.given, strict=True):
        leaf = _same(value, seen.leaves)
        if leaf is not None and isinstance(value, torch.Tensor):
            found.append(leaf)
        elif isinstance(value, torch.Tensor) and value is other:
            found.append(value)
        elif type(value) is int:
            found.append(-1)  # a size: where it is from is looked up by its symbol
        else:
            raise CannotPackage(
                f"{name} makes a tensor of an argument before its graph",
                "give tensors in place of numbers that change",
            )
    return tuple(found)


def _views(seen: Seen) -> dict[int, int]:
    memory = {memory_of(leaf): i for i, leaf in enumerate(seen.leaves) if memory_of(leaf)}
    places = ((i, memory.get(memory_of(each))) for i, each in enumerate(seen.returned))
    return {i: leaf for i, leaf in places if leaf is not None}


def memory_of(value: object) -> int:
    """Return where the memory begins that a tensor lies in; 0 for what has none."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def sharing(result: Any, leaves: Sequence[Any]) -> frozenset[tuple[int, int]]:
    """Return which of a result's tensors share memory, with each other and with a call's leaves."""
    found: list[Any] = []
    flatten(result, found)
    memory = [memory_of(each) for each in (*leaves, *found)]
    pairs = itertools.combinations(range(len(memory)), 2)
    return frozenset((a, b) for a, b in pairs if memory[a] and memory[a] == memory[b])


def _same(value: object, known: Sequence[object]) -> int | None:
    return next((i for i, each in enumerate(known) if each is value), None)


def _result(watch: CallWatch, seen: Seen) -> Any:
    name = watch.compiled._name()
    # Sizes that TorchDynamo's code takes and the graph does not get may be in the result.
    measures = seen.measured > sum(type(value) is int for value in seen.given)

    def described(value: Any) -> Any:
        leaf = _same(value, seen.leaves) if isinstance(value, torch.Tensor) else None
        if leaf is not None:  # it may be among what the graph returns: one that it updates is
            return {"leaf": leaf}
        at = _same(value, seen.returned)
        if at is not None and isinstance(value, (torch.Tensor, Number)):
            return {"output": at}
        if isinstance(value, torch.Tensor):
            if watch.compiled.breaks:
                raise watch.refusal()
            kept = name_of_kept(watch.compiled.function, value)
            raise CannotPackage(
                f"{name} returns {kept or 'a tensor that it finds'}: what a package returns is"
                " given to it or computed, its weights are its own",
                "return a copy: .clone()",
            )
        if isinstance(value, PLAIN):
            if type(value) is int and measures:
                raise CannotPackage(
                    f"{name} returns a size of a dynamic dimension",
                    "return tensors, or package each size by itself",
                )
            return {"value": plain_value(value)}
        if isinstance(value, dict) and all(type(key) is str for key in value):
            return {"dict": [[key, described(each)] for key, each in value.items()]}
        if type(value) in (tuple, list, torch.Size):
            kind = "list" if type(value) is list else "tuple"
            return {kind: [described(each) for each in value]}
        fields = _fields(value)
        if fields is not None:
            return {
                "named": [described(each) for each in value],
                "name": type(value).__name__,
                "fields": list(fields),
            }
        raise CannotPackage(
            f"{name} returns a {type(value).__name__}",
            "return tensors, and tuples, lists and dictionaries of them",
        )

    return described(seen.result)


def name_of_kept(function: Any, value: torch.Tensor) -> str:
    """Return what a function calls a tensor that it finds, or one that it is a view of."""
    tables: list[dict[str, Any]]
    if isinstance(function, nn.Module):
        tables = [dict(function.named_parameters()), dict(function.named_buffers())]
    else:
        try:
            found = inspect.getclosurevars(inspect.unwrap(getattr(function, "__func__", function)))
        except TypeError:  # it is no function written in Python
            return ""
        tables = [dict(found.nonlocals), dict(found.globals)]
    named = {n: each for table in tables for n, each in table.items() if memory_of(each)}
    for name, each in named.items():
        if each is value:
            return name
    bases = (name for name, each in named.items() if memory_of(each) == memory_of(value))
    return next((f"a view of {name}" for name in bases), "")


def _fields(value: Any) -> tuple[str, ...] | None:
    """Return the fields of a named tuple, or of what torch returns as one (``x.max(1)``)."""
    if not isinstance(value, tuple):
        return None
    if type(value).__module__ == torch.return_types.__name__:
        found: tuple[str, ...] = type(value).__match_args__  # type: ignore[attr-defined]
        return found
    return getattr(value, "_fields", None)


def plain_value(value: Any) -> dict[str, Any]:
    """Return a plain value as JSON that keeps its type."""
    if isinstance(value, float):
        return {"float": repr(value)}
    return {"plain": value}


__all__ = [
    "CapturedCall",
    "capture",
    "name_of_kept",
    "parameters_of",
    "plain_value",
    "sharing",
]
