"""The lower forms of a kernel: assembly of a C++ kernel, Triton's stages down to machine code."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from fusec.errors import FusecError
from fusec.helper_block import with_helpers
from fusec.kernel import Kernel
from fusec.targets.cpp.toolchain.build import parse_diagnostics
from fusec.targets.cpp.toolchain.compiler import find_compiler

CPP_KINDS = ("asm",)
TRITON_KINDS = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")


class NoSuchArtifact(FusecError):
    """A kernel has no such lower form."""

    def __init__(self, kernel: str, kind: str, known: tuple[str, ...]) -> None:
        super().__init__(f"{kernel} has no {kind!r}", f"it has: {', '.join(known)}")


def artifact(kernel: Kernel, kind: str, gpu: str) -> str:
    """Return a lower form of a kernel's text in use.

    Args:
        kernel: The kernel.
        kind: One of ``CPP_KINDS`` or ``TRITON_KINDS``, after its target.
        gpu: The GPU that Triton compiles for: ``sm_90``, ``gfx942`` ...

    Raises:
        NoSuchArtifact: The target (or the GPU) has no such form.
        CompileError: The text does not compile.
    """
    if kernel.target == "cpp":
        if kind not in CPP_KINDS:
            raise NoSuchArtifact(kernel.name, kind, CPP_KINDS)
        return assembly(kernel.source)
    if kind not in TRITON_KINDS:
        raise NoSuchArtifact(kernel.name, kind, TRITON_KINDS)
    from fusec.targets.triton.toolchain.cross_compile import artifacts

    return artifacts(kernel.source, kernel.signature, gpu=gpu, kinds=(kind,))[kind]


def assembly(text: str) -> str:
    """Return the compiler's assembly for a C++ kernel, with the kernel's lines as comments.

    Raises:
        CompileError: The text does not compile.
    """
    from fusec.errors import CompileError

    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="fusec-") as folder:
        Path(folder, "kernel.cpp").write_text(with_helpers(text, "kernel.cpp"))
        command = [compiler.path, *compiler.flags, "-fopenmp", "-S", "-fverbose-asm"]
        command += ["kernel.cpp", "-o", "kernel.s"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise CompileError(parse_diagnostics(done.stderr), done.stderr)
        return Path(folder, "kernel.s").read_text()
