"""What Nsight Compute says of instructions, given to the lines of a Triton kernel."""

from __future__ import annotations

import csv
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fusec
from fusec.kernel import Kernel
from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import find_target
from fusec.targets.triton.toolchain import cross_compile
from fusec.targets.triton.toolchain.lines import own_lines, placed_instructions
from fusec.targets.triton.toolchain.starts import gpu_target
from fusec.timing import nsight
from fusec.timing.warp_samples import WAITS, Instruction, read_instructions, seen_lines

# The head and the order of columns as ``ncu --page source --print-source sass --csv`` has them.
HEAD = ["Address", "Source", "Live Registers", "Warp Stall Sampling (All Samples)"]
HEAD += ["Warp Stall Sampling (Not-issued Samples)", "# Samples", "Instructions Executed"]
HEAD += ["L2 Theoretical Sectors Global", "stall_long_sb", "stall_selected"]
HEAD += ["stall_long_sb (Not Issued)"]
BASE = 0x7F21A0000000


@dataclass
class Compiled:
    """A kernel that sums rows, compiled for a GPU that is not here."""

    kernel: Kernel
    ptx: str
    cubin: bytes

    def line_of(self, words: str) -> int:
        (found,) = [n for n, s in enumerate(self.kernel.source.splitlines(), 1) if words in s]
        return found


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    function = fusec.compile(lambda x: x.exp().sum(-1), target="triton")
    function(torch.randn(8, 64))
    (kernel,) = function.kernels.values()
    namespace, path = cross_compile.load(kernel.source)
    with cross_compile.compiling(), cross_compile.triton_cache():
        (start,) = cross_compile.launched(namespace, path, kernel.signature, kernel.generated.entry)
        made = cross_compile.compile_start(start, gpu_target("sm_90"), namespace, path)
    return Compiled(kernel, made.asm["ptx"], made.asm["cubin"])


def lines_of(compiled: Compiled) -> dict[int, tuple[str, int]]:
    target = find_target("triton")
    assert isinstance(target, PythonTarget)
    return dict(target.machine_lines(compiled.ptx, compiled.cubin, "kernel.py"))


def printed(rows: dict[int, tuple[str, int, str, int]], kernel: str = "sums") -> str:
    """Write what ``ncu`` prints: by place the operation, samples, the reason, sectors."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(["Kernel Name", kernel])
    writer.writerow(HEAD)
    for place, (operation, count, reason, sectors) in rows.items():
        waits = [str(count if name == reason else 0) for name in ("long_sb", "selected")]
        samples = f"{count:,}"
        row = [hex(BASE + place), f"      @!P0 {operation} R1, R2", "8", samples, "0", samples]
        writer.writerow([*row, "4,096", str(sectors), *waits, "0"])
    return "==PROF== Disconnected\n" + out.getvalue()


def test_what_is_printed_is_read():
    (block,) = read_instructions(printed({0: ("LDG.E", 1200, "long_sb", 32)}))
    assert block == [Instruction(0, "LDG.E", 1200, {"long_sb": 1200}, 4096.0, 32.0)]
    assert (
        len(read_instructions(printed({0: ("A", 1, "", 0)}) + printed({0: ("B", 1, "", 0)}))) == 2
    )
    assert read_instructions("==ERROR== ERR_NVGPUCTRPERM") == []


@pytest.mark.triton
def test_what_a_line_calls_is_the_line_s(compiled):
    """``tl.sum`` is written in Triton's own file; its instructions are those of the line."""
    assert "standard.py" in compiled.ptx
    assert "standard.py" not in own_lines(compiled.ptx, "kernel.py").split(".file")[0].replace(
        "// standard.py", ""
    )
    lines = lines_of(compiled)
    summed, loaded = compiled.line_of("tl.sum("), compiled.line_of("= tl.load(")
    shuffles = {line for operation, line in lines.values() if operation.startswith("SHFL")}
    assert shuffles == {summed}
    assert {line for operation, line in lines.values() if operation.startswith("LDG")} == {loaded}
    assert all(line for operation, line in lines.values() if operation == "FADD")


@pytest.mark.triton
def test_other_code_than_the_binary_s_does_not_count(compiled):
    """Lines of the text assembled anew are taken only where the code is the same."""
    other = compiled.ptx.replace("add.f32", "mul.f32")
    assert other != compiled.ptx
    target = find_target("triton")
    found = target.machine_lines(other, compiled.cubin, "kernel.py")
    assert {place: operation for place, (operation, _) in found.items()} == {
        place: operation for place, (operation, _) in lines_of(compiled).items()
    }


