"""Launching: built kernels as callables, and the names that a host program uses."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from fusec.errors import FusecError, ValueRefused
from fusec.kernel_source import Signature
from fusec.memory.readable import address
from fusec.report import SourceLine
from fusec.toolchain.loading import load

_empty_on_current: Callable[..., torch.Tensor] = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]


@torch.no_grad()  # a result that is given takes no part in gradients
def multiply_into(
    product: Callable[..., object], *given: object, out: torch.Tensor, **named: object
) -> None:
    """Call a product whose large result goes into memory from ``empty_large``."""
    product(*given, out=out, **named)


@functools.cache
def _one_gpu() -> bool:
    # asked at the first allocation, not on import: counting devices starts the driver
    return torch.cuda.device_count() == 1


def empty_cuda(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return an uninitialized tensor; where there is one device only, by the shortest way."""
    if _one_gpu():
        return _empty_on_current(shape, strides, dtype)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def raise_check(
    name: str, status: int, signature: Signature, lines: Iterable[SourceLine] = ()
) -> None:
    """Raise what a kernel's non-zero status stands for.

    Args:
        name: The kernel's.
        status: What it returned.
        signature: Has its checks.
        lines: The user's, that it computes.
    """
    if not 1 <= status <= len(signature.checks):
        raise FusecError(f"kernel {name} failed with status {status}")
    if status in signature.divisions:
        raise RuntimeError("ZeroDivisionError")  # as ATen words it
    error = ValueRefused(signature.checks[status - 1], f"in kernel {name}")
    for line in sorted(set(lines), key=lambda line: (line.file, line.line)):
        cell = line.file.startswith("<")
        error.add_note(f"  {line}" if cell else f"  {line.file}, {line}")
    raise error


class CppRunnable:
    """A built C++ kernel.

    Attributes:
        function: The ctypes function itself, for host programs: pointers, sizes, threads.
        address: Where the function is, for native programs.
        journal: Where two numbers are that calls count in, begun and ended; 0 for none.
    """

    def __init__(self, path: Path, entry: str, signature: Signature, name: str) -> None:
        argtypes = [ctypes.c_void_p] * len(signature.arguments)
        argtypes += [ctypes.c_int64] * (len(signature.sizes) + 1)  # type: ignore[list-item]
        self.function: Callable[..., Any] = load(path, entry, argtypes=argtypes)
        self.address: int = ctypes.cast(self.function, ctypes.c_void_p).value or 0
        self.name = name
        self.signature = signature
        self.journal = 0

    def watch(self, journal: int) -> None:
        """From now on count the calls, so that a process that ends in one leaves a note.

        Args:
            journal: Where the two numbers are.
        """
        self.journal = journal
        counts, function = (ctypes.c_int64 * 2).from_address(journal), self.function

        def counted(*given: Any) -> Any:
            counts[0] += 1
            try:
                return function(*given)
            finally:
                counts[1] += 1

        self.function = counted

    def bound(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Callable[[], object]:
        """Return a call on these tensors, which have to live as long: to time the kernel itself.

        Its place and its threads are looked up now; nobody looks at the status of its checks.
        """
        given = [address(tensor) for tensor in tensors]
        return functools.partial(self.function, *given, *sizes, torch.get_num_threads())

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Run once on torch's own number of threads."""
        status = self.function(*[address(t) for t in tensors], *sizes, torch.get_num_threads())
        if status:
            raise_check(self.name, status, self.signature)
