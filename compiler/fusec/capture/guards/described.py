"""Guards and recompiles of TorchDynamo, in words and with the user's lines."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from fusec.capture.dynamo.graph_breaks import is_ours, user_frame
from fusec.report import Guard, Recompile

_SIZES = (
    "mark_dynamic({0}, {1}) of torch._dynamo before the call, or dynamic=True, lets one kernel"
    " serve all sizes"
)
_NUMBER = (
    "a Python number is a constant of compiled code: pass a 0-dimensional tensor, or compile with"
    " dynamic=True where it is an integer"
)

# What stood on Python's stack at a graph break, which the code after it takes as an argument.
_AT_BREAK = re.compile(r"\b___stack\d+\b")
_AT_BREAK_WORDS = "the value at the break"

# What C++ calls torch's types in such a text.
_DTYPE = re.compile(r"\b(expected|actual) (\w+)")
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}

# A failed guard of TorchDynamo's as a pattern; what changed; how to avoid it.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"(?:not )?len\((?:\w+\.)*state\[key \d+\]\)(?: [!=]= 0)?",
        "the optimizer has made its state since",
        "nothing: all later steps are alike",
    ),
    (
        r"tensor '(.+)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)",
        "{0} has {3} elements in dimension {1}, not {2}",
        _SIZES,
    ),
    (
        r"tensor '(.+)' stride mismatch at index (\d+)\. expected (\d+), actual (\d+)",
        "{0} lies differently in memory: stride {3} in dimension {1}, not {2}",
        "{0}.contiguous() before the call gives every call the same layout",
    ),
    (
        r"tensor '(.+)' rank mismatch\. expected (\d+), actual (\d+)",
        "{0} has {2} dimensions, not {1}",
        "reshape before the call, or compile a function for each number of dimensions",
    ),
    (
        r"tensor '(.+)' dtype mismatch\. expected (\w+), actual (\w+)",
        "{0} is of dtype {2}, not {1}",
        "convert before the call; each dtype has kernels of its own",
    ),
    (
        r"tensor '(.+)' requires_grad mismatch\. expected requires_grad=(\d)",
        "{0} takes part in autograd in one call and not in the other",
        "call with requires_grad set alike, or under torch.no_grad() where no gradient is needed",
    ),
    (
        r"tensor '(.+)' (?:Tensor )?device(?: index)? mismatch.*",
        "{0} is on another device",
        "each device has kernels of its own",
    ),
    (
        r"tensor '(.+)' dispatch key set mismatch\. expected DispatchKeySet\((CPU|CUDA|Meta)\b.*"
        r"actual DispatchKeySet\((?!\2\b)(?:CPU|CUDA|Meta)\b.*",
        "{0} is on another device",
        "each device has kernels of its own",
    ),
    (
        r"tensor '(.+)' dispatch key set mismatch.*",
        "{0} is a tensor of another kind (inference mode, subclass or a torch function mode)",
        "make the tensors of all calls alike",
    ),
    (
        r"GLOBAL_STATE changed: (.+)",
        "the state of torch changed: {0}",
        "grad mode, autocast, default dtype and the like: call in the same state every time",
    ),
    (
        r"2 <= (.+)\.size\(\)\[(\d+)\] <= (\d+)",
        "{0} has a size of 0 or 1, or of more than {2}, in dimension {1}",
        "sizes 0 and 1 have kernels of their own; rows of up to some thousand elements are held in "
        "registers, longer ones are compiled for once more",
    ),
    (
        r"2 <= (.+)\.size\(\)\[(\d+)\].*",
        "{0} has a size of 0 or 1 in dimension {1}",
        "sizes 0 and 1 have kernels of their own: torch treats them differently everywhere",
    ),
    (
        r"len\((.+)\) == (\d+)",
        "{0} has another number of elements than {1}",
        "a list's or tuple's length is a constant of compiled code: keep it the same",
    ),
    (
        r"not ___dict_contains\('(\w+)', (\w+)\.__dict__\)",
        "{1}.{0} was set on the object after it was compiled",
        "set attributes once, before the first call; a number that changes belongs in a buffer",
    ),
    (
        r"(?:___check_type_id|type)\((.+?)[,)].*",
        "{0} is of another type",
        "pass the same type in every call",
    ),
    (
        r"(?:___check_obj_id|id)\((.+?)[,)].*",
        "{0} is another object",
        "what is looked up by identity (functions, modules, None) must stay the same",
    ),
    (r"([\w.\[\]'\"()]+) == (.+)", "{0} is not {1} any more", _NUMBER),
    (r"(.+ (?:<=|<|>=|>|!=) .+)", "{0} does not hold any more", _SIZES.format("x", "dim")),
)

# A size or stride that a guard about symbols is about.
_SYMBOLIC = re.compile(r"([\w\[\]'\".]+)\.(size|stride)\(\)\[(\d+)\]")

# An attribute of a value's class, in the words of TorchDynamo.
_OF_CLASS = re.compile(r"dict\(type\(([^()]*)\)\.__dict__\)\['(\w+)'\]")

# What TorchDynamo calls torch where ``type(x)`` asks for a tensor's class: another name each time.
_TORCH = re.compile(r"G\['_\d+_c\d+'\]")

# What a module holds, in the words of TorchDynamo.
_KEY = re.compile(r"\[list\(dict\.keys\([^()]*\)\)\[(\d+)\]\]")
_PARTS = re.compile(
    r"(?:\._(?:modules|parameters|buffers)|\.?__dict__\['_(?:modules|parameters|buffers)'\])"
    r"\['([\w.]+)'\]"
)


def _short_keys(text: str) -> str:
    """Return ``state[key 0]`` for ``state[list(dict.keys(state))[0]]``, the inner ones first."""
    while (found := _KEY.sub(r"[key \1]", text)) != text:
        text = found
    return text


def _dtype_name(found: re.Match[str]) -> str:
    return f"{found[1]} {_DTYPES.get(found[2], found[2].lower())}"


def describe_failure(reason: str) -> Recompile:
    """Return what a failed guard means.

    Args:
        reason: TorchDynamo's text, such as ``0/1: tensor 'x' size mismatch at index 0. ...``.
    """
    text = re.sub(r"[LG]\['(\w+)'\]", r"\1", reason.split("#", maxsplit=1)[0])
    text = _DTYPE.sub(_dtype_name, text) if "dtype mismatch" in text else text
    text = _short_keys(re.sub(r"\s+", " ", re.sub(r"^\d+/\d+: ", "", text.strip())))
    for pattern, words, hint in _FAILURES:
        match = re.fullmatch(pattern, text)
        if match:
            return Recompile(words.format(*match.groups()), hint.format(*match.groups()), text)
    return Recompile(text, "", text)


def describe_recompile(failures: Sequence[Any]) -> Recompile | None:
    """Return why a function was compiled again.

    Args:
        failures: What TorchDynamo reports of one call: a failed guard for each piece of code that
            it has, the newest first. That one tells what changed since the last call that compiled.
    """
    if not failures:
        return None
    return describe_failure(str(getattr(failures[0], "reason", failures[0])))


def too_often(last: Recompile, limit: int) -> Recompile:
    """Return what follows from compiling again and again: TorchDynamo gives up."""
    return Recompile(
        f"compiled {limit} times already: calls of any further kind run in eager",
        f"the last reason was: {last}; torch._dynamo.config.recompile_limit raises the limit",
        last.guard,
    )


class NotedGuard(NamedTuple):
    """What TorchDynamo says of a guard, as long as it is there.

    Attributes:
        kind: TorchDynamo's name of the check.
        name: Of what is checked, as TorchDynamo spells it.
        codes: The check as Python.
        tensor: What a checked tensor is, in words.
        stack: Where the user's code asked for it.
    """

    kind: str
    name: str
    codes: tuple[str, ...]
    tensor: str
    stack: Any


def note_guards(guards: Any) -> tuple[NotedGuard, ...]:
    """Return what has to be kept of guards to describe them when somebody asks.

    Putting a few hundred into words takes a tenth of a second, which no call should wait for.
    """
    guards = list(guards)
    # Of a size that is symbolic there is a guard of its own: its range, or what it is equal to.
    codes = [code for guard in guards for code in getattr(guard, "code_list", None) or ()]
    # Few of a thousand speak of a size, and the pattern is slow on those that do not.
    sized = [code for code in codes if ".size()" in code or ".stride()" in code]
    symbolic = frozenset(found for code in sized for found in _SYMBOLIC.findall(code))
    return tuple(
        NotedGuard(
            guard.create_fn_name() if hasattr(guard, "create_fn_name") else "",
            _name_of(guard),
            tuple(getattr(guard, "code_list", None) or ()),
            _tensor_of(guard, symbolic),
            getattr(guard, "user_stack", None) or (),
        )
        for guard in guards
    )


def describe_guards(guards: Iterable[NotedGuard]) -> tuple[Guard, ...]:
    """Return the guards that a user can do something about, in words."""
    found: dict[str, Guard] = {}
    for guard in guards:
        kind, raw = guard.kind, guard.name
        name = readable_name(raw)
        if _is_plumbing(name, kind):
            continue
        where = user_frame(guard.stack)
        if is_ours(where):
            continue
        for text in _texts(name, guard):
            text = re.sub(
                r"\b(?:fn|self)(?:\._modules\['[\w.]+'\])+", name.rpartition(".")[0], text
            )
            text = _PARTS.sub(r".\1", text)
            if raw.startswith(("L['fn'].", "L['self'].")):  # as its name has it
                text = re.sub(r"\b(?:fn|self)\.(?=\w)", "", text)
            found.setdefault(text, Guard(text, name, where))
    return tuple(found.values())


def _texts(name: str, guard: NotedGuard) -> Iterable[str]:
    if guard.kind == "TENSOR_MATCH":
        if guard.tensor:
            yield f"{name} is {guard.tensor}"
        return
    for code in guard.codes:
        text = _words(guard.kind, name, code)
        if text:
            yield text


def _tensor_of(guard: Any, symbolic: Container[tuple[str, str, str]]) -> str:
    reference = getattr(guard, "obj_weakref", None)
    tensor = reference() if callable(reference) else None
    if not isinstance(tensor, torch.Tensor):
        return ""
    name = _name_of(guard)

    def shown(what: str, numbers: Iterable[int]) -> list[str]:
        return [
            "any" if (name, what, str(n)) in symbolic else str(number)
            for n, number in enumerate(numbers)
        ]

    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = " x ".join(shown("size", tensor.shape)).replace("any", "any size") or "one number"
    strides = ", ".join(shown("stride", tensor.stride()))
    layout = "" if tensor.is_contiguous() else f", strides ({strides})"
    gradient = ", requires grad" if tensor.requires_grad else ""
    kind = f"{'an' if dtype.startswith('int') else 'a'} {dtype} tensor"
    return f"{kind} of {shape}{layout} on {tensor.device}{gradient}"


def _name_of(guard: Any) -> str:
    name = getattr(guard, "name", "")
    return name() if callable(name) else str(name)


def readable_name(name: str) -> str:
    """Return ``0.weight`` for ``L['fn']._modules['0']._parameters['weight']``."""
    text = re.sub(r"[LG]\['(\w+)'\]", r"\1", _TORCH.sub("torch", name))
    text = _AT_BREAK.sub(_AT_BREAK_WORDS, text)
    text = _short_keys(text)
    count = 1
    while count:  # what a class has, which may be within what it wraps
        text, count = _OF_CLASS.subn(r"\1.\2", text)
    text = _PARTS.sub(r".\1", text)
    return re.sub(r"^(?:(?:fn|self)\.|\.)(?=.)", "", text)


def _is_plumbing(name: str, kind: str) -> bool:
    """Whether a guard is about torch itself, or about how a call arrives."""
    if name.startswith(("__import_", "__builtins_")) or name in ("fn", "args", "kwargs"):
        return True
    parts = name.split(".")
    if parts[0] == "torch" and len(parts) > 1:
        return True
    return kind == "TYPE_MATCH" and (parts[-1].startswith("_") or parts[-1].isdigit())


def _words(kind: str, name: str, code: str) -> str:
    code = _AT_BREAK.sub(_AT_BREAK_WORDS, re.sub(r"[LG]\['(\w+)'\]", r"\1", code))
    if code.startswith("___check_obj_id"):
        return f"{name} stays the same object" if name else ""
    if kind in ("SHAPE_ENV", "EQUALS_MATCH", "CONSTANT_MATCH"):
        return code.strip()
    if kind == "TYPE_MATCH":
        return f"the type of {name} stays the same"
    if kind in ("ID_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "MODULE_MATCH"):
        return f"{name} stays the same object" if name else ""
    return ""
