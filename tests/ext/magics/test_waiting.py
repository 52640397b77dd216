"""What is shown while a cell is waited for, and what is left when somebody stops it."""

from __future__ import annotations

import base64
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

import fuselab
from fuselab.session import progress
from fuselab.session.progress import Phases, Progress, Stopped
from fuselab.session.tuning_job import TuningJob
from support.panel_fake import FakeCell
from support.shell import run


class Screen:
    """What a notebook was told to display, in order, with the time of each."""

    def __init__(self) -> None:
        self.shown: list[tuple[float, dict[str, str]]] = []

    def display(self, data: dict[str, str], **_: Any) -> Any:
        self.update(data)
        return self

    def update(self, data: dict[str, str], **_: Any) -> None:
        self.shown.append((time.monotonic(), data))

    @property
    def lines(self) -> list[str]:
        return [data["text/plain"] for _, data in self.shown]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen()
    monkeypatch.setattr(progress, "display", found.display)
    return found


@pytest.fixture
def notebook(shell: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The shell, as a notebook's kernel has it."""
    monkeypatch.setattr(shell, "kernel", SimpleNamespace(), raising=False)
    if fuselab._between_cells is not None:
        fuselab._between_cells.end()  # a cell that has to wait for it says so: see test_warm_up
    return shell


def test_a_line_stands_there_within_a_moment(notebook: Any, screen: Screen) -> None:
    began = time.monotonic()
    run(notebook, "%%fuse --name mine\ny = x * 2")
    phases = ("compiling", "checking", "measuring", "drawing")
    assert screen.lines == [*(f"mine: {phase} …" for phase in phases), ""]
    assert screen.shown[0][0] - began < 0.3
    screen.shown.clear()
    run(notebook, "%%fuse --name mine\ny = x * 2")  # all of it is known
    assert screen.lines == []
    run(notebook, "%%kernel mine --check-only\n// WRONG")
    assert screen.lines == ["mine: checking …", ""]
    screen.shown.clear()
    run(notebook, "%%fuse -q --name quiet\ny = x * 2")
    assert screen.lines == []


def test_a_line_is_sent_before_what_it_announces_begins(
    notebook: Any, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    stream = SimpleNamespace(flush=lambda: sent.append(len(screen.shown)), write=lambda _: None)
    monkeypatch.setattr(progress.sys, "stdout", stream)
    phases = Phases(notebook, "mine")
    phases.begin("compiling")
    phases.begin("checking")
    assert sent == [1, 2]


@pytest.mark.parametrize(
    ("what", "cell", "said"),
    [
        (
            "measure",
            "%%fuse --name mine\ny = x * 2",
            "measuring mine; its kernels are",
        ),
        ("verify", "%%fuse --name mine\ny = x * 2", "checking mine; its kernels are"),
        (
            "run",
            "%%fuse --name mine\ny = x * 2",
            "compiling mine; run the cell again",
        ),
        ("check", "%%kernel mine\n// text", "checking mine; the text in use stays"),
    ],
)
def test_stop_ends_in_one_line(
    shell: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, what: str, cell: str, said: str
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    run(shell, "%%fuse -q --name mine\ny = x + 2")
    (kernel,) = shell.session.cells["mine"].kernels.values()
    before = kernel.source
    from support import cell_fake, panel_fake

    monkeypatch.setattr(cell_fake.FakeGraph, "measure", stop) if what == "measure" else None
    monkeypatch.setattr(cell_fake.FakeGraph, "verify", stop) if what == "verify" else None
    monkeypatch.setattr(cell_fake.FakeGraph, "__call__", stop) if what == "run" else None
    monkeypatch.setattr(panel_fake.FakeHost, "check", stop) if what == "check" else None
    capsys.readouterr()
    result = shell.run_cell(cell)
    assert isinstance(result.error_in_exec, Stopped)
    shown = re.sub(r"\x1b\[[0-9;]*[mK]", "", capsys.readouterr().out).strip("\r\n")
    assert shown.count("\n") == 0, shown
    assert shown.startswith(f"KeyboardInterrupt: stopped while {said}")
    assert kernel.source == before
    monkeypatch.undo()
    run(shell, "%%fuse -q --name again\ny = x * 3")
    assert shell.user_ns["y"].tolist() == [0.0, 3.0, 6.0, 9.0]


def test_a_search_is_drawn_as_it_goes_on(notebook: Any, screen: Screen) -> None:
    cell = FakeCell()
    kernel = cell.kernels["gelu_norm"]
    drawn: list[int] = []

    def draw(run: Any) -> bytes:
        drawn.append(len(run.trials))
        return f"{len(run.trials)} tried".encode()

    job = TuningJob(kernel, 5.0, cell.lock, draw)
    with Progress(notebook, quiet=False) as shown:
        shown.begin(kernel.name)
        job.wait(lambda run: job.show(run, shown.show))
    assert drawn
    assert screen.lines[0] == "gelu_norm: tuning …"
    assert screen.lines[-1] == ""
    pictures = 0
    for _, data in screen.shown:  # the line and the picture below it are of one moment
        found = re.search(r"base64,([^\"]+)", data.get("text/html", ""))
        if found is not None:
            pictures += 1
            count = base64.b64decode(found[1]).decode().partition(" ")[0]
            assert f"[{count} of " in data["text/plain"]
    assert pictures


def test_phases_say_nothing_where_nobody_looks(shell: Any, capsys: Any) -> None:
    phases = Phases(shell, "mine")
    phases.begin("checking")
    phases.end()
    assert capsys.readouterr().out == ""
    assert phases.doing == "checking"
