"""What the hardware counts while kernels run, and what is said where it does not."""

from __future__ import annotations

import errno
import mmap
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch

import fusec
from fusec.systems import Counts, Processor, linux_counters, this_system
from fusec.timing import counters, nsight
from fusec.timing.counters import Counted, count_kernels
from fuselab.display.pages.counters import counter_rows, notes


@pytest.fixture(scope="module")
def graph() -> fusec.CompiledGraph:
    compiled = fusec.compile(lambda x: torch.tanh(x) * 2, keep_inputs=True)
    compiled(torch.randn(64, 64))
    return compiled.graphs[0]


def test_an_execution_of_each_kernel(graph, monkeypatch):
    ran = []

    def count(run: Callable[[], object]) -> Counts:
        ran.append(torch.get_num_threads())
        run()
        return Counts({"cycles": 4000, "instructions": 9000, "scalar": 100, "vector": 300})

    monkeypatch.setattr(type(this_system()), "count", lambda self, run: count(run))
    before = torch.get_num_threads()
    (found,) = count_kernels(graph, seconds=1e-9)
    assert ran == [1]
    assert torch.get_num_threads() == before
    assert found.calls == 1
    assert found.vector_share == 0.75
    rows = counter_rows([found])
    assert rows[0] == (found.name, "cycles", "4.00 k")
    assert ("", "instructions", "9.00 k, 2.25 a cycle") in rows
    assert ("", "vector instructions of those on floats", "75%") in rows


def test_inputs_stay_as_they_were():
    x = torch.zeros(32)
    compiled = fusec.compile(lambda x: x.add_(1), keep_inputs=True)
    compiled(x)
    before = compiled(x).clone()
    count_kernels(compiled.graphs[0])
    assert torch.equal(x, before)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts")
def test_linux_counts_or_says_why_not(graph):
    (found,) = count_kernels(graph)
    assert found.calls >= 1
    if "cycles" not in found.events:
        assert "counters" in found.missing
    assert notes([found])[0].startswith("counted in ")
    size = 16 << 20

    def touch() -> None:
        with mmap.mmap(-1, size) as pages:  # malloc may have memory that was touched before
            pages[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)

    counts = linux_counters.count(touch, Processor())
    if "page faults" in counts.events:  # a container may forbid all of it
        assert counts.events["page faults"] > 100


def test_what_is_refused_is_said(monkeypatch):
    for code, word in [(errno.EACCES, "perf_event_paranoid"), (errno.ENOENT, "virtual machines")]:
        monkeypatch.setattr(linux_counters, "open_event", lambda *_, code=code: -code)
        done: list[int] = []
        counts = linux_counters.count(lambda done=done: done.append(1), Processor())
        assert (counts.events, done) == ({}, [1])
        assert word in counts.missing


def test_vector_events_by_processor():
    def names(*facts: str) -> set[str]:
        return set(linux_counters.events_of(Processor(features=frozenset(facts))))

    assert "vector" in names("vendor_id=GenuineIntel", "cpu family=6", "model=143")
    assert "vector" in names("vendor_id=AuthenticAMD", "cpu family=25", "model=17")
    assert "vector" not in names("vendor_id=AuthenticAMD", "cpu family=25", "model=1")  # Zen 3
    assert "vector" not in names("CPU implementer=0x41", "CPU part=0xd0c")


SAID = """\
==PROF== Connected to process 1
"ID","Kernel Name","dram__bytes_read.sum","lts__throughput.avg.pct_of_peak_sustained_elapsed"
"","","byte","%"
"0","part","64","12.5"
"1","whole","1,036","50"
"""
# In place of ncu: it says of each kernel's file what its text wants, or ends where that ends it.
NCU = """\
#!{python}
import pathlib, sys
files = [pathlib.Path(x) for x in sys.argv if pathlib.Path(x).name.startswith("kernel")]
print('"ID","Kernel Name","dram__bytes_read.sum"')
print('"","","byte"')
for number, file in enumerate(files):
    text = file.read_text()
    if len(files) > 1:
        print(f'"{{2 * number}}","at::cuda::spin_kernel(long)","0"')
    if "BREAKS" in text:
        print("==ERROR== an illegal memory access")
        break
    print(f'"{{2 * number + 1}}","part","{{len(text)}}"')
    print(f'"{{2 * number + 2}}","rest","1"')
with open({log!r}, "a") as log:
    print(len(files), file=log)
"""


def recorded_as_on_an_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"registers per thread": 40, "shared memory": 512, "est. achieved occupancy %": 100}
    records = [{"cat": "kernel", "args": args}, {"cat": "cpu_op", "args": args}]
    monkeypatch.setattr(counters, "_profiled", lambda call: records)
    monkeypatch.setattr(counters, "is_gpu", lambda kind: True)

    def steps(part):
        given = [torch.zeros(4, 4)]
        return [(name, partial(lambda *_: None, given, []), given) for name in part.kernels]

    monkeypatch.setattr(counters, "step_calls", steps)


