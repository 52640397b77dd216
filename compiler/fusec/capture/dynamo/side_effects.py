"""What a captured function changes beside its result, in words: attributes, lists, globals.

A backend is asked for graphs alone.  What stands between two graph breaks and computes nothing is
no graph, but is captured as well: that is noted where TorchDynamo writes the code for it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.misc import NewGlobalVariable
from torch._guards import TracingContext

from fusec.report import SideEffect

_UNKNOWN = (AttributeError, KeyError, TypeError, NotImplementedError)
_PARTS = re.compile(
    r"(?:\._(?:modules|parameters|buffers)|\.?__dict__\['_(?:modules|parameters|buffers)'\])"
    r"\['([\w.]+)'\]"
)
_WRITES = "codegen_update_mutated"
_noting = threading.local()
Noted = tuple[SideEffect, tuple[CodeType, ...]]  # with the code that TorchDynamo went through


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once, where it writes code that changes something."""
    writes: Callable[..., Any] | None = getattr(SideEffects, _WRITES, None)
    if writes is None:
        return  # another release of torch

    @functools.wraps(writes)
    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        into = getattr(_noting, "into", None)
        if into is not None:
            with contextlib.suppress(*_UNKNOWN):
                codes = tuple(TracingContext.get_traced_code() or ())
                into.update(dict.fromkeys((effect, codes) for effect in _of(self)))
        return writes(self, *args, **kwargs)

    setattr(SideEffects, _WRITES, note)


@contextlib.contextmanager
def noting(into: dict[Noted, None]) -> Iterator[None]:
    """Note what this thread captures meanwhile, and what that changes."""
    before, _noting.into = getattr(_noting, "into", None), into
    try:
        yield
    finally:
        _noting.into = before


def _of(effects: Any) -> list[SideEffect]:
    found: dict[SideEffect, None] = {}
    for variable, written in effects.store_attr_mutations.items():
        source = _source(variable)
        for name in written:
            if source == name and isinstance(variable, NewGlobalVariable):
                found[SideEffect(name, "this global is set", of_global=True)] = None
            elif source and not _is_plumbing(name):
                found[SideEffect(f"{source}.{name}", "it is set")] = None
    for variable in effects.id_to_variable.values():
        source = _source(variable)
        change = getattr(variable, "mutation_type", None)
        if source and getattr(change, "is_modified", False):
            found[SideEffect(source, "its elements are changed")] = None
    return list(found)


def _source(variable: Any) -> str:
    """Return the name of something that was there before; empty for what the function made."""
    source = getattr(variable, "source", None)
    if source is None:
        return ""
    try:
        name = source.name() if callable(source.name) else source.name
    except NotImplementedError:
        return ""  # of something that has no name
    text = re.sub(r"[LG]\['(\w+)'\]", r"\1", str(name))
    text = re.sub(r"___stack\d+(\.__self__)?", "the value at the break", text)
    return "" if "__import_" in text else _PARTS.sub(r".\1", text)


def _is_plumbing(name: str) -> bool:
    return name.startswith("__") or name in ("grad", "_cdata")


__all__ = ["Noted", "install", "noting"]
