"""Fresh inputs like given ones, so that a kernel cannot pass by fitting one set of values.

Shapes, strides and dtypes stay; the values are drawn anew from a secret seed.  Integers stay
within the range of the originals, because they may be indices, and so do floats, because they
may be probabilities or variances.  A few edits in a row of one kernel are checked on the same ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch

from fusec.memory.strided import empty_like_strided, write_strided
from fusec.verify.trials.patterns import LABELS, Pattern, patterned, within

Simple = Literal[
    "similar",
    "magnitudes",
    "adversarial",
    "nonfinite",
    "negative",
    "positive",
    "zeros",
    "ones",
    "layers",
    "whole",
    "padding",
    "sparse",
    "unit",
    "ordinary",
    "wide",
    "every power",
    "small",
    "tiny",
    "far",
    "nan",
    "one nan",
    "many nonfinite",
    "named",
    "named data",
    "named inside",
    "named beyond",
    "named weights",
    "integers",
    "equal integers",
    "refused",
]
Kind = Simple | Pattern

# How many elements of an adversarial tensor are special: few NaN, since they spread.
_SHARE = 0.15
_SHARE_NONFINITE = 0.02
# Of data two in five, a quarter not finite and the rest zeros: what an order of NaN and infinities
# decides, such as two equal largest ones around a NaN, is then met in many rows.
_SHARE_MANY = 0.4

# How many rows end, and how many begin, with special values.
_ENDS = 4
# Of truth values nothing but one: the first, third, ... tensor, and the others.
_ALL_ALIKE: dict[str, tuple[float, float]] = {
    "zeros": (0.0, 0.0),
    "ones": (1.0, 1.0),
    "positive": (1.0, 0.0),
    "negative": (0.0, 1.0),
}

_NONFINITE = (float("nan"), float("inf"), float("-inf"))
# What zero times infinity is, and a zero after NaN, only zeros show.
_NONFINITE_AND_ZERO = (*_NONFINITE, 0.0, -0.0)

# What people write in a condition.
_ROUND = (0.5, -0.5, *range(2, 11), -2, -3, 42, 100, 1000)

# Of so few rows none is given up.
_FEW_ROWS = 4

# How many elements of a sparse tensor are not zero.
_SHARE_NONZERO = 0.05
# How far random values spread that people try things with, and those of layers that have grown.
_SPREADS = {"ordinary": 1.0, "wide": 8.0}
# By which powers of two values are smaller, and how many times their spread they are off zero.
_POWERS = {"small": 20, "tiny": 60}
_FAR = 64.0
# How many times as far as a normal distribution, or as little, usual data spread.
_USUAL = 8.0

_PERIOD = 1_000_003
# A millionth to a million, in powers of two.
_MAGNITUDES = 20
_SAMPLE = 1 << 16


_SECRETS = random.SystemRandom()


def secret_seed() -> int:
    """Return a seed that nothing can foresee."""
    return _SECRETS.getrandbits(63)


def fresh_inputs(
    tensors: Sequence[torch.Tensor],
    *,
    kind: Kind = "similar",
    seed: int | None = None,
    numbers: Sequence[float] = (),
    resampled: bool = False,
) -> list[torch.Tensor]:
    """Return new tensors like ``tensors``, which stay as they are.

    Args:
        tensors: The originals.
        kind: ``similar`` draws values of the same character; ``magnitudes`` scales each of them by
            a power of two, from a millionth to a million; ``adversarial`` sprinkles signed
            zeros, denormals, round numbers and large magnitudes over them; ``nonfinite`` sprinkles
            NaN and infinities; ``negative``, ``positive``, ``zeros``, ``ones`` and ``nan`` have no
            others, where that may be: a maximum that begins with zero is right on all the rest.
            ``layers`` are weights of ones and biases of zeros, ``whole`` counts, ``sparse`` is
            mostly zero and ``padding`` nothing else but for weights, ``unit`` lies between 0 and 1,
            ``ordinary`` data are drawn from a normal distribution and ``wide`` ones from one eight
            times as wide, whatever the originals' spread; ``every power`` has as many of each power
            of two as of any other, down to the least that the dtype has; ``small`` and ``tiny``
            near zero and ``far`` far from it; ``one nan`` stands first in the largest tensor,
            ``many nonfinite`` leave no row of data without.
            ``named`` has ``numbers`` first, last and in between, ``named data`` all but in the
            weights, where products of them would widen what is allowed, ``named inside`` the first
            of them everywhere but first and last, ``named weights`` in the weights alone; ``named
            beyond`` has nothing but numbers beyond it. Others are patterns: see ``patterns``.
        seed: For tests; a secret one by default.
        numbers: What ``named`` is to have.
        resampled: Whether integers are drawn from the originals, not from what lies between.
    """
    generator = torch.Generator().manual_seed(secret_seed() if seed is None else seed)
    largest = max((tensor.numel() for tensor in tensors), default=0)
    made: list[torch.Tensor] = []
    are_parameters = [
        (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() < largest
        for tensor in tensors
    ]
    parameters, seen = sum(are_parameters), 0
    for at, (tensor, parameter) in enumerate(zip(tensors, are_parameters, strict=True)):
        way = _Way(kind, numbers, seen if parameter else None, parameters, resampled, at)
        seen += parameter
        made.append(fresh_like(tensor, generator, way))
    return made


def are_ordinary(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the data among some tensors, which are the largest, spread about as people's do."""
    largest = max((tensor.numel() for tensor in tensors), default=0)
    data = [t for t in tensors if t.is_floating_point() and t.numel() == largest]
    spreads = [_character(tensor)[3] for tensor in data if tensor.numel()]
    return all(1 / _USUAL <= spread <= _USUAL for spread in spreads)


