"""What is known of a candidate on a GPU before it is timed: the least it takes, and its identity.

Two bounds, both physical, so that what they rule out could not have won:

- *roofline*: a program's data pass through its own multiprocessor, at 64 bytes a clock; programs
  that are on few of them cannot use the memory's bandwidth;
- *occupancy*: what has been asked of memory and has not come yet is waited for in registers or in
  shared memory; by Little's law that, over the memory's latency, is the most that arrives.

Beside them, a rule of thumb for what need not be compiled: a tile of which each thread would hold
more than its registers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from fusec.kernel import Kernel
from fusec.target_api.launches import GpuUse, Occupancy
from fusec.tunables import read_tunables

_BYTES_A_CLOCK = 64  # between the L2 and a multiprocessor
_LATENCY = 500e-9  # seconds until something comes from memory, at least
_WARP = 32
_REGISTER = 4  # bytes
_RESERVED_SHARED = 1024  # bytes of shared memory that each program takes beside its own
_MOST_PROGRAMS = 32  # at a time on a multiprocessor
# A thread has 255 registers, and must hold more than the tile.
_MOST_ELEMENTS = 256
# Words of registers that go to memory and come back, a thread: beyond it was never the fastest.
_MOST_SPILLED = 128
_PASSED = re.compile(r"\b([XYR]BLOCK)=(\d+)")


@dataclass(frozen=True)
class Prospect:
    """What to expect of a candidate.

    Attributes:
        least: Seconds that it takes at least; 0 where nothing is known.
        hopeless: Why it is not worth a try, whatever the others take; empty otherwise.
        binary: Equal for candidates that are the same machine code, started in the same way;
            empty where that is not known.
    """

    least: float = 0.0
    hopeless: str = ""
    binary: str = ""


@dataclass(frozen=True)
class Gpu:
    """What the bounds need of a GPU.

    Attributes:
        processors: Its multiprocessors.
        clock: Cycles a second, at most.
        threads: On one multiprocessor at a time.
        registers: Of one multiprocessor, 4 bytes each.
        shared: Bytes of shared memory of one multiprocessor.
    """

    processors: int
    clock: float
    threads: int
    registers: int
    shared: int

    @classmethod
    def of(cls, device: torch.device) -> Gpu:
        """Return a device's."""
        found: Any = torch.cuda.get_device_properties(device)
        return cls(
            found.multi_processor_count,
            # kHz; where torch does not say, more than any has, which rules out less
            getattr(found, "clock_rate", 3_000_000) * 1e3,
            found.max_threads_per_multi_processor,
            getattr(found, "regs_per_multiprocessor", 1 << 16),
            getattr(found, "shared_memory_per_multiprocessor", 256 << 10),
        )


def bandwidth(gpu: Gpu, start: Occupancy) -> float:
    """Return the bytes a second that a kernel start could move at most.

    Args:
        gpu: Where.
        start: What is known of it; registers may be 0, for not known yet.
    """
    used = min(start.programs, gpu.processors)
    most = used * _BYTES_A_CLOCK * gpu.clock
    if not start.registers:
        return most
    threads = start.warps * _WARP
    room = [
        _MOST_PROGRAMS,
        gpu.threads // threads,
        gpu.registers // (-(-start.registers // 8) * 8 * threads),
        gpu.shared // (start.shared + _RESERVED_SHARED),
    ]
    resident = max(min(*room, -(-start.programs // gpu.processors)), 1)
    waited = resident * (threads * start.registers * _REGISTER + start.shared)
    return min(most, used * waited / _LATENCY)


def least_seconds(gpu: Gpu, moved: int, starts: Sequence[Occupancy]) -> float:
    """Return the least time in which ``starts``, one after the other, move that many bytes.

    Args:
        gpu: Where.
        moved: Bytes; negative where nobody knows.
        starts: All of them; which moves what is not known, so the fastest is taken.
    """
    most = max((bandwidth(gpu, start) for start in starts), default=0.0)
    return max(moved, 0) / most if most else 0.0


def tile_of_thread(text: str) -> int:
    """Return the elements of a tile that each thread would hold, as a kernel's text names them.

    ``XBLOCK``, ``RBLOCK``, ... are a tile's sides in generated kernels, tunables or, where a tile
    has whole rows, what ``launch`` passes. 0 where there are none of those names.
    """
    values = {t.name: t.value for t in read_tunables(text)}
    rows = {name: int(value) for name, value in _PASSED.findall(text) if name not in values}
    named = {**values, **rows}
    sides = [named["TILE"]] if "TILE" in named else []
    sides += [value for name, value in named.items() if name.endswith("BLOCK")]
    if not sides or "NUM_WARPS" not in values:
        return 0
    return prod(sides) // (_WARP * values["NUM_WARPS"])


class DeviceForesight:
    """Looks at a kernel's candidates on a GPU.

    Args:
        kernel: Whose they are.
        tensors: Its arguments.
        sizes: Its symbolic sizes.
        gpu: Where it runs.
    """

    def __init__(
        self, kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: Sequence[int], gpu: Gpu
    ) -> None:
        self.kernel = kernel
        self.tensors = tensors
        self.sizes = sizes
        self.gpu = gpu
        generated = kernel.generated
        known = generated.read_bytes >= 0 and generated.written_bytes >= 0
        self.moved = generated.read_bytes + generated.written_bytes if known else -1

    def before(self, text: str) -> Prospect:
        """Look at a text before it is compiled."""
        each = tile_of_thread(text)
        if each > _MOST_ELEMENTS:
            return Prospect(hopeless=f"a thread's {each} elements do not fit into its registers")
        return Prospect()

    def after(self, runnable: Any) -> Prospect:
        """Look at a kernel that has run once."""
        ask = getattr(runnable, "gpu_use", None)  # nothing is known of another callable
        found: GpuUse | None = ask(self.tensors, self.sizes) if ask is not None else None
        if found is None:
            return Prospect()
        if found.spilled > _MOST_SPILLED:
            return Prospect(hopeless=f"{found.spilled} words of a thread's registers go to memory")
        if not found.starts:
            return Prospect()
        return Prospect(least_seconds(self.gpu, self.moved, found.starts), binary=found.identity())


__all__ = [
    "DeviceForesight",
    "Gpu",
    "Prospect",
    "bandwidth",
    "least_seconds",
    "tile_of_thread",
]
