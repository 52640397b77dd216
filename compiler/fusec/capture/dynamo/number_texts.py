"""Texts of numbers that TorchDynamo makes symbolic: a size, or an argument that has changed.

An f-string of such a number stays a promise until somebody needs it, so that an error's message
that nobody reads fixes no size. TorchDynamo wrote the number as text first and formatted that:
``f"{n:03d}"`` ended in an error, ``f"{n:5}"`` had its spaces on the wrong side. Of an argument by
itself the text was not made at all: ``f"{n}"`` was the number, as an integer, whichever backend was
asked. And ``format(x, ".1f")``, of any number, was taken for ``str.format``, which takes no such
thing, and left the rest out.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

_CONVERSIONS = ("", "!s", "!r", "!a")


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once; a release that formats in another way is left alone."""
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.builtin import BuiltinVariable

    writes: Any = getattr(InstructionTranslatorBase, "_format_value", None)
    promise = _promise()
    if writes is not None and promise is not None:
        InstructionTranslatorBase._format_value = _as_it_is(writes, promise)  # type: ignore[method-assign]
    formats: Any = getattr(BuiltinVariable, "call_format", None)
    if formats is not None:
        BuiltinVariable.call_format = _of_one_value(formats)  # type: ignore[method-assign]


def _promise() -> Callable[[Any, str], Any] | None:
    """Return what makes TorchDynamo's promise of a text, of a number and how it is written."""
    try:
        from torch._dynamo.variables.constant import ConstantVariable
        from torch._dynamo.variables.lazy import (
            LazyCache,
            LazySymNodeFormatString,
            LazyVariableTracker,
        )
    except ImportError:
        return None

    class NumberText(LazySymNodeFormatString):
        """The promise, of what Python would write."""

        def __repr__(self) -> str:
            written: str = self.fmt_var.as_python_constant()
            return written.format(self.sym_node_var.evaluate_expr())

    def promised(number: Any, form: str) -> Any:
        text = NumberText(number, ConstantVariable.create(""))
        text.fmt_var = ConstantVariable.create(form)
        # without a source: the text comes from nowhere that TorchDynamo could load it from
        return LazyVariableTracker(LazyCache(text, None))

    return promised


def _as_it_is(
    format_value: Callable[..., None], promised: Callable[[Any, str], Any]
) -> Callable[..., None]:
    """Return TorchDynamo's handler of a value in an f-string, which formats numbers as numbers."""
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.tensor import SymNodeVariable

    @functools.wraps(format_value)
    def handle(self: Any, fmt_spec: Any, flags: int) -> None:
        value = self.stack[-1]
        if not isinstance(value, SymNodeVariable) or not fmt_spec.is_python_constant():
            return format_value(self, fmt_spec, flags)
        self.pop()
        form = f"{{{_CONVERSIONS[flags & 3]}:{fmt_spec.as_python_constant()}}}"
        if _is_fit(form, value.python_type()):
            self.push(promised(value, form))
            return None
        self.push(ConstantVariable.create(value.evaluate_expr(self.output)))
        return format_value(self, fmt_spec, flags)  # which refuses it as Python does

    return handle


def _is_fit(form: str, kind: type) -> bool:
    """Whether a number of this type can be written so."""
    try:
        form.format(kind(1))
    except (TypeError, ValueError):
        return False
    return True


def _of_one_value(call_format: Callable[..., Any]) -> Callable[..., Any]:
    """Return TorchDynamo's handler of ``format``, which knows the built-in function from a method.

    None says that there is no handler, so that the graph ends there and Python formats.
    """
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.tensor import SymNodeVariable

    @functools.wraps(call_format)
    def handle(self: Any, tx: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn is not builtins.format:
            return call_format(self, tx, given, *args, **kwargs)
        forms = [each.as_python_constant() for each in args if each.is_python_constant()]
        if len(forms) < len(args) or kwargs:
            return None
        if isinstance(given, SymNodeVariable):
            value = given.evaluate_expr(tx.output)
        elif given.is_python_constant():
            value = given.as_python_constant()
        else:
            return None
        try:
            return ConstantVariable.create(format(value, *forms))
        except (TypeError, ValueError):
            return None  # Python says so

    return handle


__all__ = ["install"]
