"""The inputs of a captured graph: what the user calls them, and which of them it updates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fusec.lower.names import NAMED, VIEWS, readable, traced_name

# What changes whether operators are recorded for autograd, in a captured graph.
_MODES_OF_GRADIENTS = frozenset({"_set_grad_enabled", "_enter_inference_mode"})
# Where a graph has what an optimizer updates.
_PARAMETER = re.compile(r"___param_groups_\d+__params___\d+$")
_STATE = re.compile(r"^self___state_")
# What sources say of where things are kept; ``fn`` is what a module is called by what wraps it.
_PLUMBING = frozenset("L G self fn _parameters _buffers _modules _orig_mod forward".split())


Names = dict[int | str, str]


def input_names(module: fx.GraphModule) -> Names:
    """Return the user's own name of each graph input, by position.

    What an optimizer updates is no input to TorchDynamo: it is named by where the graph has it.
    """
    names: Names = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        text = _source(node)
        names[position] = plain_name(text) if text else node.name
    for node in module.graph.find_nodes(op="get_attr"):
        if _PARAMETER.search(node.target):
            names[node.target] = "param"
        elif _STATE.search(node.target):
            names[node.target] = re.sub(r"_\d+$", "", node.name)
    return names


def input_sources(module: fx.GraphModule) -> dict[int, str]:
    """Return where each graph input was found, in torch's words, by position."""
    found = map(_source, module.graph.find_nodes(op="placeholder"))
    return {position: text for position, text in enumerate(found) if text}


