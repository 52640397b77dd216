"""``one_hot`` of a class that is not there, which torch 2.11 does not see in tracing."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.devices import CPU
from fusec.graph.refusals.values import within

_MESSAGE = "Class values must be non-negative and smaller than num_classes."


def check_classes(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph in which ``one_hot`` takes no class that is not there."""
    if not any(map(_is_unchecked, module.graph.nodes)):
        return module
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for node in filter(_is_unchecked, list(changed.graph.nodes)):
        x, classes = node.args[0], _classes(node)
        with changed.graph.inserting_before(node):
            checked = changed.graph.call_function(within, (x, 0, classes - 1, _MESSAGE))
        checked.meta = dict(x.meta)
        node.args = (checked, *node.args[1:])
    changed.recompile()
    return changed


def _is_unchecked(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is not F.one_hot or not node.args:
        return False
    classes = _classes(node)
    return type(classes) is int and classes > 0 and not _checks()


def _classes(node: fx.Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("num_classes")


@functools.cache
def _checks() -> bool:
    """Whether tracing leaves a check of classes in the graph."""
    with unset_fake_temporarily(), torch.device(CPU):
        traced = make_fx(lambda x: F.one_hot(x, 2), tracing_mode="fake")(torch.tensor([0, 1]))
    return any("assert" in str(node.target) for node in traced.graph.nodes)


__all__ = ["check_classes"]
