"""TorchDynamo's native tree of guards: as a whole, or taken apart into cheaper equal checks.

The whole tree can be asked about any call. Most trees ask the same few things, and asking torch
for these directly saves a dictionary of the frame's names and Python functions in the tree: the
class, dtype, device, sizes, strides, dispatch keys and ``requires_grad`` of tensors that are
arguments (``TensorGuards``, which also refuses one tensor given twice), that they are not marked as
dynamic, the state of torch (``GlobalStateGuard``), the modes in use, the default device, and that
global names still stand for the modules and functions that they stood for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from fusec.call import native
from fusec.capture.guards.sizes import Step, UnknownQuestion, size_steps

IS, ABSENT, EMPTY, CODE = range(4)  # how a dictionary is looked at, as in entry.cpp
_SAVED_HOOKS = "utils.top_saved_tensors_hooks ids == None"


class NotUnderstood(Exception):
    """A tree of guards asks something that is not known here."""


@dataclass(frozen=True)
class Checks:
    """What to check before compiled code runs, as the native part wants it.

    Attributes:
        tensors: Called with the tensors among the arguments; None if nothing is to be called.
        positions: Which parameters these are.
        absent: Attributes that none of them may have.
        tree: Called with a dictionary of the frame's names; None likewise.
        conditions: Functions with their argument and what they must return.
        lookups: Dictionaries with a key, how to look, and what must be there.
        sizes: What sizes must satisfy: see ``size_guards``.
    """

    tensors: object = None
    positions: tuple[int, ...] = ()
    absent: tuple[str, ...] = ()
    tree: object = None
    conditions: tuple[tuple[object, object, object], ...] = ()
    lookups: tuple[tuple[dict[str, Any], str, int, object], ...] = ()
    sizes: tuple[Step, ...] = ()


def whole(root: Any) -> Checks:
    """Ask the whole tree.

    Raises:
        NotUnderstood: It does not look at any tensor, and so not at the modes that wait for
            operators: these show in the dispatch keys of a tensor.
    """
    if not any(type(leaf).__name__ == "TENSOR_MATCH" for leaf in _all_leaves(root)):
        raise NotUnderstood
    return Checks(tree=root.check)


def cheap_checks(root: Any, values: Mapping[str, Any], space: dict[str, Any]) -> Checks:
    """Ask what the tree asks, by cheaper means.

    Args:
        root: The tree; it holds for ``values``.
        values: Parameters, in order, and what they are bound to.
        space: The function's globals.

    Raises:
        NotUnderstood: It asks something else.
    """
    sizes = _sizes(root, list(values))
    conditions, lookups = _state(root)
    names = list(values)
    seen: dict[str, _Tensor] = {}
    absent: dict[str, None] = {}
    for accessor, child in _children(root):
        kind = type(accessor).__name__
        if kind == "FrameLocalsGuardAccessor":
            name = _argument_name(child.get_source())
            seen[name] = _check_tensor(child, name, values.get(name), absent)
        elif kind == "GlobalsGuardAccessor":
            if child.get_leaf_guards():
                raise NotUnderstood
            for inner, grandchild in _children(child):
                if type(inner).__name__ != "DictGetItemGuardAccessor":
                    raise NotUnderstood
                lookups += _check_identity(grandchild, space)
        else:
            raise NotUnderstood
    if not seen:
        raise NotUnderstood  # see `whole`
    shapes: Any = [each.shape for each in seen.values()]
    strides: Any = [each.strides for each in seen.values()]
    guards = torch._C._dynamo.guards.TensorGuards(
        *[each.example for each in seen.values()],
        dynamic_dims_sizes=shapes,
        dynamic_dims_strides=strides,
    )
    return Checks(
        guards.check,
        tuple(names.index(name) for name in seen),
        tuple(absent),
        None,
        tuple(conditions),
        tuple(lookups),
        sizes,
    )


# -- the state of torch ---------------------------------------------------------------------


def _state(root: Any) -> tuple[list[tuple[object, object, object]], list[Any]]:
    """Return what the guards at the root of a tree ask."""
    conditions: list[tuple[object, object, object]] = []
    lookups: list[Any] = []
    for leaf in root.get_leaf_guards():
        kind = type(leaf).__name__
        if kind == "GLOBAL_STATE":
            state = torch._C._dynamo.guards.GlobalStateGuard()
            conditions.append((state.check, None, True))
        elif kind == "TORCH_FUNCTION_MODE_STACK":
            conditions.append((torch._C._len_torch_function_stack, None, 0))
        elif kind == "DEFAULT_DEVICE":
            device = torch.utils._device.CURRENT_DEVICE
            if device is not None:
                raise NotUnderstood  # compared by value, not by identity
            lookups.append((vars(torch.utils._device), "CURRENT_DEVICE", IS, None))
        elif kind == "LAMBDA_GUARD" and all(_SAVED_HOOKS in text for text in _texts(leaf)):
            hooks = torch._C._autograd._top_saved_tensors_default_hooks
            conditions.append((hooks, True, None))
        else:
            raise NotUnderstood
    if {"GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK"} - {
        type(leaf).__name__ for leaf in root.get_leaf_guards()
    }:
        raise NotUnderstood
    return conditions, lookups


def _texts(leaf: Any) -> list[str]:
    """Return what a guard asks, in torch's words: a line each, without their origins."""
    return [part.split("  #", maxsplit=1)[0].strip() for part in leaf.verbose_code_parts()]


