"""A kernel: its source text, what it takes, and what the user may do with it.

A generated kernel and an edited one take the same path: text, check, build, launch.  The
``Kernel`` is the handle that the user holds; it is the only mutable thing here, and it changes
in two ways only: ``keep`` puts a checked text in use, ``revert`` puts the generated one back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from fusec.errors import CompileError
from fusec.kernel_source import Generated, KernelSource, Runnable, Signature
from fusec.report import Verdict
from fusec.tunables import Tunable, read_tunables, set_tunables
from fusec.tuning_report import Trial, TuningRun

if TYPE_CHECKING:
    from fusec.ir.body import Body


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
        self._searched = ""  # the edit that the latest search was of, without its values
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
            self._mark_in_use()

    def _mark_in_use(self) -> None:
        """Let the latest search say which of its trials is in use now, or that none is."""
        run = self.tuning
        if run is None:
            return
        # Of another text the search has measured nothing.
        tunables = self.tunables if self._edit() == self._searched else ()
        values = {tunable.name: tunable.value for tunable in tunables}
        places = (
            place
            for place, trial in enumerate(run.trials)
            if trial.timing is not None and trial.plan == self.plan and dict(trial.values) == values
        )
        best = next(places, None)
        if best != run.best:
            self.tuning = replace(run, best=best, picked=True)

    def _edit(self) -> str:
        """Return the edit in use without values of tunables; empty where there is none."""
        return _without_values(self.source) if self.state == "edited" else ""

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
        edit = self._edit()
        run = self.host.tune(self, budget=budget, progress=progress, stop=stop)
        self.tuning, self._searched = run, edit
        return run

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
