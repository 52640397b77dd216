"""Memory for large tensors on the CPU: in huge pages, and used again when they are gone.

The C library gives the memory of a large tensor back to the system as soon as nobody holds it, and
gets the next one's anew: the system then clears every page before it is overwritten, which takes
as long as a kernel that only moves the data.  So what is allocated while a compiled graph runs, by
it and by the operators of ATen that it calls, comes from a pool, as it does on a GPU: memory is
kept, and is the next equally large tensor's once nobody holds a tensor, a view or an array over
it.  ``native/memory.cpp`` is the pool.  Where it cannot be built, memory is torch's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from fusec.build.torch_library import torch_flags
from fusec.call.native_part import NativePart, build_with_torch
from fusec.codegen.host_values import LARGE_BYTES
from fusec.systems import this_system
from fusec.toolchain.children import Children
from fusec.toolchain.loading import load_library

empty_cpu: Callable[..., torch.Tensor] = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]

_PAGE = 4096
# Smaller ones the C library has at hand again.
POOLED_BYTES = 1 << 20
# What is kept at most while nobody holds it, and for how many seconds: a training step frees all
# of its activations before the next one asks for them.
KEPT_BYTES = 2 << 30
KEPT_SHARE = 16  # of the machine's memory
KEPT_SECONDS = 10.0

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Pool:
    """The functions of ``native/memory.cpp``, each explained there."""

    enter: Callable[[], None]
    leave: Callable[[], None]
    limit: Callable[[int, int, float], None]
    count: Callable[[Any, Any], None]


def pooled(run: Callable[[list[Any]], _Result]) -> Callable[[list[Any]], _Result]:
    """Return a host program that takes its large tensors' memory from the pool."""

    def call(inputs: list[Any]) -> _Result:
        pool = part.found
        if pool is None:
            return run(inputs)
        pool.enter()
        try:
            return run(inputs)
        finally:
            pool.leave()

    return call


def empty_large(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return an uninitialized tensor on the CPU, from the pool; for programs with large ones.

    The memory of one of ``codegen.host.LARGE_BYTES`` or more is in huge pages, where the system
    gives them on request: one fault in place of five hundred.
    """
    pool = part.found
    if pool is None:
        return _in_huge_pages(empty_cpu(shape, strides, dtype))
    pool.enter()
    try:
        return empty_cpu(shape, strides, dtype)
    finally:
        pool.leave()


def release() -> None:
    """Give back all memory that is kept; tensors in use keep theirs."""
    if (pool := part.found) is not None:
        pool.limit(POOLED_BYTES, 0, KEPT_SECONDS)
        pool.limit(POOLED_BYTES, _most(), KEPT_SECONDS)


def counted() -> tuple[int, int]:
    """Return how many bytes tensors hold of the pool, and how many it keeps for the next ones."""
    if part.found is None:
        return 0, 0
    held, kept = ctypes.c_size_t(), ctypes.c_size_t()
    part.found.count(ctypes.byref(held), ctypes.byref(kept))
    return held.value, kept.value


def _load(children: Children) -> Pool:
    if this_system().huge_pages() is None:
        raise NotImplementedError("only made for Linux")
    source = Path(__file__).parent / "native" / "memory.cpp"
    flags = [*torch_flags("c10"), "-pthread"]
    library = load_library(build_with_torch(source, flags, children))
    library.fusec_memory_install()
    # With Python's lock held, which costs less than to give it back.
    plain, size = ctypes.PYFUNCTYPE(None), ctypes.c_size_t
    limit = ctypes.PYFUNCTYPE(None, size, size, ctypes.c_double)
    count = ctypes.PYFUNCTYPE(None, ctypes.POINTER(size), ctypes.POINTER(size))
    found = Pool(
        plain(("fusec_memory_enter", library)),
        plain(("fusec_memory_leave", library)),
        limit(("fusec_memory_limit", library)),
        count(("fusec_memory_count", library)),
    )
    found.limit(POOLED_BYTES, _most(), KEPT_SECONDS)
    return found


def _most() -> int:
    """Return how many bytes are kept at most."""
    return min(KEPT_BYTES, this_system().memory_size() // KEPT_SHARE)


def _in_huge_pages(made: torch.Tensor) -> torch.Tensor:
    size = made.untyped_storage().nbytes()
    if size >= LARGE_BYTES and (advise := this_system().huge_pages()) is not None:
        begin = -(-made.data_ptr() // _PAGE) * _PAGE
        advise(begin, size - _PAGE)
    return made


part = NativePart(_load)

__all__ = ["counted", "empty_cpu", "empty_large", "part", "pooled", "release"]
