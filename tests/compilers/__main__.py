"""``make compilers``: the golden kernels with every C++ compiler found, and for other machines.

Each kernel, as it is written and with every end of its tunables, is built by each compiler, run
with one, two and three threads and compared with the reference interpreter.  Then zig compiles all
kernels, and the native part of a call, for five targets; what an emulator runs is compared in the
same way.  What is not there is said and left out; what is there has to be right.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import Executor, ThreadPoolExecutor

from compilers.cross import TARGETS, for_target
from compilers.here import with_compiler
from fusec.toolchain.compiler import SEARCHED, bundled_compiler, executables
from support.cpp_golden import CASES


def here(pool: Executor) -> bool:
    """Run the golden kernels with every compiler of this machine."""
    good = True
    path = os.environ.get("PATH", os.defpath)
    found = {name: each for name in SEARCHED[:2] for each in executables(name, path)[:1]}
    if bundled_compiler():
        found["ziglang"] = bundled_compiler()
    for name in (*SEARCHED[:2], "ziglang"):
        if name not in found:
            print(f"{name:16} skipped: it is not here", flush=True)
            continue
        started = time.monotonic()
        outcome = with_compiler(found[name], pool)
        said = f"{outcome.right} right"
        if outcome.refused:
            said += f", {outcome.refused} of half precision left out: it has no _Float16"
        _say(name, said, outcome.failed, started)
        good &= not outcome.failed
    return good


def elsewhere(pool: Executor) -> bool:
    """Build the golden kernels and the native part for other machines."""
    if not bundled_compiler():
        print("other machines: skipped, since ziglang is not here")
        return True
    good = True
    for target in TARGETS:
        started = time.monotonic()
        found = for_target(target, pool)
        said = f"{found.built} of {len(CASES)} kernels built"
        if target.emulator is not None:
            said += f", {found.right} run and right"
        elif target.emulators:
            said += f", none run: no {target.emulators[0]} here"
        said += ", the native part " + ("built" if found.native else "not built")
        _say(target.name, said, found.failed, started)
        good &= not found.failed
    return good


def _say(name: str, said: str, failed: tuple[str, ...], started: float) -> None:
    wrong = f", {len(failed)} WRONG" if failed else ""
    print(f"{name:16} {said}{wrong} ({time.monotonic() - started:.0f} s)", flush=True)
    for line in failed:
        print(f"    {line}", flush=True)


def main() -> int:
    """Run what is asked for; the exit status says whether all of it is right."""
    parser = argparse.ArgumentParser(prog="make compilers", description=__doc__)
    parser.add_argument("--only", choices=("here", "cross"), help="one of the two halves")
    only = parser.parse_args().only
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        good = only == "cross" or here(pool)
        good &= only == "here" or elsewhere(pool)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
