"""Which of a package's binaries this processor runs: by what numpy says that it can do."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import import_module

import numpy

from .errors import CannotRun
from .json_text import Reader

SYSTEM = sys.platform  # what a package calls the system that its binaries are for
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# What a level of x86-64 asks for beside those below it, in numpy's words.
LEVELS = {
    "x86-64-v4": ("AVX512F", "AVX512CD", "AVX512VL", "AVX512BW", "AVX512DQ"),
    "x86-64-v3": ("AVX2", "FMA3", "F16C"),
    "x86-64": (),
    "aarch64": (),
}


def machine() -> str:
    """Return the processor's family: ``x86_64``, ``aarch64``."""
    name = platform.machine()
    return _MACHINES.get(name.lower(), name)


def features() -> frozenset[str]:
    """Return what this processor can do, in numpy's words."""
    # numpy before 2 has it under another name
    home = "numpy._core" if hasattr(numpy, "_core") else "numpy.core"
    known: dict[str, bool] = import_module(f"{home}._multiarray_umath").__cpu_features__
    return frozenset(name for name, there in known.items() if there)


def choose(binaries: Sequence[Reader]) -> Reader:
    """Return the first of a package's binaries that runs here; they come best first.

    Raises:
        CannotRun: None does; the message says what each one needs.
    """
    mine, known = machine(), features()
    problems = []
    for each in binaries:
        lacks = [name for name in each.texts("features") if name not in known]
        if each.text("system") != SYSTEM or each.text("machine") != mine:
            problems.append(
                f"{each.text('name')} is for {each.text('machine')} {each.text('system')}"
            )
        elif lacks:
            problems.append(f"{each.text('name')} needs {', '.join(lacks)}")
        else:
            return each
    said = "; ".join(problems) or "it has none"
    raise CannotRun(
        f"no binary of the package runs on this {mine} {SYSTEM} machine: {said}",
        "package it again with binaries for it",
    )


__all__ = ["LEVELS", "choose", "features", "machine"]
