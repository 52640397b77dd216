"""What a compilation did, in words that a person understands.

Plain frozen records.  The compiler fills them in; the notebook, the saved reports and the tests
read them.  Nothing here computes more than a sum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


def counted(number: int, noun: str) -> str:
    """Write ``1 kernel``, ``2 kernels``."""
    return f"{number} {noun if number == 1 else noun + 's'}"


def digits(value: float) -> str:
    """Write a number with three significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.2e}")  # 9.996 is 10.0, and not 10.00
    places = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{places}f}"


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's own code.

    Attributes:
        file: The file name, or the cell's registered name (``<fuse cell 3>``).
        line: 1-based, as the gutter shows it.
        text: The line itself, stripped; empty where unknown.
    """

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.text else f"line {self.line}"


@dataclass(frozen=True)
class GraphBreak:
    """A place where capture stopped and Python ran in between.

    Attributes:
        reason: What is there, in words.
        hint: How to mend it; empty where nothing is known.
        where: The user's line.
        expected: Whether there is nothing to mend: ``backward()``, an optimizer.
        of_values: Whether it hangs on the values of tensors: ``if x.sum() > 0``.
        of_layers: Whether a layer is called there that is compiled once for all like it.
        of_optimizer: Whether an optimizer's step is called there, whose graph has no other line.
        of_messages: Whether something is printed or logged there, which an export leaves out.
    """

    reason: str
    hint: str
    where: SourceLine | None
    expected: bool = False
    of_values: bool = False
    of_layers: bool = False
    of_optimizer: bool = False
    of_messages: bool = False


@dataclass(frozen=True)
class SideEffect:
    """Something that a function changes beside its result.

    Attributes:
        name: What is changed.
        change: How, in words.
        of_global: Whether a global name is set, which is how a cell gives its results.
    """

    name: str
    change: str
    of_global: bool = False


@dataclass(frozen=True)
class Guard:
    """A fact that must hold for the compiled code to be used again."""

    text: str
    source: str
    where: SourceLine | None


@dataclass(frozen=True)
class Recompile:
    """Why a function was compiled once more.

    Attributes:
        text: What changed, in words.
        hint: How to avoid it; empty where nothing is known.
        guard: The guard that failed, as TorchDynamo writes it.
        graph: Name of the first graph that was compiled for it; empty where none was.
    """

    text: str
    hint: str = ""
    guard: str = ""
    graph: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that the forward part keeps for the backward part.

    Attributes:
        name: What the user calls it, or the operator that it comes from.
        shape: Sizes; text where they are symbolic.
        dtype: Such as ``float32``.
        bytes: What it takes; -1 where a size is symbolic.
        given: Whether it is an input or a parameter, which would be there anyway.
        where: The line that computes it.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    bytes: int
    given: bool
    where: SourceLine | None = None

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape)) or "one number"
        return f"{self.name}: {shape} {self.dtype}"


@dataclass(frozen=True)
class PassRun:
    """What one pass over a graph did; ``graph/pipeline.py`` has their table.

    Attributes:
        name: As in the table.
        form: What the graph was: ``captured``, ``joint``, ``inference``, ``split``, ``part``.
        changes: How many things it changed.
        seconds: Wall-clock time.
    """

    name: str
    form: str
    changes: int
    seconds: float


@dataclass(frozen=True)
class FusionDecision:
    """Why two computations became one kernel, or did not.

    Attributes:
        producer: Name of the first computation.
        consumer: Name of the second.
        fused: Whether they share a kernel because of this decision.
        reason: In plain words.
        bytes_saved: Memory traffic that fusing saves or would save; -1 where unknown.
        by_traffic: Whether that is all there is to the reason.
    """

    producer: str
    consumer: str
    fused: bool
    reason: str
    bytes_saved: int = -1
    by_traffic: bool = False


@dataclass(frozen=True)
class ExternCall:
    """An operator that runs as ATen's own kernel, and why."""

    name: str
    reason: str
    where: SourceLine | None = None


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline: its readable result and the time it took.

    Attributes:
        name: ``capture``, ``decompose``, ``lower``, ``schedule``, ``emit``, ``build`` ...
        seconds: Wall-clock time.
        content: The stage's result as text, or a function that writes it when it is asked for,
            so that a compilation nobody looks at pays nothing for it.
    """

    name: str
    seconds: float
    content: str | Callable[[], str] = field(repr=False)

    @property
    def text(self) -> str:
        """The stage's result in readable form."""
        return self.content if isinstance(self.content, str) else self.content()


