"""Tensors on a GPU, with the driver alone: numpy's arrays are copied there and results back.

Tensors that are on the GPU already (whatever offers ``__cuda_array_interface__``, torch's too) are
taken where they are; results of such calls stay there and offer the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .archive import Archive
from .arrays import _BITS, NumpyArrays, bytes_of, is_dense
from .binding import unmarked
from .driver import Driver
from .errors import CannotRun, DamagedPackage
from .guards import TensorFacts
from .json_text import Reader
from .layout import ITEM_BYTES, Operator, StoredProgram
from .weights import Weight

ALIGNMENT = 16  # of every pointer, in bytes: what the code was compiled for
DEVICE = "cuda"
Codes = Mapping[str, Sequence[Reader]]  # by name: for each architecture a member and how it starts


class _Block:
    """Memory that goes back to the driver's pool when nobody holds it."""

    def __init__(self, driver: Driver, size: int) -> None:
        self._driver, self._size = driver, size
        self.address = driver.take(size)

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None:
            self._driver.give(address, self._size)


class DeviceArray:
    """A tensor on a GPU.

    Attributes:
        shape: Sizes.
        strides: In elements.
        dtype: Its type's name.
        owner: What keeps the memory alive.
        from_host: Whether it is a copy of an array of the process.
    """

    def __init__(
        self,
        driver: Callable[[], Driver],
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        address: int | Callable[[], tuple[int, Any]],
        owner: Any = None,
        *,
        from_host: bool = False,
    ) -> None:
        self.dtype, self.shape, self.strides = dtype, tuple(shape), tuple(strides)
        self.owner, self.from_host = owner, from_host
        self._driver = driver
        self._address = address

    @property
    def address(self) -> int:
        """Where its first element is; a weight is copied there when somebody first asks."""
        if not isinstance(self._address, int):
            self._address, self.owner = self._address()
        return self._address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What other libraries take it by; types that numpy has not are their bits."""
        size = ITEM_BYTES[self.dtype]
        return {
            "shape": self.shape,
            "strides": tuple(step * size for step in self.strides),
            "typestr": np.dtype(_BITS.get(self.dtype, self.dtype)).str,
            "data": (self.address, False),
            "version": 3,
            "stream": 1,
        }

    def numpy(self) -> Any:
        """Return a copy in the process's memory, laid out alike; waits for the GPU."""
        count, size = bytes_of(self.shape, self.strides), ITEM_BYTES[self.dtype]
        flat = np.empty(count, np.dtype(_BITS.get(self.dtype, self.dtype)))
        if count:
            self._driver().read(flat.ctypes.data, self.address, count * size)
        if is_dense(self.shape, self.strides):
            return flat.reshape(self.shape)
        steps = [step * size for step in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, steps)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype} {self.shape}>"


