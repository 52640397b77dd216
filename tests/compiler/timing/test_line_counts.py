"""At which lines of a kernel its time goes, and what is said where nobody can look."""

from __future__ import annotations

import errno
import struct
import sys

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import FusecError
from fusec.helper_block import without_helpers
from fusec.systems import Samples, linux_samples, this_system
from fusec.timing import line_counts
from fusec.timing.counters import count_lines
from fusec.timing.line_counts import LineCounts, counted_lines
from fusec.toolchain.addresses import read_frames


@pytest.fixture(scope="module")
def graph() -> fusec.CompiledGraph:
    compiled = fusec.compile(lambda x: F.gelu(x) + 1, keep_inputs=True)
    compiled(torch.randn(256, 512))
    return compiled.graphs[0]


def looked(graph: fusec.CompiledGraph) -> LineCounts:
    return count_lines(graph, graph.kernels[0].name, seconds=0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux looks")
def test_the_time_goes_where_the_work_is(graph):
    (kernel,) = graph.kernels
    found = count_lines(graph, kernel.name)
    if found.missing:
        pytest.skip(found.missing)  # a container may forbid it
    assert found.samples >= line_counts.FEWEST
    lines = kernel.source.splitlines()
    most = max(found.lines, key=lambda line: found.lines[line].share)
    assert "fx_" in lines[most - 1]  # the error function, not what stands round it
    assert found.lines[most].share > 0.3
    # A helper's instructions are the line's that calls it.
    assert max(found.lines) <= without_helpers(kernel.source)[0].count("\n") + 1
    assert sum(line.share for line in found.lines.values()) + found.elsewhere == pytest.approx(1)


def test_inputs_stay_as_they_were():
    x = torch.zeros(4096)
    compiled = fusec.compile(lambda x: x.add_(1), keep_inputs=True)
    compiled(x)
    looked(compiled.graphs[0])
    assert torch.equal(x, torch.ones(4096))


@pytest.mark.linux("where a library lies in the process")
def test_why_nobody_looked(graph, monkeypatch):
    monkeypatch.setattr(type(this_system()), "sample", lambda *_: Samples((), "", "not here"))
    assert looked(graph).missing == "not here"
    few = Samples((1, 2, 3), "the clock")
    monkeypatch.setattr(type(this_system()), "sample", lambda *_: few)
    assert "too few to say" in looked(graph).missing
    monkeypatch.setattr(line_counts, "find_tool", lambda: None)
    assert "addr2line" in looked(graph).missing
    fresh = fusec.compile(lambda x: x * 2)  # keeps no inputs
    fresh(torch.ones(8))
    assert "run the cell again" in looked(fresh.graphs[0]).missing


def test_what_linux_refuses_is_said(monkeypatch):
    ran: list[int] = []
    for code, word in [(errno.EACCES, "perf_event_paranoid"), (errno.ENOSYS, "cannot look")]:
        monkeypatch.setattr(linux_samples, "open_event", lambda *_, code=code, **__: -code)
        found = linux_samples.sample(lambda: ran.append(1))
        assert word in found.missing
    assert not ran


def test_what_cannot_be_built_is_an_error(graph, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise FusecError("no compiler")

    (kernel,) = graph.kernels
    target = type(line_counts.find_target(kernel.target))
    monkeypatch.setattr(target, "compile", refuse)
    with pytest.raises(FusecError, match="no compiler"):
        looked(graph)


def test_records_of_the_system():
    place = struct.pack("=IHHQ", 9, 0, 16, 0x1234)
    lost = struct.pack("=IHHQQ", 2, 0, 24, 1, 7)
    assert linux_samples.read_records(place + lost + place) == (0x1234, 0x1234)
    assert linux_samples.read_records(place + place[:9]) == (0x1234,)
    assert linux_samples.read_records(bytes(16)) == ()


def test_frames_of_addr2line():
    said = (
        "0x0000000000001139\n/tmp/a/kernel.cpp:80 (discriminator 3)\n/usr/lib/avx.h:12\n"
        "/tmp/a/kernel.cpp:30\n0x0000000000001140\n??:0\n0x1150\nkernel.cpp:?\n"
    )
    assert read_frames(said, "kernel.cpp") == {0x1139: (80, 30), 0x1140: (), 0x1150: ()}


def test_where_a_library_lies(tmp_path):
    library = tmp_path / "a library.so"
    maps = tmp_path / "maps"
    maps.write_text(
        "10-20 r-xp 00000000 00:00 1 /other.so\n"
        f"a0-b0 r--p 00000000 00:00 2                  {library}\n"
        f"b0-d0 r-xp 00001000 00:00 2                  {library}\n"
    )
    assert linux_samples.mapped_at(str(library), str(maps)) == (0xA0, 0xD0)
    assert linux_samples.mapped_at("/none.so", str(maps)) is None
    assert linux_samples.mapped_at(str(library), str(tmp_path / "no maps")) is None


def test_shares_are_of_all_that_was_seen():
    found = counted_lines("a\nb", {0: 25, 2: 75}, "the clock")
    assert {n: line.share for n, line in found.lines.items()} == {2: 0.75}
    assert found.elsewhere == 0.25
