"""GPUs by their makers' figures, and how many programs one multiprocessor of them holds.

Where they come from:

- NVIDIA's multiprocessors (programs, how registers and shared memory are given out): NVIDIA's own
  ``cuda_occupancy.h``, which comes with CUDA and with Triton; a test compiles it and compares.
  Threads and shared memory of one: the CUDA programming guide's table of technical specifications,
  and the tuning guides of Hopper and Blackwell.
- AMD's: the ROCm documentation's table of GPU specifications (LDS, VGPR file, size of a wavefront).
- Bandwidth and operations: the makers' own documents, which ``source`` names. They are those of the
  model named, and of float32 outside of products; AMD's count of MI300X and MI355X has two
  operations packed into one instruction, which few kernels do: it is halved here.
"""

from __future__ import annotations

from dataclasses import dataclass


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
        programs: On one multiprocessor at a time.
        reserved: Bytes of shared memory that each program takes beside its own.
        granule: Bytes of shared memory are given out by so many.
        source: The document that bandwidth and operations are from.
    """

    name: str
    bandwidth: float
    operations: float
    threads: int = 2048
    registers: int = 1 << 16
    shared: int = 228 << 10
    warp: int = 32
    programs: int = 32
    reserved: int = 1024
    granule: int = 128
    source: str = ""

    def resident(self, warps: int, registers: int, shared: int) -> int:
        """Return how many programs one multiprocessor holds at a time.

        Args:
            warps: Of a program.
            registers: Of a thread.
            shared: Bytes of a program.
        """
        # Registers are given to a whole warp, eight a thread, by each quarter of a multiprocessor.
        each = -(-registers * self.warp // (8 * self.warp)) * 8 * self.warp
        fitting = (
            self.registers // _QUARTERS // each * _QUARTERS // warps if each else self.programs
        )
        taken = -(-(shared + self.reserved) // self.granule) * self.granule
        return min(
            self.programs,
            self.threads // (warps * self.warp),
            fitting,
            self.shared // taken if taken else self.programs,
        )


_QUARTERS = 4
_KIB = 1 << 10
_AMD: dict[str, int] = {"registers": 1 << 17, "warp": 64, "reserved": 0, "granule": 512}

SHEETS = {
    "sm_75": GpuSheet(
        "T4",
        0.32e12,
        8.1e12,
        1024,
        shared=64 * _KIB,
        programs=16,
        reserved=0,
        granule=256,
        source="NVIDIA T4 data sheet: 320 GB/s, 8.1 TFLOPS",
    ),
    "sm_80": GpuSheet(
        "A100 80 GB PCIe",
        1.935e12,
        19.5e12,
        shared=164 * _KIB,
        source="NVIDIA A100 data sheet: 1,935 GB/s, 19.5 TFLOPS",
    ),
    "sm_86": GpuSheet(
        "RTX 3090",
        0.936e12,
        35.6e12,
        1536,
        shared=100 * _KIB,
        programs=16,
        source="NVIDIA Ampere GA102 white paper, appendix A: 936 GB/s, 35.6 TFLOPS",
    ),
    "sm_89": GpuSheet(
        "RTX 4090",
        1.008e12,
        82.6e12,
        1536,
        shared=100 * _KIB,
        programs=24,
        source="NVIDIA Ada white paper, appendix A: 1,008 GB/s, 82.6 TFLOPS",
    ),
    "sm_90": GpuSheet(
        "H100", 3.35e12, 67e12, source="NVIDIA H100 data sheet, SXM: 3.35 TB/s, 67 TFLOPS"
    ),
    "sm_100": GpuSheet(
        "B200",
        8.0e12,
        80e12,
        source="NVIDIA Blackwell technical brief, HGX B200 at 1,000 W: 8 TB/s, 80 TFLOPS",
    ),
    "sm_120": GpuSheet(
        "RTX 5090",
        1.792e12,
        104.8e12,
        1536,
        shared=100 * _KIB,
        programs=24,
        source="NVIDIA RTX Blackwell white paper, appendix A: 1,792 GB/s, 104.8 TFLOPS",
    ),
    "gfx90a": GpuSheet(
        "MI250X, one die",
        1.6e12,
        23.9e12,
        shared=64 * _KIB,
        source="AMD Instinct MI250X data sheet, half of 3.2 TB/s and of 47.9 TFLOPS",
        **_AMD,
    ),
    "gfx942": GpuSheet(
        "MI300X",
        5.3e12,
        81.7e12,
        shared=64 * _KIB,
        source="AMD Instinct MI300X data sheet: 5.3 TB/s, half of 163.4 TFLOPS",
        **_AMD,
    ),
    "gfx950": GpuSheet(
        "MI355X",
        8.0e12,
        78.6e12,
        shared=160 * _KIB,
        source="AMD Instinct MI355X data sheet: 8 TB/s, half of 157.3 TFLOPS",
        **_AMD,
    ),
}

__all__ = ["SHEETS", "GpuSheet"]
