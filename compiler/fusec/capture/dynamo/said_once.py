"""Messages that a library gives once, which TorchDynamo cuts the graph for at every call.

``logger.warning_once(text)`` of ``transformers`` is a method of loggers behind
``functools.lru_cache``.  TorchDynamo looks past the cache, finds a call of a logger, throws away
what it has captured of each function around it, and compiles the pieces; the message is then given
at every call, which eager gives at the first.

Here such a call is made while its text is captured.  That is what eager does: the first one gives
the message and the cache takes every later one, those of the same text captured again among them.
Only a cache that forgets nothing promises that, only what returns nothing leaves nothing to guard,
and only constants are what they will be at the next call: TorchDynamo guards what they follow from.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once."""
    from torch._dynamo.variables.misc import LoggingLoggerVariable

    handles: Any = LoggingLoggerVariable.call_method
    LoggingLoggerVariable.call_method = _unless_once(handles)  # type: ignore[method-assign]


def _unless_once(call_method: Callable[..., Any]) -> Callable[..., Any]:
    """Return TorchDynamo's handler of loggers' methods, before which messages given once are."""

    @functools.wraps(call_method)
    def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        # Of a branch (``torch.cond``) nobody knows yet whether it runs.
        runs = tx.output.is_root_tracer() and not tx.export
        if runs and is_said_once(self.value, name) and _say(self.value, name, args, kwargs):
            from torch._dynamo.variables.constant import ConstantVariable

            return ConstantVariable.create(None)
        return call_method(self, tx, name, args, kwargs)

    return call


def is_said_once(logger: logging.Logger, name: str) -> bool:
    """Whether a logger's method is one behind a cache that keeps all there is."""
    method = getattr(type(logger), name, None)
    if name in vars(logger) or not isinstance(method, functools._lru_cache_wrapper):
        return False
    return method.cache_parameters()["maxsize"] is None


def _say(logger: logging.Logger, name: str, args: Any, kwargs: Any) -> bool:
    """Call the method with what is known now; whether there is nothing left to do."""
    given = [*args, *kwargs.values()]
    if not all(each.is_python_constant() for each in given):
        return False
    values = [each.as_python_constant() for each in args]
    named = {key: each.as_python_constant() for key, each in kwargs.items()}
    try:
        return getattr(logger, name)(*values, **named) is None
    except Exception:
        return False  # the cache keeps no errors: eager raises it where the user sees it


__all__ = ["install", "is_said_once"]
