"""Getting ready before the first compilation: what it would otherwise wait for."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusec.gc_pause import Rest

if TYPE_CHECKING:
    from fusec.target_api.base import Target

# TorchDynamo takes about a second to import, AOTAutograd with its decompositions and the emitter
# half a second more.  What one of them imports first has a line of its own, so that who has to
# stop in the middle does not have to wait for all of it.
_MODULES = (
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch._dynamo.utils",
    "torch._dynamo.convert_frame",
    "torch._dynamo.repro.after_dynamo",  # this one and the next: at the first compilation
    "torch.distributed.tensor.experimental",
    "torch._functorch.aot_autograd",
    "torch._functorch.partitioners",
    "fusec.capture.backend",
    "fusec.api",
    "fusec.verify.check",
)

_lock = threading.Lock()
_helped = False
_interpreted: set[str] = set()
_IMPORTING = 180.0  # seconds, on a machine with much else to do


def prestart() -> None:
    """Import the compiler, start the worker for candidate kernels, look for what compiles them.

    The worker is a process and the search runs other programs, so both go on in the background.
    The imports do not: two threads that import parts of torch at once may each see a half-made
    module of the other's.  Who knows that no other thread imports anything may take ``steps``
    into a thread instead.  May be called often; only the first call does anything.
    """
    start_helpers()
    for step in steps():
        step()


def start_helpers() -> None:
    """Start the worker and the search for a compiler, once; returns at once."""
    global _helped
    with _lock:
        if _helped:
            return
        _helped = True
    from fusec.verify.isolation import sandbox

    sandbox.prestart()
    threading.Thread(target=_find_tools, name="fusec-prestart", daemon=True).start()


def start_interpreter(name: str) -> None:
    """Let the worker import what interprets a target's kernels where there is no GPU, once.

    Triton and what it calls take the worker more than a second, which is over by the time that a
    cell which asks for the target is compiled. Returns at once.

    Args:
        name: The target's, or ``auto``.
    """
    import torch  # not at the top: loading a notebook's extension does not wait for it

    from fusec.devices import CPU
    from fusec.target_api.registry import chosen_target

    target = chosen_target(name, CPU)
    modules = target.worker_imports
    if not modules or target.name in _interpreted or torch.cuda.is_available():
        return
    _interpreted.add(target.name)
    threading.Thread(target=_import_there, args=(modules,), name="fusec-ahead", daemon=True).start()


def _import_there(modules: tuple[str, ...]) -> None:
    from fusec.verify.isolation import process, sandbox

    # whoever checks something will say it
    with contextlib.suppress(OSError, process.WorkerError):
        sandbox.worker().ask({"do": "import", "modules": list(modules)}, (), _IMPORTING)


def steps() -> tuple[Callable[[], object], ...]:
    """Return what there is to import and to make, each doing nothing the second time."""
    imports = (functools.partial(_import, name) for name in _MODULES)
    return (*imports, _of_target, _native, _decompositions)


def _import(name: str) -> None:
    # where torch has no such part (torch.distributed is not in every build), nobody needs it
    with contextlib.suppress(ModuleNotFoundError), Rest():
        importlib.import_module(name)


def _native() -> None:
    # Not before the imports: where a cell follows at once, its own kernel needs the processor.
    from fusec.call import native

    native.prepare()


def _target() -> Target:
    # not at the top: loading a notebook's extension imports nothing of the compiler
    from fusec.devices import CPU
    from fusec.target_api.registry import default_target

    return default_target(CPU)


def _of_target() -> None:
    target = _target()
    for name in target.imports:
        _import(name)
    target.read_helpers()


def _find_tools() -> None:
    _target().find_tools()


def _decompositions() -> None:
    from fusec.graph.decompositions import decomposition_table

    decomposition_table()
