"""Results that were timed too early are shown again in place, between cells."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from fusec.call import native
from fuselab.magics import late_figures
from fuselab.magics.late_figures import LateFigures


def in_a_loop(test: Callable[[Page], Coroutine[Any, Any, None]]) -> Callable[[Page], None]:
    """Run a test in an event loop, as a kernel runs cells."""

    @functools.wraps(test)
    def run(page: Page) -> None:
        asyncio.run(test(page))

    return run


class Events:
    """A shell's events."""

    def __init__(self) -> None:
        self.known: dict[str, list[Callable[[], None]]] = {"pre_execute": [], "post_execute": []}

    def register(self, event: str, callback: Callable[[], None]) -> None:
        self.known[event].append(callback)

    def unregister(self, event: str, callback: Callable[[], None]) -> None:
        self.known[event].remove(callback)

    def trigger(self, event: str) -> None:
        for callback in list(self.known[event]):
            callback()


class Page:
    """What was shown, and a kernel's shell that shows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built = False
        self.shown: list[str] = []
        self.threads: set[int] = set()
        self.events = Events()
        self.late = LateFigures(SimpleNamespace(kernel=None, events=self.events))
        monkeypatch.setattr(late_figures, "display", self._display)
        monkeypatch.setattr(late_figures, "_IDLE", 0.1)
        monkeypatch.setattr(late_figures, "_LOOK", 0.01)
        monkeypatch.setattr(native, "await_types", lambda _seconds: self.built)

    def _display(self, cell: Any, display_id: bool = False) -> Any:
        self.shown.append(f"{cell.time}{' awaited' if cell.awaited else ''}")
        return SimpleNamespace(update=self._update) if display_id else None

    def _update(self, cell: Any) -> None:
        self.threads.add(threading.get_ident())
        self.shown.append(f"again {cell.time}{' awaited' if cell.awaited else ''}")

    def cell(self, early: bool = True) -> Any:
        cell = SimpleNamespace(
            early=early, awaited=False, time="slow", latest_graphs=(1,), lock=threading.RLock()
        )
        if not self.late.show(cell, lambda: setattr(cell, "time", "quick")):
            self._display(cell)
        return cell


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(monkeypatch)


@in_a_loop
async def test_it_is_shown_again_once_it_is_built_and_no_cell_runs(page: Page) -> None:
    cell = page.cell()
    assert page.shown == ["slow awaited"]
    page.built = True
    await asyncio.sleep(0.3)
    assert page.shown == ["slow awaited"]  # the cell that shows it still runs
    page.events.trigger("post_execute")
    await asyncio.sleep(0.05)
    page.events.trigger("pre_execute")  # the next cell
    await asyncio.sleep(0.3)
    assert page.shown == ["slow awaited"]
    page.events.trigger("post_execute")
    await asyncio.sleep(0.3)
    assert page.shown == ["slow awaited", "again quick"]
    assert page.threads == {threading.get_ident()}
    assert not cell.awaited
    assert not any(page.events.known.values())  # it leaves nothing behind


@in_a_loop
async def test_a_cell_that_is_in_use_is_left_alone(page: Page) -> None:
    cell = page.cell()
    page.events.trigger("post_execute")
    begun, done = threading.Event(), threading.Event()

    def tune() -> None:
        with cell.lock:
            begun.set()
            done.wait(10)

    thread = threading.Thread(target=tune)
    thread.start()
    assert begun.wait(10)
    page.built = True
    await asyncio.sleep(0.3)
    assert page.shown == ["slow awaited"]
    done.set()
    thread.join()
    await asyncio.sleep(0.4)
    assert page.shown[1:] == ["again quick"]


@in_a_loop
async def test_several_and_a_second_time(page: Page) -> None:
    page.cell()
    page.cell()
    page.events.trigger("post_execute")
    page.built = True
    await asyncio.sleep(0.6)
    assert page.shown[2:] == ["again quick", "again quick"]
    page.cell()
    page.events.trigger("post_execute")
    await asyncio.sleep(0.4)
    assert page.shown[4:] == ["slow awaited", "again quick"]


@in_a_loop
async def test_unloading_ends_it(page: Page) -> None:
    page.cell()
    page.events.trigger("post_execute")
    page.built = True
    page.late.end()
    await asyncio.sleep(0.3)
    assert page.shown == ["slow awaited"]
    assert not any(page.events.known.values())


@in_a_loop
async def test_what_was_timed_in_time_is_shown_once(page: Page) -> None:
    page.cell(early=False)
    assert page.shown == ["slow"]
    assert not any(page.events.known.values())


def test_a_terminal_shows_it_once(page: Page) -> None:
    cell = page.cell()  # no event loop runs here
    assert page.shown == ["slow"]
    assert not cell.awaited


@in_a_loop
async def test_an_error_leaves_what_is_shown(page: Page) -> None:
    cell = page.cell()
    page.late.end()

    def fail() -> None:
        raise RuntimeError("the machine is full")

    page.late.show(cell, fail)
    page.events.trigger("post_execute")
    page.built = True
    await asyncio.sleep(0.3)
    assert page.shown[1:] == ["slow awaited", "again slow"]  # which says to run the cell again
