"""Which gradients a graph's inputs do not get where only some of its results are asked for theirs.

Eager's own answer is in the fake tensors that TorchDynamo ran the graph with: each result has a
history, which ends in the inputs that its gradient flows to.  What AOTAutograd's joint graph says
is asked as well: a gradient that depends on one that was asked for is always handed out.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Container, Iterator, Sequence, Set
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import fx

from fusec.call.unasked import Form, UnaskedGradients, form_of, without_unasked
from fusec.capture.fast_path.direct import applied_function
from fusec.capture.fast_path.recorded import never_traced
from fusec.capture.gradients.result_modes import UnknownHistory, history

_OF_INTERMEDIATES = ("alias_of_intermediate", "alias_of_intermediate_save_as_output")
_UNKNOWN = (AttributeError, LookupError, TypeError, ValueError)


Missing = tuple[frozenset[int], int]
# Which gradients are missing in the backward pass that begins in this thread.
_NOW = threading.local()


def missing_gradients() -> Missing | None:
    """Return which gradients the backward graph that runs now is to take for none, by number.

    It is asked once: what runs within is another graph.

    Returns:
        With them, as bits, the inputs that get a gradient all the same; None where none is missing.
    """
    found: Missing | None = getattr(_NOW, "missing", None)
    if found is not None:
        _NOW.missing = None
    return found


@dataclass(frozen=True)
class JointGradients:
    """What a joint graph says of the gradients that it takes, its tangents.

    Attributes:
        flows: For each, as bits, the gradients of inputs that depend on it.
        forms: Shape, type and device of each; None where sizes vary.
    """

    flows: tuple[int, ...] = ()
    forms: tuple[Form, ...] | None = None


def joint_gradients(joint: fx.GraphModule, results: int) -> JointGradients:
    """Return what a joint graph says of the gradients that it takes.

    Args:
        joint: As AOTAutograd traced it.
        results: How many of its outputs are results.
    """
    reaching: dict[fx.Node, int] = {}
    taken: list[Any] = []
    for node in joint.graph.nodes:
        if node.op == "placeholder" and node.name.startswith("tangents"):
            reaching[node] = 1 << len(taken)
            taken.append(node.meta.get("val"))
            continue
        found = 0
        for each in node.all_input_nodes:
            found |= reaching.get(each, 0)
        if found:
            reaching[node] = found
    (output,) = joint.graph.find_nodes(op="output")
    flows = [0] * len(taken)
    for i, node in enumerate(output.args[0][results:]):
        found = reaching.get(node, 0) if isinstance(node, fx.Node) else 0
        for k in range(len(taken)):
            flows[k] |= (found >> k & 1) << i
    known = all(isinstance(v, torch.Tensor) and not v._has_symbolic_sizes_strides for v in taken)
    return JointGradients(tuple(flows), tuple(map(form_of, taken)) if known else None)


def reached_inputs(module: fx.GraphModule, updated: Set[int]) -> tuple[list[int], list[int]]:
    """Return for each result of a captured graph, as bits, the inputs that gradients flow to.

    Args:
        module: As TorchDynamo hands it over.
        updated: Inputs, by their places, that the graph updates.  The history that such a one had
            before is within that which it has now.

    Returns:
        Those of each result, and, of each input, what its history reaches now, where it may be
        another than at first: of an updated one.

    Raises:
        UnknownHistory: torch does not say.
    """
    inputs = [_example(node) for node in module.graph.find_nodes(op="placeholder")]
    (output,) = module.graph.find_nodes(op="output")
    results = [_example(node) for node in output.args[0]]
    ends: dict[Any, int] = {}
    leaves: dict[int, int] = {}
    changed: list[tuple[int, Any]] = []
    for i, value in enumerate(inputs):
        if value is None or not value.requires_grad:
            continue
        made_by = history(value)
        if made_by is None:
            leaves[id(value)] = leaves.get(id(value), 0) | 1 << i
        elif i in updated:
            changed.append((i, made_by))
        else:
            ends[made_by] = ends.get(made_by, 0) | 1 << i
    before: dict[Any, list[int]] = {}
    for i, made_by in changed:
        before.setdefault(_before_updates(made_by, ends), []).append(i)
    others = 0
    for end, places in before.items():
        if end is None or len(places) > 1 or _leaf(end) in leaves:
            others |= sum(1 << i for i in places)
        else:
            ends[end] = 1 << places[0]
    known: dict[Any, int] = {None: 0}

    def reach(value: torch.Tensor | None) -> int:
        if value is None or not value.requires_grad:
            return 0
        return _reach(history(value), ends, leaves, others, known)

    return [reach(value) for value in results], [reach(value) for value in inputs]


def _leaf(function: Any) -> int:
    """Return the ``id`` of the leaf whose gradient a function of autograd's adds up."""
    return id(getattr(function, "variable", None))


