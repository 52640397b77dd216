"""fusec: a fusion compiler for PyTorch that lets its stages be read and its kernels be edited.

``fusec.compile(function)`` or ``torch.compile(function, backend="fusec")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusec.version import __version__

if TYPE_CHECKING:
    from fusec.api import CompiledFunction, compile, device_summary, explain, predict, predict_calls
    from fusec.compiled.graph import CompiledGraph
    from fusec.errors import FusecError
    from fusec.kernel import Kernel
    from fusec.options import Options
    from fusec.packages.load import load
    from fusec.packages.write import package
    from fusec.warm import prestart

# Imported when first used: the worker that runs candidate kernels must stay small and quick.
_HOMES = {
    "CompiledFunction": "fusec.api",
    "CompiledGraph": "fusec.compiled.graph",
    "FusecError": "fusec.errors",
    "Kernel": "fusec.kernel",
    "Options": "fusec.options",
    "compile": "fusec.api",
    "device_summary": "fusec.api",
    "explain": "fusec.api",
    "load": "fusec.packages.load",
    "package": "fusec.packages.write",
    "predict": "fusec.api",
    "predict_calls": "fusec.api",
    "prestart": "fusec.warm",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fusec' has no attribute {name!r}")
    from importlib import import_module

    from fusec.gc_pause import Rest

    with Rest():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


__all__ = [
    "CompiledFunction",
    "CompiledGraph",
    "FusecError",
    "Kernel",
    "Options",
    "__version__",
    "compile",
    "device_summary",
    "explain",
    "load",
    "package",
    "predict",
    "predict_calls",
    "prestart",
]
