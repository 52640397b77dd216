"""What is known of a candidate before it is timed: bounds, identity, and what a search does."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fusec
from fusec.compiled.graph import CompiledGraph
from fusec.errors import CompileError
from fusec.report import Verdict
from fusec.target_api.launches import GpuUse, Occupancy
from fusec.timing.measure import Series
from fusec.tunables import read_tunables
from fusec.tune.prospects import (
    DeviceForesight,
    Gpu,
    Prospect,
    bandwidth,
    least_seconds,
    tile_of_thread,
)
from fusec.tune.tuner import tune_kernel
from support.handwritten_kernels import TRITON, kernel

H200 = Gpu(132, 1.98e9, 2048, 1 << 16, 228 << 10)
PASSED = Verdict(True, "passed", "error 1e-7, eager's 1e-7")


def test_few_programs_cannot_use_the_memory() -> None:
    one = bandwidth(H200, Occupancy(1, 4))
    assert one == pytest.approx(64 * 1.98e9)
    assert bandwidth(H200, Occupancy(66, 4)) == pytest.approx(66 * one)
    assert bandwidth(H200, Occupancy(132, 4)) == bandwidth(H200, Occupancy(10_000, 4))
    # all of the L2's bandwidth, several times the memory's: it rules out nothing
    assert bandwidth(H200, Occupancy(1000, 4)) > 4.8e12


def test_few_warps_wait_for_little() -> None:
    full = bandwidth(H200, Occupancy(10_000, 8, registers=32))
    lonely = bandwidth(H200, Occupancy(132, 1, registers=16))
    assert lonely == pytest.approx(132 * 32 * 16 * 4 / 500e-9)
    assert lonely < 4.8e12 / 2 < full
    # what comes by way of shared memory is waited for as well
    assert bandwidth(H200, Occupancy(132, 1, 16, shared=64 << 10)) > 5 * lonely


def test_the_fastest_start_may_move_it_all() -> None:
    starts = [Occupancy(1, 1, 16), Occupancy(10_000, 8, 32)]
    assert least_seconds(H200, 1 << 30, starts) == least_seconds(H200, 1 << 30, starts[1:])
    assert least_seconds(H200, -1, starts) == 0.0  # nobody knows the bytes
    assert least_seconds(H200, 1 << 30, []) == 0.0


def test_tile_of_a_thread() -> None:
    text = "XBLOCK = 128  # tunable: 64 128\nRBLOCK = 64  # tunable: 32 64\n"
    assert tile_of_thread(text) == 0  # nobody says how many threads
    assert tile_of_thread(text + "NUM_WARPS = 4  # tunable: 1 4\n") == 64
    assert tile_of_thread("NUM_WARPS = 4  # tunable: 1 4\n") == 0
    rows = "XBLOCK = 2  # tunable: 1 2\nNUM_WARPS = 4  # tunable: 1 4\n"
    assert tile_of_thread(rows + "    k[(9,)](x, XBLOCK=XBLOCK, RBLOCK=4096)\n") == 64


def compiled(name: str = "k", cubin: bytes = b"code", spills: int = 0, warps: int = 4) -> Any:
    metadata = SimpleNamespace(name=name, num_warps=warps, shared=0)
    return SimpleNamespace(metadata=metadata, asm={"cubin": cubin}, n_regs=32, n_spills=spills)


def test_identity() -> None:
    def identity(code: bytes, programs: int) -> str:
        return GpuUse((code,), 0, (Occupancy(programs, 4, 32),)).identity()

    assert identity(b"code", 8) == identity(b"code", 8)
    assert identity(b"code", 8) != identity(b"other", 8)
    assert identity(b"code", 8) != identity(b"code", 9)


class Runnable:
    """A kernel file that was loaded, with what Triton would have compiled."""

    def __init__(self, spills: int = 0) -> None:
        from fusec.targets.triton.toolchain.load import load

        self.namespace, _ = load(TRITON)
        self.spills = spills

    def gpu_use(self, tensors: Any, sizes: Any) -> GpuUse:
        from fusec.targets.triton.toolchain.resources import gpu_use
        from fusec.targets.triton.toolchain.starts import starts_of

        starts = starts_of(self.namespace, "launch", tensors, sizes)
        return gpu_use(starts, [compiled("scale_kernel", spills=self.spills)])


def test_foresight() -> None:
    pytest.importorskip("triton")
    n = 1 << 20
    tensors = [torch.empty(n), torch.empty(n)]
    foresight = DeviceForesight(kernel(target="triton", n=n), tensors, (n,), H200)
    assert foresight.before(TRITON) == Prospect()
    found = foresight.after(Runnable())
    assert found.binary
    assert not found.hopeless
    assert found.least == pytest.approx(least_seconds(H200, 8 * n, [Occupancy(n // 128, 4, 32)]))
    assert "registers" in foresight.after(Runnable(spills=1000)).hopeless
    wide = "XBLOCK = 65536  # tunable: 1\nNUM_WARPS = 1  # tunable: 1\n"
    assert "2048 elements" in foresight.before(wide).hopeless


def test_a_grid_that_is_computed_is_not_understood() -> None:
    pytest.importorskip("triton")
    from fusec.targets.triton.toolchain.resources import occupancies

    function = SimpleNamespace(__name__="k")
    known: Any = SimpleNamespace(function=function, grid=(3, 2))
    assert occupancies([known], [compiled()]) == (Occupancy(6, 4, 32),)
    computed: Any = SimpleNamespace(function=function, grid=lambda meta: (1,))
    assert occupancies([computed], [compiled()]) == ()
    assert occupancies([known], []) == ()


# -- in a search ------------------------------------------------------------------------------

SPACE = "A = 2  # tunable: 1 2 4 8\nB = 16  # tunable: 8 16 32\n"


class Search:
    """A search over made-up times, with a made-up foresight."""

    def __init__(self, **options: Any) -> None:
        self.kernel = kernel(SPACE)
        self.kernel.host.build = lambda kernel, text: None  # type: ignore[method-assign,assignment,return-value]
        self.timed: list[dict[str, int]] = []
        self.looks: list[tuple[dict[str, int], float]] = []
        self.built: list[dict[str, int]] = []
        self.delay = 0.0
        self.run = tune_kernel(
            self.kernel,
            build_text=self.build,
            measure=self.measure,
            check=lambda text: PASSED,
            seed=0,
            **options,
        )

    def build(self, text: str) -> Any:
        values = {t.name: t.value for t in read_tunables(text)}
        self.built.append(values)
        time.sleep(0.01 * values["A"])

        def call() -> None:
            return None

        call.values = values  # type: ignore[attr-defined]
        return call

    def measure(self, calls: Any, *, seconds: float) -> dict[str, Series]:
        assert threading.current_thread() is threading.main_thread()
        if "candidate" in calls:
            self.timed.append(calls["candidate"].values)
            self.looks.append((calls["candidate"].values, seconds))
        times = {n: 1 / c.values["A"] + (c.values["B"] - 32) ** 2 for n, c in calls.items()}
        return {n: Series(tuple([t, t * 1.001, t * 0.999] * 4), 1, "") for n, t in times.items()}


class Model:
    """Says of some configurations what it is told to."""

    def __init__(self, **found: Any) -> None:
        self.found = found

    def before(self, text: str) -> Prospect:
        values = {t.name: t.value for t in read_tunables(text)}
        return Prospect(hopeless=self.found.get("hopeless", lambda v: "")(values))

    def after(self, call: Any) -> Prospect:
        least = self.found.get("least", lambda v: 0.0)(call.values)
        return Prospect(least, binary=self.found.get("binary", lambda v: "")(call.values))


def best(run: Any) -> dict[str, int]:
    return dict(run.trials[run.best].values)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_hopeless_is_not_built(overlap: bool) -> None:
    model = Model(hopeless=lambda v: "too large" if v["A"] == 4 else "")
    search = Search(foresight=model, overlap=overlap)
    assert all(values["A"] != 4 for values in search.built)
    left = [t for t in search.run.trials if t.note == "too large"]
    assert len(left) == 3
    assert all(t.timing is None and not t.error for t in left)
    assert best(search.run) == {"A": 8, "B": 32}
    assert search.run.checked == PASSED.reason


def test_what_takes_longer_by_the_model_is_not_timed() -> None:
    search = Search(foresight=Model(least=lambda v: 1e6 if v["B"] == 8 else 0.0))
    assert all(values["B"] != 8 for values in search.timed)
    notes = {t.note for t in search.run.trials if dict(t.values)["B"] == 8}
    assert all("by a model of the device" in note for note in notes)
    assert best(search.run) == {"A": 8, "B": 32}


def test_the_start_is_timed_whatever_the_model_says() -> None:
    search = Search(foresight=Model(least=lambda v: 1e9))
    assert search.run.trials[0].timing is not None
    assert search.run.best == 0


def test_equal_machine_code_is_timed_once() -> None:
    search = Search(foresight=Model(binary=lambda v: str(v["B"])))
    assert len(search.run.trials) == 12
    first = {v["B"]: v for v in reversed(search.timed)}
    assert all(v == first[v["B"]] for v in search.timed)
    copies = [t for t in search.run.trials if t.note]
    assert len(copies) == 9
    assert all("same machine code as configuration" in t.note for t in copies)
    assert all(t.timing is not None for t in copies)


def test_what_is_far_behind_gets_a_look_only() -> None:
    search = Search()
    assert max(seconds for values, seconds in search.looks if values["B"] == 8) < 0.01
    assert max(seconds for _, seconds in search.looks) > 0.01


def test_thorough_takes_every_configuration_as_seriously() -> None:
    model = Model(hopeless=lambda v: "no", least=lambda v: 1e9, binary=lambda v: "same")
    search = Search(foresight=model, thorough=True)
    assert len(search.run.trials) == 12
    assert all(t.timing is not None and not t.note for t in search.run.trials)
    assert min(seconds for _, seconds in search.looks) > 0.01


def test_overlap_times_what_is_built_first() -> None:
    search = Search(overlap=True, builds=4)
    assert len(search.run.trials) == 12
    assert best(search.run) == {"A": 8, "B": 32}


def test_equal_kernels_are_searched_alike() -> None:
    runs = [Search(foresight=Model()).run for _ in range(2)]
    assert [t.values for t in runs[0].trials] == [t.values for t in runs[1].trials]


# -- in use again -----------------------------------------------------------------------------


def test_a_winner_is_in_use_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled again, a kernel starts from what tuning found, and computes the same."""
    from fusec.cache import default_store
    from fusec.report import Timing
    from fusec.tune import records
    from fusec.tuning_report import Trial, TuningRun

    monkeypatch.setenv("FUSEC_TUNED", "1")
    x = torch.randn(64, 301)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 1.25, -1)

    def compiled(**options: Any) -> Any:
        torch._dynamo.reset()
        made = fusec.compile(f, **options)
        assert torch.allclose(made(x), f(x), atol=1e-6)
        ((_, found),) = made.kernels.items()
        return found

    fresh = compiled()
    assert fresh.tuning is None
    (first, *_) = fresh.tunables
    other = next(value for value in first.choices if value != first.value)
    start = tuple((t.name, t.value) for t in fresh.tunables)
    won = ((first.name, other), *start[1:])
    took = Timing(1.0, 1.0, 1.0, 9, "")
    trials = (Trial(start, took), Trial(won, took))

    def keep(best: int, checked: str) -> None:
        run = TuningRun(fresh.name, trials, best, 2, None, "finished", 1.0, checked=checked)
        key = records.tuning_key(fresh, (), torch.device("cpu"))
        records.save(default_store(), key, run, {})

    keep(1, "")  # not checked: of another version
    assert compiled().source == fresh.source
    keep(1, "right")
    pinned = compiled()
    assert pinned.tuning is not None
    assert pinned.tuning.stopped == "stored"
    assert pinned.tuning.checked == "right"
    assert {t.name: t.value for t in pinned.tunables} == dict(won)
    assert compiled(tuned=False).source == fresh.source
    monkeypatch.setenv("FUSEC_TUNED", "0")
    assert compiled().source == fresh.source
    monkeypatch.setenv("FUSEC_TUNED", "1")
    pinned.revert()
    assert pinned.source == fresh.source
    with monkeypatch.context() as patch:  # a compiler that refuses the settings now
        build = CompiledGraph.build

        def refuse(graph: Any, kernel: Any, text: str) -> Any:
            if text != kernel.generated.text:
                raise CompileError([], "it does not fit")
            return build(graph, kernel, text)

        patch.setattr(CompiledGraph, "build", refuse)
        refused = compiled()
        assert refused.source == fresh.source
        assert refused.tuning is None
    keep(0, "")  # tuned again, and nothing was faster
    assert compiled().source == fresh.source
