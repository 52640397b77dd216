"""fusec: a fusion compiler for PyTorch that lets its stages be read and its kernels be edited.

``fusec.compile(function)`` or ``torch.compile(function, backend="fusec")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusec.version import __version__

if TYPE_CHECKING:
    from fusec import cache
    from fusec.ahead.signatures import CallSignature
    from fusec.api import (
        compile,
        device_summary,
        explain,
        freeze,
        precompile,
        predict,
        predict_calls,
        record,
    )
    from fusec.cache_archive import export_cache, import_cache
    from fusec.compiled.graph import CompiledGraph
    from fusec.compiled_function import CompiledFunction
    from fusec.errors import FusecError
    from fusec.freezing import FrozenMiss, frozen
    from fusec.kernel import Kernel
    from fusec.options import Options
    from fusec.packages.load import load
    from fusec.packages.write import package
    from fusec.warm import prestart

# Imported when first used: the worker that runs candidate kernels must stay small and quick.
_HOMES = {
    "CompiledFunction": "fusec.api",
    "CompiledGraph": "fusec.compiled.graph",
    "FrozenMiss": "fusec.freezing",
    "FusecError": "fusec.errors",
    "Kernel": "fusec.kernel",
    "Options": "fusec.options",
    "compile": "fusec.api",
    "export_cache": "fusec.cache_archive",
    "import_cache": "fusec.cache_archive",
    "device_summary": "fusec.api",
    "explain": "fusec.api",
    "freeze": "fusec.api",
    "frozen": "fusec.freezing",
    "load": "fusec.packages.load",
    "package": "fusec.packages.write",
    "precompile": "fusec.api",
    "predict": "fusec.api",
    "predict_calls": "fusec.api",
    "prestart": "fusec.warm",
    "record": "fusec.api",
    "CallSignature": "fusec.ahead.signatures",
}

NO_TORCH = (
    "torch is not installed: pip install 'fuselab[torch]' (packages run without it:"
    " from fusec.packages.runtime import load)"
)


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    from importlib import import_module

    if name == "cache":
        return import_module("fusec.cache")
    if name not in _HOMES:
        raise AttributeError(f"module 'fusec' has no attribute {name!r}")

    from fusec.gc_pause import Rest

    with Rest():
        try:
            value = getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(NO_TORCH, name="torch") from None
    globals()[name] = value
    return value


__all__ = [
    "CallSignature",
    "CompiledFunction",
    "CompiledGraph",
    "FrozenMiss",
    "FusecError",
    "Kernel",
    "Options",
    "__version__",
    "cache",
    "compile",
    "device_summary",
    "explain",
    "export_cache",
    "freeze",
    "frozen",
    "import_cache",
    "load",
    "package",
    "precompile",
    "predict",
    "predict_calls",
    "prestart",
    "record",
]
