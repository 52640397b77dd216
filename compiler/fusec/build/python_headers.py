"""What a library needs that is built against the headers of the Python that runs."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from fusec.systems import this_system


def python_flags() -> list[str]:
    """Return compiler flags for C++ that uses Python's interface.

    Symbols come from the process that loads the library.

    Raises:
        FileNotFoundError: The headers are not installed.
        NotImplementedError: It is another Python than CPython with its global lock.
    """
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        raise FileNotFoundError(f"no Python.h in {include}: {this_system().python_headers()}")
    if sysconfig.get_config_var("Py_GIL_DISABLED") or sys.implementation.name != "cpython":
        raise NotImplementedError("only CPython with its global lock is supported")
    return [f"-I{include}", "-O2", *this_system().python_flags()]


def python_name() -> str:
    """Return a name of this Python's binary interface: another one needs another build."""
    return str(sysconfig.get_config_var("SOABI"))


__all__ = ["python_flags", "python_name"]
