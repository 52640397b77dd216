"""A pytest plugin that writes which lines of the compiler each test runs.

``pytest -p mutants.coverage --lines-to FILE`` appends a JSON line a test.  A line is recorded when
it first runs in a test; after its last line, a function is traced no more, so that the tracer
costs little where a test calls the same things again and again.  From Python 3.12 on, the
interpreter is asked for the lines of our own functions alone (`sys.monitoring`, PEP 669): that
takes a tenth of what a tracer does, which hears of every call that torch makes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

Tracer = Callable[[FrameType, str, Any], Any]


class Recorder:
    """Which lines of some files run, between ``start`` and ``stop``.

    Args:
        root: What the files are named from.
        places: Files and folders below it.
    """

    def __init__(self, root: Path, places: Sequence[str]) -> None:
        self.root = root
        self.prefixes = tuple(str(root / place) for place in places)
        self._names: dict[str, str] = {}  # of every file met: its name from the root, or nothing
        self._left: dict[int, set[int]] = {}  # lines of a code object that have not run
        self._codes: dict[int, tuple[CodeType, Tracer]] = {}  # kept: their ids are keys
        self._hits: dict[str, set[int]] = {}

    def start(self) -> None:
        """Forget what ran, and record from here on."""
        self._left.clear()
        self._hits = {}
        threading.settrace(self._called)
        sys.settrace(self._called)

    def stop(self) -> dict[str, list[int]]:
        """Return the lines that ran, by file."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        return {name: sorted(lines) for name, lines in self._hits.items()}

    def _ours(self, code: CodeType) -> str:
        """Return the name of a code object's file from the root; nothing if it is not recorded."""
        path = code.co_filename
        name = self._names.get(path)
        if name is None:
            ours = path.startswith(self.prefixes)
            name = self._names[path] = str(Path(path).relative_to(self.root)) if ours else ""
        return name

    def _called(self, frame: FrameType, event: str, argument: object) -> Tracer | None:
        code = frame.f_code
        name = self._ours(code)
        if not name:
            return None
        left = self._left.get(id(code))
        if left is None:
            left = self._left[id(code)] = {line for _, _, line in code.co_lines() if line}
            self._hits.setdefault(name, set()).add(code.co_firstlineno)
            left.discard(code.co_firstlineno)
        if not left:
            return None
        known = self._codes.get(id(code))
        if known is None:
            known = self._codes[id(code)] = (code, self._local(id(code), name))
        return known[1]

    def _local(self, key: int, name: str) -> Tracer:
        def trace(frame: FrameType, event: str, argument: object) -> Tracer | None:
            if event == "line":
                left = self._left.get(key)
                if left is None:  # the test that called it is over
                    return None
                if frame.f_lineno in left:
                    left.discard(frame.f_lineno)
                    self._hits.setdefault(name, set()).add(frame.f_lineno)
            return trace

        return trace


if sys.version_info >= (3, 12):
    _EVENTS = sys.monitoring.events

    class MonitoringRecorder(Recorder):
        """The same by `sys.monitoring`: what was heard once in a test is not told again."""

        tool = sys.monitoring.COVERAGE_ID

        def __init__(self, root: Path, places: Sequence[str]) -> None:
            super().__init__(root, places)
            sys.monitoring.use_tool_id(self.tool, "mutants.coverage")
            sys.monitoring.register_callback(self.tool, _EVENTS.PY_START, self._started)
            sys.monitoring.register_callback(self.tool, _EVENTS.LINE, self._ran)

        def start(self) -> None:
            """Forget what ran, and record from here on."""
            self._hits = {}
            sys.monitoring.set_events(self.tool, _EVENTS.PY_START)
            sys.monitoring.restart_events()

        def stop(self) -> dict[str, list[int]]:
            """Return the lines that ran, by file."""
            sys.monitoring.set_events(self.tool, _EVENTS.NO_EVENTS)
            return {name: sorted(lines) for name, lines in self._hits.items()}

        def _started(self, code: CodeType, offset: int) -> object:
            name = self._ours(code)
            if name:
                sys.monitoring.set_local_events(self.tool, code, _EVENTS.LINE)
                self._hits.setdefault(name, set()).add(code.co_firstlineno)
            return sys.monitoring.DISABLE

        def _ran(self, code: CodeType, line: int) -> object:
            self._hits.setdefault(self._ours(code), set()).add(line)
            return sys.monitoring.DISABLE


def recorder(root: Path, places: Sequence[str]) -> Recorder:
    """Return the recorder that costs least with this Python."""
    if sys.version_info >= (3, 12):
        return MonitoringRecorder(root, places)
    return Recorder(root, places)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add where to write, and what of."""
    parser.addoption("--lines-to", help="record which lines each test runs, in this file")
    parser.addoption("--lines-of", nargs="+", default=[], help="files and folders")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the record where it is asked for."""
    if config.getoption("--lines-to"):
        config.pluginmanager.register(_Plugin(config), "lines")


class _Plugin:
    def __init__(self, config: pytest.Config) -> None:
        self.path = Path(config.getoption("--lines-to"))
        self.recorder = recorder(config.rootpath, config.getoption("--lines-of"))
        self.passed: dict[str, bool] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        started = time.perf_counter()
        self.recorder.start()
        try:
            return (yield)
        finally:
            lines = self.recorder.stop()
            if lines:
                row = {
                    "test": item.nodeid,
                    "seconds": round(time.perf_counter() - started, 4),
                    "passed": self.passed.get(item.nodeid, False),
                    "lines": lines,
                }
                with self.path.open("a") as file:
                    print(json.dumps(row), file=file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self.passed.get(report.nodeid, True)
        self.passed[report.nodeid] = before and report.passed