class CudaArrays:
    """Tensors on one GPU; as ``arrays.Arrays``.

    Args:
        codes: Of the package, by name: for each architecture a member, and how it is started.
        archive: Which has the members.
        driver: Makes the driver, when it is first needed.
    """

    operators = False

    def __init__(
        self,
        codes: Codes,
        archive: Archive,
        driver: Callable[[], Driver] = Driver,
    ) -> None:
        self._codes, self._archive = codes, archive
        self._make = driver
        self._made: Driver | None = None
        self._functions: dict[str, tuple[Any, int, int]] = {}
        self._host = NumpyArrays()

    def driver(self) -> Driver:
        """Return the GPU's driver.

        Raises:
            CannotRun: There is none.
        """
        if self._made is None:
            self._made = self._make()
        return self._made

    # -- values ---------------------------------------------------------------------------------

    def at(self, values: Sequence[Any]) -> CudaArrays:
        """Return itself: a package loaded without torch runs on one GPU."""
        return self

    def take(self, value: Any) -> Any:
        """Return a tensor on the GPU: of one that is there, or a copy of an array."""
        if isinstance(value, DeviceArray):
            return value
        if getattr(value, "is_cuda", False) and hasattr(value, "data_ptr"):  # torch's
            if value.is_neg() or value.is_conj():
                return value
            dtype = str(value.dtype).removeprefix("torch.")
            return self._there(value, value.data_ptr(), dtype, value.shape, value.stride())
        offered = getattr(value, "__cuda_array_interface__", None)
        if offered is not None:
            return self._offered(value, offered)
        array = self._host.take(value)
        if not self._host.is_tensor(array):
            return value
        facts = self._host.facts(array)
        if facts.dtype not in ITEM_BYTES or min((0, *facts.strides)) < 0:
            return value
        return self._sent(facts.dtype, array, facts.shape, facts.strides)

    def _offered(self, value: Any, offered: Mapping[str, Any]) -> Any:
        kind = np.dtype(offered["typestr"])
        shape = tuple(offered["shape"])
        steps = offered.get("strides")
        if steps is None:
            strides = tuple(np.empty(shape, np.bool_).strides) if shape else ()
        elif all(step % kind.itemsize == 0 for step in steps):
            strides = tuple(step // kind.itemsize for step in steps)
        else:
            return value
        if not kind.isnative or kind.name not in ITEM_BYTES:
            return value
        return self._there(value, int(offered["data"][0]), kind.name, shape, strides)

    def _there(
        self, owner: Any, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]
    ) -> DeviceArray:
        driver = self.driver()
        if address and driver.device_of(address) != driver.device:
            raise CannotRun(
                f"a tensor lies on another GPU than number {driver.device}",
                "move it there, or load the package with device= that tensor's GPU",
            )
        return DeviceArray(self.driver, dtype, shape, strides, address, owner)

    def _sent(
        self, dtype: str, array: Any, shape: Sequence[int], strides: Sequence[int]
    ) -> DeviceArray:
        size = bytes_of(shape, strides) * ITEM_BYTES[dtype]
        block = _Block(self.driver(), size)
        if size:
            self.driver().write(block.address, array.__array_interface__["data"][0], size)
        return DeviceArray(self.driver, dtype, shape, strides, block.address, block, from_host=True)

    def is_tensor(self, value: object) -> bool:
        """Whether a value is on the GPU."""
        return isinstance(value, DeviceArray)

    def facts(self, value: Any) -> TensorFacts:
        """Return what guards ask."""
        return TensorFacts(value.dtype, value.shape, value.strides, DEVICE)

    def is_same(self, value: Any, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether a tensor is just so."""
        return self.facts(value) == TensorFacts(dtype, tuple(shape), tuple(strides), DEVICE)

    def key(self, args: Sequence[Any]) -> tuple[object, ...] | None:
        """Return None: arguments have to be brought to the GPU first."""
        return None

    def check(self, values: Sequence[Any]) -> None:
        """Find nothing."""

    def empty(self, dtype: str, shape: Sequence[int], strides: Sequence[int], device: str) -> Any:
        """Return memory that nothing has written."""
        block = _Block(self.driver(), bytes_of(shape, strides) * ITEM_BYTES[dtype])
        return DeviceArray(self.driver, dtype, shape, strides, block.address, block)

    def pointer(self, value: Any) -> int:
        """Return the address of the first element.

        Raises:
            CannotRun: It is not aligned as the code was compiled for.
        """
        address: int = value.address
        if address % ALIGNMENT:
            raise CannotRun(
                f"a tensor does not begin at a multiple of {ALIGNMENT} bytes", "give a copy of it"
            )
        return address

    def writable(self, value: Any) -> bool:
        """Whether it is: no package for GPUs writes what it is given."""
        return False

    def extent(self, value: Any) -> tuple[int, int]:
        """Return the bounds of its memory."""
        size = bytes_of(value.shape, value.strides) * ITEM_BYTES[value.dtype]
        return value.address, value.address + size

    def view(
        self,
        value: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        dtype: str = "",
    ) -> Any:
        """Return a view."""
        address = value.address + offset * ITEM_BYTES[value.dtype]
        return DeviceArray(self.driver, dtype or value.dtype, shape, strides, address, value)

    def copy(self, value: Any) -> Any:
        """Return a copy that lies in memory alike."""
        made = self.empty(value.dtype, value.shape, value.strides, DEVICE)
        low, high = self.extent(value)
        if high > low:
            self.driver().copy(made.address, low, high - low, 0)
        return made

    def update(self, into: Any, value: Any) -> None:
        """Refuse: nothing is updated in place."""
        raise CannotRun("packages for GPUs update nothing in place")

    def weight(self, weight: Weight) -> Any:
        """Return a weight; it comes to the GPU when a call first reads it."""

        def bring() -> tuple[int, Any]:
            data = np.frombuffer(weight.data, np.uint8)
            block = _Block(self.driver(), len(data))
            if len(data):
                self.driver().write(block.address, data.ctypes.data, len(data))
            return block.address, block

        return DeviceArray(self.driver, weight.dtype, weight.shape, weight.strides, bring)

    def threads(self) -> int:
        """Return one: they are the GPU's."""
        return 1

    def constant(self, value: Any) -> Any:
        """Return the value."""
        return value

    def call(self, step: Operator, program: StoredProgram, given: Any) -> Sequence[Any]:
        """Refuse: there is no torch."""
        raise CannotRun(f"{step.name} is torch's")

    def results(self, made: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
        """Return results where a call's arguments were: as numpy's arrays, or on the GPU."""
        tensors = [each for each in leaves if isinstance(each, DeviceArray)]
        if not all(each.from_host for each in tensors):
            return list(made)
        return [each.numpy() if isinstance(each, DeviceArray) else each for each in made]

    # -- starts -----------------------------------------------------------------------------------

    def start(
        self,
        code: str,
        grid: Sequence[int],
        arguments: Sequence[tuple[str, Any]],
        stream: int = 0,
    ) -> None:
        """Start a kernel.

        Raises:
            CannotRun: The package has no code for this GPU.
        """
        if code not in self._functions:
            self._functions[code] = self._load(code)
        function, threads, shared = self._functions[code]
        nothing = [("pointer", 0)] * 2  # Triton's own memory, which none of these kernels asks for
        if 0 not in grid:
            given = [*arguments, *nothing]
            self.driver().start(function, grid, threads, shared, stream, given)

    def _load(self, code: str) -> tuple[Any, int, int]:
        driver, there = self.driver(), self._codes[code]
        chosen = None
        for each in there:
            number = architecture(each.text("gpu"))
            same = number // 10 == driver.architecture // 10
            if same and number <= driver.architecture:
                # from 90 on Triton compiles for one architecture with all that it alone can do
                if number >= 90 and number != driver.architecture:
                    continue
                if chosen is None or number > architecture(chosen.text("gpu")):
                    chosen = each
        if chosen is None:
            names = ", ".join(each.text("gpu") for each in there)
            raise CannotRun(
                f"the package has code for {names}, and this GPU is sm_{driver.architecture}",
                f'package it again with gpus=("sm_{driver.architecture}",)',
            )
        shared = chosen.number("shared", 0, 1 << 20)
        data = unmarked(self._archive.data(chosen.text("member")))
        function = driver.function(data, chosen.text("function"), shared)
        return function, chosen.number("threads", 1, 1024), shared


def architecture(name: str) -> int:
    """Return the number of an architecture: 90 for ``sm_90``."""
    if not (name.startswith("sm_") and name[3:].isdigit() and len(name) < 8):
        raise DamagedPackage(f"{name[:20]!r} is not an architecture")
    return int(name[3:])


def on_gpu(archive: Archive, device: int = 0) -> CudaArrays:
    """Return tensors on the GPU of a number for a package whose kernels run there."""
    return CudaArrays(read_codes(archive), archive, functools.partial(Driver, device))


def read_codes(archive: Archive) -> dict[str, Sequence[Reader]]:
    """Return a package's code for GPUs: for each name what there is for the architectures.

    Raises:
        DamagedPackage: It is not as it must be.
    """
    table = Reader(archive.json("gpu.json"), "gpu.json")
    found: dict[str, Sequence[Reader]] = {}
    for each in table.readers("codes"):
        binaries = each.readers("binaries")
        for binary in binaries:
            architecture(binary.text("gpu"))
            if binary.text("member") not in archive.members:
                raise DamagedPackage(f"{binary.place}: there is no such member")
        found[each.text("name")] = binaries
    return found


__all__ = ["ALIGNMENT", "DEVICE", "Codes", "CudaArrays", "DeviceArray", "on_gpu", "read_codes"]
