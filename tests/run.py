"""Run the tests: first those that may share the machine, then, alone, those that may not.

A test marked `serial` (or `timing`) measures time, so nothing may run beside it. Both runs
happen even if tests fail, and the last line counts them together, in the form pytest itself uses.
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
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALL = "--all"
COUNTED = ("failures", "errors", "skipped")


def main(arguments: list[str]) -> int:
    """Run both halves and return pytest's exit code for the whole."""
    started = time.monotonic()
    workers = max(2, min(8, os.cpu_count() or 2))
    quick = "" if ALL in arguments else " and not slow"
    arguments = [each for each in arguments if each != ALL]
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, "shared.xml")
        alone = Path(folder, "alone.xml")
        try:
            codes = [
                run(
                    ["-n", str(workers), "-m", f"not serial and not timing{quick}"],
                    shared,
                    arguments,
                ),
                run(["-m", f"(serial or timing){quick}"], alone, arguments or marked()),
            ]
        except KeyboardInterrupt:
            return int(pytest.ExitCode.INTERRUPTED)
        totals = add(count(shared), count(alone))
    print(summary(totals, time.monotonic() - started))
    return exit_code(codes)


def run(selection: list[str], report: Path, arguments: list[str]) -> int:
    """Run pytest on one half of the tests, with its JUnit report in `report`."""
    command = [sys.executable, "-m", "pytest", *selection, f"--junitxml={report}", *arguments]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # The terminal sent it to pytest as well, which stops its workers and reports.
        process.wait()
        raise


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
    """Write the one line that counts both runs."""
    passed = totals["tests"] - sum(totals[name] for name in COUNTED)
    named = [
        (totals["failures"], "failed"),
        (passed, "passed"),
        (totals["skipped"], "skipped"),
        (totals["errors"], "error" if totals["errors"] == 1 else "errors"),
    ]
    counts = ", ".join(f"{n} {word}" for n, word in named if n) or "no tests ran"
    return f" {counts} in {seconds:.2f}s (both runs) ".center(80, "=")


def exit_code(codes: list[int]) -> int:
    """Combine: an empty half is fine, two empty halves are not, the first failure counts."""
    empty = int(pytest.ExitCode.NO_TESTS_COLLECTED)
    ran = [code for code in codes if code != empty]
    if not ran:
        return empty
    return next((code for code in ran if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
