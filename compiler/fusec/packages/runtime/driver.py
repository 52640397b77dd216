"""NVIDIA's driver by its C interface: memory, code and starts on one GPU, without torch."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from .errors import CannotRun

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_PLAIN_SHARED = 48 << 10  # what a function may have without being asked
_NAMES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64}
_TYPES |= {"fp32": ctypes.c_float, "pointer": ctypes.c_uint64}  # type: ignore[dict-item]


class Driver:
    """One GPU, in the context that other libraries share.

    Args:
        device: Its number.
        library: The driver; looked for if None. Tests put another in its place.

    Attributes:
        architecture: ``90`` for ``sm_90``.

    Raises:
        CannotRun: There is no driver, or no such GPU.
    """

    def __init__(self, device: int = 0, library: Any = None) -> None:
        self._library = library if library is not None else _find()
        self.device = device
        self._call("cuInit", 0)
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            number = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, handle)
            numbers.append(number.value)
        self.architecture = 10 * numbers[0] + numbers[1]
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._context = context
        self._lock = threading.Lock()
        self._free: dict[int, list[int]] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            words = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(words))
            said = (words.value or b"").decode(errors="replace")
            raise CannotRun(f"the GPU's driver: {name} failed with {status} {said}".rstrip())

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Have calls of this thread go to this GPU; what was there is put back."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    # -- memory -------------------------------------------------------------------------------

    def take(self, size: int) -> int:
        """Return the address of memory; that which was given back comes first."""
        with self._lock:
            spare = self._free.get(size)
            if spare:
                return spare.pop()
        address = ctypes.c_uint64()
        with self._current():
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def give(self, address: int, size: int) -> None:
        """Give memory back: starts that use it come before those of whoever takes it next."""
        with self._lock:
            self._free.setdefault(size, []).append(address)

    def write(self, to: int, data: int, size: int) -> None:
        """Copy memory of the process to the GPU."""
        with self._current():
            self._call(
                "cuMemcpyHtoD_v2",
                ctypes.c_uint64(to),
                ctypes.c_void_p(data),
                ctypes.c_size_t(size),
            )

    def read(self, into: int, address: int, size: int) -> None:
        """Copy memory of the GPU to the process; waits for what was started."""
        with self._current():
            self._call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(into),
                ctypes.c_uint64(address),
                ctypes.c_size_t(size),
            )

    def copy(self, to: int, address: int, size: int, stream: int) -> None:
        """Copy memory of the GPU, in the order of a stream's starts."""
        with self._current():
            self._call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(to),
                ctypes.c_uint64(address),
                ctypes.c_size_t(size),
                ctypes.c_void_p(stream),
            )

    def device_of(self, address: int) -> int | None:
        """Return the number of the GPU that memory lies on; None if it lies on none."""
        found = ctypes.c_int(-1)
        with self._current():
            status = self._library.cuPointerGetAttribute(
                ctypes.byref(found), _ORDINAL, ctypes.c_uint64(address)
            )
        return None if status else found.value

    # -- code ---------------------------------------------------------------------------------

    def function(self, code: memoryview, name: str, shared: int) -> Any:
        """Load machine code; return the function of that name.

        Args:
            code: A cubin; it has been compared with its hash.
            name: The function's.
            shared: Bytes of shared memory that it is started with.
        """
        module, found = ctypes.c_void_p(), ctypes.c_void_p()
        data = bytes(code)
        with self._current():
            self._call("cuModuleLoadData", ctypes.byref(module), data)
            self._call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
            if shared > _PLAIN_SHARED:
                self._call("cuFuncSetAttribute", found, _MOST_SHARED, shared)
        return found

    def start(
        self,
        function: Any,
        grid: Sequence[int],
        threads: int,
        shared: int,
        stream: int,
        arguments: Sequence[tuple[str, Any]],
    ) -> None:
        """Start a function; returns at once.

        Args:
            function: What ``function`` returned.
            grid: How many blocks, three numbers.
            threads: Of a block.
            shared: Bytes of shared memory of a block.
            stream: The driver's number; 0 for the first one.
            arguments: Types and values; pointers are addresses.
        """
        values = [_TYPES[kind](value) for kind, value in arguments]
        places = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        with self._current():
            self._call(
                "cuLaunchKernel",
                function,
                *grid,
                threads,
                1,
                1,
                shared,
                ctypes.c_void_p(stream),
                places,
                None,
            )


def _find() -> Any:
    for name in _NAMES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise CannotRun(
        "there is no driver of an NVIDIA GPU on this machine", "run it where there is such a GPU"
    )


__all__ = ["Driver"]
