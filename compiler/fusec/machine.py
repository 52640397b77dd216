"""What the machine is that kernels are made for: one frozen value, which heuristics ask.

Nothing else reads the processor.  A compilation enters ``using`` with the facts that its options
carry; whatever chooses asks ``current_machine``.  So a test, or somebody who wants to know, can see
the kernels of another machine: ``Options(machine=replace(this_machine(), isa="avx2"))``.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import torch

from fusec.systems import this_system

# The instruction sets of the CPU that kernels tell apart, and what compilers call the least
# processor that has them.
_ISAS = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "sse2": "x86-64", "neon": "", "": ""}
_ISA = "FUSEC_ISA"  # makes this process take its processor for an older one
# What torch calls the vectors that it uses, in Linux's words.
_TORCH_SAYS = {"AVX2": frozenset({"avx2"}), "AVX512": frozenset({"avx2", "avx512f"})}


@dataclass(frozen=True)
class HalfSpeed:
    """What products of a half-precision type cost, in nanoseconds, with all threads.

    Attributes:
        half: A multiplication.
        single: The same in float32.
        conversion: An element's conversion to float32, from memory to memory.
    """

    half: float
    single: float
    conversion: float


@dataclass(frozen=True)
class GpuFacts:
    """What a GPU is.

    Attributes:
        name: Its architecture: ``sm_90``, ``gfx942``.
        processors: Its multiprocessors.
        l2: Bytes of its second-level cache.
        shared: Bytes of shared memory that a program may have.
        warp: Threads that run in step.
        there: Whether it is in this machine: kernels for it run, and not in an interpreter.
    """

    name: str = "sm_90"
    processors: int = 132
    l2: int = 50 << 20
    shared: int = 227 << 10
    warp: int = 32
    there: bool = False

    @property
    def kept(self) -> int:
        """Bytes that surely stay in the second-level cache between two passes of a kernel.

        Not quite half of an H100's 50 MiB; more was not seen to stay where it is larger.
        """
        return min(self.l2 * 12 // 25, 24 << 20)


# By architecture: those of a machine that is not there are compiled for, and looked at.
_GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuFacts("sm_75", 40, 4 << 20, 64 << 10),
        GpuFacts("sm_80", 108, 40 << 20, 163 << 10),
        GpuFacts("sm_86", 84, 6 << 20, 99 << 10),
        GpuFacts("sm_89", 128, 72 << 20, 99 << 10),
        GpuFacts(),
        GpuFacts("sm_100", 148, 126 << 20, 227 << 10),
        GpuFacts("sm_120", 170, 96 << 20, 99 << 10),
        GpuFacts("gfx90a", 110, 8 << 20, 64 << 10, 64),
        GpuFacts("gfx942", 304, 4 << 20, 64 << 10, 64),
        GpuFacts("gfx950", 256, 4 << 20, 160 << 10, 64),
    )
}


@dataclass(frozen=True)
class MachineFacts:
    """What a machine is, as far as kernels depend on it.

    Attributes:
        processor: The CPU's name.
        amd: Whether it is AMD's, for which MKL is not made.
        isa: Its vectors: ``avx512``, ``avx2``, ``sse2``, ``neon``, or empty for others.
        native: Whether it is the one that this process runs on, all of whose instructions may be
            used; else those of the least processor with its ``isa``.
        cores: How many threads it runs at once.
        last_cache: Bytes of the last cache before the memory.
        streams: Whether it has stores past its caches that the kernels know.
        half_speed: How fast it multiplies half-precision types, by the type's name; one that is
            not there is timed.
        gpu: The GPU that kernels are made for.
        gathers: Whether it reads a vector of elements from all over sooner than one at a time.
    """

    processor: str
    amd: bool
    isa: str
    native: bool
    cores: int
    last_cache: int
    streams: bool
    half_speed: tuple[tuple[str, HalfSpeed], ...] = ()
    gpu: GpuFacts = field(default_factory=GpuFacts)
    gathers: bool = False

    def __post_init__(self) -> None:
        """Refuse an instruction set that nobody knows."""
        if self.isa not in _ISAS:
            raise ValueError(f"isa {self.isa!r} is not one of {', '.join(filter(None, _ISAS))}")

    @property
    def flags(self) -> tuple[str, ...]:
        """What a C++ compiler is told so that it makes code for this machine, if it is another."""
        march = _ISAS[self.isa]
        return () if self.native or not march else (f"-march={march}",)

    def with_isa(self, isa: str) -> MachineFacts:
        """Return the same machine with another instruction set."""
        return replace(self, isa=isa, native=self.native and isa == self.isa)


def gpu_named(name: str) -> GpuFacts:
    """Return what is known of an architecture; of one that is not known, what an H100 is."""
    return _GPUS.get(name.partition(":")[0], GpuFacts())


def this_machine(gpu: str = "") -> MachineFacts:
    """Return what this process runs on.

    Args:
        gpu: The architecture that is compiled for where there is no GPU.
    """
    found = _this_cpu()
    wanted = os.environ.get(_ISA, "")
    if wanted:
        found = found.with_isa(wanted)
    return replace(found, gpu=_this_gpu(gpu))


@functools.cache
def _this_cpu() -> MachineFacts:
    known = features()
    x86 = platform.machine() in ("x86_64", "AMD64")
    isa = "neon" if platform.machine() in ("aarch64", "arm64") else ""
    if x86:
        isa = "avx512" if "avx512f" in known else "avx2" if "avx2" in known else "sse2"
    return MachineFacts(
        processor=processor(),
        amd="AMD" in this_system().processor().vendor,
        isa=isa,
        native=True,
        cores=os.cpu_count() or 1,
        last_cache=this_system().last_cache(),
        streams=x86,
        # Intel's since Sapphire Rapids; what holds older ones to safety (Downfall) made them slow
        gathers="avx512_fp16" in known and "AMD" not in this_system().processor().vendor,
    )


def _this_gpu(name: str) -> GpuFacts:
    # not before somebody uses it: asking starts the driver
    if not torch.cuda.is_initialized():
        return gpu_named(name)
    return _gpu_at(torch.cuda.current_device())


def gpus_here() -> tuple[str, ...]:
    """Return the architectures of this machine's GPUs; asking starts the driver where there are."""
    return tuple(sorted({_gpu_at(index).name for index in range(torch.cuda.device_count())}))


