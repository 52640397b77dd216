"""Results that eager makes in another mode of autograd than AOTAutograd hands them out in.

A view that is made under ``no_grad`` has no history, one that is made under ``enable_grad`` has
one, what is made in inference mode is an inference tensor.  AOTAutograd makes views anew when the
graph has run, in the mode in which it was *called*: gradients then flow where eager has none, or
do not where it has some.  TorchDynamo's fake tensors say what eager hands out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from fusec.call.eager_graph import run_eagerly
from fusec.call.grad_mode import as_inference
from fusec.graph.simplify.inference_regions import ENTER, has_regions, name_of, walk

_WRITES = frozenset({"setitem"} | {f"i{n}" for n in "add sub mul truediv matmul pow".split()})


@dataclass(frozen=True)
class ResultModes:
    """What is to be done about results, as positions.

    Attributes:
        unrecorded: Views without a history.
        unknown: What autograd does not know: computed from such views of what it does not know.
        inference: What is made in inference mode.
        twins: Those that are made anew, and are another result, which comes first, by another name.
        recorded: Whether there are results with a history though autograd is off at the call.
        leaves: Whether the graph leaves the inference mode that it may be called in.
    """

    unrecorded: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    inference: tuple[int, ...] = ()
    twins: tuple[tuple[int, int], ...] = ()
    recorded: bool = False
    leaves: bool = False

    def __bool__(self) -> bool:
        return self != ResultModes()

    @property
    def only_inference(self) -> bool:
        """Whether nothing is to be done but to make inference tensors of some results."""
        return self == ResultModes(inference=self.inference)

    def around(self, compiled: Callable[..., Any], eager: fx.GraphModule) -> Callable[..., Any]:
        """Return a graph's compiled form with results as in eager.

        Args:
            compiled: What AOTAutograd made of it.
            eager: As it was captured.
        """
        eagerly = run_eagerly(eager)
        recording = torch.enable_grad if self.recorded else contextlib.nullcontext

        def call(*inputs: Any) -> Any:
            if torch.is_inference_mode_enabled():
                # All that is made is an inference tensor, whatever autograd is switched to within.
                special = self.recorded or self.leaves
                results = list(eagerly(*inputs) if special else compiled(*inputs))
                return self._twice(results)
            with recording():
                results = list(compiled(*inputs))
            for position in self.unrecorded:
                if results[position].grad_fn is not None:
                    with torch.no_grad():
                        results[position] = torch.ops.aten.alias(results[position])
            for position in self.unknown:
                if results[position].grad_fn is not None:
                    results[position] = results[position].detach()
            for position in self.inference:
                results[position] = as_inference(results[position])
            return self._twice(results)

        return call

    def _twice(self, results: list[Any]) -> tuple[Any, ...]:
        """Return results in which one tensor is one, however often it is returned."""
        for position, first in self.twins:
            results[position] = results[first]
        return tuple(results)


def result_modes(module: fx.GraphModule, records: bool) -> ResultModes:
    """Return what is to be done about the results of a captured graph.

    Args:
        module: As TorchDynamo hands it over.
        records: Whether autograd is on where it is called, which is guarded.
    """
    results = results_of(module)
    inference = _made_in_inference_mode(module, records)
    made = [i for i, value in results.items() if storage_of(value) in inference]
    recorded = not records and any(map(_has_history, results.values()))
    if not records and not recorded:
        leaves = any(
            name_of(node) == ENTER and node.args[:1] == (False,) for node in module.graph.nodes
        )
        # nothing has a history anyway
        return ResultModes(inference=tuple(made), twins=_twins(results, made), leaves=leaves)
    bases, lost = _views_without_history(module)
    hooked = _views_with_hooks(module, records)
    unrecorded = [
        i
        for i, value in results.items()
        if i not in made and id(value) not in hooked and _is_lost(value, bases)
    ]
    unknown = [i for i, value in results.items() if lost and not value.requires_grad]
    unknown = [i for i in unknown if i not in made and i not in unrecorded]
    return ResultModes(
        tuple(unrecorded),
        tuple(unknown),
        tuple(made),
        _twins(results, [*unrecorded, *unknown, *made]),
        recorded,
    )


def mixes_modes(module: fx.GraphModule, records: bool) -> str:
    """Return why a captured graph has to run in eager for what it does in inference mode."""
    if not has_regions(module):
        return ""
    inner = [m for m in module.modules() if isinstance(m, fx.GraphModule) and m is not module]
    if any(has_regions(each) for each in inner):
        return "inference mode changes within an operator that has a graph of its own"
    made = _made_in_inference_mode(module, records)
    for node, modes, on in walk(module.graph, records):
        if modes and modes[-1]:
            if on:
                return "autograd is switched on in inference mode, which records nothing"
            continue
        given = [v for each in node.all_input_nodes for v in tensors_of(each)]
        if node.op == "output" or not any(storage_of(v) in made for v in given):
            continue
        # Eager raises where autograd would save it, and where it is updated.
        if any(map(_has_history, tensors_of(node))) or may_write(node):
            return "what was made in inference mode is used where autograd may not save it"
    return ""


def loses_hooks(module: fx.GraphModule, records: bool) -> str:
    """Return why a captured graph has to run in eager for the hooks that it puts on values.

    Before ``register_hook`` was an operator, TorchDynamo made a function of autograd's of a hook;
    beside a view without a history of the same value, AOTAutograd drops that function.  Views that
    are returned it makes anew of what they are views of: beside the hook, whatever that is on.
    """
    hooks = [n for n in module.graph.nodes if any(name in str(n.target) for name in _HOOKS)]
    hooks = [n for n in hooks if n.op == "call_function"]
    if not hooks:
        return ""
    if records and result_modes(module, records).unrecorded:
        return "AOTAutograd would lose a hook beside a view without a history"
    hooked = {storage_of(v) for n in hooks for each in n.all_input_nodes for v in tensors_of(each)}
    results = list({id(v): v for v in results_of(module).values()}.values())
    memory = [storage_of(v) for v in results]
    own = {id(v) for n in hooks for v in tensors_of(n)}
    inputs = {
        storage_of(v) for n in module.graph.find_nodes(op="placeholder") for v in tensors_of(n)
    }
    # what the hook itself gives, of a value that nothing else is returned of, is no other view
    views = [
        v
        for v, place in zip(results, memory, strict=True)
        if v.requires_grad
        and v._is_view()
        and not (id(v) in own and place not in inputs and memory.count(place) == 1)
    ]
    if any(storage_of(view) in hooked for view in views):
        return "AOTAutograd would lose a hook on what a view is returned of"
    return ""


def drops_leaves(module: fx.GraphModule) -> str:
    """Return why a captured graph has to run in eager for what it lets want gradients.

    AOTAutograd drops ``requires_grad_()`` of a tensor that is made within.  TorchDynamo ends the
    graph before it where such a tensor, or what depends on it, is returned, but does not know that
    another value may be that tensor: ``float()`` of a float.
    """
    tainted: set[fx.Node] = set()
    leaves: set[int] = set()
    for node in module.graph.find_nodes(op="call_method", target="requires_grad_"):
        given = node.args[0]
        if isinstance(given, fx.Node) and given.op != "placeholder":
            leaves |= {id(value) for value in tensors_of(given)}
    if not leaves:
        return ""
    for node in module.graph.nodes:
        is_leaf = any(id(value) in leaves for value in tensors_of(node))
        if is_leaf or any(each in tainted for each in node.all_input_nodes):
            tainted.add(node)
    (output,) = module.graph.find_nodes(op="output")
    for node in output.all_input_nodes:
        if node in tainted and any(value.requires_grad for value in tensors_of(node)):
            return "AOTAutograd would drop requires_grad_() of a tensor that is made within"
    return ""


def lets_gradients_through(module: fx.GraphModule) -> str:
    """Return why a captured graph has to run in eager for a view of a view without a history.

    The history of such a result begins at the view that was made under ``no_grad``.  AOTAutograd
    makes the result anew of what both are views of, to which its gradient then flows.
    """
    made = [v for n in module.graph.nodes if n.op != "placeholder" for v in tensors_of(n)]
    if any(v._is_view() and v.requires_grad and not _has_history(v) for v in made):
        results = [v for v in results_of(module).values() if v._is_view() and _has_history(v)]
        if not all(_reaches_a_leaf(each) for each in results):
            return "AOTAutograd would let a gradient through a view without a history"
    return ""


def _reaches_a_leaf(value: torch.Tensor) -> bool:
    """Whether there is anything to which the gradient of a fake tensor flows."""
    seen, waiting = set(), [value.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        if getattr(function, "variable", None) is not None:
            return True
        seen.add(function)
        waiting += [each for each, _ in function.next_functions]
    return False


def _twins(results: dict[int, torch.Tensor], remade: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return those of the results that are made anew that are another one, which comes first.

    Args:
        results: As fake tensors, in which what is one tensor is one.
        remade: What is to be done about.  AOTAutograd makes all views anew.
    """
    first: dict[int, int] = {}
    found = []
    for position in sorted({*remade, *(i for i, each in results.items() if each._is_view())}):
        kept = first.setdefault(id(results[position]), position)
        if kept != position:
            found.append((position, kept))
    return tuple(found)


