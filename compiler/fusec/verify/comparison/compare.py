"""How far results are from eager's, and whether that is far enough to be wrong.

The rule is that of ``torch._dynamo.utils.same``, made stricter.  An output passes if every
element is close to eager's, or if it is about as close to a float64 run as eager is.  The
second half is what lets a fused half-precision kernel be *better* than eager, and what stops
one that computes in a lower precision than it should.  Where eager is right by luck, which few
elements may be, what counts is how far its roundings can carry a result (``Rounding``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fusec.report import OutputError
from fusec.verify.comparison.blocks import blocks, chunks
from fusec.verify.comparison.rounding import Rounding, square
from fusec.verify.comparison.words import dtype_of, mismatch

# torch.testing's own tolerances, but for float64, where they would let float32 pass.  The
# absolute ones are for values around 1 and shrink with the output, so that a softmax over a
# million elements may not be all zeros.
_TOLERANCE = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.complex128: (1e-10, 1e-10),
    torch.complex64: (1.3e-6, 1e-5),
}
_TOLERANCE_DEFAULT = (5e-2, 1e-3)

# How much further from float64 than eager: of the root mean square over the output (few
# elements say little about it), and of the largest error.
_RMSE_FACTOR = 3.0
_RMSE_FACTOR_SMALL = 8.0
_SMALL = 1000
_WORST_FACTOR = 10.0
# Halves that eager rounds once, at the end, are off by half of epsilon at most, and by a little of
# what float32 rounds. Whatever else is computed in float32 is within twice epsilon of its own size,
# in another order or by another formula. How eager rounds is seen where many values differ.
_ROUNDED_ONCE = 0.51
_NARROW_FACTOR = 2.0
_MANY, _SAMPLE = 20, 4096
# The same beside runs whose roundings were drawn by chance.
_DRAWN_RMSE_FACTOR = 2.0
_DRAWN_FACTOR = 2.0


def compare_outputs(
    names: Sequence[str],
    actual: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    float64: Sequence[torch.Tensor | None] | None = None,
) -> tuple[OutputError, ...]:
    """Return how far each output is from the references.

    Args:
        names: The outputs' names.
        actual: What is to be judged.
        eager: The same from eager, in the outputs' own dtypes.
        float64: The same from a run in float64; None, or None for single outputs, where there
            is none (random numbers).
    """
    references = float64 if float64 is not None else [None] * len(names)
    return tuple(
        compare_output(name, mine, plain, exact)
        for name, mine, plain, exact in zip(names, actual, eager, references, strict=True)
    )


def signed_zero_differences(actual: torch.Tensor, eager: torch.Tensor) -> int:
    """Return at how many places one is +0 and the other -0."""
    if not actual.is_floating_point() or actual.shape != eager.shape:
        return 0
    count = 0
    for mine, plain in chunks(actual.detach(), eager.detach()):
        zeros = (mine == 0) & (plain == 0)
        count += int((zeros & (_negative(mine) != _negative(plain))).sum())
    return count


def _negative(values: torch.Tensor) -> torch.Tensor:
    """Where the bit of the sign is set; widened, for on a GPU float8 has no ``signbit``."""
    return torch.signbit(values.float() if values.dtype.itemsize == 1 else values)


def compare_output(
    name: str,
    actual: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor | None = None,
    *,
    strict: bool = False,
    narrow: bool = False,
    rounding: Rounding | None = None,
) -> OutputError:
    """Return how far one output is from the references.

    Args:
        name: The output's name.
        actual: What is to be judged.
        eager: The same from eager.
        float64: The same from a run in float64.
        strict: Shrink the tolerance with the output's magnitude though there is no float64 run
            to fall back on; who fails is then to be compared again with one.
        narrow: Judge halves that eager rounds once by the size of each.
        rounding: Allow what roundings can do, too.
    """
    actual, eager = actual.detach(), eager.detach()
    if mismatch(actual, eager):
        return OutputError(
            name=name,
            dtype=dtype_of(actual),
            shape=tuple(actual.shape),
            against_eager=math.nan,
            against_float64=None,
            eager_against_float64=None,
            allowed=0.0,
            worst=(),
            ok=False,
        )
    if float64 is not None:
        float64 = float64.detach()
        if float64.shape != eager.shape:
            float64 = None
    if eager.is_floating_point() or eager.is_complex():
        return _compare_floats(name, actual, eager, float64, strict, narrow, rounding)
    return _compare_exact(name, actual, eager, float64, rounding)


def _compare_exact(
    name: str,
    actual: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor | None,
    rounding: Rounding | None,
) -> OutputError:
    """Integers and bools: equal, or eager itself is off (a comparison of rounded halves)."""
    if float64 is not None and float64.dtype != eager.dtype:
        float64 = None
    worst, bad = 0.0, False
    at: tuple[int, ...] = ()
    dtype = dtype_of(eager)
    if rounding is not None:
        # Some run gave it: as good as what float64 gives.
        drawn = rounding.occurs(actual)
        float64 = torch.where(drawn, actual, eager if float64 is None else float64)
    if eager.dtype is torch.bool:
        # A kernel can leave bytes in a bool that are neither 0 nor 1.
        actual, eager = actual.view(torch.uint8), eager.view(torch.uint8)
        float64 = None if float64 is None else float64.view(torch.uint8)
    for start, (mine, plain, exact, _) in blocks(actual, eager, float64):
        wrong = mine != plain
        if not bool(wrong.any()):
            continue
        gap = torch.where(wrong, (mine.double() - plain.double()).abs().clamp(min=1.0), 0.0)
        if exact is not None:
            excused = wrong & (mine == exact)
            wrong = wrong & ~excused
        block_bad = bool(wrong.any())
        rank = torch.where(wrong, gap, -1.0) if block_bad else gap
        place = int(rank.reshape(-1).argmax())
        figure = float(gap.reshape(-1)[place])
        if (block_bad, figure) > (bad, worst):
            worst, at, bad = figure, _index(place, mine.shape, start), block_bad
    return OutputError(
        name=name,
        dtype=dtype,
        shape=tuple(actual.shape),
        against_eager=worst,
        against_float64=None,
        eager_against_float64=None,
        allowed=0.0,
        worst=at,
        ok=not bad,
    )


@dataclass
class _Sums:
    """What one pass over an output gathers."""

    count: int = 0
    square: float = 0.0
    square_eager: float = 0.0
    worst: float = 0.0
    worst_eager: float = 0.0
    magnitude: float = 0.0
    # NaN or infinity where float64 has a number: said, and compared by position.
    lost: bool = False
    lost_eager: bool = False


def _compare_floats(
    name: str,
    actual: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor | None,
    strict: bool,
    narrow: bool,
    rounding: Rounding | None,
) -> OutputError:
    dtype = eager.dtype
    shape = tuple(eager.shape)
    if eager.is_complex():
        actual, eager = torch.view_as_real(actual), torch.view_as_real(eager)
        if float64 is not None:
            float64 = torch.view_as_real(float64) if float64.is_complex() else None
    relative, absolute = _TOLERANCE.get(dtype, _TOLERANCE_DEFAULT)
    epsilon = torch.finfo(eager.dtype).eps
    # Without a float64 run there is nothing to sum up but the magnitude.
    sums = _gather(actual, eager, float64) if float64 is not None or strict else _Sums()
    scale = math.sqrt(sums.magnitude / sums.count) if sums.count else 0.0
    if float64 is not None or strict:
        absolute = min(absolute, absolute * scale)
    bound = math.inf
    rmse_ok = False
    if float64 is not None:
        factor = _RMSE_FACTOR_SMALL if sums.count < _SMALL else _RMSE_FACTOR
        # Both figures have a floor: eager may hit a value exactly by luck.
        floor = epsilon * scale
        rmse = math.sqrt(sums.square / sums.count) if sums.count else 0.0
        rmse_eager = math.sqrt(sums.square_eager / sums.count) if sums.count else 0.0
        rmse_ok = rmse <= factor * rmse_eager + floor
        bound = _WORST_FACTOR * sums.worst_eager + 4 * floor
        if rounding is not None and rmse > _DRAWN_RMSE_FACTOR * rounding.rms() + floor:
            rounding = None
    judge = _Judge(relative, absolute, epsilon, bound if rmse_ok else -1.0, dtype)
    if narrow and float64 is not None and judge.half and _rounds_once(eager, float64):
        judge.own_size = _NARROW_FACTOR * epsilon
    spread = None
    if rounding is not None and float64 is not None:
        spread, judge.halves = rounding.spread, rounding.halves
    for start, (mine, plain, exact, drawn) in blocks(actual, eager, float64, spread):
        judge.look(start, mine, plain, exact, drawn)
    worst = judge.at[: len(shape)]
    own = math.inf if sums.lost else sums.worst
    eagers = math.inf if sums.lost_eager else sums.worst_eager
    return OutputError(
        name=name,
        dtype=str(dtype).removeprefix("torch."),
        shape=shape,
        against_eager=judge.gap,
        against_float64=own if float64 is not None else None,
        eager_against_float64=eagers if float64 is not None else None,
        allowed=judge.allowed,
        worst=worst,
        ok=judge.ok,
    )


def _gather(actual: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor | None) -> _Sums:
    sums = _Sums()
    for _, (mine, plain, exact, _) in blocks(actual, eager, float64):
        b = plain.double()
        a = c = b
        if exact is not None:
            a, c = mine.double(), exact.double()
        count = b.numel()
        if not math.isfinite(float((a + b + c).sum())):
            # There may be infinities or NaN; they are compared by position, not counted here.
            usable = b.isfinite() & c.isfinite() & a.isfinite()
            if exact is not None:
                known = c.to(eager.dtype).isfinite()  # what overflows is right as infinity
                sums.lost |= bool((known & ~a.isfinite()).any())
                sums.lost_eager |= bool((known & ~b.isfinite()).any())
            a, b, c = (torch.where(usable, t, 0.0) for t in (a, b, c))
            count = int(usable.sum())
        if exact is not None:
            error, error_eager = a - c, b - c
            sums.square += square(error)
            sums.square_eager += square(error_eager)
            sums.worst = max(sums.worst, _largest(error))
            sums.worst_eager = max(sums.worst_eager, _largest(error_eager))
        sums.count += count
        sums.magnitude += square(b)
    return sums


def _rounds_once(eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether eager's halves are the nearest ones to float64, and not by luck of a few values."""
    info = torch.finfo(eager.dtype)
    for _, (right, plain, _, _) in blocks(exact, eager, None):
        b, c = plain.double(), right.double()
        size = c.abs().clamp(min=info.smallest_normal)
        off = torch.where(b.isfinite() & c.isfinite(), (b - c).abs() / size, 0.0)
        if float(off.max()) > _ROUNDED_ONCE * info.eps:
            return False
    sample = exact.reshape(-1)[:_SAMPLE]
    return int(sample[sample.isfinite()].unique().numel()) >= _MANY


