"""Objects of libraries by name, and code by what it does: what guards compare by identity.

An object of a process has no meaning in another one. A module, a class, a function, an operator is
found again by its name; code is recognised by a hash of what it does, whatever file and line it
stands in. Everything else that is compared by identity cannot be written down.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

JSON = Any


class NotKept(Exception):
    """Something that cannot be written down; the text says what."""


@functools.lru_cache(maxsize=4096)
def code_hash(code: CodeType) -> str:
    """Return a hash of what code does: not of its file and lines."""
    parts = [
        code.co_code,
        code.co_exceptiontable,
        repr(
            (
                code.co_names,
                code.co_varnames,
                code.co_freevars,
                code.co_cellvars,
                code.co_flags,
                code.co_argcount,
                code.co_posonlyargcount,
                code.co_kwonlyargcount,
                [_constant(each) for each in code.co_consts],
            )
        ).encode(),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return code_hash(value)
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"tuple {[_constant(each) for each in value]}"
    return f"{type(value).__name__} {value!r}"


# Kinds of values that torch has a few of, each under its name.
_VALUES: dict[str, type] = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}


def reference(value: object) -> JSON:
    """Return how another process finds the same object.

    Raises:
        NotKept: It has no name there.
    """
    if value is None or value is Ellipsis or type(value) is bool:
        return {"constant": repr(value)}
    if isinstance(value, torch._ops._OpNamespace):
        return {"operators": value.name}
    if isinstance(value, torch._ops.OpOverloadPacket):
        return {"operators": str(value)}
    if isinstance(value, ModuleType):
        if sys.modules.get(value.__name__) is not value:
            raise NotKept(f"the module {value.__name__} is not where its name says")
        return {"module": value.__name__}
    if isinstance(value, CodeType):
        return {"code": code_hash(value)}
    for kind, values in _VALUES.items():
        if isinstance(value, values):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch._ops.OpOverload):
        return {"operator": str(value)}
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, BuiltinFunctionType) and _named(str(home), str(name)) is not value:
        home, name = _home_in_torch(value)
    if not isinstance(home, str) or not isinstance(name, str):
        raise NotKept(f"a {type(value).__name__} that is compared by identity")
    if _named(home, name) is not value:
        raise NotKept(f"{home}.{name} is not what its name says")
    found = {"named": f"{home}:{name}"}
    if isinstance(value, FunctionType):
        found["code"] = code_hash(value.__code__)
    return found


def _home_in_torch(value: BuiltinFunctionType) -> tuple[str | None, str | None]:
    for home in ("torch", "torch._C._nn", "torch._C"):
        if getattr(sys.modules[home], value.__name__, None) is value:
            return home, value.__name__
    return None, None


def _named(home: str, name: str) -> object:
    found: object = sys.modules.get(home)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def resolve(data: JSON) -> object:
    """Return the object that a reference names, here; nothing is imported that a program has not.

    Raises:
        NotKept: It is not there, or another one.
    """
    ((kind, value), *more) = data.items()
    if kind == "constant":
        return {"None": None, "Ellipsis": ..., "True": True, "False": False}[value]
    if kind == "module":
        return _module(value)
    if kind in _VALUES:
        found = getattr(torch, value, None)
        if not isinstance(found, _VALUES[kind]):
            raise NotKept(f"torch has no {value}")
        return found
    if kind == "device":
        return torch.device(value)
    if kind == "operator":
        return _operator(value)
    if kind == "operators":
        return _operators(value)
    if kind == "named":
        home, _, name = value.partition(":")
        _module(home)
        found = _named(home, name)
        if found is None:
            raise NotKept(f"there is no {home}.{name}")
        if more and (
            not isinstance(found, FunctionType) or code_hash(found.__code__) != more[0][1]
        ):
            raise NotKept(f"{home}.{name} is another function than it was")
        return found
    raise NotKept(f"a reference of kind {kind!r}")


def _module(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    if name.partition(".")[0] != "torch":  # of other libraries what the program has imported
        raise NotKept(f"the module {name} is not imported")
    return importlib.import_module(name)


def _operator(name: str) -> object:
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise NotKept(f"there is no operator {name}")
    return found


def _operators(name: str) -> object:
    """Return a library of operators, or the overloads of one: ``aten``, ``aten.add``."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, torch._ops._OpNamespace | torch._ops.OpOverloadPacket):
        raise NotKept(f"there are no operators {name}")
    return found


def constant(value: object) -> JSON:
    """Return a plain value as JSON.

    Raises:
        NotKept: It is not one.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) in (tuple, list, set, frozenset):
        items = [constant(each) for each in value]  # type: ignore[attr-defined]
        if type(value) in (set, frozenset):
            items.sort(key=repr)
        return {type(value).__name__: items}
    if type(value) is torch.Size:
        return {"Size": list(value)}
    if type(value) is slice:
        return {"slice": [constant(each) for each in (value.start, value.stop, value.step)]}
    if type(value) is dict:
        return {"dict": [[constant(k), constant(v)] for k, v in value.items()]}
    return {"reference": reference(value)}


def constant_value(data: JSON) -> Any:
    """Return what ``constant`` wrote.

    Raises:
        NotKept: It is something else, or names what is not there.
    """
    if not isinstance(data, dict):
        return data
    ((kind, inner),) = data.items()
    if kind == "float":
        return float.fromhex(inner)
    if kind == "reference":
        return resolve(inner)
    if kind == "Size":
        return torch.Size(inner)
    if kind == "dict":
        return {constant_value(k): constant_value(v) for k, v in inner}
    items = [constant_value(each) for each in inner]
    if kind == "slice":
        return slice(*items)
    kinds = {"tuple": tuple, "list": list, "set": set, "frozenset": frozenset}
    if kind not in kinds:
        raise NotKept(f"a constant of kind {kind!r}")
    return kinds[kind](items)


__all__ = ["NotKept", "code_hash", "constant", "constant_value", "reference", "resolve"]