def seconds_by_stage(stages: Iterable[Stage]) -> dict[str, float]:
    """Add up the seconds of stages of the same name, in the order in which they first ran."""
    found: dict[str, float] = {}
    for stage in stages:
        found[stage.name] = found.get(stage.name, 0.0) + stage.seconds
    return found


def compile_line(stages: Mapping[str, float]) -> str:
    """Say how long a compilation took, and where: empty where there was none.

    Args:
        stages: Seconds by stage.
    """
    if not stages:
        return ""
    total = sum(stages.values())
    places = 2 if total >= 0.1 else 3
    parts = ", ".join(f"{name} {seconds:.{places}f}" for name, seconds in stages.items())
    return f"compiled in {total:.{places}f} s: {parts}"


@dataclass(frozen=True)
class Timing:
    """How long something took, and how that was measured.

    Attributes:
        median: Seconds a call.
        low: 25th percentile, seconds.
        high: 75th percentile, seconds.
        samples: Number of timed blocks behind the figures.
        method: One sentence: warm-up, interleaving, clock, cache state.
    """

    median: float
    low: float
    high: float
    samples: int
    method: str

    @property
    def milliseconds(self) -> float:
        """The median in milliseconds."""
        return self.median * 1e3


@dataclass(frozen=True)
class GpuStart:
    """One start of a kernel on a GPU, as compiled for it; nothing of it was measured.

    Attributes:
        name: The function's.
        programs: How many there are; 0 where that hangs on sizes.
        warps: Of each program.
        registers: Of each thread; 0 where that is not known.
        shared: Bytes of shared memory of each program.
        tile: The tunables that say how large a program's tile is: ``YBLOCK=1 XBLOCK=128``.
    """

    name: str
    programs: int
    warps: int
    registers: int
    shared: int
    tile: str = ""


@dataclass(frozen=True)
class OutputError:
    """How far one output is from the references.

    Attributes:
        name: The output's name.
        dtype: For example ``float32``.
        shape: Its sizes.
        against_eager: Largest absolute difference to eager's result; 0 for equal, nan where
            one is NaN and the other is not.
        against_float64: Largest absolute difference to the float64 run; None where no float64
            run exists (integers, probabilities that decide); infinite where it is NaN or infinite
            and the float64 run is not.
        eager_against_float64: The same figure for eager itself.
        allowed: The largest difference to eager that passes at the worst element.
        worst: Index of the worst element.
        ok: Whether this output passes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    against_eager: float
    against_float64: float | None
    eager_against_float64: float | None
    allowed: float
    worst: tuple[int, ...]
    ok: bool

    @property
    def bytes(self) -> int:
        """The bytes of the output's elements."""
        bits = re.search(r"\d+", self.dtype)
        size = 1 if bits is None else max(int(bits[0]) // 8, 1)
        return math.prod(self.shape) * size


@dataclass(frozen=True)
class Verdict:
    """The outcome of checking a kernel text or a compiled graph.

    Attributes:
        ok: Whether it may be used.
        stage: Where it ended: ``empty``, ``signature``, ``compile``, ``unsafe``,
            ``crash``, ``bounds``, ``timeout``, ``wrong`` or ``passed``.
        reason: One line for the user: what is wrong, or how good it is.
        line: The 1-based kernel line at fault, where there is one.
        outputs: Error figures, an output each; empty where it never ran.
        timing: Of the checked kernel alone, where it passed.
        generated: Of the generated kernel alone, interleaved with ``timing``.
        graph: Of the whole graph with the checked kernel in it.
        eager: Of the whole graph in eager, interleaved with ``graph``.
        seconds: How long the whole check took.
        details: The compiler's full output, a traceback, ...
        bare: The reason less what ``stage`` and ``line`` say, where it says that as well.
        calls: How often it was called in a row in the checking process, before anybody else may.
    """

    ok: bool
    stage: str
    reason: str
    line: int | None = None
    outputs: tuple[OutputError, ...] = ()
    timing: Timing | None = None
    generated: Timing | None = None
    graph: Timing | None = None
    eager: Timing | None = None
    seconds: float = 0.0
    details: str = field(default="", repr=False)
    bare: str = field(default="", repr=False)
    calls: int = 0

    @property
    def max_error(self) -> float:
        """Largest error against eager over all outputs; 0 where there are none."""
        return max((output.against_eager for output in self.outputs), default=0.0)
