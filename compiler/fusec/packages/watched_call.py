"""A call of a compiled function, watched: what its graph is given, and what comes of that.

TorchDynamo's code runs on copies of the arguments with the graph's function replaced by one that
notes what it gets and returns. A call that does more than compute its result is refused.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from fusec.capture.fast_path.compiled_code import fast_code, graph_of, parameter_count
from fusec.capture.shortcut import _find_target, _NoShortcut
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.compiled_function import CompiledFunction
from fusec.memory.strided import clone_strided
from fusec.packages.errors import CannotPackage
from fusec.packages.stores import noted, noting

PLAIN = (bool, int, float, str, type(None))
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


class Number(int):
    """A whole number that the graph returned: told from others by identity."""


@dataclass(frozen=True)
class Seen:
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


class CallWatch:
    """Calls a compiled function on copies of arguments, and says what its one graph did.

    Args:
        compiled: The function.
        signature: Its parameters.
        form: The arguments as a tree of leaves.
        leaves: The leaves.
        asked: By a leaf's number, the dimensions that are to stay dynamic.
    """

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

    def run(self, records: bool) -> Seen | None:
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

    def _watched(self, graph: CompiledGraph, records: bool) -> Seen | None:
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
            made = [Number(v) if type(v) is int else v for v in run(*inputs)]
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
        return Seen(graph, part, records, leaves, given[0], returned[0], result, measured)

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


__all__ = ["PLAIN", "CallWatch", "Number", "Seen", "rebuilt"]
