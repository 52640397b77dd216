"""macOS, on Apple's processors and on Intel's.

Written from Apple's headers and cross-compiled for; docs/platforms.md says what was run.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from typing import Any, ClassVar

from fusec.systems.face import Processor
from fusec.systems.posix import Posix, _Handler

_UTILITY = 0x11  # QOS_CLASS_UTILITY
_SA_SIGINFO = 0x40
# In ucontext_t: where the pointer to the thread's state is; in that: the fault's code.
_MCONTEXT = 48
_X86_ERROR_CODE = 4
_X86_WRITE = 2
_ARM_SYNDROME = 8
_ARM_WRITE = 1 << 6
# The instruction sets of x86 that kernels tell apart, as sysctl and as Linux name them.
_FEATURES = {
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.fma": "fma",
    "hw.optional.f16c": "f16c",
    "hw.optional.arm.FEAT_FP16": "fphp",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
}


class _Action(ctypes.Structure):
    """``struct sigaction`` of macOS."""

    _fields_: ClassVar[Any] = (
        ("handler", _Handler),
        ("mask", ctypes.c_uint32),
        ("flags", ctypes.c_int),
    )


class MacOS(Posix):
    """macOS."""

    name = "macos"
    openmp_patterns = ("libomp*.dylib", "libiomp5*.dylib", "libgomp*.dylib")
    _action = _Action
    _told = _SA_SIGINFO
    _si_address = 24

    def python_flags(self) -> tuple[str, ...]:
        """Return link flags for what takes Python's functions from the process that loads it."""
        return "-undefined", "dynamic_lookup"

    def give_way(self) -> None:
        """Let this thread run behind all others."""
        with contextlib.suppress(AttributeError):
            self._libc.pthread_set_qos_class_self_np(_UTILITY, 0)

    def _wrote(self, context: int) -> bool | None:
        state = ctypes.c_uint64.from_address(context + _MCONTEXT).value
        if platform.machine() == "x86_64":
            code = ctypes.c_uint32.from_address(state + _X86_ERROR_CODE).value
            return bool(code & _X86_WRITE)
        return bool(ctypes.c_uint32.from_address(state + _ARM_SYNDROME).value & _ARM_WRITE)

    # -- the processor ------------------------------------------------------------------------

    def processor(self) -> Processor:
        """Return what sysctl says."""
        name = self._text("machdep.cpu.brand_string")
        model = [self._number("machdep.cpu.family"), self._number("machdep.cpu.model")]
        found = {linux for name, linux in _FEATURES.items() if self._number(name)}
        found |= {f"model={value}" for value in model if value} | {f"name={name}"}
        return Processor(name, self._text("machdep.cpu.vendor"), frozenset(found))

    def last_cache(self) -> int:
        """Return the bytes of the last cache before the memory."""
        sizes = (self._number(f"hw.{level}cachesize") for level in ("l3", "perflevel0.l2", "l2"))
        return next((size for size in sizes if size), super().last_cache())

    def memory_size(self) -> int:
        """Return the bytes of the machine's memory."""
        return self._number("hw.memsize") or super().memory_size()

    def _read(self, name: str) -> bytes:
        size = ctypes.c_size_t(0)
        given = name.encode()
        if self._libc.sysctlbyname(given, None, ctypes.byref(size), None, ctypes.c_size_t(0)):
            return b""
        found = ctypes.create_string_buffer(size.value)
        failed = self._libc.sysctlbyname(given, found, ctypes.byref(size), None, ctypes.c_size_t(0))
        return b"" if failed else found.raw[: size.value]

    def _text(self, name: str) -> str:
        return self._read(name).rstrip(b"\0").decode(errors="replace")

    def _number(self, name: str) -> int:
        return int.from_bytes(self._read(name), "little")