@functools.cache
def _gpu_at(index: int) -> GpuFacts:
    found = torch.cuda.get_device_properties(index)
    name = str(getattr(found, "gcnArchName", "")).partition(":")[0]
    name = name if torch.version.hip and name else f"sm_{found.major}{found.minor}"
    table = _GPUS.get(name, GpuFacts())
    return GpuFacts(
        name,
        found.multi_processor_count,
        int(getattr(found, "L2_cache_size", 0)) or table.l2,
        int(getattr(found, "shared_memory_per_block_optin", 0)) or table.shared,
        int(getattr(found, "warp_size", 0)) or table.warp,
        there=True,
    )


@functools.cache
def processor() -> str:
    """Return the name of the processor that this process runs on."""
    return this_system().processor().name or platform.processor() or platform.machine()


@functools.cache
def features() -> frozenset[str]:
    """Return the processor's model and instruction sets, as Linux names them.

    Where the system does not say which vectors it has, torch does.
    """
    found = this_system().processor().features
    if found:
        return found
    vectors = _TORCH_SAYS.get(torch.backends.cpu.get_cpu_capability(), frozenset())
    return vectors | {platform.processor()}


# -- the one that is compiled for ---------------------------------------------------------------

_current: ContextVar[MachineFacts | None] = ContextVar("fusec_machine", default=None)


def current_machine() -> MachineFacts:
    """Return the machine that is compiled for: that of ``using``, else this one."""
    return _current.get() or this_machine()


@contextmanager
def using(machine: MachineFacts) -> Iterator[MachineFacts]:
    """Compile for a machine within the block."""
    token = _current.set(machine)
    try:
        yield machine
    finally:
        _current.reset(token)


__all__ = [
    "GpuFacts",
    "HalfSpeed",
    "MachineFacts",
    "current_machine",
    "features",
    "gpus_here",
    "processor",
    "this_machine",
    "using",
]
