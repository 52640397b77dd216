"""A kernel as text: what it takes, where each line came from, and what runs it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from fusec.errors import ValueRefused
from fusec.report import SourceLine

if TYPE_CHECKING:
    from fusec.ir.index import Expr


Role = Literal["in", "out", "inout"]


@dataclass(frozen=True)
class Argument:
    """One tensor parameter of a kernel.

    Attributes:
        name: Its name in the source text.
        dtype: Element type in memory.
        shape: Sizes, each an ``Expr`` (constant or over the kernel's symbolic sizes).
        strides: Strides in elements, likewise.
        role: Whether the kernel reads it, writes all of it, or updates it in place.
        device: Where it lives, ``cpu`` or ``cuda``.
        listed: Whether it holds lists without repetition that go with those of other arguments,
            such as the blocks that attention keeps: no other values would do.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    role: Role
    device: str = "cpu"
    listed: bool = False


@dataclass(frozen=True)
class Signature:
    """What a kernel takes: its tensors in order, then its symbolic sizes as int64.

    C++ entry: ``extern "C" int NAME(T0* a0, ..., int64_t s0, ..., int64_t threads)``; it
    returns 0, or the 1-based number of the check that failed (see ``checks``).
    Triton entry: ``def launch(a0, ..., s0, ...)`` in the same file as the ``@triton.jit``
    kernel; tensors in, nothing out.

    Attributes:
        arguments: The tensors, in the order of the parameters.
        sizes: Names of the symbolic sizes, in order.
        checks: What each run-time check means for the user, such as
            ``"index out of range"``; a failing check raises ``IndexError`` or so in the host.
        divisions: The numbers of those checks, from 1, that fail where eager divides by zero.
    """

    arguments: tuple[Argument, ...]
    sizes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    divisions: frozenset[int] = frozenset()

    def failure(self, check: str) -> Exception | None:
        """Return what eager raises where a check fails; None for what is none of the checks."""
        if check not in self.checks:
            return None
        if self.checks.index(check) + 1 in self.divisions:
            return RuntimeError("ZeroDivisionError")  # as ATen words it
        return ValueRefused(check)

    def digest(self) -> str:
        """Return a hash: two kernels with the same digest can stand in for each other."""
        description = [
            [a.name, str(a.dtype), [str(s) for s in a.shape], [str(s) for s in a.strides]]
            + [a.role, a.device]
            for a in self.arguments
        ]
        data = json.dumps(
            [description, list(self.sizes), list(self.checks), sorted(self.divisions)]
        )
        return hashlib.sha256(data.encode()).hexdigest()


@dataclass(frozen=True)
class KernelSource:
    """A generated kernel as text, with where each line came from.

    Attributes:
        name: The kernel's name, unique in its graph.
        target: Its target's name: see ``targets.registry``.
        entry: The symbol (C++) or function (Triton) to call.
        text: The file's text; it stands alone.
        signature: What it takes.
        origins: Kernel line (1-based) to the user's lines it computes.
        read_bytes: Bytes it must read from memory, each input element once; -1 if symbolic.
        written_bytes: Bytes it must write; -1 if symbolic.
        operations: Arithmetic operations an execution; -1 if symbolic.
        summary: A few words: ``pointwise over 4096 x 1024``.
        flags: What its compiler is told beyond what it always is: of the machine that it is for.
        plan: What was decided of its loops, and why: a line each.
        alternatives: What could be asked for instead, in the words of rules about loops.
        strategy: How it is written, to ask for the same at other sizes: see ``Compute``; empty
            where there is no choice.
    """

    name: str
    target: str
    entry: str
    text: str
    signature: Signature
    origins: Mapping[int, tuple[SourceLine, ...]] = field(default_factory=dict)
    read_bytes: int = -1
    written_bytes: int = -1
    operations: int = -1
    summary: str = ""
    flags: tuple[str, ...] = ()
    plan: str = ""
    alternatives: tuple[str, ...] = ()
    strategy: str = ""


class Generated:
    """A kernel's generated source, written when somebody first reads it.

    Of the kernels of a graph many are equal but for names (a model's layers), and only the first
    of them has to be there to build.

    Attributes:
        name: The kernel's name, unique in its graph.
        target: Its target's name.
    """

    def __init__(self, name: str, target: str, write: Callable[[str], KernelSource]) -> None:
        self.name = name
        self.target = target
        self._write = write
        self._sources: dict[str, KernelSource] = {}
        self._lock = threading.Lock()

    @property
    def source(self) -> KernelSource:
        """The source; always the same one."""
        return self._sources.get("") or self.under("")

    def under(self, plan: str) -> KernelSource:
        """Return the source with the loops as a plan has them, in the words of a rule."""
        with self._lock:
            if plan not in self._sources:
                self._sources[plan] = self._write(plan)
            return self._sources[plan]


class Runnable(Protocol):
    """A built kernel: call it with its tensors and its symbolic sizes."""

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Run once. Raises IndexError, ZeroDivisionError... where a check fails."""


def simulation(runnable: Runnable) -> str:
    """Return what stands in for the device that a kernel is meant for; empty if it runs there.

    What simulates a device says so in its ``simulation``. Its times mean nothing.
    """
    return str(getattr(runnable, "simulation", ""))
