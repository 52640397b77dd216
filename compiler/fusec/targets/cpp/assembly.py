"""The assembly that the compiler makes of a C++ kernel."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from fusec.cache import scratch
from fusec.errors import BuildTimeout, CompileError
from fusec.helper_block import with_helpers
from fusec.toolchain.build import TIME_LIMIT, parse_diagnostics
from fusec.toolchain.compiler import find_compiler
from fusec.toolchain.listen import run

# Where the compiler says which line the following instructions are of, and which file that is.
_LINE = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r"\s*\.file\s+(\d+)\s.*kernel\.cpp\"")


def assembly(text: str, *flags: str) -> str:
    """Return the compiler's assembly for a C++ kernel, with the kernel's lines as comments.

    Args:
        text: The whole kernel file.
        flags: What the compiler is told beyond what it always is.

    Raises:
        CompileError: The text does not compile.
        BuildTimeout: The compiler takes too long.
    """
    compiler = find_compiler()
    with scratch() as folder:
        Path(folder, "kernel.cpp").write_text(
            compiler.facts.text(with_helpers(text, "kernel.cpp")), encoding="utf-8"
        )
        command = [*compiler.assembly_command("kernel.cpp", "kernel.s"), *flags]
        environment = {**os.environ, **compiler.environment(folder)}
        try:
            status, output = run(command, folder, environment, TIME_LIMIT, errors=subprocess.STDOUT)
        except TimeoutError:
            raise BuildTimeout(TIME_LIMIT) from None
        if status != 0:
            raise CompileError(parse_diagnostics(output), output)
        return Path(folder, "kernel.s").read_text()


def instruction_line(text: str, name: str) -> int | None:
    """Return the kernel's line that an instruction is of; None where nothing says so.

    Args:
        text: The whole kernel file.
        name: The instruction, as a disassembler has it: ``ldmxcsr``.
    """
    # An assembler takes ``popf`` for ``popfq``.
    wanted = re.compile(rf"(?<![\w.%$]){re.escape(name.removesuffix('q'))}[a-z]?(?![\w.])")
    files: set[str] = set()
    line = None
    for each in assembly(text, "-g1").splitlines():
        if file := _FILE.match(each):
            files.add(file[1])
        elif at := _LINE.match(each):
            line = int(at[2]) if at[1] in files else None
        elif line and not each.lstrip().startswith((".", "#")) and wanted.search(each):
            return line
    return None


__all__ = ["assembly", "instruction_line"]