def _views_with_hooks(module: fx.GraphModule, records: bool) -> set[int]:
    """Return the views that TorchDynamo makes of a value for a hook that is put on it later.

    Their fake tensors have no history where the hook is put on under ``no_grad``; the graph says
    that it is on where they are made.
    """
    return {
        id(value)
        for node, _, on in walk(module.graph, records)
        if on and node.op == "call_method" and node.target == "view_as"
        for value in tensors_of(node)
        if value.requires_grad
    }


def results_of(module: fx.GraphModule) -> dict[int, torch.Tensor]:
    """Return the results that are plain tensors, as fake ones, but for inputs."""
    (output,) = module.graph.find_nodes(op="output")
    values = output.args[0] if isinstance(output.args[0], (tuple, list)) else ()
    found: dict[int, torch.Tensor] = {}
    for position, node in enumerate(values):
        value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor) or _is_opaque(value):
            continue
        if isinstance(node, fx.Node) and node.op != "placeholder":
            found[position] = value
    return found


def tensors_of(node: fx.Node) -> Iterator[torch.Tensor]:
    """Yield what a node of a captured graph stands for, as fake tensors."""
    for value in pytree.tree_leaves(node.meta.get("example_value")):
        if isinstance(value, torch.Tensor) and not _is_opaque(value):
            yield value


