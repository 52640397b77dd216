"""The assembly that the compiler makes of a C++ kernel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fusec.cache import scratch
from fusec.errors import CompileError
from fusec.helper_block import with_helpers
from fusec.toolchain.build import parse_diagnostics
from fusec.toolchain.compiler import find_compiler


def assembly(text: str) -> str:
    """Return the compiler's assembly for a C++ kernel, with the kernel's lines as comments.

    Raises:
        CompileError: The text does not compile.
    """
    compiler = find_compiler()
    with scratch() as folder:
        Path(folder, "kernel.cpp").write_text(
            compiler.facts.text(with_helpers(text, "kernel.cpp")), encoding="utf-8"
        )
        done = subprocess.run(
            compiler.assembly_command("kernel.cpp", "kernel.s"),
            cwd=folder,
            env={**os.environ, **compiler.environment(folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise CompileError(parse_diagnostics(done.stderr), done.stderr)
        return Path(folder, "kernel.s").read_text()


__all__ = ["assembly"]
