"""Attention whose functions capture a number that changes from call to call.

TorchDynamo makes a float64 tensor of such a number, and knows the number that is in it.  Two things
in torch's ``flex_attention`` do not take it, and the call is not captured at all:

- torch 2.11 hands the number itself on to the function, which may be given tensors and integers
  alone: it is handed the tensor here, and reads it, as later releases have it;
- the function's gradient is traced with a copy of the tensor, of which nobody knows the number
  (``Data dependent operator``): there it may be any, which is what a kernel takes it for.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

_MODULE, _TRACES = "torch._higher_order_ops.flex_attention", "create_fw_bw_graph"
_EXAMPLE = "example_value"


@functools.cache
def install() -> None:
    """Let attention with captured numbers be traced; once."""
    from torch._dynamo.variables import higher_order_ops

    module = importlib.import_module(_MODULE)
    traces: Any = getattr(module, _TRACES, None)
    if traces is not None:  # else this torch traces it elsewhere
        setattr(module, _TRACES, _of_any_number(traces))
    variable: Any = getattr(higher_order_ops, "FlexAttentionHigherOrderVariable", None)
    wraps: Any = getattr(variable, "create_wrapped_node", None)
    if wraps is not None:
        variable.create_wrapped_node = _given_tensors(wraps)


def _of_any_number(original: Any) -> Any:
    """Return what traces a function's gradient, for whatever the tensors of numbers hold."""

    @functools.wraps(original)
    def trace(score_mod: Any, index_values: Any, other_buffers: Any) -> Any:
        mode = detect_fake_mode(index_values)
        shapes = None if mode is None else mode.shape_env
        if shapes is None:
            return original(score_mod, index_values, other_buffers)
        before = shapes.settings
        shapes.settings = replace(before, allow_scalar_outputs=True)
        try:
            with shapes.ignore_fresh_unbacked_symbols():
                return original(score_mod, index_values, other_buffers)
        finally:
            shapes.settings = before

    return trace


def _given_tensors(original: Any) -> Any:
    """Return what traces a function of attention, which then reads its numbers from tensors."""

    @functools.wraps(original)
    def trace(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        function, captured = original(self, tx, *args, **kwargs)
        if not any(_is_read(each.node) for each in captured):
            return function, captured
        module = tx.output.nn_modules[function.node.target]
        given = module.graph.find_nodes(op="placeholder")[-len(captured) :]
        tensors = []
        for proxy, placeholder in zip(captured, given, strict=True):
            if _is_read(proxy.node):
                tensor = proxy.node.args[0]
                _read(module.graph, placeholder, tensor.meta[_EXAMPLE])
                proxy = fx.Proxy(tensor, proxy.tracer)
            tensors.append(proxy)
        module.recompile()
        return function, tuple(tensors)

    return trace


def _is_read(node: fx.Node) -> bool:
    """Whether a captured value is the number that a tensor holds."""
    is_number = isinstance(node.meta.get(_EXAMPLE), torch.SymFloat)
    return is_number and node.op == "call_method" and node.target == "item"


def _read(graph: fx.Graph, placeholder: fx.Node, tensor: torch.Tensor) -> None:
    """Have a function read a number of a tensor that it is given instead."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        number = graph.call_method("item", (placeholder,))
    number.meta[_EXAMPLE], placeholder.meta[_EXAMPLE] = placeholder.meta.get(_EXAMPLE), tensor
    placeholder.replace_all_uses_with(number, delete_user_cb=lambda user: user is not number)
    placeholder.type = torch.Tensor


__all__ = ["install"]
