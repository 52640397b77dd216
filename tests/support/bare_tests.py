"""The tests where Triton and all that only Linux has are taken away: see ``bare/sitecustomize``.

A test that fails there has to be about what is gone: it names Triton, or has asked for it, itself
or by the target that writes Triton, or it takes by name what Linux alone has.  It counts as
skipped; whatever else fails has failed.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Generator
from typing import Any

import pytest

# Who may ask for Triton: its own target and the tests of it.
_MAY_ASK = re.compile(r"/targets/triton/|/tests/")

# Tests of what Linux alone has, by their files or their names.
_LINUX = {
    "test_huge_pages.py": "the memory pool and large pages",
    "test_refuses[read past the end]": "whether a fault was a read or a write",
    "test_refuses[read before the start]": "whether a fault was a read or a write",
    "test_memory_is_limited": "a limit of a process's memory",
    "test_missing_function_is_a_compile_error": "a linker that asks for every name",
    "test_what_nobody_waits_for_gives_way": "groups of processes in /proc",
}


def is_bare() -> bool:
    """Whether it is so."""
    return bool(os.environ.get("FUSEC_BARE"))


class Bare:
    """pytest's hooks there."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Leave out the files that cannot be imported without Triton."""
        asked = sys.modules["sitecustomize"].ASKED
        asked.clear()
        report = yield
        if report.failed and _is_for_triton(asked):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, "Skipped: needs Triton")
        return report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip the tests of what only Linux has."""
        for item in items:
            name = getattr(item, "originalname", item.name)
            what = _LINUX.get(item.path.name) or _LINUX.get(name) or _LINUX.get(item.name)
            if what:
                item.add_marker(pytest.mark.skip(reason=f"needs Linux: {what}"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take what is missing for the reason of a failure where it is."""
        report = yield
        asked = sys.modules["sitecustomize"].ASKED
        if call.when == "setup":
            asked.clear()
        if report.failed and call.excinfo is not None:
            why = "needs Triton" if _names_triton(item) else _missing(call.excinfo, asked)
            if why:
                report.outcome = "skipped"
                report.longrepr = (str(item.path), 0, f"Skipped: {why}")
        return report


def _names_triton(item: pytest.Item) -> bool:
    """Whether a test or a fixture of it is about Triton; others may ask for it elsewhere."""
    if not isinstance(item, pytest.Function):
        return False
    known = item._fixtureinfo.name2fixturedefs
    functions = [item.function, *(each.func for name in known for each in known[name])]
    ours = [each for each in functions if "/tests/" in inspect.getfile(inspect.unwrap(each))]
    return "triton" in " ".join([item.nodeid, *map(inspect.getsource, ours)]).lower()


def _is_for_triton(asked: list[str]) -> bool:
    return bool(asked) and all(_MAY_ASK.search(file) for file in asked)


def _missing(raised: pytest.ExceptionInfo[BaseException], asked: list[str]) -> str:
    """Return what of that which is gone a test needs; empty if nothing."""
    if _is_for_triton(asked):
        return "needs Triton"
    gone = sys.modules["sitecustomize"].gone()
    error = raised.value
    if (
        isinstance(error, AttributeError)
        and error.name in gone
        and "tests" in str(raised.traceback[-1].path)
    ):
        return f"needs {error.name}"
    return ""


__all__ = ["Bare", "is_bare"]