def _before_updates(function: Any, ends: Container[Any]) -> Any:
    """Return where the history of an updated input ends; None where that cannot be said.

    Args:
        function: The one of autograd's that made it.
        ends: Those that made inputs that are not updated.
    """
    while not (function in ends or isinstance(function, torch.autograd.function.BackwardCFunction)):
        following = [f for f, _ in function.next_functions]
        if all(f is None for f in following):
            return function
        function = following[0]  # of all operators the updated one is the first that has a history
        if function is None:
            return None
    return None


def _reach(
    function: Any,
    ends: dict[Any, int],
    leaves: dict[int, int],
    others: int,
    known: dict[Any, int],
) -> int:
    """Return the inputs that a function of autograd's reaches.

    Args:
        function: The function.
        ends: The inputs that a function made, as bits.
        leaves: Those that a leaf is, by its ``id``.
        others: Those that may be where a history ends otherwise.
        known: What other functions reach.
    """
    waiting = [function]
    while waiting:
        each = waiting[-1]
        if each in known:
            waiting.pop()
            continue
        if each in ends:
            known[waiting.pop()] = ends[each]
            continue
        following = [f for f, _ in each.next_functions]
        unknown = [f for f in following if f not in known]
        if unknown:
            waiting += unknown
            continue
        found = 0
        if all(f is None for f in following):
            found = leaves.get(_leaf(each), others)
        for f in following:
            found |= known[f]
        known[each] = found
        waiting.pop()
    return known[function]


