"""Graph breaks of TorchDynamo, in words and with the user's lines."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch._dynamo import utils as dynamo_utils

from fusec.capture.dynamo.repeated_layers import LAYER
from fusec.report import GraphBreak, SourceLine

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FUSEC = os.path.dirname(os.path.dirname(__file__)) + os.sep

# Breaks that hang on the values of tensors.
_BRANCH = r"generic_jump|Data-dependent branching|dynamic control flow"
_NUMBER = r"Tensor\.item\(\)|scalar_outputs|_local_scalar_dense"
_LIST = r"tolist"
_SIZE = r"Dynamic shape operator|output shape depends on input Tensor data"
_COUNTS = rf"(?:{_SIZE})(?s:.*)bincount"
_OF_VALUES = (_BRANCH, _NUMBER, _LIST, _SIZE, _COUNTS)
# Breaks that are for a reader alone.
_PRINT = r"builtin operator `print`"
_LOG = r"logging\.Logger method|builtin `_warnings\.warn`"
_OF_MESSAGES = (_PRINT, _LOG)
_PARAMETERS = r"torch\.nn\.Parameter\(\)` constructor|[Uu]ninitialized nn\.Module"
_STEP = "step_unsupported"
_GENERATOR = r"Attempt to trace generator"
_NOTHING = "nothing: "  # how a hint begins where there is nothing to mend
# What TorchDynamo says, as a pattern; what that means; how to mend it. The first match counts.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        _BRANCH,
        "a Python `if`, `while` or `assert` depends on a tensor's value",
        "choose with torch.where(condition, a, b), or test a Python number instead",
    ),
    (
        _NUMBER,
        "a tensor's value becomes a Python number",
        "keep the value in a tensor: .item(), float() and int() must wait for the result",
    ),
    (
        _LIST,
        "a tensor becomes a Python list",
        "keep the values in a tensor, or call .tolist() after the compiled code",
    ),
    (
        _PRINT,
        "print runs in Python",
        "move the print before the tensor code or after it",
    ),
    (
        _PARAMETERS,
        "parameters are made here, in Python",
        "make modules and parameters in a cell of their own, or above the tensor code",
    ),
    (
        r"requires_grad_\(\)",
        "requires_grad_() runs in Python",
        "call it in a cell of its own, or above the tensor code",
    ),
    (
        r"RNN, GRU, or LSTM",
        "nn.RNN, nn.GRU and nn.LSTM run in Python, as torch has them",
        "nothing of theirs is compiled: write the recurrence in tensor code, or call them apart",
    ),
    (
        r"builtin operator `(?:str|repr|format)`",
        "a tensor is turned into text",
        "format it before the compiled code or after it",
    ),
    (
        _LOG,
        "a message is logged in between",
        "log before the tensor code or after it; loggers may be ignored by"
        " torch._dynamo.config.ignore_logging_functions.add(...)",
    ),
    (
        _COUNTS,
        "the size of what bincount returns depends on data",
        "torch.zeros(n).index_add(0, index, torch.ones(len(index))) has a size that is known",
    ),
    (
        _SIZE,
        "the size of a result depends on data",
        "three-argument torch.where or a mask keeps the size; nonzero and x[mask] do not",
    ),
    (
        r"Tensor\.backward\(\)",
        "backward() runs between two compiled parts",
        "nothing: the backward pass is compiled together with the forward one",
    ),
    (
        r"function `(?P<what>\w*Optimizer\.zero_grad)",
        "{what} drops the gradients, in Python",
        "nothing: there is nothing in it to compile",
    ),
    (
        r"function `(?P<what>(?:manual_seed|manual_seed_all|set_rng_state))\.?`",
        "{what} sets the random numbers, in Python",
        "nothing: what is drawn before it and after it has to be compiled apart",
    ),
    (
        r"builtin operator `(?P<what>\w+)`",
        "{what}() runs in Python",
        "call {what}() outside of the compiled code",
    ),
    (
        r"graph_break\(\)",
        "torch._dynamo.graph_break() asks for it",
        "remove the call if it is yours",
    ),
    (LAYER, LAYER, f"{_NOTHING}its one compiled form serves all layers like it"),
    (
        r"compiler\.disable|function `disable`",
        "a function that torch.compiler.disable keeps out of compiled code",
        "remove the decorator, or call the function outside",
    ),
    (
        r"(?:builtin|function) `(?P<what>[^`]+?)\.?`",
        "{what} is a function that TorchDynamo does not trace",
        "call {what} outside and pass its result in, or wrap it with torch.library.custom_op",
    ),
    (
        r"trace method `(?P<what>\w+)` of class `(?P<kind>\w+)`",
        "{kind}.{what} is a method that TorchDynamo does not trace",
        "call it outside of the compiled code and pass its result in",
    ),
    (
        _GENERATOR,
        "a generator, a function with yield, runs in Python",
        "call it within a function, and compile that",
    ),
    (
        r"sparse Tensor",
        "sparse tensors are not captured",
        "convert to a dense tensor outside of the compiled code",
    ),
    (
        _STEP,
        "Python does something here that TorchDynamo cannot capture",
        "move the statement before the tensor code or after it",
    ),
)
_OPTIMIZERS = f"{os.sep}torch{os.sep}optim{os.sep}"
_OPTIMIZER = (
    "the optimizer's step is a graph of its own",
    f"{_NOTHING}torch's optimizers begin one themselves",
)
_ANY = "what comes before it and what comes after it are compiled apart: move it to either end"


def break_marker() -> int:
    """Return a mark: breaks recorded after it are new."""
    return len(dynamo_utils.graph_break_reasons)


def breaks_since(marker: int) -> tuple[GraphBreak, ...]:
    """Return the graph breaks recorded after ``marker``, each place once."""
    found: dict[tuple[str, object], GraphBreak] = {}
    entries = dynamo_utils.graph_break_reasons[marker:]
    callers = {place for entry in entries for place in _callers(getattr(entry, "user_stack", ()))}
    for entry in entries:
        where = user_frame(getattr(entry, "user_stack", ()))
        if is_ours(where):
            continue  # TorchDynamo looked at what we compile backward with
        text = str(getattr(entry, "reason", entry))
        if is_torchs_generator(text, where):
            continue
        if makes_parameters(text):
            if is_within_init(getattr(entry, "user_stack", ())):
                continue  # the line that makes the module is named itself
            where = calling_line(getattr(entry, "user_stack", ()))
        if where is not None and where in callers and _known(text) == _STEP:
            continue  # a break within what is called there, which is named itself
        reason, hint = summarize(text), hint_for(text)
        stack = getattr(entry, "user_stack", ())
        stepping = any(_OPTIMIZERS in getattr(frame, "filename", "") for frame in stack)
        if stepping:
            reason, hint = _OPTIMIZER  # who calls step() has not asked for it
        expected = hint.startswith(_NOTHING)
        known = _known(text)
        kinds = known in _OF_VALUES, known == LAYER, stepping, known in _OF_MESSAGES
        made = GraphBreak(reason, hint, where, expected, *kinds)
        found.setdefault((reason, where), made)
    located = {reason for reason, where in found if where is not None}
    return tuple(b for (r, w), b in found.items() if w is not None or r not in located)


def user_frame(stack: Iterable[Any]) -> SourceLine | None:
    """Return the innermost frame of a stack that is not torch's own."""
    found = None
    for frame in stack:
        file = getattr(frame, "filename", "")
        if file and not file.startswith(_TORCH):
            found = SourceLine(file, int(frame.lineno or 0), (frame.line or "").strip())
    return found