def test_lines_of_another_file_are_none():
    listing = (
        '\t//## File "/a/kernel.py", line 7\n        /*0000*/    FADD R1, R2 ;\n'
        '\t//## File "/b/standard.py", line 9\n        /*0010*/    @P0 SHFL.BFLY PT ;\n'
    )
    assert placed_instructions(listing, "kernel.py") == {0: ("FADD", 7), 16: ("SHFL.BFLY", 0)}


def samples_of(compiled: Compiled) -> dict[int, tuple[str, int, str, int]]:
    """Pretend that warps are at loads for nine tenths of the time."""
    return {
        place: (operation, 90, "long_sb", 64)
        if operation.startswith("LDG")
        else (operation, 0, "", 0)
        for place, (operation, _) in lines_of(compiled).items()
    }


@pytest.mark.triton
def test_samples_are_given_to_lines(compiled):
    rows = samples_of(compiled)
    loads = sum(count > 0 for _, count, _, _ in rows.values())
    shuffle = next(p for p, row in rows.items() if row[0].startswith("SHFL"))
    rows[shuffle] = (rows[shuffle][0], 10 * loads, "selected", 0)
    text = compiled.kernel.source
    found = seen_lines(
        text, read_instructions(printed(rows)), [{0: ("NOP", 1)}, lines_of(compiled)]
    )
    loaded = found.lines[compiled.line_of("= tl.load(")]
    assert (found.samples, found.missing) == (100 * loads, "")
    assert loaded.share == pytest.approx(0.9)
    assert loaded.waits == "waits for memory"
    assert loaded.bytes == 32 * 64 * loads
    assert found.lines[compiled.line_of("tl.sum(")].waits == "computes"
    # Another binary: no line is known, and it is said.
    blocks = read_instructions(printed(rows))
    assert "what ran is not" in seen_lines(text, blocks, [{0: ("NOP", 1)}]).missing
    assert "what ran is not" in seen_lines(text, blocks, []).missing
    few = {place: (operation, 0, "", 0) for place, (operation, *_) in rows.items()}
    assert (
        "0 times only"
        in seen_lines(text, read_instructions(printed(few)), [lines_of(compiled)]).missing
    )


def test_as_an_h100_has_said_it():
    """The first 64 instructions of ``sin(x) * w + exp(x)``, by Nsight Compute 2025.3."""
    folder = Path(__file__).with_name("recorded")
    blocks = read_instructions((folder / "nsight_source.csv").read_text())
    listing = placed_instructions((folder / "nvdisasm.txt").read_text(), "kernel.py")
    text = (folder / "kernel.py.txt").read_text()
    assert [len(block) for block in blocks] == [len(listing)] == [64]
    found = seen_lines(text, blocks, [listing])
    lines = text.splitlines()
    (loaded,) = [n for n in found.lines if "x = tl.load(" in lines[n - 1]]
    assert found.lines[loaded].bytes == 4096 * 2048 * 4
    assert found.elsewhere == pytest.approx(
        0, abs=1e-12
    )  # how floats are added, CPython 3.12 changed
    assert {line.waits for line in found.lines.values()} <= {*WAITS.values(), ""}


FAKE = """\
#!{python}
import os, pathlib, sys
if "--import" in sys.argv:
    print(pathlib.Path({said!r}).read_text())
else:
    child = pathlib.Path(sys.argv[-1])
    assert "--section" in sys.argv and child.name == "kernel.py" and "tl.sum" in child.read_text()
    made = pathlib.Path(os.environ["TRITON_CACHE_DIR"], "key")
    made.mkdir(parents=True)
    for name in ("sums.cubin", "sums.ptx"):
        (made / name).write_bytes(pathlib.Path({folder!r}, name).read_bytes())
    print("==ERROR== no right")
"""


@pytest.mark.triton
@pytest.mark.skipif(os.name != "posix", reason="a script stands for ncu")
def test_the_whole_way(compiled, monkeypatch, tmp_path):
    ncu, said = tmp_path / "ncu", tmp_path / "said.csv"
    (tmp_path / "sums.ptx").write_text(compiled.ptx)
    (tmp_path / "sums.cubin").write_bytes(compiled.cubin)
    said.write_text(printed(samples_of(compiled)))
    ncu.write_text(FAKE.format(python=sys.executable, said=str(said), folder=str(tmp_path)))
    ncu.chmod(0o755)
    monkeypatch.setattr(nsight, "find", lambda: str(ncu))
    tensors = [torch.zeros(8, 64), torch.zeros(8)]
    found = nsight.line_counts(compiled.kernel, tensors, [])
    assert found.lines[compiled.line_of("= tl.load(")].share == 1.0
    said.write_text("nothing")
    assert nsight.line_counts(compiled.kernel, tensors, []).missing.endswith("no right")
    monkeypatch.setattr(nsight, "find", lambda: None)
    assert "not installed here" in nsight.line_counts(compiled.kernel, tensors, []).missing
    assert not list(Path(tmp_path).glob("report*"))
