"""What a test needs that not every system has, and when it may be skipped for it.

A test says so by a mark, ``triton``, ``linux("what of it")`` or ``posix("what of it")``, or has the
target ``triton`` among its parameters, and is skipped where that is missing.  ``make test-bare``
takes it away on Linux (see ``bare/sitecustomize``).  There a test may be skipped without a mark,
too: if it is about Triton (it or a fixture says the name) **and** ends by the very error of an
import of Triton which Triton's own target or a test asked for; if it ends by the very error of a
name of Linux's that the test itself uses, or that of packages' binaries; or, where edits have
no process of their own (``plain``),
once it has asked for one.  Every other failure is one.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Generator, Iterator
from typing import Any

import pytest

_NO_TRITON = "the package triton is not installed"
_NO_BINARIES = "binaries of packages are built on Linux so far"
_NO_PROCESS = "candidates cannot run in a process of their own"
# Who may ask for Triton: its own target and the tests of it.
_MAY_ASK = re.compile(r"/targets/triton/|/tests/")


def is_bare() -> bool:
    """Whether Triton and what only Linux has are taken away."""
    return bool(os.environ.get("FUSEC_BARE"))


def why_skipped(item: pytest.Item) -> str:
    """Return what is not here of that which a test's marks say it needs; empty if nothing."""
    named = isinstance(item, pytest.Function) and "triton" in _parameters(item)
    needed = named or item.get_closest_marker("triton") is not None
    if needed and importlib.util.find_spec("triton") is None:
        return "needs Triton"
    linux = item.get_closest_marker("linux")
    if linux and (is_bare() or sys.platform != "linux"):
        return f"needs Linux: {linux.args[0]}"
    posix = item.get_closest_marker("posix")
    if posix and (os.environ.get("FUSEC_BARE") == "plain" or os.name != "posix"):
        return f"needs Linux or macOS: {posix.args[0]}"
    return ""


def _parameters(item: pytest.Function) -> list[object]:
    """Return the words among a test's parameters."""
    call = getattr(item, "callspec", None)
    return [each for each in call.params.values() if isinstance(each, str)] if call else []


class Bare:
    """pytest's hooks in ``make test-bare``."""

    def __init__(self) -> None:
        from fusec.verify.isolation.process import Worker, WorkerError

        self.refused = False  # whether a test has asked for the process of an edit in vain
        real = Worker.ask

        def ask(*arguments: Any, **options: Any) -> Any:
            try:
                return real(*arguments, **options)
            except WorkerError as error:
                self.refused |= _NO_PROCESS in str(error)
                raise

        Worker.ask = ask  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Leave out the files that end by an import of Triton."""
        report = yield
        raised = report.call.excinfo if report.call is not None else None
        if report.failed and raised is not None and _asks_for_triton(raised.value):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, "Skipped: needs Triton")
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take what is missing for the reason of a failure where it is."""
        report = yield
        refused, self.refused = self.refused, False
        if report.failed and call.excinfo is not None:
            why = _missing(item, call.excinfo)
            if refused or _NO_PROCESS in str(report.longrepr):
                why = "needs a process of its own for edits"
            if why:
                report.outcome = "skipped"
                report.longrepr = (str(item.path), 0, f"Skipped: {why}")
        return report


def _missing(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException]) -> str:
    """Return what of that which is gone has ended a test; empty if it was something else."""
    error = raised.value
    asks = _asks_for_triton(error) or _NO_TRITON in str(error)
    if asks and not isinstance(error, AssertionError) and _is_about_triton(item):
        return "needs Triton"
    if type(error).__name__ == "CannotPackage" and _NO_BINARIES in str(error):
        return "needs Linux: binaries of packages"
    if (
        isinstance(error, AttributeError)
        and error.name in sys.modules["sitecustomize"].gone()
        and "/tests/" in str(raised.traceback[-1].path)
    ):
        return f"needs {error.name}"
    return ""


def _asks_for_triton(error: BaseException) -> bool:
    """Whether an error is that of an import of Triton, raised where one may stand."""
    return any(
        isinstance(each, ModuleNotFoundError)
        and str(each.name).partition(".")[0] == "triton"
        and _MAY_ASK.search(_asker(each)) is not None
        for each in _causes(error)
    )


def _asker(error: ModuleNotFoundError) -> str:
    """Return the file in which an import failed."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((file for file in reversed(frames) if "importlib" not in file), "")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it names as its causes, not those it was raised beside."""
    while error is not None:
        yield error
        error = error.__cause__


def _is_about_triton(item: pytest.Item) -> bool:
    """Whether a test, its parameters or a fixture of it say Triton's name."""
    if not isinstance(item, pytest.Function):
        return False
    known = item._fixtureinfo.name2fixturedefs
    functions = [item.function, *(each.func for name in known for each in known[name])]
    ours = [each for each in functions if "/tests/" in inspect.getfile(inspect.unwrap(each))]
    return "triton" in " ".join([item.nodeid, *map(inspect.getsource, ours)]).lower()


__all__ = ["Bare", "is_bare", "why_skipped"]
