"""What a captured function changes beside its result, in words: attributes, lists, globals."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

from torch._dynamo.variables.misc import NewGlobalVariable

from fusec.report import SideEffect

_CALLER = "_call_user_compiler"  # the method of TorchDynamo's that calls a backend
_PARTS = re.compile(
    r"(?:\._(?:modules|parameters|buffers)|\.?__dict__\['_(?:modules|parameters|buffers)'\])"
    r"\['([\w.]+)'\]"
)


def side_effects() -> tuple[SideEffect, ...]:
    """Return what the function that TorchDynamo is capturing changes; to be asked by a backend."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != _CALLER:
        frame = frame.f_back
    if frame is None:
        return ()
    try:
        return tuple(_of(frame.f_locals["self"].side_effects))
    except (AttributeError, KeyError, TypeError, NotImplementedError):
        return ()  # another release of torch


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


__all__ = ["side_effects"]
