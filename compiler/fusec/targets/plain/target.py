"""Plain C++ as a target: what a kernel computes, and nothing that would only make it faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fusec.target_api.base import LibraryTarget
from fusec.targets.plain.flags import FLAGS

if TYPE_CHECKING:
    from fusec.cache import CacheStore
    from fusec.ir.body import Buffer
    from fusec.ir.program import Compute
    from fusec.kernel_source import KernelSource
    from fusec.toolchain.children import Children


class Plain(LibraryTarget):
    """Kernels to read and to begin with: one element after the other, on one thread."""

    name = "plain"
    title = "plain C++"
    about = "plain C++, one loop nest a kernel, to read and to begin with"
    export_flags = (*FLAGS, "-fPIC")

    def emit(self, step: Compute, buffers: Mapping[str, Buffer]) -> KernelSource:
        """Write the kernel of a step."""
        from fusec.targets.plain.emit import emit_plain

        return emit_plain(step.name, step.body, buffers, label=step.label)

    def compile(
        self,
        text: str,
        *,
        flags: Sequence[str] = (),
        edited: bool = False,
        store: CacheStore | None = None,
        children: Children | None = None,
    ) -> Path:
        """Compile a text with whatever C++ compiler there is."""
        from fusec.targets.plain.compiler import compile_plain

        return compile_plain(text, self.name, edited=edited, store=store, children=children)


TARGET = Plain()
