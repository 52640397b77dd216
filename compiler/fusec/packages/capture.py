"""A call of a function as one program: which of its inputs the call gives, which are weights.

The function is compiled (or is compiled already, with edited kernels) and runs twice on copies of
the arguments, with TorchDynamo's code watched: what it gives the graph, what the graph returns, and
what it makes of that. So nothing is guessed of how arguments arrive.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from fusec.capture.fast_path.compiled_code import fast_code, graph_of, parameter_count
from fusec.capture.limits import as_often_as_asked
from fusec.capture.shortcut import _find_target, _NoShortcut
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.compiled_function import CompiledFunction
from fusec.freezing import FrozenMiss
from fusec.inspect.planner import Call
from fusec.memory.strided import clone_strided
from fusec.packages.errors import CannotPackage
from fusec.packages.runtime.structure import flatten, names_of
from fusec.packages.stores import noted, noting

PLAIN = (bool, int, float, str, type(None))
_LOOKS = 4  # at a call that other threads disturb
# What Python code does when it changes more than its own variables; what it sets attributes to is
# looked at.
_CHANGES = frozenset(
    "STORE_SUBSCR STORE_SLICE STORE_GLOBAL STORE_NAME STORE_DEREF DELETE_ATTR "
    "DELETE_SUBSCR DELETE_GLOBAL DELETE_DEREF".split()
)
_CHANGING = frozenset(
    "__setattr__ setattr clear update extend append insert pop "
    "remove add discard set_rng_state seed dict_update".split()
)
_SETS = "object_setattr_ignore_descriptor"  # torch's helper


class _Number(int):
    """A whole number that the graph returned: told from others by identity."""


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
    watch = _Watch(compiled, signature, form, leaves, asked)
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


def _looked_at(watch: _Watch) -> tuple[_Seen, _Seen]:
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


@dataclass(frozen=True)
class _Seen:
    """What one watched call did.

    Attributes:
        graph: The graph that ran.
        part: Its part.
        records: Whether calls recorded for autograd.
        leaves: What was given.
        given: What the graph got.
        returned: What it returned.
        result: What came of it.
        measured: How often TorchDynamo's code takes a size of a tensor.
    """

    graph: CompiledGraph
    part: CompiledPart
    records: bool
    leaves: list[Any]
    given: tuple[Any, ...]
    returned: list[Any]
    result: Any
    measured: int


class _Watch:
    def __init__(
        self,
        compiled: CompiledFunction,
        signature: inspect.Signature,
        form: Any,
        leaves: Sequence[Any],
        asked: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.compiled = compiled
        self.signature = signature
        self.form = form
        self.leaves = leaves
        self.asked = asked

    def run(self, records: bool) -> _Seen | None:
        """Return what a call does; None where it is not one whole graph of ours."""
        compiled = self.compiled
        with torch.set_grad_enabled(records):
            compiled(*self._bound(self._copies()).args, **self._bound(self._copies()).kwargs)
            # A check in another thread keeps nothing for a moment: what is there says more.
            kept = [graph.keep or graph.last_inputs is not None for graph in compiled.graphs]
            for graph in compiled.graphs:
                graph.await_call()  # what is kept stays: another thread may be checking an edit
                graph.keep_inputs(True)
            try:
                count = len(compiled.graphs)
                bound = self._bound(self._copies())
                compiled(*bound.args, **bound.kwargs)
                if len(compiled.graphs) != count:
                    raise CannotPackage(
                        f"{compiled._name()} is compiled again at each call: it changes "
                        "something in Python that it depends on",
                        "pass that as an argument, and return it",
                    )
                ran = [graph for graph in compiled.graphs if graph.called]
            finally:
                for graph, keep in zip(compiled.graphs, kept, strict=False):
                    graph.keep_inputs(keep)
                    if not keep:
                        graph.forget_inputs()
            if len(ran) != 1 or ran[0].fallback or len(ran[0].parts) != 1:
                return None
            return self._watched(ran[0], records)

    def _watched(self, graph: CompiledGraph, records: bool) -> _Seen | None:
        compiled = self.compiled
        try:
            target = _find_target(compiled._optimized)
        except _NoShortcut:
            return None
        function = target.function
        entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__)
        codes = [e.code for e in entries if graph_of(e.code, function, [graph]) is graph]
        if not codes:
            return None
        code = codes[0]
        done = [*dis.get_instructions(code)]
        changes = {each.opname for each in done} & _CHANGES
        # not its co_names: they have what the original does with lists of its own
        names = {each.argval for each in done if each.opcode in dis.hasname} & _CHANGING
        if changes or names:
            raise CannotPackage(
                f"{compiled._name()} changes something in Python beside its result "
                f"({', '.join(sorted(changes | names)).lower()})",
                "return it instead: a package holds no Python",
            )
        fast = fast_code(code, function, graph)
        given: list[tuple[Any, ...]] = []
        returned: list[list[Any]] = []
        run = fast.space[fast.name]

        def spy(*inputs: Any) -> list[Any]:
            given.append(inputs)
            made = [_Number(v) if type(v) is int else v for v in run(*inputs)]
            returned.append(made)
            return list(made)

        leaves = self._copies()
        bound = self._bound(leaves)
        frame = inspect.signature(function, follow_wrapped=False)
        found = frame.bind(*target.prefix, *bound.args, **bound.kwargs)
        found.apply_defaults()
        parameters = function.__code__.co_varnames[: parameter_count(function.__code__)]
        space = {**fast.space, **_setters(fast.space, compiled._name()), fast.name: spy}
        noting_code, notes = noting(fast.function.__code__)
        run_code = FunctionType(noting_code, space, code.co_name, None, fast.function.__closure__)
        result = run_code(*[found.arguments[name] for name in parameters])
        for owner, attribute, value in noted(space, notes):
            _expect_same(compiled._name(), owner, attribute, value)
        if len(given) != 1:
            return None
        measured = sum(each.argval == "call_size" for each in dis.get_instructions(code))
        part = graph.parts[0]
        return _Seen(graph, part, records, leaves, given[0], returned[0], result, measured)

    def _copies(self) -> list[Any]:
        """Return the leaves, with tensors that a call may change."""
        found = []
        for position, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor):
                leaf = clone_strided(leaf)
                for dim in self.asked.get(position, ()):
                    torch._dynamo.maybe_mark_dynamic(leaf, dim)
            found.append(leaf)
        return found

    def _bound(self, leaves: Sequence[Any]) -> inspect.BoundArguments:
        values = rebuilt(self.form, iter(leaves))
        return inspect.BoundArguments(self.signature, values)

    def refusal(self) -> CannotPackage:
        """Return why a call is not one graph."""
        compiled = self.compiled
        name = compiled._name()
        if compiled.breaks:
            first = compiled.breaks[0]
            where = f" ({first.where})" if first.where is not None else ""
            return CannotPackage(
                f"{name} is more than one graph: {first.reason}{where}",
                first.hint or "mend the graph break, or package less",
            )
        for graph in compiled.graphs:
            if graph.fallback:
                return CannotPackage(f"{name}: {graph.name} {graph.fallback}")
        if not compiled.graphs:
            return CannotPackage(f"{name} computes nothing that was captured")
        return CannotPackage(
            f"{name} is not called in a way that can be packaged",
            "give a function, or a module without hooks",
        )


def rebuilt(form: Any, leaves: Iterator[Any]) -> Any:
    """Return the arguments that a form and its leaves stand for."""
    if form == "*":
        return next(leaves)
    ((kind, items),) = form.items()
    if kind == "dict":
        return {key: rebuilt(each, leaves) for key, each in items}
    found = [rebuilt(each, leaves) for each in items]
    return tuple(found) if kind == "tuple" else found


def _setters(space: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return stand-ins for torch's helpers, which set no attribute to another value."""
    found = {}
    for key, module in list(space.items()):
        if hasattr(module, _SETS) and ("_dynamo" in key or "fusec" in key):
            expect_same = functools.partial(_expect_same, name)
            found[key] = SimpleNamespace(**{**vars(module), _SETS: expect_same})
    return found


