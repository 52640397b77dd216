"""What tells native code whether it can read a tensor, and where: ``memory.readable`` in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from fusec.build.python_headers import python_flags, python_name
from fusec.build.torch_library import torch_flags
from fusec.call.dlpack import dlpack_device
from fusec.call.native_part import NativePart, build_with_torch
from fusec.devices import CPU, GPU
from fusec.toolchain.children import Children
from fusec.toolchain.loading import load_library


def exchange() -> Any:
    """Return the capsule that tells native code of readable tensors; None where there is none."""
    return part.found


def _load(children: Children) -> Any:
    source = Path(__file__).with_name("readable.cpp")
    flags = [*python_flags(), *torch_flags("c10")]
    library = load_library(build_with_torch(source, flags, children, also=f", {python_name()}"))
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object,
        *(ctypes.py_object, ctypes.py_object),
        *(ctypes.c_ssize_t, ctypes.c_int32, ctypes.c_int32),
    )(("fusec_readable", library))
    numbers = [dlpack_device(torch.device(kind)) for kind in (CPU, GPU)]
    return make(torch.Tensor, torch._C.TensorBase, _place(), *[n[0] for n in numbers if n])


def _place() -> int:
    """Return where in a Python tensor the pointer to torch's own tensor is, in bytes.

    Raises:
        NotImplementedError: It is nowhere near where it has been in every release.
    """
    tensors = [torch.empty(size) for size in (0, 1, 2)]
    word = ctypes.sizeof(ctypes.c_size_t)
    for offset in range(object.__basicsize__, torch.Tensor.__basicsize__, word):
        words = [ctypes.c_size_t.from_address(id(each) + offset).value for each in tensors]
        if words == [each._cdata for each in tensors]:
            return offset
    raise NotImplementedError("this torch keeps its tensors elsewhere")


part = NativePart(_load)

__all__ = ["exchange", "part"]
