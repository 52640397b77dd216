"""What a call will become, said before anything is built: ``fusec.predict(function, *args)``.

The pipeline is run up to the kernels' texts, by the code that compiles; nothing is built and no
kernel runs.  What is said is a value: of the same function compiled in earnest it is the same,
which the tests hold (``prediction`` reads it off either).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from fusec.capture.dynamo.side_effects import Noted
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.inspect.explain import bytes_text
from fusec.inspect.sections import Sectioned
from fusec.ir.body import Buffer
from fusec.ir.program import Compute, Extern
from fusec.kernel import Kernel
from fusec.kernel_source import Argument
from fusec.lower.calls import label_of
from fusec.report import GraphBreak, Guard, Recompile, SourceLine, counted

UNKNOWN = -1  # bytes that depend on a symbolic size
VERSIONS = "used again as long as what one of its versions asks for holds; they ask that"


@dataclass(frozen=True)
class PredictedKernel:
    """A kernel that will be generated.

    Attributes:
        name: As it will be called.
        operators: What is in it, as the user called it: ``softmin``, ``gelu``.
        summary: Its loops: ``pointwise over 4096 x 1024``.
        reads: The tensors that it reads: name, sizes and type.
        writes: Those that it writes, likewise; one that is updated stands in both.
        read_bytes: What it must read, each element once; -1 if symbolic.
        written_bytes: What it must write, likewise.
        operations: Arithmetic operations; -1 if symbolic.
        lines: The user's lines that it computes, in order.
    """

    name: str
    operators: tuple[str, ...]
    summary: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    read_bytes: int
    written_bytes: int
    operations: int
    lines: tuple[SourceLine, ...] = ()

    def __str__(self) -> str:
        moved = f"reads {size_text(self.read_bytes)}, writes {size_text(self.written_bytes)}"
        return f"kernel {self.name}: {' + '.join(self.operators)}; {self.summary}; {moved}"


@dataclass(frozen=True)
class PredictedCall:
    """An operator that will run as ATen's own kernel.

    Attributes:
        name: The operator's.
        reason: Why no kernel is generated.
        read_bytes: Of the tensors that it is given; -1 if symbolic.
        written_bytes: Of those that it returns or updates, likewise.
        where: The user's line.
    """

    name: str
    reason: str
    read_bytes: int
    written_bytes: int
    where: SourceLine | None = None

    def __str__(self) -> str:
        moved = f"reads {size_text(self.read_bytes)}, writes {size_text(self.written_bytes)}"
        return f"calls {self.name}: {self.reason}; {moved}"


@dataclass(frozen=True)
class PredictedPart:
    """What a part of a captured graph will do, step by step.

    Attributes:
        graph: The graph's name.
        kind: ``inference``, ``forward`` or ``backward``; the last only if a gradient is asked for.
        steps: In order of launch.
        aten: ATen's operators in its graph, and those that were taken apart, without overloads,
            whatever function of torch led to them: ``softmax`` of a ``softmin``.
    """

    graph: str
    kind: str
    steps: tuple[PredictedKernel | PredictedCall, ...]
    aten: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Prediction(Sectioned):
    """What a function will become.

    Attributes:
        name: The function's.
        parts: In the order in which they are compiled.
        fallbacks: The graphs that will run in eager, with the reasons.
        breaks: Where capture stops and Python runs.
        guards: What must stay true for the compiled code to be used again.
        recompiles: Why later calls compile again.
    """

    name: str
    parts: tuple[PredictedPart, ...]
    fallbacks: tuple[str, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    guards: tuple[Guard, ...] = field(default=(), compare=False)
    recompiles: tuple[Recompile, ...] = ()

    @property
    def steps(self) -> tuple[PredictedKernel | PredictedCall, ...]:
        """Every step of every part."""
        return tuple(step for part in self.parts for step in part.steps)

    @property
    def kernels(self) -> tuple[PredictedKernel, ...]:
        """The kernels, forward before backward."""
        return tuple(step for step in self.steps if isinstance(step, PredictedKernel))

    @property
    def externs(self) -> tuple[PredictedCall, ...]:
        """The operators that run as ATen's own kernels."""
        return tuple(step for step in self.steps if isinstance(step, PredictedCall))

    @property
    def read_bytes(self) -> int:
        """What all steps read together; -1 if a size is symbolic."""
        return _total([step.read_bytes for step in self.steps])

    @property
    def written_bytes(self) -> int:
        """What all steps write together; -1 if a size is symbolic."""
        return _total([step.written_bytes for step in self.steps])

    def data(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        totals = {
            "kernels": len(self.kernels),
            "extern_calls": len(self.externs),
            "graph_breaks": len(self.breaks),
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
        }
        return {"totals": totals, **asdict(self)}

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Yield headings with their lines."""
        counts = [
            counted(len(self.kernels), "kernel"),
            counted(len(self.externs), "extern call"),
            counted(len(self.breaks), "graph break"),
            f"reads {size_text(self.read_bytes)}",
            f"writes {size_text(self.written_bytes)}",
        ]
        yield f"{self.name} will be {', '.join(counts)}", []
        for part in self.parts:
            yield f"{part.graph}, {part.kind}", [str(step) for step in part.steps]
        yield "runs in eager", list(self.fallbacks)
        yield "graph breaks", [_break_text(each) for each in self.breaks]
        # Of several calls each version has guards of its own: they need not hold together.
        holds = VERSIONS if self.recompiles else "used again as long as"
        yield holds, [each.text for each in self.guards]
        yield "compiled again because", [str(each) for each in self.recompiles]


def size_text(count: int) -> str:
    """Return a number of bytes for a reader; what depends on a size says so."""
    return bytes_text(count) if count >= 0 else "a size-dependent number of bytes"


def _total(counts: Sequence[int]) -> int:
    return UNKNOWN if any(count < 0 for count in counts) else sum(counts)


def _break_text(found: GraphBreak) -> str:
    where = f" [{found.where}]" if found.where is not None else ""
    return f"{found.reason}{where}" + (f"; to mend it: {found.hint}" if found.hint else "")


# -- reading it off what was captured -------------------------------------------------------


class Captured(Protocol):
    """What ``fusec.compile`` returns, as far as it is read here."""

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """Its graphs."""

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Those that run in eager."""

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """Where capture stopped."""

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What must stay true."""

    @property
    def effects(self) -> tuple[Noted, ...]:
        """What it changes beside its result."""

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """Why it was compiled again."""


def prediction(name: str, captured: Captured) -> Prediction:
    """Return what a function has become, whether its kernels were built or only written.

    Args:
        name: The function's.
        captured: What came of its calls.
    """
    parts = [_part(graph, part) for graph in captured.graphs for part in graph.parts]
    return Prediction(
        name,
        tuple(parts),
        captured.fallbacks,
        captured.breaks,
        captured.guards,
        captured.recompiles,
    )


def _part(graph: CompiledGraph, part: CompiledPart) -> PredictedPart:
    program = part.state.scheduled
    steps: list[PredictedKernel | PredictedCall] = []
    for step in program.steps:
        if isinstance(step, Compute):
            steps.append(_kernel(step, part.kernels[step.name]))
        elif not step.is_plumbing:
            steps.append(_call(step, program.buffers))
    return PredictedPart(graph.name, part.kind, tuple(steps), _aten(part.state.module))


def _aten(module: fx.GraphModule) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for node in module.graph.nodes:
        for target in (node.target, node.meta.get("original_aten")):
            if isinstance(target, torch._ops.OpOverload):
                found[label_of(target)] = None
    return tuple(found)


def _kernel(step: Compute, kernel: Kernel) -> PredictedKernel:
    source = kernel.generated
    lines = {line: None for number in sorted(source.origins) for line in source.origins[number]}
    arguments = source.signature.arguments
    return PredictedKernel(
        name=source.name,
        operators=tuple(word.strip() for word in step.label.split("+")),
        summary=source.summary,
        reads=tuple(_argument_text(each) for each in arguments if each.role != "out"),
        writes=tuple(_argument_text(each) for each in arguments if each.role != "in"),
        read_bytes=source.read_bytes,
        written_bytes=source.written_bytes,
        operations=source.operations,
        lines=tuple(sorted(lines, key=lambda line: (line.file, line.line))),
    )


def _argument_text(argument: Argument) -> str:
    shape = " x ".join(map(str, argument.shape)) or "one number"
    return f"{argument.name}: {shape} {str(argument.dtype).removeprefix('torch.')}"


def _call(step: Extern, buffers: Mapping[str, Buffer]) -> PredictedCall:
    return PredictedCall(
        str(step.target),
        step.reason,
        _total([buffers[name].bytes for name in step.reads()]),
        _total([buffers[name].bytes for name in step.writes()]),
        step.where,
    )


# -- capturing without building -------------------------------------------------------------


__all__ = [
    "PredictedCall",
    "PredictedKernel",
    "PredictedPart",
    "Prediction",
    "prediction",
    "size_text",
]
