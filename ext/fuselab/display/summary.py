"""What a result has to show, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fusec.report import (
    ExternCall,
    FusionDecision,
    GraphBreak,
    Guard,
    Recompile,
    SourceLine,
    Timing,
    Verdict,
)
from fuselab.display import noise, words
from fuselab.display.bounds import Traffic, bound
from fuselab.display.kernel_text import extent_of
from fuselab.display.source_lines import LineView

if TYPE_CHECKING:
    from fusec.timing.line_counts import LineCounts

HEAD_LINES = 24


@dataclass(frozen=True)
class KernelView:
    """A kernel as a result shows it.

    Attributes:
        name: What the user types after ``%%kernel``.
        target: The name of its target.
        state: ``generated``, ``tuned`` or ``edited``.
        summary: A few words on what it computes.
        lines: The cell lines it computes: ``lines 3-5``.
        moved: Bytes it must read and write; -1 where unknown.
        time: Of the kernel alone.
        source: The text in use.
        origins: Kernel line to cell lines, both 1-based; empty for an edited text.
        counts: What was seen of its lines while it ran; None where nobody looked.
    """

    name: str
    target: str
    state: str
    summary: str
    lines: str
    moved: int
    time: Timing | None
    source: str = field(repr=False)
    origins: Mapping[int, tuple[SourceLine, ...]] = field(default_factory=dict, repr=False)
    counts: LineCounts | None = field(default=None, repr=False)

    @property
    def head(self) -> list[str]:
        """The first lines of the kernel itself, below what it includes and declares."""
        extent = extent_of(self.source, self.target)
        return self.source.splitlines()[extent.first - 1 : extent.last][:HEAD_LINES]


@dataclass(frozen=True)
class Summary:
    """Everything that the static forms of a result show, frozen at one moment.

    Attributes:
        models: What a model of the GPU says of each kernel, where there is none to measure on.
        spare: The name to give to ``--out``, and the bytes that are then not written.
        called: Seconds of the calls of ATen; None where they were not timed alone.
        other_calls: Seconds of those that multiply no matrices, by name.
        early: Whether it was timed while the native part of calls was still being built.
        awaited: Whether it is timed again, and shown in place, when that is there.
    """

    name: str
    filename: str
    kernels: tuple[KernelView, ...]
    graphs: int
    eager: Timing | None
    fused: Timing | None
    others: Mapping[str, Timing]
    verdict: Verdict | None
    breaks: tuple[GraphBreak, ...]
    externs: tuple[ExternCall, ...]
    fallbacks: tuple[str, ...]
    guards: tuple[Guard, ...]
    recompiles: tuple[Recompile, ...]
    kept: tuple[str, ...]
    fusions: tuple[FusionDecision, ...]
    stages: tuple[tuple[str, float], ...]
    plan: str
    notes: tuple[str, ...]
    device: str
    pending: tuple[str, ...] = ()
    traffic: Traffic | None = None
    lines: tuple[LineView, ...] = ()
    models: tuple[str, ...] = ()
    spare: tuple[str, int] | None = None
    called: float | None = None
    other_calls: Mapping[str, float] = field(default_factory=dict)
    early: bool = False
    awaited: bool = False

    @property
    def main(self) -> KernelView | None:
        """The kernel to read first: the slowest, or where times are not known what moves most."""
        timed = all(kernel.time for kernel in self.kernels)
        cost = {k.name: k.time.median if timed and k.time else float(k.moved) for k in self.kernels}
        return max(self.kernels, key=lambda kernel: cost[kernel.name], default=None)

    @property
    def reading(self) -> list[KernelView]:
        """The kernels in the order in which one reads them: the main one, then as they run."""
        return sorted(self.kernels, key=lambda kernel: kernel is not self.main)

    @property
    def bound(self) -> str:
        """What bounds the cell, in a sentence."""
        parts = {k.name: k.time for k in self.kernels if k.time}
        calls = [call.name for call in self.externs]
        if self.early:  # most of what was timed may be the slower calls
            return ""
        return bound(
            self.traffic, self.fused, parts, calls, self.eager, self.called, self.other_calls
        )

    @property
    def busy(self) -> str:
        """That the machine was noisy, or that a kernel alone took longer than all of the cell."""
        parts = {k.name: k.time for k in self.kernels if k.time}
        times = [self.eager, self.fused, *parts.values()]
        return "; ".join(filter(None, [noise.part_note(self.fused, parts), noise.busy_note(times)]))

    @property
    def next(self) -> list[tuple[str, str]]:
        """What one may do next: what for, and what to type."""
        found = []
        if self.filename and not self.filename.startswith("<fuse "):  # a function has no options
            names = [self.main.name] if self.main else []
            found = [("edit", f"fuselab.edit({name!r}, text)") for name in names]
            found += [] if self.models else [("tune", f"fuselab.tune({n!r})") for n in names]
            return [*found, ("help", "help(fuselab)")] if found else []
        if self.main:
            found = [
                ("edit", f"%%fuse --edit {self.main.name}"),
                ("tune", "%%fuse --tune 10"),
            ]
            found = found[:1] if self.models else found
            found.append(("panel", f"%fuse_report {self.name} --panel"))
        if self.pending and not self.kernels:
            return [("its kernels, once it was called", f"%fuse_report {self.name}")]
        if self.spare is not None:
            name, count = self.spare
            found.append((f"write {words.size(count)} less", f"%%fuse --out {name}"))
        return [*found, ("help", "%%fuse?")] if found else []

    @property
    def peers(self) -> list[str]:
        """What another compiler's form of the cell takes, and how the fused one compares."""
        found = []
        for name, timing in self.others.items():
            title = words.peer_title(name)
            known = self.fused if not self.early else None
            said = noise.compared(known, timing, title) if known else ""
            found.append(f"{title}: {words.spread(timing)}" + (f"; fused {said}" if said else ""))
        return found

    @property
    def max_error(self) -> float | None:
        """Largest error against eager over all outputs; None where nothing was compared."""
        return self.verdict.max_error if self.verdict and self.verdict.outputs else None

    @property
    def to_mend(self) -> tuple[GraphBreak, ...]:
        """The graph breaks that somebody could do something about."""
        return tuple(item for item in self.breaks if not item.expected)

    @property
    def pauses(self) -> str:
        """The others in a sentence: what runs in Python, as it should."""
        found = [item for item in self.breaks if item.expected]
        said = [f"{located(item.reason, item.where, self)}" for item in found]
        return f"as it should: {'; '.join(said)}" if said else ""

    @property
    def facts(self) -> list[str]:
        """How many kernels there are, what else there is, and how fast it is."""
        parts = [words.count(len(self.kernels), "kernel")]
        if self.externs:
            parts.append(words.count(len(self.externs), "extern call"))
        if self.to_mend:
            parts.append(words.count(len(self.to_mend), "graph break"))
        if self.eager and self.fused:
            faster = noise.against(self.fused, self.eager)
            eager, fused = words.duration(self.eager.median), words.duration(self.fused.median)
            said = words.early(self.awaited) if self.early else faster
            parts.append(f"eager {eager}, fused {fused} ({said})")
        return parts

    @property
    def headline(self) -> str:
        """What a reader wants to know first, in one line."""
        parts = self.facts
        if self.verdict is not None:
            word = "checked" if self.verdict.ok else "WRONG"
            found = f", {words.error_line(self.verdict)}" if self.verdict.outputs else ""
            parts.append(f"{word}{found}" if self.verdict.ok else f"{word}: {self.verdict.reason}")
        return "; ".join(parts)


def located(text: str, place: SourceLine | None, summary: Summary) -> str:
    """Return a text with the place that it is about, if that is known."""
    spot = words.where(place, summary.filename)
    return f"{text} ({spot})" if spot else text


__all__ = ["HEAD_LINES", "KernelView", "Summary", "located"]
