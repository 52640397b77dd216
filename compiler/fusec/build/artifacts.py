"""The lower forms of a kernel: assembly of a C++ kernel, Triton's stages down to machine code."""

from __future__ import annotations

from fusec.errors import FusecError
from fusec.kernel import Kernel
from fusec.target_api.registry import find_target


class NoSuchArtifact(FusecError):
    """A kernel has no such lower form."""

    def __init__(self, kernel: str, kind: str, known: tuple[str, ...]) -> None:
        super().__init__(f"{kernel} has no {kind!r}", f"it has: {', '.join(known)}")


def artifact(kernel: Kernel, kind: str, gpu: str) -> str:
    """Return a lower form of a kernel's text in use.

    Args:
        kernel: The kernel.
        kind: One of its target's ``artifacts``.
        gpu: The GPU that is compiled for where there is none: ``sm_90``, ``gfx942`` ...

    Raises:
        NoSuchArtifact: The target (or the GPU) has no such form.
        CompileError: The text does not compile.
    """
    target = find_target(kernel.target)
    if kind not in target.artifacts:
        raise NoSuchArtifact(kernel.name, kind, tuple(target.artifacts))
    return target.artifact(kernel.source, kernel.signature, kind, gpu)


__all__ = ["NoSuchArtifact", "artifact"]