def _expect_same(name: str, owner: object, attribute: str, value: object) -> None:
    before = getattr(owner, attribute, _setters)
    plain = type(before) is type(value) and isinstance(value, PLAIN) and before == value
    if before is not value and not plain:
        raise CannotPackage(
            f"{name} sets {type(owner).__name__}.{attribute} beside its result",
            "return it instead: a package holds no Python",
        )


# -- inputs and result --------------------------------------------------------------------------


def _inputs(name: str, seen: _Seen, again: _Seen) -> tuple[int | torch.Tensor, ...]:
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


def _views(seen: _Seen) -> dict[int, int]:
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


def _result(watch: _Watch, seen: _Seen) -> Any:
    name = watch.compiled._name()
    # Sizes that TorchDynamo's code takes and the graph does not get may be in the result.
    measures = seen.measured > sum(type(value) is int for value in seen.given)

    def described(value: Any) -> Any:
        leaf = _same(value, seen.leaves) if isinstance(value, torch.Tensor) else None
        if leaf is not None:  # it may be among what the graph returns: one that it updates is
            return {"leaf": leaf}
        at = _same(value, seen.returned)
        if at is not None and isinstance(value, (torch.Tensor, _Number)):
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
    "PLAIN",
    "CapturedCall",
    "capture",
    "name_of_kept",
    "parameters_of",
    "plain_value",
    "rebuilt",
    "sharing",
]
