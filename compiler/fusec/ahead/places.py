"""What is at a place of a guard table, in a frame."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import torch

from fusec.ahead.guard_table import GLOBALS, LOCALS, GuardPlace
from fusec.compiled.references import JSON, NotKept

_MISSING = object()
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(
    f"_global_{name}hooks" for name in ("forward_", "forward_pre_", "backward_", "backward_pre_")
)
# What a relation may name: ``own`` reads an attribute past what a class makes of it.
RELATION_NAMES: Mapping[str, Any] = {
    "math": math,
    "type": type,
    "dict": dict,
    "list": list,
    "own": object.__getattribute__,
}
_OF_DICT = {"__getitem__": 2, "keys": 1}  # methods of dict's own, and how much they are given
_CALLS = frozenset({"size", "stride", "storage_offset", "dim", "item"})
_MATHS = frozenset({"isnan", "isinf", "isfinite"})
_ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.Is,
    ast.IsNot,
    ast.Constant,
    ast.Load,
)


def class_name(kind: type) -> str:
    """Return a class's name, from its module on."""
    return f"{kind.__module__}:{kind.__qualname__}"


def tensor_facts(value: Any) -> dict[str, JSON]:
    """Return what guards ask of a tensor.

    Raises:
        NotKept: It is no tensor of torch's own, in memory.
    """
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise NotKept(f"a tensor of kind {type(value).__name__}")
    return {
        "class": class_name(type(value)),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device),
        "keys": str(torch._C._dispatch_keys(value)),
        "requires_grad": value.requires_grad,
        "shape": list(value.shape),
        "strides": list(value.stride()),
    }


class Places:
    """The values in one frame, each looked up once.

    Args:
        values: The frame's local names.
        space: Its global names.
    """

    def __init__(self, values: Mapping[str, Any], space: Mapping[str, Any]) -> None:
        self._locals, self._globals = values, space
        self._found: dict[int, Any] = {LOCALS: values, GLOBALS: space}

    def value(self, places: Sequence[GuardPlace], number: int) -> Any:
        """Return what is there.

        Raises:
            LookupError, AttributeError, TypeError: Nothing is.
            NotKept: The way is not known.
        """
        found = self._found.get(number, _MISSING)
        if found is _MISSING:
            place = places[number]
            parent = self.value(places, place.parent)
            found = self._found[number] = step_from(parent, place.step, place.key)
        return found

    def relation(self, text: str) -> bool:
        """Whether something that is asked of several values holds: ``L['x'].size()[0] >= 2``.

        Raises:
            NotKept: It is more than a comparison of numbers and of objects.
        """
        return bool(eval(relation_code(text), {"__builtins__": {}}, self._names()))

    def _names(self) -> dict[str, Any]:
        return {"L": self._locals, "G": self._globals, **RELATION_NAMES}


def step_from(value: Any, step: str, key: JSON) -> Any:
    """Return what a step leads to.

    Raises:
        LookupError, AttributeError, TypeError: To nothing.
        NotKept: There is no such step.
    """
    match step:
        case "name" | "item" | "global":
            return dict.__getitem__(value, key) if type(value) is dict else value[key]
        case "attribute":
            return getattr(value, key)
        case "own attribute":  # past what the class makes of it
            return object.__getattribute__(value, str(key))
        case "dict":
            return value.__dict__
        case "type":
            return type(value)
        case "class dict":
            return value.__dict__
        case "mro":
            return value.__mro__
        case "code":
            found = value.__code__
            if not isinstance(found, CodeType):
                raise TypeError(f"a {type(value).__name__} has no code")
            return found
        case "defaults":
            return value.__defaults__
        case "kwdefaults":
            return value.__kwdefaults__
        case "closure":
            return value.__closure__
        case "key":
            return list(dict.keys(value))[key]
        case "value":
            return list(dict.values(value))[key]
    raise NotKept(f"a step of kind {step!r}")


def hooks_of(module: torch.nn.Module) -> list[str]:
    """Return the kinds of hooks that a module has, of which TorchDynamo keeps no guard."""
    return [name for name in HOOKS if vars(module).get(name)]


def relation_code(text: str) -> CodeType:
    """Return an expression that only compares, as code; nothing else can be in it.

    Raises:
        NotKept: There is.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise NotKept(f"a condition that is not understood: {text}") from None
    for node in ast.walk(tree):
        if not _is_harmless(node):
            raise NotKept(f"a condition that is not understood: {text}")
    return compile(tree, "<guard>", "eval")


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("L", "G") or node.id in RELATION_NAMES
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and type(node.slice.value) in (int, str)
    if isinstance(node, ast.Attribute):
        if _is_of_dict(node):
            return node.attr in _OF_DICT
        return node.attr == "__class__" or not node.attr.startswith("__")
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id == "type":
            return len(node.args) == 1 and not node.keywords
        if isinstance(function, ast.Name) and function.id == "list":
            keys = node.args[0] if len(node.args) == 1 and not node.keywords else None
            return isinstance(keys, ast.Call) and _is_of_dict(keys.func, "keys")
        if _is_of_dict(function):
            wanted = _OF_DICT.get(function.attr) if isinstance(function, ast.Attribute) else None
            return len(node.args) == wanted and not node.keywords
        if isinstance(function, ast.Name) and function.id == "own":
            return not node.keywords and len(node.args) == 2 and _is_name(node.args[1])
        if not isinstance(function, ast.Attribute) or node.keywords:
            return False
        of_math = isinstance(function.value, ast.Name) and function.value.id == "math"
        if of_math:
            return function.attr in _MATHS and len(node.args) == 1
        return function.attr in _CALLS and not node.args
    return isinstance(node, _ALLOWED)


def _is_of_dict(node: ast.AST, name: str = "") -> bool:
    """Whether it is a method of ``dict`` itself: TorchDynamo's way to an item by its place."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id == "dict" and name in ("", node.attr)


def _is_name(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and value.isidentifier() and not value.startswith("__")


__all__ = [
    "GLOBAL_HOOKS",
    "HOOKS",
    "RELATION_NAMES",
    "Places",
    "class_name",
    "hooks_of",
    "relation_code",
    "step_from",
    "tensor_facts",
]