def calling_line(stack: Iterable[Any]) -> SourceLine | None:
    """Return the outermost frame of a stack that is not torch's own."""
    found = (user_frame([frame]) for frame in stack)
    return next((place for place in found if place is not None), None)


def makes_parameters(reason: str) -> bool:
    """Whether what TorchDynamo says is that a module, or a parameter, is made."""
    return _known(reason) == _PARAMETERS


def is_torchs_generator(reason: str, where: SourceLine | None) -> bool:
    """Whether it is about a generator of torch's own, such as zero_grad's in 2.11.

    What calls it is a break of its own.

    Args:
        reason: What TorchDynamo says.
        where: The user's line, if there is one.
    """
    return where is None and _known(reason) == _GENERATOR


def is_within_init(stack: Iterable[Any]) -> bool:
    """Whether a stack begins in the method that makes an object."""
    return next((getattr(frame, "name", "") for frame in stack), "") == "__init__"


def _callers(stack: Iterable[Any]) -> list[SourceLine]:
    """Return the user's lines of a stack but for the innermost."""
    frames = list(stack)
    places = [user_frame(frames[:n]) for n in range(1, len(frames) + 1)]
    found = list(dict.fromkeys(place for place in places if place is not None))
    return found[:-1]


def error_line(error: BaseException) -> SourceLine | None:
    """Return the user's line that raised an error: the innermost that is not torch's or ours."""
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith((_TORCH, _FUSEC)) and frame.line:
            found = SourceLine(frame.filename, frame.lineno or 0, frame.line.strip())
    stack = getattr(error, "real_stack", None)  # what TorchDynamo was going through
    return user_frame(stack) or found if stack else found


def is_ours(place: SourceLine | None) -> bool:
    """Whether a place is in the compiler itself: of no interest to a user."""
    return place is not None and place.file.startswith(_FUSEC)


def _known(reason: str) -> str:
    """Return the first pattern that fits what TorchDynamo says; empty for none."""
    return next((pattern for pattern, _, _ in _KNOWN if re.search(pattern, reason)), "")


def summarize(reason: str) -> str:
    """Return TorchDynamo's reason in one line."""
    for pattern, words, _ in _KNOWN:
        match = re.search(pattern, reason)
        if match:
            return words.format(**match.groupdict())
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if not lines:
        return "capture stopped"
    first = lines[0]
    explanation = next((w for w in lines if w.startswith("Explanation:")), "")
    if explanation:
        first = f"{first}: {explanation.removeprefix('Explanation:').strip()}"
    return re.sub(r"\s+", " ", first)[:240]


def hint_for(reason: str) -> str:
    """Return how to mend a break."""
    for pattern, _, hint in _KNOWN:
        match = re.search(pattern, reason)
        if match:
            return hint.format(**match.groupdict())
    match = re.search(r"Hint: (.*)", reason)
    return match[1].strip() if match else _ANY
