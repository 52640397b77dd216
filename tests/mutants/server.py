"""Runs tests on a mutated compiler: a process that has torch but not fusec is forked for each.

The mutated file is never written: the child imports its text in place of the file's.  What a test
starts as a process of its own (a worker, a compiler) sees the tree as it is.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import linecache
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any

import pytest

# Imported before the first fork, if it is there; nothing in it may import the package mutated.
WARM = (
    "numpy",
    "sympy",
    "torch",
    "torch._dynamo",
    "torch._dynamo.backends.common",
    "torch._functorch.aot_autograd",
    "torch._decomp.decompositions",
    "torch.testing._internal.common_methods_invocations",
    "triton",
    "triton.language",
    "hypothesis",
    "jinja2",
    "filelock",
)
MEMORY = 10 << 30  # bytes that a child may take: a mutated size can be any
SLOWER = 20.0  # a test that takes so many times as long as it did, and a minute, hangs
LEAST = 60.0


@dataclass(frozen=True)
class Outcome:
    """What became of some tests.

    Attributes:
        verdict: ``passed``, ``failed``, ``timeout`` or ``crash``.
        test: The first that did not pass.
        detail: Its error.
        seconds: How long it all took.
    """

    verdict: str
    test: str = ""
    detail: str = ""
    seconds: float = 0.0


class Replaced(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports one module from a text; its file keeps its name and its lines.

    Args:
        name: The module's name.
        path: Its file.
        text: What it is to be.
    """

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for the one module."""
        if fullname != self.name:
            return None
        folder = str(Path(self.path).parent)
        package = [folder] if Path(self.path).name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=package
        )

    def get_code(self, fullname: str) -> CodeType:
        """Compile the text; no byte code is read or left.

        Who reads a function's source, as Triton does, finds the text, too.
        """
        lines = self._text.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self._text), None, lines, self.path)
        return compile(self._text, self.path, "exec", dont_inherit=True)


def module_of(file: str, roots: Iterable[str] = ("compiler", "ext")) -> str:
    """Return the name by which a file is imported."""
    for root in roots:
        if file.startswith(f"{root}/"):
            file = file.removeprefix(f"{root}/")
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def warm(modules: Iterable[str] = WARM) -> None:
    """Import what every child needs."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "fusec" not in sys.modules, "what is forked must not have imported what is mutated"


def run(
    module: tuple[str, Path, str] | None,
    tests: Sequence[tuple[str, float]],
    log: Path,
    *,
    options: Sequence[str] = (),
) -> Outcome:
    """Run tests in a child until one fails.

    Args:
        module: Name, file and text of what is mutated; None for a run of the tree as it is.
        tests: Node ids, and the seconds that each is known to take.
        log: Where the child's output goes.
        options: More for pytest.
    """
    started = time.monotonic()
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.close(readable)
        _in_child(module, [name for name, _ in tests], writable, log, options)
    os.close(writable)
    try:
        outcome = _watch(child, readable, dict(tests))
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        os.close(readable)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
    return Outcome(outcome.verdict, outcome.test, outcome.detail, time.monotonic() - started)


def _watch(child: int, readable: int, known: dict[str, float]) -> Outcome:
    """Follow a child's reports: which test begins, which one failed, and the end."""
    running, pending = "", b""
    deadline = time.monotonic() + 2 * LEAST  # to import and collect
    while True:
        ready, _, _ = select.select([readable], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return Outcome("timeout", running, "it hangs")
        data = os.read(readable, 1 << 16)
        if not data:
            _, status = os.waitpid(child, 0)
            return Outcome("crash", running, f"status {os.waitstatus_to_exitcode(status)}")
        *lines, pending = (pending + data).split(b"\n")
        for row in map(json.loads, lines):
            if "begins" in row:
                running = row["begins"]
                seconds = known.get(running, 0.0)
                deadline = time.monotonic() + LEAST + SLOWER * seconds
            else:
                return Outcome(row["verdict"], row.get("test", ""), row.get("detail", ""))


def _in_child(
    module: tuple[str, Path, str] | None,
    tests: Sequence[str],
    writable: int,
    log: Path,
    options: Sequence[str],
) -> None:
    """Be the child: run pytest, report, and end without what the parent would do at its end."""
    status = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if module is not None:
            name, path, text = module
            assert name not in sys.modules, f"{name} was imported before"
            sys.meta_path.insert(0, Replaced(name, str(path), text))
        with os.fdopen(writable, "w") as pipe:
            report = _Report(pipe)
            arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "mutants.shared_cache"]
            arguments += ["-o", "timeout=0", *options, *tests]
            code = pytest.main(arguments, plugins=[report])
            report.end(int(code))
        status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)


class _Report:
    """Tells the parent what happens, a JSON line each."""

    def __init__(self, pipe: IO[str]) -> None:
        self.pipe = pipe
        self.failed: dict[str, Any] = {}

    def say(self, **row: object) -> None:
        print(json.dumps(row), file=self.pipe, flush=True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(begins=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = {"test": report.nodeid, "detail": _last_line(report)}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = {"test": f"import of {report.nodeid}", "detail": _last_line(report)}

    def end(self, code: int) -> None:
        passed = code == pytest.ExitCode.OK
        if not passed and not self.failed:
            self.failed = {"test": "", "detail": f"pytest ended with {code}"}
        verdict = "passed" if passed else "failed"
        self.say(verdict=verdict, **self.failed)


def _last_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else ""


Runner = Callable[..., Outcome]

__all__ = ["Outcome", "Replaced", "Runner", "module_of", "run", "warm"]
