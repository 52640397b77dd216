"""What was tried with a kernel in this panel: texts, verdicts, times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fusec.report import Timing, Verdict
from fusec.tunables import read_tunables
from fuselab.display import noise

MOST_BARS = 8


@dataclass(frozen=True)
class Attempt:
    """A text that was checked.

    Attributes:
        number: From 1, in the order tried.
        text: The whole kernel file.
        verdict: What the check said.
        label: What is different in it: ``ROWS=4``, or ``edit 3``.
        when: Seconds since the epoch.
    """

    number: int
    text: str = field(repr=False)
    verdict: Verdict
    label: str
    when: float

    @property
    def line(self) -> str:
        """The attempt in one line, for a list."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.when))
        if not self.verdict.ok:
            return f"{clock}  {self.label}: refused ({self.verdict.stage})"
        line = f"{clock}  {self.label}: passed"
        # Each has run beside the generated text; their times are of different runs.
        if self.verdict.timing is not None and self.verdict.generated is not None:
            times = self.verdict.timing, self.verdict.generated
            line += f", {noise.compared(*times, 'generated')}"
        return line


def attempt(known: list[Attempt], text: str, verdict: Verdict, generated: str) -> list[Attempt]:
    """Return the attempts with one more; the same text checked again takes its old place's label.

    Args:
        known: Those so far, the oldest first.
        text: What was checked.
        verdict: What the check said.
        generated: The generated text, which the label tells from.
    """
    number = known[-1].number + 1 if known else 1
    same = next((each.label for each in known if each.text == text), "")
    label = same or label_of(text, generated, number)
    return [*known, Attempt(number, text, verdict, label, time.time())]


def label_of(text: str, generated: str, number: int) -> str:
    """Say how a text differs from the generated one, in a word or two."""
    if text == generated:
        return "generated"
    before = {t.name: t.value for t in read_tunables(generated)}
    changed = [
        f"{t.name}={t.value}" for t in read_tunables(text) if before.get(t.name, t.value) != t.value
    ]
    return " ".join(changed) if changed else f"edit {number}"


def bars(known: list[Attempt]) -> list[tuple[str, Timing, Timing]]:
    """Return what to draw: each edit that passed, its time and the generated one's beside it."""
    latest: dict[str, tuple[Timing, Timing]] = {}
    for each in known:
        own, generated = each.verdict.timing, each.verdict.generated
        if each.verdict.ok and own is not None and generated is not None:
            latest.pop(each.label, None)
            latest[each.label] = own, generated
    latest.pop("generated", None)
    return [(label, *times) for label, times in latest.items()][-MOST_BARS:]
