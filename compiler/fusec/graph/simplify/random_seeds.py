"""Random operators become functions of a seed: see ``fusec.random``."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.graph.facts.element_strides import has_few
from fusec.graph.facts.insertion import NOTES
from fusec.random import RULES, Source, may_replace, random_seed


def replace_random(module: fx.GraphModule) -> int:
    """Replace the random operators of a functional graph, in place; return how many.

    The seed is drawn in front of the first of them, so that torch's generators are asked in the
    graph's own order.
    """
    nodes = [
        node
        for node in module.graph.nodes
        if node.op == "call_function"
        and may_replace(node.target, node.meta.get("val"), node.kwargs)
    ]
    if not nodes:
        return 0
    replaced = 0
    seeds: dict[torch.device, fx.Node] = {}
    current = nodes[0]

    def seed(device: torch.device) -> fx.Node:
        if device not in seeds:
            seeds[device] = call(random_seed, device)
        return seeds[device]

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        args = fx.node.map_aggregate(args, lambda value: _as_node(current, value))
        made = module.graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        fake = detect_fake_mode([n.meta.get("val") for n in nodes])
        assert fake is not None
        with fake:
            made.meta["val"] = target(*values[0], **values[1])
        for key in NOTES:
            if key in current.meta and target is not random_seed:
                made.meta[key] = current.meta[key]
        # What it is a part of: kernels are called what was called.
        made.meta["original_aten"] = current.meta.get("original_aten", current.target)
        for key in ("source_fn_stack", "fwd_source_fn_stack"):
            if key in current.meta:
                made.meta[key] = current.meta[key]
        return made

    source = Source(seed, call)
    for node in nodes:
        current = node
        value = node.meta["val"]
        several = isinstance(value, (tuple, list))
        first = value[0] if several else value
        with module.graph.inserting_before(node):
            result = RULES[node.target](source, first, *node.args)
        if result is NotImplemented:
            continue
        replaced += 1
        if several:
            for user in list(node.users):
                assert user.target is operator.getitem
                user.replace_all_uses_with(result[user.args[1]])
                module.graph.erase_node(user)
        else:
            if has_few(first):
                result.meta["val"] = first  # its strides are eager's
            node.replace_all_uses_with(result)
        module.graph.erase_node(node)
    module.recompile()
    return replaced


def _as_node(current: fx.Node, value: Any) -> Any:
    """Return a symbolic size as a node in front of ``current``; anything else as it is."""
    if not _is_symbolic(value):
        return value
    for node in itertools.takewhile(lambda node: node is not current, current.graph.nodes):
        known: Any = node.meta.get("val")
        if _is_symbolic(known) and known.node.expr == value.node.expr:
            return node
        shape: Any = known.shape if isinstance(known, torch.Tensor) else ()
        for dim, size in enumerate(shape):
            if _is_symbolic(size) and size.node.expr == value.node.expr:
                made = current.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                made.meta["val"] = size
                return made
    raise AssertionError(f"{value} is not a size of anything before {current}")


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt)


__all__ = ["replace_random"]
