"""C++ with OpenMP as a target."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fusec.errors import FusecError
from fusec.machine import current_machine
from fusec.target_api.base import LibraryTarget

if TYPE_CHECKING:
    from fusec.cache import CacheStore
    from fusec.ir.body import Buffer
    from fusec.ir.program import Compute
    from fusec.kernel_source import KernelSource, Signature
    from fusec.toolchain.children import Children


class Cpp(LibraryTarget):
    """Fast kernels for the CPU: vectors, threads, blocks that fit the caches."""

    name = "cpp"
    title = "C++"
    about = "C++ with OpenMP"
    default_for = frozenset({"cpu"})
    threads = True
    artifacts = {"asm": "assembly"}  # noqa: RUF012
    imports = ("fusec.targets.cpp.emit",)
    # The flags of ``toolchain.compiler``, less what belongs to one machine's torch.
    export_flags = (
        "-std=c++17",
        "-O3",
        "-march=native",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=off",
        "-fopenmp",
        "-fPIC",
        "-shared",
    )

    def emit(self, step: Compute, buffers: Mapping[str, Buffer]) -> KernelSource:
        """Write the kernel of a step."""
        from fusec.targets.cpp.emit import emit_cpp

        source = emit_cpp(
            step.name,
            step.body,
            buffers,
            label=step.label,
            strategy=step.strategy,
            settings=step.settings,
        )
        return replace(source, flags=current_machine().flags)

    def compile(
        self,
        text: str,
        *,
        flags: Sequence[str] = (),
        edited: bool = False,
        store: CacheStore | None = None,
        children: Children | None = None,
    ) -> Path:
        """Compile a text for this processor and the OpenMP runtime that torch runs on."""
        from fusec.toolchain import build

        kind = f"edits-{self.name}" if edited else self.name
        return build.build(
            text,
            extra_flags=flags,
            kind=kind,
            processor_limit=build.EDIT_PROCESSOR_LIMIT if edited else 0,
            store=store,
            children=children,
        )

    def find_tools(self) -> None:
        """Look for a C++ compiler; without one, the first kernel says so itself."""
        from fusec.toolchain.compiler import find_compiler

        with contextlib.suppress(FusecError):
            find_compiler()

    def read_helpers(self) -> None:
        """Read the functions that kernels call."""
        from fusec.targets.cpp.mathlib import available

        available()

    def whole_text(self, text: str) -> str:
        """Return a text that includes its own helpers, which stay at its end."""
        from fusec.helper_block import kernel_first

        return kernel_first(text)

    def text_and_header(self, text: str) -> tuple[str, str]:
        """Return the kernel and its helpers."""
        from fusec.helper_block import header_of

        return header_of(text)

    def instruction_line(self, text: str, name: str) -> int | None:
        """Return the line that an instruction is of, by the compiler's notes for debuggers."""
        from fusec.targets.cpp.assembly import instruction_line

        return instruction_line(text, name)

    def artifact(self, text: str, signature: Signature, kind: str, gpu: str) -> str:
        """Return the assembly of a text."""
        from fusec.targets.cpp.assembly import assembly

        return assembly(text)


TARGET = Cpp()
