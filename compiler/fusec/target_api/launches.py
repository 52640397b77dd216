"""What a kernel file starts on a GPU, as plain values that need no target to be understood.

A built kernel that can say so has ``recorded(tensors, sizes)``, which runs it once and returns the
starts that it made, and ``gpu_use(tensors, sizes)``, which says what they take of the GPU.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Temporary:
    """Memory that ``launch`` makes for itself, uninitialized."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class KernelStart:
    """One start of a compiled kernel.

    Attributes:
        function: The driver's handle.
        grid: Programs in each direction.
        threads: A program's.
        shared: Bytes of shared memory of a program.
        parameters: In order: ``(n, 0)`` for the nth tensor, ``(None, number)`` for a number.
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    parameters: tuple[tuple[int | None, int], ...]


@dataclass(frozen=True)
class LaunchRecord:
    """All that one run of ``launch`` did.

    Attributes:
        starts: In order. Their tensors are those that ``launch`` was given, then ``temporaries``.
        temporaries: Memory that it made.
        kernels: What owns the kernels' code: to be kept.
    """

    starts: tuple[KernelStart, ...]
    temporaries: tuple[Temporary, ...]
    kernels: tuple[Any, ...]


@dataclass(frozen=True)
class Occupancy:
    """How one kernel start occupies a GPU.

    Attributes:
        programs: How many there are.
        warps: Of each program.
        registers: Of each thread.
        shared: Bytes of shared memory of each program.
    """

    programs: int
    warps: int
    registers: int = 0
    shared: int = 0


@dataclass(frozen=True)
class GpuUse:
    """What a compiled kernel file takes of a GPU.

    Attributes:
        binaries: The machine code of each of its functions.
        spilled: Words of a thread's registers that go to memory and come back, at most.
        starts: Every start that it makes, in order; empty where one of them is not understood.
    """

    binaries: tuple[bytes, ...]
    spilled: int
    starts: tuple[Occupancy, ...]

    def identity(self) -> str:
        """Return what is equal where the same machine code is started in the same way."""
        digest = hashlib.sha256()
        for binary in self.binaries:
            digest.update(binary)
        digest.update(repr(self.starts).encode())
        return digest.hexdigest()


__all__ = ["GpuUse", "KernelStart", "LaunchRecord", "Occupancy", "Temporary"]
