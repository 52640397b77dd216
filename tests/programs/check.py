"""Compares a random program's compiled form with eager and with float64."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

import fusec
from programs.generate import Program
from programs.rounding import Rounded

# How far apart elements may be: of their own size and of their tensor's, on top of what eager is
# off by and of what a change of the inputs in the last place does to them.
Kind = torch.dtype | str
# Products of a GPU whose operands are rounded to ten bits; what they add up is float32.
TF32 = "tf32"
CLOSE: dict[Kind, float] = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    TF32: 1e-3,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
# Relative change of the inputs that tells unstable elements (near a comparison's edge) from others.
NUDGE: dict[Kind, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    TF32: 2.0**-11,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
AMPLIFIED = 30.0
CHANCES = 4  # runs with other roundings, each and its opposite
LAYOUT = "layout"
# Graphs that run in eager: what AOTAutograd gets wrong, and numbers computed from symbolic sizes in
# floating point, as the correction of a variance is.
EXPECTED = (
    "AOTAutograd would",
    "has no simple form",
    "elements are not each one of its memory",
)
BASELINE = "aot_eager_decomp_partition"


@dataclass(frozen=True)
class Run:
    """What a call left behind.

    Attributes:
        outputs: What it returned.
        inputs: The inputs afterwards.
        slopes: The gradients of those inputs that want them.
    """

    outputs: list[torch.Tensor]
    inputs: list[torch.Tensor]
    slopes: list[torch.Tensor | None]

    def tensors(self) -> list[tuple[str, torch.Tensor | None]]:
        """Return all of it, with words for each."""
        named: list[tuple[str, torch.Tensor | None]] = []
        named += [(f"output {n}", each) for n, each in enumerate(self.outputs)]
        named += [(f"input {n} afterwards", each) for n, each in enumerate(self.inputs)]
        named += [(f"gradient of input {n}", each) for n, each in enumerate(self.slopes)]
        return named


def call(function: Callable[..., Sequence[torch.Tensor]], inputs: list[torch.Tensor]) -> Run:
    """Call a program; backward through its outputs if inputs want gradients."""
    outputs = list(function(*inputs))
    slopes: list[torch.Tensor | None] = [None] * len(inputs)
    if any(each.requires_grad for each in inputs):
        ends = [o for o in outputs if o.requires_grad]
        if ends:
            weights = [
                torch.linspace(0.5, 1.5, o.numel(), dtype=torch.float64)
                .reshape(o.shape)
                .to(o.dtype)
                for o in ends
            ]
            torch.autograd.backward(ends, weights)
        slopes = [each.grad if each.is_leaf else None for each in inputs]
    return Run(outputs, inputs, slopes)


def widened(inputs: list[torch.Tensor], nudge: float = 0.0) -> list[torch.Tensor]:
    """Return inputs in float64, changed by a part of themselves."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for each in inputs:
        value = each.detach()
        if value.is_floating_point():
            value = value.to(torch.float64)
            if nudge:
                noise = torch.randn(value.shape, generator=generator).to(value)
                value = value * (1 + nudge * noise)
        found.append(value.clone().requires_grad_(each.requires_grad))
    return found


def problems(
    program: Program, *, target: str = "auto", dynamic: bool | None = None, device: str = "cpu"
) -> list[str]:
    """Return what is wrong with a program's compiled form; nothing if all is as in eager.

    It is called with the inputs that the program was written for, and with other values.  What
    differs in the same way under AOTAutograd with eager's kernels is torch's, and left out.

    Args:
        program: The program.
        target: As for ``fusec.compile``.
        dynamic: Likewise.
        device: Where it runs.
    """
    torch._dynamo.reset()
    compiled = fusec.compile(program.function(), target=target, dynamic=dynamic)
    found = _found(program, compiled, device)
    if not found:
        return found
    if all(LAYOUT in each for each in found):
        # which that takes apart operators lays out otherwise
        torch._dynamo.reset()
        theirs = _found(program, torch.compile(program.function(), backend="aot_eager"), device)
        return [] if any(LAYOUT in each for each in theirs) else found
    torch._dynamo.reset()
    theirs = _found(program, torch.compile(program.function(), backend=BASELINE), device)
    if any(LAYOUT in each for each in theirs):
        found = [each for each in found if LAYOUT not in each]
    known = {_kind(each) for each in theirs}
    return [each for each in found if _kind(each) not in known]