# -- arguments ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """An argument: one that fits, and its sizes and strides, None for those that may vary."""

    example: torch.Tensor
    shape: list[int | None]
    strides: list[int | None]


def _sizes(root: Any, names: list[str]) -> tuple[Step, ...]:
    """Return what the guards after all others ask, which is about symbolic sizes."""
    texts = [
        text for leaf in root.get_epilogue_lambda_guards() for text in leaf.verbose_code_parts()
    ]
    if texts and native.exchange() is None:
        raise NotUnderstood  # nothing tells sizes natively
    try:
        return size_steps(texts, names)
    except UnknownQuestion:
        raise NotUnderstood from None


def _argument_name(source: str) -> str:
    match = re.fullmatch(r"L\['(\w+)'\]", source)
    if match is None:
        raise NotUnderstood
    return match.group(1)


def _check_tensor(manager: Any, name: str, value: Any, absent: dict[str, None]) -> _Tensor:
    """Return the argument that a part of the tree is about, if it asks no more than is known."""
    if not isinstance(value, torch.Tensor) or manager.get_child_managers():
        raise NotUnderstood
    found: _Tensor | None = None
    for leaf in manager.get_leaf_guards():
        kind, texts = type(leaf).__name__, _texts(leaf)
        if kind == "TENSOR_MATCH":
            if len(texts) != 1 or found is not None:
                raise NotUnderstood
            found = _tensor(texts[0], value)
        elif kind in ("DIMENSION_DYNAMIC_MARKING_GUARD", "NO_HASATTR"):
            for text in texts:
                match = re.fullmatch(rf"hasattr\(L\['{name}'\], '(\w+)'\) == False", text)
                if match is None:
                    raise NotUnderstood
                absent[match.group(1)] = None
        elif kind != "NO_TENSOR_ALIASING":  # that two tensors are not one: TensorGuards asks it
            raise NotUnderstood
    if found is None:
        raise NotUnderstood
    return found


def _tensor(text: str, value: torch.Tensor) -> _Tensor:
    """Return what a guard says of a tensor's sizes and strides, which ``value`` has."""
    match = re.search(r", size=\[([^\[\]]*)\], stride=\[([^\[\]]*)\]\)$", text)
    if match is None:
        raise NotUnderstood
    found = []
    for words, actual in zip(match.groups(), (value.shape, value.stride()), strict=True):
        parts = [part.strip() for part in words.split(",") if part.strip()]
        numbers = [None if part == "None" else int(part) for part in parts]
        if len(numbers) != len(actual) or any(
            number not in (None, size) for number, size in zip(numbers, actual, strict=True)
        ):
            raise NotUnderstood
        found.append(numbers)
    return _Tensor(value, *found)


# -- global names ---------------------------------------------------------------------------


def _check_identity(manager: Any, space: dict[str, Any]) -> list[Any]:
    """Return lookups for a global name, and attributes of it, that must be what they are."""
    match = re.fullmatch(r"G\['(\w+)'\]", manager.get_source())
    if match is None:
        raise NotUnderstood
    return _lookups(manager, space, match.group(1))


def _lookups(manager: Any, space: dict[str, Any], key: str) -> list[Any]:
    value = space.get(key)
    if type(value) is FunctionType:
        return [(space, key, CODE, _guarded_code(manager, value))]
    if type(value) not in (ModuleType, BuiltinFunctionType) or not _is_identity(manager):
        raise NotUnderstood
    found: list[Any] = [(space, key, IS, value)]
    for accessor, child in _children(manager):
        match = re.fullmatch(re.escape(manager.get_source()) + r"\.(\w+)", child.get_source())
        if type(accessor).__name__ != "GetAttrGuardAccessor" or match is None:
            raise NotUnderstood
        if type(value) is not ModuleType:
            raise NotUnderstood  # an attribute may then come from elsewhere than its dictionary
        found += _lookups(child, vars(value), match.group(1))
    return found


def _guarded_code(manager: Any, function: FunctionType) -> CodeType:
    """Return the code of a function of which no more is asked than that it has this code."""
    children = _children(manager)
    if manager.get_leaf_guards() or len(children) != 1:
        raise NotUnderstood
    ((accessor, child),) = children
    if type(accessor).__name__ != "CodeGuardAccessor" or not _is_identity(child):
        raise NotUnderstood
    if child.get_child_managers():
        raise NotUnderstood
    return function.__code__


def _is_identity(manager: Any) -> bool:
    leaves = manager.get_leaf_guards()
    return bool(leaves) and all(type(leaf).__name__ == "ID_MATCH" for leaf in leaves)


# -- trees ----------------------------------------------------------------------------------


def _children(manager: Any) -> list[tuple[Any, Any]]:
    accessors, children = manager.get_accessors(), manager.get_child_managers()
    if len(accessors) != len(children) or type(manager).__name__ == "DictGuardManager":
        raise NotUnderstood
    return list(zip(accessors, children, strict=True))


def _all_leaves(manager: Any) -> list[Any]:
    leaves = list(manager.get_leaf_guards())
    for child in manager.get_child_managers():
        leaves += _all_leaves(child)
    return leaves


__all__ = ["ABSENT", "CODE", "EMPTY", "IS", "Checks", "NotUnderstood", "cheap_checks", "whole"]
