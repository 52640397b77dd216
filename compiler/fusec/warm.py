"""Getting ready before the first compilation: what it would otherwise wait for."""

from __future__ import annotations

import contextlib
import importlib
import threading

from fusec.errors import FusecError

# TorchDynamo takes about a second to import, AOTAutograd with its decompositions and the emitter
# half a second more.
_MODULES = (
    "torch._dynamo.convert_frame",
    "fusec.api",
    "fusec.codegen.cpp.emit",
    "fusec.verify.check",
)

_lock = threading.Lock()
_done = False


def prestart() -> None:
    """Import the compiler, start the worker for candidate kernels, look for a C++ compiler.

    The worker is a process and the search runs other programs, so both go on in the background.
    The imports do not: two threads that import parts of torch at once may each see a half-made
    module of the other's.  May be called often; only the first call does anything.
    """
    global _done
    with _lock:
        if _done:
            return
        _done = True
    from fusec.verify import sandbox

    sandbox.prestart()
    threading.Thread(target=_find_compiler, name="fusec-prestart", daemon=True).start()
    for name in _MODULES:
        importlib.import_module(name)
    from fusec.graph.decompositions import decomposition_table

    decomposition_table()


def _find_compiler() -> None:
    from fusec.runtime.cpp_compiler import find_compiler

    # without one, the first cell says so itself
    with contextlib.suppress(FusecError):
        find_compiler()
