"""What a kernel takes of a GPU that need not be there: programs, warps, registers, memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from fusec.kernel_source import Signature
from fusec.report import GpuStart
from fusec.target_api.launches import GpuUse, Occupancy
from fusec.targets.triton.toolchain.cross_compile import compile_start, triton_cache
from fusec.targets.triton.toolchain.interpret import compiling
from fusec.targets.triton.toolchain.load import load
from fusec.targets.triton.toolchain.starts import RecordedStart, gpu_target, launched
from fusec.tunables import read_tunables

# In a cubin, of each function: format 4, attribute "registers", 8 bytes: its symbol, the number.
_CUBIN = re.compile(rb"\x04\x2f\x08\x00.{4}(.{4})", re.DOTALL)
_AMD = re.compile(r"\.vgpr_count:\s+(\d+)")


def gpu_starts(
    text: str, signature: Signature, gpu: str, entry: str = "launch"
) -> tuple[GpuStart, ...]:
    """Compile a file's kernels for a GPU and return how each occupies it.

    Raises:
        CompileError: The text does not compile.
    """
    target = gpu_target(gpu)
    namespace, path = load(text)
    tile = " ".join(
        f"{t.name}={t.value}" for t in read_tunables(text) if "BLOCK" in t.name or "TILE" in t.name
    )
    found = []
    with compiling(), triton_cache():
        for start in launched(namespace, path, signature, entry):
            compiled = compile_start(start, target, namespace, path)
            grid = start.grid if isinstance(start.grid, tuple) else ()
            known = all(isinstance(size, int) for size in grid)
            found.append(
                GpuStart(
                    start.function.__name__,
                    prod(grid) if grid and known else 0,
                    compiled.metadata.num_warps,
                    _registers(compiled),
                    compiled.metadata.shared,
                    tile,
                )
            )
    return tuple(found)


def gpu_use(starts: Sequence[RecordedStart], compiled: Sequence[Any]) -> GpuUse:
    """Return what kernels that Triton has compiled for a GPU take of it.

    Args:
        starts: What ``launch`` starts, in order.
        compiled: What Triton compiled for it, function by function.
    """
    binaries = tuple(each.asm["cubin"] for each in compiled)
    spilled = max(each.n_spills for each in compiled)
    return GpuUse(binaries, spilled, occupancies(starts, compiled))


def occupancies(starts: Sequence[RecordedStart], compiled: Sequence[Any]) -> tuple[Occupancy, ...]:
    """Return how kernel starts occupy the GPU; nothing where one of them is not understood."""
    named = {each.metadata.name: each for each in compiled}
    found = []
    for start in starts:
        kernel = named.get(start.function.__name__)
        if kernel is None or not isinstance(start.grid, tuple):
            return ()
        metadata = kernel.metadata
        found.append(
            Occupancy(prod(start.grid), metadata.num_warps, kernel.n_regs, metadata.shared)
        )
    return tuple(found)


def _registers(compiled: Any) -> int:
    """Return the registers of a thread; 0 where the machine code does not say."""
    cubin = compiled.asm.get("cubin")
    if cubin is not None:
        found = _CUBIN.search(cubin)
        return int.from_bytes(found[1], "little") if found else 0
    amd = _AMD.search(str(compiled.asm.get("amdgcn", "")))
    return int(amd[1]) if amd else 0


__all__ = ["gpu_starts", "gpu_use", "occupancies"]