@dataclass(frozen=True)
class _Way:
    """How one tensor is drawn.

    Attributes:
        kind: The kind of all of them.
        numbers: What ``named`` is to have.
        parameter: Of the tensors that are smaller than the largest, which it is; None for others.
        parameters: How many of these there are.
        resampled: Whether integers are drawn from the originals.
        place: Which of all it is.
    """

    kind: Kind
    numbers: Sequence[float] = ()
    parameter: int | None = None
    parameters: int = 0
    resampled: bool = False
    place: int = 0


def fresh_like(tensor: torch.Tensor, generator: torch.Generator, way: _Way) -> torch.Tensor:
    """Return one new tensor like ``tensor``."""
    original = tensor.detach()
    fresh = empty_like_strided(original)
    if original.numel() == 0:
        return fresh
    if original.is_complex():
        parts = torch.view_as_real(original.resolve_conj())
        values = torch.view_as_complex(_floats(parts, generator, way).contiguous())
    elif original.is_floating_point():
        values = _floats(original, generator, way)
    elif original.dtype is torch.bool:
        share = float(original.double().mean())
        # Not all of one kind, where the original is: a mask that is never looked at would pass.
        share = _ALL_ALIKE[way.kind][way.place % 2] if way.kind in _ALL_ALIKE else share
        share = share if way.kind in _ALL_ALIKE else min(max(share, 0.05), 0.95)
        values = torch.rand(original.shape, generator=generator) < share
    else:
        values = _integers(original, generator, resampled=way.resampled)
    write_strided(fresh, values.to(original.dtype))
    return fresh


