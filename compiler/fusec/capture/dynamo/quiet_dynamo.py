"""What TorchDynamo does beside compiling is left out where fusec makes it compile.

After each compilation it empties the processor's cache and times one evaluation of its guards, for
a log and a metric: a tenth of the time that a small function takes to compile.  It reads the whole
of every file that it traces through for the names of functions, which only another log shows.  And
where an optimizer marks its step for the profiler, it warns that it ignores the mark: in a notebook
a red box, about code that nobody wrote, below every training cell.  Of ``Tensor.item()``
it says in a dozen lines which setting of its own would help; the report has the graph break, with
its line and a way to mend it. A function that it does not know (``time.sleep``) is a warning of
five lines, with the place in torch that warns: the report has that graph break, too.

All are hooked once a process, and look at what the thread is doing: most calls compile nothing, and
should not pay.  Python's garbage collector rests while TorchDynamo traces.

``torch.compile(backend="fusec")`` calls TorchDynamo itself: there the guards of each of the pieces
that graph breaks leave go untimed, those without a graph, too.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import torch
from torch._dynamo.callback import callback_handler

from fusec.gc_pause import Rest

_TIMES, _NAMES = "profile_guard_manager", "get_funcname"
_REMARKS = {
    "torch._dynamo.variables.ctx_manager": "Profiler record function",
    "torch._dynamo.variables.tensor": "Graph break from `Tensor.item()`",
}
_WARNS, _UNKNOWN = "warn_once", "Dynamo does not know how to trace"
# What torch.compile wraps a backend in, each with the one within under one of these names.
_WRAPPED = ("_torchdynamo_orig_backend", "compiler_fn", "func", "__wrapped__")
_MOST_WRAPPERS = 8
_thread = threading.local()


class Quiet:
    """Within it, on this thread, TorchDynamo does nothing for its logs, unless they are on."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        """Begin."""
        self._outer = _is_quiet()
        _thread.quiet = True
        if _begins not in callback_handler.start_callbacks:  # ``torch._dynamo.reset`` forgets them
            callback_handler.register_start_callback(_begins)
            callback_handler.register_end_callback(_ends)

    def __exit__(self, *_: object) -> None:
        """End, unless there is another one round it."""
        _thread.quiet = self._outer


def _is_quiet() -> bool:
    return getattr(_thread, "quiet", False)


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once; a release that has no such parts is left alone."""
    for name in _REMARKS:
        logging.getLogger(name).addFilter(_says_something)
    _name_no_functions()
    _warn_of_no_breaks()
    _know_whose_guards()
    guards: Any = torch._dynamo.guards
    original, log = getattr(guards, _TIMES, None), getattr(guards, "guards_log", None)
    if original is None or log is None:
        return

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if (_is_quiet() or _has_own_guards()) and not log.isEnabledFor(logging.DEBUG):
            return 0.0
        return original(*args, **kwargs)

    setattr(guards, _TIMES, timed)


def _know_whose_guards() -> None:
    """Have the thread know, while TorchDynamo makes guards, whether they are for our backend."""
    manager: Any = getattr(torch._dynamo.guards, "CheckFunctionManager", None)
    if manager is None or getattr(manager.__init__, "is_fusecs", False):
        return
    original = manager.__init__

    @functools.wraps(original)
    def init(self: Any, code: Any, output_graph: Any, *args: Any, **kwargs: Any) -> None:
        outer = _has_own_guards()
        _thread.own_guards = _calls_fusec(getattr(output_graph, "compiler_fn", None))
        try:
            original(self, code, output_graph, *args, **kwargs)
        finally:
            _thread.own_guards = outer

    init.is_fusecs = True  # type: ignore[attr-defined]
    manager.__init__ = init


def _has_own_guards() -> bool:
    return getattr(_thread, "own_guards", False)


def _calls_fusec(compiler: Any) -> bool:
    """Whether what TorchDynamo calls with graphs is our backend, in however many wrappers."""
    for _ in range(_MOST_WRAPPERS):
        if compiler is None or getattr(compiler, "is_fusecs", False):
            return compiler is not None
        found = [getattr(compiler, name, None) for name in _WRAPPED]
        compiler = next((inner for inner in found if callable(inner)), None)
    return False


def _name_no_functions() -> None:
    """Have TorchDynamo look up the names of functions where a log shows them only."""
    tracing: Any = torch._dynamo.symbolic_convert
    original = getattr(tracing, _NAMES, None)
    logs: list[Any] = [
        getattr(torch._dynamo.output_graph, "trace_call_log", None),
        getattr(tracing, "trace_call_log", None),
        getattr(tracing, "trace_source_log", None),
    ]
    if original is None or None in logs:
        return

    @functools.wraps(original)
    def name(*args: Any) -> str | None:
        if _is_quiet() and not any(log.isEnabledFor(logging.DEBUG) for log in logs):
            return None
        found: str | None = original(*args)
        return found

    setattr(tracing, _NAMES, name)


def _warn_of_no_breaks() -> None:
    """Have TorchDynamo keep to itself which function it does not trace: the report says it."""
    utils: Any = torch._dynamo.utils
    original = getattr(utils, _WARNS, None)
    if original is None:
        return

    @functools.wraps(original)
    def warn(msg: str, *args: Any, **kwargs: Any) -> Any:
        if _is_quiet() and str(msg).startswith(_UNKNOWN):
            return None
        return original(msg, *args, **kwargs)

    setattr(utils, _WARNS, warn)


_rest: Rest | None = None  # TorchDynamo calls the two below in pairs, under a lock of its own


def _begins(_: object) -> None:
    global _rest
    if _is_quiet():
        _rest = Rest()
        _rest.__enter__()


def _ends(_: object) -> None:
    global _rest
    if _rest is not None:
        _rest.__exit__()
        _rest = None


def _says_something(record: logging.LogRecord) -> bool:
    return not (_is_quiet() and str(record.msg).startswith(tuple(_REMARKS.values())))


__all__ = ["Quiet", "install"]
