"""What TorchDynamo would compile, refused while compilation is frozen.

TorchDynamo asks its callback about a frame when no compiled code fits.  ``FrozenWatch`` stands
before that callback: where nothing may be compiled it raises, with what the frame's compiled code
asks for and what it found.  It costs nothing where compiled code fits.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.convert_frame import has_tensor_in_frame
from torch._dynamo.exc import ShortenTraceback
from torch._dynamo.types import ConvertFrameReturn

from fusec.capture.dynamo.side_effects import Noted, noting
from fusec.capture.dynamo.skipped_calls import is_within_transform, this_time
from fusec.capture.guards.described import describe_failure
from fusec.freezing import FrozenMiss, Unfit, is_frozen

_TYPE = re.compile(r"___check_type_id\((.+), \d+\), type=<class '(.+)'>")
_TENSOR = re.compile(r"check_tensor\(L\['(\w+)'\], .*?, torch\.(\w+), .* size=\[([^\]]*)\]")
# A tensor on another device: told by its dispatch keys, or by a number that is not readable.
_ELSEWHERE = re.compile(
    r"tensor '(.+)' (?:(?:Tensor )?device|"
    r"dispatch key set mismatch\. expected DispatchKeySet\((CPU|CUDA|Meta)\b.*"
    r"actual DispatchKeySet\((?!\2\b)(?:CPU|CUDA|Meta)\b)"
)
_PLACE = re.compile(r"check_tensor\((.+?), .*?DispatchKeySet\((\w+).*?, device=(\w+),")
_TENSOR_NAME = re.compile(r"tensor '(.+?)' \w")
_MOST_ARGUMENTS = 6
_PATIENCE = 1.0  # seconds; TorchDynamo takes microseconds


class CompiledMeanwhile(Exception):
    """What a thread wanted to compile is there now: never seen by a user."""


class FrozenWatch:
    """TorchDynamo's callback, with a look at whether anything may be compiled.

    Attributes:
        inner: TorchDynamo's own.
        frozen: Whether nothing may be compiled for this function any more.
        root: The code that a call begins with, if it begins with nothing else; None if not known.
        others: Returns why a frame's names do not fit what was compiled by another process.
        effects: What was captured and changes something, of which there may be no graph.
        refused: What another process compiled and that is not used here, with the reasons.
    """

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner
        self.frozen = False
        self.root: CodeType | None = None
        self._lock = threading.RLock()  # threads that miss at once compile one after the other
        self._made: CodeType | None = None  # by the last call; None where that was looked for
        self._maker = 0  # the thread
        self._again = threading.local()
        self.others: Callable[[Any], list[Unfit]] = lambda values: []
        self.refused: list[str] = []
        self.effects: dict[Noted, None] = {}
        # what torch compares compiled code by
        self._torchdynamo_orig_backend = getattr(inner, "_torchdynamo_orig_backend", inner)

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        """Be asked about a frame that no compiled code fits.

        Raises:
            CompiledMeanwhile: Another thread has compiled it; the function is to be called again.
        """
        if not (self.frozen or is_frozen()):
            if is_within_transform():
                return ConvertFrameReturn(apply_to_code=False)
            with self._lock:
                if self._fits_now(frame):
                    raise CompiledMeanwhile
                with noting(self.effects):
                    made = self.inner(frame, *args, **kwargs)
                self._made = getattr(getattr(made, "guarded_code", None), "code", None)
                self._maker = threading.get_ident()
                return this_time(made)
        if trace_rules.check(frame.f_code) or not has_tensor_in_frame(frame):
            return ConvertFrameReturn()  # it would run in Python in any case
        if not getattr(self._again, "last", False) and self._fits(frame):
            # another thread moved it in torch's list while this one went through that
            raise CompiledMeanwhile
        found = [*misfits(frame.f_code, frame.f_locals), *self.others(frame.f_locals)]
        raise FrozenMiss(_frame_name(frame.f_code), found, self.refused)

    def _fits_now(self, frame: Any) -> bool:
        """Whether the call has just begun, and compiled code has come to fit it."""
        code: CodeType = frame.f_code
        if self.root is None or code is not self.root or getattr(self._again, "on", False):
            return False
        self._wait_for_entry(code)
        return self._fits(frame)

    def _fits(self, frame: Any) -> bool:
        code: CodeType = frame.f_code
        if code is not self.root:
            return False
        return any(each.guard_manager.check(frame.f_locals) for each in _entries(code))

    def _wait_for_entry(self, code: CodeType) -> None:
        """Wait until TorchDynamo has taken what another thread's callback has just returned."""
        made, self._made = self._made, None
        if made is None or self._maker == threading.get_ident():
            return
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if any(each.code is made for each in _entries(code)):
                return
            time.sleep(0)

    @contextlib.contextmanager
    def once_more(self, *, last: bool) -> Iterator[None]:
        """Within it, in this thread, compile what does not fit, whoever else has done so.

        Args:
            last: Whether what fits, and is not found, is a miss where nothing may be compiled.
        """
        self._again.on, self._again.last = True, last
        try:
            yield
        finally:
            self._again.on = self._again.last = False

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def misfits(code: CodeType, values: Any) -> list[Unfit]:
    """Return for each compiled form of some code why values do not fit it.

    Args:
        code: The function's.
        values: The frame's local names.
    """
    found = []
    for number, entry in enumerate(_entries(code), 1):
        result = entry.guard_manager.check_verbose(values)
        if result.result:
            continue  # compiled by another compiler
        guard, value = _failed(entry.guard_manager, result.verbose_code_parts, values)
        made_for = arguments_text(entry.guard_manager.root) or f"compiled form {number}"
        found.append(Unfit(made_for, guard, value))
    return found


