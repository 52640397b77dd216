"""Run the tests: first those that may share the machine, then, alone, those that may not.

A test marked `serial` (or `timing`) measures time, so nothing may run beside it. Beside the first,
those marked `browser` run in a process of their own, for they share one JupyterLab and wait most of
the time. Others wait for compilers and processes of their own: for two cores there are three
workers, so that none is idle. All runs happen even if tests fail, and the last line counts them
together, in the form pytest itself uses.
Tests marked `slow` run with `--all` only, as do all but n sets of the parameters of a test marked
`sample(n)`; what each of them covers, a quicker one samples.
Other arguments go to pytest: `python tests/run.py -k softmax`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALL = "--all"
BROWSER = "tests/browser"
COUNTED = ("failures", "errors", "skipped")


def main(arguments: list[str]) -> int:
    """Run both halves and return pytest's exit code for the whole."""
    started = time.monotonic()
    quick = "" if ALL in arguments else " and not slow"
    arguments = [each for each in arguments if each != ALL]
    # Whoever chooses tests has them without the browser's apart: most of the time there are few.
    apart = not arguments
    workers = max(3 if apart else 2, min(8, os.cpu_count() or 2))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if apart:
            stack.enter_context(native_parts(Path(folder, "native")))
            if quick:
                os.environ["FUSELAB_QUICK_BUILDS"] = "1"  # tests/support/quick_builds.py
        reports = {name: Path(folder, f"{name}.xml") for name in ("shared", "alone", "page")}
        printed = Path(folder, "beside.txt")
        quiet = f"not serial and not timing{quick}"
        first = f"not browser and {quiet}" if apart else quiet
        try:
            page = None
            if apart:
                pool = stack.enter_context(ThreadPoolExecutor(1))
                selection = ["-m", f"browser and {quiet}", BROWSER]
                page = pool.submit(run_quietly, selection, reports["page"], printed)
            codes = [run(["-n", str(workers), "-m", first], reports["shared"], arguments)]
            if page is not None:
                codes.append(page.result())
                print(printed.read_text())
                arguments = marked()
            codes.append(run(["-m", f"(serial or timing){quick}"], reports["alone"], arguments))
        except KeyboardInterrupt:
            return int(pytest.ExitCode.INTERRUPTED)
        totals = count(reports.pop("shared"))
        for report in reports.values():
            totals = add(totals, count(report))
    print(summary(totals, time.monotonic() - started))
    return exit_code(codes)


def run(selection: list[str], report: Path, arguments: list[str]) -> int:
    """Run pytest on one half of the tests, with its JUnit report in `report`."""
    command = [sys.executable, "-m", "pytest", *selection, f"--junitxml={report}", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        return process.wait()
    except KeyboardInterrupt:
        # The terminal sent it to pytest as well, which stops its workers and reports.
        process.wait()
        raise


def run_quietly(selection: list[str], report: Path, printed: Path) -> int:
    """Run pytest beside the workers; what it prints goes to a file."""
    # Said to workers by tests/conftest.py: threads that wait do not take a core from the others.
    given = {"OMP_WAIT_POLICY": "PASSIVE", **environment()}
    command = [sys.executable, "-m", "pytest", *selection, f"--junitxml={report}"]
    with printed.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=given, stdout=output, stderr=subprocess.STDOUT
        )
        return process.wait()


@contextmanager
def native_parts(folder: Path) -> Iterator[None]:
    """Have what each process would build first built once, while they import the tests."""
    folder.mkdir(mode=0o700)
    os.environ["FUSELAB_NATIVE_PARTS"] = str(folder)
    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "support.native_parts", str(folder)]
    builder = subprocess.Popen(command, cwd=ROOT, env={**environment(), "PYTHONPATH": path})
    try:
        yield
    finally:
        builder.terminate()
        builder.wait()


def environment() -> dict[str, str]:
    """Return this process's environment, in which Python keeps what it has compiled.

    Containers often ask it not to. Then each of hundreds of processes would compile all of the
    project again, and every worker would rewrite the assertions of every test.
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def marked() -> list[str]:
    """Return the files with tests that run alone: pytest need not import the others for them."""
    mark = re.compile(r"\bmark\.(serial|timing)\b")
    files = sorted(Path(ROOT, "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if mark.search(path.read_text())]


def count(report: Path) -> dict[str, int]:
    """Read how many tests of each outcome a JUnit report holds; none when there is no report."""
    totals = dict.fromkeys(("tests", *COUNTED), 0)
    if report.exists():
        for suite in ET.parse(report).getroot().iter("testsuite"):
            for name in totals:
                totals[name] += int(suite.get(name, 0))
    return totals


def add(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    """Add two counts."""
    return {name: first[name] + second[name] for name in first}


def summary(totals: dict[str, int], seconds: float) -> str:
    """Write the one line that counts all runs."""
    passed = totals["tests"] - sum(totals[name] for name in COUNTED)
    named = [
        (totals["failures"], "failed"),
        (passed, "passed"),
        (totals["skipped"], "skipped"),
        (totals["errors"], "error" if totals["errors"] == 1 else "errors"),
    ]
    counts = ", ".join(f"{n} {word}" for n, word in named if n) or "no tests ran"
    return f" {counts} in {seconds:.2f}s (all runs) ".center(80, "=")


def exit_code(codes: list[int]) -> int:
    """Combine: an empty half is fine, two empty halves are not, the first failure counts."""
    empty = int(pytest.ExitCode.NO_TESTS_COLLECTED)
    ran = [code for code in codes if code != empty]
    if not ran:
        return empty
    return next((code for code in ran if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