def _largest(block: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(block, math.inf))


class _Judge:
    """Decides element by element, and remembers the worst one."""

    def __init__(
        self,
        relative: float,
        absolute: float,
        epsilon: float,
        bound: float,
        dtype: torch.dtype,
    ) -> None:
        self.relative = relative
        self.absolute = absolute
        self.epsilon = epsilon
        # Largest allowed distance to float64; negative where that rule is out.
        self.bound = bound
        self.half = dtype in (torch.float16, torch.bfloat16)
        self.halves = False  # whether eager has such values on the way
        self.own_size = 0.0  # of an element's size, what is allowed at most; 0 for no such limit
        self.least = torch.finfo(dtype).smallest_normal if self.half else 0.0
        self.ok = True
        self.gap = 0.0
        self.allowed = absolute
        self.at: tuple[int, ...] = ()
        self._rank = -1.0

    def look(
        self,
        start: tuple[int, ...],
        mine: torch.Tensor,
        plain: torch.Tensor,
        exact: torch.Tensor | None,
        spread: torch.Tensor | None = None,
    ) -> None:
        """Judge one block that starts at index ``start``."""
        a, b = mine.double(), plain.double()
        if self.ok and (self._all_close(start, a, b) or self._close_beside_nan(start, a, b)):
            return
        both = a.isfinite() & b.isfinite()
        equal = (a == b) | (a.isnan() & b.isnan())
        gap = torch.where(both, (a - b).abs(), math.inf).masked_fill(equal, 0.0)
        allowed = self.absolute + self.relative * torch.where(b.isfinite(), b.abs(), 0.0)
        passes = gap <= allowed
        if exact is not None:
            c = exact.double()
            tolerated = torch.full_like(gap, self.bound)
            if self.bound >= 0:
                tolerated = tolerated + 4 * self.epsilon * c.abs()
            if self.own_size:
                size = c.abs().clamp(min=self.least)
                tolerated = tolerated.clamp(max=self.absolute + self.own_size * size)
            by_float64 = both & c.isfinite() & ((a - c).abs() <= tolerated)
            allowed = torch.where(by_float64, torch.maximum(allowed, gap), allowed)
            passes |= by_float64
            if self.half:
                # Eager overflowed on the way to a finite value; float64 shows that it did.
                overflowed = ~b.isfinite() & a.isfinite() & c.isfinite()
                close = (a - c).abs() <= self.absolute + 4 * self.relative * c.abs()
                passes |= overflowed & close
            if spread is not None:
                # Where eager overflowed, float64 with roundings alone says what is right.
                comparable = a.isfinite() & c.isfinite() & (b.isfinite() | self.halves)
                reach = _DRAWN_FACTOR * spread + self.absolute + 4 * self.epsilon * c.abs()
                by_chance = comparable & ((a - c).abs() <= reach)
                allowed = torch.where(by_chance & both, torch.maximum(allowed, gap), allowed)
                passes |= by_chance
        # The worst element is the one most over its limit or, where all pass, the furthest off.
        fine = bool(passes.all())
        rank = torch.where(passes, -1.0, gap / allowed.clamp(min=1e-300))
        if fine:
            rank = torch.where(gap.isfinite(), gap, 0.0)
        flat = rank.reshape(-1)
        place = int(flat.argmax())
        if (not fine, float(flat[place])) > (not self.ok, self._rank):
            self._rank = float(flat[place])
            self.at = _index(place, gap.shape, start)
            self.allowed = float(allowed.reshape(-1)[place])
        self.ok = self.ok and fine
        largest = float(torch.where(both | equal, gap, 0.0).max())
        if bool((~both & ~equal & ~passes).any()):
            largest = math.nan
        if math.isnan(largest) or (not math.isnan(self.gap) and largest > self.gap):
            self.gap = largest

    def _all_close(self, start: tuple[int, ...], a: torch.Tensor, b: torch.Tensor) -> bool:
        """Whether a block is all finite and close, which is the usual case; note its worst."""
        gap = (a - b).abs_()
        allowed = b.abs().mul_(self.relative).add_(self.absolute)
        if not bool((gap <= allowed).all()) or not bool(allowed.isfinite().all()):
            return False
        flat = gap.reshape(-1)
        place = int(flat.argmax())
        figure = float(flat[place])
        if figure > self._rank:
            self._rank = self.gap = figure
            self.at = _index(place, gap.shape, start)
            self.allowed = float(allowed.reshape(-1)[place])
        return True

    def _close_beside_nan(self, start: tuple[int, ...], a: torch.Tensor, b: torch.Tensor) -> bool:
        """Whether a block is NaN where the other is, and close and finite where it is not."""
        missing = a.isnan()
        if not bool(missing.any()) or not torch.equal(missing, b.isnan()):
            return False
        return self._all_close(start, a.masked_fill(missing, 0.0), b.masked_fill(missing, 0.0))


def _index(flat: int, shape: Sequence[int], start: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(first + i for first, i in zip(start, reversed(index), strict=True))