def test_a_gpu_as_cupti_and_nsight_have_it(graph, monkeypatch, tmp_path):
    """As an H100 has answered: torch's profiler with its records, ``ncu`` with a table."""
    recorded_as_on_an_h100(monkeypatch)
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!{sys.executable}\nprint({SAID!r})\n")
    ncu.chmod(0o755)
    monkeypatch.setattr(nsight, "find", lambda: str(ncu))
    (found,) = count_kernels(graph)
    assert found.events["starts"] == 1
    assert found.events["registers a thread"] == 40
    assert found.events["bytes read from memory"] == 1100
    assert found.events["L2 busy, %"] == 50
    assert not found.missing
    ncu.write_text(f"#!{sys.executable}\nprint('==ERROR== ERR_NVGPUCTRPERM')\n")
    (found,) = count_kernels(graph)
    assert "ERR_NVGPUCTRPERM" in found.missing
    assert found.events["starts"] == 1
    monkeypatch.setattr(nsight, "find", lambda: None)
    (found,) = count_kernels(graph)
    assert "not installed" in found.missing
    assert Counted("k", {}, 1).vector_share is None


# What an H100's counters gave where it was none of ours to count: NaN, the shares as well.
NOT_COUNTED = """\
==PROF== Connected to process 1
"ID","Kernel Name","dram__bytes_read.sum","lts__throughput.avg.pct_of_peak_sustained_elapsed"
"","","byte","%"
"0","part","64","nan"
"1","whole","nan","nan"
"""


def test_what_ncu_has_no_number_for_is_not_counted(graph, monkeypatch, tmp_path):
    """It gave NaN on an H100: the highest share was 0 then, and no page could show the bytes."""
    recorded_as_on_an_h100(monkeypatch)
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!{sys.executable}\nprint({NOT_COUNTED!r})\n")
    ncu.chmod(0o755)
    monkeypatch.setattr(nsight, "find", lambda: str(ncu))
    (found,) = count_kernels(graph)
    assert "bytes read from memory" not in found.events
    assert "L2 busy, %" not in found.events
    assert found.events["registers a thread"] == 40
    said = "\n".join([*(" ".join(row) for row in counter_rows([found])), *notes([found])])
    assert "not counted: bytes read from memory; L2 busy, %" in said
    assert "nan" not in said.lower()
    ncu.write_text(f"#!{sys.executable}\nprint({SAID.replace('12.5', 'nan')!r})\n")
    (found,) = count_kernels(graph)
    assert found.events["bytes read from memory"] == 1100
    assert "L2 busy, %" not in found.events, "of one of two starts it is not known"
    assert "not counted: L2 busy, %" in found.missing


def test_one_process_of_ncu_counts_all(monkeypatch, tmp_path):
    """It takes ten seconds to start; a kernel that ends it costs one start more."""
    ncu, log = tmp_path / "ncu", tmp_path / "log"
    ncu.write_text(NCU.format(python=sys.executable, log=str(log)))
    ncu.chmod(0o755)
    monkeypatch.setattr(nsight, "find", lambda: str(ncu))

    def count(*texts: str) -> tuple[list[float | None], list[str], list[str]]:
        log.write_text("")
        found = nsight.count([nsight.KernelRun(text, "start", (), ()) for text in texts])
        read = [events.get("bytes read from memory") for events, _ in found]
        return read, [missing for _, missing in found], log.read_text().split()

    assert count("a", "bb", "ccc") == ([2, 3, 4], [""] * 3, ["3"])
    read, missing, started = count("a", "BREAKS", "ccc", "dddd")
    assert read == [2, None, 4, 5]
    assert [("illegal memory access" in text) for text in missing] == [False, True, False, False]
    assert started == ["4", "2"]
    assert count("a", "BREAKS")[0] == [2, None]
    ncu.write_text(f"#!{sys.executable}\nprint('==ERROR== ERR_NVGPUCTRPERM')\n")
    read, missing, _ = count("a", "bb", "ccc")
    assert read == [None] * 3
    assert all("ERR_NVGPUCTRPERM" in text for text in missing)


def test_the_kernels_of_several_graphs_are_counted_at_once(graph, monkeypatch):
    recorded_as_on_an_h100(monkeypatch)
    asked = []

    def count(kernels):
        asked.append(len(kernels))
        return [({"bytes read from memory": float(n)}, "") for n in range(len(kernels))]

    monkeypatch.setattr(nsight, "count", count)
    found = count_kernels(graph, graph)
    assert asked == [2]
    assert [each.events["bytes read from memory"] for each in found] == [0, 1]
    assert [each.events["starts"] for each in found] == [1, 1]
