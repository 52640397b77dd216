"""``fusec.load``: a package on torch's tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fusec.call.huge_pages import empty_cpu
from fusec.devices import is_gpu
from fusec.ir.printer import dtype_name
from fusec.memory.readable import NoMemory, Unreadable, require
from fusec.packages.operators import find_operator
from fusec.packages.runtime.archive import Archive
from fusec.packages.runtime.arrays import bytes_of, is_dense
from fusec.packages.runtime.cuda import ALIGNMENT, DEVICE, Codes, CudaArrays, read_codes
from fusec.packages.runtime.driver import Driver
from fusec.packages.runtime.errors import CannotRun
from fusec.packages.runtime.guards import TensorFacts
from fusec.packages.runtime.layout import ITEM_BYTES, Named, Operator, StoredProgram
from fusec.packages.runtime.package import Package
from fusec.packages.runtime.weights import Weight

_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
_NAMES = {dtype: dtype_name(dtype) for dtype in _DTYPES.values()}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def load(path: str | Path, *, alone: bool = False, threads: int | None = None) -> Package:
    """Read a package and check every byte of it; nothing in it is executed before it is called.

    Args:
        path: The ``.fuse`` file.
        alone: Whether products, convolutions and attention are the package's own, as without
            torch, and not torch's.
        threads: That a kernel may use; as many as torch uses by default.

    Returns:
        A callable that takes what the packaged function takes. A call that fits none of its
        specializations raises ``NoSpecialization``, which says which guard failed in each.

    Raises:
        fusec.packages.runtime.DamagedPackage: It is not as it was written.
        fusec.packages.runtime.PackageError: It cannot be read.
    """
    return Package(Path(path), TorchTensors(), _TensorsOnGpus, alone=alone, threads=threads)


class TorchTensors:
    """torch's tensors; as ``fusec.packages.runtime.arrays.Arrays``."""

    operators = True

    def __init__(self) -> None:
        self._called: dict[str, Callable[..., Any]] = {}

    def at(self, values: Sequence[Any]) -> TorchTensors:
        """Return itself."""
        return self

    def take(self, value: Any) -> Any:
        """Return the value: only torch's tensors are tensors here."""
        return value

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a plain tensor."""
        return type(value) in _PLAIN and value.layout is torch.strided  # type: ignore[attr-defined]

    def facts(self, value: Any) -> TensorFacts:
        """Return what guards ask."""
        dtype = _NAMES.get(value.dtype) or str(value.dtype)
        return TensorFacts(dtype, tuple(value.shape), value.stride(), str(value.device))

    def is_same(self, value: Any, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> bool:
        """Whether a tensor is just so: asked of every operator's results."""
        return (
            value.dtype is _DTYPES[dtype]
            and value.shape == shape
            and value.stride() == strides
            and value.layout is torch.strided
        )

    def key(self, args: Sequence[Any]) -> tuple[object, ...] | None:
        """Return types, sizes and strides; None for what is not on the CPU."""
        found: list[object] = []
        for each in args:
            kind = type(each)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                if not each.is_cpu or each.is_sparse or each.is_mkldnn:
                    return None
                found.append(each.dtype)
                found.append(each.shape)
                found.append(each.stride())
            elif kind is int or kind is bool or kind is str or each is None:
                found.append((kind, each))
            elif kind is float:
                found.append((kind, each.hex()))
            else:
                return None
        return tuple(found)

    def check(self, values: Sequence[Any]) -> None:
        """Refuse what kernels would do wrongly: record gradients, read views of other numbers.

        Raises:
            CannotRun: A call would come out otherwise than eager.
        """
        grad = torch.is_grad_enabled()
        for each in values:
            if isinstance(each, torch.Tensor):
                if grad and each.requires_grad:
                    raise CannotRun(
                        "a package records nothing for autograd", "call it under torch.no_grad()"
                    )
                if each.is_conj() or each.is_neg():
                    raise CannotRun(
                        "a conjugated or negated view holds other numbers than it stands for",
                        "give what .resolve_conj().resolve_neg() returns",
                    )
                try:
                    require(each, "an argument")
                except (Unreadable, NoMemory) as error:
                    raise CannotRun(error.message, error.hint) from None

    def empty(self, dtype: str, shape: Sequence[int], strides: Sequence[int], device: str) -> Any:
        """Return memory that nothing has written."""
        if device == "cpu":
            return empty_cpu(tuple(shape), tuple(strides), _DTYPES[dtype])
        return torch.empty_strided(shape, strides, dtype=_DTYPES[dtype], device=device)

    def pointer(self, value: Any) -> int:
        """Return the address of the first element."""
        address: int = value.data_ptr()
        return address

    def writable(self, value: Any) -> bool:
        """Whether it is no view of which several elements share memory."""
        return not any(s == 0 and n > 1 for n, s in zip(value.shape, value.stride(), strict=True))

    def extent(self, value: Any) -> tuple[int, int]:
        """Return the bounds of a tensor's memory."""
        begin = value.data_ptr()
        return begin, begin + bytes_of(value.shape, value.stride()) * value.element_size()

    def view(
        self,
        value: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        dtype: str = "",
    ) -> Any:
        """Return a view, from the tensor's own first element."""
        value = value.view(_DTYPES[dtype]) if dtype else value
        return value.as_strided(shape, strides, value.storage_offset() + offset)

    def copy(self, value: Any) -> Any:
        """Return a copy that lies in memory alike."""
        return value.clone(memory_format=torch.preserve_format)

    def update(self, into: Any, value: Any) -> None:
        """Copy elements, where they are not there already."""
        if into.data_ptr() != value.data_ptr() or into.stride() != value.stride():
            with torch.no_grad():
                into.copy_(value)

    def weight(self, weight: Weight) -> Any:
        """Return a weight, on memory that the package keeps."""
        import numpy as np

        flat = torch.from_numpy(np.frombuffer(bytearray(weight.data), np.uint8))
        if not weight.data:
            return torch.empty(weight.shape, dtype=_DTYPES[weight.dtype])
        typed = flat.view(_DTYPES[weight.dtype])
        if is_dense(weight.shape, weight.strides):
            return typed.view(weight.shape)
        return typed.as_strided(weight.shape, weight.strides)

    def threads(self) -> int:
        """Return how many threads torch uses."""
        return torch.get_num_threads()

    def constant(self, value: Any) -> Any:
        """Return a number, or what torch has by its name."""
        return _torch_value(value)

    def call(self, step: Operator, program: StoredProgram, given: Any) -> Sequence[Any]:
        """Call an operator of ATen, as it is, whatever torch's modes are."""
        args, kwargs = given
        function = self._called.get(step.name)
        if function is None:
            function = self._called[step.name] = find_operator(step.name)
        if torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
            with torch.no_grad(), torch._C._DisableAutocast():
                found = function(*args, **kwargs)
        else:
            found = function(*args, **kwargs)
        return found if isinstance(found, (tuple, list)) else (found,)

    def results(self, made: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
        """Return what was made."""
        return made

    def start(self, code: str, grid: Sequence[int], arguments: Sequence[tuple[str, Any]]) -> None:
        """Refuse: these are tensors on the CPU."""
        raise CannotRun(f"{code} runs on a GPU")


class _TensorsOnGpus(TorchTensors):
    """torch's tensors on whichever GPU a call's first one is on; its weights go there once."""

    operators = False

    def __init__(self, archive: Archive) -> None:
        super().__init__()
        self._archive, self._codes = archive, read_codes(archive)
        self._lock = threading.Lock()
        self._by_number: dict[int, _TensorsOnGpu] = {}

    def at(self, values: Sequence[Any]) -> TorchTensors:
        """Return the tensors of one GPU: the current one where a call has none on any."""
        if not torch.cuda.is_available():
            return self  # the guards say what the tensors are on
        numbers = (v.device.index for v in values if self.is_tensor(v) and is_gpu(v.device))
        number = next(numbers, None)
        number = torch.cuda.current_device() if number is None else number
        with self._lock:
            found = self._by_number.get(number)
            if found is None:
                found = _TensorsOnGpu(self._codes, self._archive, number)
                self._by_number[number] = found
        return found

    def key(self, args: Sequence[Any]) -> tuple[object, ...] | None:
        """Return None: guards ask which GPU it is."""
        return None


class _TensorsOnGpu(TorchTensors):
    """torch's tensors on one GPU; kernels by the driver."""

    operators = False

    def __init__(self, codes: Codes, archive: Archive, number: int) -> None:
        super().__init__()
        self._device = torch.device(DEVICE, number)
        self._weights: dict[int, torch.Tensor] = {}
        self._starts = CudaArrays(codes, archive, self._driver)

    def _driver(self) -> Driver:
        torch.cuda.init()
        return Driver(self._device.index)

    def facts(self, value: Any) -> TensorFacts:
        """Return what guards ask; the GPU that the call runs on has no number."""
        found = super().facts(value)
        return replace(found, device=DEVICE) if value.device == self._device else found

    def empty(self, dtype: str, shape: Sequence[int], strides: Sequence[int], device: str) -> Any:
        """Return memory that nothing has written."""
        return torch.empty_strided(shape, strides, dtype=_DTYPES[dtype], device=self._device)

    def pointer(self, value: Any) -> int:
        """Return the address of the first element; of a weight, on the GPU."""
        address = self._there(value).data_ptr()
        if address % ALIGNMENT:
            raise CannotRun(
                f"a tensor does not begin at a multiple of {ALIGNMENT} bytes", "give a copy of it"
            )
        return address

    def _there(self, value: torch.Tensor) -> torch.Tensor:
        if is_gpu(value.device):
            return value
        found = self._weights.get(id(value))
        if found is None:  # the package holds what it is a copy of
            found = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=self._device
            )
            self._weights[id(value)] = found.copy_(value)
        return found

    def view(
        self,
        value: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
        dtype: str = "",
    ) -> Any:
        """Return a view."""
        return super().view(self._there(value), shape, strides, offset, dtype)

    def copy(self, value: Any) -> Any:
        """Return a copy that lies in memory alike."""
        return super().copy(self._there(value))

    def start(self, code: str, grid: Sequence[int], arguments: Sequence[tuple[str, Any]]) -> None:
        """Start a kernel on torch's current stream."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._starts.start(code, grid, arguments, stream)


def _torch_value(value: Any) -> Any:
    if isinstance(value, Named):
        if value.kind == "dtype":
            return _DTYPES[value.name]
        if value.kind == "device":
            return torch.device(value.name)
        found = getattr(torch, value.name, None)
        if not isinstance(found, (torch.layout, torch.memory_format)):
            raise CannotRun(f"{value.name[:40]} is unknown to torch")
        return found
    return value


__all__ = ["TorchTensors", "load"]
