"""Windows on x86-64.

Written from Microsoft's documentation and cross-compiled for; docs/platforms.md says what was run.
A candidate has no process of its own here yet, so that an edit is refused with that reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from fusec.systems.face import Processor, System, python_library_folder

_NEW_GROUP = 0x00000200  # CREATE_NEW_PROCESS_GROUP
_NO_WINDOW = 0x08000000  # CREATE_NO_WINDOW
_BELOW_NORMAL = -1  # THREAD_PRIORITY_BELOW_NORMAL
_AVX2, _AVX512F = 40, 41  # PF_AVX2_INSTRUCTIONS_AVAILABLE, PF_AVX512F_INSTRUCTIONS_AVAILABLE


class _MemoryStatus(ctypes.Structure):
    """``MEMORYSTATUSEX``."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("physical", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 6),
    )


class Windows(System):
    """Windows."""

    name = "windows"
    library = "kernel.dll"
    openmp_patterns = ("libiomp5md.lib", "libomp*.lib")
    torchs_library = "Microsoft's library"
    cuda_driver = "nvcuda.dll"

    # -- libraries ----------------------------------------------------------------------------

    def load_library(self, path: Path, descriptor: int) -> ctypes.CDLL:
        """Map a library, which finds OpenMP's runtime and torch's libraries in torch's folder."""
        folder = torch_folder()
        found = os.add_dll_directory(str(folder)) if folder is not None else None  # type: ignore[attr-defined,unused-ignore]
        try:
            return ctypes.CDLL(str(path))
        finally:
            if found is not None:
                found.close()

    def python_flags(self) -> tuple[str, ...]:
        """Return link flags: a library names Python's own, which the process has loaded."""
        version = f"python{sys.version_info[0]}{sys.version_info[1]}"
        return f"-L{python_library_folder()}", f"-l{version}"

    def python_headers(self) -> str:
        """Return how to come by ``Python.h``."""
        return "the installer from python.org brings them; conda: conda install python"

    # -- processes ----------------------------------------------------------------------------

    def detached(self) -> dict[str, Any]:
        """Return arguments for ``Popen`` that keep the console's signals and windows away."""
        return {"creationflags": _NEW_GROUP | _NO_WINDOW}

    def end_tree(self, process: subprocess.Popen[Any]) -> None:
        """Kill a process and those that it started."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
            subprocess.run(command, capture_output=True, timeout=10, check=False)
        process.kill()

    def give_way(self) -> None:
        """Let this thread run behind all others."""
        kernel = self._kernel
        kernel.SetThreadPriority(kernel.GetCurrentThread(), _BELOW_NORMAL)

    # -- memory -------------------------------------------------------------------------------

    @functools.cached_property
    def _kernel(self) -> Any:
        kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  (only there on Windows)
        kernel.GetCurrentThread.restype = ctypes.c_void_p
        kernel.SetThreadPriority.argtypes = [ctypes.c_void_p, ctypes.c_int]
        return kernel

    def memory_size(self) -> int:
        """Return the bytes of the machine's memory."""
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        if not self._kernel.GlobalMemoryStatusEx(ctypes.byref(status)):
            return super().memory_size()
        return int(status.physical)

    # -- the processor ------------------------------------------------------------------------

    def processor(self) -> Processor:
        """Return what Windows says: the model in ``PROCESSOR_IDENTIFIER``, two instruction sets."""
        model = platform.processor()
        vendor = model.rpartition(",")[2].strip()
        found = {f"model={model}"}
        for number, name in ((_AVX2, "avx2"), (_AVX512F, "avx512f")):
            if self._kernel.IsProcessorFeaturePresent(number):
                found.add(name)
        return Processor(model, vendor, frozenset(found))


def torch_folder() -> Path | None:
    """Return where torch's libraries are."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent / "lib" if spec is not None and spec.origin else None
