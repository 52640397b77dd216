"""TorchDynamo times no guards and remarks on no marks while fusec compiles; for others it does."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._logging._internal import warning_once

import fusec
from fusec import gc_pause
from fusec.capture import graph_compiler
from fusec.capture.dynamo import quiet_dynamo as quiet
from fusec.gc_pause import Rest

LOGGER = logging.getLogger("torch._dynamo.variables.ctx_manager")
EVERY = 60  # how often what is frozen is counted; in other tests it is not


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the logger lets through."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    listener = Listener()
    LOGGER.addHandler(listener)
    yield found
    LOGGER.removeHandler(listener)


def test_a_step_is_compiled_quietly(heard: list[str]) -> None:
    torch._dynamo.reset()
    warning_once.cache_clear()  # said once a process
    weight = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.grad = torch.ones(4)
    wanted = weight.detach() - 0.5

    def step() -> None:
        optimizer.step()

    fusec.compile(step)()
    assert torch.equal(weight.detach(), wanted)
    assert heard == []
    torch._dynamo.reset()
    warning_once.cache_clear()
    torch.compile(step, backend="eager")()
    assert any("Profiler record function" in text for text in heard), "others hear it, as ever"


def test_a_number_of_a_tensor_is_left_to_the_report(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    warning_once.cache_clear()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    compiled = fusec.compile(scaled)
    compiled(torch.ones(3))
    assert "Graph break from" not in caplog.text
    assert any("becomes a Python number" in each.reason for each in compiled.breaks)
    guards = [guard.text for guard in compiled.guards]
    assert any("the value at the break" in text for text in guards), guards
    assert not any("___stack" in text for text in guards), guards


def test_everything_else_is_heard(heard: list[str]) -> None:
    quiet.install()
    with quiet.Quiet():
        LOGGER.warning("Profiler record function %s will be ignored", "step")
        LOGGER.warning("something else")
    LOGGER.warning("Profiler record function %s will be ignored", "later")
    assert heard == ["something else", "Profiler record function later will be ignored"]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The guards that TorchDynamo times."""
    guards: Any = torch._dynamo.guards
    calls: list[Any] = []
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *args: calls.append(args) or 0.5)
    monkeypatch.setattr(guards.guards_log, "isEnabledFor", lambda level: False)
    quiet.install.cache_clear()  # hook into the stand-in
    quiet.install()
    yield calls
    torch._dynamo.reset()


