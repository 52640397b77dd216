"""The native part of a call: built once a machine, in the background, from the C++ files here.

Where it cannot be built (no Python headers, another compiler, a Python without the global lock)
everything runs as it does until it is there: by Python, more slowly.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fusec.build.python_headers import python_flags, python_name
from fusec.call import huge_pages as memory
from fusec.call.native import capsule, products
from fusec.call.native_part import TIME_LIMIT, passes
from fusec.freezing import FrozenMiss, begun_before, is_frozen
from fusec.systems import this_system
from fusec.toolchain.build import build
from fusec.toolchain.children import Children
from fusec.toolchain.loading import load_library

_SHARED = ("tensors.cpp", "system.cpp", "inputs.cpp")  # in the order of their use, as the two below
_CALLS = (*_SHARED, "results.cpp", "program.cpp", "entry.cpp", "dispatcher.cpp")
_DEVICE = (
    *_SHARED,
    "driver.cpp",
    "plan.cpp",
    "chains.cpp",
    "plan_run.cpp",
    "residents.cpp",
    "plan_type.cpp",
    "device.cpp",
)
# How often it is tried to build it where the disk is full, say, or the compiler is ended.
_MOST_TRIES = 3
# An end of the process waits so long for the thread whose compiler was ended.
_END_SECONDS = 1.0
_lock = threading.Lock()
_children = Children()
_memory_thread: threading.Thread | None = None
_thread: threading.Thread | None = None
_types: NativeTypes | None = None
_device_types: DeviceTypes | None = None
_failed = 0  # how often a build failed for what passes, other than for being frozen
_waited = 0.0  # seconds that were spent in vain
_routed: set[type] = set()


@dataclass(frozen=True)
class _Lack:
    """Why there is no native part, and whether there may be one another time; read at once."""

    problem: str = ""
    passes: bool = False


_lack = _Lack()


@dataclass(frozen=True)
class NativeTypes:
    """What the C++ files define, each explained there."""

    Program: Any
    Entry: Any
    Dispatcher: Any
    call_by_route: Any
    InputCheck: Any
    ResultCheck: Any


@dataclass(frozen=True)
class DeviceTypes:
    """The same of graphs on a GPU: a library of its own, which other machines need not build."""

    Driver: Any
    Plan: Any
    DeviceProgram: Any


def prepare_memory() -> None:
    """Start building the pool of large tensors' memory, which takes a second, once a process.

    Without it kernels over large tensors take up to 1.5 times as long.  So it does not wait for
    the first kernels, nor give way to them: TorchDynamo needs longer than that for its part.
    """
    global _memory_thread
    with _lock:
        if _memory_thread is None:
            _memory_thread = _started("fusec-memory", _prepare_memory, not is_frozen())


def prepare(*, awaited: bool = False) -> None:
    """Start building all of it, once a process, while other things are done.

    What begins before compilation is frozen goes on.  What would begin while it is frozen takes
    what the store has; where it has not all, a later call of this begins anew.  So it does where
    a build failed for what passes, a full disk say, a few times.

    Args:
        awaited: Whether somebody waits for it, so that it need not give way.
    """
    global _thread, _lack
    with _lock:
        if _thread is None or (_lack.passes and not is_frozen()):
            _lack = _Lack()
            _thread = _started("fusec-native", _prepare, awaited, not is_frozen())


def types(*, wait: bool = False) -> NativeTypes | None:
    """Return the native types; None where they are not there, or not yet.

    Where there is a GPU, those for it are there as soon as these are.

    Args:
        wait: Whether to wait for the build.
    """
    if wait:
        prepare(awaited=True)
        assert _thread is not None
        _thread.join()
    return _types


def await_types(seconds: float) -> bool:
    """Wait for the native types before something is timed that is called through them later.

    Without them a call takes longer, and a short one several times as long.  Who has waited in vain
    need not wait once more: a busy machine may take minutes.

    Args:
        seconds: At most, in all calls together.

    Returns:
        Whether nothing is being built: they are there, or do not come, or nobody asked for them.
    """
    global _waited
    if _thread is None:
        return True
    began = time.monotonic()
    _thread.join(max(0.0, seconds - _waited))
    ready = not _thread.is_alive()
    if not ready:
        _waited += time.monotonic() - began
    return ready


def device_types(*, build: bool = False) -> DeviceTypes | None:
    """Return the native types for a GPU; None where there is none, or they are not there yet.

    Args:
        build: Whether to build them even so, for what stands in for a GPU.
    """
    global _device_types
    if build and _device_types is None:
        found = types(wait=True)
        with _lock:
            if found is not None and _device_types is None:
                _device_types = _load_device(found)
    return _device_types


def call_by_route(kind: type) -> None:
    """Let calls of a class's objects go to their ``_route`` natively, where there is a way.

    Args:
        kind: A class whose ``__call__`` passes its arguments to ``self._route``.
    """
    if _types is not None and kind not in _routed:
        _types.call_by_route(kind)
        _routed.add(kind)


def problem() -> str:
    """Return why there is no native part; empty where there is one, or not yet."""
    return _lack.problem


def is_lost() -> bool:
    """Whether there is no native part and none will come; where it may yet, it is asked for."""
    if _lack.passes and not is_frozen():
        prepare()
    lack = _lack
    return bool(lack.problem) and not lack.passes


def _started(name: str, work: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    thread.start()
    atexit.register(_end, thread, os.getpid())
    return thread


def _end(thread: threading.Thread, process: int) -> None:
    """At exit: nobody needs the build any more, and nobody waits for it."""
    if os.getpid() == process:
        _children.stop()
        thread.join(_END_SECONDS)


def _prepare_memory(may_compile: bool) -> None:
    # Frozen: ``prepare`` asks for it again.
    with suppress(FrozenMiss), begun_before() if may_compile else nullcontext():
        memory.part.prepare(_children)


def _prepare(awaited: bool, may_compile: bool) -> None:
    global _lack, _failed
    try:
        with begun_before() if may_compile else nullcontext():
            _prepare_all(awaited)
    except KeyboardInterrupt:
        _lack = _Lack("the process ends")
    except FrozenMiss as error:
        _lack = _Lack(f"{type(error).__name__}: {error}", passes=True)
    except Exception as error:
        # Calls cost more without it, and nothing else changes.
        _failed += passes(error)
        again = passes(error) and _failed < _MOST_TRIES
        _lack = _Lack(f"{type(error).__name__}: {error}", again)


def _prepare_all(awaited: bool) -> None:
    global _types, _device_types
    memory.part.prepare(_children)
    if not awaited and not this_system().is_busy():
        # This thread, and the compiler that it starts, give way to what somebody waits for.  Where
        # others have work for every processor, it would have none of them for minutes.
        this_system().give_way()
    capsule.part.prepare(_children)
    products.part.prepare(_children)
    made = NativeTypes(*_load(_CALLS, "fusec_native_types")())
    if torch.cuda.is_available():
        _device_types = _load_device(made)
    _types = made


def _load_device(made: NativeTypes) -> DeviceTypes:
    return DeviceTypes(*_load(_DEVICE, "fusec_device_types", ctypes.py_object)(made.InputCheck))


def _load(sources: tuple[str, ...], symbol: str, *takes: Any) -> Callable[..., Any]:
    """Build a library and return its one function, which returns a tuple."""
    # The first line makes another Python another text, so that it has a build of its own.
    text = f"// {python_name()}\n" + "\n".join(
        Path(__file__).with_name(name).read_text() for name in sources
    )
    built = build(
        text,
        extra_flags=python_flags(),
        kind="native",
        time_limit=TIME_LIMIT,
        # In this thread, which no end of the process waits for, as it would for a pool's.
        children=_children,
    )
    library = load_library(built)
    made: Callable[..., Any] = ctypes.PYFUNCTYPE(ctypes.py_object, *takes)((symbol, library))
    return made


def exchange() -> Any:
    """Return the capsule by which native code reads tensors; None where there is none."""
    return capsule.exchange()


__all__ = [
    "DeviceTypes",
    "NativeTypes",
    "await_types",
    "call_by_route",
    "device_types",
    "exchange",
    "is_lost",
    "prepare",
    "prepare_memory",
    "problem",
    "types",
]
