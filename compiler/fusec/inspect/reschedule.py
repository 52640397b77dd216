"""Another schedule in use: parts of compiled graphs under the user's own rules, checked first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fusec.build.queue import BuildQueue
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.errors import FusecError
from fusec.ir.program import Program
from fusec.options import Options
from fusec.pipeline import Compilation, run_stages
from fusec.report import Stage, Verdict
from fusec.schedule.overrides import Overrides
from fusec.schedule.rules import UnknownComputation, applies, known_names, overrides_of
from fusec.tune.asked import choose_products, pin


class ScheduleRefused(FusecError):
    """A schedule that does not compute what eager does: it is not put in use."""


@dataclass(frozen=True)
class Rescheduled:
    """What became of new rules.

    Attributes:
        kernels: The kernels that are now in use, by name, of all graphs.
        changed: Of how many parts the schedule is another one now.
        lost: Kernels whose edits went with them; reverting the rules brings them back.
        verdicts: Of each graph of which something changed, against eager and float64.
    """

    kernels: tuple[str, ...]
    changed: int
    lost: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


def compile_again(
    graph: CompiledGraph,
    part: CompiledPart,
    options: Options,
    overrides: Overrides | None = None,
    *,
    taken: Sequence[str] = (),
    keep: bool = False,
) -> tuple[CompiledPart, list[Stage]]:
    """Compile a part once more, under other options or overrides; what is in use stays.

    Args:
        graph: Whose part it is.
        part: What was compiled.
        options: How to compile.
        overrides: What is wanted beside the options' own rules, and wins over them.
        taken: Kernel names that are in use elsewhere.
        keep: Whether it is to keep the inputs of its calls.

    Returns:
        The part, built, and its stages.

    Raises:
        CompileError: A kernel of it does not compile.
    """
    queue = BuildQueue()
    try:
        state = Compilation(
            part.state.module,
            options,
            set(taken),
            overrides=overrides or Overrides(),
            updated=part.state.updated,
            saved=part.state.saved,
            written=queue.begin,
            choose_products=choose_products,
        )
        stages = run_stages(state)
        other = CompiledPart(part.kind, state, graph, keep=keep)
        other.epilogue = part.epilogue
        other.build(queue, pin=pin)
    finally:
        queue.close()
    return other, stages


def check_rules(graphs: Sequence[CompiledGraph], rules: Sequence[str]) -> None:
    """See to it that every rule is about something that one of the graphs computes.

    Raises:
        UnknownComputation: One is not; the message says what there is.
    """
    parts = [part.state.program for graph in graphs for part in graph.parts]
    programs = [program for program in parts if program is not None]
    for rule in rules:
        if not any(applies(program, rule) for program in programs):
            raise UnknownComputation(rule, [n for p in programs for n in known_names(p)])


def reschedule(graphs: Sequence[CompiledGraph], options: Options, before: Options) -> Rescheduled:
    """Put the rules of ``options`` in use for every part that they are about.

    A part under new rules is compiled beside the one in use, takes its place, and gives it back if
    the graph is no longer right. Where no rule is about a part it runs as it was first compiled,
    with the edits that its kernels had.

    Args:
        graphs: Of one compiled function; each has run with its inputs kept.
        options: With the new rules.
        before: With the rules in use.

    Returns:
        What became of it.

    Raises:
        ScheduleRefused: The new kernels compute something else; all is as it was.
        NoInputs: A graph has not run with its inputs kept.
        CompileError: A kernel does not compile.
    """
    done: list[tuple[CompiledGraph, CompiledPart, CompiledPart]] = []
    lost: list[str] = []
    verdicts: list[Verdict] = []
    try:
        for graph in graphs:
            with graph.lock:
                changed = _reschedule_graph(graphs, graph, options, before)
                done += [(graph, old, new) for old, new in changed]
                lost += [name for old, new in changed for name in _lost(old, new)]
                if changed:
                    verdict = graph.verify()
                    verdicts.append(verdict)
                    if not verdict.ok:
                        raise ScheduleRefused(verdict.reason)
    except BaseException:
        for graph, old, _ in reversed(done):
            graph.exchange(old)
        raise
    kernels = tuple(kernel.name for graph in graphs for kernel in graph.kernels)
    return Rescheduled(kernels, len(done), tuple(lost), tuple(verdicts))


def _reschedule_graph(
    graphs: Sequence[CompiledGraph], graph: CompiledGraph, options: Options, before: Options
) -> list[tuple[CompiledPart, CompiledPart]]:
    found: list[tuple[CompiledPart, CompiledPart]] = []
    try:
        for part in list(graph.parts):
            program = part.state.program
            if program is None:
                continue
            wanted = _overrides(program, options)
            if wanted == _overrides(program, before):
                continue
            first = graph.first_of(part)
            if wanted == _overrides(program, first.state.options):
                new, stages = first, None
            else:
                taken = [k.name for g in graphs for k in g.kernels if k.name not in part.kernels]
                with torch.no_grad():
                    new, stages = compile_again(
                        graph, part, _own(part, options), taken=taken, keep=graph.keep
                    )
                _carry_edits(part, new)
            graph.exchange(new, stages)
            found.append((part, new))
    except BaseException:
        for old, _ in reversed(found):
            graph.exchange(old)
        raise
    return found


def _overrides(program: Program, options: Options) -> Overrides:
    return overrides_of(program, options.apart, options.together, options.loops)


def _own(part: CompiledPart, options: Options) -> Options:
    """Return a part's options with other rules: its name and target stay as they were."""
    return replace(
        part.state.options, apart=options.apart, together=options.together, loops=options.loops
    )


def _carry_edits(old: CompiledPart, new: CompiledPart) -> None:
    """Let kernels that stay as they were stay as they were edited."""
    for name, kernel in new.kernels.items():
        before = old.kernels.get(name)
        same = before is not None and before.heuristic.text == kernel.heuristic.text
        if before is not None and same and before.state != "generated":
            new.link(name, kernel.adopt(before))


def _lost(old: CompiledPart, new: CompiledPart) -> list[str]:
    return [
        name
        for name, kernel in old.kernels.items()
        if kernel.state != "generated"
        and (name not in new.kernels or new.kernels[name].state == "generated")
    ]


__all__ = ["Rescheduled", "ScheduleRefused", "check_rules", "compile_again", "reschedule"]
