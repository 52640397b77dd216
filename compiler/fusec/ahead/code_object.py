"""The code that TorchDynamo made of a function, as JSON, and again as code.

It collects the graph's inputs from the function's arguments and globals, runs the graph, builds the
result and does the function's side effects.  Its instructions are kept as they are, for the same
release of Python and torch; its constants are plain values, and the global names that it needs are
names of modules, classes and functions.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

from fusec.compiled.references import JSON, NotKept, constant, constant_value

_NUMBERS = (
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_nlocals",
    "co_stacksize",
    "co_flags",
    "co_firstlineno",
)
_NAMES = ("co_names", "co_varnames", "co_freevars", "co_cellvars")
_BYTES = ("co_code", "co_linetable", "co_exceptiontable")


def written_code(code: CodeType) -> JSON:
    """Return code as JSON.

    Raises:
        NotKept: One of its constants is no plain value.
    """
    found: dict[str, Any] = {name: getattr(code, name) for name in _NUMBERS}
    found |= {name: list(getattr(code, name)) for name in _NAMES}
    found |= {name: getattr(code, name).hex() for name in _BYTES}
    if any(isinstance(each.argval, CodeType) for each in dis.get_instructions(code)):
        raise NotKept("code that makes functions")
    # Those of the function that it was made of are all there, inner functions' code too.
    found["co_consts"] = [
        None if isinstance(each, CodeType) else constant(each) for each in code.co_consts
    ]
    found["co_name"], found["co_qualname"] = code.co_name, code.co_qualname
    return found


def read_code(data: JSON, like: CodeType, renamed: dict[str, str]) -> CodeType:
    """Return the code again.

    Args:
        data: What ``written_code`` returned.
        like: The code of the function that it was made of; where the result says it comes from.
        renamed: Global names that are others here.
    """
    changes: dict[str, Any] = {name: data[name] for name in _NUMBERS}
    changes |= {name: tuple(data[name]) for name in _NAMES}
    changes |= {name: bytes.fromhex(data[name]) for name in _BYTES}
    changes["co_names"] = tuple(renamed.get(name, name) for name in data["co_names"])
    changes["co_consts"] = tuple(constant_value(each) for each in data["co_consts"])
    return like.replace(
        **changes,
        co_name=data["co_name"],
        co_qualname=data["co_qualname"],
        co_filename=like.co_filename,
    )


__all__ = ["read_code", "written_code"]
