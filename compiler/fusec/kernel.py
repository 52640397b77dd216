"""A kernel: its source text, what it takes, and what the user may do with it.

A generated kernel and an edited one take the same path: text, check, build, launch.  The
``Kernel`` is the handle that the user holds; it is the only mutable thing here, and it changes
in two ways only: ``keep`` puts a checked text in use, ``revert`` puts the generated one back.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from fusec.errors import CompileError
from fusec.report import SourceLine, Trial, TuningRun, Verdict
from fusec.tunables import Tunable, read_tunables, set_tunables

if TYPE_CHECKING:
    from fusec.ir.body import Body
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
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    role: Role
    device: str = "cpu"


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


class KernelHost(Protocol):
    """What a kernel needs of the graph it belongs to (``compiled.graph.CompiledGraph``)."""

    def build(self, kernel: Kernel, text: str) -> Runnable:
        """Build ``text`` in place of ``kernel``'s source. Raises CompileError."""

    def check(
        self,
        kernel: Kernel,
        text: str,
        *,
        timed: bool = True,
        trust: bool = False,
        sanitize: bool = False,
    ) -> Verdict:
        """Check ``text`` in a worker, against eager and float64; see ``verify``."""

    def artifact(self, kernel: Kernel, kind: str) -> str:
        """Return a lower form of the text in use; see ``Kernel.artifact``."""

    def tune(
        self,
        kernel: Kernel,
        *,
        budget: float,
        progress: Callable[[TuningRun], None] | None,
        stop: threading.Event | None,
    ) -> TuningRun:
        """Search the plans and the tunables; see ``tune``."""

    def export(self, kernel: Kernel, path: Path, *, form: str) -> Path:
        """Write the text in use as a file that stands alone; see ``Kernel.export``."""


