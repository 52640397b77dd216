"""The golden kernels with one of the compilers found here, run and compared with the reference."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from compilers.cross import attempt
from fusec.kernel_source import KernelSource
from fusec.toolchain.build import build
from fusec.tunables import read_tunables, set_tunables
from support.cpp_bodies import Built, Known, check, references
from support.cpp_golden import CASES, TERMS, bench_of, emit, filled

_HALF = 'extern "C" int probe(const _Float16* x) { return x[0] > 1; }\n'


@dataclass
class Found:
    """What became of the golden kernels with a compiler.

    Attributes:
        right: How many compute what the reference interpreter does.
        refused: Those that the compiler has no type for: clang 14 knows no ``_Float16``.
        failed: Of each other one what went wrong, in a line.
    """

    right: int = 0
    refused: int = 0
    failed: tuple[str, ...] = ()


def texts_of(name: str) -> tuple[str, ...]:
    """Return the texts of a golden kernel: as it is written, and every end of its tunables."""
    text = emit(CASES[name]()).text
    ends = (
        set_tunables(text, {tunable.name: value})
        for tunable in read_tunables(text)
        for value in (tunable.choices[0], tunable.choices[-1])
    )
    return tuple(dict.fromkeys((text, *ends)))


@contextmanager
def chosen(compiler: str) -> Iterator[None]:
    """Have kernels built by a compiler."""
    before = os.environ.get("CXX")
    os.environ["CXX"] = compiler
    try:
        yield
    finally:
        if before is None:
            del os.environ["CXX"]
        else:
            os.environ["CXX"] = before


def with_compiler(compiler: str, pool: Executor, names: Iterable[str] = CASES) -> Found:
    """Build golden kernels with a compiler, run them on one to three threads, and compare.

    Args:
        compiler: Its path.
        pool: Where texts are built.
        names: Which kernels.
    """
    found = Found()
    with chosen(compiler):
        halves = not attempt("", lambda: build(_HALF))
        texts = {name: texts_of(name) for name in names}
        flat = [(name, text) for name, each in texts.items() for text in each]
        wanted = [(n, t) for n, t in flat if halves or "_Float16" not in t]
        found.refused = len(flat) - len(wanted)
        made = pool.map(lambda each: attempt(each[0], lambda: build(each[1])), wanted)
        for (name, text), wrong in zip(wanted, made, strict=True):
            wrong = wrong or attempt(name, lambda n=name, t=text: run(n, t))  # type: ignore[misc]
            found.right += not wrong
            found.failed += tuple(wrong)
    return found


def run(name: str, text: str) -> None:
    """Run a golden kernel's text and compare it with the reference interpreter."""
    case = CASES[name]()
    bench = bench_of(case)
    built = Built(bench, KernelSource(**{**vars(emit(case)), "text": text}))
    terms = TERMS.get(name, 0.25)
    for seed in (0, 1):
        tensors, known = known_of(name, seed)
        check(
            bench, tensors, built=built, threads=(1, 2, 3), terms=terms, context=name, known=known
        )


@cache
def known_of(name: str, seed: int) -> tuple[dict[str, torch.Tensor], Known]:
    """Return a golden kernel's inputs, and what the reference makes of them, for all compilers."""
    case = CASES[name]()
    bench = bench_of(case)
    tensors = filled(case, bench, seed)
    return tensors, references(bench, tensors)