def _kind(problem: str) -> str:
    """Return the call, and the error or the tensor with how many of its elements differ."""
    if " elements differ" in problem:
        return problem.split(" elements differ", maxsplit=1)[0]
    return ": ".join(problem.split(": ")[:2])


def _found(
    program: Program, compiled: Callable[..., Sequence[torch.Tensor]], device: str
) -> list[str]:
    def inputs(change: int) -> list[torch.Tensor]:
        return [placed(each, device) for each in program.fresh(change)]

    found: list[str] = []
    for change in (0, 1):
        before = inputs(change)
        try:
            eager = call(program.function(), inputs(change))
        except RuntimeError:
            return found  # what autograd refuses; or other values that torch refuses
        try:
            mine = call(compiled, inputs(change))
        except Exception as problem:
            return [*found, f"call {change}: {type(problem).__name__}: {str(problem)[:600]}"]
        found += [f"call {change}: {each}" for each in compared(program, before, eager, mine)]
        fallbacks = [each for each in getattr(compiled, "fallbacks", ()) if not is_expected(each)]
        if fallbacks:
            found.append(f"fell back to eager: {fallbacks}")
    return found


def is_expected(fallback: str) -> bool:
    """Whether a graph runs in eager with good reason."""
    return any(words in fallback for words in EXPECTED)


