"""What an artefact was made from: files and functions, by their hashes.

Guards tell that a call is like another one in the same process. Another process may have another
release of a library, an edited file, a replaced method: these are told here.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

import torch

from fusec.compiled.references import JSON, NotKept, code_hash

_TORCH = os.path.dirname(torch.__file__) + os.sep
_WRAPPERS = 8


def origins(codes: Iterable[CodeType], root: FunctionType) -> JSON:
    """Return what was captured: files with their hashes, functions by name with theirs.

    Args:
        codes: All code that TorchDynamo went through.
        root: The function that was captured.

    Raises:
        NotKept: Something is in no file, and has no name either.
    """
    files: dict[str, str] = {}
    functions: dict[str, str] = {}
    modules = _modules_by_file()
    for code in dict.fromkeys(codes):
        home = modules.get(code.co_filename, root.__module__)
        named = _function(home, code.co_qualname, code)
        if named:
            functions[f"{home}:{code.co_qualname}"] = code_hash(code)
        if code.co_filename.startswith((_TORCH, "<frozen ")):
            continue  # its release, and Python's, is in the key
        if os.path.isfile(code.co_filename):
            files[code.co_filename] = file_hash(code.co_filename)
        elif not named and code is not root.__code__ and not _is_within(code, root.__code__):
            made = _generated(code)
            if made:
                functions[made] = code_hash(code)
                continue
            raise NotKept(f"{code.co_qualname} is in no file and has no name elsewhere")
    return {"files": files, "functions": functions}


def changed(data: JSON) -> str:
    """Return what is not as it was when an artefact was made; empty where all is."""
    for path, expected in data["files"].items():
        try:
            if file_hash(path) != expected:
                return f"{path} is another file than it was"
        except OSError:
            return f"{path} is not there any more"
    for name, expected in data["functions"].items():
        home, _, qualified = name.partition(":")
        if not any(code_hash(c) == expected for c in _codes(home, qualified)):
            return f"{home}.{qualified} is another function than it was"
    return ""


def file_hash(path: str) -> str:
    """Return the hash of a file's contents."""
    status = os.stat(path)
    return _file_hash(path, status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _file_hash(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _modules_by_file() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            found.setdefault(file, name)
    return found


def _function(home: str, name: str, code: CodeType) -> bool:
    return any(each is code for each in _codes(home, name))


def _generated(code: CodeType) -> str:
    """Return a method's name that was generated (a dataclass's), as ``module:Class.method``."""
    for home, module in list(sys.modules.items()):
        for kind in list(vars(module).values()) if module is not None else ():
            if isinstance(kind, type) and kind.__module__ == home:
                method = vars(kind).get(code.co_name)
                if getattr(method, "__code__", None) is code:
                    return f"{home}:{kind.__qualname__}.{code.co_name}"
    return ""


def _codes(home: str, name: str) -> Iterable[CodeType]:
    """Yield the code of what has a name, and of what its decorators are round."""
    found: Any = sys.modules.get(home)
    for part in name.split("."):
        try:
            found = inspect.getattr_static(found, part)
        except AttributeError:
            return
    for _ in range(_WRAPPERS):
        found = getattr(found, "__func__", getattr(found, "fget", None) or found)
        code = getattr(found, "__code__", None)
        if isinstance(code, CodeType):
            yield code
        found = getattr(found, "__wrapped__", None)
        if found is None:
            return


def _is_within(code: CodeType, outer: CodeType) -> bool:
    """Whether code is that of a function within another one: a part of its constants."""
    inner = [each for each in outer.co_consts if isinstance(each, CodeType)]
    return any(each is code or _is_within(code, each) for each in inner)


__all__ = ["changed", "file_hash", "origins"]