def _is_opaque(value: torch.Tensor) -> bool:
    """Whether it is no view of a stretch of memory: wrappers and sparse tensors."""
    return value.layout is not torch.strided or not hasattr(value, "fake_device")


def _views_without_history(module: fx.GraphModule) -> tuple[set[int], bool]:
    """Return what autograd knows, and whether what it does not know is a view of the same.

    Returns:
        The tensors that need gradients and what they are views of; whether there is a view of
        these that does not need one: of a leaf, say, that is a view of a constant.
    """
    views, bases = [], set[int]()
    for node in module.graph.nodes:
        for value in tensors_of(node):
            base = value._base if value._is_view() else None
            if value.requires_grad:
                bases |= {id(value)} | ({id(base)} if base is not None else set())
            elif base is not None:
                views.append(id(base))
    return bases, any(base in bases for base in views)


def _is_lost(value: torch.Tensor, bases: set[int]) -> bool:
    """Whether a result is a view that was made where nothing was recorded."""
    return (
        value._is_view()
        and not _has_history(value)
        and (value.requires_grad or id(value._base) in bases)
    )


# What TorchDynamo makes of a hook that is put on a value.
_HOOKS = ("autograd_function_apply", "register_hook")
# Whether a tensor has a history; None where torch fails to say.  It is asked once: an assertion
# that fails takes it away.
_HISTORIES = WeakTensorKeyDictionary()


class UnknownHistory(Exception):
    """torch fails to say what a tensor was made by."""


def history(value: torch.Tensor) -> Any:
    """Return the function of autograd's that a fake tensor was made by; None if there is none.

    Raises:
        UnknownHistory: torch fails to say.
    """
    if not _has_history(value):
        return None
    if _HISTORIES[value] is None:
        raise UnknownHistory
    return value.grad_fn


def _has_history(value: torch.Tensor) -> bool:
    """Whether autograd knows how a fake tensor came to be.

    A view of what needs gradients makes its history anew when it is asked for and another view has
    updated its memory; torch fails an assertion of its own there for some fake tensors.
    """
    if value not in _HISTORIES:
        wants_gradients = value.requires_grad
        try:
            _HISTORIES[value] = value.grad_fn is not None
        except RuntimeError:
            _HISTORIES[value] = None
            value.requires_grad_(wants_gradients)  # others ask for it, too
    return _HISTORIES[value] is not False


def storage_of(value: torch.Tensor) -> int:
    """Return what is the same number for all tensors of the same memory."""
    return int(value.untyped_storage()._cdata)


def _made_in_inference_mode(module: fx.GraphModule, records: bool) -> set[int]:
    """Return the storages that come to be in a block of inference mode."""
    seen, found = set[int](), set[int]()
    if not any(name_of(node) == ENTER for node in module.graph.nodes):
        return found
    for node, modes, _ in walk(module.graph, records):
        for value in tensors_of(node):
            storage = storage_of(value)
            if storage not in seen and modes and modes[-1]:
                found.add(storage)
            seen.add(storage)
    return found


def may_write(node: fx.Node) -> bool:
    """Whether a node of a captured graph may update what it is given, by its name."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in _WRITES or "out" in node.kwargs


__all__ = [
    "ResultModes",
    "UnknownHistory",
    "drops_leaves",
    "history",
    "lets_gradients_through",
    "loses_hooks",
    "may_write",
    "mixes_modes",
    "result_modes",
    "results_of",
    "storage_of",
    "tensors_of",
]
