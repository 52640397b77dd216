"""The native part of a call: built once a machine, in the background, from the C++ files here.

Where it cannot be built (no Python headers, another compiler, a Python without the global lock)
everything runs as it does until it is there: by Python, more slowly.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusec.build.python_headers import python_flags, python_name
from fusec.call import huge_pages as memory
from fusec.call.native import capsule
from fusec.systems import this_system
from fusec.targets.cpp.toolchain import build as cpp_build

_SOURCES = (  # in the order of their use
    "tensors.cpp",
    "inputs.cpp",
    "results.cpp",
    "program.cpp",
    "entry.cpp",
    "driver.cpp",
    "plan.cpp",
    "chains.cpp",
    "plan_run.cpp",
    "residents.cpp",
    "plan_type.cpp",
    "device.cpp",
    "dispatcher.cpp",
)
# Seconds for the compiler: nobody waits for it, and it gives way to all else on a busy machine.
_TIME_LIMIT = 600.0
_lock = threading.Lock()
_thread: threading.Thread | None = None
_types: NativeTypes | None = None
_problem = ""
_routed: set[type] = set()


@dataclass(frozen=True)
class NativeTypes:
    """What the C++ files define, each explained there."""

    Program: Any
    Entry: Any
    Dispatcher: Any
    call_by_route: Any
    Driver: Any
    Plan: Any
    DeviceProgram: Any
    InputCheck: Any
    ResultCheck: Any


def prepare(*, awaited: bool = False) -> None:
    """Start building, once a process, while other things are done.

    Args:
        awaited: Whether somebody waits for it, so that it need not give way.
    """
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(
                target=_prepare, args=(awaited,), name="fusec-native", daemon=True
            )
            _thread.start()


def types(*, wait: bool = False) -> NativeTypes | None:
    """Return the native types; None where they are not there, or not yet.

    Args:
        wait: Whether to wait for the build.
    """
    if wait:
        prepare(awaited=True)
        assert _thread is not None
        _thread.join()
    return _types


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
    return _problem


def _prepare(awaited: bool) -> None:
    global _types, _problem
    if not awaited:
        # This thread, and the compiler that it starts, give way to what somebody waits for.
        this_system().give_way()
    memory.prepare()
    capsule.prepare()
    try:
        _types = _load()
    except Exception as error:
        # Calls cost more without it, and nothing else changes.
        _problem = f"{type(error).__name__}: {error}"


def _load() -> NativeTypes:
    # The first line makes another Python another text, so that it has a build of its own.
    text = f"// {python_name()}\n" + "\n".join(
        Path(__file__).with_name(name).read_text() for name in _SOURCES
    )
    built = cpp_build.build(text, extra_flags=python_flags(), kind="native", time_limit=_TIME_LIMIT)
    library = cpp_build.load_library(built)
    make = ctypes.PYFUNCTYPE(ctypes.py_object)(("fusec_native_types", library))
    return NativeTypes(*make())


def exchange() -> Any:
    """Return the capsule by which native code reads tensors; None where there is none."""
    return capsule.exchange()


__all__ = ["NativeTypes", "call_by_route", "exchange", "prepare", "problem", "types"]
