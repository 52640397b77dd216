"""What reaches the page before the panel is drawn, and what is made while nobody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import comm
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.testing.globalipapp import start_ipython

from fuselab.magics.fuse import FuseMagics
from fuselab.panel import Workbench, prepare, workbench
from fuselab.panel.tabs import prebuild as early
from fuselab.session.session import Session
from support.panel_fake import FakeCell
from support.waiting import happens

READY, NEAR = {"kind": "ready"}, {"kind": "near"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that reach the page, and ``""`` for every other message."""
    found: list[str] = []

    class Spy(comm.DummyComm):
        def publish_msg(self, kind: str, data: Any = None, **_rest: Any) -> None:
            state = (data or {}).get("state", {})
            found.append(str(state["_model_name"]) if kind == "comm_open" else "")

    monkeypatch.setattr("comm.create_comm", Spy)
    monkeypatch.setattr("fuselab.panel.widgets.plain._known", {})
    monkeypatch.setattr("fuselab.panel.widgets.script._shared", None)
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(early, "REST", 0.01)
    monkeypatch.setattr(early, "LONGER", 0.05)
    # pytest itself may run below IPython's test shell; here no cell runs.
    monkeypatch.setattr(early, "cell_runs", lambda: False)
    yield
    if early._latest is not None:
        early._latest.end()


def drawn(panel: Workbench, *, near: bool = True) -> None:
    """Do what the page does once it has drawn the editor, and somebody points at it."""
    assert panel.kernels.editor is not None
    panel.kernels.editor._handle_custom_msg(READY, [])
    if near:
        panel.kernels.editor._handle_custom_msg(NEAR, [])


def late(panel: Workbench) -> list[Any]:
    return [panel.kernels.more, *panel.parts[1:]]


def test_a_panel_that_was_begun_has_little_left_to_say(sent: list[str]) -> None:
    cell = FakeCell()
    begun = prepare(cell)
    assert begun is not None
    assert prepare(cell) is None, "it has one"
    assert "WidgetModel" not in sent, "the shared scripts are read as soon as they are there"
    assert 20 < len(sent) < 60
    sent.clear()
    panel = workbench(cell)
    assert panel is begun
    panel._repr_mimebundle_()
    assert panel.wait(60)
    # Its values, and the controls that only the kernel's text tells: three tunables.
    controls = [name for name in sent if name]
    assert [name for name in controls if name.endswith(("SliderModel", "DropdownModel"))] == [
        "SelectionSliderModel", "SelectionSliderModel", "DropdownModel",
    ]  # fmt: skip
    assert len(controls) <= 6
    assert len(sent) <= 16
    assert not any(part.made for part in late(panel))
    panel.close()


def test_the_rest_is_made_once_the_page_has_drawn_the_panel(quick: None) -> None:
    panel = workbench(FakeCell())
    panel._repr_mimebundle_()
    time.sleep(0.2)
    assert not any(part.made for part in late(panel)), "nobody has seen it yet"
    drawn(panel, near=False)
    assert happens(lambda: panel.kernels.more.made)
    time.sleep(0.2)
    assert not any(part.made for part in panel.parts[1:]), "nobody is near"
    drawn(panel)
    assert happens(lambda: all(part.made for part in late(panel)))
    assert panel.wait(60)
    assert panel.tab("Numerics").outputs.value
    assert panel.tab("Stages").left.options
    assert panel.bench.problem is None
    children = panel.tab("Fusion").widget.children
    drawn(panel)  # in another window
    assert panel.wait(60)
    assert panel.tab("Fusion").widget.children is children
    panel.close()


def test_only_the_latest_panel_is_made_early(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "REST", 0.3)
    first, second = (workbench(FakeCell()) for _ in range(2))
    for panel in (first, second):
        panel._repr_mimebundle_()
        drawn(panel)
    assert happens(lambda: second.parts[1].made)
    assert not first.parts[1].made
    first.tabs.selected_index = 3  # somebody works with it
    assert happens(lambda: all(part.made for part in late(first)))
    assert first.wait(60)
    # The other one lets go of what nobody has looked at: ten panels would be a large notebook.
    assert not any(part.made or part.widget.children for part in second.parts[3:])
    second.tabs.selected_index = 4
    assert happens(lambda: all(part.made for part in late(second)))
    assert second.wait(60)
    assert second.tab("Stages").left.options
    assert second.tab("Stages").picture.text
    assert [part.made for part in first.parts[3:]] == [True, False, False, False]
    drawing = first.tab("Fusion").picture
    first.tabs.selected_index = 0
    first.tabs.selected_index = 3
    assert first.tab("Fusion").picture is drawing, "what was opened stays"
    for panel in (first, second):
        panel.close()
    assert first.wait(60)
    assert second.wait(60)


def test_nothing_is_made_beside_a_measurement(quick: None) -> None:
    cell = FakeCell()
    panel = workbench(cell)
    panel._repr_mimebundle_()
    held, done = threading.Event(), threading.Event()

    def measure() -> None:
        with cell.lock:
            held.set()
            done.wait(60)

    other = threading.Thread(target=measure)
    other.start()
    assert held.wait(60)
    drawn(panel)
    time.sleep(0.3)
    assert not any(part.made for part in late(panel))
    done.set()
    other.join()
    assert happens(lambda: all(part.made for part in late(panel)))
    assert panel.wait(60)
    panel.close()


def test_nothing_is_made_while_a_cell_runs(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    running = [True]
    monkeypatch.setattr(early, "cell_runs", lambda: running[0])
    panel = workbench(FakeCell())
    panel._repr_mimebundle_()
    drawn(panel)
    time.sleep(0.2)
    assert not panel.kernels.more.made
    running[0] = False
    assert happens(lambda: panel.tab("Numerics").made)
    assert panel.wait(60)
    panel.close()


def test_a_closed_panel_makes_nothing(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    running = [True]  # until it is closed: on a busy machine a tab is made before that
    monkeypatch.setattr(early, "cell_runs", lambda: running[0])
    panel = workbench(FakeCell())
    panel._repr_mimebundle_()
    drawn(panel)
    panel.close()
    running[0] = False
    time.sleep(0.2)
    assert not panel.tab("Fusion").made


def test_a_running_cell_is_seen_from_another_thread() -> None:
    shell = start_ipython() or InteractiveShell.instance()
    seen: list[bool] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(early.cell_runs()))
        thread.start()
        thread.join()

    look()
    shell.user_ns["look"] = look
    shell.run_cell("look()")
    assert seen == [False, True]


def test_the_panel_of_a_cell_that_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Workbench] = []
    shell = start_ipython() or InteractiveShell.instance()
    magics = FuseMagics(shell, Session(shell.user_ns))
    real = FuseMagics._begin_panel

    def begin(self: FuseMagics, cell: Any) -> Any:
        begun.append(real(self, cell))
        return begun[-1]

    monkeypatch.setattr(FuseMagics, "_begin_panel", begin)
    with pytest.raises(ZeroDivisionError):
        magics.fuse("--panel --quiet", "1 // 0")
    assert [panel.closed for panel in begun] == [True]
