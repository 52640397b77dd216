"""Triton as a target."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusec.abilities import Abilities
from fusec.target_api.base import (
    ExportWords,
    GpuStartNoted,
    GroupedProducts,
    Mismatch,
    PackedKernel,
    PythonTarget,
)
from fusec.targets.triton.permitted import PERMITTED

if TYPE_CHECKING:
    import torch

    from fusec.ir.body import Body, Buffer
    from fusec.ir.program import Compute, Settings
    from fusec.kernel import Kernel
    from fusec.kernel_source import KernelSource, Runnable, Signature
    from fusec.report import GpuStart


class Triton(PythonTarget):
    """Fast kernels for GPUs; on the CPU Triton's interpreter runs them."""

    name = "triton"
    title = "Triton"
    about = "Triton; with no GPU its kernels are cross-compiled and run in Triton's interpreter"
    head = "@triton.jit"
    devices = frozenset({"cpu", "cuda"})
    default_for = frozenset({"cuda"})
    interprets = frozenset({"cpu"})
    abilities = Abilities(
        products=True, many_programs=True, atomics=True, attention=True, float8=True
    )
    for_libraries = False
    artifacts = {  # noqa: RUF012
        "ttir": "Triton IR",
        "ttgir": "Triton GPU IR",
        "llir": "LLVM IR",
        "ptx": "PTX",
        "sass": "SASS",
        "amdgcn": "AMD assembly",
    }
    worker = "fusec.targets.triton.toolchain.candidate"
    permitted = PERMITTED
    # Lazily imported parts included: those fail while the interpreter is active.
    worker_imports = (
        "triton.experimental.gluon",
        "triton.runtime.interpreter",
        "fusec.targets.triton.toolchain.interpret",
    )
    # Torch imports it where a file computes something of tensors by itself, which is rehearsed
    # without their memory: a second of a processor, in each check, and a new variable in the
    # environment, which would be the file's fault.
    rehearsal_imports = ("torch._dynamo",)
    export = ExportWords(
        "fusec.targets.triton",
        "export.py.j2",
        needs="torch and Triton",
        device='"cuda" if torch.cuda.is_available() else "cpu"',
    )
    gpu_model = True

    def emit(self, step: Compute, buffers: Mapping[str, Buffer]) -> KernelSource:
        """Write the kernel of a step."""
        from fusec.targets.triton.emit import emit_triton

        return emit_triton(
            step.name,
            step.body,
            buffers,
            label=step.label,
            strategy=step.strategy,
            settings=step.settings,
        )

    def load(self, text: str, kernel: Kernel) -> Runnable:
        """Return a text ready to run: compiled by Triton for a GPU, interpreted on the CPU."""
        from fusec.targets.triton.toolchain.build import build_triton
        from fusec.targets.triton.toolchain.simulate import Simulated

        runnable = build_triton(text, kernel.signature, kernel.generated.entry)
        if all(argument.device == "cpu" for argument in kernel.signature.arguments):
            return Simulated(runnable, kernel)
        return runnable

    def check(self, text: str, signature: Signature, entry: str) -> None:
        """Put every kernel of a text through Triton's front end."""
        from fusec.targets.triton.toolchain.cross_compile import check

        check(text, signature, entry)

    def programs(
        self, text: str, entry: str, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> tuple[int, ...]:
        """Return how many programs each kernel start of a text has; nothing is started."""
        from fusec.targets.triton.toolchain.starts import programs

        return programs(text, entry, tensors, sizes)

    def machine_lines(self, ptx: str, binary: bytes, file: str) -> Mapping[int, tuple[str, int]]:
        """Return the instructions of an NVIDIA GPU's binary, each with its line."""
        from fusec.targets.triton.toolchain.lines import instruction_lines

        return instruction_lines(ptx, binary, file)

    def begin(self, source: KernelSource) -> None:
        """Have a process compile a kernel, where there is a GPU to compile it for."""
        from fusec.targets.triton.toolchain import pool

        pool.prepare(source.text, source.signature, source.entry)

    def compiled_for(self, texts: Path) -> Iterable[tuple[str, Mapping[str, bytes]]]:
        """Return what Triton compiled of the store's kernels; nothing where there is no Triton."""
        if importlib.util.find_spec("triton") is None:
            return ()
        from fusec.targets.triton.toolchain.carried import compiled_for

        return compiled_for(texts)

    def architecture(self, files: Mapping[str, bytes]) -> str:
        """Return what Triton's own words on a kernel say that it was compiled for."""
        from fusec.targets.triton.toolchain.carried import architecture

        return architecture(files)

    def take_in(self, name: str, files: Mapping[str, bytes]) -> bool:
        """Put what Triton compiled elsewhere where Triton looks for it."""
        if importlib.util.find_spec("triton") is None:
            return False
        from fusec.targets.triton.toolchain.carried import take_in

        return take_in(name, files)

    def workers(self) -> int:
        """Return how many processes compile for a GPU."""
        from fusec.targets.triton.toolchain import pool

        return pool.worker_count()

    def product_candidates(
        self, body: Body, buffers: Mapping[str, Buffer]
    ) -> Sequence[tuple[str, Settings]]:
        """Return tiles and schedules worth a measurement, the rules' own choice first."""
        from fusec.targets.triton.plan.choices_matmul import candidates, match_product

        return candidates(match_product(body, buffers))

    def build_for(
        self, sources: Sequence[KernelSource], tensors: Sequence[torch.Tensor]
    ) -> list[Runnable | None]:
        """Have Triton compile kernels side by side for tensors."""
        from fusec.targets.triton.toolchain import side_by_side

        return side_by_side.build_for(sources, tensors)

    def groups(self) -> GroupedProducts | None:
        """Return products of groups of rows that wait for nobody."""
        from fusec.targets.triton import grouped_products

        return grouped_products

    def multiply_in_place(self, x: torch.Tensor, factor: torch.Tensor) -> bool:
        """Multiply a tensor by a number that the device knows, if it is not one."""
        from fusec.targets.triton.multiply import multiply_in_place

        multiply_in_place(x, factor)
        return True

    def pack(self, compiled: Any, count: int) -> PackedKernel | None:
        """Have Triton compile a kernel around a compiled one."""
        from fusec.targets.triton.toolchain import packed_kernel

        return packed_kernel.pack(compiled, count)

    def precompile(self, text: str, signature: Signature, entry: str) -> None:
        """Have a process compile a text, and wait for it."""
        from fusec.targets.triton.toolchain import pool

        pool.compile_now(text, signature, entry)

    def prepare(self) -> None:
        """Start the processes that compile."""
        from fusec.targets.triton.toolchain import pool

        pool.start()

    def entry_problem(self, text: str, entry: str, generated: str) -> Mismatch | None:
        """Return how ``launch`` differs from the generated one, or what else is missing."""
        from fusec.targets.triton.toolchain.entry import check_entry

        return check_entry(text, entry, generated)

    def gpu_starts(self, text: str, signature: Signature, gpu: str) -> tuple[GpuStart, ...]:
        """Compile a text for a GPU and return what each of its kernels takes of it."""
        from fusec.targets.triton.toolchain.resources import gpu_starts

        return gpu_starts(text, signature, gpu)

    def starts_for(
        self, text: str, entry: str, tensors: Sequence[torch.Tensor]
    ) -> Sequence[GpuStartNoted]:
        """Return what a text starts for tensors without memory."""
        from fusec.targets.triton.toolchain.noted_starts import noted_starts

        return noted_starts(text, entry, tensors)

    def artifact(self, text: str, signature: Signature, kind: str, gpu: str) -> str:
        """Return one of Triton's stages, down to a GPU's machine code; it need not be there."""
        from fusec.targets.triton.toolchain.cross_compile import artifacts

        return artifacts(text, signature, gpu=gpu, kinds=(kind,))[kind]

    def version(self) -> str:
        """Return Triton's version."""
        try:
            return importlib.metadata.version("triton")
        except importlib.metadata.PackageNotFoundError:
            return ""


TARGET = Triton()
