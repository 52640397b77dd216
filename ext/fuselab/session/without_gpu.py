"""A cell whose kernels are for a GPU that is not there: nothing is timed, a model stands in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusec.errors import FusecError
from fusec.target_api.registry import find_target
from fuselab.display import words

if TYPE_CHECKING:
    from fusec.inspect.gpu_model import GpuOutlook
    from fusec.kernel import Kernel

MOST_MODELED = 4  # kernels: each is compiled for the GPU, a second the first time


def is_simulated(kernel: Kernel) -> bool:
    """Whether an interpreter stands in for the device that a kernel is meant for."""
    interprets = find_target(kernel.target).interprets
    arguments = kernel.signature.arguments
    return bool(arguments) and all(each.device in interprets for each in arguments)


def cell_is_simulated(cell: Any) -> bool:
    """Whether that is so of a kernel of a cell: then no time of the cell means anything."""
    return any(is_simulated(kernel) for kernel in cell.kernels.values())


def model_lines(cell: Any) -> tuple[str, ...]:
    """Say what each kernel takes of the GPU that it was compiled for, and a predicted time."""
    from fusec.inspect.gpu_model import outlook  # imports the compiler

    lines = []
    kernels = [(n, k) for n, k in cell.latest_kernels.items() if is_simulated(k)]
    for name, kernel in kernels[:MOST_MODELED]:
        try:
            lines.append(f"{name}{model_line(outlook(kernel, gpu_of(kernel)))}")
        except (FusecError, RuntimeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            lines.append(f"{name}: not compiled for {gpu_of(kernel)}: {reason}")
    if len(kernels) > MOST_MODELED:
        lines.append(f"and {words.count(len(kernels) - MOST_MODELED, 'more kernel')}")
    return tuple(lines)


def model_line(found: GpuOutlook) -> str:
    """Say it in one line, what is predicted marked as such."""
    name = f"{found.gpu} ({found.sheet.name})" if found.sheet else found.gpu
    line = f" on {name}"
    if found.seconds:
        why = "bytes" if found.by_bytes else "operations"
        line += f", predicted by its {why}, not measured: {words.duration(found.seconds)}"
    parts = []
    for start in found.starts:
        own = [f"{start.programs} programs" if start.programs else "", start.tile]
        own += [words.count(start.warps, "warp")]
        own += [f"{start.registers} registers a thread" if start.registers else ""]
        own += [f"{words.size(start.shared)} of shared memory"]
        share = found.occupancy(start)
        own += [f"occupancy {words.share(share)}" if share else ""]
        label = f"{start.name}: " if len(found.starts) > 1 else ""
        parts.append(label + ", ".join(part for part in own if part))
    return line + "".join(f"; {part}" for part in parts)


def gpu_of(kernel: Kernel) -> str:
    """Return the GPU that a kernel's graph is compiled for."""
    for part in getattr(kernel.host, "parts", ()):
        if part.kernels.get(kernel.name) is kernel:
            return str(part.state.options.gpu)
    return "sm_90"


__all__ = ["cell_is_simulated", "is_simulated", "model_line", "model_lines"]