def placed(value: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor on a device, with its strides."""
    if device == "cpu":
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return made.copy_(value.detach()).requires_grad_(value.requires_grad)


def compared(program: Program, before: list[torch.Tensor], eager: Run, mine: Run) -> list[str]:
    """Return where a run differs from eager's."""
    kind = kind_of(program.source, [each.dtype for each in before])
    wide, moved = _reference(program, before, 0.0), _reference(program, before, NUDGE[kind])

    @functools.cache
    def rounded() -> list[Run | None]:
        """Return runs whose sums are rounded otherwise: made where something differs.

        Of two numbers that are nearly the same, one run in two moves both alike.
        """
        parts = (NUDGE[kind], -NUDGE[kind])
        ways = [Rounded(part, seed) for seed in range(1, CHANCES + 1) for part in parts]
        return [_reference(program, before, 0.0, way) for way in ways]

    found = []
    rows = zip(eager.tensors(), mine.tensors(), strict=True)
    for place, ((what, want), (_, got)) in enumerate(rows):
        if (want is None) != (got is None):
            found.append(f"{what}: {'missing' if got is None else 'not expected'}")
        if want is None or got is None:
            continue
        exact = wide.tensors()[place][1] if wide is not None else None
        near = _values((moved,), place)
        texts = differences(want.detach(), got.detach(), exact, near, kind)
        if not all(LAYOUT in each for each in texts):
            near += _values(rounded(), place)
            texts = differences(want.detach(), got.detach(), exact, near, kind)
        found += [f"{what}: {text}" for text in texts]
    return found + _sharing(eager, mine)


def _values(runs: Iterable[Run | None], place: int) -> list[torch.Tensor]:
    found = [each.tensors()[place][1] for each in runs if each is not None]
    return [each for each in found if each is not None]


def kind_of(source: str, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> torch.dtype:
    """Return the least exact floating-point type of a program."""
    known = [kind for kind in CLOSE if isinstance(kind, torch.dtype)]
    kinds = [kind for kind in known if kind in dtypes or str(kind) in source]
    return max(kinds, key=CLOSE.__getitem__)


def _reference(
    program: Program,
    before: list[torch.Tensor],
    nudge: float,
    rounded: Rounded | None = None,
) -> Run | None:
    # Of float64 backward may read what a half was copied from, and what is updated since.
    for keeping in (contextlib.nullcontext, torch.autograd.graph.allow_mutation_on_saved_tensors):
        try:
            with keeping(), rounded or contextlib.nullcontext():
                return call(program.function(torch.float64), widened(before, nudge))
        except (RuntimeError, IndexError) as problem:
            if "modified by an inplace operation" not in str(problem):
                break
    return None  # a type that float64 cannot stand for


def differences(
    want: torch.Tensor,
    got: torch.Tensor,
    exact: torch.Tensor | None,
    near: Sequence[torch.Tensor],
    kind: Kind,
    amplified: float = AMPLIFIED,
) -> list[str]:
    """Return how a tensor differs from eager's.

    Args:
        want: Eager's.
        got: The one in question.
        exact: The same in float64, if there is such.
        near: Likewise of inputs that are changed a little: where they are far from the exact one,
            an element is unstable.
        kind: The least exact type that it was computed in.
        amplified: How many times that, or what eager is off by, an element may be.
    """
    if want.dtype != got.dtype or want.shape != got.shape:
        return [f"{got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"]
    found: list[str] = []
    if want.stride() != got.stride():
        found.append(
            f"{LAYOUT}: strides {got.stride()} instead of {want.stride()} for {list(want.shape)}"
        )
    if not want.numel():
        return found
    close = max(CLOSE.get(want.dtype, 0.0), CLOSE[kind])
    a, b = want.double(), got.double()
    same_kind = torch.isnan(a) == torch.isnan(b)
    finite = torch.isfinite(a) & torch.isfinite(b)
    off = torch.where(a == b, 0.0, (a - b).abs())
    allowed = torch.full_like(a, 0.0 if exact is None else 1e-300)
    if want.is_floating_point():
        scale = a[torch.isfinite(a)].square().mean().sqrt() if finite.any() else 1.0
        allowed = close * (a.abs() + scale + 1)
    near = [each for each in near if each.shape == want.shape]
    if exact is not None and near and exact.shape == want.shape:
        e = exact.detach().double()
        spread = (a - e).abs()
        for each in near:
            spread = torch.maximum(spread, (e - each.detach().double()).abs())
        spread = amplified * spread
        allowed = allowed + spread.nan_to_num(nan=torch.inf)
    wrong = ~same_kind | ((off > allowed) & finite) | ((a != b) & ~finite & ~torch.isnan(a))
    wrong &= torch.isfinite(allowed)
    if not wrong.any():
        return found
    first = wrong.nonzero()[0].tolist()
    at = tuple(first)
    found.append(
        f"{int(wrong.sum())} of {want.numel()} elements differ; at {first} "
        f"{got[at].item()} instead of {want[at].item()}, within {allowed[at].item():.3g}"
    )
    return found


def _sharing(eager: Run, mine: Run) -> list[str]:
    """Return where memory is shared otherwise than in eager, by outputs and inputs."""

    def classes(run: Run) -> list[int]:
        all_of = [*run.inputs, *run.outputs]
        places = [each.untyped_storage().data_ptr() if each.numel() else None for each in all_of]
        return [n if p is None else places.index(p) for n, p in enumerate(places)]

    wanted, found = classes(eager), classes(mine)
    count = len(eager.inputs)
    # what eager gives memory of its own must have it; a view may be a copy where nobody can tell
    return [
        f"{LAYOUT}: output {n - count} shares memory with tensor {b}, in eager with {a}"
        for n, (a, b) in enumerate(zip(wanted, found, strict=True))
        if n >= count and a != b
    ]


__all__ = ["TF32", "Kind", "differences", "kind_of", "problems"]
