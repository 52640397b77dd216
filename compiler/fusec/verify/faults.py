"""A signal handler that says where a kernel went wrong before the process ends.

It is Python called through ctypes.  That is enough: a kernel runs with the interpreter's lock
released, and a faulting thread of an OpenMP team can take it.  Where the handler itself cannot
run any more, the signal ends the process as it would have without it, and the report is less
precise.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
from typing import Any

_SA_SIGINFO = 4
_HANDLED = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

# Where Linux puts them: the address in siginfo_t; the page-fault code in x86-64's ucontext_t.
_SI_CODE = 8
_SI_ADDR = 16
_X86_ERROR_CODE = 40 + 19 * 8
_X86_WRITE_BIT = 2
_X86_RIP = 40 + 16 * 8
_INSTRUCTION = 15  # bytes that one has at most

# The processor refused the access itself: the address is none, or not aligned as it has to be.
_SI_KERNEL = 128

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_kept: list[object] = []


def install(descriptor: int) -> None:
    """Report a fatal signal as one JSON line on ``descriptor``, then end the process."""
    knows_write = platform.machine() == "x86_64"

    def handle(number: int, info: int, context: int) -> None:
        report: dict[str, Any] = {
            "signal": number,
            "code": ctypes.c_int.from_address(info + _SI_CODE).value,
            "address": ctypes.c_uint64.from_address(info + _SI_ADDR).value,
        }
        if knows_write and number == signal.SIGSEGV:
            error = ctypes.c_uint64.from_address(context + _X86_ERROR_CODE).value
            report["write"] = bool(error & _X86_WRITE_BIT)
            at = ctypes.c_uint64.from_address(context + _X86_RIP).value
            if report["code"] == _SI_KERNEL:
                report["instruction"] = ctypes.string_at(at, _INSTRUCTION).hex()
        if number == signal.SIGILL:
            report["instruction"] = ctypes.string_at(report["address"], 4).hex()
        os.write(descriptor, (json.dumps({"fault": report}) + "\n").encode())
        os._exit(128 + number)

    action = _Action(handler=_Handler(handle), flags=_SA_SIGINFO)
    # The kernel calls it for as long as the process lives.
    _kept.append(action)
    libc = ctypes.CDLL(None, use_errno=True)
    for number in _HANDLED:
        libc.sigaction(int(number), ctypes.byref(action), None)
