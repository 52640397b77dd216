"""Graph breaks, guards and recompiles of TorchDynamo, in words and with the user's lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch._dynamo import utils as dynamo_utils

from fusec.report import GraphBreak, Guard, SourceLine

_TORCH = os.path.dirname(torch.__file__) + os.sep

# What TorchDynamo's reasons start with, and how to mend it.
_HINTS = (
    ("print", "move the print out of the cell, or put it after the tensor code"),
    ("item", "keep the value in a tensor: .item() must wait for the result"),
    ("data-dependent", "replace the Python `if` on a tensor's value by torch.where"),
    ("dynamic control flow", "replace the Python `if` on a tensor's value by torch.where"),
    (
        "nonzero",
        "the size of the result depends on data; three-argument torch.where does not",
    ),
    ("builtin", "call it outside of the fused code, or write it with tensor operators"),
    ("skip", "the function is known to TorchDynamo as one not to trace"),
)


def break_marker() -> int:
    """Return a mark: breaks recorded after it are new."""
    return len(dynamo_utils.graph_break_reasons)


def breaks_since(marker: int) -> tuple[GraphBreak, ...]:
    """Return the graph breaks recorded after ``marker``, each place once."""
    found: dict[tuple[str, object], GraphBreak] = {}
    for entry in dynamo_utils.graph_break_reasons[marker:]:
        where = user_frame(getattr(entry, "user_stack", ()))
        text = str(getattr(entry, "reason", entry))
        reason = summarize(text)
        found.setdefault((reason, where), GraphBreak(reason, hint_for(text), where))
    return tuple(found.values())


def user_frame(stack: Iterable[Any]) -> SourceLine | None:
    """Return the innermost frame of a stack that is not torch's own."""
    found = None
    for frame in stack:
        file = getattr(frame, "filename", "")
        if file and not file.startswith(_TORCH):
            found = SourceLine(file, int(frame.lineno or 0), (frame.line or "").strip())
    return found


def summarize(reason: str) -> str:
    """Return TorchDynamo's reason in one line."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if not lines:
        return "capture stopped"
    first = lines[0]
    explanation = next((w for w in lines if w.startswith("Explanation:")), "")
    if explanation:
        first = f"{first}: {explanation.removeprefix('Explanation:').strip()}"
    return re.sub(r"\s+", " ", first)[:240]


def hint_for(reason: str) -> str:
    """Return how to mend a break, where it is known."""
    lowered = reason.lower()
    for word, hint in _HINTS:
        if word in lowered:
            return hint
    match = re.search(r"Hint: (.*)", reason)
    return match[1].strip() if match else ""


def describe_guards(guards: Any) -> tuple[Guard, ...]:
    """Return the guards that a user can do something about, in words."""
    found: dict[str, Guard] = {}
    for guard in guards:
        kind = guard.create_fn_name() if hasattr(guard, "create_fn_name") else ""
        name = _readable(getattr(guard, "name", ""))
        where = user_frame(getattr(guard, "user_stack", None) or ())
        for text in _texts(kind, name, guard):
            found.setdefault(text, Guard(text, name, where))
    return tuple(found.values())


def _texts(kind: str, name: str, guard: Any) -> Iterable[str]:
    if kind == "TENSOR_MATCH":
        reference = getattr(guard, "obj_weakref", None)
        tensor = reference() if callable(reference) else None
        if isinstance(tensor, torch.Tensor):
            yield f"{name} is {_describe_tensor(tensor)}"
        return
    for code in getattr(guard, "code_list", None) or ():
        text = _words(kind, name, code)
        if text:
            yield text


def _describe_tensor(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = " x ".join(str(size) for size in tensor.shape) or "one number"
    layout = "" if tensor.is_contiguous() else f", strides {tuple(tensor.stride())}"
    gradient = ", requires grad" if tensor.requires_grad else ""
    return f"a {dtype} tensor of {shape}{layout} on {tensor.device}{gradient}"


def _readable(name: object) -> str:
    text = name() if callable(name) else str(name)
    match = re.fullmatch(r"[LG]\['(\w+)'\]", text)
    return match[1] if match else re.sub(r"[LG]\['(\w+)'\]", r"\1", text)


def _words(kind: str, name: str, code: str) -> str:
    code = re.sub(r"[LG]\['(\w+)'\]", r"\1", code)
    if kind in ("SHAPE_ENV", "EQUALS_MATCH", "CONSTANT_MATCH"):
        return code.strip()
    if kind == "TYPE_MATCH":
        return f"the type of {name} stays the same"
    if kind in ("ID_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "MODULE_MATCH"):
        return f"{name} stays the same object" if name else ""
    return ""


def describe_recompile(failure: Any) -> str:
    """Return why a compiled function was compiled again."""
    reason = re.sub(r"[LG]\['(\w+)'\]", r"\1", str(getattr(failure, "reason", failure)))
    return re.sub(r"\s+", " ", reason.split("#")[0]).strip()
