"""A kernel's text, built: what is launched."""

from __future__ import annotations

from pathlib import Path

from fusec.call.launch import CppRunnable
from fusec.kernel import Kernel, Runnable
from fusec.targets.cpp.toolchain import build as cpp_build
from fusec.targets.triton.toolchain.simulate import Simulated


def build_runnable(kernel: Kernel, text: str) -> Runnable:
    """Build ``text`` as ``kernel``.

    Raises:
        CompileError: It does not compile; the diagnostics carry the lines.
    """
    signature, generated = kernel.signature, kernel.generated
    if kernel.target == "cpp":
        kind = "cpp" if text == generated.text else "edits-cpp"
        path: Path = cpp_build.build(text, kind=kind)
        return CppRunnable(path, generated.entry, signature, kernel.name)
    from fusec.targets.triton.toolchain.build import build_triton

    runnable = build_triton(text, signature, generated.entry)
    if all(argument.device == "cpu" for argument in signature.arguments):
        return Simulated(runnable, kernel)
    return runnable


__all__ = ["build_runnable"]