def _floats(original: torch.Tensor, generator: torch.Generator, way: _Way) -> torch.Tensor:
    kind = way.kind
    count = original.numel()
    low, high, mean, spread = _character(original)
    # Enough different values; a large tensor repeats them with a period that no shape has.
    drawn = min(count, _PERIOD)
    # Torch draws float32 four times as quickly, and other types have no more digits.
    drawn_as = torch.float64 if original.dtype is torch.float64 else torch.float32
    noise = torch.randn(drawn, generator=generator, dtype=drawn_as).double()
    if spread == 0:
        # A constant, such as a bias of zeros or a weight of ones: without some change its use
        # would go unseen.  It keeps its sign.
        values = mean + noise * (abs(mean) / 4 if mean else 0.5)
        if mean:
            values = values.abs().copysign(torch.full_like(values, mean))
    else:
        values = mean + noise * spread
        if low >= 0 or high <= 0 or (low >= -1 and high <= 1):
            # Probabilities, variances, cosines: what follows may need their range.
            values = values.clamp(low, high)
    if kind == "magnitudes":
        values = _scaled(values, original.dtype, generator)
        if high > 0:
            values[0] = values[0].abs()
    elif kind == "zeros":
        values = torch.zeros_like(values)
    elif kind == "positive":
        values = values.abs() if high > 0 else values
    elif kind == "negative":
        values = -values.abs() if low < 0 else values
    elif kind in ("adversarial", "nonfinite"):
        special = _special(original.dtype, kind, low, mean, spread)
        values = _sprinkle(values, special, generator)
        if way.parameter is None:
            _put_at_ends_of_rows(values, original.shape, special, generator)
        if kind == "adversarial" and values.numel() > 1:
            # What asks a value before it does its work asks the first one, or the last.
            values[0], values[-1] = max(special), min(special)
        if kind == "nonfinite" and original.dim() > 1 and len(original) > _FEW_ROWS:
            # A row that is masked altogether.
            values[: count // len(original)] = float("-inf")
        if kind == "nonfinite" and way.parameter is None and values.numel() >= 2 * len(special):
            # Few values may have got none.
            places = values.numel() - 1 - torch.randperm(values.numel() // 2, generator=generator)
            values[places[: len(special)]] = torch.tensor(special, dtype=torch.float64)
    elif kind in LABELS:
        if drawn < count:
            return (
                values.to(original.dtype).repeat(-(-count // drawn))[:count].reshape(original.shape)
            )
        values = patterned(
            cast(Pattern, kind),
            values,
            tuple(original.shape),
            parameter=way.parameter,
            parameters=way.parameters,
            positive=low >= 0,
        )
        values = within(values, original.dtype)
    elif kind != "similar":
        values = _simple(values, original.dtype, generator, way, (low, high, mean, spread))
    values = values.to(original.dtype if original.dtype.itemsize > 1 else torch.float32)
    return values.repeat(-(-count // drawn))[:count].reshape(original.shape)


def _simple(
    values: torch.Tensor,
    dtype: torch.dtype,
    generator: torch.Generator,
    way: _Way,
    character: tuple[float, float, float, float],
) -> torch.Tensor:
    """Return values as people's tensors have them, and few draws do."""
    low, high, mean, spread = character
    kind, count = way.kind, values.numel()
    if kind.startswith("named"):
        return _named(values, generator, way)
    if kind == "ones":
        return torch.ones_like(values)
    if kind == "layers":
        if way.parameter is None:
            return values
        # a variance is none that is zero
        one = way.parameter % 2 == 0 or low > 0
        return torch.full_like(values, float(one))
    if kind == "whole":
        most = 256 if torch.finfo(dtype).bits > 8 else 8
        return torch.arange(count, dtype=torch.float64) % most
    if kind == "sparse" and way.parameter is None:
        drawn = torch.rand(count, generator=generator, dtype=torch.float64)
        values = torch.where(drawn < _SHARE_NONZERO, values, 0.0)
        values[:3] = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)[:count]
    elif kind == "padding" and way.parameter is None:
        return torch.zeros_like(values)
    elif kind == "unit":
        return torch.rand(count, generator=generator, dtype=torch.float64)
    elif kind in _SPREADS and way.parameter is None:
        values = torch.randn(count, generator=generator, dtype=torch.float64) * _SPREADS[kind]
        return values.abs() if low >= 0 else values
    elif kind == "every power" and way.parameter is None:
        return _of_every_power(values, dtype, generator, within_one=low >= -1 and high <= 1)
    elif kind in ("small", "tiny"):
        normal = int(-math.log2(torch.finfo(dtype).smallest_normal))
        # A product of two small ones is one that the type has; about half of the tiny ones may
        # have fewer bits than others, which halves have from 6e-5 on.
        least = normal // 2 - 1 if kind == "small" else normal
        return torch.ldexp(values, torch.tensor(-min(_POWERS[kind], least)))
    elif kind == "far":
        values = values + _FAR * max(spread, abs(mean)) * (-1 if mean < -spread else 1)
        return values.round() if way.parameter is None else values  # as images are
    elif kind == "nan":
        return torch.full_like(values, float("nan"))
    elif kind == "one nan" and way.parameter is None:
        values[0] = float("nan")
    elif kind == "many nonfinite" and way.parameter is None:
        values = _sprinkle(values, _NONFINITE_AND_ZERO, generator, _SHARE_MANY)
    return values


def _put_at_ends_of_rows(
    values: torch.Tensor,
    shape: Sequence[int],
    special: Sequence[float],
    generator: torch.Generator,
) -> None:
    """Have a few rows end and begin with special values: of a row too far nothing else may tell."""
    length = shape[-1] if len(shape) > 1 else 0
    rows = values.numel() // length if length else 0
    if rows < _FEW_ROWS * _ENDS or length < _ENDS:
        return
    starts = (1 + torch.randperm(rows - 1, generator=generator)[: 2 * _ENDS]) * length
    which = torch.randint(len(special), starts.shape, generator=generator)
    drawn = torch.tensor(special, dtype=values.dtype)[which]
    values[starts[:_ENDS] - 1] = drawn[:_ENDS]
    values[starts[_ENDS:]] = drawn[_ENDS:]


def _named(values: torch.Tensor, generator: torch.Generator, way: _Way) -> torch.Tensor:
    """Return values with the numbers that an edit names."""
    kind, count, numbers = way.kind, values.numel(), way.numbers
    if kind == "named" or (kind == "named data" and way.parameter is None):
        values = _sprinkle(values, numbers, generator)
        values[:: max(1, count - 1)] = numbers[0]  # the first and the last
    elif kind == "named inside" and way.parameter is None and count > 2:
        values[1:-1] = numbers[0]
    elif kind == "named beyond" and way.parameter is None:
        drawn = torch.rand(count, generator=generator, dtype=torch.float64)
        values = numbers[0] * (1 + drawn)
    elif kind == "named weights" and way.parameter is not None:
        values = torch.full_like(values, numbers[0])
    return values


def _character(original: torch.Tensor) -> tuple[float, float, float, float]:
    """Return the range, the mean and the standard deviation of the finite values."""
    flat = original.reshape(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)].to("cpu", torch.float64)
    plain = flat.to(torch.float32) if flat.dtype.itemsize == 1 else flat
    low, high = (float(value) for value in plain.aminmax())
    sample = sample[sample.isfinite()]
    if not math.isfinite(low) or not math.isfinite(high):
        finite = plain[plain.isfinite()]
        low, high = (float(v) for v in finite.aminmax()) if finite.numel() else (0.0, 0.0)
    mean = float(sample.mean()) if sample.numel() else 0.0
    spread = float(sample.std()) if sample.numel() > 1 else 0.0
    return low, high, mean, spread


def _special(dtype: torch.dtype, kind: Kind, low: float, mean: float, spread: float) -> list[float]:
    if kind == "nonfinite":
        return list(_NONFINITE)
    info = torch.finfo(dtype)
    large = min(1e4 * max(spread, abs(mean), 1e-3), info.max / 8)
    tiny = info.smallest_normal / 4
    values = [0.0, -0.0, tiny, -tiny, large, -large, info.eps, 1.0, -1.0]
    values += [number for number in _ROUND if abs(number) <= large]
    return [abs(value) for value in values] if low >= 0 else values


def _sprinkle(
    values: torch.Tensor,
    special: Sequence[float],
    generator: torch.Generator,
    share: float | None = None,
) -> torch.Tensor:
    if share is None:
        share = _SHARE if len(special) > 3 else _SHARE_NONFINITE
    where = torch.rand(values.shape, generator=generator) < share
    which = torch.randint(len(special), values.shape, generator=generator)
    return torch.where(where, torch.tensor(special, dtype=torch.float64)[which], values)


def _scaled(values: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return values of very different magnitudes that a dtype has; signs stay.

    The first one is among the largest: it is what a kernel would look at that is switched by one.
    """
    most = math.log2(torch.finfo(dtype).max)
    reach = min(_MAGNITUDES, int(most) // 4)
    powers = torch.randint(-reach, reach + 1, values.shape, generator=generator)
    powers[0] = reach
    scaled = torch.ldexp(values, powers)
    limit = 2.0 ** (most / 2)
    return scaled.clamp(-limit, limit)


def _of_every_power(
    values: torch.Tensor, dtype: torch.dtype, generator: torch.Generator, *, within_one: bool
) -> torch.Tensor:
    """Return values that are drawn of each power of two alike; signs stay.

    What a function's branch decides on may be a single power, such as where it takes x for tanh(x).
    Squares of the largest are numbers still.
    """
    info = torch.finfo(dtype)
    least = int(math.log2(info.smallest_normal) + math.log2(info.eps))
    most = 0 if within_one else int(math.log2(info.max)) // 2
    powers = torch.randint(least, most, values.shape, generator=generator)
    parts = 1 + torch.rand(values.shape, generator=generator, dtype=torch.float64)
    return torch.ldexp(parts, powers).copysign(values)


def _integers(
    original: torch.Tensor, generator: torch.Generator, *, resampled: bool
) -> torch.Tensor:
    plain = original.to("cpu")
    if plain.dtype in (torch.uint16, torch.uint32, torch.uint64):
        plain = plain.to(torch.int64)
    low, high = int(plain.min()), int(plain.max())
    flat = plain.reshape(-1)
    if flat.numel() > 1 and torch.unique(flat).numel() == flat.numel():
        # All different, such as the places of a scatter: they stay so.
        return flat[torch.randperm(flat.numel(), generator=generator)].reshape(original.shape)
    if resampled or low == high or high >= 2**63 - 1:
        # One value, or the full range: draw from the values themselves.
        pick = torch.randint(flat.numel(), (original.numel(),), generator=generator)
        return flat[pick].reshape(original.shape)
    values = torch.randint(low, high + 1, original.shape, generator=generator)
    return _beside_gap(flat, values, generator)


def _beside_gap(
    flat: torch.Tensor, values: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Return values with none in between, where the originals have a number far from all others.

    -100 among classes says that there is none: of what lies between no cell knows anything, and
    eager would refuse all that has it.
    """
    known = torch.unique(flat)
    gaps = known.diff()
    if len(gaps) < 2:
        return values
    at = int(gaps.argmax())
    first, last, low, high = int(known[0]), int(known[-1]), int(known[at]), int(known[at + 1])
    if high - low <= max(low - first, last - high) + 1:
        return values
    below = torch.rand(values.shape, generator=generator) < float((flat <= low).double().mean())
    under = torch.randint(first, low + 1, values.shape, generator=generator)
    over = torch.randint(high, last + 1, values.shape, generator=generator)
    return torch.where(below, under, over)
