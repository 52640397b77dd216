"""What a node of a graph is called for people: the user's variable, module or parameter.

TorchDynamo calls what it traces as the code calls it. Where that code is torch's own
(``input = module(input)`` in a ``Sequential``) the module's place says more: ``stack_0``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx

from fusec.lower.values import Lowering, TensorValue

_ATTRIBUTE = "getattr"  # what TorchDynamo calls ``x.real``, which is nobody's variable
NAMED = "fusec_name"  # in a node's meta: what it is called, where that is known better

# What a call of several results calls those after the first.
_PARTS = {
    "native_layer_norm": ("", "mean", "rstd"),
    "native_group_norm": ("", "mean", "rstd"),
    "native_batch_norm": ("", "mean", "rstd"),
    "_native_batch_norm_legit": ("", "mean", "rstd"),
    "_native_batch_norm_legit_functional": ("", "mean", "rstd"),
    "var_mean": ("var", "mean"),
    "max": ("", "indices"),
    "min": ("", "indices"),
    "topk": ("", "indices"),
    "sort": ("", "indices"),
}
VIEWS = frozenset("view _unsafe_view reshape t transpose permute squeeze unsqueeze alias".split())
_FX_CUTS = re.compile("[^0-9a-zA-Z_]+")
_PLACES = frozenset("L G self fn _modules _orig_mod".split())
_STACKS = ("nn_module_stack", "fwd_nn_module_stack")


def readable(node: fx.Node) -> str:
    """Return a name for people: the user's variable where torch kept it."""
    desc = node.meta.get("desc")
    if node.op == "placeholder":
        fqn = getattr(getattr(desc, "wrapped", desc), "fqn", None)
        if isinstance(fqn, str):
            return _local_name(fqn)
    known = node.meta.get(NAMED)
    if isinstance(known, str):
        return known
    # A user's assignment names the node that TorchDynamo traced; this is (a part of) that node.
    origins = node.meta.get("from_node")
    origin = origins[-1] if origins else None
    traced = getattr(origin, "name", None)
    if not isinstance(traced, str):
        return node.name if node.op == "placeholder" else _without_overload(_plain(node.name))
    if _plain(traced) == _ATTRIBUTE and node.args and isinstance(node.args[0], fx.Node):
        return readable(node.args[0])  # a view of it: ``x.real`` lies in ``x``
    part = _part(node, origin)
    name = _called(_plain(traced), node)
    return f"{name}_{part}" if part else name


def traced_name(node: fx.Node) -> str:
    """Return what a node of TorchDynamo's own graph is called."""
    if node.target is getattr and len(node.args) > 1:
        return str(node.args[1])
    return _called(_plain(node.name), node)


def _called(name: str, node: fx.Node) -> str:
    """Return a traced name, or the module's that a ``Sequential`` called it for."""
    if name != "input":
        return in_full(name, node)
    for key in _STACKS:
        modules = list((node.meta.get(key) or {}).values())
        if any(_is_sequential(kind) for _, kind in modules):
            return module_name(str(modules[-1][0]), modules[-1][1])
    return name


def in_full(name: str, node: fx.Node) -> str:
    """Return a name that torch.fx has cut to ASCII as the user's line has it: ``β`` for ``_``."""
    if "_" not in name:
        return name
    frame = str(node.meta.get("stack_trace") or "").rpartition("  File ")[2].split("\n")
    line = frame[1] if len(frame) > 1 else ""  # below it torch may have marks of its own
    words = (word for word in re.findall(r"[^\W\d]\w*", line) if not word.isascii())
    return next((word for word in words if _FX_CUTS.sub("_", word) == name), name)


def _is_sequential(kind: object) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, torch.nn.Sequential)
    return str(kind).endswith("Sequential")


def module_name(path: str, kind: object) -> str:
    """Return ``stack_0`` for ``L['self'].stack.0``; the class where the path is numbers alone."""
    found = re.findall(r"[^\W\d]\w*|\d+", path)
    words = [w for w in found if w not in _PLACES]
    last: list[str] = []
    for word in reversed(words):
        last.insert(0, word)
        if not word.isdigit():
            return "_".join(last)
    kind = kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]
    snake = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", kind).lower()
    return "_".join([snake, *last])


def _part(node: fx.Node, origin: object) -> str:
    """Return which result of a call of several this is; empty for the first."""
    if "norm" in str(getattr(origin, "target", "")):
        while _name(node.target) in VIEWS and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        if _name(node.target) == "rsqrt":
            return "rstd"
    if node.target is not operator.getitem:
        return ""
    call, position = node.args
    return part_of(getattr(call, "target", None), position)


def part_of(target: object, position: object) -> str:
    """Return what a result of an operator is called beside its first; empty for that."""
    names = _PARTS.get(_name(target), ())
    return names[position] if isinstance(position, int) and position < len(names) else ""


def _name(target: object) -> str:
    """Return an ATen operator's name without its overload, and nothing for anything else."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    return target._schema.name.partition("::")[2]


def _plain(name: str) -> str:
    return re.sub(r"_(\d+)$", "", name)


def _without_overload(name: str) -> str:
    """Return ``linear`` for ``_linear_pointwise_default``, as torch.fx calls what passes make."""
    return re.sub(r"(_pointwise)?_default$", "", name).strip("_") or name


def _local_name(source: str) -> str:
    words = re.findall(r"[^\W\d]\w*", source)
    words = [w for w in words if w not in ("L", "self", "_parameters", "_buffers", "_modules")]
    return "_".join(words) if words else "x"


def name_parts(lowering: Lowering, target: object, results: Sequence[object]) -> None:
    """Tell apart by name what a call of several results has just made: a norm's mean."""
    for position, value in enumerate(results):
        part = part_of(target, position)
        if part and isinstance(value, TensorValue) and value.ref is not None:
            buffer = lowering.buffers[value.ref.buffer]
            if buffer.hint == lowering.hint:
                named = replace(buffer, hint=f"{buffer.hint}_{part}")
                lowering.buffers[buffer.name] = named


__all__ = [
    "NAMED",
    "VIEWS",
    "in_full",
    "module_name",
    "name_parts",
    "part_of",
    "readable",
    "traced_name",
]