def _example(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def leave_unasked(
    compiled: Callable[..., Any], module: fx.GraphModule, joint: JointGradients
) -> None:
    """Have backward of a graph give no gradient to what has none in eager.

    Args:
        compiled: What AOTAutograd made of the graph.
        module: The graph as TorchDynamo handed it over.
        joint: As ``joint_gradients`` returned it.
    """
    for function in autograd_functions(compiled):
        try:
            unasked = _unasked(function.metadata, module, joint)
            if unasked is not None and function.maybe_subclass_metadata is None:
                _install(function, unasked)
        except (*_UNKNOWN, ImportError, UnknownHistory):
            continue  # another release of torch keeps another record


def _unasked(record: Any, module: fx.GraphModule, joint: JointGradients) -> UnaskedGradients | None:
    """Return what is known of a graph, by AOTAutograd's record; None if that is too little."""
    infos, updated = record.input_info, tuple(record.mutated_inp_runtime_indices)
    (output,) = module.graph.find_nodes(op="output")
    placeholders = module.graph.find_nodes(op="placeholder")
    if (
        len(infos) != len(placeholders)  # views of one base are one input to AOTAutograd
        or len(record.output_info) != len(output.args[0])
        or record.tokens
        or record.num_backward_tokens
    ):
        return None
    # the results that each gradient is of, by its position: updated inputs come first
    of: dict[int, list[int]] = {}
    changed = [i for i in updated if infos[i].mutates_data and infos[i].requires_grad]
    for at, i in enumerate(updated):
        if i in changed:
            of[at] = [-1 - i]
    bases = len(updated) + len(record.output_info)
    for i, each in enumerate(record.output_info):
        kind = each.output_type.name
        if kind in ("is_input", "alias_of_input"):
            continue
        if kind in _OF_INTERMEDIATES:
            of.setdefault(bases + each.base_idx, []).append(i)
        elif kind == "alias_of_intermediate_base_is_user_output":
            of.setdefault(len(updated) + each.base_idx, []).append(i)
        elif issubclass(each.raw_type, torch.Tensor) and getattr(
            each, "requires_grad_for_backward", each.requires_grad
        ):
            of.setdefault(len(updated) + i, []).append(i)
    positions = tuple(sorted(of))
    if len(positions) != len(joint.flows):
        return None
    inputs = [_example(node) for node in placeholders]
    if len(positions) == 1 and not _unreached_leaves(inputs, joint.flows):
        return UnaskedGradients(positions, joint.flows, joint.forms)
    by_result, by_input = reached_inputs(module, frozenset(updated))
    found = []
    for position, reached in zip(positions, joint.flows, strict=True):
        for i in of[position]:
            reached |= by_result[i] if i >= 0 else by_input[-1 - i]
        found.append(reached)
    never = _unreached_leaves(inputs, found)
    return UnaskedGradients(positions, tuple(found), joint.forms, never)


def _unreached_leaves(
    inputs: Sequence[torch.Tensor | None], flows: Sequence[int]
) -> tuple[int, ...]:
    """Return the leaves that no gradient flows to, by their places among the tensors."""
    reached = functools.reduce(operator.or_, flows, 0)
    tensors = [(i, value) for i, value in enumerate(inputs) if value is not None]
    return tuple(
        place
        for place, (i, value) in enumerate(tensors)
        if value.requires_grad and not reached >> i & 1 and history(value) is None
    )


def _install(function: Any, unasked: UnaskedGradients) -> None:
    slow_forward, slow_backward = function.forward, function.backward
    listed = bool(getattr(function, "boxed_grads_call", False))

    def forward(ctx: Any, *inputs: Any) -> Any:
        results = slow_forward(ctx, *inputs)
        ctx.materialize_grads = False  # None for gradients that nobody asked for
        unasked.note(ctx, inputs, results)
        return results

    def backward(ctx: Any, *given: Any) -> Any:
        filled = unasked.filled(ctx, given[0] if listed else given)
        if filled is None:
            return slow_backward(ctx, *given)
        if not filled.reached:
            return (None,) * len(ctx.needs_input_grad)
        _NOW.missing = (filled.missing, filled.reached) if filled.missing else None
        try:
            given = (filled.gradients,) if listed else tuple(filled.gradients)
            return without_unasked(slow_backward(ctx, *given), filled.reached)
        finally:
            _NOW.missing = None

    key = function._compiled_autograd_key

    def compiled_autograd_key(ctx: Any) -> Any:
        # Compiled autograd copies the backward graph, which takes tensors alone, into its own.
        ctx.materialize_grads = True
        return key(ctx)

    forward.__wrapped__ = slow_forward  # type: ignore[attr-defined]  # what AOTAutograd made tells
    for method in (forward, backward):
        never_traced()(method.__code__)
    function._compiled_autograd_key = staticmethod(compiled_autograd_key)
    function.forward, function.backward = staticmethod(forward), staticmethod(backward)
    function.unasked = unasked


def autograd_functions(compiled: Callable[..., Any]) -> Iterator[Any]:
    """Yield AOTAutograd's class of autograd's functions from within its wrappers."""
    waiting: list[Any] = [compiled]
    seen = set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if (applied := applied_function(each)) is not None:
            waiting.append(applied)
        elif isinstance(each, type):
            if issubclass(each, torch.autograd.Function):
                yield each
        elif isinstance(each, FunctionType):
            for cell in each.__closure__ or ():
                try:
                    waiting.append(cell.cell_contents)
                except ValueError:
                    continue  # nothing is in it yet
            waiting.append(getattr(each, "__wrapped__", None))


__all__ = ["JointGradients", "Missing", "joint_gradients", "leave_unasked", "missing_gradients"]
