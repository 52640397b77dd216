"""What a kernel would do on a GPU that is not there: occupancy, and a time by bytes and operations.

Nothing of it is measured. The figures of the GPUs are their makers' (``gpu_sheets``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fusec.inspect.gpu_sheets import SHEETS, GpuSheet
from fusec.kernel import Kernel
from fusec.report import GpuStart
from fusec.target_api.registry import find_target

_START = 2e-6  # seconds until a kernel that was started runs


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
        resident = self.sheet.resident(start.warps, start.registers, start.shared)
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