def arguments_text(root: Any) -> str:
    """Return what tensors some code was compiled for: ``x float32 4 x 8``; those of arguments.

    Args:
        root: The native tree of its guards.
    """
    words = []
    for manager in root.get_child_managers():
        for leaf in manager.get_leaf_guards():
            match = _TENSOR.match(" ".join(leaf.verbose_code_parts()))
            if match is not None:
                name, dtype, sizes = match.groups()
                shape = " x ".join("any" if s == "None" else s for s in sizes.split(", ") if s)
                words.append(f"{name} {dtype} {shape or 'one number'}")
    shown = ", ".join(words[:_MOST_ARGUMENTS])
    return f"{shown}, ..." if len(words) > _MOST_ARGUMENTS else shown


def _entries(code: CodeType) -> Sequence[Any]:
    eval_frame: Any = torch._dynamo.eval_frame
    entries = list(eval_frame._debug_get_cache_entry_list(code))
    return entries[::-1]  # in order of compilation


def _failed(manager: Any, parts: Sequence[str], values: Any) -> tuple[str, str]:
    """Return the guard that failed, in words, and what was found."""
    texts = [" ".join(part.split("  #", maxsplit=1)[0].split()) for part in parts]
    if len(texts) > 1:  # one question of several parts: which of them does not hold
        texts = [text for text in texts if not _holds(manager, text, values)] or texts
    text = texts[0] if texts else ""
    elsewhere = _ELSEWHERE.match(text)
    if elsewhere is not None:
        return _elsewhere(manager, elsewhere[1], values)
    value = _value(manager, text, values)
    said = describe_failure(text)
    tensor = _TENSOR_NAME.match(text)
    there = _asked(manager, tensor[1], values) if tensor is not None else None
    if isinstance(there, torch.Tensor) and said.text != said.guard:
        return said.text, tensor_text(there)
    return _TYPE.sub(r"\1 is of the type \2", said.guard), value or said.text


def tensor_text(tensor: torch.Tensor) -> str:
    """Return what a tensor is like: ``float32 4 x 8``."""
    sizes = " x ".join(map(str, tensor.shape)) or "one number"
    return f"{str(tensor.dtype).removeprefix('torch.')} {sizes}"


def _elsewhere(manager: Any, name: str, values: Any) -> tuple[str, str]:
    """Return on which device a tensor is expected, and on which it is."""
    there = getattr(_asked(manager, name, values), "device", "another one")
    places = (_PLACE.match(text) for text in _leaf_texts(manager.root))
    wanted = next((m[2].lower() + _number(m[3]) for m in places if m and m[1] == name), "a device")
    return f"{_plain_name(name)} is on {wanted}", str(there)


def _leaf_texts(manager: Any) -> Iterator[str]:
    for leaf in manager.get_leaf_guards():
        yield " ".join(leaf.verbose_code_parts())
    for child in manager.get_child_managers():
        yield from _leaf_texts(child)


def _number(index: str) -> str:
    return "" if index == "None" else f":{index}"


def _plain_name(name: str) -> str:
    return re.sub(r"[LG]\['(\w+)'\]", r"\1", name)


def _holds(manager: Any, text: str, values: Any) -> bool:
    return _asked(manager, text, values) is True


def _value(manager: Any, text: str, values: Any) -> str:
    """Return what is there where a guard expects a constant: ``x.training == False``."""
    subject, compares, _ = text.partition(" == ")
    if not compares:
        subject, compares, _ = text.partition(" is ")
    if not compares:
        return ""
    found = _asked(manager, subject, values)
    return repr(found) if isinstance(found, (bool, int, float, str, type(None), tuple)) else ""


def _asked(manager: Any, text: str, values: Any) -> object:
    """Return the value of an expression that TorchDynamo itself wrote, as it would be asked."""
    names = {"L": values, "G": manager.global_scope["G"], **(manager.closure_vars or {})}
    try:
        return eval(text, dict(manager.global_scope), names)  # TorchDynamo's own text, as it does
    except Exception:
        return None


def _frame_name(code: CodeType) -> str:
    return f"{code.co_qualname} (line {code.co_firstlineno} of {code.co_filename})"


class _MissInBackend(FrozenMiss, ShortenTraceback):
    """A miss raised within TorchDynamo, which hands it on as it is."""

    def __init__(self, miss: FrozenMiss) -> None:
        vars(self).update(vars(miss), first_useful_frame=None)
        self.args = miss.args


def refuse_capture() -> None:
    """Refuse to compile a captured graph where nothing may be compiled.

    Raises:
        FrozenMiss: It is so.
    """
    if is_frozen():
        code, values = _traced_frame()
        what = _frame_name(code) if code is not None else "a captured graph"
        found = misfits(code, values) if code is not None else ()
        raise _MissInBackend(FrozenMiss(what, found))


def _traced_frame() -> tuple[CodeType | None, Any]:
    """Return the code that TorchDynamo is tracing, and its local names."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:  # the tracer's own frame has what it traces
        tracer: Any = frame.f_locals.get("self")
        if type(tracer).__name__ == "InstructionTranslator":
            return tracer.f_code, tracer.f_locals
        frame = frame.f_back
    return None, {}


__all__ = ["CompiledMeanwhile", "FrozenWatch", "misfits", "refuse_capture"]
