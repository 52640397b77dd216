"""An operator that returns the tensor it was given: for TorchDynamo that is another one.

It makes a variable for each result. What is set on that is lost without a word, whichever backend
is asked: after ``p -= lr * p.grad`` the ``p.grad = None`` of a training by hand did nothing, so
that gradients added up from step to step. So did ``p.requires_grad_(False)`` after an update, and
``torch.relu_(p).grad = None``. Of what changes a shape in place (``y.t_()``) the variable kept the
former one. Here such a result is the variable that was given, which knows where it came from.

The other way round with ``y @= z``: no tensor is multiplied in place, so that Python binds ``y``
anew, and a graph's text ``y @= z`` did so with all that was the former ``y``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

_INSERT = "_handle_insert_op_in_graph"
_CACHE = "call_function_handler_cache"  # of handlers that were found before
# What returns the tensor itself where nothing is to be done, and then does nothing.
_IDLE = frozenset(
    """
    to type type_as float double half bfloat16 int long short char byte bool cpu cuda contiguous
    conj resolve_conj resolve_neg positive
    """.split()
)


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once: operators, methods and functions."""
    for owner, name in (
        (BuiltinVariable, _INSERT),
        (TensorVariable, "call_method"),
        (TorchInGraphFunctionVariable, "call_function"),
    ):
        handler = getattr(owner, name, None)
        if handler is not None:  # another release of torch
            setattr(owner, name, _returning_the_same(handler))
    insert = getattr(BuiltinVariable, _INSERT, None)
    if insert is not None:
        setattr(BuiltinVariable, _INSERT, _of_products(insert))
    getattr(BuiltinVariable, _CACHE, {}).clear()


def _returning_the_same(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a result's variable, or returns an operand's."""

    @functools.wraps(handler)
    def handle(self: Any, tx: Any, *given: Any, **named: Any) -> Any:
        result = handler(self, tx, *given, **named)
        if not _is_of_the_graph(result):
            return result
        value = _value(result)
        for each in _tensors((self, *given, *named.values())):
            if each is not result and _value(each) is value:
                each.synchronize_attributes(tx)
                _forget_idle(result.proxy.node)
                return each
        return result

    return handle


def _of_products(insert: Callable[..., Any]) -> Callable[..., Any]:
    """Return what puts an operator into the graph, ``@=`` as ``@``."""

    @functools.wraps(insert)
    def handle(self: Any, *given: Any) -> Any:
        if self.fn is operator.imatmul:
            self = BuiltinVariable(operator.matmul)
        return insert(self, *given)

    return handle


def _is_of_the_graph(variable: Any) -> bool:
    """Whether this is a tensor that TorchDynamo knows by its place in the graph alone."""
    return type(variable) is TensorVariable and variable.source is None


def _forget_idle(node: fx.Node) -> None:
    """Leave out of the graph what did nothing: whoever looks at who uses a tensor would see it."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name in _IDLE and not node.users:
        node.graph.erase_node(node)


def _value(variable: Any) -> Any:
    """Return the fake tensor that stands for a variable's."""
    return variable.proxy.node.meta.get("example_value", variable)


def _tensors(given: Iterable[Any]) -> Iterable[Any]:
    """Return the tensors among operands."""
    for each in given:
        if isinstance(each, list | tuple):
            yield from _tensors(each)
        elif isinstance(each, dict):
            yield from _tensors(each.values())
        elif type(each) is TensorVariable:
            yield each
        elif isinstance(each, LazyVariableTracker) and each.is_realized():
            yield from _tensors((each.realize(),))


__all__ = ["install"]
