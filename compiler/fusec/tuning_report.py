"""What a tuning run tried and found, as values."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.report import Timing


@dataclass(frozen=True)
class Trial:
    """One configuration that a tuning run tried.

    Attributes:
        values: Tunable name to value.
        timing: None where it failed or was left out.
        error: Why it failed; empty otherwise.
        note: Why it was left out, or which trial it is equal to; empty otherwise.
        plan: How the loops run, in the words of a rule, where that is not the heuristics' choice.
    """

    values: tuple[tuple[str, int], ...]
    timing: Timing | None
    error: str = ""
    note: str = ""
    plan: str = ""

    def __str__(self) -> str:
        words = [self.plan] if self.plan else []
        words += [f"{name}={value}" for name, value in self.values]
        return " ".join(words) or "as generated"


@dataclass(frozen=True)
class TriedPlan:
    """How a kernel's loops ran in some trials of a tuning run.

    Attributes:
        name: What was asked for, in the words of a rule; empty for the heuristics' own choice.
        digest: Of the kernel's text, its tunables aside: a name may mean another text one day.
        decisions: What was decided of the loops, and why: a line each.
    """

    name: str
    digest: str
    decisions: tuple[str, ...] = ()


@dataclass(frozen=True)
class TuningRun:
    """A whole tuning run, or its state so far.

    Attributes:
        kernel: The kernel's name.
        trials: In the order tried; the first is the configuration it started from.
        best: Index into ``trials`` of the winner, or None while nothing was measured.
        total: How many configurations the search means to try.
        eager: Timing of eager for the same work, or for the whole graph, or None.
        eager_is_whole: Whether ``eager`` is of the whole graph, of which the kernel is a part.
        stopped: ``""`` while running, else ``finished``, ``budget``, ``stopped``, ``stored``.
        seconds: Time spent.
        budget: Seconds that the search may take; 0 where nobody knows.
        checked: What the check of the winner found; empty where the start was kept.
        plans: The plans of the loops that were tried, the one in use at the start first.
        picked: Whether ``best`` is what was put in use since, not the search's own choice.
    """

    kernel: str
    trials: tuple[Trial, ...]
    best: int | None
    total: int
    eager: Timing | None
    stopped: str
    seconds: float
    eager_is_whole: bool = False
    budget: float = 0.0
    checked: str = ""
    plans: tuple[TriedPlan, ...] = ()
    picked: bool = False

    @property
    def winner(self) -> Trial | None:
        """The trial whose values are in use, or None while nothing was measured."""
        return None if self.best is None else self.trials[self.best]

    def plan(self, name: str) -> TriedPlan | None:
        """Return what is known of a plan that was tried."""
        return next((plan for plan in self.plans if plan.name == name), None)

    def plan_reasons(self) -> tuple[str, ...]:
        """Return how the winner's loops run otherwise than at the start: a line each, with why."""
        if self.winner is None or not self.plans or self.winner.plan == self.plans[0].name:
            return ()
        start, mine = self.plans[0].decisions, self.plan(self.winner.plan)
        now = mine.decisions if mine is not None else ()
        return (
            *(f"now {line}" for line in now if line not in start),
            *(f"before {line}" for line in start if line not in now),
        )