class Kernel:
    """A kernel of a compiled graph, and the text that is in use for it.

    Attributes:
        body: The loop-level IR it was written from: the oracle for checking an edit.
        host: The graph that launches it.
        plan: How its loops run, in the words of a rule, where tuning found better than the
            heuristics' choice; empty where it is theirs.
    """

    def __init__(self, generated: KernelSource | Generated, body: Body, host: KernelHost) -> None:
        self._written = generated
        self.plan = ""
        self.body = body
        self.host = host
        self.last_verdict: Verdict | None = None
        self.tuning: TuningRun | None = None
        self._lock = threading.RLock()
        self._text: str | None = None  # where that is not the generated one
        self._runnable: Runnable | None = None

    @property
    def generated(self) -> KernelSource:
        """The compiler's own source, under the plan in use."""
        return self.variant(self.plan)

    @property
    def name(self) -> str:
        """The kernel's name, as the user types it after ``%%kernel``."""
        return self._written.name

    @property
    def target(self) -> str:
        """The target's name."""
        return self._written.target

    @property
    def signature(self) -> Signature:
        """What the kernel takes; an edit must keep it."""
        return self.generated.signature

    @property
    def source(self) -> str:
        """The text in use."""
        return self.generated.text if self._text is None else self._text

    @property
    def edited(self) -> bool:
        """Whether the text in use differs from the generated one."""
        return self._text is not None and self._text != self.generated.text

    @property
    def state(self) -> Literal["generated", "tuned", "edited"]:
        """What has become of the generated text; tuned is another plan, or values of tunables."""
        if not self.edited:
            return "tuned" if self.plan else "generated"
        return "edited" if self.is_edit(self.source) else "tuned"

    def is_edit(self, text: str) -> bool:
        """Whether a text is more than the generated one with other values of tunables."""
        return _without_values(text) != _without_values(self.generated.text)

    @property
    def tunables(self) -> tuple[Tunable, ...]:
        """The tunables that the text in use declares."""
        return read_tunables(self.source)

    def runnable(self) -> Runnable:
        """Return the built kernel for the text in use, building it at the first call."""
        if self._runnable is None:
            with self._lock:
                if self._runnable is None:
                    self._runnable = self._build()
        return self._runnable

    def _build(self) -> Runnable:
        try:
            return self.host.build(self, self.source)
        except CompileError:
            if self.tuning is None or self.state == "generated":
                raise
            # settings of an earlier session: what is generated builds in any case
            self.plan, self._text, self.tuning = "", None, None
            return self.host.build(self, self.source)

    def pin(self, run: TuningRun) -> None:
        """Start from the winner of an earlier tuning run; to be called before it is built.

        Args:
            run: Its winner is not None, and was checked.
        """
        assert run.winner is not None
        self.plan = run.winner.plan
        self._text = set_tunables(self.generated.text, dict(run.winner.values))
        self.tuning = run

    def share(self, other: Kernel) -> None:
        """Launch the build of another kernel, which is equal to this one but for names.

        Either may be edited; the other one keeps what it has.
        """
        if (
            other is not self
            and self._runnable is None
            and self.state == other.state == "generated"
        ):
            self._runnable = other.runnable()

    def check(
        self, text: str, *, timed: bool = True, trust: bool = False, sanitize: bool = False
    ) -> Verdict:
        """Check ``text`` without using it: build, run in a worker, compare, time.

        Args:
            text: The whole kernel file.
            timed: Whether to time it.
            trust: Whether it may ask of the process what a kernel may not: start threads, keep
                variables between calls, ... Nothing protects the process from it then.
            sanitize: Whether AddressSanitizer and UndefinedBehaviorSanitizer look at it as well,
                where the compiler has them: steps outside of local arrays, memory that was freed,
                overflows. On a GPU it is compute-sanitizer, where that is installed.
        """
        verdict = self.host.check(self, text, timed=timed, trust=trust, sanitize=sanitize)
        self.last_verdict = verdict
        return verdict

    def keep(
        self,
        text: str,
        *,
        verdict: Verdict | None = None,
        trust: bool = False,
        sanitize: bool = False,
    ) -> Verdict:
        """Put ``text`` in use if it passes; otherwise the text in use stays.

        Args:
            text: The whole kernel file.
            verdict: A passing verdict for exactly this text, to save checking it twice.
            trust: As for ``check``.
            sanitize: Likewise.
        """
        if verdict is None or not verdict.ok:
            verdict = self.check(text, trust=trust, sanitize=sanitize)
        if verdict.ok:
            self.use(text)
        return verdict

    def use(self, text: str) -> None:
        """Put ``text`` in use unchecked (stored edits and tuned values that were checked)."""
        runnable = self.host.build(self, text)
        with self._lock:
            self._text = text
            self._runnable = runnable

    def adopt(self, other: Kernel) -> Runnable:
        """Take over what is in use, and built, for an equal kernel."""
        runnable = other.runnable()
        with self._lock:
            self.plan, self._text, self._runnable = other.plan, other.source, runnable
        return runnable

    def revert(self) -> None:
        """Put the text back in use that the compiler's heuristics made."""
        self.use_plan("")

    @property
    def heuristic(self) -> KernelSource:
        """The compiler's own source under the plan that its heuristics choose; never changes."""
        return self.variant("")

    @property
    def can_be_tuned(self) -> bool:
        """Whether there is anything to search."""
        return bool(self.tunables or self.plans)

    @property
    def plans(self) -> tuple[str, ...]:
        """What could be asked for of its loops, in the words of rules; nothing of an edited one."""
        return self.heuristic.alternatives if self.state != "edited" else ()

    def variant(self, plan: str) -> KernelSource:
        """Return the source with the loops as a plan has them.

        Args:
            plan: One of ``heuristic.alternatives``; empty for the heuristics' own choice.
        """
        if isinstance(self._written, Generated):
            return self._written.under(plan)
        assert not plan, "a text that is given has one plan"
        return self._written

    def use_plan(self, plan: str, values: Mapping[str, int] | None = None) -> None:
        """Put a plan in use, unchecked, with other values of its tunables if any are given."""
        before, self.plan = self.plan, plan
        try:
            self.use(set_tunables(self.generated.text, values or {}))
        except BaseException:
            self.plan = before
            raise

    def text_of(self, trial: Trial) -> str:
        """Return the text that a tuning run tried."""
        known = self.source if trial.plan == self.plan else self.variant(trial.plan).text
        return set_tunables(known, dict(trial.values))

    def use_trial(self, trial: Trial) -> None:
        """Put in use what a tuning run tried, unchecked."""
        if trial.plan == self.plan:
            self.use(self.text_of(trial))
        else:
            self.use_plan(trial.plan, dict(trial.values))

    def with_tunables(self, values: Mapping[str, int]) -> str:
        """Return the text in use with other tunable values; nothing is put in use."""
        return set_tunables(self.source, values)

    def tune(
        self,
        budget: float = 10.0,
        progress: Callable[[TuningRun], None] | None = None,
        stop: threading.Event | None = None,
    ) -> TuningRun:
        """Search plans and tunables for at most ``budget`` seconds and put the best in use.

        Args:
            budget: Seconds.
            progress: Called after each trial, between measurements, with the run so far.
            stop: Set it to end the search; the best so far is kept.
        """
        self.tuning = self.host.tune(self, budget=budget, progress=progress, stop=stop)
        return self.tuning

    def artifact(self, kind: str) -> str:
        """Return a lower form of the text in use.

        Args:
            kind: One of its target's ``artifacts``: ``asm`` for C++; ``ttir``, ``ttgir``, ``llir``,
                ``ptx``, ``sass`` (NVIDIA) or ``amdgcn`` (AMD) for Triton, which needs no GPU.

        Raises:
            FusecError: There is no such form of this kernel; the message says which there are.
        """
        return self.host.artifact(self, kind)

    def export(self, path: str | Path, *, form: str = "file") -> Path:
        """Write the text in use as a file that runs without fuselab.

        Args:
            path: Where; ``.cpp`` or ``.py``.
            form: ``file`` for the kernel and a function that calls it; ``library`` for a
                ``torch.library`` operator, ``fuselab::NAME``, which ``torch.compile`` understands;
                ``export/forms.py`` has them all.

        Returns:
            The path written.

        Raises:
            BadOption: There is no such form.
            FusecError: The suffix does not fit, the kernel cannot be an operator, or the file
                cannot be written.
        """
        return self.host.export(self, Path(path), form=form)

    def __repr__(self) -> str:
        state = "edited" if self.edited else "generated"
        return f"<Kernel {self.name} ({self.target}, {state}): {self.generated.summary}>"


def _without_values(text: str) -> str:
    return set_tunables(text, dict.fromkeys((t.name for t in read_tunables(text)), 0))