def _source(node: fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", None)
    text = name() if callable(name) else name
    return text if isinstance(text, str) else ""


def plain_name(source: str) -> str:
    """Return ``mlp_weight`` for ``L['self']._modules['mlp']._parameters['weight']``.

    What is numbered in between is told apart by its number: ``mlp_2_weight`` of a Sequential.
    """
    found = re.findall(r"[^\W\d]\w*|(?<=')\d+(?=')", source)
    words = [word for word in found if word not in _PLUMBING]
    while words and words[-1].isdigit():
        words.pop()
    last = words[-1:]
    for word in reversed(words[:-1]):
        last.insert(0, word)
        if not word.isdigit():
            break
    if last and last[0].isdigit():  # of a Sequential that is compiled itself
        last = last[-1:] + last[:-1]
    return "_".join(last) if last not in ([], ["args"]) else "x"


def updated_inputs(module: fx.GraphModule) -> tuple[str, ...]:
    """Return the inputs that AOTAutograd copies the first outputs into, by AOTAutograd's notes."""
    given: dict[Any, list[str]] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        if node.meta.get("desc") is not None:
            given.setdefault(node.meta["desc"], []).append(node.name)
    found: list[str] = []
    (output,) = module.graph.find_nodes(op="output")
    for note in output.meta.get("desc") or ():
        name = given.get(getattr(note, "mutated_input", None), ())
        if len(name) != 1:
            break  # they come first
        found.append(name[0])
    return tuple(found)


def needs_eager(module: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Return why a graph cannot be compiled for its example inputs; TorchDynamo guards on it."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    for value in tensors:
        if torch._is_functional_tensor(value):
            return "an input is a functional tensor, which AOTAutograd does not take"
        if value.is_neg() or value.is_conj():
            how = "conjugated" if value.is_conj() else "negated"
            return f"an input is a {how} view, whose memory holds other numbers than it stands for"
    if any(value.is_inference() for value in tensors):
        # What forward keeps for backward is not what eager does, which may keep a copy.
        if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
            return "an input was made in inference mode, and autograd may not save it"
        # AOTAutograd fails, and leaves torch unable to run anything any more.
        called = {getattr(node.target, "__name__", "") for node in module.graph.nodes}
        if called & _MODES_OF_GRADIENTS:
            return "an input was made in inference mode, and the graph changes the mode"
    if any(getattr(node.target, "namespace", "") == "streams" for node in module.graph.nodes):
        # They are ordered by side effects alone, which no kernel that fuses over them would keep.
        return "it computes on more than one stream"
    return _unlike_memory(module, tensors)


def _unlike_memory(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> str:
    """Return which tensors of a graph no kernel can write: negated views, and some of no memory."""
    (output,) = module.graph.find_nodes(op="output")
    results = [node.meta.get("example_value") for node in output.all_input_nodes]
    if any(isinstance(value, torch.Tensor) and value.is_neg() for value in results):
        return "a result is a negated view, whose memory holds other numbers than it stands for"
    made = [node.meta.get("example_value") for node in module.graph.nodes]
    tensors = (*inputs, *(value for value in made if isinstance(value, torch.Tensor)))
    if any(value.device.type == "meta" for value in tensors):
        return "a tensor on the meta device has no memory"
    return ""


def has_subclasses(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd takes inputs or results of a captured graph apart: they are wrappers."""
    (output,) = module.graph.find_nodes(op="output")
    results = [node.meta.get("example_value") for node in output.all_input_nodes]
    return any(is_traceable_wrapper_subclass(value) for value in (*inputs, *results))


def has_gaps(value: object) -> bool:
    """Whether a tensor's elements do not fill a stretch of memory, each once."""
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return False
    return torch.empty_like(value, device="meta").stride() != value.stride()


def name_inputs(module: fx.GraphModule, names: Names) -> None:
    """Note the user's names, as ``input_names`` found them, in a graph of AOTAutograd's."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        desc = node.meta.get("desc")
        place = getattr(desc, "idx", getattr(desc, "target", None))
        if place is None and len(placeholders) == len(names):
            place = position
        if place in names:
            node.meta[NAMED] = names[place]


def name_gradients(
    module: fx.GraphModule,
    names: Names,
    results: Sequence[str | None],
    saved: Mapping[str, str],
) -> None:
    """Note the user's names in a backward graph: of inputs, and gradients by what they are of.

    Args:
        module: The graph; its notes of what each value is are AOTAutograd's.
        names: As ``input_names`` found them.
        results: What the user calls each result of the forward graph.
        saved: As ``saved_names`` found them.
    """
    for node in module.graph.find_nodes(op="placeholder"):
        desc = node.meta.get("desc")
        number = getattr(desc, "idx", None)
        of = getattr(getattr(desc, "output", None), "idx", None)
        if type(desc).__name__ == "TangentAOTInput" and isinstance(of, int) and of < len(results):
            node.meta[NAMED] = f"grad_{results[of] or 'output'}"
        elif type(desc).__name__ == "PlainAOTInput" and number in names:
            node.meta[NAMED] = names[number]
        elif node.name in saved:
            node.meta[NAMED] = saved[node.name]
    (output,) = module.graph.find_nodes(op="output")
    values = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    for value, desc in zip(values, output.meta.get("desc") or (), strict=False):
        number = getattr(getattr(desc, "grad_of", None), "idx", None)
        if isinstance(value, fx.Node) and value.op == "call_function" and number in names:
            _pass_on(value, f"grad_{names[number]}")


def _pass_on(node: fx.Node, name: str) -> None:
    """Note a name of a value, and of what it is a view of and nobody else reads."""
    while node.op == "call_function":
        node.meta.setdefault(NAMED, name)
        schema = getattr(node.target, "_schema", None)
        source = node.args[0] if node.args else None
        if schema is None or not isinstance(source, fx.Node) or len(source.users) > 1:
            return
        if schema.name.partition("::")[2] not in VIEWS:
            return
        node = source


def saved_names(module: fx.GraphModule) -> dict[str, str]:
    """Return what is called what of the results of a forward graph, by the graph's own names."""
    (output,) = module.graph.find_nodes(op="output")
    return {node.name: readable(node) for node in output.all_input_nodes}


def result_names(module: fx.GraphModule) -> list[str | None]:
    """Return what the user calls each result of a captured graph; None where nobody knows."""
    (output,) = module.graph.find_nodes(op="output")
    values = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    return [traced_name(v) if isinstance(v, fx.Node) else None for v in values]


__all__ = [
    "Names",
    "has_subclasses",
    "input_names",
    "input_sources",
    "name_gradients",
    "name_inputs",
    "needs_eager",
    "plain_name",
    "result_names",
    "saved_names",
    "updated_inputs",
]
