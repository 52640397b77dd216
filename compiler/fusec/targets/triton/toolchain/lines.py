"""A kernel's PTX and machine code, each instruction with the line of Python that it comes from."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from fusec.errors import FusecError
from fusec.targets.triton.toolchain.cross_compile import compile_start, triton_cache
from fusec.targets.triton.toolchain.interpret import compiling
from fusec.targets.triton.toolchain.starts import RecordedStart, gpu_target


@dataclass(frozen=True)
class CompiledLine:
    """A line of a kernel, and what became of it.

    Attributes:
        number: In the file or the cell.
        text: The line.
        ptx: Instructions of PTX.
        sass: Instructions of the machine.
    """

    number: int
    text: str
    ptx: tuple[str, ...]
    sass: tuple[str, ...]


def ptx_by_line(ptx: str) -> dict[int, list[str]]:
    """Return the instructions of a PTX text by the line that ``.loc`` names."""
    found: dict[int, list[str]] = {}
    current = 0
    for raw in ptx.splitlines():
        line = " ".join(raw.split("//")[0].split())
        place = re.match(r"\.loc \d+ (\d+)", line)
        if place:
            current = int(place[1])
        elif current and line.endswith(";") and not line.startswith("."):
            found.setdefault(current, []).append(line)
        elif line.startswith(".section"):
            break
    return found


def sass_by_line(listing: str) -> dict[int, list[str]]:
    """Return the instructions of a disassembly by the line that it names."""
    found: dict[int, list[str]] = {}
    current = 0
    for line in listing.splitlines():
        place = re.search(r'//## File ".*", line (\d+)', line)
        match = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
        if place:
            current = int(place[1])
        elif match and current and match[1] != "NOP":
            found.setdefault(current, []).append(match[1])
    return found


def disassembled(cubin: bytes) -> str:
    """Return a binary's machine code with lines, by the tool that Triton ships.

    Raises:
        FusecError: The tool fails.
    """
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [knobs.nvidia.nvdisasm.path, "-g", "-c", file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise FusecError(f"nvdisasm: {done.stderr.strip()[:300]}")
    return done.stdout


def machine_code(
    start: RecordedStart, namespace: dict[str, Any], path: str, gpu: str
) -> list[CompiledLine]:
    """Compile a kernel for an NVIDIA GPU that need not be there; return its lines.

    Args:
        start: What would be started.
        namespace: Where the kernel is defined.
        path: Its file, for messages.
        gpu: ``sm_90``, ``sm_80`` ...

    Raises:
        CompileError: Triton refuses it.
        FusecError: There is no such GPU.
    """
    with compiling(), triton_cache():
        compiled = compile_start(start, gpu_target(gpu), namespace, path)
    ptx = ptx_by_line(compiled.asm["ptx"])
    sass = sass_by_line(disassembled(compiled.asm["cubin"]))
    first = start.function.starting_line_number
    return [
        CompiledLine(number, text.rstrip(), tuple(ptx.get(number, ())), tuple(sass.get(number, ())))
        for number, text in enumerate(start.function.raw_src, start=first)
    ]


__all__ = ["CompiledLine", "disassembled", "machine_code", "ptx_by_line", "sass_by_line"]
