"""What a kernel file starts, as a package keeps it: a grid, arguments, and code to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.errors import CompileError, Diagnostic
from fusec.target_api.base import GpuCode
from fusec.targets.triton.toolchain.cross_compile import compile_start, triton_cache
from fusec.targets.triton.toolchain.interpret import compiling, line_of
from fusec.targets.triton.toolchain.load import load
from fusec.targets.triton.toolchain.starts import RecordedStart, gpu_target, starts_of


@dataclass(frozen=True)
class NotedStart:
    """One start; as ``target_api.base.GpuStartNoted``."""

    start: RecordedStart
    namespace: dict[str, Any]
    path: str

    @property
    def grid(self) -> tuple[int, int, int]:
        """How many blocks."""
        x, y, z = (*self.start.grid, 1, 1)[:3]
        return int(x), int(y), int(z)

    @property
    def arguments(self) -> Sequence[Any]:
        """What the driver is given, in order: what is no constant of the compiled code."""
        from triton.runtime.jit import mangle_type

        function = self.start.function
        given = dict(zip([p.name for p in function.params], self.start.args, strict=False))
        given |= self.start.kwargs
        found: list[Any] = []
        for parameter in function.params:
            value = given.get(parameter.name, parameter.default)
            if parameter.is_constexpr or value is None:
                continue
            plain = not isinstance(value, torch.Tensor) and isinstance(value, (int, float))
            found.append((mangle_type(value), value) if plain else value)
        return found

    def compile(self, gpu: str) -> GpuCode:
        """Compile it for an architecture."""
        with compiling(), triton_cache():
            made = compile_start(self.start, gpu_target(gpu), self.namespace, self.path)
        facts = made.metadata
        more = {
            "several blocks at once": facts.num_ctas != 1,
            "memory of its own": bool(facts.global_scratch_size or facts.profile_scratch_size),
            "a start of all blocks together": bool(facts.launch_cooperative_grid),
            "a start before the one before has ended": bool(facts.launch_pdl),
        }
        return GpuCode(
            made.asm["cubin"],
            facts.name,
            facts.shared,
            facts.num_warps * 32,
            ", ".join(words for words, there in more.items() if there),
        )


def noted_starts(text: str, entry: str, tensors: Sequence[torch.Tensor]) -> list[NotedStart]:
    """Return what a kernel file starts for tensors; nothing is started.

    Args:
        text: The file.
        entry: The function that starts the kernels.
        tensors: Without memory, of the sizes that it is called with.

    Raises:
        CompileError: The file's own lines fail.
    """
    namespace, path = load(text)
    try:
        starts = starts_of(namespace, entry, tensors)
    except Exception as error:
        line = line_of(error, path)
        if line is None or not isinstance(error, (AttributeError, NameError, TypeError)):
            raise
        words = f"{type(error).__name__}: {error}"
        raise CompileError([Diagnostic(line, 0, "error", words)], words) from error
    return [NotedStart(start, namespace, path) for start in starts]


__all__ = ["NotedStart", "noted_starts"]