def test_compiling_is_not_held_up(timed: list[Any]) -> None:
    x = torch.randn(8)
    torch.testing.assert_close(fusec.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert timed == []
    torch.testing.assert_close(
        torch.compile(lambda x: x.cos() + 1, backend="eager")(x), x.cos() + 1
    )
    assert len(timed) == 1


@pytest.mark.parametrize("wanted", [{}, {"mode": "reduce-overhead"}, {"options": {"name": "k"}}])
def test_no_piece_between_breaks_is_held_up(timed: list[Any], wanted: dict[str, Any]) -> None:
    """Those of which no graph came, either: TorchDynamo calls no backend for them."""

    def broken(x: torch.Tensor, names: list[str]) -> torch.Tensor:
        names = [*names, "first"]
        torch._dynamo.graph_break()
        x = x.sin()
        torch._dynamo.graph_break()
        names = [*names, "second"]
        torch._dynamo.graph_break()
        return x + len(names)

    x = torch.randn(8)
    ours = torch.compile(broken, backend="fusec", **wanted)
    torch.testing.assert_close(ours(x, []), x.sin() + 2)
    assert timed == []
    torch._dynamo.reset()
    torch.compile(broken, backend="eager")(x, [])
    assert len(timed) > 2, "another backend's are timed, as ever"


def test_each_thread_for_itself_and_one_within_another(timed: list[Any]) -> None:
    guards: Any = torch._dynamo.guards
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with quiet.Quiet():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(10)
    assert guards.profile_guard_manager() == 0.5, "another thread's"
    with quiet.Quiet():
        with quiet.Quiet():
            assert guards.profile_guard_manager() == 0.0
        assert guards.profile_guard_manager() == 0.0
    assert guards.profile_guard_manager() == 0.5
    with pytest.raises(ValueError, match="mine"), quiet.Quiet():
        raise ValueError("mine")
    assert guards.profile_guard_manager() == 0.5
    leave.set()
    thread.join()


def test_where_somebody_wants_to_know(monkeypatch: pytest.MonkeyPatch, timed: list[Any]) -> None:
    guards: Any = torch._dynamo.guards
    monkeypatch.setattr(guards.guards_log, "isEnabledFor", lambda level: level >= logging.DEBUG)
    with quiet.Quiet():
        assert guards.profile_guard_manager() == 0.5


def test_another_release(monkeypatch: pytest.MonkeyPatch, timed: list[Any]) -> None:
    monkeypatch.delattr(torch._dynamo.guards, "profile_guard_manager")
    quiet.install.cache_clear()
    quiet.install()
    assert not hasattr(torch._dynamo.guards, "profile_guard_manager")


def test_functions_are_named_only_for_who_reads_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracing: Any = torch._dynamo.symbolic_convert
    asked: list[str] = []
    quiet.install.cache_clear()  # hook into the stand-in
    monkeypatch.setattr(tracing, "get_funcname", lambda name, line: asked.append(name) or "f")
    for name in ("trace_call_log", "trace_source_log"):
        monkeypatch.setattr(getattr(tracing, name), "isEnabledFor", lambda level: False)
    quiet.install()
    torch._dynamo.reset()
    x = torch.randn(8)
    torch.testing.assert_close(fusec.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert not asked
    torch.compile(lambda x: x.sin() + 1, backend="eager")(x)
    assert asked, "others look them up, as ever"


def test_the_collector_rests_while_something_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    part = graph_compiler.GraphCompiler._part

    def watched(self: Any, kind: str, module: Any) -> Any:
        looked.append(gc.isenabled())
        return part(self, kind, module)

    monkeypatch.setattr(graph_compiler.GraphCompiler, "_part", watched)
    torch._dynamo.reset()  # forgets what was registered with TorchDynamo
    assert gc.isenabled()
    x = torch.randn(8, requires_grad=True)
    fusec.compile(lambda x: x.sin() + 1)(x).sum().backward()
    torch.compile(lambda x: x.cos() + 1, backend="fusec")(x)
    assert looked == [False] * len(looked) != []
    assert gc.isenabled()
    gc.disable()
    try:
        fusec.compile(lambda x: x.tan() + 1)(x)
        assert not gc.isenabled(), "as the user wants it"
    finally:
        gc.enable()


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever was frozen before (``conftest.py``) is not, for as long."""
    monkeypatch.setattr(Rest, "_unasked", 0)
    monkeypatch.setattr(gc_pause, "_EVERY", EVERY)
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_the_user_has_frozen_is_not_counted_each_time(
    monkeypatch: pytest.MonkeyPatch, nothing_frozen: None
) -> None:
    """It takes 27 ms where that is all of torch."""
    frozen, counted, moved = 5000, list[int](), list[str]()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: (counted.append(1), frozen)[1])
    monkeypatch.setattr(gc, "freeze", lambda: moved.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: moved.append("unfreeze"))
    for _ in range(20):
        with Rest():
            pass
    assert (len(counted), moved) == (1, [])
    frozen = 0
    for _ in range(EVERY):
        with Rest():
            pass
    assert moved[:2] == ["freeze", "unfreeze"], "it is asked again"


def test_it_rests_until_the_last_one_ends_and_loses_nothing(nothing_frozen: None) -> None:
    class Cycle:
        pass

    with Rest():
        with Rest():
            cycle = Cycle()
            cycle.own = cycle  # type: ignore[attr-defined]
            gone = weakref.ref(cycle)
            del cycle
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gone() is None


def test_what_an_inner_rest_leaves_is_old(nothing_frozen: None) -> None:
    with Rest():
        with Rest():
            kept = [[] for _ in range(100)]  # type: list[list[int]]
        young = {id(each) for n in (0, 1) for each in gc.get_objects(generation=n)}
        assert young.isdisjoint(map(id, kept))


def test_a_rest_with_the_collector_off_moves_nothing() -> None:
    gc.disable()
    try:
        kept: list[int] = []
        with Rest():
            pass
        assert any(each is kept for each in gc.get_objects(generation=0))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_ends_its_rest() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 5)

    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"shape|size"):
        fusec.compile(fails)(torch.randn(8))
    assert gc.isenabled()
