"""What a graph must satisfy after each pass: it hangs together, and says the truth of its values.

Every node carries what torch traced of its result (``meta["val"]``); the stages after the graph
rely on it.  So each operator is asked again, on the fake tensors of its arguments, and what it says
is compared: a pass that puts another operator in place, or changes an argument, cannot forget it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.ir.body_verifier import Problem

TOKEN = "tangents_token"


def graph_problems(module: fx.GraphModule) -> list[Problem]:
    """Return what is wrong with a functional graph of ATen operators."""
    found = list(_structure(module))
    return found or list(_values(module))


def _structure(module: fx.GraphModule) -> Iterator[Problem]:
    try:
        module.graph.lint()
    except RuntimeError as error:
        yield Problem("broken_graph", "graph", str(error).splitlines()[0])
        return
    outputs = [node for node in module.graph.nodes if node.op == "output"]
    if len(outputs) != 1:
        yield Problem("outputs", "graph", f"there are {len(outputs)} output nodes")
    computed = False
    for node in module.graph.nodes:
        computed |= node.op in ("call_function", "output")
        # AOTAutograd puts the token of an effect in backward where it is first used.
        if node.op == "placeholder" and computed and not node.name.startswith(TOKEN):
            yield Problem("late_input", node.name, "an input stands after what is computed")
        if node.op in ("call_method", "call_module"):
            yield Problem("node_kind", node.name, f"{node.op} is not what a functional graph has")
        if node.op == "call_function" and node.users and "val" not in node.meta:
            yield Problem("no_value", node.name, "nothing is known of its value")


def _values(module: fx.GraphModule) -> Iterator[Problem]:
    known = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    fake = detect_fake_mode(known)
    if fake is None:
        return
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if _depends_on_values(node) or not _has_tensors(node.meta.get("val")):
            continue
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
        try:
            with fake:
                again = node.target(*arguments[0], **arguments[1])
        except Exception as error:
            # what torch cannot say without the values, or on symbols, is not for us to judge
            if isinstance(error, (TypeError, ValueError, IndexError)) or _is_shape_error(error):
                text = f"{node.target} refuses its arguments: {str(error).splitlines()[0]}"
                yield Problem("refused", node.name, text)
            continue
        yield from _compared(node, again)


def _compared(node: fx.Node, again: Any) -> Iterator[Problem]:
    said = node.meta["val"]
    several = isinstance(said, (tuple, list))
    pairs = zip(said, again, strict=False) if several else [(said, again)]
    for mine, theirs in pairs:
        if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            continue
        if mine.dtype != theirs.dtype:
            text = f"{node.target} gives {theirs.dtype}, the graph says {mine.dtype}"
            yield Problem("value_dtype", node.name, text)
        elif not _same_shape(mine, theirs):
            text = f"{node.target} gives {list(theirs.shape)}, the graph says {list(mine.shape)}"
            yield Problem("value_shape", node.name, text)
        elif mine.device != theirs.device:
            text = f"{node.target} gives {theirs.device}, the graph says {mine.device}"
            yield Problem("value_device", node.name, text)


def _same_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dim() != b.dim():
        return False
    pairs = list(zip(a.shape, b.shape, strict=True))
    return all(not (isinstance(m, int) and isinstance(n, int)) or m == n for m, n in pairs)


def _depends_on_values(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def _has_tensors(value: Any) -> bool:
    several = isinstance(value, (tuple, list))
    return any(isinstance(each, torch.Tensor) for each in (value if several else (value,)))


def _is_shape_error(error: Exception) -> bool:
    text = str(error)  # torch raises RuntimeError for these as for all else
    said = ("shape", "size of tensor", "dimension", "reduction dim", "must match")
    return any(word in text for word in said)


__all__ = ["graph_problems"]
