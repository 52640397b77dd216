"""A kernel's text, built: what is launched."""

from __future__ import annotations

from fusec.call.launch import CppRunnable
from fusec.kernel import Kernel
from fusec.kernel_source import Runnable
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import find_target


def build_runnable(kernel: Kernel, text: str) -> Runnable:
    """Build ``text`` as ``kernel``.

    Raises:
        CompileError: It does not compile; the diagnostics carry the lines.
    """
    target, generated = find_target(kernel.target), kernel.generated
    if isinstance(target, LibraryTarget):
        path = target.compile(text, flags=generated.flags, edited=text != generated.text)
        return CppRunnable(path, generated.entry, kernel.signature, kernel.name)
    assert isinstance(target, PythonTarget)
    return target.load(text, kernel)


__all__ = ["build_runnable"]
