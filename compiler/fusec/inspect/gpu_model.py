"""What a kernel would do on a GPU that is not there: occupancy, and a time by bytes and operations.

Nothing of it is measured. The figures of the GPUs are their makers'.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.kernel import Kernel
from fusec.report import GpuStart
from fusec.target_api.registry import find_target

_START = 2e-6  # seconds until a kernel that was started runs
_GRAIN = 8  # registers are given out by so many a thread
_RESERVED = 1024  # bytes of shared memory that each program takes beside its own
_MOST_PROGRAMS = 32


@dataclass(frozen=True)
class GpuSheet:
    """A GPU by its maker's figures.

    Attributes:
        name: What people call it.
        bandwidth: Bytes a second from memory.
        operations: float32 operations a second outside of products.
        threads: On one multiprocessor at a time.
        registers: Of one multiprocessor, 4 bytes each.
        shared: Bytes of shared memory of one multiprocessor.
        warp: Threads that run in step.
    """

    name: str
    bandwidth: float
    operations: float
    threads: int = 2048
    registers: int = 1 << 16
    shared: int = 228 << 10
    warp: int = 32


SHEETS = {
    "sm_75": GpuSheet("T4", 0.32e12, 8.1e12, 1024, shared=64 << 10),
    "sm_80": GpuSheet("A100", 1.94e12, 19.5e12, shared=164 << 10),
    "sm_86": GpuSheet("RTX 3090", 0.94e12, 35e12, 1536, shared=100 << 10),
    "sm_89": GpuSheet("RTX 4090", 1.01e12, 82e12, 1536, shared=100 << 10),
    "sm_90": GpuSheet("H100", 3.35e12, 67e12),
    "sm_100": GpuSheet("B200", 8.0e12, 80e12),
    "sm_120": GpuSheet("RTX 5090", 1.79e12, 105e12, 1536, shared=100 << 10),
    "gfx90a": GpuSheet("MI250X, one die", 1.6e12, 24e12, 2048, 1 << 17, 64 << 10, 64),
    "gfx942": GpuSheet("MI300X", 5.3e12, 82e12, registers=1 << 17, shared=64 << 10, warp=64),
    "gfx950": GpuSheet("MI355X", 8.0e12, 79e12, registers=1 << 17, shared=160 << 10, warp=64),
}


@dataclass(frozen=True)
class GpuOutlook:
    """What is to be expected of a kernel on a GPU.

    Attributes:
        gpu: Its architecture.
        sheet: Its figures; None for one that is not in the table.
        starts: What the kernel takes of it.
        seconds: How long it takes by its bytes and its operations; 0 where nobody knows.
        by_bytes: Whether the bytes take longer than the operations.
    """

    gpu: str
    sheet: GpuSheet | None
    starts: tuple[GpuStart, ...]
    seconds: float
    by_bytes: bool

    def occupancy(self, start: GpuStart) -> float:
        """Return the share of a multiprocessor's threads that are there at a time; 0: unknown."""
        if self.sheet is None or not start.registers:
            return 0.0
        threads = start.warps * self.sheet.warp
        each = -(-start.registers // _GRAIN) * _GRAIN
        resident = min(
            _MOST_PROGRAMS,
            self.sheet.threads // threads,
            self.sheet.registers // (each * threads),
            self.sheet.shared // (start.shared + _RESERVED),
        )
        return resident * threads / self.sheet.threads


def outlook(kernel: Kernel, gpu: str) -> GpuOutlook:
    """Compile a kernel for a GPU and say what is to be expected of it there.

    Raises:
        CompileError: The text in use does not compile.
    """
    target = find_target(kernel.target)
    starts = target.gpu_starts(kernel.source, kernel.signature, gpu)
    sheet = SHEETS.get(gpu)
    source = kernel.generated
    moved = source.read_bytes + source.written_bytes
    if sheet is None or min(source.read_bytes, source.written_bytes) < 0:
        return GpuOutlook(gpu, sheet, starts, 0.0, by_bytes=True)
    by_bytes = moved / sheet.bandwidth
    by_work = max(source.operations, 0) / sheet.operations
    seconds = _START * max(len(starts), 1) + max(by_bytes, by_work)
    return GpuOutlook(gpu, sheet, starts, seconds, by_bytes=by_bytes >= by_work)


__all__ = ["SHEETS", "GpuOutlook", "GpuSheet", "outlook"]
