"""A kernel's PTX and machine code, each instruction with the line of Python that it comes from."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusec.errors import FusecError
from fusec.targets.triton.toolchain.cross_compile import compile_start, triton_cache
from fusec.targets.triton.toolchain.interpret import compiling
from fusec.targets.triton.toolchain.starts import RecordedStart, gpu_target

# Who calls what stands at a ``.loc``: ``@[ FILE:LINE:COLUMN``, and names of files may hold spaces.
_CALLER = re.compile(r"@\[ (?:(?!@\[ ).)+?:(\d+):(\d+)(?= )")


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


def ptx_by_line(ptx: str, file: str) -> dict[int, list[str]]:
    """Return the instructions of a PTX text by the kernel's line that ``.loc`` names.

    Args:
        ptx: The text.
        file: The name of the kernel's file; instructions of other files are left out.
    """
    known, found, current = _file_number(ptx, file), dict[int, list[str]](), 0
    for raw in ptx.splitlines():
        line = " ".join(raw.split("//")[0].split())
        place = re.match(r"\.loc (\d+) (\d+)", line)
        if place:
            current = int(place[2]) if known in (None, place[1]) else 0
        elif current and line.endswith(";") and not line.startswith("."):
            found.setdefault(current, []).append(line)
        elif line.startswith(".section"):
            break
    return found


def sass_by_line(placed: Mapping[int, tuple[str, int]]) -> dict[int, list[str]]:
    """Return the instructions of a binary by their line; no-operations are left out.

    Args:
        placed: What ``placed_texts`` returned.
    """
    found: dict[int, list[str]] = {}
    for instruction, line in placed.values():
        if line and operation_of(instruction) != "NOP":
            found.setdefault(line, []).append(instruction)
    return found


def kernel_file(ptx: str) -> str:
    """Return the name of the kernel's file in a PTX text; empty if it names none.

    It need not be that of the kernel at hand: Triton's cache returns what was compiled of the same
    kernel in another cell.
    """
    place = re.search(r"^\s*\.loc\s+(\d+)", ptx[max(0, ptx.find(".entry")) :], re.MULTILINE)
    name = place and re.search(rf'^\s*\.file\s+{place[1]}\s+"(.*)"', ptx, re.MULTILINE)
    return name[1].replace("\\", "/").split("/")[-1] if name else ""


def _file_number(ptx: str, file: str) -> str | None:
    """Return the number that a PTX text gives a file; None if it does not name it."""
    known = re.search(rf'^\s*\.file\s+(\d+)\s+"(?:.*[/\\])?{re.escape(file)}"', ptx, re.MULTILINE)
    return known[1] if known else None


def own_lines(ptx: str, file: str) -> str:
    """Return a PTX text whose lines are the kernel's own, in place of those of what it calls.

    ``tl.sum`` is a function of Triton's own file; Triton notes behind a ``.loc`` who calls it, and
    the assembler does not keep that.

    Args:
        ptx: The text.
        file: The name of the kernel's file.
    """
    known = _file_number(ptx, file)
    if known is None:
        return ptx
    found = []
    for line in ptx.splitlines():
        place = re.match(r"(\s*\.loc\s+)\d+(\s+)\d+\s+\d+", line)
        callers = _CALLER.findall(line)
        if place and callers:
            number, column = callers[-1]  # the outermost: the kernel
            line = f"{place[1]}{known}{place[2]}{number} {column}"
        found.append(line)
    return "\n".join(found) + "\n"


def placed_instructions(listing: str, file: str) -> dict[int, tuple[str, int]]:
    """Return the instructions of a disassembly by their place: the operation and its line.

    Args:
        listing: What ``nvdisasm -g`` says of one kernel.
        file: The kernel's file; an instruction of another one has line 0.
    """
    return _operations(placed_texts(listing, file))


def placed_texts(listing: str, file: str) -> dict[int, tuple[str, int]]:
    """Return what ``placed_instructions`` does, each instruction whole."""
    found: dict[int, tuple[str, int]] = {}
    line = 0
    for text in listing.splitlines():
        place = re.search(r'//## File "(.*)", line (\d+)', text)
        match = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", text)
        if place:
            line = int(place[2]) if place[1].replace("\\", "/").split("/")[-1] == file else 0
        elif match:
            found[int(match[1], 16)] = match[2], line
    return found


def _operations(placed: Mapping[int, tuple[str, int]]) -> dict[int, tuple[str, int]]:
    return {place: (operation_of(text), line) for place, (text, line) in placed.items()}


def operation_of(instruction: str) -> str:
    """Return what an instruction does, without its condition and its operands: ``FADD``."""
    words = [word for word in instruction.split() if not word.startswith("@")]
    return words[0] if words else ""


def instruction_lines(ptx: str, cubin: bytes, file: str) -> dict[int, tuple[str, int]]:
    """Return each instruction's operation, with the kernel's line that it is of.

    Args:
        ptx: What the binary was made of.
        cubin: The binary.
        file: The name of the kernel's file.

    Raises:
        FusecError: The tools that Triton ships fail.
    """
    return _operations(_instructions_of(ptx, cubin, file))


def _instructions_of(ptx: str, cubin: bytes, file: str) -> dict[int, tuple[str, int]]:
    """Return each instruction of a binary, with the kernel's line that it is of.

    The PTX is assembled once more with the kernel's own lines; where that makes other code, the
    binary's lines count.
    """
    from triton import knobs

    given = placed_texts(disassembled(cubin), file)
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
        own = placed_texts(disassembled(made.read_bytes()), file)
    same = [(place, operation_of(text)) for place, (text, _) in own.items()] == [
        (place, operation_of(text)) for place, (text, _) in given.items()
    ]
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
    text = compiled.asm["ptx"]
    file = kernel_file(text)
    ptx = ptx_by_line(own_lines(text, file), file)
    sass = sass_by_line(_instructions_of(text, compiled.asm["cubin"], file))
    first = start.function.starting_line_number
    return [
        CompiledLine(number, text.rstrip(), tuple(ptx.get(number, ())), tuple(sass.get(number, ())))
        for number, text in enumerate(start.function.raw_src, start=first)
    ]


__all__ = [
    "CompiledLine",
    "disassembled",
    "instruction_lines",
    "kernel_file",
    "machine_code",
    "own_lines",
    "placed_instructions",
    "placed_texts",
    "ptx_by_line",
    "sass_by_line",
]
