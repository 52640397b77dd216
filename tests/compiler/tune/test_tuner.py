"""A tuning run: with made-up times, and once with a real kernel."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from fusec.cache import CacheStore
from fusec.report import Verdict
from fusec.timing.measure import Series
from fusec.tunables import read_tunables
from fusec.tune import records
from fusec.tune.run import tune_in_graph
from fusec.tune.tuner import tune_kernel
from support import handwritten_kernels as vk

TEXT = """\
constexpr int64_t A = 2;  // tunable: 1 2 4 8
constexpr int64_t B = 16;  // tunable: 8 16 32
"""
PASSED = Verdict(True, "passed", "fine")


class Bench:
    """Builds nothing and measures by a formula."""

    def __init__(self, cost, luck=None):
        self.cost = cost
        self.luck = luck or {}
        self.kernel = vk.kernel(TEXT)
        self.kernel.host.build = lambda kernel, text: None
        self.rounds = 0
        self.threads = set()

    def build(self, text):
        values = tuple((t.name, t.value) for t in read_tunables(text))
        if self.cost(dict(values)) is None:
            raise ValueError("does not compile\nmore")
        call = lambda: None  # noqa: E731
        call.values = values
        return call

    def measure(self, candidates, *, seconds):
        self.rounds += 1
        self.threads.add(threading.get_ident())
        found = {}
        for name, call in candidates.items():
            value = 5.0
            if name != "eager":
                value = self.cost(dict(call.values))
                if self.luck and len(candidates) <= 2:
                    value *= self.luck.get(call.values, 1.0)
            found[name] = Series(tuple(value * x for x in [1.0, 1.001, 0.999] * 6), 1, "made up")
        return found

    def tune(self, **options):
        options.setdefault("check", lambda text: PASSED)
        return tune_kernel(
            self.kernel, build_text=self.build, measure=self.measure, seed=0, **options
        )


def distance(values):
    return 1.0 + abs(values["A"] - 8) + abs(values["B"] - 32) / 8


def test_finds_and_uses_the_best():
    bench = Bench(distance)
    seen = []
    run = bench.tune(progress=seen.append)
    assert dict(run.trials[run.best].values) == {"A": 8, "B": 32}
    assert {t.name: t.value for t in bench.kernel.tunables} == {"A": 8, "B": 32}
    assert run.stopped == "finished"
    assert len(run.trials) == run.total == 12
    assert len({t.values for t in run.trials}) == 12
    assert dict(run.trials[0].values) == {"A": 2, "B": 16}
    assert [len(r.trials) for r in seen] == list(range(1, 13))
    assert all(r.stopped == "" for r in seen)
    assert bench.threads == {threading.get_ident()}


def test_what_does_not_compile_is_a_trial_that_failed():
    bench = Bench(lambda v: None if v["A"] > 2 else distance(v))
    run = bench.tune()
    failed = [t for t in run.trials if t.error]
    assert {t.error for t in failed} == {"does not compile"}
    assert all(t.timing is None for t in failed)
    assert dict(run.trials[run.best].values) == {"A": 2, "B": 32}


def test_luck_does_not_win():
    lucky = (("A", 4), ("B", 8))
    bench = Bench(lambda v: 1.0, luck={lucky: 0.5})
    run = bench.tune()
    assert run.best == 0
    assert bench.kernel.source == TEXT


def test_a_wrong_winner_is_not_used():
    bench = Bench(distance)

    def check(text):
        return Verdict("A = 8" not in text, "wrong", "differs by 3")

    run = bench.tune(check=check)
    assert "A = 8" not in bench.kernel.source
    assert run.best is not None
    assert dict(run.trials[run.best].values)["A"] != 8
    assert any(t.error == "differs by 3" for t in run.trials)


def test_check_each_keeps_a_bad_candidate_from_running():
    bench = Bench(distance)
    run = bench.tune(
        check_each=lambda text: Verdict("B = 32" not in text, "bounds", "writes past the end")
    )
    assert all((dict(t.values)["B"] == 32) == bool(t.error) for t in run.trials)
    assert dict(run.trials[run.best].values) == {"A": 8, "B": 16}


def test_stop_keeps_the_best_so_far():
    bench = Bench(distance)
    stop = threading.Event()
    run = bench.tune(stop=stop, progress=lambda r: stop.set() if len(r.trials) == 5 else None)
    assert run.stopped == "stopped"
    assert len(run.trials) == 5
    assert run.best == min(range(5), key=lambda i: run.trials[i].timing.median)


def test_interrupt_keeps_the_best_so_far():
    bench = Bench(distance)

    def progress(run):
        if len(run.trials) == 4:
            raise KeyboardInterrupt

    run = bench.tune(progress=progress)
    assert run.stopped == "stopped"
    assert len(run.trials) == 4
    assert run.best is not None


def test_budget():
    bench = Bench(distance)
    run = bench.tune(budget=0.0)
    assert run.stopped == "budget"
    assert len(run.trials) == 1
    assert run.best == 0


def test_eager_is_timed():
    run = Bench(distance).tune(eager=lambda: None)
    assert run.eager.median == pytest.approx(5.0)


def test_a_kernel_without_tunables():
    bench = Bench(lambda v: 1.0)
    bench.kernel._text = "no tunables here"
    run = bench.tune()
    assert len(run.trials) == 1
    assert run.best == 0


def test_a_start_that_fails():
    bench = Bench(lambda v: None if v == {"A": 2, "B": 16} else distance(v))
    run = bench.tune()
    assert dict(run.trials[run.best].values) == {"A": 8, "B": 32}
    assert "A = 8" in bench.kernel.source


def test_records(tmp_path):
    tmp_path.chmod(0o700)
    store = CacheStore(tmp_path)
    bench = Bench(distance)
    cpu = torch.device("cpu")
    key = records.tuning_key(bench.kernel, (3,), cpu)
    assert records.stored(store, key) is None
    run = bench.tune(store=store, key=key, description=records.machine(torch.device("cpu")))
    again = records.stored(CacheStore(tmp_path), key)
    assert again.stopped == "stored"
    assert again.trials == run.trials
    assert again.best == run.best
    # The text has other values now, and is still the same kernel.
    assert records.tuning_key(bench.kernel, (3,), cpu) == key
    assert records.tuning_key(bench.kernel, (4,), cpu) != key
    # A later run replaces the earlier one.
    second = bench.tune(store=store, key=key)
    assert records.stored(store, key).trials == second.trials


def test_damaged_records_are_no_records(tmp_path):
    tmp_path.chmod(0o700)
    store = CacheStore(tmp_path)
    for number, data in enumerate([b"{", b"[]", b'{"schema": 1, "run": {"trials": 3}}']):
        key = {"text": str(number)}
        store.put(records.KIND, {**key, "generation": 0}, {records.FILE: data})
        assert records.stored(store, key) is None


def test_a_real_kernel(tmp_path):
    tmp_path.chmod(0o700)
    store = CacheStore(tmp_path)
    kernel = vk.kernel(n=20_000)
    kernel.host.check = lambda kernel, text, timed=True: vk.check(
        text, n=20_000, timed=False, kinds=()
    )
    tensors, sizes = vk.case(20_000).tensors, (20_000,)
    started = time.perf_counter()
    run = tune_in_graph(
        kernel.host,
        kernel,
        tensors,
        sizes,
        budget=60.0,
        store=store,
        build=lambda kernel, text: vk.prepare(text),
    )
    assert time.perf_counter() - started < 80
    assert len(run.trials) == 3
    assert all(t.timing is not None and not t.error for t in run.trials)
    assert run.best is not None
    assert dict(run.trials[run.best].values) == {t.name: t.value for t in kernel.tunables}
    key = records.tuning_key(kernel, sizes, tensors[0].device)
    assert records.stored(store, key).trials == run.trials


def test_an_edited_kernel_is_guarded(tmp_path):
    tmp_path.chmod(0o700)
    kernel = vk.kernel()
    # Right for one choice only: the others write past the end.
    body = "for (int64_t i = 0; i < n + (GRAIN - 64) * 100; i++) out[i] = x[i] * 2.0f + 1.0f;"
    kernel._text = vk.cpp(body)
    kernel.host.check = lambda kernel, text, timed=True: PASSED
    run = tune_in_graph(
        kernel.host,
        kernel,
        vk.case().tensors,
        (1000,),
        budget=60.0,
        store=CacheStore(tmp_path),
        build=lambda kernel, text: vk.prepare(text),
    )
    assert run.best == 0
    errors = {dict(t.values)["GRAIN"]: t.error for t in run.trials}
    assert errors[64] == ""
    assert "unwritten" in errors[16]
    assert "past the end" in errors[256]


def test_times_of_slower_spells_are_brought_to_one_scale():
    """The machine gets slower from round to round; the ranking does not mix the spells."""
    bench = Bench(distance)
    steady = bench.measure

    def slower(candidates, *, seconds):
        factor = 1.0 + bench.rounds / 4
        return {
            name: Series(tuple(x * factor for x in series.samples), 1, series.method)
            for name, series in steady(candidates, seconds=seconds).items()
        }

    bench.measure = slower
    run = bench.tune()
    assert dict(run.trials[run.best].values) == {"A": 8, "B": 32}
    times = {t.values: t.timing.median for t in run.trials}
    scale = times[run.trials[0].values] / distance(dict(run.trials[0].values))
    for values, median in times.items():
        assert median == pytest.approx(scale * distance(dict(values)), rel=1e-6)
    assert any("scaled" in t.timing.method for t in run.trials)
