"""``make compilers``: the golden kernels with every C++ compiler found, and for other machines.

Each kernel is built by each compiler, run with one, two and three threads and compared with the
reference interpreter, with every end of its tunables.  Then zig compiles all of them, and the
native part of a call, for five targets; what an emulator runs is compared in the same way.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from compilers.cross import TARGETS, Emulated, Target, compile_for, compile_native
from fusec.machine import MachineFacts, this_machine, using
from fusec.toolchain.compiler import SEARCHED, bundled_compiler, executables
from support.cpp_bodies import check
from support.cpp_golden import CASES, TERMS, bench_of, emit, filled
from support.paths import ROOT

TESTS = "tests/compiler/targets/cpp/test_text.py"
WHICH = "computes_what_the_reference_does or every_value_of_a_tunable"


def with_compiler(name: str, chosen: str) -> bool:
    """Run the golden kernels with one compiler; say what came of it."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", TESTS, "-q", "-k", WHICH],
        cwd=ROOT,
        env={**os.environ, "CXX": chosen},
        capture_output=True,
        text=True,
        check=False,
    )
    counted = re.findall(r"^\d+ (?:passed|failed).*$|^no tests ran.*$", done.stdout, re.MULTILINE)
    print(f"{name:16} {counted[-1] if counted else 'did not run'}", flush=True)
    if done.returncode:
        print(done.stdout[-3000:])
    print(f"{'':16} {time.monotonic() - started:.0f} s")
    return done.returncode == 0


def for_target(target: Target) -> bool:
    """Compile all golden kernels and the native part for a target, run what can be run."""
    built, ran, failed = 0, 0, []
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder, using(facts_of(target)):
            wrong = attempt(name, partial(build_case, target, name, Path(folder)))
            built += not wrong
            if target.emulator is not None and not wrong:
                wrong = attempt(name, partial(run_case, target, name, Path(folder)))
                ran += not wrong
            failed += wrong
    with tempfile.TemporaryDirectory() as folder:
        part = attempt("the native part", partial(compile_native, target, Path(folder)))
    said = f"{built} of {len(CASES)} kernels built"
    said += f", {ran} run and right" if target.emulator else ", none run"
    said += ", the native part " + ("not built" if part else "built")
    print(f"{target.name:16} {said}", flush=True)
    for line in (*failed, *part):
        print(f"    {line}")
    return not failed


def build_case(target: Target, name: str, folder: Path) -> None:
    """Compile a golden kernel for a target."""
    compile_for(target, emit(CASES[name]()).text, folder)


def run_case(target: Target, name: str, folder: Path) -> None:
    """Run a golden kernel in an emulator and compare with the reference interpreter."""
    case = CASES[name]()
    bench = bench_of(case)
    emulated = Emulated(bench, emit(case), target, folder)
    terms = TERMS.get(name, 0.25)
    check(bench, filled(case, bench, 0), built=emulated, threads=(1,), terms=terms, context=name)  # type: ignore[arg-type]


def facts_of(target: Target) -> MachineFacts:
    """Return what a target's least processor is."""
    arm = target.triple.startswith("aarch64")
    isa = "neon" if arm else "avx2"
    return replace(this_machine(), isa=isa, native=False, streams=not arm, amd=False)


def attempt(name: str, action: Callable[[], object]) -> list[str]:
    """Do something; return what went wrong, in a line."""
    try:
        action()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        lines = [line for line in str(error).splitlines() if "error" in line] or [str(error)]
        return [f"{name}: {lines[0].strip()[:200]}"]
    return []


def main() -> int:
    """Run what is asked for; the exit status says whether all of it is right."""
    parser = argparse.ArgumentParser(prog="make compilers", description=__doc__)
    parser.add_argument("--only", choices=("here", "cross"), help="one of the two halves")
    chosen = parser.parse_args().only
    good = True
    if chosen != "cross":
        path = os.environ.get("PATH", os.defpath)
        found = {name: each for name in SEARCHED[:2] for each in executables(name, path)}
        if bundled_compiler():
            found["ziglang"] = bundled_compiler()
        for name in (*SEARCHED[:2], "ziglang"):
            if name in found:
                good &= with_compiler(name, found[name])
            else:
                print(f"{name:16} not found")
    if chosen != "here" and bundled_compiler():
        for target in TARGETS:
            good &= for_target(target)
    elif chosen != "here":
        print("nothing is built for other machines: pip install ziglang")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
