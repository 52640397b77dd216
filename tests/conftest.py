"""What all tests share: a private cache, a fixed seed, and the reasons for skipping."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from support import native_parts
from support.bare_tests import Bare, is_bare, why_skipped
from support.chromium import find_chromium
from support.sampling import left_out

NO_CHROMIUM = "no Chromium found"
NO_GPU = "no GPU found"


# jsonschema, which nbformat imports, would compile thirty grammars of addresses: no test has one.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


def pytest_configure(config: pytest.Config) -> None:
    # Tests share the cores with each other: a thread team that spins while it waits, as
    # OpenMP's do by default, would take them from the other worker. Read when torch loads.
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("MPLBACKEND", "Agg")
    # Nor need TorchDynamo look for garbage after each of thousands of compilations: the collector
    # does when there may be some. Read when it loads.
    os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
    if is_bare():
        config.pluginmanager.register(Bare())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, wherever the marker stands."""
    if item.get_closest_marker("gpu"):
        _require_gpu()
    if item.get_closest_marker("browser"):
        _require_chromium()
    missing = why_skipped(item)
    if missing:
        pytest.skip(missing)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say plainly which kinds of test did not run, so that a green run is not misread."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for reason, kind in ((NO_CHROMIUM, "browser"), (NO_GPU, "GPU")):
        skipped = sum(reason in text for text in reasons)
        if skipped:
            terminalreporter.write_line(f"{reason}: {kind} tests skipped ({skipped})")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector look at what tests make, not at a million objects that stay.

    What is imported and collected is never garbage. To look through it took a second each time,
    a seventh of a run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        # What is frozen does not count as old: it would look at all the rest far too often.
        # TorchDynamo's looks after each compilation do not count (`pytest_configure`).
        gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked `slow`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `slow` what a test with the mark `sample(n)` has beyond n sets of parameters."""
    leave_constants_unread()
    leave_guards_untimed()
    groups: dict[tuple[object, str], list[pytest.Function]] = {}
    for item in items:
        sampled = item.get_closest_marker("sample") and not item.get_closest_marker("slow")
        if sampled and isinstance(item, pytest.Function):
            groups.setdefault((item.parent, item.originalname), []).append(item)
    # The longest test first: at the end the other worker would have nothing to do meanwhile.
    items.sort(key=lambda item: item.path.name != "test_faults.py")
    for group in groups.values():
        mark = group[0].get_closest_marker("sample")
        assert mark is not None
        for item in left_out(group, *mark.args):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def private_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the run its own cache and IPython folder: no test reads or leaves anything at home."""
    cache = tmp_path_factory.mktemp("fusec-cache")
    cache.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSEC_CACHE_DIR", str(cache))
        patch.setenv("FUSEC_TUNED", "0")  # a test that tunes changes no other's kernels
        # What is imported is frozen (`pytest_collection`): to count it takes a tenth of a second.
        patch.setattr("fusec.gc_pause._EVERY", 1 << 40)
        # Every kernel's three files would wait for the disk. No test pulls the plug: what a
        # process that is killed has written is there all the same.
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        there = native_parts.take_shared(cache)
        # Many tests wait for it: it must not give way to the tests of the other worker.
        from fusec.call import native

        native.prepare(awaited=True)
        if there:
            native.types(wait=True)  # before a test has another store, which lacks them
        yield cache


@pytest.fixture(autouse=True)
def verified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the verifier look at what each stage yields; not where it is timed."""
    if request.node.get_closest_marker("timing") is None:
        monkeypatch.setenv("FUSEC_VERIFY", "1")


@pytest.fixture(autouse=True)
def quick_builds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `make test` asks for it, build quickly what is not about how it is built."""
    from support import quick_builds

    if quick_builds.quick(request.node):
        monkeypatch.setattr("fusec.toolchain.compiler._find_compiler", quick_builds.finder())


@pytest.fixture(scope="session", autouse=True)
def fast_halves() -> Iterator[None]:
    """Products of halves are what they are in the tests' text, not what this machine is fast at."""
    from fusec.graph.facts.half_speed import HalfSpeed

    with pytest.MonkeyPatch.context() as patch:
        speed = HalfSpeed(half=0.01, single=0.02, conversion=0.4)
        patch.setattr("fusec.graph.choices.half_speed", lambda dtype: speed)
        yield


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let what a file draws while it is imported be the same in every run as well."""
    if isinstance(collector, pytest.Module):
        import torch

        leave_trace_unread()
        torch.default_generator.manual_seed(0)


def leave_trace_unread() -> None:
    """Keep pytest from listening to torch's trace, which nobody has on who uses torch.

    pytest puts its handlers on every logger that does not propagate. Where this one has any, torch
    writes each graph that it captures, in words and as JSON, which takes longer than many a test.
    """
    trace = logging.getLogger("torch.__trace")
    setattr(trace, "addHandler", lambda handler: None)  # noqa: B010 (a method)


def leave_constants_unread() -> None:
    """Keep Hypothesis from parsing every file of the project for numbers that it might draw.

    No test wants any from there, and every process would parse the eight hundred files again.
    """
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if providers is not None:
        setattr(providers, "is_local_module_file", lambda path: False)  # noqa: B010 (a module)


def leave_guards_untimed() -> None:
    """Keep TorchDynamo from timing its guards for a log: it empties the processor's cache first.

    fusec's own compilations do without (``capture/dynamo/quiet_dynamo.py``); tests call
    ``torch.compile``.
    """
    guards = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        setattr(guards, "profile_guard_manager", lambda *args: 0.0)  # noqa: B010 (a module)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Start every test from the same random numbers."""
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # for devices that are not there torch would write down the stack, three times
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def drawn_alike(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw what checks of edits try from the test's name, so that one that fails fails again.

    With FUSELAB_FRESH=1 they draw as they do for users, otherwise each time: who runs the tests
    so, many times, finds right edits that are refused by chance, and wrong ones that are not.
    """
    if os.environ.get("FUSELAB_FRESH") != "1":
        drawn = random.Random(request.node.nodeid)
        monkeypatch.setattr("fusec.verify.trials.inputs._SECRETS", drawn)


@pytest.fixture
def needs_gpu() -> None:
    """Skip the test on a machine without a GPU; the same as marking it `gpu`."""
    _require_gpu()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Find the browser that the browser tests drive."""
    return _require_chromium()


def _require_chromium() -> str:
    path = find_chromium()
    if path is None:
        # Continuous integration installs one; a skip there would hide that it did not.
        if os.environ.get("FUSELAB_REQUIRE_BROWSER"):
            pytest.fail(NO_CHROMIUM, pytrace=False)
        pytest.skip(NO_CHROMIUM)
    return path


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip(NO_GPU)
