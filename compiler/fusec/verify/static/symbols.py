"""Names in a library's file as a text of C++ has them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from typing import Any


def readable(symbol: str) -> str:
    """Return a symbol as C++ writes it, without its parameters."""
    if symbol == "__assert_fail":
        return "assert"
    shown = _demangled(symbol).replace("(anonymous namespace)::", "")
    return re.sub(r"\(.*|\[abi:\w+\]", "", shown)


def _demangled(symbol: str) -> str:
    shown = _demangle(symbol.encode()) if symbol.startswith("_Z") else b""
    return (shown or symbol.encode()).decode()


@functools.cache
def _demangler() -> Any:
    """Return the C++ library's function for that; None where it is not found."""
    for name in ("libstdc++.so.6", "libc++.1.dylib", "libc++.so.1"):
        with contextlib.suppress(OSError, AttributeError):
            function = ctypes.CDLL(name).__cxa_demangle
            function.restype = ctypes.c_char_p
            return function
    return None


def _demangle(symbol: bytes) -> bytes | None:
    function = _demangler()
    found: bytes | None = function(symbol, None, None, None) if function is not None else None
    return found


def own_name(symbol: str) -> str:
    """Return what a text calls a variable or function of its own."""
    shown = re.sub(r"^(typeinfo|guard variable|vtable) for ", "", _demangled(symbol))
    # A variable within a function stands behind that function's parameters.
    within = re.search(r"::(\w+)$", re.sub(r"\[abi:\w+\]", "", shown))
    if within:
        return within[1]
    shown = re.sub(r"\(.*|\[abi:\w+\]", "", shown.replace("(anonymous namespace)::", ""))
    return re.sub(r"\.\d+$", "", shown.rpartition("::")[2])


__all__ = ["own_name", "readable"]
