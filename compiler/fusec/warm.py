"""Getting ready before the first compilation: what it would otherwise wait for."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable

from fusec.devices import CPU
from fusec.gc_pause import Rest
from fusec.target_api.registry import default_target

# TorchDynamo takes about a second to import, AOTAutograd with its decompositions and the emitter
# half a second more.  What one of them imports first has a line of its own, so that who has to
# stop in the middle does not have to wait for all of it.
_BEFORE = (
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
)
_AFTER = ("fusec.verify.check",)

_lock = threading.Lock()
_helped = False


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
    from fusec.verify import sandbox

    sandbox.prestart()
    threading.Thread(
        target=default_target(CPU).find_tools, name="fusec-prestart", daemon=True
    ).start()


def steps() -> tuple[Callable[[], object], ...]:
    """Return what there is to import and to make, each doing nothing the second time."""
    target = default_target(CPU)
    imports = (functools.partial(_import, n) for n in (*_BEFORE, *target.imports, *_AFTER))
    return (*imports, _native, _decompositions, target.read_helpers)


def _import(name: str) -> None:
    # where torch has no such part (torch.distributed is not in every build), nobody needs it
    with contextlib.suppress(ModuleNotFoundError), Rest():
        importlib.import_module(name)


def _native() -> None:
    # Not before the imports: where a cell follows at once, its own kernel needs the processor.
    from fusec.call import native

    native.prepare()


def _decompositions() -> None:
    from fusec.graph.decompositions import decomposition_table

    decomposition_table()
