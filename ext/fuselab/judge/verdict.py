"""What a judge says of an answer: frozen, in words and as data."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import Any

from fusec.inspect.glossary import explained
from fusec.inspect.terminal import fitted, terminal_width

# In this order; an answer is at the first that it does not pass.
STAGES = ("rules", "compile", "runs", "right", "counts", "speed", "passed")

SHARE = "share"  # what a finding about the speed of a copy is called


@dataclass(frozen=True)
class AnswerFinding:
    """One thing that was asked of the answer.

    Attributes:
        what: Such as ``kernels``, ``bytes``, ``share`` of a copy's speed.
        found: What it is, in words.
        wanted: What it may be, in words.
        ok: Whether it is.
        value: What was counted or measured, as a number; None where it is none.
    """

    what: str
    found: str
    wanted: str
    ok: bool
    value: float | None = None


@dataclass(frozen=True)
class AnswerVerdict:
    """The outcome of judging an answer.

    Attributes:
        task: The task's name.
        ok: Whether everything that is asked holds.
        stage: Where it ended: one of ``STAGES``.
        reason: The first thing that is wrong and what to do about it; how good it is otherwise.
        score: From 0 to 1: nothing for a wrong answer, part of it for one that is right and
            keeps more of the limits than what one began with.
        line: The line of the answer at fault, where there is one.
        findings: What was looked at, in order.
        seconds: How long judging took.
        next_step: What the student may do next, such as asking for a hint; empty for nothing.
    """

    task: str
    ok: bool
    stage: str
    reason: str
    score: float = 0.0
    line: int | None = None
    findings: tuple[AnswerFinding, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    next_step: str = ""

    def data(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)

    @property
    def title(self) -> str:
        """The verdict in one line."""
        if self.ok:
            return f"{self.task}: passed. {self.reason}".strip()
        where = f" (line {self.line})" if self.line else ""
        head = "not yet" if self.stage in {"counts", "speed"} else "no"
        return f"{self.task}: {head}{where}: {self.reason}"

    def __str__(self) -> str:
        lines = [self.title]
        for each in self.findings:
            mark = "+" if each.ok else "-"
            lines.append(f"  {mark} {each.what}: {each.found} (wanted: {each.wanted})")
        if self.next_step:
            lines.append(f"  {self.next_step}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        color = "#1a7f37" if self.ok else "#b35900" if self.score else "#b42318"
        left = ' style="text-align: left"'
        rows = "".join(
            f"<tr><td>{'&#10003;' if each.ok else '&#10007;'}</td>"
            f"<td{left}>{html.escape(each.what)}</td><td{left}>{html.escape(each.found)}</td>"
            f"<td{left}>wanted: {html.escape(each.wanted)}</td></tr>"
            for each in self.findings
        )
        table = f"<table>{rows}</table>" if rows else ""
        title = html.escape(self.title)
        style = f"border-left: 4px solid {color}; padding-left: 8px"
        # Words in the table alone: a title is a sentence, and says what it means.
        words = explained(f.what for f in self.findings if f.what != "results")
        follows = html.escape(self.next_step)
        follows = follows and f'<div style="opacity: 0.7">{follows}</div>'
        shown = f'<div style="{style}">{title}{table}{follows}{words}</div>'
        return {"text/plain": fitted(str(self), terminal_width()), "text/html": shown}


__all__ = ["SHARE", "STAGES", "AnswerFinding", "AnswerVerdict"]
