"""What a call will become, said before anything is built: ``fusec.predict(function, *args)``.

The pipeline is run up to the kernels' texts, by the code that compiles; nothing is built and no
kernel runs.  What is said is a value: of the same function compiled in earnest it is the same,
which the tests hold (``prediction`` reads it off either).
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from fusec.call.eager_graph import run_eagerly
from fusec.capture.backend import Backend
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.inspect.explain import bytes_text
from fusec.inspect.sections import Sectioned
from fusec.ir.body import Buffer, Compute, Extern
from fusec.kernel import Argument, Kernel
from fusec.memory.strided import clone_strided, write_strided
from fusec.options import Options
from fusec.report import GraphBreak, Guard, Recompile, SourceLine, counted
from fusec.verify.words import same_bits

UNKNOWN = -1  # bytes that depend on a symbolic size


@dataclass(frozen=True)
class Call:
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class PredictedKernel:
    """A kernel that will be generated.

    Attributes:
        name: As it will be called.
        operators: What is in it, in the words of ATen: ``softmax``, ``gelu``.
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
    """

    graph: str
    kind: str
    steps: tuple[PredictedKernel | PredictedCall, ...]


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
        yield "used again as long as", [each.text for each in self.guards]
        yield "compiled again because", [str(each) for each in self.recompiles]


def size_text(count: int) -> str:
    """Return a number of bytes for a reader; what depends on a size says so."""
    return bytes_text(count) if count >= 0 else "bytes by size"


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
    return PredictedPart(graph.name, part.kind, tuple(steps))


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


class _Planned(BaseException):
    """All of a call has been captured; there is nothing to run."""


class Planner(Backend):
    """Takes each captured graph as far as its kernels' texts.

    Args:
        options: How to compile.
        function: What is called.
    """

    builds = False

    def __init__(self, options: Options, function: Callable[..., Any]) -> None:
        super().__init__(options)
        self._put_off: list[Callable[[], object]] = []
        self._outermost = _codes(function)
        self._function = function
        self._broken = False  # whether something of the call has run in Python
        self._to_the_end = False
        self.returned: Any = None  # by the latest call, where calls run to their end

    def put_off(self, make: Callable[[], object]) -> None:
        """Make a backward part after the forward parts, as it is when gradients are asked for."""
        self._put_off.append(make)

    def __call__(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], **_: object
    ) -> Callable[..., Any]:
        """Take a captured graph as far as its kernels' texts; return what stands in for it."""
        super().__call__(module, example_inputs)
        reason = getattr(module, "compile_subgraph_reason", None)
        last = reason is not None and not reason.graph_break
        eager = run_eagerly(module)

        def stand_in(*inputs: Any) -> Any:
            if last and not self._to_the_end and not self._broken and self._is_all():
                raise _Planned
            self._broken = True
            return eager(*inputs)

        return stand_in

    def _is_all(self) -> bool:
        """Whether the frame that calls the graph is that of the function itself, compiled."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            for code in self._outermost:
                ours = (code.co_filename, code.co_firstlineno, code.co_name)
                found = frame.f_code
                if (found.co_filename, found.co_firstlineno, found.co_name) == ours:
                    return found is not code  # TorchDynamo runs a code of its own
            frame = frame.f_back
        return False

    def run(
        self, call: Callable[..., Any], calls: Iterable[Call], *, to_the_end: bool = False
    ) -> None:
        """Capture calls; torch is left as if there had been none.

        Args:
            call: Calls the function through TorchDynamo.
            calls: With what, one after the other.
            to_the_end: Whether what was captured runs, in eager, for what it returns.
        """
        self._to_the_end = to_the_end
        with _unremembered():
            for given in calls:
                self._capture(call, given)

    def _capture(self, call: Callable[..., Any], given: Call) -> None:
        tensors = _tensors(given, self._function)
        self._broken = False
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        # From the beginning: what TorchDynamo leaves alone runs as it stands, and nobody is told.
        with torch.random.fork_rng(devices), put_back(tensors), contextlib.suppress(_Planned):
            self.returned = call(*given.args, **given.kwargs)
        for make in reversed(self._put_off):
            make()
        self._put_off.clear()


def _codes(function: Callable[..., Any]) -> tuple[CodeType, ...]:
    found = [type(function).forward] if isinstance(function, nn.Module) else [function]
    if isinstance(function, nn.Module):
        found += [nn.Module._call_impl, nn.Module._wrapped_call_impl]
    plain = (getattr(each, "__func__", each) for each in found)
    return tuple(each.__code__ for each in plain if hasattr(each, "__code__"))


def _tensors(given: Call, function: Callable[..., Any]) -> list[torch.Tensor]:
    found: list[Any] = tree_leaves((given.args, dict(given.kwargs)))
    owner = getattr(function, "__self__", function)
    modules = [each for each in (*found, owner) if isinstance(each, nn.Module)]
    for module in modules:
        found += [*module.parameters(), *module.buffers()]
    return [each for each in found if isinstance(each, torch.Tensor)]


@contextlib.contextmanager
def put_back(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put back, when done, what in-place updates have changed."""
    plain = [tensor for tensor in tensors if _is_plain(tensor)]
    saved = [(tensor, clone_strided(tensor.detach())) for tensor in plain]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in saved:  # versions do not tell: batch_norm leaves them alone
                if same_bits(tensor, value):
                    continue
                keeps: Any = torch.autograd
                with keeps._unsafe_preserve_version_counter(tensor):
                    write_strided(tensor.detach(), value)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is memory that can be copied and put back."""
    kind = type(tensor) in (torch.Tensor, nn.Parameter)
    bare = tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg()
    return kind and bare and tensor.device.type != "meta"


@contextlib.contextmanager
def _unremembered() -> Iterator[None]:
    """Keep TorchDynamo from learning of sizes, which would be symbolic in the next compilation."""
    memory: Any = torch._dynamo.pgo
    before = copy.deepcopy(getattr(memory, "_CODE_STATE", None))
    try:
        yield
    finally:
        if hasattr(memory, "_CODE_STATE"):
            memory._CODE_STATE = before


__all__ = [
    "Call",
    "Planner",
    "PredictedCall",
    "PredictedKernel",
    "PredictedPart",
    "Prediction",
    "prediction",
    "put_back",
    "size_text",
]
