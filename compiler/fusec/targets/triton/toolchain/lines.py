"""A kernel's PTX and machine code, each instruction with the line of Python that it comes from."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
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


def own_lines(ptx: str, file: str) -> str:
    """Return a PTX text whose lines are the kernel's own, in place of those of what it calls.

    ``tl.sum`` is a function of Triton's own file; Triton notes behind a ``.loc`` who calls it, and
    the assembler does not keep that.

    Args:
        ptx: The text.
        file: The name of the kernel's file.
    """
    known = re.search(rf'^\s*\.file\s+(\d+)\s+"(?:.*[/\\])?{re.escape(file)}"', ptx, re.MULTILINE)
    if known is None:
        return ptx
    found = []
    for line in ptx.splitlines():
        place = re.match(r"(\s*\.loc\s+)\d+(\s+)\d+\s+\d+", line)
        callers = re.findall(r"@\[ [^\s\]]+:(\d+):(\d+)", line)
        if place and callers:
            number, column = callers[-1]  # the outermost: the kernel
            line = f"{place[1]}{known[1]}{place[2]}{number} {column}"
        found.append(line)
    return "\n".join(found) + "\n"


def placed_instructions(listing: str, file: str) -> dict[int, tuple[str, int]]:
    """Return the instructions of a disassembly by their place: the operation and its line.

    Args:
        listing: What ``nvdisasm -g`` says of one kernel.
        file: The kernel's file; an instruction of another one has line 0.
    """
    found: dict[int, tuple[str, int]] = {}
    line = 0
    for text in listing.splitlines():
        place = re.search(r'//## File "(.*)", line (\d+)', text)
        match = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", text)
        if place:
            line = int(place[2]) if place[1].replace("\\", "/").split("/")[-1] == file else 0
        elif match:
            found[int(match[1], 16)] = operation_of(match[2]), line
    return found


def operation_of(instruction: str) -> str:
    """Return what an instruction does, without its condition and its operands: ``FADD``."""
    words = [word for word in instruction.split() if not word.startswith("@")]
    return words[0] if words else ""


def instruction_lines(ptx: str, cubin: bytes, file: str) -> dict[int, tuple[str, int]]:
    """Return each instruction of a binary, with the kernel's line that it is of.

    The PTX is assembled once more with the kernel's own lines; where that makes other code, the
    binary's lines count.

    Args:
        ptx: What the binary was made of.
        cubin: The binary.
        file: The name of the kernel's file.

    Raises:
        FusecError: The tools that Triton ships fail.
    """
    from triton import knobs

    given = placed_instructions(disassembled(cubin), file)
    target = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    if target is None:
        return given
    newest = int(re.sub(r"\D", "", target[1]) or 0) >= 100
    tool = getattr(knobs.nvidia, "ptxas_blackwell", None) if newest else None
    with tempfile.TemporaryDirectory(prefix="fusec-lines-") as folder:
        text, made = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        text.write_text(own_lines(ptx, file), encoding="utf-8")
        command = [(tool or knobs.nvidia.ptxas).path, "-lineinfo", f"--gpu-name={target[1]}"]
        done = subprocess.run(
            [*command, str(text), "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return given
        own = placed_instructions(disassembled(made.read_bytes()), file)
    same = {place: operation for place, (operation, _) in own.items()} == {
        place: operation for place, (operation, _) in given.items()
    }
    return own if same else given


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


__all__ = [
    "CompiledLine",
    "disassembled",
    "instruction_lines",
    "machine_code",
    "own_lines",
    "placed_instructions",
    "ptx_by_line",
    "sass_by_line",
]
