"""Calls of tensors' methods that TorchDynamo gets wrong, whichever backend is asked.

It takes some apart, although eager refuses them as a whole.
``addcdiv`` of integers is an error in eager; TorchDynamo writes a division, a product and a sum in
its place, each of which is fine.  It does so to keep a factor that is a tensor from breaking the
graph.  Of integers such a call is left whole, so that fake tensors refuse it, or
``graph/refusals/calls.py``.  They do for whichever backend is asked; no call of other types, and
none that eager computes but ``addcmul_`` of integers, is captured in another way.

``torch._foreach_lerp_`` becomes a difference of all and updates after it.  Of tensors that update
one another, as in ``([a, b], [b, a], 0.5)``, it is left whole: such graphs run in eager.

After ``y.t_()`` it goes on with the shape and the strides that ``y`` had before: ``y.shape`` was
wrong, and whatever was made of it.  They are looked up again.

Before ``register_hook`` was an operator, a hook put under ``no_grad`` on a value that is made
within the graph was forgotten: gradients are recorded while it makes something of the hook.  A hook
on an input by another name, as ``x.float()`` of a float is one, is put on the input.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

_METHODS = ("addcdiv_", "addcmul_")
# What gives a tensor another shape, or other strides, in place.
_RESHAPES = frozenset(
    "as_strided_ swapaxes_ swapdims_ squeeze_ t_ transpose_ unsqueeze_ resize_ resize_as_".split()
)


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once; a release that takes nothing apart is left alone."""
    from torch._dynamo.variables.tensor import TensorVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers: Any = getattr(TorchInGraphFunctionVariable, "_get_handlers", dict)()
    if torch.addcdiv in handlers:
        handlers[torch.addcdiv] = _unless_integers(handlers[torch.addcdiv], 3)
    if torch._foreach_lerp_ in handlers:
        handlers[torch._foreach_lerp_] = _unless_shared(handlers[torch._foreach_lerp_])
    for name in _METHODS:
        method: Any = getattr(TensorVariable, f"method_{name}", None)
        if method is not None:
            setattr(TensorVariable, f"method_{name}", _unless_integers(method, 2))
    handles: Any = TensorVariable.call_method
    TensorVariable.call_method = _and_looks_again(handles)  # type: ignore[method-assign]
    puts_on: Any = TensorVariable._method_register_hook
    if importlib.util.find_spec("torch._higher_order_ops.register_hook") is None:
        puts_on = _recorded(puts_on)
    TensorVariable._method_register_hook = _on_the_input(puts_on)  # type: ignore[method-assign]


def _and_looks_again(call_method: Callable[..., Any]) -> Callable[..., Any]:
    """Return TorchDynamo's handler of methods, after which a tensor has the shape that it got."""

    @functools.wraps(call_method)
    def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        result = call_method(self, tx, name, *args, **kwargs)
        if name not in _RESHAPES:
            return result
        self.synchronize_attributes(tx)
        return self  # as eager does; the result would be known by itself, and its shape as well

    return call


def _recorded(register_hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return TorchDynamo's handler of hooks, which has one recorded wherever it is put on."""

    @functools.wraps(register_hook)
    def handle(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.source or not self.requires_grad or torch.is_grad_enabled():
            return register_hook(self, *args, **kwargs)
        # what it makes of the hook stands right behind the value, where gradients are recorded
        with torch.inference_mode(False), torch.enable_grad():
            return register_hook(self, *args, **kwargs)

    return handle


def _on_the_input(register_hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return TorchDynamo's handler of hooks, which knows an input by another name."""

    @functools.wraps(register_hook)
    def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.source:
            value = self.as_proxy().node.meta.get("example_value")
            for each in tx.output.input_source_to_var.values():
                given = getattr(each, "proxy", None)
                known = given is not None and given.node.meta.get("example_value") is value
                if known and value is not None and each.source:
                    return register_hook(each, tx, *args, **kwargs)
        return register_hook(self, tx, *args, **kwargs)

    return handle


def _unless_shared(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that leaves a call whole where what is updated is also read."""

    @functools.wraps(decompose)
    def handle(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            updated, read = map(_storages, args[:2])
            if len(set(updated)) < len(updated) or not set(updated).isdisjoint(read):
                return None
        return decompose(variable, tx, *args, **kwargs)

    return handle


def _storages(tensors: Any) -> list[int]:
    """Return the storages of a list of tensors, as far as TorchDynamo knows them."""
    found = []
    for each in getattr(tensors, "items", ()):
        each = each.realize()
        proxy = getattr(each, "proxy", None)
        value = None if proxy is None else proxy.node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            found.append(value.untyped_storage()._cdata)
    return found


def _unless_integers(decompose: Callable[..., Any], factors: int) -> Callable[..., Any]:
    """Return a handler that leaves a call whole, which None says, where it is of integers.

    Args:
        decompose: TorchDynamo's.
        factors: Which of its arguments is the first of the two that are multiplied or divided.
    """

    @functools.wraps(decompose)
    def handle(*args: Any, **kwargs: Any) -> Any:
        pair = args[factors : factors + 2]
        if len(pair) == 2 and all(map(_is_of_integers, pair)):
            return None
        return decompose(*args, **kwargs)

    return handle


def _is_of_integers(operand: object) -> bool:
    """Whether what TorchDynamo knows of an operand says that it is a tensor of integers."""
    dtype = getattr(operand, "dtype", None)
    known = isinstance(dtype, torch.dtype)
    return known and not (dtype.is_floating_point or dtype.is_complex)  # type: ignore[union-attr]


__all__ = ["install"]
