"""Triton with no GPU says nothing about speed; a model of the GPU says what is to be expected."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from fusec.inspect.gpu_model import SHEETS, GpuOutlook, outlook
from fusec.report import GpuStart
from fuselab.display.pages.counters import NO_GPU
from fuselab.display.pages.limits import limits_page
from fuselab.display.style import Style
from fuselab.panel.workbench import head_line
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fused_cell import FusedCell
from fuselab.session.session import Session
from support.html import Checker

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU times for real")


@pytest.fixture(scope="module")
def cell() -> FusedCell:
    torch._dynamo.reset()
    session = Session({"F": F, "x": torch.rand(64, 96), "w": torch.rand(96)})
    options = CellOptions(target="triton", name="tri")
    made, program = session.prepare("y = F.gelu(x) * w\n", options, Frontend())
    session.run(made, program)
    made.update()
    return made


@pytest.mark.triton
def test_nothing_is_said_about_speed(cell: FusedCell) -> None:
    assert cell.simulated
    assert cell.eager is cell.fused is cell.limit is None
    assert cell.kernel_times == {}
    assert cell.png() is None
    page = cell.html()
    Checker().feed(page)
    for form in (cell.text(), re.sub(r"<style>.*?</style>", "", page, flags=re.S)):
        assert not re.search(r"× (faster|slower)|GB/s|not told apart|limit here", form)
        assert "eager moves" in form  # the traffic is the kernel's wherever it runs
    assert Style.best not in page
    facts = cell.workbench().bench.facts
    assert not re.search(r"\d (ms|µs|s)\b", head_line(cell.name, facts))


@pytest.mark.triton
def test_this_machine_s_limits_are_no_gpu_s(cell: FusedCell) -> None:
    page = limits_page(cell)
    assert page.text == f"tri: its limit is not known: {NO_GPU}"


@pytest.mark.triton
def test_what_the_gpu_would_do(cell: FusedCell) -> None:
    (line,) = cell.summary().models
    assert line.startswith("tri on sm_90 (H100), predicted by its bytes, not measured: ")
    for fact in ("programs", "YBLOCK=", "warp", "registers a thread", "shared memory", "occupancy"):
        assert fact in line
    (kernel,) = cell.kernels.values()
    found = outlook(kernel, "sm_80")
    (start,) = found.starts
    assert 8 <= start.registers <= 255
    assert start.programs > 0
    moved = kernel.generated.read_bytes + kernel.generated.written_bytes
    assert found.seconds > moved / SHEETS["sm_80"].bandwidth


def test_occupancy_is_the_least_of_what_there_is() -> None:
    def share(warps: int, registers: int, shared: int) -> float:
        start = GpuStart("k", 1, warps, registers, shared)
        return GpuOutlook("sm_90", SHEETS["sm_90"], (start,), 0.0, True).occupancy(start)

    assert share(8, 32, 0) == 1.0
    assert share(8, 128, 0) == 0.25  # 65536 registers for 512 threads
    assert share(4, 32, 100 << 10) == 0.125  # two programs a multiprocessor
    assert share(1, 16, 0) == 0.5  # no more than 32 programs


@pytest.mark.triton
def test_it_is_not_tuned(cell: FusedCell) -> None:
    panel = cell.workbench()
    panel.kernels.show()
    assert panel.kernels.tune.disabled
    panel.tab("Tuning").open()
    assert "no GPU here" in panel.tab("Tuning").line.value
    assert ("tune", "%%fuse --tune 10") not in cell.summary().next
    panel.close()
